//! Hit rates of policies and cache sizes, beside those of a cache that keeps everything and of one that knows the
//! future.

use strata_kv::EvictionKind;

use super::explain::Listener;
use super::hits::{self, Hits, share};
use super::offline::{self, Order};
use super::plot::{Line, Role};
use super::trace::Trace;
use crate::refusal::Refusal;

/// All of them.
pub(super) struct HitRates {
    /// Ascending, each once.
    pub sizes: Vec<usize>,
    pub policies: Vec<PolicyHits>,
    /// By block and by token, the tail of a prompt used first. [size]
    pub offline: Vec<(f64, f64)>,
    /// The same, the head used first. [size]
    pub offline_leaves: Vec<(f64, f64)>,
    /// By block and by token.
    pub infinite: (f64, f64),
}

/// One policy's.
pub(super) struct PolicyHits {
    pub kind: EvictionKind,
    pub runs: Vec<Hits>, // [size]
}

impl HitRates {
    /// Replays `trace` for each policy and size, `repeat` times, of which the quickest time counts. `explain` hears
    /// once of each request why it missed, `progress` of each run that has ended: one for each policy and two more for
    /// each size, and one for all.
    ///
    /// # Errors
    /// A manager that breaks its word; what `explain` says.
    pub fn find(
        trace: &Trace,
        kinds: &[EvictionKind],
        sizes: &[usize],
        mut explain: Option<&mut Listener<'_>>,
        repeat: usize,
        mut progress: impl FnMut(),
    ) -> Result<Self, Refusal> {
        let mut run = |kind: EvictionKind, blocks: usize| {
            let mut hits = hits::replay(trace, kind, blocks, explain.as_deref_mut())?;
            for _ in 1..repeat {
                hits.time = hits.time.min(hits::replay(trace, kind, blocks, None)?.time);
            }
            progress();
            Ok(hits)
        };
        let policies = kinds.iter().map(|&kind| {
            let runs = sizes.iter().map(|&blocks| run(kind, blocks)).collect::<Result<_, Refusal>>()?;
            Ok(PolicyHits { kind, runs })
        });
        let policies = policies.collect::<Result<_, Refusal>>()?;
        let mut look_ahead = |blocks: usize, order: Order| {
            let (by_block, by_token) = offline::hits(trace, blocks, order);
            progress();
            (share(by_block, trace.references().len() as u64), share(by_token, trace.input_tokens()))
        };
        let offline = sizes.iter().map(|&blocks| look_ahead(blocks, Order::TailFirst)).collect();
        let offline_leaves = sizes.iter().map(|&blocks| look_ahead(blocks, Order::HeadFirst)).collect();
        let infinite = look_ahead(usize::MAX, Order::HeadFirst);
        Ok(Self { sizes: sizes.to_vec(), policies, offline, offline_leaves, infinite })
    }

    /// As lines over the sizes; of those that know the future, the one that keeps heads, as nobody finds a tail without
    /// one.
    pub fn lines(&self, trace: &Trace) -> Vec<Line> {
        let reference = |label: &str, rates| Line { label: label.into(), rates, role: Role::Reference };
        let policies = self.policies.iter().map(|policy| Line {
            label: policy.kind.to_string(),
            rates: policy.runs.iter().map(|run| run.rate(trace)).collect(),
            role: if policy.kind == EvictionKind::default() { Role::Default } else { Role::Other },
        });
        policies
            .chain([
                reference("offline, leaves", self.offline_leaves.iter().map(|(by_block, _)| *by_block).collect()),
                reference("infinite", self.sizes.iter().map(|_| self.infinite.0).collect()),
            ])
            .collect()
    }
}

impl PolicyHits {
    /// The policy's name, marked if it is the default.
    pub fn label(&self) -> String {
        label(self.kind)
    }
}

/// The name of `kind`, marked if it is the default.
pub(super) fn label(kind: EvictionKind) -> String {
    if kind == EvictionKind::default() { format!("{kind} (default)") } else { kind.to_string() }
}
