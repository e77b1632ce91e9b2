//! Files to read, and random numbers with a reproducible seed.

use tempfile::TempDir;

/// Bytes that depend on their position: no two blocks are equal, and no block equals a shifted copy of itself.
pub fn content(len: usize) -> Vec<u8> {
    let mut random = Random::new(0x5eed);
    (0..len).map(|_| (random.next() >> 32) as u8).collect()
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

/// SplitMix64.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number below `end`, which is not zero.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}
