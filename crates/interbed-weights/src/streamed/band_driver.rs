//! Trait of the drivers that bring bands to where a device reads them.

use std::ops::Range;

use interbed_device::{Device, DeviceError, PlacedBytes, Queue, Token};
use interbed_io::IoError;

use super::sight::UnitSight;
use super::slab_driver::SlabDriver;
use super::telemetry::Recorder;
use crate::error::WeightError;
use crate::source::Bands;
use crate::window::{Window, WindowError};

/// A band that is ready for computation, and the memory that holds its bytes.
pub struct AcquiredBand {
    pub memory: PlacedBytes,
    /// Range of the band's bytes in `memory`.
    pub range: Range<usize>,
    /// Submission that copies the band into `memory`. Computations with the band must wait for the submission. `None`
    /// if no copy is needed.
    pub copied: Option<Token>,
    /// Queue for computations with the band.
    pub queue: Queue,
}

/// Loads and evicts bands during a forward pass, as a planner commands.
pub trait BandDriver: Send {
    /// Driver that brings experts to the memory to which this driver brings bands.
    type Experts: SlabDriver;

    /// Takes note that a pass of `tokens` rows begins.
    fn begin_pass(&mut self, _tokens: usize) {}

    /// Returns whether the host computes with some bands of this pass.
    /// [`WeightSource::computes_on_host`](crate::WeightSource::computes_on_host) passes the answer on.
    fn computes_on_host(&self) -> bool {
        false
    }

    /// Takes in the reads and copies that have ended, without a wait.
    fn poll(&mut self, device: &mut dyn Device);

    /// Returns whether acquiring `band` does not wait.
    fn is_ready(&self, band: u32) -> bool;

    /// Returns whether `band` stays in the memory in which it is computed with.
    fn is_resident(&self, band: u32) -> bool;

    /// Returns `band` without acquiring it, if it stays in memory and is there now.
    fn resident(&self, _band: u32) -> Option<AcquiredBand> {
        None
    }

    /// Returns the window of the memory in which bands are computed with.
    fn window(&self) -> &Window;

    /// Returns the number of bytes that bands take of that memory, including free slots.
    fn memory(&self) -> u64;

    /// Returns the number of bytes of host memory that bands take besides, if the memory in which they are computed
    /// with is a device's.
    fn beside(&self) -> u64 {
        0
    }

    /// Changes the window's budget to `bytes` bytes, as [`Window::set_budget`] describes.
    ///
    /// # Errors
    /// Fails if the budget is below the least that works.
    fn set_budget(&mut self, bytes: u64, device: &mut dyn Device) -> Result<(), WindowError>;

    /// Waits until no read is in flight.
    fn settle(&mut self);

    /// Returns where `band` is.
    fn sight(&self, band: u32) -> UnitSight;

    /// Waits for `band`, which stays where it is until it is released as often as it was acquired.
    ///
    /// # Errors
    /// Fails if the read or the copy of `band` failed as often as it may be tried, or if nothing can end the wait.
    fn acquire(&mut self, band: u32, device: &mut dyn Device) -> Result<AcquiredBand, WeightError>;

    /// Releases bands. Their memory is used again once `device` has executed the submission `used`.
    ///
    /// # Errors
    /// Fails if the device failed, or if it still uses the bands although it has executed `used`. The bands are
    /// released all the same.
    fn release(&mut self, bands: &mut Bands, device: &mut dyn Device, used: Option<Token>) -> Result<(), DeviceError>;

    /// Checks that the files of the weights have not changed.
    ///
    /// # Errors
    /// Fails if a file is no longer what it was when it was opened.
    fn check_files(&self) -> Result<(), IoError>;

    fn recorder(&mut self) -> &mut Recorder;
}
