//! The dashboard's files, which are compiled into the program.
//!
//! A path is looked up in a table, so that no request can reach any other file.

use std::collections::HashMap;
use std::sync::LazyLock;

use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

use crate::api::problem::Problem;

/// Names below `assets`, with their content. A test checks that none is missing.
macro_rules! assets {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_bytes!(concat!("assets/", $name)))),*]
    };
}

/// All files. `index.html` is also what `/` answers.
const ASSETS: &[(&str, &[u8])] = assets![
    "api.js",
    "app.css",
    "app.js",
    "charts.js",
    "dialogs.js",
    "dom.js",
    "format.js",
    "icon.svg",
    "index.html",
    "live.js",
    "parts.js",
    "screens/audit.js",
    "screens/chain.js",
    "screens/chains.js",
    "screens/failures.js",
    "screens/foresight.js",
    "screens/kinds.js",
    "screens/ladder.js",
    "screens/overview.js",
    "screens/owners.js",
    "screens/quarantine.js",
    "screens/queues.js",
    "screens/runs.js",
    "screens/throttles.js",
    "screens/workers.js",
    "session.js",
    "steering.js",
];

/// A file, ready to be answered.
struct Asset {
    content_type: &'static str,
    /// The entity tag, which changes with the content.
    tag: String,
    content: &'static [u8],
}

/// The files by their path.
static BY_PATH: LazyLock<HashMap<String, Asset>> = LazyLock::new(|| {
    let assets = ASSETS.iter().map(|(name, content)| {
        let tag = Sha256::digest(content).iter().take(16).map(|byte| format!("{byte:02x}")).collect::<String>();
        let path = if *name == "index.html" { "/".to_owned() } else { format!("/assets/{name}") };
        (path, Asset { content_type: content_type(name), tag: format!("\"{tag}\""), content })
    });
    assets.collect()
});

/// The content type by the name's ending. A browser does not show an unknown type.
fn content_type(name: &str) -> &'static str {
    match name.rsplit_once('.').map_or("", |(_, ending)| ending) {
        "html" => "text/html; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "json" | "map" => "application/json",
        "webmanifest" => "application/manifest+json",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "ico" => "image/x-icon",
        "woff2" => "font/woff2",
        "txt" => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

/// The answer for a path, if it has a file.
pub fn answer(method: &Method, path: &str, headers: &HeaderMap) -> Option<Response> {
    let asset = BY_PATH.get(path)?;
    if ![Method::GET, Method::HEAD].contains(method) {
        return Some(Problem::method_not_allowed("GET, HEAD".into()).into_response());
    }
    let known = headers.get_all(IF_NONE_MATCH).iter().filter_map(|tags| tags.to_str().ok());
    let known = known.flat_map(|tags| tags.split(',')).any(|tag| tag.trim().trim_start_matches("W/") == asset.tag);
    // Browsers keep the file, and ask each time whether it has changed: the next version of the program may have
    // another.
    let common = [(ETAG, asset.tag.as_str()), (CACHE_CONTROL, "no-cache")];
    Some(if known {
        (StatusCode::NOT_MODIFIED, common).into_response()
    } else {
        (common, [(CONTENT_TYPE, asset.content_type)], asset.content).into_response()
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn files(folder: &Path, before: &str, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let name = format!("{before}{}", entry.file_name().to_str().unwrap());
            if entry.file_type().unwrap().is_dir() {
                files(&entry.path(), &format!("{name}/"), found);
            } else {
                found.push(name);
            }
        }
    }

    #[test]
    fn every_file_is_in_the_program() {
        let mut found = Vec::new();
        files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/web/assets"), "", &mut found);
        let mut listed: Vec<&str> = ASSETS.iter().map(|(name, _)| *name).collect();
        found.sort();
        listed.sort_unstable();
        assert_eq!(found, listed, "list the files below src/web/assets in crates/admin/src/web/mod.rs, ASSETS");
        let unknown: Vec<&&str> =
            listed.iter().filter(|name| content_type(name) == "application/octet-stream").collect();
        assert!(unknown.is_empty(), "their content type is not known: {unknown:?}");
    }

    #[test]
    fn what_is_known_already_is_not_sent_again() {
        let (mut headers, status) =
            (HeaderMap::new(), |response: Option<Response>| response.unwrap().status().as_u16());
        let first = answer(&Method::GET, "/", &headers).unwrap();
        assert_eq!(first.headers()[CONTENT_TYPE], "text/html; charset=utf-8");
        headers.insert(IF_NONE_MATCH, first.headers()[ETAG].clone());
        assert_eq!(status(answer(&Method::GET, "/", &headers)), 304);
        headers.insert(IF_NONE_MATCH, "\"another\"".parse().unwrap());
        assert_eq!(status(answer(&Method::GET, "/", &headers)), 200);
        assert_eq!(status(answer(&Method::POST, "/", &headers)), 405);
        assert!(answer(&Method::GET, "/../Cargo.toml", &headers).is_none());
    }
}
