//! What is computed, to the bit: KV of one process is read by another, so a change of any bit is a new revision.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

use interbed_kernels::{DType, KvDType, Level};
use interbed_model::config::ModelConfig;
use interbed_model::gguf::GgufModel;
use interbed_model::{ARITHMETIC_REVISION, RECORDED_LEVELS};
use xxhash_rust::xxh3::Xxh3;

use crate::gguf::quantised_and_widened;
use crate::harness::{Harness, fixtures};

/// Where digests are kept.
const FILE: &str = "tests/fixtures/arithmetic.txt";

/// Weights that no fixture has.
const QUANTISED: [DType; 3] = [DType::Q8_0, DType::Q4_0, DType::Q4K];

/// Every kind of layer, type of weights and rope.
const MODELS: [&str; 26] = [
    "exaone4",
    "gemma4",
    "gemma4_moe",
    "glm4_moe_groups",
    "gpt_oss",
    "gpt_oss_mxfp4",
    "granite",
    "granite_4_h",
    "lfm2",
    "lfm2_moe",
    "llama3_bf16",
    "llama3_gqa_tied",
    "llama_f16",
    "llama_head_dim_20",
    "ministral3",
    "mistral_sliding",
    "mixtral",
    "nemotron_h_moe",
    "olmo2",
    "phi3_long",
    "qwen2_bf16",
    "qwen3_5",
    "qwen3_5_bf16",
    "qwen3_moe",
    "qwen3_moe_fp8",
    "rope_yarn",
];

/// Long enough for more than one run of attention.
fn prompt() -> Vec<u32> {
    (0..100u32).map(|index| (index * index * 3 + index * 7 + 1) % 60).collect()
}

/// A digest of all logits of the prompt, with this type of KV.
fn digest(kv: KvDType, level: Level, load: impl Fn(KvDType) -> Harness) -> u64 {
    let mut hash = Xxh3::new();
    let mut harness = load(kv).at(level);
    let mut sequence = harness.sequence(0, &prompt());
    for row in harness.prompt_logits(&mut sequence, usize::MAX) {
        row.iter().for_each(|logit| hash.update(&logit.to_bits().to_le_bytes()));
    }
    hash.digest()
}

#[test]
fn logits_are_those_of_the_revision() {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE)).unwrap_or_default();
    let mut lines = text.lines();
    let revision = lines.next().and_then(|line| line.strip_prefix("revision ")?.parse::<u32>().ok());
    let known = lines.filter_map(|line| {
        let mut words = line.split(' ');
        let mut word = || words.next().map(str::to_owned);
        Some(((word()?, word()?), word()?))
    });
    let known: BTreeMap<(String, String), String> = known.collect();
    let mut found = known.clone();
    for level in Level::available() {
        let mut note = |model: String, digest: u64| {
            found.insert((level.name().to_owned(), model), format!("{digest:016x}"));
        };
        for name in MODELS {
            let dtype = ModelConfig::from_dir(fixtures().join(name)).unwrap().dtype.unwrap_or(DType::F32);
            note(name.to_owned(), digest(KvDType::beside(dtype), level, |kv| Harness::load(name, kv, 2, 1)));
        }
        for name in ["llama3_bf16", "qwen3"] {
            note(format!("{name}+q8_kv"), digest(KvDType::Q8, level, |kv| Harness::load(name, kv, 2, 1)));
        }
        for dtype in QUANTISED {
            let dir = tempfile::tempdir().unwrap();
            let [quantised, _] = quantised_and_widened(dtype, dir.path());
            let config = GgufModel::of(&quantised).unwrap().config().unwrap();
            let load = |kv| Harness::of(config.clone(), &quantised, kv, 2, 1);
            note(format!("synthetic_{dtype}"), digest(KvDType::F16, level, load));
        }
    }
    let mut new = format!("revision {ARITHMETIC_REVISION}\n");
    for ((level, model), digest) in &found {
        writeln!(new, "{level} {model} {digest}").unwrap();
    }
    // A level of instructions that no digest was recorded for has nothing to be compared with yet.
    let is_recorded = |level: &str| known.keys().any(|(other, _)| other == level);
    let levels: BTreeSet<_> = known.keys().map(|(level, _)| level.as_str()).collect();
    assert!(levels.iter().eq(RECORDED_LEVELS), "RECORDED_LEVELS has to name {levels:?}");
    let changed: Vec<_> =
        found.iter().filter(|(place, digest)| is_recorded(&place.0) && known.get(*place) != Some(digest)).collect();
    let other = Path::new(env!("CARGO_TARGET_TMPDIR")).join("arithmetic.txt");
    std::fs::write(&other, &new).unwrap();
    for level in Level::available().filter(|level| !is_recorded(level.name())) {
        println!("{FILE} has no digests of {} yet: copy {} there", level.name(), other.display());
    }
    assert!(
        changed.is_empty() && revision == Some(ARITHMETIC_REVISION),
        "{} of {} digests are others than in {FILE}, which is of revision {revision:?}: {changed:?}. If results were \
         meant to change, raise ARITHMETIC_REVISION, so that no KV of before is used; then run this again and copy {} \
         there. A model that is new needs no new revision",
        changed.len(),
        found.len(),
        other.display()
    );
}
