//! KV of sequences that are longer than memory, streamed layer by layer while a pass computes.
//!
//! What such a sequence has on disk is *kept*: its segments are held, so that nothing of it is forgotten. A *frame* is
//! one layer's part of a fixed number of its blocks. A pass says which frames it will ask for, in order; as many as
//! there are buffers for are read ahead.

use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use strata_io::AlignedBuffer;
use strata_kv::RecordPlace;

use crate::workers::{Expected, FrameDone, FrameJob};

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

/// Blocks of a frame that lie in one record, side by side in both.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) record: RecordPlace,
    /// The blocks: which of the record, and what they must be.
    pub(crate) expected: Vec<Expected>,
    /// Which block of the frame the first of them is.
    pub(crate) at: usize,
    /// The hashes of the record's runs, once its header was read and found to be what is expected.
    pub(crate) sums: OnceLock<Box<[u64]>>,
}

impl Piece {
    /// Which block of the record would be the next.
    pub(crate) fn next_index(&self) -> usize {
        self.expected.last().map_or(0, |last| usize::from(last.index) + 1)
    }
}

/// The blocks of a frame, in order.
pub(crate) type Pieces = Arc<[Piece]>;

/// Where a frame of the pass is.
enum Ahead {
    Reading,
    Read(Result<AlignedBuffer, (String, usize)>),
}

/// What is kept, and what a pass reads of it.
pub(crate) struct Frames {
    done: Receiver<FrameDone>,
    /// Bytes of each layer's part of a block.
    layers: Vec<usize>,
    /// Blocks of a frame.
    pub(crate) blocks: usize,
    kept: HashMap<u64, Vec<Pieces>>,
    /// What the pass will ask for, and is not being read yet.
    to_read: VecDeque<FrameOf>,
    /// What was asked for, in order.
    ahead: VecDeque<(u64, FrameOf, Ahead)>,
    free: Vec<AlignedBuffer>,
    /// Buffers that somebody may still look at.
    lent: Vec<Arc<AlignedBuffer>>,
    buffers: usize,
    /// Jobs whose buffer has not come back.
    in_flight: usize,
    next_tag: u64,
}

impl Frames {
    /// `buffers` frames of `blocks` blocks; `None` if there is no memory for them.
    pub(crate) fn new(done: Receiver<FrameDone>, layers: &[usize], blocks: usize, buffers: usize) -> Option<Self> {
        let bytes = Self::bytes(layers, blocks);
        let free: Option<Vec<_>> = (0..buffers).map(|_| AlignedBuffer::new_zeroed(bytes)).collect();
        Some(Self {
            done,
            layers: layers.to_vec(),
            blocks,
            kept: HashMap::new(),
            to_read: VecDeque::new(),
            ahead: VecDeque::new(),
            free: free?,
            lent: Vec::new(),
            buffers,
            in_flight: 0,
            next_tag: 0,
        })
    }

    /// Bytes of the largest frame.
    pub(crate) fn bytes(layers: &[usize], blocks: usize) -> usize {
        layers.iter().max().map_or(0, |layer| layer * blocks)
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
        self.kept.remove(&owner).unwrap_or_default()
    }

    /// A pass begins that will ask for `frames` in this order; `unread` are reads of the pass before that nobody has
    /// begun.
    pub(crate) fn begin(&mut self, frames: impl Iterator<Item = FrameOf>, unread: VecDeque<FrameJob>) {
        for FrameJob { buffer, .. } in unread {
            self.in_flight -= 1;
            self.free.push(buffer);
        }
        for (_, _, ahead) in self.ahead.drain(..) {
            if let Ahead::Read(Ok(buffer)) = ahead {
                self.free.push(buffer);
            }
        }
        self.to_read.clear();
        self.to_read.extend(frames);
        self.collect();
    }

    /// The next read to begin, if a buffer is free.
    pub(crate) fn next_job(&mut self) -> Option<FrameJob> {
        while self.free.is_empty() {
            let position = self.lent.iter().position(|buffer| Arc::strong_count(buffer) == 1)?;
            self.free.extend(Arc::into_inner(self.lent.swap_remove(position)));
        }
        let of = *self.to_read.front()?;
        let pieces = self.kept.get(&of.owner).and_then(|kept| kept.get(of.frame)).cloned()?;
        let buffer = self.free.pop()?;
        self.to_read.pop_front();
        self.next_tag += 1;
        self.in_flight += 1;
        self.ahead.push_back((self.next_tag, of, Ahead::Reading));
        Some(FrameJob { tag: self.next_tag, layer: of.layer, pieces, buffer })
    }

    /// The next frame that was [asked for](Self::begin) and begun to be read, once it was. On failure, the pieces of
    /// its frame and which of them is not what it should be.
    pub(crate) fn next(&mut self) -> Result<FrameBytes, (FrameLost, Option<(Pieces, usize)>)> {
        loop {
            match self.ahead.front_mut() {
                Some((_, _, Ahead::Reading)) => {}
                Some(_) => break,
                None => {
                    let of = self.to_read.front().copied().unwrap_or(FrameOf { owner: 0, frame: 0, layer: 0 });
                    return Err((FrameLost { of, reason: "it is not kept".to_owned() }, None));
                }
            }
            match self.done.recv_timeout(FRAME_WAIT) {
                Ok(done) => self.take(done),
                Err(_) => {
                    let of = self.ahead.front().map(|(_, of, _)| *of);
                    let of = of.unwrap_or(FrameOf { owner: 0, frame: 0, layer: 0 });
                    return Err((FrameLost { of, reason: "reading it does not end".to_owned() }, None));
                }
            }
        }
        let Some((_, of, Ahead::Read(outcome))) = self.ahead.pop_front() else { unreachable!("it was read") };
        match outcome {
            Ok(buffer) => {
                let buffer = Arc::new(buffer);
                self.lent.push(Arc::clone(&buffer));
                Ok((buffer, self.layers[of.layer] * self.blocks))
            }
            Err((reason, piece)) => {
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

    fn take(&mut self, FrameDone { job, outcome }: FrameDone) {
        self.in_flight -= 1;
        match (self.ahead.iter_mut().find(|(tag, ..)| *tag == job.tag), outcome) {
            (Some((.., ahead)), Ok(())) => *ahead = Ahead::Read(Ok(job.buffer)),
            (Some((.., ahead)), Err(reason)) => {
                *ahead = Ahead::Read(Err(reason));
                self.free.push(job.buffer);
            }
            // The pass that wanted it has failed.
            (None, _) => self.free.push(job.buffer),
        }
    }

    /// Proves that no buffer is lost.
    ///
    /// # Panics
    /// When one is.
    pub(crate) fn assert_sound(&self) {
        let ahead = self.ahead.iter().filter(|(.., ahead)| matches!(ahead, Ahead::Read(Ok(_)))).count();
        assert_eq!(
            self.free.len() + self.lent.len() + self.in_flight + ahead,
            self.buffers,
            "a frame's buffer is lost"
        );
    }
}
