//! Encodes and decodes ZeroMQ's wire protocol, ZMTP 3.0 without security (rfc.zeromq.org/spec/23), as far as a
//! publisher and a router need it. This has no I/O.

use thiserror::Error;

/// The most bytes that a peer may send in one frame. A peer needs to send only subscriptions and numbers.
pub(crate) const FRAME_MAX: usize = 4096;
pub(crate) const GREETING_BYTES: usize = 64;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;
const MECHANISM: &[u8; 20] = b"NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

/// The reason why a connection is closed.
#[derive(Debug, PartialEq, Eq, Error)]
pub(crate) enum WireError {
    #[error("it does not speak ZMTP 3")]
    Greeting,
    #[error("it asks for a security mechanism; only NULL is spoken here")]
    Mechanism,
    #[error("a frame of {0} bytes; {FRAME_MAX} are the most")]
    FrameTooLong(u64),
    #[error("a message of too many frames")]
    TooManyFrames,
    #[error("too many subscriptions")]
    TooManySubscriptions,
    #[error("it did not say READY")]
    Ready,
    #[error("a {0} socket, which has no business here")]
    SocketType(String),
}

/// A part of a message, or a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) is_command: bool,
    /// Whether another part of the same message follows.
    pub(crate) more: bool,
    pub(crate) body: Vec<u8>,
}

/// Returns the greeting that both sides send first.
pub(crate) fn greeting() -> [u8; GREETING_BYTES] {
    let mut greeting = [0; GREETING_BYTES];
    (greeting[0], greeting[9]) = (0xff, 0x7f);
    greeting[10] = 3;
    greeting[12..32].copy_from_slice(MECHANISM);
    greeting
}

pub(crate) fn check_greeting(greeting: &[u8; GREETING_BYTES]) -> Result<(), WireError> {
    if greeting[0] != 0xff || greeting[9] & 1 == 0 || greeting[10] < 3 {
        return Err(WireError::Greeting);
    }
    if greeting[12..32] != *MECHANISM { Err(WireError::Mechanism) } else { Ok(()) }
}

/// Returns the command that says what kind of socket this is.
pub(crate) fn ready(socket_type: &str) -> Vec<u8> {
    let mut body = vec![5];
    body.extend(b"READY");
    body.push(11);
    body.extend(b"Socket-Type");
    body.extend((socket_type.len() as u32).to_be_bytes());
    body.extend(socket_type.bytes());
    encode(COMMAND, &body)
}

/// Returns the frames of a message.
pub(crate) fn message<'f>(frames: impl IntoIterator<Item = &'f [u8]>) -> Vec<u8> {
    let mut frames = frames.into_iter().peekable();
    let mut bytes = Vec::new();
    while let Some(frame) = frames.next() {
        bytes.extend(encode(if frames.peek().is_some() { MORE } else { 0 }, frame));
    }
    bytes
}

/// Returns the answer to a `PING`, with the same context.
pub(crate) fn pong(context: &[u8]) -> Vec<u8> {
    encode(COMMAND, &[b"\x04PONG", context].concat())
}

fn encode(flags: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(9 + body.len());
    match u8::try_from(body.len()) {
        Ok(length) => frame.extend([flags, length]),
        Err(_) => {
            frame.push(flags | LONG);
            frame.extend((body.len() as u64).to_be_bytes());
        }
    }
    frame.extend(body);
    frame
}

/// Takes the first frame off `bytes`, if it is whole.
pub(crate) fn take_frame(bytes: &mut Vec<u8>) -> Result<Option<Frame>, WireError> {
    let (flags, length, begin) = match *bytes.as_slice() {
        [flags, length, ..] if flags & LONG == 0 => (flags, length.into(), 2),
        [flags, a, b, c, d, e, f, g, h, ..] if flags & LONG != 0 => {
            (flags, u64::from_be_bytes([a, b, c, d, e, f, g, h]), 9)
        }
        _ => return Ok(None),
    };
    let length = usize::try_from(length).ok().filter(|&length| length <= FRAME_MAX);
    let length = length.ok_or_else(|| WireError::FrameTooLong(length_of(bytes)))?;
    if bytes.len() < begin + length {
        return Ok(None);
    }
    let body = bytes[begin..begin + length].to_vec();
    bytes.drain(..begin + length);
    Ok(Some(Frame { is_command: flags & COMMAND != 0, more: flags & MORE != 0, body }))
}

fn length_of(bytes: &[u8]) -> u64 {
    bytes[1..].first_chunk().map_or(0, |length| u64::from_be_bytes(*length))
}

/// Splits a command into its name and the rest.
pub(crate) fn command(body: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&length, rest) = body.split_first()?;
    rest.split_at_checked(length.into())
}

/// Returns the kind of socket that a `READY` names.
pub(crate) fn socket_type(ready: &Frame) -> Result<String, WireError> {
    let (name, mut properties) = command(&ready.body).filter(|_| ready.is_command).ok_or(WireError::Ready)?;
    if name != b"READY" {
        return Err(WireError::Ready);
    }
    while let Some((name, rest)) = command(properties) {
        let (length, rest) = rest.split_first_chunk().ok_or(WireError::Ready)?;
        let length = u32::from_be_bytes(*length) as usize;
        let (value, rest) = rest.split_at_checked(length).ok_or(WireError::Ready)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            return Ok(String::from_utf8_lossy(value).into_owned());
        }
        properties = rest;
    }
    Err(WireError::Ready)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_are_of_version_3_without_security() {
        assert_eq!(check_greeting(&greeting()), Ok(()));
        let with = |at: usize, byte| {
            let mut changed = greeting();
            changed[at] = byte;
            check_greeting(&changed)
        };
        assert_eq!(with(0, 0), Err(WireError::Greeting));
        assert_eq!(with(9, 0), Err(WireError::Greeting));
        assert_eq!(with(10, 2), Err(WireError::Greeting));
        assert_eq!(with(12, b'P'), Err(WireError::Mechanism));
        // A later minor version falls back to this one.
        assert_eq!(with(11, 1), Ok(()));
    }

    #[test]
    fn frames_are_read_as_they_are_written_however_they_arrive() {
        let long = vec![7; 300];
        let mut bytes = message([&b"topic"[..], &[], &long]);
        bytes.extend(ready("PUB"));
        let mut arrived = Vec::new();
        let mut frames = Vec::new();
        for byte in bytes {
            arrived.push(byte);
            frames.extend(take_frame(&mut arrived).unwrap());
        }
        let parts: Vec<_> = frames[..3].iter().map(|frame| (frame.more, &frame.body[..])).collect();
        assert_eq!(parts, [(true, &b"topic"[..]), (true, &[][..]), (false, &long[..])]);
        assert_eq!(socket_type(&frames[3]).as_deref(), Ok("PUB"));
        assert!(arrived.is_empty());
    }

    #[test]
    fn lengths_are_not_believed() {
        let mut bytes = vec![LONG];
        bytes.extend(u64::MAX.to_be_bytes());
        assert_eq!(take_frame(&mut bytes), Err(WireError::FrameTooLong(u64::MAX)));
        let mut bytes = [&[LONG][..], &(FRAME_MAX as u64 + 1).to_be_bytes()].concat();
        assert_eq!(take_frame(&mut bytes), Err(WireError::FrameTooLong(FRAME_MAX as u64 + 1)));
        let mut bytes = encode(0, &[0; FRAME_MAX]);
        assert_eq!(take_frame(&mut bytes).unwrap().unwrap().body.len(), FRAME_MAX);
    }

    #[test]
    fn what_is_not_ready_is_refused() {
        let frame = |body: &[u8]| Frame { is_command: true, more: false, body: body.to_vec() };
        let whole = take_frame(&mut ready("SUB")).unwrap().unwrap();
        assert_eq!(socket_type(&whole).as_deref(), Ok("SUB"));
        for cut in 0..whole.body.len() {
            assert_eq!(socket_type(&frame(&whole.body[..cut])), Err(WireError::Ready), "{cut}");
        }
        assert_eq!(socket_type(&Frame { is_command: false, ..whole }), Err(WireError::Ready));
        assert_eq!(socket_type(&frame(b"\x05ERROR")), Err(WireError::Ready));
        assert_eq!(socket_type(&frame(b"\x05READY\x0bSocket-Type\xff\xff\xff\xffSUB")), Err(WireError::Ready));
    }
}
