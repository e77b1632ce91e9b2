//! Keeps the KV of sequences that are longer than memory, and reads it for passes, frame by frame.

use std::sync::OnceLock;
use std::time::Instant;

use interbed_kv::{
    BlockBytes, BlockKey, BlockLabel, BlockPart, FrameBytes, FrameLost, FrameOf, FrameTier, TierPlace, TokenId,
};

use super::DiskTier;
use super::opening::capacity_tokens;
use crate::jobs::{Expected, Piece};

impl FrameTier for DiskTier {
    fn capacity_tokens(&self) -> usize {
        capacity_tokens(self.tier.config(), self.swaps.kept.segments_max(), &self.store.shape)
    }

    fn has(&self, key: BlockKey) -> bool {
        self.staging.has(key) || self.tier.knows(key)
    }

    fn stage_needed(&mut self, label: BlockLabel, part: BlockPart, blocks: &mut dyn BlockBytes) -> bool {
        if self.writes.are_paused() {
            return false;
        }
        let Some(buffer) = self.staging.take_buffer() else { return false };
        self.writes.budget.spend(self.store.shape.block_bytes() as u64);
        self.copy(buffer, (label, 0), part, blocks)
    }

    fn keep_frame(&mut self, owner: u64, contents: &[(BlockKey, BlockKey, Box<[TokenId]>)]) -> bool {
        debug_assert_eq!(contents.len(), self.frames.blocks);
        let mut pieces: Vec<Piece> = Vec::new();
        for (parent, key, tokens) in contents {
            let Some(TierPlace { record, index }) = self.tier.find(*key) else { return false };
            let expected = Expected { index, key: *key, content: Some((*parent, tokens.clone())) };
            match pieces.last_mut() {
                Some(last) if last.record == record && usize::from(index) == last.next_index() => {
                    last.expected.push(expected);
                }
                _ => pieces.push(Piece { record, expected: vec![expected], sums: OnceLock::new() }),
            }
        }
        pieces.iter().for_each(|piece| self.tier.hold(piece.record.segment));
        self.frames.keep(owner, pieces.into());
        true
    }

    fn kept_frames(&self, owner: u64) -> usize {
        self.frames.num_kept(owner)
    }

    fn release_frames(&mut self, owner: u64) {
        for pieces in self.frames.forget(owner) {
            pieces.iter().for_each(|piece| self.tier.release(piece.record.segment));
        }
    }

    fn begin_frames(&mut self, frames: &mut dyn Iterator<Item = FrameOf>) {
        self.frames.begin(frames);
        self.read_frames();
    }

    fn next_frame(&mut self) -> Result<FrameBytes, FrameLost> {
        self.read_frames();
        let asked = Instant::now();
        let next = self.frames.next();
        self.figures.frame_seconds += asked.elapsed().as_secs_f64();
        let (lost, blame) = match next {
            Ok((buffer, len)) => {
                self.figures.frames += 1;
                self.figures.read_bytes += len as u64;
                return Ok((buffer, len));
            }
            Err(lost) => lost,
        };
        self.figures.read_errors += 1;
        tracing::warn!("{}: the sequence that needs it is computed again from there", lost.reason);
        if let Some((pieces, index)) = blame {
            let Piece { record, expected, .. } = &pieces[index];
            self.lose(*record, expected);
        }
        Err(lost)
    }
}

impl DiskTier {
    fn read_frames(&mut self) {
        while let Some(jobs) = self.frames.next_jobs() {
            self.workers.read_pieces(jobs);
        }
    }
}
