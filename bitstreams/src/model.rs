//! Bitstreams of software cards that play FPGAs: made, and taken as configuration logic takes them.
//!
//! Their packets are a device's: sync word, IDCODE, frames, CRC, DESYNC. Their frames are the model's alone: in place of
//! configuration memory they hold the image of a software card ([`crate::soft`]). The part that they are for has an
//! IDCODE that no device has ([`part::MODEL`]), so that a real one would refuse them.
//!
//! (The CRC: as open programmers of 7-series devices compute it, CRC-32C over each word and the register it is written to.
//! It was not compared with files of a vendor's tool for UltraScale+ devices, and nothing but the model goes by it.)

use crate::bitstream::{Packet, SYNC, command, register};
use crate::bytes::be32;
use crate::part::{self, Part};
use crate::soft::{Reader, SoftImage};

/// The polynomial of CRC-32C, lowest bit first.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// No operation.
const NOP: u32 = 0x2000_0000;
/// Bytes of a word.
const WORD: usize = 4;

/// The sum that the register CRC is compared with.
#[derive(Clone, Debug)]
struct Crc {
    table: [u32; 256],
    sum: u32,
}

impl Default for Crc {
    fn default() -> Self {
        let entry = |byte: u32| {
            (0..8).fold(byte, |sum, _| (sum >> 1) ^ if sum & 1 == 1 { POLYNOMIAL } else { 0 })
        };
        let mut byte = 0..256;
        Self { table: std::array::from_fn(|_| byte.next().map_or(0, entry)), sum: 0 }
    }
}

impl Crc {
    /// Takes a word on its way into a register.
    fn add(&mut self, register: u32, word: u32) {
        for byte in word.to_le_bytes() {
            let [lowest, ..] = self.sum.to_le_bytes();
            let entry = self.table.get(usize::from(lowest ^ byte)).copied().unwrap_or_default();
            self.sum = (self.sum >> 8) ^ entry;
        }
        // The register's number has 5 bits.
        let mut bits = register;
        for _ in 0..5 {
            let is_one = (bits ^ self.sum) & 1 == 1;
            self.sum = (self.sum >> 1) ^ if is_one { POLYNOMIAL } else { 0 };
            bits >>= 1;
        }
    }
}

/// The partial bitstream of a shell that stands for an image of a whole software card.
///
/// # Errors
/// The fault of the image.
pub fn make(image: &SoftImage) -> Result<Vec<u8>, String> {
    if image.alone().is_some() {
        return Err("it is of one vFPGA alone, and a shell's bitstream has all of them".into());
    }
    let bytes = image.to_bytes().len();
    let whole = u32::try_from(bytes.next_multiple_of(WORD)).unwrap_or(u32::MAX);
    let frames = image.clone().filled_to(whole)?.to_bytes();
    let mut crc = Crc::default();
    let mut words = vec![u32::MAX; 8];
    words.extend([0x0000_00bb, 0x1122_0044, u32::MAX, SYNC, NOP]);
    let mut write = |words: &mut Vec<u32>, register: u32, word: u32| {
        words.extend([Packet::write(register, 1), word]);
        crc.add(register, word);
        if (register, word) == (register::CMD, command::RCRC) {
            crc.sum = 0;
        }
    };
    write(&mut words, register::CMD, command::RCRC);
    write(&mut words, register::IDCODE, part::MODEL.idcode.unwrap_or_default());
    write(&mut words, register::CMD, command::WCFG);
    write(&mut words, register::FAR, 0);
    let count = u32::try_from(frames.len() / WORD).unwrap_or(u32::MAX);
    words.extend([Packet::write(register::FDRI, 0), Packet::more(count)]);
    for frame in frames.chunks_exact(WORD) {
        let word = be32(frame, 0).unwrap_or_default();
        words.push(word);
        crc.add(register::FDRI, word);
    }
    words.extend([Packet::write(register::CRC, 1), crc.sum]);
    words.extend([Packet::write(register::CMD, 1), command::DESYNC]);
    words.extend([NOP; 16]);
    Ok(words.into_iter().flat_map(u32::to_be_bytes).collect())
}

/// The image that a bitstream of [`make`] stands for.
#[must_use]
pub fn image_of(bitstream: &[u8]) -> Option<SoftImage> {
    let mut logic = Configuration::new(&part::MODEL);
    logic.feed(bitstream);
    logic.finish()
}

/// The configuration logic of a device, as far as a partial bitstream of a shell needs it.
///
/// An IDCODE of another device stops it before any frame is written, and a wrong CRC where it stands; until the next
/// bitstream begins it then takes nothing. (How a real one takes a bitstream behind one that broke off
/// within a packet was not tried: here each begins anew.)
#[derive(Clone, Debug)]
pub struct Configuration {
    part: &'static Part,
    /// Bytes of a word that is not whole.
    rest: Vec<u8>,
    synced: bool,
    stopped: bool,
    ended: bool,
    identified: bool,
    /// Frames are to be written.
    writes: bool,
    written: bool,
    checked: bool,
    /// The register that packets are for, and words that are still to come for it.
    register: Option<u32>,
    target: u32,
    left: u32,
    crc: Crc,
    frames: Reader,
}

impl Configuration {
    /// The model of a device.
    #[must_use]
    pub fn new(part: &'static Part) -> Self {
        Self {
            part,
            rest: Vec::new(),
            synced: false,
            stopped: false,
            ended: false,
            identified: false,
            writes: false,
            written: false,
            checked: false,
            register: None,
            target: 0,
            left: 0,
            crc: Crc::default(),
            frames: Reader::default(),
        }
    }

    /// Begins anew.
    pub fn begin(&mut self) {
        *self = Self::new(self.part);
    }

    /// Whether frames were written: the former configuration is gone.
    #[must_use]
    pub fn has_written(&self) -> bool {
        self.written
    }

    /// Takes the next bytes of a bitstream.
    pub fn feed(&mut self, bytes: &[u8]) {
        let mut bytes = bytes;
        if !self.rest.is_empty() {
            let missing = WORD.saturating_sub(self.rest.len()).min(bytes.len());
            let (head, behind) = bytes.split_at_checked(missing).unwrap_or((bytes, &[]));
            self.rest.extend_from_slice(head);
            bytes = behind;
            if let Some(word) = be32(&self.rest, 0) {
                self.rest.clear();
                self.word(word);
            }
        }
        while let Some(word) = be32(bytes, 0) {
            if self.left > 0 && self.target == register::FDRI {
                bytes = self.write_frames(bytes);
                continue;
            }
            self.word(word);
            bytes = bytes.get(WORD..).unwrap_or_default();
        }
        self.rest.extend_from_slice(bytes);
    }

    /// The image for which the frames stand, if the bitstream was whole and right.
    #[must_use]
    pub fn finish(self) -> Option<SoftImage> {
        let whole = self.ended && self.checked && !self.stopped;
        whole.then(|| self.frames.finish().ok()).flatten()
    }

    /// Writes the frames that there are, in one go; the bytes behind them.
    fn write_frames<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let left = usize::try_from(self.left).unwrap_or(usize::MAX);
        let words = (bytes.len() / WORD).min(left);
        let length = words.saturating_mul(WORD);
        let (frames, behind) = bytes.split_at_checked(length).unwrap_or((bytes, &[]));
        self.left = self.left.saturating_sub(u32::try_from(words).unwrap_or(u32::MAX));
        for frame in frames.chunks_exact(WORD) {
            self.crc.add(register::FDRI, be32(frame, 0).unwrap_or_default());
        }
        if self.identified && self.writes && !self.stopped {
            self.written = true;
            self.frames.feed(frames);
        }
        behind
    }

    fn word(&mut self, word: u32) {
        if self.left > 0 && self.target == register::FDRI {
            self.write_frames(&word.to_be_bytes());
            return;
        }
        if self.left > 0 {
            self.left = self.left.saturating_sub(1);
            return self.write(self.target, word);
        }
        if self.stopped || !self.synced {
            self.synced |= word == SYNC;
            return;
        }
        let Some(packet) = Packet::decode(word, self.register) else {
            self.stopped = true;
            return;
        };
        self.register = packet.is_first.then_some(packet.register);
        if packet.writes {
            (self.target, self.left) = (packet.register, packet.words);
        }
    }

    fn write(&mut self, target: u32, word: u32) {
        if self.stopped {
            return;
        }
        if target == register::CRC {
            self.stopped = word != self.crc.sum;
            (self.checked, self.crc.sum) = (true, 0);
            return;
        }
        self.crc.add(target, word);
        match (target, word) {
            (register::IDCODE, idcode) => {
                let is_its = self.part.idcode.is_some_and(|own| part::same_device(own, idcode));
                (self.identified, self.stopped) = (is_its, !is_its);
            }
            (register::CMD, command::RCRC) => self.crc.sum = 0,
            (register::CMD, command::WCFG) => self.writes = true,
            (register::CMD, command::DESYNC) => (self.ended, self.synced) = (true, false),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bitstream::{Bitstream, Coverage};
    use crate::soft::Logic;

    fn bitstream(count: usize) -> (SoftImage, Vec<u8>) {
        let image = SoftImage::new(vec![Logic::Vqe; count]).unwrap().filled_to(500).unwrap();
        let bytes = make(&image).unwrap();
        (image, bytes)
    }

    fn taken(bytes: &[u8], piece: usize) -> (bool, Option<SoftImage>) {
        let mut logic = Configuration::new(&part::MODEL);
        bytes.chunks(piece).for_each(|piece| logic.feed(piece));
        (logic.has_written(), logic.finish())
    }

    #[test]
    fn a_bitstream_that_was_made_is_a_partial_one_for_the_model_and_is_taken_in_any_pieces() {
        let (image, bytes) = bitstream(2);
        let parsed = Bitstream::parse_bin(&bytes).unwrap();
        assert_eq!(
            (parsed.scope, parsed.crc_words, parsed.frame_bytes),
            (Coverage::Partial, 1, 500)
        );
        assert_eq!(parsed.parts(), [&part::MODEL]);
        for piece in [1, 3, 4, 5, 63, 64, 65, 10_000] {
            assert_eq!(taken(&bytes, piece), (true, Some(image.clone())), "pieces of {piece}");
        }
        assert_eq!(image_of(&bytes), Some(image));
        assert!(make(&SoftImage::of_one(1, Logic::Vqe).unwrap()).is_err());
    }

    #[test]
    fn what_is_not_whole_or_spoilt_is_nothing_and_another_devices_writes_no_frame() {
        let (whole, good) = bitstream(1);
        let frames = good.windows(8).position(|it| *it == *b"\x89balboa\n").unwrap();
        let desync = good.len() - 17 * 4;
        for length in (0..desync).step_by(3) {
            let (written, image) = taken(&good[..length], 64);
            assert_eq!((written, image), (length >= frames + 4, None), "{length} bytes");
        }
        // A bit that is another, from the first command on. Bits of a head that nothing goes by change nothing.
        for at in (13 * 4..desync).step_by(4) {
            for bit in [0, 7, 31] {
                let mut spoilt = good.clone();
                spoilt[at + bit / 8] ^= 1 << (bit % 8);
                let (_, image) = taken(&spoilt, 64);
                assert!(image.is_none_or(|it| it == whole), "bit {bit} of byte {at}");
                let is_frame = (frames..frames + 500).contains(&at);
                assert!(!is_frame || taken(&spoilt, 64).1.is_none(), "bit {bit} of byte {at}");
            }
        }
        let mut other = good.clone();
        let own = part::MODEL.idcode.unwrap().to_be_bytes();
        let at = good.windows(4).position(|it| it == own).unwrap();
        other[at..at + 4].copy_from_slice(&0x14b7_d093_u32.to_be_bytes());
        assert_eq!(taken(&other, 64), (false, None));
    }

    #[test]
    fn the_sum_is_that_of_37_bits_each() {
        // Bit by bit, as the register shifts.
        let slow = |sum: u32, register: u32, word: u32| {
            let bits = (0..32).map(|bit| word >> bit).chain((0..5).map(|bit| register >> bit));
            bits.fold(sum, |sum, bit| {
                (sum >> 1) ^ if (bit ^ sum) & 1 == 1 { POLYNOMIAL } else { 0 }
            })
        };
        let (mut crc, mut sum) = (Crc::default(), 0);
        for (register, word) in [(4, 7), (12, 0x04b7_d093), (2, 0xdead_beef), (31, u32::MAX)] {
            crc.add(register, word);
            sum = slow(sum, register, word);
            assert_eq!(crc.sum, sum);
        }
    }
}
