//! The batch of a pass: what the runner is given for each entry of a plan.

use interbed_kv::{BlockId, TailPlace};
use interbed_model::{BatchSequence, GroupBlocks, SequenceBlocks};

use super::answers::Answers;
use crate::TokenId;
use crate::runner::PassError;
use crate::scheduler::{PlannedTokens, Scheduler, StepPlan};

/// The memory that a batch refers to, which is filled anew for each pass.
#[derive(Default)]
pub(super) struct Batch {
    /// The tokens, sequence by sequence.
    tokens: Vec<TokenId>,
    /// The block tables of sequences whose blocks are listed, sequence by sequence.
    tables: Vec<u32>,
    /// The block tables of windows, sequence by sequence, and group by group.
    windows: Vec<u32>,
}

impl Batch {
    /// Copies what the pass of `plan` reads from the scheduler. `places` has one entry per entry of the plan: where its
    /// blocks are mapped side by side, or `None` if they are to be listed.
    pub(super) fn fill(&mut self, plan: &StepPlan, places: &[Option<SequenceBlocks<'_>>], scheduler: &Scheduler) {
        self.tokens.clear();
        self.tables.clear();
        self.windows.clear();
        for (entry, place) in plan.entries.iter().zip(places) {
            self.tokens.extend_from_slice(&scheduler.sequence(entry.id).tokens_from(entry.start)[..entry.count]);
            if place.is_none() {
                self.tables.extend(table(scheduler, entry).iter().map(|block| block.0));
            }
            for tail in scheduler.blocks().tail_places(entry.id) {
                if let TailPlace::Window { blocks, .. } = tail {
                    self.windows.extend(blocks.iter().map(|block| block.0));
                }
            }
        }
    }

    /// Returns the blocks of the groups of layers that keep tails, sequence by sequence.
    ///
    /// # Errors
    /// Fails if a sequence's state stands for other tokens than those before the pass. The pass must not be computed
    /// then.
    pub(super) fn groups(&self, plan: &StepPlan, scheduler: &Scheduler) -> Result<Vec<GroupBlocks<'_>>, PassError> {
        let (block_size, mut windows) = (scheduler.blocks().block_size(), &self.windows[..]);
        let mut groups = Vec::new();
        for entry in &plan.entries {
            for place in scheduler.blocks().tail_places(entry.id) {
                groups.push(match place {
                    TailPlace::Window { first, blocks } => {
                        let table = windows.split_off(..blocks.len()).expect("all of them were appended");
                        GroupBlocks::Window { first: first * block_size, blocks: SequenceBlocks::Listed(table) }
                    }
                    TailPlace::State { position, from, to } if position == entry.start => {
                        let tokens_behind = entry.count - entry.stored_after;
                        GroupBlocks::State { from: from.map(|block| block.0), to: to.0, tokens_behind }
                    }
                    TailPlace::State { position, .. } => {
                        let (id, start) = (entry.id, entry.start);
                        let reason = format!("the state of {id} is that of {position} tokens, not of {start}");
                        return Err(PassError::Failed(reason));
                    }
                });
            }
        }
        Ok(groups)
    }

    /// Returns the batch of `plan`, for which this was [filled](Self::fill). `groups` are its [groups](Self::groups).
    pub(super) fn sequences<'a>(
        &'a self,
        plan: &StepPlan,
        places: Vec<Option<SequenceBlocks<'a>>>,
        groups: &'a [GroupBlocks<'a>],
        scheduler: &Scheduler,
        answers: &Answers,
    ) -> Vec<BatchSequence<'a>> {
        let block_size = scheduler.blocks().block_size();
        let (mut tokens, mut tables) = (&self.tokens[..], &self.tables[..]);
        let mut groups = groups.chunks((groups.len() / plan.entries.len().max(1)).max(1));
        let sequences = plan.entries.iter().zip(places).map(|(entry, place)| {
            let sequence = scheduler.sequence(entry.id);
            let blocks = place.unwrap_or_else(|| {
                let blocks = tables.split_off(..table(scheduler, entry).len());
                SequenceBlocks::Listed(blocks.expect("all of them were appended"))
            });
            BatchSequence {
                tokens: tokens.split_off(..entry.count).expect("all of them were appended"),
                first_position: entry.start,
                prompt_len: sequence.prompt_len,
                below: scheduler.blocks().blocks_below(entry.id) * block_size,
                blocks,
                groups: groups.next().unwrap_or_default(),
                logits: answers.groups[&sequence.request.group].policy.wanted_rows(sequence, entry),
            }
        });
        sequences.collect()
    }
}

fn table<'a>(scheduler: &'a Scheduler, entry: &PlannedTokens) -> &'a [BlockId] {
    scheduler.blocks().block_table(entry.id).expect("a running sequence holds blocks")
}
