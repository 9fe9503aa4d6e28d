//! The span of a handler's run, while it runs.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use roundelay_model::trace_context::Context;

/// The span of a handler's run, for those that the handler makes below it.
#[derive(Clone, Debug, Default)]
pub struct HandlerSpan(Option<Arc<Handling>>);

#[derive(Debug)]
struct Handling {
    context: Context,
    call: Mutex<Option<Call>>,
}

/// A call of a handler over HTTP.
#[derive(Debug)]
pub struct Call {
    /// The host of the URL.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// The status of the answer, once there is one.
    pub status: Option<u16>,
}

impl HandlerSpan {
    /// The span at this place of a trace.
    #[doc(hidden)]
    pub fn new(context: Context) -> Self {
        Self(Some(Arc::new(Handling { context, call: Mutex::default() })))
    }

    /// Its place, and the call that was its work, if one was.
    #[doc(hidden)]
    pub fn end(&self) -> Option<(Context, Option<Call>)> {
        let handling = self.0.as_deref()?;
        Some((handling.context.clone(), handling.call().take()))
    }

    /// The header `traceparent` of calls that belong to the run; nothing when the run is not traced.
    pub fn traceparent(&self) -> Option<String> {
        self.0.as_ref().map(|handling| handling.context.traceparent())
    }

    /// The header `tracestate`.
    pub fn tracestate(&self) -> Option<&str> {
        self.0.as_ref().and_then(|handling| handling.context.state.as_deref())
    }

    /// The handler POSTs to this URL.
    #[doc(hidden)]
    pub fn calls(&self, url: &reqwest::Url) {
        if let Some(handling) = self.recorded() {
            let (host, port) = (url.host_str().unwrap_or_default(), url.port_or_known_default().unwrap_or_default());
            *handling.call() = Some(Call { host: host.to_owned(), port, status: None });
        }
    }

    /// It was answered so.
    #[doc(hidden)]
    pub fn answered(&self, status: u16) {
        if let Some(handling) = self.recorded()
            && let Some(call) = &mut *handling.call()
        {
            call.status = Some(status);
        }
    }

    fn recorded(&self) -> Option<&Handling> {
        self.0.as_deref().filter(|handling| handling.context.sampled())
    }
}

impl Handling {
    fn call(&self) -> MutexGuard<'_, Option<Call>> {
        self.call.lock()
    }
}
