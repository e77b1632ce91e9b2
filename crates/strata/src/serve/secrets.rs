//! Files that a server reads at its start, and again at SIGHUP.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use strata_server::{ApiKey, ApiKeys};
use tokio::signal::unix::{SignalKind, signal};

use crate::failure::Advised;

/// Largest file of keys, in bytes.
const KEYS_BYTES_MAX: u64 = 1 << 20;

/// The API keys that clients may send, and where they come from.
pub struct Secrets {
    pub keys: ApiKeys,
    given: Vec<ApiKey>,
    key_file: Option<PathBuf>,
}

impl Secrets {
    /// The keys that were given, and those of a file.
    ///
    /// # Errors
    /// A file that cannot be used.
    pub fn open(given: &[String], key_file: Option<&Path>) -> Result<Self> {
        let given: Vec<_> = given.iter().map(ApiKey::new).collect();
        let secrets = Self { keys: ApiKeys::default(), given, key_file: key_file.map(Path::to_owned) };
        secrets.keys.replace(&secrets.read_keys()?);
        Ok(secrets)
    }

    fn read_keys(&self) -> Result<Vec<ApiKey>> {
        let Some(path) = &self.key_file else { return Ok(self.given.clone()) };
        let text = read("--api-key-file", path, KEYS_BYTES_MAX)?;
        let text = String::from_utf8(text).map_err(|_| {
            Advised::input(
                format!("--api-key-file {}: it is no text (UTF-8)", path.display()),
                "give a file with one key a line, which a name may follow; # begins a comment",
            )
        })?;
        let read = ApiKey::from_file(&text, &self.given).map_err(|bad| {
            Advised::input(
                format!("--api-key-file {}: {bad}", path.display()),
                "write one key a line, which a name may follow; # begins a comment",
            )
        })?;
        Ok([self.given.clone(), read].concat())
    }

    /// Reads the files again. What cannot be used leaves what was there, and is logged.
    fn reload(&self) {
        match self.read_keys() {
            Ok(keys) => {
                self.keys.replace(&keys);
                tracing::info!("SIGHUP: {} API keys are known now", keys.len());
            }
            Err(error) => tracing::error!("SIGHUP: the API keys stay as they were: {error:#}"),
        }
    }

    /// Reads the files again at every SIGHUP, if there are any; without, it ends the process as usual. To be called
    /// within a runtime.
    ///
    /// # Errors
    /// The system takes no handler.
    pub fn reload_at_hangup(self) -> Result<()> {
        if self.key_file.is_none() {
            return Ok(());
        }
        let mut hangups = signal(SignalKind::hangup()).context("cannot listen for signals")?;
        tokio::spawn(async move {
            while hangups.recv().await.is_some() {
                // Small files, at somebody's word: no other request waits long.
                tokio::task::block_in_place(|| self.reload());
            }
        });
        Ok(())
    }
}

/// The bytes of a file of secrets.
fn read(option: &str, path: &Path, bytes_max: u64) -> Result<Vec<u8>> {
    let failed = |error: io::Error| {
        let hint = match error.kind() {
            io::ErrorKind::NotFound => "give the path of a file that is there",
            io::ErrorKind::PermissionDenied => "make the file readable for the user that the server runs as",
            _ => "give the path of a file",
        };
        Advised::system(format!("cannot read {option} {}", path.display()), hint, error)
    };
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if metadata.is_file() && metadata.mode() & 0o004 != 0 {
        tracing::warn!("{option} {} is readable by every user of this machine; chmod 600 keeps it secret", path.display());
    }
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > bytes_max {
        return Err(Advised::input(
            format!("{option} {} is larger than {bytes_max} bytes, which is the limit", path.display()),
            "give the right file, or one with less in it",
        ));
    }
    Ok(bytes)
}
