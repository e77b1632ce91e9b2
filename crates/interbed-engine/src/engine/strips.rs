//! Before a pass, the engine maps the blocks of each of its sequences side by side, unless they are mapped already.

use std::time::{Duration, Instant};

use interbed_kv::{Foreseen, Mapping, SequenceId, StripConfig, StripMapper, StripPlace, StripPlan, StripUse};

use interbed_model::SequenceBlocks;

use super::Worker;
use crate::runner::Runner;
use crate::scheduler::{Scheduler, StepPlan};
use crate::status::StripsStatus;

/// The number of times that a step's mapping is tried while the system refuses some of it.
const TRIES: usize = 2;

/// The mapper of blocks into strips, and its plan for the current step.
pub(super) struct Strips {
    mapper: StripMapper,
    plan: StripPlan,
    /// The time spent on mapping before passes.
    time: Duration,
    /// Whether the log has been told that some sequences have no place in strips.
    is_told: bool,
}

impl Strips {
    pub(super) fn new(config: StripConfig) -> Self {
        Self { mapper: StripMapper::new(config), plan: StripPlan::default(), time: Duration::ZERO, is_told: false }
    }

    pub(super) fn mapper(&self) -> &StripMapper {
        &self.mapper
    }

    /// Returns where a pass finds the blocks of the step's sequences, in the order of its entries. An entry is `None`
    /// if its blocks are listed in a table.
    pub(super) fn blocks(&self, runner: &mut dyn Runner) -> Vec<Option<SequenceBlocks<'static>>> {
        let Some(memory) = runner.strips() else { return vec![None; self.plan.places.len()] };
        let blocks = self.plan.places.iter().map(|place| match *place {
            StripPlace::Strip { strip, first, .. } => Some(SequenceBlocks::From(memory.first_block(strip) + first)),
            StripPlace::Listed => None,
        });
        blocks.collect()
    }

    /// Maps the blocks that the step needs, and begins to map beside it the blocks that later steps need.
    fn step(&mut self, step: &StepPlan, scheduler: &mut Scheduler, runner: &mut dyn Runner) {
        let Some(memory) = runner.strips() else { return };
        memory.unpin();
        let foreseen = if self.mapper.hiding().eager { scheduler.foresee_first() } else { None };
        let scheduler = &*scheduler;
        let uses = uses_of(step, scheduler);
        let is_held = |id: SequenceId| scheduler.blocks().block_table(id).is_some();
        memory.wait_for(0).iter().for_each(|mapping| self.mapper.refused(mapping));
        for attempt in 1..=TRIES {
            self.mapper.step(&uses, is_held, &mut self.plan);
            if let Some(Foreseen { blocks, found }) = &foreseen {
                self.mapper.foresee(blocks, *found, &mut self.plan);
            }
            let mut refused = memory.wait_for(self.plan.after);
            // A change that comes after a refused one may depend on it.
            let is_sound = refused.is_empty();
            refused.extend(self.plan.now.iter().copied().filter(|mapping| !is_sound || !memory.change(mapping)));
            // Those beside the pass come last, because they may map what is cleared before it.
            memory.change_beside(&self.plan.beside);
            refused.iter().for_each(|mapping| self.mapper.refused(mapping));
            if refused.is_empty() {
                break;
            }
            if attempt == TRIES {
                self.list_refused(&refused);
            }
        }
        if self.mapper.listed() > 0 && !std::mem::replace(&mut self.is_told, true) {
            tracing::warn!(
                "a request's KV is not mapped side by side: there are {} mappings already; it is as good, and a little \
                 slower (sysctl vm.max_map_count allows more)",
                self.mapper.mappings()
            );
        }
        for place in &self.plan.places {
            if let StripPlace::Strip { strip, first, end, written } = *place {
                memory.pin(strip, first..end, written);
            }
        }
    }

    /// Has the pass read the blocks of sequences in refused strips through lists of blocks.
    fn list_refused(&mut self, refused: &[Mapping]) {
        for place in &mut self.plan.places {
            if let StripPlace::Strip { strip, .. } = *place
                && refused.iter().any(|mapping| mapping.strip == strip)
            {
                *place = StripPlace::Listed;
            }
        }
    }
}

/// Returns which blocks the step uses of each sequence.
fn uses_of<'a>(step: &StepPlan, scheduler: &'a Scheduler) -> Vec<StripUse<'a>> {
    let (manager, block_size) = (scheduler.blocks(), scheduler.blocks().block_size());
    let uses = step.entries.iter().map(|entry| {
        let (below, end) = (manager.blocks_below(entry.id), entry.start + entry.count);
        StripUse {
            id: entry.id,
            below,
            table: manager.block_table(entry.id).expect("a running sequence holds blocks"),
            written: entry.start / block_size - below..end.div_ceil(block_size) - below,
        }
    });
    uses.collect()
}

impl Worker {
    /// Maps the blocks that the step's sequences need, if the runner has strips.
    pub(super) fn map_strips(&mut self, plan: &StepPlan) {
        if let Some(strips) = &mut self.strips {
            let began = Instant::now();
            strips.step(plan, &mut self.scheduler, self.runner.as_mut());
            strips.time += began.elapsed();
        }
    }

    pub(super) fn strips_status(&mut self) -> Option<StripsStatus> {
        let (strips, memory) = (self.strips.as_ref()?, self.runner.strips()?);
        Some(StripsStatus {
            mappings: strips.mapper.mappings(),
            mappings_max: memory.config().mappings_max,
            mapped_blocks: strips.mapper.mapped(),
            listed: strips.mapper.listed(),
            time: strips.time,
            work: memory.stats(),
        })
    }
}
