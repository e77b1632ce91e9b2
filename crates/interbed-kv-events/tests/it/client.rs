//! A ZMTP 3.0 peer, written from the specification alone.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub struct Client(pub TcpStream);

impl Client {
    /// Connects, and says that the peer is a socket of type `socket_type`.
    pub fn connect(address: SocketAddr, socket_type: &str) -> Self {
        let mut client = Self::open(address);
        client.greet(b"NULL");
        client.command(&ready(socket_type));
        let (flags, body) = client.frame().expect("it is greeted");
        assert_eq!((flags, &body[..6]), (4, &b"\x05READY"[..]));
        client
    }

    pub fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self(stream)
    }

    /// Sends a greeting, and reads the publisher's greeting.
    pub fn greet(&mut self, mechanism: &[u8]) {
        let mut greeting = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1];
        greeting.extend(mechanism);
        greeting.resize(64, 0);
        self.0.write_all(&greeting).unwrap();
        let mut theirs = [0; 64];
        self.0.read_exact(&mut theirs).unwrap();
        assert_eq!((theirs[0], theirs[9], theirs[10], &theirs[12..17]), (0xff, 0x7f, 3, &b"NULL\0"[..]));
    }

    pub fn command(&mut self, body: &[u8]) {
        self.0.write_all(&[&[4, body.len() as u8], body].concat()).unwrap();
    }

    pub fn send(&mut self, frames: &[&[u8]]) {
        for (at, frame) in frames.iter().enumerate() {
            let more = u8::from(at + 1 < frames.len());
            self.0.write_all(&[&[more, frame.len() as u8], *frame].concat()).unwrap();
        }
    }

    pub fn subscribe(&mut self, topic: &[u8]) {
        self.send(&[&[&[1], topic].concat()]);
        // A ping is answered in order, so its answer says that the subscription before it has been heard.
        self.ping();
    }

    pub fn ping(&mut self) {
        self.command(b"\x04PING\x00\x00here");
        assert_eq!(self.frame().unwrap(), (4, b"\x04PONGhere".to_vec()));
    }

    /// Returns the frames of the next message.
    pub fn message(&mut self) -> io::Result<Vec<Vec<u8>>> {
        let mut frames = Vec::new();
        loop {
            let (flags, body) = self.frame()?;
            frames.push(body);
            if flags & 1 == 0 {
                return Ok(frames);
            }
        }
    }

    fn frame(&mut self) -> io::Result<(u8, Vec<u8>)> {
        let mut flags = [0];
        self.0.read_exact(&mut flags)?;
        let length = match flags[0] & 2 {
            0 => {
                let mut length = [0];
                self.0.read_exact(&mut length)?;
                length[0].into()
            }
            _ => {
                let mut length = [0; 8];
                self.0.read_exact(&mut length)?;
                u64::from_be_bytes(length) as usize
            }
        };
        let mut body = vec![0; length];
        self.0.read_exact(&mut body)?;
        Ok((flags[0] & !2, body))
    }
}

pub fn ready(socket_type: &str) -> Vec<u8> {
    let mut body = b"\x05READY\x08Identity\0\0\0\0\x0bSocket-Type\0\0\0".to_vec();
    body.push(socket_type.len() as u8);
    body.extend(socket_type.bytes());
    body
}
