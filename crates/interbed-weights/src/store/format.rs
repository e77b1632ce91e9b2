//! Writes the header and manifest of a packed store, and checks them when they are read.

use std::collections::HashSet;
use std::path::{Component, Path};

use interbed_io::{IoError, RandomAccessFile};
use interbed_kernels::DType;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use super::checksum::Checksum;
use super::error::StoreProblem;

/// Highest store version that is read. Stores with coded matrices are written in this version, all others in version 1.
pub const STORE_VERSION: u32 = 2;
/// Version of stores without coded matrices.
const PLAIN_VERSION: u32 = 1;
/// Size of a page in bytes. Header, manifest and regions take whole pages, as direct reads require.
pub const PAGE_BYTES: u64 = 4096;
/// Tensors of at least this many bytes begin on a page, which adds at most 1.6 % of padding.
pub const LARGE_TENSOR_FROM: u64 = 256 << 10;
/// Maximum length of a manifest in bytes; a store with a longer manifest is refused. The manifest of a model of 1,000
/// layers is about 2 MB.
pub const MANIFEST_BYTES_MAX: u64 = 64 << 20;
/// Maximum length in bytes of a small file, such as `config.json`. One such file may hold the whole metadata of a GGUF
/// file, so the limit is that of GGUF headers.
pub const SMALL_FILE_BYTES_MAX: u64 = crate::GGUF_HEADER_BYTES_MAX;
/// Name of the small file that holds the metadata of a GGUF source: a GGUF file without tensors.
pub const METADATA_FILE: &str = "metadata.gguf";
/// Number of bytes at whose multiples all tensors begin: a cache line, and the widest vector.
pub(super) const TENSOR_ALIGN: u64 = 64;

const MAGIC: [u8; 8] = *b"\x89INTBED\n";
const UNFINISHED_MAGIC: [u8; 8] = *b"\x89INTPART";
/// Offset of the checksum in the header, behind all header bytes that it covers.
const CHECKSUM_AT: usize = PAGE_BYTES as usize - 16;

/// Manifest of a packed store: what the store contains, and where. All offsets and lengths are in bytes; offsets count
/// from the start of the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Name of the model: the name of its directory or file.
    pub name: String,
    /// Files from which the store was packed.
    pub source: Source,
    /// Small files of the model, in ascending order of offset.
    pub files: Vec<StoredFile>,
    /// Groups of tensors, in the order in which a forward pass needs them; their bytes lie in this order too.
    pub groups: Vec<StoredGroup>,
}

/// Files from which a store was packed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// Format of the files: "safetensors", "gguf" or "interbed".
    pub format: String,
    /// Weight files of the model.
    pub files: Vec<SourceFile>,
}

/// A file from which a store was packed, with enough information to detect later changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceFile {
    /// Name of the file, without directories.
    pub name: String,
    /// Length of the file in bytes.
    pub bytes: u64,
    /// Time of the file's last change, in nanoseconds since 1970.
    pub modified_ns: u64,
    /// Checksum of the first 1 MiB of the file, or of the whole file if it is shorter.
    pub begin: Checksum,
}

/// A small file of the model, such as its configuration, and its place in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredFile {
    /// Name of the file, such as `config.json`.
    pub name: String,
    /// Offset of the file's first byte, at the start of a page.
    pub offset: u64,
    /// Length of the file in bytes. The file's region is longer: it ends at the end of a page.
    pub bytes: u64,
    /// Checksum of the file's region, padding included.
    pub checksum: Checksum,
}

/// A group of tensors, and its place in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredGroup {
    /// Name of the group for display, such as "layer 3, attention".
    pub name: String,
    /// Offset of the group's first byte, at the start of a page.
    pub offset: u64,
    /// Length of the group in bytes, a multiple of [`PAGE_BYTES`].
    pub bytes: u64,
    /// Checksum of the group's bytes.
    pub checksum: Checksum,
    /// Tensors of the group, in ascending order of offset. A tensor that an earlier group contains is not listed again.
    pub tensors: Vec<StoredTensor>,
}

/// A tensor, and its place in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredTensor {
    /// Hugging Face name of the tensor, or its name in the source file if it has no Hugging Face name.
    pub name: String,
    /// Name of the element type, as in safetensors headers and GGUF tools. Types that only Interbed has, such as coded
    /// bf16, have names of their own.
    pub dtype: String,
    /// Number of patches (separately stored exponents) for which each row has room. `None` unless the tensor has the
    /// type [`CodedBf16`](interbed_kernels::DType::CodedBf16).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patches: Option<u16>,
    /// Shape of the tensor, outermost dimension first.
    pub shape: Vec<u64>,
    /// Offset of the tensor's first byte in the store.
    pub offset: u64,
    /// Length of the tensor in bytes.
    pub bytes: u64,
}

impl StoredTensor {
    /// Returns the type that `dtype` and `patches` mean together.
    pub(super) fn known_dtype(&self) -> Result<DType, StoreProblem> {
        let coded = DType::CodedBf16 { patches: self.patches.unwrap_or(0) };
        let known = DType::ALL.into_iter().chain([DType::Fp8, coded]).find(|dtype| dtype.name() == self.dtype);
        let (tensor, found) = (self.name.clone(), self.dtype.clone());
        match known {
            None => Err(StoreProblem::UnknownDType { tensor, found }),
            Some(dtype) if (dtype == coded) == self.patches.is_some() => Ok(dtype),
            Some(_) => Err(StoreProblem::Patches { tensor, found, patches: self.patches }),
        }
    }
}

/// A run of whole pages that one checksum covers: a small file or a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    /// Name of the region, for display.
    pub name: String,
    /// Offset of the region's first byte.
    pub offset: u64,
    /// Length of the region in bytes, a multiple of [`PAGE_BYTES`].
    pub bytes: u64,
    /// Checksum of the region's bytes.
    pub checksum: Checksum,
}

impl Manifest {
    /// Returns all regions: small files, then groups.
    pub fn regions(&self) -> impl Iterator<Item = Region> + '_ {
        let files = self.files.iter().map(|file| Region {
            name: file.name.clone(),
            offset: file.offset,
            // This cannot overflow: `check` has limited it.
            bytes: file.bytes.next_multiple_of(PAGE_BYTES),
            checksum: file.checksum,
        });
        let groups = self.groups.iter().map(|group| Region {
            name: group.name.clone(),
            offset: group.offset,
            bytes: group.bytes,
            checksum: group.checksum,
        });
        files.chain(groups)
    }

    pub(super) fn checksums_mut(&mut self) -> impl Iterator<Item = &mut Checksum> {
        let files = self.files.iter_mut().map(|file| &mut file.checksum);
        files.chain(self.groups.iter_mut().map(|group| &mut group.checksum))
    }
}

/// Returns whether a file that begins with these bytes is a packed store, finished or not.
pub fn is_store(begin: &[u8]) -> bool {
    begin.starts_with(&MAGIC) || begin.starts_with(&UNFINISHED_MAGIC)
}

/// Returns whether a file that begins with these bytes is a packed store that was not finished.
pub fn is_unfinished(begin: &[u8]) -> bool {
    begin.starts_with(&UNFINISHED_MAGIC)
}

/// Returns header and manifest as they lie in the store. The length of the result does not depend on the checksums.
pub(super) fn encode(manifest: &Manifest, total_bytes: u64, finished: bool) -> Vec<u8> {
    // This cannot fail: the manifest has only strings, numbers and lists.
    let mut json = serde_json::to_vec(manifest).unwrap_or_default();
    json.resize(json.len().next_multiple_of(PAGE_BYTES as usize), b' ');
    let is_coded = manifest.groups.iter().flat_map(|group| &group.tensors).any(|tensor| tensor.patches.is_some());
    let version = if is_coded { STORE_VERSION } else { PLAIN_VERSION };
    seal(&json, total_bytes, if finished { MAGIC } else { UNFINISHED_MAGIC }, version)
}

/// Returns this manifest with its header in front.
pub(super) fn seal(manifest: &[u8], total_bytes: u64, magic: [u8; 8], version: u32) -> Vec<u8> {
    let mut head = Vec::with_capacity(PAGE_BYTES as usize + manifest.len());
    head.extend(magic);
    head.extend(version.to_le_bytes());
    head.extend(0u32.to_le_bytes());
    head.extend((manifest.len() as u64).to_le_bytes());
    head.extend(total_bytes.to_le_bytes());
    head.resize(PAGE_BYTES as usize, 0);
    head.extend(manifest);
    let checksum = head_checksum(&head);
    head[CHECKSUM_AT..PAGE_BYTES as usize].copy_from_slice(&checksum.0.to_le_bytes());
    head
}

/// Content of a header and its manifest, after they were checked.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) manifest: Manifest,
    pub(super) total_bytes: u64,
}

/// Reason why header and manifest were not accepted: they cannot be read, or are damaged.
#[derive(Debug)]
pub(super) enum HeadFault {
    Io(IoError),
    Problem(StoreProblem),
}

impl From<StoreProblem> for HeadFault {
    fn from(problem: StoreProblem) -> Self {
        Self::Problem(problem)
    }
}

/// Reads and checks header and manifest of a finished store.
pub(super) fn read_head(file: &dyn RandomAccessFile) -> Result<Head, HeadFault> {
    read(file, true)
}

/// Reads and checks header and manifest of an unfinished store.
pub(super) fn read_unfinished(file: &dyn RandomAccessFile) -> Result<Head, HeadFault> {
    read(file, false)
}

fn read(file: &dyn RandomAccessFile, finished: bool) -> Result<Head, HeadFault> {
    let available = file.len();
    if available < PAGE_BYTES {
        return Err(StoreProblem::Truncated { expected: PAGE_BYTES, found: available }.into());
    }
    let mut head = vec![0; PAGE_BYTES as usize];
    file.read_exact_at(&mut head, 0).map_err(HeadFault::Io)?;
    let found = array(&head, 0);
    match (found, finished) {
        (MAGIC, true) | (UNFINISHED_MAGIC, false) => {}
        (UNFINISHED_MAGIC, true) => return Err(StoreProblem::Unfinished.into()),
        _ => return Err(StoreProblem::NotAStore { found }.into()),
    }
    // The version is checked before the checksum, which a later version may compute in another way.
    match u32::from_le_bytes(array(&head, 8)) {
        0 => return Err(StoreProblem::NoVersion.into()),
        1..=STORE_VERSION => {}
        found => return Err(StoreProblem::NewerVersion { found, known: STORE_VERSION }.into()),
    }
    let manifest_bytes = u64::from_le_bytes(array(&head, 16));
    let total_bytes = u64::from_le_bytes(array(&head, 24));
    if manifest_bytes > MANIFEST_BYTES_MAX {
        return Err(StoreProblem::ManifestOverLimit { bytes: manifest_bytes, limit: MANIFEST_BYTES_MAX }.into());
    }
    let data_start = PAGE_BYTES + manifest_bytes;
    let whole = manifest_bytes.is_multiple_of(PAGE_BYTES) && total_bytes.is_multiple_of(PAGE_BYTES);
    if !whole || manifest_bytes == 0 || total_bytes < data_start {
        return Err(StoreProblem::HeaderSizes { manifest_bytes, total_bytes }.into());
    }
    if data_start > available {
        return Err(StoreProblem::Truncated { expected: total_bytes, found: available }.into());
    }
    head.resize(data_start as usize, 0);
    file.read_exact_at(&mut head[PAGE_BYTES as usize..], PAGE_BYTES).map_err(HeadFault::Io)?;
    let expected = Checksum(u128::from_le_bytes(array(&head, CHECKSUM_AT)));
    let found = head_checksum(&head);
    if found != expected {
        return Err(StoreProblem::HeadChecksum { expected, found }.into());
    }
    if total_bytes > available {
        return Err(StoreProblem::Truncated { expected: total_bytes, found: available }.into());
    }
    let manifest: Manifest = serde_json::from_slice(&head[PAGE_BYTES as usize..])
        .map_err(|error| StoreProblem::Json { message: error.to_string() })?;
    check(&manifest, data_start, total_bytes)?;
    Ok(Head { manifest, total_bytes })
}

/// Computes the checksum of header and manifest, except the bytes of the checksum itself.
fn head_checksum(head: &[u8]) -> Checksum {
    let mut hash = Xxh3::new();
    hash.update(&head[..CHECKSUM_AT]);
    hash.update(&head[PAGE_BYTES as usize..]);
    Checksum(hash.digest128())
}

/// Returns the `N` bytes at offset `at` of the header.
fn array<const N: usize>(head: &[u8], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&head[at..at + N]);
    bytes
}

/// Checks that regions cover the store without gap or overlap, and that tensors lie in their groups.
pub(super) fn check(manifest: &Manifest, data_start: u64, total: u64) -> Result<(), StoreProblem> {
    let mut end = data_start;
    let mut names = HashSet::new();
    for file in &manifest.files {
        let StoredFile { name, offset, bytes, .. } = file;
        if !is_plain_file_name(name) {
            return Err(StoreProblem::FileName { name: name.clone() });
        }
        if *bytes > SMALL_FILE_BYTES_MAX {
            return Err(StoreProblem::FileOverLimit { name: name.clone(), bytes: *bytes, limit: SMALL_FILE_BYTES_MAX });
        }
        if !names.insert(name.as_str()) {
            return Err(StoreProblem::DuplicateName { name: name.clone() });
        }
        end = check_region(name, *offset, bytes.next_multiple_of(PAGE_BYTES), end, total)?;
    }
    let mut names = HashSet::new();
    for group in &manifest.groups {
        end = check_region(&group.name, group.offset, group.bytes, end, total)?;
        let mut position = group.offset;
        for tensor in &group.tensors {
            if !names.insert(tensor.name.as_str()) {
                return Err(StoreProblem::DuplicateName { name: tensor.name.clone() });
            }
            position = check_tensor(tensor, group, position, end)?;
        }
    }
    if end < total { Err(StoreProblem::Hole { from: end, to: total }) } else { Ok(()) }
}

/// Checks that a region begins at `expected`, and returns its end.
fn check_region(name: &str, offset: u64, bytes: u64, expected: u64, total: u64) -> Result<u64, StoreProblem> {
    if offset != expected {
        return Err(StoreProblem::Misplaced { region: name.to_owned(), expected, found: offset });
    }
    let end = offset.checked_add(bytes).filter(|&end| end <= total && bytes.is_multiple_of(PAGE_BYTES));
    end.ok_or_else(|| StoreProblem::RegionSize { region: name.to_owned(), offset, bytes, total })
}

/// Checks a tensor that must not begin before `position` and must end by `group_end`, and returns its end.
fn check_tensor(
    tensor: &StoredTensor,
    group: &StoredGroup,
    position: u64,
    group_end: u64,
) -> Result<u64, StoreProblem> {
    let StoredTensor { name, shape, offset, bytes, .. } = tensor;
    let dtype = tensor.known_dtype()?;
    let expected = tensor_bytes(dtype, shape)
        .ok_or_else(|| StoreProblem::ImpossibleShape { tensor: name.clone(), shape: shape.clone() })?;
    if expected != *bytes {
        return Err(StoreProblem::WrongSize { tensor: name.clone(), expected, found: *bytes });
    }
    let end = offset.checked_add(*bytes).filter(|&end| end <= group_end);
    let fits = *offset >= position && offset.is_multiple_of(TENSOR_ALIGN);
    end.filter(|_| fits).ok_or_else(|| StoreProblem::TensorPlace {
        tensor: name.clone(),
        group: group.name.clone(),
        offset: *offset,
        bytes: *bytes,
    })
}

/// Returns the number of bytes of a tensor; `None` if that number overflows, or if rows are not whole blocks.
pub(super) fn tensor_bytes(dtype: DType, shape: &[u64]) -> Option<u64> {
    let (&cols, outer) = shape.split_last().unwrap_or((&1, &[]));
    let rows = outer.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim))?;
    // Every dimension must fit a `usize`, even if another one is 0.
    shape.iter().try_for_each(|&dim| usize::try_from(dim).map(drop)).ok()?;
    let row_bytes = dtype.row_bytes(usize::try_from(cols).ok()?)? as u64;
    usize::try_from(rows.checked_mul(cols)?).ok()?;
    row_bytes.checked_mul(rows)
}

/// Returns whether the name is one plain component, with no separators and no `..`.
fn is_plain_file_name(name: &str) -> bool {
    let mut components = Path::new(name).components();
    let plain = matches!(components.next(), Some(Component::Normal(part)) if part == name);
    plain && components.next().is_none() && !name.contains(['\\', '\0'])
}
