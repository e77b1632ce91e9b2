//! Serves `/`, a web page that shows what the engine does. All files of the page are compiled into the program.

use std::sync::OnceLock;

use axum::extract::Path;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::error::ApiError;

/// A file of the web page.
struct Asset {
    name: &'static str,
    kind: &'static str,
    content: &'static str,
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

macro_rules! assets {
    ($($name:literal: $kind:expr),* $(,)?) => {
        &[$(Asset { name: $name, kind: $kind, content: include_str!(concat!("../page/", $name)) }),*]
    };
}

const ASSETS: &[Asset] = assets![
    "index.html": HTML,
    "style.css": CSS,
    "chat.css": CSS,
    "icon.svg": SVG,
    "app.js": JS,
    "asking.js": JS,
    "blocks.js": JS,
    "charts.js": JS,
    "chat.js": JS,
    "conversation.js": JS,
    "copy.js": JS,
    "feed.js": JS,
    "format.js": JS,
    "headline.js": JS,
    "limits.js": JS,
    "markdown.js": JS,
    "notice.js": JS,
    "paint.js": JS,
    "requests.js": JS,
    "rest.js": JS,
    "state.js": JS,
    "theme.js": JS,
    "tiers.js": JS,
    "weights.js": JS,
];

/// The content security policy: the page loads files from this server only, calls no other server, and cannot be
/// framed by other sites.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Answers with the page's HTML.
pub(crate) async fn index(headers: HeaderMap) -> Result<Response, ApiError> {
    asset(Path("index.html".to_owned()), headers).await
}

/// Answers with a file of the page, or with 304 if the browser already has this version of it.
pub(crate) async fn asset(Path(name): Path<String>, headers: HeaderMap) -> Result<Response, ApiError> {
    let Some(index) = ASSETS.iter().position(|asset| asset.name == name) else {
        return Err(ApiError::not_found(format!("the page has no file {name}")));
    };
    let (asset, tag) = (&ASSETS[index], &tags()[index]);
    let known = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|tags| tags.to_str().ok());
    let mut response = match known.flat_map(|tags| tags.split(',')).any(|known| known.trim() == tag) {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => ([(header::CONTENT_TYPE, asset.kind)], asset.content).into_response(),
    };
    let fixed = |name: HeaderName, value: &'static str| (name, HeaderValue::from_static(value));
    response.headers_mut().extend([
        fixed(header::CONTENT_SECURITY_POLICY, POLICY),
        fixed(header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        fixed(header::REFERRER_POLICY, "no-referrer"),
        // Browsers ask for the file again each time, and get it only if it has changed.
        fixed(header::CACHE_CONTROL, "no-cache"),
    ]);
    if let Ok(tag) = HeaderValue::from_str(tag) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    Ok(response)
}

/// Returns the ETag of each file: a hash of its content.
fn tags() -> &'static [String] {
    static TAGS: OnceLock<Vec<String>> = OnceLock::new();
    TAGS.get_or_init(|| {
        let tag = |asset: &Asset| format!("\"{}\"", &blake3::hash(asset.content.as_bytes()).to_hex()[..16]);
        ASSETS.iter().map(tag).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that files which the page imports are part of the page, that every file in its folder is served, and that
    /// none loads from elsewhere.
    #[test]
    fn the_page_is_whole() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/page");
        let entries = std::fs::read_dir(folder).expect("the page");
        let mut files: Vec<_> =
            entries.map(|entry| entry.expect("a file").file_name().into_string().expect("a name")).collect();
        files.sort();
        let mut known: Vec<_> = ASSETS.iter().map(|asset| asset.name).collect();
        known.sort_unstable();
        assert_eq!(files, known);
        for asset in ASSETS {
            for (at, _) in asset.content.match_indices("from './") {
                let name = asset.content[at + 8..].split('\'').next().expect("a name");
                assert!(known.contains(&name), "{} imports {name}", asset.name);
            }
            for outside in ["http://", "https://", "//cdn", "@import", "url("] {
                let found = asset.content.match_indices(outside).filter(|(at, _)| {
                    let rest = &asset.content[*at..];
                    // This URL is the name of the SVG namespace, which no browser loads.
                    !rest.starts_with("http://www.w3.org/2000/svg")
                });
                assert_eq!(found.count(), 0, "{} has {outside}", asset.name);
            }
        }
    }
}
