//! The interface of the engine to other threads: requests go in and events come out over channels. The handle also
//! reads the status that the engine last published.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::live::{Board, Watcher};
use crate::places::{Place, Places};
use crate::unread::{Charge, Unread};
use crate::{EngineStatus, Event, Health, Limits, Request, RequestError, SubmitError, TenantId};

/// A checked request on its way to the engine thread.
#[derive(Debug)]
pub(crate) struct Submission {
    pub(crate) request: Request,
    /// One client for each continuation that was asked for; at least one.
    pub(crate) clients: Vec<Client>,
}

/// The receiver of one continuation's events. It also holds a place in the queue until the continuation is first
/// admitted.
#[derive(Debug)]
pub(crate) struct Client {
    events: mpsc::UnboundedSender<(Event, Option<Charge>)>,
    ticket: Option<Place<Option<TenantId>>>,
    submitted: Instant,
    /// How long the continuation was in the queue, once it has left the queue.
    waited: Arc<OnceLock<Duration>>,
    /// The account of events that the client has not read, if their memory is bounded.
    unread: Option<Unread>,
    /// Whether the client left too many events unread. Such a client was told so, and is sent nothing more.
    is_behind: AtomicBool,
}

impl Client {
    /// Creates a client without a place in the queue, and the stream of its events.
    fn new(unread: Option<Unread>) -> (Self, EventStream) {
        let (events, receiver) = mpsc::unbounded_channel();
        let waited = Arc::new(OnceLock::new());
        let is_behind = AtomicBool::new(false);
        let client =
            Self { events, ticket: None, submitted: Instant::now(), waited: Arc::clone(&waited), unread, is_behind };
        (client, EventStream { receiver, waited, ended: false })
    }

    /// Sends an event. The engine notices before the next pass if a client has gone or has left too much unread, so
    /// this reports no failure.
    pub(crate) fn send(&self, event: Event) {
        if self.is_behind.load(Ordering::Relaxed) {
            return;
        }
        let charge = self.unread.as_ref().map(|unread| unread.charge(&event));
        let _ = match charge {
            // The last event is sent even if there is no room for it.
            Some(None) if !event.is_last() => {
                self.is_behind.store(true, Ordering::Relaxed);
                self.events.send((Event::Failed(RequestError::Unread), None))
            }
            charge => self.events.send((event, charge.flatten())),
        };
    }

    /// Returns whether the client has dropped its stream, or was told that it has left too much of the stream unread.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_behind.load(Ordering::Relaxed) || self.events.is_closed()
    }

    /// Gives the place in the queue back, because the client's continuation has been admitted. Further calls change
    /// nothing.
    pub(crate) fn leave_queue(&mut self) {
        self.ticket = None;
        self.waited.get_or_init(|| self.submitted.elapsed());
    }
}

/// A cheap, cloneable reference to a running engine.
#[derive(Clone)]
pub struct EngineHandle {
    pub(crate) shared: Arc<EngineShared>,
}

impl EngineHandle {
    /// Checks the request and queues it. Dropping the returned stream cancels the request; its KV blocks are then freed
    /// before the next step begins.
    ///
    /// # Errors
    /// Fails if the request cannot be served ([`SubmitError::Invalid`]), if the queue is full
    /// ([`SubmitError::Overloaded`]), or if the engine has stopped ([`SubmitError::Stopped`]).
    pub fn submit(&self, request: Request) -> Result<EventStream, SubmitError> {
        let mut streams = self.submit_many(request, 1)?;
        streams.pop().ok_or(SubmitError::Stopped)
    }

    /// Checks the request and queues `count` continuations of its prompt. The prompt is computed only once.
    /// Continuation `i`, counted from 0, uses the request's seed plus `i`, and equals the answer to a separate request
    /// with that seed. Dropping the stream of a continuation cancels only this continuation.
    ///
    /// For a beam search, the first stream carries the best hypothesis, the second stream the second best, and so on.
    /// The events come when the search is over. Dropping all streams cancels the search.
    ///
    /// # Errors
    /// Fails if the request or `count` cannot be served ([`SubmitError::Invalid`]), if the queue is full
    /// ([`SubmitError::Overloaded`]), or if the engine has stopped ([`SubmitError::Stopped`]).
    pub fn submit_many(&self, request: Request, count: usize) -> Result<Vec<EventStream>, SubmitError> {
        request.check(self.limits())?;
        request.check_count(count, self.limits())?;
        let unread = || request.unread.clone().map(Unread::new);
        let (clients, streams) = (0..count).map(|_| Client::new(unread())).unzip();
        self.shared.submit(Submission { request, clients })?;
        Ok(streams)
    }

    /// Returns the limits that requests are checked against.
    pub fn limits(&self) -> &Limits {
        &self.shared.limits
    }

    /// Returns the engine's last published status.
    pub fn status(&self) -> EngineStatus {
        self.shared.status_at(Instant::now())
    }

    /// Returns a watcher, which reads the engine's state for display. While a watcher exists, the engine publishes its
    /// state between steps, at most ten times a second.
    pub fn watch(&self) -> Watcher {
        let watcher = Watcher::new(Arc::clone(&self.shared.board));
        self.shared.wake();
        watcher
    }

    /// Blocks until `holds` returns true for the engine's status, and returns that status. Returns `None` if this takes
    /// longer than `within`.
    pub fn wait_until(&self, within: Duration, mut holds: impl FnMut(&EngineStatus) -> bool) -> Option<EngineStatus> {
        let deadline = Instant::now() + within;
        let mut progress = lock(&self.shared.progress);
        loop {
            let now = Instant::now();
            let status = self.shared.status_of(&progress, now);
            if holds(&status) {
                return Some(status);
            }
            if now >= deadline {
                return None;
            }
            // No notification announces a stall, because a stall depends on time alone.
            let stalls = progress.moved + self.shared.stall + Duration::from_millis(1);
            let wake = if stalls > now { stalls.min(deadline) } else { deadline };
            let waited = self.shared.changed.wait_timeout(progress, wake - now);
            (progress, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Stream of the events of one continuation. The number of events is limited by the request's `max_tokens` and by the
/// number of preemptions. If the request has an [`UnreadBudget`](crate::UnreadBudget), this budget limits the memory
/// that unread events take.
#[derive(Debug)]
pub struct EventStream {
    receiver: mpsc::UnboundedReceiver<(Event, Option<Charge>)>,
    waited: Arc<OnceLock<Duration>>,
    ended: bool,
}

impl EventStream {
    /// Returns the time from the submission of the continuation to its first admission, or `None` if it has not been
    /// admitted yet. If KV of the prompt is read from disk or from a shared store, the continuation counts as admitted
    /// when the read has ended. If several continuations of a prompt are sampled, the first is admitted before the
    /// prompt is computed, and the others afterwards.
    pub fn waited(&self) -> Option<Duration> {
        self.waited.get().copied()
    }

    /// Waits for the next event. Returns `None` after `Finished` or `Failed`.
    pub async fn next(&mut self) -> Option<Event> {
        if self.ended {
            return None;
        }
        let received = self.receiver.recv().await;
        Some(self.event(received))
    }

    /// Blocks the thread until the next event comes. Returns `None` after `Finished` or `Failed`. This is
    /// [`EventStream::next`] for callers outside an async runtime.
    pub fn blocking_next(&mut self) -> Option<Event> {
        if self.ended {
            return None;
        }
        let received = self.receiver.blocking_recv();
        Some(self.event(received))
    }

    /// Returns the next event without waiting. Returns `None` if no event has come yet, or after `Finished` or
    /// `Failed`.
    pub fn try_next(&mut self) -> Option<Event> {
        match self.receiver.try_recv() {
            _ if self.ended => None,
            Err(mpsc::error::TryRecvError::Empty) => None,
            received => Some(self.event(received.ok())),
        }
    }

    /// Returns the event that was received. A channel that closes without a last event means that the engine thread has
    /// ended, so `None` becomes [`RequestError::Stopped`].
    fn event(&mut self, received: Option<(Event, Option<Charge>)>) -> Event {
        let event = received.map_or(Event::Failed(RequestError::Stopped), |(event, _)| event);
        self.ended = event.is_last();
        event
    }
}

/// The state that the engine thread shares with its handles.
pub(crate) struct EngineShared {
    limits: Limits,
    stall: Duration,
    /// Sends requests to the engine thread. `None` only wakes the thread, so that it sees that it has to stop or that
    /// somebody watches.
    submissions: Mutex<Sender<Option<Submission>>>,
    /// The places of the waiting queue. A continuation holds a place from its submission until it is first admitted or
    /// its request ends. The places bound the channel as well as the queue behind it.
    queue: Arc<Places<Option<TenantId>>>,
    stop: AtomicBool,
    progress: Mutex<Progress>,
    /// The condition that is notified when `progress` has changed.
    changed: Condvar,
    pub(crate) board: Arc<Board>,
}

struct Progress {
    status: EngineStatus,
    /// The time at which the last step ended, or at which work arrived at an idle engine.
    moved: Instant,
    busy: bool,
    stuck: Option<String>,
    dead: Option<String>,
}

impl EngineShared {
    pub(crate) fn new(limits: Limits, stall: Duration, board: Board) -> (Arc<Self>, Receiver<Option<Submission>>) {
        let (sender, receiver) = channel();
        let progress =
            Progress { status: EngineStatus::default(), moved: Instant::now(), busy: false, stuck: None, dead: None };
        let shared = Self {
            queue: Places::new(limits.max_waiting),
            limits,
            stall,
            submissions: Mutex::new(sender),
            stop: AtomicBool::new(false),
            progress: Mutex::new(progress),
            changed: Condvar::new(),
            board: Arc::new(board),
        };
        (Arc::new(shared), receiver)
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    pub(crate) fn stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Notes that work has arrived.
    pub(crate) fn busy(&self) {
        let mut progress = lock(&self.progress);
        if !progress.busy {
            progress.busy = true;
            progress.moved = Instant::now();
        }
    }

    /// Notes that no work is left.
    pub(crate) fn idle(&self) {
        lock(&self.progress).busy = false;
    }

    /// Publishes the engine's figures after a turn, which has ended `now`.
    pub(crate) fn publish(&self, now: Instant, status: EngineStatus, stuck: Option<String>) {
        let mut progress = lock(&self.progress);
        if status.steps != progress.status.steps {
            progress.moved = now;
        }
        progress.status = status;
        progress.stuck = stuck;
        drop(progress);
        self.changed.notify_all();
    }

    fn status_at(&self, now: Instant) -> EngineStatus {
        self.status_of(&lock(&self.progress), now)
    }

    fn status_of(&self, progress: &Progress, now: Instant) -> EngineStatus {
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
        self.changed.notify_all();
    }

    fn submit(&self, mut submission: Submission) -> Result<(), SubmitError> {
        if self.stopping() {
            return Err(SubmitError::Stopped);
        }
        let Submission { request, clients } = &mut submission;
        let tickets = self.queue.take(request.tenant, clients.len());
        let tickets = tickets.map_err(|waiting| SubmitError::Overloaded { waiting })?;
        clients.iter_mut().zip(tickets).for_each(|(client, ticket)| client.ticket = Some(ticket));
        lock(&self.submissions).send(Some(submission)).map_err(|_| SubmitError::Stopped)
    }

    /// Wakes an idle engine, so that it looks whether somebody watches or whether it has to stop.
    fn wake(&self) {
        // The send fails only if the engine has ended, and then it shows nothing any more.
        let _ = lock(&self.submissions).send(None);
    }
}

/// Locks `mutex` even if a thread panicked while it held the lock. The data behind these locks is replaced as a whole,
/// so a panic leaves nothing half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALL: Duration = Duration::from_secs(10);

    fn limits() -> Limits {
        Limits {
            vocab_size: 1,
            max_model_len: 1,
            model_context: 1,
            kv_capacity_tokens: 1,
            kv_block_tokens: 1,
            kv_blocks_beside: 0,
            max_logprobs: 0,
            max_beam_width: 1,
            max_waiting: 1,
        }
    }

    fn shared() -> Arc<EngineShared> {
        EngineShared::new(limits(), STALL, Board::default()).0
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
        shared.publish(start + 2 * STALL, after_steps(1), None);
        assert!(!stalled(&shared, start + 2 * STALL + STALL / 2));
        shared.publish(start + 3 * STALL, after_steps(1), None);
        assert!(stalled(&shared, start + 4 * STALL));
        // Without work there is nothing to wait for.
        shared.idle();
        assert!(!stalled(&shared, start + 9 * STALL));
    }

    #[test]
    fn a_place_in_the_queue_counts_until_its_continuation_is_admitted_or_ends() {
        let (shared, submissions) = EngineShared::new(Limits { max_waiting: 4, ..limits() }, STALL, Board::default());
        let submit = |tenant: u128, count| {
            let request = Request { tenant: Some(TenantId(tenant)), ..Request::default() };
            let clients = (0..count).map(|_| Client::new(None).0).collect();
            shared.submit(Submission { request, clients })
        };
        let next = || submissions.try_recv().ok().flatten().expect("a submission").clients;
        submit(1, 3).expect("room");
        let mut first = next();
        assert_eq!(submit(1, 2), Err(SubmitError::Overloaded { waiting: 3 }));
        first.pop();
        first[0].leave_queue();
        submit(1, 3).expect("room again");
        let second = next();
        assert_eq!(submit(1, 1), Err(SubmitError::Overloaded { waiting: 4 }));
        // Another tenant has half of the queue, whoever fills it.
        submit(2, 2).expect("a share");
        assert_eq!(submit(2, 1), Err(SubmitError::Overloaded { waiting: 6 }));
        drop((first, second, next()));
        assert_eq!(shared.queue.taken_in_all(), 0);
    }

    #[test]
    fn waiting_while_nothing_can_be_scheduled_is_reported() {
        let shared = shared();
        shared.publish(Instant::now(), after_steps(1), Some("3 requests wait".into()));
        assert_eq!(shared.status_at(Instant::now()).health, Health::Stalled("3 requests wait".into()));
        shared.publish(Instant::now(), after_steps(2), None);
        assert_eq!(shared.status_at(Instant::now()).health, Health::Ok);
    }
}
