//! The bytes that a pass must read, and the operations that it must compute.

use interbed_kernels::DType;
use interbed_kv::TailConfig;
use interbed_model::blueprint::{Mixture, Part};
use interbed_weights::{Access, Role};

use crate::model_dir::ModelDir;
use crate::options::LimitOptions;
use crate::tails;

/// The number of bytes to read and of operations to compute. A multiply-add counts as two operations.
#[derive(Debug, Clone, Copy)]
pub struct Work {
    pub bytes: f64,
    pub flops: f64,
}

/// The sizes of a model that determine the work of its forward passes. Bytes are those of the tensors in the model's
/// files. Operations follow from the number of parameters.
pub struct ModelWork {
    /// The type of most weights.
    pub weights: DType,
    /// The number of parameters of the whole model.
    pub parameters: u64,
    /// The number of bytes of all tensors, each counted once.
    pub weight_bytes: u64,
    /// The number of bytes of the layers' tensors, without experts.
    layer_bytes: u64,
    /// The number of bytes of all experts, and the number of their parameters.
    experts: (u64, u64),
    mixture: Option<Mixture>,
    /// The number of bytes of the final norm and the head.
    head_bytes: u64,
    /// The number of parameters, without embedding, head and experts.
    layer_parameters: u64,
    /// The number of the last layer's parameters after its attention. Only rows whose logits are read use them.
    last_parameters: u64,
    head_parameters: u64,
    /// The number of bytes of the keys and values of one token, in layers that keep those of all tokens.
    kv_bytes: u64,
    /// What layers keep besides the keys and values of all tokens. Each pass reads windows, and reads and writes
    /// states.
    tails: Vec<TailConfig>,
    /// The number of tokens in a block of keys and values.
    block_size: usize,
}

impl ModelWork {
    pub fn of(dir: &ModelDir, limits: &LimitOptions) -> Self {
        let blueprint = &dir.config.blueprint;
        // Checked when the configuration was read.
        let embedding = (blueprint.vocab_size as u64).saturating_mul(blueprint.hidden_size as u64);
        let ends = if blueprint.head.is_tied { embedding } else { embedding.saturating_mul(2) };
        let attended = blueprint.attentions().last().map_or(0, |last| last.heads.saturating_mul(last.value_width));
        let inner = blueprint.parts().fold(0, |inner, part| match part {
            Part::Dense(dense) => dense.width,
            Part::Mixture(mixture) => mixture.chosen.saturating_mul(mixture.expert_width),
            _ => inner,
        });
        let widths = attended.saturating_add(inner.saturating_mul(3));
        let last_parameters = widths.saturating_mul(blueprint.hidden_size) as u64;
        let bytes_of = |roles: &[Role]| {
            let groups = dir.specs.iter().filter(|group| roles.contains(&group.role));
            let entries = groups.flat_map(|group| &group.tensors).filter_map(|tensor| dir.catalog.get(&tensor.name));
            entries.fold(0u64, |bytes, entry| bytes.saturating_add(entry.bytes))
        };
        let of_experts = dir.specs.iter().flat_map(|group| &group.tensors);
        let of_experts = of_experts.filter(|tensor| matches!(tensor.access, Access::Expert { .. }));
        let entries = of_experts.filter_map(|tensor| dir.catalog.get(&tensor.name));
        let expert_bytes = entries.fold(0u64, |bytes, entry| bytes.saturating_add(entry.bytes));
        let layer_bytes = bytes_of(&[Role::Attention, Role::FeedForward]).saturating_sub(expert_bytes);
        let head_bytes = bytes_of(&[Role::Head]);
        Self {
            weights: dir.weight_dtype(),
            parameters: blueprint.num_parameters(),
            weight_bytes: layer_bytes
                + expert_bytes
                + head_bytes
                + if blueprint.head.is_tied { 0 } else { bytes_of(&[Role::Embedding]) },
            layer_bytes,
            experts: (expert_bytes, blueprint.expert_parameters()),
            mixture: blueprint.mixture().cloned(),
            head_bytes,
            layer_parameters: blueprint
                .num_parameters()
                .saturating_sub(ends)
                .saturating_sub(blueprint.expert_parameters()),
            last_parameters,
            head_parameters: embedding,
            kv_bytes: dir.kv_layout(limits).token_bytes() as u64,
            tails: tails::of(blueprint, &dir.kv_layout(limits)),
            block_size: dir.kv_layout(limits).block_size(),
        }
    }

    /// Returns the number of bytes of weights that a forward pass with logits can use: those of all layers, of all
    /// experts, and of the head.
    pub fn swept_bytes(&self) -> u64 {
        self.layer_bytes + self.experts.0 + self.head_bytes
    }

    /// Returns the bytes of experts that a pass of `tokens` tokens uses, and the number of parameters of experts that
    /// each token uses.
    fn of_experts(&self, tokens: usize) -> (f64, f64) {
        let share = |tokens| self.mixture.as_ref().map_or(0.0, |mixture| mixture.expected_share(tokens));
        let (bytes, parameters) = self.experts;
        (bytes as f64 * share(tokens), parameters as f64 * share(1))
    }

    /// Returns the work of decoding one token of each of `batch` sequences. Each token attends to `context` tokens,
    /// itself included. Reading one row of the embedding for each token is negligible and left out.
    pub fn decode(&self, batch: usize, context: usize) -> Work {
        let [windows, states] = tails::bytes_read(&self.tails, self.block_size, context);
        let kept = self.kv_bytes as f64 * context as f64 + windows as f64 + 2.0 * states as f64;
        let (expert_bytes, expert_parameters) = self.of_experts(batch);
        let parameters = (self.layer_parameters + self.head_parameters) as f64 + expert_parameters;
        Work {
            bytes: (self.layer_bytes + self.head_bytes) as f64 + expert_bytes + kept * batch as f64,
            flops: 2.0 * parameters * batch as f64,
        }
    }

    /// Returns the work of computing a prompt of `tokens` tokens in chunks of `chunk` tokens. Each chunk reads the
    /// weights of all layers. In the last layer, everything after attention is computed for only one token of each
    /// chunk. The head is computed for only the last token of the prompt.
    pub fn prefill(&self, tokens: usize, chunk: usize) -> Work {
        let passes = tokens.div_ceil(chunk.max(1));
        let (expert_bytes, expert_parameters) = self.of_experts(chunk.min(tokens));
        let all = self.layer_parameters as f64 + expert_parameters;
        let whole = (all - self.last_parameters as f64).max(0.0) * tokens as f64;
        let last = self.last_parameters as f64 * passes as f64;
        let [_, states] = tails::bytes_read(&self.tails, self.block_size, 0);
        Work {
            bytes: (self.layer_bytes as f64 + expert_bytes + 2.0 * states as f64) * passes as f64
                + self.head_bytes as f64,
            flops: 2.0 * (whole + last + self.head_parameters as f64),
        }
    }
}
