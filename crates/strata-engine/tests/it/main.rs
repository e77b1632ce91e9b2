//! The engine over a simulated model, whose tokens show any wrong KV at once.

mod company;
mod endings;
mod pressure;
mod real;
mod sim;
mod streamed;
mod trade;
