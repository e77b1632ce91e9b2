//! Replays run the block manager over a trace of requests, without a model.

mod azure;
mod comparison;
mod entry;
mod explain;
mod fleet;
mod hit_rates;
mod hits;
pub(crate) mod json;
mod load;
mod mooncake;
mod offline;
mod operations;
pub(crate) mod plot;
mod reader;
mod report;
mod room;
mod tiers;
mod trace;

use std::fs::{self, File};
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use interbed_device::Bytes;
use interbed_kv::{EvictionKind, KvConfig};

use crate::eviction::POLICIES;
use comparison::{Comparison, Question};
use explain::{Case, Listener};
use hit_rates::HitRates;
use interbed_plan::Progress;
use interbed_plan::Refusal;
use operations::Operation;
use trace::Trace;

pub use comparison::LOAD_BLOCKS_MAX;
pub use entry::TOKENS_MAX;
pub use fleet::{FleetRequest, Route, SERVERS_MAX, UnknownRoute, run_fleets};
pub use load::Pace;

/// The most cache sizes of one run.
const SIZES_MAX: usize = 256;

/// A replay: what is replayed, and what is reported of it.
#[derive(Debug)]
pub struct ReplayRequest {
    /// The trace, as Mooncake's JSON lines or Azure's CSV.
    pub trace: PathBuf,
    /// The cache sizes in blocks of the trace.
    pub blocks: Vec<NonZeroUsize>,
    /// The sizes of tiers in blocks of the trace, the topmost first. If there are any, nothing else is replayed.
    pub tiers: Vec<NonZeroUsize>,
    /// The eviction policies; an empty list stands for all of them.
    pub policies: Vec<EvictionKind>,
    /// Whether to say why requests missed.
    pub explain: bool,
    /// The number of tokens of a block in the load.
    pub block_size: usize,
    /// The number of bytes of a block in the load.
    pub block_bytes: Option<Bytes>,
    /// How fast sequences are assumed to compute.
    pub pace: Pace,
    /// The number of blocks that the load gets, at most [`LOAD_BLOCKS_MAX`]; `None` for as many as the load takes at
    /// its peak.
    pub load_blocks: Option<NonZeroUsize>,
    /// The number of tokens that pre-allocation must provide for a sequence; `None` for those of the longest request.
    pub longest: Option<NonZeroUsize>,
    /// How often everything is measured.
    pub repeat: NonZeroUsize,
    /// Where a plot of hit rate over cache size is written.
    pub picture: Option<PathBuf>,
    /// Whether to write one JSON object a line instead of the tables.
    pub json: bool,
}

/// The results of a replay.
struct Found {
    /// The trace's file name.
    name: String,
    trace: Trace,
    /// The hit rates; `None` if the trace has no hashes.
    hits: Option<HitRates>,
    load: Comparison,
    operations: Vec<(EvictionKind, Vec<Operation>)>,
    /// The number of bytes of a block in the load.
    block_bytes: Option<Bytes>,
}

/// Replays a trace, and writes what was found to `out`.
///
/// # Errors
/// Fails if the trace cannot be read or is implausible, the trace contradicts the request, or a picture or `out` cannot
/// be written.
pub fn run(request: ReplayRequest, out: &mut dyn Write, progress: &mut dyn Progress) -> Result<(), Refusal> {
    KvConfig { block_size: request.block_size, ..KvConfig::default() }.check()?;
    let sizes = sizes(&request.blocks)?;
    let trace = read(&request.trace, progress)?;
    if !request.tiers.is_empty() {
        return run_tiers(&request, &trace, out, progress);
    }
    // The picture is opened before anything is computed, so that a failure loses no result.
    if request.picture.is_some() && !trace.has_hashes() {
        let problem = "--svg shows hit rates, and the trace has no hash_ids";
        return Err(Refusal::advised(problem, "give a trace with hash_ids"));
    }
    let picture = request.picture.as_deref().map(Picture::open).transpose()?;
    let tell = |kind: EvictionKind, blocks: usize, case: &Case| match request.json {
        true => Ok(out.write_all(json::case_line(kind, blocks, case).as_bytes())?),
        false => Ok(()),
    };
    let found = Found::find(&request, trace, &sizes, tell, progress)?;
    out.write_all(if request.json { found.json_lines() } else { found.report() }.as_bytes())?;
    out.flush()?;
    if let (Some(picture), Some(hits)) = (picture, &found.hits) {
        picture.write(&plot::svg(&found.name, &hits.sizes, &[hits.panel(&found.trace)]))?;
    }
    Ok(())
}

/// Replays the trace over tiers, both with and without a gate before the last one.
fn run_tiers(
    request: &ReplayRequest,
    trace: &Trace,
    out: &mut dyn Write,
    progress: &mut dyn Progress,
) -> Result<(), Refusal> {
    if !trace.has_hashes() {
        let problem = "--tiers shows what is found, and the trace has no hash_ids";
        return Err(Refusal::advised(problem, "give a trace with hash_ids"));
    }
    let sizes: Vec<usize> = request.tiers.iter().map(|size| size.get()).collect();
    progress.begin_steps("replaying", 3);
    let infinite = hits::replay(trace, EvictionKind::ADAPTIVE, usize::MAX, None)?.hit_blocks;
    progress.advance(1);
    for gated in [false, true] {
        let found = tiers::replay(trace, &sizes, gated)?;
        progress.advance(1);
        let text = if request.json { found.json(trace, infinite) } else { found.report(trace, infinite) };
        out.write_all(text.as_bytes())?;
    }
    progress.end();
    out.flush()?;
    Ok(())
}

impl Found {
    fn find(
        request: &ReplayRequest,
        trace: Trace,
        sizes: &[usize],
        mut tell: impl FnMut(EvictionKind, usize, &Case) -> Result<(), Refusal>,
        progress: &mut dyn Progress,
    ) -> Result<Self, Refusal> {
        let asked = |kind: &EvictionKind| request.policies.is_empty() || request.policies.contains(kind);
        let kinds: Vec<EvictionKind> = POLICIES.into_iter().filter(asked).collect();
        let question = Question {
            pace: request.pace,
            block_size: request.block_size,
            blocks: request.load_blocks.map(NonZeroUsize::get),
            longest: request.longest.map(NonZeroUsize::get),
        };
        // A load that takes too many blocks is refused now rather than after the hit rates.
        question.ample_blocks(&trace)?;
        let hits = if trace.has_hashes() {
            let runs = 1 + (kinds.len() + 2) * sizes.len();
            progress.begin_steps("replaying", runs as u64);
            let explain = request.explain.then_some(&mut tell as &mut Listener<'_>);
            let hits = HitRates::find(&trace, &kinds, sizes, explain, request.repeat.get(), || progress.advance(1));
            progress.end();
            Some(hits?)
        } else {
            None
        };
        progress.begin_steps("loading", (question.replays() * trace.requests().len()) as u64);
        let load = question.answer(&trace, || progress.advance(1));
        progress.end();
        progress.begin_steps("measuring", kinds.len() as u64);
        let operations = kinds.iter().map(|&kind| {
            let operations = operations::measure(&trace, kind, request.block_size, request.repeat.get())?;
            progress.advance(1);
            Ok((kind, operations))
        });
        let operations = operations.collect::<Result<_, Refusal>>();
        progress.end();
        let name = name_of(&request.trace);
        Ok(Self { name, trace, hits, load: load?, operations: operations?, block_bytes: request.block_bytes })
    }
}

fn read(path: &Path, progress: &mut dyn Progress) -> Result<Trace, Refusal> {
    progress.begin_bytes("reading", fs::metadata(path).map_or(0, |metadata| metadata.len()));
    let trace = reader::read(path, |bytes| progress.advance(bytes));
    progress.end();
    trace.map_err(|error| Refusal::advised(error.to_string(), error.hint()))
}

/// Returns a trace's file name.
pub(crate) fn name_of(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

/// The file of `--svg`.
pub(crate) struct Picture<'p> {
    path: &'p Path,
    file: File,
}

impl<'p> Picture<'p> {
    pub(crate) fn open(path: &'p Path) -> Result<Self, Refusal> {
        let file = File::create(path).map_err(|error| Self::refused(path, error))?;
        Ok(Self { path, file })
    }

    pub(crate) fn write(mut self, svg: &str) -> Result<(), Refusal> {
        self.file.write_all(svg.as_bytes()).map_err(|error| Self::refused(self.path, error))
    }

    fn refused(path: &Path, error: io::Error) -> Refusal {
        Refusal::because(format!("cannot write {}", path.display()), error).with_hint("name a file that can be written")
    }
}

fn sizes(asked: &[NonZeroUsize]) -> Result<Vec<usize>, Refusal> {
    if asked.len() > SIZES_MAX {
        return Err(Refusal::advised(
            format!("--blocks names {} sizes", asked.len()),
            format!("name at most {SIZES_MAX} in one run"),
        ));
    }
    let mut sizes: Vec<usize> = asked.iter().map(|size| size.get()).collect();
    sizes.sort_unstable();
    sizes.dedup();
    Ok(sizes)
}
