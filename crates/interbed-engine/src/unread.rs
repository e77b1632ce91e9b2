//! Bounds the events that clients have not read yet, over all clients together.
//!
//! The engine never waits for a client. A client that reads more slowly than its tokens come leaves events unread. When
//! a client has left too many unread, its stream ends with an error that says so, and no other stream ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::Event;

/// The bytes that an event takes in a channel, apart from log-probabilities.
const EVENT_BYTES: usize = 128;
/// The bytes of one log-probability in a list.
const LOGPROB_BYTES: usize = 16;
/// A stream may leave one part in this many of the whole budget unread.
const STREAM_PART: usize = 4;
/// The bytes that a stream may always leave unread. A stream with no more is not ended, however much others have.
const ALWAYS_BYTES: usize = 16 << 10;

/// A limit, in bytes, on the memory that events take until clients have read them. The limit applies to all streams of
/// a budget together.
#[derive(Debug)]
pub struct UnreadBudget {
    limit: usize,
    bytes: AtomicUsize,
}

/// The bytes that one stream has left unread.
#[derive(Debug, Clone)]
pub(crate) struct Unread {
    budget: Arc<UnreadBudget>,
    own: Arc<AtomicUsize>,
}

/// The charge for an event that waits to be read. Dropping it with the event gives the bytes back.
#[derive(Debug)]
pub(crate) struct Charge {
    unread: Unread,
    bytes: usize,
}

impl UnreadBudget {
    /// Creates a budget of `bytes` bytes. A stream ends with an error when a new event would make its unread events
    /// exceed a quarter of the budget, or would make the unread events of all streams exceed the budget. There are two
    /// exceptions: a stream does not end while its unread events, including the new one, take at most 16 KiB, or while
    /// the new event is its only unread event.
    pub fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self { limit: bytes, bytes: AtomicUsize::new(0) })
    }

    /// Returns the number of bytes that the unread events of all streams of this budget take now.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl Unread {
    pub(crate) fn new(budget: Arc<UnreadBudget>) -> Self {
        Self { budget, own: Arc::default() }
    }

    /// Counts `event` as unread; returns `None` if the stream has left too much unread already.
    pub(crate) fn charge(&self, event: &Event) -> Option<Charge> {
        let bytes = EVENT_BYTES + LOGPROB_BYTES * logprobs(event);
        // Only the engine thread adds, so nothing is added between these loads and the additions below.
        let own = self.own.load(Ordering::Relaxed) + bytes;
        let all = self.budget.bytes() + bytes;
        let limit = self.budget.limit;
        // A single event, such as a prompt's log-probabilities, was charged for when it was asked for.
        let is_first = own == bytes;
        if !is_first && own > ALWAYS_BYTES && (own > limit / STREAM_PART || all > limit) {
            return None;
        }
        self.own.fetch_add(bytes, Ordering::Relaxed);
        self.budget.bytes.fetch_add(bytes, Ordering::Relaxed);
        Some(Charge { unread: self.clone(), bytes })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.unread.own.fetch_sub(self.bytes, Ordering::Relaxed);
        self.unread.budget.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Returns how many log-probabilities an event carries. Those of a prompt are not counted, because its request was
/// charged for them.
fn logprobs(event: &Event) -> usize {
    match event {
        Event::Token { logprobs: Some(position), .. } => position.top.len() + 2,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: Event = Event::Token { id: 1, logprobs: None };

    #[test]
    fn a_stream_that_is_left_unread_ends_and_others_go_on() {
        let budget = UnreadBudget::new(256 << 10);
        let [slow, other] = [(); 2].map(|()| Unread::new(budget.clone()));
        let mut left: Vec<Charge> = std::iter::from_fn(|| slow.charge(&TOKEN)).collect();
        assert_eq!(left.len(), (64 << 10) / EVENT_BYTES, "a quarter of all");
        assert!(other.charge(&TOKEN).is_some());
        left.pop();
        assert!(slow.charge(&TOKEN).is_some(), "it has read one");
        drop(left);
        assert_eq!(budget.bytes(), 0);
    }

    #[test]
    fn what_all_have_left_unread_ends_those_that_have_left_much() {
        let budget = UnreadBudget::new(128 << 10);
        let slow: Vec<_> = (0..8).map(|_| Unread::new(budget.clone())).collect();
        let mut left = Vec::new();
        let before = |left: &Vec<Charge>| left.len();
        loop {
            let count = before(&left);
            left.extend(slow.iter().filter_map(|unread| unread.charge(&TOKEN)));
            if before(&left) < count + slow.len() {
                break;
            }
        }
        assert!(budget.bytes() <= 128 << 10, "{}", budget.bytes());
        // One that comes later leaves a few unread all the same.
        let new = Unread::new(budget.clone());
        let few: Vec<Charge> = std::iter::from_fn(|| new.charge(&TOKEN)).collect();
        assert_eq!(few.len(), ALWAYS_BYTES / EVENT_BYTES);
    }
}
