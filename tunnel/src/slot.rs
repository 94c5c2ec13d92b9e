//! Slots as bytes.

use fpga_regs::Block;
use fpga_regs::engine::tunnel::{SLOT_BYTES, SlotFlags, SlotHeader};

use crate::mac::Key;

/// Bytes of a header.
const HEADER: usize = 64;

/// Makes the bytes of a slot, whose header says how many of them are payload.
pub fn write(header: &SlotHeader, payload: &[u8], key: &Key, into: &mut Vec<u8>) {
    let [block] = SlotHeader { mac: 0, ..*header }.encode();
    let mac = key.mac(&block, payload);
    let [block] = SlotHeader { mac, ..*header }.encode();
    into.clear();
    into.extend(block.iter().flat_map(|word| word.to_le_bytes()));
    into.extend_from_slice(payload);
    into.resize(header.slot_bytes(), 0);
}

/// The header in a slot's place, which may hold any bytes.
fn peek(bytes: &[u8]) -> Option<SlotHeader> {
    let (bytes, _) = bytes.split_first_chunk::<HEADER>()?;
    let mut block: Block = [0; 8];
    for (word, chunk) in block.iter_mut().zip(bytes.chunks_exact(8)) {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(chunk);
        *word = u64::from_le_bytes(bytes);
    }
    Some(SlotHeader::decode(&[block]))
}

/// The slot with a number, and its payload, in a copy of its place; `None` where it is not there, or not yet whole. For
/// the flags `key_of` says which key it has.
pub(crate) fn read(
    copy: &[u8],
    sequence: u64,
    key_of: impl Fn(SlotFlags) -> Option<Key>,
) -> Option<(SlotHeader, &[u8])> {
    let header = peek(copy)?;
    if header.number != sequence || !header.is_sound() || copy.len() > SLOT_BYTES {
        return None;
    }
    let payload = copy.get(HEADER..)?.get(..header.bytes.into())?;
    let [block] = SlotHeader { mac: 0, ..header }.encode();
    let key = key_of(header.flags)?;
    (key.mac(&block, payload) == header.mac).then_some((header, payload))
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::unwrap_used, reason = "tests may fail")]
mod tests {
    use fpga_regs::engine::tunnel::SlotOperation;

    use super::*;

    #[test]
    fn a_slot_comes_out_as_it_went_in_and_no_changed_byte_passes() {
        let key = Key::new([3; 16]);
        let payload: Vec<u8> = (0..100).collect();
        let header = SlotHeader {
            operation: SlotOperation::Send,
            bytes: 100,
            length: 100,
            number: 33,
            ..SlotHeader::default()
        };
        let mut bytes = Vec::new();
        write(&header, &payload, &key, &mut bytes);
        assert_eq!(bytes.len(), 192);
        let (found, found_payload) = read(&bytes, 33, |_| Some(key)).unwrap();
        assert_eq!(SlotHeader { mac: 0, ..found }, header);
        assert_eq!(found_payload, payload);
        assert!(read(&bytes, 1, |_| Some(key)).is_none(), "a slot of another lap");
        assert!(read(&bytes, 33, |_| None).is_none());
        // Reserved bytes and padding mean nothing.
        for index in (0..164).filter(|index| !matches!(index, 6 | 7 | 0x30..0x38)) {
            let mut changed = bytes.clone();
            changed[index] ^= 1;
            assert!(read(&changed, 33, |_| Some(key)).is_none(), "byte {index}");
        }
        for length in 0..164 {
            assert!(read(&bytes[..length], 33, |_| Some(key)).is_none(), "{length} bytes of it");
        }
    }
}
