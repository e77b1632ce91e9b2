//! Files to read, and a seed for random numbers that can be repeated.

use tempfile::TempDir;

/// Bytes that depend on their position: no two blocks are equal, and no block equals a shifted copy of itself.
pub fn content(len: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(0x5eed);
    (0..len).map(|_| random.u8(..)).collect()
}

/// Directories for tests: one on the disk, and one in memory, where direct reads may be refused.
pub fn directories() -> Vec<(&'static str, TempDir)> {
    let mut directories = vec![("on disk", tempfile::tempdir().unwrap())];
    match tempfile::tempdir_in("/dev/shm") {
        Ok(dir) => directories.push(("in memory", dir)),
        Err(error) => println!("not tested in /dev/shm: {error}"),
    }
    directories
}

/// A seed from the environment (`INTERBED_SEED`), or a new one, printed so that a failure can be repeated.
pub fn seed() -> u64 {
    let given = std::env::var("INTERBED_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        now.as_nanos() as u64
    });
    println!("INTERBED_SEED={seed}");
    seed
}
