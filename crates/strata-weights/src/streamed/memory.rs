//! The memory that streamed weights take, and how they come to take more or less (M4).

use super::{StreamedWeights, lock};
use crate::error::WeightError;

/// What memory streamed weights take, in bytes, everything included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamMemory {
    /// What they may take.
    pub budget: u64,
    /// What they take now: more than a budget that was lowered while reads were under way, until those have ended.
    pub held: u64,
    /// Whether reads are under way.
    pub loading: bool,
}

impl StreamedWeights {
    /// Changes how many bytes of memory all of it may take, between passes or during one (M4). What is not in use is
    /// given back before this returns; see [`StreamMemory::held`] for the rest.
    ///
    /// # Errors
    /// Less than [`least_budget`](Self::least_budget); nothing has changed then.
    pub fn set_budget(&self, bytes: u64) -> Result<(), WeightError> {
        Ok(lock(&self.driver).set_budget(bytes.saturating_sub(self.layout.fixed_bytes()))?)
    }

    /// The memory that it takes, once the reads that have ended are taken note of. Waits for nobody but who computes.
    pub fn memory(&self) -> StreamMemory {
        let mut driver = lock(&self.driver);
        driver.poll();
        StreamMemory {
            budget: self.layout.fixed_bytes().saturating_add(driver.window().budget()),
            held: self.layout.fixed_bytes().saturating_add(driver.memory()),
            loading: driver.window().in_flight() > 0,
        }
    }

    /// The least budget with which it goes on, in bytes.
    pub fn least_budget(&self) -> u64 {
        self.layout.fixed_bytes().saturating_add(lock(&self.driver).window().least_budget())
    }

    /// The budget with which everything stays in memory, in bytes; more is of no use.
    pub fn full_budget(&self) -> u64 {
        self.layout.fixed_bytes().saturating_add(self.layout.band_memory())
    }
}
