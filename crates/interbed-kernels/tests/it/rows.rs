use interbed_kernels::{
    Activation, Level, Matrix, RopeStyle, activate, add_and_norm, add_scaled, cap, combine_rows, gated_activation,
    gather_rows, rms_norm, rms_norm_groups, rms_norm_heads, rope,
};
use proptest::prelude::*;

use crate::support::{DTYPES, Numbers, assert_close, bits, encode, fused_levels, kernel_levels, pool};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn rms_norm_agrees_with_the_reference(
        cols in 1usize..100, rows in 1usize..9, scale in -15i32..15, seed in any::<u64>(),
    ) {
        let mut numbers = Numbers(seed);
        let x: Vec<f32> = numbers.take(rows * cols).iter().map(|x| x * 2f32.powi(scale)).collect();
        let weight = numbers.take(cols);
        let want: Vec<f64> = x
            .chunks(cols)
            .flat_map(|row| {
                let mean = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / cols as f64;
                let scale = 1.0 / (mean + 1e-5).sqrt();
                row.iter().zip(&weight).map(move |(&x, &w)| f64::from(x) * scale * f64::from(w)).collect::<Vec<_>>()
            })
            .collect();
        for level in Level::available() {
            let mut out = vec![0.0; x.len()];
            rms_norm(&pool(2), level, &x, &weight, 1e-5, &mut out);
            assert_close(&out, &want, 1e-5, level.name());
            let (branch, mut sum, mut added) = (Numbers(seed ^ 1).take(x.len()), x.clone(), x.clone());
            let mut fused = vec![0.0; x.len()];
            add_and_norm(&pool(3), level, &mut sum, &branch, 0.3, &weight, 1e-5, &mut fused);
            add_scaled(&pool(1), level, &mut added, &branch, 0.3);
            prop_assert_eq!(bits(&sum), bits(&added));
            let mut apart = vec![0.0; x.len()];
            rms_norm(&pool(1), level, &added, &weight, 1e-5, &mut apart);
            prop_assert_eq!(bits(&fused), bits(&apart));
            let mut in_place = x.clone();
            rms_norm_heads(&pool(3), level, &mut in_place, &weight, 1e-5);
            prop_assert_eq!(bits(&in_place), bits(&out));
            // Rows take their weights in turns.
            let both = [&weight[..], &x[..cols]].concat();
            in_place = x.clone();
            rms_norm_groups(&pool(3), level, &mut in_place, cols, &both, 1e-5);
            for (row, got) in in_place.chunks(cols).enumerate() {
                let mut own = x[row * cols..][..cols].to_vec();
                rms_norm_heads(&pool(1), level, &mut own, &both[row % 2 * cols..][..cols], 1e-5);
                prop_assert_eq!(bits(got), bits(&own));
            }
        }
    }

    #[test]
    fn activations_agree_with_the_reference(count in 1usize..10_000, range in 1u32..200, seed in any::<u64>()) {
        let mut numbers = Numbers(seed);
        let gate: Vec<f32> = numbers.take(count).iter().map(|x| x * range as f32).collect();
        let up: Vec<f32> = numbers.take(count).iter().map(|x| x * 9.0).collect();
        use Activation::{ClampedSwish, Gelu, GeluTanh, Sigmoid, Silu, SquaredRelu};
        for activation in [Silu, Gelu, GeluTanh, ClampedSwish, SquaredRelu, Sigmoid] {
            let want: Vec<f64> = gate
                .iter()
                .zip(&up)
                .map(|(&x, &up)| {
                    let (x, up) = match activation {
                        ClampedSwish => (f64::from(x).min(7.0), f64::from(up).clamp(-7.0, 7.0) + 1.0),
                        _ => (f64::from(x), f64::from(up)),
                    };
                    let share = match activation {
                        Silu => 1.0 / (1.0 + (-x).exp()),
                        ClampedSwish => 1.0 / (1.0 + (-1.702 * x).exp()),
                        SquaredRelu => x.max(0.0),
                        Sigmoid => return up / (1.0 + (-x).exp()),
                        Gelu => 0.5 * (1.0 + libm_erf(x / 2f64.sqrt())),
                        GeluTanh => {
                            0.5 * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
                        }
                    };
                    x * share * up
                })
                .collect();
            for level in Level::available() {
                let mut out = gate.clone();
                gated_activation(&pool(2), level, activation, &mut out, &up);
                assert_close(&out, &want, 1e-6, level.name());
                // Without a gate, the same formula is computed beside ones.
                let (mut alone, mut beside) = (gate.clone(), gate.clone());
                activate(&pool(2), level, activation, &mut alone);
                gated_activation(&pool(2), level, activation, &mut beside, &vec![1.0; gate.len()]);
                assert_eq!(bits(&alone), bits(&beside), "{activation:?}, {}", level.name());
            }
        }
    }
}

proptest! {
    #[test]
    fn caps_agree_with_the_reference(count in 1usize..300, power in -20i32..20, seed in any::<u64>()) {
        let x: Vec<f32> = Numbers(seed).take(count).iter().map(|x| x * 2f32.powi(power)).collect();
        for level in Level::available() {
            let mut capped = x.clone();
            cap(&pool(2), level, &mut capped, 30.0);
            for (x, capped) in x.iter().zip(&capped) {
                let want = 30.0 * (f64::from(*x) / 30.0).tanh();
                prop_assert!((f64::from(*capped) - want).abs() <= 1e-6 * want.abs(), "{x}: {capped} {}", level.name());
            }
        }
    }
}

#[test]
fn caps_keep_what_is_not_a_number_and_bound_the_rest() {
    for level in Level::available() {
        let mut x = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e30];
        cap(&pool(1), level, &mut x, 30.0);
        assert!(x[2].is_nan(), "{}", level.name());
        assert_eq!([x[0], x[1], x[3]], [30.0, -30.0, 30.0], "{}", level.name());
    }
}

#[test]
fn a_gate_that_is_not_a_number_shows() {
    for level in Level::available() {
        let mut gate = [f32::NAN; 17];
        gated_activation(&pool(1), level, Activation::Sigmoid, &mut gate, &[1.0; 17]);
        assert!(gate.iter().all(|gate| gate.is_nan()), "{}", level.name());
    }
}

/// The error function by its Taylor series, and ±1 where that converges badly.
fn libm_erf(x: f64) -> f64 {
    if x.abs() > 4.5 {
        return x.signum();
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..120 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

#[test]
fn levels_with_fused_multiply_add_agree_to_the_bit() {
    let mut numbers = Numbers(9);
    let (x, up, weight) = (numbers.take(5 * 77), numbers.take(5 * 77), numbers.take(77));
    let results: Vec<_> = fused_levels()
        .map(|level| {
            let mut normed = vec![0.0; x.len()];
            rms_norm(&pool(1), level, &x, &weight, 1e-6, &mut normed);
            gated_activation(&pool(1), level, Activation::Silu, &mut normed, &up);
            gated_activation(&pool(1), level, Activation::GeluTanh, &mut normed, &up);
            bits(&normed)
        })
        .collect();
    assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn rows_are_the_same_on_any_number_of_threads() {
    let mut numbers = Numbers(2);
    let (x, weight) = (numbers.take(2000 * 99), numbers.take(99));
    let on = |threads: usize| {
        let mut out = vec![0.0; x.len()];
        rms_norm(&pool(threads), Level::detect(), &x, &weight, 1e-6, &mut out);
        rms_norm_heads(&pool(threads), Level::detect(), &mut out, &weight, 1e-6);
        gated_activation(&pool(threads), Level::detect(), Activation::Silu, &mut out, &x);
        bits(&out)
    };
    assert_eq!(on(1), on(2));
    assert_eq!(on(1), on(3));
}

#[test]
fn rope_turns_each_pair_by_its_angle() {
    let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
    let (cos, sin) = ([0.0, 1.0], [1.0, 0.0]);
    let turned = |style| {
        let mut x = x;
        rope(&mut x, 4, style, &cos, &sin);
        x
    };
    // Pairs (0, 2) rotate by a quarter, pairs (1, 3) stay.
    assert_eq!(turned(RopeStyle::Halves), [-3.0, 2.0, 1.0, 4.0, -7.0, 6.0, 5.0, 8.0]);
    // Pairs (0, 1) rotate by a quarter, pairs (2, 3) stay.
    assert_eq!(turned(RopeStyle::Neighbours), [-2.0, 1.0, 3.0, 4.0, -6.0, 5.0, 7.0, 8.0]);
    // With one pair of the two, the rest stays: 0 rotates with 1, whatever the style.
    let mut partly = x;
    rope(&mut partly, 4, RopeStyle::Halves, &cos[..1], &sin[..1]);
    assert_eq!(partly, [-2.0, 1.0, 3.0, 4.0, -6.0, 5.0, 7.0, 8.0]);
    rope(&mut partly, 4, RopeStyle::Halves, &[], &[]);
    assert_eq!(partly, [-2.0, 1.0, 3.0, 4.0, -6.0, 5.0, 7.0, 8.0]);
}

#[test]
fn residual_branches_are_scaled() {
    for level in kernel_levels() {
        let mut sum = vec![1.0, 2.0];
        add_scaled(&pool(2), level, &mut sum, &[10.0, 20.0], 0.5);
        assert_eq!(sum, [6.0, 12.0]);
    }
}

#[test]
fn rows_are_combined_in_the_order_of_their_places() {
    let (width, rows) = (37, 5);
    let from = Numbers(8).take(6 * width);
    let places: Vec<u32> = (0..3 * rows as u32).map(|term| term * 5 % 6).collect();
    let factors = Numbers(9).take(3 * rows);
    let want: Vec<f32> = (0..rows * width)
        .map(|at| {
            let (row, column) = (at / width, at % width);
            (3 * row..3 * row + 3)
                .fold(0.0, |sum, term| sum + from[places[term] as usize * width + column] * factors[term])
        })
        .collect();
    for (level, threads) in kernel_levels().flat_map(|level| [(level, 1), (level, 3)]) {
        let mut out = vec![f32::NAN; rows * width];
        combine_rows(&pool(threads), level, &from, width, &places, &factors, &mut out);
        assert_eq!(bits(&out), bits(&want), "{}", level.name());
        // One place with a factor of one copies.
        combine_rows(&pool(threads), level, &from, width, &[3, 0, 1, 5, 2], &[1.0; 5], &mut out);
        assert_eq!(bits(&out[width..2 * width]), bits(&from[..width]));
    }
}

#[test]
fn rows_are_gathered_widened_and_scaled() {
    let values = Numbers(4).take(7 * 300);
    for dtype in DTYPES {
        let (bytes, values) = encode(dtype, &values);
        let rows: Vec<usize> = (0..500).map(|i| i * 5 % 7).collect();
        let mut out = vec![0.0; 500 * 300];
        gather_rows(&pool(3), Matrix::new(dtype, 7, 300, &bytes), |row| rows[row], 3.0, &mut out);
        let want = rows.iter().flat_map(|&row| values[row * 300..(row + 1) * 300].iter().map(|value| value * 3.0));
        assert_eq!(bits(&out), bits(&want.collect::<Vec<_>>()));
    }
}
