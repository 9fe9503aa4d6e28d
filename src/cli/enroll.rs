//! `roundelay enroll`

use std::fs::File;
use std::io::{BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Error, anyhow, ensure};
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use roundelay::clock::parse_duration;
use roundelay::engine::Connections;
use roundelay::engine::enroll::{Enroller, Tally};
use roundelay::engine::topology_guard;
use roundelay::roster::{BadRow, Format, Shape, rows};
use serde_json::json;

use super::{ConfigFile, grouped};

/// Rows enrolled in one transaction.
const BATCH: usize = 1_000;
/// Bad rows shown; the rejects file has all of them.
const SHOWN: usize = 10;

/// Begins a chain for every entity of a roster.
///
/// Doing it again is harmless: chains that exist keep their rhythm, and only their payload and
/// queue are brought up to date. First ticks are spread over a window, so that nothing bursts.
/// Bad rows are reported with line and reason and written to a rejects file, as NDJSON; the good
/// ones go in all the same.
///
/// Exit code 0 means that every row is in, 1 that there were bad rows or that it broke off; then
/// mend what is said and do it again.
#[derive(Args)]
pub struct Enroll {
    #[command(flatten)]
    config: ConfigFile,
    /// The kind whose chains to begin: a name under [kinds], with `every`.
    #[arg(long)]
    kind: String,
    /// Entities: CSV with a header line, or NDJSON, by the file's extension.
    roster: PathBuf,
    /// Spread the first ticks over this long, in place of the kind's `every`.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    spread: Option<Duration>,
    /// Begin also those chains anew that have ended.
    #[arg(long)]
    revive: bool,
    /// Where bad rows go [default: ROSTER.rejects]
    #[arg(long, value_name = "FILE")]
    rejects: Option<PathBuf>,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

impl Enroll {
    pub async fn run(self) -> anyhow::Result<()> {
        let config = self.config.load()?;
        let kind = config.kind(&self.kind).map_err(Error::msg)?;
        let shape = Shape::new(&config, kind).map_err(|error| anyhow!("kinds.{}: {error}", self.kind))?;
        let format = Format::of(&self.roster).map_err(|error| anyhow!(error))?;
        let open = || format!("failed to read the roster {}", self.roster.display());
        let file = File::open(&self.roster).with_context(open)?;
        let progress = self.progress(file.metadata().with_context(open)?.len());
        let rows =
            rows(format, progress.wrap_read(file)).map_err(|error| anyhow!("{}: {error}", self.roster.display()))?;

        let connections = Connections::open(&config).await?;
        let broker = connections.broker.clone();
        if broker.keeps_messages() {
            broker.apply(&config.topology()).await?;
        }
        topology_guard::check(&*connections.ledger, &config, broker.keeps_messages()).await?;
        let enroller = Enroller::new(&config, connections, &self.kind, self.spread, false)?;
        let mut enroller = enroller.revive(self.revive);
        let mut rejects = Rejects::new(self.rejects_path());
        let (mut tally, mut batch) = (Tally::default(), Vec::with_capacity(BATCH));
        for row in rows {
            match row {
                Ok((line, row)) => {
                    let text = serde_json::Value::Object(row.clone()).to_string();
                    match shape.entity(row) {
                        Ok(entity) => batch.push(entity),
                        Err(reason) => rejects.add(BadRow { line, reason, text })?,
                    }
                }
                Err(bad) => rejects.add(bad)?,
            }
            if batch.len() == BATCH {
                tally += enroller.enroll(std::mem::take(&mut batch)).await.context("failed to enroll")?;
                progress.set_message(format!("{} chains", grouped(tally.created)));
            }
        }
        tally += enroller.enroll(batch).await.context("failed to enroll")?;
        broker.close().await;
        progress.finish_and_clear();
        self.report(&tally, rejects)
    }

    fn report(&self, tally: &Tally, rejects: Rejects) -> anyhow::Result<()> {
        let (count, path) = rejects.close()?;
        self.print(tally, count, &path);
        ensure!(count == 0, "{} bad rows were left out: see {}", grouped(count as u64), path.display());
        Ok(())
    }

    fn print(&self, tally: &Tally, count: usize, path: &Path) {
        if self.json {
            let rejects = (count > 0).then(|| path.display().to_string());
            out!(
                "{}",
                json!({ "created": tally.created, "unchanged": tally.unchanged, "updated": tally.updated,
                        "retired": tally.retired, "unsent": tally.unsent, "rejected": count, "rejects": rejects })
            );
            return;
        }
        out!(
            "{} chains begun, {} unchanged, {} brought up to date",
            grouped(tally.created),
            grouped(tally.unchanged),
            grouped(tally.updated)
        );
        if tally.retired > 0 {
            out!("{} have ended before and stay so", grouped(tally.retired));
        }
        if tally.unsent > 0 {
            out!("{} first messages could not be sent yet; a worker's catch-up sends them", grouped(tally.unsent));
        }
    }

    fn rejects_path(&self) -> PathBuf {
        self.rejects.clone().unwrap_or_else(|| {
            let mut name = self.roster.clone().into_os_string();
            name.push(".rejects");
            name.into()
        })
    }

    fn progress(&self, bytes: u64) -> ProgressBar {
        let shown = !self.json && std::io::stderr().is_terminal();
        let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let style = ProgressStyle::with_template("{wide_bar} {percent}% {msg} {eta}");
        ProgressBar::with_draw_target(Some(bytes), target)
            .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
    }
}

/// The rejects file, created when the first bad row comes: NDJSON with line, reason and row.
struct Rejects {
    path: PathBuf,
    file: Option<BufWriter<File>>,
    count: usize,
}

impl Rejects {
    fn new(path: PathBuf) -> Self {
        Self { path, file: None, count: 0 }
    }

    fn add(&mut self, bad: BadRow) -> anyhow::Result<()> {
        let failed = |path: &Path| format!("failed to write the rejects file {}", path.display());
        self.count += 1;
        if self.count <= SHOWN {
            eprintln!("line {}: {}", bad.line, bad.reason);
        } else if self.count == SHOWN + 1 {
            eprintln!("… further bad rows are only written to {}", self.path.display());
        }
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let file = File::create(&self.path).with_context(|| failed(&self.path))?;
                self.file.insert(BufWriter::new(file))
            }
        };
        let row = json!({ "line": bad.line, "reason": bad.reason, "row": bad.text });
        writeln!(file, "{row}").with_context(|| failed(&self.path))
    }

    fn close(self) -> anyhow::Result<(usize, PathBuf)> {
        if let Some(mut file) = self.file {
            file.flush().with_context(|| format!("failed to write the rejects file {}", self.path.display()))?;
        }
        Ok((self.count, self.path))
    }
}
