//! The table of keys of one engine in RTL: as many as it offers, numbers that rest, and keys whose memory flips, which open
//! nothing and stop the engine.

use std::collections::BTreeSet;

use fpga_regs::engine::admin::{AdminStatus, Opcode};
use fpga_regs::engine::event::EventType;
use fpga_regs::engine::window::{
    CONTROL, CONTROL_RESET, FATAL_TABLE_FLIPPED, LIMIT_KEY_RQ, STATUS_ENABLED, STATUS_FATAL,
};
use fpga_regs::engine::wqe::{SendFlags, SendHeader, SendOpcode, Sge};

use crate::alone::{Alone, cycle, started};
use crate::bus::Config;
use crate::ffi::Library;
use crate::host::{Host, Qp, RIGHTS, Region};
use crate::memory::PAGE_BYTES;
use crate::messages::{MessageError, send_entry, wrong};
use crate::port::{Check, Payload, Transfer, Verdict};

/// Bits of a key in the table, with their parity.
const KEY_BITS: u32 = 4 * 72;
/// Every so many of them flips once.
const STEP: usize = 7;
/// Commands that wait in the ring at a time.
const AT_A_TIME: usize = 8;
/// Keys that are made behind a reset, and one by one where no more are free than always.
const FEW: usize = 40;

/// What was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Keys at a time.
    pub keys: usize,
    /// Bits that flipped.
    pub flips: u64,
}

/// What asks for a key.
#[derive(Clone, Copy, Debug)]
enum Asks {
    Message,
    Fetch,
    Check,
    Place,
    Command,
}

struct Bench {
    host: Host,
    qp: Qp,
    region: Region,
}

/// Tries all of it.
///
/// # Errors
/// [`MessageError`].
pub fn run(library: &Library) -> Result<Kept, MessageError> {
    let keys = full(library)?;
    let asks = [Asks::Message, Asks::Fetch, Asks::Check, Asks::Place, Asks::Command];
    let mut flips = 0;
    for (bit, asks) in (0..KEY_BITS).step_by(STEP).zip(asks.into_iter().cycle()) {
        let config = Config { seed: bit.into(), latency: 20, ..Config::default() };
        Bench::connected(library, &config)?.flipped(bit, asks)?;
        flips += 1;
    }
    Ok(Kept { keys, flips })
}

impl Alone for Bench {
    fn host(&mut self) -> &mut Host {
        &mut self.host
    }

    fn cycle(&mut self) -> Result<(), MessageError> {
        cycle(&mut self.host, 1).map(drop)
    }
}

/// Makes as many keys as the engine offers, ends some, makes them anew, and resets it: no number comes again.
fn full(library: &Library) -> Result<usize, MessageError> {
    let host = started(library, &Config { latency: 0, ..Config::default() })?;
    let mut bench = Bench { host, qp: Qp::default(), region: Region { key: 0, address: 0 } };
    bench.answer(Opcode::SetGid)?;
    bench.host.vfpga.ask(LIMIT_KEY_RQ as u16);
    let limit = bench.until("a limit", |bench| bench.host.vfpga.take_answer())? as u32 as usize;
    let mut numbers = BTreeSet::new();
    let mut keys = bench.make(limit, &mut numbers)?;
    bench.is_full()?;
    // The newest ends, and another takes its room, at once.
    for _ in 0..FEW {
        let Some(key) = keys.pop() else { return wrong("the keys", keys.len()) };
        bench.host.name(Opcode::DestroyKey, key);
        bench.answer(Opcode::DestroyKey)?;
        bench.host.name(Opcode::DestroyKey, key);
        bench.has_status_of("a key that ended", AdminStatus::NotFound)?;
        keys.extend(bench.make(1, &mut numbers)?);
        bench.is_full()?;
    }
    for key in keys.drain(..FEW) {
        bench.host.name(Opcode::DestroyKey, key);
        bench.answer(Opcode::DestroyKey)?;
    }
    keys.extend(bench.make(FEW, &mut numbers)?);
    bench.is_full()?;
    for _ in 0..2 {
        bench.restart()?;
        let Some(key) = keys.pop() else { return wrong("the keys", keys.len()) };
        bench.host.name(Opcode::DestroyKey, key);
        bench.has_status_of("a key of before the reset", AdminStatus::NotFound)?;
        keys.extend(bench.make(FEW, &mut numbers)?);
    }
    Ok(limit)
}

impl Bench {
    fn connected(library: &Library, config: &Config) -> Result<Self, MessageError> {
        let mut host = started(library, config)?;
        host.create_cq(4);
        let region = host.register(PAGE_BYTES, RIGHTS);
        let mut bench = Self { host, qp: Qp::default(), region };
        bench.answer(Opcode::SetGid)?;
        let cqn = bench.answer(Opcode::CreateCq)?.result;
        bench.region.key = bench.answer(Opcode::CreateKey)?.result;
        (bench.qp, _) = bench.connect_qp(cqn, 0, 4)?;
        Ok(bench)
    }

    /// Resets the engine and starts it, which hears no doorbell before it is enabled.
    fn restart(&mut self) -> Result<(), MessageError> {
        self.host.vfpga.write(CONTROL as u16, CONTROL_RESET);
        self.has_status(0)?;
        self.host.start(0);
        self.has_status(STATUS_ENABLED)
    }

    fn has_status_of(
        &mut self,
        what: &'static str,
        status: AdminStatus,
    ) -> Result<(), MessageError> {
        match self.completion()? {
            it if it.status == status => Ok(()),
            it => wrong(what, it),
        }
    }

    /// Makes keys, none of whose numbers was seen before.
    fn make(
        &mut self,
        count: usize,
        numbers: &mut BTreeSet<u32>,
    ) -> Result<Vec<u32>, MessageError> {
        let (mut asked, mut keys) = (0, Vec::new());
        while keys.len() < count {
            while asked < count.min(keys.len() + AT_A_TIME) {
                self.host.create_key(0, PAGE_BYTES, RIGHTS);
                asked += 1;
            }
            let key = self.answer(Opcode::CreateKey)?.result;
            if !numbers.insert(key >> 8) {
                return wrong("a number that does not rest", key);
            }
            keys.push(key);
        }
        Ok(keys)
    }

    fn is_full(&mut self) -> Result<(), MessageError> {
        self.host.create_key(0, PAGE_BYTES, RIGHTS);
        self.has_status_of("one key more", AdminStatus::NoResources)
    }

    /// Flips a bit of all that is in the table before something asks for the key.
    fn flipped(mut self, bit: u32, asks: Asks) -> Result<(), MessageError> {
        let (qpn, Region { key, address }) = (self.qp.qpn, self.region);
        if matches!(asks, Asks::Fetch) {
            self.post();
            self.until("a message", |bench| bench.host.vfpga.port().submitted.pop_front())?;
        }
        self.settle()?;
        // What is reached all the same has a fault.
        self.host.memory.unmap(address, PAGE_BYTES);
        self.host.vfpga.flip_keys(bit);
        let payload = match asks {
            Asks::Fetch => Payload::Message(0),
            _ => Payload::Remote { rkey: key, address, is_read: false },
        };
        let transfer = Transfer { tag: 0, qpn, payload, offset: 0, length: 64 };
        let port = self.host.vfpga.port();
        match asks {
            Asks::Message => self.post(),
            Asks::Fetch => port.fetch(transfer),
            Asks::Place => port.place(transfer, &[0xa5; 64]),
            Asks::Check => {
                port.check(Check { tag: 0, qpn, is_read: true, rkey: key, address, length: 64 });
            }
            Asks::Command => self.host.name(Opcode::DestroyKey, key),
        }
        self.has_status(STATUS_FATAL | u64::from(FATAL_TABLE_FLIPPED) << 32)?;
        match self.host.event() {
            Some(event) if event.kind == EventType::Fatal => {
                if u32::from(event.code) != FATAL_TABLE_FLIPPED {
                    return wrong("the code of an engine that stops", event);
                }
            }
            event => return wrong("the event of an engine that stops", event),
        }
        let faults = self.host.vfpga.faults;
        let port = self.host.vfpga.port();
        let fetched = port.take_fetched().map(|(_, verdict, _)| verdict);
        let seen = (fetched, port.placed.pop_front(), port.checked.pop_front());
        let answer = fetched.or(seen.1.map(|it| it.1)).or(seen.2.map(|it| it.1));
        let is_sound = match asks {
            Asks::Message => port.submitted.is_empty(),
            Asks::Fetch | Asks::Place => answer == Some(Verdict::Unreachable),
            Asks::Check => answer == Some(Verdict::Denied),
            Asks::Command => true,
        };
        if !is_sound || faults != 0 {
            return wrong("what a key opens that flipped", (bit, asks, seen, faults));
        }
        self.restart()?;
        self.make(1, &mut BTreeSet::from([key >> 8])).map(drop)
    }

    /// Posts a WRITE.
    fn post(&mut self) {
        let header = SendHeader {
            opcode: SendOpcode::Write,
            flags: SendFlags::SIGNALED,
            ..SendHeader::default()
        };
        let Region { key: lkey, address } = self.region;
        let entry = send_entry(header, &[Sge { address, length: 64, lkey }]);
        self.host.post(&mut self.qp, &entry);
    }
}
