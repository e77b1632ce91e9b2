//! Computes how much a token reads, for plans.

use interbed_weights::experts::ArenaError;

use super::bounds::lower_bound;
use super::player::Player;
use super::policy::{demand, read_bytes};
use super::trace::Routing;

/// Returns the bytes that a generated token reads on the mean, from token `from` on, with `budget` bytes for experts.
/// Returns 0 if the routing has no later token.
///
/// # Errors
/// Fails with [`ArenaError::TooSmall`] if `budget` is below the least.
pub fn read_bytes_per_token(routing: &Routing, budget: u64, from: u64) -> Result<f64, ArenaError> {
    let passes_before = routing.passes_before(from);
    let read = read_bytes(routing, passes_before, &mut Player::new(routing.shape(), budget)?);
    Ok(per_token(routing, passes_before, read))
}

/// Returns the bytes that a generated token reads at least, whatever policy decides what stays in memory (PFOO-L).
pub fn least_bytes_per_token(routing: &Routing, budget: u64, from: u64) -> f64 {
    let passes_before = routing.passes_before(from);
    per_token(routing, passes_before, lower_bound(routing, passes_before, budget))
}

fn per_token(routing: &Routing, passes_before: usize, bytes: u64) -> f64 {
    let (tokens, _) = demand(routing, passes_before);
    if tokens == 0 { 0.0 } else { bytes as f64 / tokens as f64 }
}
