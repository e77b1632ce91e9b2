//! Hidden states after the last norm: the same to the bit in any company, and what logits are made of.

use interbed_kernels::KvDType;
use interbed_model::{BatchSequence, LogitRows, SequenceBlocks};

use crate::harness::{Harness, Sequence, fixtures};

fn prompt(seed: u32, length: usize) -> Vec<u32> {
    (0..length as u32).map(|i| (seed * 23 + i * i * 5 + i * (seed + 2)) % 60).collect()
}

/// One pass over the next `counts[i]` tokens of each sequence, and the rows of each that `wanted[i]` asks for.
fn pass(
    harness: &mut Harness,
    sequences: &mut [Sequence],
    counts: &[usize],
    wanted: &[LogitRows],
) -> Vec<Vec<Vec<u32>>> {
    let groups: Vec<_> = sequences.iter().map(|sequence| sequence.beside.groups(sequence.computed)).collect();
    let batch: Vec<_> = sequences
        .iter()
        .zip(&groups)
        .zip(counts.iter().zip(wanted))
        .map(|((sequence, groups), (&count, &logits))| BatchSequence {
            tokens: &sequence.tokens[sequence.computed..sequence.computed + count],
            first_position: sequence.computed,
            prompt_len: sequence.prompt_len,
            below: 0,
            blocks: SequenceBlocks::Listed(&sequence.block_table),
            groups,
            logits,
        })
        .collect();
    let mut rows = vec![Vec::new(); batch.len()];
    let Harness { model, device } = harness;
    let mut sink = |row: interbed_model::LogitRow, values: interbed_model::Logits<'_>| {
        rows[row.sequence].push(values.all().iter().map(|value| value.to_bits()).collect());
    };
    model.forward(device, &batch, &mut sink).unwrap();
    drop(batch);
    drop(groups);
    for (sequence, count) in sequences.iter_mut().zip(counts) {
        sequence.beside.advance(sequence.computed);
        sequence.computed += count;
    }
    rows
}

#[test]
fn alone_in_chunks_and_among_logits() {
    for (name, dtype) in [
        ("llama3_bf16", KvDType::BF16),
        ("mistral_sliding", KvDType::F32),
        ("minicpm", KvDType::F32),
        ("gemma4", KvDType::F32),
        ("qwen3_5", KvDType::F32),
        ("lfm2", KvDType::F32),
        ("granite_4_h", KvDType::F32),
    ] {
        let prompts: Vec<_> = (0..3).map(|seed| prompt(seed, 80 + seed as usize)).collect();
        let alone: Vec<_> = [LogitRows::AllHidden, LogitRows::All, LogitRows::AllHidden]
            .into_iter()
            .zip(&prompts)
            .map(|(rows, prompt)| {
                let mut harness = Harness::load(name, dtype, 1, 1);
                let sequence = harness.sequence(0, prompt);
                pass(&mut harness, &mut [sequence], &[prompt.len()], &[rows]).remove(0)
            })
            .collect();
        let width = Harness::load(name, dtype, 1, 1).model.blueprint().hidden_size;
        assert!(alone[0].len() == 80 && alone[0].iter().all(|row| row.len() == width));
        // Rows of both kinds side by side, more of them than are computed at a time.
        let mut harness = Harness::load(name, dtype, 2, 3);
        let mut sequences: Vec<_> = (0..3).map(|index| harness.sequence(index, &prompts[index])).collect();
        let wanted = [LogitRows::AllHidden, LogitRows::All, LogitRows::AllHidden];
        let mut got = pass(&mut harness, &mut sequences, &[70, 75, 3], &wanted);
        let rest = pass(&mut harness, &mut sequences, &[9, 5, 78], &wanted);
        got.iter_mut().zip(rest).for_each(|(got, rest)| got.extend(rest));
        // The last token alone, after a prefix that is there already.
        let wanted = [LogitRows::LastHidden, LogitRows::Last, LogitRows::LastHidden];
        let last = pass(&mut harness, &mut sequences, &[1, 1, 1], &wanted);
        got.iter_mut().zip(last).for_each(|(got, last)| got.extend(last));
        assert_eq!(got, alone, "{name}");
    }
}

/// The numbers of a tensor in a fixture of type F32.
pub fn tensor(name: &str, tensor: &str) -> Vec<f32> {
    let file = std::fs::read(fixtures().join(name).join("model.safetensors")).unwrap();
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&file[8..8 + length]).unwrap();
    assert_eq!(header[tensor]["dtype"], "F32");
    let [start, end] = [0, 1].map(|at| header[tensor]["data_offsets"][at].as_u64().unwrap() as usize + 8 + length);
    file[start..end].chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

#[test]
fn logits_are_their_products_with_the_head() {
    for (name, head) in [("mistral_sliding", "lm_head.weight"), ("qwen3", "model.embed_tokens.weight")] {
        check_products(name, &tensor(name, head));
    }
}

fn check_products(name: &str, head: &[f32]) {
    let prompt = prompt(4, 20);
    let mut harness = Harness::load(name, KvDType::F32, 1, 2);
    let mut sequences = [harness.sequence(0, &prompt), harness.sequence(1, &prompt)];
    let rows = pass(&mut harness, &mut sequences, &[20, 20], &[LogitRows::AllHidden, LogitRows::All]);
    let numbers = |row: &[u32]| row.iter().map(|&bits| f32::from_bits(bits)).collect::<Vec<_>>();
    for (hidden, logits) in rows[0].iter().zip(&rows[1]) {
        let (hidden, logits) = (numbers(hidden), numbers(logits));
        for (row, logit) in head.chunks_exact(hidden.len()).zip(&logits) {
            let product: f64 = row.iter().zip(&hidden).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            assert!((product - f64::from(*logit)).abs() < 1e-4 * product.abs().max(1.0), "{product} {logit}");
        }
    }
}
