//! Programmable device images of Versal devices: the device and design named in a `.pdi` file.
//!
//! Only its boot header and image header table are read. (Sources: the boot header's and the image
//! header table's layouts as bootgen, which is public, writes and prints them; AM011 for IDCODE.)

use crate::bytes::{array, le32};
use crate::part::{self, Part};

/// Where the word is that the width of a configuration port is detected by, and its value.
const WIDTH: (usize, u32) = (0x10, 0xaa99_5566);
/// The offset of the boot header's identification, and its word: `XLNX`.
const IDENTIFICATION: (usize, u32) = (0x14, 0x584c_4e58);
/// Where it says how long the loader and manager's code is.
const LOADER_LENGTH: usize = 0x2c;
/// Where it says where the image header table is.
const TABLE_OFFSET: usize = 0xc4;
/// The offset of its checksum, which covers the bytes between the width word and itself.
const CHECKSUM: usize = 0xf30;

/// Offsets in the image header table.
mod table {
    pub const VERSION: usize = 0;
    pub const IDCODE: usize = 0x18;
    pub const IDENTIFICATION: usize = 0x28;
    pub const EXTENDED_IDCODE: usize = 0x44;
    /// The sum of all words before it.
    pub const CHECKSUM: usize = 0x7c;
}

/// `FPDI`: all that a device needs to boot.
const FULL: u32 = 0x4650_4449;
/// `PPDI`: a part, loaded into a device that runs.
const PARTIAL: u32 = 0x5050_4449;

/// The identity of a device image, by its headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pdi {
    /// Bytes of the platform loader and manager's code, which a partial image has not.
    pub loader_bytes: u32,
    /// The image header table; `None` where it cannot be read, as in an encrypted image.
    pub table: Option<Table>,
}

/// The image header table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// The version of the format.
    pub version: u32,
    /// The IDCODE of the device that it is for.
    pub idcode: u32,
    /// The rest of that, which tells devices with one IDCODE apart.
    pub extended_idcode: u32,
    /// Whether it is all that a device boots from, and no part.
    pub full: bool,
}

impl Pdi {
    /// Whether these are the first bytes of a device image.
    #[must_use]
    pub fn begins(bytes: &[u8]) -> bool {
        le32(bytes, IDENTIFICATION.0) == Some(IDENTIFICATION.1)
            && le32(bytes, WIDTH.0) == Some(WIDTH.1)
    }

    /// Reads the identity of a device image.
    ///
    /// # Errors
    /// The fault, and the expected value.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        if !Self::begins(bytes) {
            return Err("it does not begin as a device image (.pdi)".into());
        }
        let cut = || "it is truncated: it ends within its boot header; copy it again".to_owned();
        let sum = checksum(bytes, WIDTH.0, CHECKSUM).ok_or_else(cut)?;
        let said = le32(bytes, CHECKSUM).ok_or_else(cut)?;
        if sum != said {
            return Err(format!(
                "its boot header's checksum is {said:#010x}, and should be {sum:#010x}; copy it again"
            ));
        }
        let at = le32(bytes, TABLE_OFFSET).ok_or_else(cut)?;
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        if at >= bytes.len() {
            return Err(format!(
                "it is truncated: its image header table is to be at byte {at}, and it has {}; copy it again",
                bytes.len()
            ));
        }
        let loader_bytes = le32(bytes, LOADER_LENGTH).ok_or_else(cut)?;
        Ok(Self { loader_bytes, table: Table::parse(bytes.get(at..).unwrap_or_default()) })
    }

    /// The parts that it is for: all that have its IDCODE.
    #[must_use]
    pub fn parts(&self) -> Vec<&'static Part> {
        self.table.iter().flat_map(|table| part::of_idcode(table.idcode)).collect()
    }
}

impl Table {
    /// `None` where its checksum or its identification is not one's.
    fn parse(bytes: &[u8]) -> Option<Self> {
        if checksum(bytes, 0, table::CHECKSUM)? != le32(bytes, table::CHECKSUM)? {
            return None;
        }
        let full = match le32(bytes, table::IDENTIFICATION)? {
            FULL => true,
            PARTIAL => false,
            _ => return None,
        };
        Some(Self {
            version: le32(bytes, table::VERSION)?,
            idcode: le32(bytes, table::IDCODE)?,
            extended_idcode: le32(bytes, table::EXTENDED_IDCODE)?,
            full,
        })
    }
}

/// The complement of the sum of the words from `start` to `end`; `None` where they are not all there.
fn checksum(bytes: &[u8], start: usize, end: usize) -> Option<u32> {
    let words = bytes.get(start..end)?.chunks_exact(4);
    Some(
        !words.filter_map(|word| array(word, 0)).map(u32::from_le_bytes).fold(0, u32::wrapping_add),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An image with a table of a kind, made as the layout says.
    fn image(identification: u32) -> Vec<u8> {
        let mut bytes = vec![0; 0x2000];
        let mut put = |at: usize, word: u32| bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        put(WIDTH.0, WIDTH.1);
        put(IDENTIFICATION.0, IDENTIFICATION.1);
        put(LOADER_LENGTH, 77);
        put(TABLE_OFFSET, 0x1000);
        put(0x1000, 0x4_0000);
        put(0x1018, 0x14d1_4093);
        put(0x1028, identification);
        put(0x1044, 9);
        let sums = [(WIDTH.0, CHECKSUM), (0x1000, 0x107c)]
            .map(|(start, end)| (end, checksum(&bytes, start, end).unwrap()));
        for (end, sum) in sums {
            bytes[end..end + 4].copy_from_slice(&sum.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn a_device_image_says_what_it_is_for() {
        for (identification, full) in [(FULL, true), (PARTIAL, false)] {
            let pdi = Pdi::parse(&image(identification)).unwrap();
            let (version, idcode) = (0x4_0000, 0x14d1_4093);
            let table = Table { version, idcode, extended_idcode: 9, full };
            assert_eq!(pdi, Pdi { loader_bytes: 77, table: Some(table) });
        }
    }

    #[test]
    fn a_table_that_cannot_be_read_says_nothing() {
        assert_eq!(Pdi::parse(&image(1)).unwrap().table, None);
        let mut bytes = image(FULL);
        bytes[0x1018] ^= 1;
        assert_eq!(Pdi::parse(&bytes).unwrap().table, None);
        assert_eq!(Pdi::parse(&image(FULL)[..0x1050]).unwrap().table, None);
    }

    #[test]
    fn a_spoilt_or_truncated_device_image_is_refused() {
        let whole = image(FULL);
        let mut spoilt = whole.clone();
        spoilt[0x40] ^= 1;
        assert!(Pdi::parse(&spoilt).unwrap_err().contains("boot header's checksum"));
        for length in [0x20, 0xf31, 0x1000] {
            assert!(Pdi::parse(&whole[..length]).unwrap_err().contains("truncated"), "{length}");
        }
        assert!(Pdi::parse(&whole[..0x17]).unwrap_err().contains("does not begin"));
    }
}
