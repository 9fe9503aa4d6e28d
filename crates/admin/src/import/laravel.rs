//! Laravel's schedule, as `php artisan schedule:list` prints it: one kind for each command.

use jiff::fmt::strtime;
use roundelay_model::clock::Time;
use roundelay_model::schedule::Cron;
use serde::Deserialize;
use toml::Value as Toml;

use super::{Import, MAX_TIMEOUT, Recurs, Weight, Wishes, by_cron, list, slug, text};
use crate::import::cron::{Dialect, translate};

/// The key of each kind's one chain.
const KEY: &str = "laravel";
/// The folders that are searched for PHP.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// An entry of `schedule:list --json`.
#[derive(Deserialize)]
struct Event {
    expression: String,
    #[serde(default)]
    command: String,
    #[serde(default)]
    description: Option<String>,
    #[serde(default)]
    next_due_date: Option<String>,
    #[serde(default)]
    timezone: Option<String>,
    #[serde(default)]
    repeat_seconds: Option<u32>,
    #[serde(default)]
    environments: Vec<String>,
    /// Whether the listing distinguishes commands from code that runs inside PHP.
    #[serde(skip)]
    from_json: bool,
}

/// Notes about every import: why, and what to do.
const GENERAL: [(&str, &str); 4] = [
    (
        "the list does not say withoutOverlapping, onOneServer and runInBackground: here an entry never runs twice at \
         once, on one worker at a time, and beside the others",
        "nothing, unless an entry counts on overlapping",
    ),
    (
        "the list does not say when(), skip(), between(), days of maintenance, hooks (before, after, onFailure, ping…) \
         and where output goes (sendOutputTo, emailOutputTo)",
        "look for them in routes/console.php or app/Console/Kernel.php, and let the command do them; one that ends with \
         exit code 0 has done its work",
    ),
    (
        "an entry with a timezone() of its own is listed in the zone of the list, as it is today: its time moves when \
         clocks change there",
        "set `cron` and `zone` of such a kind by hand",
    ),
    (
        "a command is ended after 24 hours, and its run counts as failed; Laravel lets it go on",
        "let a longer one put its work on a queue, or do it in parts",
    ),
];

/// Reads the output of `schedule:list --json` or `schedule:list` in the application in the folder `application`.
///
/// # Errors
/// When the text has neither format.
pub fn import(source: &str, application: &str, wishes: &Wishes) -> Result<Import, String> {
    let mut import = Import::default();
    let source = source.trim();
    if source.starts_with('[') {
        let events: Vec<serde_json::Value> =
            serde_json::from_str(source).map_err(|error| format!("not what schedule:list --json prints: {error}"))?;
        for (n, event) in events.into_iter().enumerate() {
            let (place, entry) = (format!("entry {}", n + 1), event.to_string());
            match serde_json::from_value::<Event>(event) {
                Ok(event) => add(&mut import, &place, Event { from_json: true, ..event }, application, wishes),
                Err(error) => import.note(
                    Weight::LeftOut,
                    &place,
                    &entry,
                    format!("it is not as schedule:list --json writes it: {error}"),
                    "say which version of Laravel it is from",
                ),
            }
        }
    } else {
        for (n, line) in source.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            // The description of the entry before, with -v.
            if line.trim_start().starts_with('⇁') {
                continue;
            }
            let place = format!("line {}", n + 1);
            match listed(line) {
                Some(event) => add(&mut import, &place, event, application, wishes),
                None => import.note(
                    Weight::LeftOut,
                    &place,
                    line.trim(),
                    "this is no line of schedule:list: a time, a command, dots, and `Next Due:`",
                    "print the list again with --json, or with a wider terminal (COLUMNS=200)",
                ),
            }
        }
    }
    if import.carried > 0 {
        import.queue(&wishes.queue);
        import.general(GENERAL);
    }
    Ok(import)
}

/// A line of the list: `  0 14,18 * * *  php artisan inspire ........ Next Due: 14 hours from now`.
fn listed(line: &str) -> Option<Event> {
    let (before, due) = line.rsplit_once("Next Due:")?;
    let before = before.trim_end();
    let before = before.strip_suffix("Has Mutex ›").unwrap_or(before).trim_end();
    let before = before.trim_end_matches('.').trim();
    let mut rest = before;
    let mut next = || {
        let (word, after) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        rest = after.trim_start();
        word
    };
    let time: Vec<&str> = (0..5).map(|_| next()).collect();
    let seconds = |word: &str| word.strip_suffix('s')?.parse::<u32>().ok();
    let (first, after) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let (repeat_seconds, command) = match seconds(first) {
        Some(seconds) => (Some(seconds), after.trim_start()),
        None => (None, rest),
    };
    (!command.is_empty()).then(|| Event {
        expression: time.join(" "),
        command: command.to_owned(),
        description: None,
        // With -v it is a date, otherwise words.
        next_due_date: Some(due.trim().to_owned()).filter(|due| moment(due).is_some()),
        timezone: None,
        repeat_seconds,
        environments: Vec::new(),
        from_json: false,
    })
}

fn moment(text: &str) -> Option<Time> {
    let time = strtime::parse("%Y-%m-%d %H:%M:%S %:z", text).and_then(|parsed| parsed.to_timestamp());
    time.ok().map(|at| Time::from_millis(at.as_millisecond()))
}

fn add(import: &mut Import, place: &str, event: Event, application: &str, wishes: &Wishes) {
    let entry = format!("{} {}", event.expression, event.command);
    let zone = event.timezone.as_deref().or(wishes.zone.as_deref()).unwrap_or("UTC");
    let mut left_out = |why: String, advice: &str| import.note(Weight::LeftOut, place, &entry, why, advice);
    if inside_php(&event) {
        return left_out(
            "it is a closure or a queued job, which only PHP can call".into(),
            "make it an artisan command (for a job: one that dispatches it), schedule that, and list again; or add a \
             kind with a route of the application as its handler.http.url",
        );
    }
    if !event.from_json && !event.command.starts_with("php artisan ") {
        return left_out(
            "this list does not say whether it is a program or the name of something in PHP".into(),
            "list again with --json, which Laravel has from version 12; or write the kind by hand",
        );
    }
    let recurs = match by_cron(&event.expression, Dialect::Laravel, zone) {
        Ok(recurs) => match repeated(recurs, event.repeat_seconds) {
            Ok(recurs) => recurs,
            Err(why) => return left_out(why, "write the kind by hand, with `every`"),
        },
        Err(why) => return left_out(why, "write the time in another way, and list again"),
    };
    let due = event.next_due_date.as_deref().and_then(moment);
    if event.repeat_seconds.is_none() && due.is_some_and(|due| !is_occurrence(&event.expression, zone, due)) {
        return left_out(
            format!("by its expression in {zone} it is not due when the list says; so it has a timezone() of its own"),
            "write the kind by hand, with `cron` as in the PHP code and that `zone`",
        );
    }
    if !event.environments.is_empty() {
        import.note(
            Weight::Differs,
            place,
            &entry,
            format!("it is for the environments {} only", event.environments.join(", ")),
            "remove the kind where the worker is for another",
        );
    }
    let shell = format!("exec </dev/null; {}", event.command);
    let argv = list(["/bin/sh", "-c", &shell]);
    let env = toml::Table::from_iter([("PATH".to_owned(), text(PATH))]);
    let mut settings = vec![("queue", text(&wishes.queue))];
    settings.extend(recurs.settings());
    // Laravel does not run again what it has missed, or what has failed.
    settings.extend([("misfire", text("skip")), ("timeout", text(MAX_TIMEOUT)), ("retry.attempts", Toml::Integer(1))]);
    settings.extend([("handler.exec.argv", argv), ("handler.exec.env", Toml::Table(env))]);
    settings.push(("handler.exec.cwd", text(application)));
    let name = slug(event.command.strip_prefix("php artisan ").unwrap_or(&event.command));
    let description =
        event.description.filter(|text| !text.is_empty()).map_or(String::new(), |text| format!(" ({text})"));
    import.add_program(&name, format!("{place}: {entry}{description}"), KEY, settings);
}

/// Whether it is not a shell command: a closure, or the class or name of a job, which is its own description.
fn inside_php(event: &Event) -> bool {
    let class = !event.command.contains(char::is_whitespace) && event.command.contains('\\');
    let described = event.from_json && event.description.as_deref() == Some(&event.command);
    event.command.is_empty() || event.command.starts_with("Closure at: ") || class || described
}

/// Every `seconds` seconds within the matching minutes.
fn repeated(recurs: Recurs, seconds: Option<u32>) -> Result<Recurs, String> {
    match (recurs, seconds) {
        (recurs, None) => Ok(recurs),
        (Recurs::Cron(cron, zone), Some(seconds)) if seconds > 0 && 60 % seconds == 0 => {
            let second = if seconds == 1 { "*".into() } else { format!("*/{seconds}") };
            let second = if seconds == 60 { "0".into() } else { second };
            Ok(Recurs::Cron(format!("{second} {cron}"), zone))
        }
        (_, Some(seconds)) => Err(format!("it repeats every {seconds} s within a minute, which does not divide it")),
    }
}

fn is_occurrence(expression: &str, zone: &str, due: Time) -> bool {
    let cron = translate(expression, Dialect::Laravel).and_then(|cron| Cron::parse(&cron, Some(zone)));
    cron.is_ok_and(|cron| cron.at_or_before(due) == Some(due))
}

#[cfg(test)]
mod tests {
    use super::super::tests::chains;
    use super::*;

    fn wishes(zone: Option<&str>) -> Wishes {
        Wishes { zone: zone.map(Into::into), queue: "laravel".into(), handler_url: String::new() }
    }

    /// In the format of Laravel 13's ScheduleListCommand.
    const JSON: &str = r#"[
{"expression":"0 0 1 1-12\/3 *","command":"php artisan foo:command","description":"This is the description.","next_due_date":"2023-04-01 00:00:00 +00:00","next_due_date_human":"3 months from now","timezone":"UTC","has_mutex":false,"repeat_seconds":null,"environments":[]},
{"expression":"* * * * *","command":"php artisan foobar a='b'","description":null,"next_due_date":"2023-01-01 00:00:10 +00:00","next_due_date_human":"","timezone":"UTC","has_mutex":true,"repeat_seconds":10,"environments":["production"]},
{"expression":"* * * * *","command":"App\\Jobs\\FooJob","description":"App\\Jobs\\FooJob","next_due_date":"2023-01-01 00:01:00 +00:00","timezone":"UTC","has_mutex":false,"repeat_seconds":null,"environments":[]},
{"expression":"* * * * *","command":"foo-named-job","description":"foo-named-job","timezone":"UTC","repeat_seconds":null,"environments":[]},
{"expression":"* * * * *","command":"Closure at: routes\/console.php:12","description":null,"timezone":"UTC","repeat_seconds":null,"environments":[]},
{"expression":"15 3 * * 1","command":"\/usr\/bin\/env -i sync.sh","description":null,"next_due_date":"2023-01-02 03:15:00 -06:00","timezone":"America\/Chicago","repeat_seconds":null,"environments":[]},
{"expression":"0 9 * * *","command":"php artisan report","description":null,"next_due_date":"2023-01-01 14:00:00 +00:00","timezone":"UTC","repeat_seconds":null,"environments":[]},
{"expression":"0 0 L * *","command":"php artisan invoice","description":null,"next_due_date":"2023-01-31 00:00:00 +00:00","timezone":"UTC","repeat_seconds":null,"environments":[]},
{"expression":7}
]"#;

    #[test]
    fn every_entry_is_in_the_result_or_in_the_report() {
        let import = import(JSON, "/srv/app", &wishes(None)).unwrap();
        let found: Vec<String> =
            chains(&import).iter().map(|(kind, key, when, _)| format!("{kind} {key} {when}")).collect();
        assert_eq!(
            found,
            [
                "foo-command laravel cron 0 0 1 1-12/3 * UTC",
                "foobar-a-b laravel cron */10 * * * * * UTC",
                "env-i-sync-sh laravel cron 15 3 * * 1 America/Chicago",
                "invoice laravel cron 0 0 L * * UTC",
            ]
        );
        let left: Vec<_> = import.notes.iter().filter(|note| note.weight == Weight::LeftOut).collect();
        let places: Vec<_> = left.iter().map(|note| note.place.as_deref().unwrap()).collect();
        assert_eq!(places, ["entry 3", "entry 4", "entry 5", "entry 7", "entry 9"], "{left:?}");
        assert!(left[3].why.contains("timezone() of its own"), "{left:?}");
        assert!(import.notes.iter().any(|note| note.why.contains("environments production")));
        assert_eq!(import.carried + import.left_out(), 9);
    }

    #[test]
    fn the_list_for_people_is_read_too() {
        let text = "
  0 0     1 1-12/3 *      php artisan foo:command .... Next Due: 3 months from now
  0 14,18 * *      *      php artisan inspire --at=../x ... Has Mutex › Next Due: 2023-01-01 14:00:00 +00:00
                     ⇁ Display an inspiring quote
  * *     * *      *  10s php artisan foobar a='b' ... Next Due: 10 seconds from now
  * *     * *      *      App\\Jobs\\FooJob  Next Due: 1 minute from now
  * *     * *      *      foo-named-job ... Next Due: 1 minute from now
  No scheduled tasks
";
        let import = import(text, "/srv/app", &wishes(Some("Europe/Paris"))).unwrap();
        let found: Vec<String> = chains(&import).iter().map(|(kind, _, when, _)| format!("{kind} {when}")).collect();
        assert_eq!(
            found,
            ["foo-command cron 0 0 1 1-12/3 * Europe/Paris", "foobar-a-b cron */10 * * * * * Europe/Paris"]
        );
        let left: Vec<_> = import.notes.iter().filter(|note| note.weight == Weight::LeftOut).collect();
        assert!(left[0].why.contains("timezone() of its own"), "14:00 in UTC is not in Paris: {left:?}");
        assert!(
            left[1].why.contains("closure or a queued job") && left[2].why.contains("does not say whether"),
            "{left:?}"
        );
        assert!(left[3].why.contains("no line of schedule:list"), "{left:?}");
        assert_eq!(left.len(), 4);
    }

    #[test]
    fn text_that_is_no_list_of_entries_is_refused() {
        assert!(import("[{]", "/", &wishes(None)).unwrap_err().contains("not what schedule:list --json prints"));
    }
}
