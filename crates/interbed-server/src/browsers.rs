//! Protects a server without API keys from web pages of other sites.
//!
//! Every web page that a user opens can send requests from that user's machine, to servers that only this machine
//! reaches. Browsers say in headers on whose behalf they send a request, and no page can change these headers. A page
//! cannot know an API key, so with keys this check is not needed.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, Method, Uri, header};
use axum::middleware::Next;
use axum::response::Response;

use crate::api_keys::ApiKeys;
use crate::config::ServerConfig;
use crate::error::ApiError;
use crate::hosts::Hosts;

/// The header in which a browser states how the requesting page is related to the server.
const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// The header in which a browser states whether the response will be shown as a document.
const DESTINATION: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// The settings of the check.
pub(crate) struct Browsers {
    keys: ApiKeys,
    /// Whether the server uses TLS: then a browser has verified the host name by the certificate.
    over_tls: bool,
    hosts: Hosts,
    /// Origins of pages that may send requests, or `*`.
    origins: Vec<String>,
}

impl Browsers {
    pub(crate) fn of(config: &ServerConfig) -> Arc<Self> {
        let ServerConfig { api_keys, tls, allow_hosts, allow_origins, .. } = config;
        let (keys, origins) = (api_keys.clone(), allow_origins.clone());
        Arc::new(Self { keys, over_tls: tls.is_some(), hosts: Hosts::with(allow_hosts), origins })
    }

    /// Checks that a request with these headers comes either from no web page, or from a web page that may send
    /// requests.
    fn check(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
        if !self.keys.is_empty() {
            return Ok(());
        }
        let text = |header: &HeaderName| -> Vec<&str> {
            headers.get_all(header).iter().map(|value| value.to_str().unwrap_or("unreadable")).collect()
        };
        // Only clients other than browsers omit this header.
        let mut named = text(&header::HOST);
        named.extend(uri.authority().map(|authority| authority.as_str()));
        named.retain(|host| !host.is_empty());
        if !self.over_tls
            && let Some(foreign) = named.iter().find(|host| !self.hosts.know(host))
        {
            return Err(ApiError::foreign_host(foreign));
        }
        let site = headers.get(SITE).map(|site| site.as_bytes());
        if site == Some(b"same-origin") || self.origins.iter().any(|known| known == "*") {
            return Ok(());
        }
        let own = named.first().copied();
        let is_known = |origin: &str| self.origins.iter().any(|known| known == origin) || is_own(origin, own);
        let origins = text(&header::ORIGIN);
        match origins.iter().find(|origin| !is_known(origin)) {
            Some(foreign) => Err(ApiError::foreign_origin(foreign)),
            None if !origins.is_empty() => Ok(()),
            // Links to the page from other sites are allowed: the linking site cannot read the response.
            None if site == Some(b"cross-site") && !is_link(method, uri, headers) => Err(ApiError::foreign_site()),
            None => Ok(()),
        }
    }
}

/// Lets a request pass, unless a foreign web page sent it. This is a middleware.
pub(crate) async fn guard(
    State(browsers): State<Arc<Browsers>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    browsers.check(request.method(), request.uri(), request.headers())?;
    Ok(next.run(request).await)
}

/// Returns whether a page of `origin` was loaded from this server, whose host name is `host`. A proxy may have removed
/// TLS, so the scheme is ignored.
fn is_own(origin: &str, host: Option<&str>) -> bool {
    let Some(((scheme, of_page), host)) = origin.split_once("://").zip(host) else { return false };
    let port = match scheme {
        "http" => ":80",
        "https" => ":443",
        _ => return false,
    };
    let bare = |authority: &str| authority.strip_suffix(port).unwrap_or(authority).to_ascii_lowercase();
    bare(of_page) == bare(host)
}

/// Returns whether the user has followed a link to the page.
fn is_link(method: &Method, uri: &Uri, headers: &HeaderMap) -> bool {
    let is_shown = headers.get(DESTINATION).is_some_and(|destination| destination.as_bytes() == b"document");
    method == Method::GET && uri.path() == "/" && is_shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_keys::ApiKey;
    use crate::config::ServerConfig;

    fn check(config: &ServerConfig, line: &str, headers: &[(&'static str, &str)]) -> Option<String> {
        let (method, uri) = line.split_once(' ').expect("a method and a path");
        let headers =
            headers.iter().map(|(name, value)| (name.parse().expect("a name"), value.parse().expect("a value")));
        let (method, uri) = (method.parse().expect("a method"), uri.parse().expect("a path"));
        let refused = Browsers::of(config).check(&method, &uri, &headers.collect()).err()?;
        assert_eq!(refused.status, 403);
        Some(refused.message)
    }

    #[test]
    fn a_page_of_another_origin_may_not_call() {
        let config = ServerConfig {
            allow_origins: vec!["https://chat.example".into(), "null".into()],
            allow_hosts: vec!["gpu.lan".into()],
            ..ServerConfig::default()
        };
        let post = |headers: &[_]| check(&config, "POST /v1/completions", headers).is_none();
        let local = ("host", "localhost:8000");
        for taken in [
            &[][..],
            &[("host", "")],
            &[local],
            &[local, ("origin", "http://localhost:8000")],
            &[local, ("origin", "http://LOCALHOST:8000"), ("sec-fetch-site", "same-origin")],
            &[("host", "gpu.lan"), ("origin", "https://gpu.lan")],
            &[("host", "gpu.lan:443"), ("origin", "https://gpu.lan")],
            &[local, ("origin", "https://chat.example"), ("sec-fetch-site", "cross-site")],
            &[local, ("origin", "null")],
            &[local, ("sec-fetch-site", "none")],
            &[local, ("sec-fetch-site", "same-site")],
            // A proxy has changed the host; the browser has not.
            &[("host", "127.0.0.1:8000"), ("origin", "https://ai.example"), ("sec-fetch-site", "same-origin")],
        ] {
            assert!(post(taken), "{taken:?}");
        }
        for refused in [
            &[("host", "evil.example:8000"), ("origin", "http://evil.example:8000")][..],
            &[("host", "evil.example:8000"), ("sec-fetch-site", "same-origin")],
            &[local, ("host", "evil.example")],
            &[local, ("origin", "https://evil.example")],
            &[local, ("origin", "http://localhost:3000"), ("sec-fetch-site", "same-site")],
            &[local, ("origin", "http://localhost")],
            &[local, ("origin", "https://chat.example.evil.example")],
            &[local, ("origin", "file://")],
            &[local, ("origin", "ftp://localhost:8000")],
            &[local, ("origin", "http://localhost:8000"), ("origin", "http://evil.example")],
            &[local, ("sec-fetch-site", "cross-site")],
            &[local, ("sec-fetch-site", "cross-site"), ("sec-fetch-dest", "document")],
            &[("origin", "http://localhost:8000")],
        ] {
            assert!(!post(refused), "{refused:?}");
        }
        assert!(check(&config, "GET http://evil.example/live/events", &[local]).is_some());
    }

    #[test]
    fn a_link_to_the_page_may_be_followed_and_nothing_else() {
        let config = ServerConfig::default();
        let cross = [("host", "localhost"), ("sec-fetch-site", "cross-site")];
        let [link, frame, picture] =
            ["document", "iframe", "image"].map(|to| [cross[0], cross[1], ("sec-fetch-dest", to)]);
        assert_eq!(check(&config, "GET /", &link), None);
        for (line, headers) in [
            ("GET /", &cross[..]),
            ("GET /", &frame),
            ("GET /page/icon.svg", &picture),
            ("GET /live/events", &link),
            ("GET /metrics", &picture),
            ("POST /", &link),
        ] {
            assert!(check(&config, line, headers).is_some(), "{line} {headers:?}");
        }
    }

    #[test]
    fn who_refuses_says_what_to_do() {
        let config = ServerConfig::default();
        let told = |headers: &[_]| check(&config, "GET /v1/models", headers).expect("a refusal");
        assert!(told(&[("host", "ai.example:80")]).contains("--allow-host ai.example,"));
        assert!(told(&[("host", "localhost"), ("origin", "app://notes")]).contains("--allow-origin app://notes"));
        assert!(told(&[("host", "localhost"), ("sec-fetch-site", "cross-site")]).contains("--allow-origin"));
        let long = told(&[("host", &"e".repeat(5000))]);
        assert!(long.len() < 1000, "{long}");
    }

    #[test]
    fn where_there_are_keys_these_decide() {
        let keyed = ServerConfig { api_keys: ApiKeys::new(&[ApiKey::new("a")]), ..ServerConfig::default() };
        let headers = [("host", "evil.example"), ("origin", "https://x.example"), ("sec-fetch-site", "cross-site")];
        assert_eq!(check(&keyed, "POST /v1/completions", &headers), None);
        // All origins are allowed, but the host must still be known.
        let open = ServerConfig { allow_origins: vec!["*".into()], ..ServerConfig::default() };
        assert_eq!(check(&open, "POST /v1/completions", &headers[1..]), None);
        assert!(check(&open, "POST /v1/completions", &headers).is_some());
    }
}
