//! A runner: its "model" counts what follows any three bytes of a text, its "KV" is the bytes themselves.

use std::collections::HashMap;

use interbed_engine::{PassError, Runner};
use interbed_kv::BlockCopy;
use interbed_model::{BatchSequence, KvBelow, LogitRow, Logits, SequenceBlocks};

/// Bytes that the next one depends on.
const CONTEXT: usize = 3;

/// Counts of which byte follows which three bytes.
pub struct Followers {
    /// How often each byte follows up to [`CONTEXT`] others.
    counts: HashMap<Vec<u8>, HashMap<u8, u32>>,
    /// The byte in each slot, `[block, slot]`.
    kv: Vec<u8>,
    block_size: usize,
}

impl Followers {
    /// Counts a text, with room for the KV of `num_blocks` blocks.
    pub fn new(text: &[u8], num_blocks: usize, block_size: usize) -> Self {
        let mut counts: HashMap<Vec<u8>, HashMap<u8, u32>> = HashMap::new();
        for at in 0..text.len() {
            for length in 0..=CONTEXT.min(at) {
                *counts.entry(text[at - length..at].to_vec()).or_default().entry(text[at]).or_default() += 1;
            }
        }
        Self { counts, kv: vec![0; num_blocks * block_size], block_size }
    }

    /// Logits of what comes behind `context`: by its longest end that the text has.
    pub fn logits(&self, context: &[u8]) -> Vec<f32> {
        let known = (0..=context.len()).find_map(|skip| self.counts.get(&context[skip..]));
        let mut logits = vec![-20.0; 256];
        for (&byte, &count) in known.into_iter().flatten() {
            logits[usize::from(byte)] = (count as f32).ln();
        }
        logits
    }

    /// Index of a sequence's position in the KV blocks.
    fn slot(&self, blocks: SequenceBlocks<'_>, position: usize) -> usize {
        blocks.number(position / self.block_size) as usize * self.block_size + position % self.block_size
    }
}

impl Runner for Followers {
    fn forward(
        &mut self,
        batch: &[BatchSequence<'_>],
        _below: &mut dyn KvBelow,
        sink: &mut dyn FnMut(LogitRow, Logits<'_>),
    ) -> Result<(), PassError> {
        for (index, sequence) in batch.iter().enumerate() {
            for (token, &byte) in sequence.tokens.iter().enumerate() {
                let position = sequence.first_position + token;
                let slot = self.slot(sequence.blocks, position);
                self.kv[slot] = byte as u8;
                if sequence.logits.of(sequence.tokens.len()).contains(&token) {
                    // Not what this pass was given, but what lies in the blocks: others may have computed it.
                    let seen = (position + 1).saturating_sub(CONTEXT)..position + 1;
                    let context: Vec<u8> = seen.map(|at| self.kv[self.slot(sequence.blocks, at)]).collect();
                    sink(LogitRow { sequence: index, token }, Logits::All(&mut self.logits(&context)));
                }
            }
        }
        Ok(())
    }

    fn copy_blocks(&mut self, copies: &[BlockCopy]) {
        for &BlockCopy { source, destination } in copies {
            let [from, to] = [source, destination].map(|block| block.index() * self.block_size);
            self.kv.copy_within(from..from + self.block_size, to);
        }
    }
}
