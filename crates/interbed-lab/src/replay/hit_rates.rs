//! Hit rates by policy and cache size, beside those of a cache that keeps everything and of one that knows the future.

use interbed_kv::EvictionKind;

use super::explain::Listener;
use super::hits::{self, Hits, share};
use super::offline::{self, Order};
use super::plot::{Line, Panel, Role, Unit};
use super::trace::Trace;
use interbed_plan::Refusal;

/// The hit rates of all policies and sizes.
pub(super) struct HitRates {
    /// The cache sizes in blocks, in ascending order, each once.
    pub sizes: Vec<usize>,
    pub policies: Vec<PolicyHits>,
    /// The hit rates by block and by token of the cache that knows the future and uses the tail of a prompt first.
    /// [size]
    pub offline: Vec<(f64, f64)>,
    /// The hit rates by block and by token of the cache that knows the future and uses the head of a prompt first.
    /// [size]
    pub offline_leaves: Vec<(f64, f64)>,
    /// The hit rate by block and by token of the cache that keeps everything.
    pub infinite: (f64, f64),
}

/// The hit rates of one policy.
pub(super) struct PolicyHits {
    pub kind: EvictionKind,
    pub runs: Vec<Hits>, // [size]
}

impl HitRates {
    /// Replays `trace` `repeat` times for each policy and size; the shortest time counts. `explain` is called once for
    /// each request with the reason of its miss. `progress` is called whenever a run has ended. There is one run for
    /// each policy and size, two more for each size, and one for all.
    ///
    /// # Errors
    /// Fails if a manager breaks its contract, or `explain` fails.
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

    /// Returns the plot over the sizes. Of the two caches that know the future, the plot shows the one that keeps
    /// heads, because a tail cannot be found without its head.
    pub fn panel(&self, trace: &Trace) -> Panel {
        let reference = |label: &str, values| Line { label: label.into(), values, role: Role::Reference };
        let policies = self.policies.iter().map(|policy| Line {
            label: policy.kind.to_string(),
            values: policy.runs.iter().map(|run| run.rate(trace)).collect(),
            role: if policy.kind == EvictionKind::default() { Role::Default } else { Role::Other },
        });
        let lines = policies.chain([
            reference("offline, leaves", self.offline_leaves.iter().map(|(by_block, _)| *by_block).collect()),
            reference("infinite", self.sizes.iter().map(|_| self.infinite.0).collect()),
        ]);
        Panel {
            heading: "Hit rate over cache size".into(),
            axis: "cache size in blocks, logarithmic".into(),
            unit: Unit::Percent,
            lines: lines.collect(),
        }
    }
}

impl PolicyHits {
    /// Returns the policy's name, with a mark if the policy is the default.
    pub fn label(&self) -> String {
        label(self.kind)
    }
}

/// Returns the name of `kind`, with a mark if `kind` is the default.
pub(super) fn label(kind: EvictionKind) -> String {
    if kind == EvictionKind::default() { format!("{kind} (default)") } else { kind.to_string() }
}
