//! Each line of each guard has a step that it refuses; the page for people says the same lines; and what the page says
//! always holds does, in random courses.

use std::collections::BTreeSet;

use roundelay_model::clock::Entropy;

use super::*;

const PAGE: &str = include_str!("../../../../docs/spec/README.md");
const STEPS: &str = include_str!("steps.rs");

const LEASE: Duration = Duration::from_secs(30);
const ROTATION: (&str, &str) = ("sync", "a");
/// Of a kind whose ticks are taken over as soon as their message comes again.
const STEADY: (&str, &str) = ("steady", "a");

const fn at(millis: i64) -> Time {
    Time::from_millis(millis)
}

fn new(name: (&'static str, &'static str), epoch: i64) -> New<'static> {
    New { name, sort: Sort::Rotation, owner: None, epoch: Epoch(epoch), due: at(100), anew: true }
}

fn manual(epoch: i64) -> New<'static> {
    New { sort: Sort::Manual { beside: false }, ..new(ROTATION, epoch) }
}

fn asked(name: (&'static str, &'static str), epoch: i64, tick: i64, attempt: u32) -> Asked<'static> {
    Asked {
        name,
        epoch: Epoch(epoch),
        tick: TickNo(tick),
        attempt,
        due: at(100),
        member: false,
        session: 1,
        again: false,
        takeover: false,
        recurs: true,
        prepared: 9,
        ahead: Duration::ZERO,
        at: at(100),
    }
}

fn granted(fence: i64) -> Granted {
    Granted { fence: Fence(fence), previous: None, due: at(100), lost: false, total: 0, at: at(100), runs: Runs::Yes }
}

fn finish(epoch: i64, tick: i64, attempt: u32, fence: i64, then: Then<'_>) -> Finish<'_> {
    Finish {
        epoch: Epoch(epoch),
        tick: TickNo(tick),
        attempt,
        fence: Fence(fence),
        then,
        due: at(100),
        retires: false,
        from_batch: false,
        sends: !matches!(then, Then::Gather(_) | Then::End),
        sends_parent: false,
    }
}

/// The first claim of the chain 1.
fn claim(fence: i64) -> Step<'static> {
    Step::Claim(asked(ROTATION, 1, 1, 1), granted(fence))
}

/// One more claim of it, for another session than the one before, which is over.
fn claim_again(fence: i64) -> Vec<Step<'static>> {
    let (session, before) = (fence, fence - 1);
    let lost = Granted { lost: true, ..granted(fence) };
    vec![
        over(before),
        Step::SessionBegins { session, lease: LEASE, now: Duration::ZERO },
        Step::Claim(Asked { session, ..asked(ROTATION, 1, 1, 1) }, lost),
    ]
}

fn over(session: i64) -> Step<'static> {
    Step::SessionOver { session, by: By::Sight, now: Duration::ZERO }
}

fn retire() -> Step<'static> {
    Step::Order(Order::Retire, Which { kind: Some("sync"), ..Which::default() })
}

/// Chains 1 (`sync a`, due) and 2 (`steady a`, due), and the session 1.
fn ledger(then: &[Step]) -> State {
    let mut state = State { redelivery: BTreeSet::from(["steady".to_owned()]), ..State::default() };
    let begin = [
        Step::Begin(new(ROTATION, 1)),
        Step::Begin(new(STEADY, 2)),
        Step::SessionBegins { session: 1, lease: LEASE, now: Duration::ZERO },
    ];
    for step in begin.iter().chain(then) {
        state = allowed(state, step).unwrap_or_else(|refusal| panic!("{step:?}: {refusal}"));
    }
    state
}

const MEMBERS: &[(Epoch, &str, &str, Time)] = &[(Epoch(3), "part", "x", at(100)), (Epoch(4), "part", "y", at(100))];

const KNOWN_EPOCH: &[(Epoch, &str, &str, Time)] = &[(Epoch(2), "part", "x", at(100))];
const SAME_EPOCHS: &[(Epoch, &str, &str, Time)] = &[(Epoch(4), "part", "x", at(100)), (Epoch(4), "part", "y", at(100))];

/// The chain 1 waits for its batch of two, 3 and 4.
fn gather() -> Vec<Step<'static>> {
    vec![claim(1), Step::Finish(finish(1, 1, 1, 1, Then::Gather(MEMBERS)))]
}

fn member(epoch: i64, fence: i64) -> Vec<Step<'static>> {
    let (name, last) = (("part", if epoch == 3 { "x" } else { "y" }), epoch == 4);
    let asked = Asked { member: true, ..asked(name, epoch, 1, 1) };
    let ends = Finish { sends_parent: last, ..finish(epoch, 1, 1, fence, Then::End) };
    vec![Step::Claim(asked, granted(fence)), Step::Finish(ends)]
}

/// Three workers have died over the attempt of chain 1: the fences 1 to 3, of sessions of these numbers.
fn deadly() -> Vec<Step<'static>> {
    [vec![claim(1)], claim_again(2), claim_again(3), vec![over(3)]].concat()
}

/// By line: what has happened, and the step that the line refuses.
#[allow(clippy::too_many_lines, reason = "a table")]
fn refused() -> Vec<(&'static str, Vec<Step<'static>>, Step<'static>)> {
    let ask = |tick, attempt| asked(ROTATION, 1, tick, attempt);
    let no = |asked, why| Step::ClaimRefused(asked, why);
    let one = finish(1, 1, 1, 1, Then::Tick);
    let with = |change: fn(&mut Asked<'static>)| {
        let mut asked = ask(1, 1);
        change(&mut asked);
        Step::Claim(asked, granted(1))
    };
    let answered = |change: fn(&mut Granted)| {
        let mut granted = granted(1);
        change(&mut granted);
        Step::Claim(ask(1, 1), granted)
    };
    let ended = |change: fn(&mut Finish<'static>)| {
        let mut finish = one;
        change(&mut finish);
        Step::Finish(finish)
    };
    let known = |manual, ended| Step::Known { name: ROTATION, manual, ended, owner: None };
    let lost = |fence| Granted { lost: true, ..granted(fence) };
    let moved = |due, forward| Step::Move { epoch: Epoch(1), due: at(due), forward };
    let recover = |epoch, all| Step::Recover { old: Epoch(1), epoch: Epoch(epoch), due: at(100), all };
    let begin_manual = || Step::Begin(manual(3));
    let run_manual = |fence| {
        let Step::Begin(New { name, .. }) = begin_manual() else { unreachable!() };
        Step::Claim(asked(name, 3, 1, 1), granted(fence))
    };
    vec![
        ("Begin 1", vec![], Step::Begin(new(("sync", "b"), 2))),
        ("Begin 2", vec![], Step::Begin(new(ROTATION, 3))),
        ("BeginAnew 1", vec![retire()], Step::BeginAnew(new(ROTATION, 2))),
        ("BeginAnew 2", vec![], Step::BeginAnew(new(ROTATION, 3))),
        ("BeginAnew 3", vec![retire()], Step::BeginAnew(New { anew: false, ..new(ROTATION, 3) })),
        ("RunAgain 1", vec![begin_manual()], Step::RunAgain(manual(3))),
        ("RunAgain 1", vec![begin_manual(), run_manual(1), retire()], Step::RunAgain(manual(3))),
        ("Known 1", vec![], known(false, true)),
        ("Known 1", vec![retire()], known(false, false)),
        ("Known 1", vec![], known(true, false)),
        ("Claim 1", vec![], with(|asked| asked.epoch = Epoch(9))),
        ("Claim 1", vec![], with(|asked| asked.name = ("sync", "b"))),
        ("Claim 2", vec![Step::Order(Order::Pause, Which::default())], claim(1)),
        ("Claim 3", vec![], with(|asked| asked.tick = TickNo(2))),
        ("Claim 3", vec![], with(|asked| asked.attempt = 2)),
        ("Claim 5", vec![], with(|asked| asked.at = at(99))),
        ("Claim 5", vec![], with(|asked| (asked.at, asked.ahead) = (at(98), Duration::from_millis(1)))),
        ("Claim 6", gather(), Step::Claim(ask(1, 1), Granted { total: 2, ..granted(2) })),
        ("Claim 7", vec![claim(1)], Step::Claim(Asked { session: 2, ..ask(1, 1) }, lost(2))),
        ("Claim 7", vec![claim(1)], Step::Claim(Asked { session: 2, again: true, ..ask(1, 1) }, lost(2))),
        ("Claim 7", vec![claim(1)], Step::Claim(Asked { takeover: true, ..ask(1, 1) }, lost(2))),
        ("Claim 8", vec![], with(|asked| asked.recurs = false)),
        ("Claim 9", deadly(), Step::Claim(ask(1, 1), lost(4))),
        ("Claim 9", deadly(), Step::Claim(ask(1, 1), Granted { runs: Runs::Deadly, ..lost(4) })),
        ("Claim 10", vec![], answered(|granted| granted.runs = Runs::Deadly)),
        ("Claim 11", vec![claim(1), over(1)], Step::Claim(Asked { prepared: 0, ..ask(1, 1) }, lost(2))),
        ("Claim 12", vec![begin_manual(), claim(1)], run_manual(2)),
        ("Claim 12", vec![begin_manual(), run_manual(1)], claim(2)),
        ("Claim 13", vec![claim(1)], Step::Claim(asked(STEADY, 2, 1, 1), granted(1))),
        ("Claim 14", vec![], answered(|granted| granted.previous = Some(Fence(7)))),
        ("Claim 15", vec![], answered(|granted| granted.due = at(99))),
        ("Claim 15", vec![], answered(|granted| granted.lost = true)),
        ("Claim 15", vec![], answered(|granted| granted.total = 1)),
        ("Claim 16", vec![], answered(|granted| granted.at = at(99))),
        ("Claim 16", vec![], answered(|granted| granted.at = at(101))),
        ("ClaimRefused 1", vec![], no(asked(("sync", "b"), 9, 1, 1), Why::Idle)),
        ("ClaimRefused 1", vec![], no(Asked { member: true, ..asked(("sync", "b"), 9, 1, 1) }, Why::Early)),
        ("ClaimRefused 2", vec![], no(ask(1, 1), Why::Other)),
        ("ClaimRefused 3", vec![], no(ask(1, 1), Why::Idle)),
        ("ClaimRefused 4", vec![], no(ask(1, 1), Why::Stale(None))),
        ("ClaimRefused 5", vec![claim(1), Step::Finish(one)], no(ask(1, 1), Why::Stale(None))),
        ("ClaimRefused 5", vec![claim(1), Step::Finish(one)], no(ask(1, 1), Why::Stale(Some((TickNo(3), 1, at(100)))))),
        ("ClaimRefused 6", vec![], no(ask(1, 1), Why::Early)),
        ("ClaimRefused 7", vec![], no(ask(1, 1), Why::Runs)),
        ("ClaimRefused 7", vec![claim(1), over(1)], no(ask(1, 1), Why::Runs)),
        ("ClaimRefused 8", vec![claim(1), over(1)], no(Asked { prepared: 1, ..ask(1, 1) }, Why::Suspected(1))),
        ("ClaimRefused 8", vec![claim(1), over(1)], no(Asked { prepared: 0, ..ask(1, 1) }, Why::Suspected(2))),
        ("ClaimRefused 9", vec![begin_manual()], no(ask(1, 1), Why::Waits)),
        ("ClaimRefused 10", vec![], no(ask(1, 1), Why::NoSchedule)),
        ("SetAside 1", deadly(), Step::SetAside(ask(2, 1))),
        ("SetAside 2", vec![claim(1), over(1)], Step::SetAside(ask(1, 1))),
        ("Ahead 1", vec![], Step::Ahead(ask(1, 1))),
        ("Ahead 1", vec![retire(), Step::BeginAnew(new(ROTATION, 3))], Step::Ahead(ask(1, 1))),
        ("Finish 1", vec![], Step::Finish(one)),
        ("Finish 1", [vec![claim(1)], claim_again(2)].concat(), Step::Finish(one)),
        ("Finish 1", vec![claim(1), Step::GiveUp { epoch: Epoch(1), fence: Fence(1), session: 1 }], Step::Finish(one)),
        ("Finish 2", vec![claim(1)], ended(|finish| finish.tick = TickNo(2))),
        ("Finish 2", vec![claim(1)], ended(|finish| finish.attempt = 2)),
        ("Finish 3", vec![begin_manual(), run_manual(1)], Step::Finish(finish(3, 1, 1, 1, Then::Tick))),
        ("Finish 4", vec![claim(1)], ended(|finish| finish.then = Then::Attempt(1))),
        (
            "Finish 5",
            vec![claim(1)],
            Step::Finish(Finish { from_batch: true, ..finish(1, 1, 1, 1, Then::Gather(MEMBERS)) }),
        ),
        (
            "Finish 6",
            [gather(), member(3, 2), member(4, 3), vec![Step::Claim(ask(1, 1), Granted { total: 2, ..granted(4) })]]
                .concat(),
            Step::Finish(finish(1, 1, 1, 4, Then::Tick)),
        ),
        ("Finish 7", vec![claim(1)], Step::Finish(finish(1, 1, 1, 1, Then::Gather(KNOWN_EPOCH)))),
        ("Finish 7", vec![claim(1)], Step::Finish(finish(1, 1, 1, 1, Then::Gather(SAME_EPOCHS)))),
        ("Finish 8", vec![claim(1)], ended(|finish| finish.sends = false)),
        ("Finish 8", vec![claim(1), Step::Order(Order::Pause, Which::default())], Step::Finish(one)),
        ("Finish 9", vec![claim(1)], ended(|finish| finish.sends_parent = true)),
        (
            "Finish 9",
            [gather(), member(3, 2), vec![member(4, 3)[0]]].concat(),
            Step::Finish(finish(4, 1, 1, 3, Then::End)),
        ),
        ("FinishAgain 1", vec![claim(1)], Step::FinishAgain(one)),
        ("FinishAgain 1", vec![claim(1), Step::Finish(one)], Step::FinishAgain(Finish { due: at(101), ..one })),
        ("FinishFenced 1", vec![claim(1)], Step::FinishFenced(one)),
        ("MarkSent 1", vec![], Step::MarkSent { epoch: Epoch(1), tick: TickNo(2), attempt: 1, due: at(100) }),
        ("GiveUp 1", vec![], Step::GiveUp { epoch: Epoch(1), fence: Fence(1), session: 1 }),
        ("SessionBegins 1", vec![], Step::SessionBegins { session: 1, lease: LEASE, now: Duration::ZERO }),
        (
            "SessionBegins 2",
            vec![claim(1), over(1)],
            Step::SessionBegins { session: 1, lease: LEASE, now: Duration::ZERO },
        ),
        ("SessionHeard 1", vec![over(1)], Step::SessionHeard { session: 1, now: Duration::ZERO }),
        (
            "SessionOver 1",
            vec![Step::SessionHeard { session: 1, now: Duration::from_secs(1) }],
            Step::SessionOver { session: 1, by: By::Silence, now: LEASE },
        ),
        ("Recover 1", vec![], recover(3, false)),
        ("Recover 1", vec![retire()], recover(3, true)),
        ("Recover 2", vec![], recover(2, true)),
        ("Move 1", vec![begin_manual()], Step::Move { epoch: Epoch(3), due: at(50), forward: true }),
        ("Move 2", vec![Step::Order(Order::Pause, Which::default())], moved(50, true)),
        ("Move 2", vec![retire()], moved(50, false)),
        ("Move 3", vec![claim(1)], moved(50, true)),
        ("Move 3", gather(), moved(50, true)),
        ("Move 4", vec![], moved(100, true)),
        ("Move 5", vec![claim(1), Step::Finish(finish(1, 1, 1, 1, Then::Snooze))], moved(50, false)),
    ]
}

/// The lines of all guards, as the source has them.
fn lines() -> Vec<(String, String)> {
    let mut lines = Vec::new();
    for text in STEPS.split('"').skip(1).step_by(2) {
        let text = text.split("\\\n").map(str::trim_start).collect::<String>();
        let Some((head, line)) = text.split_once(": ") else { continue };
        let is_head = head.split_once(' ').is_some_and(|(_, number)| number.parse::<u32>().is_ok());
        if is_head {
            lines.push((head.to_owned(), line.to_owned()));
        }
    }
    lines
}

#[test]
fn each_line_refuses_a_step() {
    for (line, before, step) in refused() {
        let state = ledger(&before);
        let refusal = allowed(state.clone(), &step).expect_err(line);
        assert!(refusal.line.starts_with(&format!("{line}: ")), "{line}: {refusal}");
        let mut same = state.clone();
        assert!(same.take(&step).is_err());
        assert_eq!(same, state, "{line}: a step that is refused changes nothing");
    }
    // What only an older copy can bring about.
    let begun = [Step::Begin(manual(3)), Step::Claim(asked(ROTATION, 3, 1, 1), granted(1))];
    let mut state = ledger(&begun);
    let copy = state.copy();
    for step in [Step::Finish(finish(3, 1, 1, 1, Then::End)), Step::Restore(&copy), over(1)] {
        state.take(&step).unwrap_or_else(|refusal| panic!("{refusal}"));
    }
    let step = Step::Claim(asked(ROTATION, 3, 1, 1), Granted { lost: true, ..granted(2) });
    let refusal = allowed(state, &step).expect_err("the tick has ended after the copy");
    assert!(refusal.line.starts_with("Claim 4: "), "{refusal}");

    let tried: BTreeSet<String> = refused().into_iter().map(|(line, ..)| line.to_owned()).collect();
    let all: BTreeSet<String> = lines().into_iter().map(|(head, _)| head).collect();
    let untried: Vec<&String> = all.difference(&tried).filter(|line| *line != "Claim 4").collect();
    assert_eq!(untried, [""; 0], "lines that no step here is refused by");
    assert!(all.len() > 50, "{all:?}");
}

#[test]
fn the_page_for_people_has_the_same_steps_and_lines() {
    let ours: Vec<(String, String)> = lines();
    let theirs: Vec<(String, String)> = PAGE
        .lines()
        .filter_map(|line| line.strip_prefix("- **")?.split_once("** "))
        .filter(|(head, _)| head.split_once(' ').is_some_and(|(_, number)| number.parse::<u32>().is_ok()))
        .map(|(head, line)| (head.to_owned(), line.trim_end_matches('.').to_owned()))
        .collect();
    assert_eq!(theirs, ours, "docs/spec/README.md has the lines of steps.rs, in the same order");
    let (_, arms) = STEPS.split_once("match step {").expect("it tells the steps apart");
    let (arms, _) = arms.split_once("\n        }\n").expect("and that ends");
    let steps: Vec<(&str, &str)> = arms
        .lines()
        .filter_map(|arm| {
            let (step, function) = arm.trim().strip_prefix("Step::")?.split_once("=> self.")?;
            Some((step.split([' ', '(']).next()?, function.split('(').next()?))
        })
        .collect();
    let told: Vec<(&str, &str)> =
        PAGE.lines().filter_map(|line| line.strip_prefix("### ")?.strip_suffix("`")?.split_once(" · `")).collect();
    assert_eq!(told, steps, "docs/spec/README.md has the steps of steps.rs, in the same order, with their functions");
    assert!(steps.len() > 15, "{steps:?}");
}

/// A step on a ledger of few names, which may be allowed or not.
fn any<'a>(dice: &Entropy, state: &State, now: Duration, members: &'a [(Epoch, &'a str, &'a str, Time)]) -> Step<'a> {
    let one_of = |n: usize| dice.below(n);
    let epochs: Vec<Epoch> = state.chains.keys().copied().collect();
    let epoch = epochs[one_of(epochs.len())];
    let chain = &state.chains[&epoch];
    let session = 1 + one_of(3) as i64;
    let names = [ROTATION, STEADY, ("part", "x"), ("part", "y")];
    let name =
        *names.iter().find(|name| chain.entity.kind == name.0 && chain.entity.key == name.1).unwrap_or(&ROTATION);
    let above = Epoch(state.last_epoch.get() + 1);
    let sort = if one_of(3) == 0 { Sort::Manual { beside: one_of(2) == 0 } } else { Sort::Rotation };
    let new = New { sort, epoch: above, ..new([ROTATION, STEADY][one_of(2)], 0) };
    let ask = Asked {
        epoch,
        tick: chain.tick,
        attempt: chain.attempt,
        member: matches!(chain.sort, Sort::Member { .. }),
        session,
        again: one_of(6) == 0,
        takeover: one_of(6) == 0,
        ..asked(name, 1, 1, 1)
    };
    let (lost, total) = (chain.held.is_some(), chain.total);
    let runs = [Runs::Yes, Runs::Yes, Runs::Refused, Runs::Deadly][one_of(4)];
    let fence = Fence(state.last_fence.get() + one_of(3) as i64);
    let then =
        [Then::Tick, Then::Tick, Then::Attempt(chain.attempt + 1), Then::Snooze, Then::End, Then::Gather(members)];
    let then = then[one_of(then.len())];
    let finish = Finish {
        sends: chain.phase == Phase::Active && !matches!(then, Then::End | Then::Gather(_)),
        retires: one_of(6) == 0,
        from_batch: chain.total > 0,
        sends_parent: one_of(2) == 0,
        ..finish(epoch.get(), chain.tick.get(), chain.attempt, chain.fence.get(), then)
    };
    match one_of(24) {
        0..6 => Step::Claim(ask, Granted { previous: Some(chain.fence), lost, total, runs, ..granted(fence.get()) }),
        6..12 => Step::Finish(finish),
        12 => Step::FinishFenced(Finish { fence: Fence(chain.fence.get() - one_of(2) as i64), ..finish }),
        13 => Step::MarkSent { epoch, tick: chain.tick, attempt: chain.attempt, due: chain.due },
        14 => Step::GiveUp { epoch, fence: chain.fence, session },
        15 => Step::SessionBegins { session: state.last_fence.get() + 10, lease: LEASE, now },
        16 => Step::SessionOver { session, by: By::Silence, now },
        17 => Step::SessionBegins { session, lease: LEASE, now },
        18 => Step::Order([Order::Pause, Order::Resume, Order::Resume, Order::Retire][one_of(4)], Which::default()),
        19 => Step::Recover { old: epoch, epoch: above, due: at(100), all: one_of(2) == 0 },
        20 => [Step::Begin(new), Step::BeginAnew(new), Step::RunAgain(New { epoch, ..new })][one_of(3)],
        21 => Step::SetAside(ask),
        22 => Step::LetGo,
        _ => Step::Ahead(Asked { tick: ask.tick.next(), ..ask }),
    }
}

#[test]
fn what_the_page_says_always_holds_does_in_random_courses() {
    let dice = Entropy::seeded(1);
    let mut taken = BTreeSet::new();
    for _ in 0..400 {
        let mut state = ledger(&[]);
        let mut ends = BTreeSet::new();
        for n in 0..150 {
            let (before, now) = (state.clone(), LEASE * n);
            let above = |n: i64| Epoch(before.last_epoch.get() + n);
            let members = [(above(1), "part", "x", at(100)), (above(2), "part", "y", at(100))];
            let step = any(&dice, &before, now, &members);
            if state.take(&step).is_err() {
                assert_eq!(state, before, "{step:?}");
                continue;
            }
            taken.insert(format!("{step:?}").split(['(', ' ']).next().unwrap_or_default().to_owned());
            if let Step::Claim(asked, granted) = step {
                assert!(!ends.contains(&(asked.epoch, asked.tick)), "3: {step:?}");
                assert!(before.chains.values().all(|chain| chain.fence < granted.fence), "2: {step:?}");
                let held = before.chains[&asked.epoch].held;
                let alive = held.is_some_and(|session| before.sessions.contains_key(&session));
                assert!(!alive || asked.again || asked.takeover && asked.name == STEADY, "1: {step:?}");
            }
            if let Step::Finish(finish) = step
                && matches!(finish.then, Then::Tick | Then::End)
            {
                assert!(ends.insert((finish.epoch, finish.tick)), "2: {step:?}");
            }
            for (entity, epochs) in &before.names {
                for (old, new) in
                    epochs.iter().zip(&state.names[entity]).filter_map(|(old, new)| Some(((*old)?, (*new)?)))
                {
                    let place = |epoch, chain: &Chain| (epoch, chain.tick, chain.attempt);
                    let (was, is) = (place(old, &before.chains[&old]), place(new, &state.chains[&new]));
                    assert!(was <= is, "4: {was:?} becomes {is:?} by {step:?}");
                    let moved = was != is || before.chains[&old].due != state.chains[&new].due;
                    assert!(!moved || !state.chains[&new].sent, "5: {step:?}");
                }
            }
            for (epoch, chain) in &state.chains {
                let open =
                    |other: &&Chain| other.sort == Sort::Member { parent: *epoch } && other.phase != Phase::Retired;
                assert_eq!(state.chains.values().filter(open).count(), chain.open, "8: {epoch} after {step:?}");
            }
        }
    }
    let all = [
        "Ahead",
        "Begin",
        "BeginAnew",
        "Claim",
        "Finish",
        "FinishFenced",
        "GiveUp",
        "LetGo",
        "MarkSent",
        "Order",
        "Recover",
        "RunAgain",
        "SessionBegins",
        "SessionOver",
        "SetAside",
    ];
    assert_eq!(taken.iter().collect::<Vec<_>>(), all, "steps that were taken");
}
