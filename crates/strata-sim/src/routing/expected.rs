//! What a plan asks: how much a token reads.

use strata_weights::experts::ArenaError;

use super::player::Player;
use super::policy::{demand, read_bytes};
use super::trace::Routing;

/// Bytes that a generated token reads on the mean, from token `from` on, with `budget` bytes for experts. If the
/// routing has no later token, 0.
///
/// # Errors
/// [`ArenaError::TooSmall`].
pub fn read_bytes_per_token(routing: &Routing, budget: u64, from: u64) -> Result<f64, ArenaError> {
    let passes_before = routing.passes_before(from);
    let read = read_bytes(routing, passes_before, &mut Player::new(routing.shape(), budget)?);
    let (tokens, _) = demand(routing, passes_before);
    Ok(if tokens == 0 { 0.0 } else { read as f64 / tokens as f64 })
}
