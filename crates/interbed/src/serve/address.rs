//! The address on which a server listens.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

use anyhow::Result;
use tokio::net::TcpSocket;

use crate::failure::Advised;

/// Binds a socket to the address without listening on it yet.
pub fn bind(host: &str, port: u16) -> Result<TcpSocket> {
    let addresses = (host, port).to_socket_addrs().map_err(|error| {
        Advised::input(
            format!("--host {host} is no address of this machine: {error}"),
            "give for instance 127.0.0.1 for this machine only, or 0.0.0.0 for everybody",
        )
    })?;
    let mut refused = std::io::Error::from(std::io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        match bind_address(address) {
            Ok(socket) => return Ok(socket),
            Err(error) => refused = error,
        }
    }
    Err(cannot_listen(host, port, refused))
}

fn bind_address(address: SocketAddr) -> std::io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Connections of a server that was just stopped would otherwise block the port for a minute.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

pub fn cannot_listen(host: &str, port: u16, error: std::io::Error) -> anyhow::Error {
    let hint = match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            format!("another program listens there: stop it, or choose another --port (0 takes a free one) than {port}")
        }
        std::io::ErrorKind::PermissionDenied => "choose a --port of 1024 or more".into(),
        _ => "choose a --host that is an address of this machine, such as 127.0.0.1".into(),
    };
    Advised::system(format!("cannot listen on {host}:{port}"), hint, error)
}

/// Returns the host names by which clients may address the server: the machine's host name, and `host` if it is a name.
pub fn own_names(host: &str) -> impl Iterator<Item = String> {
    let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let names = [machine.trim().to_owned(), host.to_owned()];
    names.into_iter().filter(|name| name != "*" && interbed_server::check_host(name).is_ok())
}

/// Returns `address`, with a loopback address in place of an unspecified one, so that a browser on this machine can
/// open it.
pub fn browsable(address: SocketAddr) -> SocketAddr {
    let here: IpAddr = if address.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
    if address.ip().is_unspecified() { SocketAddr::new(here, address.port()) } else { address }
}
