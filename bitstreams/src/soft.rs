//! Images of software cards: which logic is in each vFPGA.
//!
//! | byte | what |
//! |---|---|
//! | 0 | `89 62 61 6c 62 6f 61 0a`, by which the file is known |
//! | 8 | version of the format, 1 |
//! | 12 | bytes of the whole file |
//! | 16 | SHA-256 of what is behind it, from byte 48 on |
//! | 48 | vFPGAs, 1 to 15 |
//! | 49 | for each vFPGA the name of its logic: 16 bytes, filled up with 0 |
//!
//! Words have 32 bits, lowest byte first. The same logic makes the same bytes.

use std::fmt;
use std::str::FromStr;

use fpga_regs::coyote::vfpga::MAX_VFPGAS;

use crate::bytes::{array, le32};
use crate::digest::Sha256;

const MAGIC: [u8; 8] = *b"\x89balboa\n";
const VERSION: u32 = 1;
const VERSION_AT: usize = 8;
const LENGTH_AT: usize = 12;
const DIGEST_AT: usize = 16;
const BODY_AT: usize = 48;
const NAME_BYTES: usize = 16;

/// The logic of a vFPGA of a software card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logic {
    /// The verbs queue engine.
    Vqe,
}

impl Logic {
    /// All there are.
    const ALL: [Self; 1] = [Self::Vqe];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Vqe => "vqe",
        }
    }
}

impl fmt::Display for Logic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Logic {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|logic| logic.name() == text).ok_or_else(|| {
            format!("software cards have no logic `{}`; write vqe", text.escape_default())
        })
    }
}

/// The image of a software card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SoftImage {
    logic: Vec<Logic>,
}

impl SoftImage {
    /// The image with this logic, vFPGA by vFPGA.
    ///
    /// # Errors
    /// When there are too few or too many.
    pub fn new(logic: Vec<Logic>) -> Result<Self, String> {
        match logic.len() {
            count if count == 0 || count as u64 > MAX_VFPGAS => {
                Err(format!("it has logic for {count} vFPGAs; a card has 1 to {MAX_VFPGAS}"))
            }
            _ => Ok(Self { logic }),
        }
    }

    /// The logic, vFPGA by vFPGA.
    #[must_use]
    pub fn logic(&self) -> &[Logic] {
        &self.logic
    }

    /// Whether these are the first bytes of such an image.
    #[must_use]
    pub fn begins(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC)
    }

    /// It as a file.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut body = vec![u8::try_from(self.logic.len()).unwrap_or(u8::MAX)];
        for logic in &self.logic {
            body.extend(logic.name().bytes().chain(std::iter::repeat(0)).take(NAME_BYTES));
        }
        let length = u32::try_from(body.len().saturating_add(BODY_AT)).unwrap_or(u32::MAX);
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(length.to_le_bytes());
        bytes.extend(Sha256::of(&body).0);
        bytes.extend(body);
        bytes
    }

    /// Parses a file.
    ///
    /// # Errors
    /// What is wrong, and what would be right.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let cut = || "it is truncated: it ends within its head; copy it again".to_owned();
        if !Self::begins(bytes) {
            return Err("it does not begin as an image of a software card".into());
        }
        let version = le32(bytes, VERSION_AT).ok_or_else(cut)?;
        if version != VERSION {
            return Err(format!("its format is {version}, and only {VERSION} is known here"));
        }
        let length = u64::from(le32(bytes, LENGTH_AT).ok_or_else(cut)?);
        let there = bytes.len() as u64;
        if there != length {
            let how = if there < length { "truncated" } else { "too long" };
            return Err(format!(
                "it is {how}: it says {length} bytes and has {there}; copy it again"
            ));
        }
        let said = Sha256(array(bytes, DIGEST_AT).ok_or_else(cut)?);
        let body = bytes.get(BODY_AT..).ok_or_else(cut)?;
        let found = Sha256::of(body);
        if said != found {
            return Err(format!("its SHA-256 is {found}, and it says {said}; copy it again"));
        }
        let (count, names) = body.split_first().ok_or_else(cut)?;
        let wanted = usize::from(*count).saturating_mul(NAME_BYTES);
        if names.len() != wanted {
            let there = names.len();
            return Err(format!(
                "it says {count} vFPGAs, whose names have {wanted} bytes, and has {there}"
            ));
        }
        let logic: Result<_, _> = names.chunks_exact(NAME_BYTES).map(logic_of).collect();
        Self::new(logic?)
    }
}

/// The logic that a name with its filling says.
fn logic_of(field: &[u8]) -> Result<Logic, String> {
    let length = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    let (name, filling) = field.split_at(length);
    if filling.iter().any(|byte| *byte != 0) {
        return Err("the name of a logic is followed by something else than 0".into());
    }
    let name = std::str::from_utf8(name).map_err(|_| "the name of a logic is no text")?;
    name.parse()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(count: usize) -> SoftImage {
        SoftImage::new(vec![Logic::Vqe; count]).unwrap()
    }

    /// A file with another body, whose length and digest are right.
    fn with_body(body: &[u8]) -> Vec<u8> {
        let mut bytes = image(1).to_bytes();
        bytes.truncate(BODY_AT);
        bytes.extend(body);
        let length = u32::try_from(bytes.len()).unwrap();
        bytes[LENGTH_AT..LENGTH_AT + 4].copy_from_slice(&length.to_le_bytes());
        bytes[DIGEST_AT..BODY_AT].copy_from_slice(&Sha256::of(body).0);
        bytes
    }

    #[test]
    fn an_image_reads_as_it_was_made() {
        for count in [1, 2, 15] {
            assert_eq!(SoftImage::parse(&image(count).to_bytes()), Ok(image(count)));
        }
    }

    #[test]
    fn a_card_has_1_to_15_vfpgas() {
        for count in [0, 16] {
            let why = SoftImage::new(vec![Logic::Vqe; count]).unwrap_err();
            assert!(why.contains("1 to 15"), "{why}");
        }
    }

    #[test]
    fn every_bit_that_is_changed_and_every_byte_that_is_missing_is_seen() {
        let whole = image(2).to_bytes();
        for bit in 0..whole.len() * 8 {
            let mut spoilt = whole.clone();
            spoilt[bit / 8] ^= 1 << (bit % 8);
            assert!(SoftImage::parse(&spoilt).is_err(), "bit {bit}");
        }
        for length in 0..whole.len() {
            assert!(SoftImage::parse(&whole[..length]).is_err(), "{length} bytes");
        }
        let longer = [&whole[..], &[0]].concat();
        assert!(SoftImage::parse(&longer).unwrap_err().contains("too long"));
    }

    #[test]
    fn an_image_with_what_is_not_known_is_refused_by_name() {
        let mut name = *b"\x01pass-through\0\0\0\0";
        let why = SoftImage::parse(&with_body(&name)).unwrap_err();
        assert_eq!(why, "software cards have no logic `pass-through`; write vqe");
        name[1..].copy_from_slice(b"vqe\0\0\0\0\0\0\0\0\0\0\0\0x");
        assert!(SoftImage::parse(&with_body(&name)).unwrap_err().contains("something else than 0"));
        assert!(SoftImage::parse(&with_body(&[0])).unwrap_err().contains("1 to 15"));
        assert!(SoftImage::parse(&with_body(&[2, 0])).unwrap_err().contains("2 vFPGAs"));
        assert!(SoftImage::parse(&with_body(&[])).unwrap_err().contains("truncated"));
        let mut newer = image(1).to_bytes();
        newer[VERSION_AT] = 2;
        assert!(SoftImage::parse(&newer).unwrap_err().contains("format is 2"));
    }
}
