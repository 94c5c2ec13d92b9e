//! The queue pair between two cards through which datagrams go, as SENDs of the tunnel.
//!
//! It is no program's: it sends datagrams that wait for the other card, and gives received ones to the vFPGAs that they
//! are for. The peer may name no memory by it.

use fpga_regs::engine::wqe::AtomicOperation;
use queue_engine::{Payload, ReceiveError, RemoteAccess, RemoteRange, TakenReceive, Unreachable};
use tunnel::{Host, Traffic};

use crate::memory::Memory;
use crate::posts::Locate;

/// One card's end of that queue pair.
#[derive(Debug)]
pub(crate) struct CardLink {
    /// The other card's IPv4 address, as a number.
    pub(crate) peer: u32,
    pub(crate) qpn: u32,
    /// Its number among those that were offered.
    pub(crate) number: u32,
    /// The number of the peer's end that it is connected to.
    pub(crate) met: Option<u32>,
    /// The card asks for the pages of its address space anew: it is served.
    pub(crate) opened: bool,
    /// The peer was told so: its ring takes slots.
    pub(crate) told: bool,
    /// It goes, as soon as the card reaches nothing by it.
    pub(crate) ends: bool,
    /// Nanoseconds for which the peer, though it looks, has not answered waiting datagrams.
    pub(crate) silent: u64,
    pub(crate) traffic: Traffic,
}

/// Memory of the rings, with a link's messages in the place of programs' memory.
pub(crate) struct LinkMemory<'a, M> {
    pub(crate) memory: &'a mut M,
    pub(crate) traffic: &'a mut Traffic,
}

impl<M> Host for LinkMemory<'_, M> {
    fn allows(&self, qpn: u32, memory: RemoteRange, access: RemoteAccess) -> bool {
        self.traffic.allows(qpn, memory, access)
    }

    fn take_receive(&mut self, qpn: u32) -> Result<TakenReceive, ReceiveError> {
        self.traffic.take_receive(qpn)
    }

    fn read(
        &mut self,
        qpn: u32,
        payload: Payload,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), Unreachable> {
        self.traffic.read(qpn, payload, offset, into)
    }

    fn write(
        &mut self,
        qpn: u32,
        payload: Payload,
        offset: u64,
        from: &[u8],
    ) -> Result<(), Unreachable> {
        self.traffic.write(qpn, payload, offset, from)
    }

    fn atomic(
        &mut self,
        qpn: u32,
        rkey: u32,
        address: u64,
        operation: AtomicOperation,
    ) -> Result<u64, Unreachable> {
        self.traffic.atomic(qpn, rkey, address, operation)
    }

    fn open(&mut self, qpn: u32, payload: Payload, offset: u64, bytes: u32) -> Option<u64> {
        self.traffic.open(qpn, payload, offset, bytes)
    }

    fn close(&mut self, qpn: u32, window: u64) {
        self.traffic.close(qpn, window);
    }

    fn is_closed(&self, qpn: u32, window: u64) -> bool {
        self.traffic.is_closed(qpn, window)
    }
}

impl<M> Locate for LinkMemory<'_, M> {
    fn locate(&mut self, _: u32, _: u64, _: u32, _: u32, _: u8) -> Result<(u64, u32), Unreachable> {
        // All that it posts are slots.
        Err(Unreachable)
    }
}

impl<M: Memory> Memory for LinkMemory<'_, M> {
    fn sequence(&self, ctid: u8, place: usize) -> u64 {
        self.memory.sequence(ctid, place)
    }

    fn slot(&self, ctid: u8, place: usize, into: &mut [u8]) {
        self.memory.slot(ctid, place, into);
    }

    fn stage(&mut self, ctid: u8, number: u8, slot: &[u8]) -> u64 {
        self.memory.stage(ctid, number, slot)
    }

    fn deliver(&mut self, qpn: u32, place: usize, slot: &[u8]) {
        self.memory.deliver(qpn, place, slot);
    }

    fn clear(&mut self, ctid: u8) {
        self.memory.clear(ctid);
    }

    fn end_windows(&mut self, ctid: u8) -> bool {
        self.memory.end_windows(ctid)
    }
}
