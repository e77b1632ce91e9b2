//! Constrained answers: which tokens may come next is computed beside the pass, by a few threads; the engine thread
//! takes the masks when it samples, and waits only for those that are not ready.
//!
//! **Invariant:** the state of a constraint moves on with accepted tokens alone. Drafts, failed passes and preemptions
//! leave it as it is, so it never has to be computed again.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use interbed_grammar::{Constraint, GrammarError, Standing, TokenMask, Vocabulary};

use crate::TokenId;

/// Threads that compute masks. They end when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct MaskWorkers {
    /// `None` until there is a constrained answer.
    jobs: Option<Sender<Job>>,
}

#[derive(Debug)]
struct Job {
    constraint: Box<Constraint>,
    drafts: Vec<TokenId>,
    done: Sender<Done>,
}

#[derive(Debug)]
struct Done {
    constraint: Box<Constraint>,
    masks: Masks,
}

/// For a row and each draft behind it: what may come there, `None` if anything may.
type Masks = Result<Arc<[Option<TokenMask>]>, GrammarError>;

impl Job {
    fn run(mut self) {
        let masks = self.constraint.masks_along(&self.drafts).map(Arc::from);
        // Whoever asked may have gone.
        let _ = self.done.send(Done { constraint: self.constraint, masks });
    }
}

impl MaskWorkers {
    fn submit(&mut self, job: Job) {
        let jobs = self.jobs.get_or_insert_with(start);
        if let Err(refused) = jobs.send(job) {
            // No thread could be started.
            refused.0.run();
        }
    }
}

/// A pass keeps all cores busy, and masks take far less time than it.
fn start() -> Sender<Job> {
    let (jobs, waiting) = channel::<Job>();
    let waiting = Arc::new(Mutex::new(waiting));
    let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get() / 4).clamp(1, 4);
    for _ in 0..threads {
        let waiting = waiting.clone();
        let next = move || waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let thread = std::thread::Builder::new().name("masks".into()).stack_size(Vocabulary::STACK_BYTES);
        let started = thread.spawn(move || {
            while let Ok(job) = next() {
                job.run();
            }
        });
        if let Err(error) = started {
            tracing::warn!("a thread for masks could not be started: {error}");
        }
    }
    jobs
}

/// A constraint in use: its state, or the thread that has it; and the masks for the rows of the current pass.
#[derive(Debug)]
pub(crate) struct Bound {
    constraint: Option<Box<Constraint>>,
    under_way: Option<Receiver<Done>>,
    masks: Masks,
}

impl Bound {
    pub(crate) fn new(constraint: Constraint) -> Self {
        Self { constraint: Some(Box::new(constraint)), under_way: None, masks: Ok(Arc::from([])) }
    }

    /// One in the same state, without masks.
    pub(crate) fn fork(&mut self) -> Self {
        self.settle();
        Self { constraint: self.constraint.clone(), under_way: None, masks: Ok(Arc::from([])) }
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
        let (done, under_way) = channel();
        self.under_way = Some(under_way);
        workers.submit(Job { constraint, drafts: drafts.to_vec(), done });
    }

    /// Makes what cannot come after the first `index` drafts impossible. `false` where it is not known what may follow
    /// them: they complete the answer, or the grammar is too complex there. Then nothing is sampled.
    ///
    /// # Errors
    /// It is not known what may come at all.
    pub(crate) fn apply(&mut self, index: usize, logits: &mut [f32]) -> Result<bool, GrammarError> {
        self.settle();
        let masks = self.masks.as_ref().map_err(Clone::clone)?;
        let mask = masks.get(index);
        mask.and_then(Option::as_ref).into_iter().for_each(|mask| mask.apply(logits));
        Ok(mask.is_some())
    }

    /// This token came.
    ///
    /// # Errors
    /// As [`Constraint::advance`].
    pub(crate) fn advance(&mut self, token: TokenId) -> Result<Standing, GrammarError> {
        self.settle();
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

    /// Waits for what is under way.
    fn settle(&mut self) {
        let Some(under_way) = self.under_way.take() else { return };
        match under_way.recv() {
            Ok(Done { constraint, masks }) => (self.constraint, self.masks) = (Some(constraint), masks),
            Err(_) => self.masks = Err(lost()),
        }
    }
}

fn lost() -> GrammarError {
    GrammarError::TooComplex("the thread that computed it has ended".into())
}
