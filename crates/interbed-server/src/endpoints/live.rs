//! `/live/events`: what the engine is doing, as a stream of events for the page at `/`.

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

/// The last event of a stream that is over because another one has more to tell.
pub(crate) const CHANGED: &[u8] = b"event: change\ndata: {}\n\n";

/// Everything, then what changes, until the client goes, its key is revoked or the server ends.
pub(crate) async fn events(State(app): State<Arc<App>>, owner: Extension<Owner>) -> Result<Response, ApiError> {
    events_until(&app, &owner, pending())
}

/// Writes such events, at most until the model has `left`, which is then the last that is told.
pub(crate) fn events_until(
    app: &App,
    owner: &Owner,
    left: impl Future<Output = ()> + Send + 'static,
) -> Result<Response, ApiError> {
    let mut viewer = app.live.join(owner.tenant)?;
    // One that is being written, and the next; changes behind them wait for all viewers together, or are missed.
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
                // Who has gone meanwhile needs no word.
                let _ = last.send(Bytes::from_static(CHANGED)).await;
            }
        }
    });
    Ok(stream::response(receiver, None, stream::SSE))
}
