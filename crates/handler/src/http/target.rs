//! Where a job is POSTed to: a constant URL, or a template that is compiled once.
//!
//! A publisher of a key or a payload chooses values, and not where they stand: what a template writes is encoded,
//! so that it is part of one segment of a path, or of one parameter, unless the template says `raw`.

use std::fmt;

use minijinja::value::Serde;
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, Value, context};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};
use reqwest::header::{AUTHORIZATION, HeaderMap};
use reqwest::{Client, Request};
use roundelay_model::job::Job;
use url::Url;

use super::HttpError;

/// What is encoded: all but the unreserved characters of RFC 3986. `/` is not among them, so that a key is one
/// segment of a path whatever it holds.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Makes the requests of one kind, all but their job.
#[derive(Debug)]
pub enum Target {
    /// Always the same.
    Constant(Box<Request>),
    /// Rendered for each job.
    Template(Box<Template>),
}

/// A compiled template.
pub struct Template {
    environment: Environment<'static>,
    // Payloads can be large, and are converted for rendering only where the template asks for them.
    uses_payload: bool,
    headers: HeaderMap,
}

impl Target {
    /// Compiles `url`. Every request gets `headers`.
    pub fn new(url: &str, client: &Client, headers: HeaderMap) -> Result<Self, HttpError> {
        if is_template(url) {
            return Ok(Self::Template(Box::new(Template::new(url, headers)?)));
        }
        let request = parse(url).and_then(|url| request(client, url, &headers)).map_err(HttpError::Url)?;
        Ok(Self::Constant(Box::new(request)))
    }

    /// The request for `job`.
    ///
    /// # Errors
    /// Why there is no URL for this job; it names no more of the URL than what the job brought.
    pub fn request(&self, client: &Client, job: &Job) -> Result<Request, String> {
        match self {
            // A request without a body can always be cloned.
            Self::Constant(request) => request.try_clone().ok_or_else(|| "the request has a body".into()),
            Self::Template(template) => {
                let url = template.render(job).map_err(|error| template.explain(&error, job))?;
                stays(&url)?;
                request(client, parse(&url)?, &template.headers)
            }
        }
    }
}

/// Refuses what [`Target::new`] would refuse.
pub fn check(url: &str) -> Result<(), HttpError> {
    if is_template(url) {
        return Template::new(url, HeaderMap::new()).map(drop);
    }
    parse(url).map(drop).map_err(HttpError::Url)
}

/// Whether the text of a template says, behind the host, that values stand as they are.
pub fn is_raw_behind_host(url: &str) -> bool {
    let Some(authority) = url.find("://").map(|at| at + 3) else { return false };
    // What begins within a tag is no end of the host.
    let (mut rest, mut behind) = (&url[authority..], false);
    while let Some(tag) = rest.find("{{").into_iter().chain(rest.find("{%")).min() {
        behind |= rest[..tag].contains(['/', '\\', '?', '#']);
        let end = rest[tag..].find(['}']).map_or(rest.len(), |end| tag + end);
        let mut filters = rest[tag..end].split('|').skip(1).map(str::trim_start);
        let named =
            |filter: &str| filter.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).next() == Some("raw");
        if behind && filters.any(named) {
            return true;
        }
        rest = &rest[end..];
    }
    false
}

/// Scheme, host and port, where the configuration says them, whatever the job.
pub fn origin(url: &str) -> Option<Url> {
    let authority = url.find("://")? + 3;
    let end = url[authority..].find(['/', '\\', '?', '#']).map_or(url.len(), |at| authority + at);
    parse(&url[..end]).ok().filter(|_| !url[..end].contains('{'))
}

fn is_template(url: &str) -> bool {
    ["{{", "{%", "{#"].iter().any(|mark| url.contains(mark))
}

/// Without the template's text, which may hold credentials.
impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Template").field("uses_payload", &self.uses_payload).finish_non_exhaustive()
    }
}

impl Template {
    const NAME: &str = "url";

    fn new(text: &str, headers: HeaderMap) -> Result<Self, HttpError> {
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_formatter(write);
        environment.add_filter("urlencode", urlencode);
        environment.add_filter("raw", raw);
        // They would write what is not encoded, by other names.
        for name in ["safe", "escape", "e"] {
            environment.remove_filter(name);
        }
        environment
            .add_template_owned(Self::NAME, text.to_owned())
            .map_err(|error| HttpError::Template(error.to_string()))?;
        let mut this = Self { environment, uses_payload: true, headers };
        this.uses_payload = this.uses("payload")?;
        Ok(this)
    }

    /// Whether the template mentions the variable `name`. It also refuses a filter or function that
    /// does not exist, which compiling alone lets pass.
    fn uses(&self, name: &str) -> Result<bool, HttpError> {
        let refuse = |error: Error| HttpError::Template(error.to_string());
        let template = self.environment.get_template(Self::NAME).map_err(refuse)?;
        let mut lenient = self.environment.clone();
        lenient.set_undefined_behavior(UndefinedBehavior::Chainable);
        let tried = lenient.get_template(Self::NAME).and_then(|template| template.render(context! {}));
        match tried {
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::UnknownFilter | ErrorKind::UnknownFunction | ErrorKind::UnknownTest
                ) =>
            {
                Err(refuse(error))
            }
            _ => Ok(template.undeclared_variables(false).contains(name)),
        }
    }

    fn render(&self, job: &Job) -> Result<String, Error> {
        let payload = if self.uses_payload { Value::from(Serde(&job.payload)) } else { Value::UNDEFINED };
        self.environment.get_template(Self::NAME)?.render(context! {
            kind => job.kind.as_str(),
            key => job.key.as_str(),
            queue => job.queue.as_str(),
            payload => payload,
        })
    }

    /// The error, and what the template uses that the payload does not have.
    fn explain(&self, error: &Error, job: &Job) -> String {
        let used = self.environment.get_template(Self::NAME).map(|template| template.undeclared_variables(true));
        let mut missing: Vec<String> =
            used.unwrap_or_default().into_iter().filter(|name| is_missing(name, job)).collect();
        missing.sort();
        let missing = if missing.is_empty() { String::new() } else { format!("; missing: {}", missing.join(", ")) };
        format!("{}{missing}", error.detail().map_or_else(|| error.kind().to_string(), str::to_owned))
    }
}

/// Whether `name` is a path into the payload, such as `payload.platform`, that leads nowhere.
fn is_missing(name: &str, job: &Job) -> bool {
    let mut path = name.split('.');
    let rooted = path.next() == Some("payload");
    rooted && path.try_fold(&job.payload, |value, field| value.get(field)).is_none_or(serde_json::Value::is_null)
}

/// Writes a value into the URL: encoded, unless it has been already, or is to stand as it is.
fn write(out: &mut minijinja::Output<'_>, _: &mut minijinja::State<'_, '_>, value: &Value) -> Result<(), Error> {
    if value.is_undefined() {
        return Ok(());
    }
    let text = text(value)?;
    let written = if value.is_safe() { out.write_str(&text) } else { write!(out, "{}", encoded(&text)) };
    written.map_err(|_| ErrorKind::WriteFailure.into())
}

fn encoded(text: &str) -> PercentEncode<'_> {
    utf8_percent_encode(text, RESERVED)
}

/// A value as text. A null would read `none`, and call something else.
fn text(value: &Value) -> Result<String, Error> {
    match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None if value.is_undefined() => Err(ErrorKind::UndefinedError.into()),
        None if value.is_none() => Err(Error::new(ErrorKind::InvalidOperation, "a null has no place in a URL")),
        None => Ok(value.to_string()),
    }
}

/// What is written anyhow; from when it had to be asked for.
fn urlencode(value: &Value) -> Result<Value, Error> {
    match value.is_safe() {
        true => Ok(value.clone()),
        false => text(value).map(|text| Value::from_safe_string(encoded(&text).to_string())),
    }
}

/// The value as it stands, slashes and all.
fn raw(value: &Value) -> Result<Value, Error> {
    text(value).map(Value::from_safe_string)
}

/// Refuses a path with a segment that URLs take for "here" or "one up", however it is encoded: a job's values would
/// lead elsewhere.
fn stays(url: &str) -> Result<(), String> {
    // As parsers of URLs see it: without these, and with backslashes for slashes.
    let url: String = url.chars().filter(|c| !matches!(c, '\t' | '\n' | '\r')).collect();
    let after = url.split_once(':').map_or("", |(_, rest)| rest).trim_start_matches(['/', '\\']);
    let end = after.find(['?', '#']).unwrap_or(after.len());
    let mut segments = after[..end].split(['/', '\\']).skip(1);
    match segments.find(|segment| [".", ".."].contains(&segment.to_ascii_lowercase().replace("%2e", ".").as_str())) {
        Some(segment) => Err(format!("{segment:?} cannot be a segment of a path")),
        None => Ok(()),
    }
}

pub(super) fn parse(text: &str) -> Result<Url, String> {
    // The text is not shown: it may hold credentials.
    let url = Url::parse(text).map_err(|error| format!("not a URL: {error}"))?;
    match url.scheme() {
        "http" | "https" => Ok(url),
        scheme => Err(format!("not an http or https URL but {scheme}")),
    }
}

/// A POST to `url` with `headers`; credentials in the URL become basic authorization.
fn request(client: &Client, url: Url, headers: &HeaderMap) -> Result<Request, String> {
    let mut request = client.post(url).build().map_err(|error| error.without_url().to_string())?;
    let credentials = request.headers_mut().remove(AUTHORIZATION);
    *request.headers_mut() = headers.clone();
    if let Some(credentials) = credentials {
        request.headers_mut().entry(AUTHORIZATION).or_insert(credentials);
    }
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_configuration_names_whatever_the_job() {
        let table = [
            ("http://127.0.0.1:8000/x", Some("http://127.0.0.1:8000/")),
            ("http://127.0.0.1:8000/{{ key }}", Some("http://127.0.0.1:8000/")),
            ("https://u:p@h?{{ key }}", Some("https://u:p@h/")),
            ("http://h\\{{ key }}", Some("http://h/")),
            ("http://h#{% if key %}x{% endif %}", Some("http://h/")),
            ("http://127.0.0.1{{ key }}/", None),
            ("http://{{ key }}/", None),
            ("http://{{ key }}@127.0.0.1/", None),
            ("http://127.0.0.1:{{ payload.port }}/", None),
            ("http://127.0.0.1{# none #}/", None),
            ("http{% if key %}s{% endif %}://h/", None),
            ("{{ key }}", None),
            ("http://", None),
        ];
        for (url, expected) in table {
            assert_eq!(origin(url).as_ref().map(Url::as_str), expected, "{url}");
        }
    }

    #[test]
    fn where_values_stand_as_they_are() {
        let table = [
            ("http://h/{{ key | raw }}", true),
            ("http://h?{{key|raw}}", true),
            ("http://h/{% if payload.x|raw %}x{% endif %}", true),
            ("http://{{ payload.host }}/a/{{ key | urlencode | raw }}", true),
            ("http://{{ payload.host | raw }}/{{ key }}", false),
            ("http://{{ payload['a/b'] | raw }}/{{ key }}", false),
            ("http://h/{{ key | rawer }}/{{ payload.raw }}/raw", false),
            ("http://h/{{ key }} | raw", false),
            ("http://h/a", false),
        ];
        for (url, expected) in table {
            assert_eq!(is_raw_behind_host(url), expected, "{url}");
        }
    }
}
