//! The HTTP client of a Hub, which follows redirects itself, sends the token only to the Hub, retries, and limits
//! responses.

use std::ops::Range;
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderValue, LINK, LOCATION, RANGE, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode, Url};

use crate::error::{HubProblem, is_busy};
use crate::patience::HubPatience;
use crate::ranges::retry_after;

/// Timeout for connecting.
const CONNECT: Duration = Duration::from_secs(10);
/// The time without a byte after which a connection is given up.
const SILENCE: Duration = Duration::from_secs(30);
/// Maximum number of redirects that are followed.
const REDIRECTS_MAX: usize = 8;
/// Maximum number of attempts if a server is busy.
const ATTEMPTS: u32 = 5;
/// Maximum number of attempts if a server cannot be reached.
const ATTEMPTS_UNREACHABLE: u32 = 2;
/// Longest wait that a server may ask for.
const ASKED_MAX: Duration = Duration::from_secs(60);
/// Largest response of the API in bytes; a listing of a thousand files has some 300 kB.
const ANSWER_BYTES_MAX: usize = 32 << 20;
/// Maximum number of characters of a refusal's text that are shown.
const REFUSAL_SHOWN: usize = 120;

/// A client of one Hub.
pub(crate) struct Web {
    client: Client,
    /// The reason why no TLS server can be verified, if none can.
    no_tls: Option<String>,
    endpoint: Url,
    /// The endpoint for messages, without a trailing slash.
    shown_endpoint: String,
    authorization: Option<HeaderValue>,
    patience: HubPatience,
}

impl Web {
    /// Creates a client for the Hub at `endpoint` that sends `token`.
    pub(crate) fn new(endpoint: &str, token: Option<&str>, patience: HubPatience) -> Result<Self, HubProblem> {
        let unusable = |message: String| HubProblem::Unreachable { address: "HF_ENDPOINT".to_owned(), message };
        let endpoint = Url::parse(endpoint).map_err(|error| unusable(error.to_string()))?;
        let shown_endpoint = shown(&endpoint).trim_end_matches('/').to_owned();
        // The TLS library uses the process's default provider, which may be installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = || {
            Client::builder()
                .user_agent(concat!("interbed/", env!("CARGO_PKG_VERSION")))
                .redirect(reqwest::redirect::Policy::none())
                .connect_timeout(CONNECT)
                .read_timeout(SILENCE)
        };
        let (client, no_tls) = match builder().build() {
            Ok(client) => (client, None),
            // Without certificates, a Hub that speaks plain HTTP can still be used.
            Err(error) => {
                let client = builder().tls_certs_only([]).build().map_err(|error| unusable(chain(&error)))?;
                (client, Some(chain(&error)))
            }
        };
        let authorization = token.and_then(|token| {
            let mut value = HeaderValue::from_str(&format!("Bearer {token}")).ok()?;
            value.set_sensitive(true);
            Some(value)
        });
        Ok(Self { client, no_tls, endpoint, shown_endpoint, authorization, patience })
    }

    /// Returns the Hub's address, without secrets.
    pub(crate) fn endpoint(&self) -> &str {
        &self.shown_endpoint
    }

    /// Returns the timeouts and waits for servers.
    pub(crate) fn patience(&self) -> HubPatience {
        self.patience
    }

    /// Returns whether requests carry a token.
    pub(crate) fn has_token(&self) -> bool {
        self.authorization.is_some()
    }

    /// Returns the address of `parts` below the endpoint. Each part is one component of the path, which is escaped.
    pub(crate) fn url<'a>(&self, parts: impl IntoIterator<Item = &'a str>) -> Url {
        let mut url = self.endpoint.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(parts);
        }
        url
    }

    /// Returns whether an address is at the Hub itself, and not at a server that the Hub redirects to.
    pub(crate) fn is_endpoint(&self, url: &Url) -> bool {
        url.scheme() == self.endpoint.scheme()
            && url.host() == self.endpoint.host()
            && url.port_or_known_default() == self.endpoint.port_or_known_default()
    }

    /// Requests a response of the API. Returns its text, and the address of the next page if there is one.
    pub(crate) async fn json(&self, url: Url) -> Result<(Vec<u8>, Option<Url>), HubProblem> {
        // Waits that the server asks for do not count towards the time limit of the response.
        let (_, mut response) = self.get(url.clone(), None).await?;
        let next = response.headers().get(LINK).and_then(|link| next_page(link.to_str().ok()?, &url));
        let whole = async {
            let mut text = Vec::new();
            while let Some(chunk) = response.chunk().await.map_err(|error| unreachable(&url, &error))? {
                if text.len() + chunk.len() > ANSWER_BYTES_MAX {
                    let message = format!("it is longer than {ANSWER_BYTES_MAX} bytes");
                    return Err(HubProblem::BadAnswer { address: shown(&url), message });
                }
                text.extend_from_slice(&chunk);
            }
            Ok((text, next))
        };
        let within = self.patience.answer;
        tokio::time::timeout(within, whole).await.unwrap_or_else(|_| {
            let message = format!("no whole answer within {} s", within.as_secs_f64());
            Err(HubProblem::Unreachable { address: shown(&url), message })
        })
    }

    /// Requests a range, or everything, and follows redirects. Returns the response with its address. Retries while the
    /// server is busy. Fails if the status is not success.
    pub(crate) async fn get(&self, url: Url, range: Option<Range<u64>>) -> Result<(Url, Response), HubProblem> {
        let mut wait = self.patience.wait;
        for attempt in 1.. {
            let (problem, asked) = match self.follow(url.clone(), range.as_ref()).await {
                Ok((from, response)) if response.status().is_success() => return Ok((from, response)),
                Ok((from, response)) => {
                    let status = response.status().as_u16();
                    let asked = response.headers().get(RETRY_AFTER).and_then(|value| retry_after(value.to_str().ok()?));
                    let problem = self.refusal(&from, response).await;
                    if let Some(asked) = asked.filter(|&asked| is_busy(status) && asked > ASKED_MAX) {
                        let (address, seconds) = (shown(&from), asked.as_secs());
                        return Err(HubProblem::Later { address, status, seconds });
                    }
                    if !is_busy(status) || attempt >= ATTEMPTS {
                        return Err(problem);
                    }
                    (problem, asked)
                }
                Err(problem @ HubProblem::Unreachable { .. }) if attempt < ATTEMPTS_UNREACHABLE => (problem, None),
                Err(problem) => return Err(problem),
            };
            let now = asked.unwrap_or(wait);
            tracing::debug!("{problem}; asking again in {:.1} s", now.as_secs_f64());
            tokio::time::sleep(now).await;
            wait = self.patience.next(wait);
        }
        unreachable!("the loop ends by its own count")
    }

    /// Sends one request and follows its redirects.
    async fn follow(&self, mut url: Url, range: Option<&Range<u64>>) -> Result<(Url, Response), HubProblem> {
        for _ in 0..REDIRECTS_MAX {
            if let Some(message) = self.no_tls.as_ref().filter(|_| url.scheme() == "https") {
                return Err(HubProblem::NoTls { message: message.clone() });
            }
            let mut request = self.client.get(url.clone());
            if let Some(token) = self.authorization.as_ref().filter(|_| self.is_endpoint(&url)) {
                request = request.header(AUTHORIZATION, token.clone());
            }
            if let Some(range) = range {
                request = request.header(RANGE, format!("bytes={}-{}", range.start, range.end.saturating_sub(1)));
            }
            let response = request.send().await.map_err(|error| unreachable(&url, &error))?;
            let status = response.status();
            if !status.is_redirection() || status == StatusCode::NOT_MODIFIED {
                return Ok((url, response));
            }
            let bad = |message: String| HubProblem::BadAnswer { address: shown(&url), message };
            let to = response.headers().get(LOCATION).and_then(|to| to.to_str().ok());
            let to = to.ok_or_else(|| bad(format!("{status} leads nowhere")))?;
            let to = url.join(to).map_err(|error| bad(format!("{status} leads to no address: {error}")))?;
            let is_weaker = url.scheme() == "https" && to.scheme() != "https";
            if is_weaker || !matches!(to.scheme(), "http" | "https") {
                return Err(bad(format!("{status} leads from {} to {}, which is refused", url.scheme(), to.scheme())));
            }
            url = to;
        }
        let message = format!("it leads on and on; {REDIRECTS_MAX} redirects were followed");
        Err(HubProblem::BadAnswer { address: shown(&url), message })
    }

    /// Converts a response without success to a problem.
    async fn refusal(&self, url: &Url, mut response: Response) -> HubProblem {
        let status = response.status();
        let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let word = header("x-error-code").or_else(|| header("x-error-message"));
        let code = match word {
            Some(word) => word,
            // The beginning of a text says more than a status, except for HTML pages.
            None => match response.chunk().await {
                Ok(Some(text)) => String::from_utf8_lossy(&text[..text.len().min(4 * REFUSAL_SHOWN)]).into_owned(),
                _ => String::new(),
            },
        };
        let code: String = code.chars().filter(|c| !c.is_control()).take(REFUSAL_SHOWN).collect();
        let code = if code.trim_start().starts_with('<') { String::new() } else { code.trim().to_owned() };
        HubProblem::Status { address: shown(url), status: status.as_u16(), code }
    }
}

/// Returns an address for messages, without its query, which is a secret in signed addresses, and without a password.
pub(crate) fn shown(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    let _ = url.set_password(None);
    let _ = url.set_username("");
    url.to_string()
}

/// Converts the error of a request that got no response.
pub(crate) fn unreachable(url: &Url, error: &reqwest::Error) -> HubProblem {
    HubProblem::Unreachable { address: shown(url), message: chain(error) }
}

/// Returns the innermost cause of an error, which says what happened. The first level repeats the address, with its
/// signature.
fn chain(error: &reqwest::Error) -> String {
    let mut causes = Vec::new();
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        causes.push(cause.to_string());
        next = cause.source();
    }
    match causes.last() {
        Some(last) => last.clone(),
        None if error.is_timeout() => "it does not answer in time".into(),
        None => "the request failed".into(),
    }
}

/// Returns the address of the next page in a `Link` header.
fn next_page(header: &str, at: &Url) -> Option<Url> {
    header.split(',').find_map(|link| {
        let (target, parameters) = link.trim().strip_prefix('<')?.split_once('>')?;
        parameters.contains("rel=\"next\"").then(|| at.join(target).ok())?
    })
}
