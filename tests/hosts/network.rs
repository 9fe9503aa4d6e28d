//! Worker hosts: network namespaces, each with a cable of its own to this machine, which can be pulled. Made with
//! `ip`, which needs root, and gone with what made them.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Context, ensure};
use tokio::process::Command;

/// A host of its own: it reaches this machine at one address, and nothing else.
pub struct Host {
    /// From 1.
    pub number: u8,
    /// What the namespace and this end of the cable are called.
    name: String,
}

impl Host {
    /// Makes one.
    pub async fn new(number: u8) -> anyhow::Result<Self> {
        // A device's name has at most 15 characters.
        let host = Self { number, name: format!("rl{}-{number}", std::process::id()) };
        let (name, far) = (&*host.name, format!("{}x", host.name));
        ip(&["netns", "add", name]).await.context("hosts of their own need root, and `ip` (Debian's iproute2)")?;
        ip(&["link", "add", name, "type", "veth", "peer", "name", &far, "netns", name]).await?;
        ip(&["address", "add", &format!("{}/30", host.this_side()), "dev", name]).await?;
        ip(&["link", "set", name, "up"]).await?;
        let own = Ipv4Addr::from(u32::from(host.near()) + 1);
        ip(&["-netns", name, "address", "add", &format!("{own}/30"), "dev", &far]).await?;
        ip(&["-netns", name, "link", "set", &far, "up"]).await?;
        ip(&["-netns", name, "link", "set", "lo", "up"]).await?;
        Ok(host)
    }

    /// This machine's address, as the host sees it. It is of the range that is kept for measurements between
    /// networks (RFC 2544), which no network in use has.
    pub fn this_side(&self) -> IpAddr {
        self.near().into()
    }

    fn near(&self) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, self.number, 1)
    }

    /// The words before a command that run it on the host.
    pub fn inside(&self) -> Vec<String> {
        ["ip", "netns", "exec", &self.name].map(str::to_owned).to_vec()
    }

    /// Pulls the cable: nothing arrives on either side, and neither side gets an error.
    pub async fn cut_off(&self) -> anyhow::Result<()> {
        ip(&["link", "set", &self.name, "down"]).await
    }

    /// Plugs it in again.
    pub async fn plug_in(&self) -> anyhow::Result<()> {
        ip(&["link", "set", &self.name, "up"]).await
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // With the namespace its end of the cable goes, and with that the other.
        let delete = std::process::Command::new("ip").args(["netns", "delete", &self.name]).status();
        if !delete.is_ok_and(|status| status.success()) {
            eprintln!("hosts: the network namespace {} could not be deleted", self.name);
        }
    }
}

async fn ip(arguments: &[&str]) -> anyhow::Result<()> {
    let output = Command::new("ip").args(arguments).output().await.context("`ip` cannot be run")?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`ip {}`: {}", arguments.join(" "), complaint.trim());
    Ok(())
}
