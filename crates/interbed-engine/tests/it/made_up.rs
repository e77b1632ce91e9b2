//! A tier that is made up here: a map in memory. The engine goes through it like through any other tier, and the tokens
//! are right wherever in the list of tiers the map is.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use interbed_engine::{
    BlockBytes, Engine, Recompute, Request, StartError, StoreMode, TierBelow, TierFigures, TierPolicy,
};
use interbed_kv::{
    BlockKey, BlockLabel, BlockPart, FetchEnded, FetchId, KeyChain, LowerTier, MissingKeys, Wanted, WantedTails,
};
use interbed_kv_disk::testing::{FaultRates, FaultySegments};
use interbed_kv_remote::Patience;
use interbed_kv_remote::testing::FaultyStore;

use crate::disk::{converse, dice, kv_disk};
use crate::remote::shared;
use crate::sim::{
    Controls, SLOT_BYTES, Shape, SimRunner, assert_idle_and_whole, collect, engine_config, eventually, expected_greedy,
    greedy, prompt, with_swap,
};

/// Longer than any test.
const LONG: Duration = Duration::from_secs(600);

/// What a map holds, which outlives the engine.
type Contents = Arc<Mutex<HashMap<BlockKey, Vec<u8>>>>;

struct MapTier {
    chain: KeyChain,
    block_bytes: usize,
    contents: Contents,
    /// Most contents. One is forgotten for each that is above.
    most: usize,
    /// Fetches in flight, each with the tails that go with it, and with the polls that it still takes.
    fetches: VecDeque<(FetchId, Vec<Wanted>, Vec<Wanted>, u32)>,
}

impl MapTier {
    fn contents(&self) -> MutexGuard<'_, HashMap<BlockKey, Vec<u8>>> {
        self.contents.lock().unwrap()
    }
}

impl LowerTier for MapTier {
    fn name(&self) -> &'static str {
        "map"
    }

    fn key_chain(&self) -> &KeyChain {
        &self.chain
    }

    fn look_up(&mut self, keys: &MissingKeys, _computing: Option<f64>) -> usize {
        let contents = self.contents();
        let found = keys.keys().iter().take_while(|key| contents.contains_key(key)).count();
        keys.usable(found, &self.chain, |key| contents.contains_key(&key))
    }

    fn knows_contents(&self) -> bool {
        true
    }

    fn read_seconds(&self, _blocks: usize) -> Option<f64> {
        None
    }

    fn fetch(&mut self, id: FetchId, wanted: Vec<Wanted>, tails: Option<WantedTails>, _computing: Option<f64>) {
        let behind = tails.map_or(Vec::new(), |tails| tails.behind(wanted.len(), &wanted, &self.chain));
        self.fetches.push_back((id, wanted, behind, id.0 as u32 % 4));
    }

    fn is_reading(&self) -> bool {
        !self.fetches.is_empty()
    }

    fn poll(&mut self, blocks: &mut dyn BlockBytes, wait: Duration) -> Option<FetchEnded> {
        let (.., polls) = self.fetches.front_mut()?;
        if *polls > 0 && wait.is_zero() {
            *polls -= 1;
            return None;
        }
        let (id, wanted, behind, _) = self.fetches.pop_front()?;
        let (contents, len) = (self.contents(), self.block_bytes);
        let found = wanted.iter().chain(&behind).map_while(|wanted| Some((wanted.part, contents.get(&wanted.key)?)));
        let came = found.map(|(part, bytes)| blocks.fill(part, len, &mut |into| into.copy_from_slice(bytes))).count();
        let filled = match came == wanted.len() + behind.len() {
            false if !behind.is_empty() => 0,
            _ => came - behind.len(),
        };
        Some(FetchEnded { id, filled, wanted: wanted.len(), bytes: 0, seconds: 0.0 })
    }

    fn wants(&mut self, key: BlockKey, _class: u8) -> bool {
        !self.contents().contains_key(&key)
    }

    fn lacks(&self, key: BlockKey) -> bool {
        !self.contents().contains_key(&key)
    }

    fn room(&self) -> usize {
        8
    }

    fn buffers(&self) -> usize {
        8
    }

    fn stage(&mut self, label: BlockLabel, _class: u8, part: BlockPart, blocks: &mut dyn BlockBytes) -> bool {
        let mut bytes = vec![0; self.block_bytes];
        blocks.read(part, &mut bytes).unwrap();
        let most = self.most;
        let mut contents = self.contents();
        let forgotten = contents.keys().next().copied().filter(|_| contents.len() >= most);
        forgotten.into_iter().for_each(|key| drop(contents.remove(&key)));
        contents.insert(label.key, bytes);
        true
    }

    fn is_settled(&self) -> bool {
        self.fetches.is_empty()
    }

    fn last_writes(&self) -> Duration {
        Duration::ZERO
    }

    fn figures(&self) -> TierFigures {
        TierFigures { blocks: self.contents().len(), ..TierFigures::default() }
    }
}

/// A tier over `contents`, whose keys are those of the other tiers.
fn map(shape: Shape, contents: &Contents, most: usize) -> TierBelow {
    let (chain, block_bytes) = (KeyChain::new([1; 32], [2; 32]), shape.block_size * SLOT_BYTES);
    let tier = MapTier { chain, block_bytes, contents: Arc::clone(contents), most, fetches: VecDeque::new() };
    let (mode, recompute) = (StoreMode::Eager, Recompute::Share(0.0));
    TierBelow { tier: Box::new(tier), policy: TierPolicy { mode, recompute, idle_after: None, drops_fresh: true } }
}

fn disk(shape: Shape, space: &Arc<FaultySegments>) -> TierBelow {
    kv_disk(shape, space, StoreMode::Eager, LONG, Recompute::Share(0.0))
}

fn start(shape: Shape, below: Vec<TierBelow>) -> (Engine, Arc<Controls>) {
    let (runner, controls) = SimRunner::new(shape.block_size);
    let attachments = with_swap(shape, &controls, below);
    (Engine::start_with(engine_config(shape), Box::new(runner.with_tails(shape)), attachments).unwrap(), controls)
}

#[test]
fn each_tier_brings_what_is_behind_the_blocks_of_nearer_tiers() {
    let shape = Shape::default();
    let long = greedy(prompt(3, 70), 20);
    let expected = expected_greedy(&long.prompt, &long.params);
    for map_is_first in [true, false] {
        let (contents, space, store) = (Contents::default(), Arc::new(FaultySegments::new(1)), FaultyStore::new(1));
        let of_map = || map(shape, &contents, 1000);
        let of_store = || shared(shape, &store, Patience::Fixed(LONG));
        // Each tier has seen a longer part of the prompt than the one before it.
        let mut seen = [of_map(), disk(shape, &space), of_store()];
        if !map_is_first {
            seen.swap(0, 1);
        }
        for (below, (length, blocks)) in seen.into_iter().zip([(38, 9), (54, 13), (70, 17)]) {
            let (engine, _) = start(shape, vec![below]);
            let part = Request { prompt: long.prompt[..length].to_vec(), ..long.clone() };
            collect(engine.handle().submit(part).unwrap());
            eventually(&engine, "all is stored", |status| {
                let store = status.tiers[0].store;
                status.tiers[0].fresh_blocks == 0
                    && store.queued_blocks == 0
                    && (store.blocks >= blocks || store.counts.stored >= blocks as u64)
            });
        }
        let mut below = vec![of_map(), disk(shape, &space), of_store()];
        if !map_is_first {
            below.swap(0, 1);
        }
        let (engine, controls) = start(shape, below);
        let ended = collect(engine.handle().submit(long.clone()).unwrap());
        assert_eq!((ended.tokens, ended.cached_tokens), (expected.clone(), 68), "map first: {map_is_first}");
        assert_eq!(controls.tokens_computed.load(Ordering::Relaxed), 2 + 19);
        let status = engine.handle().status();
        let names = if map_is_first { ["map", "disk", "remote"] } else { ["disk", "map", "remote"] };
        assert_eq!(status.tiers.iter().map(|tier| tier.name).collect::<Vec<_>>(), names);
        let figures = status.tiers.iter().map(|tier| (tier.fetches, tier.fetched_tokens, tier.fetches_cut));
        assert_eq!(figures.collect::<Vec<_>>(), [(1, 36, 0), (1, 16, 0), (1, 16, 0)]);
        assert_idle_and_whole(&engine);
    }
}

#[test]
fn no_token_comes_from_wrong_kv_wherever_the_map_is() {
    let (mut of_map, mut of_disk, mut cut) = (0, 0, 0);
    for seed in 0..40u32 {
        let mut random = dice(seed);
        let (contents, space) = (Contents::default(), Arc::new(FaultySegments::new(seed.into())));
        let shape = Shape::of_load(seed);
        let mut below = vec![map(shape, &contents, 120), disk(shape, &space)];
        if seed % 4 < 2 {
            below.swap(0, 1);
        }
        let (engine, _) = start(shape, below);
        for _ in 0..4 {
            let (read_error, read_flip) = (random(100), random(100));
            space.set_rates(FaultRates { read_error, read_flip, ..FaultRates::default() });
            converse(&engine, &mut random);
        }
        assert_idle_and_whole(&engine);
        let status = engine.handle().status();
        let tokens = |name: &str| status.tier(name).expect("it is attached").fetched_tokens;
        (of_map, of_disk) = (of_map + tokens("map"), of_disk + tokens("disk"));
        cut += status.tiers.iter().map(|tier| tier.fetches_cut).sum::<u64>();
    }
    println!("{of_map} tokens from the map, {of_disk} from the disk, {cut} fetches cut short");
    assert!(of_map > 500 && of_disk > 1000 && cut > 5, "{of_map} {of_disk} {cut}");
}

#[test]
fn tiers_that_cannot_be_used_together_are_refused() {
    let shape = Shape::default();
    let (contents, store) = (Contents::default(), FaultyStore::new(1));
    let of_map = || map(shape, &contents, 10);
    let of_store = || shared(shape, &store, Patience::Fixed(LONG));
    let refused = |below: Vec<TierBelow>| {
        let (runner, controls) = SimRunner::new(shape.block_size);
        let attachments = with_swap(shape, &controls, below);
        match Engine::start_with(engine_config(shape), Box::new(runner.with_tails(shape)), attachments) {
            Err(StartError::Tiers(reason)) => reason,
            other => panic!("it is not refused: {:?}", other.err()),
        }
    };
    assert!(refused(vec![of_map(), of_map()]).contains("two tiers of KV are called map"));
    assert!(refused(vec![of_store(), of_map()]).contains("the tier remote does not know what it has"));
    let (chain, block_bytes) = (KeyChain::new([1; 32], [3; 32]), shape.block_size * SLOT_BYTES);
    let other = MapTier { chain, block_bytes, contents: Arc::clone(&contents), most: 1, fetches: VecDeque::new() };
    let other = TierBelow { tier: Box::new(other), policy: of_map().policy };
    assert!(refused(vec![other, of_store()]).contains("the tier remote has other keys"));
}
