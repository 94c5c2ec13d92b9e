//! Messages over the client's socket, without waiting.
//!
//! A message is taken header first, then payload: so the descriptors that the kernel delivers are
//! those of this message. Each message goes out by calls of its own: some clients take a header in
//! one piece or not at all. While the client does not take a message, softcard reads nothing more
//! from it, except the answer to its own request.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use hostmem::fdpass::{self, MAX_FDS, Wait};
use nix::errno::Errno;

use super::wire::{HEADER_BYTES, Header, Malformed};
use crate::Error;

/// Most bytes kept for a client that does not take them.
const MAX_OUTGOING: usize = 4 << 20;

/// Why a connection is over.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Over {
    #[error("the client has closed the connection")]
    Closed,
    #[error("the client's stream makes no sense: {0}")]
    Malformed(#[from] Malformed),
    #[error("the client sent more than {MAX_FDS} descriptors with a message")]
    TooManyDescriptors,
    #[error("the client does not read its messages")]
    Deaf,
    #[error("the client did not answer a request for its memory within {0:?}")]
    Silent(Duration),
    #[error("the client took more than {0:?} to answer the requests for its memory in one round")]
    Slow(Duration),
    #[error("the client speaks another version of the protocol")]
    Version,
    #[error("the client's socket cannot be waited for: {0}")]
    Unheard(Error),
    #[error(transparent)]
    Host(hostmem::Error),
}

/// A message from the client.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) header: Header,
    pub(crate) payload: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
}

#[derive(Debug)]
struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
    /// Goes with the first byte.
    fd: Option<Rc<OwnedFd>>,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Channel {
    socket: OwnedFd,
    header: [u8; HEADER_BYTES],
    /// Bytes of the header, or of the payload once there is a message, that have arrived.
    arrived: usize,
    message: Option<Message>,
    fds: Vec<OwnedFd>,
    outgoing: VecDeque<Outgoing>,
    outgoing_bytes: usize,
}

impl Channel {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            header: [0; HEADER_BYTES],
            arrived: 0,
            message: None,
            fds: Vec::new(),
            outgoing: VecDeque::new(),
            outgoing_bytes: 0,
        }
    }

    /// Whether messages wait for the client to take them.
    pub(crate) fn is_clogged(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Takes the next message, if all of it has arrived.
    pub(crate) fn receive(&mut self) -> Result<Option<Message>, Over> {
        loop {
            if self.message.is_none() {
                if !self.fill_header()? {
                    return Ok(None);
                }
                let header = Header::parse(self.header)?;
                self.arrived = 0;
                let payload = vec![0; header.payload];
                self.message = Some(Message { header, payload, fds: Vec::new() });
            }
            let Some(message) = &mut self.message else { continue };
            if self.arrived < message.payload.len() {
                let rest = message.payload.get_mut(self.arrived..).unwrap_or_default();
                match receive_some(self.socket.as_fd(), rest, &mut self.fds)? {
                    None => return Ok(None),
                    Some(bytes) => self.arrived = self.arrived.saturating_add(bytes),
                }
                continue;
            }
            self.arrived = 0;
            let fds = std::mem::take(&mut self.fds);
            return Ok(self.message.take().map(|message| Message { fds, ..message }));
        }
    }

    /// Whether the header has arrived.
    fn fill_header(&mut self) -> Result<bool, Over> {
        while self.arrived < HEADER_BYTES {
            let rest = self.header.get_mut(self.arrived..).unwrap_or_default();
            match receive_some(self.socket.as_fd(), rest, &mut self.fds)? {
                None => return Ok(false),
                Some(bytes) => self.arrived = self.arrived.saturating_add(bytes),
            }
        }
        Ok(true)
    }

    /// Sends a message, now or when the client takes it.
    pub(crate) fn send(&mut self, bytes: Vec<u8>, fd: Option<Rc<OwnedFd>>) -> Result<(), Over> {
        self.outgoing_bytes = self.outgoing_bytes.saturating_add(bytes.len());
        if self.outgoing_bytes > MAX_OUTGOING {
            return Err(Over::Deaf);
        }
        self.outgoing.push_back(Outgoing { bytes, sent: 0, fd });
        self.flush()
    }

    /// Sends waiting messages, as far as the client takes them.
    pub(crate) fn flush(&mut self) -> Result<(), Over> {
        while let Some(message) = self.outgoing.front_mut() {
            let rest = message.bytes.get(message.sent..).unwrap_or_default();
            let fd = message.fd.as_deref().map(AsFd::as_fd);
            match fdpass::send_some(self.socket.as_fd(), rest, fd.as_slice()) {
                Ok(bytes) => {
                    message.fd = None;
                    message.sent = message.sent.saturating_add(bytes);
                    if message.sent >= message.bytes.len() {
                        let gone = message.bytes.len();
                        self.outgoing_bytes = self.outgoing_bytes.saturating_sub(gone);
                        self.outgoing.pop_front();
                    }
                }
                Err(error) if error.would_block() => return Ok(()),
                Err(error) => return Err(over(error)),
            }
        }
        Ok(())
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Takes arrivals into a buffer that is not empty; `None` when there are none.
fn receive_some(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> Result<Option<usize>, Over> {
    let received = match fdpass::receive(socket, buffer, Wait::Never) {
        Ok(received) => received,
        Err(error) if error.would_block() => return Ok(None),
        Err(hostmem::Error::Truncated { .. }) => return Err(Over::TooManyDescriptors),
        Err(error) => return Err(over(error)),
    };
    if received.bytes == 0 {
        return Err(Over::Closed);
    }
    fds.extend(received.fds);
    if fds.len() > MAX_FDS {
        return Err(Over::TooManyDescriptors);
    }
    Ok(Some(received.bytes))
}

fn over(error: hostmem::Error) -> Over {
    match error.errno() {
        Some(Errno::EPIPE | Errno::ECONNRESET) => Over::Closed,
        _ => Over::Host(error),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::serve::wire::command;

    fn channel() -> (Channel, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Channel::new(ours.into()), theirs)
    }

    fn message(id: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes = id.to_le_bytes().to_vec();
        bytes.extend(command::VERSION.to_le_bytes());
        bytes.extend((16 + payload.len() as u32).to_le_bytes());
        bytes.extend([0; 8]);
        bytes.extend(payload);
        bytes
    }

    #[test]
    fn messages_arrive_whole_however_they_are_cut() {
        let (mut channel, mut client) = channel();
        let mut stream = message(1, b"hello");
        stream.extend(message(2, b""));
        stream.extend(message(3, &[7; 100]));
        let mut arrived = Vec::new();
        for byte in stream {
            client.write_all(&[byte]).unwrap();
            while let Some(message) = channel.receive().unwrap() {
                arrived.push((message.header.id, message.payload.len()));
            }
        }
        assert_eq!(arrived, [(1, 5), (2, 0), (3, 100)]);
    }

    #[test]
    fn descriptors_belong_to_the_message_they_came_with() {
        let (mut channel, client) = channel();
        let null = std::fs::File::open("/dev/null").unwrap();
        let send = |id, fds: &[BorrowedFd<'_>]| {
            fdpass::send(client.as_fd(), &message(id, b"x"), fds, Wait::Never).unwrap();
        };
        send(1, &[]);
        send(2, &[null.as_fd(); 16]);
        send(3, &[null.as_fd()]);
        send(4, &[]);
        let mut next = || channel.receive().unwrap().map(|message| message.fds.len());
        assert_eq!([next(), next(), next(), next()], [Some(0), Some(16), Some(1), Some(0)]);
        assert_eq!(next(), None);
    }

    #[test]
    fn more_descriptors_than_were_agreed_on_end_the_connection() {
        let (mut channel, client) = channel();
        let null = std::fs::File::open("/dev/null").unwrap();
        let bytes = message(1, b"xy");
        for part in [&bytes[..8], &bytes[8..]] {
            fdpass::send(client.as_fd(), part, &[null.as_fd(); 9], Wait::Never).unwrap();
        }
        assert!(matches!(channel.receive(), Err(Over::TooManyDescriptors)));
    }

    #[test]
    fn a_stream_that_makes_no_sense_ends_the_connection_and_so_does_its_end() {
        let (mut channel, mut client) = self::channel();
        client.write_all(&[0xff; 16]).unwrap();
        assert!(matches!(channel.receive(), Err(Over::Malformed(_))));
        let (mut channel, client) = self::channel();
        drop(client);
        assert!(matches!(channel.receive(), Err(Over::Closed)));
        assert!(matches!(channel.send(vec![0; 16], None), Err(Over::Closed)));
    }

    #[test]
    fn what_the_client_does_not_take_is_kept_up_to_a_limit() {
        let (mut channel, mut client) = channel();
        channel.send(vec![1; 1 << 20], None).unwrap();
        assert!(channel.is_clogged());
        let mut taken = vec![0; 1 << 20];
        let reader = std::thread::spawn(move || {
            client.read_exact(&mut taken).unwrap();
            client
        });
        while channel.is_clogged() {
            channel.flush().unwrap();
            std::thread::yield_now();
        }
        let _client = reader.join().unwrap();
        for _ in 0..4 {
            channel.send(vec![1; 1 << 20], None).unwrap();
        }
        let deaf = (0..2).find_map(|_| channel.send(vec![1; 1 << 20], None).err());
        assert!(matches!(deaf, Some(Over::Deaf)));
    }
}
