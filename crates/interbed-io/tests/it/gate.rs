//! A file whose reads block until they are let through, and which reports how many are in flight.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Condvar, Mutex};

use interbed_io::{DirectRead, IoError};

/// A file whose reads return without bytes, one for each ticket.
#[derive(Default)]
pub struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    tickets: usize,
    entered: Vec<u64>,
    left: usize,
}

impl Gate {
    /// Lets `tickets` reads through.
    pub fn open(&self, tickets: usize) {
        self.state.lock().unwrap().tickets += tickets;
        self.changed.notify_all();
    }

    /// Waits until `count` reads have entered, and returns the offsets of all that have.
    pub fn entered(&self, count: usize) -> Vec<u64> {
        let state = self.state.lock().unwrap();
        self.changed.wait_while(state, |state| state.entered.len() < count).unwrap().entered.clone()
    }

    /// Reads that have returned.
    pub fn left(&self) -> usize {
        self.state.lock().unwrap().left
    }
}

impl DirectRead for Gate {
    fn path(&self) -> &Path {
        Path::new("gate")
    }

    fn len(&self) -> u64 {
        1 << 40
    }

    fn read_aligned_at(&self, _buf: &mut [u8], offset: u64, _needed: usize) -> Result<(), IoError> {
        let mut state = self.state.lock().unwrap();
        state.entered.push(offset);
        self.changed.notify_all();
        let mut state = self.changed.wait_while(state, |state| state.tickets == 0).unwrap();
        state.tickets -= 1;
        state.left += 1;
        Ok(())
    }

    fn check_unchanged(&self) -> Result<(), IoError> {
        Ok(())
    }

    fn direct_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
