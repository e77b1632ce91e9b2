//! One budget per tier: every reservation of memory is made here, under a name.

use thiserror::Error;

use crate::Bytes;

/// A reservation that does not fit.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{name} needs {wanted}, but {left} of the budget of {total} are left")]
pub struct OverBudget {
    /// The use for which the memory was asked.
    pub name: String,
    /// Bytes asked for.
    pub wanted: Bytes,
    /// Bytes that are not reserved.
    pub left: Bytes,
    /// The whole budget.
    pub total: Bytes,
}

/// The memory of one tier, divided by name. The order of reservations is kept for the report.
#[derive(Debug, Clone)]
pub struct Budget {
    total: Bytes,
    entries: Vec<(String, Bytes)>,
}

impl Budget {
    /// Creates a budget of `total`, with nothing reserved.
    pub fn new(total: Bytes) -> Self {
        Self { total, entries: Vec::new() }
    }

    /// Reserves `wanted` for `name`.
    ///
    /// # Errors
    /// Fails if less than `wanted` is left; nothing is reserved then.
    pub fn reserve(&mut self, name: &str, wanted: Bytes) -> Result<(), OverBudget> {
        if wanted > self.left() {
            return Err(OverBudget { name: name.to_owned(), wanted, left: self.left(), total: self.total });
        }
        self.entries.push((name.to_owned(), wanted));
        Ok(())
    }

    /// Returns the whole budget.
    pub fn total(&self) -> Bytes {
        self.total
    }

    /// Returns the number of bytes that are not reserved.
    pub fn left(&self) -> Bytes {
        Bytes(self.total.0 - self.entries.iter().map(|(_, bytes)| bytes.0).sum::<u64>())
    }

    /// Returns the reservations, by name, in order.
    pub fn entries(&self) -> &[(String, Bytes)] {
        &self.entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_takes_nothing() {
        let mut budget = Budget::new(Bytes(100));
        budget.reserve("weights", Bytes(60)).unwrap();
        let refused = budget.reserve("kv", Bytes(41)).unwrap_err();
        assert_eq!((refused.left, refused.wanted), (Bytes(40), Bytes(41)));
        budget.reserve("kv", Bytes(40)).unwrap();
        assert_eq!(budget.left(), Bytes(0));
        assert_eq!(budget.entries().len(), 2);
    }
}
