//! Prepares KV in a store that servers share: divides its memory, reads the store's address and secret, and opens the
//! store.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use interbed_device::Bytes;
use interbed_engine::{TierBelow, TierPolicy};
use interbed_kv::{Gate, KeyChain, LowerTier};
use interbed_kv_remote::{AddressError, BlobStore, Patience, RemoteOptions, RemoteTier, StoreAddress};

use crate::failure::Advised;
use crate::kv_disk::{buffer_bytes, shape};
use crate::options::{KvRemoteOptions, LimitOptions, SecretText};
use crate::report::report;
use crate::secret_files;
use crate::tier_kind::{OpenTier, PreparedTier, StoredKv, TierFound, TierKind};

/// The buffers of each direction take one part in this many of the budget.
const BUFFERS_SHARE: u64 = 64;

/// The maximum size of a key file, and minimum length of a secret, in bytes.
const KEY_BYTES_MAX: u64 = 64 << 10;
const KEY_BYTES_MIN: usize = 16;

/// The option that names the file of the secret.
const KEY_OPTION: &str = "--kv-remote-key";

/// The context for deriving keys, which separates this secret from other uses of the same file.
const CONTEXT: &str = "interbed 2026-11-26 secret of a shared KV store";

/// KV in a store that servers share.
pub const KV_REMOTE: TierKind = TierKind { is_wanted, memory, prepare };

fn is_wanted(limits: &LimitOptions) -> bool {
    limits.kv_remote.as_ref().is_some_and(|options| options.kv_remote.is_some())
}

/// Returns the memory that KV in a shared store takes of a budget of `total` bytes.
fn memory(limits: &LimitOptions, total: Bytes, stored: &StoredKv<'_>) -> Bytes {
    let shape = object_shape(stored);
    let bytes = || RemoteTier::memory_bytes(shape, object_buffers(limits, total, stored)) as u64;
    Bytes(if is_wanted(limits) { bytes() } else { 0 })
}

/// Returns the number of tokens and of bytes of a part of KV, which becomes an object.
fn object_shape(stored: &StoredKv<'_>) -> (usize, usize) {
    (stored.layout.block_size(), shape(stored).block_bytes())
}

/// Returns the bytes of each of the two buffers, within a budget of `total` bytes. Parts that are of use only together
/// find room together, and others beside them.
fn object_buffers(limits: &LimitOptions, total: Bytes, stored: &StoredKv<'_>) -> usize {
    let (tokens, bytes) = object_shape(stored);
    let object = RemoteTier::object_bytes((tokens, bytes));
    let together = stored.together + stored.together.div_ceil(4);
    buffer_bytes(limits, total, BUFFERS_SHARE).max(if stored.together > 1 { together * object } else { 0 })
}

/// Returns the address of the store and its secret, if the options name a store.
///
/// # Errors
/// Fails if the address or the key cannot be used.
fn settings(options: &KvRemoteOptions) -> Result<Option<(StoreAddress, [u8; 32])>> {
    let Some(SecretText(text)) = &options.kv_remote else { return Ok(None) };
    let address = text.parse().map_err(|error: AddressError| failed(error))?;
    Ok(Some((address, secret(options.kv_remote_key.as_deref())?)))
}

/// Asks the store that the options name in the background whether it can be used, and warns at once if it cannot. The
/// server starts in any case.
///
/// # Errors
/// Fails if the address or the key cannot be used.
pub fn begin_check(options: &KvRemoteOptions) -> Result<()> {
    let Some((address, _)) = settings(options)? else { return Ok(()) };
    let check = move || {
        if let Err(why) = address.check() {
            report!("warning: KV is not shared in {address} for now, and the server asks it again later: {why}");
        }
    };
    std::thread::Builder::new().name("kv-remote-check".into()).spawn(check).context("cannot start a thread")?;
    Ok(())
}

fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    let hint = "`interbed serve --help` tells the options, docs/several-servers.md what they do";
    Advised::input(format!("cannot use the store of --kv-remote: {error}"), hint)
}

/// A shared store, with the settings for its use.
struct RemotePlace {
    address: StoreAddress,
    store: Arc<dyn BlobStore>,
    secret: [u8; 32],
    has_key: bool,
    shape: (usize, usize),
    options: RemoteOptions,
}

/// Prepares the use of the store, if the options name one. Whether the store answers is found out later, so that the
/// start does not wait for it.
///
/// # Errors
/// Fails if the address or the key cannot be used.
fn prepare(limits: &LimitOptions, total: Bytes, stored: &StoredKv<'_>) -> Result<TierFound> {
    let Some(options) = &limits.kv_remote else { return Ok(None) };
    let Some((address, secret)) = settings(options)? else { return Ok(None) };
    if limits.no_prefix_caching {
        return Err(Advised::input(
            "--kv-remote shares the KV of prompt prefixes, which --no-prefix-caching does without",
            "leave out one of the two",
        ));
    }
    options.kv_remote_key.iter().for_each(|path| secret_files::warn_if_open(KEY_OPTION, path));
    let store = address.open(Some(options.kv_remote_ttl)).map_err(failed)?;
    let tier_options = RemoteOptions {
        buffer_bytes: object_buffers(limits, total, stored),
        writes_per_day: options.kv_remote_writes.map(|bytes| bytes.0),
        ttl: Some(options.kv_remote_ttl),
        patience: Patience::Measured,
        // If writes are limited, only KV that this server is likely to need again is written; it knows nothing of
        // other servers.
        gate: Gate::new(if options.kv_remote_writes.is_some() { Gate::LEAST_WORTH } else { 0.0 }),
    };
    let shape = object_shape(stored);
    let has_key = options.kv_remote_key.is_some();
    Ok(Some(Box::new(RemotePlace { address, store, secret, has_key, shape, options: tier_options })))
}

impl PreparedTier for RemotePlace {
    fn open(self: Box<Self>, fingerprint: [u8; 32], names: &mut Option<KeyChain>) -> Result<OpenTier> {
        let Self { address, store, secret, has_key, shape, options } = *self;
        let tier = RemoteTier::open(store, secret, fingerprint, shape, options).map_err(failed)?;
        let believes = if has_key { "who has its key" } else { "whoever writes there" };
        report!("KV shared          in {address}, with {believes}");
        *names = Some(tier.key_chain().clone());
        Ok(OpenTier { below: TierBelow { tier: Box::new(tier), policy: TierPolicy::SHARED }, found: 0 })
    }
}

/// Returns the secret with which servers name and sign the KV that they share.
fn secret(file: Option<&Path>) -> Result<[u8; 32]> {
    let Some(path) = file else { return Ok(blake3::derive_key(CONTEXT, b"none")) };
    let bytes = secret_files::read(KEY_OPTION, path, KEY_BYTES_MAX)?;
    // Editors add a line break at the end of a file.
    let bytes = bytes.trim_ascii();
    if bytes.len() < KEY_BYTES_MIN {
        return Err(Advised::input(
            format!("{KEY_OPTION} {} holds {} bytes, which can be guessed", path.display(), bytes.len()),
            "write 32 random bytes into it, such as by `openssl rand -hex 32`, and give all servers the same",
        ));
    }
    Ok(blake3::derive_key(CONTEXT, bytes))
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
