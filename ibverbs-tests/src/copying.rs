//! The most that this machine's kernel lets a card move: a loop of nothing but the copies that software cards make,
//! from one program's buffers and into another's.
//!
//! The buffers lie as perftest's do, in regions that are registered as its are, so that they have the same pages. The
//! copies are as long as a card's longest, into frames of a path MTU of 4096.

use std::io::{BufRead as _, BufReader, IoSlice, IoSliceMut, Read as _};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use hostmem::RemoteRange;
use hostmem::process::{read_vectored, write_vectored};
use nix::unistd::Pid;
use verbs_sys::current::verbs as v;

use crate::ffi::{Context, Library, Mapping, Pd, Region};

/// Payload of a frame.
const FRAME: usize = 4096;
/// Frames of a burst, which are copied by one call.
const BURST: usize = 128;
/// The part of a buffer within which perftest sends smaller messages.
const CYCLE: usize = 4096;
/// Bytes that malloc asks the kernel for beside memory that is to begin at a page.
const SURPLUS: usize = 2 * 4096;

/// The copies to be repeated, and the threads that make them.
#[derive(Clone, Copy, Debug)]
pub struct Copies {
    /// Bytes of a message.
    pub size: usize,
    /// Buffers on each side, which are used in turns.
    pub buffers: usize,
    /// Whether one thread copies out of and into buffers by turns, or each of two does one of both.
    pub apart: bool,
    /// How long.
    pub time: Duration,
}

impl Copies {
    /// Bytes from one buffer to the next.
    fn stride(&self) -> usize {
        self.size.max(CYCLE)
    }

    /// Bytes of all buffers of a side: as many to send from as to receive into.
    fn bytes(&self) -> usize {
        2 * self.stride() * self.buffers
    }
}

/// Registers that many bytes on a device, prints where they are, and keeps them until the standard input ends.
///
/// # Errors
/// When they cannot be registered.
pub fn hold(device: &str, bytes: usize) -> Result<()> {
    let pd = Pd::new(&Context::open(Library::open()?, device)?)?;
    let memory = Mapping::zeroed(bytes + SURPLUS)?;
    for page in (0..bytes).step_by(FRAME) {
        memory.write(page, &[1]);
    }
    let access = v::IBV_ACCESS_LOCAL_WRITE | v::IBV_ACCESS_REMOTE_WRITE;
    let region = Region::over(&pd, memory, access, false)?;
    println!("{}", region.address());
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Prints how many 10^6 bytes are copied per second, between programs with buffers on two devices.
///
/// # Errors
/// When a program does not come up, or its memory cannot be reached.
pub fn copy(copies: Copies, [from, to]: [&str; 2]) -> Result<()> {
    ensure!(copies.size > 0 && copies.buffers > 0, "nothing is to be copied");
    let (from, to) = (Holder::start(from, copies.bytes())?, Holder::start(to, copies.bytes())?);
    // As a WRITE of perftest's: from the first half of one region into the second half of the other.
    let sources = bursts(&copies, from.address);
    let targets = bursts(&copies, to.address + copies.bytes() / 2);
    let read = |frames: &mut Frames, turn: usize| frames.read(from.pid(), &sources[turn]);
    let write = |frames: &mut Frames, turn: usize| frames.write(to.pid(), &targets[turn]);
    let turns = sources.len();
    let rate = if copies.apart {
        std::thread::scope(|scope| -> Result<f64> {
            let reading = scope.spawn(|| repeat(copies.time, turns, read));
            let written = repeat(copies.time, turns, write)?;
            let read = reading.join().ok().context("the reading thread panicked")?;
            Ok(written.min(read?))
        })?
    } else {
        repeat(copies.time, turns, |frames, turn| {
            read(frames, turn)?;
            write(frames, turn)
        })?
    };
    println!("{:.1}", rate / 1e6);
    Ok(())
}

/// Copies burst by burst for a while; answers bytes per second.
fn repeat(
    time: Duration,
    turns: usize,
    mut copy: impl FnMut(&mut Frames, usize) -> Result<usize>,
) -> Result<f64> {
    let (mut frames, mut bytes, start) = (Frames::new(), 0, Instant::now());
    for turn in (0..turns).cycle() {
        bytes += copy(&mut frames, turn)?;
        if start.elapsed() >= time {
            break;
        }
    }
    Ok(bytes as f64 / start.elapsed().as_secs_f64())
}

/// The payload of a burst's frames, and where its bytes are in a program.
struct Burst {
    lengths: Vec<usize>,
    remote: Vec<RemoteRange>,
}

/// The bursts in which messages between the buffers from an address on are copied, each buffer in its turn.
fn bursts(copies: &Copies, address: usize) -> Vec<Burst> {
    let Copies { size, buffers, .. } = *copies;
    let stride = copies.stride();
    // Smaller messages lie one behind the other in their buffer, each on a line of its own.
    let places = (0..stride).step_by(size.next_multiple_of(64)).filter(|at| at + size <= stride);
    let messages = places.flat_map(|at| (0..buffers).map(move |buffer| buffer * stride + at));
    let parts = |message: usize| {
        let part = move |at: usize| (message + at, FRAME.min(size - at));
        (0..size).step_by(FRAME).map(part)
    };
    let frames: Vec<(usize, usize)> = messages.flat_map(parts).collect();
    let count = frames.len().div_ceil(BURST);
    let mut frames = frames.into_iter().cycle();
    let mut burst = || {
        let mut burst = Burst { lengths: Vec::new(), remote: Vec::new() };
        for (offset, len) in frames.by_ref().take(BURST) {
            let base = address + offset;
            burst.lengths.push(len);
            // As cards do: the kernel finds and pins the pages of each range by itself.
            match burst.remote.last_mut() {
                Some(last) if last.base + last.len == base => last.len += len,
                _ => burst.remote.push(RemoteRange { base, len }),
            }
        }
        burst
    };
    (0..count).map(|_| burst()).collect()
}

/// A card's own memory: frames with room for their headers.
struct Frames(Vec<[u8; FRAME + 128]>);

impl Frames {
    fn new() -> Self {
        Self(vec![[0; FRAME + 128]; BURST])
    }

    /// Copies a burst out of a program; answers its bytes.
    fn read(&mut self, pid: Pid, burst: &Burst) -> Result<usize> {
        let frames = self.0.iter_mut().zip(&burst.lengths);
        let mut local: Vec<_> =
            frames.map(|(frame, length)| IoSliceMut::new(&mut frame[..*length])).collect();
        Ok(read_vectored(pid, &mut local, &burst.remote)?)
    }

    /// Copies a burst into a program; answers its bytes.
    fn write(&self, pid: Pid, burst: &Burst) -> Result<usize> {
        let frames = self.0.iter().zip(&burst.lengths);
        let mut local: Vec<_> =
            frames.map(|(frame, length)| IoSlice::new(&frame[..*length])).collect();
        Ok(write_vectored(pid, &mut local, &burst.remote)?)
    }
}

/// A program with registered memory, which ends with this one.
struct Holder {
    child: Child,
    address: usize,
}

impl Holder {
    fn start(device: &str, bytes: usize) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["hold", "--bytes", &bytes.to_string(), "--from", device]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("its output")?).read_line(&mut line)?;
        let address = line.trim().parse();
        let address = address.with_context(|| format!("the holder on {device} says {line:?}"))?;
        Ok(Self { child, address })
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // Its input ends, and so does it.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: usize = 1 << 20;

    fn copies(size: usize, buffers: usize) -> Copies {
        Copies { size, buffers, apart: false, time: Duration::ZERO }
    }

    /// The shape of each burst: its frames, its ranges, and its bytes.
    fn shapes(size: usize, buffers: usize) -> Vec<(usize, usize, usize)> {
        let shape = |burst: &Burst| {
            let bytes = burst.remote.iter().map(|range| range.len).sum();
            assert_eq!(burst.lengths.iter().sum::<usize>(), bytes);
            (burst.lengths.len(), burst.remote.len(), bytes)
        };
        bursts(&copies(size, buffers), START).iter().map(shape).collect()
    }

    #[test]
    fn a_burst_is_of_as_many_frames_as_a_cards() {
        assert_eq!(shapes(64, 1), [(128, 2, 8192)], "twice around a page");
        assert_eq!(shapes(65_536, 1), [(128, 8, 512 << 10)], "eight messages from one buffer");
        assert_eq!(shapes(1 << 20, 1), [(128, 1, 512 << 10); 2]);
        let many = shapes(65_536, 500);
        assert_eq!((many.len(), many[0]), (63, (128, 1, 512 << 10)));
    }

    #[test]
    fn every_byte_of_every_buffer_is_copied_and_none_beside_them() {
        for (size, buffers) in [(64, 1), (100, 3), (4096, 2), (5000, 7), (65_536, 20)] {
            let copies = copies(size, buffers);
            let mut touched = vec![false; copies.bytes() / 2];
            for burst in bursts(&copies, START) {
                for RemoteRange { base, len } in burst.remote {
                    touched[base - START..][..len].fill(true);
                }
            }
            let place = |at: usize| at % copies.stride();
            let lies = |at: usize| {
                let step = size.next_multiple_of(64);
                let message = place(at) / step * step;
                place(at) - message < size && message + size <= copies.stride()
            };
            let wrong = (0..touched.len()).find(|at| touched[*at] != lies(*at));
            assert_eq!(wrong, None, "{size} bytes, {buffers} buffers");
        }
    }
}
