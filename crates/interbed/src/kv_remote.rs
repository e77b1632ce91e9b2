//! KV in a store that servers share: the memory that it takes, what tells one model's KV from another's on whatever
//! machine, and the store itself.

use std::path::Path;

use anyhow::Result;
use interbed_device::Bytes;
use interbed_io::RandomAccessFile;
use interbed_kernels::KvLayout;
use interbed_kv::Gate;
use interbed_kv_remote::{AddressError, Patience, RemoteOptions, RemoteTier, StoreAddress};
use interbed_model::config::ModelConfig;
use interbed_weights::{Catalog, CatalogEntry};

use crate::failure::Advised;
use crate::kv_disk::shape;
use crate::options::{KvRemoteOptions, LimitOptions, SecretText};
use crate::report::report;
use crate::secret_files;

/// Buffers take one part in this many of the budget in each direction, up to so much.
const BUFFERS_SHARE: u64 = 64;
const BUFFERS_MAX: u64 = 64 << 20;

/// Longest key file, in bytes, and how short a secret may be.
const KEY_BYTES_MAX: u64 = 64 << 10;
const KEY_BYTES_MIN: usize = 16;

/// Places in each tensor that are looked at, in each expert where there are several, and bytes at each.
const SAMPLES: u64 = 32;
const SAMPLES_OF_EXPERT: u64 = 4;
const SAMPLE_BYTES: u64 = 4096;

/// The option that names the file of the secret.
const KEY_OPTION: &str = "--kv-remote-key";

/// What separates the secret of a store from other uses of the same file, and what stands in for a file.
const CONTEXT: &str = "interbed 2026-11-26 secret of a shared KV store";

/// Memory that KV in a shared store takes of a budget of `total`.
pub fn memory(limits: &LimitOptions, total: Bytes, layout: &KvLayout) -> Bytes {
    let is_used = limits.kv_remote.as_ref().is_some_and(|options| options.kv_remote.is_some());
    let shape = (layout.block_size(), shape(layout).block_bytes());
    if is_used { Bytes(RemoteTier::memory_bytes(shape, buffer_bytes(limits, total)) as u64) } else { Bytes(0) }
}

/// Where the store is, and the secret for it, if one was asked for.
///
/// # Errors
/// The address or the key cannot be used.
pub fn settings(options: &KvRemoteOptions) -> Result<Option<(StoreAddress, [u8; 32])>> {
    let Some(SecretText(text)) = &options.kv_remote else { return Ok(None) };
    let address = text.parse().map_err(|error: AddressError| failed(error))?;
    Ok(Some((address, secret(options.kv_remote_key.as_deref())?)))
}

fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    let hint = "`interbed serve --help` tells the options, docs/several-servers.md what they do";
    Advised::input(format!("cannot use the store of --kv-remote: {error}"), hint)
}

/// The store for the KV of this model, if one was asked for. Whether it answers is found out later: nobody waits for
/// it.
///
/// # Errors
/// The address or the key cannot be used.
pub fn open(
    limits: &LimitOptions,
    total: Bytes,
    (config, weights): (&ModelConfig, &Catalog),
    layout: &KvLayout,
    computes: &str,
) -> Result<Option<RemoteTier>> {
    let Some(options) = &limits.kv_remote else { return Ok(None) };
    let Some((address, secret)) = settings(options)? else { return Ok(None) };
    options.kv_remote_key.iter().for_each(|path| secret_files::warn_if_open(KEY_OPTION, path));
    let store = address.open(Some(options.kv_remote_ttl)).map_err(failed)?;
    let fingerprint = fingerprint(config, weights, layout, computes)?;
    let tier_options = RemoteOptions {
        buffer_bytes: buffer_bytes(limits, total),
        writes_per_day: options.kv_remote_writes.map(|bytes| bytes.0),
        ttl: Some(options.kv_remote_ttl),
        patience: Patience::Measured,
        // Where writes are limited, they go to what this server is likely to find again; it knows of no others.
        gate: Gate::new(if options.kv_remote_writes.is_some() { Gate::LEAST_WORTH } else { 0.0 }),
    };
    let shape = (layout.block_size(), shape(layout).block_bytes());
    let tier = RemoteTier::open(store, secret, fingerprint, shape, tier_options);
    let tier = tier.map_err(failed)?;
    let believes = if options.kv_remote_key.is_some() { "who has its key" } else { "whoever writes there" };
    report!("KV shared          in {address}, with {believes}");
    Ok(Some(tier))
}

/// Bytes that buffers should take in each direction, of a budget of `total`.
fn buffer_bytes(limits: &LimitOptions, total: Bytes) -> usize {
    let of_kv = limits.kv_memory.map_or(u64::MAX, |memory| memory.0 / 8);
    usize::try_from((total.0 / BUFFERS_SHARE).min(of_kv).min(BUFFERS_MAX)).unwrap_or(usize::MAX)
}

/// The secret with which servers name and sign what they share.
fn secret(file: Option<&Path>) -> Result<[u8; 32]> {
    let Some(path) = file else { return Ok(blake3::derive_key(CONTEXT, b"none")) };
    let bytes = secret_files::read(KEY_OPTION, path, KEY_BYTES_MAX)?;
    // An editor adds the end of a line.
    let bytes = bytes.trim_ascii();
    if bytes.len() < KEY_BYTES_MIN {
        return Err(Advised::input(
            format!("{KEY_OPTION} {} holds {} bytes, which can be guessed", path.display(), bytes.len()),
            "write 32 random bytes into it, such as by `openssl rand -hex 32`, and give all servers the same",
        ));
    }
    Ok(blake3::derive_key(CONTEXT, bytes))
}

/// What tells the KV of this model, as this program computes it, from any other, on whatever machine: the
/// configuration, the weights (name, type, shape and samples of each tensor), the layout, what computes, the version.
fn fingerprint(config: &ModelConfig, weights: &Catalog, layout: &KvLayout, computes: &str) -> Result<[u8; 32]> {
    let mut hasher = blake3::Hasher::new();
    let mut field = |value: &[u8]| {
        hasher.update(&(value.len() as u64).to_le_bytes()).update(value);
    };
    field(env!("CARGO_PKG_VERSION").as_bytes());
    field(computes.as_bytes());
    field(format!("{config:?}").as_bytes());
    field(format!("{layout:?}").as_bytes());
    let mut sample = Vec::new();
    for (name, entry) in weights.tensors() {
        field(name.as_bytes());
        field(format!("{:?} {:?}", entry.element_type, entry.shape).as_bytes());
        let scales = scales_of(entry);
        for entry in std::iter::once(entry).chain(&scales) {
            for (offset, bytes) in places(entry) {
                sample.resize(bytes, 0);
                file_of(weights, entry).read_exact_at(&mut sample, offset)?;
                field(&sample);
            }
        }
    }
    Ok(*hasher.finalize().as_bytes())
}

fn file_of<'a>(catalog: &'a Catalog, entry: &CatalogEntry) -> &'a dyn RandomAccessFile {
    catalog.files()[entry.file].as_ref()
}

/// The scales that a file has apart from a matrix in FP8, as a tensor of their own.
fn scales_of(entry: &CatalogEntry) -> Option<CatalogEntry> {
    let (scales, &[rows, cols]) = (entry.scales.as_ref()?, entry.shape.as_slice()) else { return None };
    let count = scales.count([rows, cols]);
    let bytes = (count * scales.dtype.block_bytes()) as u64;
    let (file, offset) = (scales.file, scales.offset);
    Some(CatalogEntry { file, offset, bytes, shape: vec![count], scales: None, ..entry.clone() })
}

/// Where it is looked at in a tensor, from its beginning to its end: offset in the file, and bytes.
fn places(entry: &CatalogEntry) -> impl Iterator<Item = (u64, usize)> {
    let experts = if entry.shape.len() > 2 { entry.shape[0] as u64 } else { 1 };
    let samples = SAMPLES.max(SAMPLES_OF_EXPERT * experts);
    let bytes = entry.bytes.min(SAMPLE_BYTES);
    let (last, offset) = (entry.bytes - bytes, entry.offset);
    let place = move |sample: u64| u128::from(last) * u128::from(sample) / u128::from(samples - 1);
    (0..samples).map(move |sample| (offset + place(sample) as u64, bytes as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_file_is_the_same_with_and_without_the_end_of_its_line_and_never_too_short() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("key");
        let of = |bytes: &[u8]| {
            std::fs::write(&path, bytes).expect("the file is written");
            secret(Some(&path))
        };
        let key = of(b"0123456789abcdef").expect("long enough");
        assert_eq!(of(b"0123456789abcdef\n").expect("long enough"), key);
        assert_ne!(of(b"0123456789abcdeF").expect("long enough"), key);
        assert_ne!(secret(None).expect("no file"), key);
        assert!(of(b"0123456789abcde\n").expect_err("too short").to_string().contains("15 bytes"));
        assert!(secret(Some(Path::new("/nonexistent"))).is_err());
    }
}
