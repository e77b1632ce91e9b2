//! Parses the address at which a socket listens, as ZeroMQ writes it.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;

use thiserror::Error;

/// An address and a port, such as `tcp://127.0.0.1:5557`. The `tcp://` may be left out, and `*` stands for every
/// address of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    host: String,
    port: u16,
}

/// The error for a text that names no endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{text:?} is no address and port; give for instance 127.0.0.1:5557, or *:5557 for every address")]
pub struct EndpointError {
    text: String,
}

impl Endpoint {
    /// Returns the socket addresses of the name.
    ///
    /// # Errors
    /// Fails if the name is unknown.
    pub(crate) fn addresses(&self) -> std::io::Result<Vec<SocketAddr>> {
        let host = if self.host == "*" { "0.0.0.0" } else { &self.host };
        Ok((host, self.port).to_socket_addrs()?.collect())
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let wrong = || EndpointError { text: text.to_owned() };
        let (host, port) = text.strip_prefix("tcp://").unwrap_or(text).rsplit_once(':').ok_or_else(wrong)?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() || host.contains('/') {
            return Err(wrong());
        }
        Ok(Self { host: host.to_owned(), port: port.parse().map_err(|_| wrong())? })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "tcp://[{}]:{}", self.host, self.port),
            false => write!(f, "tcp://{}:{}", self.host, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_an_address_and_a_port() {
        for (text, shown) in [
            ("127.0.0.1:5557", "tcp://127.0.0.1:5557"),
            ("tcp://*:1", "tcp://*:1"),
            ("[::1]:80", "tcp://[::1]:80"),
            ("tcp://localhost:0", "tcp://localhost:0"),
        ] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), shown);
        }
        for wrong in ["", "5557", "host", ":5557", "host:", "host:65536", "host:-1", "ipc:///tmp/x:1", "http://a:1"] {
            let error = wrong.parse::<Endpoint>().unwrap_err();
            assert!(error.to_string().contains("127.0.0.1:5557"), "{error}");
        }
        assert_eq!("*:7".parse::<Endpoint>().unwrap().addresses().unwrap(), ["0.0.0.0:7".parse().unwrap()]);
    }
}
