//! Operations that continue from the states of sequences.

use bytemuck::{Pod, Zeroable};
use interbed_kernels::{DecayForm, DeltaRule, KeySharing, StateLayer, StateSpace, StateSpan, TAPS_MAX};

use super::{GROUPS_MAX, Recorder, in_rows};
use crate::vulkan::error::GpuError;
use crate::vulkan::kernels::{Kernel, Number};
use crate::{Tensor, Use, Weights};

impl Recorder<'_> {
    pub(super) fn convolve(
        &mut self,
        uses: &[Use],
        layer: &StateLayer,
        sequences: &[StateSpan],
        weights: &Weights,
        bias: Option<&Weights>,
        x: Tensor,
    ) -> Result<(), GpuError> {
        let (channels, taps) = (layer.shape().channels, layer.shape().rows + 1);
        assert!(taps <= TAPS_MAX && weights.rows() * weights.cols() == channels * taps);
        assert_eq!(x.len(), tokens_of(sequences) * channels);
        let push = ConvolvePush {
            x: self.address(x),
            weights: self.weights(weights)?,
            bias: bias.map(|bias| self.weights(bias)).transpose()?.unwrap_or(0),
            spans: self.state_spans(layer, sequences, layer.rows_offset())?,
            channels: channels as u32,
            weight_type: Number::of(weights.dtype())?.get(),
            sequences: sequences.len() as u32,
            bias_type: bias.map_or(Ok(0), |bias| Number::of(bias.dtype()).map(Number::get))?,
        };
        let groups = [channels.div_ceil(self.kernels.threads()), sequences.len().min(GROUPS_MAX)];
        self.run(uses, Kernel::Convolve { taps: taps as u32 }, &push, groups)
    }

    pub(super) fn short_convolution(
        &mut self,
        uses: &[Use],
        layer: &StateLayer,
        sequences: &[StateSpan],
        (weights, bias): (&Weights, Option<&Weights>),
        [projections, out]: [Tensor; 2],
    ) -> Result<(), GpuError> {
        let (channels, taps) = (layer.shape().channels, layer.shape().rows + 1);
        let tokens = tokens_of(sequences);
        assert!(taps <= TAPS_MAX && weights.rows() * weights.cols() == channels * taps);
        assert!(bias.is_none_or(|bias| bias.rows() * bias.cols() == channels));
        assert!(projections.len() == tokens * 3 * channels && out.len() == tokens * channels);
        let (bias, bias_type) = match bias {
            Some(bias) => (self.weights(bias)?, Number::of(bias.dtype())?.get()),
            None => (0, 0),
        };
        let push = ShortConvolutionPush {
            projections: self.address(projections),
            out: self.address(out),
            weights: self.weights(weights)?,
            bias,
            spans: self.state_spans(layer, sequences, layer.rows_offset())?,
            channels: channels as u32,
            weight_type: Number::of(weights.dtype())?.get(),
            bias_type,
            sequences: sequences.len() as u32,
        };
        let groups = [channels.div_ceil(self.kernels.threads()), sequences.len().min(GROUPS_MAX)];
        self.run(uses, Kernel::ShortConvolution { taps: taps as u32 }, &push, groups)
    }

    pub(super) fn delta_rule(
        &mut self,
        uses: &[Use],
        layer: &StateLayer,
        sequences: &[StateSpan],
        rule: DeltaRule,
        [rates, bias]: [&Weights; 2],
        [qkv, a, b, out]: [Tensor; 4],
    ) -> Result<(), GpuError> {
        let (shape, tokens) = (layer.shape(), tokens_of(sequences));
        let (heads, width) = (shape.heads, rule.width(&shape));
        assert!(qkv.len() == tokens * width && out.len() == tokens * heads * shape.value_width);
        assert!(a.len() == tokens * heads && b.len() == a.len() && heads.is_multiple_of(rule.key_heads));
        let gates = DeltaGatesPush {
            qkv: self.address(qkv),
            a: self.address(a),
            b: self.address(b),
            rates: self.weights(rates)?,
            bias: self.weights(bias)?,
            width: width as u32,
            heads: heads as u32,
            key_heads: rule.key_heads as u32,
            key_width: shape.key_width as u32,
            tokens: tokens as u32,
            rate_type: Number::of(rates.dtype())?.get(),
            bias_type: Number::of(bias.dtype())?.get(),
            are_logarithms: u32::from(rule.decay == DecayForm::Logarithm),
            epsilon: rule.epsilon,
            unused: 0,
        };
        let push = DeltaRulePush {
            qkv: gates.qkv,
            decays: gates.a,
            betas: gates.b,
            result: self.address(out),
            spans: self.state_spans(layer, sequences, layer.matrices_offset())?,
            width: gates.width,
            heads: gates.heads,
            key_heads: gates.key_heads,
            value_width: shape.value_width as u32,
            are_neighbours: u32::from(rule.sharing == KeySharing::Neighbours),
            unused: 0,
        };
        let multiply_adds = 3 * tokens * heads * shape.key_width * shape.value_width;
        self.gpu_queue.count_multiply_adds(multiply_adds as u64);
        let commands = self.gpu_queue.operation(uses);
        self.kernels.run(commands, Kernel::DeltaGates, &gates, in_rows(tokens * (2 * rule.key_heads + 1)))?;
        self.gpu_queue.barrier();
        let columns = self.kernels.delta_columns();
        let groups = [heads * shape.value_width.div_ceil(columns), sequences.len()];
        self.kernels.run(commands, Kernel::DeltaRule { height: shape.key_width as u32 }, &push, groups)
    }

    pub(super) fn state_space(
        &mut self,
        uses: &[Use],
        layer: &StateLayer,
        sequences: &[StateSpan],
        space: StateSpace,
        [rates, bias, skip]: [&Weights; 3],
        [xbc, steps, out]: [Tensor; 3],
    ) -> Result<(), GpuError> {
        let (shape, tokens) = (layer.shape(), tokens_of(sequences));
        let (heads, width) = (shape.heads, space.width(&shape));
        assert!(xbc.len() == tokens * width && out.len() == tokens * heads * shape.value_width);
        assert!(steps.len() == tokens * heads && heads.is_multiple_of(space.groups));
        let [least, most] = space.limits;
        let push = StateSpacePush {
            xbc: self.address(xbc),
            steps: self.address(steps),
            result: self.address(out),
            spans: self.state_spans(layer, sequences, layer.matrices_offset())?,
            rates: self.weights(rates)?,
            bias: self.weights(bias)?,
            skip: self.weights(skip)?,
            width: width as u32,
            heads: heads as u32,
            groups: space.groups as u32,
            value_width: shape.value_width as u32,
            rate_type: Number::of(rates.dtype())?.get(),
            bias_type: Number::of(bias.dtype())?.get(),
            skip_type: Number::of(skip.dtype())?.get(),
            are_logarithms: u32::from(space.decay == DecayForm::Logarithm),
            least,
            most,
        };
        let multiply_adds = 2 * tokens * heads * shape.key_width * shape.value_width;
        self.gpu_queue.count_multiply_adds(multiply_adds as u64);
        let columns = self.kernels.delta_columns();
        let groups = [heads * shape.value_width.div_ceil(columns), sequences.len()];
        self.run(uses, Kernel::StateSpace { height: shape.key_width as u32 }, &push, groups)
    }

    /// Returns the address of the spans in the form in which kernels read them. `offset` is where the state begins in a
    /// block.
    ///
    /// # Panics
    /// Panics if a span names a block of another group.
    fn state_spans(&mut self, layer: &StateLayer, sequences: &[StateSpan], offset: usize) -> Result<u64, GpuError> {
        let mut row = 0;
        let mut spans = Vec::with_capacity(sequences.len());
        layer.check(sequences, self.kv.groups().bytes());
        for span in sequences {
            let address = |block| self.kv.address(block) + offset as u64;
            let (from, to) = (span.from.map_or(0, address), address(span.to));
            let (tokens, stored_after) = (span.tokens as u32, span.stored_after as u32);
            spans.push(StateSpanData { from, to, row, tokens, stored_after, unused: 0 });
            row += span.tokens as u32;
        }
        self.put(bytemuck::cast_slice(&spans))
    }
}

fn tokens_of(sequences: &[StateSpan]) -> usize {
    sequences.iter().map(|span| span.tokens).sum()
}

/// A span, as `states.glsl` has it.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct StateSpanData {
    from: u64,
    to: u64,
    row: u32,
    tokens: u32,
    stored_after: u32,
    unused: u32,
}

/// The arguments of `convolve.comp`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct ConvolvePush {
    x: u64,
    weights: u64,
    /// The address of the bias; 0 if there is none.
    bias: u64,
    spans: u64,
    channels: u32,
    weight_type: u32,
    bias_type: u32,
    sequences: u32,
}

/// The arguments of `short_convolution.comp`. `bias` is 0 if there is none.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct ShortConvolutionPush {
    projections: u64,
    out: u64,
    weights: u64,
    bias: u64,
    spans: u64,
    channels: u32,
    weight_type: u32,
    bias_type: u32,
    sequences: u32,
}

/// The arguments of `delta_gates.comp`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct DeltaGatesPush {
    qkv: u64,
    a: u64,
    b: u64,
    rates: u64,
    bias: u64,
    width: u32,
    heads: u32,
    key_heads: u32,
    key_width: u32,
    tokens: u32,
    rate_type: u32,
    bias_type: u32,
    are_logarithms: u32,
    epsilon: f32,
    unused: u32,
}

/// The arguments of `delta_rule.comp`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct DeltaRulePush {
    qkv: u64,
    decays: u64,
    betas: u64,
    result: u64,
    spans: u64,
    width: u32,
    heads: u32,
    key_heads: u32,
    value_width: u32,
    are_neighbours: u32,
    unused: u32,
}

/// The arguments of `state_space.comp`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct StateSpacePush {
    xbc: u64,
    steps: u64,
    result: u64,
    spans: u64,
    rates: u64,
    bias: u64,
    skip: u64,
    width: u32,
    heads: u32,
    groups: u32,
    value_width: u32,
    rate_type: u32,
    bias_type: u32,
    skip_type: u32,
    are_logarithms: u32,
    least: f32,
    most: f32,
}
