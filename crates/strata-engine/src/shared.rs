//! What the engine thread and its handles share: the submission channel, the limits, the last status.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::handle::{Shared, Submission};
use crate::{EngineStatus, Health, Limits, SubmitError};

pub(crate) struct EngineShared {
    limits: Limits,
    stall: Duration,
    /// `None` carries nothing; it wakes the thread, so that it sees that it has to stop.
    submissions: Mutex<Sender<Option<Submission>>>,
    /// Continuations submitted whose request is not yet admitted for the first time; bounds the channel as well as the queue behind it.
    pub(crate) queued: AtomicUsize,
    stop: AtomicBool,
    progress: Mutex<Progress>,
}

struct Progress {
    status: EngineStatus,
    /// When the last step ended, or work arrived at an idle engine.
    moved: Instant,
    busy: bool,
    stuck: Option<String>,
    dead: Option<String>,
}

impl EngineShared {
    pub(crate) fn new(limits: Limits, stall: Duration) -> (Arc<Self>, Receiver<Option<Submission>>) {
        let (sender, receiver) = channel();
        let progress =
            Progress { status: EngineStatus::default(), moved: Instant::now(), busy: false, stuck: None, dead: None };
        let shared = Self {
            limits,
            stall,
            submissions: Mutex::new(sender),
            queued: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            progress: Mutex::new(progress),
        };
        (Arc::new(shared), receiver)
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        let _ = lock(&self.submissions).send(None);
    }

    pub(crate) fn stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Work has arrived.
    pub(crate) fn busy(&self) {
        let mut progress = lock(&self.progress);
        if !progress.busy {
            progress.busy = true;
            progress.moved = Instant::now();
        }
    }

    /// No work is left.
    pub(crate) fn idle(&self) {
        lock(&self.progress).busy = false;
    }

    /// A turn has ended.
    pub(crate) fn publish(&self, status: EngineStatus, stuck: Option<String>) {
        self.publish_at(Instant::now(), status, stuck);
    }

    fn publish_at(&self, now: Instant, status: EngineStatus, stuck: Option<String>) {
        let mut progress = lock(&self.progress);
        if status.steps != progress.status.steps {
            progress.moved = now;
        }
        progress.status = status;
        progress.stuck = stuck;
    }

    fn status_at(&self, now: Instant) -> EngineStatus {
        let progress = lock(&self.progress);
        let since_last_step = now.saturating_duration_since(progress.moved);
        let health = if let Some(reason) = &progress.dead {
            Health::Dead(reason.clone())
        } else if let Some(reason) = &progress.stuck {
            Health::Stalled(reason.clone())
        } else if progress.busy && since_last_step > self.stall {
            Health::Stalled(format!("there is work, but no step has ended for {} s", since_last_step.as_secs()))
        } else {
            Health::Ok
        };
        EngineStatus { health, since_last_step, ..progress.status.clone() }
    }

    pub(crate) fn died(&self, reason: String) {
        self.stop.store(true, Ordering::Release);
        lock(&self.progress).dead = Some(reason);
    }
}

impl Shared for EngineShared {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn status(&self) -> EngineStatus {
        self.status_at(Instant::now())
    }

    fn submit(&self, submission: Submission) -> Result<(), SubmitError> {
        if self.stopping() {
            return Err(SubmitError::Stopped);
        }
        let count = submission.clients.len();
        let waiting = self.queued.fetch_add(count, Ordering::Relaxed);
        if waiting + count > self.limits.max_waiting {
            self.queued.fetch_sub(count, Ordering::Relaxed);
            return Err(SubmitError::Overloaded { waiting });
        }
        lock(&self.submissions).send(Some(submission)).map_err(|_| SubmitError::Stopped)
    }
}

/// The data behind these locks is replaced whole, so a panic while one was held leaves nothing half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALL: Duration = Duration::from_secs(10);

    fn shared() -> Arc<EngineShared> {
        let limits = Limits {
            vocab_size: 1,
            max_model_len: 1,
            model_context: 1,
            kv_capacity_tokens: 1,
            kv_block_tokens: 1,
            max_logprobs: 0,
            max_beam_width: 1,
            max_waiting: 1,
        };
        EngineShared::new(limits, STALL).0
    }

    fn stalled(shared: &EngineShared, now: Instant) -> bool {
        matches!(shared.status_at(now).health, Health::Stalled(_))
    }

    fn after_steps(steps: u64) -> EngineStatus {
        EngineStatus { steps, ..EngineStatus::default() }
    }

    #[test]
    fn health_is_progress() {
        let shared = shared();
        shared.busy();
        let start = Instant::now();
        assert!(!stalled(&shared, start + STALL / 2));
        assert!(stalled(&shared, start + 2 * STALL));
        // A step that ends is progress; a turn without one is not.
        shared.publish_at(start + 2 * STALL, after_steps(1), None);
        assert!(!stalled(&shared, start + 2 * STALL + STALL / 2));
        shared.publish_at(start + 3 * STALL, after_steps(1), None);
        assert!(stalled(&shared, start + 4 * STALL));
        // Without work there is nothing to wait for.
        shared.idle();
        assert!(!stalled(&shared, start + 9 * STALL));
    }

    #[test]
    fn waiting_while_nothing_can_be_scheduled_is_reported() {
        let shared = shared();
        shared.publish(after_steps(1), Some("3 requests wait".into()));
        assert_eq!(shared.status().health, Health::Stalled("3 requests wait".into()));
        shared.publish(after_steps(2), None);
        assert_eq!(shared.status().health, Health::Ok);
    }
}
