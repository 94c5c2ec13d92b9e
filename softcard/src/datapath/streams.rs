//! The transfers of host memory that logic makes by itself: one at a time of each vFPGA.

use std::sync::atomic::{Ordering, fence};

use fpga_regs::BLOCK_BYTES;

use crate::bus::{Bus, BusMemory, Rights};
use crate::card::Card;
use crate::dma::Call;
use crate::mmu::{MemoryDirection, Translation};
use crate::vfpga::{HostTransfer, Missed, Occupant};
use crate::views::{block_of, write_block};

impl Card {
    /// Makes the transfers that logic wants, one of each vFPGA's; gives a copy that is due before that.
    pub(crate) fn move_streams(&mut self) -> Option<Box<Call>> {
        for index in 0..self.vfpgas.len() {
            if self.streams.of.is_none_or(|of| of == index) {
                if let Some(call) = self.move_stream(index) {
                    return Some(call);
                }
            }
        }
        None
    }

    fn move_stream(&mut self, index: usize) -> Option<Box<Call>> {
        if self.is_decoupled(index) {
            self.streams.fail(index);
            return None;
        }
        let Self { vfpgas, memory, network, streams, scratch, .. } = self;
        let vfpga = vfpgas.get_mut(index)?;
        let Occupant::Other(logic) = &mut vfpga.logic else { return None };
        let wanted = logic.transfer()?;
        let transfer = &mut streams.transfer;
        if streams.of.is_none() {
            let (direction, address, length) = shape(&wanted);
            let mut mmu = vfpga.control.unit.mmu.borrow_mut();
            match transfer.find(&mut mmu, direction, address, length) {
                Translation::Found { .. } => {}
                Translation::Waits => return None,
                Translation::Refused => {
                    scratch.worked = true;
                    logic.transferred(Err(Missed::Refused));
                    return None;
                }
            }
            let from = match &wanted {
                // Pages of a process may be gone, though the driver maps them: they are read to know.
                HostTransfer::Reach { .. } => {
                    transfer.only_reads();
                    has_process(&memory.bus, transfer.places()).then_some(&[][..])
                }
                HostTransfer::Read { .. } => Some(&[][..]),
                HostTransfer::Write { bytes, .. } => {
                    let is_written = publish(&memory.bus, transfer.places(), address, bytes);
                    (!is_written).then_some(bytes.as_slice())
                }
            };
            let Some(from) = from else {
                scratch.worked = true;
                logic.transferred(Ok(&[]));
                return None;
            };
            if !transfer.fill(&network.pool, length, from) {
                logic.transferred(Err(Missed::Gone));
                return None;
            }
            streams.of = Some(index);
        }
        (scratch.worked, scratch.moved) = (true, true);
        if let Some(call) = transfer.copy(memory) {
            return Some(call);
        }
        streams.of = None;
        // What is read next was written before what tells of it, and is not looked at before that.
        fence(Ordering::Acquire);
        let bytes = transfer.bytes().filter(|_| !transfer.has_failed());
        let bytes = bytes.map(|bytes| match wanted {
            HostTransfer::Reach { writes: true, .. } => &[],
            _ => bytes,
        });
        logic.transferred(bytes.ok_or(Missed::Gone));
        None
    }
}

/// Whether one of the places is memory of a process, which may take it away at any time.
fn has_process(bus: &Bus, places: &[u64]) -> bool {
    let mut found = places.iter().map(|place| bus.find(*place, 1, Rights::READ));
    found.any(|found| matches!(found, Some(BusMemory::Process(..))))
}

/// The direction of a transfer, its first byte, and its bytes.
fn shape(wanted: &HostTransfer) -> (MemoryDirection, u64, usize) {
    let (direction, address, length) = match wanted {
        HostTransfer::Reach { writes: true, address, length } => {
            (MemoryDirection::Write, address, *length)
        }
        HostTransfer::Reach { writes: false, address, length }
        | HostTransfer::Read { address, length } => (MemoryDirection::Read, address, *length),
        HostTransfer::Write { address, bytes } => {
            return (MemoryDirection::Write, *address, bytes.len());
        }
    };
    (direction, *address, usize::try_from(length).unwrap_or(usize::MAX))
}

/// Writes a block whose reader waits for the last word of it; `false` for anything else, and for memory of a program's that
/// may not answer.
fn publish(bus: &Bus, places: &[u64], address: u64, bytes: &[u8]) -> bool {
    let (&[place], Ok(bytes)) = (places, <&[u8; BLOCK_BYTES]>::try_from(bytes)) else {
        return false;
    };
    let found = bus.find(place, BLOCK_BYTES as u64, Rights::WRITE);
    if address.checked_rem(BLOCK_BYTES as u64) != Some(0)
        || matches!(found, None | Some(BusMemory::Process(..)))
    {
        return false;
    }
    write_block(bus, place, &block_of(bytes), true);
    true
}
