//! Shares of blocks and places among the tenants that have any sequence. What a tenant leaves of its share is others'.

use std::collections::BTreeMap;

use crate::TenantId;

/// What one tenant holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Holding {
    pub(super) blocks: usize,
    /// Sequences that run, or beams that may.
    pub(super) seats: usize,
}

impl Holding {
    /// Both together.
    pub(super) fn with(self, more: Self) -> Self {
        Self { blocks: self.blocks + more.blocks, seats: self.seats + more.seats }
    }
}

/// What each tenant holds, and its fair share.
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

    /// Adds to what `tenant` has.
    pub(super) fn add(&mut self, tenant: Option<TenantId>, more: Holding) {
        let holding = self.holdings.entry(tenant).or_default();
        *holding = holding.with(more);
    }

    /// Whether `tenant` has more than its share of blocks, or of seats.
    pub(super) fn is_above(&self, tenant: Option<TenantId>) -> bool {
        self.would_be_above(tenant, Holding::default())
    }

    /// The same if it had so much more.
    pub(super) fn would_be_above(&self, tenant: Option<TenantId>, more: Holding) -> bool {
        let Holding { blocks, seats } = self.of(tenant).with(more);
        blocks > self.share.blocks || seats > self.share.seats.max(1)
    }

    /// Whether `tenant`, which holds nothing, may claim `blocks` and a seat from tenants above their share.
    pub(super) fn may_claim(&self, tenant: Option<TenantId>, blocks: usize) -> bool {
        self.of(tenant) == Holding::default() && blocks <= self.share.blocks
    }

    pub(super) fn of(&self, tenant: Option<TenantId>) -> Holding {
        self.holdings.get(&tenant).copied().unwrap_or_default()
    }
}

/// Sequences that so many others have passed that no other is admitted before them.
#[derive(Debug, Default)]
pub(super) struct Aged {
    /// Tenants above their share: their aged sequences keep only their own tenant's others out.
    tenants: Vec<Option<TenantId>>,
    any_other: bool,
}

impl Aged {
    /// One more, of `tenant`.
    pub(super) fn add(&mut self, tenant: Option<TenantId>, shares: &Shares) {
        if shares.is_above(tenant) {
            self.tenants.push(tenant);
        } else {
            self.any_other = true;
        }
    }

    /// Whether sequences of `tenant` wait for one of them.
    pub(super) fn keep_out(&self, tenant: Option<TenantId>) -> bool {
        self.any_other || self.tenants.contains(&tenant)
    }

    /// Whether all others wait for one of them.
    pub(super) fn keep_all_out(&self) -> bool {
        self.any_other
    }
}
