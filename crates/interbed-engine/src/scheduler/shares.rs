//! Divides blocks and seats into shares among the tenants that have any sequence. Others may use what a tenant leaves
//! of its share.

use std::collections::BTreeMap;

use crate::TenantId;

/// The blocks and seats that one tenant holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Holding {
    pub(super) blocks: usize,
    /// The number of sequences that run, or of beams that may run.
    pub(super) seats: usize,
}

impl Holding {
    /// Returns the sum of two holdings.
    pub(super) fn with(self, more: Self) -> Self {
        Self { blocks: self.blocks + more.blocks, seats: self.seats + more.seats }
    }
}

/// The holding of each tenant, and the fair share of a tenant.
#[derive(Debug)]
pub(super) struct Shares {
    holdings: BTreeMap<Option<TenantId>, Holding>,
    share: Holding,
}

impl Shares {
    /// Divides `all` evenly among `tenants`.
    pub(super) fn new(tenants: impl Iterator<Item = Option<TenantId>>, all: Holding) -> Self {
        let holdings: BTreeMap<_, _> = tenants.map(|tenant| (tenant, Holding::default())).collect();
        let count = holdings.len().max(1);
        Self { holdings, share: Holding { blocks: all.blocks / count, seats: all.seats / count } }
    }

    /// Adds `more` to the holding of `tenant`.
    pub(super) fn add(&mut self, tenant: Option<TenantId>, more: Holding) {
        let holding = self.holdings.entry(tenant).or_default();
        *holding = holding.with(more);
    }

    /// Returns whether `tenant` has more than its share of blocks or of seats.
    pub(super) fn is_above(&self, tenant: Option<TenantId>) -> bool {
        self.would_be_above(tenant, Holding::default())
    }

    /// Returns whether `tenant` would have more than its share of blocks or of seats if it had `more` in addition.
    pub(super) fn would_be_above(&self, tenant: Option<TenantId>, more: Holding) -> bool {
        let Holding { blocks, seats } = self.of(tenant).with(more);
        blocks > self.share.blocks || seats > self.share.seats.max(1)
    }

    /// Returns whether `tenant` holds nothing and may claim `blocks` and a seat from tenants above their share.
    pub(super) fn may_claim(&self, tenant: Option<TenantId>, blocks: usize) -> bool {
        self.of(tenant) == Holding::default() && blocks <= self.share.blocks
    }

    pub(super) fn of(&self, tenant: Option<TenantId>) -> Holding {
        self.holdings.get(&tenant).copied().unwrap_or_default()
    }
}

/// A summary of the sequences that so many others have passed that no other is admitted before them.
#[derive(Debug, Default)]
pub(super) struct Aged {
    /// The tenants above their share that have such sequences. An aged sequence of such a tenant keeps out only other
    /// sequences of its own tenant.
    tenants: Vec<Option<TenantId>>,
    any_other: bool,
}

impl Aged {
    /// Adds an aged sequence of `tenant`.
    pub(super) fn add(&mut self, tenant: Option<TenantId>, shares: &Shares) {
        if shares.is_above(tenant) {
            self.tenants.push(tenant);
        } else {
            self.any_other = true;
        }
    }

    /// Returns whether sequences of `tenant` wait for an aged sequence.
    pub(super) fn keep_out(&self, tenant: Option<TenantId>) -> bool {
        self.any_other || self.tenants.contains(&tenant)
    }

    /// Returns whether all other sequences wait for an aged sequence.
    pub(super) fn keep_all_out(&self) -> bool {
        self.any_other
    }
}
