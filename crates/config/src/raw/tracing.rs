//! Where traces go: `[tracing]`.

use std::collections::BTreeMap;

use serde::Deserialize;

#[cfg(test)]
use roundelay_model::secret::Secret;

/// Traces of what becomes of jobs, for a collector of OpenTelemetry's. What is not said here is taken from
/// `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_TRACES_SAMPLER_ARG` and `OTEL_SERVICE_NAME`.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields, default)]
pub struct Tracing {
    /// The base URL of a collector that speaks OTLP over HTTP, in protobuf; traces go to `/v1/traces` below it. Empty,
    /// it stays off whatever the environment says. Without it nothing is recorded.
    #[cfg_attr(test, schemars(with = "Option<Secret>"))]
    pub otlp: Option<String>,
    /// Request headers for it, such as a token.
    #[cfg_attr(test, schemars(with = "Option<BTreeMap<String, Secret>>"))]
    pub headers: Option<BTreeMap<String, String>>,
    /// The share of ticks, and of jobs without a trace of their publisher, that are recorded. All workers choose the
    /// same.
    #[cfg_attr(test, schemars(range(min = 0.0, max = 1.0), extend("default" = 0.01)))]
    pub sample: Option<f64>,
    /// Whether traces tell keys, and the ids of one-off jobs, which their publishers choose.
    pub keys: bool,
    /// What workers are called.
    #[cfg_attr(test, schemars(length(min = 1, max = 100), extend("default" = "roundelay")))]
    pub service: Option<String>,
}

impl Default for Tracing {
    fn default() -> Self {
        Self { otlp: None, headers: None, sample: None, keys: true, service: None }
    }
}
