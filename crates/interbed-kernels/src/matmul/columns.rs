//! The destination of a product's results.

use std::marker::PhantomData;

/// The destination of a product's results, `[tokens, columns]`. It covers all columns of a buffer, or only the columns
/// that a band of the weights' rows computes.
#[derive(Debug)]
pub struct Columns<'a> {
    first: *mut f32,
    tokens: usize,
    columns: usize,
    stride: usize,
    buffer: PhantomData<&'a mut [f32]>,
}

impl<'a> Columns<'a> {
    /// Creates a destination that covers all of `out`, `[tokens, columns]`.
    ///
    /// # Panics
    /// Panics if `out` is not whole rows of `columns` elements.
    pub fn new(out: &'a mut [f32], columns: usize) -> Self {
        assert!(columns > 0 && out.len().is_multiple_of(columns));
        let tokens = out.len() / columns;
        Self { first: out.as_mut_ptr(), tokens, columns, stride: columns, buffer: PhantomData }
    }

    /// Splits the destination after the first `count` columns, and returns both parts.
    ///
    /// # Panics
    /// Panics if there are fewer than `count` columns.
    pub fn split_at(self, count: usize) -> (Self, Self) {
        assert!(count <= self.columns);
        let behind = Self { first: self.first.wrapping_add(count), columns: self.columns - count, ..self };
        (Self { columns: count, ..self }, behind)
    }

    /// Returns the number of tokens (rows).
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Returns the number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    pub(crate) fn output(&self) -> Output {
        Output { first: self.first, stride: self.stride }
    }
}

/// Results that several threads write. Each thread writes different columns: the columns of its rows of the weights.
#[derive(Clone, Copy)]
pub(crate) struct Output {
    first: *mut f32,
    /// The number of elements from one token to the next.
    pub stride: usize,
}

// SAFETY: threads write disjoint elements, as the functions that take an `Output` require.
unsafe impl Send for Output {}
// SAFETY: as above.
unsafe impl Sync for Output {}

impl Output {
    /// Returns the output without the columns before column `first`.
    pub fn behind(self, first: usize) -> Self {
        Self { first: self.first.wrapping_add(first), ..self }
    }

    /// Returns the address of the result of `row` for `token`. The address may be dereferenced only if the [`Columns`]
    /// of this output contain the element.
    #[inline(always)]
    pub fn at(&self, token: usize, row: usize) -> *mut f32 {
        self.first.wrapping_add(token * self.stride + row)
    }

    /// Returns the results of `count` rows from `row` on for `token`.
    ///
    /// # Safety
    /// The [`Columns`] of this output contain these elements, and nothing else touches the elements while they are in
    /// use.
    #[inline(always)]
    pub unsafe fn of<'a>(self, token: usize, row: usize, count: usize) -> &'a mut [f32] {
        // SAFETY: guaranteed by the caller.
        unsafe { std::slice::from_raw_parts_mut(self.at(token, row), count) }
    }
}
