//! Serves connections over TLS, with a certificate that may be replaced while the server runs.

use std::io;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// The maximum number of bytes that a connection buffers for sending. These bytes count as memory of connections.
const SEND_BYTES_MAX: usize = 16 << 10;
/// The timeout for the handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// The protocol that is offered to clients (ALPN).
const PROTOCOL: &[u8] = b"http/1.1";

/// The reasons why a certificate or a key cannot be used.
#[derive(Debug, Error)]
pub enum BadTls {
    /// The certificate is not valid PEM.
    #[error("the certificate cannot be read: {0}")]
    Certificate(pem::Error),
    /// The list of certificates is empty.
    #[error("there is no certificate (BEGIN CERTIFICATE) in it")]
    NoCertificate,
    /// The private key is missing or not valid PEM.
    #[error("the private key cannot be read: {0}")]
    Key(pem::Error),
    /// The certificate and the key do not match, or are of an unknown type.
    #[error("certificate and private key cannot be used: {0}")]
    Pair(rustls::Error),
    /// The TLS library refuses its own default settings.
    #[error("TLS cannot be set up: {0}")]
    Setup(rustls::Error),
}

/// A certificate with its private key. Clones share the certificate, so [`Self::replace`] replaces it for all of them.
#[derive(Clone)]
pub struct Tls {
    acceptor: TlsAcceptor,
    current: Arc<Current>,
}

/// The certificate that the next handshake uses.
#[derive(Debug)]
struct Current(RwLock<Arc<CertifiedKey>>);

impl ResolvesServerCert for Current {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.read().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

impl Tls {
    /// Parses a certificate chain and the private key, both in PEM format. The server's own certificate must come
    /// first.
    ///
    /// # Errors
    /// Returns a [`BadTls`] if the certificates or the key are not valid, or do not match.
    pub fn from_pem(certificates: &[u8], key: &[u8]) -> Result<Self, BadTls> {
        let current = Arc::new(Current(RwLock::new(Arc::new(pair(certificates, key)?))));
        let builder = rustls::ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().map_err(BadTls::Setup)?;
        let mut config = builder.with_no_client_auth().with_cert_resolver(current.clone());
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        // Sessions are never resumed: every connection sees a new certificate, and no memory is used for former
        // clients.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)), current })
    }

    /// Replaces the certificate and its key for new handshakes. Open connections are not affected.
    ///
    /// # Errors
    /// Returns a [`BadTls`] if the certificates or the key are not valid, or do not match. The old certificate then
    /// stays in use.
    pub fn replace(&self, certificates: &[u8], key: &[u8]) -> Result<(), BadTls> {
        let new = Arc::new(pair(certificates, key)?);
        *self.current.0.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    /// Performs the handshake with a client, in at most `within`.
    pub(crate) async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        within: Duration,
    ) -> io::Result<TlsStream<S>> {
        let limit = |connection: &mut rustls::ServerConnection| connection.set_buffer_limit(Some(SEND_BYTES_MAX));
        let handshake = self.acceptor.accept_with(stream, limit);
        timeout(within.min(HANDSHAKE_MAX), handshake).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}

fn pair(certificates: &[u8], key: &[u8]) -> Result<CertifiedKey, BadTls> {
    let chain = CertificateDer::pem_slice_iter(certificates).collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(BadTls::Certificate)?;
    if chain.is_empty() {
        return Err(BadTls::NoCertificate);
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(BadTls::Key)?;
    CertifiedKey::from_der(chain, key, &ring::default_provider()).map_err(BadTls::Pair)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: (&str, &str) =
        (include_str!("../tests/fixtures/tls/one.cert.pem"), include_str!("../tests/fixtures/tls/one.key.pem"));
    const OTHER: (&str, &str) =
        (include_str!("../tests/fixtures/tls/other.cert.pem"), include_str!("../tests/fixtures/tls/other.key.pem"));

    #[test]
    fn what_cannot_be_used_is_told() {
        let tls = Tls::from_pem(ONE.0.as_bytes(), ONE.1.as_bytes()).unwrap();
        for (certificates, key, part) in [
            ("", ONE.1, "no certificate"),
            ("-----BEGIN CERTIFICATE-----\n!\n", ONE.1, "certificate cannot be read"),
            (ONE.0, "", "private key cannot be read"),
            (ONE.0, ONE.0, "private key cannot be read"),
            (ONE.0, OTHER.1, "cannot be used"),
            ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", ONE.1, "cannot be used"),
        ] {
            let told = tls.replace(certificates.as_bytes(), key.as_bytes()).expect_err(part).to_string();
            assert!(told.contains(part), "{told}");
            assert!(Tls::from_pem(certificates.as_bytes(), key.as_bytes()).is_err());
        }
        tls.replace(OTHER.0.as_bytes(), OTHER.1.as_bytes()).unwrap();
    }
}
