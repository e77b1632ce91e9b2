//! Tests the remote tier over a real `redis-server`, if one is installed. With `INTERBED_REQUIRE_REDIS` set, its
//! absence is a failure.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use interbed_kv::testing::PlainBlocks;
use interbed_kv::{BlockId, BlockLabel, BlockPart, ChainRoot, FetchId, Gate, LowerTier, Wanted};
use interbed_kv_remote::{Patience, RemoteOptions, RemoteTier, StoreAddress};

const TOKENS: usize = 16;
const BYTES: usize = 300_000;
const BLOCKS: usize = 40;

/// A time that is longer than any answer takes.
const LONG: Duration = Duration::from_secs(30);

/// A Redis server that ends with the test.
struct Redis {
    process: Child,
    port: u16,
}

impl Redis {
    /// Starts the server; returns `None` where there is no `redis-server` program.
    fn start(port: u16) -> Option<Self> {
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--port", &port.to_string()]);
        let process = match command.stdout(Stdio::null()).stderr(Stdio::null()).spawn() {
            Ok(process) => process,
            Err(error) => {
                assert!(std::env::var_os("INTERBED_REQUIRE_REDIS").is_none(), "redis-server cannot be run: {error}");
                eprintln!("redis-server cannot be run ({error}): nothing was tested with it");
                return None;
            }
        };
        let redis = Self { process, port };
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(began.elapsed() < LONG, "redis-server does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(redis)
    }

    fn tier(&self) -> RemoteTier {
        let address: StoreAddress = format!("redis://127.0.0.1:{}/1?prefix=kv", self.port).parse().unwrap();
        let options = RemoteOptions {
            buffer_bytes: 8 * BYTES,
            writes_per_day: None,
            ttl: Some(Duration::from_secs(500)),
            patience: Patience::Fixed(Duration::from_secs(5)),
            gate: Gate::new(0.0),
        };
        let store = address.open(options.ttl).unwrap();
        RemoteTier::open(store, [1; 32], [2; 32], (TOKENS, BYTES), options).unwrap()
    }

    /// Asks the server with `redis-cli`, and returns the lines of the answer.
    fn ask(&self, words: &[&str]) -> Vec<String> {
        let mut command = Command::new("redis-cli");
        command.args(["-n", "1", "-p", &self.port.to_string()]).args(words);
        let answer = command.output().unwrap();
        String::from_utf8(answer.stdout).unwrap().lines().map(str::to_owned).collect()
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn chain(tier: &RemoteTier) -> Vec<(BlockLabel, Vec<u8>)> {
    let mut parent = tier.key_chain().root(&ChainRoot::new(None, 0));
    let labels = (0..BLOCKS as u32).map(|index| {
        let tokens: Box<[u32]> = (0..TOKENS as u32).map(|token| 100 * index + token).collect();
        let key = tier.key_chain().block(parent, &tokens);
        let label = BlockLabel { key, parent, owner: tier.key_chain().owner(None), tokens };
        parent = key;
        (label, (0..BYTES as u32).map(|at| (at.wrapping_mul(7 + index) >> 3) as u8).collect())
    });
    labels.collect()
}

fn store(tier: &mut RemoteTier, chain: &[(BlockLabel, Vec<u8>)]) {
    let began = Instant::now();
    for (label, bytes) in chain {
        let mut pool = PlainBlocks(vec![bytes.clone()]);
        while tier.room() == 0 && began.elapsed() < LONG {
            assert_eq!(tier.poll(&mut pool, Duration::from_millis(1)), None);
        }
        if tier.wants(label.key, 0) {
            tier.stage(label.clone(), 0, BlockPart::whole(BlockId(0)), &mut pool);
        }
    }
    while !tier.is_settled() && began.elapsed() < LONG {
        assert_eq!(tier.poll(&mut PlainBlocks(Vec::new()), Duration::from_millis(1)), None);
    }
}

/// Fetches the chain, checks the bytes of the blocks that came, and returns how many came.
fn fetch(tier: &mut RemoteTier, chain: &[(BlockLabel, Vec<u8>)]) -> usize {
    let mut pool = PlainBlocks(vec![vec![0; BYTES]; chain.len()]);
    let wanted = chain.iter().zip(0..).map(|((label, _), block)| {
        let BlockLabel { key, parent, tokens, .. } = label.clone();
        Wanted { key, parent, tokens, part: BlockPart::whole(BlockId(block)) }
    });
    tier.fetch(FetchId(1), wanted.collect(), None, None);
    let filled = tier.poll(&mut pool, 4 * LONG).expect("it ends").filled;
    for (memory, (_, bytes)) in pool.0.iter().zip(chain).take(filled) {
        assert!(memory == bytes, "wrong bytes");
    }
    filled
}

#[test]
fn blocks_are_shared_are_forgotten_in_time_and_a_server_that_ends_is_found_again() {
    // Nobody else may take the port between this line and its use, or the test fails.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let Some(redis) = Redis::start(port) else { return };
    let (mut first, mut second) = (redis.tier(), redis.tier());
    let chain = chain(&first);
    assert_eq!(fetch(&mut first, &chain), 0);
    store(&mut first, &chain);
    assert_eq!((first.figures().counts.stored, first.figures().write_errors), (BLOCKS as u64, 0));
    assert_eq!(fetch(&mut second, &chain), BLOCKS);
    // The store has one name for each block, and keeps the blocks no longer than asked for.
    let names = redis.ask(&["KEYS", "*"]);
    assert!(names.len() == BLOCKS && names.iter().all(|name| name.contains("kv/0202020202020202/")), "{names:?}");
    let left: u64 = redis.ask(&["TTL", &names[0]])[0].parse().unwrap();
    assert!((400..=500).contains(&left), "{left}");
    // One block in the middle is damaged.
    let key = &chain[25].0.key.0.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let name = names.iter().find(|name| name.ends_with(key)).expect("it was stored");
    redis.ask(&["SETRANGE", name, "200000", "damage"]);
    assert_eq!(fetch(&mut second, &chain), 25);
    assert_eq!(second.figures().wrong_objects, 1);
    // One block is longer than it says.
    redis.ask(&["APPEND", name, "more"]);
    assert_eq!(fetch(&mut first, &chain), 25);
    // The server ends, and a new one starts without any blocks.
    drop(redis);
    assert_eq!(fetch(&mut second, &chain), 0);
    let redis = Redis::start(port).expect("it was there before");
    let began = Instant::now();
    while redis.ask(&["DBSIZE"]) != ["40"] {
        assert!(began.elapsed() < 4 * LONG, "{:?}", second.figures());
        assert!(fetch(&mut second, &chain) <= BLOCKS);
        store(&mut second, &chain);
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(fetch(&mut redis.tier(), &chain), BLOCKS);
}
