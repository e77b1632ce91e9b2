//! Every kernel against plain arithmetic in f64, over random shapes and extreme numbers. Where there is no Vulkan,
//! these tests say that they were left out; `INTERBED_REQUIRE_VULKAN=1` makes that a failure.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};
use interbed_device::{
    BandProduct, BlockMemory, Bytes, Command, Cpu, Device, DeviceError, Gpu, GpuError, HostBuffer, KvFrame,
    KvSequences, PassNeeds, ProductArithmetic, Queue, Tensor, TensorArea, Token, Vulkan, VulkanDevice, Weights,
};
use interbed_kernels::{
    ATTENTION_STATE, Activation, AttentionLayer, AttentionSpan, BlockGroups, DType, KvDType, KvLayout, KvPlace,
    KvShape, RopeStyle, STRETCH, encode_row, join_scales, patches_of, rope,
};

mod attention;
mod figures;
mod integers;

/// Numbers that all tensors of a test have together.
const CAPACITY: usize = 1 << 20;

/// The first GPU that kernels run on, if there is any.
fn gpu() -> Option<Arc<Gpu>> {
    let found = Gpu::first(Bytes(1 << 30));
    match found {
        Ok(gpu) => Some(gpu),
        Err(why) if std::env::var_os("INTERBED_REQUIRE_VULKAN").is_some() => panic!("{why}"),
        Err(why) => {
            eprintln!("left out: {why}");
            None
        }
    }
}

/// Numbers in -1 .. 1 from a linear congruential generator.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }

    fn take(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.next()).collect()
    }

    fn below(&mut self, end: usize) -> usize {
        self.next();
        (self.0 >> 33) as usize % end
    }
}

/// A device, and the area of its tensors.
struct Bench {
    device: VulkanDevice,
    area: TensorArea,
    last: Option<Token>,
}

impl Bench {
    fn new(gpu: &Arc<Gpu>) -> Self {
        Self::with_kv(gpu, &KvLayout::new(4, KvDType::F32, []), 0)
    }

    fn with_kv(gpu: &Arc<Gpu>, layout: &KvLayout, blocks: usize) -> Self {
        let mut area = TensorArea::default();
        area.take(CAPACITY);
        Self::with_scratch(gpu, layout, blocks, area, 0)
    }

    /// With room for so many numbers of attention's parts.
    fn with_scratch(gpu: &Arc<Gpu>, layout: &KvLayout, blocks: usize, tensors: TensorArea, scratch: usize) -> Self {
        let needs = PassNeeds { tensors, attention_scratch: scratch, ..PassNeeds::default() };
        let device = VulkanDevice::new(gpu, &needs, &BlockGroups::new(layout.clone(), blocks)).unwrap();
        Self { device, area: TensorArea::default(), last: None }
    }

    /// A tensor of these numbers.
    fn tensor(&mut self, numbers: &[f32]) -> Tensor {
        let out = self.area.take(numbers.len());
        self.set(out, numbers);
        out
    }

    fn set(&mut self, out: Tensor, numbers: &[f32]) {
        let values = |to: &mut [f32]| to.copy_from_slice(numbers);
        let waits: Vec<_> = self.last.into_iter().collect();
        self.last = Some(self.device.submit(Queue::Upload, &[Command::Fill { out, values: &values }], &waits).unwrap());
    }

    fn run(&mut self, command: Command<'_>) {
        let waits: Vec<_> = self.last.into_iter().collect();
        self.last = Some(self.device.submit(Queue::Compute, &[command], &waits).unwrap());
    }

    fn get(&mut self, from: Tensor) -> Vec<f32> {
        let waits: Vec<_> = self.last.into_iter().collect();
        let token = self.device.submit(Queue::Download, &[Command::Download { from }], &waits).unwrap();
        self.device.complete(token).unwrap();
        self.device.downloaded(from).unwrap().to_vec()
    }

    /// Weights on the GPU, or on the host.
    fn weights(&mut self, dtype: DType, rows: usize, cols: usize, bytes: &[u8], on_gpu: bool) -> Weights {
        let mut buffer = HostBuffer::new_zeroed(bytes.len()).unwrap();
        buffer.as_mut_slice().copy_from_slice(bytes);
        let buffer = Arc::new(buffer);
        match on_gpu {
            true => Weights::new(dtype, rows, cols, self.device.place(&buffer).unwrap(), 0..bytes.len()),
            false => Weights::new(dtype, rows, cols, buffer, 0..bytes.len()),
        }
    }
}

fn assert_close(got: &[f32], want: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), want.len());
    let largest = want.iter().fold(1e-30f64, |largest, value| largest.max(value.abs()));
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((f64::from(*got) - want).abs() <= tolerance * largest, "{what}: [{i}] is {got}, not {want}");
    }
}

/// Where the half floats of a block are.
fn halves(dtype: DType) -> &'static [usize] {
    match dtype {
        DType::Q4_1 | DType::Q5_1 | DType::Q4K | DType::Q5K => &[0, 2],
        DType::Q2K => &[80, 82],
        DType::Q3K => &[108],
        DType::Q6K => &[208],
        DType::Mxfp4 => &[],
        _ => &[0],
    }
}

/// Rows of random weights, and what type they have: coded ones have room for their patches.
fn random_weights(dtype: DType, rows: usize, cols: usize, numbers: &mut Numbers) -> (DType, Vec<u8>) {
    let plain = |numbers: &mut Numbers| numbers.take(rows * cols);
    match dtype {
        DType::F32 => (dtype, plain(numbers).iter().flat_map(|number| number.to_le_bytes()).collect()),
        DType::F16 => (dtype, plain(numbers).iter().flat_map(|&n| f16::from_f32(n).to_le_bytes()).collect()),
        DType::BF16 => (dtype, plain(numbers).iter().flat_map(|&n| bf16::from_f32(n).to_le_bytes()).collect()),
        DType::Fp8 => {
            let mut bytes = vec![0; dtype.row_bytes(cols).unwrap() * rows];
            let codes = bytes.len() - rows * cols;
            // Every kind of code but that of NaN.
            bytes[codes..].fill_with(|| match (numbers.next() * 128.0) as i8 as u8 {
                code if code & 127 == 127 => 3,
                code => code,
            });
            let scales: Vec<f32> =
                (0..rows.div_ceil(128) * cols.div_ceil(128)).map(|_| numbers.next() / 448.0).collect();
            join_scales(&mut bytes, cols, 0, &scales);
            (dtype, bytes)
        }
        DType::CodedBf16 { .. } => {
            // Of many magnitudes, so that there are patches.
            let mut number = || numbers.next() * 2f32.powi((numbers.next().powi(3) * 12.0) as i32);
            let bits: Vec<u16> = (0..rows * cols).map(|_| bf16::from_f32(number()).to_bits()).collect();
            let patches = bits.chunks(cols).map(patches_of).max().unwrap() as u16 + 2;
            let dtype = DType::CodedBf16 { patches };
            let mut bytes = vec![0; dtype.row_bytes(cols).unwrap() * rows];
            for (row, out) in bits.chunks(cols).zip(bytes.chunks_mut(dtype.row_bytes(cols).unwrap())) {
                assert!(encode_row(row, patches, out));
            }
            (dtype, bytes)
        }
        _ => {
            let len = dtype.row_bytes(cols).unwrap() * rows;
            let mut bytes: Vec<u8> = (0..len).map(|_| (numbers.next() * 128.0) as i8 as u8).collect();
            for block in bytes.chunks_mut(dtype.block_bytes()) {
                for &at in halves(dtype) {
                    block[at..at + 2].copy_from_slice(&f16::from_f32(numbers.next() * 0.02).to_le_bytes());
                }
                if dtype == DType::Mxfp4 {
                    block[0] = 120 + (numbers.next() * 4.0) as i8 as u8 % 4;
                }
            }
            (dtype, bytes)
        }
    }
}

/// Whether GPUs have kernels for a type.
fn is_computed(dtype: &DType) -> bool {
    (interbed_device::DEVICE_KINDS[0].computes)(*dtype)
}

#[test]
fn types_without_kernels_are_known() {
    let others: Vec<_> = DType::ALL.into_iter().filter(|dtype| !is_computed(dtype)).map(DType::name).collect();
    assert_eq!(others, ["IQ4_XS", "IQ3_S", "IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S"]);
    assert!(is_computed(&DType::Fp8) && is_computed(&DType::CodedBf16 { patches: 3 }));
}

/// Every type that GPUs compute, with numbers of columns that it can have.
fn types() -> impl Iterator<Item = (DType, [usize; 2])> {
    let of = |dtype: DType| match dtype.block_len() {
        1 => [77, 200],
        32 => [32, 352],
        128 => [77, 400],
        block => [block, 3 * block],
    };
    let all = DType::ALL.into_iter().chain([DType::CodedBf16 { patches: 0 }, DType::Fp8]);
    all.filter(is_computed).map(move |dtype| (dtype, of(dtype)))
}

fn widened(weights: &Weights, bytes: &[u8]) -> Vec<Vec<f32>> {
    let matrix = interbed_kernels::Matrix::new(weights.dtype(), weights.rows(), weights.cols(), bytes);
    let row = |row| {
        let mut out = vec![f32::NAN; weights.cols()];
        matrix.widen_row(row, &mut out);
        out
    };
    (0..weights.rows()).map(row).collect()
}

#[test]
fn products_of_all_types_agree_with_the_reference() {
    let Some(gpu) = gpu() else { return };
    let mut numbers = Numbers(7);
    for (dtype, columns) in types() {
        let mut bench = Bench::new(&gpu);
        for (case, tokens) in [1, 2, 5, 8, 9, 70].into_iter().enumerate() {
            bench.area = TensorArea::default();
            let (rows, cols) = (1 + numbers.below(150), columns[case % 2]);
            let (dtype, bytes) = random_weights(dtype, rows, cols, &mut numbers);
            let weights = bench.weights(dtype, rows, cols, &bytes, case % 3 != 0);
            let numbers_of_x = numbers.take(tokens * cols);
            let bias_numbers = numbers.take(rows + 3);
            let (_, bias_bytes) = (0, bias_numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<_>>());
            let bias = bench.weights(DType::F32, 1, rows + 3, &bias_bytes, true);
            let x = bench.tensor(&numbers_of_x);
            // A band in the middle of a matrix: what is beside it stays as it is.
            let out = bench.tensor(&vec![5.0; tokens * (rows + 3)]);
            let with_bias = case % 2 == 0;
            let product = BandProduct { weights: &weights, rows: 2..rows + 2, bias: with_bias.then_some(&bias), out };
            bench.run(Command::Products { x, cols, products: &[product], gate: None });
            let got = bench.get(out);
            let matrix = widened(&weights, &bytes);
            let want: Vec<f64> = numbers_of_x
                .chunks(cols)
                .flat_map(|x| {
                    let row = |row: usize| {
                        let sum: f64 = x.iter().zip(&matrix[row]).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                        sum + if with_bias { f64::from(bias_numbers[row + 2]) } else { 0.0 }
                    };
                    [5.0; 2].into_iter().chain((0..rows).map(row)).chain([5.0]).collect::<Vec<_>>()
                })
                .collect();
            assert_close(&got, &want, 2e-6, &format!("{dtype}, [{rows}, {cols}], {tokens} tokens"));
        }
    }
}

#[test]
fn a_product_is_the_same_alone_and_in_any_company() {
    let Some(gpu) = gpu() else { return };
    let mut numbers = Numbers(11);
    for (dtype, columns) in types() {
        let mut bench = Bench::new(&gpu);
        let (rows, cols, all) = (67, columns[1], 41);
        let (dtype, bytes) = random_weights(dtype, rows, cols, &mut numbers);
        let weights = bench.weights(dtype, rows, cols, &bytes, true);
        let of_all = numbers.take(all * cols);
        let x = bench.tensor(&of_all);
        let mut product = |tokens: Range<usize>| {
            let out = bench.area.take(tokens.len() * rows);
            let product = BandProduct { weights: &weights, rows: 0..rows, bias: None, out };
            let x = x.part(tokens.start * cols..tokens.end * cols);
            bench.run(Command::Products { x, cols, products: &[product], gate: None });
            bench.get(out)
        };
        let together = product(0..all);
        for size in [1, 2, 3, 8, 16, 20] {
            let parts = (0..all).step_by(size).flat_map(|first| product(first..(first + size).min(all)));
            let parts: Vec<u32> = parts.map(f32::to_bits).collect();
            let same = parts.iter().zip(&together).all(|(part, whole)| *part == whole.to_bits());
            assert!(same, "{dtype}, {size} at a time");
        }
    }
}

#[test]
fn the_host_computes_products_to_the_bit_as_the_gpu_does() {
    let Some(gpu) = gpu() else { return };
    let mut numbers = Numbers(13);
    for (dtype, columns) in types() {
        let mut bench = Bench::new(&gpu);
        let cpu = Cpu::new(NonZeroUsize::new(2).unwrap());
        if !bench.device.compute_on_host(cpu, &[dtype]).unwrap() {
            assert!(matches!(dtype, DType::CodedBf16 { .. }), "{dtype}");
            continue;
        }
        for (case, tokens) in [1, 3, 20].into_iter().enumerate() {
            bench.area = TensorArea::default();
            let (rows, cols) = (2 + numbers.below(150), columns[case % 2]);
            let (dtype, bytes) = random_weights(dtype, rows, cols, &mut numbers);
            let numbers_of_x = numbers.take(tokens * cols);
            let bias: Vec<u8> = numbers.take(rows).iter().flat_map(|number| number.to_le_bytes()).collect();
            let x = bench.tensor(&numbers_of_x);
            let out = bench.area.take(tokens * rows);
            // All rows by the GPU, by the host, and some by either.
            let mut results = [rows, 0, rows / 2].into_iter().map(|by_gpu| {
                let row_bytes = bytes.len() / rows;
                let mut weights = |from: usize, to: usize, on_gpu: bool| {
                    bench.weights(dtype, to - from, cols, &bytes[from * row_bytes..to * row_bytes], on_gpu)
                };
                let sides = [weights(0, by_gpu, true), weights(by_gpu, rows, false)];
                let biases = [true, false].map(|on_gpu| bench.weights(DType::F32, 1, rows, &bias, on_gpu));
                bench.set(out, &vec![f32::NAN; tokens * rows]);
                let product = |side: usize, rows: Range<usize>| BandProduct {
                    weights: &sides[side],
                    rows,
                    bias: Some(&biases[side]),
                    out,
                };
                let waits: Vec<_> = bench.last.into_iter().collect();
                let mut host = None;
                if by_gpu < rows {
                    let products = [product(1, by_gpu..rows)];
                    let command = Command::Products { x, cols, products: &products, gate: None };
                    host = Some(bench.device.submit(Queue::Host, &[command], &waits).unwrap());
                }
                if by_gpu > 0 {
                    let products = [product(0, 0..by_gpu)];
                    let command = Command::Products { x, cols, products: &products, gate: None };
                    bench.device.submit(Queue::Compute, &[command], &waits).unwrap();
                }
                bench.last = Some(bench.device.submit(Queue::Compute, &[], host.as_slice()).unwrap());
                bench.get(out).iter().map(|number| number.to_bits()).collect::<Vec<_>>()
            });
            let by_gpu = results.next().unwrap();
            for (side, result) in results.enumerate() {
                assert_eq!(result, by_gpu, "{dtype}, [{rows}, {cols}], {tokens} tokens, {side}");
            }
        }
    }
}

#[test]
fn gates_agree_with_the_reference() {
    let Some(gpu) = gpu() else { return };
    let mut numbers = Numbers(8);
    let (rows, cols) = (37, 40);
    let clamped = |x: f64| {
        let x = x.min(7.0);
        x / (1.0 + (-1.702 * x).exp())
    };
    for (activation, function) in [
        (Activation::ClampedSwish, clamped as fn(f64) -> f64),
        (Activation::Silu, |x| x / (1.0 + (-x).exp())),
        (Activation::SquaredRelu, |x| x.max(0.0).powi(2)),
        (Activation::Sigmoid, |x| 1.0 / (1.0 + (-x).exp())),
        (Activation::Gelu, |x| 0.5 * x * (1.0 + libm::erf(x * std::f64::consts::FRAC_1_SQRT_2))),
        (Activation::GeluTanh, |x| {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        }),
    ] {
        for (tokens, loudness) in [(1, 1.0), (3, 30.0), (12, 1e4)] {
            let mut bench = Bench::new(&gpu);
            let [(dtype, gate), (_, up)] = [(); 2].map(|()| random_weights(DType::F32, rows, cols, &mut numbers));
            let [gates, ups] = [&gate, &up].map(|bytes| bench.weights(dtype, rows, cols, bytes, true));
            let x: Vec<f32> = numbers.take(tokens * cols).iter().map(|x| x * loudness).collect();
            let x_on_gpu = bench.tensor(&x);
            let outs = [(); 2].map(|()| bench.tensor(&vec![0.0; tokens * rows]));
            let products = [(&gates, outs[0]), (&ups, outs[1])].map(|(weights, out)| BandProduct {
                weights,
                rows: 0..rows,
                bias: None,
                out,
            });
            bench.run(Command::Products { x: x_on_gpu, cols, products: &products, gate: Some(activation) });
            let got = bench.get(outs[0]);
            let product = |x: &[f32], row: &[f32]| x.iter().zip(row).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            let (gate, up) = (widened(&gates, &gate), widened(&ups, &up));
            let other = |up: f64| if activation == Activation::ClampedSwish { up.clamp(-7.0, 7.0) + 1.0 } else { up };
            let want: Vec<f64> = x
                .chunks(cols)
                .flat_map(|x| {
                    (0..rows)
                        .map(|row| function(product(x, &gate[row])) * other(product(x, &up[row])))
                        .collect::<Vec<_>>()
                })
                .collect();
            assert_close(&got, &want, 5e-6, &format!("{activation:?}, {tokens} tokens"));
            if activation != Activation::ClampedSwish {
                bench.run(Command::Activate { x: x_on_gpu, activation });
                let want: Vec<f64> = x.iter().map(|&x| function(f64::from(x))).collect();
                assert_close(&bench.get(x_on_gpu), &want, 5e-6, &format!("{activation:?} without a gate"));
            }
        }
    }
}

#[test]
fn rows_of_all_types_are_gathered_to_the_bit() {
    let Some(gpu) = gpu() else { return };
    let mut numbers = Numbers(9);
    for (dtype, columns) in types() {
        let mut bench = Bench::new(&gpu);
        for (cols, on_gpu) in [(columns[0], true), (columns[1], true), (columns[1], false)] {
            let (dtype, bytes) = random_weights(dtype, 13, cols, &mut numbers);
            let table = bench.weights(dtype, 13, cols, &bytes, on_gpu);
            let out = bench.tensor(&vec![0.0; 4 * cols]);
            bench.run(Command::Gather { table: &table, rows: &[12, 0, 3, 12], multiplier: 2.0, out });
            let matrix = widened(&table, &bytes);
            let want: Vec<f32> = [12, 0, 3, 12].iter().flat_map(|&row: &usize| &matrix[row]).map(|v| v * 2.0).collect();
            let got = bench.get(out);
            // A fused multiply-add rounds once, where the processor rounds twice.
            let exact = matches!(dtype, DType::F32 | DType::F16 | DType::BF16 | DType::CodedBf16 { .. });
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                let same =
                    got.to_bits() == want.to_bits() || !exact && (got - want).abs() <= 1e-6 * want.abs().max(1e-3);
                assert!(same, "{dtype} of {cols}: [{i}] is {got}, not {want}");
            }
        }
    }
}

#[test]
fn norms_sums_and_moves_agree_with_the_reference() {
    let Some(gpu) = gpu() else { return };
    let mut numbers = Numbers(10);
    for (rows, cols, loudness) in [(1, 16, 1.0), (3, 200, 1e15), (7, 1000, 1e-12), (2, 129, 0.0)] {
        let mut bench = Bench::new(&gpu);
        let x: Vec<f32> = numbers.take(rows * cols).iter().map(|x| x * loudness).collect();
        let branch: Vec<f32> = numbers.take(rows * cols).iter().map(|x| x * loudness).collect();
        let weight = numbers.take(cols);
        let norm = |x: &[f64]| -> Vec<f64> {
            let row = |x: &[f64]| {
                let mean = x.iter().map(|x| x * x).sum::<f64>() / cols as f64;
                x.iter().zip(&weight).map(|(x, w)| x / (mean + 1e-6).sqrt() * (f64::from(*w) + 0.5)).collect::<Vec<_>>()
            };
            x.chunks(cols).flat_map(row).collect()
        };
        let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        let bytes: Vec<u8> = weight.iter().flat_map(|w| w.to_le_bytes()).collect();
        let weights = bench.weights(DType::F32, 1, cols, &bytes, true);
        let [x_at, branch_at] = [&x, &branch].map(|numbers| bench.tensor(numbers));
        let out = bench.tensor(&vec![0.0; rows * cols]);
        bench.run(Command::Norm { x: x_at, weight: &weights, offset: 0.5, epsilon: 1e-6, out });
        assert_close(&bench.get(out), &norm(&wide(&x)), 2e-6, "norm");
        let sum: Vec<f64> = x.iter().zip(&branch).map(|(x, b)| f64::from(*x) + 0.5 * f64::from(*b)).collect();
        let (weight_of, weight, offset, epsilon) = (&weight, &weights, 0.5, 1e-6);
        let command = Command::AddAndNorm { sum: x_at, branch: branch_at, scale: 0.5, weight, offset, epsilon, out };
        bench.run(command);
        assert_close(&bench.get(x_at), &sum, 1e-6, "sum");
        assert_close(&bench.get(out), &norm(&sum), 2e-6, "norm of a sum");
        bench.run(Command::Norm { x: x_at, weight: &weights, offset: 0.5, epsilon: 1e-6, out: x_at });
        assert_close(&bench.get(x_at), &norm(&sum), 2e-6, "norm in place");
        // Rows take two weights in turns.
        let both = bench.weights(DType::F32, 2, cols, &[bytes.clone(), vec![0; bytes.len()]].concat(), true);
        bench.set(x_at, &x);
        bench.run(Command::Norm { x: x_at, weight: &both, offset: 0.5, epsilon: 1e-6, out: x_at });
        let normed = norm(&wide(&x));
        let turns = normed.iter().enumerate().map(|(at, number)| match at / cols % 2 {
            0 => *number,
            _ => number * 0.5 / (f64::from(weight_of[at % cols]) + 0.5),
        });
        assert_close(&bench.get(x_at), &turns.collect::<Vec<_>>(), 2e-6, "norm with weights in turns");
        bench.set(x_at, &x);
        bench.run(Command::Normalise { x: x_at, width: cols, epsilon: 1e-6, out });
        let plain = |x: &[f64]| {
            let mean = x.iter().map(|x| x * x).sum::<f64>() / cols as f64;
            x.iter().map(|x| x / (mean + 1e-6).sqrt()).collect::<Vec<_>>()
        };
        assert_close(&bench.get(out), &wide(&x).chunks(cols).flat_map(plain).collect::<Vec<_>>(), 2e-6, "plain norm");
        let factor = bench.weights(DType::F32, 1, 1, &(-1.5f32).to_le_bytes(), true);
        bench.run(Command::ScaleBy { x: x_at, by: &factor });
        assert_close(&bench.get(x_at), &wide(&x).iter().map(|x| -1.5 * x).collect::<Vec<_>>(), 1e-6, "scaled");
        bench.set(x_at, &x);
        bench.run(Command::Cap { x: x_at, bound: 3.0 });
        let capped: Vec<f64> = x.iter().map(|&x| 3.0 * (f64::from(x) / 3.0).tanh()).collect();
        assert_close(&bench.get(x_at), &capped, 2e-6, "capped");
        bench.set(x_at, &x);
        bench.run(Command::Add { sum: x_at, branch: branch_at, scale: 0.5 });
        bench.run(Command::Scale { x: x_at, by: -3.0 });
        let scaled: Vec<f64> = sum.iter().map(|x| x * -3.0).collect();
        assert_close(&bench.get(x_at), &scaled, 1e-6, "scaled sum");
        if rows > 2 {
            let kept = [1, rows as u32 - 1];
            bench.set(x_at, &x);
            bench.run(Command::KeepRows { tensor: x_at, width: cols, rows: &kept });
            let want: Vec<f32> = kept.iter().flat_map(|&row| &x[row as usize * cols..][..cols]).copied().collect();
            assert_eq!(bench.get(x_at.first(2 * cols)), want);
            bench.set(x_at, &x);
            let places: Vec<u32> = (0..2 * rows as u32).map(|term| term * 3 % rows as u32).collect();
            let factors = Numbers(5).take(2 * rows);
            bench.run(Command::Combine { from: x_at, width: cols, places: &places, factors: &factors, out });
            let term = |term: usize, column: usize| {
                f64::from(x[places[term] as usize * cols + column]) * f64::from(factors[term])
            };
            let sum = |at: usize| term(at / cols * 2, at % cols) + term(at / cols * 2 + 1, at % cols);
            assert_close(&bench.get(out), &(0..rows * cols).map(sum).collect::<Vec<_>>(), 1e-6, "combined");
        }
    }
}

#[test]
fn more_rows_than_workgroups_fit_beside_each_other_are_all_computed() {
    let Some(gpu) = gpu() else { return };
    let mut bench = Bench::new(&gpu);
    let (rows, cols) = (70_000, 4);
    let of_table = Numbers(12).take(100 * cols);
    let bytes: Vec<u8> = of_table.iter().flat_map(|number| number.to_le_bytes()).collect();
    let table = bench.weights(DType::F32, 100, cols, &bytes, true);
    let numbers: Vec<u32> = (0..rows as u32).map(|row| row * 7 % 100).collect();
    let [x, out] = [(); 2].map(|()| bench.area.take(rows * cols));
    bench.run(Command::Gather { table: &table, rows: &numbers, multiplier: 2.0, out: x });
    let gathered: Vec<f32> =
        numbers.iter().flat_map(|&row| &of_table[row as usize * cols..][..cols]).map(|number| number * 2.0).collect();
    assert!(bench.get(x) == gathered, "gathered");
    let ones: Vec<u8> = [1f32; 4].iter().flat_map(|number| number.to_le_bytes()).collect();
    let weight = bench.weights(DType::F32, 1, cols, &ones, true);
    bench.run(Command::Norm { x, weight: &weight, offset: 0.0, epsilon: 1e-6, out });
    let normed: Vec<f64> = gathered
        .chunks(cols)
        .flat_map(|row| {
            let mean = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / cols as f64;
            row.iter().map(move |&x| f64::from(x) / (mean + 1e-6).sqrt()).collect::<Vec<_>>()
        })
        .collect();
    assert_close(&bench.get(out), &normed, 2e-6, "norm");
    let columns = 0..cols;
    bench.run(Command::Gate { gate: x, up: out, width: cols, columns, activation: Activation::Silu });
    let gated = |(&x, &up): (&f32, &f64)| f64::from(x) / (1.0 + (-f64::from(x)).exp()) * up;
    let want: Vec<f64> = gathered.iter().zip(&normed).map(gated).collect();
    assert_close(&bench.get(x), &want, 5e-6, "gate");
}

#[test]
fn keys_and_values_of_more_tokens_than_workgroups_fit_beside_each_other_are_all_stored() {
    let Some(gpu) = gpu() else { return };
    let layout = KvLayout::new(1 << 15, KvDType::F32, [KvShape { num_kv_heads: 1, head_dim: 4 }]);
    let mut area = TensorArea::default();
    area.take(2 * CAPACITY);
    let (tokens, tables) = (70_000, [2, 0, 1]);
    let mut bench = Bench::with_scratch(&gpu, &layout, 3, area, 0);
    let of_k = Numbers(14).take(tokens * 4);
    let of_v: Vec<f32> = (0..tokens * 4).map(|number| number as f32).collect();
    let [q, k, v] = [&of_k, &of_k, &of_v].map(|numbers| bench.tensor(numbers));
    // Everything is turned by a right angle.
    let [cos, sin] = [0.0, 1.0].map(|number| bench.tensor(&vec![number; tokens * 2]));
    let spans = [AttentionSpan::new(0, tokens, 0..3)];
    let sequences = KvSequences { spans: &spans, tables: &tables };
    let layer = layout.layer(0);
    bench.run(Command::StoreKv { layer, sequences, style: RopeStyle::Halves, cos, sin, q, k, v });
    let turned: Vec<f32> = of_k.chunks(4).flat_map(|x| [-x[2], -x[3], x[0], x[1]]).collect();
    assert!(bench.get(q) == turned && bench.get(k) == turned, "turned");
    let mut held = [(); 3].map(|()| vec![0; layout.block_bytes()]);
    for (block, held) in held.iter_mut().enumerate() {
        bench.device.read_block(block as u32, 0, held).unwrap();
    }
    for token in 0..tokens {
        let (block, slot) = (&held[tables[token >> 15] as usize], token % (1 << 15) * layer.slot_bytes());
        let stored = |at: usize| bytemuck::cast_slice::<u8, f32>(&block[at..at + 16]).to_vec();
        assert_eq!(stored(layer.key_offset(0) + slot), turned[4 * token..4 * token + 4], "{token}");
        assert_eq!(stored(layer.key_offset(0) + layer.value_offset() + slot), of_v[4 * token..4 * token + 4]);
    }
}

#[test]
fn blocks_are_copied_one_after_the_other() {
    let Some(gpu) = gpu() else { return };
    let layout = KvLayout::new(1, KvDType::F32, [KvShape { num_kv_heads: 1, head_dim: 8 }]);
    let mut bench = Bench::with_kv(&gpu, &layout, 4);
    let (kv, tables) = (layout.layer(0), [0u32, 1, 2, 3]);
    let v: Vec<f32> = (0..32).map(|i| (i / 8) as f32).collect();
    let [q, k, v_at] = [(); 3].map(|()| bench.tensor(&v));
    let [cos, sin] = [1.0, 0.0].map(|number| bench.tensor(&[number; 16]));
    let spans = [AttentionSpan::new(0, 4, 0..4)];
    let sequences = KvSequences { spans: &spans, tables: &tables };
    bench.run(Command::StoreKv { layer: kv, sequences, style: RopeStyle::Halves, cos, sin, q, k, v: v_at });
    bench.run(Command::CopyBlocks { copies: &[(3, 0), (0, 2), (1, 3)] });
    // One position each, whose value attention then gives.
    let layer = AttentionLayer { kv, heads: 1, scale: 1.0, window: Some(1) };
    let (state, out) = (bench.tensor(&[0.0; 8]), bench.tensor(&[0.0; 32]));
    bench.run(Command::Attend { layer, frame: None, sequences, sinks: None, q, state, out });
    let got: Vec<f32> = bench.get(out).chunks(8).map(|row| row[0]).collect();
    assert_eq!(got, [3.0, 1.0, 3.0, 1.0]);
}

/// Blocks take the memory that weights have left, and leave it to weights again.
#[test]
fn blocks_come_and_leave() {
    let Some(_) = gpu() else { return };
    let vulkan = Vulkan::load().unwrap();
    let number = vulkan.gpus().unwrap().iter().find(|gpu| gpu.missing.is_none()).unwrap().number;
    let small = Gpu::open(&vulkan, number, Bytes(4 << 20)).unwrap();
    let layout = KvLayout::new(16, KvDType::F32, [KvShape { num_kv_heads: 2, head_dim: 64 }]);
    let (block, needs, products) = (layout.block_bytes(), PassNeeds::default(), ProductArithmetic::Float);
    let groups = BlockGroups::new(layout.clone(), 1000);
    let mut device = VulkanDevice::with_blocks(&small, &needs, &groups, BlockMemory::FromWeights, products).unwrap();
    let most = device.reserve_blocks(0, 1000).unwrap();
    assert!((3 << 20) / block <= most && most <= (4 << 20) / block, "{most} blocks of {block} bytes");
    let all: Vec<u32> = (0..most as u32).map(|number| number * 2).collect();
    device.resize_blocks(&all, &[]).unwrap();
    assert!(device.allocate(block).is_err_and(|error| error.is_full()));
    let (mut read, bytes) = (vec![0; layout.content_bytes()], |from: u32| move |to: &mut [u8]| to.fill(from as u8));
    let len = layout.content_bytes();
    for &number in &all {
        device.fill_block(number, 0..len, &mut bytes(number)).unwrap();
    }
    // Some move, and leave their old places.
    let moved = [(all[20], all[3]), (all[21], all[4])];
    device.submit(Queue::Compute, &[Command::CopyBlocks { copies: &moved }], &[]).unwrap();
    device.resize_blocks(&[], &all[20..]).unwrap();
    let weights: Vec<_> = std::iter::from_fn(|| device.allocate(block).ok()).collect();
    assert!(weights.len() + 20 + 16 > most && weights.len() + 20 <= most, "{} of {most}", weights.len());
    for &number in &all[..20] {
        let from = moved.iter().find(|(_, to)| *to == number).map_or(number, |&(from, _)| from);
        device.read_block(number, 0, &mut read).unwrap();
        assert!(read.iter().all(|&byte| byte == from as u8), "block {number}");
    }
    assert_eq!(device.reserve_blocks(0, 1).unwrap(), 0);
    drop(weights);
    assert_eq!(device.reserve_blocks(0, 3).unwrap(), 3);
    // The memory of one that leaves is that of one that comes.
    device.resize_blocks(&[999, 997, 995, 993], &[all[0]]).unwrap();
    device.fill_block(993, 0..len, &mut bytes(7)).unwrap();
    device.read_block(993, 0, &mut read).unwrap();
    assert!(read.iter().all(|&byte| byte == 7));
    assert!(matches!(device.resize_blocks(&[991], &[]), Err(DeviceError::Full)));
}

#[test]
fn what_does_not_fit_is_an_error_that_says_so() {
    let Some(_) = gpu() else { return };
    let vulkan = Vulkan::load().unwrap();
    let number = vulkan.gpus().unwrap().iter().find(|gpu| gpu.missing.is_none()).unwrap().number;
    let small = Gpu::open(&vulkan, number, Bytes(1 << 20)).unwrap();
    let of = |head_dim: usize| KvLayout::new(16, KvDType::F32, [KvShape { num_kv_heads: 1, head_dim }]);
    let groups = BlockGroups::new(of(64), 1000);
    let error = VulkanDevice::new(&small, &PassNeeds::default(), &groups).err().unwrap();
    assert!(matches!(error, GpuError::OutOfMemory { .. }), "{error}");
    assert_eq!(small.used()[0], Bytes(0), "what was taken before has been put back");
    let odd = BlockGroups::new(of(64), 1).with(of(6), 1);
    let error = VulkanDevice::new(&small, &PassNeeds::default(), &odd).err().unwrap();
    assert!(matches!(error, GpuError::Heads { head_dim: 6 }), "{error}");
    let error = Gpu::open(&vulkan, 1000, Bytes(1)).err().unwrap();
    assert!(error.to_string().contains("interbed devices"), "{error}");
}

#[test]
fn results_that_nobody_waited_for_change_nothing_later() {
    let Some(gpu) = gpu() else { return };
    let mut bench = Bench::new(&gpu);
    let cpu = Cpu::new(NonZeroUsize::MIN);
    assert!(bench.device.compute_on_host(cpu, &[DType::F32]).unwrap());
    let ones: Vec<u8> = [1f32; 8 * 64].iter().flat_map(|number| number.to_le_bytes()).collect();
    let weights = bench.weights(DType::F32, 64, 8, &ones, false);
    let x = bench.tensor(&[1.0; 8]);
    let outs = [bench.area.take(64), bench.area.take(64)];
    let multiply = |bench: &mut Bench, out: Tensor| {
        let products = [BandProduct { weights: &weights, rows: 0..64, bias: None, out }];
        let command = Command::Products { x, cols: 8, products: &products, gate: None };
        bench.device.submit(Queue::Host, &[command], &[bench.last.unwrap()]).unwrap()
    };
    // A pass that fails here, and another that has something else in that place.
    multiply(&mut bench, outs[0]);
    bench.set(outs[0], &[5.0; 64]);
    let waited_for = multiply(&mut bench, outs[1]);
    bench.last = Some(bench.device.submit(Queue::Compute, &[], &[bench.last.unwrap(), waited_for]).unwrap());
    assert_eq!(bench.get(outs[0]), [5.0; 64]);
    assert_eq!(bench.get(outs[1]), [8.0; 64]);
}

#[test]
fn the_host_reads_nothing_too_early() {
    let Some(gpu) = gpu() else { return };
    let mut bench = Bench::new(&gpu);
    let x = bench.tensor(&[1.0; 64]);
    let token = bench.device.submit(Queue::Download, &[Command::Download { from: x }], &[bench.last.unwrap()]).unwrap();
    assert!(bench.device.downloaded(x).is_err());
    bench.device.complete(token).unwrap();
    assert_eq!(bench.device.downloaded(x).unwrap(), [1.0; 64]);
}

#[test]
fn who_asks_whether_something_is_done_sees_its_end() {
    let Some(gpu) = gpu() else { return };
    let mut bench = Bench::new(&gpu);
    bench.tensor(&[1.0; 64]);
    let begin = std::time::Instant::now();
    while !bench.device.is_complete(bench.last.unwrap()).unwrap() {
        assert!(begin.elapsed().as_secs() < 60, "a copy of a few bytes is never done");
        std::thread::yield_now();
    }
}

#[test]
fn weights_can_be_replaced_while_others_are_computed_with() {
    let Some(gpu) = gpu() else { return };
    let mut bench = Bench::new(&gpu);
    let x = bench.tensor(&[3.0]);
    let memory = bench.device.allocate(8192).unwrap();
    let (mut used, mut shared) = (None, 0);
    let mut outs = Vec::new();
    // Two halves in turn, each copied once what used it before is done; the host waits for nothing.
    for round in 0..20usize {
        let half = round % 2 * 4096..(round % 2 + 1) * 4096;
        let mut bytes = HostBuffer::new_zeroed(4096 + 8).unwrap();
        bytes.as_mut_slice()[8..].copy_from_slice(&(round as f32).to_le_bytes().repeat(1024));
        let bytes = Arc::new(bytes);
        // Some of the memory is read where it lies, and is gone from the host's view once that is done.
        let in_place = round % 3 > 0 && bench.device.share(&bytes);
        shared += usize::from(in_place);
        let copy = Command::CopyWeights { from: &bytes, range: 8..8 + 4096, to: &memory, at: half.start };
        let copied = bench.device.submit(Queue::Upload, &[copy], used.as_slice()).unwrap();
        let weights = Weights::new(DType::F32, 1024, 1, memory.clone(), half);
        let out = bench.area.take(1024);
        let products = [BandProduct { weights: &weights, rows: 0..1024, bias: None, out }];
        let command = Command::Products { x, cols: 1, products: &products, gate: None };
        used = Some(bench.device.submit(Queue::Compute, &[command], &[copied]).unwrap());
        outs.push(out);
    }
    assert_eq!(shared > 0, gpu.info().reads_host_memory);
    bench.last = used;
    for (round, out) in outs.into_iter().enumerate() {
        assert!(bench.get(out).iter().all(|&number| number == 3.0 * round as f32), "round {round}");
    }
}

#[test]
fn blocks_come_to_the_host_and_go_back() {
    let Some(gpu) = gpu() else { return };
    let layout = KvLayout::new(2, KvDType::F16, [KvShape { num_kv_heads: 1, head_dim: 8 }]);
    let mut bench = Bench::with_kv(&gpu, &layout, 3);
    let bytes = |seed: u8| (0..layout.block_bytes()).map(|at| at as u8 ^ seed).collect::<Vec<_>>();
    for block in 0..3 {
        // In two parts.
        for part in [0..12, 12..layout.block_bytes()] {
            let filled = part.clone();
            let mut fill = |to: &mut [u8]| to.copy_from_slice(&bytes(block as u8)[filled.clone()]);
            bench.device.fill_block(block, part, &mut fill).unwrap();
        }
    }
    bench.run(Command::CopyBlocks { copies: &[(0, 2)] });
    let mut read = |block| {
        let mut into = vec![0; layout.block_bytes()];
        bench.device.read_block(block, 0, &mut into).unwrap();
        into
    };
    assert_eq!([read(0), read(1), read(2)], [bytes(0), bytes(1), bytes(0)]);
}
