//! `interbed verify`: checks that the weights on disk are those that were written.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, anyhow};
use clap::Args;
use interbed_device::Bytes;
use interbed_hub::BlobId;
use interbed_io::{ExactFile, IoError};
use interbed_weights::{Catalog, Checked, Damage, Method, WeightError, verify};
use serde_json::{Value, json};

use crate::failure::Advised;
use crate::hub;
use crate::options::HubOptions;
use crate::printable::print_answer;
use crate::progress;

/// The maximum size, in bytes, of a file besides the weights that is checked.
const BESIDE_BYTES_MAX: u64 = 256 << 20;

/// Read all weights of a model and check them against their checksums
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    interbed verify 8b.interbed            # every group against its checksum\n  \
    interbed verify models/8b            # headers, sizes, overlaps, a full read, SHA-256 where one is known\n  \
    interbed verify model.gguf --json\n\n\
    A SHA-256 is known where a file is a link into the Hub's cache, where FILE.sha256 lies beside it, or where the \
    Hub's client has noted it; other links beside the weights are compared, too. Weights are read from the disk, not \
    from the page cache. Damage ends with exit code 2.")]
pub struct VerifyArgs {
    /// A packed store, a Hugging Face directory, a GGUF file, a safetensors file, or the name of a model in the cache
    pub path: PathBuf,
    /// One JSON object instead of the table
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub hub: HubOptions,
}

/// Runs `interbed verify`.
///
/// # Errors
/// Fails if a file cannot be opened, if a header is invalid, or if a part of the model is damaged.
pub fn run(mut args: VerifyArgs) -> Result<()> {
    args.path = hub::cached(&args.path, &args.hub)?;
    let catalog = open(&args.path)?;
    let started = Instant::now();
    let bar = progress::bytes("verifying", catalog.stored_files().iter().map(|file| file.len()).sum());
    let outcome = verify(&catalog, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
        ControlFlow::Continue(())
    });
    bar.finish_and_clear();
    let checked = outcome.map_err(|_| anyhow!("stopped"))?;
    let beside = check_beside(&args.path, &checked);
    let seconds = started.elapsed().as_secs_f64();
    let all = (&checked[..], &beside[..]);
    let json = || to_json(&args.path, &catalog, all, seconds);
    print_answer(args.json, json, || table(&args.path, &catalog, all, seconds))?;
    let damaged = num_damaged(&checked, &beside);
    if damaged == 0 {
        return Ok(());
    }
    let parts = if catalog.store().is_some() { "parts" } else { "files" };
    let all = checked.len() + beside.len();
    let message = format!("{damaged} of {all} {parts} of {} are damaged", args.path.display());
    let hint = match catalog.store() {
        Some(_) => "copy the store again, or pack the model again with --force; look at the disk if it happens again",
        None if !beside.is_empty() || checked.iter().any(|part| is_blob(&part.file)) => {
            "remove the files that the named ones lead to (readlink -f FILE), then name the model again: they are \
             fetched anew"
        }
        None => "fetch the named files again; look at the disk if it happens again",
    };
    Err(Advised::input(message, hint))
}

fn open(path: &Path) -> Result<Catalog, WeightError> {
    let is_safetensors = path.extension().is_some_and(|extension| extension == "safetensors");
    if is_safetensors && path.is_file() {
        return Catalog::from_files(vec![Arc::new(ExactFile::open(path)?)]);
    }
    Catalog::open(path)
}

/// Returns whether a file is a link into a Hub cache.
fn is_blob(file: &Path) -> bool {
    std::fs::read_link(file).is_ok_and(|target| target.parent().is_some_and(|folder| folder.ends_with("blobs")))
}

/// A file besides the weights that was compared with its digest, by which the Hub cache names it.
struct Beside {
    name: String,
    file: PathBuf,
    bytes: u64,
    /// The hash function of the digest.
    method: &'static str,
    damage: Option<Damage>,
}

/// Checks the files in a folder that are links into the Hub cache, except the weights.
fn check_beside(folder: &Path, weights: &[Checked]) -> Vec<Beside> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.retain(|file| weights.iter().all(|part| part.file != *file));
    files.sort();
    files.into_iter().filter_map(check_link).collect()
}

/// Checks a file against its name in the Hub cache. `None` if it is not a link into the cache, is too long or does not
/// exist, because then it was not fetched with these weights.
fn check_link(file: PathBuf) -> Option<Beside> {
    let blob = BlobId::of_link(&file)?;
    let bytes = std::fs::metadata(&file).ok().map(|found| found.len()).filter(|&bytes| bytes <= BESIDE_BYTES_MAX)?;
    let damage = match blob.digest_of(&file) {
        Ok(found) if found == blob => None,
        Ok(found) => Some(Damage::Differs { expected: blob.digits().to_owned(), found: found.digits().to_owned() }),
        Err(source) => Some(Damage::Unreadable(vec![IoError::Open { path: file.clone(), source }])),
    };
    let method = match blob {
        BlobId::Sha256(_) => "sha-256",
        BlobId::GitSha1(_) => "git-sha-1",
    };
    let name = file.file_name()?.to_string_lossy().into_owned();
    Some(Beside { name, file, bytes, method, damage })
}

fn num_damaged(checked: &[Checked], beside: &[Beside]) -> usize {
    let damaged = |damage: &Option<Damage>| usize::from(damage.is_some());
    let weights: usize = checked.iter().map(|part| damaged(&part.damage)).sum();
    weights + beside.iter().map(|part| damaged(&part.damage)).sum::<usize>()
}

fn table(path: &Path, catalog: &Catalog, (checked, beside): (&[Checked], &[Beside]), seconds: f64) -> String {
    let bytes: u64 = checked.iter().map(|part| part.bytes).sum();
    let mut text = format!(
        "{}  {}, {} tensors, {} read in {seconds:.1} s ({:.2} GB/s)\n",
        path.display(),
        format(catalog),
        catalog.tensors().len(),
        Bytes(bytes),
        bytes as f64 / 1e9 / seconds.max(1e-9)
    );
    let whole = checked.iter().filter(|part| part.damage.is_none());
    if let Some(store) = catalog.store() {
        let (files, groups) = (store.manifest().files.len(), store.manifest().groups.len());
        let same = whole.count();
        text.push_str(&format!(
            "  header and manifest are as written; of {groups} groups and {files} small files, {same} are too \
             (XXH3-128)\n"
        ));
    } else {
        for part in whole {
            let how = match &part.method {
                Method::Sha256 { place } => format!("SHA-256 is that of {place}"),
                Method::Checksum | Method::ReadOnly => {
                    "can be read; the format carries no checksum, and no digest lies beside it".to_owned()
                }
            };
            text.push_str(&format!("  {}  {}  {how}\n", part.name, Bytes(part.bytes)));
        }
    }
    for Beside { name, bytes, damage, .. } in beside {
        match damage {
            None => text.push_str(&format!("  {name}  {}  its digest is the name of its blob\n", Bytes(*bytes))),
            Some(damage) => text.push_str(&format!("  damaged: {name}: {}\n", words(damage))),
        }
    }
    for part in checked {
        if let Some(damage) = &part.damage {
            let end = part.offset + part.bytes;
            text.push_str(&format!("  damaged: {} (bytes {} to {end}): {}\n", part.name, part.offset, words(damage)));
            if !part.tensors.is_empty() {
                text.push_str(&format!("    it holds {}\n", part.tensors.join(", ")));
            }
        }
    }
    text
}

fn errno(damage: &Damage) -> Option<i32> {
    match damage {
        Damage::Unreadable(faults) => faults.first().and_then(|fault| fault.errno()),
        Damage::Differs { .. } => None,
    }
}

fn words(damage: &Damage) -> String {
    match damage {
        Damage::Differs { expected, found } => format!("its checksum is {found}, expected {expected}"),
        Damage::Unreadable(faults) => faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
    }
}

fn format(catalog: &Catalog) -> &'static str {
    match (catalog.store(), catalog.metadata()) {
        (Some(_), _) => "packed store",
        (None, Some(_)) => "GGUF",
        (None, None) => "safetensors",
    }
}

fn to_json(path: &Path, catalog: &Catalog, (checked, beside): (&[Checked], &[Beside]), seconds: f64) -> Value {
    let weights = checked.iter().map(|part| {
        let (method, place) = match &part.method {
            Method::Checksum => ("xxh3-128", None),
            Method::Sha256 { place } => ("sha-256", Some(place)),
            Method::ReadOnly => ("read", None),
        };
        json!({
            "name": part.name,
            "file": part.file.display().to_string(),
            "offset": part.offset,
            "bytes": part.bytes,
            "tensors": part.tensors,
            "method": method,
            "digest_from": place,
            "damage": part.damage.as_ref().map(words),
            "errno": part.damage.as_ref().and_then(errno),
        })
    });
    let small = beside.iter().map(|part| {
        json!({
            "name": part.name,
            "file": part.file.display().to_string(),
            "offset": 0,
            "bytes": part.bytes,
            "tensors": [],
            "method": part.method,
            "digest_from": "the name of its blob in the Hub's cache",
            "damage": part.damage.as_ref().map(words),
            "errno": part.damage.as_ref().and_then(errno),
        })
    });
    let parts: Vec<Value> = weights.chain(small).collect();
    json!({
        "path": path.display().to_string(),
        "format": format(catalog),
        "tensors": catalog.tensors().len(),
        "bytes": checked.iter().map(|part| part.bytes).sum::<u64>(),
        "seconds": seconds,
        "damaged": num_damaged(checked, beside),
        "parts": parts,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_beside_the_weights_are_compared_with_their_names() {
        let folder = tempfile::tempdir().unwrap();
        let (blobs, snapshot) = (folder.path().join("blobs"), folder.path().join("snapshots/c"));
        fs::create_dir(&blobs).unwrap();
        fs::create_dir_all(&snapshot).unwrap();
        // The digest is the one that `git hash-object` prints for a file with the two characters `{}`.
        let digest = "9e26dfeeb6e641a33dae4961196235bdb965b21b";
        fs::write(blobs.join(digest), "{}").unwrap();
        fs::write(snapshot.join("notes.txt"), "no link").unwrap();
        symlink(Path::new("../../blobs").join(digest), snapshot.join("config.json")).unwrap();
        symlink(Path::new("../../blobs").join("a".repeat(64)), snapshot.join("gone.gguf")).unwrap();
        let beside = check_beside(&snapshot, &[]);
        let [config] = beside.as_slice() else { panic!("{} files", beside.len()) };
        assert_eq!((config.name.as_str(), config.method, config.bytes), ("config.json", "git-sha-1", 2));
        assert_eq!(num_damaged(&[], &beside), 0);
        fs::write(blobs.join(digest), "[]").unwrap();
        let beside = check_beside(&snapshot, &[]);
        assert_eq!(num_damaged(&[], &beside), 1);
        assert!(beside[0].damage.as_ref().is_some_and(|damage| words(damage).contains(digest)));
    }
}
