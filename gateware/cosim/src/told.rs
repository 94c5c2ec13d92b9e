//! What only the driver can tell one engine in RTL: the seed of its numbers, and which page faults it refuses.

use fpga_regs::engine::admin::{Opcode, RqKind};
use fpga_regs::engine::window::{FAULT_REFUSED, FaultNotes, FaultRefused, SEED, STATUS_ENABLED};

use crate::alone::{Alone, cycle, started};
use crate::bus::Config;
use crate::card::Vfpga;
use crate::ffi::Library;
use crate::host::{Host, Qp, RIGHTS, Region};
use crate::memory::PAGE_BYTES;
use crate::messages::{MessageError, wrong};
use crate::port::{Payload, Transfer, Verdict};
use crate::random::Random;

/// Objects of each kind whose numbers are compared.
const OBJECTS: usize = 4;
/// Questions for payload, one of each page of a region.
const QUESTIONS: u8 = 24;
/// The one whose page is out of reach.
const LOST: u8 = 13;
/// Seeds of notes of faults.
const FAULTS: u64 = 32;
/// Cycles for which the ends of writes are kept back, with some seeds: those of requests behind the one that is lost are then
/// told right behind those ahead of it.
const HELD: u64 = 1500;

/// What was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Numbers that were drawn.
    pub numbers: usize,
    /// Faults that were refused.
    pub faults: u64,
}

/// Tries all of it.
///
/// # Errors
/// [`MessageError`].
pub fn run(library: &Library) -> Result<Told, MessageError> {
    let mut told = Told { numbers: seeds(library)?, faults: 0 };
    for seed in 0..FAULTS {
        told.faults += Bench::connected(library, seed)?.faults(seed % 2 == 1)?;
    }
    Ok(told)
}

/// What is written to `SEED`.
#[derive(Clone, Copy, Debug, Default)]
struct Seeds<'a> {
    /// Before the first start, each with its strobes.
    before: &'a [(u64, u8)],
    /// Behind it, and behind a reset of the engine.
    behind: &'a [u64],
    /// Behind a reset of the shell.
    anew: u64,
}

/// An engine that draws numbers.
struct Numbers {
    host: Host,
}

impl Alone for Numbers {
    fn host(&mut self) -> &mut Host {
        &mut self.host
    }

    fn cycle(&mut self) -> Result<(), MessageError> {
        cycle(&mut self.host, 1).map(drop)
    }
}

impl Numbers {
    /// The numbers behind the first start, behind the seeds of then, behind a reset of the engine, and behind one of the shell.
    fn drawn(library: &Library, seeds: Seeds<'_>) -> Result<[Vec<u32>; 4], MessageError> {
        // All else is as with the other seeds, also what memories hold before.
        let config = Config { seed: 7, latency: 0, ..Config::default() };
        let host = Host::new(Vfpga::new(library, config)?);
        let mut numbers = Self { host };
        for &(seed, strobes) in seeds.before {
            numbers.host.vfpga.write_bytes(SEED as u16, seed, strobes);
        }
        numbers.start(0)?;
        let first = numbers.draw()?;
        numbers.seed(seeds.behind);
        let second = numbers.draw()?;
        numbers.host.reset();
        numbers.has_status(0)?;
        numbers.seed(seeds.behind);
        numbers.start(0)?;
        let third = numbers.draw()?;
        numbers.host.decouple();
        numbers.start(seeds.anew)?;
        Ok([first, second, third, numbers.draw()?])
    }

    fn seed(&mut self, seeds: &[u64]) {
        seeds.iter().for_each(|seed| self.host.vfpga.write(SEED as u16, *seed));
    }

    fn start(&mut self, seed: u64) -> Result<(), MessageError> {
        self.host.seed = seed;
        self.host.start(0);
        self.has_status(STATUS_ENABLED)
    }

    /// Makes objects of each kind.
    fn draw(&mut self) -> Result<Vec<u32>, MessageError> {
        let mut drawn = Vec::new();
        for _ in 0..OBJECTS {
            self.host.create_cq(0);
            let cqn = self.answer(Opcode::CreateCq)?.result;
            let rqn = self.make_rq(0, 0, RqKind::Private)?.rqn;
            self.host.create_qp(cqn, rqn, 0);
            let qpn = self.answer(Opcode::CreateQp)?.result;
            self.host.create_key(0, PAGE_BYTES, RIGHTS);
            let key = self.answer(Opcode::CreateKey)?.result;
            drawn.extend([cqn, rqn, qpn, key >> 8]);
        }
        Ok(drawn)
    }
}

/// Which seed counts, and that it decides the numbers.
fn seeds(library: &Library) -> Result<usize, MessageError> {
    const WHOLE: u8 = u8::MAX;
    let mut count = 0;
    let mut drawn = |before: &[(u64, u8)], behind: &[u64], anew| {
        let drawn = Numbers::drawn(library, Seeds { before, behind, anew });
        count += drawn.iter().flatten().flatten().count();
        drawn
    };
    let own = drawn(&[(1, WHOLE)], &[], 3)?;
    let none = drawn(&[], &[], 3)?;
    for (what, wanted, seen) in [
        ("a seed behind 0", &own, drawn(&[(0, WHOLE), (1, WHOLE)], &[], 3)?),
        ("a second seed", &own, drawn(&[(1, WHOLE), (2, WHOLE)], &[], 3)?),
        ("seeds behind the start", &own, drawn(&[(1, WHOLE)], &[2, 4], 3)?),
        ("seeds behind a start without one", &none, drawn(&[], &[2, 4], 3)?),
        ("a part of a seed", &none, drawn(&[(1, 0x7f), (1, 0xfe), (1, 0)], &[], 3)?),
    ] {
        if *wanted != seen {
            return wrong(what, (wanted, seen));
        }
    }
    let other = drawn(&[(2, WHOLE)], &[], 5)?;
    for (one, another) in [(&own, &none), (&own, &other), (&none, &other)] {
        // 13 bits of some are drawn, so two may be the same.
        let pairs = |place: usize| one[place].iter().zip(&another[place]);
        let same = |place| pairs(place).filter(|(one, another)| one == another).count();
        if (0..3).any(|place| same(place) > 1) {
            return wrong("the numbers of two seeds", (one, another));
        }
    }
    // The same seed behind a reset of the shell, or another.
    let behind = |drawn: &[Vec<u32>; 4]| drawn[3].clone();
    let same = behind(&own).iter().zip(&behind(&other)).filter(|(one, it)| one == it).count();
    match (behind(&own) == behind(&none), same <= 1) {
        (true, true) => Ok(count),
        seen => wrong("the numbers behind a reset of the shell", (seen, own, none, other)),
    }
}

/// Whether the bus of a seed never waits.
fn is_fast(seed: u64) -> bool {
    seed >= 8
}

/// An engine that is asked for payload.
struct Bench {
    host: Host,
    random: Random,
    qp: Qp,
    region: Region,
}

impl Alone for Bench {
    fn host(&mut self) -> &mut Host {
        &mut self.host
    }

    fn cycle(&mut self) -> Result<(), MessageError> {
        cycle(&mut self.host, 1).map(drop)
    }
}

impl Bench {
    fn connected(library: &Library, seed: u64) -> Result<Self, MessageError> {
        // Faults are refused at once, or behind all that is ahead of them.
        let hasty = if seed / 2 % 2 == 1 { u8::MAX } else { 0 };
        let ends_held = if seed / 4 % 2 == 1 { HELD } else { 0 };
        let config = Config { outstanding: 32, hasty, ends_held, seed, ..Config::default() };
        let config = match is_fast(seed) {
            // The ends of short requests come one behind the other.
            true => Config { bytes_per_cycle: 256, ..config },
            false => Config { jitter: 300, stalls: 40, ..config },
        };
        let host = started(library, &config)?;
        let region = Region { key: 0, address: 0 };
        let random = Random::new(seed ^ 0x701d);
        let mut bench = Self { host, random, qp: Qp::default(), region };
        bench.answer(Opcode::SetGid)?;
        bench.host.create_cq(4);
        let cqn = bench.answer(Opcode::CreateCq)?.result;
        bench.region = bench.host.register(u64::from(QUESTIONS) * PAGE_BYTES, RIGHTS);
        bench.region.key = bench.answer(Opcode::CreateKey)?.result;
        (bench.qp, _) = bench.connect_qp(cqn, 0, 4)?;
        Ok(bench)
    }

    /// Notes of refused faults: those of requests, and others.
    fn faults(mut self, is_write: bool) -> Result<u64, MessageError> {
        let first = FaultRefused { address: self.region.address, is_write };
        for strobes in [0x7f, 0xfe, 0x0f, 0] {
            self.host.vfpga.write_bytes(FAULT_REFUSED as u16, first.encode(), strobes);
        }
        self.has_notes("a part of a note", [false, false])?;
        // The other direction has no request at all.
        self.tell(FaultRefused { is_write: !is_write, ..first });
        let other = [is_write, !is_write];
        self.has_notes("a note of the other direction", other)?;
        let lost = self.region.address + u64::from(LOST) * PAGE_BYTES;
        self.host.memory.unmap(lost, 1);
        self.ask(is_write, Some(LOST))?;
        self.has_notes("the note of a request", other)?;
        // Of nobody, though just beside the requests.
        self.host.memory.map(lost, 1);
        let end = self.region.address + u64::from(QUESTIONS) * PAGE_BYTES;
        for address in [end, self.region.address - 1] {
            self.tell(FaultRefused { address, is_write });
            self.ask(is_write, None)?;
            self.has_notes("a note of no request", [true, true])?;
        }
        self.host.reset();
        self.has_status(0)?;
        self.has_notes("notes behind a reset", [false, false])?;
        match self.host.vfpga.faults {
            1 => Ok(1),
            faults => wrong("faults", faults),
        }
    }

    fn tell(&mut self, note: FaultRefused) {
        self.host.vfpga.write(FAULT_REFUSED as u16, note.encode());
    }

    /// Whether the engine has a note of a read, and of a write.
    fn has_notes(&mut self, what: &'static str, wanted: [bool; 2]) -> Result<(), MessageError> {
        let value = self.register(FAULT_REFUSED)?;
        let FaultNotes { has_read, has_write } = FaultNotes::decode(value);
        match [has_read, has_write] == wanted {
            true => Ok(()),
            false => wrong(what, value),
        }
    }

    /// Asks for bytes of each page at once: all verdicts are well, but that of the lost one.
    fn ask(&mut self, is_write: bool, lost: Option<u8>) -> Result<(), MessageError> {
        let Region { key: rkey, address } = self.region;
        let qpn = self.qp.qpn;
        let mut wanted = Vec::new();
        for tag in 0..QUESTIONS {
            // One that is long is under way while the fault behind it is told.
            let length = match is_fast(self.host.seed) {
                true if tag + 1 == LOST => PAGE_BYTES,
                true => 1 + self.random.below(64),
                false => 1 + self.random.below(PAGE_BYTES),
            } as u16;
            let at = self.random.below(PAGE_BYTES + 1 - u64::from(length));
            let address = address + u64::from(tag) * PAGE_BYTES + at;
            let bytes: Vec<u8> = (0..length).map(|_| self.random.next_u64() as u8).collect();
            let payload = Payload::Remote { rkey, address, is_read: !is_write };
            let transfer = Transfer { tag, qpn, payload, offset: 0, length };
            match is_write {
                true => self.host.vfpga.port().place(transfer, &bytes),
                false => {
                    self.host.memory.store(address, &bytes);
                    self.host.vfpga.port().fetch(transfer);
                }
            }
            wanted.push((address, bytes));
        }
        for tag in 0..QUESTIONS {
            let (answered, verdict, came) = self.until("an answer to a question", |it| {
                let port = it.host.vfpga.port();
                let placed = port.placed.pop_front().map(|(tag, verdict)| (tag, verdict, None));
                placed.or_else(|| {
                    port.take_fetched().map(|(tag, verdict, came)| (tag, verdict, Some(came)))
                })
            })?;
            let is_done = lost != Some(tag);
            if (answered, verdict == Verdict::Done) != (tag, is_done) {
                return wrong("a verdict", (answered, verdict, tag));
            }
            if is_done && came.is_some_and(|came| came != wanted[usize::from(tag)].1) {
                return wrong("the bytes of a question", tag);
            }
        }
        self.settle()?;
        for (tag, (address, bytes)) in (0..QUESTIONS).zip(wanted) {
            let mut there = vec![0; bytes.len()];
            self.host.memory.load(address, &mut there);
            if lost != Some(tag) && there != bytes {
                return wrong("memory behind a question", tag);
            }
        }
        Ok(())
    }
}
