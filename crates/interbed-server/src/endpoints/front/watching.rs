//! Implements `/live/events` of a server with several models, which streams events of the model in memory, or the names
//! of all models.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::{Front, drained};
use crate::api_keys::Owner;
use crate::endpoints::live::{CHANGED, events_until};
use crate::error::ApiError;
use crate::stream;

/// The time without an event after which the server sends a comment, to show that the connection is alive.
const IDLE: Duration = Duration::from_secs(10);

/// Streams the events of the model in memory until it leaves. Without a model in memory, streams the names of all
/// models until one is loaded.
pub(crate) async fn events(
    State(front): State<Arc<Front>>,
    Extension(owner): Extension<Owner>,
) -> Result<Response, ApiError> {
    if let Some(held) = front.held() {
        let mut leaving = held.leaving.subscribe();
        // An error means that the model has left.
        let left = async move { _ = leaving.wait_for(|&leaving| leaving).await };
        return events_until(&held.app, &owner, left);
    }
    if let Some(coming) = front.shelf.coming() {
        return Err(ApiError::loading(&coming.progress));
    }
    let models = front.models().await?;
    let names: Vec<_> = models.iter().filter_map(|model| model.names.first()).collect();
    let empty = stream::event("empty", &json!({"version": env!("CARGO_PKG_VERSION"), "models": names}));
    let (sender, receiver) = mpsc::channel(2);
    // The channel is empty, and its receiver exists, so sending cannot fail.
    let _ = sender.try_send(Bytes::from(empty));
    tokio::spawn(async move {
        tokio::select! {
            () = sender.closed() => return,
            () = told_idle(&sender) => return,
            () = front.shelf.occupied() => {}
            () = front.config.api_keys.revoked(owner.tenant) => {}
            () = drained(&front) => {}
        }
        // A client that has disconnected meanwhile needs no event.
        let _ = sender.send(Bytes::from_static(CHANGED)).await;
    });
    Ok(stream::response(receiver, None, stream::SSE))
}

/// Sends a comment after each `IDLE` period until the client has disconnected.
async fn told_idle(sender: &mpsc::Sender<Bytes>) {
    loop {
        sleep(IDLE).await;
        if sender.send(Bytes::from_static(b":\n\n")).await.is_err() {
            return;
        }
    }
}
