//! Whether an answer says that its entity has changed since the run before, beside what it says in words.

use ring::digest;
use roundelay_model::outcome::{Change, Outcome, Yield};

/// Which part of an answer says whether the entity has changed, where the answer does not say so in words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compare {
    /// Nothing: only words count.
    #[default]
    Word,
    /// The HTTP status: 304 is the same, another success is a change. Programs have none.
    Status,
    /// The header `ETag`: another one is a change. Programs have none.
    Etag,
    /// The body, or a program's standard output: another one is a change.
    Hash,
}

/// Turns what an answer consists of into a number that stands for it.
pub struct Marking(digest::Context);

impl Default for Marking {
    fn default() -> Self {
        Self(digest::Context::new(&digest::SHA256))
    }
}

impl Marking {
    /// This comes next.
    pub fn add(&mut self, part: &[u8]) {
        self.0.update(part);
    }

    /// The same number on every machine and in every version, since it is kept until the next run.
    pub fn mark(self) -> Change {
        let hash = self.0.finish();
        let start = hash.as_ref().first_chunk().copied().unwrap_or_default();
        // 0 is kept free for "none".
        Change::Mark(u64::from_le_bytes(start).max(1))
    }
}

/// The number that stands for `whole`.
pub fn mark(whole: &[u8]) -> Change {
    let mut marking = Marking::default();
    marking.add(whole);
    marking.mark()
}

/// An outcome that is done says `change`, unless it has said so itself.
pub fn saying(outcome: Outcome, change: Option<Change>) -> Outcome {
    match (outcome, change) {
        (Outcome::Done, Some(_)) => Outcome::DoneWith(Yield { change, ..Yield::default() }),
        (Outcome::DoneWith(yields), _) => Outcome::DoneWith(Yield { change: yields.change.or(change), ..yields }),
        (outcome, _) => outcome,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use roundelay_model::clock::{Clock, Time};
    use roundelay_model::job::Job;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use crate::answer::KEPT;
    use crate::exec::{ExecHandler, ExecSettings};
    use crate::http::{Clients, HttpHandler, HttpSettings};
    use crate::{Context, Handler};

    fn said(change: Change) -> Outcome {
        Outcome::DoneWith(Yield { change: Some(change), ..Yield::default() })
    }

    fn job() -> Job {
        Job {
            id: "j".into(),
            kind: "k".into(),
            key: "x".into(),
            queue: "q".into(),
            tick: None,
            attempt: 1,
            owner: None,
            carry: serde_json::Value::Null,
            unavailable: Vec::new(),
            grace: Duration::ZERO,
            nominal: Time::default(),
            deadline: Clock::System.wall() + Duration::from_secs(60),
            seed: 7,
            payload: serde_json::Value::Null,
        }
    }

    #[tokio::test]
    async fn an_http_handler_compares_what_it_was_answered() {
        let long = "x".repeat(KEPT + 1000);
        let table = [
            (Compare::Word, "200 OK", "etag: \"a\"\r\n", "text", Outcome::Done),
            (Compare::Status, "200 OK", "", "text", said(Change::Changed)),
            (Compare::Status, "304 Not Modified", "", "", said(Change::Same)),
            (Compare::Etag, "200 OK", "ETag: W/\"a\"\r\n", "text", said(mark(b"\"a\""))),
            (Compare::Etag, "200 OK", "", "text", Outcome::Done),
            (Compare::Hash, "200 OK", "", "text", said(mark(b"text"))),
            (Compare::Hash, "200 OK", "", &long, said(mark(&long.as_bytes()[..KEPT]))),
            (Compare::Hash, "200 OK", "", "{\"changed\":true}", said(Change::Changed)),
        ];
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let clients = Clients::default();
        for (compare, status, etag, body, expected) in table {
            let settings = HttpSettings { url: url.as_str().into(), compare, ..HttpSettings::default() };
            let handler = HttpHandler::new(&settings, &clients, Clock::System).unwrap();
            let answer = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut asked = Vec::new();
                // The job ends the request.
                while !asked.ends_with(b"}") {
                    assert!(stream.read_buf(&mut asked).await.unwrap() > 0);
                }
                let length = if status.starts_with("304") {
                    String::new()
                } else {
                    format!("content-length: {}\r\n", body.len())
                };
                let answer = format!("HTTP/1.1 {status}\r\n{etag}{length}connection: close\r\n\r\n{body}");
                // Of a long body the end is not read.
                let _ = stream.write_all(answer.as_bytes()).await;
                stream
            };
            let (outcome, _stream) = tokio::join!(handler.run(job(), Context::default()), answer);
            assert_eq!(outcome, expected, "{compare:?} {status} {etag:?}");
        }
    }

    #[tokio::test]
    async fn a_program_s_whole_output_is_compared() {
        let zeros = vec![b'0'; 5 * KEPT];
        let all = format!("head -c {} /dev/zero | tr '\\0' 0", zeros.len());
        let table = [
            (Compare::Word, "echo a", Outcome::Done),
            (Compare::Word, "echo '{\"changed\":true}'", said(Change::Changed)),
            // The configuration refuses these; they say nothing.
            (Compare::Status, "echo a", Outcome::Done),
            (Compare::Etag, "echo a", Outcome::Done),
            (Compare::Hash, "true", said(mark(b""))),
            (Compare::Hash, "echo a; echo b >&2", said(mark(b"a\n"))),
            (Compare::Hash, &all, said(mark(&zeros))),
            (Compare::Hash, "echo a; echo '{\"changed\":false}'", said(Change::Same)),
            (Compare::Hash, "echo a; exit 65", Outcome::fail("exit 65")),
        ];
        for (compare, script, expected) in table {
            let argv = ["/bin/sh", "-c", script].map(String::from).into();
            let env = [("PATH".to_owned(), "/usr/bin:/bin".into())].into();
            let settings = ExecSettings { argv, env, compare, ..ExecSettings::default() };
            let handler = ExecHandler::new(&settings, Clock::System).unwrap();
            assert_eq!(handler.run(job(), Context::default()).await, expected, "{compare:?} {script}");
        }
    }

    #[test]
    fn a_mark_is_the_beginning_of_the_hash() {
        // By sha256sum: e3b0c44298fc1c14… and ba7816bf8f01cfea….
        let table = [("", 0x141c_fc98_42c4_b0e3), ("abc", 0xeacf_018f_bf16_78ba)];
        for (text, expected) in table {
            assert_eq!(mark(text.as_bytes()), Change::Mark(expected), "{text:?}");
            let mut pieces = Marking::default();
            text.as_bytes().chunks(1).for_each(|piece| pieces.add(piece));
            assert_eq!(pieces.mark(), Change::Mark(expected), "{text:?} in pieces");
        }
    }

    #[test]
    fn a_table_of_who_says_what() {
        let carrying = |change| Outcome::DoneWith(Yield { carry: Some(7.into()), change, ..Yield::default() });
        let (same, mark) = (Some(Change::Same), Some(Change::Mark(3)));
        let snooze = || Outcome::Snooze { reason: "r".into(), wait: Duration::from_secs(1) };
        let table = [
            (Outcome::Done, None, Outcome::Done),
            (Outcome::Done, mark, said(Change::Mark(3))),
            (carrying(None), None, carrying(None)),
            (carrying(None), mark, carrying(mark)),
            (carrying(same), mark, carrying(same)),
            (Outcome::retry("r"), mark, Outcome::retry("r")),
            (Outcome::fail("r"), mark, Outcome::fail("r")),
            (snooze(), mark, snooze()),
            (Outcome::Retire { reason: "r".into() }, mark, Outcome::Retire { reason: "r".into() }),
        ];
        for (outcome, change, expected) in table {
            let words = format!("{outcome:?} and {change:?}");
            assert_eq!(saying(outcome, change), expected, "{words}");
        }
    }
}
