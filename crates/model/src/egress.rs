//! Where calls may lead (pure).
//!
//! A URL may be made of what a job brings, and a name may lead to another address tomorrow. So a call leads to public
//! addresses only, unless the operator allows more: a worker stands where the cloud's metadata service, databases and
//! the admin interfaces of its neighbours can be reached, and a job must not make it ask those.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use url::{Host, Url};

const fn net4(base: [u8; 4], bits: u8) -> IpNet {
    let [a, b, c, d] = base;
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), bits))
}

const fn net6(base: [u16; 4], last: u16, bits: u8) -> IpNet {
    let [a, b, c, d] = base;
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, d, 0, 0, 0, last), bits))
}

/// `ADDRESS` or `ADDRESS/BITS`; nothing when `text` is neither.
fn network(text: &str) -> Option<Result<IpNet, String>> {
    let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
    let base: IpAddr = address.trim_start_matches('[').trim_end_matches(']').parse().ok()?;
    let alone = IpNet::from(base);
    let Some(bits) = bits else { return Some(Ok(alone)) };
    let Some(network) = bits.parse().ok().and_then(|bits| IpNet::new(base, bits).ok()) else {
        let most = alone.max_prefix_len();
        return Some(Err(format!("`{text}` is no network: after the slash stands a number from 0 to {most}")));
    };
    if network.trunc() != network {
        let first = network.trunc();
        return Some(Err(format!("`{text}` does not begin where the network does; write `{first}`")));
    }
    Some(Ok(network))
}

/// A block of addresses that calls do not lead to by themselves.
#[derive(Clone, Copy)]
struct Closed {
    network: IpNet,
    what: &'static str,
    /// Whether only a network opens it that is no larger than this block: neither a name does, nor `0.0.0.0/0`.
    guarded: bool,
}

const fn v4(base: [u8; 4], bits: u8, what: &'static str) -> Closed {
    Closed { network: net4(base, bits), what, guarded: false }
}

const fn v6(base: [u16; 4], bits: u8, what: &'static str) -> Closed {
    Closed { network: net6(base, 0, bits), what, guarded: false }
}

const fn guarded(network: IpNet, what: &'static str) -> Closed {
    Closed { network, what, guarded: true }
}

const METADATA: &str = "a cloud's metadata service";
const DOCUMENTATION: &str = "for documentation";

/// By IANA's registries of special-purpose addresses; the first that has an address counts.
const CLOSED: [Closed; 36] = [
    guarded(net4([169, 254, 169, 254], 32), METADATA),
    guarded(net4([169, 254, 0, 0], 16), "link-local"),
    guarded(net4([100, 100, 100, 200], 32), METADATA),
    // Azure's, which looks like anybody's.
    guarded(net4([168, 63, 129, 16], 32), METADATA),
    guarded(net6([0xfd00, 0x0ec2, 0, 0], 0, 32), METADATA),
    guarded(net6([0xfd20, 0x00ce, 0, 0], 0x0254, 128), METADATA),
    guarded(net6([0xfe80, 0, 0, 0], 0, 10), "link-local"),
    v4([0, 0, 0, 0], 8, "this machine"),
    v4([10, 0, 0, 0], 8, "private"),
    v4([100, 64, 0, 0], 10, "of a carrier's own network"),
    v4([127, 0, 0, 0], 8, "this machine"),
    v4([172, 16, 0, 0], 12, "private"),
    v4([192, 0, 0, 0], 24, "for protocols"),
    v4([192, 0, 2, 0], 24, DOCUMENTATION),
    v4([192, 88, 99, 0], 24, "a 6to4 relay"),
    v4([192, 168, 0, 0], 16, "private"),
    v4([198, 18, 0, 0], 15, "for benchmarks"),
    v4([198, 51, 100, 0], 24, DOCUMENTATION),
    v4([203, 0, 113, 0], 24, DOCUMENTATION),
    v4([224, 0, 0, 0], 4, "multicast"),
    v4([255, 255, 255, 255], 32, "broadcast"),
    v4([240, 0, 0, 0], 4, "reserved"),
    Closed { network: net6([0, 0, 0, 0], 1, 128), what: "this machine", guarded: false },
    Closed { network: net6([0, 0, 0, 0], 0, 128), what: "this machine", guarded: false },
    v6([0, 0, 0, 0], 80, "an IPv4 address in IPv6"),
    v6([0x64, 0xff9b, 0, 0], 96, "an IPv4 address in IPv6 (NAT64)"),
    v6([0x64, 0xff9b, 1, 0], 48, "an IPv4 address in IPv6 (NAT64)"),
    v6([0x2001, 0, 0, 0], 32, "an IPv4 address in IPv6 (Teredo)"),
    v6([0x2001, 0, 0, 0], 23, "for protocols"),
    v6([0x2001, 0x0db8, 0, 0], 32, DOCUMENTATION),
    v6([0x2002, 0, 0, 0], 16, "an IPv4 address in IPv6 (6to4)"),
    v6([0x3fff, 0, 0, 0], 20, DOCUMENTATION),
    v6([0xfc00, 0, 0, 0], 7, "private"),
    v6([0xfec0, 0, 0, 0], 10, "private"),
    v6([0xff00, 0, 0, 0], 8, "multicast"),
    // The rest of what is closed is what lies outside of `PUBLIC`.
    v6([0x5f00, 0, 0, 0], 16, "reserved"),
];

/// All public addresses of IPv6 are in it.
const PUBLIC: IpNet = net6([0x2000, 0, 0, 0], 0, 3);

/// Why an address is closed; nothing when it is public.
fn closed(address: IpAddr) -> Option<Closed> {
    let found = CLOSED.iter().find(|closed| closed.network.contains(&address)).copied();
    let IpAddr::V6(v6) = address else { return found };
    let network = IpNet::from(address);
    let found =
        found.or_else(|| (!PUBLIC.contains(&address)).then_some(Closed { network, what: "reserved", guarded: false }));
    // A gateway may turn it into what it stands for, and that counts where it is guarded.
    match within(v6).and_then(|v4| closed(IpAddr::V4(v4))) {
        Some(inner) if inner.guarded => Some(Closed { network, ..inner }),
        _ => found,
    }
}

/// The IPv4 address that an IPv6 address stands for.
fn within(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let bits = u128::from(address);
    let v4 = |bits: u128| Some(Ipv4Addr::from(bits as u32));
    match address.segments() {
        // Compatible, mapped, and translated; then NAT64.
        [0, 0, 0, 0, 0, 0 | 0xffff, ..] | [0, 0, 0, 0, 0xffff, 0, ..] => v4(bits),
        [0x64, 0xff9b, 0, 0, 0, 0, ..] => v4(bits),
        [0x2002, ..] => v4(bits >> 80),
        // Teredo has it with all bits turned over.
        [0x2001, 0, ..] => v4(!bits),
        _ => None,
    }
}

/// What calls may lead to besides public addresses: `allow` in the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reach {
    networks: Vec<IpNet>,
    /// As URLs spell them, without a dot at the end.
    names: Vec<String>,
}

impl Reach {
    /// From addresses, networks (`10.0.0.0/8`) and names of hosts.
    ///
    /// # Errors
    /// Says which of them is none of these.
    pub fn new<'a>(allow: impl IntoIterator<Item = &'a String>) -> Result<Self, String> {
        let mut reach = Self::default();
        for entry in allow {
            match network(entry) {
                Some(network) => reach.networks.push(network?),
                None => reach.names.push(host_name(entry)?),
            }
        }
        Ok(reach)
    }

    /// The same, for calls to `url`, which stands in the configuration: who writes `localhost` there means it.
    #[must_use]
    pub fn naming(mut self, url: &Url) -> Self {
        if let Some(Host::Domain(host)) = url.host()
            && bare(host) == "localhost"
        {
            self.names.push("localhost".into());
        }
        self
    }

    /// Whether a call may lead to `address`, which `host` has.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn check(&self, host: &str, address: IpAddr) -> Result<(), Refused> {
        let Some(closed) = closed(address) else { return Ok(()) };
        let opened = |network: &IpNet| {
            network.contains(&address) && (!closed.guarded || network.prefix_len() >= closed.network.prefix_len())
        };
        let named = !closed.guarded && self.names.iter().any(|name| name == bare(host));
        if named || self.networks.iter().any(opened) {
            return Ok(());
        }
        Err(Refused { host: bare(host).to_owned(), address, closed: closed.what, guarded: closed.guarded })
    }

    /// Whether `url` may be called, if its host is an address: no name is looked up then, so the check of looked-up
    /// addresses does not see it. `named` says that the address stands in the configuration, and does not come from
    /// a job.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn check_address(&self, url: &Url, named: bool) -> Result<(), Refused> {
        let address = match url.host() {
            Some(Host::Ipv4(address)) => IpAddr::V4(address),
            Some(Host::Ipv6(address)) => IpAddr::V6(address),
            Some(Host::Domain(_)) | None => return Ok(()),
        };
        match self.check(&address.to_string(), address) {
            Err(refused) if refused.guarded || !named => Err(refused),
            _ => Ok(()),
        }
    }
}

/// Without the dot that says that nothing follows.
fn bare(host: &str) -> &str {
    host.strip_suffix('.').unwrap_or(host)
}

fn host_name(text: &str) -> Result<String, String> {
    let wrong = || {
        format!(
            "`{text}` is neither an address (10.0.0.5), nor a network (10.0.0.0/8), nor the name of a host without \
             scheme and port (sync.default.svc)"
        )
    };
    if text.contains(['*', '/', ':', '@', ' ']) {
        return Err(wrong());
    }
    match Host::parse(text) {
        Ok(Host::Domain(name)) if !bare(&name).is_empty() => Ok(bare(&name).to_owned()),
        // An address in a spelling that hides it, such as 0x7f.1.
        Ok(other @ (Host::Ipv4(_) | Host::Ipv6(_))) => Err(format!("`{text}` is the address {other}; write that")),
        _ => Err(wrong()),
    }
}

/// A call that would have led where calls may not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    host: String,
    address: IpAddr,
    closed: &'static str,
    guarded: bool,
}

impl Refused {
    /// What has to stand in `allow` for such a call.
    pub fn entry(&self) -> String {
        // A name stays when the address changes, but does not open what is guarded.
        if self.guarded { self.address.to_string() } else { self.host.clone() }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, address, closed, .. } = self;
        if *host == address.to_string() {
            write!(f, "{address} is no public address ({closed})")
        } else {
            write!(f, "{host} leads to {address}, which is no public address ({closed})")
        }
    }
}

impl std::error::Error for Refused {}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(allow: &[&str]) -> Reach {
        Reach::new(&allow.iter().map(|entry| (*entry).to_owned()).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn a_table_of_addresses() {
        let public = [
            "1.1.1.1",
            "8.8.8.8",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "169.253.255.255",
            "169.255.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.0",
            "192.167.0.1",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "168.63.129.17",
            "2606:4700::1111",
            "2001:200::1",
            "2001:4860:4860::8888",
            "2a00::1",
            "3ffe::1",
        ];
        for address in public {
            assert_eq!(reach(&[]).check("h", address.parse().unwrap()), Ok(()), "{address}");
        }
        let closed = [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.0",
            "10.255.255.255",
            "100.64.0.0",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.255.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.7",
            "203.0.113.7",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::8.8.8.8",
            "::ffff:8.8.8.8",
            "::ffff:127.0.0.1",
            "::ffff:0:8.8.8.8",
            "64:ff9b::8.8.8.8",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:0:4136:e378::1",
            "2001:2::1",
            "2001:10::1",
            "2001:db8::1",
            "2002:808:808::1",
            "3fff::1",
            "4000::1",
            "5f00::1",
            "fc00::1",
            "fdff::1",
            "fec0::1",
            "ff02::1",
            "e000::1",
        ];
        for address in closed {
            let address: IpAddr = address.parse().unwrap();
            let refused = reach(&[]).check("h", address).unwrap_err();
            assert!(!refused.guarded && refused.entry() == "h", "{refused}");
            assert_eq!(reach(&["h"]).check("h.", address), Ok(()), "the name opens {address}");
            assert_eq!(reach(&[&address.to_string()]).check("h", address), Ok(()), "so does the address");
            assert_eq!(reach(&["0.0.0.0/0", "::/0"]).check("h", address), Ok(()), "so does everything");
            assert!(reach(&["other", "8.8.8.0/24"]).check("h", address).is_err(), "{address}");
        }
    }

    #[test]
    fn what_is_guarded_is_opened_by_its_own_address_alone() {
        let guarded = [
            ("169.254.169.254", "169.254.169.254"),
            ("169.254.170.23", "169.254.0.0/16"),
            ("100.100.100.200", "100.100.100.200/32"),
            ("168.63.129.16", "168.63.129.16"),
            ("fd00:ec2::254", "fd00:ec2::/32"),
            ("fd20:ce::254", "fd20:ce::254"),
            ("fe80::1", "fe80::/10"),
            ("febf::1", "[febf::1]"),
            ("::ffff:169.254.169.254", "::ffff:a9fe:a9fe"),
            ("::169.254.169.254", "::a9fe:a9fe"),
            ("64:ff9b::169.254.169.254", "64:ff9b::a9fe:a9fe"),
            ("2002:a9fe:a9fe::1", "2002:a9fe:a9fe::1"),
            ("2001:0:1:2:3:4:5601:5601", "2001:0:1:2:3:4:5601:5601"),
        ];
        for (address, entry) in guarded {
            let ip: IpAddr = address.parse().unwrap();
            let refused = reach(&["h", "0.0.0.0/0", "::/0", "fc00::/7", "::ffff:0:0/96"]).check("h", ip).unwrap_err();
            assert!(refused.guarded && refused.entry() == ip.to_string(), "{refused}");
            assert_eq!(reach(&[entry]).check("h", ip), Ok(()), "{entry} opens {address}");
            let url = Url::parse(&if ip.is_ipv6() { format!("http://[{ip}]/") } else { format!("http://{ip}/") });
            assert!(reach(&[]).check_address(&url.unwrap(), true).is_err(), "not even where the URL is constant");
        }
    }

    #[test]
    fn hosts_that_are_addresses_in_other_spellings_are_seen_through() {
        let hosts = [
            "127.0.0.1",
            "127.1",
            "2130706433",
            "0x7f000001",
            "0177.0.0.1",
            "0x7f.0.0.1",
            "127.0.0.1.",
            "0",
            "%31%32%37.1",
            "①②⑦.⓪.⓪.①",
            "127。0。0。1",
            "10.1",
            "[::1]",
            "[::]",
            "[0:0:0:0:0:ffff:7f00:1]",
            "[::ffff:127.0.0.1]",
            "3232235777",
        ];
        for host in hosts {
            let url = Url::parse(&format!("http://{host}:8000/x")).unwrap();
            assert!(reach(&[]).check_address(&url, false).is_err(), "{host}");
            assert_eq!(reach(&[]).check_address(&url, true), Ok(()), "{host} in the configuration");
        }
        // Names are looked at when their addresses are known.
        let name = Url::parse("http://127.0.0.1.nip.example/").unwrap();
        assert_eq!(reach(&[]).check_address(&name, false), Ok(()));
        let local = Url::parse("http://LocalHost.:80/").unwrap();
        assert_eq!(reach(&[]).naming(&local).check("localhost", "127.0.0.1".parse().unwrap()), Ok(()));
        assert!(reach(&[]).naming(&name).check("localhost", "127.0.0.1".parse().unwrap()).is_err());
    }

    #[test]
    fn entries_that_are_wrong_say_so() {
        let table = [
            ("10.0.0.0/33", "from 0 to 32"),
            ("::/129", "from 0 to 128"),
            ("10.0.0.5/8", "write `10.0.0.0/8`"),
            ("fd00::1/8", "write `fd00::/8`"),
            ("127.1", "is the address 127.0.0.1"),
            ("sync:8000", "without scheme and port"),
            ("http://sync", "without scheme and port"),
            ("*.svc", "without scheme and port"),
            ("10.0.0.0/", "from 0 to 32"),
            ("", "is neither"),
            (".", "is neither"),
        ];
        for (entry, part) in table {
            let error = Reach::new(&[entry.to_owned()]).unwrap_err();
            assert!(error.contains(part), "{entry}: {error}");
        }
    }

    #[test]
    fn what_is_refused_says_which_address_and_what_opens_it() {
        let check = |host: &str, address: &str| reach(&[]).check(host, address.parse().unwrap()).unwrap_err();
        let name = check("sync.default.svc", "10.0.0.5");
        assert_eq!(name.to_string(), "sync.default.svc leads to 10.0.0.5, which is no public address (private)");
        assert_eq!(name.entry(), "sync.default.svc");
        let metadata = check("metadata.internal", "169.254.169.254");
        assert!(metadata.to_string().ends_with("(a cloud's metadata service)"), "{metadata}");
        assert_eq!(metadata.entry(), "169.254.169.254");
        assert_eq!(check("127.0.0.1", "127.0.0.1").to_string(), "127.0.0.1 is no public address (this machine)");
    }
}
