//! What brings bands to where a device reads them.

use std::ops::Range;

use interbed_device::{Device, DeviceError, PlacedBytes, Queue, Token};
use interbed_io::IoError;

use super::sight::UnitSight;
use super::telemetry::Recorder;
use crate::error::WeightError;
use crate::source::Bands;

/// A band that is in use.
pub struct AcquiredBand {
    pub memory: PlacedBytes,
    /// Where in it the band is.
    pub range: Range<usize>,
    /// The copy that brings it there; whoever reads it waits for that.
    pub copied: Option<Token>,
    /// The queue that computes with it.
    pub queue: Queue,
}

/// Moves bands as planners command, while a pass goes on.
pub trait BandDriver: Send {
    /// A pass of `tokens` rows begins.
    fn begin_pass(&mut self, _tokens: usize) {}

    /// See [`WeightSource::computes_on_host`](crate::WeightSource::computes_on_host).
    fn computes_on_host(&self) -> bool {
        false
    }

    /// Takes in what has arrived.
    fn poll(&mut self, device: &mut dyn Device);

    /// Whether acquiring `band` does not wait.
    fn is_ready(&self, band: u32) -> bool;

    /// Whether `band` stays where it is computed with.
    fn is_resident(&self, band: u32) -> bool;

    /// `band`, if it stays in memory and is there, without acquiring it.
    fn resident(&self, _band: u32) -> Option<AcquiredBand> {
        None
    }

    /// Where `band` is.
    fn sight(&self, band: u32) -> UnitSight;

    /// Waits for `band`, which stays where it is until it is released as often as it was acquired.
    ///
    /// # Errors
    /// If its read, or its copy, failed as often as it may be tried.
    fn acquire(&mut self, band: u32, device: &mut dyn Device) -> Result<AcquiredBand, WeightError>;

    /// Releases bands, whose memory is used again once `device` has executed the submission `used`.
    ///
    /// # Errors
    /// If the device failed, or still uses them although that was executed. They are released all the same.
    fn release(&mut self, bands: &mut Bands, device: &mut dyn Device, used: Option<Token>) -> Result<(), DeviceError>;

    /// # Errors
    /// If a file is not what it was.
    fn check_files(&self) -> Result<(), IoError>;

    fn recorder(&mut self) -> &mut Recorder;
}
