//! Tensors of a pass: ranges of one memory that a device reserves once and that is divided anew for each pass.

use std::ops::Range;

use thiserror::Error;

/// Tensors start on cache lines, so that no two threads write to the same line, and vector loads are aligned.
const ALIGN: usize = 64 / size_of::<f32>();

/// Some f32 numbers in a device's tensor memory. The user decides what the numbers mean, and what shape they have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Tensor {
    start: usize,
    len: usize,
}

impl Tensor {
    /// Returns how many numbers the tensor has.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the tensor has no numbers.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns a tensor of the first `len` numbers of this tensor.
    ///
    /// # Panics
    /// Panics if this tensor has fewer numbers.
    pub fn first(&self, len: usize) -> Self {
        self.part(0..len)
    }

    /// Returns the numbers in `range`.
    ///
    /// # Panics
    /// Panics if the range is not within the tensor.
    pub fn part(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of a tensor of {}", self.len);
        Self { start: self.start + range.start, len: range.len() }
    }

    /// Returns the tensor's place in the tensor memory, in numbers.
    pub fn range(&self) -> Range<usize> {
        self.start..self.start + self.len
    }

    /// Returns whether the two have a number in common.
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
    /// Bytes needed in all.
    pub wanted: usize,
}

/// Allocates tensors one after the other. Equal requests in the same order give equal tensors, so that a plan agrees
/// with the pass that follows it.
#[derive(Debug, Clone, Copy, Default)]
pub struct TensorArea {
    used: usize,
    most: usize,
}

impl TensorArea {
    /// Returns a tensor of `len` numbers of unspecified content, after all others.
    pub fn take(&mut self, len: usize) -> Tensor {
        let tensor = Tensor { start: self.used, len };
        self.used = self.used.saturating_add(len).div_ceil(ALIGN).saturating_mul(ALIGN);
        self.most = self.most.max(self.used);
        tensor
    }

    /// Returns an area after what has been taken so far. Two such areas may share memory: the tensors of one area must
    /// not be read any more once the tensors of the other are written.
    pub fn shared(&self) -> Self {
        Self { used: self.used, most: self.used }
    }

    /// Returns a tensor of everything after what has been taken so far, in a memory of `capacity` numbers.
    pub fn rest(&self, capacity: usize) -> Tensor {
        Tensor { start: self.used, len: capacity.saturating_sub(self.used) }
    }

    /// Reserves the memory that a [shared](Self::shared) area has taken.
    pub fn reserve(&mut self, shared: &Self) {
        self.most = self.most.max(shared.most);
    }

    /// Returns the number of bytes that the whole area takes.
    pub fn bytes(&self) -> usize {
        self.most.saturating_mul(size_of::<f32>())
    }

    /// Checks that a memory of `capacity` numbers holds the whole area.
    ///
    /// # Errors
    /// Fails if it does not.
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
