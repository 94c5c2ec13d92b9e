//! A card that holds the published image: the model of its command registers and stack, and its way to host memory.
//!
//! The model asks for one transfer at a time, and again until it is done. Pages are found by the MMU of the vFPGA, in
//! the address space that the transfer names; the bytes are copied as a frame's are, by a call that may not return.

use std::collections::VecDeque;

use ::stock::{Build, Host, Reach, Space};

use crate::bus::{BusMemory, Rights};
use crate::dma::{AddressSpace, Call, Copying, FramePart, PartEnd, Parts};
use crate::mmu::{MemoryDirection, Translation};
use crate::network::{Identity, Network};
use crate::port::{Frame, FramePool};
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
struct Transfer {
    wanted: Option<WantedTransfer>,
    parts: Parts,
    /// Where the parts lie on the bus.
    places: Vec<u64>,
    /// The one frame that has, or gets, the bytes.
    frame: VecDeque<Frame>,
    failed: bool,
    /// The call to be made before it goes on.
    call: Option<Box<Call>>,
}

impl Transfer {
    fn copying(&mut self) -> Copying<'_, impl FnMut(usize, PartEnd)> {
        let direction = self.wanted.map_or(MemoryDirection::Read, |wanted| wanted.direction);
        let failed = &mut self.failed;
        let ended = move |_, end| *failed |= end == PartEnd::Failed;
        Copying { direction, parts: &mut self.parts, frames: &mut self.frame, ended }
    }
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
    transfer: Transfer,
    clock: Clock,
    /// Whether it was told that reception stands.
    told: bool,
}

impl Stock {
    /// A card of so many vFPGAs, with the shell of a build.
    pub(crate) fn new(vfpgas: u8, build: Build) -> Self {
        let (transfer, clock) = Default::default();
        Self { model: ::stock::Card::of_build(vfpgas, build), transfer, clock, told: false }
    }

    /// Resets as a pulse on the shell's reset does.
    pub(crate) fn reset(&mut self, identity: Identity) {
        self.model.reset();
        self.set_identity(identity);
        self.transfer = Transfer::default();
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
        memory.returned(self.transfer.copying(), call);
    }

    /// Gives up the copy that was handed out; the id of the process.
    pub(crate) fn abandon(&mut self, memory: &mut AddressSpace) -> Option<nix::unistd::Pid> {
        memory.abandon(self.transfer.copying())
    }

    /// The copy that is due.
    pub(crate) fn take_call(&mut self) -> Option<Box<Call>> {
        self.transfer.call.take()
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
        let Self { model, transfer, clock, told } = self;
        let (now, waits) = clock.now(now, model.next_timeout());
        worked |= waits;
        loop {
            let pool = &network.pool;
            let mut reached = Reached { vfpgas, memory, pool, transfer };
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
            if done || room == before || transfer.call.is_some() {
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
    transfer: &'a mut Transfer,
}

impl Reached<'_> {
    /// Finds all pages of a transfer.
    fn find(&mut self, wanted: WantedTransfer) -> Result<(), Reach> {
        let vfpga = self.vfpgas.get(usize::from(wanted.space.vfpga)).filter(|it| !it.decoupled);
        let Some(vfpga) = vfpga else { return Err(Reach::Refused) };
        let mut mmu = vfpga.control.unit.mmu.borrow_mut();
        mmu.enter(wanted.space.ctid);
        self.transfer.parts.clear();
        self.transfer.places.clear();
        let mut done = 0usize;
        while done < wanted.length {
            let left = wanted.length.saturating_sub(done);
            let vaddr = wanted.vaddr.saturating_add(done as u64);
            let length = u32::try_from(left).unwrap_or(u32::MAX);
            match mmu.translate(wanted.direction, vaddr, length) {
                Translation::Found { bus, bytes } => {
                    let here = left.min(usize::try_from(bytes).unwrap_or(left));
                    let range = done..done.saturating_add(here);
                    done = range.end;
                    self.transfer.places.push(bus);
                    self.transfer.parts.push(FramePart { frame: 0, range, bus, owner: 0 });
                }
                Translation::Waits => return Err(Reach::Waits),
                Translation::Refused => return Err(Reach::Refused),
            }
        }
        Ok(())
    }

    /// Begins a transfer, or goes on with it.
    fn reach(&mut self, wanted: WantedTransfer, from: &[u8]) -> Reach {
        if self.transfer.wanted != Some(wanted) {
            if let Err(reach) = self.find(wanted) {
                return reach;
            }
            let mut frame = self.pool.take();
            if !frame.set_len(wanted.length) {
                return Reach::Refused;
            }
            if let Some(into) = frame.as_mut_slice().get_mut(..from.len()) {
                into.copy_from_slice(from);
            }
            self.transfer.frame = VecDeque::from([frame]);
            (self.transfer.wanted, self.transfer.failed) = (Some(wanted), false);
        }
        if let Some(call) = self.memory.copy(self.transfer.copying()) {
            self.transfer.call = Some(call);
            return Reach::Waits;
        }
        self.transfer.wanted = None;
        match self.transfer.failed {
            true if self.is_pinned() => {
                if let Some(frame) = self.transfer.frame.front_mut() {
                    frame.as_mut_slice().fill(0);
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
        let places: Vec<_> = self.transfer.places.iter().map(there).collect();
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
            let frame = self.transfer.frame.front().map(Frame::as_slice);
            match frame.and_then(|frame| frame.get(..into.len())) {
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
