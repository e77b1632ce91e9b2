//! Reads API keys and certificates from files, at a server's start and again at SIGHUP.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use interbed_server::{ApiKey, ApiKeys, BadTls, Tls};
use tokio::signal::unix::{SignalKind, signal};

use crate::failure::Advised;
use crate::secret_files::{read, warn_if_open};

/// The maximum size of a file of keys, in bytes.
const KEYS_BYTES_MAX: u64 = 1 << 20;
/// The maximum size of a certificate with its chain, and of a private key, in bytes.
const TLS_BYTES_MAX: u64 = 256 << 10;

/// The API keys that clients may send, the server's certificate, and the files that they come from.
pub struct Secrets {
    pub keys: ApiKeys,
    pub tls: Option<Tls>,
    given: Vec<ApiKey>,
    key_file: Option<PathBuf>,
    tls_files: Option<TlsFiles>,
}

/// The files of a certificate with its chain, and of its private key.
struct TlsFiles {
    certificate: PathBuf,
    key: PathBuf,
}

impl TlsFiles {
    /// Reads the certificate and the key, and passes their bytes to `take`.
    fn read<T>(&self, take: impl FnOnce(&[u8], &[u8]) -> Result<T, BadTls>) -> Result<T> {
        let certificate = read("--tls-cert", &self.certificate, TLS_BYTES_MAX)?;
        let key = read("--tls-key", &self.key, TLS_BYTES_MAX)?;
        warn_if_open("--tls-key", &self.key);
        take(&certificate, &key).map_err(|bad| {
            Advised::input(
                format!("--tls-cert {} with --tls-key {}: {bad}", self.certificate.display(), self.key.display()),
                "give the certificate with its chain, the server's own first, and its private key, both as PEM",
            )
        })
    }
}

impl Secrets {
    /// Reads the API keys and the TLS certificate with its private key. The API keys are those in `given` and those in
    /// the file `key_file`. `tls` has the paths of the certificate and of the private key.
    ///
    /// # Errors
    /// Fails if a file cannot be read or has invalid content.
    pub fn open(given: &[String], key_file: Option<&Path>, tls: Option<(&Path, &Path)>) -> Result<Self> {
        let given: Vec<_> = given.iter().map(ApiKey::new).collect();
        let tls_files = tls.map(|(certificate, key)| TlsFiles { certificate: certificate.into(), key: key.into() });
        let tls = tls_files.as_ref().map(|files| files.read(Tls::from_pem)).transpose()?;
        let key_file = key_file.map(Path::to_owned);
        let secrets = Self { keys: ApiKeys::default(), tls, given, key_file, tls_files };
        secrets.keys.replace(&secrets.read_keys()?);
        Ok(secrets)
    }

    fn read_keys(&self) -> Result<Vec<ApiKey>> {
        let Some(path) = &self.key_file else { return Ok(self.given.clone()) };
        let text = read("--api-key-file", path, KEYS_BYTES_MAX)?;
        warn_if_open("--api-key-file", path);
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

    /// Reads the files again. If a file cannot be used, the old keys or certificate stay in use, and an error is
    /// logged.
    fn reload(&self) {
        if self.key_file.is_none() && self.tls_files.is_none() {
            tracing::info!("SIGHUP: there is no --api-key-file and no --tls-cert to read again");
        }
        if self.key_file.is_some() {
            match self.read_keys() {
                Ok(keys) => {
                    self.keys.replace(&keys);
                    tracing::info!("SIGHUP: {} API keys are known now", keys.len());
                }
                Err(error) => tracing::error!("SIGHUP: the API keys stay as they were: {error:#}"),
            }
        }
        if let (Some(files), Some(tls)) = (&self.tls_files, &self.tls) {
            match files.read(|certificate, key| tls.replace(certificate, key)) {
                Ok(()) => tracing::info!("SIGHUP: new connections get the certificate as it is now"),
                Err(error) => tracing::error!("SIGHUP: the certificate stays as it was: {error:#}"),
            }
        }
    }

    /// Reads the files again whenever the process receives SIGHUP. This function must be called within a Tokio runtime.
    ///
    /// # Errors
    /// Fails if the signal handler cannot be installed.
    pub fn reload_at_hangup(self: Arc<Self>) -> Result<()> {
        let mut hangups = signal(SignalKind::hangup()).context("cannot listen for signals")?;
        tokio::spawn(async move {
            while hangups.recv().await.is_some() {
                // The files are small and rarely read, so other requests do not wait long.
                tokio::task::block_in_place(|| self.reload());
            }
        });
        Ok(())
    }
}
