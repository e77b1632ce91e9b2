//! Streams the events of the web page at `/`, which show the engine's state to all viewers.
//!
//! While there are viewers, one task reads the engine's state and turns changes into one event for all of them. A new
//! viewer gets the whole state first. A viewer that has read too slowly and missed an event gets the whole state too.
//! Without viewers, no task runs.

mod recent;
mod runs;
mod scene;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use interbed_engine::{EngineHandle, Place, Places, WatchPace};
use serde_json::Value;
use tokio::sync::{broadcast, watch};
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::api_keys::ApiKeys;
use crate::error::ApiError;
use crate::tenant::Tenant;
pub(crate) use recent::Recent;
use scene::Scene;

/// The maximum number of viewers at a time, of all tenants together. Each viewer uses a connection, and memory for a
/// few events.
const VIEWERS_MAX: usize = 16;

/// The number of events that are buffered for a viewer before it misses one.
const EVENTS_WAITING: usize = 8;

/// The time without an event after which a comment shows that the connection is alive.
const IDLE: Duration = Duration::from_secs(10);

/// The source of the stream, which all viewers share.
pub(crate) struct Live {
    engine: EngineHandle,
    keys: ApiKeys,
    places: Arc<Places<Tenant>>,
    stage: Mutex<Stage>,
    /// Whether the server is ending. Without this flag, the stream would go on as long as a viewer is connected.
    is_over: watch::Receiver<bool>,
}

/// The state that all viewers see.
struct Stage {
    viewers: usize,
    scene: Scene,
    /// The event with the whole state, or `None` until a viewer needs it.
    whole: Option<Bytes>,
    /// The channel for changes, while the state is being read.
    changes: Option<broadcast::Sender<Bytes>>,
}

impl Live {
    /// Creates a stream about `engine` and the `recent` requests, for clients with one of `keys`. The stream ends when
    /// `is_over` becomes true. The value `about` holds facts that never change.
    pub(crate) fn new(
        engine: EngineHandle,
        keys: ApiKeys,
        recent: Arc<Recent>,
        about: Value,
        is_over: watch::Receiver<bool>,
    ) -> Arc<Self> {
        let scene = Scene::new(about, keys.clone(), recent);
        let stage = Stage { viewers: 0, scene, whole: None, changes: None };
        Arc::new(Self { engine, keys, places: Places::new(VIEWERS_MAX), stage: Mutex::new(stage), is_over })
    }

    /// Adds a viewer that belongs to `tenant`.
    ///
    /// # Errors
    /// Fails if there are too many viewers, or the server is ending.
    pub(crate) fn join(self: &Arc<Self>, tenant: Tenant) -> Result<Viewer, ApiError> {
        let mut stage = self.stage();
        if *self.is_over.borrow() {
            return Err(ApiError::overloaded("the server is stopping"));
        }
        let place = self.places.take(tenant, 1).map_err(|taken| {
            ApiError::overloaded(format!("{taken} already look at what the engine does; close one of these pages"))
        })?;
        stage.viewers += 1;
        if stage.changes.is_none() {
            stage.changes = Some(broadcast::Sender::new(EVENTS_WAITING));
            stage.scene.clear();
            stage.whole = None;
            tokio::spawn(self.clone().keep_up());
        }
        drop(stage);
        let (live, is_over) = (self.clone(), self.is_over.clone());
        Ok(Viewer { live, tenant, changes: None, is_over, has_ended: false, _place: place })
    }

    /// Reads the engine's state periodically while there are viewers, and sends the changes to them.
    async fn keep_up(self: Arc<Self>) {
        let mut watcher = self.engine.watch();
        let mut ticks = interval(WatchPace::PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let status = self.engine.status();
            let mut stage = self.stage();
            if stage.viewers == 0 {
                stage.changes = None;
                return;
            }
            if let Some(event) = stage.scene.renew(&mut watcher, &status) {
                stage.whole = None;
                // An error means that there is no receiver yet.
                let _ = stage.changes.iter().try_for_each(|changes| changes.send(event.clone().into()).map(|_| ()));
            }
        }
    }

    fn stage(&self) -> MutexGuard<'_, Stage> {
        // After a panic, the next read makes the state complete again.
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the whole state as one event, and the channel of later changes. Before the state has been read, there is
    /// no such event, and the first change is then the whole state.
    fn whole(&self) -> (Option<Bytes>, Option<broadcast::Receiver<Bytes>>) {
        let mut stage = self.stage();
        let Stage { scene, whole, changes, .. } = &mut *stage;
        if whole.is_none() && scene.is_known() {
            *whole = Some(scene.whole().into());
        }
        (whole.clone(), changes.as_ref().map(broadcast::Sender::subscribe))
    }
}

/// A viewer of the stream.
pub(crate) struct Viewer {
    live: Arc<Live>,
    /// The channel of the changes after the last event. The value is `None` if the whole state comes next.
    changes: Option<broadcast::Receiver<Bytes>>,
    is_over: watch::Receiver<bool>,
    has_ended: bool,
    tenant: Tenant,
    _place: Vec<Place<Tenant>>,
}

impl Viewer {
    /// Returns the next event, or `None` after the last.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        if self.has_ended {
            return None;
        }
        loop {
            let Some(changes) = &mut self.changes else {
                let (whole, changes) = self.live.whole();
                self.changes = changes;
                match whole {
                    Some(whole) => return Some(whole),
                    None => continue,
                }
            };
            let change = tokio::select! {
                _ = self.is_over.wait_for(|&is_over| is_over) => {
                    self.has_ended = true;
                    return Some(Bytes::from_static(b"event: end\ndata: {}\n\n"));
                }
                () = self.live.keys.revoked(self.tenant) => {
                    self.has_ended = true;
                    return Some(Bytes::from_static(b"event: end\ndata: {}\n\n"));
                }
                change = timeout(IDLE, changes.recv()) => change,
            };
            match change {
                Ok(Ok(change)) => return Some(change),
                Ok(Err(broadcast::error::RecvError::Lagged(_))) => self.changes = None,
                Ok(Err(broadcast::error::RecvError::Closed)) => return None,
                Err(_) => return Some(Bytes::from_static(b":\n\n")),
            }
        }
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        self.live.stage().viewers -= 1;
    }
}
