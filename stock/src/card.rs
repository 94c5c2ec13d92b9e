//! A card: the banks and splitters of its vFPGAs, and the stack behind them.

use std::collections::VecDeque;

use crate::arp::Cache;
use crate::bank::{Bank, Counted, Fired, record};
use crate::build::Build;
use crate::flow::Flow;
use crate::host::{Host, Reach, Space};
use crate::opcode;
use crate::param::{OUTPUT, SELECTIONS};
use crate::receive::{Completion, Receiver, Receiving};
use crate::retransmit::Retransmitter;
use crate::split::{Next, Piece, Splitter};
use crate::tables::{ConnectionEntry, Tables};
use crate::tally::{CardTally, Parked};
use crate::timer::Timers;
use crate::transmit::{Made, Sender, Sending};
use crate::wire::{Arp, Frame, Identity};

/// A vFPGA with the example's logic.
#[derive(Debug)]
struct Vfpga {
    bank: Bank,
    splitter: Splitter,
}

/// The progress that one stage made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Did,
    Idle,
    Waits,
}

/// The users of host memory: only one goes on after one has met a missing page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mover {
    Send,
    Land,
    Admit,
}

/// The published card, as far as its network goes.
#[derive(Debug)]
pub struct Card {
    build: Build,
    identity: Identity,
    vfpgas: Vec<Vfpga>,
    /// The vFPGA whose turn it is, and the one request that waits in front of the windows.
    turn: usize,
    head: Option<Piece>,
    flow: Flow,
    tables: Tables,
    timers: Timers,
    retransmitter: Retransmitter,
    receiver: Receiver,
    sender: Sender,
    cache: Cache,
    output: VecDeque<Vec<u8>>,
    stalled: Option<Mover>,
    tally: CardTally,
}

impl Card {
    /// A card with so many vFPGAs, 15 at most, as it is when it was programmed with a mended build.
    #[must_use]
    pub fn new(vfpgas: u8) -> Self {
        Self::of_build(vfpgas, Build::Mended)
    }

    /// The same with any build.
    #[must_use]
    pub fn of_build(vfpgas: u8, build: Build) -> Self {
        let vfpga = |_| Vfpga { bank: Bank::new(), splitter: Splitter::default() };
        Self {
            build,
            identity: Identity::default(),
            vfpgas: (0..vfpgas.min(15)).map(vfpga).collect(),
            turn: 0,
            head: None,
            flow: Flow::new(build),
            tables: Tables::default(),
            timers: Timers::default(),
            retransmitter: Retransmitter::default(),
            receiver: Receiver::default(),
            sender: Sender::default(),
            cache: Cache::default(),
            output: VecDeque::new(),
            stalled: None,
            tally: CardTally::default(),
        }
    }

    /// Executes a pulse on the shell's reset: everything but the addresses and the windows is as when the card was
    /// programmed. Only this ends parked reception, and only programming empties the windows.
    // STOCK-34 STOCK-43
    pub fn reset(&mut self) {
        let count = u8::try_from(self.vfpgas.len()).unwrap_or(u8::MAX);
        let flow = self.flow.clone();
        *self = Self { identity: self.identity, flow, ..Self::of_build(count, self.build) };
    }

    /// Does as programming does: all but the addresses is as it was then.
    pub fn program(&mut self) {
        let count = u8::try_from(self.vfpgas.len()).unwrap_or(u8::MAX);
        *self = Self { identity: self.identity, ..Self::of_build(count, self.build) };
    }

    /// The port's addresses.
    pub fn set_identity(&mut self, identity: Identity) {
        self.identity = identity;
    }

    /// Takes a store of a driver's to the AVX bank of a vFPGA, with the size that it had on the bus; `false` where the
    /// register is not the bank's but the shell's.
    pub fn store(&mut self, vfpga: u8, offset: u64, bytes: &[u8], host: &mut impl Host) -> bool {
        let Some(Vfpga { bank, .. }) = self.vfpgas.get_mut(usize::from(vfpga)) else {
            return false;
        };
        if !Bank::owns(offset) {
            return false;
        }
        match bank.store(offset, bytes, host) {
            Some(Fired::Context { qpn, local, remote, rkey }) => {
                self.tables.set_context(qpn, local, remote, rkey);
            }
            Some(Fired::Connection { qpn, remote, ipv4, udp_port }) => {
                self.tables.of(qpn).connection = ConnectionEntry { qpn: remote, ipv4, udp_port };
            }
            Some(Fired::Lookup { ipv4 }) if self.cache.find(ipv4).is_none() => {
                self.output.push_back(Arp::frame(self.identity, None, ipv4));
            }
            Some(Fired::Lookup { .. }) | None => {}
        }
        true
    }

    /// Reads the 64-bit word at an offset of the AVX bank of a vFPGA; `None` where it is not the bank's but the shell's.
    #[must_use]
    pub fn load(&self, vfpga: u8, offset: u64) -> Option<u64> {
        self.vfpgas.get(usize::from(vfpga))?.bank.load(offset)
    }

    /// Frames that [`Self::receive`] would take now without losing any.
    #[must_use]
    pub fn room(&self) -> usize {
        self.receiver.room()
    }

    /// Takes a frame without its check sequence.
    pub fn receive(&mut self, frame: &[u8]) {
        match Frame::parse(frame, self.identity.ipv4) {
            Frame::Packet(packet) => self.receiver.push(packet, &mut self.tally),
            Frame::Arp(arp) if arp.target == self.identity.ipv4 => match arp.is_request {
                true => self.output.push_back(Arp::frame(self.identity, Some(&arp), arp.ipv4)),
                // STOCK-29
                false => self.cache.insert(arp.ipv4, arp.mac),
            },
            Frame::Arp(_) | Frame::Others => {}
        }
    }

    /// A frame to send.
    pub fn transmit(&mut self) -> Option<Vec<u8>> {
        self.output.pop_front()
    }

    /// Does the work that is due; `false` if it stopped before host memory that is not there yet, or before frames
    /// that have to be taken first.
    pub fn work(&mut self, now: u64, host: &mut impl Host) -> bool {
        while let Some(qpn) = self.timers.expire(now) {
            let elements = self.retransmitter.all(qpn);
            self.sender.repeats.extend(elements.into_iter().map(|element| (qpn, element)));
        }
        loop {
            if self.output.len() >= OUTPUT {
                return false;
            }
            let mut did = self.first_stage(now);
            did |= self.second_stage(now, host);
            did |= self.receiver.plan_answers(&mut self.sender);
            match self.move_on(now, host) {
                Progress::Did => {}
                Progress::Waits => return false,
                Progress::Idle if did => {}
                Progress::Idle => return true,
            }
        }
    }

    /// Sends, lets land, and takes posts. Sends come before landings, so that an acknowledgement does not wait
    /// for them. A missing page stalls all of it, until the transfer that met it has gone on.
    // STOCK-31 STOCK-35
    fn move_on(&mut self, now: u64, host: &mut impl Host) -> Progress {
        let stalled = self.stalled.take();
        let mut outcome = Progress::Idle;
        for mover in [Mover::Send, Mover::Land, Mover::Admit] {
            if stalled.is_some_and(|stalled| stalled != mover) {
                continue;
            }
            let step = match mover {
                Mover::Send => self.send(now, host),
                Mover::Land => self.land(host),
                Mover::Admit => self.admit(host),
            };
            match step {
                Progress::Did => outcome = Progress::Did,
                Progress::Idle => {}
                Progress::Waits => {
                    self.stalled = Some(mover);
                    return Progress::Waits;
                }
            }
        }
        match stalled {
            Some(_) => Progress::Did,
            None => outcome,
        }
    }

    fn receiving(&mut self, now: u64) -> (&mut Receiver, Receiving<'_>) {
        let Self { receiver, tables, timers, retransmitter, sender, tally, .. } = self;
        (receiver, Receiving { now, tables, timers, retransmitter, sender, tally })
    }

    fn first_stage(&mut self, now: u64) -> bool {
        let (receiver, mut with) = self.receiving(now);
        receiver.first_stage(&mut with)
    }

    fn second_stage(&mut self, now: u64, host: &mut impl Host) -> bool {
        let (receiver, mut with) = self.receiving(now);
        let Some(done) = receiver.second_stage(&mut with) else { return false };
        if let Some(completion) = done {
            self.complete(completion, host);
        }
        true
    }

    /// A slot of a window is free, and a counter counts where the request asked for it.
    // STOCK-9 STOCK-17
    fn complete(&mut self, completion: Completion, host: &mut impl Host) {
        let Completion { qpn, opcode, local, last } = completion;
        let read = opcode::is_read_response(opcode);
        self.flow.answered(read, qpn & 0x3ff);
        let Space { vfpga, ctid } = Space::of_qp(qpn);
        if let Some(Vfpga { bank, .. }) = self.vfpgas.get_mut(usize::from(vfpga)).filter(|_| last) {
            bank.complete_remote(ctid, read, record(opcode, local, qpn), host);
        }
    }

    fn send(&mut self, now: u64, host: &mut impl Host) -> Progress {
        let Self { tables, timers, retransmitter, sender, tally, cache, .. } = self;
        let own = self.identity;
        let mut with = Sending { now, own, tables, timers, retransmitter, cache, tally };
        match sender.send(&mut with, host) {
            Made::Idle => Progress::Idle,
            Made::Waits => Progress::Waits,
            Made::Nothing => Progress::Did,
            Made::Frame(frame, read) => {
                self.output.push_back(frame);
                if let Some(space) = read {
                    self.count(space, Counted::LocalRead, host);
                }
                Progress::Did
            }
        }
    }

    fn count(&mut self, space: Space, counted: Counted, host: &mut impl Host) {
        if let Some(Vfpga { bank, .. }) = self.vfpgas.get_mut(usize::from(space.vfpga)) {
            bank.complete(space.ctid, counted, host);
        }
    }

    /// Lets the next payload land. Payload that the driver refuses is gone, without a report.
    // STOCK-36
    fn land(&mut self, host: &mut impl Host) -> Progress {
        let Some(landing) = self.receiver.landings.front() else { return Progress::Idle };
        let space = landing.space;
        let there = usize::from(space.vfpga) < self.vfpgas.len();
        let reach = match there && !landing.bytes.is_empty() {
            true => host.write(space, landing.vaddr, &landing.bytes),
            false => Reach::Done,
        };
        if reach == Reach::Waits {
            return Progress::Waits;
        }
        let Some(landing) = self.receiver.landings.pop_front() else { return Progress::Idle };
        if reach == Reach::Refused {
            self.tally.refused = self.tally.refused.wrapping_add(1);
            return Progress::Did;
        }
        if landing.last {
            self.count(space, Counted::LocalWrite, host);
        }
        if landing.ends_read {
            if let Some(vfpga) = self.vfpgas.get_mut(usize::from(space.vfpga)) {
                vfpga.splitter.landed();
            }
        }
        Progress::Did
    }

    /// Lets the next request of the vFPGAs past the windows. There is one way for all: if the request in front finds
    /// its window full, no request goes on.
    // STOCK-8
    fn admit(&mut self, host: &mut impl Host) -> Progress {
        let count = self.vfpgas.len();
        for _ in 0..count {
            if self.head.is_some() {
                break;
            }
            let index = self.turn.checked_rem(count).unwrap_or(0);
            self.turn = index.saturating_add(1);
            let Some(Vfpga { bank, splitter }) = self.vfpgas.get_mut(index) else { break };
            let number = u8::try_from(index).unwrap_or(u8::MAX);
            match splitter.next(number, bank, host) {
                Next::Piece(piece) => self.head = Some(piece),
                Next::Nothing => {}
                Next::Waits => {
                    self.turn = index;
                    return Progress::Waits;
                }
            }
        }
        if !self.sender.has_room() {
            return Progress::Idle;
        }
        let Some(piece) = &mut self.head else { return Progress::Idle };
        let Some(slot) = self.flow.admit(piece.is_read(), piece.qpn) else { return Progress::Idle };
        piece.place.slot = slot;
        if let Some(piece) = self.head.take() {
            match self.loses_selection(&piece) {
                true => self.starve(piece.qpn),
                false => self.sender.push(piece),
            }
        }
        Progress::Did
    }

    /// Whether nothing will select the payload of a packet: the queue of selections is full, and is not waited for.
    // STOCK-42
    fn loses_selection(&self, piece: &Piece) -> bool {
        let is_full = self.sender.payloads() >= SELECTIONS;
        self.build == Build::Old && !piece.payload.is_empty() && is_full
    }

    /// Nothing of a QP's vFPGA leaves any more.
    fn starve(&mut self, qpn: u32) {
        let Space { vfpga, .. } = Space::of_qp(qpn);
        if let Some(Vfpga { splitter, .. }) = self.vfpgas.get_mut(usize::from(vfpga)) {
            splitter.starves = true;
        }
    }

    /// When [`Card::work`] is due, though nothing comes.
    #[must_use]
    pub fn next_timeout(&self) -> Option<u64> {
        self.timers.next_timeout()
    }

    /// Why reception stands, if it does.
    #[must_use]
    pub fn parked(&self) -> Option<Parked> {
        self.receiver.parked(&self.retransmitter)
    }

    /// Whether payload that will never come keeps a vFPGA's posts, or all that the card sends, from leaving; or the
    /// retransmission lists are lost.
    #[must_use]
    pub fn starves(&self) -> bool {
        let posts = self.vfpgas.iter().any(|vfpga| vfpga.splitter.starves);
        posts || self.sender.starves || self.retransmitter.is_lost()
    }

    /// The one sign that the shell gives of that: reception stood in front of frames since the reset.
    // STOCK-37
    #[must_use]
    pub fn stream_is_down(&self) -> bool {
        self.receiver.stood
    }

    /// Counts of the model.
    #[must_use]
    pub fn tally(&self) -> CardTally {
        let lost = self.vfpgas.iter().map(|vfpga| vfpga.bank.lost_posts);
        let lost_posts = lost.fold(0, u32::wrapping_add);
        CardTally { lost_posts, ..self.tally }
    }
}
