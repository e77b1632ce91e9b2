//! Pieces of large allocations, for memory that is needed in many small ones. A piece that is dropped leaves room for
//! others, and a chunk whose pieces have all been dropped goes back to the GPU.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::error::GpuError;
use super::gpu::Gpu;
use super::memory::{GpuBuffer, Heap};

/// The most bytes of a chunk. A smaller budget has chunks of one part in [`BUDGET_SHARE`] of the budget, so that the
/// last chunk leaves little of it empty.
const CHUNK_MAX: u64 = 256 << 20;
const BUDGET_SHARE: u64 = 64;

/// A piece has at most one part in this many of a chunk's bytes. Larger pieces have an allocation of their own.
const PIECES: usize = 8;

/// Pieces begin at multiples of this.
const ALIGN: usize = 256;

/// The chunks that pieces are taken from.
#[derive(Default)]
pub(super) struct Chunks {
    chunks: Vec<Chunk>,
}

struct Chunk {
    buffer: GpuBuffer,
    room: Arc<Mutex<Room>>,
}

/// The bytes of a chunk that no piece has: ranges in the order of their places, none of which touches another.
#[derive(Debug)]
struct Room {
    free: Vec<Range<usize>>,
    len: usize,
}

/// A piece's bytes, which are free again when this is dropped.
#[derive(Debug)]
struct Hold {
    room: Arc<Mutex<Room>>,
    range: Range<usize>,
}

impl Chunks {
    /// Takes `len` bytes of device memory.
    ///
    /// # Errors
    /// Fails if the budget, or the GPU, has no such memory.
    pub fn take(&mut self, gpu: &Arc<Gpu>, len: usize) -> Result<GpuBuffer, GpuError> {
        let [_, budget] = gpu.used();
        let chunk = usize::try_from((budget.0 / BUDGET_SHARE).min(CHUNK_MAX)).unwrap_or(usize::MAX);
        if len > chunk / PIECES {
            self.drop_empty();
            return GpuBuffer::new(gpu, Heap::Device, len);
        }
        if let Some(piece) = self.piece(len) {
            return Ok(piece);
        }
        match GpuBuffer::new(gpu, Heap::Device, chunk) {
            Ok(buffer) => {
                let len = buffer.len();
                self.chunks.push(Chunk { buffer, room: Arc::new(Mutex::new(Room::new(len))) });
            }
            // Near the end of the budget there may still be room for one.
            Err(error) if error.is_full() => return GpuBuffer::new(gpu, Heap::Device, len),
            Err(error) => return Err(error),
        }
        Ok(self.piece(len).expect("a new chunk has room for a piece"))
    }

    /// Takes `len` bytes of the chunk that has the smallest range with room for them; `None` if no chunk has room.
    fn piece(&mut self, len: usize) -> Option<GpuBuffer> {
        let fits = |chunk: &Chunk| lock(&chunk.room).smallest(len).map(|(bytes, _)| bytes);
        let fitting = self.chunks.iter().enumerate().filter_map(|(index, chunk)| Some((fits(chunk)?, index)));
        let Chunk { buffer, room } = &self.chunks[fitting.min()?.1];
        let range = lock(room).take(len)?;
        let start = range.start;
        Some(buffer.part(start..start + len, Box::new(Hold { room: Arc::clone(room), range })))
    }

    /// Gives the chunks back whose pieces have all been dropped.
    fn drop_empty(&mut self) {
        self.chunks.retain(|chunk| !lock(&chunk.room).is_whole());
    }
}

impl Room {
    fn new(len: usize) -> Self {
        Self { free: std::iter::once(0..len).collect(), len }
    }

    fn is_whole(&self) -> bool {
        self.free.first().is_some_and(|range| range.len() == self.len)
    }

    /// Returns the length and the index of the smallest free range that has room for `len` bytes.
    fn smallest(&self, len: usize) -> Option<(usize, usize)> {
        let ranges = self.free.iter().enumerate().map(|(index, range)| (range.len(), index));
        ranges.filter(|&(room, _)| room >= len).min()
    }

    /// Takes `len` bytes, and those up to the place where the next piece may begin.
    fn take(&mut self, len: usize) -> Option<Range<usize>> {
        let (room, index) = self.smallest(len)?;
        let taken = len.next_multiple_of(ALIGN).min(room);
        let free = &mut self.free[index];
        let range = free.start..free.start + taken;
        free.start = range.end;
        if free.start == free.end {
            self.free.remove(index);
        }
        Some(range)
    }

    fn give_back(&mut self, range: Range<usize>) {
        if range.start == range.end {
            return;
        }
        let at = self.free.partition_point(|free| free.start < range.start);
        self.free.insert(at, range);
        for index in [at, at.saturating_sub(1)] {
            if index + 1 < self.free.len() && self.free[index].end == self.free[index + 1].start {
                self.free[index].end = self.free.remove(index + 1).end;
            }
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        lock(&self.room).give_back(self.range.clone());
    }
}

fn lock(room: &Mutex<Room>) -> MutexGuard<'_, Room> {
    // What is free is as it was before a panic or after it.
    room.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_that_are_dropped_leave_room_for_others() {
        let len = 64 * ALIGN;
        let room = Arc::new(Mutex::new(Room::new(len)));
        let mut held: Vec<Hold> = Vec::new();
        let mut random = 1_u64;
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (number, wanted) = ((random >> 33) as usize, (random >> 17) as usize % (8 * ALIGN));
            if number.is_multiple_of(2) && !held.is_empty() {
                held.swap_remove(number / 2 % held.len());
            } else {
                let taken = lock(&room).take(wanted);
                if let Some(range) = taken {
                    assert!(range.start.is_multiple_of(ALIGN) && range.len() >= wanted);
                    assert!(range.end <= len);
                    held.push(Hold { room: Arc::clone(&room), range });
                }
            }
            let mut all: Vec<_> = held.iter().map(|hold| hold.range.clone()).chain(lock(&room).free.clone()).collect();
            all.retain(|range| range.start < range.end);
            all.sort_unstable_by_key(|range| range.start);
            assert_eq!((all[0].start, all[all.len() - 1].end), (0, len));
            assert!(all.windows(2).all(|pair| pair[0].end == pair[1].start), "{all:?}");
            let room = lock(&room);
            assert!(room.free.windows(2).all(|pair| pair[0].end < pair[1].start), "{:?} touch", room.free);
        }
        held.clear();
        assert!(lock(&room).is_whole());
    }

    #[test]
    fn a_piece_takes_the_smallest_room_that_it_fits_into() {
        let mut room = Room::new(10 * ALIGN);
        let [first, second, _third] = [4, 1, 5].map(|count| room.take(count * ALIGN).unwrap());
        room.give_back(first.clone());
        assert_eq!(room.take(5 * ALIGN), None);
        room.give_back(second);
        assert_eq!(room.take(5 * ALIGN), Some(0..5 * ALIGN), "neighbours are one room");
        let mut room = Room::new(10 * ALIGN);
        let [first, second] = [3, 2].map(|count| room.take(count * ALIGN).unwrap());
        let third = room.take(ALIGN).unwrap();
        room.give_back(first);
        room.give_back(third.clone());
        assert_eq!((second.end, room.take(ALIGN)), (third.start, Some(0..ALIGN)));
        room.give_back(0..ALIGN);
        assert_eq!(room.take(ALIGN / 2), Some(0..ALIGN), "the next piece begins at a multiple");
    }
}
