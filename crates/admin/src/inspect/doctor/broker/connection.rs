//! How far a connection to the broker gets, what both sides agree on, and the certificates that were seen (pure).

use roundelay_broker::rabbit::certificates::{Certificate, Soon};
use roundelay_broker::rabbit::examine::{Negotiated, Place, Reached};
use roundelay_model::clock::Time;
use roundelay_model::topology::Topology;

use super::permissions::Needs;
use crate::inspect::doctor::finding::{Area, Finding, Gathered, word};

/// Channels of a connection that a worker needs beside one for each queue.
const OWN_CHANNELS: usize = 16;
/// With a longer heartbeat, in seconds, a dead peer stays unnoticed for twice that time.
const SLOW_HEARTBEAT: u16 = 120;

/// How far a connection gets, and what to do if it does not get all the way.
pub(super) fn connection(
    reached: &Gathered<Reached>,
    place: &Place,
    topology: &Topology,
    needs: &Needs,
) -> Vec<Finding> {
    let what = "connection";
    let Place { host, port, vhost, user, encrypted } = place;
    let stops = "no worker starts, and nothing can be enrolled or published; those that run wait until it is back";
    let start = format!(
        "see that RabbitMQ runs (`rabbitmq-diagnostics check_port_connectivity`), that broker.url has the right host and \
         port, and that no firewall is between: `nc -vz {host} {port}`"
    );
    let bad = |seen: String, fix: &str| vec![Finding::bad(Area::Broker, what, seen, stops, fix)];
    match reached {
        Err(why) => bad(format!("{host}:{port}: {why}"), &start),
        Ok(Reached::NoAnswer(why)) => bad(format!("{host}:{port} cannot be reached: {why}"), &start),
        Ok(Reached::NoFiles(why)) => bad(why.clone(), "correct broker.tls, or the files that it names"),
        Ok(Reached::NoHandshake(why)) => bad(
            format!("{host}:{port} does not speak TLS: {why}"),
            "use the port on which RabbitMQ listens for TLS (usually 5671), or amqp:// in place of amqps://",
        ),
        Ok(Reached::NoTls(error)) => bad(format!("TLS with {host}:{port} fails: {error}"), tls_fix(error)),
        Ok(Reached::Refused { code, words }) => {
            let seen = format!("{host}:{port} answers, and refuses: {words}");
            match code {
                Some(403) => bad(
                    seen,
                    &format!(
                        "correct user and password in broker.url (or ROUNDELAY__BROKER__URL), or set the password: \
                         `rabbitmqctl change_password {} …`; the user guest may log in only from the broker's own \
                         machine",
                        word(user)
                    ),
                ),
                Some(530) if words.contains("not found") => bad(
                    seen,
                    &format!("`rabbitmqctl add_vhost {}`, or correct the virtual host in broker.url", word(vhost)),
                ),
                Some(530) => bad(
                    seen,
                    &format!(
                        "let the user into the virtual host: `rabbitmqctl set_permissions -p {} {} {}`",
                        word(vhost),
                        word(user),
                        needs.command()
                    ),
                ),
                _ => bad(
                    seen,
                    &match encrypted {
                        true => "see RabbitMQ's log; it may be no AMQP that listens there".to_owned(),
                        false => {
                            "see RabbitMQ's log; it may be no AMQP that listens there, or only with TLS: then use \
                                  amqps://"
                                .to_owned()
                        }
                    },
                ),
            }
        }
        Ok(Reached::In(agreed)) => {
            let tls = if *encrypted { ", with TLS" } else { "" };
            let seen = format!("{user} is in the virtual host {vhost} on {host}:{port}{tls}");
            let mut all = vec![Finding::good(Area::Broker, what, seen)];
            all.extend(negotiated(agreed, topology));
            all
        }
    }
}

fn tls_fix(error: &rustls::Error) -> &'static str {
    use rustls::CertificateError as Bad;
    match error {
        rustls::Error::InvalidCertificate(Bad::UnknownIssuer) => {
            "name the file of the authority that has signed the broker's certificate in broker.tls.ca; or let this machine \
             trust it: copy it to /usr/local/share/ca-certificates, `update-ca-certificates`"
        }
        rustls::Error::InvalidCertificate(Bad::NotValidForName | Bad::NotValidForNameContext { .. }) => {
            "use in broker.url a name that is in the broker's certificate, or give the broker one with this name"
        }
        rustls::Error::InvalidCertificate(Bad::Expired | Bad::ExpiredContext { .. }) => {
            "renew the broker's certificate; see that this machine's clock is right"
        }
        rustls::Error::InvalidCertificate(Bad::NotValidYet | Bad::NotValidYetContext { .. }) => {
            "see that this machine's clock is right"
        }
        rustls::Error::InvalidMessage(_) => {
            "what answers is no TLS: use the port on which RabbitMQ listens for TLS (usually 5671), or amqp:// in place of \
             amqps://"
        }
        _ => "`openssl s_client -connect HOST:PORT` shows the broker's side of it; TLS 1.2 or 1.3 is needed",
    }
}

fn negotiated(agreed: &Negotiated, topology: &Topology) -> Vec<Finding> {
    let Negotiated { heartbeat, frame_max, channel_max } = *agreed;
    let what = "heartbeat";
    let fix = "set heartbeat in rabbitmq.conf to some seconds, or add ?heartbeat=10 to broker.url";
    let mut all = vec![match heartbeat {
        0 => Finding::bad(
            Area::Broker,
            what,
            "there is none",
            "a connection that was cut without a word is never noticed, by neither side: its messages are stuck",
            fix,
        ),
        1..=SLOW_HEARTBEAT => {
            Finding::good(Area::Broker, what, format!("every {heartbeat} s, in frames of up to {frame_max} bytes"))
        }
        _ => Finding::warning(
            Area::Broker,
            what,
            format!("every {heartbeat} s"),
            format!("a dead connection is noticed after {} s", 2 * u32::from(heartbeat)),
            fix,
        ),
    }];
    let needed = topology.queues.iter().filter(|queue| queue.ttl().is_none()).count() + OWN_CHANNELS;
    if channel_max != 0 && usize::from(channel_max) < needed {
        all.push(Finding::bad(
            Area::Broker,
            "channels",
            format!("a connection may have {channel_max}, and a worker of all queues needs up to {needed}"),
            "a worker cannot consume all of its queues",
            format!("set channel_max = {needed} or more in rabbitmq.conf"),
        ));
    }
    all
}

/// Certificates that expire soon, and those that do not.
pub(super) fn certificates(all: &[Certificate], now: Time) -> Vec<Finding> {
    let finding = |certificate: &Certificate| {
        let Certificate { whose, ends } = certificate;
        let what = "certificates";
        let follows =
            "from then on no connection to the broker succeeds; those that are open go on until they are lost";
        let fix = "renew it, and put certificate and key in their places: workers read them when they next connect";
        match certificate.soon(now) {
            None => Finding::good(Area::Broker, what, format!("{whose} ends at {ends}")),
            Some(Soon::Month) => Finding::warning(Area::Broker, what, format!("{whose} ends at {ends}"), follows, fix),
            Some(Soon::Week) => Finding::bad(Area::Broker, what, format!("{whose} ends at {ends}"), follows, fix),
            Some(Soon::Over) => Finding::bad(Area::Broker, what, format!("{whose} has ended at {ends}"), follows, fix),
        }
    };
    all.iter().map(finding).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::tests::{needs, place, topology};
    use super::*;
    use crate::inspect::doctor::finding::Grade;
    use crate::inspect::doctor::tests::have_fixes;
    use roundelay_broker::rabbit::certificates::Whose;

    #[test]
    fn each_step_of_getting_in_has_its_own_fix() {
        let refused = |code, words: &str| Reached::Refused { code, words: words.into() };
        let certificate = |error| Reached::NoTls(rustls::Error::InvalidCertificate(error));
        let table = [
            (Ok(Reached::NoAnswer("Connection refused".into())), "nc -vz h 5672"),
            (Err("no answer within 5s".into()), "no firewall"),
            (Ok(Reached::NoHandshake("eof".into())), "in place of amqps://"),
            (Ok(Reached::NoFiles("ca.pem cannot be read".into())), "correct broker.tls"),
            (Ok(certificate(rustls::CertificateError::UnknownIssuer)), "update-ca-certificates"),
            (Ok(certificate(rustls::CertificateError::NotValidForName)), "a name that is in the broker's certificate"),
            (Ok(certificate(rustls::CertificateError::Expired)), "renew the broker's certificate"),
            (Ok(refused(Some(403), "ACCESS_REFUSED")), "change_password ann"),
            (Ok(refused(Some(530), "NOT_ALLOWED - vhost v not found")), "add_vhost v"),
            (Ok(refused(Some(530), "NOT_ALLOWED - access to vhost 'v' refused")), "set_permissions -p v ann"),
            (Ok(refused(None, "eof")), "RabbitMQ's log"),
        ];
        for (reached, fix) in table {
            let findings = connection(&reached, &place(), &topology(), &needs());
            assert_eq!((findings.len(), findings[0].result), (1, Grade::Bad), "{reached:?}");
            assert!(findings[0].fix.contains(fix), "{reached:?}: {}", findings[0].fix);
        }
    }

    #[test]
    fn a_table_of_what_was_agreed_on() {
        let agreed = |heartbeat, channel_max| {
            let findings = negotiated(&Negotiated { heartbeat, frame_max: 131_072, channel_max }, &topology());
            have_fixes(&findings);
            findings.into_iter().map(|finding| (finding.what, finding.result)).collect::<Vec<_>>()
        };
        let heartbeat = |grade| ("heartbeat".to_owned(), grade);
        assert_eq!(agreed(10, 2_047), [heartbeat(Grade::Good)]);
        assert_eq!(agreed(0, 0), [heartbeat(Grade::Bad)]);
        assert_eq!(agreed(580, 0), [heartbeat(Grade::Warning)]);
        assert_eq!(agreed(10, 8), [heartbeat(Grade::Good), ("channels".to_owned(), Grade::Bad)]);
    }

    #[test]
    fn a_certificate_that_ends_is_told_in_time() {
        let (now, day) = (Time::from_millis(1_000), Duration::from_secs(86_400));
        let table = [(31, Grade::Good), (29, Grade::Warning), (6, Grade::Bad)];
        for (days, grade) in table {
            let findings = certificates(&[Certificate { whose: Whose::Broker, ends: now + day * days }], now);
            have_fixes(&findings);
            assert_eq!((findings.len(), findings[0].result), (1, grade), "{findings:?}");
        }
        let over = certificates(&[Certificate { whose: Whose::Own, ends: now }], now);
        assert!(over[0].seen.contains("has ended"), "{over:?}");
    }
}
