//! Scales and minima of sixteen rows side by side, in the form in which kernels multiply by them.

/// The number of rows whose scales lie in the lanes of a vector.
pub(super) const ROWS: usize = 16;

/// The number of columns of a span, which is one block of the K types.
pub(super) const SPAN: usize = 256;
/// The number of 32-column blocks in a span.
pub(super) const SPAN_BLOCKS: usize = 8;

/// The number of blocks of 32 columns of a row that are unpacked at once.
#[cfg(target_arch = "x86_64")]
pub(super) const GROUP: usize = 4;
#[cfg(target_arch = "x86_64")]
/// The number of groups of [`GROUP`] blocks in a span.
pub(super) const GROUPS: usize = SPAN_BLOCKS / GROUP;

/// One number for each of sixteen rows.
pub(super) type Lanes = [f32; ROWS];
/// One integer for each of sixteen rows.
pub(super) type Factors = [i32; ROWS];

/// The decoded small fields of a span of sixteen rows. Only the fields of the type are filled in.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Header {
    /// The scales, which are the factors of integer sums, `[block][row]`. Types with blocks of 256 have only the first.
    pub scales: [Lanes; SPAN_BLOCKS],
    /// The minima, which are subtracted from each number, `[block][row]`. Types with blocks of 256 have only the first.
    pub minima: [Lanes; SPAN_BLOCKS],
    /// The integer factors of the dot products of half blocks, `[block][half][row]`. If both halves share a factor,
    /// it is in the place of the first.
    pub factors: [[Factors; 2]; SPAN_BLOCKS],
    /// The integer factors of the minima, two in the halves of each integer, `[pair][row]`: of the halves of each
    /// block, or, if halves share a factor, of two blocks (four pairs).
    pub minimum_factors: [Factors; SPAN_BLOCKS],
}

impl Header {
    pub const ZERO: Self = Self {
        scales: [[0.0; ROWS]; SPAN_BLOCKS],
        minima: [[0.0; ROWS]; SPAN_BLOCKS],
        factors: [[[0; ROWS]; 2]; SPAN_BLOCKS],
        minimum_factors: [[0; ROWS]; SPAN_BLOCKS],
    };
}

/// The small fields in the form that they have in the file, so that all arithmetic can be done on sixteen rows at once.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Fields {
    /// The scales as half floats (or exponents), one per block of the type, `[block][row]`.
    pub scales: [[u16; ROWS]; SPAN_BLOCKS],
    /// The minima as half floats, one per block of the type, `[block][row]`.
    pub minima: [[u16; ROWS]; SPAN_BLOCKS],
    /// The packed scales and minima of parts of a block, four bytes per word, `[word][row]`.
    pub words: [[u32; ROWS]; 4],
}

impl Fields {
    pub const ZERO: Self =
        Self { scales: [[0; ROWS]; SPAN_BLOCKS], minima: [[0; ROWS]; SPAN_BLOCKS], words: [[0; ROWS]; 4] };
}
