//! Describes a well-known model shape, without weights, for `interbed info`.

use std::path::Path;

use anyhow::Result;
use interbed_device::Bytes;
use interbed_kernels::DType;
use interbed_model::preset_names;
use interbed_plan::plan::Subject;
use interbed_plan::words::grouped;
use serde_json::{Value, json};

use super::facts::Facts;
use super::{facts_of_config, flag};
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

/// The fields that are told of models alone.
const OF_MODELS: [&str; 5] = ["experts", "intermediate_size", "sliding_windows", "rope", "tied_head"];

/// Returns a description of the model shape `name`, as a table and as JSON.
///
/// # Errors
/// Fails if Interbed does not know the shape, or the options contradict the model.
pub fn told(name: &str, limits: &LimitOptions) -> Result<(String, Value)> {
    let of = |dtype: Option<DType>| Subject::imagined(Path::new(name), dtype);
    let Some(own) = of(None)? else { anyhow::bail!("{name} is no shape that Interbed knows") };
    let text = format!("{name} (a shape that Interbed knows, without weights)\n");
    let mut facts = Facts { text, ..Facts::default() };
    facts.field("name", name);
    facts_of_config(&own.config, Bytes(0), &mut facts);
    facts.fields.retain(|key, _| !OF_MODELS.contains(&key.as_str()));
    let context = grouped(own.config.blueprint.context as u64);
    let text = &mut facts.text;
    text.push_str(&format!("\n  {:<8}{:>12}{:>16}  {}\n", "", "weights", "KV a token", "--memory, at the least"));
    let (limits, mut types) = (limits.served(), Vec::new());
    for subject in std::iter::once(Ok(Some(own))).chain(QUANTISED.map(|dtype| of(Some(dtype)))) {
        let Some(subject) = subject? else { continue };
        let needs = needs_of(&subject, &subject.config, &limits, None)?;
        let (weights, kv_token) = (needs.within(Bytes(0)).weights, Bytes(needs.layout.token_bytes() as u64));
        let (dtype, least) = (subject.dtype, needs.least());
        let shown = [dtype.to_string(), weights.to_string(), kv_token.to_string()];
        text.push_str(&format!("  {:<8}{:>12}{:>16}  {}\n", shown[0], shown[1], shown[2], flag(least)));
        types.push(json!({
            "dtype": dtype.name(), "weight_bytes": weights.0, "kv_bytes_per_token": kv_token.0,
            "serve_least_bytes": least.0,
        }));
    }
    text.push_str(&format!(
        "\nThe least is that of `interbed serve`, with an estimate of what its process takes. With less memory than \
         the weights take, they are streamed; KV of the whole context is that of {context} tokens.\n\
         `interbed plan {name}` says how fast it would be here.\n"
    ));
    facts.field("types", types);
    Ok((facts.text, facts.fields.into()))
}
