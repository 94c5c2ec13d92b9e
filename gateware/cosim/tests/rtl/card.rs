//! A card whose transport and host memory are a test's.

use std::collections::HashMap;
use std::path::Path;
use std::sync::OnceLock;
use std::task::Poll;

use cosim::card::Vfpga;
use cosim::ffi::Library;
use cosim::port::{Port, Transfer, Verdict};
use cosim::{Config, Direction, Memory, Reached};
use fpga_regs::engine::window::SEED;
use queue_engine::Piece;

use crate::engine::support::memory::TestMemory;

/// Nanoseconds of a cycle.
pub const CYCLE: u64 = 4;
/// Cycles in which the card answers.
pub const WAIT: u32 = 200_000;
/// The variable that names the engine's library.
const LIBRARY: &str = "GATEWARE_ENGINE";

/// The test's memory behind the bus, and what was asked for of it.
struct Host {
    memory: TestMemory,
    /// While somebody looks: the requests of a direction, oldest first.
    watched: Option<(Direction, Vec<Piece>)>,
}

impl Host {
    fn byte(&self, address: u64) -> u8 {
        self.memory.load(address & !7).to_le_bytes()[(address % 8) as usize]
    }

    fn bytes(&self, address: u64, length: usize) -> impl Iterator<Item = u8> {
        let words = (address & !7..).step_by(8).map(|at| self.memory.load(at));
        words.flat_map(u64::to_le_bytes).skip((address % 8) as usize).take(length)
    }

    fn store_byte(&self, address: u64, byte: u8) {
        let mut bytes = self.memory.load(address & !7).to_le_bytes();
        bytes[(address % 8) as usize] = byte;
        self.memory.store(address & !7, u64::from_le_bytes(bytes));
    }
}

impl Memory for Host {
    fn reaches(&mut self, direction: Direction, address: u64, length: u32) -> Poll<Reached> {
        if let Some((watched, pieces)) = &mut self.watched {
            if *watched == direction {
                pieces.push(Piece { iova: address, length });
            }
        }
        let is_mapped = self.memory.reaches(address, length.into());
        Poll::Ready(if is_mapped { Reached::Mapped } else { Reached::Refused })
    }

    fn read(&mut self, address: u64, into: &mut [u8]) -> Poll<()> {
        match into.len() {
            64 if address % 64 == 0 => {
                let mut block = self.memory.read_block(address);
                block[0] = self.memory.read_word(address);
                let bytes = block.iter().flat_map(|word| word.to_le_bytes());
                into.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
            }
            length => {
                let bytes = self.bytes(address, length);
                into.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
            }
        }
        Poll::Ready(())
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Poll<()> {
        let words = || bytes.chunks_exact(8).map(|word| word.try_into().map(u64::from_le_bytes));
        let block: Option<Vec<u64>> = words().map(Result::ok).collect();
        match block
            .and_then(|block| block.try_into().ok())
            .filter(|_| address % 64 == 0 && bytes.len() == 64)
        {
            Some(block) => self.memory.publish_block(address, &block),
            None => (address..).zip(bytes).for_each(|(at, byte)| self.store_byte(at, *byte)),
        }
        Poll::Ready(())
    }
}

/// The card.
pub struct Card {
    pub vfpga: Vfpga,
    host: Host,
}

impl Card {
    /// A card out of reset. The name of the test decides its numbers, its latencies, and what its registers hold before.
    pub fn new(memory: TestMemory) -> Self {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or_default().bytes();
        let seed = name.fold(1, |seed: u64, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
        // An answer that comes soon saves cycles, of which nothing here depends on the number.
        let config = Config {
            latency: 24,
            jitter: 12,
            stalls: 16,
            outstanding: 32,
            seed,
            ..Config::default()
        };
        let vfpga = Vfpga::new(library(), config).unwrap();
        let mut card = Self { vfpga, host: Host { memory, watched: None } };
        card.vfpga.write(SEED as u16, seed);
        while !card.vfpga.is_quiet() {
            card.cycle();
        }
        card
    }

    /// Lets a cycle pass.
    pub fn cycle(&mut self) {
        self.vfpga.cycle(&mut self.host).unwrap();
    }

    /// Waits until something is there.
    pub fn until<T>(&mut self, what: &str, mut is: impl FnMut(&mut Port) -> Option<T>) -> T {
        for _ in 0..WAIT {
            self.cycle();
            if let Some(it) = is(self.vfpga.port()) {
                return it;
            }
        }
        panic!("{what} did not come within {WAIT} cycles");
    }

    /// A register; beyond the window there is nothing.
    pub fn read(&mut self, offset: u64) -> u64 {
        let Ok(offset) = u16::try_from(offset) else { return 0 };
        self.vfpga.ask(offset);
        for _ in 0..WAIT {
            self.cycle();
            if let Some(value) = self.vfpga.take_answer() {
                return value;
            }
        }
        panic!("register {offset:#x} did not answer within {WAIT} cycles");
    }

    /// Lets what is under way end, as far as it does by itself, and looks at requests of a direction from then on.
    fn watch(&mut self, direction: Direction) {
        for _ in 0..WAIT / 100 {
            if self.vfpga.is_quiet() {
                break;
            }
            self.cycle();
        }
        self.host.watched = Some((direction, Vec::new()));
    }

    fn watched(&mut self) -> Vec<Piece> {
        self.host.watched.take().map(|(_, pieces)| pieces).unwrap_or_default()
    }

    /// Asks for bytes: the verdict, and what was read for it, which has to be what came.
    pub fn fetch(&mut self, transfer: Transfer) -> (Verdict, Vec<Piece>) {
        self.watch(Direction::Read);
        self.vfpga.port().fetch(transfer);
        let (_, verdict, bytes) = self.until("the answer to a fetch", Port::take_fetched);
        let pieces = self.watched();
        if verdict == Verdict::Done {
            let read = pieces.iter().flat_map(|it| self.host.bytes(it.iova, it.length as usize));
            let read: Vec<u8> = read.collect();
            assert_eq!(bytes, read, "{transfer:?} of {pieces:?}");
        }
        (verdict, pieces)
    }

    /// Brings bytes: the verdict, and what was written for it, where they then have to be.
    pub fn place(&mut self, transfer: Transfer) -> (Verdict, Vec<Piece>) {
        self.watch(Direction::Write);
        let bytes: Vec<u8> =
            (0..transfer.length).map(|at| (at * 7 + transfer.length) as u8).collect();
        self.vfpga.port().place(transfer, &bytes);
        let (_, verdict) = self.until("the answer to a place", |port| port.placed.pop_front());
        let pieces = self.watched();
        if verdict == Verdict::Done {
            // It is on its way to memory.
            while !self.vfpga.bus().is_quiet() {
                self.cycle();
            }
            let written = pieces.iter().flat_map(|it| it.iova..it.iova + u64::from(it.length));
            // Of elements one over another, what came last stays.
            let wanted: HashMap<u64, u8> = written.zip(bytes.iter().copied()).collect();
            for (address, byte) in wanted {
                assert_eq!(self.host.byte(address), byte, "{address:#x} of {transfer:?}");
            }
        }
        (verdict, pieces)
    }
}

/// The engine's library.
fn library() -> &'static Library {
    static LOADED: OnceLock<Library> = OnceLock::new();
    LOADED.get_or_init(|| {
        let path = std::env::var_os(LIBRARY);
        let path = path.expect("GATEWARE_ENGINE names no library: run cargo xtask gateware test");
        Library::load(Path::new(&path)).unwrap()
    })
}
