//! Traces: what becomes of a job, step by step, as OpenTelemetry has it. `docs/traces.md` has a picture.
//!
//! - [`roundelay_model::trace_context`]: which span something belongs to, as it travels.
//! - [`span`]: a step that has ended.
//! - [`Tracer`], [`Run`]: what a worker records of a delivery that it runs.
//! - [`Export`]: brings that to a collector, as `otlp` encodes it.
//!
//! A span is made when its step has ended, with the times of both ends, so nothing has to be carried through the
//! code that runs. Where nothing is recorded nothing is allocated.

mod export;
mod otlp;
pub mod span;

use std::borrow::Cow;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use roundelay_config::TracingSettings;
use roundelay_handler::{Call, HandlerSpan};
use roundelay_model::clock::{Entropy, Time};
use roundelay_model::job::Envelope;
use roundelay_model::outcome::Outcome;
use roundelay_model::reason::Class;
use roundelay_model::trace_context::{Carried, Context};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::telemetry::Telemetry;
use export::{Exporter, Outlet};
use span::{Attribute, Role, Span};

/// This many of a trace's bits decide whether it is recorded; OpenTelemetry takes the same.
const DECIDING: u32 = 56;

/// Records what becomes of deliveries, or, by default, does not.
#[derive(Clone, Debug, Default)]
pub struct Tracer(Option<Arc<Recorder>>);

#[derive(Debug)]
struct Recorder {
    /// The share of traces that begin here and are recorded.
    sample: f64,
    /// Whether keys are told.
    keys: bool,
    /// What carries messages.
    system: &'static str,
    entropy: Entropy,
    outlet: Arc<Outlet>,
}

/// Brings what a [`Tracer`] records to a collector, while it lives.
pub struct Export(Option<Exporter>);

impl Export {
    /// Sends what there still is, in a bounded time.
    pub async fn finish(self) {
        if let Some(exporter) = self.0 {
            exporter.finish().await;
        }
    }
}

impl Tracer {
    /// Records as `settings` say: nothing, if they name no collector. `worker` is who records, `system` what carries
    /// its messages.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn start(
        settings: &TracingSettings,
        (worker, system): (&str, &'static str),
        entropy: &Entropy,
        telemetry: &Arc<Telemetry>,
    ) -> Result<(Self, Export), String> {
        if settings.otlp.is_none() {
            return Ok((Self::default(), Export(None)));
        }
        let outlet = Outlet::new(telemetry.clone());
        let resource = vec![
            ("service.name", settings.service.clone().into()),
            ("service.version", env!("CARGO_PKG_VERSION").into()),
            ("service.instance.id", worker.to_owned().into()),
        ];
        let exporter = Exporter::start(settings, outlet.clone(), resource)?;
        let (sample, keys, entropy) = (settings.sample, settings.keys, entropy.clone());
        Ok((Self(Some(Arc::new(Recorder { sample, keys, system, entropy, outlet }))), Export(Some(exporter))))
    }

    /// What is recorded of a delivery that is to run on `queue`, and was taken `now`. A one-off job has its id.
    pub fn run(&self, envelope: &Envelope, queue: &str, now: impl FnOnce() -> Time) -> Run {
        let carried = envelope.trace.as_deref();
        let Some(recorder) = &self.0 else {
            // What others trace goes through here, and is not lost.
            let passed = carried.filter(|_| envelope.chain.is_none());
            return Run(passed.map(|carried| Box::new(State { own: carried.context.clone(), recording: None })));
        };
        let sender = carried.map(|carried| &carried.context);
        let Place { own, parent, link } = place(&id_of(envelope), envelope.chain.is_some(), sender, recorder.sample);
        let own = Context { span: recorder.entropy.id(), ..own };
        let recording = own.sampled().then(|| Recording {
            recorder: recorder.clone(),
            parent,
            link,
            watch: Watch { at: now(), since: Instant::now() },
            published: carried.and_then(|carried| carried.published),
            due: envelope.due,
            kind: envelope.kind.clone(),
            name: format!("process {queue}"),
            attributes: recorder.describe(envelope, queue, ("process", "process")),
            notes: Mutex::default(),
        });
        Run(Some(Box::new(State { own, recording })))
    }
}

impl Recorder {
    /// What a message is, in the words of OpenTelemetry's conventions where they have some.
    fn describe(&self, envelope: &Envelope, queue: &str, operation: (&'static str, &'static str)) -> Vec<Attribute> {
        let mut all: Vec<Attribute> = vec![
            ("messaging.system", self.system.into()),
            ("messaging.operation.name", operation.0.into()),
            ("messaging.operation.type", operation.1.into()),
            ("messaging.destination.name", queue.to_owned().into()),
            ("roundelay.kind", envelope.kind.clone().into()),
            ("roundelay.attempt", i64::from(envelope.attempt).into()),
        ];
        if let Some(chain) = &envelope.chain {
            all.push(("roundelay.epoch", chain.epoch.get().into()));
            all.push(("roundelay.tick", chain.tick.get().into()));
        }
        // A job's publisher gives the job its id, and may make it of the key.
        if self.keys || envelope.chain.is_some() {
            all.push(("roundelay.id", id_of(envelope).into()));
            all.push(("messaging.message.id", envelope.message_id().into()));
        }
        if self.keys {
            all.push(("roundelay.key", envelope.key.clone().into()));
        }
        all
    }
}

/// The id of the run that a message stands for: the same on every attempt.
fn id_of(envelope: &Envelope) -> String {
    match &envelope.chain {
        Some(chain) => chain.run_id(),
        None => envelope.id.clone().unwrap_or_default(),
    }
}

/// Where a run belongs.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    /// Its trace; it has no span yet.
    own: Context,
    /// The span that it is part of; zero when there is none.
    parent: u64,
    /// What it follows from, in another trace.
    link: Option<Context>,
}

/// Where the run with this id belongs, which a tick of a chain is or not (pure).
///
/// A chain has no end, so each of its ticks is a trace of its own, however often it is tried, and follows from the
/// run that has sent it. A job is part of the trace that it was published in. A trace's id follows from the run's,
/// and from it whether the trace is recorded: so all workers decide alike.
fn place(id: &str, tick: bool, carried: Option<&Context>, sample: f64) -> Place {
    let digest = Sha256::digest(id);
    let trace = digest[..16].iter().fold(0, |trace, byte| trace << 8 | u128::from(*byte)).max(1);
    match carried {
        Some(sender) if !tick || sender.trace == trace => {
            Place { own: Context { span: 0, ..sender.clone() }, parent: sender.span, link: None }
        }
        link => {
            let own = Context { trace, span: 0, flags: u8::from(recorded(trace, sample)), state: None };
            Place { own, parent: 0, link: link.cloned() }
        }
    }
}

/// Whether a trace is among this share of all (pure).
fn recorded(trace: u128, share: f64) -> bool {
    let all = 1_u64 << DECIDING;
    // Compared as whole numbers: as floating ones, the last would be as large as all of them.
    trace as u64 & (all - 1) >= (all as f64 * (1.0 - share)) as u64
}

/// Counts on from a time that the ledger has told, finer than that.
#[derive(Clone, Copy, Debug)]
struct Watch {
    at: Time,
    since: Instant,
}

impl Watch {
    /// In nanoseconds since 1970.
    fn read(&self, instant: Instant) -> u64 {
        let later = instant.saturating_duration_since(self.since);
        nanos(self.at).saturating_add(u64::try_from(later.as_nanos()).unwrap_or(u64::MAX))
    }
}

fn nanos(time: Time) -> u64 {
    u64::try_from(time.since(Time::default()).as_nanos()).unwrap_or(u64::MAX)
}

/// What is recorded of one delivery, and sent off when this is dropped, if the run has come to a verdict.
#[derive(Debug, Default)]
pub struct Run(Option<Box<State>>);

#[derive(Debug)]
struct State {
    /// Where what comes of the run belongs.
    own: Context,
    recording: Option<Recording>,
}

#[derive(Debug)]
struct Recording {
    recorder: Arc<Recorder>,
    parent: u64,
    link: Option<Context>,
    watch: Watch,
    published: Option<Time>,
    due: Option<Time>,
    kind: String,
    name: String,
    attributes: Vec<Attribute>,
    notes: Mutex<Notes>,
}

#[derive(Debug, Default)]
struct Notes {
    spans: Vec<Span>,
    verdict: Option<(&'static str, Option<Class>, bool)>,
}

/// When a step of a run has begun; nothing where nothing is recorded.
#[derive(Clone, Copy, Debug)]
pub struct Begun(Option<Instant>);

/// A message of a run on its way to the broker.
#[derive(Debug)]
pub struct Sending(Option<(Context, Instant, Cow<'static, str>, Vec<Attribute>)>);

impl Run {
    fn recording(&self) -> Option<(&State, &Recording)> {
        let state = self.0.as_deref()?;
        Some((state, state.recording.as_ref()?))
    }

    /// A step begins.
    pub fn begin(&self) -> Begun {
        Begun(self.recording().map(|_| Instant::now()))
    }

    /// A step ends now.
    pub fn ended(&self, name: &'static str, begun: Begun) {
        self.spent(name, (begun, self.begin()), || None);
    }

    /// A step has gone on between these, for want of what this throttle gives, if it is one.
    pub fn spent<'t>(&self, name: &'static str, between: (Begun, Begun), throttle: impl FnOnce() -> Option<&'t str>) {
        let (Some((state, recording)), (Begun(Some(start)), Begun(Some(end)))) = (self.recording(), between) else {
            return;
        };
        let attributes = throttle().map(|throttle| ("roundelay.throttle", throttle.to_owned().into()));
        let between = (recording.watch.read(start), recording.watch.read(end));
        recording.internal(&state.own, name, between, attributes.into_iter().collect());
    }

    /// The handler begins; its span is for the job that it gets.
    pub fn handler(&self) -> HandlerSpan {
        let Some(state) = self.0.as_deref() else { return HandlerSpan::default() };
        let mut context = state.own.clone();
        if let Some(recording) = &state.recording {
            context.span = recording.recorder.entropy.id();
        }
        HandlerSpan::new(context)
    }

    /// The handler has ended.
    pub fn handled(&self, span: &HandlerSpan, begun: Begun, outcome: &Outcome) {
        let (Some((state, recording)), Some(since)) = (self.recording(), begun.0) else { return };
        let Some((context, call)) = span.end() else { return };
        let kind = &recording.kind;
        let mut attributes: Vec<Attribute> = vec![("roundelay.kind", kind.clone().into())];
        let (name, role) = match call {
            Some(Call { host, port, status }) => {
                attributes.push(("http.request.method", "POST".into()));
                attributes.push(("server.address", host.into()));
                attributes.push(("server.port", i64::from(port).into()));
                attributes.extend(status.map(|status| ("http.response.status_code", i64::from(status).into())));
                ("POST".into(), Role::Client)
            }
            None => (format!("handle {kind}").into(), Role::Internal),
        };
        attributes.extend(outcome.reason().map(|reason| ("error.type", reason.class.as_str().into())));
        recording.notes().spans.push(Span {
            context,
            parent: state.own.span,
            name,
            role,
            start: recording.watch.read(since),
            end: recording.watch.read(Instant::now()),
            attributes,
            link: None,
            failed: matches!(outcome, Outcome::Retry { .. } | Outcome::Fail { .. }),
        });
    }

    /// The run sends `envelope`, which carries on from here where that goes.
    pub fn sends(&self, envelope: &mut Envelope, queue: &str, now: impl FnOnce() -> Time) -> Sending {
        let Some(state) = self.0.as_deref() else { return Sending(None) };
        let Some(recording) = &state.recording else {
            // A tick decides for itself; a job is part of this.
            if envelope.chain.is_none() {
                envelope.trace = Some(Box::new(Carried { context: state.own.clone(), published: None }));
            }
            return Sending(None);
        };
        let recorder = &recording.recorder;
        let context = Context { span: recorder.entropy.id(), ..state.own.clone() };
        envelope.trace = Some(Box::new(Carried { context: context.clone(), published: Some(now()) }));
        let attributes = recorder.describe(envelope, queue, ("publish", "send"));
        Sending(Some((context, Instant::now(), format!("publish {queue}").into(), attributes)))
    }

    /// The broker has confirmed it, or not.
    pub fn sent(&self, sending: Sending, confirmed: bool) {
        let (Some((state, recording)), Some((context, since, name, attributes))) = (self.recording(), sending.0) else {
            return;
        };
        recording.notes().spans.push(Span {
            context,
            parent: state.own.span,
            name,
            role: Role::Producer,
            start: recording.watch.read(since),
            end: recording.watch.read(Instant::now()),
            attributes,
            link: None,
            failed: !confirmed,
        });
    }

    /// How the run has ended, why, and whether that is a failure.
    pub fn verdict(&self, word: &'static str, class: Option<Class>, failed: bool) {
        if let Some((_, recording)) = self.recording() {
            recording.notes().verdict = Some((word, class, failed));
        }
    }
}

impl Recording {
    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock()
    }

    fn internal(&self, own: &Context, name: &'static str, (start, end): (u64, u64), attributes: Vec<Attribute>) {
        let context = Context { span: self.recorder.entropy.id(), ..own.clone() };
        self.notes().spans.push(Span {
            context,
            parent: own.span,
            name: name.into(),
            role: Role::Internal,
            start,
            end,
            attributes,
            link: None,
            failed: false,
        });
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let Some(State { own, recording: Some(recording) }) = self.0.take().map(|state| *state) else { return };
        let Some((verdict, class, failed)) = recording.notes().verdict else { return };
        let taken = recording.watch.at;
        // Without a due time it was due when it was published.
        if let (Some(published), Some(due)) = (recording.published, recording.due)
            && published < due.min(taken)
        {
            recording.internal(&own, "sleep", (nanos(published), nanos(due.min(taken))), Vec::new());
        }
        if let Some(ready) = recording.published.max(recording.due).filter(|ready| *ready <= taken) {
            recording.internal(&own, "queue", (nanos(ready), nanos(taken)), Vec::new());
        }
        let end = recording.watch.read(Instant::now());
        let Recording { recorder, parent, link, watch, name, mut attributes, notes, .. } = recording;
        attributes.push(("roundelay.verdict", verdict.into()));
        if let Some(class) = class {
            attributes.push(("roundelay.reason", class.as_str().into()));
            if failed {
                attributes.push(("error.type", class.as_str().into()));
            }
        }
        let mut spans = notes.into_inner().spans;
        spans.push(Span {
            context: own,
            parent,
            name: name.into(),
            role: Role::Consumer,
            start: nanos(watch.at),
            end,
            attributes,
            link,
            failed,
        });
        recorder.outlet.push(spans);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_is_a_trace_of_its_own_and_a_job_part_of_its_senders() {
        // printf '%s' l-7-3 | sha256sum
        let ours = 0x0d10_41af_a3e3_8f5c_1608_e8d7_0dfd_fa4d_u128;
        let sender = |trace, flags| Context { trace, span: 5, flags, state: Some("a=1".into()) };
        let of = |own: Context, parent, link| Place { own, parent, link };
        let begun = |trace, flags| Context { trace, span: 0, flags, state: None };
        let within = |trace, flags| Context { span: 0, ..sender(trace, flags) };
        let table = [
            (true, None, 1.0, of(begun(ours, 1), 0, None)),
            (true, None, 0.0, of(begun(ours, 0), 0, None)),
            (true, Some(sender(9, 1)), 1.0, of(begun(ours, 1), 0, Some(sender(9, 1)))),
            (true, Some(sender(9, 1)), 0.0, of(begun(ours, 0), 0, Some(sender(9, 1)))),
            // Another attempt of the same tick.
            (true, Some(sender(ours, 1)), 0.0, of(within(ours, 1), 5, None)),
            (false, None, 1.0, of(begun(ours, 1), 0, None)),
            (false, Some(sender(9, 1)), 0.0, of(within(9, 1), 5, None)),
            (false, Some(sender(9, 0)), 1.0, of(within(9, 0), 5, None)),
        ];
        for (tick, carried, sample, expected) in table {
            assert_eq!(place("l-7-3", tick, carried.as_ref(), sample), expected, "{tick} {carried:?} {sample}");
        }
    }

    #[test]
    fn the_share_of_traces_is_recorded() {
        for share in [0.0, 0.01, 0.5, 1.0] {
            let count = (0..10_000).filter(|n| place(&format!("l-{n}-1"), true, None, share).own.sampled()).count();
            let expected = 10_000.0 * share;
            assert!(
                (count as f64 - expected).abs() <= 200.0 * (share * (1.0 - share)).sqrt() * 2.0,
                "{share}: {count}"
            );
        }
        assert!(recorded(0, 1.0) && !recorded(u128::MAX, 0.0), "the ends are exact");
        let fewer = (0..1_000).map(|n| place(&format!("l-{n}-1"), true, None, 0.0).own.trace);
        for trace in fewer.filter(|trace| recorded(*trace, 0.1)) {
            assert!(recorded(trace, 0.2), "whoever records more records these too");
        }
    }
}
