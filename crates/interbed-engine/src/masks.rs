//! For constrained answers, a few threads compute beside the pass which tokens may come next. The engine thread takes
//! the masks when it samples, and waits only for masks that are not ready.
//!
//! **Invariant:** the state of a constraint moves on with accepted tokens alone. Drafts, failed passes and preemptions
//! leave the state as it is, so it never has to be computed again.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use interbed_grammar::{Constraint, GrammarError, Standing, TokenMask, Vocabulary};

use crate::TokenId;

/// The time, counted from when a mask was begun, for which a row waits for the mask. A sequence whose mask comes later
/// takes part in no pass until the mask has come, and others go on.
const PATIENCE: Duration = Duration::from_millis(20);
/// The time that a mask may take at the most.
const MASK_MAX: Duration = Duration::from_secs(2);
/// The time that a mask may take at the most while other sequences wait for it.
const WAITED_FOR_MAX: Duration = Duration::from_millis(500);
/// The time that all masks of an answer may take: `WORK_MAX`, and `WORK_OF_TOKEN_MAX` more for each token. Masks take
/// far less than a millisecond on average. A mask takes longer when the text reaches a state of its grammar for the
/// first time.
const WORK_MAX: Duration = Duration::from_secs(1);
/// The time by which each token of an answer raises the limit of its masks.
const WORK_OF_TOKEN_MAX: Duration = Duration::from_millis(20);

/// The threads that compute masks. The threads end when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct MaskWorkers {
    /// The queue of the threads; `None` until there is a constrained answer.
    queue: Option<Arc<Queue>>,
}

/// The jobs that wait for a thread.
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
    /// The time that earlier masks of the same answer have taken.
    work: Duration,
    done: Sender<Done>,
}

#[derive(Debug)]
struct Done {
    constraint: Box<Constraint>,
    masks: Masks,
    took: Duration,
}

/// The masks for a row and for each draft behind it. A mask is `None` if any token may come.
type Masks = Result<Arc<[Option<TokenMask>]>, GrammarError>;

impl Job {
    fn run(mut self) {
        let begin = Instant::now();
        let masks = self.constraint.masks_along(&self.drafts).map(Arc::from);
        // The receiver may have been dropped.
        let _ = self.done.send(Done { constraint: self.constraint, masks, took: begin.elapsed() });
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for and returns the next job, or `None` when the threads are to end. Jobs of the answer whose masks have
    /// taken the least time come first, so that slow answers delay only each other.
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
            // No thread could be started.
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

/// Starts the threads. A quarter of the cores, at most four, is enough: a pass keeps all cores busy, and masks take far
/// less time than a pass.
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

/// A constraint in use, with the masks for the rows of the current pass. While a thread computes masks, the thread has
/// the constraint.
#[derive(Debug)]
pub(crate) struct Bound {
    constraint: Option<Box<Constraint>>,
    under_way: Option<UnderWay>,
    masks: Masks,
    /// The time that masks have taken so far.
    work: Duration,
    tokens: u32,
}

#[derive(Debug)]
struct UnderWay {
    done: Receiver<Done>,
    since: Instant,
}

/// The result of applying the mask to a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Masked {
    /// The mask was applied to the row of logits: tokens that the constraint forbids now have logits of minus infinity.
    Yes,
    /// There is no mask for this row of logits, so no token is sampled from it. Either one of the draft tokens before
    /// the row completes the answer, or the grammar becomes too complex after one of them.
    Unknown,
    /// The mask for the row of logits is still being computed.
    Late,
}

impl Bound {
    pub(crate) fn new(constraint: Constraint) -> Self {
        Self::of(Some(Box::new(constraint)), Duration::ZERO, 0)
    }

    fn of(constraint: Option<Box<Constraint>>, work: Duration, tokens: u32) -> Self {
        Self { constraint, under_way: None, masks: Ok(Arc::from([])), work, tokens }
    }

    /// Returns a constraint in the same state, without masks.
    pub(crate) fn fork(&mut self) -> Self {
        self.settle();
        Self::of(self.constraint.clone(), self.work, self.tokens)
    }

    /// Begins to compute the masks for the next token and for the token behind each of `drafts`.
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

    /// Makes the tokens impossible that cannot come after the first `index` drafts. If `may_be_late`, this waits only a
    /// little for the masks.
    ///
    /// # Errors
    /// Fails if the constraint could not say which tokens may come.
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

    /// Returns whether the masks have come, or will never come.
    pub(crate) fn is_settled(&mut self) -> bool {
        self.settle_within(Duration::ZERO)
    }

    /// Moves the constraint on by `token`, which was accepted.
    ///
    /// # Errors
    /// Fails if [`Constraint::advance`] fails, or if a thread that took too long still has the constraint.
    pub(crate) fn advance(&mut self, token: TokenId) -> Result<Standing, GrammarError> {
        self.settle();
        self.tokens = self.tokens.saturating_add(1);
        match &mut self.constraint {
            Some(constraint) => constraint.advance(token),
            None => Err(lost()),
        }
    }

    /// Takes over the masks of `other`, whose constraint is in the same state.
    pub(crate) fn share_masks(&mut self, other: &mut Self) {
        other.settle();
        self.masks = other.masks.clone();
    }

    /// Waits for the masks that are being computed, or gives them up if they take too long.
    fn settle(&mut self) {
        if !self.settle_within(WAITED_FOR_MAX) {
            self.give_up(WAITED_FOR_MAX);
        }
    }

    /// Gives up the masks that are being computed. The thread keeps the constraint, which is dropped when the thread
    /// has computed them.
    fn give_up(&mut self, most: Duration) {
        self.under_way = None;
        self.masks = Err(took_too_long(most));
    }

    /// Waits until `patience` has passed since the masks were begun. Returns false if the masks have not come by then.
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
