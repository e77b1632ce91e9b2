//! Measures the limits of this machine, to which `interbed bench` relates its results.

mod loops;
mod unit;

use std::time::{Duration, Instant};

use crate::pool::Pool;
use crate::simd::{LANES, Simd, dispatch, store_few};
use crate::{Level, Share};

pub use unit::Unit;

/// The shortest time of a measurement, which is long enough that starting the threads does not matter.
const PROBE_TIME: Duration = Duration::from_millis(3);

/// The number of rounds that a loop begins with.
const ROUNDS_MIN: usize = 64;

/// The number of bytes by which a sweep prefetches ahead of its loads.
const AHEAD: usize = 4096;

/// A number of rounds that no machine computes within [`PROBE_TIME`].
const ROUNDS_MAX: usize = 1 << 30;

/// Measures the bytes per second at which all threads together read `buffer`, which should be much larger than the
/// caches.
///
/// Returns the best result of `rounds` measurements, because other processes can only slow a measurement down.
pub fn read_bandwidth(pool: &Pool, level: Level, buffer: &[u8], rounds: usize) -> f64 {
    let vectors = buffer.len() / (LANES * size_of::<f32>());
    let mut sums = vec![0.0f32; pool.threads() * LANES];
    let mut best = 0.0f64;
    for _ in 0..rounds.max(1) {
        let out = Share::new(&mut sums);
        let threads = pool.threads();
        let begin = Instant::now();
        pool.run(|thread| {
            let (first, end) = (vectors * thread / threads, vectors * (thread + 1) / threads);
            let bytes = LANES * size_of::<f32>();
            let (from, _) = buffer[first * bytes..end * bytes].as_chunks();
            // SAFETY: each thread has its own row of `sums`.
            let to = unsafe { out.slice(thread * LANES, LANES) };
            dispatch!(level, sweep::<_>(from: &[[u8; 4 * LANES]], to: &mut [f32]));
        });
        best = best.max(buffer.len() as f64 / begin.elapsed().as_secs_f64());
    }
    std::hint::black_box(&sums);
    best
}

/// Measures the peak rate of `unit` on all threads together, in operations per second, with operands in registers. A
/// multiply-add counts as two operations. Returns `None` if the level lacks the unit.
///
/// Returns the best result of `repeat` measurements of a few milliseconds each.
pub fn peak(pool: &Pool, level: Level, unit: Unit, repeat: usize) -> Option<f64> {
    let run = loops::of(level, unit)?;
    let time = |rounds: usize| {
        let begin = Instant::now();
        pool.run(|_| run.call(rounds));
        begin.elapsed()
    };
    // Units differ a hundredfold, so the number of rounds is found by doubling.
    let mut rounds = ROUNDS_MIN;
    let mut shortest = time(rounds);
    while shortest < PROBE_TIME && rounds < ROUNDS_MAX {
        rounds *= 2;
        shortest = time(rounds);
    }
    for _ in 1..repeat {
        shortest = shortest.min(time(rounds));
    }
    Some(pool.threads() as f64 * run.operations(rounds) / shortest.as_secs_f64())
}

/// Reads all vectors in their order, and stores their sum.
///
/// Prefetching gives the highest rate that was measured on Zen 4. Four streams at a distance, without prefetches, gave
/// 9 to 32 % less.
#[inline(always)]
fn sweep<S: Simd>(s: S, from: &[[u8; 4 * LANES]], to: &mut [f32]) {
    let mut sums = [s.splat(0.0); 4];
    let (fours, rest) = from.as_chunks::<4>();
    for four in fours {
        for (vector, sum) in four.iter().zip(&mut sums) {
            s.prefetch_second(vector.as_ptr().wrapping_add(AHEAD));
            *sum = s.add(*sum, s.load_bits(bytemuck::cast_ref(vector)));
        }
    }
    for vector in rest {
        sums[0] = s.add(sums[0], s.load_bits(bytemuck::cast_ref(vector)));
    }
    store_few(s, s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])), to);
}
