//! Weights in two tiers whose planners are checked after every step of a pass.

use interbed_device::{Device, DeviceError, Token, Weights};
use interbed_weights::{
    Bands, ElasticWeights, Expert, Rows, StreamMemory, Sweep, TensorId, TieredWeights, WeightError, WeightSource,
};

/// Weights in two tiers. Every call that may move some of them panics if the planners do not agree afterwards.
pub struct Checked(pub TieredWeights);

impl Checked {
    fn after<R>(&mut self, act: impl FnOnce(&mut TieredWeights) -> R) -> R {
        let done = act(&mut self.0);
        assert_eq!(self.0.check_invariants(), Ok(()));
        done
    }
}

impl WeightSource for Checked {
    fn begin_pass(&mut self, tokens: usize) -> Result<(), WeightError> {
        self.after(|weights| weights.begin_pass(tokens))
    }

    fn vector(&self, tensor: TensorId) -> Weights {
        self.0.vector(tensor)
    }

    fn computes_on_host(&self) -> bool {
        self.0.computes_on_host()
    }

    fn vector_on_host(&self, tensor: TensorId) -> Weights {
        self.0.vector_on_host(tensor)
    }

    fn bands(&mut self, device: &mut dyn Device, sweep: &mut Sweep, bands: &mut Bands) -> Result<(), WeightError> {
        self.after(|weights| weights.bands(device, sweep, bands))
    }

    fn release(&mut self, bands: &mut Bands, device: &mut dyn Device, used: Option<Token>) -> Result<(), DeviceError> {
        self.after(|weights| weights.release(bands, device, used))
    }

    fn rows<'a>(&mut self, tensor: TensorId, wanted: &'a [u32]) -> Result<Rows<'a>, WeightError> {
        self.0.rows(tensor, wanted)
    }

    fn holds_expert(&self, group: usize, expert: u32) -> bool {
        self.0.holds_expert(group, expert)
    }

    fn visit(&mut self, device: &mut dyn Device, group: usize, wanted: &[(u32, u32)]) -> Result<(), WeightError> {
        self.after(|weights| weights.visit(device, group, wanted))
    }

    fn next_expert(&mut self, device: &mut dyn Device) -> Result<Option<Expert>, WeightError> {
        self.after(|weights| weights.next_expert(device))
    }

    fn release_expert(
        &mut self,
        expert: Expert,
        device: &mut dyn Device,
        used: Option<Token>,
    ) -> Result<(), DeviceError> {
        self.after(|weights| weights.release_expert(expert, device, used))
    }

    fn looks_ahead(&mut self, group: usize) -> bool {
        self.0.looks_ahead(group)
    }

    fn out_of_turn(&self, tensor: TensorId, bands: &mut Bands) {
        self.0.out_of_turn(tensor, bands);
    }

    fn guess(&mut self, group: usize, guesses: &[(u32, u32)]) {
        self.after(|weights| weights.guess(group, guesses));
    }

    fn end_pass(&mut self) -> Result<(), WeightError> {
        self.after(WeightSource::end_pass)
    }

    fn elastic(&mut self) -> Option<&mut dyn ElasticWeights> {
        Some(self)
    }
}

impl ElasticWeights for Checked {
    fn memory(&mut self, device: &mut dyn Device) -> StreamMemory {
        self.after(|weights| weights.memory(device))
    }

    fn set_budget(&mut self, bytes: u64, device: &mut dyn Device) -> Result<(), WeightError> {
        self.after(|weights| weights.set_budget(bytes, device))
    }

    fn worth(&mut self) -> f64 {
        self.0.worth()
    }

    fn least_budget(&self) -> u64 {
        self.0.least_budget()
    }

    fn full_budget(&self) -> u64 {
        self.0.full_budget()
    }

    fn resident_bytes(&self) -> u64 {
        ElasticWeights::resident_bytes(&self.0)
    }

    fn settle(&mut self) {
        self.after(ElasticWeights::settle);
    }

    fn set_reads_ahead(&mut self, reads_ahead: bool) {
        self.0.set_reads_ahead(reads_ahead);
    }
}
