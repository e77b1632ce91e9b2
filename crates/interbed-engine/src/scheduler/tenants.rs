//! The tenants, which are the users that share the engine, and whose turn it is.

use std::collections::BTreeMap;

use crate::TenantId;

/// A tenant that has sequences.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tenant {
    /// The number of the tenant's sequences; at least 1.
    pub(super) sequences: usize,
    /// The tenant's turn. A lower turn comes first. It is twice the number of the tenant's last admission. Before the
    /// tenant's first admission, it is one less than twice the number of the last admission of any tenant when the
    /// tenant arrived, so that the tenant comes before the one that was admitted then.
    pub(super) turn: u64,
}

/// All tenants that have at least one sequence.
#[derive(Debug, Default)]
pub(super) struct Tenants {
    pub(super) of: BTreeMap<Option<TenantId>, Tenant>,
    /// The number of admissions since the start.
    admissions: u64,
}

impl Tenants {
    /// Counts one more sequence of `tenant`.
    pub(super) fn join(&mut self, tenant: Option<TenantId>) {
        let new = Tenant { sequences: 0, turn: (2 * self.admissions).saturating_sub(1) };
        self.of.entry(tenant).or_insert(new).sequences += 1;
    }

    /// Counts one sequence of `tenant` less, and forgets the tenant if that was its last.
    pub(super) fn leave(&mut self, tenant: Option<TenantId>) {
        if let Some(one) = self.of.get_mut(&tenant) {
            one.sequences -= 1;
            if one.sequences == 0 {
                self.of.remove(&tenant);
            }
        }
    }

    /// Notes that a sequence of `tenant` is admitted. Returns the number of the admission, counted from 1.
    pub(super) fn admit(&mut self, tenant: Option<TenantId>) -> u64 {
        self.admissions += 1;
        self.of.get_mut(&tenant).expect("it has a sequence").turn = 2 * self.admissions;
        self.admissions
    }
}
