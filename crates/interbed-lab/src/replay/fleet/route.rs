//! The ways to choose a server, by name.

use std::fmt;

use thiserror::Error;

use super::least_loaded::LeastLoaded;
use super::prefix::PrefixRouter;
use super::random::RandomRouter;
use super::router::Router;

/// How a router chooses the server that gets a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Route {
    /// The router chooses a server at random.
    Random,
    /// The router chooses the server with the fewest requests in flight.
    Load,
    /// The router weighs what each server has cached against load.
    Prefix,
}

/// The error that no way to choose a server has the requested name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("there is no route {got:?}; choose one of {}", Route::ALL.map(Route::name).join(", "))]
pub struct UnknownRoute {
    /// The requested name.
    pub got: String,
}

impl Route {
    /// All ways to choose a server.
    pub const ALL: [Self; 3] = [Self::Random, Self::Load, Self::Prefix];

    /// Returns the name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Load => "load",
            Self::Prefix => "prefix",
        }
    }

    /// Returns the route of this name.
    ///
    /// # Errors
    /// Fails if no route has this name.
    pub fn of_name(name: &str) -> Result<Self, UnknownRoute> {
        Self::ALL.into_iter().find(|route| route.name() == name).ok_or_else(|| UnknownRoute { got: name.into() })
    }

    /// Creates a router for `num_servers` servers and prompts in blocks of `block_tokens` tokens; KV events come `lag`
    /// microseconds late.
    pub(super) fn router(self, num_servers: usize, block_tokens: usize, lag: u64) -> Box<dyn Router> {
        match self {
            Self::Random => Box::new(RandomRouter::new(num_servers)),
            Self::Load => Box::new(LeastLoaded::new(num_servers)),
            Self::Prefix => Box::new(PrefixRouter::new(num_servers, block_tokens, lag)),
        }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_as_they_are_written() {
        assert!(Route::ALL.into_iter().all(|route| Route::of_name(&route.to_string()) == Ok(route)));
        let error = Route::of_name("best").unwrap_err().to_string();
        assert!(error.contains("\"best\"") && error.contains("random, load, prefix"), "{error}");
    }
}
