//! One budget per tier: whoever holds memory took it here, under a name.

use thiserror::Error;

use crate::Bytes;

/// A reservation that does not fit.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{name} needs {wanted}, but {left} of the budget of {total} are left")]
pub struct OverBudget {
    /// What the memory was for.
    pub name: String,
    /// Asked for.
    pub wanted: Bytes,
    /// Not yet taken.
    pub left: Bytes,
    /// The whole budget.
    pub total: Bytes,
}

/// Memory of one tier, divided by name. The order of reservations is kept for the report.
#[derive(Debug, Clone)]
pub struct Budget {
    total: Bytes,
    entries: Vec<(String, Bytes)>,
}

impl Budget {
    /// A budget of `total`, none of it taken.
    pub fn new(total: Bytes) -> Self {
        Self { total, entries: Vec::new() }
    }

    /// Takes `wanted` for `name`.
    ///
    /// # Errors
    /// Less than that is left; nothing is taken then.
    pub fn reserve(&mut self, name: &str, wanted: Bytes) -> Result<(), OverBudget> {
        if wanted > self.left() {
            return Err(OverBudget { name: name.to_owned(), wanted, left: self.left(), total: self.total });
        }
        self.entries.push((name.to_owned(), wanted));
        Ok(())
    }

    /// The whole budget.
    pub fn total(&self) -> Bytes {
        self.total
    }

    /// What nobody has taken.
    pub fn left(&self) -> Bytes {
        Bytes(self.total.0 - self.entries.iter().map(|(_, bytes)| bytes.0).sum::<u64>())
    }

    /// Who took how much, in order.
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
