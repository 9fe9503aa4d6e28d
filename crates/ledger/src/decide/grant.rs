//! The decision about a claim (pure), so that every ledger decides alike.

use std::time::Duration;

use roundelay_model::clock::Time;
use roundelay_model::deaths;
use roundelay_model::deaths::{Company, SUSPECTED};
use roundelay_model::guard::{Guard, IfRunning, Manual, Past, Refusal};
use roundelay_model::ids::{Epoch, TickNo};

use crate::chain::{ChainState, Hint, Holder};
use crate::claim::{Claim, ClaimRequest};

/// A rotation and a manual run that wait for each other look again after this.
const TURN: Duration = Duration::from_secs(1);
/// How long after that catch-up leaves them alone.
const WATCH: Duration = Duration::from_secs(10);

/// A chain as a claim finds it.
#[derive(Clone, Debug)]
pub struct ChainRow {
    /// Its current message.
    pub hint: Hint,
    /// What it is doing.
    pub state: ChainState,
    /// When the tick was first due.
    pub nominal: Time,
    /// Who has claimed it.
    pub holder: Holder,
    /// The session that has claimed the chain; zero when none has.
    pub session: i64,
    /// How many workers have died while they ran this attempt, the holder among them. Only counted when the holder is
    /// gone, or is to be taken over.
    pub deaths: u32,
    /// Whether the current message is known to have been sent.
    pub sent: bool,
    /// See [`crate::NewChain::once`].
    pub once: bool,
    /// See [`crate::NewChain::manual`].
    pub manual: Manual,
    /// Of a rotation: a manual run of its chain may not have ended.
    pub beside: bool,
    /// The tick of which a run last started.
    pub started_tick: TickNo,
    /// When a run last started; zero when none has.
    pub last_start: Time,
    /// When a run last ended; zero when none has.
    pub last_finish: Time,
    /// Members of the batch that the tick waits for.
    pub batch_open: i64,
    /// See [`crate::NewChain::schedule`].
    pub schedule: Option<String>,
}

impl ChainRow {
    /// When catch-up looks at the latest at a chain that was claimed after its holder had gone, however patient it has
    /// become: if this holder goes, too, the chain must be found again.
    pub fn watched_after_death(now: Time) -> Time {
        now + WATCH
    }

    /// Whether a claim has to look at the other row of its chain: a manual run at the rotation, and a rotation at the
    /// manual run that may not have ended. In its first tick a rotation looks whatever it says: where both began at the
    /// same moment, in transactions that did not see each other, it does not know of the other.
    pub fn has_twin(&self) -> bool {
        self.hint.parent.is_none() && (self.once || self.beside || self.hint.tick == TickNo::FIRST)
    }

    /// The epoch of the rotation, which is this row or its twin, if it must be marked: a manual run of it may not have
    /// ended. Of two rows that began without seeing each other, one is claimed first, and that claim or the next sees
    /// both.
    pub fn untold(&self, twin: &Self) -> Option<Epoch> {
        let (rotation, manual) = if self.once { (twin, self) } else { (self, twin) };
        (!rotation.beside && manual.state != ChainState::Retired).then_some(rotation.hint.epoch)
    }

    /// Whether a run of the chain has not ended.
    fn runs(&self) -> bool {
        self.holder.runs() || self.batch_open > 0
    }

    /// Whether a run of the current tick has started before.
    fn has_started(&self) -> bool {
        self.started_tick == self.hint.tick
    }

    /// When the message of a chain comes again that was answered with [`Claim::Waits`], and when catch-up looks after
    /// it.
    pub fn put_off(answer: &Claim) -> Option<(Time, Time)> {
        match answer {
            Claim::Waits { until } => Some((*until, *until + WATCH)),
            _ => None,
        }
    }
}

/// The decision about a claim.
#[derive(Clone, Debug, PartialEq)]
pub enum ClaimDecision {
    /// Grant the claim; with a refusal, only so that it is finished at once.
    Grant(Option<Refusal>),
    /// Refuse the claim with this answer.
    Answer(Claim),
}

/// When a run may start that is claimed now (pure): at once, or when it is due, if that is within what it may be claimed
/// `ahead`.
pub(crate) fn starts_at(due: Time, ahead: Duration, now: Time) -> Time {
    if due.since(now) <= ahead { now.max(due) } else { now }
}

/// Decides about a claim (pure). `row` is the chain with the requested epoch; if there is none, the
/// chain with the requested name, whose epoch is another. `twin` is the other row of the same chain, where
/// [`ChainRow::has_twin`] asks for it.
pub fn decide_claim(
    row: Option<&ChainRow>,
    twin: Option<&ChainRow>,
    request: &ClaimRequest,
    now: Time,
) -> ClaimDecision {
    let answer = ClaimDecision::Answer;
    let asked = &request.hint;
    // Chains are never deleted, so one that is not known was begun after this copy of the ledger. Members
    // of a batch go when it has ended.
    let Some(row) = row else { return answer(if asked.parent.is_none() { Claim::Future } else { Claim::Idle }) };
    if asked.epoch != row.hint.epoch {
        return answer(if asked.epoch > row.hint.epoch { Claim::Future } else { Claim::Idle });
    }
    if (&asked.kind, &asked.key) != (&row.hint.kind, &row.hint.key) {
        return answer(Claim::Other { kind: row.hint.kind.clone(), key: row.hint.key.clone() });
    }
    let (place, current) = ((asked.tick, asked.attempt), (row.hint.tick, row.hint.attempt));
    // A paused chain is answered so too: it must not go on from where it has been before.
    if place > current && row.state != ChainState::Retired {
        return answer(Claim::Future);
    }
    if row.state != ChainState::Active {
        return answer(Claim::Idle);
    }
    if !row.once && !request.recurs {
        return answer(Claim::NoSchedule);
    }
    if place < current {
        return answer(Claim::Stale((!row.sent).then(|| row.hint.clone())));
    }
    // A claim whose answer was lost is made again.
    let again = request.again && row.session == request.session;
    // For a suspected attempt it has to be certain that the holder has died.
    let takeover = request.takeover && row.deaths <= SUSPECTED;
    if row.holder.runs() && !takeover && !again {
        return answer(Claim::Runs);
    }
    if row.batch_open > 0 {
        return answer(Claim::Idle);
    }
    if row.hint.due > now {
        // The same attempt was put off since this message was sent, and has another message of
        // its own; or this is that message, a little early.
        return answer(if asked.due < row.hint.due && row.sent {
            Claim::Stale(None)
        } else {
            Claim::Early(row.hint.clone())
        });
    }
    if !again && let Some(judgement) = after_deaths(row, request) {
        return judgement;
    }
    if row.hint.parent.is_none()
        && let Some(judgement) = beside_twin(row, twin, request, now)
    {
        return judgement;
    }
    let past = Past { last_start: row.last_start, last_finish: row.last_finish, due: row.hint.due };
    let asked_before = row.once || row.has_started();
    let own = row.schedule.as_deref().filter(|_| !asked_before).map(|own| request.guard.with_own(own));
    let guard = own.as_ref().unwrap_or(&request.guard);
    ClaimDecision::Grant(if asked_before { None } else { guard.refuses(past, now) })
}

/// What becomes of an attempt that workers have died over, if it does not simply run again. A single tick has no next
/// one that could be held up, so it ends.
fn after_deaths(row: &ChainRow, request: &ClaimRequest) -> Option<ClaimDecision> {
    match deaths::company(row.deaths) {
        None if row.once => Some(ClaimDecision::Grant(Some(Refusal::Deaths))),
        None => Some(ClaimDecision::Answer(Claim::SetAside)),
        Some(Company::Any) => None,
        Some(_) => (row.deaths > request.prepared).then_some(ClaimDecision::Answer(Claim::Suspected(row.deaths))),
    }
}

/// The decision about a rotation and a manual run of the same chain, where they affect each other.
fn beside_twin(row: &ChainRow, twin: Option<&ChainRow>, request: &ClaimRequest, now: Time) -> Option<ClaimDecision> {
    let manual = if row.once { row.manual } else { twin?.manual };
    let meets = manual.if_running != IfRunning::Beside && twin.is_some_and(ChainRow::runs);
    let refuses = manual.if_running != IfRunning::After;
    let looks_again = ClaimDecision::Answer(Claim::Waits { until: now + TURN });
    if !row.once {
        return meets.then_some(looks_again);
    }
    // The chain has ended since the run was accepted. What has started goes on, as every run of a chain that ends.
    if twin.is_some_and(|twin| twin.state == ChainState::Retired) && !row.has_started() {
        return Some(ClaimDecision::Grant(Some(Refusal::Ended)));
    }
    if meets {
        // What has started is tried again when there is room.
        let refused = refuses && !row.has_started();
        return Some(if refused { ClaimDecision::Grant(Some(Refusal::Running)) } else { looks_again });
    }
    if manual.force || row.has_started() {
        return None;
    }
    let guard = Guard { cooldown: request.guard.cooldown, ..Guard::default() };
    // The rotation counts manual runs too.
    let last_finish = twin.map_or(row.last_finish, |twin| twin.last_finish);
    let past = Past { last_start: Time::default(), last_finish, due: row.hint.due };
    let refusal = guard.refuses(past, now)?;
    Some(if refuses {
        ClaimDecision::Grant(Some(refusal))
    } else {
        ClaimDecision::Answer(Claim::Waits { until: last_finish + guard.cooldown })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> ChainRow {
        let hint = Hint {
            kind: "k".into(),
            key: "x".into(),
            queue: "q".into(),
            epoch: Epoch(5),
            tick: TickNo(3),
            attempt: 2,
            due: Time::from_millis(1_000),
            parent: Epoch::NONE,
            priority: None,
        };
        ChainRow {
            hint,
            state: ChainState::Active,
            nominal: Time::from_millis(900),
            holder: Holder::None,
            session: 0,
            deaths: 0,
            sent: true,
            once: false,
            manual: Manual::default(),
            beside: false,
            started_tick: TickNo(2),
            last_start: Time::from_millis(950),
            last_finish: Time::from_millis(960),
            batch_open: 0,
            schedule: None,
        }
    }

    fn ask(tick: i64, attempt: u32) -> ClaimRequest {
        let hint = Hint { tick: TickNo(tick), attempt, ..row().hint };
        ClaimRequest {
            hint,
            worker: "w".into(),
            session: 1,
            again: false,
            takeover: false,
            guard: Guard::default(),
            recurs: true,
            prepared: 0,
            ahead: Duration::ZERO,
        }
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
        let answer = ClaimDecision::Answer;
        let refused = Refusal::TooSoon { since: Duration::from_millis(50), least: Duration::from_secs(1) };
        let guarded = || ClaimRequest {
            guard: Guard { interval: Duration::from_secs(1), tolerance: Some(Duration::ZERO), ..Guard::default() },
            ..ask(3, 2)
        };
        let table = [
            ("a guard says no", row(), guarded(), ClaimDecision::Grant(Some(refused))),
            (
                "the tick has started before",
                changed(|r| r.started_tick = TickNo(3)),
                guarded(),
                ClaimDecision::Grant(None),
            ),
            ("single ticks are not guarded", changed(|r| r.once = true), guarded(), ClaimDecision::Grant(None)),
            ("waits for its batch", changed(|r| r.batch_open = 1), ask(3, 2), answer(Claim::Idle)),
            ("no schedule", row(), ClaimRequest { recurs: false, ..ask(3, 2) }, answer(Claim::NoSchedule)),
            (
                "a single tick needs none",
                changed(|r| r.once = true),
                ClaimRequest { recurs: false, ..ask(3, 2) },
                ClaimDecision::Grant(None),
            ),
            ("current", row(), ask(3, 2), ClaimDecision::Grant(None)),
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
            ("unsent but current", changed(|r| r.sent = false), ask(3, 2), ClaimDecision::Grant(None)),
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
            ("it runs", changed(|r| r.holder = Holder::Alive), ask(3, 2), answer(Claim::Runs)),
            ("its holder is gone", changed(|r| r.holder = Holder::Gone), ask(3, 2), ClaimDecision::Grant(None)),
            (
                "put off since",
                changed(|r| r.hint.due = Time::from_millis(1_500)),
                ask(3, 2),
                answer(Claim::Stale(None)),
            ),
        ];
        for (label, row, request, expected) in table {
            assert_eq!(decide_claim(Some(&row), None, &request, now), expected, "{label}");
        }
        let mut stranger = ask(3, 2);
        stranger.hint.key = "y".into();
        let other = Claim::Other { kind: "k".into(), key: "x".into() };
        assert_eq!(decide_claim(Some(&row()), None, &stranger, now), answer(other), "another chain's epoch");
        let mut early = ask(3, 2);
        early.hint.due = Time::from_millis(1_500);
        let later = changed(|r| r.hint.due = Time::from_millis(1_500));
        assert_eq!(
            decide_claim(Some(&later), None, &early, now),
            answer(Claim::Early(later.hint.clone())),
            "its own message, early"
        );
        let held = changed(|r| r.holder = Holder::Alive);
        let mine = ChainRow { session: 1, ..held.clone() };
        let again = ClaimRequest { again: true, ..ask(3, 2) };
        assert_eq!(decide_claim(Some(&mine), None, &ask(3, 2), now), answer(Claim::Runs), "by this session");
        assert_eq!(decide_claim(Some(&mine), None, &again, now), ClaimDecision::Grant(None), "whose answer was lost");
        assert_eq!(
            decide_claim(Some(&held), None, &again, now),
            answer(Claim::Runs),
            "another session has made it since"
        );
        let over = ClaimRequest { takeover: true, ..ask(3, 2) };
        assert_eq!(decide_claim(Some(&held), None, &over, now), ClaimDecision::Grant(None), "taken over");
        assert_eq!(
            decide_claim(None, None, &ask(1, 1), now),
            answer(Claim::Future),
            "a chain that the ledger does not know"
        );
        let mut member = ask(1, 1);
        member.hint.parent = Epoch(4);
        assert_eq!(decide_claim(None, None, &member, now), answer(Claim::Idle), "a member of a batch that has ended");
        let epoch = |epoch| ClaimRequest { hint: Hint { epoch: Epoch(epoch), ..ask(3, 2).hint }, ..ask(3, 2) };
        assert_eq!(decide_claim(Some(&row()), None, &epoch(4), now), answer(Claim::Idle), "begun anew since");
        assert_eq!(
            decide_claim(Some(&row()), None, &epoch(6), now),
            answer(Claim::Future),
            "begun anew after the ledger's copy"
        );
    }

    #[test]
    fn a_table_of_claims_ahead() {
        let at = |ms| Time::from_millis(ms);
        let table = [(1_000, 0, 1_000), (1_001, 0, 1_000), (1_005, 5, 1_005), (1_006, 5, 1_000), (400, 5, 1_000)];
        for (due, ahead, expected) in table {
            let starts = starts_at(at(due), Duration::from_millis(ahead), at(1_000));
            assert_eq!(starts, at(expected), "due at {due}, {ahead} ms ahead");
        }
    }

    #[test]
    fn a_table_of_ticks_that_workers_have_died_over() {
        let now = Time::from_millis(1_000);
        let of = |deaths, once| ChainRow { holder: Holder::Gone, deaths, once, ..row() };
        let alive = |deaths| ChainRow { holder: Holder::Alive, session: 1, ..of(deaths, false) };
        let prepared = |prepared| ClaimRequest { prepared, ..ask(3, 2) };
        let takeover = |prepared| ClaimRequest { takeover: true, prepared, ..ask(3, 2) };
        let (grant, answer) = (ClaimDecision::Grant(None), ClaimDecision::Answer);
        let suspected = |deaths| answer(Claim::Suspected(deaths));
        let table = [
            ("one", of(1, false), prepared(0), suspected(1)),
            ("for which the asker is prepared", of(1, false), prepared(1), grant.clone()),
            ("and for more", of(1, false), prepared(2), grant.clone()),
            ("two", of(2, false), prepared(0), suspected(2)),
            ("another since it was told", of(2, false), prepared(1), suspected(2)),
            ("two, prepared", of(2, false), prepared(2), grant.clone()),
            ("three", of(3, false), prepared(0), answer(Claim::SetAside)),
            ("prepared or not", of(3, false), prepared(3), answer(Claim::SetAside)),
            ("and more", of(4, false), prepared(2), answer(Claim::SetAside)),
            ("a single tick is suspected too", of(2, true), prepared(1), suspected(2)),
            ("and ends", of(3, true), prepared(2), ClaimDecision::Grant(Some(Refusal::Deaths))),
            ("its holder lives", alive(3), prepared(0), answer(Claim::Runs)),
            ("it is taken over", alive(1), takeover(1), grant.clone()),
            ("as a suspect", alive(2), takeover(0), suspected(2)),
            ("the last holder may live", alive(3), takeover(2), answer(Claim::Runs)),
            ("whose answer was lost", alive(3), ClaimRequest { again: true, ..prepared(0) }, grant),
        ];
        for (label, row, request, expected) in table {
            assert_eq!(decide_claim(Some(&row), None, &request, now), expected, "{label}");
        }
    }

    #[test]
    fn a_table_of_rotations_and_manual_runs_beside_each_other() {
        let now = Time::from_millis(10_000);
        let (idle, held, batch) = (row(), running(), waiting());
        let manual = |if_running, force| ChainRow {
            once: true,
            manual: Manual { if_running, force },
            last_finish: Time::default(),
            ..row()
        };
        let (refuse, after) = (manual(IfRunning::Refuse, false), manual(IfRunning::After, false));
        let beside = manual(IfRunning::Beside, false);
        let begun = |row: &ChainRow| ChainRow { started_tick: TickNo(3), ..row.clone() };
        let runs = |row: &ChainRow| ChainRow { holder: Holder::Alive, ..row.clone() };
        let looks_again = ClaimDecision::Answer(Claim::Waits { until: Time::from_millis(11_000) });
        let (grant, running) = (ClaimDecision::Grant(None), ClaimDecision::Grant(Some(Refusal::Running)));
        let over = ClaimDecision::Grant(Some(Refusal::Ended));
        let cooldown = |secs| Guard { cooldown: Duration::from_secs(secs), ..Guard::default() };
        // The rotation's last run ended at 960 ms.
        let (cool, hot) = (&cooldown(9), &cooldown(10));
        let (gone, gone_held) = (ended(&idle), ended(&held));
        let since = Duration::from_millis(9_040);
        let too_soon = ClaimDecision::Grant(Some(Refusal::Cooldown { since, least: Duration::from_secs(10) }));
        let when_cool = ClaimDecision::Answer(Claim::Waits { until: Time::from_millis(10_960) });
        let table = [
            ("refused while the rotation runs", &refuse, Some(&held), cool, running.clone()),
            ("and while it waits for its batch", &refuse, Some(&batch), cool, running),
            ("what has started waits", &begun(&refuse), Some(&held), cool, looks_again.clone()),
            ("afterwards", &after, Some(&held), cool, looks_again.clone()),
            ("beside it", &beside, Some(&held), cool, grant.clone()),
            ("the rotation rests", &refuse, Some(&idle), cool, grant.clone()),
            ("there is no rotation", &refuse, None, hot, grant.clone()),
            ("within the cooldown", &refuse, Some(&idle), hot, too_soon.clone()),
            ("beside, within the cooldown", &beside, Some(&idle), hot, too_soon),
            ("after, when the cooldown is over", &after, Some(&idle), hot, when_cool),
            ("by force", &manual(IfRunning::Refuse, true), Some(&idle), hot, grant.clone()),
            ("another attempt", &begun(&refuse), Some(&idle), hot, grant.clone()),
            ("the chain has ended", &after, Some(&gone), cool, over.clone()),
            ("also where it would have been refused", &refuse, Some(&gone_held), cool, over.clone()),
            ("or run beside", &beside, Some(&gone_held), cool, over.clone()),
            ("also by force", &manual(IfRunning::After, true), Some(&gone), hot, over),
            ("what has started before the end goes on", &begun(&after), Some(&gone), cool, grant.clone()),
            ("when nothing else runs", &begun(&after), Some(&gone_held), cool, looks_again.clone()),
            ("a rotation waits for a manual run", &idle, Some(&runs(&refuse)), cool, looks_again.clone()),
            ("of either sort", &idle, Some(&runs(&after)), cool, looks_again),
            ("not for one that runs beside it", &idle, Some(&runs(&beside)), cool, grant.clone()),
            ("nor for one that has not started", &idle, Some(&refuse), cool, grant),
        ];
        for (label, row, twin, guard, expected) in table {
            let request = ClaimRequest { guard: guard.clone(), ..ask(3, 2) };
            assert_eq!(decide_claim(Some(row), twin, &request, now), expected, "{label}");
        }
    }

    #[test]
    fn a_table_of_twins() {
        let in_tick =
            |tick, row: &ChainRow| ChainRow { hint: Hint { tick: TickNo(tick), ..row.hint.clone() }, ..row.clone() };
        let (rotation, told) = (row(), ChainRow { beside: true, ..row() });
        let manual = ChainRow { once: true, hint: Hint { epoch: Epoch(6), ..row().hint }, ..row() };
        let looks = [
            ("a rotation alone", &rotation, false),
            ("in its first tick", &in_tick(1, &rotation), true),
            ("a rotation that was told", &told, true),
            ("a manual run", &manual, true),
            (
                "a member of a batch",
                &ChainRow { hint: Hint { parent: Epoch(4), ..row().hint }, ..in_tick(1, &manual) },
                false,
            ),
        ];
        for (label, row, expected) in looks {
            assert_eq!(row.has_twin(), expected, "{label}");
        }
        let to_be_told = [
            ("neither saw the other begin", &rotation, &manual, Some(Epoch(5))),
            ("it was told", &told, &manual, None),
            ("the manual run has ended", &rotation, &ended(&manual), None),
            ("it is paused", &rotation, &ChainRow { state: ChainState::Paused, ..manual.clone() }, Some(Epoch(5))),
        ];
        for (label, rotation, manual, expected) in to_be_told {
            assert_eq!(rotation.untold(manual), expected, "{label}");
            assert_eq!(manual.untold(rotation), expected, "{label}, the other way round");
        }
    }

    #[test]
    fn who_is_put_off_for_another_row_is_looked_after_later() {
        let until = Time::from_millis(11_000);
        assert_eq!(ChainRow::put_off(&Claim::Waits { until }), Some((until, Time::from_millis(21_000))));
        assert_eq!((ChainRow::put_off(&Claim::Runs), ChainRow::put_off(&Claim::Idle)), (None, None));
    }

    fn ended(row: &ChainRow) -> ChainRow {
        ChainRow { state: ChainState::Retired, ..row.clone() }
    }

    fn running() -> ChainRow {
        ChainRow { holder: Holder::Alive, session: 9, ..row() }
    }

    fn waiting() -> ChainRow {
        ChainRow { batch_open: 2, ..row() }
    }
}
