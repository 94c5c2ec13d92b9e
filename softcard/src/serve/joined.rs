//! Stores of 32 bytes that come in parts, put together again.
//!
//! No card does this, and none is served so unless it is asked for: to a published bitstream the parts mean something
//! else than the store (STOCK-1, STOCK-2). An emulator passes a driver's one store on as parts, and so nothing but
//! bring-up of such a card can be tried behind one without this.

use std::collections::BTreeMap;

use fpga_regs::coyote::pci::Bar;
use fpga_regs::coyote::vfpga::{Bank, CTRL, NET_ARP, RDMA_CONN_0, RDMA_CTX_0};

use super::access::{self, WIDE};
use crate::address_map::{Target, target};
use crate::card::Card;

/// The registers that act on each store to them, part or whole.
const ACTING: [u64; 4] = [CTRL, NET_ARP, RDMA_CTX_0, RDMA_CONN_0];
/// Bytes of the parts that are known for such: two or four of them make a store.
const PARTS: [usize; 2] = [8, 16];

/// A store of which the first parts have come.
#[derive(Debug)]
struct Begun {
    offset: u64,
    part: usize,
    bytes: Vec<u8>,
}

impl Begun {
    /// Whether these bytes are its next part.
    fn goes_on_with(&self, offset: u64, data: &[u8]) -> bool {
        let next = self.offset.saturating_add(self.bytes.len() as u64);
        offset == next && data.len() == self.part
    }
}

/// Stores of which the first parts have come, by vFPGA: a driver that stores to a bank does it alone.
#[derive(Debug, Default)]
pub(super) struct Joined {
    begun: BTreeMap<usize, Begun>,
}

impl Joined {
    /// Writes bytes of a BAR; the parts of one store once the last of them has come. A part that is followed by something
    /// else than the next one is written as it came, before that.
    pub(super) fn write(&mut self, card: &mut Card, now: u64, bar: Bar, offset: u64, data: &[u8]) {
        let place = (bar == Bar::Shell).then(|| target(offset));
        let Some(Target::Cnfg(Bank::Avx, vfpga, register)) = place else {
            return access::write(card, now, bar, offset, data);
        };
        let acts = ACTING.contains(&(register & !(WIDE.wrapping_sub(1))));
        if !acts {
            return access::write(card, now, bar, offset, data);
        }
        if let Some(mut begun) = self.begun.remove(&vfpga) {
            if begun.goes_on_with(offset, data) {
                begun.bytes.extend(data);
                if begun.bytes.len() as u64 == WIDE {
                    access::write(card, now, bar, begun.offset, &begun.bytes);
                } else {
                    self.begun.insert(vfpga, begun);
                }
                return;
            }
            let parts = (begun.offset..).step_by(begun.part).zip(begun.bytes.chunks(begun.part));
            parts.for_each(|(at, part)| access::write(card, now, bar, at, part));
        }
        if offset % WIDE == 0 && PARTS.contains(&data.len()) {
            let begun = Begun { offset, part: data.len(), bytes: data.to_vec() };
            self.begun.insert(vfpga, begun);
        } else {
            access::write(card, now, bar, offset, data);
        }
    }

    /// Forgets the parts that have come.
    pub(super) fn clear(&mut self) {
        self.begun.clear();
    }
}
