//! Host memory as a vFPGA's logic reaches it: the shell's ports, its outstanding requests, and the PCIe bus, in cycles.
//!
//! A request of up to 4 KiB takes one of the shell's places ([`Config::outstanding`], each direction has its own) until it
//! ends. It becomes packets of the bus (TLPs), which share the link of their direction: a READ asks for up to
//! [`Config::read_request`] bytes at a time and is answered by packets of up to [`Config::payload`], a WRITE takes packets
//! of that. Host memory is read when the question is there, after a time that the seed draws for each request, so that
//! answers of different requests overtake each other. The shell gives a stream its data in the order of its requests all
//! the same, as the published one does; streams do not wait for each other. What goes towards the host (writes, questions,
//! interrupts) keeps its order.
//!
//! A fault that the driver refuses sends nothing back: no data, no completion. Data of such a request to write is taken
//! and dropped. That its place is free again is this model's choice; what a shell does is not known. Requests behind one
//! that faults wait until the driver has told the logic and has answered. It does so once all before it, of its direction,
//! have ended, or as soon as the bus meets the fault ([`Config::hasty`]).
//!
//! The ends of requests to write may be kept back, and then told together, one a cycle ([`Config::ends_held`]).
//!
//! A test may have the shell [lose](Bus::lose) a request: of that the logic is told nothing at all.
//!
//! While it is decoupled the logic reaches nothing, and what was under way towards it is lost. Packets on the bus arrive.

use std::collections::VecDeque;
use std::task::Poll;

use crate::memory::{Direction, Memory, PAGE_BYTES, Reached};
use crate::random::Random;

mod link;
mod port;
mod watch;

use link::{Agenda, COMPLETION_OVERHEAD, Flight, Lane, REQUEST_OVERHEAD, parts};
pub use port::{BEAT_BYTES, Beat, Done, Driven, MAX_REQUEST, Master, Request, STREAMS};
use watch::Watch;
pub use watch::{Port, Violation};

/// The numbers of a bus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Requests of each direction that the shell has under way at most.
    pub outstanding: usize,
    /// Streams of each direction that the shell is built with, up to [`STREAMS`].
    pub streams: u8,
    /// Cycles from a request to read to the first beat of its answer, where nothing else is under way.
    pub latency: u64,
    /// Cycles that an answer may take beyond that; the seed draws them for each request.
    pub jitter: u64,
    /// Bytes that each direction of the link carries in a cycle, those of headers among them.
    pub bytes_per_cycle: u64,
    /// Bytes that a packet carries at most.
    pub payload: u32,
    /// Bytes that a packet asks for at most.
    pub read_request: u32,
    /// Cycles of 256, in the mean, in which a port that could be ready is not, and data waits.
    pub stalls: u8,
    /// Faults of 256, in the mean, that are refused before the requests ahead of them have ended, unless one of those has
    /// the same bytes.
    pub hasty: u8,
    /// Cycles at most for which the ends of requests to write are kept back, which are then told one a cycle until none is
    /// left; the seed draws them each time.
    pub ends_held: u64,
    /// Decides all that is random.
    pub seed: u64,
}

impl Default for Config {
    /// A shell as published, at 250 MHz behind 16 lanes of PCIe 3: 15.75 GB/s each way, answers after 1 µs.
    fn default() -> Self {
        Self {
            outstanding: 8,
            streams: 1,
            latency: 250,
            jitter: 0,
            bytes_per_cycle: 63,
            payload: 256,
            read_request: 512,
            stalls: 0,
            hasty: 0,
            ends_held: 0,
            seed: 0,
        }
    }
}

/// A fault that the driver refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The direction.
    pub direction: Direction,
    /// The first byte of the request.
    pub address: u64,
    /// Its bytes.
    pub length: u32,
}

/// A fault that the driver refuses.
#[derive(Clone, Copy, Debug)]
struct Refusal {
    /// What the shell says of it.
    address: u64,
    /// It does not wait for the requests ahead.
    is_hasty: bool,
    is_told: bool,
}

/// What passed since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests to read that were taken.
    pub reads: u64,
    /// Requests to write that were taken.
    pub writes: u64,
    /// Bytes that the logic took of what was read.
    pub bytes_read: u64,
    /// Bytes that the logic gave to be written.
    pub bytes_written: u64,
    /// Packets of bytes to be written that have left.
    pub packets_left: u64,
    /// Those of them that have arrived at the host.
    pub packets_arrived: u64,
    /// Faults that were refused.
    pub refused: u64,
}

/// What goes towards the host.
#[derive(Clone, Debug)]
enum Up {
    Question(Question),
    Write { address: u64, bytes: Vec<u8> },
    Interrupt(u32),
}

/// A packet that asks for bytes of a request.
#[derive(Clone, Copy, Debug)]
struct Question {
    id: u64,
    stream: u8,
    address: u64,
    length: u32,
    /// Cycles that the host takes beyond what it must.
    extra: u64,
}

/// A packet of an answer.
#[derive(Clone, Debug)]
struct Answer {
    id: u64,
    stream: u8,
    bytes: Vec<u8>,
}

/// A request to read, in the shell.
#[derive(Clone, Debug)]
struct Reading {
    id: u64,
    length: usize,
    /// Its bytes so far.
    arrived: Vec<u8>,
    /// Those that were taken.
    given: usize,
}

/// A request to write, in the shell.
#[derive(Clone, Debug)]
struct Writing {
    address: u64,
    /// Bytes that it still lacks.
    left: u32,
    /// Those that wait for a packet.
    waiting: Vec<u8>,
    refused: bool,
}

/// The bus, and the shell before it.
#[derive(Clone, Debug)]
pub struct Bus {
    config: Config,
    random: Random,
    now: u64,
    decoupled: bool,
    driven: Driven,
    watch: Watch,
    counts: Counts,
    next_id: u64,
    up_lane: Lane,
    up: Flight<Up>,
    down_lane: Lane,
    down: Flight<Answer>,
    at_host: Flight<Answer>,
    /// Questions at the host, until their answers are read.
    asked: Agenda<Question>,
    /// The one whose bytes are read.
    answering: Option<Question>,
    /// Requests that were taken, until it is known whether the driver allows them: to read, to write.
    taken: [VecDeque<Request>; 2],
    /// The fault of the first of them.
    refuses: [Option<Refusal>; 2],
    /// Whether the next one that the driver allows is lost.
    loses: [bool; 2],
    /// Requests of each direction that have not ended.
    under_way: [VecDeque<Request>; 2],
    reading: [VecDeque<Reading>; STREAMS],
    writing: [VecDeque<Writing>; STREAMS],
    /// Requests to write whose last packet leaves.
    leaving: Flight<u8>,
    reads_done: VecDeque<Done>,
    writes_done: VecDeque<Done>,
    /// The cycle from which those are told, while there are some.
    tells_from: Option<u64>,
    writes_open: usize,
    interrupts: VecDeque<u32>,
    faults: VecDeque<Fault>,
}

impl Bus {
    /// An idle bus.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let streams = config.streams.clamp(1, STREAMS as u8);
        let config = Config { streams, outstanding: config.outstanding.max(1), ..config };
        let mut bus = Self {
            random: Random::new(config.seed),
            now: 0,
            decoupled: false,
            driven: Driven::default(),
            watch: Watch::default(),
            counts: Counts::default(),
            next_id: 0,
            up_lane: Lane::new(config.bytes_per_cycle),
            up: Flight::default(),
            down_lane: Lane::new(config.bytes_per_cycle),
            down: Flight::default(),
            at_host: Flight::default(),
            asked: Agenda::default(),
            answering: None,
            taken: Default::default(),
            refuses: [None; 2],
            loses: [false; 2],
            under_way: Default::default(),
            reading: Default::default(),
            writing: Default::default(),
            leaving: Flight::default(),
            reads_done: VecDeque::new(),
            writes_done: VecDeque::new(),
            tells_from: None,
            writes_open: 0,
            interrupts: VecDeque::new(),
            faults: VecDeque::new(),
            config,
        };
        bus.drive();
        bus
    }

    /// What it drives in this cycle.
    #[must_use]
    pub fn driven(&self) -> &Driven {
        &self.driven
    }

    /// Answers take that many cycles from now on; nothing may be under way.
    pub fn set_latency(&mut self, latency: u64) {
        self.config.latency = latency;
    }

    /// The number of this cycle.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.now
    }

    /// What passed since the start.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The next interrupt that the host got.
    pub fn take_interrupt(&mut self) -> Option<u32> {
        self.interrupts.pop_front()
    }

    /// The next fault that the driver refused.
    pub fn take_fault(&mut self) -> Option<Fault> {
        self.faults.pop_front()
    }

    /// Has the shell lose the next request of a direction: it is never answered, and others go on.
    pub fn lose(&mut self, direction: Direction) {
        self.loses[direction as usize] = true;
    }

    /// Whether nothing is under way.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let on_the_bus = !self.up.is_empty()
            || !self.asked.is_empty()
            || self.answering.is_some()
            || !self.at_host.is_empty()
            || !self.down.is_empty();
        let in_the_shell = self.taken.iter().any(|it| !it.is_empty())
            || self.reading.iter().any(|it| !it.is_empty())
            || self.writing.iter().any(|it| !it.is_empty())
            || !self.leaving.is_empty()
            || !self.reads_done.is_empty()
            || !self.writes_done.is_empty();
        let shown = self.driven.read_done.is_some() || self.driven.write_done.is_some();
        !on_the_bus && !in_the_shell && !shown
    }

    /// Lets time pass while it is quiet.
    pub fn pass(&mut self, cycles: u64) {
        if self.is_quiet() {
            self.now += cycles;
        }
    }

    /// Takes the logic off the bus, or puts it back.
    pub fn decouple(&mut self, off: bool) {
        self.decoupled = off;
        self.watch = Watch::default();
        if off {
            self.taken = Default::default();
            self.refuses = [None; 2];
            self.under_way = Default::default();
            self.reading = Default::default();
            self.writing = Default::default();
            self.leaving = Flight::default();
            self.reads_done.clear();
            self.writes_done.clear();
            self.writes_open = 0;
        }
        self.driven = Driven::default();
        self.drive();
    }

    /// Ends a cycle, in which the logic drove this.
    ///
    /// # Errors
    /// Where the logic breaks a rule of the ports.
    pub fn clock(&mut self, master: &Master, memory: &mut impl Memory) -> Result<(), Violation> {
        if !self.decoupled {
            self.watch.look(self.now, &self.driven, master)?;
            self.take_requests(master, memory)?;
            self.take_data(master)?;
            self.give_data(master);
        }
        self.now += 1;
        self.reach_the_host(memory);
        self.reach_the_card();
        while let Some(stream) = self.leaving.arrived(self.now) {
            self.writes_done.push_back(Done { stream });
            self.writes_open -= 1;
        }
        self.drive();
        Ok(())
    }

    fn take_requests(
        &mut self,
        master: &Master,
        memory: &mut impl Memory,
    ) -> Result<(), Violation> {
        let (cycle, streams) = (self.now, self.config.streams);
        if let Some(request) = master.read.filter(|_| self.driven.read_ready) {
            watch::request(cycle, Port::Read, &request, streams)?;
            self.taken[Direction::Read as usize].push_back(request);
        }
        if let Some(request) = master.write.filter(|_| self.driven.write_ready) {
            watch::request(cycle, Port::Write, &request, streams)?;
            self.taken[Direction::Write as usize].push_back(request);
        }
        for direction in [Direction::Read, Direction::Write] {
            self.admit(direction, memory);
        }
        if let Some(value) = master.notify.filter(|_| self.driven.notify_ready) {
            let words = 4;
            self.send_up(REQUEST_OVERHEAD + words, Up::Interrupt(value));
        }
        Ok(())
    }

    /// Begins with the requests of a direction of which it is known whether the driver allows them, in their order; a fault
    /// that it refuses is noted.
    fn admit(&mut self, direction: Direction, memory: &mut impl Memory) {
        while let Some(request) = self.taken[direction as usize].front().copied() {
            let Request { address, length, stream } = request;
            if self.refuses[direction as usize].is_none() {
                let Poll::Ready(reached) = memory.reaches(direction, address, length) else {
                    return;
                };
                if reached != Reached::Mapped {
                    let refusal = self.refusal(direction, &request, reached == Reached::Told);
                    self.refuses[direction as usize] = Some(refusal);
                }
            }
            let is_refused = self.refuses[direction as usize].is_some();
            if is_refused && self.refuse(direction, memory).is_pending() {
                return;
            }
            self.taken[direction as usize].pop_front();
            let is_lost = !is_refused && std::mem::take(&mut self.loses[direction as usize]);
            match (is_refused, is_lost) {
                (true, _) => {
                    self.counts.refused += 1;
                    self.faults.push_back(Fault { direction, address, length });
                }
                (false, true) => {}
                (false, false) => self.under_way[direction as usize].push_back(request),
            }
            match (direction, is_refused || is_lost) {
                (Direction::Read, false) => {
                    self.counts.reads += 1;
                    self.ask(&request);
                }
                (Direction::Read, true) => {}
                (Direction::Write, refused) => {
                    self.counts.writes += u64::from(!refused);
                    self.writes_open += 1;
                    let (left, waiting) = (length, Vec::new());
                    let writing = Writing { address, left, waiting, refused };
                    self.writing[usize::from(stream)].push_back(writing);
                }
            }
        }
    }

    /// The fault of a request. The shell names its first byte, or, of one in two pages, the first one of the second page.
    fn refusal(&mut self, direction: Direction, request: &Request, is_told: bool) -> Refusal {
        let has = |of: &Request, at| (of.address..of.address + u64::from(of.length)).contains(&at);
        let second = (request.address | (PAGE_BYTES - 1)) + 1;
        let is_in_two = !is_told && has(request, second) && self.random.chance(128);
        let address = if is_in_two { second } else { request.address };
        let mut ahead = self.under_way[direction as usize].iter();
        let is_hasty = !ahead.any(|it| has(it, address)) && self.random.chance(self.config.hasty);
        Refusal { address, is_hasty, is_told }
    }

    /// Has the driver refuse the fault of the first request of a direction.
    fn refuse(&mut self, direction: Direction, memory: &mut impl Memory) -> Poll<()> {
        let have_ended = self.have_ended(direction);
        let Some(refusal) = &mut self.refuses[direction as usize] else { return Poll::Ready(()) };
        if !refusal.is_hasty && !have_ended {
            return Poll::Pending;
        }
        if !refusal.is_told {
            if memory.refuse(direction, refusal.address).is_pending() {
                return Poll::Pending;
            }
            refusal.is_told = true;
        }
        self.refuses[direction as usize] = None;
        Poll::Ready(())
    }

    /// The oldest request of a stream has ended.
    fn end(&mut self, direction: Direction, stream: u8) {
        let under_way = &mut self.under_way[direction as usize];
        if let Some(place) = under_way.iter().position(|it| it.stream == stream) {
            under_way.remove(place);
        }
    }

    /// Whether all requests of a direction that were begun with have ended, and the logic knows it.
    fn have_ended(&self, direction: Direction) -> bool {
        match direction {
            Direction::Read => self.under_way[direction as usize].is_empty(),
            Direction::Write => self.writes_open == 0 && self.writes_done.is_empty(),
        }
    }

    /// Sends the questions of a request to read.
    fn ask(&mut self, request: &Request) {
        let Request { address, length, stream } = *request;
        let id = self.next_id;
        self.next_id += 1;
        let extra = self.random.below(self.config.jitter + 1);
        for (offset, length) in parts(address, length, self.config.read_request) {
            let address = address.wrapping_add(offset.into());
            let question = Question { id, stream, address, length, extra };
            self.send_up(REQUEST_OVERHEAD, Up::Question(question));
        }
        let length = length as usize;
        let reading = Reading { id, length, arrived: Vec::with_capacity(length), given: 0 };
        self.reading[usize::from(stream)].push_back(reading);
    }

    /// Sends a packet of so many bytes; the cycle in which it has left.
    fn send_up(&mut self, bytes: u64, packet: Up) -> u64 {
        let left = self.up_lane.send(self.now, bytes);
        self.up.send(left + self.config.latency / 4, packet);
        left
    }

    fn take_data(&mut self, master: &Master) -> Result<(), Violation> {
        for (stream, beat) in (0..).zip(master.data) {
            let place = usize::from(stream);
            let Some(beat) = beat.filter(|_| self.driven.data_ready[place]) else { continue };
            let Some(writing) = self.writing[place].front_mut() else { continue };
            watch::beat(self.now, stream, &beat, writing.left)?;
            writing.left -= u32::from(beat.bytes);
            if !writing.refused {
                writing.waiting.extend_from_slice(beat.content());
                self.counts.bytes_written += u64::from(beat.bytes);
            }
            self.send_data(stream);
        }
        Ok(())
    }

    /// Sends the packets of the oldest request to write of a stream that are complete.
    fn send_data(&mut self, stream: u8) {
        let place = usize::from(stream);
        let Some(mut writing) = self.writing[place].pop_front() else { return };
        let ends = writing.left == 0;
        let most = self.config.payload;
        let mut left = self.now;
        let length = writing.waiting.len() as u32;
        for (_, part) in parts(writing.address, length, most) {
            let end = writing.address.wrapping_add(part.into());
            if !ends && end % u64::from(most) != 0 {
                break;
            }
            let bytes: Vec<u8> = writing.waiting.drain(..part as usize).collect();
            let packet = Up::Write { address: writing.address, bytes };
            writing.address = end;
            left = self.send_up(REQUEST_OVERHEAD + u64::from(part), packet);
            self.counts.packets_left += 1;
        }
        match (ends, writing.refused) {
            (false, _) => self.writing[place].push_front(writing),
            (true, false) => self.leaving.send(left, stream),
            (true, true) => self.writes_open -= 1,
        }
    }

    fn give_data(&mut self, master: &Master) {
        for (stream, takes) in (0..).zip(master.takes) {
            let place = usize::from(stream);
            let Some(beat) = self.driven.data[place].filter(|_| takes) else { continue };
            self.driven.data[place] = None;
            self.counts.bytes_read += u64::from(beat.bytes);
            if let Some(reading) = self.reading[place].front_mut() {
                reading.given += usize::from(beat.bytes);
            }
            if beat.last {
                self.reading[place].pop_front();
                self.end(Direction::Read, stream);
                self.reads_done.push_back(Done { stream });
            }
        }
    }

    /// Does at the host what has arrived there.
    fn reach_the_host(&mut self, memory: &mut impl Memory) {
        while let Some(packet) = self.up.next(self.now) {
            if let Up::Write { address, bytes } = packet {
                if memory.write(*address, bytes).is_pending() {
                    break;
                }
            }
            match self.up.arrived(self.now) {
                Some(Up::Interrupt(value)) => self.interrupts.push_back(value),
                Some(Up::Question(question)) => {
                    self.asked.enter(self.now + question.extra, question);
                }
                Some(Up::Write { .. }) => self.counts.packets_arrived += 1,
                None => {}
            }
        }
        while let Some(question) = self.answering.take().or_else(|| self.asked.due(self.now)) {
            let Question { id, stream, address, length, .. } = question;
            let mut bytes = vec![0; length as usize];
            if memory.read(address, &mut bytes).is_pending() {
                self.answering = Some(question);
                break;
            }
            for (offset, part) in parts(address, length, self.config.payload) {
                let (from, to) = (offset as usize, (offset + part) as usize);
                let back = self.now + self.config.latency / 2;
                self.at_host.send(back, Answer { id, stream, bytes: bytes[from..to].to_vec() });
            }
        }
    }

    /// Moves answers towards the card, and into the shell.
    fn reach_the_card(&mut self) {
        while let Some(answer) = self.at_host.arrived(self.now) {
            let bytes = COMPLETION_OVERHEAD + answer.bytes.len() as u64;
            let left = self.down_lane.send(self.now, bytes);
            let quarters = self.config.latency / 4 + self.config.latency / 2;
            self.down.send(left + (self.config.latency - quarters), answer);
        }
        while let Some(Answer { id, stream, bytes }) = self.down.arrived(self.now) {
            // Requests of before the logic was taken off are not there any more.
            let mut readings = self.reading[usize::from(stream)].iter_mut();
            if let Some(reading) = readings.find(|reading| reading.id == id) {
                reading.arrived.extend_from_slice(&bytes);
            }
        }
    }

    /// Decides what is driven in the next cycle.
    fn drive(&mut self) {
        if self.decoupled {
            self.driven = Driven::default();
            return;
        }
        // What is shown and was not taken stays.
        let shown = self.driven.data;
        let up_has_room = self.up_lane.backlog(self.now) < 2 * u64::from(MAX_REQUEST);
        // One whose end is told gives its place back.
        let write_done = self.next_write_done();
        let mut driven = Driven {
            read_ready: self.has_place(Direction::Read) && self.goes_on(),
            write_ready: self.has_place(Direction::Write) && self.goes_on(),
            notify_ready: self.goes_on(),
            read_done: self.reads_done.pop_front(),
            write_done,
            ..Driven::default()
        };
        if let Some(done) = driven.write_done {
            self.end(Direction::Write, done.stream);
        }
        let streams = usize::from(self.config.streams);
        for (stream, shown) in shown.into_iter().enumerate().take(streams) {
            let wants = self.writing[stream].front().is_some_and(|writing| writing.left != 0);
            driven.data_ready[stream] = wants && up_has_room && self.goes_on();
            driven.data[stream] = shown.or_else(|| self.next_beat(stream));
        }
        self.driven = driven;
    }

    /// Whether the shell has a place for a request of a direction.
    fn has_place(&self, direction: Direction) -> bool {
        let open = match direction {
            Direction::Read => self.under_way[direction as usize].len(),
            Direction::Write => self.writes_open + self.writes_done.len(),
        };
        open + self.taken[direction as usize].len() < self.config.outstanding
    }

    /// The next beat of a stream's oldest request, if its bytes are there.
    fn next_beat(&mut self, stream: usize) -> Option<Beat> {
        let reading = self.reading[stream].front()?;
        let count = (reading.length - reading.given).min(BEAT_BYTES);
        let bytes = reading.arrived.get(reading.given..reading.given + count)?;
        let beat = Beat::new(bytes, reading.given + count == reading.length);
        self.goes_on().then_some(beat)
    }

    /// The next end of a request to write that is told.
    fn next_write_done(&mut self) -> Option<Done> {
        if self.writes_done.is_empty() {
            self.tells_from = None;
            return None;
        }
        let (now, held) = (self.now, self.config.ends_held);
        let from = match self.tells_from {
            Some(from) => from,
            None if held == 0 => now,
            None => now + self.random.below(held + 1),
        };
        self.tells_from = Some(from);
        if now < from { None } else { self.writes_done.pop_front() }
    }

    /// Whether the seed lets a port go on in this cycle.
    fn goes_on(&mut self) -> bool {
        let stalls = self.config.stalls;
        !self.random.chance(stalls)
    }
}
