//! Keeps one model of a [`Library`] in memory at a time. A request gets a [`Lease`] of its model when the model is in
//! memory. [`Switch`] decides which model is loaded when, and this module carries out its decisions.

use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use interbed_device::give_back_freed;
use interbed_engine::Health;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::sleep_until;

use crate::app::App;
use crate::error::ApiError;
use crate::keep_alive::KeepAlive;
use crate::library::{Library, LibraryError, ServedModel};
use crate::load_progress::LoadProgress;
use crate::switch::{Action, Switch, Ticket};

/// The number of seconds after which a request may be sent again if it has waited in vain for its model.
const RETRY_S: u64 = 10;

/// The models of a library, and the requests that wait for them.
pub(crate) struct Shelf {
    pub(crate) library: Arc<dyn Library>,
    /// Turns a loaded model into one that answers requests.
    open: Box<Open>,
    wait_max: Duration,
    desk: Mutex<Desk>,
    runtime: Handle,
    /// Wakes the task that keeps time when something has changed.
    changed: Arc<Notify>,
    /// Whether no model is in memory.
    vacant: watch::Sender<bool>,
}

type Open = dyn Fn(ServedModel) -> Held + Send + Sync;

struct Desk {
    switch: Switch,
    waiting: HashMap<Ticket, oneshot::Sender<Result<Lease, ApiError>>>,
    held: Option<Held>,
    /// The progress of the model that is being loaded.
    progress: Arc<LoadProgress>,
    /// The error of the last model that could not be loaded.
    failure: ApiError,
}

/// A model in memory.
pub(crate) struct Held {
    answering: Arc<Answering>,
    /// The value that keeps the model in memory.
    _keeper: Box<dyn Any + Send>,
}

/// The part of a model in memory that answers requests.
pub(crate) struct Answering {
    pub(crate) app: Arc<App>,
    pub(crate) routes: Router,
    /// Whether the model is about to leave memory.
    pub(crate) leaving: watch::Sender<bool>,
}

impl Held {
    /// Makes a model whose requests `routes` answer.
    pub(crate) fn new(app: Arc<App>, routes: Router, keeper: Box<dyn Any + Send>) -> Self {
        Self { answering: Arc::new(Answering { app, routes, leaving: watch::Sender::new(false) }), _keeper: keeper }
    }
}

/// The right to use the model in memory, which stays there until the lease is dropped.
pub(crate) struct Lease {
    shelf: Arc<Shelf>,
    /// The model, or `None` once the lease is being dropped.
    answering: Option<Arc<Answering>>,
    keep: Option<KeepAlive>,
}

/// The model that is being loaded.
pub(crate) struct Coming {
    pub(crate) name: String,
    pub(crate) progress: Arc<LoadProgress>,
}

impl Shelf {
    /// Creates a shelf for the models of `library`. A model stays in memory for `keep` after its last request, unless a
    /// request sets another time. A request waits for its model for at most `wait_max`. `open` turns a loaded model
    /// into one that answers. This function must be called within a runtime.
    pub(crate) fn new(library: Arc<dyn Library>, keep: KeepAlive, wait_max: Duration, open: Box<Open>) -> Arc<Self> {
        let desk = Desk {
            switch: Switch::new(keep, wait_max),
            waiting: HashMap::new(),
            held: None,
            progress: Arc::default(),
            failure: ApiError::internal("no model has failed to load"),
        };
        let (desk, vacant) = (Mutex::new(desk), watch::Sender::new(true));
        let (runtime, changed) = (Handle::current(), Arc::<Notify>::default());
        let shelf = Arc::new(Self { library, open, wait_max, desk, runtime, changed, vacant });
        tokio::spawn(keep_time(Arc::downgrade(&shelf), shelf.changed.clone()));
        shelf
    }

    /// Waits for the model whose first name is `name`, and loads it when its turn comes. The model then stays in memory
    /// for `keep` after the lease has ended.
    ///
    /// # Errors
    /// Fails if the model cannot be loaded, or if other models were in use for too long.
    pub(crate) async fn lease(self: &Arc<Self>, name: &str, keep: Option<KeepAlive>) -> Result<Lease, ApiError> {
        let (sender, receiver) = oneshot::channel();
        let waiting = {
            let mut desk = self.desk();
            let ticket = desk.switch.want(name, Instant::now());
            desk.waiting.insert(ticket, sender);
            Waiting { shelf: self, ticket }
        };
        self.go_on();
        let leased = receiver.await;
        drop(waiting);
        let mut lease = leased.map_err(|_| ApiError::draining())??;
        lease.keep = keep;
        Ok(lease)
    }

    /// Lets the model of this name leave memory once no request uses it.
    pub(crate) fn dismiss(self: &Arc<Self>, name: &str) {
        self.desk().switch.dismiss(name);
        self.go_on();
    }

    /// Returns the model in memory, unless it is leaving, and the time at which it leaves if no request asks for it
    /// again. The time is `None` if the model never leaves.
    pub(crate) fn answering(&self) -> Option<(Arc<Answering>, Option<SystemTime>)> {
        let desk = self.desk();
        let (now, held) = (Instant::now(), desk.held.as_ref()?);
        let ends_at = desk.switch.held(now).map(|(_, ends_at)| ends_at)?;
        let told = ends_at.and_then(|at| SystemTime::now().checked_add(at.saturating_duration_since(now)));
        Some((held.answering.clone(), told))
    }

    /// Returns the first name of the model in memory, unless it is leaving.
    pub(crate) fn held(&self) -> Option<String> {
        self.desk().switch.held(Instant::now()).map(|(name, _)| name.to_owned())
    }

    /// Returns the model that is being loaded, if there is one.
    pub(crate) fn coming(&self) -> Option<Coming> {
        let desk = self.desk();
        desk.switch.loading().map(|name| Coming { name: name.to_owned(), progress: desk.progress.clone() })
    }

    /// Completes once a model is in memory.
    pub(crate) async fn occupied(&self) {
        // An error would mean that the sender is gone, which is held here.
        let _ = self.vacant.subscribe().wait_for(|&vacant| !vacant).await;
    }

    /// Lets the model in memory leave, and waits until it has left. A model that is just being loaded stays until the
    /// process ends. No request may have a lease or ask for one.
    pub(crate) async fn close(self: &Arc<Self>) {
        self.held().into_iter().for_each(|name| self.dismiss(&name));
        if self.coming().is_none() {
            // An error would mean that the sender is gone, which is held here.
            let _ = self.vacant.subscribe().wait_for(|&vacant| vacant).await;
        }
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        // Each change is one call, which a panic elsewhere leaves whole.
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries out the decisions that follow from a change.
    fn go_on(self: &Arc<Self>) {
        self.act();
        self.changed.notify_one();
    }

    fn act(self: &Arc<Self>) {
        // Told once the desk is free: a lease that nobody waits for any more comes back at once.
        let mut told = Vec::new();
        let mut desk = self.desk();
        while let Some(action) = desk.switch.next(Instant::now()) {
            match action {
                Action::Lease(ticket) => {
                    let answering = desk.held.as_ref().map(|held| held.answering.clone());
                    let lease = Lease { shelf: self.clone(), answering, keep: None };
                    told.push((desk.waiting.remove(&ticket), Ok(lease)));
                }
                Action::Refuse(ticket) => {
                    let busy = in_use(desk.switch.in_the_way().unwrap_or("another model"), self.wait_max);
                    told.push((desk.waiting.remove(&ticket), Err(busy)));
                }
                Action::Fail(ticket) => told.push((desk.waiting.remove(&ticket), Err(desk.failure.clone()))),
                Action::Load(name) => {
                    desk.progress = Arc::default();
                    self.vacant.send_replace(false);
                    self.load(name, desk.progress.clone());
                }
                Action::Unload => {
                    if let Some(held) = desk.held.take() {
                        self.unload(held);
                    }
                }
            }
        }
        drop(desk);
        for (waiting, outcome) in told {
            // Who has gone meanwhile needs no answer.
            let _ = waiting.map(|waiting| waiting.send(outcome));
        }
    }

    /// Loads a model, which may take long.
    fn load(self: &Arc<Self>, name: String, progress: Arc<LoadProgress>) {
        let shelf = self.clone();
        self.runtime.spawn_blocking(move || {
            let begun = Instant::now();
            let loaded = catch_unwind(AssertUnwindSafe(|| {
                shelf.library.load(&name, progress).map(|served| (shelf.open)(served))
            }));
            let loaded = loaded.unwrap_or_else(|_| Err(LibraryError::Failed("loading it broke off".into())));
            match &loaded {
                Ok(_) => tracing::info!("{name} was loaded in {:.1} s", begun.elapsed().as_secs_f64()),
                Err(error) => tracing::error!("{name} could not be loaded: {error}"),
            }
            shelf.has_loaded(&name, loaded);
        });
    }

    fn has_loaded(self: &Arc<Self>, name: &str, loaded: Result<Held, LibraryError>) {
        let mut desk = self.desk();
        desk.switch.loaded(loaded.is_ok(), Instant::now());
        match loaded {
            Ok(held) => desk.held = Some(held),
            Err(error) => {
                desk.failure = refusal(&format!("{name} cannot be loaded"), error);
                self.vacant.send_replace(true);
            }
        }
        drop(desk);
        self.go_on();
    }

    /// Removes a model from memory, after its engine has finished the current pass.
    fn unload(self: &Arc<Self>, held: Held) {
        let shelf = self.clone();
        held.answering.leaving.send_replace(true);
        self.runtime.spawn_blocking(move || {
            let begun = Instant::now();
            let name = held.answering.app.model_name().to_owned();
            drop(held);
            give_back_freed();
            tracing::info!("{name} left memory in {:.1} s", begun.elapsed().as_secs_f64());
            shelf.has_left();
        });
    }

    fn has_left(self: &Arc<Self>) {
        self.desk().switch.left();
        self.vacant.send_replace(true);
        self.go_on();
    }
}

/// Returns the refusal of a request that has waited for its model for `waited`, while the model `other` was in use.
fn in_use(other: &str, waited: Duration) -> ApiError {
    let waited = waited.as_secs_f32();
    let error = ApiError::overloaded(format!(
        "one model is in memory at a time, and {other} was in use for the {waited} s that this request has waited; \
         send it again later"
    ));
    ApiError { retry_after_s: Some(RETRY_S), ..error }
}

/// Returns the error for a library's refusal. `what` names the thing that the library did not do.
pub(crate) fn refusal(what: &str, error: LibraryError) -> ApiError {
    match error {
        LibraryError::Unfit(why) => ApiError::invalid("model", format!("{what}: {why}")),
        LibraryError::Busy(why) => ApiError::overloaded(format!("{what}: {why}")),
        LibraryError::Failed(why) => ApiError::internal(format!("{what}: {why}")),
    }
}

/// Carries out decisions whenever the time for one has come, as long as the shelf exists.
async fn keep_time(shelf: Weak<Shelf>, changed: Arc<Notify>) {
    while let Some(there) = shelf.upgrade() {
        let wake_at = there.desk().switch.wake_at();
        drop(there);
        let time_comes = async {
            match wake_at {
                Some(at) => sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = changed.notified() => {}
            () = time_comes => shelf.upgrade().iter().for_each(Shelf::act),
        }
    }
}

/// A request that waits for a model. Dropping the value ends the wait.
struct Waiting<'a> {
    shelf: &'a Arc<Shelf>,
    ticket: Ticket,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut desk = self.shelf.desk();
        if desk.waiting.remove(&self.ticket).is_some() {
            desk.switch.give_up(self.ticket);
            drop(desk);
            self.shelf.go_on();
        }
    }
}

impl Lease {
    /// Returns the routes of the leased model.
    pub(crate) fn routes(&self) -> Router {
        // There is something until it is dropped.
        self.answering.as_ref().map_or_else(Router::new, |answering| answering.routes.clone())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(answering) = self.answering.take() else { return };
        // An engine that has ended answers nobody; the next request gets one anew.
        let is_dead = matches!(answering.app.engine.status().health, Health::Dead(_));
        drop(answering);
        let keep = if is_dead { Some(KeepAlive::NONE) } else { self.keep };
        self.shelf.desk().switch.returned(keep, Instant::now());
        self.shelf.go_on();
    }
}
