//! The facts about a model that a server tells its clients.

use std::time::SystemTime;

use interbed_server::ModelFacts;

use crate::model_dir::ModelDir;

/// Returns the facts about a model that a server tells its clients. `on_gpu` says whether a GPU holds all weights.
pub fn model_facts(dir: &ModelDir, on_gpu: bool) -> ModelFacts {
    let blueprint = &dir.config.blueprint;
    let attention = blueprint.attentions().next();
    let bytes = dir.weight_bytes.0;
    ModelFacts {
        format: dir.format(),
        family: dir.config.family.name.to_lowercase(),
        quantization: dir.weight_dtype().name().to_owned(),
        parameters: blueprint.num_parameters(),
        bytes,
        bytes_on_gpu: if on_gpu { bytes } else { 0 },
        digest: digest(dir),
        modified: modified(dir).max(),
        layers: blueprint.layers.len(),
        hidden_size: blueprint.hidden_size,
        feed_forward: blueprint.inner_size(),
        heads: attention.map_or(0, |attention| attention.heads),
        kv_heads: attention.map_or(0, |attention| attention.kv_heads),
    }
}

/// Returns a digest of the files' paths, lengths and times of modification, without reading the weights. The digest
/// changes if one of these changes.
fn digest(dir: &ModelDir) -> String {
    let mut hasher = blake3::Hasher::new();
    for (file, time) in dir.catalog.stored_files().iter().zip(modified(dir)) {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let path = file.path().as_os_str().as_encoded_bytes();
        for part in [path, &file.len().to_le_bytes(), &since.as_nanos().to_le_bytes()] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
    }
    hasher.finalize().to_hex().to_string()
}

/// Returns when each file was modified, or 1970 for a block device, which has no such time.
fn modified(dir: &ModelDir) -> impl Iterator<Item = SystemTime> {
    let of = |path: &std::path::Path| std::fs::metadata(path).and_then(|file| file.modified());
    dir.catalog.stored_files().iter().map(move |file| of(file.path()).unwrap_or(SystemTime::UNIX_EPOCH))
}
