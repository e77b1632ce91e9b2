//! Implements `interbed plan`, which tells, before reading weights, where everything would lie, what limits the speed,
//! and how fast the model would be.

mod advice;
mod bound;
mod division;
mod figure;
mod json;
mod machine;
mod measure;
mod mixture;
mod mixture_report;
mod predict;
mod report;
mod settings;
mod shape;
mod subject;
mod verdict;
mod work;

use std::num::NonZeroUsize;

use interbed_device::Bytes;
use interbed_engine::MemoryNeeds;
use interbed_weights::{BAND_LEAST, band_bytes};

use crate::progress::Progress;
use crate::refusal::Refusal;
use advice::{Advice, KvAdvice};
use bound::{Bound, Rates};
use division::{Division, NeedsWithin, Wishes};
use machine::Machine;
use predict::{Forecast, Kept, PolicyKind, Scene};
use settings::Settings;
use shape::{Cut, Shape};
use work::Work;

pub use machine::KnownFigures;
pub use mixture::MixturePlan;
pub use subject::{Subject, WeightBytes};
pub use verdict::Verdict;

/// Maximum number of sequences in one batch.
const BATCH_MAX: usize = 1 << 16;

/// Maximum number of batch sizes that are predicted.
const BATCHES_MAX: usize = 16;

/// Maximum number of units that a simulation tracks; larger models are cut into larger bands for the simulation.
const UNITS_MAX: u64 = 1 << 16;

/// Describes what to plan for: model, machine and workload.
pub struct PlanRequest<'r> {
    /// Model to plan for.
    pub subject: Subject,
    /// Figures of the machine that are known.
    pub machine: KnownFigures,
    /// Number of threads that compute.
    pub threads: NonZeroUsize,
    /// Returns the memory that each part of an engine needs within a budget of host memory, on a machine without a GPU.
    pub needs: &'r dyn Fn(Bytes) -> MemoryNeeds,
    /// Number of tokens in a pass, and the reason for this number.
    pub passes: Passes<'r>,
    /// Bytes of keys and values per token.
    pub kv_token: u64,
    /// Numbers of sequences that decode together; each number is planned.
    pub batches: Batches,
    /// Tokens of the prompt, which is also the context of decoding sequences.
    pub prompt_tokens: usize,
    /// Number of tokens of KV to make room for; `None` for as many as an engine would have.
    pub kv_tokens: Option<NonZeroUsize>,
    /// Bytes of host memory for weights; `None` for all that is left.
    pub host_weights: Option<Bytes>,
    /// Bytes of GPU memory for weights; `None` for all that is left.
    pub gpu_weights: Option<Bytes>,
}

/// Tells how many tokens a pass has.
pub struct Passes<'r> {
    /// Number of tokens in a pass.
    pub tokens: usize,
    /// Whether the user chose the number.
    pub given: bool,
    /// Default number where weights are resident.
    pub usual: usize,
    /// Returns the scratch memory and the number of tokens of longer passes, for a GPU or, without one, a host of this
    /// much memory. `None` if longer passes gain nothing where weights are streamed.
    pub longer: &'r dyn Fn(Bytes) -> Option<(Bytes, usize)>,
}

impl Passes<'_> {
    /// Divides memory for an engine with these `needs`, or for longer passes if weights are streamed and longer passes
    /// gain something and fit. Returns the number of tokens in a pass too.
    fn divide(&self, wishes: &Wishes, small: &Shape, needs: NeedsWithin<'_>) -> Result<(Division, usize), Refusal> {
        let division = Division::of(wishes, small, needs)?;
        let computing = Bytes(wishes.gpu_memory.unwrap_or(wishes.memory));
        if division.streams(small)
            && let Some((scratch, tokens)) = (self.longer)(computing)
            && let Ok(longer) = Division::of(wishes, small, &|total| MemoryNeeds { scratch, ..needs(total) })
        {
            return Ok((longer, tokens));
        }
        Ok((division, self.tokens))
    }

    /// Tells why a pass has this number of tokens.
    fn why(&self, tokens: usize) -> &'static str {
        match self.given {
            true => "given, --max-num-batched-tokens",
            false if tokens > self.usual => "about as many as are computed while weights are read",
            false => "enough for arithmetic, with little scratch",
        }
    }
}

/// Lists the numbers of sequences that decode together: ascending, each number once, 1 among them.
pub struct Batches(Vec<usize>);

impl Batches {
    /// Takes the numbers that the user asked for, and adds 1, because all other figures are for one sequence.
    ///
    /// # Errors
    /// Fails if there are too many numbers, or if one is too large.
    pub fn new(asked: &[NonZeroUsize]) -> Result<Self, Refusal> {
        if asked.len() > BATCHES_MAX {
            return Err(Refusal::new(format!("--batch has {} numbers; give at most {BATCHES_MAX}", asked.len())));
        }
        let mut batches: Vec<usize> = asked.iter().map(|batch| batch.get()).collect();
        if let Some(large) = batches.iter().find(|&&batch| batch > BATCH_MAX) {
            return Err(Refusal::new(format!("--batch {large} is too large; give at most {BATCH_MAX}")));
        }
        batches.push(1);
        batches.sort_unstable();
        batches.dedup();
        Ok(Self(batches))
    }
}

/// Holds the results of planning.
pub struct Plan {
    subject: Subject,
    machine: Machine,
    division: Division,
    settings: Settings,
    /// The model, cut into units for the policy `resident`.
    bands: Shape,
    kept: Kept,
    kv_token: u64,
    prompt_tokens: usize,
    /// Tokens of a pass.
    chunk_tokens: usize,
    /// The reason for the number of tokens of a pass.
    chunk_why: &'static str,
    /// The bound of one decoded token.
    bound: Bound,
    /// The forecast under the policy `resident`.
    forecast: Forecast,
    /// The forecast under the policy `ring`, or the reason why there is none.
    other: Result<Forecast, String>,
    advice: Vec<Advice>,
}

impl Plan {
    /// Measures the unknown figures of the machine, and plans.
    ///
    /// # Errors
    /// Fails if the prompt is longer than the model's context, if figures contradict each other, if a memory is too
    /// small, or if the disk or memory cannot be measured.
    pub fn make(request: PlanRequest<'_>, progress: &mut dyn Progress) -> Result<Self, Refusal> {
        let PlanRequest { subject, needs, passes, kv_token, prompt_tokens, .. } = request;
        let batches = &request.batches.0;
        let weights = subject.weight_bytes()?;
        let context = needs(Bytes(0)).max_model_len;
        if prompt_tokens > context {
            return Err(Refusal::new(format!(
                "--prompt-tokens is {prompt_tokens}, but {} has a context of {context}; ask for at most that",
                subject.name
            )));
        }
        progress.begin_steps("measuring", 1);
        let machine = Machine::find(&request.machine, request.threads, &subject.files()?, subject.dtype)?;
        progress.end();
        let wishes = Wishes {
            memory: machine.memory.value as u64,
            gpu_memory: machine.gpu.as_ref().map(|gpu| gpu.memory.value as u64),
            kv_tokens: request.kv_tokens.map(|tokens| tokens.get() as u64),
            host_weights: request.host_weights.map(|bytes| bytes.0),
            gpu_weights: request.gpu_weights.map(|bytes| bytes.0),
        };
        let small = subject.cut(Cut::Bands(BAND_LEAST))?;
        let (division, chunk_tokens) = passes.divide(&wishes, &small, needs)?;
        let smaller = division.device.iter().map(|device| device.units).fold(division.host.units, u64::min);
        let least = |bytes| Ok::<_, Refusal>(subject.cut(Cut::Bands(bytes))?.least_budget());
        let band_bytes = band_bytes(smaller + small.fixed_bytes(), machine.reading.chunk_bytes, least)?;
        let units = weights.whole.0.div_ceil(band_bytes as u64).div_ceil(UNITS_MAX).max(1);
        let bands = subject.cut(Cut::Bands(band_bytes.saturating_mul(usize::try_from(units)?)))?;
        let ring = if division.device.is_some() { subject.cut(Cut::Groups)? } else { bands.clone() };
        let settings = Settings::derive(machine.reading, band_bytes, &division, &bands, &ring);
        let scene = Scene {
            bands: &bands,
            ring: &ring,
            division: &division,
            settings: &settings,
            rates: rates(&machine),
            kv_token,
            prompt_tokens,
            chunk_tokens,
            batches,
        };
        let kept = scene.kept()?;
        progress.begin_steps("simulating", 2 * scene.steps() as u64);
        let resident = scene.forecast(PolicyKind::Resident, &kept, &mut || progress.advance(1))?;
        let where_computed = if division.device.is_some() { kept.device } else { kept.host };
        let ring_forecast = if where_computed < bands.swept_bytes() {
            scene.forecast(PolicyKind::Ring, &kept, &mut || progress.advance(1)).map_err(|error| error.to_string())
        } else {
            Err("every weight stays in memory, so there is nothing to slide over".to_owned())
        };
        progress.end();
        let one = Work::decode(1, prompt_tokens, kv_token).pass(&bands, kept.host as f64, kept.device as f64);
        let rates = scene.rates;
        let bound = Bound::of(&one, &rates);
        let kv = KvAdvice { tokens: division.kv.tokens, tokens_each: prompt_tokens as u64 + 1 };
        let advice = advice::advise(&one, &rates, &resident, &bands, chunk_tokens, kv);
        Ok(Self {
            bound,
            advice,
            kept,
            forecast: resident,
            other: ring_forecast,
            subject,
            machine,
            division,
            settings,
            kv_token,
            prompt_tokens,
            chunk_tokens,
            chunk_why: passes.why(chunk_tokens),
            bands,
        })
    }
}

fn rates(machine: &Machine) -> Rates {
    let flops = match &machine.gpu {
        Some(gpu) => gpu.flops.as_ref().map_or(f64::INFINITY, |flops| flops.value),
        None => machine.flops.value,
    };
    Rates {
        disk: machine.disk.value,
        host: machine.bandwidth.value,
        flops,
        host_flops: machine.flops.value,
        device: machine.gpu.as_ref().map(|gpu| (gpu.link.value, gpu.bandwidth.value)),
    }
}
