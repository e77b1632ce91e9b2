//! What is told of a model to clients that ask.

use std::time::SystemTime;

/// What a model is, as its files say. Whoever starts a server fills it in; what is not known is empty or 0.
#[derive(Debug, Clone, Default)]
pub struct ModelFacts {
    /// The form of its files: `gguf`, `safetensors` or `interbed`.
    pub format: &'static str,
    /// The architecture, in small letters: `llama`.
    pub family: String,
    /// The type of most of its weights: `Q4_K`.
    pub quantization: String,
    /// Elements of all its weights.
    pub parameters: u64,
    /// Bytes of its weights.
    pub bytes: u64,
    /// Bytes of them in the memory of a GPU.
    pub bytes_on_gpu: u64,
    /// A name of its content, 64 hexadecimal digits.
    pub digest: String,
    /// When the last of its files was written.
    pub modified: Option<SystemTime>,
    /// Layers of attention.
    pub layers: usize,
    /// Numbers of a hidden state.
    pub hidden_size: usize,
    /// Numbers within a feed-forward part.
    pub feed_forward: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
}

impl ModelFacts {
    /// The number of parameters, in short: `8.0B`.
    pub(crate) fn size(&self) -> String {
        let number = self.parameters as f64;
        match self.parameters {
            1_000_000_000.. => format!("{:.1}B", number / 1e9),
            1_000_000.. => format!("{:.2}M", number / 1e6),
            1_000.. => format!("{:.0}K", number / 1e3),
            few => few.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_told_in_short() {
        for (parameters, told) in
            [(8_030_261_248, "8.0B"), (494_032_768, "494.03M"), (2_770_176, "2.77M"), (9_400, "9K"), (7, "7")]
        {
            assert_eq!(ModelFacts { parameters, ..ModelFacts::default() }.size(), told);
        }
    }
}
