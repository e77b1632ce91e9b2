//! The memory of streamed weights, which can become larger and smaller between passes.

use interbed_device::Device;

use super::BandwiseWeights;
use super::band_driver::BandDriver;
use super::slab_driver::SlabDriver;
use super::valued::ExpertFigures;
use crate::error::WeightError;
use crate::source::{ElasticWeights, StreamMemory};
use crate::window::UnitId;

impl<D: BandDriver> ElasticWeights for BandwiseWeights<D> {
    fn memory(&mut self, device: &mut dyn Device) -> StreamMemory {
        self.driver.poll(device);
        let fixed = self.partition.fixed_bytes();
        let mut memory = StreamMemory {
            budget: fixed.saturating_add(self.driver.window().budget()),
            held: fixed.saturating_add(self.driver.memory()),
            beside: self.driver.beside(),
            loading: self.driver.window().in_flight() > 0,
        };
        if let Some(experts) = &mut self.experts {
            experts.poll(device, self.driver.recorder());
            memory.budget = memory.budget.saturating_add(experts.arena().budget());
            memory.held = memory.held.saturating_add(experts.arena().bytes());
            memory.beside = memory.beside.saturating_add(experts.beside());
            memory.loading |= experts.is_loading();
        }
        memory
    }

    fn set_budget(&mut self, bytes: u64, device: &mut dyn Device) -> Result<(), WeightError> {
        let (of_bands, of_experts) = self.partition.divide(bytes);
        self.driver.set_budget(of_bands, device)?;
        if let Some(experts) = &mut self.experts {
            experts.set_budget(of_experts, device)?;
        }
        Ok(())
    }

    fn worth(&mut self) -> f64 {
        let figures = |experts: &D::Experts| {
            let arena = experts.arena();
            ExpertFigures { missed: arena.shadow_hits(), bank_bytes: arena.shape().bank_bytes() }
        };
        let experts = self.experts.as_ref().map(figures);
        // Asked in each turn of the engine: a dense model's many bands are not walked for it.
        let all_bands_stay = experts.is_some() && self.resident_bytes() >= self.monitor.swept_bytes();
        self.valued.worth(self.driver.recorder().stats, all_bands_stay, experts)
    }

    fn least_budget(&self) -> u64 {
        let of_experts = self.partition.experts().map_or(0, |(_, shape)| shape.least_bytes());
        self.partition.fixed_bytes().saturating_add(self.driver.window().least_budget()).saturating_add(of_experts)
    }

    fn full_budget(&self) -> u64 {
        self.partition.full_budget()
    }

    fn resident_bytes(&self) -> u64 {
        self.partition.bytes_where(|band| self.driver.window().is_resident(UnitId(band)))
    }

    fn settle(&mut self) {
        self.driver.settle();
        if let Some(experts) = &mut self.experts {
            experts.settle(self.driver.recorder());
        }
        self.publish();
    }

    fn set_reads_ahead(&mut self, reads_ahead: bool) {
        if let Some(experts) = &mut self.experts {
            experts.set_reads_ahead(reads_ahead);
        }
    }
}
