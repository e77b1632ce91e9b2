//! Describes a well-known model shape, without weights, for `interbed info`.

use std::path::Path;

use anyhow::Result;
use interbed_device::Bytes;
use interbed_kernels::DType;
use interbed_model::preset_names;
use interbed_plan::plan::Subject;
use interbed_plan::words::grouped;
use serde_json::{Value, json};

use super::{flag, rows_of_config};
use crate::options::LimitOptions;
use crate::plan::needs_of;

/// The types of weights for which sizes are shown, besides the shape's own type.
const QUANTISED: [DType; 2] = [DType::Q8_0, DType::Q4K];

/// Returns `model` if it is the name of a model shape that Interbed knows, such as `llama-3-8b`. Returns `None` for
/// other names, or if a file or folder of that name exists.
pub fn named(model: Option<&Path>) -> Option<&'static str> {
    let model = model.filter(|model| !model.exists())?.to_str()?;
    preset_names().find(|name| *name == model)
}

/// A type in which the weights may be stored, with the memory that they take then.
struct Stored {
    dtype: DType,
    weights: Bytes,
    kv_token: Bytes,
    least: Bytes,
}

/// Returns a description of the model shape `name`, as a table and as JSON.
///
/// # Errors
/// Fails if Interbed does not know the shape, or the options contradict the model.
pub fn told(name: &str, limits: &LimitOptions) -> Result<(String, Value)> {
    let of = |dtype: Option<DType>| Subject::imagined(Path::new(name), dtype);
    let Some(own) = of(None)? else { anyhow::bail!("{name} is no shape that Interbed knows") };
    let config = own.config.clone();
    let mut stored = vec![stored(&own, limits)?];
    for dtype in QUANTISED {
        if let Some(subject) = of(Some(dtype))? {
            stored.push(self::stored(&subject, limits)?);
        }
    }
    let mut text = format!("{name} (a shape that Interbed knows, without weights)\n");
    rows_of_config(&config, &mut |name, value| text.push_str(&format!("  {name:<14}{value}\n")));
    let context = grouped(config.blueprint.context as u64);
    text.push_str(&format!("\n  {:<8}{:>12}{:>16}  {}\n", "", "weights", "KV a token", "--memory, at the least"));
    for Stored { dtype, weights, kv_token, least } in &stored {
        let (dtype, weights, kv_token) = (dtype.to_string(), weights.to_string(), kv_token.to_string());
        text.push_str(&format!("  {dtype:<8}{weights:>12}{kv_token:>16}  {}\n", flag(*least)));
    }
    text.push_str(&format!(
        "\nThe least is that of `interbed serve`, with an estimate of what its process takes. With less memory than \
         the weights take, they are streamed; KV of the whole context is that of {context} tokens.\n\
         `interbed plan {name}` says how fast it would be here.\n"
    ));
    let types: Vec<Value> = stored
        .iter()
        .map(|stored| {
            json!({
                "dtype": stored.dtype.name(),
                "weight_bytes": stored.weights.0,
                "kv_bytes_per_token": stored.kv_token.0,
                "serve_least_bytes": stored.least.0,
            })
        })
        .collect();
    let (blueprint, attention) = (&config.blueprint, config.blueprint.attentions().next());
    let json = json!({
        "name": name,
        "architecture": config.family.name,
        "parameters": blueprint.num_parameters(),
        "active_parameters": blueprint.active_parameters(),
        "layers": blueprint.layers.len(),
        "hidden_size": blueprint.hidden_size,
        "heads": attention.map(|attention| attention.heads),
        "kv_heads": attention.map(|attention| attention.kv_heads),
        "head_dim": attention.map(|attention| attention.key_width),
        "context": blueprint.context,
        "vocab_size": blueprint.vocab_size,
        "types": types,
    });
    Ok((text, json))
}

fn stored(subject: &Subject, limits: &LimitOptions) -> Result<Stored> {
    let limits = limits.served();
    let needs = needs_of(subject, &subject.config, &limits, None)?;
    let kv_token = Bytes(needs.layout.token_bytes() as u64);
    let weights = needs.within(Bytes(0)).weights;
    Ok(Stored { dtype: subject.dtype, weights, kv_token, least: needs.least() })
}
