//! The AVX bank of a vFPGA: 256-bit registers, the command queue and the completion counters.

use std::collections::VecDeque;

use fpga_regs::coyote::vfpga::{
    self as v, ArpLookup, Command, CompletionCounters, RdmaConnection0, RdmaContext0, RdmaContext1,
};

use crate::host::Host;
use crate::param::{CTIDS, QUEUE};
use crate::post::{Half, Post, PostKind};

/// Bytes of a register.
const REGISTER: u64 = 32;

/// The effect of a store in the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fired {
    Context { qpn: u32, local: u32, remote: u32, rkey: u32 },
    Connection { qpn: u32, remote: u32, ipv4: u32, udp_port: u16 },
    Lookup { ipv4: u32 },
}

/// A completion of the host's streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    LocalRead,
    LocalWrite,
}

/// The bank.
#[derive(Debug, Default)]
pub(crate) struct Bank {
    /// Registers as last stored, by their first word: the command, the context, the connection, the lookup.
    command: [u64; 4],
    context: [u64; 4],
    connection: [u64; 4],
    lookup: [u64; 4],
    writeback: [u64; 4],
    /// Requests sent: local reads and writes, remote reads and writes.
    sent: [u32; 4],
    pub(crate) queue: VecDeque<Post>,
    pub(crate) lost_posts: u32,
    /// Completions of each address space: local reads and writes, remote reads and writes.
    completed: Vec<[u32; 4]>,
}

/// The bytes of a store, on a bus of the width of a register.
struct Beat {
    data: [u64; 4],
    /// A bit for each byte.
    strobes: u32,
}

impl Beat {
    /// `None` unless it is a naturally aligned store to one register.
    fn new(offset: u64, bytes: &[u8]) -> Option<Self> {
        let at = offset % REGISTER;
        let length = bytes.len() as u64;
        if !length.is_power_of_two() || length > REGISTER || at & length.wrapping_sub(1) != 0 {
            return None;
        }
        let mut bus = [0; REGISTER as usize];
        let start = usize::try_from(at).ok()?;
        bus.get_mut(start..)?.get_mut(..bytes.len())?.copy_from_slice(bytes);
        let mut data = [0; 4];
        for (word, bytes) in data.iter_mut().zip(bus.chunks_exact(8)) {
            *word = bytes.try_into().map(u64::from_le_bytes).unwrap_or_default();
        }
        let all = if length == REGISTER { u32::MAX } else { (1u32 << length).wrapping_sub(1) };
        Some(Self { data, strobes: all.wrapping_shl(at as u32) })
    }

    /// The new value of a register that holds `old`.
    fn over(&self, old: [u64; 4]) -> [u64; 4] {
        let mut new = old;
        for (index, (new, data)) in (0u32..).zip(new.iter_mut().zip(self.data)) {
            let strobes = self.strobes.wrapping_shr(index.wrapping_mul(8)) & 0xff;
            let mask = (0..8u32)
                .filter(|byte| strobes.wrapping_shr(*byte) & 1 == 1)
                .fold(0, |mask, byte| mask | 0xffu64.wrapping_shl(byte.wrapping_mul(8)));
            *new = data & mask | *new & !mask;
        }
        new
    }
}

impl Bank {
    pub(crate) fn new() -> Self {
        Self { completed: vec![[0; 4]; CTIDS.into()], ..Self::default() }
    }

    /// Takes a store, with the size that it had on the bus.
    pub(crate) fn store(
        &mut self,
        offset: u64,
        bytes: &[u8],
        host: &mut impl Host,
    ) -> Option<Fired> {
        let beat = Beat::new(offset, bytes)?;
        match offset & !(REGISTER.wrapping_sub(1)) {
            v::CTRL => self.command(&beat, host),
            at if at == v::WBACK.offset => self.writeback = beat.over(self.writeback),
            v::NET_ARP => {
                self.lookup = beat.over(self.lookup);
                let ArpLookup { ipv4 } = ArpLookup::decode(self.lookup[0]);
                return Some(Fired::Lookup { ipv4 });
            }
            // STOCK-6
            v::RDMA_CTX_0 => {
                self.context = beat.over(self.context);
                let RdmaContext0 { qpn, rkey } = RdmaContext0::decode(self.context[0]);
                let RdmaContext1 { local_psn, remote_psn } = RdmaContext1::decode(self.context[1]);
                return Some(Fired::Context { qpn, local: local_psn, remote: remote_psn, rkey });
            }
            v::RDMA_CONN_0 => {
                self.connection = beat.over(self.connection);
                let RdmaConnection0 { qpn, remote_qpn, udp_port } =
                    RdmaConnection0::decode(self.connection[0]);
                let ipv4 = self.connection[1] as u32;
                return Some(Fired::Connection {
                    qpn: qpn.into(),
                    remote: remote_qpn,
                    ipv4,
                    udp_port,
                });
            }
            _ => {}
        }
        None
    }

    /// A store to the command's register: it acts by the word on the bus, and posts the register's value.
    // STOCK-1 STOCK-2
    fn command(&mut self, beat: &Beat, host: &mut impl Host) {
        self.command = beat.over(self.command);
        let [first, first_vaddr, second, second_vaddr] = self.command;
        let on_bus = [beat.data[0], beat.data[2]].map(Command::decode);
        if let Some(kind) = PostKind::of(on_bus[0], on_bus[1]) {
            self.count_sent(kind);
            let post = Post {
                first: Half::new(first, first_vaddr),
                second: Half::new(second, second_vaddr),
            };
            // STOCK-3
            if self.queue.len() < QUEUE {
                self.queue.push_back(post);
            } else {
                self.lost_posts = self.lost_posts.saturating_add(1);
            }
        }
        for (half, kinds) in on_bus.into_iter().zip([[0, 2], [1, 3]]) {
            if half.clear {
                self.clear(half.ctid, kinds, host);
            }
        }
        // The word that selects the read half keeps nothing for the next store.
        self.command[0] &= !u64::from(u32::MAX);
    }

    fn count_sent(&mut self, kind: PostKind) {
        let counted = match kind {
            PostKind::Local { read, write } => [read, write, false, false],
            PostKind::Read => [false, false, true, false],
            PostKind::Write => [false, false, false, true],
        };
        for (sent, counted) in self.sent.iter_mut().zip(counted) {
            *sent = sent.wrapping_add(counted.into());
        }
    }

    /// Clears the counters of a half, and writes that back, to the place where a counter's copy should be.
    // STOCK-19
    fn clear(&mut self, ctid: u8, kinds: [usize; 2], host: &mut impl Host) {
        for kind in kinds {
            let completed = self.completed.get_mut(usize::from(ctid & 0x3f));
            if let Some(count) = completed.and_then(|completed| completed.get_mut(kind)) {
                *count = 0;
            }
            self.write_back(kind, u64::from(ctid & 0x3f) << 2, 0, host);
        }
    }

    fn write_back(&self, kind: usize, place: u64, value: u32, host: &mut impl Host) {
        let base = self.writeback.get(kind).copied().unwrap_or(0);
        host.write_back(base.wrapping_add(place), value);
    }

    /// Counts a completion of the host's streams.
    // STOCK-17
    pub(crate) fn complete(&mut self, ctid: u8, counted: Counted, host: &mut impl Host) {
        let kind = match counted {
            Counted::LocalRead => 0,
            Counted::LocalWrite => 1,
        };
        let Some(completed) = self.completed.get_mut(usize::from(ctid & 0x3f)) else { return };
        let Some(count) = completed.get_mut(kind) else { return };
        *count = count.wrapping_add(1);
        let value = *count;
        self.write_back(kind, u64::from(ctid & 0x3f) << 2, value, host);
    }

    /// Counts a completion of the network's: a READ as one more than the WRITEs are, and both are written back to
    /// where the whole record of the completion points.
    // STOCK-18 STOCK-20
    pub(crate) fn complete_remote(
        &mut self,
        ctid: u8,
        read: bool,
        record: u32,
        host: &mut impl Host,
    ) {
        let Some([_, _, reads, writes]) = self.completed.get_mut(usize::from(ctid & 0x3f)) else {
            return;
        };
        let value = writes.wrapping_add(1);
        let kind = match read {
            true => {
                *reads = value;
                2
            }
            false => {
                *writes = value;
                3
            }
        };
        self.write_back(kind, u64::from(record) << 2, value, host);
    }

    /// Reads the 64-bit word at `offset`; `None` where the bank leaves it to the shell.
    pub(crate) fn load(&self, offset: u64) -> Option<u64> {
        let word = |array: fpga_regs::Array| usize::try_from(array.index(offset)?).ok();
        if let Some(index) = word(v::SENT) {
            return self.sent.get(index).map(|sent| u64::from(*sent));
        }
        if let Some(index) = word(v::WBACK) {
            return self.writeback.get(index).copied();
        }
        for (array, kinds) in [(v::AVX_LOCAL, [0, 1]), (v::AVX_REMOTE, [2, 3])] {
            if let Some(index) = word(array) {
                let completed = self.completed.get(index)?;
                let [reads, writes] = kinds.map(|kind| completed.get(kind).copied().unwrap_or(0));
                return Some(CompletionCounters { reads, writes }.encode());
            }
        }
        match offset {
            v::CTRL => Some(self.queue.len() as u64),
            v::NET_ARP | v::RDMA_CTX_0 | v::RDMA_CONN_0 => Some(1),
            v::VADDR_RD..v::ISR => Some(0),
            _ => None,
        }
    }

    /// Whether a store to `offset` is the bank's, and not the shell's.
    pub(crate) fn owns(offset: u64) -> bool {
        matches!(
            offset & !(REGISTER.wrapping_sub(1)),
            v::CTRL | 0x80 | v::NET_ARP | v::RDMA_CTX_0 | v::RDMA_CONN_0
        )
    }
}

/// The record of a completion, by which the network's are written back.
// STOCK-20
pub(crate) fn record(opcode: u8, local: u64, qpn: u32) -> u32 {
    let (dest, stream) = ((local >> 48 & 0xf) as u32, (local >> 52 & 3) as u32);
    let space = crate::host::Space::of_qp(qpn);
    u32::from(opcode & 0x1f) << 27
        | stream << 25
        | 1 << 24
        | 1 << 23
        | dest << 19
        | u32::from(space.ctid) << 13
        | u32::from(space.vfpga) << 9
}
