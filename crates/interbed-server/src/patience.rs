//! Closes a connection when its client does not read for too long.

use std::future::Future;
use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

use crate::guests::Guest;

/// A socket whose writes time out. Without a timeout, a client that reads nothing would keep its connection forever,
/// because hyper waits as long as the peer acknowledges packets.
pub(crate) struct Patience {
    stream: TcpStream,
    guest: Arc<Guest>,
    write_timeout: Duration,
    /// The timer of a waiting write.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl Patience {
    /// Wraps `stream`, which is closed when a write has waited for `write_timeout`.
    pub(crate) fn new(stream: TcpStream, guest: Arc<Guest>, write_timeout: Duration) -> Self {
        Self { stream, guest, write_timeout, deadline: None }
    }

    /// Returns the result of a write, or an error if the write has waited too long.
    fn limited<T>(&mut self, context: &mut Context<'_>, written: Poll<Result<T>>) -> Poll<Result<T>> {
        if written.is_ready() {
            self.deadline = None;
            return written;
        }
        self.guest.has_unsent(true);
        let write_timeout = self.write_timeout;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep(write_timeout)));
        match deadline.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(Error::new(ErrorKind::TimedOut, "the client does not read"))),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Patience {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Patience {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, data);
        self.limited(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        // A socket has nothing to flush, so this is ready at once. It is called when everything before has been
        // written.
        self.guest.has_unsent(false);
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.limited(context, written)
    }
}
