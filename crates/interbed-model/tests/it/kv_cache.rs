//! What a less precise KV cache costs: the bundled model over stories that it was not trained on, compared with an f32
//! cache.
//!
//! `cargo test --release -p interbed-model --test it kv_cache -- --nocapture` prints the table of
//! `docs/performance.md`. The stories are those of `tools/train/stories.py --seed 20261121 --count 40`, without the
//! chats.

use std::path::PathBuf;

use interbed_kernels::KvDType;
use interbed_model::tokenizer::Tokenizer;

use crate::harness::{BLOCK_SIZE, Beside, Harness, Sequence, argmax, fixtures};

const CONTEXT: usize = 1024;
/// How many tokens are generated greedily after the beginning of each story.
const CONTINUED: usize = 128;
/// How many tokens of a story such a continuation starts from.
const BEGINNING: usize = 16;

/// What a cache costs, compared with one in f32.
#[derive(Debug, Default)]
struct Cost {
    tokens: usize,
    /// Mean of the negative logarithm of the probability of each next token.
    loss: f64,
    /// The largest difference between logits, relative to the largest logit.
    apart: f64,
    /// How many tokens have the same most likely successor.
    same_best: usize,
    /// How many greedy tokens were the same before the first difference in each continuation; `greedy` counts all of
    /// them.
    same_greedy: usize,
    greedy: usize,
}

fn storyteller() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/storyteller")
}

fn stories() -> Vec<Vec<u32>> {
    let tokenizer = Tokenizer::from_dir(&storyteller()).unwrap();
    let text = std::fs::read_to_string(fixtures().join("stories.txt")).unwrap();
    let line = "-".repeat(40);
    let stories = text.split(&line).map(str::trim).filter(|story| !story.is_empty() && !story.starts_with('<'));
    // Code that is not optimised takes a while for all of them.
    let count = if cfg!(debug_assertions) { 8 } else { usize::MAX };
    let stories: Vec<_> = stories.take(count).map(|story| tokenizer.encode(story, true).unwrap()).collect();
    assert!(
        stories.len() >= count.min(12)
            && stories.iter().all(|story| (2 * BEGINNING..CONTEXT - CONTINUED).contains(&story.len()))
    );
    stories
}

fn fresh(tokens: &[u32]) -> Sequence {
    let block_table = (0..CONTEXT / BLOCK_SIZE).map(|block| block as u32).collect();
    Sequence { tokens: tokens.to_vec(), computed: 0, prompt_len: tokens.len(), block_table, beside: Beside::default() }
}

fn loss(logits: &[f32], next: u32) -> f64 {
    let greatest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f64 = logits.iter().map(|&logit| f64::from(logit - greatest).exp()).sum();
    total.ln() - f64::from(logits[next as usize] - greatest)
}

/// What the model computes for a story: the logits of every token, and its greedy continuation of the beginning.
struct Said {
    logits: Vec<Vec<f32>>,
    continued: Vec<u32>,
}

fn said(stories: &[Vec<u32>], dtype: KvDType) -> Vec<Said> {
    let mut harness = Harness::open(&storyteller(), dtype, 2, CONTEXT / BLOCK_SIZE);
    let say = |story: &Vec<u32>| Said {
        logits: harness.prompt_logits(&mut fresh(story), 64),
        continued: harness.greedy(&mut fresh(&story[..BEGINNING]), CONTINUED),
    };
    stories.iter().map(say).collect()
}

fn cost(stories: &[Vec<u32>], exact: &[Said], coarse: &[Said]) -> Cost {
    let mut cost = Cost::default();
    for ((story, exact), coarse) in stories.iter().zip(exact).zip(coarse) {
        for (at, (want, got)) in exact.logits.iter().zip(&coarse.logits).enumerate() {
            let largest = want.iter().fold(0f32, |largest, logit| largest.max(logit.abs()));
            let apart = want.iter().zip(got).fold(0f32, |apart, (want, got)| apart.max((want - got).abs()));
            cost.apart = cost.apart.max(f64::from(apart / largest));
            cost.same_best += usize::from(argmax(want) == argmax(got));
            if let Some(&next) = story.get(at + 1) {
                cost.loss += loss(got, next);
                cost.tokens += 1;
            }
        }
        let both = exact.continued.iter().zip(&coarse.continued);
        cost.same_greedy += both.take_while(|(want, got)| want == got).count();
        cost.greedy += CONTINUED;
    }
    cost.loss /= cost.tokens as f64;
    cost
}

#[test]
fn eight_bits_cost_little() {
    let stories = stories();
    println!("| KV cache | perplexity | largest logit difference | same most likely token | same greedy tokens |");
    println!("|---|---|---|---|---|");
    let in_f32 = said(&stories, KvDType::F32);
    let costs = KvDType::ALL.map(|dtype| {
        let cost = match dtype {
            KvDType::F32 => cost(&stories, &in_f32, &in_f32),
            other => cost(&stories, &in_f32, &said(&stories, other)),
        };
        println!(
            "| {dtype} | {:.4} | {:.2} % of the largest logit | {} of {} | {} of {} |",
            cost.loss.exp(),
            100.0 * cost.apart,
            cost.same_best,
            cost.tokens + stories.len(),
            cost.same_greedy,
            cost.greedy,
        );
        cost
    });
    let [exact, half, _, integers] = &costs;
    assert!(half.apart > 0.0 && half.apart < 0.005, "{half:?}");
    assert!(integers.apart > 0.0 && integers.apart < 0.03, "{integers:?}");
    assert!((integers.loss.exp() / exact.loss.exp() - 1.0).abs() < 0.002, "{integers:?} {exact:?}");
    assert!(integers.same_best * 100 >= (integers.tokens + stories.len()) * 99, "{integers:?}");
}
