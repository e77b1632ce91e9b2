//! Parts of a buffer, each of which a thread of its own may fill.

use std::ops::Range;
use std::sync::Arc;

use crate::AlignedBuffer;

/// A part of an [`AlignedBuffer`] that [`split`](Self::split) has returned. Parts do not overlap. The buffer is
/// accessible only through its parts until they are [joined](Self::join).
#[derive(Debug)]
pub struct BufferPart {
    buffer: Arc<AlignedBuffer>,
    range: Range<usize>,
}

impl BufferPart {
    /// Splits `buffer` into adjacent parts, the first of which begins at the start of the buffer. `lens` gives the
    /// length of each part in bytes.
    ///
    /// # Panics
    /// Panics if `lens` is empty, or if the buffer is shorter than all parts together.
    pub fn split(buffer: AlignedBuffer, lens: impl Iterator<Item = usize>) -> Vec<Self> {
        let buffer = Arc::new(buffer);
        let mut at = 0usize;
        let part = |len: usize| {
            let end = at.checked_add(len).filter(|&end| end <= buffer.as_slice().len());
            let range = at..end.expect("the parts are longer than the buffer");
            at = range.end;
            Self { buffer: Arc::clone(&buffer), range }
        };
        let parts: Vec<_> = lens.map(part).collect();
        assert!(!parts.is_empty(), "a buffer in no parts could not be joined");
        parts
    }

    /// Returns the buffer that `parts` belong to. Returns `None` if `parts` is empty or if another part of the buffer
    /// still exists.
    pub fn join(mut parts: Vec<Self>) -> Option<AlignedBuffer> {
        let Self { buffer, .. } = parts.pop()?;
        drop(parts);
        Arc::into_inner(buffer)
    }
}

impl AsMut<[u8]> for BufferPart {
    fn as_mut(&mut self) -> &mut [u8] {
        let start = self.buffer.start();
        // SAFETY: the range lies in the buffer, whose bytes are initialised and live as long as it. No other part
        // overlaps it, parts are not cloned, and the buffer itself is accessed through parts only: nothing else reads
        // or writes these bytes while they are borrowed from `self`.
        unsafe { std::slice::from_raw_parts_mut(start.add(self.range.start).as_ptr(), self.range.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_filled_by_threads_and_make_the_whole() {
        let buffer = AlignedBuffer::new_zeroed(1 << 16).unwrap();
        let lens = [1, 4096, 0, 33, 20_000];
        let mut parts = BufferPart::split(buffer, lens.into_iter());
        std::thread::scope(|scope| {
            for (number, part) in (1..).zip(&mut parts) {
                scope.spawn(move || part.as_mut().fill(number));
            }
        });
        assert_eq!(parts.iter_mut().map(|part| part.as_mut().len()).collect::<Vec<_>>(), lens);
        let one = parts.pop().unwrap();
        assert!(BufferPart::join(parts).is_none(), "one part is missing");
        let whole = BufferPart::join(vec![one]).unwrap();
        let want = lens.iter().zip(1u8..).flat_map(|(&len, number)| std::iter::repeat_n(number, len));
        assert!(want.zip(whole.as_slice()).all(|(want, &got)| want == got));
        assert!(whole.as_slice()[lens.iter().sum()..].iter().all(|&byte| byte == 0));
    }

    #[test]
    #[should_panic(expected = "longer than the buffer")]
    fn parts_beyond_the_buffer_are_refused() {
        BufferPart::split(AlignedBuffer::new_zeroed(4096).unwrap(), [4096, 1].into_iter());
    }
}
