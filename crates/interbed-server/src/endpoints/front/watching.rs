//! `/live/events` of a server of several models: what the one in memory does, or which there are.

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

/// Time without an event, after which a comment shows that the connection lives.
const IDLE: Duration = Duration::from_secs(10);

/// What the model in memory does, until it leaves; or the names of all models, until one of them comes.
pub(crate) async fn events(
    State(front): State<Arc<Front>>,
    Extension(owner): Extension<Owner>,
) -> Result<Response, ApiError> {
    if let Some(held) = front.held() {
        let mut leaving = held.leaving.subscribe();
        // An error means that the model has left, too.
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
    // There is room for it, and the receiver is here.
    let _ = sender.try_send(Bytes::from(empty));
    tokio::spawn(async move {
        tokio::select! {
            () = sender.closed() => return,
            () = told_idle(&sender) => return,
            () = front.shelf.occupied() => {}
            () = front.config.api_keys.revoked(owner.tenant) => {}
            () = drained(&front) => {}
        }
        // Who has gone meanwhile needs no word.
        let _ = sender.send(Bytes::from_static(CHANGED)).await;
    });
    Ok(stream::response(receiver, None, stream::SSE))
}

/// Shows from time to time that the connection lives, until the client has gone.
async fn told_idle(sender: &mpsc::Sender<Bytes>) {
    loop {
        sleep(IDLE).await;
        if sender.send(Bytes::from_static(b":\n\n")).await.is_err() {
            return;
        }
    }
}
