//! `quantization_config`: which checkpoints of quantised weights are read.

use serde_json::Value;

use super::ConfigProblem;
use crate::keys::json::Fields;

/// Keys that change no answer: which matrices are quantised is seen in the files, and neither activations nor keys and
/// values are rounded, however a checkpoint's own code rounds them.
const OF_NO_CONSEQUENCE: [&str; 8] = [
    "activation_scheme",
    "dequantize",
    "ignored_layers",
    "kv_cache_scheme",
    "modules_to_convert",
    "modules_to_not_convert",
    "quant_method",
    "scale_fmt",
];

/// Refuses quantised weights other than FP8 with a scale for each 128 rows and columns, or for a whole matrix, and the
/// methods of `told_by_names`, where the weights' own names tell how they are stored.
pub(super) fn check_quantization(fields: &Fields<'_>, told_by_names: &[&str]) -> Result<(), ConfigProblem> {
    let Some(quantization) = fields.object("quantization_config", "quantization_config.")? else { return Ok(()) };
    let unsupported = |key: &str, value: &Value, hint| Err(quantization.unsupported(key, value, hint));
    let hint = "use a checkpoint in f32, f16 or bf16, or one in FP8 with quant_method fp8";
    match quantization.get("quant_method") {
        Some(method) if method == "fp8" => {}
        Some(Value::String(method)) if told_by_names.contains(&method.as_str()) => return Ok(()),
        Some(method) => return unsupported("quant_method", method, hint),
        None => return unsupported("quant_method", &Value::Null, hint),
    }
    for (key, value) in quantization.entries() {
        let is_read = match key.as_str() {
            // What is not set asks for nothing.
            _ if value.is_null() => true,
            "fmt" => value == "e4m3" || value == "float8_e4m3fn",
            "weight_block_size" => *value == Value::from(vec![128, 128]),
            key => OF_NO_CONSEQUENCE.contains(&key),
        };
        if !is_read {
            let hint = "FP8 weights are read as e4m3 with a weight_block_size of [128, 128] or null; use a checkpoint \
                        in bf16";
            return unsupported(key, value, hint);
        }
    }
    Ok(())
}
