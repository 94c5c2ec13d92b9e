//! Bitstreams of UltraScale+ devices: `.bit` files, which have a header, and `.bin` files, which are
//! the configuration packets alone.
//!
//! (Sources: UG570, chapter "Configuration Details", for words, packets, registers and commands; the
//! header as open programmers read it; UG909, "Downloading a Partial BIT File", for the parts that
//! a partial bitstream lacks.)

use crate::bytes::{array, be16, be32};
use crate::part::{self, Part};

/// How a `.bit` file begins: the length of a field, and the field.
const PREAMBLE: [u8; 13] = [0, 9, 0x0f, 0xf0, 0x0f, 0xf0, 0x0f, 0xf0, 0x0f, 0xf0, 0, 0, 1];
/// The word behind which packets begin.
pub(crate) const SYNC: u32 = 0xaa99_5566;
/// Bytes within which the first packet begins: padding and the words that detect a bus's width.
const MAX_PADDING: usize = 64 << 10;
/// Bytes of the longest text in a header.
const MAX_TEXT: usize = 4096;

/// Registers that packets write.
pub(crate) mod register {
    pub const CRC: u32 = 0;
    pub const FAR: u32 = 1;
    pub const FDRI: u32 = 2;
    pub const CMD: u32 = 4;
    pub const COR0: u32 = 9;
    pub const IDCODE: u32 = 12;
}

/// Values of the command register.
pub(crate) mod command {
    pub const WCFG: u32 = 1;
    pub const START: u32 = 5;
    pub const RCRC: u32 = 7;
    pub const DESYNC: u32 = 13;
    pub const IPROG: u32 = 15;
    pub const BSPI_READ: u32 = 18;
}

/// A bitstream's attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bitstream {
    /// The header; `None` for a `.bin` file.
    pub header: Option<Header>,
    /// The value that it writes to IDCODE first, and that a device compares with its own.
    pub idcode: u32,
    /// Values it writes to CRC, which the device compares with its own sum. Their values are not
    /// computed here.
    pub crc_words: u32,
    /// Whether it configures a whole device.
    pub scope: Coverage,
    /// Packets, those for the device's further dies counted as one.
    pub packets: u64,
    /// Bytes of configuration frames in them, those for further dies left out.
    pub frame_bytes: u64,
}

/// The header of a `.bit` file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Field a: the design's name, and the properties that the tool adds, by semicolons.
    pub design: String,
    /// Field b: the part number.
    pub part: String,
    /// Field c: the day it was made.
    pub date: String,
    /// Field d: the time of the day.
    pub time: String,
    /// Field e: bytes of packets behind the header.
    pub length: u32,
}

/// Whether a bitstream configures a whole device.
///
/// Decided by, in this order: a header with `PARTIAL=TRUE` in field a is partial; packets that write
/// the start-up options (COR0) and give the command START are full; all others are partial, for a
/// partial bitstream has no start-up sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coverage {
    /// A whole device.
    Full,
    /// A part of one: a shell, or a vFPGA.
    Partial,
}

impl Bitstream {
    /// Whether these are the first bytes of a `.bit` file.
    #[must_use]
    pub fn begins_bit(bytes: &[u8]) -> bool {
        bytes.starts_with(&PREAMBLE)
    }

    /// Parses a `.bit` file.
    ///
    /// # Errors
    /// The fault, and the expected value.
    pub fn parse_bit(bytes: &[u8]) -> Result<Self, String> {
        let (header, at) = Header::parse(bytes)?;
        let packets = bytes.get(at..).unwrap_or_default();
        let length = usize::try_from(header.length).unwrap_or(usize::MAX);
        if packets.len() < length {
            let there = packets.len();
            return Err(format!(
                "it is truncated: its header says {length} bytes of packets, and there are {there}; copy it again"
            ));
        }
        if packets.len() > length {
            let more = packets.len().saturating_sub(length);
            return Err(format!(
                "there are {more} bytes behind the {length} that its header says; copy it again"
            ));
        }
        Self::parse_packets(packets, Some(header))
    }

    /// Parses a `.bin` file.
    ///
    /// # Errors
    /// The fault, and the expected value.
    pub fn parse_bin(bytes: &[u8]) -> Result<Self, String> {
        Self::parse_packets(bytes, None)
    }

    /// The parts that it is for: one by its header's part number, else all that have its IDCODE.
    #[must_use]
    pub fn parts(&self) -> Vec<&'static Part> {
        match &self.header {
            Some(header) => part::of_number(&header.part).into_iter().collect(),
            None => part::of_idcode(self.idcode).collect(),
        }
    }

    fn parse_packets(bytes: &[u8], header: Option<Header>) -> Result<Self, String> {
        let mut walk = Walk { bytes, at: first_sync(bytes)?, ..Walk::default() };
        walk.run()?;
        let idcode = walk.idcode.ok_or("no packet writes IDCODE, so it is for no device")?;
        let part = header.as_ref().and_then(|header| part::of_number(&header.part));
        let wanted = part.and_then(|part| Some((part.name, part.idcode?)));
        if let Some((name, wanted)) = wanted.filter(|it| !part::same_device(it.1, idcode)) {
            return Err(format!(
                "its header says {name}, whose IDCODE is {wanted:#010x}, and its packets {idcode:#010x}; build it again"
            ));
        }
        let told = header.as_ref().is_some_and(Header::says_partial);
        let full = walk.options && walk.starts && !told;
        if let Some((at, command)) = walk.reboots.filter(|_| !full) {
            return Err(format!(
                "the packet at byte {at} gives the command {command}, by which a device configures itself anew; no shell and no vFPGA has it"
            ));
        }
        Ok(Self {
            header,
            idcode,
            crc_words: walk.crc_words,
            scope: if full { Coverage::Full } else { Coverage::Partial },
            packets: walk.packets,
            frame_bytes: walk.frame_bytes,
        })
    }
}

impl Header {
    /// The header, and the offset of the bytes behind it.
    fn parse(bytes: &[u8]) -> Result<(Self, usize), String> {
        if !Bitstream::begins_bit(bytes) {
            return Err("it does not begin as a .bit file".into());
        }
        let mut at = PREAMBLE.len();
        let mut text = |key: u8| -> Result<String, String> {
            let name = char::from(key);
            let cut = || format!("it ends within field {name} of its header; copy it again");
            let [found] = array(bytes, at).ok_or_else(cut)?;
            if found != key {
                return Err(format!("byte {at} is {found:#04x}, where field {name} is to begin"));
            }
            let length = usize::from(be16(bytes, at.saturating_add(1)).ok_or_else(cut)?);
            if length > MAX_TEXT {
                return Err(format!("field {name} has {length} bytes; {MAX_TEXT} are the most"));
            }
            let start = at.saturating_add(3);
            at = start.saturating_add(length);
            let raw = bytes.get(start..at).ok_or_else(cut)?;
            let raw = raw.strip_suffix(&[0]).unwrap_or(raw);
            match std::str::from_utf8(raw) {
                Ok(text) if !text.contains(char::is_control) => Ok(text.to_owned()),
                _ => Err(format!("field {name} of its header is no line of text")),
            }
        };
        let (design, part, date, time) = (text(b'a')?, text(b'b')?, text(b'c')?, text(b'd')?);
        let cut = "it ends within field e of its header; copy it again";
        if array(bytes, at) != Some([b'e']) {
            return Err(format!("byte {at} is not the beginning of field e, the length"));
        }
        let length = be32(bytes, at.saturating_add(1)).ok_or(cut)?;
        Ok((Self { design, part, date, time, length }, at.saturating_add(5)))
    }

    /// Whether the tool says that the bitstream is partial.
    #[must_use]
    pub fn says_partial(&self) -> bool {
        self.design.split(';').any(|word| word.eq_ignore_ascii_case("PARTIAL=TRUE"))
    }
}

/// Where the first packet begins.
fn first_sync(bytes: &[u8]) -> Result<usize, String> {
    let head = bytes.get(..MAX_PADDING).unwrap_or(bytes);
    let find = |word: u32| head.windows(4).position(|it| it == word.to_be_bytes());
    if let Some(at) = find(SYNC) {
        return Ok(at.saturating_add(4));
    }
    let each_reversed = u32::from_be_bytes(SYNC.to_be_bytes().map(u8::reverse_bits));
    for (word, how) in [
        (SYNC.swap_bytes(), "the bytes of each word of 32 bits are swapped"),
        (SYNC.rotate_left(16), "the halves of each word are swapped"),
        (SYNC.swap_bytes().rotate_left(16), "the bytes of each word of 16 bits are swapped"),
        (each_reversed, "the bits of each byte are reversed"),
    ] {
        if find(word).is_some() {
            return Err(format!(
                "{how}, as for some flash memories; write it without swapping (write_bitstream -bin_file)"
            ));
        }
    }
    Err(format!("no sync word {SYNC:#x} is in its first {MAX_PADDING} bytes"))
}

/// The head of a packet.
pub(crate) struct Packet {
    /// It is of type 1, which one of type 2 may follow.
    pub(crate) is_first: bool,
    pub(crate) writes: bool,
    /// It carries nothing, and is for nothing.
    is_nop: bool,
    pub(crate) register: u32,
    /// Words behind it.
    pub(crate) words: u32,
}

impl Packet {
    /// The head of a packet of type 1 that writes so many words to a register.
    pub(crate) fn write(register: u32, words: u32) -> u32 {
        1 << 29 | 2 << 27 | register << 13 | words
    }

    /// The head of one of type 2, which writes so many words to the same register.
    pub(crate) fn more(words: u32) -> u32 {
        2 << 29 | 2 << 27 | words
    }

    /// The packet of a head; `None` for an unknown type, and for one of type 2 that follows none of type 1.
    pub(crate) fn decode(head: u32, before: Option<u32>) -> Option<Self> {
        let (is_first, register, words) = match head >> 29 {
            1 => (true, (head >> 13) & 0x3fff, head & 0x7ff),
            2 => (false, before?, head & 0x07ff_ffff),
            _ => return None,
        };
        let operation = (head >> 27) & 3;
        let (writes, is_nop) = (operation == 2, operation == 0);
        Some(Self { is_first, writes, is_nop, register, words })
    }
}

/// Most words of a file that are read: enough for any bitstream, and a short wait for the user.
const MAX_LOOKS: u32 = 8 << 20;

/// A walk along the packets.
#[derive(Default)]
struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
    idcode: Option<u32>,
    crc_words: u32,
    options: bool,
    starts: bool,
    /// Where the first command is that has the whole device configured anew.
    reboots: Option<(usize, u32)>,
    packets: u64,
    frame_bytes: u64,
    ended: bool,
    looks: u32,
}

impl Walk<'_> {
    fn run(&mut self) -> Result<(), String> {
        let mut register = None;
        while self.at < self.bytes.len() {
            let here = self.at;
            let Some(word) = be32(self.bytes, here) else {
                let more = self.bytes.len().saturating_sub(here);
                return Err(format!("it ends with {more} bytes that are no word; copy it again"));
            };
            self.at = here.saturating_add(4);
            self.looks = self.looks.saturating_add(1);
            if self.looks > MAX_LOOKS {
                return Err(format!("it has more than {MAX_LOOKS} packets, as no bitstream has"));
            }
            if self.ended {
                match word {
                    SYNC => self.ended = false,
                    // No operation, padding, and the pattern for the detection of a bus's width.
                    0x2000_0000 | 0xffff_ffff | 0 | 0x0000_00bb | 0x1122_0044 => {}
                    _ => {
                        return Err(format!(
                            "{word:#010x} at byte {here} of its packets is behind their end; copy it again"
                        ));
                    }
                }
                register = None;
                continue;
            }
            let packet = Packet::decode(word, register).ok_or_else(|| match word >> 29 {
                2 => format!("packet of type 2 at byte {here} follows none"),
                kind => format!("{word:#010x} at byte {here} is a packet of type {kind}"),
            })?;
            register = packet.is_first.then_some(packet.register);
            self.packets = self.packets.saturating_add(1);
            if !packet.is_nop {
                self.payload(here, packet.writes, packet.register, packet.words)?;
            }
        }
        if self.ended {
            Ok(())
        } else {
            Err("it is truncated: the command DESYNC, its end, is missing; copy it again".into())
        }
    }

    /// Takes the payload of a packet.
    fn payload(&mut self, here: usize, write: bool, target: u32, words: u32) -> Result<(), String> {
        if !write {
            return Ok(());
        }
        let first = be32(self.bytes, self.at).filter(|_| words > 0);
        let length = usize::try_from(u64::from(words).saturating_mul(4)).unwrap_or(usize::MAX);
        let end = self.at.saturating_add(length);
        if end > self.bytes.len() {
            return Err(format!(
                "it is truncated: the packet at byte {here} has {words} words, which are not all there; copy it again"
            ));
        }
        let words = self.bytes.get(self.at..end).unwrap_or_default();
        self.at = end;
        if target == register::CMD && self.reboots.is_none() {
            let mut commands = words.chunks_exact(4).filter_map(|word| be32(word, 0));
            let is_one = |it: &u32| [command::IPROG, command::BSPI_READ].contains(&(it & 0x1f));
            self.reboots = commands.find(is_one).map(|it| (here, it));
        }
        match (target, first) {
            (register::CRC, Some(_)) => self.crc_words = self.crc_words.saturating_add(1),
            // The payload of register 30 is skipped: it holds the bitstreams of further dies.
            (register::FDRI, _) => {
                self.frame_bytes = self.frame_bytes.saturating_add(length as u64);
            }
            (register::IDCODE, Some(idcode)) => self.idcode = self.idcode.or(Some(idcode)),
            (register::COR0, Some(_)) => self.options = true,
            (register::CMD, Some(command::START)) => self.starts = true,
            (register::CMD, Some(command::DESYNC)) => self.ended = true,
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "bitstream/tests.rs"]
mod tests;
