//! The command `balboa capture`: frames at the port of a running card, as a pcapng file.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::geteuid;
use shim_abi::Request;
use terminal::file::open_anew;

use crate::args;
use crate::client::ToolClient;

/// The error of opening a FIFO without a reader.
const ENXIO: i32 = Errno::ENXIO as i32;
/// How long the rest of a capture may take once it is ended.
const PATIENCE: Duration = Duration::from_secs(5);

/// Captures until it is told to end.
///
/// # Errors
/// When there is no such balboad or card, it refuses, or the file cannot be written.
pub fn capture(arguments: &args::Capture) -> anyhow::Result<()> {
    let args::Capture { state_dir, card, output, qp, address, snap, ring, seconds, count } =
        arguments;
    // Before anything is captured: a signal ends it in order from the beginning.
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        signals.add(signal);
    }
    signals.thread_block().context("blocking signals")?;
    let signals = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC).context("signalfd")?;
    let dir = shim_abi::state_dir(state_dir.path(), geteuid().as_raw());
    let mut client = ToolClient::connect(&dir, Duration::ZERO)?;
    // Before anything is captured: a refusal here costs the card nothing.
    let sink = Sink::open(output)?;
    let mut source = client.capture(&Request::Capture {
        card: card.0,
        qpns: qp.clone(),
        address: address.map(args::Address::gid),
        snap: *snap,
        ring: ring.saturating_mul(1 << 20),
    })?;
    let mut tally = BlockCounts::default();
    let mut deadline = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut ended = false;
    let mut bytes = vec![0; 64 << 10];
    loop {
        let is_over = deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if is_over && ended {
            bail!("balboad does not end the capture: its frames are in {}", output.display());
        }
        let enough = count.is_some_and(|count| tally.frames >= count);
        if !ended {
            let ends = match is_over || enough {
                true => true,
                false => {
                    match wait(PollFd::new(source.as_fd(), PollFlags::POLLIN), &signals, deadline)?
                    {
                        Woken::Signal => true,
                        Woken::Time => continue,
                        Woken::Ready => false,
                    }
                }
            };
            if ends {
                client.end_capture(card.0)?;
                (ended, deadline) = (true, Some(Instant::now() + PATIENCE));
                source.set_read_timeout(Some(PATIENCE))?;
            }
        }
        match source.read(&mut bytes) {
            Ok(0) => break,
            Ok(length) => {
                let came = bytes.get(..length).unwrap_or_default();
                tally.take(came).map_err(anyhow::Error::msg)?;
                let written = sink.write(came, &signals, deadline);
                match written.with_context(|| output.display().to_string())? {
                    Written::All => {}
                    // The reader of the output has left, and needs no more.
                    Written::Unwanted => return Ok(()),
                    Written::GivenUp => {
                        bail!(
                            "{}: its reader takes nothing: the capture is cut short",
                            output.display()
                        )
                    }
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock && ended => {}
            Err(error) => return Err(error).context("the capture's socket"),
        }
    }
    // Not on standard output, which may be the capture.
    let _ = writeln!(io::stderr(), "{}", tally.told());
    if !ended {
        bail!("balboad ended the capture: it, or {card}, is gone");
    }
    Ok(())
}

/// The reason why the thread woke.
#[derive(PartialEq, Eq)]
enum Woken {
    /// Bytes came, or there is room.
    Ready,
    /// The user wants it to end.
    Signal,
    /// Time has passed.
    Time,
}

fn wait(
    source: PollFd<'_>,
    signals: &SignalFd,
    deadline: Option<Instant>,
) -> anyhow::Result<Woken> {
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    // Longer ones are waited for again.
    let left = left.map_or(PollTimeout::NONE, |left| {
        PollTimeout::try_from(left.saturating_add(Duration::from_millis(1)))
            .unwrap_or(PollTimeout::MAX)
    });
    let mut fds = [source, PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, left).context("poll")?;
    let [of_source, of_signals] = fds.map(|fd| fd.any().unwrap_or(false));
    if of_signals {
        // A second signal ends the work that goes on after this one.
        signals.read_signal().context("signalfd")?;
    }
    Ok(match (of_signals, of_source) {
        (true, _) => Woken::Signal,
        (false, true) => Woken::Ready,
        (false, false) => Woken::Time,
    })
}

/// Where a capture goes: a file of the user's own, or standard output.
enum Sink {
    File(File),
    Output,
}

/// The fate of bytes that were to be written.
#[derive(Debug, PartialEq, Eq)]
enum Written {
    All,
    /// The reader is gone.
    Unwanted,
    /// The user wanted an end, or time was over, while there was no room for them.
    GivenUp,
}

impl Sink {
    /// Bytes for which a pipe has room when it says that it has some.
    const PIECE: usize = 4096;

    /// Opens a file to be written anew, or takes standard output for `-`. Frames carry the memory of programs, so
    /// that it is the user's alone, as `balboad --pcap` has it.
    fn open(path: &Path) -> anyhow::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::Output);
        }
        let nobody = |error: io::Error| match error.raw_os_error() {
            Some(ENXIO) => io::Error::other("nobody reads this FIFO; start its reader first"),
            _ => error,
        };
        let file = open_anew(path, geteuid().as_raw()).map_err(nobody);
        Ok(Self::File(file.with_context(|| path.display().to_string())?))
    }

    /// Writes it all. Where a reader takes nothing, it is waited for until a signal comes or time is over.
    fn write(
        &self,
        mut bytes: &[u8],
        signals: &SignalFd,
        deadline: Option<Instant>,
    ) -> anyhow::Result<Written> {
        while !bytes.is_empty() {
            let out = io::stdout();
            let fd = match self {
                Self::File(file) => file.as_fd(),
                Self::Output => out.as_fd(),
            };
            match wait(PollFd::new(fd, PollFlags::POLLOUT), signals, deadline)? {
                Woken::Ready => {}
                Woken::Signal => return Ok(Written::GivenUp),
                Woken::Time if deadline.is_some_and(|it| Instant::now() >= it) => {
                    return Ok(Written::GivenUp);
                }
                Woken::Time => continue,
            }
            let piece = bytes.get(..Self::PIECE).unwrap_or(bytes);
            match nix::unistd::write(fd, piece) {
                Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
                Err(Errno::EPIPE) => return Ok(Written::Unwanted),
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(Written::All)
    }
}

/// The bytes that came, counted by the blocks of the file.
#[derive(Default)]
struct BlockCounts {
    /// The beginning of a block whose rest is to come.
    begun: Vec<u8>,
    frames: u64,
    lost: u64,
}

impl BlockCounts {
    const PACKET: u32 = 6;
    const STATISTICS: u32 = 5;
    /// Bytes of the longest block that balboad writes, and more.
    const LONGEST: usize = 1 << 20;

    fn take(&mut self, bytes: &[u8]) -> Result<(), &'static str> {
        self.begun.extend_from_slice(bytes);
        let mut left = self.begun.as_slice();
        while let (Some(kind), Some(length)) = (word(left, 0), word(left, 4)) {
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            if !(12..=Self::LONGEST).contains(&length) {
                return Err("what balboad sent is no capture");
            }
            let Some((block, rest)) = left.split_at_checked(length) else { break };
            match kind {
                Self::PACKET => self.frames = self.frames.saturating_add(1),
                Self::STATISTICS => {
                    // Its second option: behind the head, the interface, the time, and the first one.
                    let lost = block.get(36..44).and_then(|it| it.try_into().ok());
                    self.lost = self.lost.saturating_add(lost.map_or(0, u64::from_ne_bytes));
                }
                _ => {}
            }
            left = rest;
        }
        self.begun = left.to_vec();
        Ok(())
    }

    fn told(&self) -> String {
        match self.lost {
            0 => format!("{} frames", self.frames),
            lost => format!(
                "{} frames, and {lost} lost: more came than was read; a larger --ring, a --qp or a --snap helps",
                self.frames
            ),
        }
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(kind: u32, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len()).unwrap() + 12;
        let head = [kind.to_ne_bytes(), length.to_ne_bytes()].concat();
        [&head[..], body, &length.to_ne_bytes()].concat()
    }

    #[test]
    fn frames_are_counted_wherever_the_bytes_are_cut() {
        let statistics =
            [[0; 12].as_slice(), &[0; 4], &9u64.to_ne_bytes(), &[0; 4], &3u64.to_ne_bytes()];
        let statistics =
            block(BlockCounts::STATISTICS, &[&statistics.concat()[..], &[0; 4]].concat());
        let whole = [block(6, &[1; 60]), block(1, &[0; 8]), block(6, &[2; 8]), statistics].concat();
        for cut in 0..whole.len() {
            let mut tally = BlockCounts::default();
            tally.take(&whole[..cut]).unwrap();
            tally.take(&whole[cut..]).unwrap();
            assert_eq!((tally.frames, tally.lost, tally.begun.len()), (2, 3, 0), "cut at {cut}");
        }
    }

    #[test]
    fn a_reader_that_takes_nothing_is_waited_for_until_a_signal_or_the_end_of_time() {
        let (reader, writer) = nix::unistd::pipe().unwrap();
        let sink = Sink::File(writer.into());
        let mut mask = SigSet::empty();
        mask.add(Signal::SIGUSR1);
        mask.thread_block().unwrap();
        let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC).unwrap();
        let write = |bytes: &[u8], deadline| sink.write(bytes, &signals, deadline).unwrap();
        assert_eq!(write(&[1; 10_000], None), Written::All);
        // Until it is full.
        let over = Some(Instant::now());
        while write(&[1; 10_000], over) == Written::All {}
        assert_eq!(write(&[1], over), Written::GivenUp);
        nix::sys::signal::raise(Signal::SIGUSR1).unwrap();
        assert_eq!(write(&[1], None), Written::GivenUp);
        drop(reader);
        assert_eq!(write(&[1], None), Written::Unwanted);
    }

    #[test]
    fn what_is_no_capture_is_told_and_not_collected() {
        assert!(BlockCounts::default().take(&[0; 64]).is_err());
        assert!(BlockCounts::default().take(&[0xff; 64]).is_err());
    }
}
