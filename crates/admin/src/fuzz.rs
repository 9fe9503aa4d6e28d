//! Fuzz targets: arbitrary input, parsed as the engine parses it, and what must hold for any input. The folder `fuzz`
//! of the repository has a target for each function, and the inputs that a fuzzer found worth keeping, which the tests
//! run.

use std::time::Duration;

use reqwest::StatusCode;
use roundelay_config::{Config, Format, OwnSchedule};
use roundelay_engine::roster;
use roundelay_engine::roster::Shape;
use roundelay_handler::{answer, http};
use roundelay_model::clock::{Entropy, Time};
use roundelay_model::job::{Envelope, MAX_KEY};
use roundelay_model::outcome::{MAX_WAIT, Outcome};
use roundelay_model::progress::Report;
use roundelay_model::schedule::{Balance, Ran, Schedule, Setting};
use roundelay_model::wall_clock::WallClock;

pub use crate::api::fuzz::request;

/// The body of a message. A message that can be read is written and read again.
pub fn envelope(data: &[u8]) {
    let Ok(envelope) = Envelope::decode(data) else { return };
    assert!(!envelope.key.is_empty() && envelope.key.len() <= MAX_KEY, "{envelope:?}");
    let again = Envelope::decode(&envelope.encode()).expect("what was read can be read again");
    assert_eq!(again.encode(), envelope.encode());
    assert_eq!(again.message_id(), envelope.message_id());
}

/// The text of a configuration file. An error's message is not empty, and has no control character but the newline.
pub fn configuration(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Config::parse(text, "roundelay.toml", []) {
        Ok(config) => {
            let queues = config.broker_queues();
            // A platform queue has a queue of the broker for each of its lanes.
            assert!(queues.len() >= config.queues.len());
            let _ = config.topology();
        }
        Err(error) => {
            let words = error.to_string();
            let is_unsafe = |c: char| c.is_control() && c != '\n';
            assert!(!words.is_empty() && !words.contains(is_unsafe), "{words:?}");
        }
    }
}

/// A roster: the first byte is its format. A row is an entity, or has an error.
pub fn roster(data: &[u8]) {
    const CONFIG: &str = r#"
        [queues.sync-npm]
        [queues.sync-pypi]
        [kinds.sync]
        queue = "sync-{{ platform }}"
        every = "10s"
        handler.exec.argv = ["/bin/true"]
        roster = { key = "{{ platform }}/{{ name }}", owner = "{{ owner }}", schedule = "{{ every }}" }
    "#;
    let Some((first, text)) = data.split_first() else { return };
    let config = Config::parse(CONFIG, "roundelay.toml", []).expect("the configuration is valid");
    let shape = Shape::new(&config, &config.kinds["sync"]).expect("the templates are valid");
    let format = if first % 2 == 0 { Format::Csv } else { Format::Ndjson };
    let Ok(rows) = roster::rows(format, text) else { return };
    for row in rows {
        match row.map(|(_, row)| shape.entity(row)) {
            Ok(Ok(entity)) => {
                assert!(!entity.key.is_empty() && config.queues.contains_key(&entity.queue), "{entity:?}");
                assert!(serde_json::from_str::<serde_json::Value>(&entity.payload).is_ok_and(|it| it.is_object()));
                let own = entity.schedule.as_deref().map(OwnSchedule::parse);
                assert!(own.is_none_or(|own| own.is_ok()), "{:?} cannot be read again", entity.schedule);
            }
            Ok(Err(why)) => assert!(!why.is_empty()),
            Err(bad) => assert!(!bad.reason.is_empty()),
        }
    }
}

/// A schedule as people write it: the first eight bytes are the time at which it begins. The schedule can be written
/// and read again, no occurrence is due before the previous run has ended, and nominal times never go back.
pub fn schedule(data: &[u8]) {
    let Some((begin, text)) = data.split_first_chunk::<8>() else { return };
    let Ok(own) =
        std::str::from_utf8(text).map_err(|_| ()).and_then(|text| OwnSchedule::from_words(text).map_err(|_| ()))
    else {
        return;
    };
    assert_eq!(OwnSchedule::parse(&own.text()).map(|own| own.text()), Ok(own.text()));
    let schedule = own.apply(&Schedule::fixed_delay(Duration::from_secs(60), Duration::ZERO)).expect("it was checked");
    // Between 1970 and 2262.
    let now = Time::from_millis(i64::from_le_bytes(*begin).rem_euclid(9_200_000_000_000));
    let (balance, dice) = (Balance::default(), Entropy::seeded(1));
    let setting = Setting {
        phase: roundelay_model::schedule::phase("kind", "key"),
        balance: &balance,
        dice: &dice,
        wall_clock: &WallClock::default(),
    };
    let Some(mut occurrence) = schedule.first(now, Duration::ZERO, setting) else { return };
    for _ in 0..4 {
        let started = occurrence.due.max(now);
        let ran = Ran { nominal: occurrence.nominal, started, finished: started + Duration::from_millis(5) };
        let Some(next) = schedule.next(ran, setting) else { return };
        assert!(next.due >= ran.finished, "{next:?} after {ran:?}");
        assert!(next.nominal >= occurrence.nominal, "{next:?} after {occurrence:?}");
        occurrence = next;
    }
}

/// What a handler answers: two bytes for the status, a line for `Retry-After`, and the body. A snooze waits for longer
/// than nothing, and no wait is longer than [`MAX_WAIT`].
pub fn reply(data: &[u8]) {
    let Some((status, rest)) = data.split_first_chunk::<2>() else { return };
    let Ok(status) = StatusCode::from_u16(100 + u16::from_le_bytes(*status) % 900) else { return };
    let (line, body) = rest.split_at(rest.iter().position(|byte| *byte == b'\n').unwrap_or(0));
    let retry_after = std::str::from_utf8(line).ok();
    // Any time will do.
    let now = Time::from_millis(1_790_000_000_000);
    let outcome = http::outcome_of(&http::Reply { status, retry_after, location: None, body }, now);
    let wait = match &outcome {
        Outcome::Snooze { wait, .. } => {
            assert!(*wait > Duration::ZERO, "{outcome:?}");
            Some(*wait)
        }
        Outcome::Retry { after, .. } => *after,
        _ => None,
    };
    assert!(wait.is_none_or(|wait| wait <= MAX_WAIT), "{outcome:?}");
    // Neither may panic.
    let _ = answer::advice(body);
    let _ = Report::read(body);
}

#[cfg(test)]
mod tests {
    /// Every input of the target's corpus, including those that once crashed it.
    fn corpus(target: &str, run: fn(&[u8])) {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
        let mut inputs: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()).collect();
        inputs.sort();
        // An empty folder, or another, must not pass.
        assert!(inputs.len() > 3, "{} has too few inputs", folder.display());
        for input in inputs {
            println!("{}", input.display());
            run(&std::fs::read(input).unwrap());
        }
    }

    #[test]
    fn envelopes() {
        corpus("envelope", super::envelope);
    }

    #[test]
    fn configurations() {
        corpus("configuration", super::configuration);
    }

    #[test]
    fn rosters() {
        corpus("roster", super::roster);
    }

    #[test]
    fn schedules() {
        corpus("schedule", super::schedule);
    }

    #[test]
    fn replies() {
        corpus("reply", super::reply);
    }

    #[test]
    fn requests() {
        corpus("request", super::request);
    }
}
