//! The kernels: SPIR-V that was compiled from the GLSL files in `shaders`, specialised for types and sizes when the
//! kernels are first used.

use std::collections::HashMap;
use std::io::Cursor;
use std::sync::Arc;

use ash::vk;
use bytemuck::{Pod, Zeroable};
use interbed_kernels::{Activation, DType, KvDType, RopeStyle};

use super::error::GpuError;
use super::gpu::Gpu;

/// The most bytes of arguments that a kernel is given directly; every driver supports this many.
const PUSH_MAX: u32 = 128;

/// Threads of kernels that take any number.
pub(super) const THREADS: u32 = 128;

/// The most workgroups in a row, and the most rows of workgroups, that every driver takes.
const GROUPS_MAX: usize = 65_535;

/// Threads that share a column in the delta rule or in a state space, where subgroups are large enough.
const DELTA_LANES: u32 = 8;

/// Subgroups of a workgroup of products.
const SUBGROUPS: u32 = 4;

/// A kernel, with everything that the kernel is specialised for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kernel {
    /// `gather.comp`
    Gather(Number),
    /// `product.comp`
    Product(Number, ProductShape),
    /// `quantise.comp`
    Quantise,
    /// `integer_product.comp`
    IntegerProduct(Number, ProductShape),
    /// `best.comp`, for numbers, or for keys that an earlier run of `best.comp` has written.
    Best { of_keys: bool },
    /// `norm.comp`
    Norm,
    /// `elementwise.comp`
    Elementwise(Elementwise),
    /// `keep_rows.comp`
    KeepRows,
    /// `combine.comp`
    Combine,
    /// `store_kv.comp`
    StoreKv { dtype: KvDType, head_dim: u32, neighbours: bool, rotated: u32 },
    /// `attention.comp`
    Attention { dtype: KvDType, head_dim: u32 },
    /// `merge.comp`, and the numbers of a head.
    Merge(u32),
    /// `convolve.comp`
    Convolve { taps: u32 },
    /// `short_convolution.comp`
    ShortConvolution { taps: u32 },
    /// `delta_gates.comp`
    DeltaGates,
    /// `delta_rule.comp`, and the numbers of a key.
    DeltaRule { height: u32 },
    /// `state_space.comp`, and the numbers of a state.
    StateSpace { height: u32 },
}

/// Rows of the matrix and of activations that a subgroup multiplies at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ProductShape {
    pub rows: usize,
    pub tokens: usize,
}

impl ProductShape {
    /// Returns the shape for `tokens` rows of activations. A token's results do not depend on the shape.
    pub fn of(tokens: usize) -> Self {
        let tokens = tokens.next_power_of_two().min(16);
        Self { rows: (tokens / 4).max(1), tokens }
    }

    /// Returns the specialisation constants of a kernel for weights of type `number`.
    fn constants(self, subgroup: u32, number: Number) -> Vec<u32> {
        let (rows, tokens) = (self.rows as u32, self.tokens as u32);
        vec![SUBGROUPS * subgroup, number.get(), rows, tokens, SUBGROUPS, subgroup]
    }
}

/// The numbers of the operations of `elementwise.comp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Elementwise {
    Add = 0,
    Scale = 1,
    Silu = 2,
    Gelu = 3,
    GeluTanh = 4,
    ClampedSwish = 5,
    SquaredRelu = 6,
    Sigmoid = 7,
    Cap = 8,
    ScaleBy = 9,
}

impl Elementwise {
    pub fn of(activation: Activation) -> Self {
        match activation {
            Activation::Silu => Self::Silu,
            Activation::Gelu => Self::Gelu,
            Activation::GeluTanh => Self::GeluTanh,
            Activation::ClampedSwish => Self::ClampedSwish,
            Activation::SquaredRelu => Self::SquaredRelu,
            Activation::Sigmoid => Self::Sigmoid,
        }
    }
}

/// The number of a type of weights in `weights.glsl`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Number(u32);

impl Number {
    /// Returns the number of `dtype`.
    ///
    /// # Errors
    /// Fails if there are no kernels for this type.
    pub fn of(dtype: DType) -> Result<Self, GpuError> {
        let number = match dtype {
            DType::F32 => 0,
            DType::F16 => 1,
            DType::BF16 => 2,
            DType::Q8_0 => 3,
            DType::Q4_0 => 4,
            DType::Q4_1 => 5,
            DType::Q5_0 => 6,
            DType::Q5_1 => 7,
            DType::Q2K => 8,
            DType::Q3K => 9,
            DType::Q4K => 10,
            DType::Q5K => 11,
            DType::Q6K => 12,
            DType::Iq4Nl => 13,
            DType::Mxfp4 => 14,
            DType::CodedBf16 { .. } => 15,
            DType::Fp8 => 16,
            DType::Iq4Xs | DType::Iq3S | DType::Iq3Xxs | DType::Iq2S => return Err(GpuError::WeightType { dtype }),
            DType::Iq2Xs | DType::Iq2Xxs | DType::Iq1M | DType::Iq1S => return Err(GpuError::WeightType { dtype }),
        };
        Ok(Self(number))
    }

    /// Returns the number, for kernels that are not specialised for it.
    pub fn get(self) -> u32 {
        self.0
    }
}

/// Returns the number of a type of keys and values in `kv.glsl`.
fn kv_number(dtype: KvDType) -> u32 {
    match dtype {
        KvDType::F32 => 0,
        KvDType::F16 => 1,
        KvDType::BF16 => 2,
        KvDType::Q8 => 3,
    }
}

/// Returns how many threads of a subgroup share a column in the delta rule or in a state space.
fn delta_lanes(subgroup: u32) -> u32 {
    DELTA_LANES.min(subgroup)
}

/// Returns whether the pairs of a head are neighbours.
pub(super) fn are_neighbours(style: RopeStyle) -> bool {
    match style {
        RopeStyle::Halves => false,
        RopeStyle::Neighbours => true,
    }
}

/// Returns how many rows a tile of attention has.
pub(super) fn attention_rows(head_dim: usize) -> usize {
    (2048 / head_dim).clamp(1, 16)
}

/// The arguments of `gather.comp`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct GatherPush {
    pub table: u64,
    pub numbers: u64,
    pub result: u64,
    pub row_bytes: u32,
    pub cols: u32,
    pub patches: u32,
    pub multiplier: f32,
    pub rows: u32,
    pub unused: u32,
}

/// The arguments of `product.comp`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct ProductPush {
    pub weights: u64,
    pub x: u64,
    pub bias: u64,
    pub result: u64,
    pub row_bytes: u32,
    pub rows: u32,
    pub cols: u32,
    pub stride: u32,
    pub tokens: u32,
    pub patches: u32,
    pub bias_type: u32,
    pub unused: u32,
}

/// The arguments of `norm.comp`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct NormPush {
    pub x: u64,
    pub branch: u64,
    pub weight: u64,
    pub result: u64,
    pub cols: u32,
    pub weight_type: u32,
    pub epsilon: f32,
    pub scale: f32,
    pub rows: u32,
    pub offset: f32,
    pub weights: u32,
    pub unused: u32,
}

/// The arguments of `elementwise.comp`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct ElementwisePush {
    pub a: u64,
    pub b: u64,
    pub columns: u32,
    pub stride: u32,
    pub factor: f32,
    pub rows: u32,
}

/// The arguments of `keep_rows.comp`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct KeepRowsPush {
    pub x: u64,
    pub numbers: u64,
    pub width: u32,
    pub rows: u32,
}

/// The arguments of `combine.comp`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct CombinePush {
    pub from: u64,
    pub result: u64,
    pub places: u64,
    pub factors: u64,
    pub width: u32,
    pub rows: u32,
    pub each: u32,
    pub unused: u32,
}

/// The arguments of `store_kv.comp`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct StoreKvPush {
    pub q: u64,
    pub k: u64,
    pub v: u64,
    pub cos: u64,
    pub sin: u64,
    pub slots: u64,
    pub heads: u32,
    pub kv_heads: u32,
    pub first_key: u32,
    pub head_bytes: u32,
    pub to_values: u32,
    pub tokens: u32,
}

/// The arguments of `attention.comp`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct AttentionPush {
    pub q: u64,
    pub result: u64,
    pub state: u64,
    pub parts: u64,
    pub tiles: u64,
    pub blocks: u64,
    /// The address of the sinks; 0 if there are none.
    pub sinks: u64,
    pub heads: u32,
    pub sharing: u32,
    pub tile_heads: u32,
    pub block_size: u32,
    pub first_key: u32,
    pub head_bytes: u32,
    pub to_values: u32,
    pub window: u32,
    pub parts_per_row: u32,
    pub scale: f32,
    pub sink_type: u32,
    pub unused: u32,
}

/// The arguments of `merge.comp`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct MergePush {
    pub parts: u64,
    pub result: u64,
    pub counts: u64,
    /// The address of the sinks; 0 if there are none.
    pub sinks: u64,
    pub heads: u32,
    pub parts_per_row: u32,
    pub sink_type: u32,
    pub unused: u32,
}

/// One tile of attention.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct AttentionTile {
    pub token: u32,
    pub tokens: u32,
    pub position: u32,
    pub table: u32,
    pub held: u32,
    pub from: u32,
    pub end: u32,
    pub part: u32,
    pub continued: u32,
}

/// The kernels that have been used, ready to run.
pub(super) struct Kernels {
    gpu: Arc<Gpu>,
    layout: vk::PipelineLayout,
    ready: HashMap<Kernel, vk::Pipeline>,
}

impl Kernels {
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self, GpuError> {
        let push = [vk::PushConstantRange { stage_flags: vk::ShaderStageFlags::COMPUTE, offset: 0, size: PUSH_MAX }];
        let create = vk::PipelineLayoutCreateInfo::default().push_constant_ranges(&push);
        // SAFETY: `create` is complete.
        let layout = unsafe { gpu.device().create_pipeline_layout(&create, None) };
        let layout = layout.map_err(GpuError::of("lay out kernels"))?;
        Ok(Self { gpu: Arc::clone(gpu), layout, ready: HashMap::new() })
    }

    /// Returns how many subgroups a workgroup of products has.
    pub fn subgroups(&self) -> usize {
        SUBGROUPS as usize
    }

    /// Returns how many columns of a matrix a workgroup of the delta rule or of a state space takes.
    pub fn delta_columns(&self) -> usize {
        let subgroup = self.gpu.info().subgroup;
        (SUBGROUPS * subgroup / delta_lanes(subgroup)) as usize
    }

    /// Returns how many threads a workgroup has in a kernel that takes any number of threads.
    pub fn threads(&self) -> usize {
        THREADS as usize
    }

    /// Records a run of `groups` workgroups of `kernel`, with the arguments `push`.
    pub fn run<P: Pod>(
        &mut self,
        commands: vk::CommandBuffer,
        kernel: Kernel,
        push: &P,
        groups: [usize; 2],
    ) -> Result<(), GpuError> {
        if groups.iter().any(|&groups| groups > GROUPS_MAX) {
            return Err(GpuError::TooManyTokens);
        }
        let pipeline = match self.ready.get(&kernel) {
            Some(pipeline) => *pipeline,
            None => {
                let pipeline = self.make(kernel)?;
                self.ready.insert(kernel, pipeline);
                pipeline
            }
        };
        let push = bytemuck::bytes_of(push);
        assert!(push.len() <= PUSH_MAX as usize);
        let device = self.gpu.device();
        // SAFETY: the command buffer is being recorded, the pipeline has this layout, and the push constants fit.
        unsafe {
            device.cmd_bind_pipeline(commands, vk::PipelineBindPoint::COMPUTE, pipeline);
            device.cmd_push_constants(commands, self.layout, vk::ShaderStageFlags::COMPUTE, 0, push);
            device.cmd_dispatch(commands, groups[0] as u32, groups[1] as u32, 1);
        }
        Ok(())
    }

    fn make(&self, kernel: Kernel) -> Result<vk::Pipeline, GpuError> {
        let subgroup = self.gpu.info().subgroup;
        let (code, constants): (&[u8], Vec<u32>) = match kernel {
            Kernel::Gather(number) => (include_bytes!("../../shaders/gather.spv"), vec![THREADS, number.get()]),
            Kernel::Product(number, shape) => {
                (include_bytes!("../../shaders/product.spv"), shape.constants(subgroup, number))
            }
            Kernel::IntegerProduct(number, shape) => {
                (include_bytes!("../../shaders/integer_product.spv"), shape.constants(subgroup, number))
            }
            Kernel::Quantise => (include_bytes!("../../shaders/quantise.spv"), vec![THREADS]),
            Kernel::Best { of_keys } => (include_bytes!("../../shaders/best.spv"), vec![THREADS, u32::from(of_keys)]),
            Kernel::Norm => (include_bytes!("../../shaders/norm.spv"), vec![THREADS]),
            Kernel::Elementwise(which) => {
                (include_bytes!("../../shaders/elementwise.spv"), vec![THREADS, which as u32])
            }
            Kernel::KeepRows => (include_bytes!("../../shaders/keep_rows.spv"), vec![THREADS]),
            Kernel::Combine => (include_bytes!("../../shaders/combine.spv"), vec![THREADS]),
            Kernel::StoreKv { dtype, head_dim, neighbours, rotated } => {
                let constants = vec![THREADS, kv_number(dtype), head_dim, u32::from(neighbours), rotated];
                (include_bytes!("../../shaders/store_kv.spv"), constants)
            }
            Kernel::Attention { dtype, head_dim } => {
                let rows = attention_rows(head_dim as usize) as u32;
                (include_bytes!("../../shaders/attention.spv"), vec![0, kv_number(dtype), head_dim, rows])
            }
            Kernel::Merge(head_dim) => (include_bytes!("../../shaders/merge.spv"), vec![THREADS, head_dim]),
            Kernel::Convolve { taps } => (include_bytes!("../../shaders/convolve.spv"), vec![THREADS, taps]),
            Kernel::ShortConvolution { taps } => {
                (include_bytes!("../../shaders/short_convolution.spv"), vec![THREADS, taps])
            }
            Kernel::DeltaGates => (include_bytes!("../../shaders/delta_gates.spv"), vec![THREADS]),
            Kernel::DeltaRule { height } => {
                let constants = vec![SUBGROUPS * subgroup, height, delta_lanes(subgroup), subgroup];
                (include_bytes!("../../shaders/delta_rule.spv"), constants)
            }
            Kernel::StateSpace { height } => {
                let constants = vec![SUBGROUPS * subgroup, height, delta_lanes(subgroup), subgroup];
                (include_bytes!("../../shaders/state_space.spv"), constants)
            }
        };
        let words = ash::util::read_spv(&mut Cursor::new(code)).expect("kernels are whole words, as a test checks");
        let device = self.gpu.device();
        let create = vk::ShaderModuleCreateInfo::default().code(&words);
        // SAFETY: the code is valid SPIR-V, which the compiler has written.
        let module = unsafe { device.create_shader_module(&create, None) }.map_err(GpuError::of("load a kernel"))?;
        let entries: Vec<_> = (0..constants.len() as u32)
            .map(|index| vk::SpecializationMapEntry { constant_id: index, offset: 4 * index, size: 4 })
            .collect();
        let specialised =
            vk::SpecializationInfo::default().map_entries(&entries).data(bytemuck::cast_slice(&constants));
        let mut required = vk::PipelineShaderStageRequiredSubgroupSizeCreateInfo::default();
        required = required.required_subgroup_size(subgroup);
        let mut stage = vk::PipelineShaderStageCreateInfo::default()
            .stage(vk::ShaderStageFlags::COMPUTE)
            .module(module)
            .name(c"main")
            .specialization_info(&specialised);
        if matches!(
            kernel,
            Kernel::Product(..) | Kernel::IntegerProduct(..) | Kernel::DeltaRule { .. } | Kernel::StateSpace { .. }
        ) {
            // These divide rows or columns by the numbers of subgroups and of threads in them.
            stage = stage.flags(vk::PipelineShaderStageCreateFlags::REQUIRE_FULL_SUBGROUPS);
            if self.gpu.chooses_subgroups() {
                stage = stage.push_next(&mut required);
            }
        }
        let create = vk::ComputePipelineCreateInfo::default().stage(stage).layout(self.layout);
        // SAFETY: the module has this entry, uses nothing but push constants, and its features were enabled.
        let made = unsafe { device.create_compute_pipelines(vk::PipelineCache::null(), &[create], None) };
        // SAFETY: the module is not needed any more.
        unsafe { device.destroy_shader_module(module, None) };
        Ok(made.map_err(|(_, error)| GpuError::of("compile a kernel")(error))?[0])
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        let device = self.gpu.device();
        // SAFETY: the device's queues have ended their work before.
        unsafe {
            self.ready.values().for_each(|pipeline| device.destroy_pipeline(*pipeline, None));
            device.destroy_pipeline_layout(self.layout, None);
        }
    }
}
