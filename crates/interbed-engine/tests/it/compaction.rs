//! A pool that shrinks while it serves: what lies above its new end moves down between passes, and no answer changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use interbed_engine::{KvDemand, KvGrant, KvMemory, PassError, Request, Runner, SamplingParams};
use interbed_model::{BatchSequence, KvBelow, LogitRow, Logits};

use crate::passes_on::passes_on;
use crate::sim::{Shape, SimRunner, assert_idle_and_whole, collect, eventually, expected_greedy, greedy, start_over};

#[derive(Default)]
struct Pool {
    /// Blocks that may be used.
    usable: AtomicUsize,
    /// Blocks below which all KV lay after the last pass or change.
    reached: AtomicUsize,
}

/// Gives KV as many blocks as the test says.
struct ResizedRunner {
    sim: SimRunner,
    pool: Arc<Pool>,
}

impl Runner for ResizedRunner {
    passes_on!(sim: copy_blocks, block_bytes, cache_namespace, strips);

    fn forward(
        &mut self,
        batch: &[BatchSequence<'_>],
        below: &mut dyn KvBelow,
        sink: &mut dyn FnMut(LogitRow, Logits<'_>),
    ) -> Result<(), PassError> {
        self.pool.reached.store(self.sim.blocks_reached(), Ordering::Relaxed);
        self.sim.forward(batch, below, sink)
    }

    fn resize_blocks(&mut self, _came: &[u32], left: &[u32]) {
        self.sim.forget(left);
    }

    fn kv_memory(&mut self) -> Option<&mut dyn KvMemory> {
        Some(self)
    }
}

impl KvMemory for ResizedRunner {
    fn blocks_at_start(&mut self) -> usize {
        self.pool.usable.load(Ordering::Relaxed)
    }

    fn balance(&mut self, demand: KvDemand) -> KvGrant {
        let blocks = self.pool.usable.load(Ordering::Relaxed);
        KvGrant { blocks, settled: demand.present == blocks }
    }
}

#[test]
fn blocks_above_a_smaller_pool_move_down_while_requests_are_served() {
    let shape = Shape { blocks: 64, ..Shape::default() };
    let (sim, controls) = SimRunner::new(shape.block_size);
    let pool = Arc::new(Pool::default());
    pool.usable.store(shape.blocks, Ordering::Relaxed);
    let engine = start_over(shape, Box::new(ResizedRunner { sim, pool: pool.clone() }), &controls);
    let request =
        |seed: u32, answer| greedy((0..12).map(|i| (seed * 37 + i * i * 5 + i * seed) % 49 + 1).collect(), answer);
    let check = |request: Request| {
        let ended = collect(engine.handle().submit(request.clone()).unwrap());
        assert_eq!(ended.tokens, expected_greedy(&request.prompt, &request.params));
    };
    (0..30).for_each(|seed| check(request(seed, 5)));
    assert!(engine.handle().status().kv.blocks_cached > 56, "the cache is full");

    controls.close_gate();
    let requests = [request(100, 30), request(29, 30)].map(|request| {
        let params = SamplingParams { ignore_eos: true, ..request.params };
        Request { params, ..request }
    });
    let streams = requests.clone().map(|request| engine.handle().submit(request).unwrap());
    controls.allow(2);
    eventually(&engine, "both run", |status| status.running == 2);
    pool.usable.store(24, Ordering::Relaxed);
    controls.allow(20);
    eventually(&engine, "all lies below", |_| pool.reached.load(Ordering::Relaxed) <= 24);
    assert_eq!(engine.handle().status().running, 2, "they are still served");
    controls.open_gate();
    for (request, stream) in requests.iter().zip(streams) {
        assert_eq!(collect(stream).tokens, expected_greedy(&request.prompt, &request.params));
    }
    assert_idle_and_whole(&engine);
    assert!(engine.handle().status().kv.blocks_cached > 0, "what is left of the cache is kept");
    (0..30).for_each(|seed| check(request(seed, 5)));
}
