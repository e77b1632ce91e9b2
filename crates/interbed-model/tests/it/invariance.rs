//! The same request gives the same logits bit for bit: alone, in a batch, in chunks, after a prefix hit, on any number
//! of threads. Everything that compares tokens later relies on this.

use interbed_kernels::{KvDType, Level};
use interbed_model::{BatchSequence, LogitRows, SequenceBlocks};

use crate::harness::{BLOCK_SIZE, Harness};

/// One case of each kind: plain, sliding window, biases, q/k norm, scaled residuals, dynamic rope beyond its context,
/// experts, experts with groups and a shared one, FP8, matrices in one piece with longrope, queries that grow, norms
/// after rotation, sinks and biases of experts, shared keys and values with rows of a table, values made from keys,
/// experts beside a dense network, delta rules and gated attention, gated convolutions, state spaces.
const CASES: [(&str, KvDType); 30] = [
    ("llama3_bf16", KvDType::BF16),
    ("mistral_sliding", KvDType::F32),
    ("qwen2_bf16", KvDType::BF16),
    ("qwen3", KvDType::F16),
    ("llama3_bf16", KvDType::Q8),
    ("minicpm", KvDType::F32),
    ("rope_dynamic_long", KvDType::F32),
    ("gemma3", KvDType::F16),
    ("gemma4", KvDType::F32),
    ("gemma4_keys", KvDType::BF16),
    ("gemma4_moe", KvDType::F16),
    ("qwen3_moe", KvDType::F16),
    ("glm4_moe_groups", KvDType::F32),
    ("qwen3_moe_fp8", KvDType::F16),
    ("phi3_long", KvDType::F32),
    ("ministral3", KvDType::F32),
    ("hunyuan_v1_moe", KvDType::F32),
    ("gpt_oss", KvDType::F32),
    ("gpt_oss_mxfp4", KvDType::F16),
    ("qwen3_5", KvDType::F32),
    ("qwen3_5_bf16", KvDType::BF16),
    ("qwen3_5_moe", KvDType::F32),
    ("qwen3_next", KvDType::F16),
    ("lfm2", KvDType::F32),
    ("lfm2_bf16", KvDType::BF16),
    ("lfm2_moe", KvDType::F16),
    ("granite_4_h", KvDType::BF16),
    ("granite_4_h_moe", KvDType::F32),
    ("nemotron_h", KvDType::F16),
    ("nemotron_h_moe", KvDType::F32),
];

fn cases_by_level() -> impl Iterator<Item = (Level, (&'static str, KvDType))> {
    Level::available().flat_map(|level| CASES.into_iter().map(move |case| (level, case)))
}

fn prompt(seed: u32, length: usize) -> Vec<u32> {
    (0..length as u32).map(|i| (seed * 17 + i * i * 3 + i * (seed + 5)) % 60).collect()
}

fn bits(rows: &[Vec<f32>]) -> Vec<Vec<u32>> {
    rows.iter().map(|row| row.iter().map(|logit| logit.to_bits()).collect()).collect()
}

fn alone(level: Level, (name, dtype): (&str, KvDType), threads: usize, prompt: &[u32], chunk: usize) -> Vec<Vec<u32>> {
    let mut harness = Harness::load(name, dtype, threads, 1).at(level);
    let mut sequence = harness.sequence(0, prompt);
    bits(&harness.prompt_logits(&mut sequence, chunk))
}

#[test]
fn in_chunks_and_on_any_number_of_threads() {
    let prompt = prompt(3, 90);
    for (level, case) in cases_by_level() {
        let whole = alone(level, case, 1, &prompt, usize::MAX);
        for (threads, chunk) in [(2, usize::MAX), (3, 1), (2, 7), (1, 64)] {
            let apart = alone(level, case, threads, &prompt, chunk);
            assert_eq!(apart, whole, "{case:?} {}: {threads} threads, {chunk} tokens", level.name());
        }
    }
}

#[test]
fn in_a_batch_of_32_with_prefill_and_decode_together() {
    for (level, (name, dtype)) in cases_by_level() {
        let mut harness = Harness::load(name, dtype, 2, 32).at(level);
        let prompts: Vec<_> = (0..32).map(|seed| prompt(seed, 3 + 2 * seed as usize)).collect();
        let mut sequences: Vec<_> =
            prompts.iter().enumerate().map(|(index, prompt)| harness.sequence(index, prompt)).collect();
        let mut got: Vec<Vec<Vec<u32>>> = vec![Vec::new(); 32];
        let mut step = 0;
        while sequences.iter().any(|sequence| sequence.computed < sequence.tokens.len()) {
            // The sequences advance at different paces, so that prompts end and decodes begin in different passes.
            let counts: Vec<usize> = sequences
                .iter()
                .enumerate()
                .map(|(i, sequence)| ((i * 7 + step * 3) % 11).min(sequence.tokens.len() - sequence.computed))
                .collect();
            let mut rows = bits(&harness.pass(&mut sequences, &counts)).into_iter();
            for (got, count) in got.iter_mut().zip(&counts) {
                got.extend(rows.by_ref().take(*count));
            }
            step += 1;
        }
        for (index, prompt) in prompts.iter().enumerate() {
            let alone = alone(level, (name, dtype), 1, prompt, usize::MAX);
            assert_eq!(got[index], alone, "{name} {}: sequence {index}", level.name());
        }
    }
}

#[test]
fn after_a_prefix_hit() {
    for (level, (name, dtype)) in cases_by_level() {
        let mut harness = Harness::load(name, dtype, 2, 2).at(level);
        let prompt = prompt(8, 70);
        let shared = 15;
        let mut first = harness.sequence(0, &prompt);
        let mut whole = bits(&harness.pass(std::slice::from_mut(&mut first), &[shared * BLOCK_SIZE]));
        // The second sequence shares the leading blocks of the first, and computes only what follows. Its states are
        // those of the first at that position.
        let mut second = harness.sequence(1, &prompt);
        second.block_table[..shared].copy_from_slice(&first.block_table[..shared]);
        for ((_, table), (_, of_first)) in second.beside.windows.iter_mut().zip(&first.beside.windows) {
            table[..shared].copy_from_slice(&of_first[..shared]);
        }
        second.beside.go_on_from(&first.beside);
        second.computed = shared * BLOCK_SIZE;
        whole.extend(bits(&harness.prompt_logits(&mut first, usize::MAX)));
        let rest = bits(&harness.prompt_logits(&mut second, 7));
        assert_eq!(rest, whole[shared * BLOCK_SIZE..], "{name}");
    }
}

#[test]
fn keys_under_another_rope_scale_have_another_namespace() {
    let dynamic = Harness::load("rope_dynamic_long", KvDType::F32, 1, 1).model;
    let context = dynamic.blueprint().positions;
    assert_eq!(dynamic.cache_namespace(context), dynamic.cache_namespace(1));
    assert_ne!(dynamic.cache_namespace(context + 1), dynamic.cache_namespace(context));
    assert_ne!(dynamic.cache_namespace(context + 1), dynamic.cache_namespace(context + 2));
    let plain = Harness::load("rope_yarn", KvDType::F32, 1, 1).model;
    assert_eq!(plain.cache_namespace(10_000), plain.cache_namespace(1));
}

#[test]
fn a_pass_allocates_nothing_after_warm_up() {
    let names = ["qwen3", "gpt_oss", "gemma4", "gemma4_moe", "qwen3_5", "lfm2", "granite_4_h", "nemotron_h_moe"];
    for name in names {
        let mut harness = Harness::load(name, KvDType::F32, 2, 2);
        let mut sequence = harness.sequence(0, &prompt(1, 40));
        let mut pass = |start: usize, end: usize| {
            let groups = sequence.beside.groups(start);
            let batch = [BatchSequence {
                tokens: &sequence.tokens[start..end],
                first_position: start,
                prompt_len: sequence.prompt_len,
                below: 0,
                blocks: SequenceBlocks::Listed(&sequence.block_table),
                groups: &groups,
                logits: LogitRows::Last,
            }];
            let mut best = 0.0f32;
            let Harness { model, device } = &mut harness;
            assert_no_alloc::assert_no_alloc(|| {
                let outcome = model.forward(device, &batch, &mut |_, logits| best += logits.all()[0]);
                assert!(outcome.is_ok());
            });
            std::hint::black_box(best);
            drop(groups);
            sequence.beside.advance(start);
        };
        let before = assert_no_alloc::violation_count();
        pass(0, 30);
        let warm = assert_no_alloc::violation_count();
        assert!(warm > before, "{name}: the first pass grows the lists of rows, or nothing is being counted");
        for position in 30..40 {
            pass(position, position + 1);
        }
        assert_eq!(assert_no_alloc::violation_count(), warm, "{name}");
    }
}
