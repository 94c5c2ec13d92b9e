//! BAR2: the XDMA core's registers, the MSI-X table, and the way from a user interrupt to a vector.

use fpga_regs::coyote::pci::{MSIX_PBA_OFFSET, MSIX_TABLE_OFFSET};
use fpga_regs::coyote::xdma::{self as x, Direction, EngineIdentifier, VectorMap};

use crate::interrupts::Interrupts;

/// Words of the MSI-X table.
const TABLE_WORDS: usize = 128;

/// The registers of the core.
///
/// The MSI-X table only keeps the written values: eventfds deliver vectors, and the owner of the function masks them.
#[derive(Debug)]
pub(crate) struct Xdma {
    engine_control: [[u32; x::CHANNELS as usize]; 2],
    user_enable: u32,
    channel_enable: u32,
    user_vectors: [VectorMap; 4],
    channel_vectors: [VectorMap; 2],
    table: [u32; TABLE_WORDS],
}

impl Default for Xdma {
    fn default() -> Self {
        let mut table = [0; TABLE_WORDS];
        for control in table.iter_mut().skip(3).step_by(4) {
            *control = 1;
        }
        Self {
            engine_control: Default::default(),
            user_enable: 0,
            channel_enable: 0,
            user_vectors: Default::default(),
            channel_vectors: Default::default(),
            table,
        }
    }
}

/// A register of a DMA engine.
struct EngineRegister {
    /// The index in its direction.
    index: usize,
    direction: Direction,
    channel: usize,
    /// Byte offset in the engine's registers.
    register: u64,
}

impl Xdma {
    /// Signals the vector that a user interrupt is routed to, unless it is disabled.
    pub(crate) fn signal(&self, interrupt: usize, vectors: &dyn Interrupts) {
        let bit = u32::try_from(interrupt).ok().and_then(|number| 1u32.checked_shl(number));
        if bit.is_none_or(|bit| self.user_enable & bit == 0) {
            return;
        }
        let word = self.user_vectors.get(interrupt / 4).copied().unwrap_or_default();
        let VectorMap { first, second, third, fourth } = word;
        let vector = [first, second, third, fourth].get(interrupt % 4).copied().unwrap_or(0);
        vectors.signal(usize::from(vector));
    }

    fn engine(offset: u64) -> Option<EngineRegister> {
        Direction::BOTH.into_iter().enumerate().find_map(|(index, direction)| {
            (0..x::CHANNELS).find_map(|channel| {
                let register = offset.checked_sub(x::engine(direction, channel))?;
                let channel = usize::try_from(channel).ok()?;
                (register < 0x100).then_some(EngineRegister { index, direction, channel, register })
            })
        })
    }

    /// Reads the 32-bit register at `offset`; `pending` has a bit for each user interrupt that is
    /// requested.
    pub(crate) fn read(&self, offset: u64, pending: u32) -> u32 {
        if let Some(entry) = offset.checked_sub(MSIX_TABLE_OFFSET) {
            let word = usize::try_from(entry / 4).ok().filter(|_| offset < MSIX_PBA_OFFSET);
            return word.and_then(|word| self.table.get(word)).copied().unwrap_or(0);
        }
        if let Some(EngineRegister { index, direction, channel, register }) = Self::engine(offset) {
            let control = self.engine_control.get(index).and_then(|row| row.get(channel));
            return match register {
                x::ENGINE_IDENTIFIER => {
                    let channel = u8::try_from(channel).unwrap_or(0);
                    EngineIdentifier { channel, identifier: x::identifier(direction) }.encode()
                }
                x::ENGINE_CONTROL => control.copied().unwrap_or(0),
                x::ENGINE_ALIGNMENTS => 0x0001_0140,
                _ => 0,
            };
        }
        let Some(register) = offset.checked_sub(x::INTERRUPT_BLOCK) else { return 0 };
        match register {
            x::IRQ_IDENTIFIER => x::IRQ_IDENTIFIER_VALUE,
            x::USER_INTERRUPT_ENABLE => self.user_enable,
            x::CHANNEL_INTERRUPT_ENABLE => self.channel_enable,
            x::USER_REQUEST => pending & self.user_enable,
            x::USER_PENDING => pending,
            _ => {
                let words = vector_word(&self.user_vectors, x::USER_VECTOR_MAP, register);
                let words = words.or_else(|| {
                    vector_word(&self.channel_vectors, x::CHANNEL_VECTOR_MAP, register)
                });
                words.map_or(0, VectorMap::encode)
            }
        }
    }

    /// Writes the 32-bit register at `offset`; answers the user interrupts that became enabled.
    pub(crate) fn write(&mut self, offset: u64, value: u32) -> u32 {
        if let Some(entry) = offset.checked_sub(MSIX_TABLE_OFFSET) {
            let word = usize::try_from(entry / 4).ok().filter(|_| offset < MSIX_PBA_OFFSET);
            if let Some(place) = word.and_then(|word| self.table.get_mut(word)) {
                *place = value;
            }
            return 0;
        }
        if let Some(EngineRegister { index, channel, register, .. }) = Self::engine(offset) {
            let row = self.engine_control.get_mut(index);
            if let Some(control) = row.and_then(|row| row.get_mut(channel)) {
                *control = written(*control, value, register, x::ENGINE_CONTROL);
            }
            return 0;
        }
        let Some(register) = offset.checked_sub(x::INTERRUPT_BLOCK) else { return 0 };
        let before = self.user_enable;
        self.user_enable = written(before, value, register, x::USER_INTERRUPT_ENABLE);
        self.channel_enable =
            written(self.channel_enable, value, register, x::CHANNEL_INTERRUPT_ENABLE);
        let word = VectorMap::decode(value);
        let maps = [
            (&mut self.user_vectors[..], x::USER_VECTOR_MAP),
            (&mut self.channel_vectors[..], x::CHANNEL_VECTOR_MAP),
        ];
        for (map, array) in maps {
            let index = array.index(register).and_then(|index| usize::try_from(index).ok());
            if let Some(place) = index.and_then(|index| map.get_mut(index)) {
                *place = word;
            }
        }
        self.user_enable & !before
    }
}

fn vector_word(map: &[VectorMap], array: fpga_regs::Array, register: u64) -> Option<VectorMap> {
    let index = usize::try_from(array.index(register)?).ok()?;
    map.get(index).copied()
}

/// The new value of a register that has one to set its bits behind it, and one to clear them behind that.
fn written(old: u32, value: u32, register: u64, plain: u64) -> u32 {
    match register.checked_sub(plain) {
        Some(0) => value,
        Some(4) => old | value,
        Some(8) => old & !value,
        _ => old,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[derive(Default)]
    struct Signalled(RefCell<Vec<usize>>);

    impl Interrupts for Signalled {
        fn signal(&self, vector: usize) {
            self.0.borrow_mut().push(vector);
        }
    }

    #[test]
    fn an_interrupt_goes_to_the_vector_it_is_routed_to_if_it_is_enabled() {
        let vectors = Signalled::default();
        let mut core = Xdma::default();
        core.write(x::INTERRUPT_BLOCK + x::USER_VECTOR_MAP.at(1), 0x0706_1f04);
        core.signal(5, &vectors);
        assert!(vectors.0.take().is_empty());
        let set = x::INTERRUPT_BLOCK + x::USER_INTERRUPT_ENABLE_SET;
        assert_eq!(core.write(set, 0x60), 0x60);
        assert_eq!(core.write(set, 0x21), 0x01, "only what is new");
        for interrupt in [5, 6, 7] {
            core.signal(interrupt, &vectors);
        }
        assert_eq!(vectors.0.take(), [31, 6]);
        core.write(x::INTERRUPT_BLOCK + x::USER_INTERRUPT_ENABLE_CLEAR, 0x20);
        assert_eq!(core.read(x::INTERRUPT_BLOCK + x::USER_INTERRUPT_ENABLE, 0), 0x41);
        assert_eq!(core.read(x::INTERRUPT_BLOCK + x::USER_REQUEST, 0x60), 0x40);
        assert_eq!(core.read(x::INTERRUPT_BLOCK + x::USER_PENDING, 0x60), 0x60);
        assert_eq!(core.read(x::INTERRUPT_BLOCK + x::USER_VECTOR_MAP.at(1), 0), 0x0706_1f04);
    }

    #[test]
    fn engines_identify_themselves_and_keep_their_control_bits() {
        let mut core = Xdma::default();
        assert_eq!(core.read(0x0200, 0), 0x1fc0_0200);
        assert_eq!(core.read(0x1100, 0), 0x1fc1_0100);
        assert_eq!(core.read(0x0300, 0), 0, "there is no fourth channel");
        core.write(0x1104, 7);
        core.write(0x110c, 2);
        assert_eq!((core.read(0x1104, 0), core.read(0x0104, 0)), (5, 0));
        core.write(0x1108, 8);
        assert_eq!(core.read(0x1104, 0), 13);
    }

    #[test]
    fn the_msix_table_has_32_masked_entries_and_keeps_what_is_written() {
        let mut core = Xdma::default();
        assert_eq!(core.read(MSIX_TABLE_OFFSET + 31 * 16 + 12, 0), 1);
        core.write(MSIX_TABLE_OFFSET + 31 * 16 + 8, 0x4041);
        assert_eq!(core.read(MSIX_TABLE_OFFSET + 31 * 16 + 8, 0), 0x4041);
        core.write(MSIX_TABLE_OFFSET + 32 * 16, 1);
        assert_eq!(core.read(MSIX_TABLE_OFFSET + 32 * 16, 0), 0);
        assert_eq!(core.read(MSIX_PBA_OFFSET, 0), 0);
    }
}
