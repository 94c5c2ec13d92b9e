//! What the bus itself allows: a trivial master, which asks for the next bytes whenever it may and takes what comes.

use std::task::Poll;

use crate::bus::{BEAT_BYTES, Beat, Bus, Config, Master, Request, STREAMS, Violation};
use crate::memory::{Direction, Memory, Reached};

/// Cycles in a second.
pub const HERTZ: u64 = 250_000_000;

/// What passed in some cycles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Requests that ended.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The cycles.
    pub cycles: u64,
}

impl Limit {
    /// Requests in a second.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        self.requests as f64 * HERTZ as f64 / self.cycles as f64
    }

    /// Bytes in a second.
    #[must_use]
    pub fn bandwidth(&self) -> f64 {
        self.bytes as f64 * HERTZ as f64 / self.cycles as f64
    }
}

/// Memory that is all there, and keeps nothing.
struct Anything;

impl Memory for Anything {
    fn reaches(&mut self, _: Direction, _: u64, _: u32) -> Poll<Reached> {
        Poll::Ready(Reached::Mapped)
    }

    fn read(&mut self, _: u64, into: &mut [u8]) -> Poll<()> {
        into.fill(0x5a);
        Poll::Ready(())
    }

    fn write(&mut self, _: u64, _: &[u8]) -> Poll<()> {
        Poll::Ready(())
    }
}

/// Measures requests of `length` bytes, one behind the other in memory, in `cycles` cycles of a bus that is at work.
///
/// # Errors
/// Where the length is none that a request can have.
pub fn measure(
    config: &Config,
    direction: Direction,
    length: u32,
    cycles: u64,
) -> Result<Limit, Violation> {
    let mut bus = Bus::new(config.clone());
    let mut master = Trivial { direction, length, asked: 0, to_give: 0 };
    let mut ended = 0;
    let before = 8 * (config.latency + config.jitter + u64::from(length));
    for cycle in 0..before + cycles {
        let driven = *bus.driven();
        let done = driven.read_done.or(driven.write_done);
        ended += u64::from(done.is_some() && cycle >= before);
        let drives = master.drive();
        bus.clock(&drives, &mut Anything)?;
        match direction {
            Direction::Read => master.asked += u64::from(driven.read_ready),
            Direction::Write => {
                let taken = driven.data_ready[0] && drives.data[0].is_some();
                master.went_on(driven.write_ready, taken);
            }
        }
    }
    Ok(Limit { requests: ended, bytes: ended * u64::from(length), cycles })
}

struct Trivial {
    direction: Direction,
    length: u32,
    /// Requests that were taken.
    asked: u64,
    /// Bytes of requests to write that were not given yet.
    to_give: u64,
}

impl Trivial {
    fn drive(&self) -> Master {
        let length = u64::from(self.length);
        let request = Request { address: self.asked * length, length: self.length, stream: 0 };
        let mut master = Master { takes: [true; STREAMS], ..Master::default() };
        match self.direction {
            Direction::Read => master.read = Some(request),
            Direction::Write => {
                master.write = Some(request);
                master.data[0] = self.beat();
            }
        }
        master
    }

    /// The bytes that the request has left whose turn it is.
    fn left(&self) -> u64 {
        let length = u64::from(self.length).max(1);
        match self.to_give % length {
            0 => length.min(self.to_give),
            left => left,
        }
    }

    fn beat(&self) -> Option<Beat> {
        let left = self.left();
        let bytes = left.min(BEAT_BYTES as u64) as u8;
        let beat = Beat { data: [0xa5; BEAT_BYTES], bytes, last: left <= BEAT_BYTES as u64 };
        (left != 0).then_some(beat)
    }

    fn went_on(&mut self, asked: bool, given: bool) {
        if given {
            self.to_give -= self.left().min(BEAT_BYTES as u64);
        }
        if asked {
            self.asked += 1;
            self.to_give += u64::from(self.length);
        }
    }
}
