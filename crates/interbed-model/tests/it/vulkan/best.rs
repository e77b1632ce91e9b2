//! Passes that give the best of each row instead of all of it.

use interbed_model::Logits;

use super::*;

#[test]
fn the_best_of_a_row_are_those_of_the_whole_row() {
    let Some(gpu) = gpu() else { return };
    let expected = expected("qwen2");
    let prompt = &expected.prompt;
    let whole = OnGpu::load(&gpu, "qwen2", KvDType::F32, true, prompt).logits(usize::MAX).pop().unwrap();
    let mut order: Vec<usize> = (0..whole.len()).collect();
    order.sort_by(|&a, &b| whole[b].total_cmp(&whole[a]).then(a.cmp(&b)));
    // All of them, where more are wanted than there are.
    for count in [1, 20, 65] {
        let mut model = OnGpu::load(&gpu, "qwen2", KvDType::F32, true, prompt);
        let table: Vec<u32> = (0..BLOCKS_PER_SEQUENCE as u32).collect();
        let batch = BatchSequence {
            tokens: prompt,
            first_position: 0,
            prompt_len: prompt.len(),
            below: 0,
            blocks: SequenceBlocks::Listed(&table),
            groups: &[],
            logits: LogitRows::Best(count),
        };
        let mut rows = Vec::new();
        let mut sink = |_, logits: Logits<'_>| match logits {
            Logits::Best(best) => rows.push(best.to_vec()),
            Logits::All(_) => panic!("a GPU copies no more than it must"),
        };
        model.model.forward(&mut model.device, &[batch], &mut sink).unwrap();
        let want: Vec<[f32; 2]> =
            order[..count.min(order.len())].iter().map(|&token| [token as f32, whole[token]]).collect();
        assert_eq!(rows, [want], "{count}");
    }
}

#[test]
fn who_wants_whole_rows_gets_them_beside_others() {
    let Some(gpu) = gpu() else { return };
    let prompt = expected("qwen2").prompt;
    let whole = OnGpu::load(&gpu, "qwen2", KvDType::F32, true, &prompt).logits(usize::MAX).pop().unwrap();
    let mut model = OnGpu::load(&gpu, "qwen2", KvDType::F32, true, &prompt);
    let tables = [0, 1].map(|half| {
        let each = BLOCKS_PER_SEQUENCE as u32 / 2;
        (half * each..(half + 1) * each).collect::<Vec<u32>>()
    });
    let batch =
        [(&tables[0], LogitRows::Best(3)), (&tables[1], LogitRows::Last)].map(|(table, logits)| BatchSequence {
            tokens: &prompt,
            first_position: 0,
            prompt_len: prompt.len(),
            below: 0,
            blocks: SequenceBlocks::Listed(table),
            groups: &[],
            logits,
        });
    let mut rows = Vec::new();
    let mut sink = |row: interbed_model::LogitRow, logits: Logits<'_>| rows.push((row.sequence, logits.all().to_vec()));
    model.model.forward(&mut model.device, &batch, &mut sink).unwrap();
    assert_eq!(rows, [(0, whole.clone()), (1, whole)]);
}
