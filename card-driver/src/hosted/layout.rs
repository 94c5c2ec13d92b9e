//! The layout of balboad's own memory for a published card on the bus: above the arena, out of its way.
//!
//! A card copies its counters to memory. Those of the network go astray, by an offset that is known (STOCK-20): guard pages
//! lie where they hit. Nothing here reads any of them; the registers are asked.

use std::os::fd::AsFd as _;
use std::sync::Arc;

use fpga_regs::coyote::vfpga::{CTIDS, MAX_VFPGAS};
use fpga_regs::engine::tunnel;
use hostmem::{Access, DmaMemory, SharedMapping, memfd};
use stock_engine::param::{ASTRAY, ASTRAY_BYTES, LOCAL, STAGED};

use crate::backend::CardBackend;
use crate::error::Error;
use crate::iova::ARENA_END;

const LARGE_PAGE: u64 = 2 << 20;
/// Bytes of bus addresses that all of it takes.
const BYTES: u64 = 0x2_4000_0000;
/// Bytes of the copies' own places.
const COPIES_BYTES: u64 = 64 << 10;
/// Bytes of a vFPGA's copies of its local counters.
const COPIES: u64 = 0x400;
/// Where the sinks and inline payloads begin.
const OWN: u64 = 0x4000_0000;
/// Bytes of an address space's own memory: its sink, and behind it its inline payloads.
const OWN_OF_SPACE: u64 = 16 << 10;
const SINK_BYTES: u64 = 4096;
/// Where the rings of the tunnel begin, and the slots to send.
const SLOTS: u64 = 0x5000_0000;
/// Bytes of an address space's ring.
const RING_BYTES: u64 = tunnel::SLOTS as u64 * tunnel::SLOT_BYTES as u64;
/// Bytes of an address space's slots to send.
const STAGED_BYTES: u64 = STAGED as u64 * tunnel::SLOT_BYTES as u64;
/// Bytes of both.
const SLOTS_OF_SPACE: u64 = RING_BYTES + STAGED_BYTES;
/// Byte of a slot's header where its number stands.
const SEQUENCE: usize = 8;
/// Bytes for an inline payload.
pub(super) const BOUNCE_BYTES: u64 = 512;

const _: () = assert!(
    SINK_BYTES + BOUNCE_BYTES * stock_engine::param::BOUNCES as u64 <= OWN_OF_SPACE
        && BOUNCE_BYTES >= fpga_regs::engine::wqe::MAX_INLINE as u64
        && OWN + OWN_OF_SPACE * CTIDS * MAX_VFPGAS <= SLOTS
        && SLOTS + SLOTS_OF_SPACE * CTIDS * MAX_VFPGAS <= ASTRAY[0]
);

/// Memory of balboad's own for a card.
#[derive(Debug)]
pub(super) struct Layout {
    start: u64,
    own: Arc<SharedMapping>,
    /// Rings and slots to send.
    slots: Arc<SharedMapping>,
}

impl Layout {
    /// Where it begins, by the addresses that the card's bus has.
    pub(super) fn start(ranges: &[(u64, u64)]) -> Option<u64> {
        let ends = |&(first, last): &(u64, u64)| {
            let end = last.saturating_add(1).min(ARENA_END) & !(LARGE_PAGE - 1);
            end.checked_sub(BYTES).filter(|start| *start > first)
        };
        ranges.iter().filter_map(ends).max()
    }

    /// Maps it, for so many vFPGAs.
    ///
    /// # Errors
    /// Memory's and the back-end's.
    pub(super) fn map(start: u64, regions: u8, card: &dyn CardBackend) -> Result<Self, Error> {
        card.dma_unmap(start, BYTES)?;
        let make = |name, bytes: u64| -> Result<Arc<SharedMapping>, Error> {
            let size = usize::try_from(bytes).unwrap_or(usize::MAX);
            let file = memfd::create(name, size)?;
            Ok(Arc::new(SharedMapping::new(file.as_fd(), 0, size, Access::ReadWrite)?))
        };
        let map = |at: u64, bytes: u64, mapping: &Arc<SharedMapping>| {
            let memory = DmaMemory::Shared { mapping: Arc::clone(mapping), offset: 0 };
            card.dma_map(start.saturating_add(at), bytes, memory)
        };
        map(0, COPIES_BYTES, &make("balboad-copies", COPIES_BYTES)?)?;
        let guard = make("balboad-guard", ASTRAY_BYTES)?;
        for at in ASTRAY {
            map(at, ASTRAY_BYTES, &guard)?;
        }
        let bytes = OWN_OF_SPACE.saturating_mul(CTIDS).saturating_mul(regions.into());
        let own = make("balboad-sinks", bytes)?;
        map(OWN, bytes, &own)?;
        let bytes = SLOTS_OF_SPACE.saturating_mul(CTIDS).saturating_mul(regions.into());
        let slots = make("balboad-slots", bytes)?;
        map(SLOTS, bytes, &slots)?;
        Ok(Self { start, own, slots })
    }

    /// The values of a vFPGA's registers that name the places of its counters' copies.
    pub(super) fn copies(&self, vfpga: u8) -> [u64; 4] {
        let local = self.start.saturating_add(COPIES.saturating_mul(vfpga.into()));
        [local, local.saturating_add(0x100), self.start, self.start]
    }

    /// Byte offset of an address space's own memory.
    fn offset(vfpga: u8, ctid: u8) -> u64 {
        let space = u64::from(vfpga).saturating_mul(CTIDS).saturating_add(ctid.into());
        space.saturating_mul(OWN_OF_SPACE)
    }

    /// The bus address of the sink of a vFPGA's first address space, and how far it is to the next one's.
    pub(super) fn sinks(&self, vfpga: u8) -> (u64, u64) {
        let first = self.start.saturating_add(OWN).saturating_add(Self::offset(vfpga, 0));
        (first, OWN_OF_SPACE)
    }

    /// Whether a page on the bus is one of an address space's inline payloads.
    pub(super) fn is_bounce(&self, vfpga: u8, ctid: u8, iova: u64) -> bool {
        let (first, _) = self.sinks(vfpga);
        let of_space = first.saturating_add(OWN_OF_SPACE.saturating_mul(ctid.into()));
        let into = iova.checked_sub(of_space);
        into.is_some_and(|into| (SINK_BYTES..OWN_OF_SPACE).contains(&into))
    }

    /// A place for an inline payload: its bus address, and the memory with its offset there.
    pub(super) fn bounce(&self, vfpga: u8, ctid: u8, slot: u8) -> (u64, &SharedMapping, usize) {
        let into = SINK_BYTES.saturating_add(BOUNCE_BYTES.saturating_mul(slot.into()));
        let offset = Self::offset(vfpga, ctid).saturating_add(into);
        let iova = self.start.saturating_add(OWN).saturating_add(offset);
        (iova, &self.own, usize::try_from(offset).unwrap_or(usize::MAX))
    }

    /// Byte offset of an address space's ring; its slots to send are behind it.
    fn ring(vfpga: u8, ctid: u8) -> u64 {
        let space = u64::from(vfpga).saturating_mul(CTIDS).saturating_add(ctid.into());
        space.saturating_mul(SLOTS_OF_SPACE)
    }

    /// The page on the bus of a page of an address space of the tunnel's: of its ring, or of its slots to send.
    pub(super) fn slot_page(&self, vfpga: u8, ctid: u8, page: u64) -> Option<u64> {
        let start = self.start.saturating_add(SLOTS).saturating_add(Self::ring(vfpga, ctid));
        let into = page.checked_sub(tunnel::ring_address(ctid)).filter(|into| *into < RING_BYTES);
        if let Some(into) = into {
            return Some(start.saturating_add(into));
        }
        let into = page.checked_sub(LOCAL | start)?;
        (RING_BYTES..SLOTS_OF_SPACE).contains(&into).then(|| start.saturating_add(into))
    }

    /// The word of a slot's header that says which it is.
    pub(super) fn sequence(&self, vfpga: u8, ctid: u8, place: usize) -> u64 {
        let at = usize::try_from(Self::ring(vfpga, ctid)).unwrap_or(usize::MAX);
        let at = at.saturating_add(place).saturating_add(SEQUENCE);
        self.slots.load_acquire_u64(at).map_or(0, u64::from_le)
    }

    /// Copies a slot's place.
    pub(super) fn slot(&self, vfpga: u8, ctid: u8, place: usize, into: &mut [u8]) {
        let at = usize::try_from(Self::ring(vfpga, ctid)).unwrap_or(usize::MAX);
        // An address outside is not in the slot.
        let _ = self.slots.read_bytes(at.saturating_add(place), into);
    }

    /// Puts a slot into an address space's ring.
    pub(super) fn deliver(&self, vfpga: u8, ctid: u8, place: usize, slot: &[u8]) {
        let at = usize::try_from(Self::ring(vfpga, ctid)).unwrap_or(usize::MAX);
        // A place of a ring's lies in the mapping, which can be written.
        let _ = self.slots.write_bytes(at.saturating_add(place), slot);
    }

    /// Clears the slots in an address space's ring, and in the memory that slots are sent from: slots of an earlier
    /// owner must not reach the next one's peer.
    pub(super) fn clear_slots(&self, vfpga: u8, ctid: u8) {
        let at = usize::try_from(Self::ring(vfpga, ctid)).unwrap_or(usize::MAX);
        for place in (0..SLOTS_OF_SPACE as usize).step_by(tunnel::SLOT_BYTES) {
            // It lies in the mapping, which can be written.
            let _ = self.slots.write_bytes(at.saturating_add(place), &[0; tunnel::SLOT_BYTES]);
        }
    }

    /// Puts a slot where the card takes it from; its bus address.
    pub(super) fn stage(&self, vfpga: u8, ctid: u8, number: u8, slot: &[u8]) -> u64 {
        let into = u64::from(number).saturating_mul(tunnel::SLOT_BYTES as u64);
        let at = Self::ring(vfpga, ctid).saturating_add(RING_BYTES).saturating_add(into);
        // It lies in the mapping, which can be written.
        let _ = self.slots.write_bytes(usize::try_from(at).unwrap_or(usize::MAX), slot);
        self.start.saturating_add(SLOTS).saturating_add(at)
    }

    /// Clears the sink of an address space, in which a stranger's bytes may lie.
    pub(super) fn clear_sink(&self, vfpga: u8, ctid: u8) {
        let offset = usize::try_from(Self::offset(vfpga, ctid)).unwrap_or(usize::MAX);
        // It lies in the mapping, which can be written.
        let _ = self.own.write_bytes(offset, &[0; SINK_BYTES as usize]);
    }

    /// Clears the same and the inline payloads of an address space: a peer that names their place can read them, and
    /// those of an earlier owner must not reach it.
    pub(super) fn clear_own(&self, vfpga: u8, ctid: u8) {
        let offset = usize::try_from(Self::offset(vfpga, ctid)).unwrap_or(usize::MAX);
        // It lies in the mapping, which can be written.
        let _ = self.own.write_bytes(offset, &[0; OWN_OF_SPACE as usize]);
    }

    /// The memory of sinks, and where in it an address space's begins.
    #[cfg(test)]
    pub(super) fn sink(&self, vfpga: u8, ctid: u8) -> (&SharedMapping, usize) {
        (&self.own, usize::try_from(Self::offset(vfpga, ctid)).unwrap_or(usize::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_lies_at_the_end_of_what_the_bus_has() {
        assert_eq!(Layout::start(&[(0, u64::MAX)]), Some(ARENA_END - BYTES));
        let small = 1u64 << 39;
        assert_eq!(
            Layout::start(&[(0, 0xfedf_ffff), (0xfef0_0000, small - 1)]),
            Some(small - BYTES)
        );
        assert_eq!(Layout::start(&[(0, 1 << 32)]), None, "no room");
    }
}
