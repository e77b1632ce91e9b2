//! Attention, over the whole life of some sequences.

use super::*;

/// One layer's attention over the whole life of some sequences.
struct AttentionCase {
    dtype: KvDType,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    block_size: usize,
    window: Option<usize>,
    loudness: f32,
    /// By sequence: tokens that one pass computes.
    passes: Vec<Vec<usize>>,
}

/// Keys and values of one token, `[kv_heads, head_dim]` each, as the cache holds them.
type Held = [Vec<f32>; 2];

/// A number as a cache of this type holds it; `group` are those that share its scale.
fn rounded(dtype: KvDType, number: f32, group: &[f32]) -> f32 {
    match dtype {
        KvDType::F32 => number,
        KvDType::F16 => f16::from_f32(number).to_f32(),
        KvDType::BF16 => bf16::from_f32(number).to_f32(),
        KvDType::Q8 => {
            let greatest = group.iter().fold(0f32, |greatest, x| greatest.max(x.abs()));
            let scale = f32::from_bits(((greatest / 127.0).to_bits() + 0xffff) & 0xffff_0000);
            if greatest == 0.0 { 0.0 } else { (number / scale).round_ties_even() * scale }
        }
    }
}

impl AttentionCase {
    fn check(&self, gpu: &Arc<Gpu>, seed: u64) {
        let &Self { dtype, heads, kv_heads, head_dim, block_size, window, loudness, .. } = self;
        let shape = KvShape { num_kv_heads: kv_heads, head_dim };
        let layout = KvLayout::new(block_size, dtype, [shape, shape]);
        let layer = layout.layer(1);
        let sequences = self.passes[0].len();
        let tokens_of = |sequence: usize| self.passes.iter().map(|pass| pass[sequence]).sum::<usize>();
        let blocks_each = (0..sequences).map(tokens_of).max().unwrap().div_ceil(block_size);
        let mut bench = Bench::with_kv(gpu, &layout, blocks_each * sequences);
        let mut numbers = Numbers(seed);
        // Blocks of a sequence lie anywhere.
        let tables: Vec<u32> = (0..(blocks_each * sequences) as u32).rev().collect();
        let mut held: Vec<Vec<Held>> = vec![Vec::new(); sequences];
        let style = if seed.is_multiple_of(2) { RopeStyle::Halves } else { RopeStyle::Neighbours };
        for pass in &self.passes {
            bench.area = TensorArea::default();
            let tokens: usize = pass.iter().sum();
            let mut draw = |width: usize| numbers.take(tokens * width).iter().map(|x| x * loudness).collect::<Vec<_>>();
            let (mut q, mut k, v) = (draw(heads * head_dim), draw(kv_heads * head_dim), draw(kv_heads * head_dim));
            // All of each head is rotated, or only its beginning.
            let half = if seed.is_multiple_of(3) { head_dim / 4 } else { head_dim / 2 };
            let angles = numbers.take(tokens * half);
            let cos: Vec<f32> = angles.iter().map(|angle| angle.cos()).collect();
            let sin: Vec<f32> = angles.iter().map(|angle| angle.sin()).collect();
            let [q_at, k_at, v_at, cos_at, sin_at] = [&q, &k, &v, &cos, &sin].map(|numbers| bench.tensor(numbers));
            let out = bench.tensor(&vec![0.0; q.len()]);
            let state = bench.tensor(&vec![0.0; tokens * heads * ATTENTION_STATE]);
            let spans: Vec<_> = (0..sequences)
                .filter(|&sequence| pass[sequence] > 0)
                .map(|sequence| {
                    let table = (sequence * blocks_each) as u32..((sequence + 1) * blocks_each) as u32;
                    AttentionSpan::new(held[sequence].len(), pass[sequence], table)
                })
                .collect();
            let on_gpu = KvSequences { spans: &spans, tables: &tables };
            let store = Command::StoreKv {
                layer,
                sequences: on_gpu,
                style,
                cos: cos_at,
                sin: sin_at,
                q: q_at,
                k: k_at,
                v: v_at,
            };
            bench.run(store);
            let scale = 1.0 / (head_dim as f32).sqrt();
            let attention = AttentionLayer { kv: layer, heads, scale, window };
            let sinks: Vec<f32> = numbers.take(heads).iter().map(|x| x * 2.0 * loudness).collect();
            // Stored as checkpoints or as GGUF files have them, or none.
            let (sinks, stored) = match seed % 3 {
                0 => (vec![f32::NEG_INFINITY; heads], None),
                1 => {
                    let bytes: Vec<u8> = sinks.iter().flat_map(|sink| sink.to_le_bytes()).collect();
                    (sinks, Some(bench.weights(DType::F32, 1, heads, &bytes, true)))
                }
                _ => {
                    let halves: Vec<bf16> = sinks.iter().map(|&sink| bf16::from_f32(sink)).collect();
                    let bytes: Vec<u8> = halves.iter().flat_map(|half| half.to_le_bytes()).collect();
                    let stored = bench.weights(DType::BF16, 1, heads, &bytes, seed.is_multiple_of(2));
                    (halves.iter().map(|half| half.to_f32()).collect(), Some(stored))
                }
            };
            bench.run(Command::Attend {
                layer: attention,
                frame: None,
                sequences: on_gpu,
                sinks: stored.as_ref(),
                q: q_at,
                state,
                out,
            });
            let got = bench.get(out);

            for token in 0..tokens {
                let (cos, sin) = (&cos[token * half..][..half], &sin[token * half..][..half]);
                rope(&mut q[token * heads * head_dim..][..heads * head_dim], head_dim, style, cos, sin);
                rope(&mut k[token * kv_heads * head_dim..][..kv_heads * head_dim], head_dim, style, cos, sin);
            }
            let mut want = Vec::new();
            let mut row = 0;
            for (sequence, &count) in pass.iter().enumerate() {
                for _ in 0..count {
                    let width = kv_heads * head_dim;
                    let held_as = [&k, &v].map(|from| {
                        let heads = from[row * width..][..width].chunks(head_dim);
                        let groups = heads.flat_map(|head| head.chunks(KvDType::SCALED));
                        groups.flat_map(|group| group.iter().map(|&x| rounded(dtype, x, group))).collect()
                    });
                    held[sequence].push(held_as);
                    let own = &held[sequence];
                    let first = window.map_or(0, |window| own.len().saturating_sub(window));
                    for head in 0..heads {
                        let query = &q[(row * heads + head) * head_dim..][..head_dim];
                        let kv_head = head / (heads / kv_heads);
                        want.extend(attended(query, &own[first..], kv_head, scale, sinks[head]));
                    }
                    row += 1;
                }
            }
            let tolerance = if dtype == KvDType::Q8 { 2e-3 } else { 1e-5 } * f64::from(loudness.max(1.0));
            assert_close(&got, &want, tolerance, &format!("{dtype} {heads}/{kv_heads} heads of {head_dim}"));
        }
    }
}

/// Attention of one head to all of `held`, in f64.
fn attended(query: &[f32], held: &[Held], kv_head: usize, scale: f32, sink: f32) -> Vec<f64> {
    let head_dim = query.len();
    let of =
        |numbers: &[f32]| numbers[kv_head * head_dim..][..head_dim].iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    let score =
        |[key, _]: &Held| of(key).iter().zip(query).map(|(k, q)| k * f64::from(*q)).sum::<f64>() * f64::from(scale);
    let scores: Vec<f64> = held.iter().map(score).collect();
    let greatest = scores.iter().fold(f64::from(sink), |greatest, &score| greatest.max(score));
    let weights: Vec<f64> = scores.iter().map(|score| (score - greatest).exp()).collect();
    let total: f64 = weights.iter().sum::<f64>() + (f64::from(sink) - greatest).exp();
    let mut sums = vec![0.0; head_dim];
    for (weight, [_, value]) in weights.iter().zip(held) {
        sums.iter_mut().zip(of(value)).for_each(|(sum, v)| *sum += weight * v);
    }
    sums.iter().map(|sum| sum / total).collect()
}

#[test]
fn attention_agrees_with_the_reference() {
    let Some(gpu) = gpu() else { return };
    let shapes = [(1, 1, 8), (4, 2, 20), (6, 2, 64), (8, 1, 80), (4, 4, 128), (2, 1, 256), (40, 2, 32)];
    for (index, (heads, kv_heads, head_dim)) in shapes.into_iter().enumerate() {
        for (other, dtype) in KvDType::ALL.into_iter().enumerate() {
            let number = index * KvDType::ALL.len() + other;
            AttentionCase {
                dtype,
                heads,
                kv_heads,
                head_dim,
                block_size: [4, 16, 1, 32][number % 4],
                window: [None, Some(5), Some(70), None, Some(1)][number % 5],
                loudness: [1.0, 8.0, 0.01][number % 3],
                passes: vec![vec![3, 70], vec![40, 0], vec![1, 1], vec![2, 1]],
            }
            .check(&gpu, number as u64);
        }
    }
}

#[test]
fn attention_in_pieces_gives_what_it_gives_at_once() {
    let Some(gpu) = gpu() else { return };
    let (heads, block_size, length) = (4, 16, 2 * STRETCH + 37);
    let cases = [(KvDType::F32, None), (KvDType::F16, Some(STRETCH + 500)), (KvDType::Q8, Some(60))];
    // With room for parts, stretches are computed side by side where all are at hand.
    for ((dtype, window), scratch) in cases.into_iter().flat_map(|case| [(case, 0), (case, 1 << 20)]) {
        let layout = KvLayout::new(block_size, dtype, [KvShape { num_kv_heads: 2, head_dim: 16 }]);
        let kv = layout.layer(0);
        let blocks = length.div_ceil(block_size);
        let mut tensors = TensorArea::default();
        tensors.take(CAPACITY);
        let mut bench = Bench::with_scratch(&gpu, &layout, blocks, tensors, scratch);
        let mut numbers = Numbers(5);
        let tables: Vec<u32> = (0..blocks as u32).rev().collect();
        let q = numbers.take(length * heads * 16);
        let (k, v) = (numbers.take(length * 32), numbers.take(length * 32));
        let [k_at, v_at] = [&k, &v].map(|numbers| bench.tensor(numbers));
        let [cos, sin] = [1.0, 0.0].map(|number| bench.tensor(&vec![number; length * 8]));
        let all = bench.tensor(&q);
        let span = |tokens: Range<usize>| AttentionSpan::new(tokens.start, tokens.len(), 0..blocks as u32);
        let spans = [span(0..length)];
        let sequences = KvSequences { spans: &spans, tables: &tables };
        let style = RopeStyle::Halves;
        bench.run(Command::StoreKv { layer: kv, sequences, style, cos, sin, q: all, k: k_at, v: v_at });

        // The last tokens, at once and after the two stretches before them.
        let asked = 2 * STRETCH..length;
        let q_at = bench.tensor(&q[asked.start * heads * 16..]);
        let (out, pieces) = (bench.area.take(q_at.len()), bench.area.take(q_at.len()));
        let state = bench.area.take(asked.len() * heads * ATTENTION_STATE);
        let layer = AttentionLayer { kv, heads, scale: 0.25, window };
        let sinks: Vec<u8> = numbers.take(heads).iter().flat_map(|sink| (3.0 * sink).to_le_bytes()).collect();
        let sinks = &bench.weights(DType::F32, 1, heads, &sinks, true);
        let sinks = Some(sinks).filter(|_| dtype != KvDType::F16);
        let spans = [span(asked.clone())];
        let sequences = KvSequences { spans: &spans, tables: &tables };
        bench.run(Command::Attend { layer, frame: None, sequences, sinks, q: q_at, state, out });
        let want = bench.get(out);

        let mut host = vec![0u8; blocks * layout.block_bytes()];
        rotate_and_store_on_host(&kv, &mut host, &tables, length, &k, &v);
        let frames =
            (0..2).filter(|stretch| window.is_none_or(|window| asked.start + 1 < window + (stretch + 1) * STRETCH));
        for stretch in frames {
            let held = stretch * STRETCH..(stretch + 1) * STRETCH;
            let own = &tables[held.start / block_size..held.end / block_size];
            let bytes: Vec<u8> = own
                .iter()
                .flat_map(|&block| &host[block as usize * layout.block_bytes()..][..layout.block_bytes()])
                .copied()
                .collect();
            let len = bytes.len();
            let frame = KvFrame::new(Arc::new(bytes), len);
            let spans = [AttentionSpan { held, place: KvPlace::From(0), ..span(asked.clone()) }];
            let sequences = KvSequences { spans: &spans, tables: &[] };
            bench.run(Command::Attend { layer, frame: Some(&frame), sequences, sinks, q: q_at, state, out: pieces });
        }
        let first = (2 * STRETCH / block_size) as u32;
        let spans =
            [AttentionSpan { held: asked.clone(), place: (first..blocks as u32).into(), ..span(asked.clone()) }];
        let sequences = KvSequences { spans: &spans, tables: &tables };
        bench.run(Command::Attend { layer, frame: None, sequences, sinks, q: q_at, state, out: pieces });
        let bits = |numbers: &[f32]| numbers.iter().map(|number| number.to_bits()).collect::<Vec<_>>();
        assert!(bits(&bench.get(pieces)) == bits(&want), "{dtype}, window {window:?}");
    }
}

/// Writes keys and values as the processor does.
fn rotate_and_store_on_host(
    layer: &interbed_kernels::KvLayer,
    blocks: &mut [u8],
    tables: &[u32],
    length: usize,
    k: &[f32],
    v: &[f32],
) {
    let pool = interbed_kernels::Pool::new(std::num::NonZeroUsize::MIN);
    let spans = [AttentionSpan::new(0, length, 0..tables.len() as u32)];
    let half = layer.head_dim() / 2;
    let (cos, sin) = (vec![1.0; length * half], vec![0.0; length * half]);
    let rotation = interbed_kernels::Rotation { style: RopeStyle::Halves, cos: &cos, sin: &sin };
    let (mut q, mut k) = (vec![0.0; length * layer.head_dim()], k.to_vec());
    let level = interbed_kernels::Level::detect();
    interbed_kernels::rotate_and_store(&pool, level, layer, blocks.into(), &spans, tables, rotation, &mut q, &mut k, v);
}
