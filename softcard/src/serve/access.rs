//! Accesses of any size and alignment to the card's registers.

use std::collections::BTreeMap;

use fpga_regs::coyote::pci::Bar;
use fpga_regs::coyote::{vfpga, xdma};

use crate::WINDOWS;
use crate::card::Card;

/// Registers and their values, by BAR number and offset.
pub(crate) type Snapshot = BTreeMap<(u8, u64), u64>;

/// Bytes of the widest store.
pub(super) const WIDE: u64 = 32;

/// Bytes of a BAR's registers.
const fn unit(bar: Bar) -> u64 {
    match bar {
        Bar::Static | Bar::Xdma => 4,
        Bar::Shell => 8,
    }
}

fn register(card: &Card, now: u64, bar: Bar, offset: u64) -> u64 {
    card.read(now, bar, offset, unit(bar) as u8)
}

/// Fills bytes of a BAR from the registers they lie in.
pub(crate) fn read(card: &Card, now: u64, bar: Bar, offset: u64, data: &mut [u8]) {
    fill(bar, offset, data, |at| Some(register(card, now, bar, at)));
}

/// Fills bytes of a BAR from a snapshot's values; `false` where one is not known.
pub(crate) fn read_snapshot(snapshot: &Snapshot, bar: Bar, offset: u64, data: &mut [u8]) -> bool {
    fill(bar, offset, data, |at| snapshot.get(&(bar.number(), at)).copied())
}

fn fill(bar: Bar, offset: u64, data: &mut [u8], register: impl Fn(u64) -> Option<u64>) -> bool {
    let mut at = offset;
    let mut rest = data;
    while !rest.is_empty() {
        let within = at & unit(bar).wrapping_sub(1);
        let Some(value) = register(at.saturating_sub(within)) else { return false };
        let bytes = value.to_le_bytes();
        let bytes = bytes.get(within as usize..unit(bar) as usize).unwrap_or_default();
        let (part, behind) = rest.split_at_mut(bytes.len().min(rest.len()));
        part.copy_from_slice(bytes.get(..part.len()).unwrap_or_default());
        at = at.saturating_add(part.len() as u64);
        rest = behind;
    }
    true
}

/// Writes bytes of a BAR, in pieces of 1, 2, 4, 8 or 32 bytes that are aligned to their size.
pub(crate) fn write(card: &mut Card, now: u64, bar: Bar, offset: u64, data: &[u8]) {
    let mut at = offset;
    let mut rest = data;
    while !rest.is_empty() {
        // One store of so many bytes means something else to the published image than its parts.
        let wide = rest.first_chunk().filter(|_| bar == Bar::Shell && at % WIDE == 0);
        if let Some(bytes) = wide {
            card.write_wide(now, at, *bytes);
            at = at.saturating_add(WIDE);
            rest = rest.get(WIDE as usize..).unwrap_or_default();
            continue;
        }
        let fits = |size: &u64| at & size.wrapping_sub(1) == 0 && *size <= rest.len() as u64;
        let size = [unit(bar), 4, 2].into_iter().find(fits).unwrap_or(1);
        let (piece, behind) = rest.split_at(size as usize);
        let mut value = [0; 8];
        value.iter_mut().zip(piece).for_each(|(into, byte)| *into = *byte);
        card.write(now, bar, at, size as u8, u64::from_le_bytes(value));
        at = at.saturating_add(piece.len() as u64);
        rest = behind;
    }
}

/// The values of all registers that a driver reads while the card works.
pub(crate) fn snapshot(card: &Card, now: u64) -> Snapshot {
    const STATIC_BYTES: u64 = 32 * 4;
    const SHELL_BYTES: u64 = 128 * 8;
    const ENGINE_BYTES: u64 = 1024;
    const CNFG_BYTES: u64 = 64 * 8;
    const AVX_BYTES: u64 = 0x1000;
    let mut ranges = vec![(Bar::Static, 0, STATIC_BYTES), (Bar::Shell, 0, SHELL_BYTES)];
    for direction in [xdma::Direction::HostToCard, xdma::Direction::CardToHost] {
        ranges.push((Bar::Xdma, xdma::engine(direction, 0), 0x300));
    }
    ranges.push((Bar::Xdma, 0x2000, 0x100));
    for window in 0..u64::from(WINDOWS) {
        let stride = window.saturating_mul(vfpga::CONTROL_WINDOW_STRIDE);
        let base = vfpga::CONTROL_WINDOW_BASE.saturating_add(stride);
        ranges.push((Bar::Shell, base.saturating_add(vfpga::USER_CSR_OFFSET), ENGINE_BYTES));
        let bank = card.image.bank();
        let cnfg_bytes = if bank == vfpga::Bank::Avx { AVX_BYTES } else { CNFG_BYTES };
        ranges.push((Bar::Shell, bank.cnfg(window), cnfg_bytes));
    }
    let mut snapshot = Snapshot::new();
    for (bar, start, bytes) in ranges {
        for offset in (0..bytes).step_by(unit(bar) as usize) {
            let at = start.saturating_add(offset);
            snapshot.insert((bar.number(), at), register(card, now, bar, at));
        }
    }
    snapshot
}
