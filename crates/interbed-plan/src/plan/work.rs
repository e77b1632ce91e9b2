//! Counts what a pass must compute and move, unit by unit. This is pure arithmetic.

use super::bound::{Pass, Rates};
use interbed_weights::{Role, WeightUnit};

use super::shape::Shape;

/// Describes the work of a pass through the model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Work {
    /// Number of tokens in the pass.
    pub tokens: usize,
    /// Number of tokens whose logits are wanted; 0 leaves the head out.
    pub logits: usize,
    /// Bytes of keys and values that attention reads.
    pub kv_bytes: f64,
}

impl Work {
    /// Returns the work of a pass that decodes one token of each of `batch` sequences, each after `context` tokens
    /// whose KV takes `kv_token` bytes each.
    pub fn decode(batch: usize, context: usize, kv_token: u64) -> Self {
        Self { tokens: batch, logits: batch, kv_bytes: batch as f64 * context as f64 * kv_token as f64 }
    }

    /// Returns the work of a pass that computes `tokens` tokens of a prompt, after `before` other tokens; `last` says
    /// whether these tokens end the prompt.
    pub fn prefill(tokens: usize, before: usize, last: bool, kv_token: u64) -> Self {
        Self { tokens, logits: usize::from(last), kv_bytes: (before + tokens) as f64 * kv_token as f64 }
    }

    /// Counts the bytes and operations of a pass through `shape`, of whose weights `host` and `device` bytes are in
    /// memory.
    pub fn pass(&self, shape: &Shape, host: f64, device: f64) -> Pass {
        let units = shape.units.iter().filter(|unit| self.touches(unit));
        let (mut weights, mut operations) = (0.0, 0.0);
        for unit in units {
            weights += unit.bytes as f64;
            operations += self.operations(unit);
        }
        // The part that a pass leaves out has the same share of resident weights as the others.
        let part = weights / shape.swept_bytes().max(1) as f64;
        Pass { weights, host: host * part, device: device * part, kv: self.kv_bytes, operations }
    }

    /// Returns whether the pass needs this unit of weights.
    pub fn touches(&self, unit: &WeightUnit) -> bool {
        unit.role != Role::Head || self.logits > 0
    }

    /// Returns the nanoseconds of computing with one unit. `kv_per_byte` spreads reads of keys and values over the
    /// weights of attention; bytes that came from disk cross host memory once more.
    pub fn compute_ns(&self, unit: &WeightUnit, streamed: bool, kv_per_byte: f64, rates: &Rates) -> u64 {
        let bytes = unit.bytes as f64;
        let kv = if unit.role == Role::Attention { self.kv_bytes * kv_per_byte * bytes } else { 0.0 };
        let memory = match rates.device {
            Some((_, memory)) => (bytes + kv) / memory,
            None => (bytes + kv + if streamed { bytes } else { 0.0 }) / rates.host,
        };
        (memory.max(self.operations(unit) / rates.flops) * 1e9) as u64
    }

    /// Returns the nanoseconds that the host takes to compute with a unit that it holds, if a device computes with the
    /// other units.
    pub fn host_ns(&self, unit: &WeightUnit, rates: &Rates) -> u64 {
        ((unit.bytes as f64 / rates.host).max(self.operations(unit) / rates.host_flops) * 1e9) as u64
    }

    fn operations(&self, unit: &WeightUnit) -> f64 {
        let rows = if unit.role == Role::Head { self.logits } else { self.tokens };
        2.0 * unit.parameters as f64 * rows as f64
    }
}

/// Returns the share of all keys and values that is read with one byte of attention weights, for [`Work::compute_ns`].
pub(super) fn kv_per_byte(shape: &Shape) -> f64 {
    let attention = shape.units.iter().filter(|unit| unit.role == Role::Attention).map(|unit| unit.bytes).sum::<u64>();
    if attention > 0 { 1.0 / attention as f64 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use interbed_kernels::DType;

    use super::super::shape::Cut;
    use super::super::shape::tests::shape_of;
    use super::*;

    #[test]
    fn units_add_up_to_the_pass() {
        let shape = shape_of("llama-3-8b", DType::BF16, Cut::Bands(4 << 20));
        let rates = Rates { disk: 1e9, host: 20e9, flops: 1e11, host_flops: 1e11, device: None };
        let load = Work::decode(1, 1000, 131_072);
        let pass = load.pass(&shape, 0.0, 0.0);
        assert_eq!(pass.weights, shape.swept_bytes() as f64);
        assert_eq!(pass.operations, pass.weights);
        let share = kv_per_byte(&shape);
        let total: u64 = shape.units.iter().map(|unit| load.compute_ns(unit, false, share, &rates)).sum();
        let expected = (pass.weights + pass.kv) / 20e9 * 1e9;
        assert!((total as f64 / expected - 1.0).abs() < 1e-3, "{total} for {expected}");
        // Many tokens: arithmetic. A chunk that is not the last: no head.
        let chunk = Work::prefill(512, 0, false, 131_072);
        let touched = shape.units.iter().filter(|unit| chunk.touches(unit));
        let total: u64 = touched.map(|unit| chunk.compute_ns(unit, false, share, &rates)).sum();
        let pass = chunk.pass(&shape, 0.0, 0.0);
        assert_eq!(pass.weights as u64, shape.swept_bytes() - shape.head_bytes());
        assert!((total as f64 / 1e9 / (pass.operations / 1e11) - 1.0).abs() < 1e-3, "{total}");
    }
}
