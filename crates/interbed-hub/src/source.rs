//! A file on the Hub of which any range can be requested.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use reqwest::header::{CONTENT_LENGTH, CONTENT_RANGE};
use reqwest::{Response, StatusCode, Url};

use crate::error::HubProblem;
use crate::ranges::content_range;
use crate::web::{Web, shown, unreachable};

/// The wait above which a message is logged, because the progress bar stands still meanwhile.
const TOLD_FROM: Duration = Duration::from_secs(2);

/// A file on the Hub.
pub(crate) struct FileSource {
    web: Arc<Web>,
    /// The address at the Hub that redirects to the file.
    resolve: Url,
    /// The address of the file itself, once it is known. Such addresses are signed and expire.
    direct: Mutex<Option<Url>>,
    /// Whether a server has sent the whole file in response to a request for a range.
    ignores_ranges: AtomicBool,
    /// Whether the log says that no bytes arrive.
    is_told: AtomicBool,
    /// Path of the file in the repository.
    pub(crate) path: String,
    /// Size in bytes.
    pub(crate) size: u64,
}

/// A server's response to a request for a range.
pub(crate) enum Answer {
    /// The requested range.
    Range(Response),
    /// The whole file from its beginning, because the server does not support ranges.
    Whole(Response),
}

impl FileSource {
    /// Creates a source for the file `path` of `size` bytes, whose address at the Hub is `resolve`.
    pub(crate) fn new(web: Arc<Web>, resolve: Url, path: String, size: u64) -> Self {
        let [ignores_ranges, is_told] = [false; 2].map(AtomicBool::new);
        Self { web, resolve, direct: Mutex::new(None), ignores_ranges, is_told, path, size }
    }

    /// Returns whether a server has sent the whole file in response to a request for a range.
    pub(crate) fn ignores_ranges(&self) -> bool {
        self.ignores_ranges.load(Ordering::Relaxed)
    }

    /// Returns the file's address at the Hub, for messages.
    pub(crate) fn address(&self) -> String {
        shown(&self.resolve)
    }

    /// Requests a range, which must not be empty.
    pub(crate) async fn open(&self, range: Range<u64>) -> Result<Answer, HubProblem> {
        let direct = self.direct.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (from, response) = match direct {
            None => self.web.get(self.resolve.clone(), Some(range.clone())).await?,
            Some(url) => match self.web.get(url, Some(range.clone())).await {
                Ok(found) => found,
                // The signature has expired, or the file has moved. The Hub gives the new address.
                Err(problem) if problem.may_have_moved() => {
                    *self.direct.lock().unwrap_or_else(PoisonError::into_inner) = None;
                    self.web.get(self.resolve.clone(), Some(range.clone())).await?
                }
                Err(problem) => return Err(problem),
            },
        };
        let answer = self.check(&from, &range, response)?;
        *self.direct.lock().unwrap_or_else(PoisonError::into_inner) = Some(from);
        Ok(answer)
    }

    /// Checks that the response's headers fit the request.
    fn check(&self, from: &Url, range: &Range<u64>, response: Response) -> Result<Answer, HubProblem> {
        let bad = |message: String| HubProblem::BadAnswer { address: shown(from), message };
        let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
        match response.status() {
            StatusCode::PARTIAL_CONTENT => {
                let text = header(CONTENT_RANGE).unwrap_or("none");
                let (found, total) =
                    content_range(text).ok_or_else(|| bad(format!("its Content-Range is {text:?}")))?;
                if let Some(total) = total.filter(|&total| total != self.size) {
                    return Err(bad(format!(
                        "{} has {total} bytes there, but {} in the listing",
                        self.path, self.size
                    )));
                }
                if found.start != range.start || found.end > range.end {
                    let Range { start, end } = range;
                    return Err(bad(format!(
                        "bytes {start} to {end} of {} were asked for, it sends {text}",
                        self.path
                    )));
                }
                Ok(Answer::Range(response))
            }
            StatusCode::OK => match header(CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok()) {
                Some(length) if length != self.size => {
                    Err(bad(format!("{} has {length} bytes there, but {} in the listing", self.path, self.size)))
                }
                _ => {
                    self.ignores_ranges.store(range.start > 0 || range.end < self.size, Ordering::Relaxed);
                    Ok(Answer::Whole(response))
                }
            },
            status => Err(bad(format!("{status} is no answer to a request for bytes"))),
        }
    }

    /// Passes the bytes of a range to `take` as they arrive, and requests the rest again if the connection breaks.
    pub(crate) async fn pour(
        &self,
        range: Range<u64>,
        mut take: impl FnMut(&[u8]) -> Result<(), HubProblem>,
    ) -> Result<(), HubProblem> {
        let patience = self.web.patience();
        let (mut at, mut wait, mut moved) = (range.start, patience.wait, Instant::now());
        while at < range.end {
            let begun = at;
            let outcome = self.pour_once(&mut at, range.end, &mut take).await;
            if at > begun {
                (wait, moved) = (patience.wait, Instant::now());
            }
            if let Err(problem) = outcome {
                if moved.elapsed() > patience.standstill || !problem.is_transient() {
                    return Err(problem);
                }
                tracing::debug!("{}: {problem}; going on at byte {at}", self.path);
                if wait > TOLD_FROM && !self.is_told.swap(true, Ordering::Relaxed) {
                    let most = patience.standstill.as_secs();
                    tracing::warn!("nothing comes of {}: {problem}; trying again, for {most} s at the most", self.path);
                }
                tokio::time::sleep(wait).await;
                wait = patience.next(wait);
            }
        }
        Ok(())
    }

    async fn pour_once(
        &self,
        at: &mut u64,
        end: u64,
        take: &mut impl FnMut(&[u8]) -> Result<(), HubProblem>,
    ) -> Result<(), HubProblem> {
        let (mut response, mut skip) = match self.open(*at..end).await? {
            Answer::Range(response) => (response, 0),
            Answer::Whole(response) => (response, *at),
        };
        let from = response.url().clone();
        while *at < end {
            let chunk = response.chunk().await.map_err(|error| unreachable(&from, &error))?;
            let Some(chunk) = chunk else {
                let message = format!("the connection ended {} bytes too early", end - *at);
                return Err(HubProblem::Unreachable { address: shown(&from), message });
            };
            let skipped = skip.min(chunk.len() as u64);
            skip -= skipped;
            let rest = &chunk[skipped as usize..];
            let rest = &rest[..rest.len().min(usize::try_from(end - *at).unwrap_or(usize::MAX))];
            take(rest)?;
            *at += rest.len() as u64;
        }
        Ok(())
    }

    /// Reads the bytes of a range, for headers.
    pub(crate) async fn read(&self, range: Range<u64>) -> Result<Vec<u8>, HubProblem> {
        let mut bytes = Vec::with_capacity(usize::try_from(range.end - range.start).unwrap_or(0));
        self.pour(range, |chunk| {
            bytes.extend_from_slice(chunk);
            Ok(())
        })
        .await?;
        Ok(bytes)
    }
}
