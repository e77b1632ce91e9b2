//! Weights that do not fit into memory: how they are read, and the report of it.

use std::sync::Arc;

use anyhow::{Context, Result};
use strata_device::Bytes;
use strata_io::{DirectRead, DiskTurns, ProbeLimits, ReadSettings, probe};
use strata_weights::{
    ElasticWeights, StreamConfig, StreamMonitor, StreamPlan, StreamedWeights, WeightError, band_bytes, open_direct,
};

use crate::model_dir::ModelDir;
use crate::options::StreamOptions;
use crate::progress;
use crate::report::report;

/// How weights are streamed, and the figures that can be read while the engine computes.
pub struct Streaming {
    pub monitor: Arc<StreamMonitor>,
    pub settings: ReadSettings,
    pub files: Vec<Arc<dyn DirectRead>>,
    /// Bytes of weights that the budget could keep in memory, under the policy that keeps most.
    pub most_resident: u64,
}

impl Drop for Streaming {
    fn drop(&mut self) {
        self.monitor.stop();
    }
}

/// Measures the disk with the help of `room`, which is still unused, and starts streaming within `budget`, loading the
/// weights that stay in memory. `turns` are those of KV on the same disk.
///
/// # Errors
/// A file that cannot be read, a budget that is too small, memory that the system refuses.
pub fn start(
    dir: &ModelDir,
    budget: Bytes,
    room: Bytes,
    options: &StreamOptions,
    turns: Option<Arc<DiskTurns>>,
) -> Result<(StreamedWeights, Streaming)> {
    let files = open_direct(&dir.catalog)?;
    let settings = try_out(&files, room)?;
    report!("reads   {settings}");
    let least =
        |bytes| Ok::<_, WeightError>(StreamPlan::new(&dir.catalog, &dir.specs, bytes)?.partition().least_budget());
    let band_bytes = band_bytes(budget.0, settings.chunk_bytes, least)?;
    let plan = StreamPlan::new(&dir.catalog, &dir.specs, band_bytes)?;
    let config = StreamConfig {
        budget: budget.0,
        engine: settings.engine,
        depth: settings.depth,
        disk_bytes_per_s: settings.bytes_per_s,
        policy: options.stream_policy.into(),
        timeline: options.timeline,
        turns,
    };
    let most_resident = plan.resident_bytes(&config)?;
    let bar = progress::bytes("loading", 0);
    let weights = StreamedWeights::start(plan, &dir.catalog, files.clone(), config, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    })?;
    bar.finish_and_clear();
    let monitor = weights.monitor();
    let (resident, swept) = (weights.resident_bytes(), monitor.swept_bytes());
    report!(
        "stream  {:>10}  of {} stay in memory, {} come from disk in each pass",
        Bytes(resident.min(swept)),
        Bytes(swept),
        Bytes(swept.saturating_sub(resident))
    );
    Ok((weights, Streaming { monitor, settings, files, most_resident }))
}

/// Tries how the largest of the files is read best.
fn try_out(files: &[Arc<dyn DirectRead>], room: Bytes) -> Result<ReadSettings> {
    let largest = files.iter().max_by_key(|file| file.len()).context("the model has no files")?;
    let usual = ProbeLimits::default();
    let memory_bytes = usize::try_from(room.0).unwrap_or(usize::MAX).min(usual.memory_bytes);
    Ok(probe(largest, 0..largest.len(), &ProbeLimits { memory_bytes, ..usual })?)
}
