//! Constrained answers: which tokens may come next is computed beside the pass, by a few threads; the engine thread
//! takes the masks when it samples, and waits only for those that are not ready.
//!
//! **Invariant:** the state of a constraint moves on with accepted tokens alone. Drafts, failed passes and preemptions
//! leave it as it is, so it never has to be computed again.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use interbed_grammar::{Constraint, GrammarError, Standing, TokenMask, Vocabulary};

use crate::TokenId;

/// Time from the beginning of a pass for which its rows wait for masks. A sequence whose mask comes later sits out
/// until it has come, and others go on.
const PATIENCE: Duration = Duration::from_millis(20);
/// Time that a mask may take, and the same where others wait for it.
const MASK_MAX: Duration = Duration::from_secs(2);
const WAITED_FOR_MAX: Duration = Duration::from_millis(500);
/// Time that all masks of an answer may take: so much, and so much more for each token. Masks take far less than a
/// millisecond on average; what a text comes to for the first time takes longer.
const WORK_MAX: Duration = Duration::from_secs(1);
const WORK_OF_TOKEN_MAX: Duration = Duration::from_millis(20);

/// Threads that compute masks. They end when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct MaskWorkers {
    /// `None` until there is a constrained answer.
    queue: Option<Arc<Queue>>,
}

/// Jobs that wait for a thread.
#[derive(Debug, Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    jobs: Vec<Job>,
    threads: usize,
    is_over: bool,
}

#[derive(Debug)]
struct Job {
    constraint: Box<Constraint>,
    drafts: Vec<TokenId>,
    /// Time that masks of the same answer have taken.
    work: Duration,
    done: Sender<Done>,
}

#[derive(Debug)]
struct Done {
    constraint: Box<Constraint>,
    masks: Masks,
    took: Duration,
}

/// For a row and each draft behind it: what may come there, `None` if anything may.
type Masks = Result<Arc<[Option<TokenMask>]>, GrammarError>;

impl Job {
    fn run(mut self) {
        let begin = Instant::now();
        let masks = self.constraint.masks_along(&self.drafts).map(Arc::from);
        // Whoever asked may have gone.
        let _ = self.done.send(Done { constraint: self.constraint, masks, took: begin.elapsed() });
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next job: of the answer whose masks have taken the least time, so that slow ones delay each other.
    fn next(&self) -> Option<Job> {
        let mut waiting = self.lock();
        loop {
            if waiting.is_over {
                return None;
            }
            let least = waiting.jobs.iter().enumerate().min_by_key(|(_, job)| job.work).map(|(index, _)| index);
            if let Some(index) = least {
                return Some(waiting.jobs.remove(index));
            }
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl MaskWorkers {
    fn submit(&mut self, job: Job) {
        let queue = self.queue.get_or_insert_with(start);
        let mut waiting = queue.lock();
        if waiting.threads == 0 {
            // None could be started.
            drop(waiting);
            return job.run();
        }
        waiting.jobs.push(job);
        queue.changed.notify_one();
    }
}

impl Drop for MaskWorkers {
    fn drop(&mut self) {
        if let Some(queue) = &self.queue {
            queue.lock().is_over = true;
            queue.changed.notify_all();
        }
    }
}

/// A pass keeps all cores busy, and masks take far less time than it.
fn start() -> Arc<Queue> {
    let queue = Arc::new(Queue::default());
    let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get() / 4).clamp(1, 4);
    for _ in 0..threads {
        let jobs = queue.clone();
        let thread = std::thread::Builder::new().name("masks".into()).stack_size(Vocabulary::STACK_BYTES);
        let started = thread.spawn(move || {
            while let Some(job) = jobs.next() {
                job.run();
            }
        });
        match started {
            Ok(_) => queue.lock().threads += 1,
            Err(error) => tracing::warn!("a thread for masks could not be started: {error}"),
        }
    }
    queue
}

/// A constraint in use: its state, or the thread that has it; and the masks for the rows of the current pass.
#[derive(Debug)]
pub(crate) struct Bound {
    constraint: Option<Box<Constraint>>,
    under_way: Option<UnderWay>,
    masks: Masks,
    /// Time that masks have taken, and tokens that came.
    work: Duration,
    tokens: u32,
}

#[derive(Debug)]
struct UnderWay {
    done: Receiver<Done>,
    since: Instant,
}

/// What came of the mask for a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Masked {
    /// What cannot come has become impossible.
    Yes,
    /// It is not known what may follow the drafts before the row: they complete the answer, or the grammar is too
    /// complex there. Nothing is sampled.
    Unknown,
    /// The mask is still being computed.
    Late,
}

impl Bound {
    pub(crate) fn new(constraint: Constraint) -> Self {
        Self::of(Some(Box::new(constraint)), Duration::ZERO, 0)
    }

    fn of(constraint: Option<Box<Constraint>>, work: Duration, tokens: u32) -> Self {
        Self { constraint, under_way: None, masks: Ok(Arc::from([])), work, tokens }
    }

    /// One in the same state, without masks.
    pub(crate) fn fork(&mut self) -> Self {
        self.settle();
        Self::of(self.constraint.clone(), self.work, self.tokens)
    }

    /// Has the masks computed for the next token, and behind each of `drafts`.
    pub(crate) fn begin(&mut self, workers: &mut MaskWorkers, drafts: &[TokenId]) {
        self.settle();
        let Some(constraint) = self.constraint.take() else { return };
        if constraint.is_free() && drafts.is_empty() {
            self.masks = Ok(Arc::from([None]));
            self.constraint = Some(constraint);
            return;
        }
        let (done, receiver) = channel();
        self.under_way = Some(UnderWay { done: receiver, since: Instant::now() });
        workers.submit(Job { constraint, drafts: drafts.to_vec(), work: self.work, done });
    }

    /// Makes what cannot come after the first `index` drafts impossible. Where it `may_be_late`, waits only a little.
    ///
    /// # Errors
    /// It is not known what may come at all.
    pub(crate) fn apply(
        &mut self,
        index: usize,
        logits: &mut [f32],
        may_be_late: bool,
    ) -> Result<Masked, GrammarError> {
        match may_be_late {
            true if !self.settle_within(PATIENCE) => return Ok(Masked::Late),
            true => {}
            false => self.settle(),
        }
        let masks = self.masks.as_ref().map_err(Clone::clone)?;
        let mask = masks.get(index);
        mask.and_then(Option::as_ref).into_iter().for_each(|mask| mask.apply(logits));
        Ok(if mask.is_some() { Masked::Yes } else { Masked::Unknown })
    }

    /// Whether the masks are there, or will never be.
    pub(crate) fn is_settled(&mut self) -> bool {
        self.settle_within(Duration::ZERO)
    }

    /// This token came.
    ///
    /// # Errors
    /// As [`Constraint::advance`].
    pub(crate) fn advance(&mut self, token: TokenId) -> Result<Standing, GrammarError> {
        self.settle();
        self.tokens = self.tokens.saturating_add(1);
        match &mut self.constraint {
            Some(constraint) => constraint.advance(token),
            None => Err(lost()),
        }
    }

    /// Takes over the masks of `other`, which is in the same state.
    pub(crate) fn share_masks(&mut self, other: &mut Self) {
        other.settle();
        self.masks = other.masks.clone();
    }

    /// Waits for what is under way, or gives up on it.
    fn settle(&mut self) {
        if !self.settle_within(WAITED_FOR_MAX) {
            self.give_up(WAITED_FOR_MAX);
        }
    }

    /// The thread keeps the constraint, and ends with it.
    fn give_up(&mut self, most: Duration) {
        self.under_way = None;
        self.masks = Err(took_too_long(most));
    }

    /// Waits for what is under way until `patience` after it was begun; false if it has not ended then.
    fn settle_within(&mut self, patience: Duration) -> bool {
        let Some(UnderWay { done, since }) = &self.under_way else { return true };
        let elapsed = since.elapsed();
        let done = match patience.saturating_sub(elapsed) {
            Duration::ZERO => done.try_recv().map_err(|error| error == TryRecvError::Empty),
            wait => done.recv_timeout(wait).map_err(|error| error == RecvTimeoutError::Timeout),
        };
        match done {
            Err(true) if elapsed < MASK_MAX => return false,
            Err(true) => self.give_up(MASK_MAX),
            Err(false) => self.masks = Err(lost()),
            Ok(Done { constraint, masks, took }) => {
                (self.constraint, self.masks, self.work) = (Some(constraint), masks, self.work + took);
                let most = WORK_MAX + WORK_OF_TOKEN_MAX * self.tokens;
                if self.work > most {
                    self.masks = Err(took_too_long(most));
                }
            }
        }
        self.under_way = None;
        true
    }
}

fn took_too_long(most: Duration) -> GrammarError {
    GrammarError::TooComplex(format!("it took longer than {} s", most.as_secs_f32()))
}

fn lost() -> GrammarError {
    GrammarError::TooComplex("the thread that computed it has ended".into())
}
