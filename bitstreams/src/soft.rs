//! Images of software cards: the logic of each vFPGA.
//!
//! | byte | content |
//! |---|---|
//! | 0 | `89 62 61 6c 62 6f 61 0a`, by which the file is known |
//! | 8 | version of the format, 1 |
//! | 12 | bytes of the whole file |
//! | 16 | SHA-256 of the bytes from 48 on |
//! | 48 | vFPGAs, 1 to 15; of an image of one vFPGA alone 128 and its number, 0 to 14 |
//! | 49 | for each vFPGA, or for that one, the name of its logic: 16 bytes, filled up with 0 |
//! | behind | 0, as far as the file goes: filling, by which an image is as long as one of a real card |
//!
//! Words have 32 bits, lowest byte first. The same logic makes the same bytes.

use std::fmt;
use std::str::FromStr;

use fpga_regs::coyote::vfpga::MAX_VFPGAS;

use crate::bytes::{array, le32};
use crate::digest::{Hasher, Sha256};

const MAGIC: [u8; 8] = *b"\x89balboa\n";
const VERSION: u32 = 1;
const VERSION_AT: usize = 8;
const LENGTH_AT: usize = 12;
const DIGEST_AT: usize = 16;
const BODY_AT: usize = 48;
const NAME_BYTES: usize = 16;
/// Marks, in the number's byte, the image of one vFPGA alone.
const ALONE: u8 = 0x80;
/// Bytes that all but filling lies in.
const HEAD_BYTES: usize = BODY_AT + 1 + MAX_VFPGAS as usize * NAME_BYTES;

/// The logic of a vFPGA of a software card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logic {
    /// The verbs queue engine.
    Vqe,
    /// The published example's pass-through logic, over a model of the published stack.
    Stock,
    /// Logic of another crate, over the queue engine's stack, which the program that runs the card has.
    Other(Name),
}

/// The name of logic that is not this project's: 1 to 16 small letters, digits and hyphens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name([u8; NAME_BYTES]);

impl Name {
    /// It as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default().trim_end_matches('\0')
    }

    /// The name that is written like that, if it can be one.
    fn of(text: &str) -> Option<Self> {
        let is_letter = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
        let mut bytes = [0; NAME_BYTES];
        bytes.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
        let fits = !text.is_empty() && text.bytes().all(is_letter);
        fits.then_some(Self(bytes))
    }
}

impl Logic {
    /// All that are this project's.
    pub const ALL: [Self; 2] = [Self::Vqe, Self::Stock];

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Vqe => "vqe",
            Self::Stock => "stock",
            Self::Other(name) => name.as_str(),
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
        let own = Self::ALL.into_iter().find(|logic| logic.name() == text);
        own.or_else(|| Name::of(text).map(Self::Other)).ok_or_else(|| {
            format!(
                "software cards have no logic `{}`; write vqe, stock, or the name of another: small letters, digits and hyphens, {NAME_BYTES} at most",
                text.escape_default()
            )
        })
    }
}

/// The image of a software card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SoftImage {
    logic: Vec<Logic>,
    /// The vFPGA that it is of alone.
    alone: Option<u8>,
    /// Bytes behind the last name.
    filling: usize,
}

impl SoftImage {
    /// The image with this logic, vFPGA by vFPGA.
    ///
    /// # Errors
    /// When there are too few or too many, or one wants another network than the others.
    pub fn new(logic: Vec<Logic>) -> Result<Self, String> {
        let other = logic.iter().find(|it| **it != Logic::Stock);
        match (logic.len(), other) {
            (count, _) if count == 0 || count as u64 > MAX_VFPGAS => Err(too_many(count)),
            (_, Some(other)) if logic.contains(&Logic::Stock) => Err(format!(
                "it has {other} beside stock, which want different networks; a card has one"
            )),
            _ => Ok(Self { logic, alone: None, filling: 0 }),
        }
    }

    /// The image of one vFPGA alone, for a card that has others beside it.
    ///
    /// # Errors
    /// When no card has a vFPGA of that number.
    pub fn of_one(vfpga: u8, logic: Logic) -> Result<Self, String> {
        match u64::from(vfpga) < MAX_VFPGAS {
            true => Ok(Self { logic: vec![logic], alone: Some(vfpga), filling: 0 }),
            false => Err(format!(
                "it is of vFPGA {vfpga}; a card has them from 0 to {}",
                MAX_VFPGAS.saturating_sub(1)
            )),
        }
    }

    /// It, filled up to so many bytes.
    ///
    /// # Errors
    /// When it has more without filling, or a file has no room for that many.
    pub fn filled_to(mut self, bytes: u32) -> Result<Self, String> {
        self.filling = 0;
        let least = self.to_bytes().len();
        let filling = usize::try_from(bytes).ok().and_then(|bytes| bytes.checked_sub(least));
        self.filling = filling.ok_or_else(|| format!("it has {least} bytes without filling"))?;
        Ok(self)
    }

    /// The vFPGA that it is of alone; `None` where it is of a whole card.
    #[must_use]
    pub fn alone(&self) -> Option<u8> {
        self.alone
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
        let count = u8::try_from(self.logic.len()).unwrap_or(u8::MAX);
        let mut body = vec![self.alone.map_or(count, |vfpga| ALONE | vfpga)];
        for logic in &self.logic {
            body.extend(logic.name().bytes().chain(std::iter::repeat(0)).take(NAME_BYTES));
        }
        body.resize(body.len().saturating_add(self.filling), 0);
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
    /// The fault, and the expected value.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let mut reader = Reader::default();
        reader.feed(bytes);
        reader.finish()
    }
}

/// A file that comes in pieces, of which only the needed bytes are kept.
#[derive(Clone, Debug, Default)]
pub struct Reader {
    /// The file's first bytes, [`HEAD_BYTES`] of them.
    head: Vec<u8>,
    /// Bytes of the file so far.
    length: usize,
    /// The digest of the bytes behind the digest's place.
    body: Hasher,
    /// Something else than 0 was behind the head.
    spoilt: bool,
}

impl Reader {
    /// Takes the next bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        let missing = HEAD_BYTES.saturating_sub(self.head.len()).min(bytes.len());
        let (head, behind) = bytes.split_at_checked(missing).unwrap_or((bytes, &[]));
        self.head.extend_from_slice(head);
        self.spoilt |= behind.iter().any(|byte| *byte != 0);
        let before = BODY_AT.saturating_sub(self.length).min(bytes.len());
        self.body.update(bytes.get(before..).unwrap_or_default());
        self.length = self.length.saturating_add(bytes.len());
    }

    /// The part of a card for which the file is, as far as the bytes so far tell.
    #[must_use]
    pub fn scope(&self) -> Scope {
        match self.head.get(BODY_AT) {
            Some(first) if SoftImage::begins(&self.head) && first & ALONE != 0 => {
                Scope::One(first & !ALONE)
            }
            None if SoftImage::begins(&self.head) => Scope::Unknown,
            _ => Scope::Card,
        }
    }

    /// The image in the whole file.
    ///
    /// # Errors
    /// The fault, and the expected value.
    pub fn finish(self) -> Result<SoftImage, String> {
        let cut = || "it is truncated: it ends within its head; copy it again".to_owned();
        let Self { head, length: there, body, spoilt } = self;
        if !SoftImage::begins(&head) {
            return Err("it does not begin as an image of a software card".into());
        }
        let version = le32(&head, VERSION_AT).ok_or_else(cut)?;
        if version != VERSION {
            return Err(format!("its format is {version}, and only {VERSION} is known here"));
        }
        let length = le32(&head, LENGTH_AT).and_then(|length| usize::try_from(length).ok());
        let length = length.ok_or_else(cut)?;
        if there != length {
            let how = if there < length { "truncated" } else { "too long" };
            return Err(format!(
                "it is {how}: it says {length} bytes and has {there}; copy it again"
            ));
        }
        let said = Sha256(array(&head, DIGEST_AT).ok_or_else(cut)?);
        let behind = head.get(BODY_AT..).ok_or_else(cut)?;
        let found = body.finish();
        if said != found {
            return Err(format!("its SHA-256 is {found}, and it says {said}; copy it again"));
        }
        let (count, names) = behind.split_first().ok_or_else(cut)?;
        let alone = (count & ALONE != 0).then_some(count & !ALONE);
        if alone.is_none() && u64::from(*count) > MAX_VFPGAS {
            return Err(too_many(usize::from(*count)));
        }
        let count = if alone.is_some() { 1 } else { *count };
        let wanted = usize::from(count).saturating_mul(NAME_BYTES);
        let (names, filling) = names.split_at_checked(wanted).ok_or_else(|| {
            let there = names.len();
            format!("it says {count} vFPGAs, whose names have {wanted} bytes, and has {there}")
        })?;
        if spoilt || filling.iter().any(|byte| *byte != 0) {
            return Err("behind the names of its logic is something else than 0".into());
        }
        let logic: Result<Vec<_>, _> = names.chunks_exact(NAME_BYTES).map(logic_of).collect();
        let filling = there.saturating_sub(BODY_AT.saturating_add(1)).saturating_sub(wanted);
        let image = match (alone, logic?.as_slice()) {
            (Some(vfpga), [logic]) => SoftImage::of_one(vfpga, *logic)?,
            (_, logic) => SoftImage::new(logic.to_vec())?,
        };
        Ok(SoftImage { filling, ..image })
    }
}

/// The part of a card for which a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Not enough of it came.
    Unknown,
    /// A whole card, or no image.
    Card,
    /// One vFPGA alone, if it is an image.
    One(u8),
}

/// Why there is no card with so many vFPGAs.
fn too_many(count: usize) -> String {
    format!("it has logic for {count} vFPGAs; a card has 1 to {MAX_VFPGAS}")
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
    fn an_image_with_filling_is_read_in_any_pieces() {
        let filled = image(2).filled_to(1000).unwrap();
        let bytes = filled.to_bytes();
        assert_eq!(bytes.len(), 1000);
        for piece in [1, 7, 47, 48, 49, 289, 290, 999, 1000] {
            let mut reader = Reader::default();
            bytes.chunks(piece).for_each(|piece| reader.feed(piece));
            assert_eq!(reader.finish().as_ref(), Ok(&filled), "pieces of {piece} bytes");
        }
        assert_ne!(filled, image(2));
        assert!(image(2).filled_to(80).unwrap_err().contains("81 bytes without filling"));
        for at in [81, 288, 289, 999] {
            let mut body = bytes[BODY_AT..].to_vec();
            body[at - BODY_AT] = 1;
            let why = SoftImage::parse(&with_body(&body)).unwrap_err();
            assert!(why.contains("something else than 0"), "{at}: {why}");
        }
    }

    #[test]
    fn logic_of_others_is_kept_by_its_name() {
        for text in ["echo", "a", "sixteen-letters-"] {
            let logic: Logic = text.parse().unwrap();
            assert_eq!((logic.name(), logic.to_string().as_str()), (text, text));
            let image = SoftImage::new(vec![Logic::Vqe, logic]).unwrap();
            assert_eq!(SoftImage::parse(&image.to_bytes()), Ok(image));
        }
        for text in ["", "Echo", "e cho", "echo\0", "écho", "seventeen-letters"] {
            assert!(text.parse::<Logic>().unwrap_err().contains("small letters"), "{text:?}");
        }
    }

    #[test]
    fn a_card_has_one_network() {
        let echo: Logic = "echo".parse().unwrap();
        assert!(
            SoftImage::new(vec![echo, Logic::Stock]).unwrap_err().contains("echo beside stock")
        );
        let why = SoftImage::new(vec![Logic::Vqe, Logic::Stock]).unwrap_err();
        assert!(why.contains("vqe beside stock"), "{why}");
        let published = SoftImage::new(vec![Logic::Stock; 2]).unwrap();
        assert_eq!(SoftImage::parse(&published.to_bytes()), Ok(published));
    }

    #[test]
    fn an_image_of_one_vfpga_says_which_as_soon_as_its_head_is_there() {
        for vfpga in [0, 3, 14] {
            let one = SoftImage::of_one(vfpga, Logic::Vqe).unwrap().filled_to(300).unwrap();
            let bytes = one.to_bytes();
            assert_eq!(SoftImage::parse(&bytes), Ok(one.clone()));
            assert_eq!((one.alone(), one.logic()), (Some(vfpga), &[Logic::Vqe][..]));
            for (length, scope) in [(48, Scope::Unknown), (49, Scope::One(vfpga))] {
                let mut reader = Reader::default();
                reader.feed(&bytes[..length]);
                assert_eq!(reader.scope(), scope);
            }
        }
        let mut reader = Reader::default();
        reader.feed(&image(2).to_bytes());
        assert_eq!(reader.scope(), Scope::Card);
        let mut reader = Reader::default();
        reader.feed(b"no image");
        assert_eq!(reader.scope(), Scope::Card);
        assert!(SoftImage::of_one(15, Logic::Vqe).unwrap_err().contains("from 0 to 14"));
        let body = |first: u8| [&[first][..], b"vqe\0\0\0\0\0\0\0\0\0\0\0\0\0"].concat();
        assert!(SoftImage::parse(&with_body(&body(0x82))).is_ok());
        assert!(SoftImage::parse(&with_body(&body(0x8f))).unwrap_err().contains("vFPGA 15"));
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
        let mut name = *b"\x01Pass_through\0\0\0\0";
        let why = SoftImage::parse(&with_body(&name)).unwrap_err();
        assert!(
            why.starts_with("software cards have no logic `Pass_through`; write vqe, stock, or")
        );
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
