//! Interbed's engine over a runner of one's own: it continues a text with what most often follows the last three bytes
//! in a text file. It schedules, batches, caches prefixes and samples exactly as it does for a language model.
//!
//! ```console
//! $ cargo run --release -p own-runner -- README.md "The KV cache "
//! ```

mod followers;

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result};
use interbed_engine::{Engine, EngineConfig, Event, Limits, PreemptionMode, Request, SamplingParams, SchedulerConfig};
use interbed_kv::KvConfig;

use followers::Followers;

/// Tokens of a KV block, and how many blocks there are.
const BLOCK_SIZE: usize = 16;
const BLOCKS: usize = 256;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let usage = "usage: own-runner TEXT_FILE PROMPT";
    let (path, prompt) = (args.next().context(usage)?, args.next().context(usage)?);
    let text = std::fs::read(&path).with_context(|| format!("{path} cannot be read"))?;
    let engine = start(&text)?;
    let params = SamplingParams { max_tokens: 300, temperature: 0.7, ..SamplingParams::default() };
    let request = Request { prompt: prompt.bytes().map(u32::from).collect(), params, ..Request::default() };
    let mut events = engine.handle().submit(request)?;
    let mut answer = prompt.into_bytes();
    while let Some(event) = events.blocking_next() {
        match event {
            Event::Token { id, .. } => answer.push(id as u8),
            Event::Failed(error) => return Err(error.into()),
            _ => {}
        }
    }
    std::io::stdout().write_all(&answer)?;
    println!();
    Ok(())
}

/// An engine over what follows what in `text`.
fn start(text: &[u8]) -> Result<Engine> {
    let tokens = BLOCKS * BLOCK_SIZE;
    let config = EngineConfig {
        scheduler: SchedulerConfig {
            max_num_seqs: 8,
            max_num_batched_tokens: 64,
            preemption: PreemptionMode::Auto,
            max_token_gap: None,
        },
        kv: KvConfig { num_blocks: BLOCKS, block_size: BLOCK_SIZE, ..KvConfig::default() },
        limits: Limits {
            vocab_size: 256,
            max_model_len: tokens,
            model_context: tokens,
            kv_capacity_tokens: tokens,
            kv_block_tokens: BLOCK_SIZE,
            kv_blocks_beside: 0,
            max_logprobs: 5,
            max_beam_width: 8,
            max_waiting: 100,
        },
        eos_token_ids: Vec::new(),
        stall: Duration::from_secs(10),
        idle_turn: Duration::from_millis(50),
        check_invariants: false,
    };
    Ok(Engine::start(config, Box::new(Followers::new(text, BLOCKS, BLOCK_SIZE)))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"the fox and the hen and the hare ran to the fen and then to the den";

    fn continue_all(engine: &Engine, prompts: &[&str]) -> Vec<String> {
        let params = SamplingParams { max_tokens: 40, temperature: 0.0, ..SamplingParams::default() };
        let submit = |prompt: &&str| {
            let prompt = prompt.bytes().map(u32::from).collect();
            engine.handle().submit(Request { prompt, params: params.clone(), ..Request::default() }).expect("room")
        };
        let streams: Vec<_> = prompts.iter().map(submit).collect();
        let read = |mut events: interbed_engine::EventStream| {
            let mut answer = Vec::new();
            while let Some(event) = events.blocking_next() {
                match event {
                    Event::Token { id, .. } => answer.push(id as u8),
                    Event::Failed(error) => panic!("{error}"),
                    _ => {}
                }
            }
            String::from_utf8(answer).expect("text")
        };
        streams.into_iter().map(read).collect()
    }

    /// What the engine should print, without an engine.
    fn alone(prompt: &str) -> String {
        let followers = Followers::new(TEXT, 1, 1);
        let mut bytes = prompt.as_bytes().to_vec();
        for _ in 0..40 {
            let context = &bytes[bytes.len().saturating_sub(3)..];
            let logits = followers.logits(context);
            let best = (0..256).rev().max_by(|&a, &b| logits[a].total_cmp(&logits[b])).expect("some");
            bytes.push(best as u8);
        }
        String::from_utf8(bytes.split_off(prompt.len())).expect("text")
    }

    #[test]
    fn the_engine_continues_texts_together_as_each_alone() {
        let engine = start(TEXT).expect("an engine");
        // The long ones begin alike, so that the second round finds their blocks in the cache.
        let long = "and the hen and the hare ran to the fen and the hare";
        let prompts = ["the f", "h", long, &format!("{long} ran to the"), "xyz"];
        let want: Vec<_> = prompts.iter().map(|prompt| alone(prompt)).collect();
        for round in 0..2 {
            assert_eq!(continue_all(&engine, &prompts), want, "round {round}");
        }
        assert!(engine.handle().status().cached_tokens > 0, "prefixes were found");
    }
}
