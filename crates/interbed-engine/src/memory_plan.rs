//! Divides one memory budget among weights, scratch, KV blocks and the process itself. This is pure arithmetic.

use interbed_device::{Budget, Bytes, OverBudget};
use thiserror::Error;

use crate::memory_trade::{MemoryTrade, TradeLimits};

/// Memory that each part of the server needs.
#[derive(Debug, Clone, Copy)]
pub struct MemoryNeeds {
    /// Memory of the process: code, tokenizer, threads, sampler, and freed memory that allocators retain.
    pub process: Bytes,
    /// Peak memory of the whole process while it opens the model, before weights and KV blocks are in memory. The
    /// budget must be at least this large. The other needs are not added to this number.
    pub opening: Bytes,
    /// Memory that the weights take if all of them stay in memory.
    pub weights: Bytes,
    /// Least amount of memory with which the weights can be streamed. Streaming is used if not all weights fit in
    /// memory: forward passes then load the missing weights each time.
    pub weights_streamed: Bytes,
    /// Memory of the scratch arena, which holds the intermediate results of a forward pass.
    pub scratch: Bytes,
    /// Least amount of memory for the request bodies, texts and token ids that the server keeps outside the engine.
    /// With a large budget, [`MemoryPlan::requests`] can be larger.
    pub requests: Bytes,
    /// Memory of the schemas and grammars that constrain answers. This memory is reserved only if the budget has enough
    /// left after the least amounts that all other parts need.
    pub schemas: SchemaNeeds,
    /// Memory of the buffers through which KV moves to disk and back, and of the bookkeeping for KV on disk; 0 if KV
    /// never moves to disk.
    pub swap: Bytes,
    /// Memory of one KV block, including its bookkeeping.
    pub block: Bytes,
    /// Part of `block` that is freed when KV gives up one block to make room for weights. The rest of `block` stays
    /// allocated.
    pub block_returnable: Bytes,
    /// Upper limit on the number of KV blocks, even if memory is available for more; `usize::MAX` for no limit.
    pub blocks_most: usize,
    /// Number of tokens in one KV block.
    pub block_size: usize,
    /// Number of KV blocks that take as much memory as all that layers keep of one sequence besides the KV of all its
    /// tokens.
    pub blocks_beside: usize,
    /// Requested context length, in tokens, of one sequence. If memory is short, a plan may allow less.
    pub max_model_len: usize,
    /// Largest number of sequences that run at the same time.
    pub max_num_seqs: usize,
}

impl MemoryNeeds {
    /// Returns the most tokens of a sequence that has `num_blocks` KV blocks to itself.
    fn context_within(&self, num_blocks: usize) -> usize {
        let blocks = num_blocks.saturating_sub(self.blocks_beside);
        self.max_model_len.min(blocks.saturating_mul(self.block_size))
    }

    /// Returns the bytes of a KV block that take memory even while the block may not be used.
    fn block_kept(&self) -> u64 {
        self.block.0.saturating_sub(self.block_returnable.0)
    }

    /// Returns whether KV and streamed weights can trade memory: most of a block's memory comes back with it.
    fn can_trade(&self) -> bool {
        self.block_kept() <= self.block.0 / KEPT_SHARE
    }

    /// Returns the needs for the memory of a device that has its own memory, such as a GPU. There, a forward pass takes
    /// `scratch` bytes and a KV block takes `block` bytes. The fields `process`, `opening`, `requests`, `schemas` and
    /// `swap` become 0, because they describe host memory. All other fields keep their values.
    pub fn on_device(&self, scratch: Bytes, block: Bytes) -> Self {
        Self {
            process: Bytes(0),
            opening: Bytes(0),
            requests: Bytes(0),
            schemas: SchemaNeeds::default(),
            swap: Bytes(0),
            scratch,
            block,
            ..*self
        }
    }
}

/// Memory that schemas and grammars need. By default, all fields are 0.
#[derive(Debug, Clone, Copy, Default)]
pub struct SchemaNeeds {
    /// Memory of the compiled schemas and grammars that requests use. This memory is reserved only if there is also
    /// enough memory to compile at least one schema or grammar.
    pub in_use: Bytes,
    /// Memory for compiling one schema or grammar.
    pub compiling: Bytes,
    /// Largest number of schemas and grammars that are compiled at the same time.
    pub most: usize,
}

impl SchemaNeeds {
    /// Returns the bytes that schemas and grammars take if `count` are compiled at a time.
    fn taking(&self, count: usize) -> Bytes {
        if count == 0 { Bytes(0) } else { Bytes(self.in_use.0 + self.compiling.0 * count as u64) }
    }

    /// Returns how many schemas and grammars can be compiled at a time if `rest` bytes are left beyond the least that
    /// works.
    fn fitting(&self, rest: u64) -> usize {
        let share = rest / SCHEMAS_SHARE.1 * SCHEMAS_SHARE.0;
        (1..=self.most).rev().find(|&count| self.taking(count).0 <= share).unwrap_or(0)
    }
}

/// A valid division of a memory budget among the parts of the server.
#[derive(Debug, Clone)]
pub struct MemoryPlan {
    /// Total budget, and how much of it is reserved for each part.
    pub budget: Budget,
    /// Memory that the weights may take when the engine starts.
    pub weights: Bytes,
    /// Whether the weights are streamed because not all of them fit in memory.
    pub streamed: bool,
    /// Number of KV blocks that the engine starts with.
    pub num_blocks: usize,
    /// Largest number of KV blocks. KV has this many blocks when the streamed weights have shrunk to their minimum. If
    /// KV cannot take memory from the weights later, this equals `num_blocks`.
    pub num_blocks_max: usize,
    /// Memory for the request bodies, texts and token ids that the server keeps outside the engine.
    pub requests: Bytes,
    /// Number of schemas and grammars that can be compiled at the same time; 0 if there is no memory for any.
    pub schemas: usize,
    /// Context length, in tokens, that one sequence can have. This is [`MemoryNeeds::max_model_len`], or the number of
    /// tokens whose KV fits in `num_blocks_max` KV blocks if that is less.
    pub max_model_len: usize,
    /// `Some` if all weights stay in memory, but fewer KV blocks fit beside them than beside streamed weights. The
    /// weights are streamed, and take less memory, if the budget is below the first value. The second value is the
    /// number of KV blocks that fit into a budget just below the first value.
    pub streams_below: Option<(Bytes, usize)>,
}

/// Error for a memory budget that is too small.
#[derive(Debug, Clone, Error)]
#[error(
    "a budget of {total} cannot work: weights {weights} (streamed, with all else on disk), scratch {scratch}, requests \
     {requests}, the process {process}, buffers for KV on disk {swap} and KV for at least {tokens} tokens {kv} make \
     {sum}, and opening the model takes {opening} for a moment; give --memory {advice}M or more, or choose a smaller \
     model",
    scratch = .needs.scratch, requests = .needs.requests, process = .needs.process, swap = .needs.swap,
    tokens = .least.blocks * .needs.block_size, kv = .least.kv, sum = .least.beside(*.weights), opening = .needs.opening
)]
pub struct BudgetTooSmall {
    total: Bytes,
    weights: Bytes,
    needs: Box<MemoryNeeds>,
    least: Least,
    /// Smallest budget that [`MemoryPlan::divide`] accepts for the same needs.
    pub smallest: Bytes,
    advice: u64,
}

impl BudgetTooSmall {
    /// Returns this error with `least` as the budget that it advises. `least` is larger than `smallest` if needs grow
    /// with the budget.
    fn advising(self, least: Bytes) -> Self {
        Self { advice: mebibytes(least), ..self }
    }
}

/// Minimum number of tokens whose KV must fit into memory. If [`MemoryNeeds::max_model_len`] is smaller, that number is
/// the minimum.
pub const LEAST_CONTEXT: usize = 256;

/// The divisor of the memory beyond the least that works: requests get one part in `REQUESTS_SHARE` of that memory, and
/// in all at most `REQUESTS_SHARE` times their least. With much memory, long prompts are expected.
const REQUESTS_SHARE: u64 = 8;

/// The share that schemas get, at most, of what a budget has beyond the least that works, as numerator and denominator.
/// KV needs some of the rest, too.
const SCHEMAS_SHARE: (u64, u64) = (2, 3);

/// KV and weights trade memory only if all but one part in this many of a block comes back when the block is withdrawn.
/// For the part that does not come back, memory is set aside for every block that there can be.
const KEPT_SHARE: u64 = 8;

/// KV begins with at most one part in this many of what streamed weights leave beyond the least that works. Weights
/// gain more by memory: each byte of weights that stays in memory is a byte less to read in every pass.
const STREAMED_KV_SHARE: u64 = 16;

/// The most KV that is useful, as a multiple of what all running sequences can fill. More is of no use even to the
/// prefix cache.
const CACHE_FACTOR: usize = 2;

impl MemoryPlan {
    /// Returns the smallest budget that [`divide`](Self::divide) accepts for `needs`.
    pub fn least(needs: &MemoryNeeds) -> Bytes {
        Least::of(needs).smallest(needs, needs.weights.min(needs.weights_streamed))
    }

    /// Returns the smallest budget that [`divide_within`](Self::divide_within) accepts, rounded up to whole mebibytes.
    /// The function `needs` returns the needs for a given budget, because some needs grow with the budget.
    pub fn least_within(needs: &dyn Fn(Bytes) -> MemoryNeeds) -> Bytes {
        let mut least = Bytes(0);
        loop {
            let smallest = Bytes(mebibytes(Self::least(&needs(least))).saturating_mul(1 << 20));
            if smallest <= least {
                return least;
            }
            least = smallest;
        }
    }

    /// Divides the budget `total`. The function `needs` returns the needs for a given budget, because some needs grow
    /// with the budget.
    ///
    /// # Errors
    /// Fails if [`divide`](Self::divide) fails for `total` and its needs. The error message recommends the budget that
    /// [`least_within`](Self::least_within) returns.
    pub fn divide_within(total: Bytes, needs: &dyn Fn(Bytes) -> MemoryNeeds) -> Result<Self, BudgetTooSmall> {
        Self::divide(total, &needs(total)).map_err(|refused| refused.advising(Self::least_within(needs)))
    }

    /// Divides the budget `total`. If all weights fit, the process, scratch memory and weights get what they need.
    /// Requests, schemas and KV blocks share the rest. The number of KV blocks is limited to what sequences and the
    /// prefix cache can use. If not all weights fit, they are streamed. KV then starts with few blocks, and the weights
    /// get the memory that the other parts leave, until KV needs more.
    ///
    /// # Errors
    /// Fails if the budget is too small. The budget must leave memory for the KV of [`LEAST_CONTEXT`] tokens, or of
    /// [`MemoryNeeds::max_model_len`] tokens if that is less. The error names the smallest budget that works.
    pub fn divide(total: Bytes, needs: &MemoryNeeds) -> Result<Self, BudgetTooSmall> {
        let least = Least::of(needs);
        let kv_least = least.kv.0;
        let streamed = total < least.beside(needs.weights) && needs.weights_streamed < needs.weights;
        let weights_least = if streamed { needs.weights_streamed } else { needs.weights };
        let (sum, smallest) = (least.beside(weights_least), least.smallest(needs, weights_least));
        let refuse = || BudgetTooSmall {
            total,
            weights: weights_least,
            needs: Box::new(*needs),
            least,
            smallest,
            advice: mebibytes(smallest),
        };
        if total < smallest {
            return Err(refuse());
        }
        let blocks_of = |tokens: usize| tokens.div_ceil(needs.block_size);
        let schemas = needs.schemas.fitting(total.0 - sum.0);
        let process = Bytes(needs.process.0 + needs.schemas.taking(schemas).0);
        let rest = total.0 - sum.0 - needs.schemas.taking(schemas).0;
        let (kept, traded) = (needs.block_kept(), streamed && needs.can_trade());
        // If KV can take memory from weights later, it begins with enough blocks for every sequence to start.
        let blocks_to_begin = needs.blocks_beside.saturating_add(1).saturating_mul(needs.max_num_seqs);
        let begin = if traded { needs.block.0.saturating_mul(blocks_to_begin as u64) } else { u64::MAX };
        let (extra, kv) = match streamed {
            true => (0, kv_least + begin.min(rest / STREAMED_KV_SHARE)),
            false => {
                let extra = (rest / REQUESTS_SHARE).min(needs.requests.0.saturating_mul(REQUESTS_SHARE - 1));
                (extra, kv_least + rest - extra)
            }
        };
        let requests = Bytes(needs.requests.0 + extra);
        let fitting = usize::try_from(kv / needs.block.0).unwrap_or(usize::MAX);
        let of_one = blocks_of(needs.max_model_len).saturating_add(needs.blocks_beside);
        let usable = of_one.saturating_mul(needs.max_num_seqs).saturating_mul(CACHE_FACTOR);
        let usable = usable.min(needs.blocks_most.max(least.blocks));
        let num_blocks = fitting.min(usable).min(interbed_kv::BLOCKS_MAX);
        let num_blocks_max = if traded {
            let fitting = usize::try_from((kv_least + rest) / needs.block.0).unwrap_or(usize::MAX);
            fitting.min(usable).min(interbed_kv::BLOCKS_MAX).max(num_blocks)
        } else {
            num_blocks
        };
        // This never exceeds what was left, because all blocks that there can be fit beside the least of weights.
        let kv = Bytes(needs.block.0 * num_blocks as u64 + kept * (num_blocks_max - num_blocks) as u64);
        let others = [process, needs.scratch, requests, needs.swap, kv].iter().map(|part| part.0).sum::<u64>();
        let weights = if streamed { Bytes((total.0 - others).min(needs.weights.0)) } else { needs.weights };
        let budget = reserve(total, needs, process, weights, requests, kv).map_err(|_| refuse())?;
        let max_model_len = needs.context_within(num_blocks_max);
        let mut plan = Self {
            budget,
            weights,
            streamed,
            num_blocks,
            num_blocks_max,
            requests,
            schemas,
            max_model_len,
            streams_below: None,
        };
        if !streamed && num_blocks < usable {
            let limit = least.beside(needs.weights);
            let below = Self::divide(Bytes(limit.0.saturating_sub(1)), needs).ok();
            let more = below.map(|below| below.num_blocks_max).filter(|&more| more > num_blocks);
            plan.streams_below = more.map(|more| (limit, more));
        }
        Ok(plan)
    }

    /// Returns this plan with the fields `num_blocks`, `num_blocks_max` and `max_model_len` of `other`. Call this if a
    /// device with its own memory holds the KV: this plan divides host memory, and `other` divides the device's memory.
    pub fn with_kv_of(self, other: &Self) -> Self {
        let Self { num_blocks, num_blocks_max, max_model_len, .. } = *other;
        Self { num_blocks, num_blocks_max, max_model_len, ..self }
    }

    /// Creates the [`MemoryTrade`], which moves memory between streamed weights and KV while the engine runs.
    /// `weights_least` is the least amount of memory with which the weights can be streamed, and `weights_most` is the
    /// largest amount that they can use. Updates the plan's fields `num_blocks`, `num_blocks_max` and `max_model_len`
    /// accordingly.
    pub fn trade(&mut self, needs: &MemoryNeeds, weights_least: Bytes, weights_most: Bytes) -> MemoryTrade {
        let block = if self.num_blocks_max > self.num_blocks { needs.block_returnable.0 } else { 0 };
        let trade = MemoryTrade::new(TradeLimits {
            total: self.weights.0.saturating_add(block.saturating_mul(self.num_blocks as u64)),
            weights_least: weights_least.0.min(self.weights.0),
            weights_most: weights_most.0.max(self.weights.0),
            block,
            blocks_start: self.num_blocks,
            blocks_max: self.num_blocks_max,
        });
        (self.num_blocks, self.num_blocks_max) = (trade.blocks_start(), trade.blocks_max());
        self.max_model_len = needs.context_within(self.num_blocks_max);
        trade
    }
}

/// The memory that an engine cannot do without.
#[derive(Debug, Clone, Copy)]
struct Least {
    blocks: usize,
    kv: Bytes,
    /// The bytes of all parts but weights.
    others: u64,
}

impl Least {
    fn of(needs: &MemoryNeeds) -> Self {
        let blocks = needs.max_model_len.min(LEAST_CONTEXT).div_ceil(needs.block_size) + needs.blocks_beside;
        let kv = Bytes(needs.block.0.saturating_mul(blocks as u64));
        let parts = [needs.process, needs.scratch, needs.requests, needs.swap, kv];
        Self { blocks, kv, others: parts.iter().fold(0, |sum: u64, part| sum.saturating_add(part.0)) }
    }

    /// Returns the bytes of all parts beside `weights`.
    fn beside(&self, weights: Bytes) -> Bytes {
        Bytes(self.others.saturating_add(weights.0))
    }

    /// Returns the least budget with `weights`.
    fn smallest(&self, needs: &MemoryNeeds, weights: Bytes) -> Bytes {
        self.beside(weights).max(needs.opening)
    }
}

/// Returns the number of whole mebibytes in `bytes`, rounded up.
fn mebibytes(bytes: Bytes) -> u64 {
    bytes.0.div_ceil(1 << 20)
}

fn reserve(
    total: Bytes,
    needs: &MemoryNeeds,
    process: Bytes,
    weights: Bytes,
    requests: Bytes,
    kv: Bytes,
) -> Result<Budget, OverBudget> {
    let mut budget = Budget::new(total);
    budget.reserve("process", process)?;
    budget.reserve("weights", weights)?;
    budget.reserve("scratch", needs.scratch)?;
    budget.reserve("requests", requests)?;
    if needs.swap.0 > 0 {
        budget.reserve("swapping", needs.swap)?;
    }
    budget.reserve("KV blocks", kv)?;
    Ok(budget)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn needs() -> MemoryNeeds {
        MemoryNeeds {
            process: Bytes(68 * MIB),
            opening: Bytes(0),
            weights: Bytes(1000 * MIB),
            weights_streamed: Bytes(100 * MIB),
            scratch: Bytes(26 * MIB),
            requests: Bytes(4 * MIB),
            schemas: SchemaNeeds::default(),
            swap: Bytes(0),
            block: Bytes(MIB),
            block_returnable: Bytes(0),
            blocks_most: usize::MAX,
            block_size: 16,
            blocks_beside: 0,
            max_model_len: 4096,
            max_num_seqs: 4,
        }
    }

    #[test]
    fn kv_gets_what_is_left() {
        // 80 MiB beyond the least, of which an eighth goes to requests.
        let plan = MemoryPlan::divide(Bytes((1114 + 80) * MIB), &needs()).unwrap();
        assert_eq!((plan.num_blocks, plan.max_model_len, plan.requests), (16 + 70, 86 * 16, Bytes(14 * MIB)));
        assert_eq!(plan.budget.left(), Bytes(0));
    }

    #[test]
    fn what_swapping_takes_is_counted() {
        let needs = MemoryNeeds { swap: Bytes(8 * MIB), ..needs() };
        let plan = MemoryPlan::divide(Bytes((1114 + 88) * MIB), &needs).unwrap();
        assert_eq!((plan.num_blocks, plan.requests, plan.budget.left()), (16 + 70, Bytes(14 * MIB), Bytes(0)));
        let refused = MemoryPlan::divide(Bytes(100 * MIB), &needs).unwrap_err();
        assert_eq!(refused.smallest, Bytes((68 + 100 + 30 + 16 + 8) * MIB));
        assert_eq!(MemoryPlan::divide(refused.smallest, &needs).unwrap().budget.left(), Bytes(0));
    }

    #[test]
    fn schemas_get_memory_where_there_is_some() {
        let schemas = SchemaNeeds { in_use: Bytes(20 * MIB), compiling: Bytes(40 * MIB), most: 2 };
        let needs = MemoryNeeds { schemas, ..needs() };
        let least = 1114;
        for (rest, at_a_time, taken) in [(0, 0, 0), (89, 0, 0), (90, 1, 60), (149, 1, 60), (150, 2, 100), (900, 2, 100)]
        {
            let plan = MemoryPlan::divide(Bytes((least + rest) * MIB), &needs).unwrap();
            let process = plan.budget.entries().iter().find(|(name, _)| name == "process").unwrap().1;
            assert_eq!((plan.schemas, process), (at_a_time, Bytes((68 + taken) * MIB)), "{rest}");
            let kv = plan.num_blocks as u64 * MIB;
            assert_eq!(kv + plan.requests.0 + plan.budget.left().0, (20 + rest - taken) * MIB, "{rest}");
        }
        // The least that works has none of it.
        assert_eq!(
            MemoryPlan::least(&needs),
            MemoryPlan::least(&MemoryNeeds { schemas: SchemaNeeds::default(), ..needs })
        );
        assert_eq!(MemoryPlan::divide(MemoryPlan::least(&needs), &needs).unwrap().schemas, 0);
    }

    #[test]
    fn kv_takes_no_more_than_can_be_used() {
        let plan = MemoryPlan::divide(Bytes(1 << 50), &needs()).unwrap();
        assert_eq!((plan.num_blocks, plan.max_model_len, plan.requests), (256 * 4 * 2, 4096, Bytes(32 * MIB)));
    }

    #[test]
    fn kv_takes_no_more_than_it_may() {
        let needs = MemoryNeeds { blocks_most: 40, ..needs() };
        let plan = MemoryPlan::divide(Bytes(1 << 50), &needs).unwrap();
        assert_eq!((plan.num_blocks, plan.num_blocks_max, plan.max_model_len), (40, 40, 640));
        let plan = MemoryPlan::divide(Bytes(1000 * MIB), &needs).unwrap();
        assert_eq!((plan.streamed, plan.num_blocks, plan.weights), (true, 40, Bytes((886 - 24) * MIB)));
    }

    #[test]
    fn weights_that_do_not_fit_are_streamed() {
        // All but weights take 114 MiB at the least; of the 886 - 100 left, a sixteenth goes to KV.
        let plan = MemoryPlan::divide(Bytes(1000 * MIB), &needs()).unwrap();
        assert_eq!((plan.streamed, plan.num_blocks, plan.weights), (true, 16 + 49, Bytes((886 - 49) * MIB)));
        assert_eq!(plan.budget.left(), Bytes(0));
        let fits = MemoryPlan::divide(Bytes(1114 * MIB), &needs()).unwrap();
        assert_eq!((fits.streamed, fits.weights, fits.num_blocks), (false, Bytes(1000 * MIB), 16));
    }

    #[test]
    fn streamed_weights_leave_memory_to_kv_when_it_needs_more() {
        let needs = MemoryNeeds { block_returnable: Bytes(MIB - 1024), ..needs() };
        let mut plan = MemoryPlan::divide(Bytes(1000 * MIB), &needs).unwrap();
        // Beside 100 MiB of weights there is room for 802 blocks; of those that are not there, 1 KiB each is kept.
        // To begin with, KV has what it needs at the least and a block for each of 4 sequences.
        assert_eq!((plan.num_blocks, plan.num_blocks_max, plan.max_model_len), (20, 802, 4096));
        assert_eq!((plan.weights, plan.budget.left()), (Bytes((886 - 4) * MIB - 782 * 1024), Bytes(0)));
        let most = plan.weights.0 + 20 * needs.block_returnable.0;
        assert!(100 * MIB + 802 * needs.block_returnable.0 <= most);
        // They turn out to need more.
        let mut trade = plan.trade(&needs, Bytes(700 * MIB), Bytes(1200 * MIB));
        assert_eq!((plan.num_blocks, plan.num_blocks_max, plan.max_model_len), (20, 201, 201 * 16));
        assert_eq!((trade.blocks_start(), trade.blocks_max()), (20, 201));
        assert_eq!(trade.plan(crate::KvDemand::default(), 0.0), plan.weights.0);
        // Blocks that keep their memory are not traded.
        let needs = MemoryNeeds { block_returnable: Bytes(MIB / 2), ..needs };
        let mut plan = MemoryPlan::divide(Bytes(1000 * MIB), &needs).unwrap();
        assert_eq!((plan.num_blocks, plan.num_blocks_max, plan.max_model_len), (65, 65, 65 * 16));
        let trade = plan.trade(&needs, Bytes(700 * MIB), Bytes(1200 * MIB));
        assert_eq!((trade.blocks_start(), trade.blocks_max()), (65, 65));
    }

    #[test]
    fn the_least_budget_is_named_and_works() {
        let refused = MemoryPlan::divide(Bytes(100 * MIB), &needs()).unwrap_err();
        assert_eq!(refused.smallest, Bytes((68 + 100 + 30 + 16) * MIB));
        assert!(refused.to_string().contains("--memory 214M"), "{refused}");
        let plan = MemoryPlan::divide(refused.smallest, &needs()).unwrap();
        assert_eq!((plan.max_model_len, plan.weights), (256, Bytes(100 * MIB)));
        assert!(MemoryPlan::divide(Bytes(refused.smallest.0 - 1), &needs()).is_err());
        assert_eq!(MemoryPlan::least(&needs()), refused.smallest);
        // What cannot be streamed must fit.
        let whole = MemoryNeeds { weights_streamed: Bytes(1000 * MIB), ..needs() };
        assert_eq!(MemoryPlan::divide(Bytes(500 * MIB), &whole).unwrap_err().smallest, Bytes(1114 * MIB));
        assert_eq!(MemoryPlan::least(&whole), Bytes(1114 * MIB));
    }

    #[test]
    fn the_least_of_needs_that_grow_with_the_budget_works() {
        let growing = |total: Bytes| MemoryNeeds { swap: Bytes(total.0 / 16), ..needs() };
        let least = MemoryPlan::least_within(&growing);
        assert!(least.0 > 214 * MIB && least.0.is_multiple_of(MIB), "{least}");
        assert!(MemoryPlan::divide_within(least, &growing).is_ok());
        let refused = MemoryPlan::divide_within(Bytes(least.0 - MIB), &growing).unwrap_err();
        assert!(refused.to_string().contains(&format!("--memory {}M", least.0 / MIB)), "{refused}");
        let much = MemoryPlan::divide_within(Bytes(100 * MIB), &growing).unwrap_err();
        assert!(much.to_string().contains(&format!("--memory {}M", least.0 / MIB)), "{much}");
    }

    #[test]
    fn a_smaller_budget_that_holds_more_kv_is_named() {
        let total = Bytes((1114 + 80) * MIB);
        let needs = MemoryNeeds { block_returnable: Bytes(MIB - 1024), ..needs() };
        let resident = MemoryPlan::divide(total, &needs).unwrap();
        assert!(!resident.streamed && resident.max_model_len < 4096);
        let (limit, more) = resident.streams_below.unwrap();
        assert!(!MemoryPlan::divide(limit, &needs).unwrap().streamed);
        let below = MemoryPlan::divide(Bytes(limit.0 - 1), &needs).unwrap();
        assert!(below.streamed && below.max_model_len > resident.max_model_len, "{below:?}");
        assert_eq!((below.num_blocks_max, below.streams_below), (more, None));
        // There is none where KV has all that it can use, where weights cannot make room, or where blocks are limited.
        let whole = MemoryNeeds { max_model_len: 128, ..needs };
        let fixed = MemoryNeeds { block_returnable: Bytes(0), ..needs };
        let limited = MemoryNeeds { blocks_most: 40, ..needs };
        for needs in [whole, fixed, limited] {
            assert_eq!(MemoryPlan::divide(total, &needs).unwrap().streams_below, None, "{needs:?}");
        }
    }

    #[test]
    fn a_model_that_takes_more_to_open_than_to_run_needs_that() {
        let needs = MemoryNeeds { opening: Bytes(300 * MIB), ..needs() };
        assert_eq!(MemoryPlan::least(&needs), Bytes(300 * MIB));
        let refused = MemoryPlan::divide(Bytes(299 * MIB), &needs).unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("--memory 300M") && text.contains("takes 300.0 MiB for a moment"), "{text}");
        // What opening took is the weights' afterwards.
        let plan = MemoryPlan::divide(Bytes(300 * MIB), &needs).unwrap();
        assert_eq!((plan.budget.left(), plan.weights), (Bytes(0), Bytes((100 + 86 - 5) * MIB)));
    }
}
