//! A card served over vfio-user, with clients that send, map and pass anything.
//!
//! Checked promises: the server goes on; each reply answers a command in its order, and an error
//! reply is a header; the card asks only for memory that was mapped, and at most the agreed amount at a
//! time; afterwards an honest client finds the card reset, and nothing that was passed is
//! kept.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use arbitrary::Unstructured;
use fpga_regs::engine::admin::{CreateCq, Header, Opcode};
use fpga_regs::engine::window;
use hostmem::fdpass::{self, Wait};
use hostmem::{Access, EventFd, SharedMapping, memfd};
use nix::fcntl::OFlag;
use softcard::Link;
use softcard::serve::{ServeConfig, Server};

use crate::Outcome;

const VERSION: u16 = 1;
const DMA_MAP: u16 = 2;
const DMA_UNMAP: u16 = 3;
const SET_IRQS: u16 = 8;
const REGION_READ: u16 = 9;
const REGION_WRITE: u16 = 10;
const DMA_READ: u16 = 11;
const DMA_WRITE: u16 = 12;
const RESET: u16 = 13;
const WRITE_MULTI: u16 = 15;
const BAR4: u32 = 4;
const CONFIG: u32 = 7;
const REPLY: u32 = 1;
const NO_REPLY: u32 = 1 << 4;
const ERROR: u32 = 1 << 5;
/// Where clients like to have their memory.
const BASE: u64 = 0x4000_0000;
const BYTES: u64 = 64 << 10;
/// Bytes of memory that the card may ask for at a time.
const MAX_DATA: u64 = 4096;
/// Window 0's registers in BAR4.
const ENGINE: u64 = 0x12_0000;

struct Bench {
    server: Server,
    dir: tempfile::TempDir,
    memory: OwnedFd,
    mapping: SharedMapping,
    event: EventFd,
    writer: OwnedFd,
}

/// A connection, and the commands that wait for their reply.
struct Peer {
    socket: UnixStream,
    waiting: VecDeque<(u16, u16)>,
    /// Bytes that were heard and are no whole message yet.
    heard: Vec<u8>,
    /// The number of the server's next request.
    next_id: u16,
    /// It said something that is no message.
    garbled: bool,
}

fn u32s(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn u64s(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn access(region: u32, offset: u64, count: u32, data: &[u8]) -> Vec<u8> {
    [u64s(&[offset]), u32s(&[region, count]), data.to_vec()].concat()
}

pub fn run(u: &mut Unstructured<'_>) -> Outcome {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name| dir.path().join(name);
    let config = ServeConfig {
        socket: path("card"),
        link: Link::Unix { local: path("a"), remote: path("a") },
        image: softcard::Image::default(),
        plays_fpga: u.arbitrary()?,
        congestion: softcard::Congestion::default(),
        faults: Vec::new(),
        seed: 1,
        capture: None,
        // A client that answers at once has answered before.
        patience: Duration::ZERO,
        join_split_stores: u.arbitrary()?,
    };
    let server = Server::new(config).expect("a card is served");
    let memory = memfd::create("guest", BYTES as usize).expect("memory");
    let mapping = SharedMapping::new(memory.as_fd(), 0, BYTES as usize, Access::ReadWrite);
    let mapping = mapping.expect("a mapping");
    let (reader, writer) = nix::unistd::pipe2(OFlag::O_NONBLOCK).expect("a pipe");
    let event = EventFd::new().expect("an eventfd");
    let mut bench = Bench { server, dir, memory, mapping, event, writer };

    let mut peer = bench.connect(0);
    while !u.is_empty() {
        bench.act(u, &mut peer)?;
        bench.settle();
        if !peer.hear() || u.ratio(1, 64)? {
            let next_id = peer.next_id;
            drop(peer);
            bench.settle();
            peer = bench.connect(next_id);
        }
    }
    drop(peer);
    bench.settle();
    bench.serves_the_next();
    drop(bench.writer);
    let end = nix::unistd::read(&reader, &mut [0]);
    assert_eq!(end, Ok(0), "the server keeps a descriptor that it was passed");
    Ok(())
}

impl Bench {
    fn settle(&mut self) {
        for _ in 0..1000 {
            if !self.server.step() {
                return;
            }
        }
        panic!("the server never comes to rest");
    }

    /// A new connection; the server goes on counting its requests.
    fn connect(&mut self, next_id: u16) -> Peer {
        let socket = UnixStream::connect(self.dir.path().join("card")).expect("the server listens");
        self.settle();
        let waiting = VecDeque::new();
        Peer { socket, waiting, heard: Vec::new(), next_id, garbled: false }
    }

    fn act(&mut self, u: &mut Unstructured<'_>, peer: &mut Peer) -> Outcome {
        match u.int_in_range(0..=15)? {
            0 => {
                let length = u.int_in_range(1..=40)?;
                let bytes = u.bytes(u.len().min(length))?;
                peer.garbled = true;
                let _ = fdpass::send_some(peer.socket.as_fd(), bytes, &[]);
            }
            1 => {
                let header = u.arbitrary::<[u32; 4]>()?;
                peer.garbled = true;
                let _ = fdpass::send_some(peer.socket.as_fd(), &u32s(&header), &[]);
            }
            2 | 3 => self.bring_up(u, peer)?,
            4 => self.answer(u, peer)?,
            5 => {
                // Memory may change at any moment.
                let offset = u.int_in_range(0..=BYTES as usize - 64)?;
                let bytes = u.bytes(u.len().min(64))?;
                let _ = self.mapping.write_bytes(offset, bytes);
            }
            _ => self.command(u, peer)?,
        }
        Ok(())
    }

    /// An honest driver's start of an engine, up to some step.
    fn bring_up(&mut self, u: &mut Unstructured<'_>, peer: &mut Peer) -> Outcome {
        let proposed = format!(r#"{{"capabilities":{{"max_data_xfer_size":{MAX_DATA}}}}}"#);
        let version = [&[0; 4][..], proposed.as_bytes(), &[0]].concat();
        peer.say(VERSION, 0, &version, &[]);
        peer.write(CONFIG, 4, &[6, 0]);
        let map = [u32s(&[32, 3]), u64s(&[0, BASE, BYTES])].concat();
        let fds = [self.memory.as_fd()];
        peer.say(DMA_MAP, 0, &map, if u.arbitrary()? { &fds } else { &[] });
        // The MMU: addresses are their own, in pages of 2 MiB.
        peer.write(BAR4, 0x10_0000, &((BASE >> 21) | 1 << 32).to_le_bytes());
        peer.write(BAR4, 0x10_0008, &((BASE >> 21) | 1 << 33 | 1 << 35).to_le_bytes());
        let header = Header { opcode: Opcode::CreateCq, blocks: 1, tag: 7, response: 0 };
        let ring = BASE + u.int_in_range(0..=BYTES)?;
        let [mut block] =
            CreateCq { ring, log2_entries: 2, page: 1, vector: u.int_in_range(0..=4)? }.encode();
        block.iter_mut().zip(header.encode()[0]).for_each(|(word, more)| *word |= more);
        let _ = self.mapping.write_bytes(0, &u64s(&block));
        let log2 = u64::from(u.int_in_range(0..=8u8)?);
        for (register, value) in [
            (window::ADMIN_SQ_BASE, BASE),
            (window::ADMIN_SQ_SIZE, log2),
            (window::ADMIN_CQ_BASE, BASE + 0x4000),
            (window::ADMIN_CQ_SIZE, log2),
            (window::EVENT_BASE, BASE + 0x8000),
            (window::EVENT_SIZE, log2),
            (window::EVENT_RINGS, u.int_in_range(0..=5)?),
            (window::CONTROL, window::CONTROL_ENABLE),
        ] {
            peer.write(BAR4, ENGINE + register, &value.to_le_bytes());
        }
        self.settle();
        peer.hear();
        let rung = u64::from(u.int_in_range(0..=4u8)?);
        peer.write(BAR4, ENGINE + window::ADMIN_DOORBELL, &rung.to_le_bytes());
        self.answer(u, peer)
    }

    /// Answers, which are there before they are asked for.
    fn answer(&mut self, u: &mut Unstructured<'_>, peer: &mut Peer) -> Outcome {
        if u.arbitrary()? {
            // A command's accesses: it is read, its completion written, last word last.
            let mut command = [0; 64];
            let _ = self.mapping.read_bytes(0, &mut command);
            let read = [u64s(&[BASE, 64]), command.to_vec()].concat();
            peer.say_as(peer.next_id, DMA_READ, REPLY, &read, &[]);
            for ahead in 1..=u.int_in_range(0..=4u16)? {
                peer.say_as(peer.next_id.wrapping_add(ahead), DMA_WRITE, REPLY, &[0; 16], &[]);
            }
            return Ok(());
        }
        for ahead in 0..u.int_in_range(0..=3u16)? {
            let id = peer.next_id.wrapping_add(ahead);
            let address = *u.choose(&[BASE, BASE + 0x4000, BASE + 0x40, 0])?;
            let count = *u.choose(&[64u64, 56, 8, 4, 0, u64::MAX])?;
            let mut payload = u64s(&[address, count]);
            let mut data = vec![0; count.min(64) as usize];
            let _ =
                self.mapping.read_bytes((address.wrapping_sub(BASE) % BYTES) as usize, &mut data);
            payload.extend(data);
            let flags = *u.choose(&[REPLY, REPLY, REPLY, REPLY | ERROR])?;
            let command = *u.choose(&[DMA_READ, DMA_READ, DMA_WRITE, VERSION])?;
            peer.say_as(id, command, flags, &payload, &[]);
        }
        Ok(())
    }

    fn command(&mut self, u: &mut Unstructured<'_>, peer: &mut Peer) -> Outcome {
        let number = |u: &mut Unstructured<'_>| -> arbitrary::Result<u64> {
            Ok(match u.int_in_range(0..=6)? {
                0 => 0,
                1 => u.int_in_range(0..=64)?,
                2 => u.int_in_range(0..=16)? << 12,
                3 => BASE + (u.int_in_range(0..=32)? << 12),
                4 => ENGINE + u.int_in_range(0..=0x300)?,
                5 => u64::MAX - u.int_in_range(0..=4096)?,
                _ => u.arbitrary()?,
            })
        };
        let small = |u: &mut Unstructured<'_>| -> arbitrary::Result<u32> {
            Ok(match u.int_in_range(0..=3)? {
                0 => u.int_in_range(0..=9)?,
                1 => u.int_in_range(0..=64)?,
                2 => u32::MAX - u.int_in_range(0..=4)?,
                _ => u.arbitrary()?,
            })
        };
        let count = u.int_in_range(0..=17usize)?;
        let kind = u.int_in_range(0..=4)?;
        let fd = match kind {
            0 => self.event.as_fd(),
            1 => self.memory.as_fd(),
            2 => self.writer.as_fd(),
            _ => peer_fd(&self.event),
        };
        let fds = vec![fd; if kind > 2 { 0 } else { count.min(16) }];
        let command = *u.choose(&[
            VERSION,
            DMA_MAP,
            DMA_MAP,
            DMA_UNMAP,
            4,
            5,
            6,
            7,
            SET_IRQS,
            SET_IRQS,
            REGION_READ,
            REGION_READ,
            REGION_WRITE,
            REGION_WRITE,
            DMA_READ,
            RESET,
            WRITE_MULTI,
            99,
        ])?;
        let payload = match command {
            DMA_MAP => {
                [u32s(&[32, small(u)?]), u64s(&[number(u)?, number(u)?, number(u)?])].concat()
            }
            DMA_UNMAP => [u32s(&[24, small(u)?]), u64s(&[number(u)?, number(u)?])].concat(),
            SET_IRQS => {
                let flags = *u.choose(&[0x24, 0x21, 0x22, 0x09, 0x11, 0x12, 0])?;
                let index = u.int_in_range(0..=5)?;
                [u32s(&[20, flags, index, small(u)?, small(u)?]), vec![1; 8]].concat()
            }
            REGION_READ => access(small(u)?, number(u)?, small(u)?, &[]),
            REGION_WRITE => {
                let data = u.bytes(u.len().min(count))?;
                access(small(u)?, number(u)?, data.len() as u32, data)
            }
            WRITE_MULTI => {
                let mut payload = u64s(&[count as u64]);
                for _ in 0..count {
                    let data = u.arbitrary::<u64>()?.to_le_bytes();
                    payload.extend(access(small(u)?, number(u)?, u.int_in_range(0..=9)?, &data));
                }
                payload
            }
            _ => [u32s(&[112, 0, small(u)?, 0]), u.bytes(u.len().min(count))?.to_vec()].concat(),
        };
        let flags = if u.ratio(1, 8)? { NO_REPLY } else { 0 };
        let cut = if u.ratio(1, 8)? { u.int_in_range(0..=payload.len())? } else { payload.len() };
        peer.say(command, flags, &payload[..cut], &fds);
        Ok(())
    }

    fn serves_the_next(&mut self) {
        let mut peer = self.connect(0);
        peer.say(VERSION, 0, &[0; 4], &[]);
        peer.say(REGION_READ, 0, &access(CONFIG, 0, 8, &[]), &[]);
        self.settle();
        let expected = [0xee, 0x10, 0x3f, 0x90, 0, 0, 0x10, 0];
        let mut buffer = [0u8; 256];
        let received = fdpass::receive(peer.socket.as_fd(), &mut buffer, Wait::Never);
        let bytes = received.expect("an honest client is answered").bytes;
        assert!(buffer[..bytes].ends_with(&expected), "an honest client finds the card reset");
    }
}

/// A descriptor that is never sent.
fn peer_fd(event: &EventFd) -> BorrowedFd<'_> {
    event.as_fd()
}

impl Peer {
    fn say(&mut self, command: u16, flags: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) {
        let id = self.waiting.back().map_or(1, |(id, _)| id.wrapping_add(1));
        if self.say_as(id, command, flags, payload, fds) && flags & NO_REPLY == 0 {
            self.waiting.push_back((id, command));
        }
    }

    /// Says a message; `false` when the server does not take it.
    fn say_as(
        &mut self,
        id: u16,
        command: u16,
        flags: u32,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> bool {
        let mut bytes = [id.to_le_bytes(), command.to_le_bytes()].concat();
        bytes.extend(u32s(&[16 + payload.len() as u32, flags, 0]));
        bytes.extend(payload);
        fdpass::send(self.socket.as_fd(), &bytes, fds, Wait::Never).is_ok()
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) {
        self.say(REGION_WRITE, 0, &access(region, offset, data.len() as u32, data), &[]);
    }

    /// Takes the server's messages; `false` when it has ended the connection.
    fn hear(&mut self) -> bool {
        let mut buffer = vec![0; 1 << 16];
        loop {
            match fdpass::receive(self.socket.as_fd(), &mut buffer, Wait::Never) {
                Ok(received) if received.bytes > 0 => {
                    self.heard.extend(&buffer[..received.bytes]);
                    self.understand();
                }
                Err(error) if error.would_block() => return true,
                _ => return false,
            }
        }
    }

    fn understand(&mut self) {
        while self.heard.len() >= 16 {
            let u16_at = |at: usize| u16::from_le_bytes([self.heard[at], self.heard[at + 1]]);
            let word = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
            let (id, command, size, flags) = (u16_at(0), u16_at(2), word(4) as usize, word(8));
            assert!((16..=(1 << 20) + 4096).contains(&size), "a message of {size} bytes");
            if self.heard.len() < size {
                return;
            }
            let message: Vec<u8> = self.heard.drain(..size).collect();
            match flags & 0xf {
                REPLY => self.is_answered(id, command, flags, &message[16..]),
                0 => self.is_asked(id, command, &message[16..]),
                other => panic!("a message of type {other}"),
            }
        }
    }

    fn is_answered(&mut self, id: u16, command: u16, flags: u32, payload: &[u8]) {
        assert!(flags & ERROR == 0 || payload.is_empty(), "an error reply is a header");
        if !self.garbled {
            assert_eq!(self.waiting.pop_front(), Some((id, command)), "replies come in order");
        }
    }

    fn is_asked(&mut self, id: u16, command: u16, payload: &[u8]) {
        assert!(matches!(command, DMA_READ | DMA_WRITE), "the server says command {command}");
        let count = u64::from_le_bytes(payload[8..16].try_into().expect("eight bytes"));
        assert!(count > 0 && count <= 1 << 20, "{count} bytes at a time");
        let data = if command == DMA_WRITE { count } else { 0 };
        assert_eq!(payload.len() as u64, 16 + data);
        self.next_id = id.wrapping_add(1);
    }
}
