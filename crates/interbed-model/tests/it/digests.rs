//! Digests of logits of every fixture in every format at every level, alone and in company. A change that must change
//! no bit is checked so: `INTERBED_DIGESTS=FILE cargo test -p interbed-model --test it digests` writes the file before
//! the change, and compares with it after the change.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hasher};
use std::path::Path;

use interbed_kernels::{KvDType, Level};
use interbed_model::config::ModelConfig;
use interbed_model::gguf::GgufModel;
use interbed_weights::Catalog;

use crate::gguf::models;
use crate::harness::{Harness, fixtures};
use crate::logits::{cases, expected};

fn digest(rows: &[Vec<f32>]) -> u64 {
    let mut hasher = DefaultHasher::new();
    rows.iter().flatten().for_each(|logit| hasher.write_u32(logit.to_bits()));
    hasher.finish()
}

/// The digests of a model: of a prompt alone in one piece, in chunks, and beside another sequence.
fn digests(config: &ModelConfig, catalog: &Catalog, prompt: &[u32], level: Level) -> [u64; 3] {
    let harness = || Harness::of(config.clone(), catalog, KvDType::F32, 2, 2).at(level);
    let in_chunks = |chunk: usize| {
        let mut harness = harness();
        let mut sequence = harness.sequence(0, prompt);
        digest(&harness.prompt_logits(&mut sequence, chunk))
    };
    let mut beside = harness();
    let other: Vec<u32> = prompt.iter().rev().copied().collect();
    let mut both = [beside.sequence(0, prompt), beside.sequence(1, &other)];
    let rows = beside.pass(&mut both, &[prompt.len(), other.len()]);
    [in_chunks(usize::MAX), in_chunks(5), digest(&rows[..prompt.len()])]
}

#[test]
fn logits_are_those_of_the_recorded_digests() {
    let mut found = BTreeMap::new();
    let mut add = |name: String, config: &ModelConfig, catalog: &Catalog, prompt: &[u32]| {
        for level in Level::available() {
            let [alone, chunks, beside] = digests(config, catalog, prompt, level);
            assert_eq!((chunks, beside), (alone, alone), "{name} {}: in company", level.name());
            for (way, digest) in [("alone", alone), ("in chunks", chunks), ("beside another", beside)] {
                found.insert(format!("{name} {} {way}", level.name()), digest);
            }
        }
    };
    for name in cases() {
        let dir = fixtures().join(&name);
        let (config, catalog) = (ModelConfig::from_dir(&dir).unwrap(), Catalog::open(&dir).unwrap());
        add(name.clone(), &config, &catalog, &expected(&name).prompt);
    }
    for (name, path) in models() {
        let catalog = Catalog::open(&path).unwrap();
        let config = GgufModel::of(&catalog).unwrap().config().unwrap();
        add(format!("{name}.gguf"), &config, &catalog, &expected(&name).prompt);
    }
    let Some(file) = std::env::var_os("INTERBED_DIGESTS") else { return };
    let text = found.iter().fold(String::new(), |mut text, (name, digest)| {
        let _ = writeln!(text, "{name}: {digest:016x}");
        text
    });
    if !Path::new(&file).exists() {
        std::fs::write(&file, text).unwrap();
        return;
    }
    let recorded = std::fs::read_to_string(&file).unwrap();
    let differ = recorded.lines().filter(|line| !text.lines().any(|now| now == *line)).collect::<Vec<_>>();
    println!("{} digests, of which {} differ from those recorded", recorded.lines().count(), differ.len());
    assert!(differ.is_empty(), "{differ:#?}");
}
