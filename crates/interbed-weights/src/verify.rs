//! Reads all of a model's weights, and compares them with any digests that exist.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use interbed_io::{IoError, RandomAccessFile};
use sha2::{Digest, Sha256};

use crate::catalog::Catalog;
use crate::chunks::{Extent, for_each_chunk};
use crate::store::{Store, checksums};

/// The most faults that are reported per file; a dying disk has one for each chunk.
const FAULTS_MAX: usize = 16;
/// The longest file in which a digest is looked for, in bytes.
const DIGEST_FILE_BYTES_MAX: u64 = 64 << 10;

/// Result of one check. A packed store is checked group by group, and the small files in it one by one. In other
/// formats, each file is checked as a whole.
#[derive(Debug)]
pub struct Checked {
    /// Name of the group or of the file.
    pub name: String,
    /// File or block device that holds the bytes.
    pub file: PathBuf,
    /// Offset in the file or device at which the checked bytes begin.
    pub offset: u64,
    /// Number of bytes that were checked.
    pub bytes: u64,
    /// Names of the tensors in the group. Empty if a file was checked.
    pub tensors: Vec<String>,
    /// How the bytes were checked.
    pub method: Method,
    /// Damage that was found, if any.
    pub damage: Option<Damage>,
}

/// How bytes are checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Method {
    /// The checksum of the bytes is compared with the checksum in the manifest of a packed store.
    Checksum,
    /// The SHA-256 digest of the bytes is compared with a digest that was found in `place`.
    Sha256 {
        /// Place in words, such as "the name of its blob in the Hub's cache".
        place: String,
    },
    /// The bytes are only read, because the format has no checksums and no digest was found.
    ReadOnly,
}

/// Kind of damage to a group or file.
#[derive(Debug)]
pub enum Damage {
    /// The bytes do not have the expected digest.
    Differs {
        /// Digest that the bytes should have, in hexadecimal digits.
        expected: String,
        /// Digest that the bytes have.
        found: String,
    },
    /// Some bytes cannot be read. At most 16 errors are kept.
    Unreadable(Vec<IoError>),
}

/// Error returned when the caller has stopped the verification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VerifyStopped;

/// Reads every byte of the catalog's files from disk, not from the page cache. In a packed store, the bytes are checked
/// against the store's checksums. In other formats, a file is checked against its SHA-256 digest if one is found.
/// Headers, sizes and overlaps were already checked when the catalog was opened. The function calls `watch` after each
/// chunk, with the number of bytes done and the total number of bytes. `watch` stops the verification by returning
/// `Break`.
///
/// # Errors
/// Fails with [`VerifyStopped`] if `watch` stops the verification. Damage is not an error: the result reports it.
pub fn verify(
    catalog: &Catalog,
    watch: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Vec<Checked>, VerifyStopped> {
    match catalog.store() {
        Some(store) => verify_store(store, watch),
        None => verify_files(catalog, watch),
    }
}

fn verify_store(
    store: &Store,
    watch: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Vec<Checked>, VerifyStopped> {
    let manifest = store.manifest();
    let regions: Vec<_> = manifest.regions().collect();
    let (mut done, total) = (0, regions.iter().map(|region| region.bytes).sum());
    let file = store.file();
    let found = checksums(file.as_ref(), &regions, &mut |bytes| {
        done += bytes;
        watch(done, total)
    });
    let found = found.map_err(|_| VerifyStopped)?;
    let tensors = manifest.groups.iter().map(|group| group.tensors.iter().map(|tensor| tensor.name.clone()).collect());
    let tensors = manifest.files.iter().map(|_| Vec::new()).chain(tensors);
    let checked = regions.into_iter().zip(tensors).zip(found).map(|((region, tensors), found)| Checked {
        name: region.name,
        file: file.path().to_owned(),
        offset: region.offset,
        bytes: region.bytes,
        tensors,
        method: Method::Checksum,
        damage: match found {
            Ok(found) if found == region.checksum => None,
            Ok(found) => Some(Damage::Differs { expected: region.checksum.to_string(), found: found.to_string() }),
            Err(error) => Some(Damage::Unreadable(vec![error])),
        },
    });
    Ok(checked.collect())
}

fn verify_files(
    catalog: &Catalog,
    watch: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Vec<Checked>, VerifyStopped> {
    let files: Vec<&dyn RandomAccessFile> = catalog.stored_files().iter().map(|file| file.as_ref()).collect();
    let (mut done, total) = (0, files.iter().map(|file| file.len()).sum());
    let mut all = Vec::with_capacity(files.len());
    for file in files {
        // Bytes that stay in the page cache would not be read from the disk.
        file.drop_cache(0..file.len());
        let expected = expected_sha256(file.path());
        let mut hash = expected.is_some().then(Sha256::new);
        let mut faults = Vec::new();
        for_each_chunk(&[file], &[Extent { file: 0, offset: 0, bytes: file.len() }], |chunk| {
            match chunk.outcome {
                Ok(bytes) => hash.iter_mut().for_each(|hash| hash.update(bytes)),
                Err(error) if faults.len() < FAULTS_MAX => faults.push(error),
                Err(_) => {}
            }
            done += chunk.bytes;
            match watch(done, total) {
                ControlFlow::Continue(()) => Ok(()),
                ControlFlow::Break(()) => Err(VerifyStopped),
            }
        })?;
        let found = hash.map(|hash| hex(&hash.finalize()));
        let (method, damage) = match (expected, found) {
            (Some((expected, place)), Some(found)) => {
                let differs = (expected != found).then_some(Damage::Differs { expected, found });
                (Method::Sha256 { place }, differs)
            }
            _ => (Method::ReadOnly, None),
        };
        all.push(Checked {
            name: file.path().file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
            file: file.path().to_owned(),
            offset: 0,
            bytes: file.len(),
            tensors: Vec::new(),
            method,
            damage: if faults.is_empty() { damage } else { Some(Damage::Unreadable(faults)) },
        });
    }
    Ok(all)
}

/// Returns the SHA-256 that a file should have, as lower-case digits, and the place where it was found.
fn expected_sha256(path: &Path) -> Option<(String, String)> {
    // In the Hub's cache, files are links to blobs whose names are their digests.
    let blob = std::fs::read_link(path).ok().and_then(|target| {
        let name = target.file_name()?.to_str()?;
        sha256_digits(name)
    });
    if let Some(digits) = blob {
        return Some((digits, "the name of its blob in the Hub's cache".to_owned()));
    }
    let name = path.file_name()?.to_str()?;
    let beside = path.with_file_name(format!("{name}.sha256"));
    // `sha256sum` writes the digest, then the file's name.
    if let Some(digits) = read_short(&beside).and_then(|text| sha256_digits(text.split_whitespace().next()?)) {
        return Some((digits, format!("{name}.sha256")));
    }
    // The Hub's client writes this next to files that it downloads into a directory: commit, digest and time, a line
    // each.
    let noted = path.parent()?.join(".cache/huggingface/download").join(format!("{name}.metadata"));
    let digits = read_short(&noted).and_then(|text| sha256_digits(text.lines().nth(1)?.trim()))?;
    Some((digits, format!(".cache/huggingface/download/{name}.metadata")))
}

fn sha256_digits(text: &str) -> Option<String> {
    let is_one = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_one.then(|| text.to_ascii_lowercase())
}

/// Returns the content of a small text file; `None` if there is none.
fn read_short(path: &Path) -> Option<String> {
    let file = interbed_io::ExactFile::open(path).ok().filter(|file| file.len() <= DIGEST_FILE_BYTES_MAX)?;
    let mut bytes = vec![0; file.len() as usize];
    file.read_exact_at(&mut bytes, 0).ok()?;
    String::from_utf8(bytes).ok()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
