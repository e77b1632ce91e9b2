//! Keeps track of which tenant each content in memory belongs to, and chooses whose content is evicted when a trunk
//! block is needed.
//!
//! A block with content belongs to the tenant whose chain it was taken for, whether it is in use or cached. A tenant
//! that has such blocks is an *owner*. Blocks that one tenant leaves free may go to other tenants. Once all blocks are
//! taken, each owner has an equal share of them. Of the owners that have cached blocks, the one with the most blocks
//! loses, if it has more than its share, or if the tenant that takes a block has no cached one; otherwise that tenant
//! makes room for itself. Owners that have taken no block for long have no share any more, and lose first.
//!
//! Nothing is kept in order here as long as all blocks belong to one owner.

use std::collections::{BTreeSet, HashMap};

use crate::ids::BlockId;

/// Number of times that all tenants together take the blocks of the whole pool before a tenant that takes none loses
/// its share. At the rates at which prompts are computed, this takes hours.
const POOLS_IDLE: u64 = 256;
/// Minimum number of blocks that are taken before an idle tenant loses its share, which holds for small pools.
const BLOCKS_IDLE: u64 = 1 << 16;
/// Number of blocks taken by all tenants within which an owner that takes blocks again is not moved in the order of
/// use. The order is then wrong by no more than this number.
const SOON: u64 = 256;

/// The tenant of a chain, given by [`ChainRoot::of_tenant`](crate::ChainRoot::of_tenant); `None` for chains without
/// one, which count as those of one tenant.
pub(crate) type Tenant = Option<u128>;

/// The number of a tenant for as long as the tenant has contents in memory. Another tenant may get the number
/// afterwards. The number is 0 as long as no two tenants have ever had contents in memory at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct OwnerId(pub u32);

/// Counts the blocks of each owner, and chooses the owner whose content is evicted when a block is needed.
#[derive(Debug)]
pub(crate) struct Owners {
    num_blocks: usize,
    owners: Vec<Owner>, // [owner]
    ids: HashMap<Tenant, OwnerId>,
    vacant: Vec<OwnerId>,
    of_block: Vec<OwnerId>, // [block], valid while it has content; empty before there was a second owner
    /// The owners that have cached blocks, in the order of how many blocks with content they have.
    by_blocks: BTreeSet<(usize, OwnerId)>,
    /// The owners that have a share, in the order of when they last took a block.
    by_use: BTreeSet<(u64, OwnerId)>,
    /// The owners that have lost their share.
    idle: BTreeSet<OwnerId>,
    /// The number of blocks taken so far, which serves as the clock.
    clock: u64,
}

#[derive(Debug, Clone, Copy)]
struct Owner {
    tenant: Tenant,
    /// The number of the owner's blocks with content, in use or cached.
    blocks: usize,
    cached: usize,
    /// The time at which the owner last took a block, by which the owner is placed in `by_use`.
    used: u64,
}

impl Owners {
    pub(crate) fn new(num_blocks: usize) -> Self {
        Self {
            num_blocks,
            owners: Vec::new(),
            ids: HashMap::new(),
            vacant: Vec::new(),
            of_block: Vec::new(),
            by_blocks: BTreeSet::new(),
            by_use: BTreeSet::new(),
            idle: BTreeSet::new(),
            clock: 0,
        }
    }

    /// Returns the owner of the content of `block`.
    pub(crate) fn of(&self, block: BlockId) -> OwnerId {
        self.of_block.get(block.index()).copied().unwrap_or_default()
    }

    /// Notes that `block`, which has no content, is taken for a chain of `tenant`.
    pub(crate) fn take(&mut self, block: BlockId, tenant: Tenant) {
        self.clock += 1;
        let id = self.id(tenant);
        if let Some(of) = self.of_block.get_mut(block.index()) {
            *of = id;
        }
        self.change(id, |owner| owner.blocks += 1);
        self.touch(id);
    }

    /// Notes that `block`, which was in use, has no content any more. An owner without blocks is forgotten.
    pub(crate) fn give_back(&mut self, block: BlockId) {
        let id = self.of(block);
        self.change(id, |owner| owner.blocks -= 1);
        if self.is_shared() && self.owner(id).blocks == 0 {
            let Owner { tenant, used, .. } = *self.owner(id);
            self.ids.remove(&tenant);
            self.by_use.remove(&(used, id));
            self.idle.remove(&id);
            self.vacant.push(id);
        }
    }

    /// Notes that the content of `block` is no longer in use, and is now cached.
    pub(crate) fn cache(&mut self, block: BlockId) {
        self.change(self.of(block), |owner| owner.cached += 1);
    }

    /// Notes that the content of `block` was cached, and is in use again or about to be evicted.
    pub(crate) fn revive(&mut self, block: BlockId) {
        self.change(self.of(block), |owner| owner.cached -= 1);
    }

    /// Notes that the content of `from` is now in `to`, which had none.
    pub(crate) fn moved(&mut self, from: BlockId, to: BlockId) {
        if self.is_shared() {
            self.of_block[to.index()] = self.of_block[from.index()];
        }
    }

    /// Returns the owner whose cached content is evicted for a chain of the tenant `taker`, or for no chain if `None`.
    /// `usable` blocks may be used. Some content must be cached.
    pub(crate) fn loser(&mut self, taker: Option<Tenant>, usable: usize) -> OwnerId {
        if !self.is_shared() {
            return OwnerId(0);
        }
        self.retire(usable);
        if let Some(&idle) = self.idle.iter().find(|&&id| self.owner(id).cached > 0) {
            return idle;
        }
        let &(most, loser) = self.by_blocks.last().expect("some content is cached");
        let taker = taker.and_then(|tenant| self.ids.get(&tenant).copied());
        match taker.filter(|&id| self.owner(id).cached > 0) {
            Some(own) if self.owner(own).blocks == most || most <= self.share(taker, usable) => own,
            _ => loser,
        }
    }

    /// Returns how many cached blocks of other owners lie within their shares of `usable` blocks, so that `tenant`
    /// should not take these blocks while it can do without. Takes time in proportion to the number of owners.
    pub(crate) fn kept_from(&self, tenant: Tenant, usable: usize) -> usize {
        if !self.is_shared() {
            return 0;
        }
        let own = self.ids.get(&tenant).copied();
        let share = self.share(own, usable);
        let others = self.by_use.iter().map(|&(_, id)| id).filter(|&id| Some(id) != own);
        others.map(|id| self.owner(id)).map(|one| one.cached.min(share.saturating_sub(one.blocks - one.cached))).sum()
    }

    /// Returns the equal share of `usable` blocks that each owner with a share has. `one` counts as an owner with a
    /// share, even if it has none yet.
    fn share(&self, one: Option<OwnerId>, usable: usize) -> usize {
        let is_counted = one.is_some_and(|id| self.by_use.contains(&(self.owner(id).used, id)));
        usable / (self.by_use.len() + usize::from(!is_counted)).max(1)
    }

    /// Takes the share from each owner that has taken no block for long.
    fn retire(&mut self, usable: usize) {
        let patience = (POOLS_IDLE * usable as u64).max(BLOCKS_IDLE);
        while let Some(&(used, id)) = self.by_use.first()
            && self.clock - used > patience
        {
            self.by_use.pop_first();
            self.idle.insert(id);
        }
    }

    /// Returns whether blocks of two owners were ever in memory at a time.
    fn is_shared(&self) -> bool {
        !self.of_block.is_empty()
    }

    fn owner(&self, id: OwnerId) -> &Owner {
        &self.owners[id.0 as usize]
    }

    /// Returns the number of `tenant`, which has or is about to have blocks; the call gives it one if it has none.
    fn id(&mut self, tenant: Tenant) -> OwnerId {
        if !self.is_shared() {
            match self.owners.first_mut() {
                Some(sole) if sole.tenant == tenant => return OwnerId(0),
                Some(sole) if sole.blocks == 0 => {
                    sole.tenant = tenant;
                    self.ids = HashMap::from([(tenant, OwnerId(0))]);
                    return OwnerId(0);
                }
                Some(_) => self.begin_to_share(),
                None => {}
            }
        }
        if let Some(&id) = self.ids.get(&tenant) {
            return id;
        }
        let owner = Owner { tenant, blocks: 0, cached: 0, used: self.clock };
        let id = self.vacant.pop().unwrap_or(OwnerId(self.owners.len() as u32));
        match self.owners.get_mut(id.0 as usize) {
            Some(vacant) => *vacant = owner,
            None => self.owners.push(owner),
        }
        self.ids.insert(tenant, id);
        if self.is_shared() {
            self.by_use.insert((owner.used, id));
        }
        id
    }

    /// Begins to keep an owner for each block, since a second owner comes. All blocks belonged to the first owner until
    /// now.
    fn begin_to_share(&mut self) {
        self.of_block = vec![OwnerId(0); self.num_blocks];
        self.owners[0].used = self.clock;
        let Owner { blocks, cached, used, .. } = self.owners[0];
        self.by_use.insert((used, OwnerId(0)));
        if cached > 0 {
            self.by_blocks.insert((blocks, OwnerId(0)));
        }
    }

    /// Notes that `id` takes blocks now.
    fn touch(&mut self, id: OwnerId) {
        let (used, now) = (self.owner(id).used, self.clock);
        if !self.is_shared() || (now - used < SOON && !self.idle.contains(&id)) {
            return;
        }
        if !self.idle.remove(&id) {
            self.by_use.remove(&(used, id));
        }
        self.owners[id.0 as usize].used = now;
        self.by_use.insert((now, id));
    }

    fn change(&mut self, id: OwnerId, change: impl FnOnce(&mut Owner)) {
        let owner = &mut self.owners[id.0 as usize];
        let before = *owner;
        change(owner);
        let after = *owner;
        if !self.is_shared() || (before.cached == 0 && after.cached == 0) {
            return;
        }
        if before.cached > 0 {
            self.by_blocks.remove(&(before.blocks, id));
        }
        if after.cached > 0 {
            self.by_blocks.insert((after.blocks, id));
        }
    }

    /// Lists each tenant that has blocks, with its number of blocks and its number of cached blocks.
    pub(crate) fn counted(&self) -> impl Iterator<Item = (OwnerId, usize, usize)> {
        let known = self.ids.values().map(|&id| (id, self.owner(id)));
        known.filter(|(_, owner)| owner.blocks > 0).map(|(id, owner)| (id, owner.blocks, owner.cached))
    }

    /// Returns whether the sorted sets agree with the counts of each owner.
    pub(crate) fn is_consistent(&self) -> bool {
        if !self.is_shared() {
            return self.owners.len() <= 1 && self.by_blocks.is_empty() && self.by_use.is_empty();
        }
        let known = || self.ids.iter().map(|(tenant, &id)| (*tenant, id, self.owner(id)));
        let by_blocks: BTreeSet<_> =
            known().filter(|(.., owner)| owner.cached > 0).map(|(_, id, owner)| (owner.blocks, id)).collect();
        let is_placed = |id, owner: &Owner| self.by_use.contains(&(owner.used, id)) != self.idle.contains(&id);
        by_blocks == self.by_blocks
            && self.by_use.len() + self.idle.len() == self.ids.len()
            && self.ids.len() + self.vacant.len() == self.owners.len()
            && known().all(|(tenant, id, owner)| {
                owner.tenant == tenant && owner.cached <= owner.blocks && owner.blocks > 0 && is_placed(id, owner)
            })
    }
}

#[cfg(test)]
mod tests;
