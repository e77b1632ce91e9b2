//! The planners of the window over simulated hardware.

mod one_tier;
mod two_tiers;
