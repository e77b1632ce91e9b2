//! The times at which a device executed commands.

use std::sync::{Mutex, PoisonError};

use interbed_device::DeviceEvent;

/// The most batches that a timeline keeps. The batches take about 20 MB, which no budget counts.
const EVENTS_MAX: usize = 400_000;

/// Record of the batches of commands that ran on a device, with the times at which each batch began and ended. If the
/// record becomes full, further batches are not recorded until [`take`](Self::take) is called.
#[derive(Debug, Default)]
pub struct DeviceTimeline(Mutex<Vec<DeviceEvent>>);

impl DeviceTimeline {
    /// Returns the batches that were recorded since the last call, and removes them from the record.
    pub fn take(&self) -> Vec<DeviceEvent> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds batches that have ended, as far as the timeline has room.
    pub(crate) fn add(&self, new: Vec<DeviceEvent>) {
        let mut events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = EVENTS_MAX.saturating_sub(events.len());
        events.extend(new.into_iter().take(room));
    }
}
