//! Describes what a pass works through: a model's partition as the units of a plan, whether its files exist or not.

use interbed_weights::{GroupSpec, Partition, Role, StoredAt, TensorSpec, WeightUnit};

/// Tells how matrices are cut into units, the pieces of weights that are read at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// Units are bands of whole rows, of about this many bytes, each read at once.
    Bands(usize),
    /// Each unit is all matrices of a group together.
    Groups,
}

/// A model as passes see it. Unless stated otherwise, bytes are those of the tensors, without padding for alignment.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    /// Units of weights in the order in which a pass uses them.
    pub units: Vec<WeightUnit>,
    /// Number of layers, not counting the head.
    pub num_layers: usize,
    /// Bytes of all vectors, padded; they are always in memory.
    pub vector_bytes: u64,
    /// Bytes of the embedding, of which passes read single rows.
    pub embedding_bytes: u64,
    /// Bytes of the buffers for rows of the embedding.
    pub row_memory: u64,
    /// Bytes of memory of all experts of a mixture, and the least bytes through which experts can be streamed.
    pub expert_memory: (u64, u64),
    /// Minimum number of slots that units can be streamed through.
    slots_least: usize,
}

impl Shape {
    /// Cuts the groups of a model. `stored_at` tells how a tensor is stored. Returns `None` if sizes cannot be counted.
    pub fn cut(specs: &[GroupSpec], stored_at: &dyn Fn(&TensorSpec) -> StoredAt, cut: Cut) -> Option<Self> {
        let band_bytes = match cut {
            Cut::Bands(bytes) => bytes,
            Cut::Groups => usize::MAX,
        };
        let partition = Partition::new(specs, band_bytes, |_, tensor| Ok(stored_at(tensor))).ok()?;
        let vector_bytes = partition.vector_bytes() as u64;
        let (units, slots_least) = match cut {
            Cut::Bands(_) => (partition.units(), partition.slots_least()),
            Cut::Groups => (partition.group_units(), Partition::SLOTS_LEAST),
        };
        Some(Self {
            units,
            num_layers: specs.iter().map(|group| group.layer).max().unwrap_or(0),
            vector_bytes,
            embedding_bytes: partition.embedding_bytes(),
            row_memory: partition.fixed_bytes() - vector_bytes,
            expert_memory: partition.experts().map_or((0, 0), |(_, shape)| (shape.bank_bytes(), shape.least_bytes())),
            slots_least,
        })
    }

    /// Returns the bytes of weights that a pass goes through.
    pub fn swept_bytes(&self) -> u64 {
        self.units.iter().map(|unit| unit.bytes).sum()
    }

    /// Returns the bytes of the head.
    pub fn head_bytes(&self) -> u64 {
        self.units.iter().filter(|unit| unit.role == Role::Head).map(|unit| unit.bytes).sum()
    }

    /// Returns how many weights each token is multiplied with.
    pub fn parameters(&self) -> u64 {
        self.units.iter().map(|unit| unit.parameters).sum()
    }

    /// Returns the bytes of one layer, on average.
    pub fn layer_bytes(&self) -> f64 {
        (self.swept_bytes() - self.head_bytes()) as f64 / self.num_layers.max(1) as f64
    }

    /// Returns the memory of the largest unit, in bytes.
    pub fn largest(&self) -> u64 {
        self.units.iter().map(|unit| unit.memory).max().unwrap_or(0)
    }

    /// Returns the memory of all units, in bytes.
    pub fn memory(&self) -> u64 {
        self.units.iter().map(|unit| unit.memory).sum()
    }

    /// Returns the bytes that stay in memory besides units: vectors, and buffers for rows of the embedding.
    pub fn fixed_bytes(&self) -> u64 {
        self.vector_bytes.saturating_add(self.row_memory)
    }

    /// Returns the fewest slots that units can be streamed through: enough for two products, one being read while the
    /// other computes.
    pub fn slots_least(&self) -> usize {
        self.slots_least
    }

    /// Returns the least memory with which the weights can be streamed, in bytes.
    pub fn least_budget(&self) -> u64 {
        let slots = (self.slots_least() as u64).saturating_mul(self.largest());
        self.fixed_bytes().saturating_add(slots.min(self.memory())).saturating_add(self.expert_memory.1)
    }
}

#[cfg(test)]
pub mod tests {
    use interbed_kernels::DType;
    use interbed_model::config::ModelConfig;
    use interbed_model::layers;

    use super::*;

    /// Returns the shape of a preset whose weights all have one type.
    pub fn shape_of(name: &str, dtype: DType, cut: Cut) -> Shape {
        let config = ModelConfig::from_json(&interbed_model::preset(name).expect("a preset")).expect("a configuration");
        Shape::cut(&layers::group_specs(&config.blueprint), &|_| StoredAt { dtype, file: 0, offset: 0 }, cut)
            .expect("sizes can be counted")
    }

    #[test]
    fn llama_3_70b_is_as_large_as_its_configuration_says() {
        let bands = shape_of("llama-3-70b", DType::BF16, Cut::Bands(4 << 20));
        assert_eq!((bands.num_layers, bands.layer_bytes() / 1e9), (80, 1.711_276_032));
        assert_eq!(bands.swept_bytes() - bands.head_bytes(), 136_902_082_560);
        assert_eq!((bands.head_bytes(), bands.embedding_bytes), (2_101_346_304, 2_101_346_304));
        assert_eq!(bands.parameters() * 2, bands.swept_bytes());
        // Gate and up are cut side by side.
        assert_eq!((bands.largest(), bands.slots_least()), (4 << 20, 4));
        let groups = shape_of("llama-3-70b", DType::BF16, Cut::Groups);
        assert_eq!((groups.units.len(), groups.swept_bytes()), (161, bands.swept_bytes()));
        assert_eq!((groups.units[0].role, groups.units[1].role), (Role::Attention, Role::FeedForward));
        assert_eq!((groups.units[160].role, groups.units[160].layer, groups.units[159].layer), (Role::Head, 80, 79));
    }

    #[test]
    fn bands_are_whole_rows_and_miss_none() {
        for bytes in [4096, 100_000, 1 << 20, 64 << 20] {
            let shape = shape_of("tiny", DType::F32, Cut::Bands(bytes));
            let groups = shape_of("tiny", DType::F32, Cut::Groups);
            assert_eq!(shape.swept_bytes(), groups.swept_bytes(), "{bytes}");
            assert_eq!(shape.parameters(), groups.parameters(), "{bytes}");
            assert!(shape.units.windows(2).all(|pair| pair[0].layer <= pair[1].layer), "{bytes}");
        }
    }
}
