//! Predicts how long passes will take: runs the planners themselves on simulated hardware with a virtual clock.

use interbed_weights::window::{
    Phase, Policy, TierConfig, Tiers, TiersConfig, UnitId, Window, WindowConfig, WindowError,
};

use super::bound::{Bound, Rates};
use super::division::{Division, Tier};
use super::settings::Settings;
use super::shape::Shape;
use super::work::{Work, kv_per_byte};
use crate::refusal::Refusal;
use crate::simulation::{ChannelSpec, Faults, PassReport, SimulatedMachine, Simulation, SimulationError};

/// Nanoseconds from a read's last byte to its completion, about that of NVMe.
const DISK_LATENCY_NS: u64 = 100_000;

/// Nanoseconds that a copy takes in addition to the time for its bytes.
const LINK_LATENCY_NS: u64 = 10_000;

/// Number of passes that are averaged, after one pass that lets the memories settle.
const PASSES: usize = 2;

/// Maximum number of seconds of a pass. Figures that give more are taken for typing errors. The clock has room for many
/// such passes.
const PASS_SECONDS_MAX: f64 = 1e6;

/// Names the policy that is simulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PolicyKind {
    /// The policy `resident`: a fixed part of the weights stays in memory.
    Resident,
    /// The policy `ring`: a window of weights in memory slides along with the pass.
    Ring,
}

impl PolicyKind {
    /// Returns the policy's name in the option `--stream-policy`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Resident => "resident",
            Self::Ring => "ring",
        }
    }
}

/// Holds everything that a prediction depends on.
#[derive(Debug)]
pub(super) struct Scene<'a> {
    /// The model, cut into units for the policy `resident`.
    pub bands: &'a Shape,
    /// The model, cut into units for the policy `ring`.
    pub ring: &'a Shape,
    pub division: &'a Division,
    pub settings: &'a Settings,
    pub rates: Rates,
    /// Bytes of keys and values for one token.
    pub kv_token: u64,
    /// Number of tokens of the prompt. Decoding sequences have this number of tokens before them too.
    pub prompt_tokens: usize,
    /// Number of a prompt's tokens that one pass takes.
    pub chunk_tokens: usize,
    /// Numbers of sequences that decode together; each number is predicted.
    pub batches: &'a [usize],
}

/// Bytes of weights that stay in host and device memory under the policy `resident`; `M_h` and `M_d` in formulas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kept {
    pub host: u64,
    pub device: u64,
    /// Number of units that stay in the host, and in the device.
    pub units: (usize, usize),
}

/// Predicts a pass that decodes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Decode {
    /// Number of sequences in the pass.
    pub batch: usize,
    /// Seconds of one pass.
    pub seconds: f64,
    /// Least time that any policy takes for the pass.
    pub bound: Bound,
    /// Bytes that one pass reads from disk.
    pub disk_bytes: f64,
    /// Seconds in which computing waits for weights.
    pub stall_seconds: f64,
    /// Share of reading and copying that computing hides: 1 - stall ÷ I/O.
    pub overlap: f64,
}

/// Predicts the computation of a prompt.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Prompt {
    /// Number of passes, one for each chunk.
    pub passes: usize,
    /// Seconds from the start of the first pass to the first token.
    pub seconds: f64,
    /// Least number of seconds that any policy takes.
    pub bound_seconds: f64,
    /// Name of the longest term in the first chunk's bound.
    pub bound_by: &'static str,
}

/// Predicts how fast a model runs under one policy.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Forecast {
    pub policy: PolicyKind,
    /// Seconds of loading before the first pass.
    pub warm_up_seconds: f64,
    /// Bytes that are loaded from disk before the first pass.
    pub warm_up_bytes: u64,
    pub prompt: Prompt,
    pub decode: Vec<Decode>,
}

impl Scene<'_> {
    /// Returns how many bytes of weights stay in memory.
    ///
    /// # Errors
    /// Fails if budgets are too small.
    pub fn kept(&self) -> Result<Kept, WindowError> {
        let sum = |stays: &dyn Fn(UnitId) -> bool| {
            let staying = self.bands.units.iter().zip(0..).filter(|(_, index)| stays(UnitId(*index)));
            staying.fold((0, 0), |(bytes, units), (unit, _)| (bytes + unit.bytes, units + 1))
        };
        let (host, device) = match self.planned(PolicyKind::Resident)? {
            Planned::One(window) => (sum(&|unit| window.is_resident(unit)), (0, 0)),
            Planned::Two(tiers) => (
                // What is in the device need not be in the host, even where there is room.
                sum(&|unit| tiers.host().is_resident(unit) && !tiers.device().is_resident(unit)),
                sum(&|unit| tiers.device().is_resident(unit)),
            ),
        };
        Ok(Kept { host: host.0, device: device.0, units: (host.1, device.1) })
    }

    /// Simulates a policy; `step` is called after the warm-up, the prompt and each batch size.
    ///
    /// # Errors
    /// Fails if budgets are too small for the policy, or if figures make no sense.
    pub fn forecast(&self, policy: PolicyKind, kept: &Kept, step: &mut dyn FnMut()) -> Result<Forecast, Refusal> {
        let slowest =
            self.batches.iter().map(|&batch| self.bound(&self.decode(batch), kept).seconds()).fold(0.0, f64::max);
        let slowest = slowest.max(self.bound(&self.chunk(0), kept).seconds());
        if slowest > PASS_SECONDS_MAX {
            return Err(Refusal::new(format!(
                "one pass would take {slowest:.0} seconds, {:.0} days: check the machine's figures, or plan less \
                 --batch and --max-num-batched-tokens",
                slowest / 86_400.0
            )));
        }
        let mut run = Run::new(self, policy, *kept)?;
        let warm_up_seconds = run.simulation.warm_up();
        let warm_up_bytes = run.simulation.host().counters().bytes_loaded;
        step();
        let prompt = self.run_prompt(&mut run, kept, step)?;
        run.set_phase(Phase::Decode);
        let mut decode = Vec::new();
        for &batch in self.batches {
            decode.push(self.run_decode(&mut run, batch, kept)?);
            step();
        }
        Ok(Forecast { policy, warm_up_seconds, warm_up_bytes, prompt, decode })
    }

    /// Returns how often a forecast calls `step`.
    pub fn steps(&self) -> usize {
        2 + self.batches.len()
    }

    fn decode(&self, batch: usize) -> Work {
        Work::decode(batch, self.prompt_tokens, self.kv_token)
    }

    fn num_chunks(&self) -> usize {
        self.prompt_tokens.div_ceil(self.chunk_tokens).max(1)
    }

    fn chunk(&self, index: usize) -> Work {
        let before = index * self.chunk_tokens;
        let tokens = self.chunk_tokens.min(self.prompt_tokens - before);
        Work::prefill(tokens, before, index + 1 == self.num_chunks(), self.kv_token)
    }

    fn bound(&self, load: &Work, kept: &Kept) -> Bound {
        Bound::of(&load.pass(self.bands, kept.host as f64, kept.device as f64), &self.rates)
    }

    /// Simulates the first chunks, the last chunk, and one of the chunks between, which stands for all of them.
    fn run_prompt(&self, run: &mut Run<'_>, kept: &Kept, step: &mut dyn FnMut()) -> Result<Prompt, Refusal> {
        let passes = self.num_chunks();
        let (mut seconds, mut bound_seconds) = (0.0, 0.0);
        let slots = |slots: usize, tier: &Tier| (slots as u64 * self.bands.largest()).min(tier.units);
        let full = Kept {
            host: kept.host + slots(self.settings.host.stream_slots, &self.division.host),
            device: kept.device
                + self.division.device.as_ref().map_or(0, |tier| slots(self.settings.device.stream_slots, tier)),
            units: kept.units,
        };
        let mut simulate = |index: usize, times: usize| -> Result<(), Refusal> {
            let load = self.chunk(index);
            seconds += run.pass(&load)?.seconds * times as f64;
            // The slots are full when the first pass begins; later passes find them so at the cost of those before.
            let kept = if index == 0 { &full } else { kept };
            bound_seconds += self.bound(&load, kept).seconds() * times as f64;
            Ok(())
        };
        match passes {
            0..=4 => (0..passes).try_for_each(|index| simulate(index, 1))?,
            _ => {
                simulate(0, 1)?;
                simulate(1, 1)?;
                simulate(passes / 2, passes - 3)?;
                simulate(passes - 1, 1)?;
            }
        }
        step();
        let bound_by = self.bound(&self.chunk(0), kept).binding().name;
        Ok(Prompt { passes, seconds, bound_seconds, bound_by })
    }

    fn run_decode(&self, run: &mut Run<'_>, batch: usize, kept: &Kept) -> Result<Decode, Refusal> {
        let load = self.decode(batch);
        run.pass(&load)?;
        let reports = (0..PASSES).map(|_| run.pass(&load)).collect::<Result<Vec<PassReport>, SimulationError>>()?;
        let mean = |of: fn(&PassReport) -> f64| reports.iter().map(of).sum::<f64>() / PASSES as f64;
        Ok(Decode {
            batch,
            seconds: mean(|report| report.seconds),
            bound: self.bound(&load, kept),
            disk_bytes: mean(|report| report.host_bytes_loaded as f64),
            stall_seconds: mean(|report| report.stall_seconds),
            overlap: mean(PassReport::overlap_efficiency),
        })
    }

    fn shape(&self, policy: PolicyKind) -> &Shape {
        match policy {
            PolicyKind::Resident => self.bands,
            PolicyKind::Ring => self.ring,
        }
    }

    fn planned(&self, policy: PolicyKind) -> Result<Planned, WindowError> {
        let shape = self.shape(policy);
        let (unit_bytes, order): (Vec<u64>, Vec<UnitId>) =
            shape.units.iter().zip(0..).map(|(unit, index)| (unit.memory, UnitId(index))).unzip();
        let (host, device) = match policy {
            PolicyKind::Resident => (Policy::Resident(self.settings.host), Policy::Resident(self.settings.device)),
            PolicyKind::Ring => {
                (Policy::Ring(self.settings.host_ring.clone()), Policy::Ring(self.settings.device_ring.clone()))
            }
        };
        let budget = self.division.host.units;
        Ok(match &self.division.device {
            None => {
                let config = WindowConfig { unit_bytes, order, budget, policy: host, load_attempts: 1 };
                Planned::One(Box::new(Window::new(config)?))
            }
            Some(tier) => Planned::Two(Box::new(Tiers::new(TiersConfig {
                unit_bytes,
                order,
                host: TierConfig { budget, policy: host },
                device: TierConfig { budget: tier.units, policy: device },
                load_attempts: 1,
                credits: self.settings.credits,
            })?)),
        })
    }
}

enum Planned {
    One(Box<Window>),
    Two(Box<Tiers>),
}

/// Holds a simulation in progress.
struct Run<'a> {
    shape: &'a Shape,
    rates: Rates,
    kv_per_byte: f64,
    /// Bytes that stay under the policy `resident`.
    kept: Kept,
    simulation: Simulation,
}

impl<'a> Run<'a> {
    fn new(scene: &'a Scene<'_>, policy: PolicyKind, kept: Kept) -> Result<Self, Refusal> {
        let shape = scene.shape(policy);
        let depth = scene.settings.reading.depth;
        let disk = ChannelSpec { bytes_per_s: scene.rates.disk, latency_ns: DISK_LATENCY_NS, depth };
        let link = scene.rates.device.map(|(link, _)| ChannelSpec {
            bytes_per_s: link,
            latency_ns: LINK_LATENCY_NS,
            depth: scene.settings.credits.of(Phase::Prefill),
        });
        let machine = SimulatedMachine { disk, link, faults: Faults::default(), seed: 0 };
        let bytes = shape.units.iter().map(|unit| unit.memory).collect();
        let simulation = match scene.planned(policy)? {
            Planned::One(window) => Simulation::one_tier(*window, bytes, machine)?,
            Planned::Two(tiers) => Simulation::two_tiers(*tiers, bytes, machine)?,
        };
        Ok(Self { shape, rates: scene.rates, kv_per_byte: kv_per_byte(shape), kept, simulation })
    }

    fn set_phase(&mut self, phase: Phase) {
        self.simulation.with_tiers(|tiers, out| tiers.set_phase(phase, out));
    }

    fn pass(&mut self, load: &Work) -> Result<PassReport, SimulationError> {
        let Kept { host, device, .. } = self.kept;
        let computes = load.pass(self.shape, host as f64, device as f64).host_computes(&self.rates);
        self.simulation.with_tiers(|tiers, out| tiers.set_host_computes(computes, out));
        let touched = self.shape.units.iter().zip(0..).filter(|(unit, _)| load.touches(unit));
        let units: Vec<UnitId> = touched.map(|(_, index)| UnitId(index)).collect();
        let times: Vec<u64> = self
            .shape
            .units
            .iter()
            .zip(0..)
            .map(|(unit, index)| {
                if self.simulation.is_computed_by_host(UnitId(index)) {
                    return load.host_ns(unit, &self.rates);
                }
                let streamed = !self.simulation.host().is_resident(UnitId(index));
                load.compute_ns(unit, streamed, self.kv_per_byte, &self.rates)
            })
            .collect();
        self.simulation.run_pass(&units, |unit| times[unit.index()])
    }
}

#[cfg(test)]
mod tests {
    use interbed_kernels::DType;

    use super::super::division::Kv;
    use super::super::figure::Reading;
    use super::super::shape::Cut;
    use super::super::shape::tests::shape_of;
    use super::*;

    /// The layers of a model of 70 billion numbers, without the head.
    fn layers(cut: Cut) -> Shape {
        let mut shape = shape_of("llama-3-70b", DType::BF16, cut);
        let num_layers = shape.num_layers;
        shape.units.retain(|unit| unit.layer < num_layers);
        shape
    }

    /// Seconds per token on a machine of 85 GB and a GPU of 9 GB for weights, and bytes from disk.
    fn token(disk: f64, policy: PolicyKind) -> (f64, f64) {
        let (bands, ring) = (layers(Cut::Bands(32 << 20)), layers(Cut::Groups));
        let tier = |units: u64| Tier { total: units, units, others: Vec::new() };
        let division = Division {
            host: tier(85_000_000_000),
            device: Some(tier(9_000_000_000)),
            kv: Kv { tokens: 1, tokens_max: 1, bytes: 1, streams_below: None },
        };
        let reading = Reading { chunk_bytes: 4 << 20, depth: 4, tried: false };
        let settings = Settings::derive(reading, 32 << 20, &division, &bands, &ring);
        let scene = Scene {
            bands: &bands,
            ring: &ring,
            division: &division,
            settings: &settings,
            rates: Rates { disk, host: 60e9, flops: 1.1e14, host_flops: 2e12, device: Some((4.15e10, 9.6e11)) },
            kv_token: 320 << 10,
            prompt_tokens: 128,
            chunk_tokens: 128,
            batches: &[1],
        };
        let kept = scene.kept().expect("budgets that work");
        let forecast = scene.forecast(policy, &kept, &mut || ()).expect("figures that make sense");
        (forecast.decode[0].seconds, forecast.decode[0].disk_bytes)
    }

    #[test]
    fn a_machine_takes_what_its_disk_and_memories_allow() {
        for (disk, expected) in [(3e9, 45.6), (3.5e9, 39.1), (4.45e9, 30.8)] {
            let (seconds, bytes) = token(disk, PolicyKind::Ring);
            assert!((seconds / expected - 1.0).abs() < 0.03, "ring at {disk}: {seconds} s for {expected}");
            assert!((bytes / 136.9e9 - 1.0).abs() < 0.03, "ring at {disk}: {bytes} bytes");
        }
        let (seconds, bytes) = token(4.45e9, PolicyKind::Resident);
        assert!((seconds / 9.64 - 1.0).abs() < 0.04, "resident: {seconds} s");
        assert!((bytes / 42.9e9 - 1.0).abs() < 0.04, "resident: {bytes} bytes");
    }
}
