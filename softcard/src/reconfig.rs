//! The static layer's reconfiguration engine: it takes a bitstream by DMA.
//!
//! The software card has nothing to load it into: the bytes are fetched, counted and dropped.

use std::collections::VecDeque;

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
}

/// The engine and its registers.
#[derive(Debug)]
pub(crate) struct Reconfiguration {
    address: u64,
    length: u32,
    eost: u32,
    queue: VecDeque<Descriptor>,
    done: bool,
    completed: u32,
    /// Requests, completions and beats read from the host.
    requests: u32,
    completions: u32,
    beats: u32,
    /// The whole shell is decoupled.
    pub(crate) decoupled: bool,
    buffer: Vec<u8>,
}

impl Default for Reconfiguration {
    fn default() -> Self {
        Self {
            address: 0,
            length: 0,
            eost: s::PR_EOST_DEFAULT,
            queue: VecDeque::new(),
            done: false,
            completed: 0,
            requests: 0,
            completions: 0,
            beats: 0,
            decoupled: false,
            buffer: Vec::new(),
        }
    }
}

impl Reconfiguration {
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
            s::PR_CNT => self.completed,
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
            self.queue.push_back(Descriptor { address: self.address, left: self.length, last });
        }
    }

    /// Fetches some of what is queued; `true` if there was anything.
    pub(crate) fn work(&mut self, memory: &mut AddressSpace) -> bool {
        let Some(descriptor) = self.queue.front_mut() else { return false };
        let bytes = CHUNK.min(descriptor.left as usize);
        self.buffer.resize(bytes, 0);
        // Bytes that do not come are the host's loss: the engine takes whatever the bus answers.
        memory.fetch(descriptor.address, &mut self.buffer);
        let beats = (bytes as u64).div_ceil(BEAT);
        self.beats = self.beats.wrapping_add(u32::try_from(beats).unwrap_or(0));
        descriptor.address = descriptor.address.saturating_add(bytes as u64);
        descriptor.left = descriptor.left.saturating_sub(u32::try_from(bytes).unwrap_or(u32::MAX));
        if descriptor.left == 0 {
            self.done |= descriptor.last;
            self.completed = self.completed.wrapping_add(1);
            self.completions = self.completions.wrapping_add(1);
            self.queue.pop_front();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::Arc;

    use hostmem::{DmaMemory, SharedMapping};

    use super::*;

    #[test]
    fn a_bitstream_in_chunks_is_taken_and_its_end_told() {
        let file = hostmem::memfd::create("bitstream", 3 << 20).unwrap();
        let mapping =
            SharedMapping::new(file.as_fd(), 0, 3 << 20, hostmem::Access::ReadWrite).unwrap();
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
        while engine.work(&mut memory) {
            assert!(engine.read(s::PR_CNT) == 2 || !engine.is_done());
        }
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
