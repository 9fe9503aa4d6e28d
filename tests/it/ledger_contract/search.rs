//! What screens ask for: bounded work, and nothing left out.

use roundelay::ids::{Fence, TickNo};
use roundelay::ledger::{
    Condition, Cursor, EFFORT, FailureFilter, Found, ListFilter, NamedAttempt, ReasonCount, RunFilter,
};

use super::*;

fn place(key: &str) -> Cursor {
    ("sync".into(), key.into())
}

fn keys<P>(found: &Found<roundelay::ledger::Listed, P>) -> Vec<&str> {
    found.found.iter().map(|chain| chain.hint.key.as_str()).collect()
}

#[tokio::test]
async fn a_search_that_stops_for_the_work_goes_on_where_it_stopped_and_leaves_nothing_out() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let now = ledger.now();
        let chains: Vec<NewChain> = (0..95)
            .map(|n| {
                let queue = if n % 10 == 3 { "side" } else { "work" };
                NewChain { queue: queue.into(), ..chain(&format!("{n:02}"), now + LEASE) }
            })
            .collect();
        ledger.enroll(chains).await.unwrap();
        let side = || ListFilter {
            which: ChainFilter { queue: Some("side".into()), ..ChainFilter::default() },
            condition: None,
        };
        let expected = ["03", "13", "23", "33", "43", "53", "63", "73", "83", "93"];
        // However little is done at a time, and however small the pages.
        for (limit, effort) in [(100, EFFORT), (3, EFFORT), (100, 7), (2, 11), (1, 1)] {
            let (mut seen, mut after, mut pages) = (Vec::new(), None, 0);
            loop {
                let page = ledger.search(side(), after, limit, effort).await.unwrap();
                assert!(page.found.len() <= limit as usize && (page.complete || page.after.is_some()));
                seen.extend(page.found.iter().map(|chain| chain.hint.key.clone()));
                pages += 1;
                after = page.after;
                if after.is_none() {
                    break;
                }
            }
            assert_eq!(seen, expected, "{limit} {effort}");
            assert!(effort > 10 || pages > 10, "{pages} pages of little work");
        }
        let few = ledger.search(side(), Some(place("90")), 100, EFFORT).await.unwrap();
        assert_eq!((keys(&few), few.after.clone(), few.complete), (vec!["93"], None, true));
    }
}

#[tokio::test]
async fn a_search_finds_by_all_that_a_filter_can_say() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let now = ledger.now();
        let owned = NewChain { owner: Some("red".into()), ..chain("owned", now + LEASE) };
        let other = NewChain { kind: "charts".into(), ..chain("late", now + LEASE) };
        let all = [chain("late", now - LEASE), chain("runs", now - LEASE), chain("rests", now + LEASE), owned, other];
        ledger.enroll(all.to_vec()).await.unwrap();
        let which = |of: &str| match of {
            "kind" => ChainFilter { kind: Some("charts".into()), ..ChainFilter::default() },
            "key" => ChainFilter { key: Some("late".into()), ..ChainFilter::default() },
            "owner" => ChainFilter { owner: Some("red".into()), ..ChainFilter::default() },
            "like" => ChainFilter { like: Some("r*s".into()), ..ChainFilter::default() },
            "late" => ChainFilter { late_before: Some(now), ..ChainFilter::default() },
            _ => ChainFilter::default(),
        };
        let found = async |of: &str, condition: Option<Condition>| {
            let found = ledger.search(ListFilter { which: which(of), condition }, None, 10, EFFORT).await.unwrap();
            keys(&found).iter().map(ToString::to_string).collect::<Vec<String>>()
        };
        let running =
            ledger.search(ListFilter { which: which("like"), condition: None }, None, 10, EFFORT).await.unwrap();
        let hint = running.found[1].hint.clone();
        let grant = granted(ledger, &hint, LEASE).await;
        ledger
            .order_chains(ChainFilter { key: Some("rests".into()), ..ChainFilter::default() }, ChainOrder::Pause)
            .await
            .unwrap();
        assert_eq!(found("", None).await, ["late", "late", "owned", "rests", "runs"]);
        assert_eq!(found("kind", None).await, ["late"]);
        assert_eq!(found("key", None).await, ["late", "late"]);
        assert_eq!(found("owner", None).await, ["owned"]);
        assert_eq!(found("like", None).await, ["rests", "runs"]);
        assert_eq!(found("late", None).await, ["late"]);
        assert_eq!(found("", Some(Condition::Running)).await, ["runs"]);
        assert_eq!(found("", Some(Condition::State(ChainState::Paused))).await, ["rests"]);
        assert_eq!(found("owner", Some(Condition::State(ChainState::Paused))).await, [""; 0]);
        let runs =
            ledger.search(ListFilter { which: which("like"), condition: Some(Condition::Running) }, None, 1, EFFORT);
        assert_eq!(runs.await.unwrap().found[0].fence, grant.fence);
    }
}

#[tokio::test]
async fn runs_are_told_latest_first_with_the_names_of_their_chains() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let now = ledger.now();
        let names = ["a", "b"].map(|key| chain(key, now - LEASE));
        let created = ledger.enroll(names.to_vec()).await.unwrap();
        let mut fences = Vec::new();
        for enrolled in &created {
            let Enrolled::Created(hint) = enrolled else { panic!("new: {enrolled:?}") };
            let grant = granted(ledger, hint, LEASE).await;
            let verdict = if hint.key == "a" { Verdict::Done } else { Verdict::Failed };
            ledger.finish(end(hint, grant.fence, now, tick(now - SLACK), verdict)).await.unwrap();
            let again = granted(ledger, &Hint { tick: TickNo(2), due: now - SLACK, ..hint.clone() }, LEASE).await;
            fences.push((grant.fence, again.fence));
        }
        let told = |runs: &[NamedAttempt]| -> Vec<(Fence, Option<String>)> {
            runs.iter().map(|run| (run.record.fence, run.name.clone().map(|(_, key)| key))).collect()
        };
        let [(a, a2), (b, b2)] = fences[..] else { panic!("two chains") };
        let of = |key: &str| Some(key.to_owned());
        let all = ledger.runs(RunFilter::default(), None, 10, EFFORT).await.unwrap();
        assert_eq!(told(&all.found), [(b2, of("b")), (b, of("b")), (a2, of("a")), (a, of("a"))]);
        assert_eq!((all.after, all.complete), (None, true));
        let page = ledger.runs(RunFilter::default(), Some(b), 1, EFFORT).await.unwrap();
        assert_eq!((told(&page.found), page.after, page.complete), (vec![(a2, of("a"))], Some(a2), true));
        let failed = RunFilter { verdict: Some("failed".into()), kind: Some("sync".into()), ..RunFilter::default() };
        let found = ledger.runs(failed.clone(), None, 10, EFFORT).await.unwrap();
        assert_eq!(told(&found.found), [(b, of("b"))]);
        let little = ledger.runs(failed, None, 10, 1).await.unwrap();
        assert_eq!((little.found.len(), little.after, little.complete), (0, Some(b2), false));
        let others = RunFilter { kind: Some("charts".into()), ..RunFilter::default() };
        assert_eq!(ledger.runs(others, None, 10, EFFORT).await.unwrap().found, []);
        let histories = ledger.histories(vec![b2, Fence(7), a2], 2).await.unwrap();
        let numbers: Vec<Vec<Fence>> = histories.iter().map(|of| of.iter().map(|one| one.fence).collect()).collect();
        assert_eq!(numbers, [vec![b2, b], vec![], vec![a2, a]]);
        assert_eq!(ledger.histories(vec![b2], 1).await.unwrap()[0].len(), 1);
    }
}

/// A record of a history that was made up, with kind, key, owner and queue of its chain, if that is there.
struct Made {
    fence: i64,
    started: Time,
    verdict: &'static str,
    reason: Option<&'static str>,
    chain: Option<(&'static str, &'static str, Option<&'static str>, &'static str)>,
}

impl Made {
    fn fits(&self, filter: &RunFilter) -> bool {
        let RunFilter { verdict, kind, key, owner, queue, except_queue, text, since, until } = filter;
        let is = |wanted: &Option<String>, is: Option<&str>| wanted.is_none() || wanted.as_deref() == is;
        let (reason, text) =
            (self.reason.unwrap_or_default().to_lowercase(), text.as_ref().map(|text| text.to_lowercase()));
        is(verdict, Some(self.verdict))
            && is(kind, self.chain.map(|(kind, ..)| kind))
            && is(key, self.chain.map(|(_, key, ..)| key))
            && is(owner, self.chain.and_then(|(.., owner, _)| owner))
            && is(queue, self.chain.map(|(.., queue)| queue))
            && (except_queue.is_none() || !is(except_queue, self.chain.map(|(.., queue)| queue)))
            && text.is_none_or(|text| reason.contains(&text))
            && since.is_none_or(|since| self.started >= since)
            && until.is_none_or(|until| self.started < until)
    }
}

/// Writes a history of an hour into a ledger, in which attempts start up to a minute out of the order of their fences:
/// of a rotation and its manual run, of two further chains, one of which runs rarely, and of one that is gone. Answers
/// it, latest first.
async fn made(opened: &Opened) -> Vec<Made> {
    let ledger = &*opened.ledger;
    let begin = ledger.now() - Duration::from_secs(3_600);
    let owned = NewChain { owner: Some("red".into()), queue: "side".into(), ..chain("b", ledger.now()) };
    let other = NewChain { kind: "charts".into(), ..chain("a", ledger.now()) };
    let mut epochs =
        vec![begun(ledger, "a").await.epoch.get(), manual(ledger, "a", Manual::default()).await.epoch.get()];
    for enrolled in ledger.enroll(vec![owned, other]).await.unwrap() {
        let Enrolled::Created(hint) = enrolled else { panic!("new: {enrolled:?}") };
        epochs.push(hint.epoch.get());
    }
    epochs.push(7);
    let chains = [
        Some(("sync", "a", None, "work")),
        Some(("sync", "a", None, "work")),
        Some(("sync", "b", Some("red"), "side")),
        Some(("charts", "a", None, "work")),
        None,
    ];
    let (mut all, mut rows, mut last) = (Vec::new(), Vec::new(), [0; 5]);
    for n in 0..360_i64 {
        // A restart has left a gap.
        let fence = 1_000 + n + if n < 180 { 0 } else { 4_000_000_000 };
        let of = if n % 60 == 1 { 3 } else { [0, 1, 2, 4][n as usize * 7 % 4] };
        let started = begin + Duration::from_secs((n * 10 + n * 37 % 61).unsigned_abs());
        let (verdict, reason) = match n % 3 {
            0 => ("failed", Some("HTTP 503: Busy, 50%_")),
            1 => ("failed", Some("HTTP 404: No such page")),
            _ => ("done", None),
        };
        let (said, at) = (reason.map_or("NULL".into(), |reason| format!("'{reason}'")), started.as_millis());
        let (epoch, previous) = (epochs[of], last[of]);
        rows.push(format!("({fence}, {epoch}, {n}, 1, {previous}, 'w', {at}, {at}, {at}, '{verdict}', {said})"));
        last[of] = fence;
        all.push(Made { fence, started, verdict, reason, chain: chains[of] });
    }
    let mut sql = format!(
        "INSERT INTO attempts (fence, epoch, tick, attempt, previous, worker, due, started, finished, verdict, reason)
         VALUES {};",
        rows.join(",")
    );
    for (epoch, fence) in epochs.iter().zip(last) {
        sql += &format!("UPDATE chains SET fence = {fence} WHERE epoch = {epoch};");
    }
    match &opened._schema {
        Some(schema) => schema.raw().await.batch_execute(&sql).await.unwrap(),
        None => rusqlite::Connection::open(opened.path()).unwrap().execute_batch(&sql).unwrap(),
    }
    all.reverse();
    all
}

#[tokio::test]
async fn runs_are_found_by_all_that_a_filter_can_say_and_none_is_left_out() {
    for opened in shared().await {
        let (ledger, history) = (&*opened.ledger, made(&opened).await);
        let all = RunFilter::default;
        let of = |text: &str| Some(text.to_owned());
        let (begin, hour) = (ledger.now() - Duration::from_secs(3_600), Duration::from_secs(3_600));
        let (early, late) = (history[300].started, history[60].started);
        let name = || RunFilter { kind: of("sync"), key: of("a"), ..all() };
        let table = [
            all(),
            RunFilter { verdict: of("failed"), ..all() },
            RunFilter { key: of("a"), ..all() },
            RunFilter { owner: of("red"), ..all() },
            RunFilter { queue: of("work"), verdict: of("done"), ..all() },
            RunFilter { queue: of("none"), ..all() },
            RunFilter { except_queue: of("work"), ..all() },
            RunFilter { except_queue: of("work"), ..name() },
            RunFilter { text: of("bUSY"), ..all() },
            RunFilter { text: of("50%_"), ..all() },
            RunFilter { text: of("5_%"), ..all() },
            RunFilter { since: Some(late), ..all() },
            RunFilter { since: Some(early), kind: of("charts"), ..all() },
            RunFilter { since: Some(begin + hour * 2), ..all() },
            RunFilter { until: Some(early), ..all() },
            RunFilter { until: Some(late), owner: of("red"), ..all() },
            RunFilter { until: Some(begin - hour), ..all() },
            RunFilter { since: Some(early), until: Some(late), ..all() },
            RunFilter { since: Some(late), until: Some(early), ..all() },
            RunFilter { since: Some(Time::from_millis(i64::MIN)), until: Some(Time::from_millis(i64::MAX)), ..all() },
            name(),
            RunFilter { verdict: of("failed"), text: of("no such"), ..name() },
            RunFilter { since: Some(late), ..name() },
            RunFilter { since: Some(early), until: Some(late), ..name() },
            RunFilter { owner: of("red"), ..name() },
            RunFilter { kind: of("sync"), key: of("nobody"), ..all() },
        ];
        for filter in table {
            let fitting: Vec<&Made> = history.iter().filter(|one| one.fits(&filter)).collect();
            let expected: Vec<i64> = fitting.iter().map(|one| one.fence).collect();
            // However little is done at a time, and however small the pages.
            let single = (filter.kind.is_some() && filter.key.is_some()).then_some((1, 1));
            let sizes = [(1_000, EFFORT), (1_000, 23), (5, 31)];
            for (limit, effort) in sizes.into_iter().chain(single) {
                let (mut seen, mut before, mut pages) = (Vec::new(), None, 0);
                loop {
                    let page = ledger.runs(filter.clone(), before, limit, effort).await.unwrap();
                    assert!(page.found.len() <= limit as usize && (page.complete || page.after.is_some()));
                    for found in page.found {
                        let chain = fitting[seen.len()].chain.map(|(kind, key, ..)| (kind.to_owned(), key.to_owned()));
                        assert_eq!(found.name, chain, "{filter:?}");
                        seen.push(found.record.fence.get());
                    }
                    pages += 1;
                    assert!(pages <= 362, "{filter:?} goes in circles");
                    before = page.after;
                    if before.is_none() {
                        break;
                    }
                }
                assert_eq!(seen, expected, "{filter:?}, {limit}, {effort}");
            }
        }
        // What does not lie within the time, or is another chain's, is not looked at.
        let soon = RunFilter { since: Some(late), verdict: of("lost"), ..all() };
        let found = ledger.runs(soon, None, 10, 80).await.unwrap();
        assert_eq!((found.found, found.after, found.complete), (vec![], None, true));
        let long_ago = RunFilter { until: Some(history[352].started), ..all() };
        assert_eq!(ledger.runs(long_ago, None, 1, 30).await.unwrap().found.len(), 1);
        let rare = RunFilter { kind: of("charts"), key: of("a"), ..all() };
        let found = ledger.runs(rare, None, 10, 60).await.unwrap();
        assert_eq!((found.found.len(), found.complete), (6, true));
    }
}

#[tokio::test]
async fn failures_are_counted_by_their_reasons() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let at = ledger.now();
        let failed = |item: &str, code: Option<&str>, reason: &str| FailedItem {
            code: code.map(Into::into),
            ..FailedItem::new(item, reason)
        };
        let record = async |key: &str, failed: FailedItem, nth: u64| {
            let at = at + Duration::from_secs(nth);
            ledger.record_failure("sync".into(), key.into(), failed, at).await.unwrap();
        };
        record("a", failed("us", Some("busy"), "HTTP 503 from us"), 1).await;
        record("b", failed("de", Some("busy"), "HTTP 503 from de"), 3).await;
        record("b", failed("", Some("busy"), "all of it"), 2).await;
        record("c", failed("", None, "no idea"), 4).await;
        record("d", failed("", None, "HTTP 404 Not Found: no d"), 5).await;
        record("e", failed("", None, "HTTP 404 Not Found: no e"), 6).await;
        let count = |code: Option<&str>, parts, wholes, last: u64, example: &str| ReasonCount {
            kind: "sync".into(),
            code: code.map(Into::into),
            permanent: false,
            parts,
            wholes,
            recovered: 0,
            last_at: at + Duration::from_secs(last),
            example: example.into(),
        };
        let (busy, none) = (count(Some("busy"), 2, 1, 3, "HTTP 503 from de"), count(None, 0, 1, 4, "no idea"));
        // Without a code, by what the reason begins with.
        let absent = count(None, 0, 2, 6, "HTTP 404 Not Found: no e");
        assert_eq!(ledger.reasons(FailureFilter::default(), 10).await.unwrap(), [busy, absent, none]);
        let first = ledger.reasons(FailureFilter::default(), 1).await.unwrap();
        assert_eq!(
            first.iter().map(|of| of.code.as_deref()).collect::<Vec<_>>(),
            [Some("busy")],
            "those with the most"
        );
        let of_a = FailureFilter { key: Some("a".into()), ..FailureFilter::default() };
        assert_eq!(ledger.reasons(of_a, 10).await.unwrap(), [count(Some("busy"), 1, 0, 1, "HTTP 503 from us")]);
    }
}

#[tokio::test]
async fn an_entity_that_has_worked_since_its_failure_has_recovered() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let now = ledger.now();
        let mut hint = begun(ledger, "a").await;
        begun(ledger, "b").await;
        let run = async |hint: &Hint, verdict: Verdict, at: Time| {
            let grant = granted(ledger, hint, LEASE).await;
            let whole = FailedItem::new("", "HTTP 503: busy");
            let failed = if verdict == Verdict::Failed { vec![whole] } else { Vec::new() };
            let due = ledger.now();
            let next = Next::Tick { nominal: due, due };
            written(ledger, FinishRequest { failed, ..end(hint, grant.fence, at, next, verdict) }).await
        };
        let failing = || FailureFilter { recovered: Some(false), ..FailureFilter::default() };
        let told = async || {
            let census = ledger.census(SLACK).await.unwrap();
            let failing = ledger.failed(failing(), None, 10).await.unwrap();
            let reasons = ledger.reasons(FailureFilter::default(), 10).await.unwrap();
            let latest = ledger.failures(10).await.unwrap();
            let keys = failing.into_iter().map(|failure| failure.key).collect::<Vec<_>>();
            (census.failures, census.recovered, keys, reasons[0].recovered, latest.last().unwrap().recovered)
        };
        hint = run(&hint, Verdict::Failed, now).await;
        let of = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
        assert_eq!(told().await, (1, 0, of(&["a"]), 0, false));
        // Neither a run that was put off nor one that was cut says that the entity works.
        for verdict in [Verdict::Snoozed, Verdict::Cut, Verdict::Retried] {
            hint = run(&hint, verdict, now + Duration::from_millis(500)).await;
            assert_eq!(told().await, (1, 0, of(&["a"]), 0, false), "{verdict:?}");
        }
        hint = run(&hint, Verdict::Done, now + Duration::from_secs(1)).await;
        assert_eq!(told().await, (1, 1, of(&[]), 1, true));
        // A failure of a part says nothing of the whole, and a part is never called recovered.
        let part = FailedItem::new("us", "HTTP 503: busy");
        ledger.record_failure("sync".into(), "a".into(), part, now).await.unwrap();
        assert_eq!(told().await, (2, 1, of(&["a"]), 1, true));
        run(&hint, Verdict::Failed, now + Duration::from_secs(2)).await;
        assert_eq!(told().await, (2, 0, of(&["a", "a"]), 0, false));
        assert_eq!(ledger.count_failed(FailureFilter { recovered: Some(true), ..failing() }).await.unwrap(), (0, 0));
    }
}

#[tokio::test]
async fn what_is_late_and_counted_is_so_by_queue_and_kind() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let now = ledger.now();
        let of = |key: &str, queue: &str, kind: &str, secs: u64| NewChain {
            kind: kind.into(),
            queue: queue.into(),
            ..chain(key, now - Duration::from_secs(secs))
        };
        ledger
            .enroll(vec![of("a", "work", "sync", 300), of("b", "work", "other", 200), of("c", "side", "sync", 400)])
            .await
            .unwrap();
        let keys = async |except: &[&str]| {
            let except = except.iter().map(|queue| (*queue).to_owned()).collect();
            let late = ledger.late(ledger.now() - SLACK, except, 10).await.unwrap();
            late.into_iter().map(|late| late.hint.key).collect::<Vec<_>>()
        };
        assert_eq!(keys(&[]).await, ["c", "a", "b"]);
        assert_eq!(keys(&["side"]).await, ["a", "b"]);
        let mut census = ledger.census(SLACK).await.unwrap();
        let told = |census: &roundelay::ledger::Census| -> Vec<_> {
            let queue = |of: &roundelay::ledger::QueueCensus| {
                let kinds: Vec<_> = of.kinds.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
                (of.queue.clone(), of.due, of.overdue, of.held, kinds.join(", "))
            };
            census.queues.iter().map(queue).collect()
        };
        let ago = |secs| Some(now - Duration::from_secs(secs));
        assert_eq!(
            told(&census),
            [("side".into(), 1, 1, 0, "sync 1".into()), ("work".into(), 2, 2, 0, "other 1, sync 1".into())]
        );
        assert_eq!(census.oldest_due(), ago(400));
        census.hold("side");
        assert_eq!(told(&census)[0], ("side".into(), 1, 0, 1, "sync 1".into()));
        assert_eq!(census.oldest_due(), ago(300), "what an operator holds is not the oldest that waits");
    }
}

#[tokio::test]
async fn messages_in_quarantine_are_told_latest_first_and_forgotten_by_number() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let at = ledger.now();
        for n in 0..3 {
            ledger.quarantine("work".into(), format!("bad {n}"), vec![0xFF, n], None, at).await.unwrap();
        }
        let all = ledger.quarantined(None, 2).await.unwrap();
        let told: Vec<(&str, &[u8])> = all.iter().map(|one| (&*one.reason, &*one.body)).collect();
        assert_eq!(told, [("bad 2", &[0xFF, 2][..]), ("bad 1", &[0xFF, 1])]);
        let last = ledger.quarantined(Some(all[1].number), 2).await.unwrap();
        assert_eq!((last.len(), &*last[0].from, last[0].at), (1, "work", at));
        let numbers = vec![all[0].number, last[0].number, -1];
        assert_eq!(ledger.forget_quarantined(numbers).await.unwrap(), 2);
        let left = ledger.quarantined(None, 9).await.unwrap();
        assert_eq!(left.iter().map(|one| one.number).collect::<Vec<_>>(), [all[1].number]);
    }
}

#[tokio::test]
async fn a_message_in_quarantine_becomes_a_job_once() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        ledger.quarantine("work".into(), "unknown kind".into(), b"body".to_vec(), None, ledger.now()).await.unwrap();
        let number = ledger.quarantined(None, 2).await.unwrap()[0].number;
        assert!(ledger.retry_quarantined(number, "job".into(), b"one".to_vec()).await.unwrap());
        assert!(!ledger.retry_quarantined(number, "again".into(), b"two".to_vec()).await.unwrap());
        assert!(ledger.quarantined(None, 9).await.unwrap().is_empty());
        let kept = ledger.kept_jobs(0, 9).await.unwrap();
        assert_eq!(kept.iter().map(|job| &*job.body).collect::<Vec<_>>(), [b"one"]);
    }
}

#[tokio::test]
async fn places_are_forgotten_once_they_say_nothing_any_more() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let second = Duration::from_secs(1);
        let first =
            async |kind: &str, id: &str| ledger.reserve(kind.into(), "of".into(), id.into(), second).await.unwrap();
        assert_eq!(first("roundelay.retried", "a").await, "a");
        assert_eq!(first("sync", "a").await, "a");
        ledger.prune(ledger.now(), 10).await.unwrap();
        assert_eq!(first("roundelay.retried", "b").await, "a", "it is not over");
        assert_eq!(first("sync", "b").await, "a", "nor is this");
        ledger.prune(ledger.now() + second * 60, 10).await.unwrap();
        assert_eq!(first("roundelay.retried", "b").await, "b");
        assert_eq!(first("sync", "b").await, "b", "nothing stays of a place whose window is over");
    }
}

#[tokio::test]
async fn many_ticks_are_brought_forward_at_once_and_none_that_cannot_be() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let now = ledger.now();
        let later = now + LEASE;
        let once = NewChain { once: true, ..chain("e", later) };
        let chains = [chain("a", later), chain("b", later), chain("c", later), chain("due", now), once];
        ledger.enroll(chains.to_vec()).await.unwrap();
        ledger
            .order_chains(ChainFilter { key: Some("c".into()), ..ChainFilter::default() }, ChainOrder::Pause)
            .await
            .unwrap();
        let work = || ChainFilter { kind: Some("sync".into()), queue: Some("work".into()), ..ChainFilter::default() };
        let first = ledger.advance_all(work(), 1, SLACK).await.unwrap();
        assert_eq!(first.len(), 1);
        let second = ledger.advance_all(work(), 10, SLACK).await.unwrap();
        let mut keys: Vec<&str> = first.iter().chain(&second).map(|hint| hint.key.as_str()).collect();
        keys.sort_unstable();
        assert_eq!(keys, ["a", "b"]);
        for hint in first.iter().chain(&second) {
            assert!(hint.due >= now && hint.due <= ledger.now());
            let view = ledger.chains("sync".into(), hint.key.clone()).await.unwrap().remove(0);
            assert_eq!((&view.hint, view.sent, view.watch_at), (hint, false, hint.due + SLACK));
        }
        assert_eq!(ledger.advance_all(work(), 10, SLACK).await.unwrap(), []);
    }
}
