//! KV of sequences that are longer than memory, streamed layer by layer while a pass computes.
//!
//! What such a sequence has on disk is *kept*: its segments are held, so that nothing of it is forgotten. A *frame* is
//! one layer's part of a fixed number of its blocks. A pass says which frames it will ask for, in order; as many as
//! there are buffers for are read ahead, across the end of the pass into the next, which mostly asks for the same.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use interbed_io::{AlignedBuffer, BufferPart};

use crate::jobs::{PieceDone, PieceJob, Pieces};
use crate::shape::RecordShape;

/// How long a pass waits for a frame before it looks whether anybody still reads.
const FRAME_WAIT: Duration = Duration::from_secs(30);

/// One layer's part of one of the frames that a sequence keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameOf {
    /// Whose it is; the caller's number.
    pub owner: u64,
    /// Which of the owner's frames.
    pub frame: usize,
    /// The layer.
    pub layer: usize,
}

/// A frame that was read, and nothing else was: its first bytes are `[block, the layer's part]`.
pub type FrameBytes = (Arc<AlignedBuffer>, usize);

/// A frame that could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrameLost {
    /// Which one.
    pub of: FrameOf,
    /// What happened.
    pub reason: String,
}

/// A frame that was begun to be read.
struct Reading {
    tag: u64,
    of: FrameOf,
    /// Pieces that have not come.
    left: usize,
    parts: Vec<BufferPart>,
    /// Why it could not be read, and which piece was to blame.
    failed: Option<(String, usize)>,
}

/// What is kept, and what a pass reads of it.
pub(crate) struct Frames {
    done: Receiver<PieceDone>,
    /// Bytes of each layer's part of a block.
    layers: Vec<usize>,
    /// Blocks of a frame.
    pub(crate) blocks: usize,
    kept: HashMap<u64, Vec<Pieces>>,
    /// What the pass asks for, in order.
    asked: Vec<FrameOf>,
    /// How many of them were begun to be read; then come those of the next pass, if it asks for the same.
    begun: usize,
    /// What was begun and not given out, in order.
    ahead: VecDeque<Reading>,
    /// Those that nobody waits for any more.
    dropped: Vec<Reading>,
    free: Vec<AlignedBuffer>,
    /// Buffers that somebody may still look at.
    lent: Vec<Arc<AlignedBuffer>>,
    buffers: usize,
    next_tag: u64,
}

impl Frames {
    /// `buffers` frames of `blocks` blocks; `None` if there is no memory for them.
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

    /// Bytes of the largest frame.
    pub(crate) fn bytes(shape: &RecordShape, blocks: usize) -> usize {
        shape.layers().iter().max().map_or(0, |layer| layer * blocks)
    }

    /// One more frame of `owner`.
    pub(crate) fn keep(&mut self, owner: u64, pieces: Pieces) {
        self.kept.entry(owner).or_default().push(pieces);
    }

    /// How many frames `owner` keeps.
    pub(crate) fn num_kept(&self, owner: u64) -> usize {
        self.kept.get(&owner).map_or(0, Vec::len)
    }

    /// All frames of `owner`, who keeps them no longer.
    pub(crate) fn forget(&mut self, owner: u64) -> Vec<Pieces> {
        // What is read ahead of them would be of a frame that may be another one by then.
        if self.ahead.iter().any(|reading| reading.of.owner == owner) || self.asked.iter().any(|of| of.owner == owner) {
            self.begin(std::iter::empty());
        }
        self.kept.remove(&owner).unwrap_or_default()
    }

    /// A pass begins that will ask for `frames` in this order. What was read ahead of it and is not what it asks for is
    /// forgotten.
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

    /// The reads of the next frame to begin, if a buffer is free.
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

    /// The next frame that was [asked for](Self::begin) and begun to be read, once it was. On failure, the pieces of
    /// its frame and which of them is not what it should be.
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

    /// Takes in what has come meanwhile.
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

    /// Proves that no buffer is lost.
    ///
    /// # Panics
    /// When one is.
    pub(crate) fn assert_sound(&self) {
        let known = self.free.len() + self.lent.len() + self.ahead.len() + self.dropped.len();
        assert_eq!(known, self.buffers, "a frame's buffer is lost");
    }
}
