//! Who gets memory while weights are streamed: KV or weights. A planner: no I/O, no clock.
//!
//! Blocks that sequences hold, or would hold if there were more, come first: without them nothing is computed. Weights
//! have the rest, since with less memory passes wait longer for them. In between are cached blocks without holders: if
//! they are evicted, a later prompt with the same prefix computes them again. When one will come is not known, so this
//! is the ski-rental problem. Keeping the blocks costs rent, the time that passes wait for weights which could lie
//! there; computing them again is the price. A step of blocks is evicted once its rent has reached its price, which
//! costs about twice what the best choice in hindsight would. (Karlin, Manasse, Rudolph and Sleator, Competitive Snoopy
//! Caching, 1988.)
//!
//! Memory changes hands between passes in two steps, so that both together never exceed the budget: weights give up
//! bands, and KV grows once they have; or KV withdraws blocks, and weights grow once their pages have been given back.

/// What KV has and could use, between two passes.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct KvDemand {
    /// Blocks that have memory, or may take it: used, cached and free ones.
    pub present: usize,
    /// Those of them that sequences hold.
    pub used: usize,
    /// Those that nobody holds and that can be found.
    pub cached: usize,
    /// Blocks that the next passes would use besides: for the next tokens of who runs, and for those who wait.
    pub wanted: usize,
    /// Seconds in which a block would be computed again, or read if it lies on disk too; `None` while that is not
    /// known.
    pub recompute: Option<f64>,
}

/// What KV gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvGrant {
    /// Blocks that may be used. Used blocks beyond that stay, and go when they are let go of.
    pub blocks: usize,
    /// Whether nothing would change if it were asked again under the same demand.
    pub settled: bool,
}

/// What there is to divide.
#[derive(Debug, Clone, Copy)]
pub struct TradeLimits {
    /// Bytes that weights and the memory of KV blocks may take together.
    pub total: u64,
    /// Bytes without which weights cannot be streamed.
    pub weights_least: u64,
    /// Bytes beyond which weights have no use for more.
    pub weights_most: u64,
    /// Bytes that a block takes when it comes, and gives back when it leaves.
    pub block: u64,
    /// Blocks that KV has while no more are needed.
    pub blocks_start: usize,
    /// Blocks that KV can have at the most, whatever weights do.
    pub blocks_max: usize,
}

/// Divides memory between weights and KV, anew before each pass: [`plan`](Self::plan), then, when weights have taken
/// note, [`grant`](Self::grant).
#[derive(Debug, Clone)]
pub struct MemoryTrade {
    limits: TradeLimits,
    /// Blocks that KV shall have.
    target: usize,
    /// Blocks by which KV grows beyond what it needs, and shrinks.
    step: usize,
    /// Calls in a row that found KV larger than it need be.
    calm: u32,
    /// Seconds that passes have waited for weights because cached blocks lie in their place.
    rent: f64,
    demand: KvDemand,
    /// What weights were last given, and before that.
    weights: [u64; 2],
}

/// The budget in steps: large enough that growing is rare, small enough that what is too much does not hurt.
const STEPS: u64 = 64;

/// How often KV must be found too large before it shrinks by a step, so that a lull between two requests costs nothing.
const PATIENCE: u32 = 16;

impl MemoryTrade {
    /// Begins with [`TradeLimits::blocks_start`] blocks. Both numbers of blocks are lowered to what leaves weights
    /// their least; at least one block remains.
    pub fn new(mut limits: TradeLimits) -> Self {
        let blocks_beside = |weights: u64| {
            let blocks = limits.total.saturating_sub(weights).checked_div(limits.block);
            blocks.map_or(limits.blocks_start, |blocks| usize::try_from(blocks).unwrap_or(usize::MAX))
        };
        let most = blocks_beside(limits.weights_least).min(limits.blocks_max).max(1);
        // What weights have no use for is KV's in any case.
        let start = blocks_beside(limits.weights_most).max(limits.blocks_start).min(most);
        (limits.blocks_max, limits.blocks_start) = (most, start);
        let step = (limits.total / STEPS).checked_div(limits.block).unwrap_or(1).max(1);
        let step = usize::try_from(step).unwrap_or(usize::MAX);
        let mut trade =
            Self { limits, target: start, step, calm: 0, rent: 0.0, demand: KvDemand::default(), weights: [0; 2] };
        trade.weights = [trade.weights_budget(); 2];
        trade
    }

    /// Blocks that KV begins with, and returns to.
    pub fn blocks_start(&self) -> usize {
        self.limits.blocks_start
    }

    /// Blocks that KV has when weights are down to their least.
    pub fn blocks_max(&self) -> usize {
        self.limits.blocks_max
    }

    /// Takes note of what KV has and could use, and of the seconds by which each byte more of weights would have
    /// shortened the passes since the last call; returns how many bytes weights may take from now on.
    pub fn plan(&mut self, demand: KvDemand, weights_worth: f64) -> u64 {
        self.demand = demand;
        let TradeLimits { blocks_start, blocks_max, .. } = self.limits;
        let needed = demand.used.saturating_add(demand.wanted);
        let ample = if needed == 0 { 0 } else { needed.saturating_add(self.step) };
        // It grows only if it must, and shrinks only by whole steps unless that ends it: demand that wavers by less
        // than a step changes nothing.
        let floor = ample.clamp(blocks_start, blocks_max);
        let calm = std::mem::take(&mut self.calm);
        if needed > self.target && self.target < blocks_max {
            self.target = floor;
        } else if self.is_too_large(floor) {
            self.give_up(floor, calm, weights_worth);
        } else {
            self.rent = 0.0;
        }
        self.weights = [self.weights_budget(), self.weights[0]];
        self.weights[0]
    }

    /// Whether the last [`plan`](Self::plan) gave weights more or less than the one before.
    pub fn weights_are_to_change(&self) -> bool {
        self.weights[0] != self.weights[1]
    }

    /// What KV may have while weights take, or may take, `weights` bytes. More follows when they take less.
    pub fn grant(&self, weights: u64) -> KvGrant {
        let room = self.limits.total.saturating_sub(weights).checked_div(self.limits.block);
        let room = room.map_or(self.target, |room| usize::try_from(room).unwrap_or(usize::MAX));
        let blocks = self.target.min(room).max(1);
        let settled = blocks == self.target && self.demand.present == self.target && self.calm == 0;
        KvGrant { blocks, settled }
    }

    /// KV is larger than `floor`: what nobody can find goes after a while, and what is cached when it has cost enough.
    fn give_up(&mut self, floor: usize, calm: u32, weights_worth: f64) {
        let KvDemand { used, cached, recompute, .. } = self.demand;
        let price = recompute.map_or(0.0, |seconds| seconds * self.step as f64);
        let stays = if price > 0.0 { floor.max(used.saturating_add(cached)) } else { floor };
        if self.is_too_large(stays) {
            self.calm = calm + 1;
            if self.calm == PATIENCE {
                self.shrink(1, stays);
                self.calm = 0;
            }
        }
        if price > 0.0 {
            let too_many = stays.min(self.target).saturating_sub(floor);
            self.rent += weights_worth * too_many as f64 * self.limits.block as f64;
            let paid = (self.rent / price) as usize;
            self.shrink(paid, floor);
            self.rent -= paid as f64 * price;
        }
    }

    fn shrink(&mut self, steps: usize, floor: usize) {
        self.target = self.target.saturating_sub(self.step.saturating_mul(steps)).max(floor);
    }

    fn is_too_large(&self, floor: usize) -> bool {
        self.target >= floor.saturating_add(self.step) || (self.target > floor && floor == self.limits.blocks_start)
    }

    /// What is left beside the blocks that are there, or shall be.
    fn weights_budget(&self) -> u64 {
        let blocks = self.target.max(self.demand.present).min(self.limits.blocks_max) as u64;
        let left = self.limits.total.saturating_sub(blocks.saturating_mul(self.limits.block));
        left.min(self.limits.weights_most).max(self.limits.weights_least)
    }
}

#[cfg(test)]
mod tests;
