//! Trait of the drivers that bring experts to where a device reads them.

use interbed_device::{Device, DeviceError, Token};

use super::telemetry::Recorder;
use crate::error::WeightError;
use crate::experts::Arena;
use crate::source::Expert;

/// Brings the experts that passes want, and keeps as many of them as there is room for.
pub trait SlabDriver: Send {
    /// Returns the arena that decides which experts stay where the device reads them. This arena counts all uses.
    fn arena(&self) -> &Arena;

    /// Returns the arena for changes, such as warming it.
    fn arena_mut(&mut self) -> &mut Arena;

    /// Returns whether an expert is in memory.
    fn holds(&self, group: usize, expert: u32) -> bool;

    /// Returns the group that is visited; `None` if there is no visit.
    fn group(&self) -> Option<u32>;

    /// Begins the visit to a group's experts that [`WeightSource::visit`](crate::WeightSource::visit) describes.
    fn visit(
        &mut self,
        group: usize,
        wanted: &[(u32, u32)],
        device: &mut dyn Device,
        recorder: &mut Recorder,
    ) -> Result<(), DeviceError>;

    /// Returns the expert that [`WeightSource::next_expert`](crate::WeightSource::next_expert) describes.
    fn next_expert(&mut self, device: &mut dyn Device, recorder: &mut Recorder) -> Result<Option<Expert>, WeightError>;

    /// Releases an expert in the way that [`WeightSource::release_expert`](crate::WeightSource::release_expert)
    /// describes.
    fn release(
        &mut self,
        expert: Expert,
        device: &mut dyn Device,
        used: Option<Token>,
        recorder: &mut Recorder,
    ) -> Result<(), DeviceError>;

    /// Ends a visit that a failed pass has left. Reads of the visit go on, and the slabs that they bring are kept.
    fn abandon(&mut self);

    /// Takes in the reads and copies that have ended, without a wait.
    fn poll(&mut self, device: &mut dyn Device, recorder: &mut Recorder);

    /// Returns the number of bytes of host memory that slots take besides, if a device reads slabs in memory of its
    /// own.
    fn beside(&self) -> u64 {
        0
    }

    /// Returns whether reads are in flight.
    fn is_loading(&self) -> bool;

    /// Changes the number of bytes that all slots together may take, where the device reads them. If the number
    /// shrinks, slots are removed, and their memory is freed as soon as nothing uses it. The call ends the current
    /// visit, so it must be made between passes.
    ///
    /// # Errors
    /// Fails if `bytes` is less than the least with which experts can be computed with, or if the device fails.
    fn set_budget(&mut self, bytes: u64, device: &mut dyn Device) -> Result<(), WeightError>;

    /// Waits until no read is in flight.
    fn settle(&mut self, recorder: &mut Recorder);

    /// Sets whether slabs are read before passes want them, if the driver can do so.
    fn set_reads_ahead(&mut self, _reads_ahead: bool) {}

    /// Returns whether it is worth the work to guess which experts a group will want.
    fn looks_ahead(&mut self, _group: usize) -> bool {
        false
    }

    /// Takes the guesses that [`WeightSource::guess`](crate::WeightSource::guess) describes, and begins to read ahead.
    fn guess(&mut self, _group: usize, _guesses: &[(u32, u32)], _recorder: &mut Recorder) {}

    /// Drops the guesses whose reads have not begun, since the pass that they were made for has ended.
    fn forget_guesses(&mut self) {}
}
