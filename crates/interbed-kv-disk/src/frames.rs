//! Streams the KV of sequences that are longer than memory, layer by layer while a pass computes.
//!
//! The blocks that such a sequence has on disk are *kept*: their segments are held, so that no block is forgotten. A
//! *frame* is one layer's part of a fixed number of these blocks. A pass says which frames it will ask for, in order.
//! Frames are read ahead while there are buffers, across the end of the pass into the next pass, which mostly asks for
//! the same frames.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use interbed_io::{AlignedBuffer, BufferPart};
use interbed_kv::{FrameBytes, FrameLost, FrameOf};

use crate::jobs::{PieceDone, PieceJob, Pieces};
use crate::shape::RecordShape;

/// Time that a pass waits for a frame before it gives the frame up.
const FRAME_WAIT: Duration = Duration::from_secs(30);

/// A frame whose read was begun.
struct Reading {
    tag: u64,
    of: FrameOf,
    /// Number of pieces that have not come.
    left: usize,
    parts: Vec<BufferPart>,
    /// Reason why the frame could not be read, and the index of the piece to blame.
    failed: Option<(String, usize)>,
}

/// Frames that sequences keep, and the reads of a pass.
pub(crate) struct Frames {
    done: Receiver<PieceDone>,
    /// Number of bytes of each layer's part of a block.
    layers: Vec<usize>,
    /// Number of blocks of a frame.
    pub(crate) blocks: usize,
    kept: HashMap<u64, Vec<Pieces>>,
    /// Frames that the pass asks for, in order.
    asked: Vec<FrameOf>,
    /// Number of reads that were begun for `asked`. Beyond the length of `asked`, these are reads for the next pass, in
    /// case it asks for the same frames.
    begun: usize,
    /// Frames whose read was begun and that were not given out, in order.
    ahead: VecDeque<Reading>,
    /// Frames whose read was begun and that nobody waits for any more.
    dropped: Vec<Reading>,
    free: Vec<AlignedBuffer>,
    /// Buffers that somebody may still look at.
    lent: Vec<Arc<AlignedBuffer>>,
    buffers: usize,
    next_tag: u64,
}

impl Frames {
    /// Allocates buffers for `buffers` frames of `blocks` blocks each; returns `None` if there is no memory for them.
    pub(crate) fn new(done: Receiver<PieceDone>, shape: &RecordShape, blocks: usize, buffers: usize) -> Option<Self> {
        let bytes = Self::bytes(shape, blocks);
        let free: Option<Vec<_>> = (0..buffers).map(|_| AlignedBuffer::new_zeroed(bytes)).collect();
        Some(Self {
            done,
            layers: shape.layers().to_vec(),
            blocks,
            kept: HashMap::new(),
            asked: Vec::new(),
            begun: 0,
            ahead: VecDeque::new(),
            dropped: Vec::new(),
            free: free?,
            lent: Vec::new(),
            buffers,
            next_tag: 0,
        })
    }

    /// Returns the number of bytes of the largest frame.
    pub(crate) fn bytes(shape: &RecordShape, blocks: usize) -> usize {
        shape.layers().iter().max().map_or(0, |layer| layer * blocks)
    }

    /// Keeps one more frame of `owner`.
    pub(crate) fn keep(&mut self, owner: u64, pieces: Pieces) {
        self.kept.entry(owner).or_default().push(pieces);
    }

    /// Returns the number of frames that `owner` keeps.
    pub(crate) fn num_kept(&self, owner: u64) -> usize {
        self.kept.get(&owner).map_or(0, Vec::len)
    }

    /// Returns all frames of `owner`, who keeps them no longer.
    pub(crate) fn forget(&mut self, owner: u64) -> Vec<Pieces> {
        // What is read ahead of them would be of a frame that may be another one by then.
        if self.ahead.iter().any(|reading| reading.of.owner == owner) || self.asked.iter().any(|of| of.owner == owner) {
            self.begin(std::iter::empty());
        }
        self.kept.remove(&owner).unwrap_or_default()
    }

    /// Begins a pass that will ask for `frames` in this order. Frames that were read ahead and do not fit this order
    /// are dropped.
    pub(crate) fn begin(&mut self, frames: impl Iterator<Item = FrameOf>) {
        self.collect();
        self.asked.clear();
        self.asked.extend(frames);
        let read = self.ahead.iter().map(|reading| &reading.of);
        self.begun = read.zip(&self.asked).take_while(|(read, asked)| read == asked).count();
        self.dropped.extend(self.ahead.drain(self.begun..));
        self.reclaim();
    }

    /// Takes back the buffers of frames that nobody waits for and nobody reads.
    fn reclaim(&mut self) {
        for reading in self.dropped.extract_if(.., |reading| reading.left == 0) {
            self.free.extend(BufferPart::join(reading.parts));
        }
    }

    /// Returns the reads of the next frame to begin, if a buffer is free.
    pub(crate) fn next_jobs(&mut self) -> Option<Vec<PieceJob>> {
        while self.free.is_empty() {
            let position = self.lent.iter().position(|buffer| Arc::strong_count(buffer) == 1)?;
            self.free.extend(Arc::into_inner(self.lent.swap_remove(position)));
        }
        let of = match self.asked.get(self.begun) {
            Some(of) => *of,
            None => *self.asked.get(self.begun - self.asked.len()).filter(|_| self.begun < 2 * self.asked.len())?,
        };
        let pieces = self.kept.get(&of.owner).and_then(|kept| kept.get(of.frame)).cloned()?;
        let buffer = self.free.pop()?;
        self.begun += 1;
        self.next_tag += 1;
        let (tag, layer) = (self.next_tag, of.layer);
        let lens = pieces.iter().map(|piece| piece.expected.len() * self.layers[layer]);
        let parts = BufferPart::split(buffer, lens);
        let left = parts.len();
        self.ahead.push_back(Reading { tag, of, left, parts: Vec::with_capacity(left), failed: None });
        let job = |(index, part)| PieceJob { tag, layer, pieces: Arc::clone(&pieces), index, part };
        Some(parts.into_iter().enumerate().map(job).collect())
    }

    /// Returns the next frame that was [asked for](Self::begin) and whose read was begun, once it was read. The error
    /// has the pieces of the frame and the index of the piece that is not what it should be, if that is known.
    pub(crate) fn next(&mut self) -> Result<FrameBytes, (FrameLost, Option<(Pieces, usize)>)> {
        let nothing = FrameOf { owner: 0, frame: 0, layer: 0 };
        let lost = |of: FrameOf, reason: &str| Err((FrameLost { of, reason: reason.to_owned() }, None));
        loop {
            match self.ahead.front() {
                Some(reading) if reading.left == 0 => break,
                Some(reading) => {
                    let of = reading.of;
                    match self.done.recv_timeout(FRAME_WAIT) {
                        Ok(done) => self.take(done),
                        Err(_) => return lost(of, "reading it does not end"),
                    }
                }
                None => return lost(self.asked.get(self.begun).copied().unwrap_or(nothing), "it is not kept"),
            }
        }
        let Some(Reading { of, parts, failed, .. }) = self.ahead.pop_front() else {
            return lost(nothing, "it is not kept");
        };
        let Some(buffer) = BufferPart::join(parts) else { return lost(of, "its memory is in use") };
        match failed {
            None => {
                let buffer = Arc::new(buffer);
                self.lent.push(Arc::clone(&buffer));
                Ok((buffer, self.layers[of.layer] * self.blocks))
            }
            Some((reason, piece)) => {
                self.free.push(buffer);
                let pieces = self.kept.get(&of.owner).and_then(|kept| kept.get(of.frame)).cloned();
                Err((FrameLost { of, reason }, pieces.map(|pieces| (pieces, piece))))
            }
        }
    }

    /// Takes in the pieces that have come meanwhile.
    fn collect(&mut self) {
        while let Ok(done) = self.done.try_recv() {
            self.take(done);
        }
    }

    fn take(&mut self, PieceDone { job, outcome }: PieceDone) {
        let PieceJob { tag, index, part, .. } = job;
        let mut all = self.ahead.iter_mut().chain(&mut self.dropped);
        if let Some(reading) = all.find(|reading| reading.tag == tag) {
            reading.left -= 1;
            reading.parts.push(part);
            reading.failed = reading.failed.take().or(outcome.err().map(|reason| (reason, index)));
        }
        self.reclaim();
    }

    /// Checks that no buffer is lost.
    ///
    /// # Panics
    /// Panics if a buffer is lost.
    pub(crate) fn assert_sound(&self) {
        let known = self.free.len() + self.lent.len() + self.ahead.len() + self.dropped.len();
        assert_eq!(known, self.buffers, "a frame's buffer is lost");
    }
}
