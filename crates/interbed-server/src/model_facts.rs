//! Defines the facts about a model that the server tells to clients.

use std::time::SystemTime;

/// Facts about a model from its files. The program that starts a server fills them in. Unknown facts are empty or 0.
#[derive(Debug, Clone, Default)]
pub struct ModelFacts {
    /// The format of the model's files: `gguf`, `safetensors` or `interbed`.
    pub format: &'static str,
    /// The model's architecture in lower case, such as `llama`.
    pub family: String,
    /// The type of most of the model's weights, such as `Q4_K`.
    pub quantization: String,
    /// The number of parameters.
    pub parameters: u64,
    /// The number of bytes of the weights.
    pub bytes: u64,
    /// The number of bytes of weights in the memory of a GPU.
    pub bytes_on_gpu: u64,
    /// A hash that identifies the model's files, as 64 hexadecimal digits.
    pub digest: String,
    /// The latest modification time of the model's files.
    pub modified: Option<SystemTime>,
    /// The number of decoder layers.
    pub layers: usize,
    /// The number of elements of a hidden state.
    pub hidden_size: usize,
    /// The inner width of a feed-forward network.
    pub feed_forward: usize,
    /// The number of query heads per attention layer.
    pub heads: usize,
    /// The number of key/value heads per attention layer.
    pub kv_heads: usize,
}

impl ModelFacts {
    /// Returns the number of parameters as a short text, such as `8.0B`.
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
