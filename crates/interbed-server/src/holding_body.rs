//! A body that keeps a value as long as it is being written.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use hyper::body::{Frame, SizeHint};

/// Passes `body` on unchanged, and drops `held` once the server has taken all of the body, or has given it up.
pub(crate) fn holding(body: Body, held: impl Send + Unpin + 'static) -> Body {
    Body::new(HoldingBody { body, _held: held })
}

struct HoldingBody<T> {
    body: Body,
    _held: T,
}

impl<T: Unpin> hyper::body::Body for HoldingBody<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
