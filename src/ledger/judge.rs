//! What a claim comes to (pure), so that every ledger decides alike.

use super::words::{ChainState, Claim, ClaimRequest, Hint};
use crate::clock::Time;

/// A chain as a claim finds it.
#[derive(Clone, Debug)]
pub struct ChainRow {
    /// Its current message.
    pub hint: Hint,
    /// What it is doing.
    pub state: ChainState,
    /// When the tick was first due.
    pub nominal: Time,
    /// The end of its lease; zero when it has none.
    pub lease_until: Time,
    /// Whether the current message is known to have been sent.
    pub sent: bool,
}

/// What a claim comes to, short of granting it.
#[derive(Clone, Debug, PartialEq)]
pub enum Judgement {
    /// Grant it.
    Grant,
    /// Answer this.
    Answer(Claim),
}

/// Decides about a claim (pure). `row` is the chain with the requested epoch; if there is none, the
/// chain with the requested name, whose epoch is another.
pub fn judge(row: Option<&ChainRow>, request: &ClaimRequest, now: Time) -> Judgement {
    let answer = Judgement::Answer;
    let asked = &request.hint;
    // Chains are never deleted, so one that is not known was begun after this copy of the ledger.
    let Some(row) = row else { return answer(Claim::Future) };
    if asked.epoch != row.hint.epoch {
        return answer(if asked.epoch > row.hint.epoch { Claim::Future } else { Claim::Idle });
    }
    if (&asked.kind, &asked.key) != (&row.hint.kind, &row.hint.key) {
        return answer(Claim::Other { kind: row.hint.kind.clone(), key: row.hint.key.clone() });
    }
    let (place, current) = ((asked.tick, asked.attempt), (row.hint.tick, row.hint.attempt));
    // Told of a paused chain too: it must not go on from where it has been before.
    if place > current && row.state != ChainState::Retired {
        return answer(Claim::Future);
    }
    if row.state != ChainState::Active && !mutant!(ClaimIgnoresState) {
        return answer(Claim::Idle);
    }
    if place < current && !mutant!(ClaimIgnoresTick) {
        return answer(Claim::Stale((!row.sent).then(|| row.hint.clone())));
    }
    if row.lease_until > now && !request.takeover && !mutant!(ClaimIgnoresLease) {
        return answer(Claim::Held { until: row.lease_until });
    }
    if row.hint.due > now && !mutant!(ClaimEarly) {
        // The same attempt was put off since this message was sent, and has another message of
        // its own; or this is that message, a little early.
        return answer(if asked.due < row.hint.due && row.sent {
            Claim::Stale(None)
        } else {
            Claim::Early(row.hint.clone())
        });
    }
    Judgement::Grant
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn row() -> ChainRow {
        let hint = Hint {
            kind: "k".into(),
            key: "x".into(),
            queue: "q".into(),
            epoch: 5,
            tick: 3,
            attempt: 2,
            due: Time::from_millis(1_000),
        };
        ChainRow {
            hint,
            state: ChainState::Active,
            nominal: Time::from_millis(900),
            lease_until: Time::from_millis(0),
            sent: true,
        }
    }

    fn ask(tick: i64, attempt: u32) -> ClaimRequest {
        let hint = Hint { tick, attempt, ..row().hint };
        ClaimRequest { hint, worker: "w".into(), lease: Duration::from_secs(1), takeover: false }
    }

    #[test]
    fn a_table_of_claims() {
        let now = Time::from_millis(1_000);
        let hint = row().hint;
        let changed = |change: fn(&mut ChainRow)| {
            let mut row = row();
            change(&mut row);
            row
        };
        let answer = Judgement::Answer;
        let table = [
            ("current", row(), ask(3, 2), Judgement::Grant),
            ("older tick", row(), ask(2, 9), answer(Claim::Stale(None))),
            ("older attempt", row(), ask(3, 1), answer(Claim::Stale(None))),
            (
                "older, successor unsent",
                changed(|r| r.sent = false),
                ask(2, 1),
                answer(Claim::Stale(Some(hint.clone()))),
            ),
            ("newer tick", row(), ask(4, 1), answer(Claim::Future)),
            ("newer attempt", row(), ask(3, 3), answer(Claim::Future)),
            ("unsent but current", changed(|r| r.sent = false), ask(3, 2), Judgement::Grant),
            ("paused", changed(|r| r.state = ChainState::Paused), ask(3, 2), answer(Claim::Idle)),
            (
                "paused, and from the future",
                changed(|r| r.state = ChainState::Paused),
                ask(4, 1),
                answer(Claim::Future),
            ),
            (
                "retired, and from the future",
                changed(|r| r.state = ChainState::Retired),
                ask(4, 1),
                answer(Claim::Idle),
            ),
            ("retired", changed(|r| r.state = ChainState::Retired), ask(2, 2), answer(Claim::Idle)),
            (
                "held",
                changed(|r| r.lease_until = Time::from_millis(1_001)),
                ask(3, 2),
                answer(Claim::Held { until: Time::from_millis(1_001) }),
            ),
            ("lease over", changed(|r| r.lease_until = Time::from_millis(1_000)), ask(3, 2), Judgement::Grant),
            (
                "put off since",
                changed(|r| r.hint.due = Time::from_millis(1_500)),
                ask(3, 2),
                answer(Claim::Stale(None)),
            ),
        ];
        for (label, row, request, expected) in table {
            assert_eq!(judge(Some(&row), &request, now), expected, "{label}");
        }
        let mut stranger = ask(3, 2);
        stranger.hint.key = "y".into();
        let other = Claim::Other { kind: "k".into(), key: "x".into() };
        assert_eq!(judge(Some(&row()), &stranger, now), answer(other), "another chain's epoch");
        let mut early = ask(3, 2);
        early.hint.due = Time::from_millis(1_500);
        let later = changed(|r| r.hint.due = Time::from_millis(1_500));
        assert_eq!(
            judge(Some(&later), &early, now),
            answer(Claim::Early(later.hint.clone())),
            "its own message, early"
        );
        let held = changed(|r| r.lease_until = Time::from_millis(1_001));
        let over = ClaimRequest { takeover: true, ..ask(3, 2) };
        assert_eq!(judge(Some(&held), &over, now), Judgement::Grant, "taken over");
        assert_eq!(judge(None, &ask(1, 1), now), answer(Claim::Future), "a chain that the ledger does not know");
        let epoch = |epoch| ClaimRequest { hint: Hint { epoch, ..ask(3, 2).hint }, ..ask(3, 2) };
        assert_eq!(judge(Some(&row()), &epoch(4), now), answer(Claim::Idle), "begun anew since");
        assert_eq!(judge(Some(&row()), &epoch(6), now), answer(Claim::Future), "begun anew after the ledger's copy");
    }
}
