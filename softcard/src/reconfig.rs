//! The static layer's reconfiguration engine: it takes an image by DMA, and makes another card of it.
//!
//! The image is a file of a software card's ([`bitstreams::soft`]). As a bitstream's sync word does, its first bytes at
//! the start of a descriptor begin it, at any time. The old image is gone from the first byte on; a file that
//! is not whole when its last descriptor ends leaves a card without one, whose static layer alone answers. So it is with
//! one vFPGA, where the file is of that alone and the vFPGA is decoupled; where it is not, the card loses its image.
//!
//! A card that plays an FPGA takes bitstreams instead, as a device's configuration logic does ([`bitstreams::model`]): one for
//! another device changes nothing, and the end is reported after any bitstream.

use std::collections::VecDeque;

use bitstreams::model::Configuration;
use bitstreams::part::MODEL;
use bitstreams::soft::{Reader, Scope, SoftImage};
use fpga_regs::coyote::static_layer::{self as s, PrAddrHigh, PrCtrl, PrLen, PrQueue, PrStat};

use crate::dma::AddressSpace;

/// Bytes fetched in one round of the card.
const CHUNK: usize = 1 << 20;
/// Bytes of a beat of the DMA streams.
const BEAT: u64 = 64;

#[derive(Clone, Copy, Debug)]
struct Descriptor {
    address: u64,
    left: u32,
    last: bool,
    begun: bool,
}

/// A test's fault of a reconfiguration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spoil {
    /// The power of the card goes: it comes back without an image.
    PowerLost,
    /// A bit of the image is another one.
    WrongBit,
    /// The engine takes nothing any more, until the function is reset.
    Stall,
    /// All is taken, and the end is never told.
    NoEnd,
}

/// The result of a round of the engine.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// There was nothing to do.
    Nothing,
    /// A part of an image came, which is of that.
    Fetched(Scope),
    /// The last part of an image came: its scope, and the image, if it is one.
    Ended(Scope, Option<SoftImage>),
    /// The power went, as a test wants it.
    PowerLost,
}

/// The engine and its registers.
#[derive(Debug)]
pub(crate) struct Reconfiguration {
    address: u64,
    length: u32,
    eost: u32,
    queue: VecDeque<Descriptor>,
    done: bool,
    /// Bitstreams that came to their end.
    ended: u32,
    /// Requests, completions and beats read from the host.
    requests: u32,
    completions: u32,
    beats: u32,
    /// The whole shell is decoupled.
    pub(crate) decoupled: bool,
    /// The reader of the image's parts so far.
    reader: Reader,
    /// The configuration engine that takes bitstreams in place of images, where the card plays an FPGA.
    configuration: Option<Configuration>,
    buffer: Vec<u8>,
    /// How a test wants it spoilt, counted down to the descriptor that is meant.
    pub(crate) spoil: Option<(u32, Spoil)>,
}

impl Default for Reconfiguration {
    fn default() -> Self {
        Self {
            address: 0,
            length: 0,
            eost: s::PR_EOST_DEFAULT,
            queue: VecDeque::new(),
            done: false,
            ended: 0,
            requests: 0,
            completions: 0,
            beats: 0,
            decoupled: false,
            reader: Reader::default(),
            configuration: None,
            buffer: Vec::new(),
            spoil: None,
        }
    }
}

impl Reconfiguration {
    /// Begins anew. How the next reconfiguration is to be spoilt stays: a driver resets a card before it loads one.
    pub(crate) fn reset(&mut self) {
        let spoil = self.spoil.filter(|_| self.requests == 0);
        let configuration = self.configuration.as_ref().map(|_| Configuration::new(&MODEL));
        *self = Self { spoil, configuration, ..Self::default() };
    }

    /// Takes bitstreams from now on, and no software card's images.
    pub(crate) fn take_bitstreams(&mut self) {
        self.configuration = Some(Configuration::new(&MODEL));
    }

    /// Whether it takes bitstreams.
    pub(crate) fn takes_bitstreams(&self) -> bool {
        self.configuration.is_some()
    }

    /// Whether its interrupt is requested.
    pub(crate) fn is_done(&self) -> bool {
        self.done
    }

    /// Reads the 32-bit register at `offset` of the static layer.
    pub(crate) fn read(&self, offset: u64) -> u32 {
        let counted = [self.requests, 0, self.completions, 0, self.beats, 0];
        match offset {
            s::PROBE => s::PROBE_VALUE,
            s::PR_CTRL => {
                PrQueue { queued: u8::try_from(self.queue.len()).unwrap_or(u8::MAX) }.encode()
            }
            s::PR_STAT => {
                PrStat { done: self.done, ready: self.queue.len() < s::PR_QUEUE }.encode()
            }
            s::PR_CNT => self.ended,
            s::PR_ADDR_LOW => self.address as u32,
            s::PR_ADDR_HIGH => (self.address >> 32) as u32,
            s::PR_LEN => self.length,
            s::PR_EOST => self.eost,
            _ => {
                let index =
                    s::HDMA_STAT.index(offset).and_then(|index| usize::try_from(index).ok());
                index.and_then(|index| counted.get(index)).copied().unwrap_or(0)
            }
        }
    }

    /// Writes the 32-bit register at `offset` of the static layer, but for the shell's reset.
    pub(crate) fn write(&mut self, offset: u64, value: u32) {
        match offset {
            s::PR_CTRL => self.control(PrCtrl::decode(value)),
            s::PR_ADDR_LOW => {
                self.address = self.address & !u64::from(u32::MAX) | u64::from(value);
            }
            s::PR_ADDR_HIGH => {
                let high = PrAddrHigh::decode(value).encode();
                self.address = self.address & u64::from(u32::MAX) | u64::from(high) << 32;
            }
            s::PR_LEN => self.length = PrLen::decode(value).length,
            s::PR_EOST => self.eost = value,
            s::PR_DCPL_SET => self.decoupled = true,
            s::PR_DCPL_CLR => self.decoupled = false,
            _ => {}
        }
    }

    fn control(&mut self, PrCtrl { start, last, clear }: PrCtrl) {
        if clear {
            self.done = false;
        }
        // A descriptor too many is lost.
        if start && self.queue.len() < s::PR_QUEUE {
            self.requests = self.requests.wrapping_add(1);
            let (address, left) = (self.address, self.length);
            self.queue.push_back(Descriptor { address, left, last, begun: false });
        }
    }

    /// Fetches some of the queued bytes.
    pub(crate) fn work(&mut self, memory: &mut AddressSpace) -> Progress {
        let Some(descriptor) = self.queue.front_mut() else { return Progress::Nothing };
        let spoil = self.spoil.filter(|(left, _)| *left == 0).map(|(_, how)| how);
        match spoil {
            Some(Spoil::Stall) => return Progress::Nothing,
            Some(Spoil::PowerLost) => return Progress::PowerLost,
            Some(Spoil::WrongBit | Spoil::NoEnd) | None => {}
        }
        let bytes = CHUNK.min(descriptor.left as usize);
        self.buffer.resize(bytes, 0);
        // Bytes that do not come are the host's loss: the engine takes any answer of the bus.
        memory.fetch(descriptor.address, &mut self.buffer);
        if let (Some(Spoil::WrongBit), false, Some(byte)) =
            (spoil, descriptor.begun, self.buffer.last_mut())
        {
            *byte ^= 1;
        }
        let is_first = !std::mem::replace(&mut descriptor.begun, true);
        let scope = match &mut self.configuration {
            Some(configuration) => {
                configuration.feed(&self.buffer);
                match configuration.has_written() {
                    true => Scope::Card,
                    false => Scope::Unknown,
                }
            }
            None => {
                if is_first && SoftImage::begins(&self.buffer) {
                    self.reader = Reader::default();
                }
                self.reader.feed(&self.buffer);
                self.reader.scope()
            }
        };
        let beats = (bytes as u64).div_ceil(BEAT);
        self.beats = self.beats.wrapping_add(u32::try_from(beats).unwrap_or(0));
        descriptor.address = descriptor.address.saturating_add(bytes as u64);
        descriptor.left = descriptor.left.saturating_sub(u32::try_from(bytes).unwrap_or(u32::MAX));
        if descriptor.left > 0 {
            return Progress::Fetched(scope);
        }
        let last = descriptor.last;
        self.queue.pop_front();
        self.completions = self.completions.wrapping_add(1);
        self.spoil = match self.spoil {
            Some((0, Spoil::NoEnd)) if !last => Some((0, Spoil::NoEnd)),
            Some((left, how)) => left.checked_sub(1).map(|left| (left, how)),
            None => None,
        };
        if !last {
            return Progress::Fetched(scope);
        }
        if spoil != Some(Spoil::NoEnd) {
            self.done = true;
            self.ended = self.ended.wrapping_add(1);
        }
        let image = match &mut self.configuration {
            Some(configuration) => {
                let whole = std::mem::replace(configuration, Configuration::new(&MODEL));
                whole.finish().ok_or_else(|| "it is no bitstream for it, or not whole".into())
            }
            None => std::mem::take(&mut self.reader).finish(),
        };
        if let Err(why) = &image {
            log::error!("the image that was loaded is none: {why}");
        }
        Progress::Ended(scope, image.ok())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::Arc;

    use bitstreams::soft::Logic;
    use hostmem::{DmaMemory, SharedMapping};

    use super::*;

    #[test]
    fn an_image_in_chunks_is_taken_and_its_end_told() {
        let image = SoftImage::new(vec![Logic::Vqe; 2]).unwrap().filled_to(3 << 20).unwrap();
        let file = hostmem::memfd::create("bitstream", 3 << 20).unwrap();
        let mapping =
            SharedMapping::new(file.as_fd(), 0, 3 << 20, hostmem::Access::ReadWrite).unwrap();
        mapping.write_bytes(0, &image.to_bytes()).unwrap();
        let mut memory = AddressSpace::default();
        let here = DmaMemory::Shared { mapping: Arc::new(mapping), offset: 0 };
        memory.map(0x1_0020_0000, 3 << 20, here).unwrap();
        let mut engine = Reconfiguration::default();
        for (at, length, control) in [(0x20_0000, 2 << 20, 1), (0x40_0000, 1 << 20, 3)] {
            engine.write(s::PR_ADDR_LOW, at);
            engine.write(s::PR_ADDR_HIGH, 1);
            engine.write(s::PR_LEN, length);
            engine.write(s::PR_CTRL, control);
        }
        assert_eq!(PrQueue::decode(engine.read(s::PR_CTRL)).queued, 2);
        let ended = loop {
            match engine.work(&mut memory) {
                Progress::Fetched(Scope::Card) => assert!(!engine.is_done()),
                other => break other,
            }
        };
        assert_eq!(ended, Progress::Ended(Scope::Card, Some(image)));
        assert_eq!(engine.work(&mut memory), Progress::Nothing);
        assert_eq!((memory.read.bytes, memory.faults), (3 << 20, 0));
        assert_eq!(PrStat::decode(engine.read(s::PR_STAT)), PrStat { done: true, ready: true });
        let counted: Vec<u32> = (0..6).map(|i| engine.read(s::HDMA_STAT.at(i))).collect();
        assert_eq!(counted, [2, 0, 2, 0, (3 << 20) / 64, 0]);
        engine.write(s::PR_CTRL, 4);
        assert!(!engine.is_done());
    }

    #[test]
    fn the_queue_takes_32_descriptors_and_loses_the_next() {
        let mut engine = Reconfiguration::default();
        for _ in 0..33 {
            engine.write(s::PR_CTRL, 1);
        }
        assert_eq!(PrQueue::decode(engine.read(s::PR_CTRL)).queued, 32);
        assert!(!PrStat::decode(engine.read(s::PR_STAT)).ready);
    }
}
