//! A runner with a drafter that knows what most sequences become, and errs now and then.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use interbed_engine::{Drafter, Runner};

use crate::disk::dice;
use crate::passes_on::passes_on;

/// What sequences become, as far as tests tell.
#[derive(Default)]
pub struct Known {
    /// Prompts with their answers.
    pub sequences: Mutex<Vec<Vec<u32>>>,
    /// Guesses that are right for the sequences above.
    pub right: AtomicU64,
    pub wrong: AtomicU64,
}

/// Guesses up to `most` tokens at a time for the passes of `runner`.
pub struct Drafting<R> {
    runner: R,
    known: Arc<Known>,
    most: usize,
    random: Box<dyn FnMut(u32) -> u32 + Send>,
}

impl<R: Runner> Drafting<R> {
    pub fn new(runner: R, known: &Arc<Known>, most: usize) -> Self {
        Self { runner, known: Arc::clone(known), most, random: Box::new(dice(most as u32)) }
    }
}

impl<R: Runner> Drafter for Drafting<R> {
    fn draft(&mut self, tokens: &[u32], most: usize, drafts: &mut Vec<u32>) {
        let sequences = self.known.sequences.lock().unwrap();
        let whole = sequences.iter().find(|whole| whole.len() > tokens.len() && whole.starts_with(tokens));
        let next = whole.map_or(&[][..], |whole| &whole[tokens.len()..]);
        let count = (self.random)(self.most as u32 + 1) as usize;
        for index in 0..count.min(most) {
            let token = next.get(index).filter(|_| (self.random)(6) > 0);
            let counter = if token.is_some() { &self.known.right } else { &self.known.wrong };
            counter.fetch_add(1, Ordering::Relaxed);
            drafts.push(token.copied().unwrap_or(tokens[0]));
        }
    }
}

impl<R: Runner> Runner for Drafting<R> {
    passes_on!(runner: forward, copy_blocks, resize_blocks, block_bytes, cache_namespace);
    passes_on!(runner: kv_memory, strips, shown_weights, streams_kv, memory);

    fn drafter(&mut self) -> Option<&mut dyn Drafter> {
        (self.most > 0).then_some(self)
    }
}
