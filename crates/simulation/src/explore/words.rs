//! Moves in words.

use roundelay_ledger::ChainState;

use super::chains::{Move, named};
use super::state::{Message, Mode, Outcome, Phase, ROWS, State, Task};

fn worker(n: u8) -> char {
    if n == 0 { 'A' } else { 'B' }
}

fn message(message: &Message) -> String {
    let Message { row, epoch, tick, attempt, .. } = message;
    format!("{}, epoch {epoch}, tick {tick}, attempt {attempt}", named(*row))
}

/// A move, and what each side then knows. Epochs, fences and workers are named anew after each move.
pub fn tell(before: &State, chosen: Move, after: &State) -> String {
    let task = |n: u8| before.tasks[usize::from(n)];
    let of = |n: u8| worker(task(n).worker);
    let held = |n: u8| message(&task(n).message);
    let lying = |n: u8| message(&before.messages[usize::from(n)].message);
    let ends = |outcome: Outcome| match outcome {
        Outcome::Done => "done",
        Outcome::Fails => "to be tried again",
        Outcome::PutOff => "put off",
    };
    let what = match chosen {
        Move::Wake(n) => format!("worker {} goes on", worker(n)),
        Move::Start(n) => format!("worker {} starts again", worker(n)),
        Move::Claim(n) => format!("worker {} claims {}", of(n), held(n)),
        Move::ClaimUnheard(n) => format!("worker {} claims {}; the answer is lost", of(n), held(n)),
        Move::ClaimLost(n) => format!("a claim of worker {} is lost on its way: {}", of(n), held(n)),
        Move::Finish(n, outcome) => format!("worker {} finishes {} ({})", of(n), held(n), ends(outcome)),
        Move::FinishUnheard(n, outcome) => {
            format!("worker {} finishes {} ({}); the answer is lost", of(n), held(n), ends(outcome))
        }
        Move::Send(n) => format!("worker {} sends {}; confirmed", of(n), message(&task(n).next)),
        Move::SendUnheard(n) => format!("worker {} sends {}; never confirmed", of(n), message(&task(n).next)),
        Move::GiveUpSending(n) => format!("worker {} cannot send {}", of(n), message(&task(n).next)),
        Move::Note(n) => format!("worker {} notes as sent and acknowledges: {}", of(n), message(&task(n).next)),
        Move::Forgets(n) => format!("worker {} acknowledges; the note is lost", of(n)),
        Move::SendJob => "the job is sent; confirmed".into(),
        Move::ForgetJob => "the ledger forgets the job".into(),
        Move::End(session) => format!("session {session} is ended: its worker is silent or gone"),
        Move::Deliver(n, to) => format!("worker {} is given {}", worker(to), lying(n)),
        Move::Look(n, row, passed) | Move::Adopt(n, row, passed) => {
            let slow = if passed { "; what lies in the queue is slow" } else { "" };
            format!("catch-up of worker {} looks at {}{slow}", worker(n), named(row))
        }
        Move::Time(wait) => format!("{wait} s pass"),
        Move::Slow(wait) => format!("{wait} s pass, though a worker or the broker has something to do: it is slow"),
        Move::Lose(n) => format!("the broker loses {}", lying(n)),
        Move::Double(n) => format!("the broker doubles {}", lying(n)),
        Move::Crash(n) => format!("worker {} is killed", worker(n)),
        Move::Freeze(n) => format!("worker {} stands still", worker(n)),
        Move::TakeBack(n) => format!("the broker takes back what worker {} has", worker(n)),
        Move::Disconnect(n) => format!("worker {} loses its connection to the broker", worker(n)),
        Move::SetForward => "the ledger's clock is set forward".into(),
        Move::SetBack(_) => "the ledger's clock is set back".into(),
        Move::Pause(row) => format!("an operator pauses {}", named(row)),
        Move::Resume(row) => format!("an operator resumes {}", named(row)),
        Move::Retire(row) => format!("an operator retires {}", named(row)),
        Move::Recover(row) => format!("an operator recovers {}", named(row)),
        Move::Anew(row, sent) => format!("an operator lets {} begin anew{}", named(row), unsent(sent)),
        Move::RunOnce(sent) => format!("an operator runs chain `a` once{}", unsent(sent)),
        Move::Copy => "the ledger is copied".into(),
        Move::Restore => "all workers are killed, the copy is restored, and `recover --all` follows".into(),
    };
    format!("{what}\n       {}", knows(after))
}

fn unsent(sent: bool) -> &'static str {
    if sent { "" } else { "; the message is not sent" }
}

/// What each side knows.
fn knows(state: &State) -> String {
    let rows = (0..ROWS as u8).filter(|row| state.rows[usize::from(*row)].epoch > 0).map(|n| {
        let row = state.rows[usize::from(n)];
        let is = ChainState::from_number(row.state.into());
        let held = match row.session {
            0 => "free".into(),
            session if state.sessions >> session & 1 == 1 => format!("held by session {session}"),
            session => format!("held by session {session}, which is over"),
        };
        let sent = if row.sent { "sent" } else { "not sent" };
        format!(
            "{} {is:?} epoch {} tick {}.{} due in {} s {sent} {held} fence {} look in {} s",
            named(n),
            row.epoch,
            row.tick,
            row.attempt,
            row.due,
            row.fence,
            row.watch
        )
    });
    let workers = (0..2u8).map(|n| {
        let of = state.workers[usize::from(n)];
        let mode = match of.mode {
            Mode::Works => "works",
            Mode::Frozen => "stands still",
            Mode::Dead => "is dead",
        };
        let tasks = state.tasks.iter().filter(|task| task.phase != Phase::Free && task.worker == n);
        let tasks = tasks.map(|Task { phase, message, .. }| {
            format!("{phase:?} {}/{}.{}", message.epoch, message.tick, message.attempt)
        });
        let tasks: Vec<String> = tasks.collect();
        format!("worker {} (session {}) {mode} [{}]", worker(n), of.session, tasks.join(", "))
    });
    let lie = state.messages.iter().filter(|lying| lying.copies > 0).map(|lying| {
        let Message { row, epoch, tick, attempt, due } = lying.message;
        format!("{}×{epoch}/{tick}.{attempt} of row {row} in {due} s", lying.copies)
    });
    let lie: Vec<String> = lie.collect();
    let all: Vec<String> = rows.chain(workers).collect();
    format!("{}; broker [{}]", all.join("; "), lie.join(", "))
}
