use proptest::prelude::*;

use super::*;

type Line = FairLine<u64, ()>;

fn shares(weights: &[u32]) -> Arc<Shares> {
    let of = |(n, weight): (usize, &u32)| (n.to_string(), ShareSettings { weight: *weight, most: None });
    Arc::new(Shares::new(Configured { tenants: weights.iter().enumerate().map(of).collect(), ..Configured::default() }))
}

fn tenant(n: usize) -> Tenant {
    n.to_string().into()
}

fn number(tenant: &Tenant) -> usize {
    tenant.parse().unwrap()
}

/// Serves the next; answers for which tenant.
fn serve(line: &mut Line, cost: u32) -> Option<usize> {
    let (tenant, key) = line.next(0)?;
    line.take(&tenant, key, 0, cost).unwrap();
    Some(number(&tenant))
}

/// Who is served, one after the other.
fn served(line: &mut Line, times: usize) -> Vec<usize> {
    (0..times).map_while(|_| serve(line, 1)).collect()
}

/// As many join for each of the tenants, one tenant after the other, with keys from `from` on.
fn flood(line: &mut Line, tenants: &[usize], from: u64, each: u64) {
    let keys = (from..).zip(tenants.iter().flat_map(|n| (0..each).map(|_| *n)));
    keys.for_each(|(key, n)| line.join(&tenant(n), key, (), 0));
}

fn counts(served: &[usize], tenants: usize) -> Vec<usize> {
    (0..tenants).map(|n| served.iter().filter(|of| **of == n).count()).collect()
}

fn near(count: usize, wanted: f64) -> bool {
    (count as f64 - wanted).abs() <= wanted * 0.02
}

#[test]
fn a_table_of_turns() {
    // The weights, for whom one waits in the order of arrival, and for whom the turns are.
    let table: [(&[u32], &[usize], &[usize]); 5] = [
        (&[1, 1], &[0, 0, 0, 1, 1], &[0, 1, 0, 1, 0]),
        (&[1, 1, 1], &[2, 2, 2, 0, 1], &[2, 0, 1, 2, 2]),
        (&[1, 2], &[0, 0, 0, 1, 1, 1, 1], &[0, 1, 1, 0, 1, 1, 0]),
        (&[1, 1_000], &[0, 0, 1, 1, 1, 1], &[0, 1, 1, 1, 1, 0]),
        (&[1], &[0, 0], &[0, 0]),
    ];
    for (weights, waiting, turns) in table {
        let mut line = Line::new(shares(weights));
        (0..).zip(waiting).for_each(|(key, n)| line.join(&tenant(*n), key, (), 0));
        let foreseen: Vec<usize> = line.order(99, |_| 1).iter().map(|(tenant, _)| number(tenant)).collect();
        assert_eq!(served(&mut line, 99), turns, "{waiting:?} by {weights:?}");
        assert_eq!(foreseen, turns, "the order is that of the turns");
        assert!(line.is_empty() && line.tenants.is_empty());
    }
}

#[test]
fn whose_flood_it_is_delays_another_by_one_turn() {
    let mut line = Line::new(shares(&[1, 1]));
    flood(&mut line, &[0], 1_000, 100_000);
    for round in 0..50 {
        assert!(served(&mut line, 1 + 3 * round).iter().all(|of| *of == 0), "the flood uses what another does not");
        line.join(&tenant(1), 0, (), 0);
        assert!(!line.is_in_debt("1") && line.is_in_debt("0"));
        assert_eq!(line.cost_before("1", 1, |_| 1), 1, "only the other of this tenant");
        assert_eq!(serve(&mut line, 1), Some(1), "the newcomer is next, in round {round}");
    }
}

#[test]
fn who_returns_has_neither_credit_nor_debt() {
    let mut line = Line::new(shares(&[1, 1]));
    flood(&mut line, &[0, 1], 0, 10);
    assert_eq!(counts(&served(&mut line, 20), 2), [10, 10]);
    // One has nothing to do for long, and the other goes on; then the other way round.
    for (from, busy, returns) in [(10_000, 0, 1), (20_000, 1, 0)] {
        flood(&mut line, &[busy], from, 1_020);
        served(&mut line, 1_000);
        flood(&mut line, &[returns], from + 5_000, 20);
        let turns = served(&mut line, 40);
        assert_eq!(counts(&turns[..20], 2), [10, 10], "{turns:?}");
    }
}

#[test]
fn a_waiter_that_leaves_has_cost_its_tenant_nothing() {
    let mut line = Line::new(shares(&[1, 1]));
    flood(&mut line, &[0, 1], 1_000, 20);
    for key in 1_003..1_019 {
        assert!(line.leave(&tenant(0), key).is_some() && line.leave(&tenant(0), key).is_none());
    }
    assert_eq!(served(&mut line, 8), [0, 1, 0, 1, 0, 1, 0, 1]);
    // All of them leave, and come again.
    for key in 1_000..2_000 {
        line.leave(&tenant(1), key);
    }
    flood(&mut line, &[0, 1], 2_000, 2);
    assert_eq!(served(&mut line, 9), [0, 1, 0, 1]);
}

#[test]
fn another_weight_counts_from_the_next_turn_on() {
    let weights = shares(&[1, 1]);
    let mut line = Line::new(weights.clone());
    flood(&mut line, &[0, 1], 0, 2_000);
    assert_eq!(counts(&served(&mut line, 600), 2), [300, 300]);
    let five = [("1".to_owned(), ShareSettings { weight: 5, most: None })].into();
    weights.take_over(Configured { tenants: five, ..Configured::default() });
    assert_eq!(counts(&served(&mut line, 600), 2), [100, 500]);
    weights.take_over(Configured::default());
    assert_eq!(counts(&served(&mut line, 600), 2), [300, 300]);
}

#[test]
fn only_tenants_with_work_are_remembered() {
    let mut line = Line::new(shares(&[1]));
    flood(&mut line, &[0], 1, 100);
    assert_eq!(serve(&mut line, 1), Some(0));
    for n in 1..100_000 {
        line.join(&tenant(n), 0, (), 0);
        assert_eq!(serve(&mut line, 1), Some(n), "each newcomer is next");
        if n % 20_000 == 0 {
            assert!(serve(&mut line, 1).is_some());
        }
        assert!(line.tenants.len() <= 2 && line.remembered.len() <= MAX_REMEMBERED);
    }
    while serve(&mut line, 1).is_some() {}
    assert_eq!(line.remembered.len(), 1, "the level has reached all others");
    line.relax();
    assert!(line.tenants.is_empty() && line.remembered.is_empty() && line.by_tag.is_empty());
}

/// Places are used until there is room for all: that is not held against their tenants later.
#[test]
fn places_that_no_other_wanted_are_not_charged() {
    const S: u64 = 1_000_000;
    let mut line = Line::new(shares(&[1, 1]));
    let (a, b) = (tenant(0), tenant(1));
    (0..4).for_each(|_| line.occupy(&a, 0));
    line.occupy(&a, 10 * S);
    line.vacate(&a, 10 * S, 3_600 * S);
    assert_eq!((line.places_of("0"), line.remembered.len()), (4, 0));
    let now = 3_600 * S;
    (0..10).for_each(|key| line.join(&a, key, (), now));
    (10..20).for_each(|key| line.join(&b, key, (), now));
    let mut turns = Vec::new();
    for second in 1..=8 {
        let now = now + second * S;
        // Of the four that have run for an hour one ends, and then those that have begun since.
        if second <= 4 {
            line.vacate(&a, 0, now)
        } else {
            line.vacate(&tenant(turns[second as usize - 5]), now - 4 * S, now)
        };
        let (next, key) = line.next(now).unwrap();
        line.take(&next, key, now, 0);
        line.occupy(&next, now);
        turns.push(number(&next));
    }
    assert_eq!(turns, [1, 1, 0, 0, 1, 1, 0, 0], "each has half of them at once, as if the hour had not been");
}

/// So many places are used for `end` microseconds by tenants that always have more to run. Answers the time that each
/// has had of them, and how often it has begun.
fn run(
    line: &mut Line,
    places: usize,
    lengths: &[(u64, u64)],
    end: u64,
    mut draw: impl FnMut(u64) -> u64,
) -> Vec<(u64, u64)> {
    let (mut had, mut runs, mut key) = (vec![(0, 0); lengths.len()], BTreeSet::new(), 0);
    for n in 0..lengths.len() {
        for _ in 0..2 {
            key += 1;
            line.join(&tenant(n), key, (), 0);
        }
    }
    let mut now = 0;
    loop {
        while runs.len() < places {
            let (next, at) = line.next(now).unwrap();
            line.take(&next, at, now, 0).unwrap();
            line.occupy(&next, now);
            key += 1;
            line.join(&next, key, (), now);
            let (least, more) = lengths[number(&next)];
            runs.insert((now + least + draw(more + 1), key, now, number(&next)));
        }
        let (ends, _, began, n) = runs.pop_first().unwrap();
        if ends > end {
            return had;
        }
        now = ends;
        line.vacate(&tenant(n), began, now);
        had[n] = (had[n].0 + now - began, had[n].1 + 1);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// By weights of 1, 2 and 5, whatever the order in which they have come, and whatever a turn costs.
    #[test]
    fn who_always_waits_has_turns_by_weight(
        order in prop::collection::vec(0..3_usize, 3..40),
        cost in 1_u32..50,
        other in 1_u32..50,
    ) {
        let mut line = Line::new(shares(&[1, 2, 5]));
        let costs = [cost, other, cost];
        let mut had = [0_u64; 3];
        let mut key = 0;
        let mut come = |line: &mut Line, n: usize| {
            key += 1;
            line.join(&tenant(n), key, (), 0);
        };
        order.iter().chain(&[0, 1, 2]).for_each(|n| come(&mut line, *n));
        for _ in 0..4_000 {
            let (next, at) = line.next(0).unwrap();
            let n = number(&next);
            line.take(&next, at, 0, costs[n]).unwrap();
            had[n] += u64::from(costs[n]);
            come(&mut line, n);
        }
        let all: u64 = had.iter().sum();
        for (had, weight) in had.iter().zip([1.0, 2.0, 5.0]) {
            prop_assert!(near(*had as usize, all as f64 * weight / 8.0), "{:?}", had);
        }
    }

    /// Tenants come and go as they like. No newcomer waits for more than one turn of each other.
    #[test]
    fn a_newcomer_waits_for_one_turn_of_each_other(
        weights in prop::collection::vec(1_u32..10, 2..6),
        steps in prop::collection::vec((0..6_usize, 1..30_u64, 0..20_usize), 1..60),
    ) {
        let mut line = Line::new(shares(&weights));
        let mut key = 0;
        for (n, many, turns) in steps {
            let n = n % weights.len();
            let comes = line.len_of(&n.to_string()) == 0 && !line.is_in_debt(&n.to_string());
            for _ in 0..many {
                key += 1;
                line.join(&tenant(n), key, (), 0);
            }
            let turns = if comes { line.len() } else { turns };
            let turns = served(&mut line, turns);
            if comes {
                let before: Vec<usize> = turns.into_iter().take_while(|of| *of != n).collect();
                prop_assert!(counts(&before, weights.len()).iter().all(|turns| *turns <= 1), "{:?}", before);
            }
            line.relax();
        }
    }

    /// The time of places is shared by weight, however long the runs are; with runs of one length, the starts, too.
    #[test]
    fn the_time_of_places_is_shared_by_weight(
        places in 1_usize..12,
        lengths in prop::collection::vec((1_000_u64..1_000_000, 0_u64..2_000_000), 3),
        same in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let weights = [1, 2, 5];
        let lengths = if same { vec![(lengths[0].0, 0); 3] } else { lengths };
        let mut line = Line::new(shares(&weights));
        let mut state = seed | 1;
        let draw = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let had = run(&mut line, places, &lengths, 4_000_000_000, draw);
        let (time, starts) = had.iter().fold((0, 0), |(time, starts), had| (time + had.0, starts + had.1));
        for (had, weight) in had.iter().zip([1.0, 2.0, 5.0]) {
            let wanted = |all: u64| all as f64 * weight / 8.0;
            prop_assert!(near(had.0 as usize, wanted(time)), "{had:?} of {time}, {places} places, seed {seed}");
            prop_assert!(!same || near(had.1 as usize, wanted(starts)), "{had:?} of {starts}, {places} places, seed {seed}");
        }
    }
}
