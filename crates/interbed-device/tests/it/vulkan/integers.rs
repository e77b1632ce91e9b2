//! Products in integers: each type against f64 over the activations as bytes, and against itself in other company.

use interbed_device::ProductArithmetic;

use super::*;

/// A device that computes products in integers, of up to so many rows of so many activations.
fn bench(gpu: &Arc<Gpu>, tokens: usize, product_cols: usize) -> Bench {
    let mut tensors = TensorArea::default();
    tensors.take(CAPACITY);
    let needs = PassNeeds { tensors, tokens, product_cols, ..PassNeeds::default() };
    let groups = BlockGroups::new(KvLayout::new(4, KvDType::F32, []), 0);
    let device = VulkanDevice::with_products(gpu, &needs, &groups, ProductArithmetic::Integer).unwrap();
    Bench { device, area: TensorArea::default(), last: None }
}

/// The types that are multiplied in integers, with numbers of columns that they can have.
fn quantised() -> impl Iterator<Item = (DType, [usize; 2])> {
    types().filter(|(dtype, _)| !dtype.is_plain() && !dtype.is_decoded())
}

/// What activations are worth after they have become bytes.
fn as_bytes(x: &[f32]) -> Vec<f64> {
    let of_block = |x: &[f32]| {
        let scale = x.iter().fold(0.0f32, |largest, x| largest.max(x.abs())) / 127.0;
        let worth = move |x: &f32| match scale < f32::MIN_POSITIVE {
            true => 0.0,
            false => f64::from((x * (1.0 / scale)).round_ties_even()) * f64::from(scale),
        };
        x.iter().map(worth).collect::<Vec<_>>()
    };
    x.chunks(32).flat_map(of_block).collect()
}

fn reference(x: &[f32], matrix: &[Vec<f32>], cols: usize) -> Vec<f64> {
    let product = |x: &[f64], row: &Vec<f32>| x.iter().zip(row).map(|(x, w)| x * f64::from(*w)).sum();
    let x = as_bytes(x);
    x.chunks(cols).flat_map(|x| matrix.iter().map(|row| product(x, row)).collect::<Vec<f64>>()).collect()
}

fn product(bench: &mut Bench, weights: &Weights, x: Tensor) -> Vec<f32> {
    let (rows, cols) = (weights.rows(), weights.cols());
    let out = bench.area.take(x.len() / cols * rows);
    let product = BandProduct { weights, rows: 0..rows, bias: None, out };
    bench.run(Command::Products { x, cols, products: &[product], gate: None });
    bench.get(out)
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

#[test]
fn integer_products_of_all_types_agree_with_the_reference() {
    let Some(gpu) = gpu() else { return };
    let mut numbers = Numbers(21);
    for (dtype, columns) in quantised() {
        let mut bench = bench(&gpu, 40, columns[1]);
        for (case, tokens) in [1, 2, 5, 9, 40].into_iter().enumerate() {
            bench.area = TensorArea::default();
            let (rows, cols) = (1 + numbers.below(50), columns[case % 2]);
            let (_, bytes) = random_weights(dtype, rows, cols, &mut numbers);
            // They begin anywhere that is even.
            let before = numbers.below(4) * 2;
            let shifted = [&vec![0; before][..], &bytes].concat();
            let mut buffer = HostBuffer::new_zeroed(shifted.len()).unwrap();
            buffer.as_mut_slice().copy_from_slice(&shifted);
            let placed = bench.device.place(&Arc::new(buffer)).unwrap();
            let weights = Weights::new(dtype, rows, cols, placed, before..shifted.len());
            let loudness = 2f32.powi(numbers.below(40) as i32 - 20);
            let x: Vec<f32> = numbers.take(tokens * cols).iter().map(|x| x * loudness).collect();
            let on_gpu = bench.tensor(&x);
            let got = product(&mut bench, &weights, on_gpu);
            let want = reference(&x, &widened(&weights, &bytes), cols);
            assert_close(&got, &want, 3e-6, &format!("{dtype}, [{rows}, {cols}], {tokens} tokens, {loudness}"));
        }
    }
}

#[test]
fn extremes_of_codes_and_scales_are_exact() {
    let Some(gpu) = gpu() else { return };
    for (dtype, _) in quantised() {
        let (rows, cols, tokens) = (3, 512, 5);
        let mut bench = bench(&gpu, tokens, cols);
        for fill in [0x00u8, 0x7f, 0x80, 0x81, 0xff] {
            let mut bytes = vec![fill; dtype.row_bytes(cols).unwrap() * rows];
            for block in bytes.chunks_mut(dtype.block_bytes()) {
                for &at in halves(dtype) {
                    block[at..at + 2].copy_from_slice(&f16::from_f32(0.5).to_le_bytes());
                }
                if dtype == DType::Mxfp4 {
                    block[0] = 127;
                }
                if dtype == DType::Q6K && fill == 0 {
                    // The largest integers of all: 256 products of -128, -32 and 127.
                    block[192..208].fill(0x80);
                }
            }
            let weights = bench.weights(dtype, rows, cols, &bytes, true);
            let matrix = widened(&weights, &bytes);
            for value in [127.0, -127.0, 1e-42, 0.0, 1e30] {
                bench.area = TensorArea::default();
                let x = vec![value; tokens * cols];
                let on_gpu = bench.tensor(&x);
                let got = product(&mut bench, &weights, on_gpu);
                assert_close(&got, &reference(&x, &matrix, cols), 1e-6, &format!("{dtype} {fill:#x} {value}"));
            }
        }
    }
}

#[test]
fn an_integer_product_is_the_same_alone_and_in_any_company() {
    let Some(gpu) = gpu() else { return };
    let mut numbers = Numbers(22);
    for (dtype, columns) in quantised() {
        let (rows, cols, all) = (19, columns[1], 41);
        let mut bench = bench(&gpu, all, cols);
        let (_, bytes) = random_weights(dtype, rows, cols, &mut numbers);
        let weights = bench.weights(dtype, rows, cols, &bytes, true);
        let x = bench.tensor(&numbers.take(all * cols));
        let together = bits(&product(&mut bench, &weights, x));
        for size in [1, 2, 3, 8, 16, 20] {
            let mut parts = Vec::new();
            for first in (0..all).step_by(size) {
                let x = x.part(first * cols..(first + size).min(all) * cols);
                parts.extend(bits(&product(&mut bench, &weights, x)));
            }
            assert!(parts == together, "{dtype}, {size} at a time");
        }
    }
}

#[test]
fn what_is_not_finite_shows_in_its_token_and_nowhere_else() {
    let Some(gpu) = gpu() else { return };
    let mut numbers = Numbers(23);
    for (dtype, columns) in quantised() {
        let (rows, cols, tokens) = (7, columns[1], 6);
        let mut bench = bench(&gpu, tokens, cols);
        let (_, bytes) = random_weights(dtype, rows, cols, &mut numbers);
        let weights = bench.weights(dtype, rows, cols, &bytes, true);
        let sound = numbers.take(tokens * cols);
        let x = bench.tensor(&sound);
        let want = product(&mut bench, &weights, x);
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut numbers = sound.clone();
            numbers[3 * cols + 77] = bad;
            // Written over what was there: the bytes of before must not be used.
            bench.set(x, &numbers);
            let got = product(&mut bench, &weights, x);
            for (token, (got, want)) in got.chunks(rows).zip(want.chunks(rows)).enumerate() {
                match token == 3 {
                    true => assert!(got.iter().all(|number| number.is_nan()), "{dtype} hides {bad}"),
                    false => assert_eq!(bits(got), bits(want), "{dtype}"),
                }
            }
        }
    }
}

#[test]
fn bands_of_one_command_and_of_many_share_activations_and_none_uses_those_of_before() {
    let Some(gpu) = gpu() else { return };
    let mut numbers = Numbers(24);
    let (rows, cols, tokens) = (24, 256, 9);
    let mut bench = bench(&gpu, tokens, cols);
    let of = |bench: &mut Bench, dtype, numbers: &mut Numbers| {
        let (dtype, bytes) = random_weights(dtype, rows, cols, numbers);
        let weights = bench.weights(dtype, rows, cols, &bytes, true);
        let matrix = widened(&weights, &bytes);
        (weights, matrix)
    };
    let all = [DType::Q4K, DType::F32, DType::Q8_0].map(|dtype| of(&mut bench, dtype, &mut numbers));
    let bias: Vec<f32> = numbers.take(rows);
    let bias_bytes: Vec<u8> = bias.iter().flat_map(|number| number.to_le_bytes()).collect();
    let bias_weights = bench.weights(DType::F32, 1, rows, &bias_bytes, true);
    let x = bench.tensor(&vec![0.0; tokens * cols]);
    let outs = [(); 3].map(|()| bench.area.take(tokens * rows));
    for _ in 0..3 {
        let values = numbers.take(tokens * cols);
        bench.set(x, &values);
        let products: Vec<_> = all
            .iter()
            .zip(outs)
            .map(|((weights, _), out)| BandProduct { weights, rows: 0..rows, bias: Some(&bias_weights), out })
            .collect();
        // Together, and then one more command over the same activations.
        bench.run(Command::Products { x, cols, products: &products, gate: None });
        let together = outs.map(|out| bench.get(out));
        bench.run(Command::Products { x, cols, products: &products[2..], gate: None });
        assert_eq!(bits(&bench.get(outs[2])), bits(&together[2]));
        for ((weights, matrix), got) in all.iter().zip(&together) {
            let mut want = match weights.dtype().is_plain() {
                true => {
                    let product = |x: &[f32], row: &Vec<f32>| -> f64 {
                        x.iter().zip(row).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum()
                    };
                    values
                        .chunks(cols)
                        .flat_map(|x| matrix.iter().map(|row| product(x, row)).collect::<Vec<_>>())
                        .collect()
                }
                false => reference(&values, matrix, cols),
            };
            want.iter_mut().zip(bias.iter().cycle()).for_each(|(want, bias)| *want += f64::from(*bias));
            assert_close(got, &want, 3e-6, &format!("{}", weights.dtype()));
        }
    }
}

#[test]
fn what_the_host_has_computed_becomes_bytes_anew() {
    let Some(gpu) = gpu() else { return };
    let mut numbers = Numbers(25);
    let (size, tokens) = (256, 3);
    let mut bench = bench(&gpu, tokens, size);
    let two = || Cpu::new(NonZeroUsize::new(2).unwrap());
    assert!(!bench.device.compute_on_host(two(), &[DType::Q8_0]).unwrap(), "the host has products in f32");
    assert!(bench.device.compute_on_host(two(), &[DType::F32]).unwrap());
    let (_, bytes) = random_weights(DType::Q8_0, size, size, &mut numbers);
    let quantised = bench.weights(DType::Q8_0, size, size, &bytes, true);
    let (_, plain) = random_weights(DType::F32, size, size, &mut numbers);
    let on_host = bench.weights(DType::F32, size, size, &plain, false);
    let (x, between) = (bench.tensor(&numbers.take(tokens * size)), bench.tensor(&numbers.take(tokens * size)));
    // What is in the tensor becomes bytes; then the host writes other numbers there.
    let before = product(&mut bench, &quantised, between);
    let products = [BandProduct { weights: &on_host, rows: 0..size, bias: None, out: between }];
    let command = Command::Products { x, cols: size, products: &products, gate: None };
    let waits: Vec<_> = bench.last.into_iter().collect();
    bench.last = Some(bench.device.submit(Queue::Host, &[command], &waits).unwrap());
    let got = product(&mut bench, &quantised, between);
    let values = bench.get(between);
    assert_ne!(bits(&before), bits(&got));
    assert_close(&got, &reference(&values, &widened(&quantised, &bytes), size), 3e-6, "of the host's results");
}
