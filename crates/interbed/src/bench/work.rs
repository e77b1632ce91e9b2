//! The bytes that a pass must at least move, and the operations that it must compute.

use interbed_kernels::DType;
use interbed_model::config::Mixture;
use interbed_weights::{Access, Role};

use crate::model_dir::ModelDir;
use crate::options::LimitOptions;

/// Bytes to read and operations to do; a multiply-add counts two.
#[derive(Debug, Clone, Copy)]
pub struct Work {
    pub bytes: f64,
    pub flops: f64,
}

/// The sizes that the work of a model's passes follows from. Bytes are those of the tensors in the files, operations
/// come from the number of parameters.
pub struct ModelWork {
    /// The type of most of the bytes.
    pub weights: DType,
    /// Parameters of the whole model.
    pub parameters: u64,
    /// Bytes of all tensors, each counted once.
    pub weight_bytes: u64,
    /// Bytes of the tensors in the layers, without experts.
    layer_bytes: u64,
    /// Bytes of all experts, and their parameters.
    experts: (u64, u64),
    mixture: Option<Mixture>,
    /// Bytes of the final norm and the head.
    head_bytes: u64,
    /// Parameters that are neither embedding nor head, nor an expert's.
    layer_parameters: u64,
    /// Those of the layers' parameters that come after the last attention: only rows whose logits are read go through
    /// them.
    last_parameters: u64,
    head_parameters: u64,
    /// Keys and values of one token.
    kv_bytes: u64,
}

impl ModelWork {
    pub fn of(dir: &ModelDir, limits: &LimitOptions) -> Self {
        let config = &dir.config;
        // Checked when the configuration was read.
        let embedding = (config.vocab_size as u64).saturating_mul(config.hidden_size as u64);
        let ends = if config.tied_embeddings { embedding } else { embedding.saturating_mul(2) };
        let attended = config.num_heads.saturating_mul(config.head_dim);
        let inner = match &config.mixture {
            Some(mixture) if mixture.layers.last() == Some(&true) => {
                mixture.chosen.saturating_mul(mixture.expert_width)
            }
            _ => config.intermediate_size,
        };
        let widths = attended.saturating_add(inner.saturating_mul(3));
        let last_parameters = widths.saturating_mul(config.hidden_size) as u64;
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
            parameters: config.num_parameters(),
            weight_bytes: layer_bytes
                + expert_bytes
                + head_bytes
                + if config.tied_embeddings { 0 } else { bytes_of(&[Role::Embedding]) },
            layer_bytes,
            experts: (expert_bytes, config.expert_parameters()),
            mixture: config.mixture.clone(),
            head_bytes,
            layer_parameters: config.num_parameters().saturating_sub(ends).saturating_sub(config.expert_parameters()),
            last_parameters,
            head_parameters: embedding,
            kv_bytes: dir.kv_layout(limits).token_bytes() as u64,
        }
    }

    /// Bytes of weights that a pass with logits goes through.
    pub fn swept_bytes(&self) -> u64 {
        self.layer_bytes + self.experts.0 + self.head_bytes
    }

    /// Bytes of experts that a pass of `tokens` tokens goes through, and their parameters for each token.
    fn of_experts(&self, tokens: usize) -> (f64, f64) {
        let share = |tokens| self.mixture.as_ref().map_or(0.0, |mixture| mixture.expected_share(tokens));
        let (bytes, parameters) = self.experts;
        (bytes as f64 * share(tokens), parameters as f64 * share(1))
    }

    /// One token of each of `batch` sequences, each with `context` tokens before and including it. Each token reads one
    /// row of the embedding, which is negligible.
    pub fn decode(&self, batch: usize, context: usize) -> Work {
        let kv = self.kv_bytes as f64 * context as f64 * batch as f64;
        let (expert_bytes, expert_parameters) = self.of_experts(batch);
        let parameters = (self.layer_parameters + self.head_parameters) as f64 + expert_parameters;
        Work {
            bytes: (self.layer_bytes + self.head_bytes) as f64 + expert_bytes + kv,
            flops: 2.0 * parameters * batch as f64,
        }
    }

    /// A prompt in chunks: each chunk reads the layers; only one row of each goes through the end of the last layer,
    /// and only that of the last chunk through the head.
    pub fn prefill(&self, tokens: usize, chunk: usize) -> Work {
        let passes = tokens.div_ceil(chunk.max(1));
        let (expert_bytes, expert_parameters) = self.of_experts(chunk.min(tokens));
        let all = self.layer_parameters as f64 + expert_parameters;
        let whole = (all - self.last_parameters as f64).max(0.0) * tokens as f64;
        let last = self.last_parameters as f64 * passes as f64;
        Work {
            bytes: (self.layer_bytes as f64 + expert_bytes) * passes as f64 + self.head_bytes as f64,
            flops: 2.0 * (whole + last + self.head_parameters as f64),
        }
    }
}
