//! A connection to a subscriber, or to a peer that asks for batches that it has missed.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::wire::{self, Frame, GREETING_BYTES, WireError};

/// The time within which both sides must have said what they are.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// The time for the system to take what is written. A peer that has not read for so long is not served any longer.
const WRITE: Duration = Duration::from_secs(30);
/// The most frames of a message, which are the envelopes of some proxies and a number.
const FRAMES_MAX: usize = 8;

/// A message or command from a peer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Subscribe(Vec<u8>),
    Cancel(Vec<u8>),
    Message(Vec<Vec<u8>>),
    /// A ping, with the frame that answers it.
    Ping(Vec<u8>),
}

/// A connection to a peer.
pub(crate) struct Peer {
    stream: TcpStream,
    received: Vec<u8>,
    frames: Vec<Vec<u8>>,
}

impl Peer {
    /// Performs the handshake as a `socket_type` with a peer whose socket must be one of `types`.
    pub(crate) async fn meet(stream: TcpStream, socket_type: &str, types: &[&str]) -> io::Result<Self> {
        let mut peer = Self { stream, received: Vec::new(), frames: Vec::new() };
        let met = timeout(HANDSHAKE, peer.handshake(socket_type, types)).await;
        met.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        Ok(peer)
    }

    async fn handshake(&mut self, socket_type: &str, types: &[&str]) -> io::Result<()> {
        self.stream.set_nodelay(true)?;
        self.stream.write_all(&wire::greeting()).await?;
        let mut greeting = [0; GREETING_BYTES];
        self.stream.read_exact(&mut greeting).await?;
        wire::check_greeting(&greeting).map_err(invalid)?;
        self.stream.write_all(&wire::ready(socket_type)).await?;
        let theirs = wire::socket_type(&self.frame().await?).map_err(invalid)?;
        if types.contains(&theirs.as_str()) { Ok(()) } else { Err(invalid(WireError::SocketType(theirs))) }
    }

    /// Returns the next message or command from the peer. Nothing is lost if the future is dropped before it ends.
    pub(crate) async fn listen(&mut self) -> io::Result<Said> {
        loop {
            let Frame { is_command, more, body } = self.frame().await?;
            if is_command {
                match wire::command(&body) {
                    Some((b"SUBSCRIBE", topic)) => return Ok(Said::Subscribe(topic.to_vec())),
                    Some((b"CANCEL", topic)) => return Ok(Said::Cancel(topic.to_vec())),
                    // The context follows two bytes with the time that the peer waits.
                    Some((b"PING", rest)) => return Ok(Said::Ping(wire::pong(rest.get(2..).unwrap_or_default()))),
                    _ => continue,
                }
            }
            self.frames.push(body);
            if !more {
                return Ok(Said::Message(std::mem::take(&mut self.frames)));
            }
            if self.frames.len() == FRAMES_MAX {
                return Err(invalid(WireError::TooManyFrames));
            }
        }
    }

    async fn frame(&mut self) -> io::Result<Frame> {
        loop {
            if let Some(frame) = wire::take_frame(&mut self.received).map_err(invalid)? {
                return Ok(frame);
            }
            if self.stream.read_buf(&mut self.received).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Sends the bytes of whole frames.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let sent = timeout(WRITE, self.stream.write_all(bytes)).await;
        sent.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }
}

fn invalid(error: WireError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
