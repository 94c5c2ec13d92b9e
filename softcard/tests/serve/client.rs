//! A client that sends exactly the messages that a test wants.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use hostmem::fdpass::{self, Wait};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

pub const VERSION: u16 = 1;
pub const DMA_MAP: u16 = 2;
pub const DMA_UNMAP: u16 = 3;
pub const GET_INFO: u16 = 4;
pub const GET_REGION_INFO: u16 = 5;
pub const GET_REGION_IO_FDS: u16 = 6;
pub const GET_IRQ_INFO: u16 = 7;
pub const SET_IRQS: u16 = 8;
pub const REGION_READ: u16 = 9;
pub const REGION_WRITE: u16 = 10;
pub const DMA_READ: u16 = 11;
pub const DMA_WRITE: u16 = 12;
pub const RESET: u16 = 13;
pub const WRITE_MULTI: u16 = 15;

pub const BAR0: u32 = 0;
pub const BAR2: u32 = 2;
pub const BAR4: u32 = 4;
pub const CONFIG: u32 = 7;

/// Flags of a header.
pub const REPLY: u32 = 1;
pub const NO_REPLY: u32 = 1 << 4;
pub const ERROR: u32 = 1 << 5;

pub const EINVAL: u32 = 22;
pub const EEXIST: u32 = 17;
pub const E2BIG: u32 = 7;
pub const ENOTSUP: u32 = 95;

/// The capabilities that QEMU proposes.
pub const CAPABILITIES: &str = r#"{"capabilities":{"migration":{"max_bitmap_size":268435456,
    "pgsize":4096},"max_msg_fds":16,"max_data_xfer_size":1048576,"pgsizes":4096,
    "max_dma_maps":65535,"write_multiple":true}}"#;

/// A message from the server.
#[derive(Debug)]
pub struct Message {
    pub id: u16,
    pub command: u16,
    pub flags: u32,
    pub error: u32,
    pub payload: Vec<u8>,
    pub fds: Vec<OwnedFd>,
}

/// A client of the vfio-user protocol.
pub struct VfioUserClient {
    pub socket: UnixStream,
    next_id: u16,
    /// Requests of the server that arrived while a reply was waited for.
    pub requests: VecDeque<Message>,
}

/// Little-endian words of 32 bits.
pub fn u32s(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Little-endian words of 64 bits.
pub fn u64s(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The payload of an access to a region.
pub fn access(region: u32, offset: u64, count: u32, data: &[u8]) -> Vec<u8> {
    [u64s(&[offset]), u32s(&[region, count]), data.to_vec()].concat()
}

/// The payload of `DMA_MAP`.
pub fn map(flags: u32, offset: u64, address: u64, size: u64) -> Vec<u8> {
    [u32s(&[32, flags]), u64s(&[offset, address, size])].concat()
}

/// The payload of `DMA_UNMAP`.
pub fn unmap(flags: u32, address: u64, size: u64) -> Vec<u8> {
    [u32s(&[24, flags]), u64s(&[address, size])].concat()
}

impl VfioUserClient {
    /// A connection on which nothing was said.
    pub fn connect(path: &Path) -> Self {
        let socket = UnixStream::connect(path).unwrap();
        // A server that does not answer fails the test instead of holding it up.
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Self { socket, next_id: 0x100, requests: VecDeque::new() }
    }

    /// A connection with everything agreed on that QEMU proposes.
    pub fn new(path: &Path) -> Self {
        let mut client = Self::connect(path);
        client.propose(0, 0, CAPABILITIES).unwrap();
        client
    }

    /// A connection to a card that decodes its BARs and masters the bus.
    pub fn enabled(path: &Path) -> Self {
        let mut client = Self::new(path);
        client.write(CONFIG, 4, &[0x06, 0x00]).unwrap();
        client
    }

    pub fn propose(&mut self, major: u16, minor: u16, json: &str) -> Result<Message, u32> {
        let version = [major.to_le_bytes(), minor.to_le_bytes()].concat();
        self.call(VERSION, &[&version, json.as_bytes(), &[0]].concat())
    }

    /// Says a message; returns its number.
    pub fn say(&mut self, command: u16, flags: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> u16 {
        self.next_id = self.next_id.wrapping_add(1);
        self.say_as(self.next_id, command, flags, payload, fds);
        self.next_id
    }

    /// Says a message; `false` when the server has ended the connection.
    pub fn try_say(&mut self, command: u16, flags: u32, payload: &[u8]) -> bool {
        let bytes = self.message(0, command, flags, payload);
        fdpass::send(self.socket.as_fd(), &bytes, &[], Wait::AsSocket).is_ok()
    }

    fn message(&self, id: u16, command: u16, flags: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = [id.to_le_bytes(), command.to_le_bytes()].concat();
        bytes.extend(u32s(&[16 + payload.len() as u32, flags, 0]));
        bytes.extend(payload);
        bytes
    }

    pub fn say_as(
        &mut self,
        id: u16,
        command: u16,
        flags: u32,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
    ) {
        let bytes = self.message(id, command, flags, payload);
        fdpass::send(self.socket.as_fd(), &bytes, fds, Wait::AsSocket).unwrap();
    }

    /// The server's next message; `None` when it has closed the connection.
    pub fn hear(&mut self) -> Option<Message> {
        let mut fds = Vec::new();
        let header = self.take(16, &mut fds)?;
        let u16_at = |at: usize| u16::from_le_bytes(header[at..at + 2].try_into().unwrap());
        let u32_at = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
        let payload = self.take(u32_at(4) as usize - 16, &mut fds)?;
        Some(Message {
            id: u16_at(0),
            command: u16_at(2),
            flags: u32_at(8),
            error: u32_at(12),
            payload,
            fds,
        })
    }

    fn take(&mut self, count: usize, fds: &mut Vec<OwnedFd>) -> Option<Vec<u8>> {
        let mut bytes = vec![0; count];
        let mut at = 0;
        while at < count {
            let received = fdpass::receive(self.socket.as_fd(), &mut bytes[at..], Wait::AsSocket);
            let received = match received {
                Ok(received) => received,
                Err(error) if error.errno() == Some(nix::errno::Errno::ECONNRESET) => return None,
                Err(error) => panic!("the server does not answer: {error}"),
            };
            if received.bytes == 0 {
                return None;
            }
            fds.extend(received.fds);
            at += received.bytes;
        }
        Some(bytes)
    }

    /// The reply to a message; requests of the server that come first are kept.
    pub fn reply_to(&mut self, id: u16) -> Result<Message, u32> {
        loop {
            let message = self.hear().expect("the server has closed the connection");
            if message.flags & REPLY == 0 {
                self.requests.push_back(message);
                continue;
            }
            assert_eq!(message.id, id);
            if message.flags & ERROR != 0 {
                assert!(message.payload.is_empty(), "an error reply is a header");
                return Err(message.error);
            }
            return Ok(message);
        }
    }

    /// The server's next request.
    pub fn hear_request(&mut self) -> Message {
        if let Some(request) = self.requests.pop_front() {
            return request;
        }
        let message = self.hear().expect("the server has closed the connection");
        assert_eq!(message.flags & REPLY, 0, "a reply that nobody waits for");
        message
    }

    /// Keeps the requests of the server that have arrived.
    pub fn overhear(&mut self) {
        let waits = |socket: &UnixStream| {
            let mut fds = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
            poll(&mut fds, PollTimeout::ZERO).unwrap() > 0
        };
        while waits(&self.socket) {
            let message = self.hear().expect("the server has closed the connection");
            assert_eq!(message.flags & REPLY, 0, "a reply that nobody waits for");
            self.requests.push_back(message);
        }
    }

    pub fn call_with(
        &mut self,
        command: u16,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Message, u32> {
        let id = self.say(command, 0, payload, fds);
        let reply = self.reply_to(id)?;
        assert_eq!(reply.command, command);
        Ok(reply)
    }

    pub fn call(&mut self, command: u16, payload: &[u8]) -> Result<Message, u32> {
        self.call_with(command, payload, &[])
    }

    pub fn read(&mut self, region: u32, offset: u64, count: u32) -> Result<Vec<u8>, u32> {
        let reply = self.call(REGION_READ, &access(region, offset, count, &[]))?;
        assert_eq!(reply.payload[..16], access(region, offset, count, &[]));
        assert_eq!(reply.payload.len(), 16 + count as usize);
        Ok(reply.payload[16..].to_vec())
    }

    pub fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), u32> {
        let count = data.len() as u32;
        let reply = self.call(REGION_WRITE, &access(region, offset, count, data))?;
        assert_eq!(reply.payload, access(region, offset, count, &[]));
        Ok(())
    }

    pub fn read64(&mut self, region: u32, offset: u64) -> u64 {
        u64::from_le_bytes(self.read(region, offset, 8).unwrap().try_into().unwrap())
    }

    pub fn write64(&mut self, region: u32, offset: u64, value: u64) {
        self.write(region, offset, &value.to_le_bytes()).unwrap();
    }

    /// Whether the server ends the connection, after any further messages.
    pub fn is_ended(&mut self) -> bool {
        while let Some(message) = self.hear() {
            assert_ne!(message.flags & REPLY, 0);
        }
        true
    }
}
