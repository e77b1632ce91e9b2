//! Decides how much memory KV and weights get while weights are streamed. This is a planner: it has no I/O and no
//! clock.
//!
//! Blocks that sequences hold, or would hold if there were more blocks, come first: without them nothing is computed.
//! Weights get the rest, since with less memory passes wait longer for weights. Cached blocks without holders lie in
//! between. If they are evicted, a later prompt with the same prefix computes them again. Nobody knows when such a
//! prompt will come, so this is the ski-rental problem. Keeping the blocks costs rent, which is the time that passes
//! wait for weights that could lie in the blocks' memory. Computing the blocks again is the price. A step of blocks is
//! evicted once its rent has reached its price, which costs about twice what the best choice in hindsight would.
//! (Karlin, Manasse, Rudolph and Sleator, Competitive Snoopy Caching, 1988.)
//!
//! Memory changes hands between passes in two steps, so that weights and KV together never exceed the budget. Either
//! weights give up bands, and KV grows once they have. Or KV withdraws blocks, and weights grow once the pages of the
//! blocks have been given back.

/// Numbers of KV blocks that are in use and that are needed, determined between two forward passes.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct KvDemand {
    /// Number of blocks that have memory, whether they are used, cached or free.
    pub present: usize,
    /// Number of blocks that sequences hold. `present` includes these blocks.
    pub used: usize,
    /// Number of blocks that no sequence holds, but whose KV the prefix cache can still reuse. `present` includes these
    /// blocks.
    pub cached: usize,
    /// Number of blocks, in addition to `used`, that the next forward passes could use. They are needed for the next
    /// tokens of running sequences and for waiting or swapped-out sequences.
    pub wanted: usize,
    /// Estimated time, in seconds, to restore the KV of one evicted block. This is the time to compute the KV again, or
    /// the time to read it from disk or from a shared store if that is faster. `None` until the speed of computing has
    /// been measured.
    pub recompute: Option<f64>,
}

/// Number of blocks that KV may use after memory has been divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvGrant {
    /// Number of blocks that sequences and the prefix cache may use. If more blocks are in use, the excess ones stay
    /// until their sequences release them.
    pub blocks: usize,
    /// Whether the division of memory stays the same until the demand changes. While this is false, an idle engine
    /// repeats the division from time to time.
    pub settled: bool,
}

/// Limits for the division of memory between weights and KV.
#[derive(Debug, Clone, Copy)]
pub struct TradeLimits {
    /// Memory, in bytes, that weights and KV blocks may take together.
    pub total: u64,
    /// Least amount of memory, in bytes, with which the weights can be streamed.
    pub weights_least: u64,
    /// Largest amount of memory, in bytes, that the weights can use.
    pub weights_most: u64,
    /// Memory, in bytes, that is allocated when a KV block is added and freed when a KV block is withdrawn.
    pub block: u64,
    /// Number of KV blocks when the engine starts. KV shrinks back to this number when it needs no more blocks.
    pub blocks_start: usize,
    /// Upper limit on the number of KV blocks, even if the weights leave memory for more.
    pub blocks_max: usize,
}

/// Divides memory between weights and KV anew before each forward pass. Each time, call [`plan`](Self::plan), set the
/// memory of the weights to what it returns, and then call [`grant`](Self::grant).
#[derive(Debug, Clone)]
pub struct MemoryTrade {
    limits: TradeLimits,
    /// The number of blocks that KV shall have.
    target: usize,
    /// The number of blocks by which KV grows beyond its need, and by which it shrinks.
    step: usize,
    /// The number of calls in a row that found KV larger than needed.
    calm: u32,
    /// The seconds that passes have waited for weights because cached blocks take their memory.
    rent: f64,
    demand: KvDemand,
    /// The bytes that weights were given by the last plan, then by the plan before it.
    weights: [u64; 2],
    /// The bytes that neither KV nor weights can use, because blocks do not fit where weights were.
    lost: u64,
}

/// The number of steps in the budget. A step is large enough that growing is rare, and small enough that a step too
/// much does little harm.
const STEPS: u64 = 64;

/// The number of times that KV must be found too large before it shrinks by a step, so that a lull between two requests
/// costs nothing.
const PATIENCE: u32 = 16;

impl MemoryTrade {
    /// Creates a trade from `limits`, after adjusting them. If [`TradeLimits::blocks_start`] blocks leave the weights
    /// more memory than [`TradeLimits::weights_most`], `blocks_start` is raised. If [`TradeLimits::blocks_max`] blocks
    /// leave the weights less than [`TradeLimits::weights_least`], `blocks_max` is lowered, but not below 1.
    /// Afterwards, `blocks_start` is at most `blocks_max`.
    pub fn new(mut limits: TradeLimits) -> Self {
        let blocks_beside = |weights: u64| {
            let blocks = limits.total.saturating_sub(weights).checked_div(limits.block);
            blocks.map_or(limits.blocks_start, |blocks| usize::try_from(blocks).unwrap_or(usize::MAX))
        };
        let most = blocks_beside(limits.weights_least).min(limits.blocks_max).max(1);
        // KV always gets the memory that weights have no use for.
        let start = blocks_beside(limits.weights_most).max(limits.blocks_start).min(most);
        (limits.blocks_max, limits.blocks_start) = (most, start);
        let step = (limits.total / STEPS).checked_div(limits.block).unwrap_or(1).max(1);
        let step = usize::try_from(step).unwrap_or(usize::MAX);
        let mut trade = Self {
            limits,
            target: start,
            step,
            calm: 0,
            rent: 0.0,
            demand: KvDemand::default(),
            weights: [0; 2],
            lost: 0,
        };
        trade.weights = [trade.weights_budget(); 2];
        trade
    }

    /// Returns the number of KV blocks when the engine starts. Later, the number never shrinks below this.
    pub fn blocks_start(&self) -> usize {
        self.limits.blocks_start
    }

    /// Returns the largest number of blocks that KV can get. KV can get this many when the weights have shrunk to their
    /// minimum.
    pub fn blocks_max(&self) -> usize {
        self.limits.blocks_max
    }

    /// Records KV's demand and returns the memory, in bytes, that the weights may take from now on. `weights_worth` is
    /// the estimated benefit of one more byte of memory for the weights: the number of seconds by which that byte would
    /// have shortened the forward passes since the last call.
    pub fn plan(&mut self, demand: KvDemand, weights_worth: f64) -> u64 {
        self.demand = demand;
        let TradeLimits { blocks_start, blocks_max, .. } = self.limits;
        let needed = demand.used.saturating_add(demand.wanted);
        let ample = if needed == 0 { 0 } else { needed.saturating_add(self.step) };
        // KV grows only if it must. It shrinks only by whole steps, except for the last step down to the start. A
        // demand that varies by less than a step therefore changes nothing.
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

    /// Returns whether the last call to [`plan`](Self::plan) changed the memory that the weights may take.
    pub fn weights_are_to_change(&self) -> bool {
        self.weights[0] != self.weights[1]
    }

    /// Returns how many blocks KV may have while the weights take up to `weights` bytes.
    pub fn grant(&self, weights: u64) -> KvGrant {
        let room = self.limits.total.saturating_sub(weights).checked_div(self.limits.block);
        let room = room.map_or(self.target, |room| usize::try_from(room).unwrap_or(usize::MAX));
        let blocks = self.target.min(room).max(1);
        let settled = blocks == self.target && self.demand.present == self.target && self.calm == 0;
        KvGrant { blocks, settled }
    }

    /// Records that `blocks` of the blocks that the last call to [`grant`](Self::grant) allowed have no memory, because
    /// an allocation failed. Until KV shrinks, [`plan`](Self::plan) takes the memory for these blocks from the weights,
    /// which keep at least [`TradeLimits::weights_least`].
    pub fn lacks(&mut self, blocks: usize) {
        self.lost = self.lost.saturating_add(self.limits.block.saturating_mul(blocks as u64)).min(self.limits.total);
    }

    /// Shrinks KV, which is larger than `floor`. Blocks that the cache cannot find go after a while. Cached blocks go
    /// when their rent has reached their price.
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
        self.lost = 0;
        self.target = self.target.saturating_sub(self.step.saturating_mul(steps)).max(floor);
    }

    fn is_too_large(&self, floor: usize) -> bool {
        self.target >= floor.saturating_add(self.step) || (self.target > floor && floor == self.limits.blocks_start)
    }

    /// Returns the bytes that are left beside the blocks that are there or shall be there.
    fn weights_budget(&self) -> u64 {
        let blocks = self.target.max(self.demand.present).min(self.limits.blocks_max) as u64;
        let taken = blocks.saturating_mul(self.limits.block).saturating_add(self.lost);
        let left = self.limits.total.saturating_sub(taken);
        left.min(self.limits.weights_most).max(self.limits.weights_least)
    }
}

#[cfg(test)]
mod tests;
