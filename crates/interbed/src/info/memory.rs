//! The memory that a model needs, and what various budgets allow.

use anyhow::Result;
use interbed_device::Bytes;

use crate::audience::{Audience, Surroundings};
use crate::division::Division;
use crate::footprint::Footprint;
use crate::model_dir::ModelDir;
use crate::options::ModelOptions;

/// The number of budgets above the minimum that are shown.
const BUDGETS: usize = 7;

/// The memory that a model needs, and what various budgets allow.
pub struct Memory {
    pub kv_dtype: &'static str,
    pub kv_token: Bytes,
    pub kv_context: Bytes,
    pub scratch: Bytes,
    /// The number of bytes of all experts on disk, or 0 for a model without experts.
    pub experts: Bytes,
    pub context: usize,
    /// The minimum budget for `interbed run` and `interbed chat`.
    pub least: Bytes,
    /// The minimum budget for `interbed serve`.
    pub least_to_serve: Bytes,
    pub budgets: Vec<Given>,
}

/// The context length and number of sequences that one memory budget allows.
pub struct Given {
    pub budget: Bytes,
    pub kv_tokens: usize,
    pub context: usize,
    /// The number of sequences of the maximum length that fit into KV memory at the same time.
    pub sequences: usize,
    /// The memory that the budget leaves for weights, or `None` if all weights fit and are not streamed.
    pub streamed: Option<Bytes>,
    /// The budget below which weights would be streamed and leave room for more KV, and the tokens of this KV.
    pub streams_below: Option<(Bytes, usize)>,
}

impl Memory {
    pub fn of(dir: &ModelDir, options: &ModelOptions, footprint: Footprint) -> Result<Self> {
        let (limits, served) = (&options.limits, options.limits.served());
        let alone = Surroundings { footprint, audience: Audience::Prompt(Bytes(0)) };
        let server = Surroundings { footprint, audience: Audience::Clients };
        let needs = dir.needs(limits, &alone)?;
        let (least, scratch) = (needs.least(), needs.within(Bytes(0)).scratch);
        let kv_token = Bytes(needs.layout.token_bytes() as u64);
        let context = needs.within(Bytes(0)).max_model_len;
        let budgets = match limits.memory {
            // If the given budget is too small, the error message names the minimum.
            Some(budget) => vec![given(&Division::of(&needs, budget, None)?)],
            None => budgets(least, &|budget| Division::of(&needs, budget, None).ok()),
        };
        Ok(Self {
            experts: dir.expert_bytes()?,
            kv_dtype: needs.layout.dtype().name(),
            kv_token,
            kv_context: Bytes(kv_token.0.saturating_mul(context as u64)),
            scratch,
            context,
            least,
            least_to_serve: dir.needs(&served, &server)?.least(),
            budgets,
        })
    }
}

fn given(Division { needs, plan, .. }: &Division) -> Given {
    let kv_tokens = plan.num_blocks_max.saturating_mul(needs.block_size);
    let context = plan.max_model_len.max(1);
    let blocks = context.div_ceil(needs.block_size);
    let sequences = (plan.num_blocks_max / blocks.max(1)).clamp(1, needs.max_num_seqs);
    let streamed = plan.streamed.then_some(plan.weights);
    let streams_below = plan.streams_below.map(|(limit, blocks)| (limit, blocks.saturating_mul(needs.block_size)));
    Given { budget: plan.budget.total(), kv_tokens, context, sequences, streamed, streams_below }
}

/// Returns the minimum budget and the powers of two above it, up to one that makes everything fit.
fn budgets(least: Bytes, divide: &dyn Fn(Bytes) -> Option<Division>) -> Vec<Given> {
    let rounds = std::iter::successors(Some(least.0.next_power_of_two()), |size| size.checked_mul(2)).take(BUDGETS);
    let mut shown: Vec<Given> = Vec::new();
    for budget in std::iter::once(least.0).chain(rounds) {
        let Some(given) = divide(Bytes(budget)).as_ref().map(given) else { continue };
        if shown.last().is_some_and(|last| last.kv_tokens == given.kv_tokens && last.streamed.is_none()) {
            break;
        }
        shown.push(given);
    }
    shown
}

#[cfg(test)]
mod tests {
    use interbed_engine::{MemoryNeeds, MemoryPlan, SchemaNeeds};

    use super::*;

    #[test]
    fn the_least_budget_works() {
        let mib = 1 << 20;
        let needs = MemoryNeeds {
            process: Bytes(68 * mib),
            opening: Bytes(0),
            weights: Bytes(1000 * mib),
            weights_streamed: Bytes(100 * mib),
            scratch: Bytes(30 * mib),
            requests: Bytes(4 * mib),
            schemas: SchemaNeeds::default(),
            swap: Bytes(0),
            block: Bytes(mib),
            block_returnable: Bytes(mib),
            blocks_most: usize::MAX,
            block_size: 16,
            blocks_beside: 0,
            max_model_len: 4096,
            max_num_seqs: 4,
        };
        let least = MemoryPlan::least(&needs);
        let shown = budgets(least, &|budget| {
            let plan = MemoryPlan::divide(budget, &needs).ok()?;
            Some(Division { needs, plan, batched_tokens: 512, device: None })
        });
        assert_eq!(shown[0].budget, least);
        assert!(shown[0].kv_tokens >= 256 && shown[0].sequences == 1, "{}", shown[0].kv_tokens);
        assert!(shown[0].streamed.is_some() && shown.last().unwrap().streamed.is_none());
        let last = shown.last().unwrap();
        assert_eq!((last.context, last.sequences), (4096, 4));
        assert!(MemoryPlan::divide(Bytes(100 * mib), &needs).is_err());
    }
}
