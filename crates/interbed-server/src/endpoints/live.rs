//! Implements `/live/events`, which streams server-sent events about what the engine does, for the web page at `/`.

use std::future::{Future, pending};
use std::sync::Arc;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use tokio::sync::mpsc;

use crate::api_keys::Owner;
use crate::app::App;
use crate::error::ApiError;
use crate::stream;

/// The last event of a stream that ends because the model has changed. The page connects again when it gets this event.
pub(crate) const CHANGED: &[u8] = b"event: change\ndata: {}\n\n";

/// Streams the whole state, then changes, until the client disconnects, its key is revoked or the server ends.
pub(crate) async fn events(State(app): State<Arc<App>>, owner: Extension<Owner>) -> Result<Response, ApiError> {
    events_until(&app, &owner, pending())
}

/// Streams the events of the live page until the model has `left`. A last event then tells the page to connect again.
pub(crate) fn events_until(
    app: &App,
    owner: &Owner,
    left: impl Future<Output = ()> + Send + 'static,
) -> Result<Response, ApiError> {
    let mut viewer = app.live.join(owner.tenant)?;
    // The channel holds one event besides the one that is being written. Later changes wait in the queue that all
    // viewers share, and a slow viewer misses them.
    let (sender, receiver) = mpsc::channel(1);
    let gone = sender.clone();
    let last = sender.clone();
    let writing = async move {
        while let Some(event) = viewer.next().await {
            if sender.send(event).await.is_err() {
                return;
            }
        }
    };
    tokio::spawn(async move {
        tokio::select! {
            () = gone.closed() => {}
            () = writing => {}
            () = left => {
                // A client that has disconnected meanwhile needs no event.
                let _ = last.send(Bytes::from_static(CHANGED)).await;
            }
        }
    });
    Ok(stream::response(receiver, None, stream::SSE))
}
