//! Describes the files from which a store is packed, as they are now.

use std::time::UNIX_EPOCH;

use interbed_io::{IoError, RandomAccessFile};

use super::checksum::Checksum;
use super::format::{Source, SourceFile};
use crate::catalog::Catalog;
use crate::error::WeightError;

/// Number of bytes at the beginning of a source file that its checksum covers.
const BEGIN_BYTES: u64 = 1 << 20;

/// Returns the current state of the catalog's files.
pub(super) fn source(catalog: &Catalog) -> Result<Source, WeightError> {
    let format = match (catalog.store(), catalog.metadata()) {
        (Some(_), _) => "interbed",
        (None, Some(_)) => "gguf",
        (None, None) => "safetensors",
    };
    let files = catalog.stored_files().iter().map(|file| source_file(file.as_ref())).collect::<Result<_, _>>()?;
    Ok(Source { format: format.to_owned(), files })
}

fn source_file(file: &dyn RandomAccessFile) -> Result<SourceFile, WeightError> {
    let path = file.path();
    let open_error = |source| IoError::Open { path: path.to_owned(), source };
    let metadata = std::fs::metadata(path).map_err(open_error)?;
    let modified = metadata.modified().map_err(open_error)?;
    let since = modified.duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut begin = vec![0; file.len().min(BEGIN_BYTES) as usize];
    file.read_exact_at(&mut begin, 0)?;
    Ok(SourceFile {
        name: path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
        // The length of the open file would not show later changes.
        bytes: if metadata.is_file() { metadata.len() } else { file.len() },
        modified_ns: u64::try_from(since.as_nanos()).unwrap_or(u64::MAX),
        begin: Checksum::of(&begin),
    })
}
