//! `roundelay import`

use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::{Args, Subcommand};
use roundelay_admin::import::{Import, Note, Weight, Wishes, bullmq, celery, crontab, laravel};
use roundelay_config::Config;
use roundelay_model::clock::Clock;
use serde_json::{Value, json};

use super::screen::{self, Tint, field};

/// Makes a configuration from the schedules of another scheduler.
///
/// The configuration has kinds with their schedules and handlers, and their keys or rosters, so that a worker begins
/// the chains without further commands. Every entry of the source is in it, or in the report of what could not be
/// imported, and why. Read both before a worker runs them; the guides in docs/migrate say how to move without running
/// anything twice.
///
/// Without --output the configuration goes to standard output and the report to standard error, and rosters are not
/// written. Exit code 1 when nothing could be imported.
#[derive(Args)]
pub struct ImportCommand {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Crontab(Crontab),
    Laravel(Laravel),
    Celery(Celery),
    Bullmq(Bullmq),
}

/// A crontab, as `crontab -l` prints it, or /etc/crontab with --system.
#[derive(Args)]
struct Crontab {
    #[command(flatten)]
    source: Source,
    /// The platform queue of the kinds.
    #[arg(long, value_name = "QUEUE", default_value = "crontab")]
    queue: String,
    /// The sixth field is the user of a command, as in /etc/crontab: import the entries of this user, which must be the
    /// worker's user.
    #[arg(long, value_name = "USER")]
    system: Option<String>,
    /// The home folder, in which commands start.
    #[arg(long, value_name = "FOLDER")]
    home: Option<String>,
}

/// Laravel's schedule: what `php artisan schedule:list --json` prints, or without --json.
#[derive(Args)]
struct Laravel {
    #[command(flatten)]
    source: Source,
    /// The platform queue of the kinds.
    #[arg(long, value_name = "QUEUE", default_value = "laravel")]
    queue: String,
    /// The folder of the application, which has artisan.
    #[arg(long, value_name = "FOLDER")]
    application: PathBuf,
}

/// Celery beat: `beat_schedule` as JSON (docs/migrate/celery.md has the line that dumps it), or what
/// `manage.py dumpdata django_celery_beat` prints.
#[derive(Args)]
struct Celery {
    #[command(flatten)]
    source: Source,
    /// The platform queue of the kinds. A task with a queue of its own gets this name, a dash, and that queue's name.
    #[arg(long, value_name = "QUEUE", default_value = "beat")]
    queue: String,
    #[command(flatten)]
    service: Service,
}

/// BullMQ: what getJobSchedulers() or getRepeatableJobs() of a queue answers, as JSON (docs/migrate/bullmq.md has the
/// line that dumps it).
#[derive(Args)]
struct Bullmq {
    #[command(flatten)]
    source: Source,
    /// The platform queue of the kinds.
    #[arg(long, value_name = "QUEUE", default_value = "bullmq")]
    queue: String,
    #[command(flatten)]
    service: Service,
}

#[derive(Args)]
struct Source {
    /// The output of the other scheduler; `-` is standard input.
    file: PathBuf,
    /// The time zone (IANA) of times without one [default: UTC]
    #[arg(long, value_name = "ZONE")]
    zone: Option<String>,
    /// Write the configuration to this file, and its rosters into the folder `rosters` beside it. Existing files are
    /// never overwritten.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct Service {
    /// The URL to which jobs are POSTed: handler.http.url of all kinds, which may be a template.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8000/{{ kind }}")]
    handler_url: String,
}

impl ImportCommand {
    pub fn run(self) -> anyhow::Result<()> {
        let now = Clock::System.now();
        match self.command {
            Command::Crontab(from) => {
                let wishes = from.source.wishes(from.queue, String::new());
                let text = from.source.read()?;
                from.source.finish(crontab::import(&text, from.system.as_deref(), from.home.as_deref(), &wishes))
            }
            Command::Laravel(from) => {
                let wishes = from.source.wishes(from.queue, String::new());
                let folder = std::path::absolute(&from.application)?;
                let text = from.source.read()?;
                from.source.understood(laravel::import(&text, &folder.to_string_lossy(), &wishes))
            }
            Command::Celery(from) => {
                let wishes = from.source.wishes(from.queue, from.service.handler_url);
                let text = from.source.read()?;
                from.source.understood(celery::import(&text, now, &wishes))
            }
            Command::Bullmq(from) => {
                let wishes = from.source.wishes(from.queue, from.service.handler_url);
                let text = from.source.read()?;
                from.source.understood(bullmq::import(&text, now, &wishes))
            }
        }
    }
}

impl Source {
    fn wishes(&self, queue: String, handler_url: String) -> Wishes {
        Wishes { zone: self.zone.clone(), queue, handler_url }
    }

    fn read(&self) -> anyhow::Result<String> {
        let failed = || format!("failed to read {}", self.file.display());
        let bytes = if self.file.as_os_str() == "-" {
            let mut bytes = Vec::new();
            std::io::stdin().lock().read_to_end(&mut bytes).with_context(failed)?;
            bytes
        } else {
            std::fs::read(&self.file).with_context(failed)?
        };
        String::from_utf8(bytes).with_context(|| format!("{} is not UTF-8", self.file.display()))
    }

    fn understood(&self, import: Result<Import, String>) -> anyhow::Result<()> {
        match import {
            Ok(import) => self.finish(import),
            Err(why) => bail!("{}: {why}", self.file.display()),
        }
    }

    fn finish(&self, import: Import) -> anyhow::Result<()> {
        let folder = match &self.output {
            // Workers may be started in another folder.
            Some(output) => std::path::absolute(output)?.with_file_name("rosters"),
            None => PathBuf::from("rosters"),
        };
        let configuration = import.configuration(&folder.to_string_lossy());
        if import.carried > 0 {
            // A result that a worker would refuse is an error here, and nothing is written.
            Config::parse(&configuration, "the result", []).context("the source asks for what cannot be configured")?;
            if let Some(output) = &self.output {
                write(&import, &configuration, output, &folder)?;
            }
        }
        let (carried, left_out) = (import.carried, import.left_out());
        if self.json {
            let path = self.output.as_ref().filter(|_| carried > 0).map(|path| path.display().to_string());
            screen::json(&json!({
                "carried": carried, "left_out": left_out, "notes": import.notes, "path": path,
                "configuration": configuration, "rosters": rosters(&import, &folder),
            }))?;
        } else if let Some(output) = self.output.as_ref().filter(|_| carried > 0) {
            import.notes.iter().for_each(print);
            out!("{carried} carried over, {left_out} left out: {}", output.display());
        } else {
            if carried > 0 {
                screen::exact(format_args!("{}", configuration.trim_end()));
            }
            import.notes.iter().for_each(tell);
        }
        ensure!(carried > 0, "{}: nothing could be carried over", self.file.display());
        Ok(())
    }
}

fn rosters(import: &Import, folder: &Path) -> Vec<Value> {
    let named = import.rosters.iter();
    named.map(|(file, rows)| json!({ "path": folder.join(file).display().to_string(), "rows": rows })).collect()
}

fn write(import: &Import, configuration: &str, output: &Path, folder: &Path) -> anyhow::Result<()> {
    let rosters = import.rosters.keys().map(|file| (folder.join(file), import.roster(file)));
    let files: Vec<(PathBuf, String)> = rosters.chain([(output.to_owned(), configuration.to_owned())]).collect();
    for (path, _) in &files {
        let there = path.try_exists().with_context(|| format!("failed to look for {}", path.display()))?;
        ensure!(
            !there,
            "{} exists already; nothing is overwritten, so move it away or name another --output",
            path.display()
        );
    }
    if !import.rosters.is_empty() {
        std::fs::create_dir_all(folder).with_context(|| format!("failed to make the folder {}", folder.display()))?;
    }
    for (path, text) in files {
        std::fs::write(&path, text).with_context(|| format!("failed to write {}", path.display()))?;
    }
    Ok(())
}

fn heading(note: &Note) -> String {
    let label = match note.weight {
        Weight::LeftOut => "left out",
        Weight::Differs => "differs",
        Weight::Note => "note",
    };
    let place = note.place.as_ref().map_or(String::new(), |place| format!("  {place}"));
    let entry = note.entry.as_ref().map_or(String::new(), |entry| format!(": {entry}"));
    format!("{label}{place}{entry}")
}

fn print(note: &Note) {
    match note.weight {
        Weight::LeftOut => screen::tinted(Tint::Wrong, format_args!("{}", heading(note))),
        Weight::Differs => screen::tinted(Tint::Notable, format_args!("{}", heading(note))),
        Weight::Note => out!("{}", heading(note)),
    }
    field("why", &note.why);
    field("do", &note.advice);
    out!("");
}

/// Prints a note on standard error, if the configuration is on standard output.
fn tell(note: &Note) {
    screen::note(format_args!("{}", heading(note)));
    screen::note(format_args!("  why         {}", note.why));
    screen::note(format_args!("  do          {}", note.advice));
}
