//! Presents tensors that files hold in another arrangement than kernels read, as a file in which they lie as they
//! should. Reads of this file are reads of the model's files, whose bytes are rearranged on the way. No rearranged byte
//! is kept.
//!
//! | in safetensors | here |
//! |---|---|
//! | `gate_up_proj` `[E, H, 2I]`, gate and up in turns; `down_proj` `[E, I, H]` | rows of gate, up and down |
//! | `…_blocks` `[E, rows, n, 16]`, `…_scales` `[E, rows, n]`, rows of gate and up in turns | rows of MXFP4 blocks |
//! | `gate_up_proj_bias` `[E, 2I]`, gate and up in turns | those of gate, then those of up |
//! | inputs of delta rules, grouped by key heads (`grouped.rs`) | each input by itself |
//!
//! The matrices of an expert lie together, from a page on, so that they are read at once.

mod grouped;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};

use interbed_io::{AlignedBuffer, DIRECT_ALIGN, DirectRead, FileIdentity, IoError, RandomAccessFile};
use interbed_kernels::DType;

use super::CatalogEntry;
use super::mixtures::{EXPERTS_MAX, PART_BYTES_LEAST, within_layer};
use crate::safetensors::ElementType;

/// Number of bytes that are read from the model's files at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// Number of values in a block of MXFP4.
const BLOCK: usize = 32;
/// Number of bytes of the codes of a block of MXFP4.
const CODES: usize = BLOCK / 2;

/// A tensor that is rearranged, with its name and entry here, and its name in the file.
pub(super) struct Rearranged {
    pub name: String,
    pub in_file: String,
    pub entry: CatalogEntry,
}

/// Matrices of equal shape that lie one after the other in the rearranged file, and the place of their bytes in the
/// model's files.
#[derive(Debug)]
struct Part {
    /// Offset of the first matrix's first byte in the rearranged file.
    begin: u64,
    /// Number of matrices whose rows (or columns, if they are transposed) alternate in the model's file.
    woven: usize,
    /// Number of rows of each matrix.
    rows: usize,
    cols: usize,
    /// Number of bytes of a row.
    row_bytes: usize,
    from: Origin,
}

/// Arrangement of a part in the model's file.
#[derive(Debug)]
enum Origin {
    /// The rows lie in the model's file in the required order.
    Rows(Place),
    /// A transposed tensor, `[cols, rows]`, in which the rows of several matrices may alternate. The number is the size
    /// of an element in bytes.
    Turned(Place, usize),
    /// Groups of `group_rows` rows, of each of which `run` rows belong to the part, the first of them at the place.
    Grouped { place: Place, run: usize, group_rows: usize },
    /// Two tensors that form MXFP4 matrices: codes `[rows, blocks, 16]` and scales `[rows, blocks]`. The rows of
    /// several matrices may alternate.
    Mxfp4 { blocks: Place, scales: Place },
}

#[derive(Debug, Clone, Copy)]
struct Place {
    file: usize,
    offset: u64,
}

/// A function that reads bytes of one of the model's files, given the file's index, a buffer and an offset.
type Read<'a> = dyn FnMut(usize, &mut [u8], u64) -> Result<(), IoError> + 'a;

/// Arrangement of all parts of the rearranged file.
#[derive(Debug, Default)]
pub(super) struct Arrangement {
    /// Parts, in ascending order of `begin`.
    parts: Vec<Part>,
    len: u64,
}

/// A file that presents the experts in the arrangement that is needed, and reads the model's files through the page
/// cache.
pub(super) struct RearrangedFile {
    files: Vec<Arc<dyn RandomAccessFile>>,
    arrangement: Arc<Arrangement>,
}

/// A file that presents the experts in the arrangement that is needed, and reads the model's files past the page cache.
struct RearrangedDirect {
    files: Vec<Arc<dyn DirectRead>>,
    arrangement: Arc<Arrangement>,
    /// Buffers that bytes of the model's files are read into. They are returned after use, so there are as many as
    /// threads that read.
    buffers: Mutex<Vec<AlignedBuffer>>,
}

/// Takes the tensors out of `entries` that have to be rearranged, and returns them with the places they get in file
/// number `file`. Tensors that do not belong together stay; loading will report what is missing.
pub(super) fn take(entries: &mut Vec<(String, CatalogEntry)>, file: usize) -> (Vec<Rearranged>, Arrangement) {
    let (mut found, mut arrangement) = take_experts(entries, file);
    grouped::take(entries, file, &mut found, &mut arrangement);
    (found, arrangement)
}

fn take_experts(entries: &mut Vec<(String, CatalogEntry)>, file: usize) -> (Vec<Rearranged>, Arrangement) {
    const FUSED: &str = "mlp.experts.gate_up_proj_bias";
    let layers: BTreeMap<u32, String> = entries
        .iter()
        .filter_map(|(name, _)| within_layer(name).filter(|(_, within)| *within == FUSED))
        .filter_map(|(layer, _)| Some((layer.parse().ok()?, layer.to_owned())))
        .collect();
    if layers.is_empty() {
        return Default::default();
    }
    let by_name = entries.iter().map(|(name, entry)| (name.as_str(), entry)).collect();
    let mut taker =
        Taker { entries: by_name, file, used: Vec::new(), found: Vec::new(), arrangement: Arrangement::default() };
    for layer in layers.values() {
        let (used, found) = (taker.used.len(), taker.found.len());
        let (parts, len) = (taker.arrangement.parts.len(), taker.arrangement.len);
        if taker.take_layer(&format!("model.layers.{layer}.mlp.experts.")).is_none() {
            taker.used.truncate(used);
            taker.found.truncate(found);
            taker.arrangement.parts.truncate(parts);
            taker.arrangement.len = len;
        }
    }
    let Taker { used, found, arrangement, .. } = taker;
    let used: HashSet<String> = used.into_iter().collect();
    entries.retain(|(name, _)| !used.contains(name));
    (found, arrangement)
}

struct Taker<'e> {
    entries: HashMap<&'e str, &'e CatalogEntry>,
    file: usize,
    /// Names of tensors that were taken out of the entries.
    used: Vec<String>,
    found: Vec<Rearranged>,
    arrangement: Arrangement,
}

/// Matrices of one kind (such as the down projection) of all experts of a layer.
struct Matrices {
    /// Name of the tensor in the model's file.
    name: String,
    /// Names of the matrices here, in the order in which their rows alternate in the file.
    names: &'static [&'static str],
    experts: usize,
    rows: usize,
    cols: usize,
    stored: Stored,
}

/// Arrangement in which the model's file stores a tensor of all experts.
#[derive(Clone, Copy)]
enum Stored {
    Turned(Place, DType),
    Mxfp4 { blocks: Place, scales: Place },
}

impl Stored {
    /// Returns the type of the matrices that are made from the tensor.
    fn dtype(self) -> DType {
        match self {
            Self::Turned(_, dtype) => dtype,
            Self::Mxfp4 { .. } => DType::Mxfp4,
        }
    }
}

impl Taker<'_> {
    /// Takes the tensors of one layer that have to be rearranged. Returns `None` if one is missing or has an unexpected
    /// shape or type.
    fn take_layer(&mut self, prefix: &str) -> Option<()> {
        let [gate_up, down] = [("gate_up_proj", &["gate", "up"][..]), ("down_proj", &["down"])]
            .map(|(name, names)| self.matrices(&format!("{prefix}{name}"), names));
        let (gate_up, down) = (gate_up?, down?);
        if gate_up.experts != down.experts {
            return None;
        }
        for expert in 0..gate_up.experts {
            self.arrangement.len = self.arrangement.len.checked_next_multiple_of(DIRECT_ALIGN as u64)?;
            for matrices in [&gate_up, &down] {
                self.add_expert(prefix, matrices, expert)?;
            }
        }
        for matrices in [gate_up, down] {
            self.add_biases(prefix, &matrices)?;
            let name = matrices.name;
            match matrices.stored {
                Stored::Turned(..) => self.used.push(name),
                Stored::Mxfp4 { .. } => self.used.extend([format!("{name}_blocks"), format!("{name}_scales")]),
            }
        }
        Some(())
    }

    fn get(&self, name: &str) -> Option<&CatalogEntry> {
        self.entries.get(name).copied()
    }

    fn matrices(&mut self, name: &str, names: &'static [&'static str]) -> Option<Matrices> {
        let place = |entry: &CatalogEntry| Place { file: entry.file, offset: entry.offset };
        let (experts, rows, cols, stored) = match self.get(name) {
            Some(entry) => {
                let &[experts, cols, rows] = entry.shape.as_slice() else { return None };
                let ElementType::Known(dtype) = entry.element_type else { return None };
                if !dtype.is_plain() {
                    return None;
                }
                (experts, rows, cols, Stored::Turned(place(entry), dtype))
            }
            None => {
                let (blocks, scales) = (self.get(&format!("{name}_blocks"))?, self.get(&format!("{name}_scales"))?);
                let &[experts, rows, count, CODES] = blocks.shape.as_slice() else { return None };
                let is_u8 = |entry: &CatalogEntry| entry.element_type.name() == "U8";
                if scales.shape != [experts, rows, count] || !is_u8(blocks) || !is_u8(scales) {
                    return None;
                }
                let stored = Stored::Mxfp4 { blocks: place(blocks), scales: place(scales) };
                (experts, rows, count.checked_mul(BLOCK)?, stored)
            }
        };
        // An entry for each expert takes memory, which its bytes must be worth.
        let bytes = rows.checked_mul(stored.dtype().row_bytes(cols)?)?;
        let worth = bytes >= names.len() * PART_BYTES_LEAST && rows.is_multiple_of(names.len());
        let is_one = (1..=EXPERTS_MAX).contains(&experts) && worth;
        is_one.then(|| Matrices { name: name.to_owned(), names, experts, rows: rows / names.len(), cols, stored })
    }

    fn add_expert(&mut self, prefix: &str, matrices: &Matrices, expert: usize) -> Option<()> {
        let &Matrices { ref name, names, rows, cols, stored, .. } = matrices;
        let dtype = stored.dtype();
        let row_bytes = dtype.row_bytes(cols)?;
        let all = rows * names.len();
        let of_expert = |place: Place, bytes: usize| Place { offset: place.offset + (expert * bytes) as u64, ..place };
        let from = match stored {
            Stored::Turned(place, dtype) => {
                let size = dtype.block_bytes();
                Origin::Turned(of_expert(place, all * cols * size), size)
            }
            Stored::Mxfp4 { blocks, scales } => {
                let count = all * cols / BLOCK;
                Origin::Mxfp4 { blocks: of_expert(blocks, count * CODES), scales: of_expert(scales, count) }
            }
        };
        let in_file = match stored {
            Stored::Turned(..) => name.clone(),
            Stored::Mxfp4 { .. } => format!("{name}_blocks"),
        };
        let part = Part { begin: self.arrangement.len, woven: names.len(), rows, cols, row_bytes, from };
        for (index, matrix) in names.iter().enumerate() {
            let entry = CatalogEntry {
                file: self.file,
                offset: part.begin + (index * rows * row_bytes) as u64,
                bytes: (rows * row_bytes) as u64,
                shape: vec![rows, cols],
                element_type: ElementType::Known(dtype),
                scales: None,
            };
            let name = format!("{prefix}{expert}.{matrix}_proj.weight");
            self.found.push(Rearranged { name, in_file: in_file.clone(), entry });
        }
        self.arrangement.push(part)
    }

    /// Adds the biases of all experts, one expert after the other.
    fn add_biases(&mut self, prefix: &str, matrices: &Matrices) -> Option<()> {
        let &Matrices { ref name, names, experts, rows, .. } = matrices;
        let in_file = format!("{name}_bias");
        let entry = self.get(&in_file)?.clone();
        let ElementType::Known(dtype) = entry.element_type else { return None };
        if entry.shape != [experts, rows * names.len()] || !dtype.is_plain() {
            return None;
        }
        let (size, all) = (dtype.row_bytes(1)?, experts * rows);
        let place = Place { file: entry.file, offset: entry.offset };
        let begin = self.arrangement.len;
        let part = Part { begin, woven: names.len(), rows: all, cols: 1, row_bytes: size, from: Origin::Rows(place) };
        for (index, matrix) in names.iter().enumerate() {
            let offset = begin + (index * all * size) as u64;
            let entry = CatalogEntry {
                file: self.file,
                offset,
                bytes: (all * size) as u64,
                shape: vec![all],
                element_type: entry.element_type.clone(),
                scales: None,
            };
            let name = format!("{prefix}all.{matrix}_proj.bias");
            self.found.push(Rearranged { name, in_file: in_file.clone(), entry });
        }
        self.used.push(in_file);
        self.arrangement.push(part)
    }
}

impl Arrangement {
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    fn push(&mut self, part: Part) -> Option<()> {
        self.len = self.len.checked_add(part.bytes())?;
        self.parts.push(part);
        Some(())
    }

    /// Fills `to` with the bytes at `offset` of the rearranged file. Bytes between parts are zeros.
    fn fill(&self, to: &mut [u8], offset: u64, read: &mut Read<'_>) -> Result<(), IoError> {
        to.fill(0);
        let end = offset.saturating_add(to.len() as u64);
        let first = self.parts.partition_point(|part| part.begin + part.bytes() <= offset);
        let mut filled = Filled { to, offset };
        for part in self.parts[first..].iter().take_while(|part| part.begin < end) {
            part.fill(&mut filled, read)?;
        }
        Ok(())
    }
}

/// A range of the rearranged file that is being read, and the buffer for it.
struct Filled<'a> {
    to: &'a mut [u8],
    offset: u64,
}

impl Filled<'_> {
    /// Copies the part of `bytes` that lies in the requested range; `at` is the offset of `bytes` in the rearranged
    /// file.
    fn put(&mut self, at: u64, bytes: &[u8]) {
        let end = self.offset + self.to.len() as u64;
        let (from, to) = (at.max(self.offset), (at + bytes.len() as u64).min(end));
        if from < to {
            let bytes = &bytes[(from - at) as usize..(to - at) as usize];
            self.to[(from - self.offset) as usize..(to - self.offset) as usize].copy_from_slice(bytes);
        }
    }

    /// Returns which rows of the matrix that begins at `begin` lie, at least in part, in the requested range.
    fn rows(&self, begin: u64, rows: usize, row_bytes: usize) -> Range<usize> {
        let end = self.offset + self.to.len() as u64;
        let row = |at: u64| (at.saturating_sub(begin) / row_bytes as u64).min(rows as u64) as usize;
        let behind = (end.saturating_sub(begin).div_ceil(row_bytes as u64)).min(rows as u64) as usize;
        row(self.offset)..behind
    }
}

impl Part {
    fn bytes(&self) -> u64 {
        (self.woven * self.rows * self.row_bytes) as u64
    }

    fn matrix(&self, index: usize) -> u64 {
        self.begin + (index * self.rows * self.row_bytes) as u64
    }

    fn row(&self, index: usize, row: usize) -> u64 {
        self.matrix(index) + (row * self.row_bytes) as u64
    }

    /// Fills in the bytes of this part that lie in the requested range.
    fn fill(&self, filled: &mut Filled<'_>, read: &mut Read<'_>) -> Result<(), IoError> {
        let wanted = |index: usize| filled.rows(self.matrix(index), self.rows, self.row_bytes);
        let wanted: Vec<_> = (0..self.woven).map(wanted).collect();
        let asked = wanted.iter().filter(|rows| !rows.is_empty());
        let (first, end) = asked.fold((self.rows, 0), |(first, end), rows| (first.min(rows.start), end.max(rows.end)));
        if first >= end {
            return Ok(());
        }
        match self.from {
            Origin::Turned(place, size) => self.turn(filled, (place, size), first..end, &wanted, read),
            Origin::Grouped { place, run, group_rows } => {
                self.gather(filled, (place, run, group_rows), first..end, read)
            }
            _ => {
                let each = (CHUNK_BYTES / (self.woven * self.row_bytes)).max(1);
                for from in (first..end).step_by(each) {
                    self.unweave(filled, from..(from + each).min(end), &wanted, read)?;
                }
                Ok(())
            }
        }
    }

    /// Fills in the requested rows of each matrix; the rows of several matrices alternate in the model's file.
    fn unweave(
        &self,
        filled: &mut Filled<'_>,
        rows: Range<usize>,
        wanted: &[Range<usize>],
        read: &mut Read<'_>,
    ) -> Result<(), IoError> {
        let mut rows_of = |place: Place, row_bytes: usize| {
            let mut bytes = vec![0; self.woven * rows.len() * row_bytes];
            let offset = place.offset + (self.woven * rows.start * row_bytes) as u64;
            read(place.file, &mut bytes, offset).map(|()| bytes)
        };
        let blocks = self.cols / BLOCK;
        let (bytes, scales) = match self.from {
            Origin::Mxfp4 { blocks: codes, scales } => (rows_of(codes, blocks * CODES)?, rows_of(scales, blocks)?),
            Origin::Rows(place) | Origin::Turned(place, _) | Origin::Grouped { place, .. } => {
                (rows_of(place, self.row_bytes)?, Vec::new())
            }
        };
        let mut block_row = vec![0; if scales.is_empty() { 0 } else { self.row_bytes }];
        for (index, wanted) in wanted.iter().enumerate() {
            for row in rows.start.max(wanted.start)..rows.end.min(wanted.end) {
                let at = (row - rows.start) * self.woven + index;
                if scales.is_empty() {
                    filled.put(self.row(index, row), &bytes[at * self.row_bytes..][..self.row_bytes]);
                    continue;
                }
                let codes = bytes[at * blocks * CODES..][..blocks * CODES].as_chunks::<CODES>().0;
                for ((to, scale), codes) in block_row.chunks_exact_mut(1 + CODES).zip(&scales[at * blocks..]).zip(codes)
                {
                    to[0] = *scale;
                    // Numbers 2 i and 2 i + 1 shared a byte; now i and i + 16 do.
                    for i in 0..CODES / 2 {
                        let (low, high) = (codes[i], codes[CODES / 2 + i]);
                        to[1 + 2 * i] = low & 15 | high << 4;
                        to[2 + 2 * i] = low >> 4 | high & 0xf0;
                    }
                }
                filled.put(self.row(index, row), &block_row);
            }
        }
        Ok(())
    }

    /// Fills in rows that lie in runs in the model's file.
    fn gather(
        &self,
        filled: &mut Filled<'_>,
        (place, run, group_rows): (Place, usize, usize),
        rows: Range<usize>,
        read: &mut Read<'_>,
    ) -> Result<(), IoError> {
        let each = (CHUNK_BYTES / self.row_bytes).max(1);
        let mut row = rows.start;
        let mut bytes = Vec::new();
        while row < rows.end {
            let (group, within) = (row / run, row % run);
            let count = (run - within).min(rows.end - row).min(each);
            bytes.resize(count * self.row_bytes, 0);
            read(place.file, &mut bytes, place.offset + ((group * group_rows + within) * self.row_bytes) as u64)?;
            filled.put(self.row(0, row), &bytes);
            row += count;
        }
        Ok(())
    }

    /// Fills in the requested rows of each matrix. The rows are columns in the model's file, where the columns of
    /// several matrices alternate.
    fn turn(
        &self,
        filled: &mut Filled<'_>,
        (place, size): (Place, usize),
        rows: Range<usize>,
        wanted: &[Range<usize>],
        read: &mut Read<'_>,
    ) -> Result<(), IoError> {
        let (stride, taken) = (self.woven * self.rows * size, self.woven * rows.len() * size);
        let skip = self.woven * rows.start * size;
        let each = (CHUNK_BYTES / taken).clamp(1, self.cols);
        let (mut bytes, mut run) = (vec![0; each * taken], vec![0; each * size]);
        for first in (0..self.cols).step_by(each) {
            let count = each.min(self.cols - first);
            let offset = place.offset + (first * stride + skip) as u64;
            if taken == stride {
                read(place.file, &mut bytes[..count * taken], offset)?;
            } else {
                for (col, bytes) in bytes.chunks_exact_mut(taken).take(count).enumerate() {
                    read(place.file, bytes, offset + (col * stride) as u64)?;
                }
            }
            for (index, wanted) in wanted.iter().enumerate() {
                for row in wanted.clone() {
                    let at = ((row - rows.start) * self.woven + index) * size;
                    for (col, to) in run.chunks_exact_mut(size).take(count).enumerate() {
                        to.copy_from_slice(&bytes[col * taken + at..][..size]);
                    }
                    filled.put(self.row(index, row) + (first * size) as u64, &run[..count * size]);
                }
            }
        }
        Ok(())
    }
}

impl RearrangedFile {
    /// Creates a virtual file that presents the model's `files` in the given arrangement.
    ///
    /// # Panics
    /// Panics if `files` is empty.
    pub fn new(files: &[Arc<dyn RandomAccessFile>], arrangement: Arrangement) -> Self {
        assert!(!files.is_empty());
        Self { files: files.to_vec(), arrangement: Arc::new(arrangement) }
    }

    /// Returns a virtual file that has the same content, but bypasses the page cache. `files` are the model's files,
    /// opened for direct reads.
    pub fn direct(&self, files: Vec<Arc<dyn DirectRead>>) -> Arc<dyn DirectRead> {
        Arc::new(RearrangedDirect { files, arrangement: Arc::clone(&self.arrangement), buffers: Mutex::default() })
    }
}

impl RandomAccessFile for RearrangedFile {
    fn path(&self) -> &Path {
        self.files[0].path()
    }

    fn len(&self) -> u64 {
        self.arrangement.len
    }

    fn identity(&self) -> Option<&FileIdentity> {
        self.files[0].identity()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), IoError> {
        let (path, wanted, len_at_open) = (self.path(), buf.len(), self.len());
        if offset.checked_add(wanted as u64).is_none_or(|end| end > len_at_open) {
            return Err(IoError::Ended { path: path.to_owned(), offset, wanted, got: 0, len_at_open });
        }
        self.arrangement.fill(buf, offset, &mut |file, bytes, offset| self.files[file].read_exact_at(bytes, offset))
    }
}

impl DirectRead for RearrangedDirect {
    fn path(&self) -> &Path {
        self.files[0].path()
    }

    fn len(&self) -> u64 {
        self.arrangement.len
    }

    fn read_aligned_at(&self, buf: &mut [u8], offset: u64, needed: usize) -> Result<(), IoError> {
        let len_at_open = self.len();
        if offset.checked_add(needed as u64).is_none_or(|end| end > len_at_open) || needed > buf.len() {
            let (path, wanted) = (self.path().to_owned(), needed);
            return Err(IoError::Ended { path, offset, wanted, got: 0, len_at_open });
        }
        let buffers = || self.buffers.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut window = buffers().pop();
        let mut read = |file: usize, bytes: &mut [u8], offset: u64| {
            let file = &self.files[file];
            let skip = (offset % DIRECT_ALIGN as u64) as usize;
            let (start, needed) = (offset - skip as u64, skip + bytes.len());
            let length = needed.next_multiple_of(DIRECT_ALIGN);
            if window.as_ref().is_none_or(|window| window.as_slice().len() < length) {
                window = AlignedBuffer::new_zeroed(length.max(CHUNK_BYTES + 2 * DIRECT_ALIGN));
            }
            let Some(window) = &mut window else {
                let (path, source) = (file.path().to_owned(), std::io::ErrorKind::OutOfMemory.into());
                return Err(IoError::Read { path, offset, wanted: bytes.len(), got: 0, source });
            };
            file.read_aligned_at(&mut window.as_mut()[..length], start, needed)?;
            bytes.copy_from_slice(&window.as_slice()[skip..needed]);
            Ok(())
        };
        let outcome = self.arrangement.fill(&mut buf[..needed], offset, &mut read);
        buffers().extend(window);
        outcome
    }

    fn check_unchanged(&self) -> Result<(), IoError> {
        self.files.iter().try_for_each(|file| file.check_unchanged())
    }

    fn direct_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }

    fn is_direct(&self) -> bool {
        self.files.iter().all(|file| file.is_direct())
    }
}

#[cfg(test)]
mod tests;
