//! The engine's front door: requests in, events out, over channels.

use std::sync::Arc;

use tokio::sync::mpsc;

use crate::{EngineStatus, Event, Limits, Request, RequestError, SubmitError};

/// A checked request on its way to the engine thread.
#[derive(Debug)]
pub(crate) struct Submission {
    pub(crate) request: Request,
    /// One for each continuation that is wanted; at least one.
    pub(crate) clients: Vec<Client>,
}

/// Where the events of one continuation go.
pub(crate) type Client = mpsc::UnboundedSender<Event>;

/// What the engine thread and the handles share.
pub(crate) trait Shared: Send + Sync {
    fn limits(&self) -> &Limits;
    fn status(&self) -> EngineStatus;
    fn submit(&self, submission: Submission) -> Result<(), SubmitError>;
}

/// A cheap, cloneable reference to a running engine.
#[derive(Clone)]
pub struct EngineHandle {
    pub(crate) shared: Arc<dyn Shared>,
}

impl EngineHandle {
    /// Checks the request and queues it. Dropping the returned stream cancels the request: its blocks are free before
    /// the next step begins.
    ///
    /// # Errors
    /// The request cannot be served ([`SubmitError::Invalid`]), the queue is full, or the engine has stopped.
    pub fn submit(&self, request: Request) -> Result<EventStream, SubmitError> {
        let mut streams = self.submit_many(request, 1)?;
        streams.pop().ok_or(SubmitError::Stopped)
    }

    /// The same for `count` continuations of one prompt, which is computed once (K11). Number `i` has the request's seed
    /// plus `i`, and is what a request of its own with that seed would give; each is cancelled by itself. Of a beam search,
    /// they are the best hypotheses, best first, whose events come when the search is over; it is cancelled when nobody is
    /// left to hear of it.
    ///
    /// # Errors
    /// As for [`EngineHandle::submit`].
    pub fn submit_many(&self, request: Request, count: usize) -> Result<Vec<EventStream>, SubmitError> {
        request.check(self.limits())?;
        request.check_count(count, self.limits())?;
        let (clients, receivers): (Vec<_>, Vec<_>) = (0..count).map(|_| mpsc::unbounded_channel()).unzip();
        self.shared.submit(Submission { request, clients })?;
        Ok(receivers.into_iter().map(|receiver| EventStream { receiver, ended: false }).collect())
    }

    /// What requests are checked against.
    pub fn limits(&self) -> &Limits {
        self.shared.limits()
    }

    /// What the engine was doing when its last step ended.
    pub fn status(&self) -> EngineStatus {
        self.shared.status()
    }
}

/// The events of one continuation. Their number is bounded by the request's `max_tokens` and by how often a sequence makes
/// room, so the channel behind it needs no bound of its own.
#[derive(Debug)]
pub struct EventStream {
    receiver: mpsc::UnboundedReceiver<Event>,
    ended: bool,
}

impl EventStream {
    /// The next event; `None` after `Finished` or `Failed`.
    pub async fn next(&mut self) -> Option<Event> {
        if self.ended {
            return None;
        }
        let event = self.receiver.recv().await;
        Some(self.received(event))
    }

    /// [`EventStream::next`] for callers outside an async runtime.
    pub fn blocking_next(&mut self) -> Option<Event> {
        if self.ended {
            return None;
        }
        let event = self.receiver.blocking_recv();
        Some(self.received(event))
    }

    /// A channel that closes without a last event means that the engine thread has gone.
    fn received(&mut self, event: Option<Event>) -> Event {
        let event = event.unwrap_or(Event::Failed(RequestError::Stopped));
        self.ended = matches!(event, Event::Finished { .. } | Event::Failed(_));
        event
    }
}
