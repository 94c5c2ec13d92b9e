//! A master that plays requests of a list, for tests of the bus.

use std::collections::VecDeque;

use cosim::bus::{Beat, Bus, Done, Master, Request, STREAMS, Violation};
use cosim::random::Random;
use cosim::{Direction, Memory};

/// A master, and what it got.
#[derive(Debug, Default)]
pub struct Player {
    pub reads: VecDeque<Request>,
    /// Requests to write, and their bytes.
    pub writes: VecDeque<(Request, Vec<u8>)>,
    pub notify: VecDeque<u32>,
    /// Bytes of its requests to write that were taken, beat by beat.
    beats: [VecDeque<Beat>; STREAMS],
    /// What was read, by stream.
    pub read: [Vec<u8>; STREAMS],
    /// The cycle, direction and stream of each end.
    pub ends: Vec<(u64, Direction, Done)>,
    /// Requests under way, and how many there were at most.
    open: [usize; 2],
    pub most_open: [usize; 2],
    /// How often of 256 times it takes no data, and shows none.
    pub lazy: u8,
    random: Option<Random>,
    takes: [bool; STREAMS],
    shows: [bool; STREAMS],
}

impl Player {
    pub fn lazy(seed: u64, lazy: u8) -> Self {
        Self { lazy, random: Some(Random::new(seed ^ 0xabcd)), ..Self::default() }
    }

    pub fn read(&mut self, address: u64, length: u32, stream: u8) {
        self.reads.push_back(Request { address, length, stream });
    }

    pub fn write(&mut self, address: u64, bytes: &[u8], stream: u8) {
        let request = Request { address, length: bytes.len() as u32, stream };
        self.writes.push_back((request, bytes.to_vec()));
    }

    pub fn drives(&mut self) -> Master {
        let mut master = Master {
            read: self.reads.front().copied(),
            write: self.writes.front().map(|(request, _)| *request),
            notify: self.notify.front().copied(),
            ..Master::default()
        };
        for stream in 0..STREAMS {
            let lazy = |random: &mut Option<Random>| {
                random.as_mut().is_some_and(|random| random.chance(self.lazy))
            };
            self.takes[stream] = !lazy(&mut self.random);
            // What is shown stays.
            self.shows[stream] |= !lazy(&mut self.random);
            master.takes[stream] = self.takes[stream];
            master.data[stream] =
                self.beats[stream].front().copied().filter(|_| self.shows[stream]);
        }
        master
    }

    /// Plays one cycle.
    pub fn cycle(&mut self, bus: &mut Bus, memory: &mut impl Memory) -> Result<(), Violation> {
        let master = self.drives();
        let driven = *bus.driven();
        let now = bus.now();
        bus.clock(&master, memory)?;
        for (direction, done) in
            [(Direction::Read, driven.read_done), (Direction::Write, driven.write_done)]
        {
            if let Some(done) = done {
                self.ends.push((now, direction, done));
                self.open[direction as usize] -= 1;
            }
        }
        if master.read.is_some() && driven.read_ready {
            self.reads.pop_front();
            self.opened(Direction::Read);
        }
        if driven.write_ready {
            if let Some((request, bytes)) = self.writes.pop_front() {
                self.beats[usize::from(request.stream)].extend(Beat::all_of(&bytes));
                self.opened(Direction::Write);
            }
        }
        if driven.notify_ready {
            self.notify.pop_front();
        }
        for stream in 0..STREAMS {
            if let Some(beat) = driven.data[stream].filter(|_| master.takes[stream]) {
                self.read[stream].extend_from_slice(beat.content());
            }
            if master.data[stream].is_some() && driven.data_ready[stream] {
                self.beats[stream].pop_front();
                self.shows[stream] = false;
            }
        }
        Ok(())
    }

    fn opened(&mut self, direction: Direction) {
        let place = direction as usize;
        self.open[place] += 1;
        self.most_open[place] = self.most_open[place].max(self.open[place]);
    }

    /// Whether it has said all that it has to say.
    pub fn has_ended(&self) -> bool {
        let said = self.reads.is_empty() && self.writes.is_empty() && self.notify.is_empty();
        said && self.beats.iter().all(VecDeque::is_empty)
    }

    /// Plays until all is done.
    pub fn play(&mut self, bus: &mut Bus, memory: &mut impl Memory) {
        for _ in 0..1_000_000 {
            if self.has_ended() && bus.is_quiet() {
                return;
            }
            self.cycle(bus, memory).unwrap();
        }
        panic!("no end: {self:?}");
    }
}
