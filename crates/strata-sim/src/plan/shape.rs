//! What a pass goes through: a model's matrices cut into units, by arithmetic on shapes alone.

use strata_io::DIRECT_ALIGN;
use strata_kernels::DType;
use strata_weights::{Access, GroupSpec, SLOTS_LEAST, TensorSpec, VECTOR_ALIGN, row_reader_memory, rows_of_band};

/// Memory of a unit comes in whole pages, which direct reads need.
const PAGE: u64 = DIRECT_ALIGN as u64;

/// What a part of the model is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// A layer's attention.
    Attention,
    /// A layer's feed-forward network.
    FeedForward,
    /// Everything behind the last layer.
    Head,
}

/// How a tensor lies in its file, or would.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// How elements are stored.
    pub dtype: DType,
    /// Its first byte.
    pub offset: u64,
}

/// What is moved, held and computed with in one go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unit {
    /// Bytes of weights.
    pub bytes: u64,
    /// Bytes of memory, whole pages.
    pub memory: u64,
    /// Numbers, each of which takes a multiply-add for every token.
    pub parameters: u64,
    /// Counted from 0; the head is one more.
    pub layer: u32,
    /// What it is for.
    pub role: Role,
}

/// How matrices become units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// Bands of whole rows, of about so many bytes: one read each.
    Bands(usize),
    /// All matrices of a group together, as the ring takes them.
    Groups,
}

/// A model as passes see it. Bytes are those of the tensors, without what alignment adds, where nothing else is said.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Shape {
    /// In the order of a pass.
    pub units: Vec<Unit>,
    /// Layers; the head is none.
    pub num_layers: usize,
    /// Bytes of all vectors, padded; they are always in memory.
    pub vector_bytes: u64,
    /// Bytes of the embedding, of which passes read single rows.
    pub embedding_bytes: u64,
    /// Bytes of buffers for those rows.
    pub row_memory: u64,
    /// Most units that the forward pass holds together.
    widest: usize,
}

impl Shape {
    /// Cuts the groups of a model. `place` tells how a tensor is stored. `None` if sizes cannot be counted.
    pub fn cut(specs: &[GroupSpec], place: &dyn Fn(&TensorSpec) -> Place, cut: Cut) -> Option<Self> {
        let num_layers = specs.len().saturating_sub(2) / 2;
        let mut shape =
            Self { units: Vec::new(), num_layers, vector_bytes: 0, embedding_bytes: 0, row_memory: 0, widest: 1 };
        for (index, group) in specs.iter().enumerate() {
            let role = match index {
                _ if index + 1 == specs.len() => Role::Head,
                _ if index % 2 == 1 => Role::Attention,
                _ => Role::FeedForward,
            };
            let layer = (index.saturating_sub(1) / 2).min(num_layers) as u32;
            shape.add_group(group, place, cut, layer, role)?;
        }
        Some(shape)
    }

    /// Bytes that a pass sweeps: `W`.
    pub fn swept_bytes(&self) -> u64 {
        self.units.iter().map(|unit| unit.bytes).sum()
    }

    /// Bytes of the head.
    pub fn head_bytes(&self) -> u64 {
        self.units.iter().filter(|unit| unit.role == Role::Head).map(|unit| unit.bytes).sum()
    }

    /// Numbers that each token is multiplied with: `P`.
    pub fn parameters(&self) -> u64 {
        self.units.iter().map(|unit| unit.parameters).sum()
    }

    /// Bytes of one layer, on average.
    pub fn layer_bytes(&self) -> f64 {
        (self.swept_bytes() - self.head_bytes()) as f64 / self.num_layers.max(1) as f64
    }

    /// Memory of the largest unit, in bytes.
    pub fn largest(&self) -> u64 {
        self.units.iter().map(|unit| unit.memory).max().unwrap_or(0)
    }

    /// Memory of all units, in bytes.
    pub fn memory(&self) -> u64 {
        self.units.iter().map(|unit| unit.memory).sum()
    }

    /// Bytes that are in memory besides units: vectors, and buffers for rows of the embedding.
    pub fn fixed_bytes(&self) -> u64 {
        self.vector_bytes.saturating_add(self.row_memory)
    }

    /// Fewest slots that units can stream through: two fillings, one being read while the other computes.
    pub fn slots_least(&self) -> usize {
        SLOTS_LEAST.max(2 * self.widest)
    }

    /// The least memory with which the weights can be streamed, in bytes.
    pub fn least_budget(&self) -> u64 {
        let slots = (self.slots_least() as u64).saturating_mul(self.largest());
        self.fixed_bytes().saturating_add(slots.min(self.memory()))
    }

    fn add_group(
        &mut self,
        group: &GroupSpec,
        place: &dyn Fn(&TensorSpec) -> Place,
        cut: Cut,
        layer: u32,
        role: Role,
    ) -> Option<()> {
        // Matrices that are swept side by side.
        let mut beside: Vec<Matrix> = Vec::new();
        let first = self.units.len();
        for tensor in &group.tensors {
            let Place { dtype, offset } = place(tensor);
            let &[rows, cols] = tensor.shape.as_slice() else {
                let elements = tensor.shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size))?;
                let bytes = dtype.row_bytes(elements)? as u64;
                self.vector_bytes =
                    self.vector_bytes.checked_add(bytes)?.checked_next_multiple_of(VECTOR_ALIGN as u64)?;
                continue;
            };
            let row_bytes = dtype.row_bytes(cols).filter(|&bytes| bytes > 0)?;
            let bytes = (row_bytes as u64).checked_mul(rows as u64)?;
            if tensor.access == Access::Rows {
                self.embedding_bytes = bytes;
                self.row_memory = row_reader_memory(row_bytes) as u64;
                continue;
            }
            if tensor.access != Access::SweepBeside {
                self.cut_rows(&mut beside, cut, layer, role);
            }
            beside.push(Matrix { offset, rows, cols, row_bytes });
        }
        self.cut_rows(&mut beside, cut, layer, role);
        if cut == Cut::Groups && self.units.len() > first {
            let parts = self.units.split_off(first);
            let sum = |of: &dyn Fn(&Unit) -> u64| parts.iter().map(of).sum::<u64>();
            let (bytes, memory) = (sum(&|unit| unit.bytes), sum(&|unit| unit.memory));
            self.units.push(Unit { bytes, memory, parameters: sum(&|unit| unit.parameters), layer, role });
            self.widest = 1;
        }
        Some(())
    }

    fn cut_rows(&mut self, beside: &mut Vec<Matrix>, cut: Cut, layer: u32, role: Role) {
        let Some(first) = beside.first() else { return };
        let rows = first.rows;
        let widest = beside.iter().map(|matrix| matrix.row_bytes).max().unwrap_or(1);
        let step = match cut {
            Cut::Bands(bytes) => rows_of_band(widest, bytes),
            Cut::Groups => rows.max(1),
        };
        self.widest = self.widest.max(beside.len());
        for start in (0..rows).step_by(step) {
            let count = step.min(rows - start) as u64;
            for matrix in beside.iter() {
                let bytes = count * matrix.row_bytes as u64;
                let before = (matrix.offset + start as u64 * matrix.row_bytes as u64) % PAGE;
                let memory = (before + bytes).next_multiple_of(PAGE);
                self.units.push(Unit { bytes, memory, parameters: count * matrix.cols as u64, layer, role });
            }
        }
        beside.clear();
    }
}

#[derive(Debug, Clone, Copy)]
struct Matrix {
    offset: u64,
    rows: usize,
    cols: usize,
    row_bytes: usize,
}

#[cfg(test)]
pub mod tests {
    use strata_model::config::ModelConfig;
    use strata_model::{groups, presets};

    use super::*;

    /// A preset's shape in one type.
    pub fn shape_of(name: &str, dtype: DType, cut: Cut) -> Shape {
        let config = ModelConfig::from_json(&presets::preset(name).expect("a preset")).expect("a configuration");
        Shape::cut(&groups::group_specs(&config), &|_| Place { dtype, offset: 0 }, cut).expect("sizes can be counted")
    }

    #[test]
    fn llama_3_70b_is_as_large_as_its_configuration_says() {
        let bands = shape_of("llama-3-70b", DType::BF16, Cut::Bands(4 << 20));
        assert_eq!((bands.num_layers, bands.layer_bytes() / 1e9), (80, 1.711_276_032));
        assert_eq!(bands.swept_bytes() - bands.head_bytes(), 136_902_082_560);
        assert_eq!((bands.head_bytes(), bands.embedding_bytes), (2_101_346_304, 2_101_346_304));
        assert_eq!(bands.parameters() * 2, bands.swept_bytes());
        // Gate and up lie side by side.
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
