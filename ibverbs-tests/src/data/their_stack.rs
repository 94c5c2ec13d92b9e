//! The published card's RoCE stack, its authors' code, as the peer of a queue pair over a network: WRITEs and READs of both
//! sides, every byte compared.
//!
//! The code is compiled natively (`xtask/src/stack/harness.cpp`) and a process of its own. Its packets leave by a UDP
//! socket, with the invariant CRC that a published card makes: identification 0, and the flag clear that forbids to cut.

mod process;
mod wire;

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use verbs_sys::current::verbs as v;

use self::process::{Landing, Piece, Process};
use self::wire::Wire;
use super::link::{ACCESS, LIMIT, Options, Side};
use crate::ffi::{Library, Operation, Patience, Peer, Send};

/// The number of its queue pair, and the first PSNs of both sides.
const QPN: u32 = 3;
const PSNS: [u32; 2] = [0xff_fffa, 0x12_3456];
/// Bytes of a full packet: it sends no others, but for the last of a message.
const PMTU: usize = 4096;
/// Its windows: packets of WRITEs that may be under way.
const WINDOW: u8 = 16;
/// Where its messages lie in its own memory, which holds what a rule says and keeps nothing.
const THERE: u64 = 0x7000_0040;
/// Bytes of the messages: multiples of 4, around a word of its, and around packets.
const SIZES: [usize; 7] = [4, 64, 68, 4092, 4096, 4100, 3 * PMTU + 8];
/// An acknowledgement is long in coming from code that is compiled natively: 4.3 s.
const PATIENCE: Patience = Patience { timeout: 20, retry_cnt: 7, rnr_retry: 7 };

const WRITE_ONLY: u32 = 0x0a;
const READ_REQUEST: u32 = 0x0c;

/// The address of the code, and its program.
#[derive(Clone, Debug)]
pub struct Theirs {
    /// The address that it has.
    pub address: Ipv4Addr,
    /// The program.
    pub program: PathBuf,
}

/// Moves messages, and answers how many.
///
/// # Errors
/// When one does not arrive as it should.
pub fn all(options: &Options, theirs: &Theirs) -> Result<usize> {
    let library = Library::open()?;
    let room = SIZES.iter().max().map_or(PMTU, |it| it + PMTU);
    let side = Side::new(library, options, 0, room)?;
    let gid = Ipv6Addr::from(side.context.gid(options.gid_index)?);
    let own = gid.to_ipv4_mapped().with_context(|| format!("{gid} is no address of IPv4"))?;
    let mut both = Both::connect(side, own, options.gid_index, theirs)?;
    let mut count = 0;
    for size in SIZES {
        both.writes_here(size).with_context(|| format!("its WRITE of {size} bytes"))?;
        both.reads_here(size).with_context(|| format!("its READ of {size} bytes"))?;
        both.written(size).with_context(|| format!("a WRITE of {size} bytes to it"))?;
        both.read(size).with_context(|| format!("a READ of {size} bytes from it"))?;
        count += 4;
    }
    Ok(count)
}

/// The bytes at an address of its memory.
fn theirs_at(address: u64, length: usize) -> Vec<u8> {
    let byte = |at: u64| (at ^ at >> 8 ^ at >> 16) as u8 ^ (QPN as u8).wrapping_mul(37);
    (address..).take(length).map(byte).collect()
}

/// Bytes that no message before had.
fn ours(size: usize, turn: u8) -> Vec<u8> {
    (0..size).map(|at| (at ^ at >> 8) as u8 ^ turn.wrapping_mul(29)).collect()
}

/// Our queue pair, and the code with its network.
struct Both {
    side: Side,
    process: Process,
    wire: Wire,
    /// The slot of its next packet.
    slot: u8,
    landings: Vec<Landing>,
    /// Packets of its that were acknowledged.
    acknowledged: usize,
    turn: u8,
}

impl Both {
    fn connect(side: Side, own: Ipv4Addr, gid_index: u8, theirs: &Theirs) -> Result<Self> {
        let [ours_first, theirs_first] = PSNS;
        let mut process = Process::start(&theirs.program)?;
        process.identity(theirs.address)?;
        process.context(QPN, ours_first, theirs_first, side.region.rkey())?;
        process.connection(QPN, side.qp.number(), own)?;
        side.qp.init(ACCESS)?;
        let peer = Peer {
            qpn: QPN,
            gid: theirs.address.to_ipv6_mapped().octets(),
            gid_index,
            send_psn: ours_first,
            receive_psn: theirs_first,
            mtu: v::IBV_MTU_4096,
        };
        side.qp.receive_from(&peer)?;
        side.qp.send_to(&peer, PATIENCE)?;
        let wire = Wire::open(theirs.address, own)?;
        let landings = Vec::new();
        Ok(Self { side, process, wire, slot: 0, landings, acknowledged: 0, turn: 0 })
    }

    /// Lets it work on packets that have come, and waits a moment for more.
    fn turn(&mut self) -> Result<()> {
        if let Some(packet) = self.wire.receive()? {
            let answer = self.process.receive(&packet)?;
            self.take(answer)?;
        }
        Ok(())
    }

    fn take(&mut self, answer: process::Answer) -> Result<()> {
        for packet in &answer.packets {
            self.wire.send(packet)?;
        }
        self.landings.extend(answer.landings);
        self.acknowledged += answer.acknowledged;
        Ok(())
    }

    fn until(&mut self, what: &str, is: impl Fn(&Self) -> bool) -> Result<()> {
        let deadline = Instant::now() + LIMIT;
        while !is(self) {
            ensure!(Instant::now() < deadline, "not {what} within {LIMIT:?}");
            self.turn()?;
        }
        Ok(())
    }

    /// Posts a packet that is a request of its.
    fn post(&mut self, opcode: u32, at: usize, length: usize) -> Result<()> {
        let (local, remote) = (THERE + at as u64, self.side.region.address() + at as u64);
        let (slot, length) = (self.slot, length as u32);
        self.slot = (slot + 1) % WINDOW;
        let piece = Piece { opcode, qpn: QPN, slot, length, local, remote };
        let answer = self.process.post(&piece)?;
        self.take(answer)
    }

    /// Its WRITE, cut as balboad does it for a peer that is no published card: each packet a message.
    fn writes_here(&mut self, size: usize) -> Result<()> {
        self.side.region.write(0, &vec![0; size + PMTU]);
        let count = size.div_ceil(PMTU);
        let wanted = self.acknowledged + count;
        for at in (0..size).step_by(PMTU) {
            self.post(WRITE_ONLY, at, PMTU.min(size - at))?;
        }
        self.until("acknowledged", |it| it.acknowledged >= wanted)?;
        let mut found = vec![0; size + PMTU];
        self.side.region.read(0, &mut found);
        let (written, behind) = found.split_at(size);
        ensure!(written == theirs_at(THERE, size), "other bytes arrived");
        ensure!(behind.iter().all(|byte| *byte == 0), "bytes behind it were written");
        Ok(())
    }

    /// Its READ.
    fn reads_here(&mut self, size: usize) -> Result<()> {
        let message = self.fresh(size);
        self.landings.clear();
        self.post(READ_REQUEST, 0, size)?;
        self.landed(&message, THERE)
    }

    /// Bytes for a message, in our region.
    fn fresh(&mut self, size: usize) -> Vec<u8> {
        self.turn = self.turn.wrapping_add(1);
        let message = ours(size, self.turn);
        self.side.region.write(0, &message);
        message
    }

    /// Waits until a message has landed in its memory.
    fn landed(&mut self, message: &[u8], at: u64) -> Result<()> {
        let bytes = |it: &Self| it.landings.iter().map(|it| it.bytes.len()).sum::<usize>();
        self.until("landed", |it| bytes(it) >= message.len())?;
        let mut next = at;
        let mut found = Vec::new();
        for landing in self.landings.drain(..) {
            ensure!(landing.address == next, "it lands at {:#x}", landing.address);
            next += landing.bytes.len() as u64;
            found.extend(landing.bytes);
        }
        ensure!(found == message, "other bytes landed");
        Ok(())
    }

    /// A WRITE of ours to it.
    fn written(&mut self, size: usize) -> Result<()> {
        let message = self.fresh(size);
        self.landings.clear();
        self.complete(Operation::Write, size)?;
        self.landed(&message, THERE)
    }

    /// A READ of ours from it.
    fn read(&mut self, size: usize) -> Result<()> {
        self.side.region.write(0, &vec![0; size]);
        self.complete(Operation::Read, size)?;
        let mut found = vec![0; size];
        self.side.region.read(0, &mut found);
        ensure!(found == theirs_at(THERE, size), "other bytes were read");
        Ok(())
    }

    fn complete(&mut self, operation: Operation, size: usize) -> Result<()> {
        let request = Send {
            wr_id: 1,
            operation,
            pieces: vec![self.side.region.piece(0, size)],
            // It checks no key.
            remote: (THERE, 1),
            immediate: 0,
            flags: v::IBV_SEND_SIGNALED,
        };
        self.side.qp.post_send(&[request]).map_err(|(failed, _)| failed)?;
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(completion) = self.side.send_cq.poll()? {
                match completion.status {
                    v::IBV_WC_SUCCESS => return Ok(()),
                    status => bail!("it completes with status {status}"),
                }
            }
            ensure!(Instant::now() < deadline, "no completion within {LIMIT:?}");
            self.turn()?;
        }
    }
}
