//! `--record-routing`: writes to a file which experts each token uses, for `interbed-lab replay` and `interbed plan`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use interbed_model::{RouteSink, RoutedRow};
use interbed_plan::routing::{LayerBytes, RoutingHead, RoutingRow, RoutingWriter};
use interbed_weights::{Access, Role};

use crate::failure::Advised;
use crate::model_dir::ModelDir;

/// Writes a row for each expert of each token. After a failed write, an error is logged and nothing more is written.
struct Recorder {
    path: PathBuf,
    writer: Option<RoutingWriter<BufWriter<File>>>,
    /// The number of bytes of one expert in each mixture layer.
    expert_bytes: BTreeMap<usize, u64>,
    /// The layer and the position of the last row.
    last: (usize, usize),
    /// The experts of the last row's layer whose reads have already been recorded in this pass.
    told: Vec<u32>,
}

/// Creates the file `path`, and returns a sink that writes to it which experts each token uses.
///
/// # Errors
/// Fails if the model has no experts, or if the file cannot be written.
pub fn record(dir: &ModelDir, path: &Path) -> Result<Box<dyn RouteSink>> {
    let Some(mixture) = dir.config.blueprint.mixture() else {
        return Err(Advised::input(
            format!("--record-routing: {} has no experts", dir.name()),
            "leave it out, or take a mixture of experts",
        ));
    };
    let mut layers: BTreeMap<usize, LayerBytes> = BTreeMap::new();
    // The embedding is left out, because a token reads only one row of it.
    for group in dir.specs.iter().filter(|group| group.role != Role::Embedding) {
        for tensor in &group.tensors {
            let bytes = dir.catalog.get(&tensor.name).map_or(0, |entry| entry.bytes);
            let layer = group.layer;
            let of = layers.entry(layer);
            let of = of.or_insert(LayerBytes { layer: layer as u32, expert_bytes: 0, dense_bytes: 0 });
            match tensor.access {
                Access::Expert { number: 0, .. } => of.expert_bytes += bytes,
                Access::Expert { .. } => {}
                _ => of.dense_bytes += bytes,
            }
        }
    }
    layers.retain(|_, of| of.expert_bytes > 0);
    let head = RoutingHead {
        model: dir.name().replace(char::is_whitespace, "_"),
        arch: dir.config.family.name.to_owned(),
        layers: dir.config.blueprint.layers.len() as u32,
        experts: mixture.experts as u32,
        top_k: mixture.chosen as u32,
        layer_bytes: layers.values().copied().collect(),
    };
    let failed = || format!("the routing cannot be written to {}", path.display());
    let hint = "name a file in a folder that can be written, with room on its disk";
    let file = File::create(path).map_err(|error| Advised::system(failed(), hint, error))?;
    let writer = RoutingWriter::new(BufWriter::new(file), &head).with_context(failed)?;
    let expert_bytes = layers.into_iter().map(|(layer, of)| (layer, of.expert_bytes)).collect();
    Ok(Box::new(Recorder {
        path: path.to_owned(),
        writer: Some(writer),
        expert_bytes,
        last: (usize::MAX, 0),
        told: Vec::new(),
    }))
}

impl Recorder {
    fn write(&mut self, row: &RoutedRow<'_>) -> io::Result<()> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let bytes = self.expert_bytes.get(&row.layer).copied().unwrap_or(0);
        // All tokens of a prompt's chunk pass a layer together, and share its reads. Any other row belongs to another
        // visit of a layer, whose reads count anew.
        let (layer, position) = std::mem::replace(&mut self.last, (row.layer, row.position));
        if row.layer != layer || row.position <= position || !row.of_prompt {
            self.told.clear();
        }
        for (slot, (&expert, &weight)) in row.experts.iter().zip(row.weights).enumerate() {
            let held = (row.held)(expert);
            let is_told = held || self.told.contains(&expert);
            if !is_told {
                self.told.push(expert);
            }
            writer.write(&RoutingRow {
                turn: 0,
                prompt: row.of_prompt,
                step: row.position as u32,
                layer: row.layer as u32,
                slot: slot as u32,
                expert,
                weight,
                held,
                read_bytes: if is_told { 0 } else { bytes },
            })?;
        }
        Ok(())
    }

    fn give_up(&mut self, error: &io::Error) {
        tracing::error!("the routing in {} ends here: {error}", self.path.display());
        self.writer = None;
    }
}

impl RouteSink for Recorder {
    fn routed(&mut self, row: &RoutedRow<'_>) {
        if let Err(error) = self.write(row) {
            self.give_up(&error);
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.writer.take().map(RoutingWriter::finish) {
            self.give_up(&error);
        }
    }
}
