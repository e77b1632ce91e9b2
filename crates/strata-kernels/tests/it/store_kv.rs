//! What goes into the cache: the numbers as rounded, in the slots that block tables name, and nothing else.

use half::{bf16, f16};
use proptest::prelude::*;
use strata_kernels::{AttentionSequence, KvDType, KvLayout, Level, RopeStyle, Rotation, rope, rotate_and_store};

use crate::support::{Numbers, bits, kernel_levels, pool, store};

/// A cache of one head and slots of one token, so that a slot's bytes are easy to find.
fn layout(head_dim: usize, dtype: KvDType) -> KvLayout {
    KvLayout { num_layers: 1, num_kv_heads: 1, head_dim, block_size: 1, dtype }
}

/// The slots of values that `values`, `[tokens, head_dim]`, become.
fn slots(layout: &KvLayout, values: &[f32]) -> Vec<Vec<u8>> {
    let tokens = values.len() / layout.head_dim;
    let table: Vec<u32> = (0..tokens as u32).collect();
    let mut blocks = vec![0xee; tokens * layout.block_bytes()];
    store(layout, &mut blocks, 0, &table, 0, values, values);
    let pairs = blocks.chunks(layout.slot_bytes()).collect::<Vec<_>>();
    // Turning by nothing still multiplies a neighbour by zero, which shows beside what is not finite.
    let alike = pairs.chunks(2).all(|pair| pair[0] == pair[1]);
    assert!(alike || values.iter().any(|value| !value.is_finite()), "keys and values are rounded alike");
    pairs.chunks(2).map(|pair| pair[1].to_vec()).collect()
}

/// Floats of all kinds, by their bits.
fn any_float() -> impl Strategy<Value = f32> {
    prop_oneof![any::<u32>().prop_map(f32::from_bits), (-100.0f32..100.0)]
}

proptest! {
    #[test]
    fn plain_types_round_to_nearest(values in proptest::collection::vec(any_float(), 2..90)) {
        let head_dim = values.len() / 2 * 2;
        // Turning by nothing multiplies by 1 and subtracts 0, which is exact but for what is not finite.
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
        // Some elements far smaller than others; magnitudes from the least normal number to near the greatest.
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
            // Rounded up to 8 bits, a scale is at most one part in 128 above the exact one, or the least bf16 there is.
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
    fn every_level_stores_the_same_bytes(half in 1usize..100, dtype in 0usize..4, style in 0usize..2, seed in any::<u64>()) {
        let layout = KvLayout {
            num_layers: 2, num_kv_heads: 3, head_dim: 2 * half, block_size: 4, dtype: KvDType::ALL[dtype],
        };
        let style = [RopeStyle::Halves, RopeStyle::Neighbours][style];
        let mut numbers = Numbers(seed);
        let tokens = 11;
        let width = 3 * layout.head_dim;
        let (q, k, v) = (numbers.take(2 * tokens * width), numbers.take(tokens * width), numbers.take(tokens * width));
        let (cos, sin) = (numbers.take(tokens * half), numbers.take(tokens * half));
        let tables: [&[u32]; 2] = [&[5, 1], &[4, 0, 2]];
        let sequence_at = |index: usize| AttentionSequence {
            first_position: [3, 6][index],
            tokens: [5, 6][index],
            block_table: tables[index],
        };
        let results: Vec<_> = kernel_levels()
            .flat_map(|level| [1, 3].map(|threads| (level, threads)))
            .map(|(level, threads)| {
                let mut blocks = vec![0xee; 6 * layout.block_bytes()];
                let (mut q, mut k) = (q.clone(), k.clone());
                let rotation = Rotation { style, cos: &cos, sin: &sin };
                let pool = pool(threads);
                rotate_and_store(
                    &pool, level, &layout, &mut blocks, 1, 2, sequence_at, rotation, &mut q, &mut k, &v,
                );
                (blocks, bits(&q), bits(&k))
            })
            .collect();
        prop_assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
        // Queries and keys are what rotating each token by itself gives.
        let (mut turned_q, mut turned_k) = (q.clone(), k.clone());
        for token in 0..tokens {
            let (cos, sin) = (&cos[token * half..][..half], &sin[token * half..][..half]);
            rope(&mut turned_q[2 * token * width..][..2 * width], style, cos, sin);
            rope(&mut turned_k[token * width..][..width], style, cos, sin);
        }
        prop_assert_eq!(&results[0].1, &bits(&turned_q));
        prop_assert_eq!(&results[0].2, &bits(&turned_k));
        // Every byte that is no slot of these tokens in this layer is as it was.
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
                // The second group's scale.
                KvDType::Q8 => bf16::from_ne_bytes([slot[2], slot[3]]).is_nan(),
            };
            assert!(shown, "{dtype} {bad}");
        }
        let zeros = &slots(&layout(40, dtype), &[0.0; 40])[0];
        assert!(zeros.iter().all(|&byte| byte == 0), "{dtype}");
    }
}

#[test]
fn a_batch_without_tokens_is_nothing() {
    let layout = layout(8, KvDType::Q8);
    let rotation = Rotation { style: RopeStyle::Halves, cos: &[], sin: &[] };
    let sequence_at = |_| AttentionSequence { first_position: 0, tokens: 0, block_table: &[] };
    let (mut q, mut k) = ([], []);
    rotate_and_store(&pool(2), Level::detect(), &layout, &mut [], 0, 1, sequence_at, rotation, &mut q, &mut k, &[]);
}
