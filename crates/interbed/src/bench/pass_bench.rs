//! Loads a model under each streaming policy, and measures passes of each shape beside the bound of their time.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::ValueEnum;
use interbed_engine::DeviceStats;
use interbed_weights::StreamStats;

use super::limits::Bound;
use super::median;
use super::pair::Pair;
use super::passes::{MeasuredPasses, Measurement, Sizes};
use super::work::ModelWork;
use crate::audience::Surroundings;
use crate::load::load_onto;
use crate::model_dir::ModelDir;
use crate::options::{LimitOptions, StreamPolicyOption};
use crate::place::ComputePlace;
use crate::streaming::Streaming;
use crate::{progress, timeline};

/// The number of bytes that are read for one measurement of the disk.
const DISK_SAMPLE: u64 = 1 << 30;

/// What is measured of which model.
pub struct PassBench {
    pub dir: ModelDir,
    pub limits: LimitOptions,
    pub work: ModelWork,
    pub sizes: Sizes,
    /// The streaming policies to compare. `None` measures the model as the options load it, streamed or not.
    pub policies: Option<Vec<StreamPolicyOption>>,
    /// The path of the file for the timeline.
    pub timeline: Option<PathBuf>,
    pub json: bool,
}

/// A model that is loaded for measurements.
pub struct Trial {
    pub passes: MeasuredPasses,
    /// Streams the weights, if they are streamed.
    pub streamed: Option<Streaming>,
    /// The bytes per second of all measurements of the disk.
    disks: Vec<f64>,
}

/// The measurement of one decode batch or prompt length.
pub struct PassFigure {
    pub of: Measurement,
    /// The streaming policy, if weights are streamed.
    pub policy: Option<StreamPolicyOption>,
    /// The time and its bound, in seconds. Each bound holds for the moment of its pass.
    pub time: Pair,
    /// The limit that sets the median bound.
    pub limit: &'static str,
    /// What all passes together have streamed.
    pub streamed: StreamStats,
    /// The minimum number of bytes that one repetition must read from disk.
    pub least_bytes: f64,
    /// The number of bytes of weights that the policy keeps in memory.
    pub resident_bytes: u64,
    /// The median speed of the disk, in bytes per second, if it was measured.
    pub disk: Option<f64>,
    /// The figures of the device before and after the passes, if it has any.
    pub device: Option<[DeviceStats; 2]>,
}

impl PassBench {
    /// Measures all shapes under each policy on the device of `place`. `measure` does some work once more, for the time
    /// with this number, and returns how many seconds that took, and the bound at this moment.
    ///
    /// # Errors
    /// Fails if memory is too small, nothing is streamed although policies are compared, or a pass fails.
    pub fn measured(
        &self,
        place: &dyn ComputePlace,
        surroundings: &Surroundings<'_>,
        mut measure: impl FnMut(&mut Trial, &Measurement, usize) -> Result<(f64, Bound)>,
    ) -> Result<Vec<PassFigure>> {
        let usual = [self.limits.stream.stream_policy];
        let mut figures = Vec::new();
        for &policy in self.policies.as_deref().unwrap_or(&usual) {
            let mut trial = self.load(place, surroundings, policy)?;
            let bar = progress::steps("measuring", self.sizes.rounds() as u64);
            for shape in self.sizes.shapes() {
                let of = trial.passes.prepare(shape, &self.sizes, &self.work)?;
                let (begin, before, num_disks) = (trial.stats(), trial.device(), trial.disks.len());
                let mut bounds = Vec::new();
                let time = Pair::measured(of.repeat, &bar, |number| {
                    let (seconds, bound) = measure(&mut trial, &of, number)?;
                    bounds.push(bound);
                    Ok([seconds, bound.seconds])
                })?;
                let disks = trial.disks[num_disks..].to_vec();
                figures.push(PassFigure {
                    policy: trial.streamed.as_ref().map(|_| policy),
                    time,
                    limit: Bound::median(bounds).limit,
                    streamed: trial.stats().since(&begin),
                    least_bytes: trial.least_bytes(&of),
                    resident_bytes: trial.resident_bytes(),
                    disk: (!disks.is_empty()).then(|| median(disks)),
                    device: before.zip(trial.device()).map(|(before, after)| [before, after]),
                    of,
                });
            }
            bar.finish_and_clear();
            if let (Some(path), Some(streaming)) = (&self.timeline, &trial.streamed) {
                timeline::write(streaming, path)?;
            }
        }
        Ok(figures)
    }

    fn load(
        &self,
        place: &dyn ComputePlace,
        surroundings: &Surroundings<'_>,
        policy: StreamPolicyOption,
    ) -> Result<Trial> {
        let mut limits = self.limits.clone();
        limits.stream.stream_policy = policy;
        limits.stream.timeline = self.timeline.is_some();
        let mut runnable = load_onto(place, &self.dir, &limits, surroundings)?;
        let division = &runnable.division;
        let (memory, option) = match division.device {
            Some(_) => ("the GPU's memory".to_owned(), "--gpu-memory"),
            None => (division.plan.budget.total().to_string(), "--memory"),
        };
        if self.policies.is_some() && runnable.streamed.is_none() {
            bail!(
                "{} fits into {memory}, so that nothing is streamed; give a smaller {option}, or measure it with \
                 `interbed bench`",
                self.dir.name()
            );
        }
        self.sizes.check(division, option)?;
        let streamed = runnable.streamed.take();
        let passes = MeasuredPasses::new(runnable, self.dir.config.blueprint.vocab_size, &self.sizes)?;
        Ok(Trial { passes, streamed, disks: Vec::new() })
    }
}

impl Trial {
    /// Returns what has been streamed so far.
    pub fn stats(&self) -> StreamStats {
        self.passes.runner.weights.monitor.as_ref().map(|monitor| monitor.stats()).unwrap_or_default()
    }

    fn device(&self) -> Option<DeviceStats> {
        self.passes.runner.device.stats()
    }

    /// Returns the number of bytes that some work must read from disk: those of the weights that the budget cannot keep
    /// in memory, in each pass.
    pub fn least_bytes(&self, of: &Measurement) -> f64 {
        let streamed = |streaming: &Streaming| {
            let swept = streaming.monitor.swept_bytes();
            swept - streaming.most_resident.min(swept)
        };
        (self.streamed.as_ref().map_or(0, streamed) * of.passes as u64) as f64
    }

    fn resident_bytes(&mut self) -> u64 {
        self.passes.runner.model.weights().elastic().map_or(0, |weights| weights.resident_bytes())
    }

    /// Measures plain direct reads of the middle of the model's largest file, and returns their bytes per second.
    ///
    /// # Errors
    /// Fails if a read fails, or the weights are not streamed.
    pub fn disk_bandwidth(&mut self) -> Result<f64> {
        let Some(streaming) = &self.streamed else { bail!("nothing is read from the disk") };
        let file = streaming.largest_file()?;
        let start = file.len().saturating_sub(DISK_SAMPLE) / 2;
        let part = start..start + DISK_SAMPLE;
        if self.disks.is_empty() {
            // The data of passes has been read before, too.
            streaming.read_rate(&file, part.clone())?;
        }
        let rate = streaming.read_rate(&file, part)?;
        self.disks.push(rate);
        Ok(rate)
    }
}

impl PassFigure {
    /// Returns the name of the streaming policy, if weights are streamed.
    pub fn policy(&self) -> Option<String> {
        Some(self.policy?.to_possible_value()?.get_name().to_owned())
    }

    /// Returns the number of tokens that one repetition computes.
    pub fn tokens(&self) -> f64 {
        self.of.shape.tokens() as f64
    }

    pub fn tokens_per_s(&self) -> f64 {
        self.tokens() / self.time.first
    }

    /// Returns the bound in tokens per second. The number follows from the share of the bound, which is a median of
    /// ratios measured side by side.
    pub fn tokens_per_s_bound(&self) -> f64 {
        self.tokens_per_s() / self.time.ratio
    }

    /// Returns a number of bytes of all passes as that of one repetition.
    pub fn each(&self, bytes: u64) -> f64 {
        bytes as f64 / self.of.repeat as f64
    }
}
