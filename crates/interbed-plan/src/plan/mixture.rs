//! Plans mixtures: which weights stay, how many experts a token reads, and how long that takes. This is pure
//! arithmetic, over the arena of experts itself.
//!
//! Weights other than experts are needed by every pass, and stay if there is room for them; experts get the rest of the
//! memory. Which experts a token needs is known when their layer begins. A pass therefore waits for each layer's reads,
//! except for what it computes with meanwhile. With perfect foresight it would wait for the disk, or compute, whichever
//! takes longer.

use std::path::PathBuf;

use interbed_model::blueprint::Blueprint;
use interbed_weights::experts::ArenaShape;
use interbed_weights::{BAND_LEAST, Partition};

use super::division::{HostPlan, Kv};
use super::machine::Machine;
use super::{PlanRequest, Subject, rates};
use crate::progress::Progress;
use crate::refusal::Refusal;
use crate::routing::{self, Routing};

/// Number of tokens of each sequence that are looked at, after the first ones, which find the memory empty.
const TOKENS: usize = 64;
const TOKENS_BEFORE: u64 = 16;

/// Maximum number of sequences of a pass. A layer of so many sequences needs nearly all experts.
const BATCH_MAX: usize = 256;

/// Skew with which a router chooses experts if nothing is known of it. The skew is about that of the traces in
/// docs/internals/experts.md.
const SKEW: f64 = 1.2;

/// Seconds from the last byte of a read to the use of what was read.
const LATENCY_S: f64 = 1e-4;

/// Holds the plan of a mixture of experts.
pub struct MixturePlan {
    pub(super) subject: Subject,
    pub(super) machine: Machine,
    /// Tells where the routing, the choice of experts for each token, comes from.
    pub(super) routing: String,
    pub(super) sizes: Sizes,
    pub(super) memory: Vec<(&'static str, u64)>,
    pub(super) kv: Kv,
    pub(super) kv_token: u64,
    pub(super) prompt_tokens: usize,
    pub(super) decode: Vec<MixtureDecode>,
    /// Batch sizes for which the trace is too short, each with the number of tokens that it would take.
    pub(super) too_many: Vec<(usize, usize)>,
    pub(super) prompt: MixturePrompt,
}

/// Counts bytes of the model and of memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Sizes {
    /// Bytes of weights that every pass needs.
    pub dense: u64,
    /// Bytes of these weights that do not stay in memory.
    pub dense_read: u64,
    /// Bytes of all experts.
    pub bank: u64,
    /// Bytes of one expert, on the mean.
    pub expert: f64,
    /// Bytes of the experts that one token needs.
    pub of_token: u64,
    /// Bytes of memory that experts may take.
    pub room: u64,
}

/// Describes a pass that decodes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct MixtureDecode {
    /// Number of sequences in the pass.
    pub batch: usize,
    /// Bytes of the experts that a pass needs, each expert counted once.
    pub needed: f64,
    /// Bytes that a pass reads from disk.
    pub read: f64,
    /// Seconds of a pass if each layer's experts are known when the layer begins.
    pub seconds: f64,
    /// Seconds of a pass if all experts were known in advance.
    pub foreseen: f64,
    /// Seconds that the disk takes for a pass.
    pub disk: f64,
    /// Seconds of computing in a pass.
    pub compute: f64,
}

/// Describes the computation of a prompt.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct MixturePrompt {
    pub passes: usize,
    pub read: f64,
    pub seconds: f64,
}

impl MixturePlan {
    /// Measures the unknown figures of the machine, and plans. `trace` is a routing that was recorded of the model;
    /// without it, one is made.
    ///
    /// # Errors
    /// Fails if the model has no experts, if there is a GPU, if the trace is of another model, if a memory is too
    /// small, or if a figure cannot be measured.
    pub fn make(
        request: PlanRequest<'_>,
        trace: Option<PathBuf>,
        progress: &mut dyn Progress,
    ) -> Result<Self, Refusal> {
        let PlanRequest { subject, needs, passes, kv_token, prompt_tokens, .. } = request;
        if request.machine.gpu_memory.is_some() || request.gpu_weights.is_some() || request.host_weights.is_some() {
            return Err(Refusal::advised(
                "mixtures of experts are planned for a processor and its memory",
                "leave the figures of a GPU out, and --host-weights",
            ));
        }
        let partition = subject.partition(BAND_LEAST)?;
        let (Some((_, shape)), Some(mixture)) = (partition.experts(), subject.config.blueprint.mixture().cloned())
        else {
            return Err(Refusal::new(format!("{} has no experts", subject.name)));
        };
        let shape = shape.clone();
        let batches = &request.batches.0;
        if let Some(large) = batches.iter().find(|&&batch| batch > BATCH_MAX) {
            return Err(Refusal::advised(
                format!("--batch {large} is too large for a mixture of experts"),
                format!("give at most {BATCH_MAX}: a layer of so many needs nearly all of its experts"),
            ));
        }
        let routings = Routings::new(trace, &shape, progress)?;
        progress.begin_steps("measuring", 1);
        let machine = Machine::find(&request.machine, request.threads, &subject.files()?, subject.dtype)?;
        progress.end();
        let kv_tokens = request.kv_tokens.map(|tokens| tokens.get() as u64);
        let HostPlan { plan, kv, others } = HostPlan::of(machine.memory.value as u64, needs, kv_tokens)?;
        let (bands, room) = match plan.streamed {
            true => partition.divide(plan.weights.0),
            false => (partition.band_memory(), shape.bank_bytes()),
        };
        let sizes = sizes(&partition, &shape, bands, room);
        let weights = [("weights of every token", bands + partition.fixed_bytes()), ("experts", room)];
        let memory = weights.into_iter().chain(others).collect();
        let model = Model {
            sizes,
            rates: rates(&machine),
            layers: shape.layers(),
            dense_parameters: dense_parameters(&subject.config.blueprint) as f64,
            head_parameters: subject.config.blueprint.vocab_size as f64 * subject.config.blueprint.hidden_size as f64,
            expert_parameters: subject.config.blueprint.expert_parameters() as f64 * mixture.expected_share(1),
            sequence_kv: prompt_tokens as f64 * kv_token as f64,
        };
        let (decode, too_many) = decodes(&model, &routings, &shape, batches, progress)?;
        let chunk = passes.tokens.min(prompt_tokens);
        let union = mixture.expected_share(chunk) * sizes.bank as f64;
        let prompt = model.prompt(prompt_tokens, chunk, union);
        let routing = routings.told;
        Ok(Self { subject, machine, routing, sizes, memory, kv, kv_token, prompt_tokens, decode, too_many, prompt })
    }
}

/// Passes that decode: the passes of the `batches` for which the routing is long enough, and the other batches, each
/// with the number of tokens that it would take.
type Decodes = (Vec<MixtureDecode>, Vec<(usize, usize)>);

fn decodes(
    model: &Model,
    routings: &Routings,
    shape: &ArenaShape,
    batches: &[usize],
    progress: &mut dyn Progress,
) -> Result<Decodes, Refusal> {
    progress.begin_steps("simulating", batches.len() as u64);
    let (mut decodes, mut too_many) = (Vec::with_capacity(batches.len()), Vec::new());
    for &batch in batches {
        match routings.of_pass(shape, batch, model.sizes.room)? {
            Some((needed, read)) => decodes.push(model.decode(batch, needed, read)),
            None => too_many.push((batch, (TOKENS_BEFORE as usize + 1) * batch)),
        }
        progress.advance(1);
    }
    progress.end();
    if decodes.is_empty() {
        let least = TOKENS_BEFORE + 1;
        return Err(Refusal::advised(
            format!("{} is too short: one sequence takes {least} generated tokens", routings.told),
            "record a longer one: interbed run MODEL --record-routing FILE -n 128",
        ));
    }
    Ok((decodes, too_many))
}

/// Counts the weights that every decoded token goes through. If the embedding is not the head too, a token reads one
/// row of it.
fn dense_parameters(blueprint: &Blueprint) -> u64 {
    let embedding = (blueprint.vocab_size as u64).saturating_mul(blueprint.hidden_size as u64);
    let read_by_row = if blueprint.head.is_tied { 0 } else { embedding };
    blueprint.num_parameters().saturating_sub(blueprint.expert_parameters()).saturating_sub(read_by_row)
}

fn sizes(partition: &Partition, shape: &ArenaShape, bands: u64, room: u64) -> Sizes {
    let (slabs, bank) = ((shape.layers() * shape.experts()).max(1), partition.expert_bytes());
    let expert = bank as f64 / slabs as f64;
    Sizes {
        dense: partition.swept_bytes(),
        dense_read: partition.band_memory().saturating_sub(bands).min(partition.swept_bytes()),
        bank,
        expert,
        of_token: (expert * (shape.layers() * shape.top_k()) as f64) as u64,
        room,
    }
}

/// Knows which experts tokens need, from a trace or made up.
struct Routings {
    trace: Option<Routing>,
    told: String,
}

impl Routings {
    fn new(trace: Option<PathBuf>, shape: &ArenaShape, progress: &mut dyn Progress) -> Result<Self, Refusal> {
        let Some(path) = trace else {
            let told = format!("made, as no --routing is given: experts of rank r as 1 / r^{SKEW}");
            return Ok(Self { trace: None, told });
        };
        let (head, routing) = routing::read_routing(&path, progress)?;
        let of = routing.shape();
        if (of.layers(), of.experts()) != (shape.layers(), shape.experts()) {
            return Err(Refusal::advised(
                format!(
                    "{} is of {} layers with {} experts, and this model has {} with {}",
                    path.display(),
                    of.layers(),
                    of.experts(),
                    shape.layers(),
                    shape.experts()
                ),
                "record one: interbed run MODEL --record-routing FILE",
            ));
        }
        let fewer = match of.top_k() == shape.top_k() {
            true => String::new(),
            false => format!(", {} experts for each token instead of {}", of.top_k(), shape.top_k()),
        };
        Ok(Self { trace: Some(routing), told: format!("{}, of {}{fewer}", path.display(), head.model) })
    }

    /// Returns the bytes of the experts that a pass of `batch` sequences needs, and the bytes that it reads with `room`
    /// bytes for experts. Returns `None` if the trace is too short for this batch.
    fn of_pass(&self, shape: &ArenaShape, batch: usize, room: u64) -> Result<Option<(f64, f64)>, Refusal> {
        let routing = match &self.trace {
            Some(trace) => trace.side_by_side(batch),
            None => {
                let steps = TOKENS_BEFORE as usize + TOKENS;
                Routing::zipf(0, shape.clone(), steps * batch, SKEW, 0.0).side_by_side(batch)
            }
        };
        if routing.passes().len() as u64 <= TOKENS_BEFORE {
            return Ok(None);
        }
        let bytes_of = |layer: u32| routing.shape().slab_bytes(layer) as f64;
        let counted = &routing.passes()[TOKENS_BEFORE as usize..];
        let visits = counted.iter().flat_map(|pass| &pass.visits);
        let needed: f64 = visits.map(|visit| visit.wanted.len() as f64 * bytes_of(visit.layer)).sum();
        let needed = needed / counted.len() as f64;
        // A trace with fewer experts for each token asks for as large a share of more.
        let more = shape.token_bytes() as f64 / routing.shape().token_bytes() as f64;
        let needed = (needed * more).min(shape.bank_bytes() as f64);
        let share = room as f64 / shape.bank_bytes() as f64;
        if share >= 1.0 {
            return Ok(Some((needed, 0.0)));
        }
        let budget = (share * routing.shape().bank_bytes() as f64) as u64;
        let budget = budget.max(routing.shape().least_bytes());
        let from = TOKENS_BEFORE * batch as u64;
        let read = routing::read_bytes_per_token(&routing, budget, from)?;
        Ok(Some((needed, (read * batch as f64 * more).min(needed))))
    }
}

/// Holds the figures from which times are computed.
struct Model {
    sizes: Sizes,
    rates: super::bound::Rates,
    layers: usize,
    /// Number of weights that every token goes through.
    dense_parameters: f64,
    /// Number of these weights that belong to the head.
    head_parameters: f64,
    /// Number of weights in the experts that a token needs.
    expert_parameters: f64,
    /// Bytes of one sequence's KV.
    sequence_kv: f64,
}

impl Model {
    /// Predicts a pass that needs `needed` bytes of experts and reads `read` of them from disk.
    fn decode(&self, batch: usize, needed: f64, read: f64) -> MixtureDecode {
        let Self { sizes, rates, layers, .. } = self;
        let operations = |parameters: f64| 2.0 * parameters * batch as f64 / rates.flops;
        // What comes from disk crosses memory once more.
        let dense_bytes = (sizes.dense + sizes.dense_read) as f64 + batch as f64 * self.sequence_kv;
        let dense = (dense_bytes / rates.host).max(operations(self.dense_parameters));
        let experts = ((needed + read) / rates.host).max(operations(self.expert_parameters));
        let (dense_disk, expert_disk) = (sizes.dense_read as f64 / rates.disk, read / rates.disk);
        let missed = if needed > 0.0 { (read / needed).min(1.0) } else { 0.0 };
        // Misses of a layer: while one is read, those before it are computed with.
        let misses = read / sizes.expert.max(1.0) / *layers as f64;
        let last = experts * missed / misses.max(1.0);
        let latency = LATENCY_S * misses.min(1.0) * *layers as f64;
        let seconds = dense.max(dense_disk) + (expert_disk + latency).max(experts * (1.0 - missed)) + last;
        let (disk, compute) = (dense_disk + expert_disk, dense + experts);
        let foreseen = disk.max(compute);
        MixtureDecode {
            batch,
            needed,
            read: read + sizes.dense_read as f64,
            // Where little is read, all of it hides behind what there is to compute.
            seconds: seconds.max(foreseen),
            foreseen,
            disk,
            compute,
        }
    }

    /// Predicts a prompt computed in chunks that each need `union` bytes of experts, of which memory holds the share
    /// that it holds of all experts.
    fn prompt(&self, tokens: usize, chunk: usize, union: f64) -> MixturePrompt {
        let Self { sizes, rates, .. } = self;
        let passes = tokens.div_ceil(chunk.max(1)).max(1);
        let kept = (sizes.room as f64 / sizes.bank.max(1) as f64).min(1.0);
        let read = union * (1.0 - kept) + sizes.dense_read as f64;
        let bytes = sizes.dense as f64 + union + 2.0 * read;
        // The head is for one token of the prompt.
        let of_token = self.dense_parameters - self.head_parameters + self.expert_parameters;
        let operations = 2.0 * (of_token * chunk as f64 + self.head_parameters);
        let seconds = (read / rates.disk).max(bytes / rates.host).max(operations / rates.flops);
        MixturePrompt { passes, read: read * passes as f64, seconds: seconds * passes as f64 }
    }
}
