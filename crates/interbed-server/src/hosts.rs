//! Decides by which host names the server may be addressed.

use std::net::{Ipv4Addr, Ipv6Addr};

/// The names that no outsider can assign to a web page, because they always refer to this machine or its own network.
const LOCAL: [&str; 7] =
    ["localhost", "*.localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback", "*.local", "*.internal"];

/// The accepted host names. An entry is an exact name, or `*.` with a suffix for all names with that suffix, or `*` for
/// any name.
pub(crate) struct Hosts(Vec<String>);

impl Hosts {
    /// Accepts the local names and the `configured` ones.
    pub(crate) fn with(configured: &[String]) -> Self {
        let names = LOCAL.into_iter().chain(configured.iter().map(String::as_str));
        Self(names.map(|name| name.trim_end_matches('.').to_ascii_lowercase()).collect())
    }

    /// Returns whether `authority`, a host with an optional port, is an accepted name or an IP address.
    pub(crate) fn know(&self, authority: &str) -> bool {
        let Some(host) = Host::of(authority) else { return false };
        match host {
            // A page at an IP address cannot be redirected to another machine by DNS.
            Host::Address => true,
            Host::Name(name) => {
                let name = name.to_ascii_lowercase();
                self.0.iter().any(|known| match known.strip_prefix('*') {
                    Some(end) => name.len() > end.len() && name.ends_with(end),
                    None => name == *known,
                })
            }
        }
    }
}

/// The kind of host in an authority.
enum Host<'a> {
    Address,
    Name(&'a str),
}

impl<'a> Host<'a> {
    /// Parses an authority. Returns `None` if clients do not send such a text.
    fn of(authority: &'a str) -> Option<Self> {
        if is_ipv6(authority) {
            return Some(Self::Address);
        }
        let at = authority.find(']').map_or_else(|| authority.find(':'), |end| Some(end + 1));
        let (host, port) = authority.split_at(at.unwrap_or(authority.len()));
        let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
        if !port.is_empty() && !port.strip_prefix(':').is_some_and(is_port) {
            return None;
        }
        if let Some(address) = host.strip_prefix('[') {
            return is_ipv6(address.strip_suffix(']')?).then_some(Self::Address);
        }
        if host.parse::<Ipv4Addr>().is_ok() {
            return Some(Self::Address);
        }
        let name = host.strip_suffix('.').unwrap_or(host);
        is_name(name).then_some(Self::Name(name))
    }
}

/// Returns whether a text is an IPv6 address with an optional zone: `fe80::1%eth0`, or `%25eth0` as in a URL.
fn is_ipv6(text: &str) -> bool {
    let (address, zone) = text.split_once('%').map_or((text, None), |(address, zone)| (address, Some(zone)));
    let is_sign = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~' | b'%');
    address.parse::<Ipv6Addr>().is_ok() && zone.is_none_or(|zone| !zone.is_empty() && zone.bytes().all(is_sign))
}

fn is_name(text: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    text.split('.').all(is_label)
}

/// Checks that `host` can be a host name: `gpu.example.org`, `*.example.org` for all names with that suffix, or `*` for
/// any name.
///
/// # Errors
/// Returns a description of what is wrong with the name.
pub fn check_host(host: &str) -> Result<(), String> {
    if host == "*" || is_name(host.strip_prefix("*.").unwrap_or(host)) {
        return Ok(());
    }
    Err(format!(
        "{host:?} is no host name: give one such as gpu.example.org, without a scheme, port or path; *.example.org for \
         all names that end so; or * for any"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_stay_here_are_known_and_no_others() {
        let hosts = Hosts::with(&["gpu-1".into(), "*.Example.org".into()]);
        for known in [
            "localhost",
            "LocalHost:8000",
            "localhost.",
            "page.localhost:1",
            "127.0.0.1:8000",
            "192.168.1.7",
            "8.8.8.8:80",
            "[::1]:8000",
            "[fe80::1]",
            "[fe80::1%25eth0]:8000",
            "[fe80::1%eth0]",
            "fe80::1%eth0",
            "::1",
            "gpu-1:8000",
            "GPU-1",
            "nas.local",
            "a.b.local:9",
            "host.docker.internal:8000",
            "metadata.google.internal.",
            "ai.example.org",
        ] {
            assert!(hosts.know(known), "{known}");
        }
        for foreign in [
            "evil.example",
            "evil.example:8000",
            "gpu-1.evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "127.0.0.1.nip.io:8000",
            "evil-localhost",
            "notlocal",
            "local",
            ".local",
            "a..local",
            "example.org",
            "evilexample.org",
            "localhost@evil.example",
            "evil.example#.local",
            "evil.example/.local",
            "localhost:8000.evil.example",
            "localhost:80:80",
            "[::1].evil.example",
            "[localhost]",
            "[localhost%25eth0]",
            "[fe80::1%]",
            "[fe80::1%a/b]",
            "[fe80::1%eth0].evil.example",
            "[::1",
            "[::1]8000",
            "a]:80",
            "[]",
            "local host",
            "1.2.3",
            "xn--lcalhost-55b",
        ] {
            assert!(!hosts.know(foreign), "{foreign}");
        }
        assert!(Hosts::with(&["*".into()]).know("evil.example"));
    }

    #[test]
    fn what_is_configured_is_a_name() {
        for good in ["gpu", "gpu.example.org", "*.example.org", "*", "under_score.lan"] {
            check_host(good).expect(good);
        }
        for bad in ["", "http://gpu", "gpu:8000", "gpu/", "*gpu", "a.*.org", "gpu.", " gpu", "**", "*."] {
            check_host(bad).expect_err(bad);
        }
    }
}
