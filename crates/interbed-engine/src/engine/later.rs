//! Tiers below memory may be attached while the engine runs, once it is known whose KV they may hold.

use std::sync::mpsc::TryRecvError;

use super::Worker;
use super::disk::Disk;
use super::remote::Remote;
use crate::kv_disk::KvDisk;
use crate::tiers_below::TiersBelow;

impl Worker {
    /// Attaches `tiers`. This is called before any swap has begun.
    pub(super) fn attach(&mut self, TiersBelow { kv_disk, kv_remote }: TiersBelow) {
        let num_blocks = self.config.kv.num_blocks;
        // If both tiers are attached, both name blocks in the same way.
        match (&kv_disk, &kv_remote) {
            (Some(KvDisk { tier, mode, .. }), _) => {
                self.swaps.share_threads(&tier.threads());
                self.scheduler.name_contents(tier.key_chain().clone(), mode.stores_generated());
                if self.runner.streams_kv() {
                    self.scheduler.allow_long(tier.capacity_tokens());
                }
            }
            (None, Some(remote)) => self.scheduler.name_contents(remote.key_chain().clone(), false),
            (None, None) => {}
        }
        self.disk = kv_disk.map(|disk| Disk::new(disk, num_blocks));
        self.remote = kv_remote.map(|remote| Remote::new(remote, num_blocks));
    }

    /// Attaches the KV tiers that were still being opened when the engine started, if they are open by now.
    pub(super) fn attach_later(&mut self) {
        let Some(later) = self.later.as_ref().filter(|_| self.scheduler.num_swaps() == 0) else { return };
        let tiers = match later.tiers.try_recv() {
            Ok(tiers) => tiers,
            Err(TryRecvError::Empty) => return,
            // The sender was dropped without sending, so no tiers will come.
            Err(TryRecvError::Disconnected) => TiersBelow::default(),
        };
        self.later = None;
        self.scheduler.await_long(0);
        self.attach(tiers);
    }
}
