//! The peer of a queue pair: requests posted to it, and packets from it, regular or not.

use std::collections::VecDeque;

use arbitrary::Unstructured;
use fpga_regs::coyote::vfpga::{Command, Stream};
use stock::param::{PMTU, READ_PIECE};

use super::packet::{
    ACK, Packet, READ_REQUEST, RESPONSE_FIRST, RESPONSE_LAST, RESPONSE_MIDDLE, RESPONSE_ONLY,
    SEND_FIRST, SEND_LAST, SEND_MIDDLE, SEND_ONLY, WRITE_FIRST, WRITE_LAST, WRITE_MIDDLE,
    WRITE_ONLY,
};
use super::{Both, Piece, Post};

type Chosen<T> = arbitrary::Result<T>;

const PSN: u32 = 0xff_ffff;
const SENDS: [u8; 4] = [SEND_FIRST, SEND_MIDDLE, SEND_LAST, SEND_ONLY];
const WRITES: [u8; 4] = [WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST, WRITE_ONLY];
/// The opcodes that end a message.
const ENDS: [u8; 5] = [SEND_LAST, SEND_ONLY, WRITE_LAST, WRITE_ONLY, READ_REQUEST];

/// A queue pair, as its peer sees it.
pub struct Peer {
    qpn: u32,
    /// The PSN of the peer's next request.
    next: u32,
    /// That of the card's next one.
    expected: u32,
    /// Requests of the card's that are not answered: PSN, opcode, length.
    unanswered: VecDeque<(u32, u8, u32)>,
    /// Bytes of the oldest one that have been sent.
    answered: u32,
}

/// Lengths of packets: any short one, around a word of the stack's, and around a full one.
fn length(u: &mut Unstructured<'_>) -> Chosen<u32> {
    let any = u.int_in_range(1..=250)?;
    Ok(*u.choose(&[any, any, 4 * any, 4, 63, 64, 65, 4092, 4095, PMTU])?)
}

/// Something near a PSN, seldom itself.
fn near(u: &mut Unstructured<'_>, psn: u32) -> Chosen<u32> {
    let by = *u.choose(&[0, 1, 2, 7, PSN, PSN - 1, PSN - 6, 0x80_0000])?;
    Ok((psn + by) & PSN)
}

fn packets(opcode: u8, length: u32) -> u32 {
    if opcode == READ_REQUEST { length.div_ceil(PMTU) } else { 1 }
}

impl Peer {
    /// Sets the queue pair's context.
    pub fn connect(u: &mut Unstructured<'_>, both: &mut Both, qpn: u32) -> Chosen<Self> {
        let mut psn = || Chosen::Ok(*u.choose(&[0, 1, 100, 0x7f_fffe, PSN - 3, PSN])?);
        let (next, expected) = (psn()?, psn()?);
        both.context(qpn, next, expected, 0x1000 + qpn);
        Ok(Self { qpn, next, expected, unanswered: VecDeque::new(), answered: 0 })
    }

    /// Posts a READ, WRITE or SEND, or one packet as it is.
    pub fn post(&mut self, u: &mut Unstructured<'_>, both: &mut Both, raw: bool) -> Chosen<()> {
        let vaddr =
            |u: &mut Unstructured<'_>| Chosen::Ok(0x7000_0000 + u64::from(u.arbitrary::<u16>()?));
        let (local_vaddr, remote_vaddr) = (vaddr(u)?, vaddr(u)?);
        let extra = if raw { 0 } else { *u.choose(&[0, 0, 0, 0, 1, 2, 8])? };
        let length = extra * PMTU + length(u)?;
        // 0 to 2 are READ, WRITE and SEND; a packet as it is has its opcode, of which the stack does not send the last.
        let opcode = match raw {
            true => *u.choose(&[0, 1, 2, 4, 6, 7, 8, 10, 12, 3, 17])?,
            false => u.int_in_range(0..=2)?,
        };
        let is_read = opcode == 0 && !raw;
        let (local_last, last) = (u.ratio(7, 8)?, u.ratio(7, 8)?);
        let half = Command { ctid: self.qpn as u8, length, ..Command::default() };
        let local = Command {
            stream: Stream::Host,
            // A packet that is not full never leaves without it.
            last: local_last || length % PMTU != 0,
            ..half
        };
        let remote = Command { opcode, raw, stream: Stream::Rdma, start: true, last, ..half };
        let pieces = match (raw, opcode) {
            (true, _) => vec![(opcode, length)],
            (_, 0) => pieces(length, READ_PIECE, [READ_REQUEST; 4]),
            (_, 1) => pieces(length, PMTU, WRITES),
            _ => pieces(length, PMTU, SENDS),
        };
        let mut done = 0;
        let pieces = pieces.into_iter().map(|(opcode, bytes)| {
            let there = if opcode <= SEND_ONLY { 0 } else { remote_vaddr + done };
            let piece = Piece {
                opcode,
                qpn: self.qpn,
                slot: 0,
                last: last
                    && done + u64::from(bytes) == u64::from(length)
                    && ENDS.contains(&opcode),
                length: bytes,
                local: u64::from(Stream::Host.0) << 52 | (local_vaddr + done),
                remote: there,
            };
            done += u64::from(bytes);
            piece
        });
        let post = Post {
            local: (local, local_vaddr),
            remote: (remote, remote_vaddr),
            is_read,
            pieces: pieces.collect(),
        };
        for piece in both.post(post) {
            let Piece { opcode, length, .. } = piece;
            if SENDS.contains(&opcode) || WRITES.contains(&opcode) || opcode == READ_REQUEST {
                self.unanswered.push_back((self.expected, opcode, length));
                self.expected = (self.expected + packets(opcode, length)) & PSN;
            }
        }
        Ok(())
    }

    /// The packet that the card waits for, if it waits for one.
    pub fn answer(&mut self) -> Option<Packet> {
        let (psn, opcode, length) = self.unanswered.front().copied()?;
        let (mut code, mut bytes) = (ACK, 0);
        let (index, left) = (self.answered / PMTU, length - self.answered);
        if opcode == READ_REQUEST {
            bytes = left.min(PMTU);
            code = match (index == 0, left == bytes) {
                (true, true) => RESPONSE_ONLY,
                (true, false) => RESPONSE_FIRST,
                (false, false) => RESPONSE_MIDDLE,
                (false, true) => RESPONSE_LAST,
            };
        }
        self.answered += bytes;
        if opcode != READ_REQUEST || left == bytes {
            self.unanswered.pop_front();
            self.answered = 0;
        }
        Some(self.packet(code, psn + index, 0x1f, bytes))
    }

    /// The peer's next request.
    pub fn request(&mut self, u: &mut Unstructured<'_>) -> Chosen<Packet> {
        let opcode =
            *u.choose(&[SENDS, WRITES, WRITES, [WRITE_ONLY; 4], [READ_REQUEST; 4]].concat())?;
        let many = *u.choose(&[0, 0, 1, 3])?;
        let asked = if opcode == READ_REQUEST { many * PMTU } else { 0 } + length(u)?;
        let packet = self.requested(u, opcode, self.next, asked)?;
        self.next = (self.next + packets(opcode, asked)) & PSN;
        Ok(packet)
    }

    /// A request that no queue pair expects, one that says that it has no bytes, or of an opcode that the stack has
    /// not.
    pub fn odd_request(&mut self, u: &mut Unstructured<'_>) -> Chosen<Packet> {
        let known = [WRITE_ONLY, WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST, SEND_ONLY, READ_REQUEST];
        let opcode = match u.ratio(1, 8)? {
            true => *u.choose(&[0x03, 0x05, 0x09, 0x0b, 0x12, 0x13, 0x14, 0x17, 0x64, 0x81])?,
            false => *u.choose(&known)?,
        };
        let psn = near(u, self.next)?;
        let asked = if u.ratio(1, 8)? { 0 } else { length(u)? };
        if psn == self.next {
            self.next = (self.next + packets(opcode, asked)) & PSN;
        }
        self.requested(u, opcode, psn, asked)
    }

    fn requested(
        &self,
        u: &mut Unstructured<'_>,
        opcode: u8,
        psn: u32,
        asked: u32,
    ) -> Chosen<Packet> {
        let vaddr = 0x5000_0000 + u64::from(u.arbitrary::<u16>()?);
        let bytes = if opcode == READ_REQUEST { 0 } else { asked.max(1) };
        let mut packet = self.packet(opcode, psn, 0, bytes);
        packet.reth = (vaddr, asked);
        Ok(packet)
    }

    /// A response of any kind: an ACK too many, a NAK, one to a request of before or to come.
    pub fn odd_answer(&mut self, u: &mut Unstructured<'_>) -> Chosen<Packet> {
        let codes = [ACK, ACK, RESPONSE_FIRST, RESPONSE_MIDDLE, RESPONSE_LAST, RESPONSE_ONLY];
        let opcode = *u.choose(&codes)?;
        let oldest = self.unanswered.front().map_or(self.expected, |(psn, ..)| *psn);
        let around = if u.ratio(3, 4)? { oldest } else { self.expected };
        let psn = near(u, around)?;
        let syndrome = *u.choose(&[0x1f, 0x00, 0x60, 0x60, 0x61, 0x20, 0x7f])?;
        let bytes = if opcode == ACK { 0 } else { length(u)? };
        Ok(self.packet(opcode, psn, syndrome, bytes))
    }

    /// A packet, with its payload filled up to words of 4 bytes, as on any link.
    fn packet(&self, opcode: u8, psn: u32, syndrome: u8, bytes: u32) -> Packet {
        let payload = (0..bytes.next_multiple_of(4)).map(|at| (at ^ at >> 8 ^ psn) as u8).collect();
        Packet { opcode, qpn: self.qpn, psn: psn & PSN, reth: (0, 0), syndrome, payload }
    }
}

/// The packets of a message: opcodes and lengths.
fn pieces(length: u32, most: u32, [first, middle, last, only]: [u8; 4]) -> Vec<(u8, u32)> {
    let count = length.div_ceil(most);
    let piece = |index| {
        let opcode = match (index == 0, index + 1 == count) {
            (true, true) => only,
            (true, false) => first,
            (false, false) => middle,
            (false, true) => last,
        };
        (opcode, most.min(length - index * most))
    };
    (0..count).map(piece).collect()
}
