//! Computes the forward pass of all architectures, which differ only in their layers.

use std::num::NonZeroUsize;

use arrayvec::ArrayVec;
use interbed_device::{CpuDevice, Device, DeviceError, PassNeeds, TensorArea, Token};
use interbed_kernels::{BlockGroups, GroupLayout, KvDType, KvLayout};
use interbed_weights::WeightSource;

use crate::batch::BatchSequence;
use crate::below::{KvBelow, NothingBelow};
use crate::blueprint::{Blueprint, QueryGrowth, ROPES_MAX};
use crate::kept::{KeptGroups, TRUNK};
use crate::layers::{Layer, layers_of};
use crate::pass::{BatchRows, ForwardError, LogitSink, Pass, PassSize, SharedTensors, SharedWidths};
use crate::rope::RopeTable;
use crate::route_sink::RouteSink;
use crate::routes::Routes;

/// A model, which runs forward passes on a device. The caller lends the device to the model for each pass.
pub struct Model {
    blueprint: Blueprint,
    layers: Vec<Box<dyn Layer>>,
    /// The blocks of the device that the model runs on.
    blocks: BlockGroups,
    /// What the layers keep.
    groups: KeptGroups,
    /// The most query heads of a layer whose queries alternate with gates, or `None` if there is no such layer.
    gated_heads: Option<usize>,
    /// How queries grow with their positions, if they grow.
    growth: Option<QueryGrowth>,
    /// How large the tensors are that all layers use in common.
    widths: SharedWidths,
    /// The table of each kind of rotation that layers have.
    ropes: ArrayVec<RopeTable, ROPES_MAX>,
    weights: Box<dyn WeightSource>,
    batch: BatchRows,
    routes: [Routes; 2],
    route_sink: Option<Box<dyn RouteSink>>,
    /// The last submission, for which later passes wait, or `None` if it is complete.
    last: Option<Token>,
}

impl Model {
    /// Creates a model that takes its weights from `weights`. The groups of weights must be those that
    /// [`group_specs`](crate::layers::group_specs) returns for `blueprint`. `blocks` are the blocks of the device that
    /// will compute, in groups as [`Model::groups_of`] has them.
    ///
    /// # Panics
    /// Panics if the blocks have other groups.
    pub fn new(blueprint: Blueprint, weights: Box<dyn WeightSource>, blocks: BlockGroups) -> Self {
        let layers = layers_of(&blueprint);
        let groups = groups_of(&layers);
        assert_eq!(groups.groups().len(), blocks.groups().len(), "the device has blocks for each group of layers");
        let ropes = blueprint.ropes.iter().map(RopeTable::new).collect();
        let growth = blueprint.attentions().find_map(|attention| attention.growth);
        let gated = blueprint.attentions().filter(|attention| attention.output_gate);
        let gated_heads = gated.map(|attention| attention.heads).max();
        let (batch, routes) = (BatchRows::default(), <[Routes; 2]>::default());
        let (route_sink, last, widths) = (None, None, SharedWidths::of(&blueprint));
        Self {
            gated_heads,
            growth,
            widths,
            blueprint,
            layers,
            blocks,
            groups,
            ropes,
            weights,
            batch,
            routes,
            route_sink,
            last,
        }
    }

    /// Returns the blueprint, which describes what the model computes.
    pub fn blueprint(&self) -> &Blueprint {
        &self.blueprint
    }

    /// Returns the blocks of the device that the model runs on.
    pub fn blocks(&self) -> &BlockGroups {
        &self.blocks
    }

    /// Returns the source of the model's weights.
    pub fn weights(&mut self) -> &mut dyn WeightSource {
        &mut *self.weights
    }

    /// Makes all later forward passes report to `sink` which experts each token goes through.
    pub fn tell_routes(&mut self, sink: Box<dyn RouteSink>) {
        self.route_sink = Some(sink);
    }

    /// Returns the namespace that a prompt of `prompt_len` tokens has in the prefix cache. Only prompts with the same
    /// namespace may share cached keys. [`RopeTable::cache_namespace`] explains why.
    pub fn cache_namespace(&self, prompt_len: usize) -> u64 {
        self.ropes[0].cache_namespace(prompt_len)
    }

    /// Returns the layout of the blocks of the trunk, which has the keys and values of all positions. Each block holds
    /// `block_size` tokens.
    pub fn kv_layout(blueprint: &Blueprint, block_size: usize, dtype: KvDType) -> KvLayout {
        match Self::groups_of(blueprint).groups()[TRUNK].layout(block_size, dtype) {
            GroupLayout::Kv(layout) => layout,
            GroupLayout::States(_) => unreachable!("the trunk has keys and values"),
        }
    }

    /// Returns what the layers of a model keep for a sequence, in groups.
    pub fn groups_of(blueprint: &Blueprint) -> KeptGroups {
        groups_of(&layers_of(blueprint))
    }

    /// Returns what the layers keep for a sequence, in the groups of the device's blocks.
    pub fn groups(&self) -> &KeptGroups {
        &self.groups
    }

    /// Returns what a device must reserve for any forward pass of at most `max_tokens` tokens and at most
    /// `max_logit_rows` rows of logits or hidden states.
    pub fn pass_needs(blueprint: &Blueprint, max_tokens: usize, max_logit_rows: usize) -> PassNeeds {
        let size = PassSize { tokens: max_tokens, logit_rows: max_logit_rows };
        needs(&SharedWidths::of(blueprint), &layers_of(blueprint), &size)
    }

    /// Returns the memory, in bytes, that the CPU needs with `threads` threads for any forward pass of at most
    /// `max_tokens` tokens and at most `max_logit_rows` rows of logits or hidden states.
    pub fn pass_bytes(blueprint: &Blueprint, max_tokens: usize, max_logit_rows: usize, threads: NonZeroUsize) -> usize {
        CpuDevice::pass_bytes(&Self::pass_needs(blueprint, max_tokens, max_logit_rows), threads)
    }

    /// Computes one forward pass like [`forward_from`](Self::forward_from), for a batch whose KV is entirely in memory.
    ///
    /// # Errors
    /// Fails if weights cannot be read, or if the batch needs more memory than [`Model::pass_needs`] reserved.
    ///
    /// # Panics
    /// Panics if a block table is too short or names a block outside the pool, or if some of the batch's KV is on disk
    /// or in a shared store.
    pub fn forward(
        &mut self,
        device: &mut dyn Device,
        batch: &[BatchSequence<'_>],
        sink: &mut LogitSink<'_>,
    ) -> Result<(), ForwardError> {
        self.forward_from(device, batch, &mut NothingBelow, sink)
    }

    /// Computes one forward pass over all layers, and writes the KV of every token of the batch into the blocks of its
    /// sequence. `below` supplies KV that is on disk or in a shared store, layer by layer.
    ///
    /// For each token whose result the batch asks for, calls `sink`, in the order of the batch. The result is a row of
    /// logits, `[vocab_size]`, the greatest of these logits, or a hidden state, `[hidden_size]`. The sink may overwrite
    /// a full row of logits or a hidden state.
    ///
    /// Once the largest batch has been computed, later passes allocate no memory.
    ///
    /// # Errors
    /// Fails if weights or KV cannot be read, or if the batch needs more memory than [`Model::pass_needs`] reserved.
    /// The KV of the batch's own tokens is then unspecified, and all other KV is unchanged.
    ///
    /// # Panics
    /// Panics if a block table is too short or names a block outside the pool. The block manager never makes such a
    /// table.
    pub fn forward_from(
        &mut self,
        device: &mut dyn Device,
        batch: &[BatchSequence<'_>],
        below: &mut dyn KvBelow,
        sink: &mut LogitSink<'_>,
    ) -> Result<(), ForwardError> {
        self.batch.set(batch, &self.groups);
        if let Some(growth) = self.growth {
            self.batch.set_growth(growth);
        }
        if let Some(heads) = self.gated_heads {
            self.batch.set_alternating(heads);
        }
        if let Some(table) = self.blueprint.tables.first() {
            self.batch.set_table_rows(table.rows);
        }
        let size = PassSize { tokens: self.batch.tokens().len(), logit_rows: self.batch.wanted().len() };
        if size.tokens == 0 {
            return Ok(());
        }
        let needed = needs(&self.widths, &self.layers, &size).tensors;
        // A batch that is refused does not begin a pass.
        needed.check(device.tensor_capacity()).map_err(DeviceError::from)?;
        let places = shared_tensors(&self.widths, size.tokens);
        self.weights.begin_pass(size.tokens)?;
        below.begin(self.batch.frames());
        let (weights, batch) = (&mut *self.weights, &self.batch);
        // What the box holds may live longer than the pass.
        let route_sink = self.route_sink.as_mut().map(|sink| &mut **sink as &mut dyn RouteSink);
        let routes = (self.routes.each_mut(), route_sink);
        let mut pass = Pass::begin(
            device,
            weights,
            batch,
            (&self.blocks, &self.groups),
            below,
            &self.ropes,
            places,
            routes,
            self.last,
            sink,
        )?;
        let outcome = self.layers.iter().enumerate().try_for_each(|(index, layer)| {
            pass.begin_layer(index)?;
            layer.compute(&mut pass)
        });
        self.last = pass.last();
        outcome?;
        Ok(self.weights.end_pass()?)
    }
}

fn groups_of(layers: &[Box<dyn Layer>]) -> KeptGroups {
    let kept: Vec<_> = layers.iter().map(|layer| layer.keeps()).collect();
    KeptGroups::new(&kept)
}

fn needs(widths: &SharedWidths, layers: &[Box<dyn Layer>], size: &PassSize) -> PassNeeds {
    let (_, tensors) = shared_tensors(widths, size.tokens);
    let mut needs = PassNeeds { tensors, tokens: size.tokens, ..PassNeeds::default() };
    layers.iter().for_each(|layer| layer.plan(size, &mut needs));
    needs
}

/// Returns the tensors that layers share, and the area after them.
fn shared_tensors(widths: &SharedWidths, tokens: usize) -> (SharedTensors, TensorArea) {
    let mut area = TensorArea::default();
    let shared = SharedTensors::take(&mut area, tokens, widths);
    (shared, area)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use interbed_device::{Command, ReferenceDevice};
    use interbed_weights::{Catalog, GroupSpec, ResidentWeights, Role};

    use super::*;
    use crate::batch::LogitRows;
    use crate::batch::SequenceBlocks;
    use crate::config::ModelConfig;
    use crate::kept::Kept;
    use crate::layers::group_specs;

    /// A layer that adds what the layer before it left in its own tensors to the hidden states.
    struct Peeking(GroupSpec);

    impl Layer for Peeking {
        fn spec(&self) -> &GroupSpec {
            &self.0
        }

        fn keeps(&self) -> Vec<Kept> {
            Vec::new()
        }

        fn plan(&self, _size: &PassSize, _needs: &mut PassNeeds) {}

        fn compute(&self, pass: &mut Pass<'_>) -> Result<(), ForwardError> {
            pass.settle_branch()?;
            let (sum, branch) = (pass.hidden(), pass.area().take(pass.hidden().len()));
            pass.submit(&[Command::Add { sum, branch, scale: 1.0 }])?;
            Ok(())
        }
    }

    fn logits(peeks: bool) -> Vec<f32> {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/qwen3");
        let blueprint = ModelConfig::from_dir(&dir).unwrap().blueprint;
        let catalog = Catalog::open(&dir).unwrap();
        let weights = ResidentWeights::load(&catalog, &group_specs(&blueprint), &mut |_, _| ()).unwrap();
        let blocks = Model::groups_of(&blueprint).blocks(4, KvDType::F32, &[8]);
        let mut device = ReferenceDevice::new(&Model::pass_needs(&blueprint, 2, 1), &blocks, 1);
        let mut model = Model::new(blueprint, Box::new(weights), blocks);
        if peeks {
            let spec = GroupSpec { name: "peeking".into(), role: Role::FeedForward, layer: 0, tensors: Vec::new() };
            model.layers.insert(model.layers.len() - 1, Box::new(Peeking(spec)));
        }
        let batch = BatchSequence {
            tokens: &[3, 17],
            first_position: 0,
            prompt_len: 2,
            below: 0,
            blocks: SequenceBlocks::From(0),
            groups: &[],
            logits: LogitRows::Last,
        };
        let mut logits = Vec::new();
        model.forward(&mut device, &[batch], &mut |_, row| logits.extend_from_slice(row.all())).unwrap();
        logits
    }

    #[test]
    fn a_layer_finds_nothing_of_the_one_before() {
        assert!(logits(false).iter().all(|logit| logit.is_finite()));
        assert!(
            logits(true).iter().all(|logit| logit.is_nan()),
            "the reference device shows who reads it all the same"
        );
    }
}
