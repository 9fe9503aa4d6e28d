//! `roundelay enroll`

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Error, anyhow, ensure};
use clap::Args;
use indicatif::ProgressBar;
use roundelay_config::{Config, Format};
use roundelay_engine::calendars::with_days;
use roundelay_engine::roster::{BadRow, Report, Rows, Sync, Wishes, from_source, rows};
use roundelay_engine::{Connections, delays, topology_guard};
use roundelay_model::clock::{parse_duration, short_duration};
use serde_json::{Value, json};

use super::audited::{Order, audited_with};
use super::fleet::current_user;
use super::progress::{Waiting, bar, waiting};
use super::{ConfigFile, grouped, screen};

/// How many bad rows are shown; the rejects file has all of them.
const SHOWN: usize = 10;

/// Begins a chain for every entity of a roster.
///
/// A second run is harmless: chains that exist keep their rhythm, and only their payload and queue are updated. First
/// ticks are spread over a window, so that nothing bursts. Bad rows are reported with line and reason and written to a
/// rejects file, as NDJSON; the good ones are enrolled.
///
/// With --prune, chains end whose entities are not in the roster. The roster must then have all entities of the kind.
/// Chains end only after the whole roster was read, and not if there were bad rows. An entity that returns begins anew.
///
/// Without ROSTER, the one that the configuration names for the kind is read, now; workers read it regularly.
///
/// Exit code 0 means that every row is enrolled, 1 that there were bad rows or that the command broke off; then correct
/// what it reports and run it again.
#[derive(Args)]
pub struct Enroll {
    #[command(flatten)]
    config: ConfigFile,
    /// The kind whose chains to begin: a name under [kinds], with `every`.
    #[arg(long)]
    kind: String,
    /// Entities: CSV with a header line, or NDJSON, by the file's extension [default: what
    /// kinds.KIND.roster names]
    roster: Option<PathBuf>,
    /// Spread the first ticks over this long, in place of the kind's `every`.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    spread: Option<Duration>,
    /// Also begin chains anew that have ended.
    #[arg(long)]
    revive: bool,
    /// End the chains of the kind that are not in the roster. Without ROSTER, kinds.KIND.roster.prune has the same
    /// effect.
    #[arg(long)]
    prune: bool,
    /// Prune also when the roster is empty, which ends all chains of the kind.
    #[arg(long, requires = "prune")]
    allow_empty: bool,
    /// Change nothing, and say what would be done.
    #[arg(long)]
    dry_run: bool,
    /// Where bad rows go [default: ROSTER.rejects, or KIND.rejects]
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
        ensure!(
            self.roster.is_some() || kind.roster.is_some(),
            "kinds.{}.roster names no `keys`, `file`, `http` or `sql`; name a file to read",
            self.kind
        );
        let follows = self.roster.is_none() && kind.roster.as_ref().is_some_and(|roster| roster.prune);
        let wishes = Wishes {
            window: self.spread,
            revive: self.revive,
            prune: self.prune || follows,
            allow_empty: self.allow_empty,
            dry_run: self.dry_run,
            own_process: false,
        };
        let opened = self.roster.as_deref().map(|path| self.open(path)).transpose()?;
        let waits = waiting("opening ledger and broker");
        let connections = Connections::open(&config).await?;
        let config = with_days(&config, &*connections.ledger).await?.into_owned();
        let (broker, ledger) = (connections.broker.clone(), connections.ledger.clone());
        let mut rejects = Rejects::new(self.rejects_path());
        let enroll = self.enroll((&config, connections), wishes, opened, waits, &mut rejects);
        let report = if self.dry_run {
            enroll.await
        } else {
            let by = current_user();
            let asked = self.detail(wishes);
            let order = Order { by: &by, command: "enroll", target: self.kind.clone(), detail: asked.clone() };
            audited_with(&*ledger, order, enroll, |report| Some(counted(asked, report))).await
        };
        broker.close().await;
        let (count, path) = rejects.close()?;
        let report = report?;
        self.print(&report, wishes.prune, &path)?;
        let kept = if wishes.prune { ", and so nothing was retired" } else { "" };
        ensure!(count == 0, "{} bad rows were left out{kept}: see {}", grouped(count as u64), path.display());
        Ok(())
    }

    async fn enroll(
        &self,
        (config, connections): (&Config, Connections),
        wishes: Wishes,
        opened: Option<(Rows<'static>, ProgressBar)>,
        waits: Waiting,
        rejects: &mut Rejects,
    ) -> anyhow::Result<Report> {
        if !self.dry_run {
            let keeps_messages = connections.broker.keeps_messages();
            topology_guard::check(&*connections.ledger, config, keeps_messages).await?;
            if keeps_messages {
                delays::declare(config, &connections).await?;
            }
        }
        waits.now(&format!("enrolling what is of the kind {}", self.kind));
        let report = match opened {
            Some((rows, progress)) => {
                // The bar says more.
                drop(waits);
                let mut sync = Sync::begin(config, connections, &self.kind, wishes).await?;
                for (n, line) in rows.enumerate() {
                    if let Some(bad) = sync.row(line).await.context("failed to enroll")? {
                        rejects.add(bad)?;
                    }
                    if n.is_multiple_of(1_000) {
                        progress.set_message(format!("{} chains", grouped(sync.begun())));
                    }
                }
                progress.finish_and_clear();
                let _waits = waiting("finishing what was begun");
                sync.end().await
            }
            None => {
                let mut written = Ok(());
                let bad = |bad| {
                    if written.is_ok() {
                        written = rejects.add(bad);
                    }
                };
                let report = from_source(config, connections, &self.kind, wishes, bad).await;
                drop(waits);
                written?;
                report
            }
        };
        report.context("failed to enroll")
    }

    /// The command's options, for the audit.
    fn detail(&self, wishes: Wishes) -> Value {
        json!({
            "roster": self.roster.as_ref().map(|path| path.display().to_string()),
            "spread": wishes.window.map(short_duration), "revive": wishes.revive, "prune": wishes.prune,
            "allow_empty": wishes.allow_empty,
        })
    }

    /// The rows of a file, and a bar for how far they have been read.
    fn open(&self, path: &Path) -> anyhow::Result<(Rows<'static>, ProgressBar)> {
        let format = Format::of(path).map_err(|error| anyhow!(error))?;
        let open = || format!("failed to read the roster {}", path.display());
        let file = File::open(path).with_context(open)?;
        let progress = bar(file.metadata().with_context(open)?.len(), "{wide_bar} {percent}% {msg} {eta}");
        let rows = rows(format, progress.wrap_read(file)).map_err(|error| anyhow!("{}: {error}", path.display()))?;
        Ok((rows, progress))
    }

    fn print(&self, report: &Report, prune: bool, path: &Path) -> anyhow::Result<()> {
        let Report { tally, pruned, rejected, .. } = report;
        if self.json {
            let rejects = (*rejected > 0).then(|| path.display().to_string());
            return screen::json(&json!({
                "created": tally.created, "unchanged": tally.unchanged, "updated": tally.updated,
                "retired": tally.retired, "pruned": pruned, "unsent": tally.unsent, "rejected": rejected,
                "rejects": rejects, "dry_run": self.dry_run,
            }));
        }
        if self.dry_run {
            out!(
                "nothing was changed; {} chains would begin, {} are there already",
                grouped(tally.created),
                grouped(tally.unchanged)
            );
        } else {
            out!(
                "{} chains begun, {} unchanged, {} brought up to date",
                grouped(tally.created),
                grouped(tally.unchanged),
                grouped(tally.updated)
            );
        }
        if prune && *rejected == 0 {
            let verb = if self.dry_run { "would be retired" } else { "retired" };
            out!("{} {verb}, since they are not in the roster", grouped(*pruned));
        }
        if tally.retired > 0 {
            out!("{} have ended before and stay so", grouped(tally.retired));
        }
        if tally.unsent > 0 {
            out!("{} first messages could not be sent yet; a worker's catch-up sends them", grouped(tally.unsent));
        }
        Ok(())
    }

    fn rejects_path(&self) -> PathBuf {
        self.rejects.clone().unwrap_or_else(|| {
            let mut name = self.roster.clone().map_or_else(|| self.kind.clone().into(), PathBuf::into_os_string);
            name.push(".rejects");
            name.into()
        })
    }
}

/// What became of the chains, for the audit, beside the command's options. The words are those of the API for many chains,
/// where `retired` are those that have ended now.
fn counted(mut detail: Value, report: &Report) -> Value {
    let Report { tally, pruned, rejected, .. } = report;
    let counts = [
        ("created", tally.created),
        ("updated", tally.updated),
        ("unchanged", tally.unchanged),
        ("retired", *pruned),
        ("refused", *rejected),
        ("ended_before", tally.retired),
    ];
    counts.into_iter().for_each(|(name, count)| detail[name] = count.into());
    detail
}

/// The rejects file, created with the first bad row: NDJSON with line, reason and row.
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
            screen::note(format_args!("line {}: {}", bad.line, bad.reason));
        } else if self.count == SHOWN + 1 {
            screen::note(format_args!("… further bad rows are only written to {}", self.path.display()));
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
