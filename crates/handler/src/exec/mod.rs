//! Starts a program with the job on its standard input, and takes its exit code for the outcome.
//!
//! `program` says whether it may be started, and within which limits, `group` is the program's process group and sees
//! to its end, `tail` keeps what it wrote last, and `lines` finds what it says of its progress meanwhile.
//! `docs/handlers.md` documents the contract.

mod group;
mod lines;
pub mod program;
mod settings;
mod tail;

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use async_trait::async_trait;
use nix::sys::signal::Signal;
use roundelay_model::clock::Clock;
use roundelay_model::job::Job;
use roundelay_model::outcome::Outcome;
use roundelay_model::reason::{Class, Mark, Reason};
use tokio::io::AsyncWriteExt;
use tokio::process::{ChildStdin, Command};
use tokio::time::{sleep, timeout};

use self::group::Group;
use self::lines::Lines;
use self::program::{LIMITER, Unstartable};
use self::tail::Tail;
use super::answer::{self, EXCERPT};
use super::{Handler, no_more_files, not_followed, out_of_files, wire};
use crate::compare::{Compare, Marking, saying};
use crate::context::Context;
pub use settings::{ExecSettings, LimitSettings};

/// The exit code that says that the data is at fault, and no retry will help (`EX_DATAERR`).
const DATA_ERROR: i32 = 65;
/// How long the output is still read after the program has ended and its group is killed. It only
/// ever takes this long when something has left the group and holds the output open.
const LINGER: Duration = Duration::from_secs(1);

/// Runs jobs by starting a program for each.
#[derive(Debug)]
pub struct ExecHandler {
    settings: ExecSettings,
    program: String,
    clock: Clock,
}

/// Why a handler cannot be set up; phrased to follow "failed to set up the exec handler: ".
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ExecError {
    /// There is no program to start.
    #[error("`argv` is empty; it needs at least the program")]
    NoProgram,
}

impl ExecHandler {
    /// A handler that reads deadlines by `clock`. Whether the program exists is seen at each start.
    ///
    /// # Errors
    /// [`ExecError`] when `settings` cannot work.
    pub fn new(settings: &ExecSettings, clock: Clock) -> Result<Self, ExecError> {
        let program = settings.argv.first().ok_or(ExecError::NoProgram)?.clone();
        Ok(Self { settings: settings.clone(), program, clock })
    }

    fn command(&self, job: &Job, context: &Context) -> Command {
        let mut command = if self.settings.limits.any() {
            let mut command = Command::new(LIMITER);
            command.args(program::limiting(&self.settings.limits)).arg(&self.program);
            command
        } else {
            Command::new(&self.program)
        };
        command
            .args(&self.settings.argv[1..])
            .env_clear()
            .envs(self.settings.env.iter().map(|(name, value)| (name, value.expose())))
            .env("ROUNDELAY_ID", &job.id)
            .env("ROUNDELAY_KIND", &job.kind)
            .env("ROUNDELAY_KEY", &job.key)
            .env("ROUNDELAY_ATTEMPT", job.attempt.to_string())
            .env("ROUNDELAY_DEADLINE", job.deadline.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(tick) = job.tick {
            command.env("ROUNDELAY_TICK", tick.tick.to_string());
        }
        if let Some(parent) = context.span().traceparent() {
            command.env("TRACEPARENT", parent);
        }
        if let Some(state) = context.span().tracestate() {
            command.env("TRACESTATE", state);
        }
        if let Some(folder) = &self.settings.cwd {
            command.current_dir(folder);
        }
        command
    }

    /// Why the program is not started, as far as that is seen before it is.
    fn refusal(&self) -> Option<Outcome> {
        let path = Path::new(&self.program);
        let looked = program::allowed(path, self.settings.allow.as_deref());
        let looked = looked.and_then(|()| if self.settings.limits.any() { program::executable(path) } else { Ok(()) });
        let looked = looked.and_then(|()| program::within_ours(&self.settings.limits));
        looked.err().map(|why| match why {
            Unstartable::Absent(error) => self.cannot_start(&error),
            Unstartable::Above(setting, most) => {
                let text = format!(
                    "cannot start {}: its handler.exec.limits.{setting} is above {most}, the most that this worker may \
                     give; lower it, or raise the worker's own hard limit",
                    self.program
                );
                Outcome::retry(Reason::new(Class::Start, text))
            }
            Unstartable::NotAllowed(found) => {
                let (program, found) = (&self.program, found.display());
                let text =
                    format!("not started: {program} is {found}, and neither that nor its folder is in exec.allow");
                Outcome::fail(Reason::new(Class::Refused, text).coded("program_refused"))
            }
        })
    }

    fn cannot_start(&self, error: &std::io::Error) -> Outcome {
        if let Some(error) = out_of_files(error) {
            return no_more_files(&format!("cannot start {}", self.program), &error);
        }
        // A missing folder gives the same error as a missing program, so both are named.
        let folder = self.settings.cwd.as_ref().map(|folder| format!(" in {}", folder.display())).unwrap_or_default();
        let limiter = if self.settings.limits.any() && !Path::new(LIMITER).exists() {
            format!(" ({LIMITER}, which sets its limits, is not there: install util-linux)")
        } else {
            String::new()
        };
        Outcome::retry(Reason::new(Class::Start, format!("cannot start {}{folder}: {error}{limiter}", self.program)))
    }
}

#[async_trait]
impl Handler for ExecHandler {
    async fn run(&self, job: Job, context: Context) -> Outcome {
        let left = job.deadline.since(self.clock.wall());
        if left.is_zero() {
            return Outcome::retry(Reason::new(Class::Timeout, "the deadline had passed before the start"));
        }
        if let Some(outcome) = self.refusal() {
            return outcome;
        }
        let mut group = match Group::start(self.command(&job, &context)) {
            Ok(group) => group,
            Err(error) => return self.cannot_start(&error),
        };
        let soft = (!job.grace.is_zero()).then_some(left);
        let mut lines = Lines::new(context.clone());
        let mut marking = (self.settings.compare == Compare::Hash).then(Marking::default);
        // Of a long output only the end is kept, but all of it counts.
        let look = |text: &[u8]| {
            lines.look(text);
            if let Some(marking) = &mut marking {
                marking.add(text);
            }
        };
        let input = wire::encode(&job, context.report_url());
        let talked = timeout(left + job.grace, converse(&mut group, &input, soft, look)).await;
        match talked {
            Ok(Ok((status, out, err))) => {
                lines.end();
                let advice = answer::advice(deciding_line(&out));
                if let Some(advice) = advice.unwrap_or_else(|why| not_followed(&job, &why)) {
                    context.note(advice);
                }
                saying(outcome_of(status, &out, &err), marking.map(Marking::mark))
            }
            Ok(Err(error)) => {
                Outcome::retry(Reason::new(Class::Start, format!("lost track of {}: {error}", self.program)))
            }
            Err(_) => {
                group.kill();
                // Returning only when it is gone means that the next attempt does not meet it.
                let _ = group.reap().await;
                Outcome::retry(Reason::new(Class::Timeout, "no exit by the deadline, killed"))
            }
        }
    }
}

/// Feeds the program and listens to it until it ends, then ends what it left behind. After `soft` it is
/// asked to end. `look` is shown all of its standard output.
async fn converse(
    group: &mut Group,
    input: &[u8],
    soft: Option<Duration>,
    look: impl FnMut(&[u8]),
) -> std::io::Result<(ExitStatus, Vec<u8>, Vec<u8>)> {
    let (stdin, stdout, stderr) = group.pipes();
    let (mut out, mut err) = (Tail::default(), Tail::default());
    {
        let (out, err) = (out.follow(stdout, look), err.follow(stderr, |_| {}));
        let mut talk = std::pin::pin!(talk(stdin, input, out, err));
        let mut talking = true;
        let mut asking = std::pin::pin!(sleep(soft.unwrap_or_default()));
        let mut ask = soft.is_some();
        loop {
            tokio::select! {
                () = &mut talk, if talking => talking = false,
                () = group.ended() => break,
                () = &mut asking, if ask => {
                    ask = false;
                    group.ask_to_end();
                }
            }
        }
        group.kill();
        if talking {
            let _ = timeout(LINGER, talk).await;
        }
    }
    Ok((group.reap().await?, out.into(), err.into()))
}

/// All three at once, because a program that is stuck writing does not read.
async fn talk(stdin: Option<ChildStdin>, input: &[u8], out: impl Future<Output = ()>, err: impl Future<Output = ()>) {
    let feed = async {
        if let Some(mut stdin) = stdin {
            // A program need not read its input: then this is a broken pipe, and no failure.
            let _ = stdin.write_all(input).await;
        }
    };
    tokio::join!(feed, out, err);
}

/// The outcome of a program that ended with `status`, having written `out` and `err` last.
fn outcome_of(status: ExitStatus, out: &[u8], err: &[u8]) -> Outcome {
    match status.code() {
        Some(0) => answer::decided(deciding_line(out)).unwrap_or(Outcome::Done),
        Some(DATA_ERROR) => Outcome::fail(exited(DATA_ERROR, err)),
        Some(code) => Outcome::retry(exited(code, err)),
        None => Outcome::retry(reason(Class::Signal, killed(status.signal()), err)),
    }
}

/// Known by its code, to which the kind's settings may give a name.
fn exited(code: i32, err: &[u8]) -> Reason {
    reason(Class::Exit, format!("exit {code}"), err).marked(Mark::Exit(code))
}

fn killed(signal: Option<i32>) -> String {
    match signal.map(|number| (number, Signal::try_from(number))) {
        Some((_, Ok(signal))) => format!("killed by {signal}"),
        Some((number, Err(_))) => format!("killed by signal {number}"),
        None => "ended without an exit code".into(),
    }
}

fn reason(class: Class, end: String, err: &[u8]) -> Reason {
    match roundelay_model::reason::excerpt(last_line(err), EXCERPT) {
        line if line.is_empty() => Reason::new(class, end),
        line => Reason::new(class, format!("{end}: {line}")),
    }
}

/// The last line with something in it that does not speak of progress.
fn deciding_line(text: &[u8]) -> &[u8] {
    let mut written = text.rsplit(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_end);
    written.find(|line| !line.is_empty() && !lines::is_report(line)).unwrap_or_default()
}

/// The last line with something in it.
fn last_line(text: &[u8]) -> &[u8] {
    let text = text.trim_ascii_end();
    let start = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
    &text[start..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(code: i32, out: &str, err: &str) -> Outcome {
        outcome_of(ExitStatus::from_raw(code << 8), out.as_bytes(), err.as_bytes())
    }

    #[test]
    fn a_table_of_exit_codes() {
        let fail = r#"{"outcome":"fail","reason":"x"}"#;
        let table = [
            (0, "", "", Outcome::Done),
            (0, "fine\n", "noise", Outcome::Done),
            (0, &format!("log\n{fail}\n\n"), "", Outcome::fail("x")),
            (0, &format!("{fail}\nlog\n"), "", Outcome::Done),
            (
                0,
                &format!("{fail}\nroundelay: progress {{\"done\":2}}\n\nroundelay: progress x\r\n"),
                "",
                Outcome::fail("x"),
            ),
            (0, "roundelay: progress {\"outcome\":\"fail\"}\n", "", Outcome::Done),
            (1, fail, "", Outcome::retry("exit 1")),
            (1, "", "Traceback\n  File\nValueError: x\n", Outcome::retry("exit 1: ValueError: x")),
            (64, "", "", Outcome::retry("exit 64")),
            (65, "", "bad row", Outcome::fail("exit 65: bad row")),
            (66, "", "", Outcome::retry("exit 66")),
            (75, "", "later\n \n", Outcome::retry("exit 75: later")),
            (100, "", "", Outcome::retry("exit 100")),
            (255, "", "", Outcome::retry("exit 255")),
        ];
        for (code, out, err, expected) in table {
            assert_eq!(exit(code, out, err), expected, "exit {code}, {out:?}, {err:?}");
        }
        let mark = |code| exit(code, "", "").reason().map(|reason| reason.mark.clone());
        assert_eq!((mark(65), mark(3)), (Some(Mark::Exit(65)), Some(Mark::Exit(3))));
        assert_eq!(outcome_of(ExitStatus::from_raw(9), b"", b""), Outcome::retry("killed by SIGKILL"));
        assert_eq!(outcome_of(ExitStatus::from_raw(11), b"", b"oh"), Outcome::retry("killed by SIGSEGV: oh"));
        assert_eq!(outcome_of(ExitStatus::from_raw(40), b"", b""), Outcome::retry("killed by signal 40"));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_limit_above_the_worker_s_own_is_told_before_the_start() {
        use nix::sys::resource::{Resource, getrlimit, setrlimit};
        // So much CPU time no test takes.
        let most = 80_000;
        let (_, hard) = getrlimit(Resource::RLIMIT_CPU).unwrap();
        setrlimit(Resource::RLIMIT_CPU, most.min(hard), most.min(hard)).unwrap();
        let refusal = |cpu| {
            let limits = crate::exec::LimitSettings { cpu: Some(cpu), ..Default::default() };
            let settings = ExecSettings { argv: vec!["/bin/true".into()], limits, ..ExecSettings::default() };
            ExecHandler::new(&settings, Clock::System).unwrap().refusal()
        };
        assert_eq!(refusal(1), None);
        // What does set it is asked whether it can.
        let set = std::process::Command::new(LIMITER).args(["--cpu=86400:86405", "--", "/bin/true"]).output().unwrap();
        let told = refusal(86_400).map(|outcome| outcome.reason().map(ToString::to_string).unwrap_or_default());
        assert_eq!(set.status.success(), told.is_none(), "{told:?} {set:?}");
        if let Some(told) = told {
            assert!(told.starts_with("cannot start /bin/true: its handler.exec.limits.cpu is above "), "{told}");
        }
    }

    #[test]
    fn last_lines() {
        for (text, line) in [("", ""), ("a", "a"), ("a\n", "a"), ("a\nb", "b"), ("a\r\nb\r\n", "b"), ("\n\n", "")] {
            assert_eq!(last_line(text.as_bytes()), line.as_bytes(), "{text:?}");
        }
    }

    #[test]
    fn an_empty_argv_is_refused() {
        let settings = ExecSettings::default();
        assert_eq!(ExecHandler::new(&settings, Clock::System).unwrap_err(), ExecError::NoProgram);
    }
}
