//! Writes captures: the pcapng file format, by hand, blocks whole.
//!
//! Blocks written are Section Header, Interface Description, Enhanced Packet and Interface Statistics
//! (pcapng specification, sections 4.1 to 4.3 and 4.6), in the machine's byte order, which the section header
//! tells readers. Timestamps are nanoseconds. Blocks are collected and written together, always
//! whole ones, so that a process that is killed leaves a file that can be read.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use nix::unistd::geteuid;
use terminal::file::open_anew;

/// Bytes collected before they are written.
const BUFFER_LIMIT: usize = 64 * 1024;

/// Nanoseconds after which collected bytes are written though there is room for more.
const FLUSH_AFTER_NS: u64 = 100_000_000;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const LINKTYPE_ETHERNET: u16 = 1;

const OPTION_INTERFACE_NAME: u16 = 2;
const OPTION_TIMESTAMP_RESOLUTION: u16 = 9;
const OPTION_PACKET_FLAGS: u16 = 2;
const OPTION_STATISTICS_RECEIVED: u16 = 4;
const OPTION_STATISTICS_DROPPED: u16 = 5;

/// The direction of a frame at its interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Received.
    Inbound,
    /// Sent.
    Outbound,
}

/// A capture file of several interfaces.
#[derive(Debug)]
pub struct Writer<W: Write = File> {
    /// `None` once writing has failed: a capture never stops a card.
    sink: Option<W>,
    buffer: Vec<u8>,
    /// When the oldest bytes in the buffer are to be written, on the caller's clock.
    due: Option<u64>,
    /// Unix time, in nanoseconds, of zero on the caller's clock.
    epoch: u64,
    lost: u64,
}

impl Writer<File> {
    /// Makes the file, with one interface for each name, numbered from 0.
    ///
    /// The caller's clock is taken to be about zero now. A file or FIFO of the user's own that exists is
    /// written anew; links are not followed, and nothing of another user's is written to, for frames
    /// carry the memory of programs.
    ///
    /// # Errors
    /// Those of making and writing a file, [`io::ErrorKind::PermissionDenied`] with a sentence where
    /// something else is there.
    pub fn create<'a>(path: &Path, names: impl IntoIterator<Item = &'a str>) -> io::Result<Self> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let epoch = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        // A FIFO without a reader is refused, and a full one ends the capture: no reader makes the card wait.
        Self::new(open_anew(path, geteuid().as_raw())?, epoch, names)
    }
}

impl<W: Write> Writer<W> {
    /// Begins a capture whose caller's clock was zero at Unix time `epoch`, in nanoseconds.
    ///
    /// # Errors
    /// Those of the sink.
    pub fn new<'a>(
        mut sink: W,
        epoch: u64,
        names: impl IntoIterator<Item = &'a str>,
    ) -> io::Result<Self> {
        let mut buffer = Vec::new();
        begin(&mut buffer, names, 0);
        sink.write_all(&buffer)?;
        sink.flush()?;
        buffer.clear();
        Ok(Self { sink: Some(sink), buffer, due: None, epoch, lost: 0 })
    }

    /// Adds one frame as seen by an interface at `now` of the caller's clock.
    pub fn packet(&mut self, interface: u32, direction: Direction, now: u64, frame: &[u8]) {
        if self.sink.is_none() {
            self.lost = self.lost.saturating_add(1);
            return;
        }
        let time = self.epoch.saturating_add(now);
        append(&mut self.buffer, interface, direction, time, frame, frame.len());
        self.due.get_or_insert(now.saturating_add(FLUSH_AFTER_NS));
    }

    /// A place in the collected bytes, to go back to with [`Self::forget_after`].
    ///
    /// Valid until the next [`Self::write_due`] or [`Self::flush`].
    pub fn mark(&self) -> usize {
        self.buffer.len()
    }

    /// Takes back the frames added since a mark.
    pub fn forget_after(&mut self, mark: usize) {
        self.buffer.truncate(mark);
        if self.buffer.is_empty() {
            self.due = None;
        }
    }

    /// When [`Self::write_due`] has bytes to write by itself.
    pub fn next_timeout(&self) -> Option<u64> {
        self.due
    }

    /// Writes collected bytes if they are many or old.
    pub fn write_due(&mut self, now: u64) {
        if self.buffer.len() >= BUFFER_LIMIT || self.due.is_some_and(|due| due <= now) {
            self.flush();
        }
    }

    /// Writes the collected bytes.
    pub fn flush(&mut self) {
        let Some(sink) = &mut self.sink else { return };
        if let Err(error) = sink.write_all(&self.buffer).and_then(|()| sink.flush()) {
            log::error!("the capture ends here, its file cannot be written: {error}");
            self.sink = None;
        }
        self.buffer.clear();
        self.due = None;
    }

    /// Frames that are missing because the file could not be written.
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

impl<W: Write> Drop for Writer<W> {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Begins a section with an interface for each name, which keeps `snap` bytes of a packet at most; 0 for all.
pub(crate) fn begin<'a>(buffer: &mut Vec<u8>, names: impl IntoIterator<Item = &'a str>, snap: u32) {
    block(buffer, SECTION_HEADER, |body| {
        body.extend(BYTE_ORDER_MAGIC.to_ne_bytes());
        body.extend(1u16.to_ne_bytes());
        body.extend(0u16.to_ne_bytes());
        // The length of the section is not known.
        body.extend(u64::MAX.to_ne_bytes());
    });
    for name in names {
        block(buffer, INTERFACE_DESCRIPTION, |body| {
            body.extend(LINKTYPE_ETHERNET.to_ne_bytes());
            body.extend(0u16.to_ne_bytes());
            body.extend(snap.to_ne_bytes());
            option(body, OPTION_INTERFACE_NAME, name.as_bytes());
            // Ten to the minus nine seconds.
            option(body, OPTION_TIMESTAMP_RESOLUTION, &[9]);
            option(body, 0, &[]);
        });
    }
}

/// Appends a frame as seen by an interface at a Unix time in nanoseconds, `keep` bytes of it at most.
pub(crate) fn append(
    buffer: &mut Vec<u8>,
    interface: u32,
    direction: Direction,
    time: u64,
    frame: &[u8],
    keep: usize,
) {
    let kept = frame.get(..keep).unwrap_or(frame);
    let (Ok(length), Ok(kept_length)) = (u32::try_from(frame.len()), u32::try_from(kept.len()))
    else {
        return;
    };
    let flags: u32 = match direction {
        Direction::Inbound => 1,
        Direction::Outbound => 2,
    };
    block(buffer, ENHANCED_PACKET, |body| {
        body.extend(interface.to_ne_bytes());
        body.extend(((time >> 32) as u32).to_ne_bytes());
        body.extend((time as u32).to_ne_bytes());
        body.extend(kept_length.to_ne_bytes());
        body.extend(length.to_ne_bytes());
        body.extend(kept);
        pad(body);
        option(body, OPTION_PACKET_FLAGS, &flags.to_ne_bytes());
        option(body, 0, &[]);
    });
}

/// Appends how many frames an interface has seen, and how many of them are missing.
pub(crate) fn append_statistics(
    buffer: &mut Vec<u8>,
    interface: u32,
    time: u64,
    seen: u64,
    lost: u64,
) {
    block(buffer, INTERFACE_STATISTICS, |body| {
        body.extend(interface.to_ne_bytes());
        body.extend(((time >> 32) as u32).to_ne_bytes());
        body.extend((time as u32).to_ne_bytes());
        option(body, OPTION_STATISTICS_RECEIVED, &seen.to_ne_bytes());
        option(body, OPTION_STATISTICS_DROPPED, &lost.to_ne_bytes());
        option(body, 0, &[]);
    });
}

/// Appends a block: type, length, body, length once more.
fn block(buffer: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = buffer.len();
    buffer.extend(kind.to_ne_bytes());
    buffer.extend([0; 4]);
    body(buffer);
    // Bodies are a multiple of four bytes: every part of them is, or is padded.
    let length = buffer.len().saturating_sub(start).saturating_add(4);
    let length = u32::try_from(length).unwrap_or(u32::MAX).to_ne_bytes();
    if let Some(place) = buffer.get_mut(start..).and_then(|block| block.get_mut(4..8)) {
        place.copy_from_slice(&length);
    }
    buffer.extend(length);
}

/// Appends an option: code, length, value, pad.
fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = value.get(..value.len().min(1024)).unwrap_or_default();
    body.extend(code.to_ne_bytes());
    body.extend((value.len() as u16).to_ne_bytes());
    body.extend(value);
    pad(body);
}

/// Fills up to a multiple of four bytes.
fn pad(body: &mut Vec<u8>) {
    body.resize(body.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Type and body of each block, after checking that both lengths agree.
    fn blocks(mut bytes: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let word =
            |bytes: &[u8], at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        let mut blocks = Vec::new();
        while !bytes.is_empty() {
            let length = word(bytes, 4) as usize;
            assert_eq!(length % 4, 0);
            assert_eq!(word(bytes, length - 4) as usize, length);
            blocks.push((word(bytes, 0), bytes[8..length - 4].to_vec()));
            bytes = &bytes[length..];
        }
        blocks
    }

    #[test]
    fn a_file_begins_with_its_section_and_interfaces() {
        let mut file = Vec::new();
        drop(Writer::new(&mut file, 0, ["card0", "card1"]).unwrap());
        let blocks = blocks(&file);
        let kinds: Vec<u32> = blocks.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, [SECTION_HEADER, INTERFACE_DESCRIPTION, INTERFACE_DESCRIPTION]);
        assert!(blocks[2].1.windows(5).any(|name| name == b"card1"));
    }

    #[test]
    fn a_packet_carries_time_lengths_direction_and_pad() {
        let mut file = Vec::new();
        let mut writer = Writer::new(&mut file, 5 << 32, ["port"]).unwrap();
        writer.packet(0, Direction::Outbound, 7, &[0xaa; 61]);
        drop(writer);
        let (kind, body) = blocks(&file).pop().unwrap();
        assert_eq!(kind, ENHANCED_PACKET);
        let words: Vec<u32> =
            body.chunks(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())).collect();
        assert_eq!(words[..5], [0, 5, 7, 61, 61]);
        assert_eq!(&body[20..81], &[0xaa; 61]);
        assert_eq!(words[words.len() - 2], 2);
    }

    #[test]
    fn frames_that_were_not_sent_after_all_can_be_taken_back() {
        let mut file = Vec::new();
        let mut writer = Writer::new(&mut file, 0, ["port"]).unwrap();
        writer.packet(0, Direction::Outbound, 0, &[1; 60]);
        let mark = writer.mark();
        writer.packet(0, Direction::Outbound, 0, &[2; 60]);
        writer.forget_after(mark);
        assert_eq!(writer.next_timeout(), Some(FLUSH_AFTER_NS));
        writer.forget_after(0);
        assert_eq!(writer.next_timeout(), None);
        drop(writer);
        assert_eq!(blocks(&file).len(), 2);
    }

    #[test]
    fn collected_frames_are_written_when_old_or_many() {
        let mut file = Vec::new();
        let mut writer = Writer::new(&mut file, 0, ["port"]).unwrap();
        writer.packet(0, Direction::Inbound, 1000, &[1; 60]);
        assert_eq!(writer.next_timeout(), Some(1000 + FLUSH_AFTER_NS));
        writer.write_due(1000);
        assert_ne!(writer.mark(), 0);
        writer.write_due(1000 + FLUSH_AFTER_NS);
        assert_eq!((writer.mark(), writer.next_timeout()), (0, None));
        for _ in 0..BUFFER_LIMIT / 1000 {
            writer.packet(0, Direction::Inbound, 0, &[1; 1000]);
        }
        writer.write_due(0);
        assert_eq!(writer.mark(), 0);
    }

    #[test]
    fn a_file_is_its_owners_and_no_reader_of_a_fifo_is_waited_for() {
        use std::os::unix::fs::PermissionsExt as _;

        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        Writer::create(&file, ["port"]).unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);

        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
        let nobody = Writer::create(&fifo, ["port"]).unwrap_err();
        assert_eq!(nobody.raw_os_error(), Some(nix::errno::Errno::ENXIO as i32));
        let _reader = File::options().read(true).write(true).open(&fifo).unwrap();
        let mut writer = Writer::create(&fifo, ["port"]).unwrap();
        while writer.lost() == 0 {
            writer.packet(0, Direction::Inbound, 0, &[1; 1000]);
            writer.flush();
        }
    }

    #[test]
    fn a_full_disk_ends_the_capture_and_not_the_card() {
        struct Full(u32);
        impl Write for Full {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0 = self.0.checked_sub(1).ok_or(io::ErrorKind::StorageFull)?;
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut writer = Writer::new(Full(1), 0, ["port"]).unwrap();
        writer.packet(0, Direction::Inbound, 0, &[1; 60]);
        writer.flush();
        writer.packet(0, Direction::Inbound, 0, &[1; 60]);
        assert_eq!((writer.lost(), writer.mark()), (1, 0));
    }
}
