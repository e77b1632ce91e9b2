//! Runs `interbed info`, which describes a model and the memory that it needs.

mod memory;
mod shape;

use anyhow::Result;
use clap::Args;
use interbed_device::Bytes;
use interbed_model::blueprint::{Blueprint, Mixture, RopeScaling};
use interbed_model::config::ModelConfig;
use interbed_model::tokenizer::{Tokenizer, TokenizerError};
use interbed_model::{HeadSource, end_tokens};
use interbed_plan::words::{grouped, short};
use serde_json::{Map, Value, json};

use crate::footprint::Footprint;
use crate::hub;
use crate::model_dir::ModelDir;
use crate::options::ModelOptions;
use crate::printable::print_answer;
use memory::Memory;

/// Show what a model is and what it needs, without loading it
///
/// Shows the minimum --memory and what several budgets would allow. Also shows which of these budgets cannot hold all
/// weights, so that weights would be streamed.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    interbed info                                  # the bundled model\n  \
    interbed info models/8b\n  \
    interbed info models/8b --memory 20G           # what this budget gives\n  \
    interbed info models/8b --memory 6G            # less than the weights: what would be streamed\n  \
    interbed info models/8b --max-model-len 8192   # what a shorter context needs\n  \
    interbed info llama-3-8b                       # a well-known shape, without weights\n  \
    interbed info models/8b --json | jq .memory")]
pub struct InfoArgs {
    #[command(flatten)]
    pub model: ModelOptions,

    /// Print one JSON object instead of the table
    #[arg(long)]
    pub json: bool,
}

/// Runs `interbed info`.
///
/// # Errors
/// Fails if the directory holds no supported model, or the options contradict the model.
pub fn run(args: InfoArgs) -> Result<()> {
    if let Some(name) = shape::named(args.model.model.as_deref()) {
        let (text, json) = shape::told(name, &args.model.limits)?;
        return Ok(print_answer(args.json, || json, || text)?);
    }
    let mut dir = hub::glance(args.model.model.as_deref(), &args.model.limits.hub)?;
    let tokenizer = match dir.tokenizer() {
        Ok(tokenizer) => Ok(tokenizer),
        // Without a tokenizer, everything else about the model can still be reported.
        Err(error) => match error.downcast_ref() {
            Some(TokenizerError::Missing { .. } | TokenizerError::NotInGguf { .. }) => Err(no_tokenizer(&dir)),
            Some(error @ TokenizerError::Unsupported { .. }) => Err(error.to_string()),
            _ => return Err(error),
        },
    };
    let template = dir.template()?;
    let has_template = template.is_some();
    dir.end_tokens = end_tokens(&dir.generation, &dir.config, tokenizer.as_ref().ok(), template.as_ref());
    let footprint = Footprint::of(tokenizer.as_ref().ok());
    let memory = Memory::of(&dir, &args.model, footprint)?;
    let json = || to_json(&dir, tokenizer.as_ref().ok(), has_template, &memory);
    let text = || table(&dir, tokenizer.as_ref().map_err(String::as_str), has_template, &memory);
    Ok(print_answer(args.json, json, text)?)
}

fn table(dir: &ModelDir, tokenizer: Result<&Tokenizer, &str>, has_template: bool, memory: &Memory) -> String {
    let config = &dir.config;
    let mut text = format!("{}\n", dir.path.display());
    let mut row = |name: &str, value: String| text.push_str(&format!("  {name:<14}{value}\n"));
    rows_of_config(config, &mut row);
    if let Some(mixture) = config.blueprint.mixture() {
        row("experts", format!("{} in all, of which a token needs {}", memory.experts, of_token(memory, mixture)));
    }
    let head = match dir.head {
        HeadSource::Own => "of its own",
        HeadSource::OwnDespiteTie => "of its own: it differs from the embedding, to which config.json ties it",
        HeadSource::Embedding => "tied to the embedding",
        HeadSource::ForEmbedding => "the embedding too: no other is stored",
    };
    row("head", head.into());
    row(
        "tokenizer",
        match tokenizer {
            Ok(tokenizer) => {
                let special = |token: Option<&str>| token.map_or_else(|| "none".into(), |token| format!("{token:?}"));
                format!(
                    "{} tokens, begin {}, end {}",
                    grouped(tokenizer.vocab_size() as u64),
                    special(tokenizer.bos_token()),
                    special(tokenizer.eos_token())
                )
            }
            Err(reason) => format!("none ({reason}): it cannot be run or served"),
        },
    );
    let ends: Vec<String> = dir.end_tokens.iter().map(u32::to_string).collect();
    row("ends at", if ends.is_empty() { "no token".into() } else { format!("token {}", ends.join(", ")) });
    row(
        "chat template",
        if has_template { "yes".into() } else { "none: for `interbed run`, not `interbed chat`".into() },
    );
    row("weights", format!("{} in {}, {}", dir.weight_bytes, types(dir), files(dir.catalog.stored_files().len())));
    row(
        "KV cache",
        format!(
            "{} a token in {}, {} for {} tokens",
            memory.kv_token,
            memory.kv_dtype,
            memory.kv_context,
            grouped(memory.context as u64)
        ),
    );
    row("scratch", memory.scratch.to_string());
    let (least, to_serve) = (flag(memory.least), flag(memory.least_to_serve));
    text.push_str(&format!(
        "\nIt needs --memory {least} or more, `interbed serve` {to_serve} or more. With `interbed run`:\n\n"
    ));
    text.push_str(&format!(
        "  {:>9}  {:>12}  {:>12}  {:>16}  {}\n",
        "--memory", "KV tokens", "context", "such sequences", "weights"
    ));
    for given in &memory.budgets {
        let weights = match given.streamed {
            Some(weights) => format!("streamed, about {weights} of them stay while KV is small"),
            None => "in memory".into(),
        };
        text.push_str(&format!(
            "  {:>9}  {:>12}  {:>12}  {:>16}  {weights}\n",
            flag(given.budget),
            grouped(given.kv_tokens as u64),
            grouped(given.context as u64),
            given.sequences
        ));
    }
    let streams_below = memory.budgets.iter().find_map(|given| given.streams_below);
    if let Some((limit, kv_tokens)) = streams_below {
        let (limit, kv_tokens) = (flag(Bytes(limit.0.next_multiple_of(1 << 20))), grouped(kv_tokens as u64));
        text.push_str(&format!(
            "\nFrom --memory {limit} on all weights stay in memory; with less they are streamed, which is slower, and \
             leave room for KV of up to {kv_tokens} tokens.\n"
        ));
    }
    text
}

/// Prints the rows that follow from the configuration alone.
fn rows_of_config(config: &ModelConfig, row: &mut dyn FnMut(&str, String)) {
    let blueprint = &config.blueprint;
    row("architecture", config.family.name.to_owned());
    let (parameters, active) = (blueprint.num_parameters(), blueprint.active_parameters());
    row("parameters", format!("{} ({})", short(parameters), grouped(parameters)));
    if let Some(mixture) = blueprint.mixture() {
        row("of a token", format!("{} ({})", short(active), grouped(active)));
        row("experts", experts(blueprint, mixture));
    }
    row("layers", blueprint.layers.len().to_string());
    row("hidden", format!("{}, feed-forward {}", blueprint.hidden_size, blueprint.inner_size()));
    if let Some(attention) = blueprint.attentions().next() {
        let keys = match attention.kv_heads == attention.heads {
            true => String::new(),
            false => format!(", {} of keys and values", attention.kv_heads),
        };
        row("heads", format!("{}{keys}, each {} wide", attention.heads, attention.key_width));
    }
    row("context", format!("{} tokens", grouped(blueprint.context as u64)));
    row("window", windows(blueprint));
    row("rope", rope(blueprint));
    row("vocabulary", format!("{} tokens", grouped(blueprint.vocab_size as u64)));
}

fn to_json(dir: &ModelDir, tokenizer: Option<&Tokenizer>, has_template: bool, memory: &Memory) -> Value {
    let blueprint = &dir.config.blueprint;
    let attention = blueprint.attentions().next();
    let files: Vec<Value> = dir
        .catalog
        .stored_files()
        .iter()
        .map(|file| json!({"path": file.path().display().to_string(), "bytes": file.len()}))
        .collect();
    let types: Map<String, Value> =
        dir.weight_types().into_iter().map(|(dtype, bytes)| (dtype.name().to_owned(), bytes.0.into())).collect();
    let tokenizer = tokenizer.map(|tokenizer| {
        json!({
            "vocab_size": tokenizer.vocab_size(),
            "bos_token": tokenizer.bos_token(),
            "eos_token": tokenizer.eos_token(),
        })
    });
    json!({
        "path": dir.path.display().to_string(),
        "name": dir.name(),
        "architecture": dir.config.family.name,
        "parameters": blueprint.num_parameters(),
        "active_parameters": blueprint.active_parameters(),
        "experts": blueprint.mixture().map(|mixture| json!({
            "layers": blueprint.mixtures().count(),
            "each_layer": mixture.experts,
            "each_token": mixture.chosen,
            "width": mixture.expert_width,
            "bytes": memory.experts.0,
            "token_bytes": of_token(memory, mixture).0,
            "shared_width": mixture.shared.map(|shared| shared.width),
        })),
        "layers": blueprint.layers.len(),
        "hidden_size": blueprint.hidden_size,
        "intermediate_size": blueprint.inner_size(),
        "heads": attention.map(|attention| attention.heads),
        "kv_heads": attention.map(|attention| attention.kv_heads),
        "head_dim": attention.map(|attention| attention.key_width),
        "context": blueprint.context,
        "sliding_windows": blueprint.windows(),
        "rope": rope_json(blueprint),
        "tied_head": blueprint.head.is_tied,
        "vocab_size": blueprint.vocab_size,
        "tokenizer": tokenizer,
        "eos_token_ids": dir.end_tokens,
        "chat_template": has_template,
        "format": match (dir.catalog.store(), dir.catalog.metadata()) {
            (Some(_), _) => "interbed",
            (None, Some(_)) => "gguf",
            (None, None) => "safetensors",
        },
        "weights": {
            "dtype": dir.weight_dtype().name(),
            "types": types,
            "bytes": dir.weight_bytes.0,
            "files": files,
        },
        "memory": memory_json(memory),
    })
}

/// Returns the bytes of the experts through which one token goes.
fn of_token(memory: &Memory, mixture: &Mixture) -> Bytes {
    Bytes(memory.experts.0 / mixture.experts as u64 * mixture.chosen as u64)
}

fn memory_json(memory: &Memory) -> Value {
    let budgets: Vec<Value> = memory
        .budgets
        .iter()
        .map(|given| {
            json!({
                "memory_bytes": given.budget.0,
                "kv_tokens": given.kv_tokens,
                "context": given.context,
                "sequences": given.sequences,
                "streamed_weights_bytes": given.streamed.map(|bytes| bytes.0),
            })
        })
        .collect();
    json!({
        "least_bytes": memory.least.0,
        "serve_least_bytes": memory.least_to_serve.0,
        "scratch_bytes": memory.scratch.0,
        "kv_dtype": memory.kv_dtype,
        "kv_bytes_per_token": memory.kv_token.0,
        "kv_bytes_per_context": memory.kv_context.0,
        "budgets": budgets,
    })
}

fn experts(blueprint: &Blueprint, mixture: &Mixture) -> String {
    let shared = mixture.shared.map_or(String::new(), |shared| format!(", and a shared one {} wide", shared.width));
    let layers = match blueprint.mixtures().count() {
        layers if layers == blueprint.layers.len() => "each layer".to_owned(),
        layers => format!("each of {layers} layers"),
    };
    let Mixture { experts, chosen, expert_width, .. } = mixture;
    format!("{experts} in {layers}, {chosen} for each token, each {expert_width} wide{shared}")
}

fn windows(blueprint: &Blueprint) -> String {
    let windows = blueprint.windows();
    let windowed = windows.iter().flatten().count();
    let Some(window) = windows.iter().flatten().max() else { return "none".into() };
    let window = grouped(*window as u64);
    if windowed == windows.len() {
        format!("{window} tokens")
    } else {
        format!("{window} tokens in {windowed} of {} layers", windows.len())
    }
}

fn rope(blueprint: &Blueprint) -> String {
    let parameters = rope_json(blueprint);
    let mut text = parameters["type"].as_str().unwrap_or_default().to_owned();
    let theta = blueprint.ropes[0].theta;
    text.push_str(&format!(", theta {theta}"));
    if let Some(factor) = parameters.get("factor") {
        text.push_str(&format!(", factor {factor}"));
    }
    if let Some(original) = parameters.get("original_max") {
        text.push_str(&format!(", made for {original} tokens"));
    }
    if blueprint.ropes[0].factors.is_some() {
        text.push_str(", with the file's own factors");
    }
    text
}

fn rope_json(blueprint: &Blueprint) -> Value {
    let rope = &blueprint.ropes[0];
    let (kind, factor, original) = match &rope.scaling {
        RopeScaling::Default => ("default", None, None),
        RopeScaling::Linear { factor } => ("linear", Some(*factor), None),
        RopeScaling::Dynamic { factor, original_max } => ("dynamic", Some(*factor), Some(*original_max)),
        RopeScaling::Yarn { factor, original_max, .. } => ("yarn", Some(*factor), Some(*original_max)),
        RopeScaling::Llama3 { factor, original_max, .. } => ("llama3", Some(*factor), Some(*original_max)),
        RopeScaling::LongRope { original_max, .. } => ("longrope", None, Some(*original_max)),
    };
    let mut parameters = Map::new();
    parameters.insert("type".into(), kind.into());
    parameters.insert("theta".into(), rope.theta.into());
    parameters.extend(rope.factors.as_ref().map(|factors| ("factors".into(), json!(factors))));
    parameters.extend(factor.map(|factor| ("factor".into(), factor.into())));
    parameters.extend(original.map(|original| ("original_max".into(), original.into())));
    Value::Object(parameters)
}

/// Returns a size as `--memory` accepts it, in the largest unit that divides it.
fn flag(size: Bytes) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 40, "T"), (1 << 30, "G"), (1 << 20, "M")];
    let whole = UNITS.iter().find(|(unit, _)| size.0 >= *unit && size.0.is_multiple_of(*unit));
    whole.map_or_else(|| size.0.to_string(), |(unit, name)| format!("{}{name}", size.0 / unit))
}

/// Returns text such as `Q4_K (1.2 GiB), Q6_K (320 MiB), F32 (1.1 MiB)`, or just the type if there is only one.
fn types(dir: &ModelDir) -> String {
    match dir.weight_types().as_slice() {
        [(dtype, _)] => dtype.to_string(),
        types => types.iter().map(|(dtype, bytes)| format!("{dtype} ({bytes})")).collect::<Vec<_>>().join(", "),
    }
}

/// Returns an error message that says where a tokenizer was expected.
fn no_tokenizer(dir: &ModelDir) -> String {
    let place = if dir.catalog.metadata().is_some() { "tokenizer.ggml.model" } else { "tokenizer.json" };
    format!("{place} is missing")
}

fn files(count: usize) -> String {
    if count == 1 { "1 file".into() } else { format!("{count} files") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_flags_take_them() {
        assert_eq!(["96M", "6G", "1025M", "5"], [96 << 20, 6 << 30, 1025 << 20, 5].map(|size| flag(Bytes(size)))[..]);
    }
}
