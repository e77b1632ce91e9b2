//! Decides where everything goes in a packed store, before a byte is written.

use std::collections::HashSet;

use interbed_kernels::DType;

use super::checksum::Checksum;
use super::coding::Coding;
use super::error::StoreProblem;
use super::format::{
    LARGE_TENSOR_FROM, METADATA_FILE, Manifest, PAGE_BYTES, SMALL_FILE_BYTES_MAX, StoredFile, StoredGroup,
    StoredTensor, TENSOR_ALIGN, check, encode, tensor_bytes,
};
use super::source::source;
use crate::catalog::{Catalog, CatalogEntry};
use crate::error::WeightError;
use crate::gguf::encode_metadata;
use crate::group::GroupSpec;
use crate::safetensors::ElementType;

/// Name of the group of tensors that no pass reads but that the model's metadata refers to.
const REST: &str = "beside the passes";

/// Plan of a store to be written: its manifest, with checksums still zero, and the contents of its small files.
#[derive(Debug, Clone)]
pub struct StorePlan {
    pub(super) manifest: Manifest,
    /// Contents of the small files, in the order of the manifest.
    pub(super) contents: Vec<Vec<u8>>,
    pub(super) total_bytes: u64,
    left_out: (usize, u64),
}

/// A group to be stored: its tensors, with the types in which they are stored.
struct Group<'a> {
    name: &'a str,
    tensors: Vec<(&'a str, &'a CatalogEntry, DType)>,
}

impl StorePlan {
    /// Plans a store of the model `name`. The store contains the tensors of `specs`, in the order of the forward pass,
    /// and `files`, each with its name and content. Matrices that `coding` names are stored in coded form. For a GGUF
    /// model, the store also contains the metadata and the tensors that `specs` does not name, such as RoPE factors.
    /// For other models, such tensors are left out.
    ///
    /// # Errors
    /// Fails if a tensor is missing, has another shape or an unknown type, if a file is too long, or if a source cannot
    /// be read.
    pub fn new(
        catalog: &Catalog,
        specs: &[GroupSpec],
        name: &str,
        files: Vec<(String, Vec<u8>)>,
        coding: &Coding,
    ) -> Result<Self, WeightError> {
        // The same checks as before loading.
        crate::plan_bytes(catalog, specs)?;
        let mut contents = files;
        if let Some(metadata) = catalog.metadata() {
            contents.push((METADATA_FILE.to_owned(), encode_metadata(metadata)));
        }
        let mut wanted: HashSet<&str> = HashSet::new();
        let mut groups = Vec::new();
        let known = |entry: &CatalogEntry| match entry.element_type {
            ElementType::Known(dtype) => Some(dtype),
            ElementType::Other(_) => None,
        };
        for spec in specs {
            let mut tensors = Vec::new();
            for tensor in spec.tensors.iter().filter(|tensor| wanted.insert(&tensor.name)) {
                let Some(entry) = catalog.get(&tensor.name) else { continue };
                let name = tensor.name.as_str();
                tensors.extend(known(entry).map(|dtype| (name, entry, coding.stored(name, dtype))));
            }
            groups.push(Group { name: &spec.name, tensors });
        }
        let mut rest = Vec::new();
        let mut left_out = (0, 0u64);
        for (name, entry) in catalog.tensors().filter(|(name, _)| !wanted.contains(name)) {
            match known(entry).filter(|_| catalog.metadata().is_some()) {
                Some(dtype) => rest.push((name, entry, dtype)),
                None => left_out = (left_out.0 + 1, left_out.1.saturating_add(entry.bytes)),
            }
        }
        if !rest.is_empty() {
            groups.push(Group { name: REST, tensors: rest });
        }
        let manifest =
            Manifest { name: name.to_owned(), source: source(catalog)?, files: Vec::new(), groups: Vec::new() };
        let (manifest, total_bytes) = lay_out(manifest, &contents, &groups)?;
        let contents = contents.into_iter().map(|(_, content)| content).collect();
        Ok(Self { manifest, contents, total_bytes, left_out })
    }

    /// Returns the size of the store in bytes.
    pub fn bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Returns the manifest of the store, whose checksums are still zero.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the number of tensors that are left out because no forward pass reads them, and their total size in
    /// bytes.
    pub fn left_out(&self) -> (usize, u64) {
        self.left_out
    }
}

/// Fills in the manifest's files and groups, at offsets from the start of the store. The length of the manifest decides
/// where the first region lies, and the digits of the offsets are part of that length. The store is therefore laid out
/// again with more room until the manifest fits.
fn lay_out(
    mut manifest: Manifest,
    contents: &[(String, Vec<u8>)],
    groups: &[Group<'_>],
) -> Result<(Manifest, u64), WeightError> {
    let mut data_start = 2 * PAGE_BYTES;
    loop {
        let total = place(&mut manifest, contents, groups, data_start)
            .ok_or_else(|| WeightError::TooLarge { group: manifest.name.clone() })??;
        let needed = encode(&manifest, total, false).len() as u64;
        if needed == data_start {
            check(&manifest, data_start, total).map_err(|problem| refused(&manifest, problem))?;
            return Ok((manifest, total));
        }
        // More room makes offsets longer, never shorter, so the needed room grows page by page until it fits.
        data_start = needed;
    }
}

fn refused(manifest: &Manifest, problem: StoreProblem) -> WeightError {
    WeightError::Store { file: manifest.name.clone().into(), problem: Box::new(problem) }
}

/// Places all files and groups from offset `data_start` on, and returns where they end; `None` if an offset overflows.
fn place(
    manifest: &mut Manifest,
    contents: &[(String, Vec<u8>)],
    groups: &[Group<'_>],
    data_start: u64,
) -> Option<Result<u64, WeightError>> {
    manifest.files.clear();
    manifest.groups.clear();
    let mut end = data_start;
    for (name, content) in contents {
        let bytes = content.len() as u64;
        if bytes > SMALL_FILE_BYTES_MAX {
            let problem = StoreProblem::FileOverLimit { name: name.clone(), bytes, limit: SMALL_FILE_BYTES_MAX };
            return Some(Err(refused(manifest, problem)));
        }
        manifest.files.push(StoredFile { name: name.clone(), offset: end, bytes, checksum: Checksum::default() });
        end = end.checked_add(bytes)?.checked_next_multiple_of(PAGE_BYTES)?;
    }
    for Group { name, tensors } in groups {
        let offset = end;
        let mut stored = Vec::with_capacity(tensors.len());
        for (name, entry, dtype) in tensors {
            let shape: Vec<u64> = entry.shape.iter().map(|&dim| dim as u64).collect();
            let (bytes, patches) = match *dtype {
                DType::CodedBf16 { patches } => (tensor_bytes(*dtype, &shape)?, Some(patches)),
                // Scales that were apart are joined to the rows.
                _ if entry.scales.is_some() => (tensor_bytes(*dtype, &shape)?, None),
                _ => (entry.bytes, None),
            };
            let align = if bytes >= LARGE_TENSOR_FROM { PAGE_BYTES } else { TENSOR_ALIGN };
            let begin = end.checked_next_multiple_of(align)?;
            end = begin.checked_add(bytes)?;
            let (name, dtype) = ((*name).to_owned(), dtype.name().to_owned());
            stored.push(StoredTensor { name, dtype, patches, shape, offset: begin, bytes });
        }
        end = end.checked_next_multiple_of(PAGE_BYTES)?;
        let (name, bytes) = ((*name).to_owned(), end - offset);
        manifest.groups.push(StoredGroup { name, offset, bytes, checksum: Checksum::default(), tensors: stored });
    }
    Some(Ok(end))
}
