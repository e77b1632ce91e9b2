//! `/live/events`: what the engine is doing, as a stream of events for the page at `/`.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use tokio::sync::mpsc;

use crate::api_keys::Owner;
use crate::app::App;
use crate::error::ApiError;
use crate::stream;

/// Everything, then what changes, until the client goes, its key is revoked or the server ends.
pub(crate) async fn events(
    State(app): State<Arc<App>>,
    Extension(owner): Extension<Owner>,
) -> Result<Response, ApiError> {
    let mut viewer = app.live.join(owner.tenant)?;
    // One that is being written, and the next; changes behind them wait for all viewers together, or are missed.
    let (sender, receiver) = mpsc::channel(1);
    let gone = sender.clone();
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
        }
    });
    Ok(stream::response(receiver, None, stream::SSE))
}
