//! The batch of a pass: what the runner is given for each entry of a plan.

use interbed_model::{BatchSequence, SequenceBlocks};

use super::answers::Answers;
use crate::TokenId;
use crate::scheduler::{Scheduler, StepPlan};

/// The memory that a batch refers to, which is filled anew for each pass.
#[derive(Default)]
pub(super) struct Batch {
    /// The tokens, sequence by sequence.
    tokens: Vec<TokenId>,
    /// The block tables of sequences whose blocks are listed, sequence by sequence.
    tables: Vec<u32>,
}

impl Batch {
    /// Returns the batch of `plan`. `places` has one entry per entry of the plan: where its blocks are mapped side by
    /// side, or `None` if they are to be listed.
    pub(super) fn of<'a>(
        &'a mut self,
        plan: &StepPlan,
        places: Vec<Option<SequenceBlocks<'a>>>,
        scheduler: &Scheduler,
        answers: &Answers,
    ) -> Vec<BatchSequence<'a>> {
        self.tokens.clear();
        self.tables.clear();
        let table = |id| scheduler.blocks().block_table(id).expect("a running sequence holds blocks");
        for (entry, place) in plan.entries.iter().zip(&places) {
            self.tokens.extend_from_slice(&scheduler.sequence(entry.id).tokens_from(entry.start)[..entry.count]);
            if place.is_none() {
                self.tables.extend(table(entry.id).iter().map(|block| block.0));
            }
        }
        let block_size = scheduler.blocks().block_size();
        let (mut tokens, mut tables) = (&self.tokens[..], &self.tables[..]);
        let sequences = plan.entries.iter().zip(places).map(|(entry, place)| {
            let sequence = scheduler.sequence(entry.id);
            let blocks = place.unwrap_or_else(|| {
                let blocks = tables.split_off(..table(entry.id).len());
                SequenceBlocks::Listed(blocks.expect("all of them were appended"))
            });
            BatchSequence {
                tokens: tokens.split_off(..entry.count).expect("all of them were appended"),
                first_position: entry.start,
                prompt_len: sequence.prompt_len,
                below: scheduler.blocks().blocks_below(entry.id) * block_size,
                blocks,
                groups: &[],
                logits: answers.groups[&sequence.request.group].policy.wanted_rows(sequence, entry),
            }
        });
        sequences.collect()
    }
}
