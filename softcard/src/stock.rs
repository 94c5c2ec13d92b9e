//! A card that holds the published image: the model of its command registers and stack, and its way to host memory.
//!
//! The model asks for one transfer at a time, and again until it is done. Pages are found by the MMU of the vFPGA, in
//! the address space that the transfer names; the bytes are copied as a frame's are, by a call that may not return.

use std::collections::VecDeque;

use ::stock::{Build, Host, Reach, Space};

use crate::bus::{BusMemory, Rights};
use crate::dma::{AddressSpace, Call};
use crate::mmu::{MemoryDirection, Translation};
use crate::network::{Identity, Network};
use crate::port::{Frame, FramePool};
use crate::transfer::Transfer;
use crate::vfpga::Vfpga;

/// The transfer that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WantedTransfer {
    direction: MemoryDirection,
    space: Space,
    vaddr: u64,
    length: usize,
}

/// The transfer that is under way.
#[derive(Debug, Default)]
struct UnderWay {
    wanted: Option<WantedTransfer>,
    transfer: Transfer,
    /// The call to be made before it goes on.
    call: Option<Box<Call>>,
}

/// How much slower the model's time passes than the clock: its timers are a card's, which answers within microseconds, and
/// a repetition for no reason stops reception.
const SLOWER: u64 = 1000;

/// Rounds that a timer which is due waits for frames: those under way between cards of one thread arrive meanwhile,
/// however long the thread did not run.
const ROUNDS: u32 = 8;

/// The model's time.
#[derive(Debug, Default)]
struct Clock {
    /// Rounds for which a timer that is due has waited.
    waited: u32,
}

impl Clock {
    /// The model's time, and whether a timer waits.
    fn now(&mut self, now: u64, due: Option<u64>) -> (u64, bool) {
        let now = now / SLOWER;
        match due.filter(|due| *due <= now) {
            Some(due) if self.waited < ROUNDS => {
                self.waited = self.waited.saturating_add(1);
                (due.saturating_sub(1), true)
            }
            _ => {
                self.waited = 0;
                (now, false)
            }
        }
    }
}

/// The published image of a card.
#[derive(Debug)]
pub(crate) struct Stock {
    pub(crate) model: ::stock::Card,
    under_way: UnderWay,
    clock: Clock,
    /// Whether it was told that reception stands.
    told: bool,
}

impl Stock {
    /// A card of so many vFPGAs, with the shell of a build.
    pub(crate) fn new(vfpgas: u8, build: Build) -> Self {
        let (under_way, clock) = Default::default();
        Self { model: ::stock::Card::of_build(vfpgas, build), under_way, clock, told: false }
    }

    /// Resets as a pulse on the shell's reset does.
    pub(crate) fn reset(&mut self, identity: Identity) {
        self.model.reset();
        self.set_identity(identity);
        self.under_way = UnderWay::default();
        self.told = false;
    }

    /// Resets the rest for a function-level reset: the windows are as when the card was programmed, too. It is not
    /// known whether those of a real card are.
    pub(crate) fn reset_function(&mut self) {
        self.model.program();
    }

    /// The time of its next work without arrivals.
    pub(crate) fn next_timeout(&self) -> Option<u64> {
        self.model.next_timeout().map(|due| due.saturating_mul(SLOWER))
    }

    pub(crate) fn set_identity(&mut self, Identity { mac, ipv4 }: Identity) {
        self.model.set_identity(::stock::Identity { mac, ipv4 });
    }

    /// Takes a copy back that was made.
    pub(crate) fn returned(&mut self, memory: &mut AddressSpace, call: Box<Call>) {
        self.under_way.transfer.returned(memory, call);
    }

    /// Gives up the copy that was handed out; the id of the process.
    pub(crate) fn abandon(&mut self, memory: &mut AddressSpace) -> Option<nix::unistd::Pid> {
        self.under_way.transfer.abandon(memory)
    }

    /// The copy that is due.
    pub(crate) fn take_call(&mut self) -> Option<Box<Call>> {
        self.under_way.call.take()
    }

    /// Takes a store to a vFPGA's bank, with its size; `false` where the register is the shell's.
    pub(crate) fn store(
        &mut self,
        memory: &mut AddressSpace,
        vfpga: usize,
        register: u64,
        bytes: &[u8],
    ) -> bool {
        let vfpga = u8::try_from(vfpga).unwrap_or(u8::MAX);
        self.model.store(vfpga, register, bytes, &mut Registers { memory })
    }

    /// Counters of the model, by name.
    pub(crate) fn counters(&self) -> [(&'static str, u64); 6] {
        let tally = self.model.tally();
        [
            ("stock_reception_stands", self.model.parked().is_some().into()),
            ("stock_sending_starves", self.model.starves().into()),
            ("stock_lost_posts", tally.lost_posts.into()),
            ("stock_lost_frames", tally.lost_frames.into()),
            ("stock_unresolved", tally.unresolved.into()),
            ("stock_refused_transfers", tally.refused.into()),
        ]
    }

    /// Takes frames, and works until a copy is due; `true` if there was anything.
    pub(crate) fn work(
        &mut self,
        now: u64,
        vfpgas: &mut [Vfpga],
        memory: &mut AddressSpace,
        network: &mut Network,
        received: &mut VecDeque<Frame>,
        sending: &mut VecDeque<Frame>,
    ) -> bool {
        let mut worked = !received.is_empty();
        for frame in received.drain(..) {
            self.model.receive(frame.as_slice());
            network.pool.put(frame);
        }
        let Self { model, under_way, clock, told } = self;
        let (now, waits) = clock.now(now, model.next_timeout());
        worked |= waits;
        loop {
            let pool = &network.pool;
            let mut reached = Reached { vfpgas, memory, pool, under_way };
            let done = model.work(now, &mut reached);
            let mut room = network.room(::stock::param::OUTPUT, sending.len());
            let before = room;
            while room > 0 {
                let Some(bytes) = model.transmit() else { break };
                let mut frame = network.pool.take();
                if frame.set_len(bytes.len()) {
                    frame.as_mut_slice().copy_from_slice(&bytes);
                    network.count_sent(&frame);
                    sending.push_back(frame);
                }
                room = room.saturating_sub(1);
            }
            worked |= room < before;
            if done || room == before || under_way.call.is_some() {
                break;
            }
        }
        match model.parked() {
            Some(why) if !*told => {
                *told = true;
                log::warn!("the published image: reception of a card stands ({why:?})");
            }
            Some(_) => {}
            None => *told = false,
        }
        worked
    }
}

/// Host memory for stores to registers, which only write counters back.
struct Registers<'a> {
    memory: &'a mut AddressSpace,
}

impl Host for Registers<'_> {
    fn read(&mut self, _: Space, _: u64, _: &mut [u8]) -> Reach {
        Reach::Refused
    }

    fn write(&mut self, _: Space, _: u64, _: &[u8]) -> Reach {
        Reach::Refused
    }

    fn write_back(&mut self, bus: u64, value: u32) {
        self.memory.put(bus, &value.to_le_bytes());
    }
}

/// Host memory for the model while it works.
struct Reached<'a> {
    vfpgas: &'a mut [Vfpga],
    memory: &'a mut AddressSpace,
    pool: &'a FramePool,
    under_way: &'a mut UnderWay,
}

impl Reached<'_> {
    /// Finds all pages of a transfer.
    fn find(&mut self, wanted: WantedTransfer) -> Result<(), Reach> {
        let vfpga = self.vfpgas.get(usize::from(wanted.space.vfpga)).filter(|it| !it.decoupled);
        let Some(vfpga) = vfpga else { return Err(Reach::Refused) };
        let mut mmu = vfpga.control.unit.mmu.borrow_mut();
        mmu.enter(wanted.space.ctid);
        let WantedTransfer { direction, vaddr, length, .. } = wanted;
        match self.under_way.transfer.find(&mut mmu, direction, vaddr, length) {
            Translation::Found { .. } => Ok(()),
            Translation::Waits => Err(Reach::Waits),
            Translation::Refused => Err(Reach::Refused),
        }
    }

    /// Begins a transfer, or goes on with it.
    fn reach(&mut self, wanted: WantedTransfer, from: &[u8]) -> Reach {
        if self.under_way.wanted != Some(wanted) {
            if let Err(reach) = self.find(wanted) {
                return reach;
            }
            if !self.under_way.transfer.fill(self.pool, wanted.length, from) {
                return Reach::Refused;
            }
            self.under_way.wanted = Some(wanted);
        }
        if let Some(call) = self.under_way.transfer.copy(self.memory) {
            self.under_way.call = Some(call);
            return Reach::Waits;
        }
        self.under_way.wanted = None;
        match self.under_way.transfer.has_failed() {
            true if self.is_pinned() => {
                if let Some(bytes) = self.under_way.transfer.bytes_mut() {
                    bytes.fill(0);
                }
                Reach::Done
            }
            true => Reach::Refused,
            false => Reach::Done,
        }
    }

    /// Whether the bus has memory at every part, a program's among them, which did not answer: its program has ended, or taken its
    /// memory away. A real card would not notice, for memory stays pinned until the driver has taken it back.
    fn is_pinned(&self) -> bool {
        let there = |place: &u64| self.memory.bus.look_up(*place, Rights::NONE);
        let places: Vec<_> = self.under_way.transfer.places().iter().map(there).collect();
        let is_program =
            |it: &Option<(BusMemory, u64)>| matches!(it, Some((BusMemory::Process(..), _)));
        places.iter().all(Option::is_some) && places.iter().any(is_program)
    }
}

impl Host for Reached<'_> {
    fn read(&mut self, space: Space, vaddr: u64, into: &mut [u8]) -> Reach {
        let wanted =
            WantedTransfer { direction: MemoryDirection::Read, space, vaddr, length: into.len() };
        let reach = self.reach(wanted, &[]);
        if reach == Reach::Done {
            let bytes = self.under_way.transfer.bytes();
            match bytes.and_then(|bytes| bytes.get(..into.len())) {
                Some(bytes) => into.copy_from_slice(bytes),
                // The copy was given up, and has it.
                None => into.fill(0),
            }
        }
        reach
    }

    fn write(&mut self, space: Space, vaddr: u64, from: &[u8]) -> Reach {
        let wanted =
            WantedTransfer { direction: MemoryDirection::Write, space, vaddr, length: from.len() };
        self.reach(wanted, from)
    }

    fn write_back(&mut self, bus: u64, value: u32) {
        self.memory.put(bus, &value.to_le_bytes());
    }
}
