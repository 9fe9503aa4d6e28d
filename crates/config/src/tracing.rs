//! `[tracing]`: where traces go, and which.

use std::collections::BTreeMap;

use reqwest::header::{HeaderName, HeaderValue};
use roundelay_model::secret::Secret;

use super::raw;
use crate::problems::Problems;

/// The share of traces that are recorded where nothing is said.
const SAMPLE: f64 = 0.01;
/// What a worker is called where nothing is said.
const SERVICE: &str = "roundelay";
/// The longest name of a service, in characters.
const MAX_NAME: usize = 100;

/// `[tracing]`
#[derive(Clone, Debug, PartialEq)]
pub struct TracingSettings {
    /// The base URL of a collector that speaks OTLP over HTTP; without one nothing is recorded.
    pub otlp: Option<Secret>,
    /// Request headers for it.
    pub headers: BTreeMap<String, Secret>,
    /// The share of traces that begin here and are recorded, from 0 to 1.
    pub sample: f64,
    /// Whether keys, and the ids of one-off jobs, are told.
    pub keys: bool,
    /// What workers are called.
    pub service: String,
}

/// Takes what the file does not say from OpenTelemetry's own variables, or says what is wrong with them.
pub(super) fn fill(tracing: &mut raw::Tracing, variables: &BTreeMap<String, String>) -> Vec<(String, String)> {
    let mut problems = Problems::none();
    // An empty variable counts as none, as everywhere.
    let variable = |name: &str| variables.get(name).filter(|text| !text.is_empty());
    if tracing.otlp.is_none() {
        tracing.otlp = variable("OTEL_EXPORTER_OTLP_ENDPOINT").cloned();
    }
    if tracing.service.is_none() {
        tracing.service = variable("OTEL_SERVICE_NAME").cloned();
    }
    if tracing.sample.is_none()
        && let Some(text) = variable("OTEL_TRACES_SAMPLER_ARG")
    {
        tracing.sample = text.trim().parse().ok();
        if tracing.sample.is_none() {
            let message = format!("`{text}` is not a number (set by the environment variable OTEL_TRACES_SAMPLER_ARG)");
            problems.add(&["tracing", "sample"], message);
        }
    }
    if tracing.headers.is_none()
        && let Some(text) = variable("OTEL_EXPORTER_OTLP_HEADERS")
    {
        match text.split(',').filter(|pair| !pair.trim().is_empty()).map(pair).collect() {
            Some(headers) => tracing.headers = Some(headers),
            None => problems.add(
                &["tracing", "headers"],
                "not of the form name=value,name=value (set by the environment variable OTEL_EXPORTER_OTLP_HEADERS)",
            ),
        }
    }
    problems.into()
}

/// A header, whose value may be percent-encoded.
fn pair(text: &str) -> Option<(String, String)> {
    let (name, value) = text.split_once('=')?;
    let value = percent_encoding::percent_decode_str(value.trim()).decode_utf8().ok()?;
    Some((name.trim().to_owned(), value.into_owned()))
}

pub(super) fn check(problems: &mut Problems, raw: raw::Tracing) -> TracingSettings {
    // Empty turns off what the environment turns on.
    let otlp = raw.otlp.filter(|url| !url.is_empty());
    if otlp.as_ref().is_some_and(|url| url.contains(['?', '#'])) {
        problems.add(
            &["tracing", "otlp"],
            "has a query, which the path of traces cannot follow; set a token in tracing.headers",
        );
    }
    let web = |url: &String| url::Url::parse(url).is_ok_and(|url| ["http", "https"].contains(&url.scheme()));
    if otlp.as_ref().is_some_and(|url| !web(url)) {
        problems.add(
            &["tracing", "otlp"],
            "the base URL of a collector that speaks OTLP over HTTP, such as http://127.0.0.1:4318",
        );
    }
    let sample = raw.sample.unwrap_or(SAMPLE);
    if !(0.0..=1.0).contains(&sample) {
        problems.add(&["tracing", "sample"], format!("{sample} is out of range; from 0.0 to 1.0 is possible"));
    }
    let service = raw.service.unwrap_or_else(|| SERVICE.into());
    if service.is_empty() || service.chars().count() > MAX_NAME || service.chars().any(char::is_control) {
        problems.add(&["tracing", "service"], format!("1 to {MAX_NAME} characters, none of them a control character"));
    }
    let headers = raw.headers.unwrap_or_default();
    for (name, value) in &headers {
        if let Err(message) = header(name, value) {
            problems.add(&["tracing", "headers"], message);
        }
    }
    TracingSettings {
        otlp: otlp.map(Secret::new),
        headers: headers.into_iter().map(|(name, value)| (name, Secret::new(value))).collect(),
        sample,
        keys: raw.keys,
        service,
    }
}

/// A header to be sent along.
///
/// # Errors
/// What is wrong with it.
pub fn header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), String> {
    let wrong = |why: &str| format!("header `{name}` {why}");
    let header = HeaderName::try_from(name).map_err(|_| wrong("is not a header name"))?;
    if ["content-type", "content-length", "transfer-encoding", "connection"].contains(&header.as_str()) {
        return Err(wrong("is set by the engine"));
    }
    Ok((header, HeaderValue::try_from(value).map_err(|_| wrong("has a value with control characters"))?))
}

#[cfg(test)]
mod tests {
    use crate::error::ConfigError;
    use crate::settings::Config;

    fn load(text: &str, environment: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let environment = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Config::parse(text, "r.toml", environment)
    }

    #[test]
    fn the_standard_variables_fill_what_the_file_does_not_say() {
        let environment = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "x-team=a%20b, authorization=Basic%20eDp5,"),
            ("OTEL_SERVICE_NAME", "charts"),
            ("OTEL_TRACES_SAMPLER_ARG", "0.5"),
            ("OTEL_LOG_LEVEL", "info"),
        ];
        let tracing = load("", &environment).unwrap().tracing;
        assert_eq!(tracing.otlp.as_ref().map(|url| url.expose()), Some("http://collector:4318"));
        let headers = tracing.headers.iter().map(|(name, value)| (&**name, value.expose()));
        assert_eq!(headers.collect::<Vec<_>>(), [("authorization", "Basic eDp5"), ("x-team", "a b")]);
        assert_eq!((tracing.sample, &*tracing.service), (0.5, "charts"));
        assert!(!format!("{tracing:?}").contains("eDp5"), "{tracing:?}");

        let text = "[tracing]\notlp = \"\"\nsample = 1.0\nservice = \"mine\"\nheaders = {}\n";
        let own = [("ROUNDELAY__TRACING__HEADERS__X_TEAM", "b")];
        let tracing = load(text, &[&environment[..], &own].concat()).unwrap().tracing;
        assert!(tracing.otlp.is_none(), "it is turned off");
        assert_eq!((tracing.sample, &*tracing.service), (1.0, "mine"));
        assert_eq!(tracing.headers["x-team"].expose(), "b");

        let tracing = load("", &[("OTEL_EXPORTER_OTLP_ENDPOINT", "")]).unwrap().tracing;
        assert!(tracing.otlp.is_none() && tracing.keys && tracing.sample == 0.01);
    }

    #[test]
    fn what_is_wrong_is_told() {
        type Row = (&'static str, &'static [(&'static str, &'static str)], &'static str);
        let table: [Row; 8] = [
            ("[tracing]\notlp = \"collector:4318\"\n", &[], "r.toml:2: tracing.otlp: the base URL"),
            ("", &[("OTEL_EXPORTER_OTLP_ENDPOINT", "4318")], "tracing.otlp: the base URL"),
            ("[tracing]\nsample = 1.5\n", &[], "r.toml:2: tracing.sample: 1.5 is out of range"),
            ("", &[("OTEL_TRACES_SAMPLER_ARG", "all")], "OTEL_TRACES_SAMPLER_ARG"),
            ("", &[("OTEL_EXPORTER_OTLP_HEADERS", "a")], "OTEL_EXPORTER_OTLP_HEADERS"),
            ("[tracing]\nheaders = { \"a b\" = \"c\" }\n", &[], "header `a b` is not a header name"),
            ("[tracing]\nheaders.Content-Type = \"c\"\n", &[], "header `Content-Type` is set by the engine"),
            ("[tracing]\nservice = \"\"\n", &[], "tracing.service: 1 to 100 characters"),
        ];
        for (text, environment, part) in table {
            let message = load(text, environment).map(|_| ()).unwrap_err().to_string();
            assert!(message.contains(part), "{text} {environment:?} gave {message}");
        }
    }
}
