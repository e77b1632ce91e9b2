//! Tensors of a pass: ranges of one memory that a device reserves once, divided anew for each pass.

use std::ops::Range;

use thiserror::Error;

/// Tensors start on cache lines, so that no two threads write one line and vectors load aligned.
const ALIGN: usize = 64 / size_of::<f32>();

/// Some f32 numbers in a device's tensor memory. What they mean, and their shape, is their user's to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Tensor {
    start: usize,
    len: usize,
}

impl Tensor {
    /// How many numbers there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first `len` numbers.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn first(&self, len: usize) -> Self {
        self.part(0..len)
    }

    /// Those in `range`.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn part(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of a tensor of {}", self.len);
        Self { start: self.start + range.start, len: range.len() }
    }

    /// Where it lies in the tensor memory, in numbers.
    pub fn range(&self) -> Range<usize> {
        self.start..self.start + self.len
    }

    /// Whether both have a number in common.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.start < other.start + other.len && other.start < self.start + self.len
    }
}

/// Tensors that do not fit into the memory that was reserved for them.
#[derive(Debug, Error)]
#[error("the tensors of this pass take {wanted} bytes, and {capacity} were reserved for them")]
pub struct OutOfTensors {
    /// Bytes that were reserved.
    pub capacity: usize,
    /// Bytes asked for, all in all.
    pub wanted: usize,
}

/// Gives out tensors one behind the other. The same requests give the same tensors, so a plan and the pass that follows
/// it agree.
#[derive(Debug, Clone, Copy, Default)]
pub struct TensorArea {
    used: usize,
    most: usize,
}

impl TensorArea {
    /// A tensor of `len` numbers of unspecified content, behind all others.
    pub fn take(&mut self, len: usize) -> Tensor {
        let tensor = Tensor { start: self.used, len };
        self.used = self.used.saturating_add(len).div_ceil(ALIGN).saturating_mul(ALIGN);
        self.most = self.most.max(self.used);
        tensor
    }

    /// An area behind what has been taken so far, whose tensors may share their memory with those of another such area:
    /// neither is read any more once the other is written.
    pub fn shared(&self) -> Self {
        Self { used: self.used, most: self.used }
    }

    /// Everything behind what has been taken so far, in a memory of `capacity` numbers that holds all of it.
    pub fn rest(&self, capacity: usize) -> Tensor {
        Tensor { start: self.used, len: capacity.saturating_sub(self.used) }
    }

    /// Keeps room for what was taken from a [shared](Self::shared) area.
    pub fn reserve(&mut self, shared: &Self) {
        self.most = self.most.max(shared.most);
    }

    /// Bytes that all of it takes.
    pub fn bytes(&self) -> usize {
        self.most.saturating_mul(size_of::<f32>())
    }

    /// Whether a memory of `capacity` numbers holds all of it.
    ///
    /// # Errors
    /// It does not.
    pub fn check(&self, capacity: usize) -> Result<(), OutOfTensors> {
        if self.most <= capacity {
            return Ok(());
        }
        Err(OutOfTensors { capacity: capacity.saturating_mul(size_of::<f32>()), wanted: self.bytes() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_are_aligned_and_apart_and_shared_areas_overlap() {
        let mut area = TensorArea::default();
        let (a, b) = (area.take(3), area.take(17));
        assert_eq!((a.range(), b.range()), (0..3, 16..33));
        assert!(!a.overlaps(&b) && b.overlaps(&b.part(16..17)));
        let (mut one, mut other) = (area.shared(), area.shared());
        assert_eq!(one.take(100).range().start, other.take(1).range().start);
        area.reserve(&one);
        area.reserve(&other);
        assert_eq!(area.bytes(), (48 + 112) * 4);
        assert_eq!((area.rest(200).range(), area.rest(40).len()), (48..200, 0));
        assert!(area.check(160).is_ok());
        assert_eq!(area.check(159).unwrap_err().wanted, 640);
    }
}
