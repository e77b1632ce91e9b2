//! Runs one hot kernel a fixed number of times, for `bench/instructions/run.py` to count its instructions.
//!
//! `instructions` lists the kernels, `instructions NAME` runs one. Only what happens inside [`counted`] is to be
//! counted.

mod attention;
mod products;
mod rows;

use std::num::NonZeroUsize;
use std::process::ExitCode;

use interbed_kernels::{Level, Pool};

/// Calls of a kernel that are counted; the count is of all of them.
const CALLS: usize = 2;

/// A kernel with its operands, ready to be called.
type Kernel = Box<dyn FnMut(&Pool, Level)>;

/// A kernel's name, and what makes it.
type Entry = (String, Box<dyn FnOnce() -> Kernel>);

fn entry(name: impl Into<String>, make: impl FnOnce() -> Kernel + 'static) -> Entry {
    (name.into(), Box::new(make))
}

fn main() -> ExitCode {
    let mut kernels = products::kernels().chain(attention::kernels()).chain(rows::kernels());
    let Some(wanted) = std::env::args().nth(1) else {
        println!("level {}", Level::detect().name());
        for (name, _) in kernels {
            println!("{name}");
        }
        return ExitCode::SUCCESS;
    };
    let Some((_, make)) = kernels.find(|(name, _)| *name == wanted) else {
        eprintln!("there is no kernel {wanted:?}; without an argument all are listed");
        return ExitCode::from(2);
    };
    // One thread: how a barrier is waited for differs from run to run.
    let (pool, level) = (Pool::new(NonZeroUsize::MIN), Level::detect());
    let mut kernel = make();
    // The first call may look things up once and for all.
    kernel(&pool, level);
    for _ in 0..CALLS {
        counted(&mut kernel, &pool, level);
    }
    ExitCode::SUCCESS
}

/// Callgrind counts between the entry of this function and its end, so it must stay one.
#[inline(never)]
fn counted(kernel: &mut Kernel, pool: &Pool, level: Level) {
    kernel(pool, level);
    // Something behind the call, so that it stays a call and its return is seen.
    std::hint::black_box(&level);
}

/// Numbers in -1 .. 1, the same in every run.
fn numbers(count: usize) -> Vec<f32> {
    let mut state = 1u64;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(count).collect()
}

/// Bytes of weights of any type: small ones, that decode to finite numbers in each.
fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|i| (i * 37 % 61) as u8).collect()
}
