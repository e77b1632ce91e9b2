//! Weights that do not fit into memory: how they are read, and the report of it.

use std::sync::Arc;

use anyhow::Result;
use strata_device::Bytes;
use strata_io::EngineKind;
use strata_weights::{StreamConfig, StreamPlan, StreamedWeights, WeightError, open_direct};

use crate::load::ModelDir;
use crate::options::StreamOptions;
use crate::progress;

/// The smallest bands that matrices are cut into, in bytes; what the least budget is counted with.
pub const BAND_LEAST: usize = 256 << 10;

/// Bands pass through several slots; together they should take no more than one part in so many of the budget.
const BAND_SHARE: u64 = 64;

const CHUNK_BYTES: usize = 4 << 20;
const DEPTH: usize = 4;

/// Memory that weights take at least when they are streamed.
///
/// # Errors
/// The tensors do not fit the configuration.
pub fn least_bytes(dir: &ModelDir) -> Result<Bytes, WeightError> {
    Ok(Bytes(StreamPlan::new(&dir.catalog, &dir.specs, BAND_LEAST)?.least_budget()))
}

/// Tries out the disk and starts streaming within `budget`, loading what is to stay.
///
/// # Errors
/// A file that cannot be read, a budget that is too small, memory that the system refuses.
pub fn start(dir: &ModelDir, budget: Bytes, options: &StreamOptions) -> Result<Arc<StreamedWeights>> {
    let files = open_direct(&dir.catalog)?;
    let band_bytes = band_bytes(budget, CHUNK_BYTES);
    let plan = StreamPlan::new(&dir.catalog, &dir.specs, band_bytes)?;
    let config = StreamConfig {
        budget: budget.0,
        engine: EngineKind::Pread,
        depth: DEPTH,
        policy: options.stream_policy.into(),
        timeline: options.timeline.is_some(),
    };
    let bar = progress::bytes("loading", 0);
    let weights = StreamedWeights::start(plan, &dir.catalog, files, config, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    })?;
    bar.finish_and_clear();
    let (resident, swept) = (weights.resident_bytes(), weights.swept_bytes());
    eprintln!(
        "stream  {:>10}  of {} stay in memory, {} come from disk in each pass",
        Bytes(resident.min(swept)),
        Bytes(swept),
        Bytes(swept.saturating_sub(resident))
    );
    Ok(Arc::new(weights))
}

/// Bands as large as a read should be, if the budget has room for the slots that they pass through.
fn band_bytes(budget: Bytes, chunk_bytes: usize) -> usize {
    let affordable = usize::try_from(budget.0 / BAND_SHARE).unwrap_or(usize::MAX);
    chunk_bytes.min(affordable).max(BAND_LEAST)
}
