//! Runs `interbed info`, which describes a model and the memory that it needs.

mod facts;
mod memory;
mod shape;

use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use interbed_device::Bytes;
use interbed_io::RandomAccessFile;
use interbed_kernels::DType;
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
use facts::Facts;
use memory::{Given, Memory};

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
    let Facts { text, fields } = facts(&dir, tokenizer.as_ref().map_err(String::as_str), has_template, &memory);
    Ok(print_answer(args.json, || fields.into(), || text)?)
}

/// Returns all that is told of a model.
fn facts(dir: &ModelDir, tokenizer: Result<&Tokenizer, &str>, has_template: bool, memory: &Memory) -> Facts {
    let mut facts = Facts { text: format!("{}\n", dir.path.display()), ..Facts::default() };
    facts.field("path", dir.path.display().to_string());
    facts.field("name", dir.name());
    facts_of_config(&dir.config, memory.experts, &mut facts);
    if let Some(mixture) = dir.config.blueprint.mixture() {
        let of_token = of_token(memory.experts, mixture);
        facts.row("experts", format_args!("{} in all, of which a token needs {of_token}", memory.experts));
    }
    facts.row(
        "head",
        match dir.head {
            HeadSource::Own => "of its own",
            HeadSource::OwnDespiteTie => "of its own: it differs from the embedding, to which config.json ties it",
            HeadSource::Embedding => "tied to the embedding",
            HeadSource::ForEmbedding => "the embedding too: no other is stored",
        },
    );
    match tokenizer {
        Ok(tokenizer) => {
            let (size, begin, end) = (tokenizer.vocab_size(), tokenizer.bos_token(), tokenizer.eos_token());
            let special = |token: Option<&str>| token.map_or_else(|| "none".into(), |token| format!("{token:?}"));
            facts.both(
                "tokenizer",
                format_args!("{} tokens, begin {}, end {}", grouped(size as u64), special(begin), special(end)),
                "tokenizer",
                json!({"vocab_size": size, "bos_token": begin, "eos_token": end}),
            );
        }
        Err(reason) => {
            let text = format_args!("none ({reason}): it cannot be run or served");
            facts.both("tokenizer", text, "tokenizer", Value::Null);
        }
    }
    let ends: Vec<String> = dir.end_tokens.iter().map(u32::to_string).collect();
    let ends = if ends.is_empty() { "no token".into() } else { format!("token {}", ends.join(", ")) };
    facts.both("ends at", ends, "eos_token_ids", dir.end_tokens.clone());
    let template = if has_template { "yes" } else { "none: for `interbed run`, not `interbed chat`" };
    facts.both("chat template", template, "chat_template", has_template);
    facts.field("format", dir.format());
    let types = dir.weight_types();
    let stored = dir.catalog.stored_files();
    let file =
        |file: &Arc<dyn RandomAccessFile>| json!({"path": file.path().display().to_string(), "bytes": file.len()});
    facts.both(
        "weights",
        format_args!("{} in {}, {}", dir.weight_bytes, types_in_words(&types), files(stored.len())),
        "weights",
        json!({
            "dtype": dir.weight_dtype().name(),
            "types": types.iter().map(|(dtype, bytes)| (dtype.name().into(), bytes.0.into())).collect::<Map<_, _>>(),
            "bytes": dir.weight_bytes.0,
            "files": stored.iter().map(file).collect::<Vec<_>>(),
        }),
    );
    let Memory { kv_token, kv_dtype, kv_context, scratch, context, .. } = memory;
    let context = grouped(*context as u64);
    facts.row("KV cache", format_args!("{kv_token} a token in {kv_dtype}, {kv_context} for {context} tokens"));
    facts.row("scratch", scratch);
    let (table, budgets) = budgets(memory);
    facts.text.push_str(&table);
    let json = json!({
        "least_bytes": memory.least.0,
        "serve_least_bytes": memory.least_to_serve.0,
        "scratch_bytes": scratch.0,
        "kv_dtype": kv_dtype,
        "kv_bytes_per_token": kv_token.0,
        "kv_bytes_per_context": kv_context.0,
        "budgets": budgets,
    });
    facts.field("memory", json);
    facts
}

/// Adds what follows from the configuration alone, and from the bytes of all experts.
fn facts_of_config(config: &ModelConfig, experts: Bytes, facts: &mut Facts) {
    let blueprint = &config.blueprint;
    facts.both("architecture", config.family.name, "architecture", config.family.name);
    let (parameters, active) = (blueprint.num_parameters(), blueprint.active_parameters());
    let counted = |count: u64| format!("{} ({})", short(count), grouped(count));
    facts.both("parameters", counted(parameters), "parameters", parameters);
    facts.field("active_parameters", active);
    facts.field("experts", Value::Null);
    if let Some(mixture) = blueprint.mixture() {
        facts.row("of a token", counted(active));
        let json = json!({
            "layers": blueprint.mixtures().count(),
            "each_layer": mixture.experts,
            "each_token": mixture.chosen,
            "width": mixture.expert_width,
            "bytes": experts.0,
            "token_bytes": of_token(experts, mixture).0,
            "shared_width": mixture.shared.map(|shared| shared.width),
        });
        facts.both("experts", experts_in_words(blueprint, mixture), "experts", json);
    }
    facts.both("layers", blueprint.layers.len(), "layers", blueprint.layers.len());
    let (hidden, inner) = (blueprint.hidden_size, blueprint.inner_size());
    facts.both("hidden", format_args!("{hidden}, feed-forward {inner}"), "hidden_size", hidden);
    facts.field("intermediate_size", inner);
    let attention = blueprint.attentions().next();
    if let Some(attention) = attention {
        let keys = match attention.kv_heads == attention.heads {
            true => String::new(),
            false => format!(", {} of keys and values", attention.kv_heads),
        };
        facts.row("heads", format_args!("{}{keys}, each {} wide", attention.heads, attention.key_width));
    }
    facts.field("heads", attention.map(|attention| attention.heads));
    facts.field("kv_heads", attention.map(|attention| attention.kv_heads));
    facts.field("head_dim", attention.map(|attention| attention.key_width));
    let tokens = |count: usize| format!("{} tokens", grouped(count as u64));
    facts.both("context", tokens(blueprint.context), "context", blueprint.context);
    facts.both("window", windows(blueprint), "sliding_windows", blueprint.windows());
    facts.both("rope", rope(blueprint), "rope", rope_json(blueprint));
    facts.field("tied_head", blueprint.head.is_tied);
    facts.both("vocabulary", tokens(blueprint.vocab_size), "vocab_size", blueprint.vocab_size);
}

/// Returns what the least budgets are and the table of budgets, and the budgets for scripts.
fn budgets(memory: &Memory) -> (String, Vec<Value>) {
    let (least, to_serve) = (flag(memory.least), flag(memory.least_to_serve));
    let mut text = format!(
        "\nIt needs --memory {least} or more, `interbed serve` {to_serve} or more. With `interbed run`:\n\n\
         \x20 {:>9}  {:>12}  {:>12}  {:>16}  {}\n",
        "--memory", "KV tokens", "context", "such sequences", "weights"
    );
    let mut json = Vec::new();
    for Given { budget, kv_tokens, context, sequences, streamed, .. } in &memory.budgets {
        let weights = match streamed {
            Some(weights) => format!("streamed, about {weights} of them stay while KV is small"),
            None => "in memory".into(),
        };
        let (flag, tokens, longest) = (flag(*budget), grouped(*kv_tokens as u64), grouped(*context as u64));
        text.push_str(&format!("  {flag:>9}  {tokens:>12}  {longest:>12}  {sequences:>16}  {weights}\n"));
        json.push(json!({
            "memory_bytes": budget.0, "kv_tokens": kv_tokens, "context": context, "sequences": sequences,
            "streamed_weights_bytes": streamed.map(|bytes| bytes.0),
        }));
    }
    let streams_below = memory.budgets.iter().find_map(|given| given.streams_below);
    if let Some((limit, kv_tokens)) = streams_below {
        let (limit, kv_tokens) = (flag(Bytes(limit.0.next_multiple_of(1 << 20))), grouped(kv_tokens as u64));
        text.push_str(&format!(
            "\nFrom --memory {limit} on all weights stay in memory; with less they are streamed, which is slower, and \
             leave room for KV of up to {kv_tokens} tokens.\n"
        ));
    }
    (text, json)
}

/// Returns the bytes of the experts through which one token goes, of `all` experts.
fn of_token(all: Bytes, mixture: &Mixture) -> Bytes {
    Bytes(all.0 / mixture.experts as u64 * mixture.chosen as u64)
}

fn experts_in_words(blueprint: &Blueprint, mixture: &Mixture) -> String {
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
fn types_in_words(types: &[(DType, Bytes)]) -> String {
    match types {
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
