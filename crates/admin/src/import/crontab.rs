//! A crontab: one kind for each line, which runs its command with a shell.

use std::collections::BTreeMap;

use toml::Value as Toml;

use super::{Import, MAX_TIMEOUT, Recurs, Weight, Wishes, by_cron, list, slug, text};
use crate::import::cron::Dialect;

/// The key of each kind's one chain.
const KEY: &str = "crontab";
/// The folders that cron searches for commands, if the crontab does not say.
const PATH: &str = "/usr/bin:/bin";
/// Variables that have a meaning for cron.
const MAIL: [&str; 4] = ["MAILTO", "MAILFROM", "CONTENT_TYPE", "CONTENT_TRANSFER_ENCODING"];

/// The note about a crontab that names no time zone.
const DEFAULT_ZONE: (&str, &str) = (
    "the crontab does not say its time zone (CRON_TZ), so its times are taken as UTC; cron goes by the machine's zone",
    "if that is another one, import again with --zone",
);
/// The note about an unknown home folder.
const NO_HOME: (&str, &str) = (
    "cron starts commands in the home folder of their user, with HOME and LOGNAME; here nothing says which that is",
    "import again with --home, if a command needs it",
);
/// Notes about every import: why, and what to do.
const GENERAL: [(&str, &str); 2] = [
    (
        "a command that still runs when its time comes again is not started a second time; cron would do that",
        "nothing, unless a line counts on it; then split it in two",
    ),
    (
        "a command is ended after 24 hours, and its run counts as failed; cron lets it go on",
        "let a longer one start its work as a service (systemd-run --no-block …), or in parts",
    ),
];

/// Reads a crontab; with `user`, a system's one such as `/etc/crontab`, whose sixth field is the user of the command.
/// Of such a file, only this user's entries are imported.
pub fn import(source: &str, user: Option<&str>, home: Option<&str>, wishes: &Wishes) -> Import {
    let mut import = Import::default();
    let mut variables =
        BTreeMap::from([("PATH".to_owned(), PATH.to_owned()), ("SHELL".to_owned(), "/bin/sh".to_owned())]);
    variables.extend(home.map(|home| ("HOME".to_owned(), home.to_owned())));
    let (mut zone, mut default_zone) = (wishes.zone.clone(), false);
    for (n, line) in source.lines().enumerate() {
        let (place, line) = (format!("line {}", n + 1), line.trim());
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some((name, value)) = variable(line) {
            match name.as_str() {
                "CRON_TZ" => zone = Some(value),
                "RANDOM_DELAY" => import.note(
                    Weight::Differs,
                    &place,
                    line,
                    "cron delays what follows by up to so many minutes, anew each time; that is not carried over",
                    "set `jitter` in the kinds that need it, which moves an occurrence to either side",
                ),
                name if MAIL.contains(&name) => import.note(
                    Weight::Differs,
                    &place,
                    line,
                    "what commands print is not mailed",
                    "look at failed runs with `roundelay status` and `roundelay failed`, and be alerted by metrics; or \
                     let the command send the mail",
                ),
                _ => drop(variables.insert(name, value)),
            }
            continue;
        }
        match entry(line, user) {
            Err(why) => {
                import.note(Weight::LeftOut, &place, line, why, "mend the line in the crontab, and import it again")
            }
            Ok(Entry { time, .. }) if time.eq_ignore_ascii_case("@reboot") => import.note(
                Weight::LeftOut,
                &place,
                line,
                "it runs when the machine starts, and Roundelay goes by time",
                "start it as a service of the system (systemd: a unit of Type=oneshot)",
            ),
            Ok(Entry { runs_as: Some(other), .. }) if user != Some(&*other) => import.note(
                Weight::LeftOut,
                &place,
                line,
                format!("it runs as {other}, and a worker runs programs as its own user"),
                "import the file again with --system and that user, for a worker that runs as it",
            ),
            Ok(entry) => match by_cron(&entry.time, Dialect::Vixie, zone.as_deref().unwrap_or("UTC")) {
                Err(why) => {
                    import.note(
                        Weight::LeftOut,
                        &place,
                        line,
                        why,
                        "write the time in another way, and import it again",
                    );
                }
                Ok(recurs) => {
                    default_zone |= zone.is_none();
                    import.add_program(
                        &slug(&entry.command),
                        format!("{place}: {line}"),
                        KEY,
                        settings(&recurs, &entry, &variables, wishes),
                    );
                }
            },
        }
    }
    if import.carried > 0 {
        import.queue(&wishes.queue);
        let zone = default_zone.then_some(DEFAULT_ZONE);
        let home = (!variables.contains_key("HOME")).then_some(NO_HOME);
        import.general(zone.into_iter().chain(home).chain(GENERAL));
    }
    import
}

/// A line with a time and a command.
struct Entry {
    time: String,
    runs_as: Option<String>,
    command: String,
    input: Option<String>,
}

fn entry(line: &str, user: Option<&str>) -> Result<Entry, String> {
    let fields = if line.starts_with('@') { 1 } else { 5 };
    let mut rest = line;
    let mut next = || {
        let (field, after) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        rest = after.trim_start();
        field
    };
    let time: Vec<&str> = (0..fields).map(|_| next()).collect();
    let runs_as = user.map(|_| next().to_owned());
    if rest.is_empty() {
        let user = if user.is_some() { ", a user" } else { "" };
        return Err(format!("this is no line of a crontab: five fields or an @word{user}, and a command"));
    }
    let (command, input) = split_input(rest);
    Ok(Entry { time: time.join(" "), runs_as, command, input })
}

/// The command, and its standard input: the text after a `%`. Further `%` begin new lines of the input.
fn split_input(text: &str) -> (String, Option<String>) {
    let mut parts = vec![String::new()];
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\\' if chars.peek() == Some(&'%') => parts.last_mut().expect("one is there").extend(chars.next()),
            '%' => parts.push(String::new()),
            c => parts.last_mut().expect("one is there").push(c),
        }
    }
    let command = parts.remove(0);
    let input = (!parts.is_empty()).then(|| parts.join("\n") + "\n");
    (command.trim_end().to_owned(), input)
}

/// `NAME = value`, with or without quotation marks.
fn variable(line: &str) -> Option<(String, String)> {
    let (name, value) = line.split_once('=')?;
    let bare = |text: &str| {
        let text = text.trim();
        let quoted = |mark: char| text.len() > 1 && text.starts_with(mark) && text.ends_with(mark);
        if quoted('"') || quoted('\'') { text[1..text.len() - 1].to_owned() } else { text.to_owned() }
    };
    let (name, value) = (bare(name), bare(value));
    let is_name = !name.starts_with(|c: char| c.is_ascii_digit())
        && !name.is_empty()
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    is_name.then_some((name, value))
}

fn settings(
    recurs: &Recurs,
    entry: &Entry,
    variables: &BTreeMap<String, String>,
    wishes: &Wishes,
) -> Vec<(&'static str, Toml)> {
    let shell = variables.get("SHELL").map_or("/bin/sh", |shell| shell);
    // A worker gives the job on standard input, where cron gives nothing.
    let argv = match &entry.input {
        None => list(["/bin/sh", "-c", r#"exec "$0" -c "$1" </dev/null"#, shell, &entry.command]),
        Some(input) => list(["/bin/sh", "-c", r#"printf %s "$2" | "$0" -c "$1""#, shell, &entry.command, input]),
    };
    let env = variables.iter().map(|(name, value)| (name.clone(), text(value))).collect();
    let mut settings = vec![("queue", text(&wishes.queue))];
    settings.extend(recurs.settings());
    // Cron does not run again what it has missed, or what has failed.
    settings.extend([("misfire", text("skip")), ("timeout", text(MAX_TIMEOUT)), ("retry.attempts", Toml::Integer(1))]);
    settings.extend([("handler.exec.argv", argv), ("handler.exec.env", Toml::Table(env))]);
    settings.extend(variables.get("HOME").map(|home| ("handler.exec.cwd", text(home))));
    settings
}

#[cfg(test)]
mod tests {
    use super::super::tests::chains;
    use super::*;

    fn wishes(zone: Option<&str>) -> Wishes {
        Wishes { zone: zone.map(Into::into), queue: "crontab".into(), handler_url: String::new() }
    }

    const CRONTAB: &str = r#"# m h dom mon dow command
MAILTO=ops@example.org
SHELL = "/bin/bash"
PATH=/usr/local/bin:/usr/bin:/bin

17 *	* * *	run-parts --report /etc/cron.hourly
CRON_TZ=Europe/Berlin
30 2 * * * /usr/local/bin/backup.sh --to='a b' # nightly
GREETING='hello there'
0 0 1,15 * 5 mail -s "it\% is" root%Dear root,%%bye
@reboot /usr/local/bin/warm-up
@daily backup.sh
61 * * * * never
* * * *
"#;

    #[test]
    fn every_line_is_in_the_result_or_in_the_report() {
        let import = import(CRONTAB, None, None, &wishes(Some("UTC")));
        let found: Vec<String> =
            chains(&import).iter().map(|(kind, key, when, _)| format!("{kind} {key} {when}")).collect();
        assert_eq!(
            found,
            [
                "run-parts-report-cron-hourly crontab cron 17 * * * * UTC",
                "backup-sh-to-a-b-nightly crontab cron 30 2 * * * Europe/Berlin",
                "mail-s-it-is-root crontab cron 0 0 1,15 * 5 Europe/Berlin",
                "backup-sh crontab cron 0 0 * * * Europe/Berlin",
            ]
        );
        let left: Vec<_> = import.notes.iter().filter(|note| note.weight == Weight::LeftOut).collect();
        let places: Vec<_> = left.iter().map(|note| note.place.as_deref().unwrap()).collect();
        assert_eq!(places, ["line 11", "line 13", "line 14"], "{left:?}");
        assert_eq!((import.carried, import.left_out()), (4, 3), "of seven lines with times");
        assert!(import.notes.iter().any(|note| note.place.as_deref() == Some("line 2") && note.why.contains("mailed")));
    }

    #[test]
    fn a_command_gets_its_shell_its_variables_and_its_input() {
        let import = import(CRONTAB, None, Some("/home/ann"), &wishes(None));
        let setting = |kind: usize, key: &str| {
            import.kinds[kind].settings.iter().find(|(name, _)| *name == key).map(|(_, value)| value.clone()).unwrap()
        };
        let argv = setting(2, "handler.exec.argv");
        let argv: Vec<&str> = argv.as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
        assert_eq!(argv[3..], ["/bin/bash", r#"mail -s "it% is" root"#, "Dear root,\n\nbye\n"]);
        assert_eq!(setting(0, "handler.exec.env").get("GREETING"), None, "it stands below");
        assert_eq!(setting(2, "handler.exec.env")["GREETING"].as_str(), Some("hello there"));
        assert_eq!(setting(2, "handler.exec.env")["PATH"].as_str(), Some("/usr/local/bin:/usr/bin:/bin"));
        assert_eq!(setting(2, "handler.exec.cwd").as_str(), Some("/home/ann"));
    }

    #[test]
    fn of_a_system_crontab_one_users_entries_are_taken() {
        let text = "25 6 * * * root test -x /usr/sbin/anacron\n5 * * * * www-data php cron.php\n@daily root\n";
        let import = import(text, Some("root"), None, &wishes(Some("Asia/Tokyo")));
        assert_eq!(chains(&import)[0].2, "cron 25 6 * * * Asia/Tokyo");
        let left: Vec<_> = import.notes.iter().filter(|note| note.weight == Weight::LeftOut).collect();
        assert!(left[0].why.contains("as www-data") && left[1].why.contains("a user, and a command"), "{left:?}");
        assert_eq!((import.carried, left.len()), (1, 2));
    }

    #[test]
    fn a_zone_that_nobody_knows_is_told_of_each_line_that_has_it() {
        let import = import("CRON_TZ=Middle/Earth\n0 1 * * * true\n0 2 * * * true\n", None, None, &wishes(None));
        assert_eq!((import.carried, import.left_out()), (0, 2));
        assert!(import.notes[0].why.contains("`Middle/Earth` is not a time zone"), "{:?}", import.notes);
    }
}
