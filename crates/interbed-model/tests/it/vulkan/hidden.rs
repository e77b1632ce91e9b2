//! Hidden states from a GPU: what its logits are made of, beside sequences that want logits.

use interbed_model::{GroupBlocks, LogitRow, Logits};

use super::*;
use crate::hidden::tensor;

#[test]
fn hidden_states_of_a_gpu_give_its_logits_and_do_not_depend_on_company() {
    let Some(gpu) = gpu() else { return };
    for (name, head) in [("mistral_sliding", "lm_head.weight"), ("qwen3", "model.embed_tokens.weight")] {
        let (head, prompt) = (tensor(name, head), expected(name).prompt);
        let rows_of = |wanted: &[LogitRows]| {
            let mut model = OnGpu::load(&gpu, name, KvDType::F32, true, &prompt);
            let each = (BLOCKS_PER_SEQUENCE / wanted.len()) as u32;
            let window = model.model.blocks().groups().get(1).map(|group| group.numbers().start as u32);
            let of_window = |index: u32| {
                let blocks = |first: u32| SequenceBlocks::From(first + index * each);
                window.map(|first| GroupBlocks::Window { first: 0, blocks: blocks(first) })
            };
            let groups: Vec<_> = (0..wanted.len() as u32).map(of_window).collect();
            let batch: Vec<_> = (0..)
                .zip(wanted)
                .zip(&groups)
                .map(|((index, &logits), groups)| BatchSequence {
                    tokens: &prompt,
                    first_position: 0,
                    prompt_len: prompt.len(),
                    below: 0,
                    blocks: SequenceBlocks::From(index * each),
                    groups: groups.as_slice(),
                    logits,
                })
                .collect();
            let mut rows = vec![Vec::new(); wanted.len()];
            let mut sink = |row: LogitRow, numbers: Logits<'_>| {
                if let Logits::All(numbers) = numbers {
                    rows[row.sequence].push(numbers.to_vec());
                }
            };
            model.model.forward(&mut model.device, &batch, &mut sink).unwrap();
            rows
        };
        let rows = rows_of(&[LogitRows::AllHidden, LogitRows::All]);
        assert_eq!((rows[0].len(), rows[1].len()), (prompt.len(), prompt.len()));
        for (hidden, logits) in rows[0].iter().zip(&rows[1]) {
            for (row, logit) in head.chunks_exact(hidden.len()).zip(logits) {
                let product: f64 = row.iter().zip(hidden).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                let apart = (product - f64::from(*logit)).abs();
                assert!(apart < 1e-4 * product.abs().max(1.0), "{name}: {product} {logit}");
            }
        }
        let last = rows[0].last().cloned();
        assert_eq!(rows_of(&[LogitRows::LastHidden])[0].last(), last.as_ref(), "{name}, alone");
        let beside = rows_of(&[LogitRows::Best(3), LogitRows::LastHidden]);
        assert_eq!(beside[1].last(), last.as_ref(), "{name}, beside one that wants the best logits");
    }
}
