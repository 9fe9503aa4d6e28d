//! From a file and the environment to checked settings.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

use crate::read::Source;
use crate::settings::Config;
use crate::tracing::fill;
use crate::{ConfigError, Problem, check, redacted, secret};

impl Config {
    /// Reads and checks the file at `path`, with `ROUNDELAY__…` from the environment over it, and the files that
    /// it names for secrets.
    ///
    /// # Errors
    /// [`ConfigError`] lists everything that is wrong.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let file = path.display().to_string();
        let wrong = |line, message| ConfigError {
            file: file.clone(),
            problems: vec![Problem { line, key: String::new(), message }],
        };
        let bytes = std::fs::read(path).map_err(|error| {
            let hint = match error.kind() {
                std::io::ErrorKind::NotFound => "; give its path with --config, or start from roundelay.example.toml",
                _ => "",
            };
            wrong(None, format!("cannot be read: {error}{hint}"))
        })?;
        let text = std::str::from_utf8(&bytes).map_err(|error| {
            let before = &bytes[..error.valid_up_to()];
            let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
            wrong(Some(line), "is not UTF-8; save it as UTF-8".into())
        })?;
        // Not `vars`, which panics on the first variable of anybody's that is not UTF-8.
        let environment = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())));
        Self::read(text, &file, environment, &secret::read, &secret::text)
    }

    /// Reads and checks `text`, calling it `file` in errors, with the `ROUNDELAY__…` variables
    /// among `environment` over it, and those of OpenTelemetry for what it does not say of `[tracing]`. No file is
    /// looked at: secrets that are in one are refused.
    ///
    /// # Errors
    /// [`ConfigError`] lists everything that is wrong.
    pub fn parse(
        text: &str,
        file: &str,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let closed = |path: &Path| Err(format!("no file is read here, not even {}; write the text", path.display()));
        Self::read(text, file, environment, &closed, &closed)
    }

    pub(crate) fn read(
        text: &str,
        file: &str,
        environment: impl IntoIterator<Item = (String, String)>,
        secret: &dyn Fn(&Path) -> Result<String, String>,
        file_text: &dyn Fn(&Path) -> Result<String, String>,
    ) -> Result<Self, ConfigError> {
        let mut source = Source::new(text, file);
        let environment: BTreeMap<String, String> = environment.into_iter().collect();
        let mut raw = source.read(environment.clone(), secret)?;
        let problems = fill(&mut raw.tracing, &environment);
        if !problems.is_empty() {
            return Err(source.locate(problems));
        }
        // As they are now: what is shown of the configuration has their text.
        let read = RefCell::new(BTreeMap::new());
        let noted = |path: &Path| {
            let text = file_text(path)?;
            read.borrow_mut().insert(path.display().to_string(), text.clone());
            Ok(text)
        };
        let config = check::check(raw, &noted).map_err(|problems| source.locate(problems))?;
        let shown = redacted::shown(text, &source.fetched, &read.into_inner()).unwrap_or_default();
        Ok(Self { shown, ..config })
    }
}
