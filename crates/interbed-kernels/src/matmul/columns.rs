//! Where a product's results go.

use std::marker::PhantomData;

/// Results of a product, `[tokens, columns]`, to be written: all columns of a buffer, or those that a band of the
/// weights' rows computes.
#[derive(Debug)]
pub struct Columns<'a> {
    first: *mut f32,
    tokens: usize,
    columns: usize,
    stride: usize,
    buffer: PhantomData<&'a mut [f32]>,
}

impl<'a> Columns<'a> {
    /// All of `out`, `[tokens, columns]`.
    ///
    /// # Panics
    /// If `out` is not whole rows.
    pub fn new(out: &'a mut [f32], columns: usize) -> Self {
        assert!(columns > 0 && out.len().is_multiple_of(columns));
        let tokens = out.len() / columns;
        Self { first: out.as_mut_ptr(), tokens, columns, stride: columns, buffer: PhantomData }
    }

    /// The first `count` columns, and the rest.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn split_at(self, count: usize) -> (Self, Self) {
        assert!(count <= self.columns);
        let behind = Self { first: self.first.wrapping_add(count), columns: self.columns - count, ..self };
        (Self { columns: count, ..self }, behind)
    }

    /// Rows.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    pub(crate) fn output(&self) -> Output {
        Output { first: self.first, stride: self.stride }
    }
}

/// Results that threads write together: each writes disjoint columns, those of its own rows of the weights.
#[derive(Clone, Copy)]
pub(crate) struct Output {
    first: *mut f32,
    /// Numbers from one token to the next.
    pub stride: usize,
}

// SAFETY: threads write disjoint elements, as the functions that are given one ask of their callers.
unsafe impl Send for Output {}
// SAFETY: as above.
unsafe impl Sync for Output {}

impl Output {
    /// The results from column `first` on.
    pub fn behind(self, first: usize) -> Self {
        Self { first: self.first.wrapping_add(first), ..self }
    }

    /// Where the result of `row` for `token` belongs. The pointer may be used if [`Columns`] has that place.
    #[inline(always)]
    pub fn at(&self, token: usize, row: usize) -> *mut f32 {
        self.first.wrapping_add(token * self.stride + row)
    }

    /// The results of `count` rows from `row` on for `token`.
    ///
    /// # Safety
    /// [`Columns`] has these places, and nothing else touches them while they are in use.
    #[inline(always)]
    pub unsafe fn of<'a>(self, token: usize, row: usize, count: usize) -> &'a mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.at(token, row), count) }
    }
}
