//! Uses a bucket of S3 as a store.

use std::env;
use std::time::Duration;

use reqwest::header::RANGE;
use reqwest::{Client, Response, StatusCode, Url};
use rusty_s3::{Bucket, Credentials, S3Action, UrlStyle};

use crate::blob_store::{ANSWER, BlobStore, CONNECT, StoreFuture, reason};

/// The time for which a signature is valid. It is long because clocks may differ by minutes.
const VALID: Duration = Duration::from_secs(15 * 60);

/// The most bytes of a refusal that are read.
const REFUSAL_MAX: usize = 4096;

/// A bucket, with the credentials from the environment.
pub(crate) struct S3Store {
    client: Client,
    bucket: Bucket,
    credentials: Credentials,
    root: String,
}

impl S3Store {
    /// Creates the store. Nothing is sent yet. The names of objects begin with `root`.
    pub(crate) fn open(bucket: &str, root: &str) -> Result<Self, String> {
        let region = variable(&["AWS_REGION", "AWS_DEFAULT_REGION"]);
        let region = region.ok_or("set AWS_REGION")?;
        let credentials = Credentials::from_env()
            .ok_or("set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and AWS_SESSION_TOKEN if there is one")?;
        let endpoint = variable(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]);
        let endpoint = endpoint.unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
        let wrong = |reason: String| format!("AWS_ENDPOINT_URL is no address of a server: {reason}");
        let endpoint = Url::parse(&endpoint).map_err(|error| wrong(error.to_string()))?;
        let bucket = Bucket::new(endpoint, UrlStyle::Path, bucket.to_owned(), region);
        let bucket = bucket.map_err(|error| wrong(error.to_string()))?;
        let client = Client::builder().connect_timeout(CONNECT).timeout(ANSWER).build();
        let client = client.map_err(|error| reason(&error))?;
        Ok(Self { client, bucket, credentials, root: root.to_owned() })
    }

    fn name(&self, name: &str) -> String {
        format!("{}{name}", self.root)
    }
}

/// Returns the first of these variables that is set and not empty.
fn variable(names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| env::var(name).ok().filter(|value| !value.trim().is_empty()))
}

impl BlobStore for S3Store {
    fn get<'a>(&'a self, name: &'a str, most: usize) -> StoreFuture<'a, Option<Vec<u8>>> {
        Box::pin(async move {
            let url = self.bucket.get_object(Some(&self.credentials), &self.name(name)).sign(VALID);
            // A range that begins at the front would have to be exactly as long as the object.
            let asked = self.client.get(url).header(RANGE, format!("bytes=-{most}"));
            let response = asked.send().await.map_err(unsigned)?;
            match response.status() {
                StatusCode::NOT_FOUND => Ok(None),
                status if status.is_success() => body(response, most).await.map(Some),
                _ => Err(refusal(response).await),
            }
        })
    }

    fn put<'a>(&'a self, name: &'a str, object: Vec<u8>) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let url = self.bucket.put_object(Some(&self.credentials), &self.name(name)).sign(VALID);
            let response = self.client.put(url).body(object).send().await.map_err(unsigned)?;
            match response.status().is_success() {
                true => Ok(()),
                false => Err(refusal(response).await),
            }
        })
    }
}

/// Returns a body of at most `most` bytes. Fails if the server sends more than was asked for.
async fn body(mut response: Response, most: usize) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(unsigned)? {
        if bytes.len() + piece.len() > most {
            return Err(format!("the server sends more than the {most} bytes that it was asked for"));
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

/// Returns the status and the code in the XML of a refusal, such as `AccessDenied`.
async fn refusal(mut response: Response) -> String {
    let status = response.status();
    let mut text = Vec::new();
    while let Ok(Some(piece)) = response.chunk().await {
        text.extend_from_slice(&piece[..piece.len().min(REFUSAL_MAX - text.len())]);
        if text.len() == REFUSAL_MAX {
            break;
        }
    }
    let text = String::from_utf8_lossy(&text);
    let code = text.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>")).map(|(code, _)| code);
    let is_plain = |code: &&str| code.len() <= 64 && code.bytes().all(|byte| byte.is_ascii_alphanumeric());
    code.filter(is_plain).map_or_else(|| status.to_string(), |code| format!("{status}: {code}"))
}

/// Describes an error without its address, because the address is signed.
fn unsigned(error: reqwest::Error) -> String {
    reason(&error.without_url())
}
