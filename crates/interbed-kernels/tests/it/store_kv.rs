//! Tests writing to the KV cache: the rounded numbers, in the slots that block tables name, and nothing else.

use half::{bf16, f16};
use interbed_kernels::{AttentionSpan, KvDType, KvLayout, KvShape, Level, RopeStyle, Rotation, rope, rotate_and_store};
use proptest::prelude::*;

use crate::support::{Numbers, alike, bits, kernel_levels, pool, store, store_at};

/// A cache with one head and one token per block, so that a slot's bytes are easy to find.
fn layout(head_dim: usize, dtype: KvDType) -> KvLayout {
    alike(1, 1, head_dim, 1, dtype)
}

/// The slot of one head of one token.
fn slot_alone(dtype: KvDType, head: &[f32]) -> Vec<u8> {
    slots(&layout(head.len(), dtype), head).remove(0)
}

/// The slots of `values`, `[tokens, head_dim]`.
fn slots(layout: &KvLayout, values: &[f32]) -> Vec<Vec<u8>> {
    let layer = layout.layer(0);
    let tokens = values.len() / layer.head_dim();
    let table: Vec<u32> = (0..tokens as u32).collect();
    let mut blocks = vec![0xee; tokens * layout.block_bytes()];
    store(&layer, &mut blocks, &table, 0, values, values);
    let pairs = blocks.chunks(layer.slot_bytes()).collect::<Vec<_>>();
    // A rotation by zero still multiplies a neighbour by zero, which shows beside a number that is not finite.
    let alike = pairs.chunks(2).all(|pair| pair[0] == pair[1]);
    assert!(alike || values.iter().any(|value| !value.is_finite()), "keys and values are rounded alike");
    pairs.chunks(2).map(|pair| pair[1].to_vec()).collect()
}

/// What distinguishes the layers of a layout.
fn shapes() -> impl Strategy<Value = Vec<KvShape>> {
    let shape = (1usize..4, 1usize..24).prop_map(|(num_kv_heads, half)| KvShape { num_kv_heads, head_dim: 2 * half });
    proptest::collection::vec(shape, 1..5)
}

/// Floats of all kinds, by their bits.
fn any_float() -> impl Strategy<Value = f32> {
    prop_oneof![any::<u32>().prop_map(f32::from_bits), (-100.0f32..100.0)]
}

proptest! {
    #[test]
    fn plain_types_round_to_nearest(values in proptest::collection::vec(any_float(), 2..90)) {
        let head_dim = values.len() / 2 * 2;
        // A rotation by zero multiplies by 1 and subtracts 0, which is exact for finite numbers.
        let values: Vec<f32> = values[..head_dim].iter().map(|&v| if v.is_finite() { v + 0.0 } else { 1.0 }).collect();
        let f16s: Vec<u8> = values.iter().flat_map(|&value| f16::from_f32(value).to_ne_bytes()).collect();
        let bf16s: Vec<u8> = values.iter().flat_map(|&value| bf16::from_f32(value).to_ne_bytes()).collect();
        let f32s: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        for (dtype, want) in [(KvDType::F16, f16s), (KvDType::BF16, bf16s), (KvDType::F32, f32s)] {
            prop_assert_eq!(&slots(&layout(head_dim, dtype), &values)[0], &want);
        }
    }

    #[test]
    fn integers_are_within_half_a_step(
        half in 1usize..130, exponent in -126i32..120, shape in 0i32..12, seed in any::<u64>(),
    ) {
        let head_dim = 2 * half;
        // Some elements are far smaller than others; magnitudes range from the smallest normal number to near the
        // greatest.
        let values: Vec<f32> = Numbers(seed)
            .take(head_dim)
            .iter()
            .enumerate()
            .map(|(i, value)| value * 2f32.powi(exponent) * 0.5f32.powi(i as i32 % (shape + 1)))
            .collect();
        let slot = &slots(&layout(head_dim, KvDType::Q8), &values)[0];
        let (scales, integers) = slot.split_at(2 * head_dim.div_ceil(32));
        prop_assert_eq!(integers.len(), head_dim);
        for (group, values) in values.chunks(32).enumerate() {
            let scale = bf16::from_ne_bytes([scales[2 * group], scales[2 * group + 1]]).to_f64();
            let greatest = values.iter().fold(0.0f64, |greatest, &value| greatest.max(f64::from(value).abs()));
            // Rounded up to 8 bits, a scale is at most one part in 128 above the exact one, or it is the smallest bf16.
            let least = 2f64.powi(-133);
            prop_assert!(scale <= greatest / 127.0 * (1.0 + 1.0 / 128.0) + least, "{} {}", scale, greatest);
            for (d, &value) in values.iter().enumerate() {
                let integer = f64::from(integers[group * 32 + d].cast_signed());
                prop_assert!(integer.abs() <= 127.0);
                let apart = (integer * scale - f64::from(value)).abs();
                prop_assert!(apart <= scale * 0.500_01, "{} is kept as {}", value, integer * scale);
            }
        }
    }

    #[test]
    fn every_level_stores_the_same_bytes(
        half in 1usize..100, pairs in 0usize..100, dtype in 0usize..4, style in 0usize..2, seed in any::<u64>(),
    ) {
        let layout = alike(2, 3, 2 * half, 4, KvDType::ALL[dtype]);
        let style = [RopeStyle::Halves, RopeStyle::Neighbours][style];
        let mut numbers = Numbers(seed);
        let tokens = 11;
        let width = 3 * 2 * half;
        let (q, k, v) = (numbers.take(2 * tokens * width), numbers.take(tokens * width), numbers.take(tokens * width));
        // All of each head is rotated, or only its beginning.
        let pairs = pairs.min(half);
        let (cos, sin) = (numbers.take(tokens * pairs), numbers.take(tokens * pairs));
        // The block tables of the two sequences, the second's first.
        let tables = [4, 0, 2, 5, 1];
        let spans = [
            AttentionSpan::new(3, 5, 3..5),
            AttentionSpan::new(6, 6, 0..3),
        ];
        let results: Vec<_> = kernel_levels()
            .flat_map(|level| [1, 3].map(|threads| (level, threads)))
            .map(|(level, threads)| {
                let mut blocks = vec![0xee; 6 * layout.block_bytes()];
                let (mut q, mut k) = (q.clone(), k.clone());
                let rotation = Rotation { style, cos: &cos, sin: &sin };
                let pool = pool(threads);
                rotate_and_store(
                    &pool, level, &layout.layer(1), (&mut blocks[..]).into(), &spans, &tables, rotation, &mut q,
                    &mut k, &v,
                );
                (blocks, bits(&q), bits(&k))
            })
            .collect();
        prop_assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
        // Queries and keys equal the rotation of each token by itself.
        let (mut turned_q, mut turned_k) = (q.clone(), k.clone());
        for token in 0..tokens {
            let (cos, sin) = (&cos[token * pairs..][..pairs], &sin[token * pairs..][..pairs]);
            rope(&mut turned_q[2 * token * width..][..2 * width], 2 * half, style, cos, sin);
            rope(&mut turned_k[token * width..][..width], 2 * half, style, cos, sin);
        }
        prop_assert_eq!(&results[0].1, &bits(&turned_q));
        prop_assert_eq!(&results[0].2, &bits(&turned_k));
        // Every byte outside of the slots of these tokens in this layer is unchanged.
        let slots = 11 * layout.token_bytes() / 2;
        let untouched = results[0].0.iter().filter(|&&byte| byte == 0xee).count();
        prop_assert!(untouched >= results[0].0.len() - slots);
        let other_layer = results[0].0.chunks(layout.block_bytes()).all(|block| {
            block[..layout.block_bytes() / 2].iter().all(|&byte| byte == 0xee)
        });
        prop_assert!(other_layer);
        let unnamed = &results[0].0[3 * layout.block_bytes()..4 * layout.block_bytes()];
        prop_assert!(unnamed.iter().all(|&byte| byte == 0xee));
    }

    #[test]
    fn layers_of_any_shapes_do_not_touch_each_other(
        shapes in shapes(), dtype in 0usize..4, block_size in 1usize..9, first in 0usize..20, tokens in 1usize..20,
        level in proptest::sample::select(kernel_levels().collect::<Vec<_>>()), seed in any::<u64>(),
    ) {
        let dtype = KvDType::ALL[dtype];
        let layout = KvLayout::new(block_size, dtype, shapes.iter().copied());
        let mut numbers = Numbers(seed);
        // Every second block of the pool is this sequence's, the last one first; the others hold poison, and keep it.
        let blocks = (first + tokens).div_ceil(block_size) as u32;
            let mut table: Vec<u32> = (0..blocks).map(|block| 2 * block + 1).collect();
        table.reverse();
        let mut blocks = vec![0xee; (2 * table.len() + 1) * layout.block_bytes()];
        let mut expected = blocks.clone();
        let mut layers_start = 0;
        for (index, shape) in shapes.iter().enumerate() {
            let (heads, head_dim) = (shape.num_kv_heads, shape.head_dim);
            let slot_bytes = dtype.slot_bytes(head_dim);
            let row = heads * head_dim;
            let (k, v) = (numbers.take(tokens * row), numbers.take(tokens * row));
            store_at(level, &layout.layer(index), &mut blocks, &table, first, &k, &v);
            // By the documented layout of a block, `[layer, k|v, kv_head, slot, head_dim]`.
            for (is_value, values) in [(0, &k), (1, &v)] {
                for (at, head) in values.chunks(head_dim).enumerate() {
                    let (position, kv_head) = (first + at / heads, at % heads);
                    let slot = (is_value * heads + kv_head) * block_size + position % block_size;
                    let block = table[position / block_size] as usize * layout.block_bytes();
                    let start = block + layers_start + slot * slot_bytes;
                    expected[start..start + slot_bytes].copy_from_slice(&slot_alone(dtype, head));
                }
            }
            // Checked after each layer, so that no later layer hides the damage of an earlier one.
            prop_assert!(blocks == expected, "layer {}", index);
            layers_start += 2 * heads * block_size * slot_bytes;
        }
        prop_assert_eq!(layers_start, layout.block_bytes());
    }
}

#[test]
fn what_is_not_finite_stays_so_and_zeros_stay_zero() {
    for dtype in KvDType::ALL {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = vec![1.0; 40];
            values[35] = bad;
            let slot = &slots(&layout(40, dtype), &values)[0];
            let shown = match dtype {
                KvDType::F32 => !f32::from_ne_bytes([slot[140], slot[141], slot[142], slot[143]]).is_finite(),
                KvDType::F16 => !f16::from_ne_bytes([slot[70], slot[71]]).is_finite(),
                KvDType::BF16 => !bf16::from_ne_bytes([slot[70], slot[71]]).is_finite(),
                // The scale of the second group.
                KvDType::Q8 => bf16::from_ne_bytes([slot[2], slot[3]]).is_nan(),
            };
            assert!(shown, "{dtype} {bad}");
        }
        let zeros = &slots(&layout(40, dtype), &[0.0; 40])[0];
        assert!(zeros.iter().all(|&byte| byte == 0), "{dtype}");
    }
}

#[test]
fn tables_that_do_not_reach_or_leave_the_pool_are_refused_before_anything_is_written() {
    let layer = alike(1, 2, 8, 4, KvDType::F16).layer(0);
    let written = |table: std::ops::Range<u32>, tables: &[u32]| {
        let mut blocks = vec![0xee; 6 * layer.block_bytes()];
        let (mut q, mut k, v) = (vec![0.5; 10 * 8], vec![0.5; 10 * 16], vec![0.5; 10 * 16]);
        let (cos, sin) = (vec![0.0; 10 * 4], vec![1.0; 10 * 4]);
        let rotation = Rotation { style: RopeStyle::Halves, cos: &cos, sin: &sin };
        let spans = [AttentionSpan::new(3, 4, 0..2), AttentionSpan::new(7, 6, table)];
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let pool = pool(1);
            rotate_and_store(
                &pool,
                Level::detect(),
                &layer,
                (&mut blocks[..]).into(),
                &spans,
                tables,
                rotation,
                &mut q,
                &mut k,
                &v,
            );
        }));
        let untouched = blocks.iter().all(|&byte| byte == 0xee) && q.iter().chain(&k).all(|&number| number == 0.5);
        assert_eq!(outcome.is_err(), untouched);
        outcome.is_ok()
    };
    // Blocks before the first of these positions need not be in the pool.
    assert!(written(2..6, &[0, 5, 9, 4, 3, 2]));
    assert!(!written(2..5, &[0, 5, 9, 4, 3, 2]));
    assert!(!written(2..6, &[0, 5, 9, 4, 3]));
    assert!(!written(2..6, &[0, 5, 1, 4, 3, 6]));
}

#[test]
fn a_batch_without_tokens_is_nothing() {
    let layout = layout(8, KvDType::Q8);
    let rotation = Rotation { style: RopeStyle::Halves, cos: &[], sin: &[] };
    let spans = [AttentionSpan::new(0, 0, 0..0)];
    let (pool, level, layer, mut q, mut k) = (pool(2), Level::detect(), layout.layer(0), [], []);
    rotate_and_store(&pool, level, &layer, (&mut [][..]).into(), &spans, &[], rotation, &mut q, &mut k, &[]);
}
