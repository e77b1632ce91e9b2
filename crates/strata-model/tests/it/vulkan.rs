//! The forward pass on a GPU, or on a Vulkan driver that computes on the processor: the logits and tokens of
//! `transformers`, whose logits the processor's are compared with too. Where there is no Vulkan, these tests say that
//! they were left out; `STRATA_REQUIRE_VULKAN=1` makes that a failure.

use std::sync::Arc;

use strata_device::{Bytes, Device, Gpu, VulkanDevice};
use strata_kernels::KvDType;
use strata_model::config::ModelConfig;
use strata_model::{BatchSequence, LogitRows, Model, SequenceBlocks, layers};
use strata_weights::{Catalog, ResidentWeights};

use crate::harness::{BLOCK_SIZE, BLOCKS_PER_SEQUENCE, argmax, fixtures};
use crate::logits::{cases, distance, expected};

/// The first GPU that kernels run on, if there is any.
fn gpu() -> Option<Arc<Gpu>> {
    let found = Gpu::first(Bytes(1 << 30));
    match found {
        Ok(gpu) => Some(gpu),
        Err(why) if std::env::var_os("STRATA_REQUIRE_VULKAN").is_some() => panic!("{why}"),
        Err(why) => {
            eprintln!("left out: {why}");
            None
        }
    }
}

/// A model on a GPU, and one sequence.
struct OnGpu {
    model: Model,
    device: VulkanDevice,
    tokens: Vec<u32>,
    prompt_len: usize,
    computed: usize,
}

impl OnGpu {
    fn load(gpu: &Arc<Gpu>, name: &str, kv_dtype: KvDType, is_placed: bool, prompt: &[u32]) -> Self {
        let dir = fixtures().join(name);
        let config = ModelConfig::from_dir(&dir).unwrap();
        let catalog = Catalog::open(&dir).unwrap();
        let layout = Model::kv_layout(&config, BLOCK_SIZE, kv_dtype);
        let needs = Model::pass_needs(&config, 128, 128);
        let mut device = VulkanDevice::new(gpu, &needs, &layout, BLOCKS_PER_SEQUENCE).unwrap();
        let specs = layers::group_specs(&config);
        let weights = match is_placed {
            true => ResidentWeights::load_on(&mut device, &catalog, &specs, &mut |_, _| ()),
            false => ResidentWeights::load(&catalog, &specs, &mut |_, _| ()),
        };
        let model = Model::new(config, Box::new(weights.unwrap()), layout);
        Self { model, device, tokens: prompt.to_vec(), prompt_len: prompt.len(), computed: 0 }
    }

    /// The logits of all tokens that have not been computed, in passes of up to `chunk`.
    fn logits(&mut self, chunk: usize) -> Vec<Vec<f32>> {
        let table: Vec<u32> = (0..BLOCKS_PER_SEQUENCE as u32).rev().collect();
        let mut rows = Vec::new();
        while self.computed < self.tokens.len() {
            let end = self.tokens.len().min(self.computed.saturating_add(chunk));
            let batch = BatchSequence {
                tokens: &self.tokens[self.computed..end],
                first_position: self.computed,
                prompt_len: self.prompt_len,
                below: 0,
                blocks: SequenceBlocks::Listed(&table),
                logits: LogitRows::All,
            };
            let device: &mut dyn Device = &mut self.device;
            self.model.forward(device, &[batch], &mut |_, logits| rows.push(logits.to_vec())).unwrap();
            self.computed = end;
        }
        rows
    }

    /// Continues greedily by `count` tokens.
    fn greedy(&mut self, count: usize) -> Vec<u32> {
        for _ in 0..count {
            let last = self.logits(usize::MAX).pop().unwrap();
            self.tokens.push(argmax(&last));
        }
        self.tokens[self.prompt_len..].to_vec()
    }
}

#[test]
fn logits_on_a_gpu_agree_with_transformers() {
    let Some(gpu) = gpu() else { return };
    let mut failures = Vec::new();
    for name in cases() {
        let expected = expected(&name);
        let exact = |kind: &str| kind != "logits_bf16" && kind != "logits_f16";
        let (kind, want) = expected.logits.iter().find(|(kind, _)| exact(kind)).unwrap();
        // All at once by the kernels for many tokens, and a few at a time by those for few.
        for (chunk, is_placed) in [(usize::MAX, true), (5, true), (1, false)] {
            let mut model = OnGpu::load(&gpu, &name, KvDType::F32, is_placed, &expected.prompt);
            let apart = distance(&model.logits(chunk), want);
            println!("{name:24} {kind:20} {chunk:>20} {apart:.2e}");
            if apart.is_nan() || apart > 1e-5 {
                failures.push(format!("{name} {kind} by {chunk}: {apart:.2e}"));
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn sixty_four_greedy_tokens_on_a_gpu_are_those_of_transformers() {
    let Some(gpu) = gpu() else { return };
    for name in cases() {
        let expected = expected(&name);
        let greedy = OnGpu::load(&gpu, &name, KvDType::F32, true, &expected.prompt).greedy(64);
        assert_eq!(greedy, expected.greedy, "{name}");
    }
}

#[test]
fn a_smaller_cache_on_a_gpu_changes_logits_by_no_more_than_its_type_allows() {
    let Some(gpu) = gpu() else { return };
    for (name, kv_dtype, tolerance) in [
        ("llama3_bf16", KvDType::BF16, 2e-2),
        ("llama_f16", KvDType::F16, 2e-3),
        ("qwen3", KvDType::Q8, 4e-2),
        ("llama_head_dim_20", KvDType::Q8, 4e-2),
    ] {
        let expected = expected(name);
        let exact = OnGpu::load(&gpu, name, KvDType::F32, true, &expected.prompt).logits(usize::MAX).concat();
        let apart = distance(&OnGpu::load(&gpu, name, kv_dtype, true, &expected.prompt).logits(7), &exact);
        assert!(apart > 0.0 && apart < tolerance, "{name}: {apart}");
    }
}

#[test]
fn logits_on_a_gpu_are_the_same_in_chunks_to_the_bit() {
    let Some(gpu) = gpu() else { return };
    for (name, kv_dtype) in [
        ("qwen2", KvDType::F32),
        ("mistral_sliding", KvDType::F16),
        ("llama3_bf16", KvDType::BF16),
        ("llama_head_dim_20", KvDType::Q8),
    ] {
        let prompt = expected(name).prompt;
        let bits = |chunk| {
            let rows = OnGpu::load(&gpu, name, kv_dtype, true, &prompt).logits(chunk);
            rows.concat().iter().map(|logit| logit.to_bits()).collect::<Vec<_>>()
        };
        let whole = bits(usize::MAX);
        for chunk in [1, 3, 7] {
            assert!(bits(chunk) == whole, "{name} in chunks of {chunk}");
        }
    }
}
