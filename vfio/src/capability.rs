//! The chains of capabilities that the kernel appends to its answers.
//!
//! A chain begins at an offset that the answer's fixed part names. Each capability has a header of
//! eight bytes: id (16 bits), version (16), offset of the next one from the start of the answer
//! (32), 0 for none. All numbers are in the host's byte order.

use crate::error::{Error, Result};

/// One capability of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability<'a> {
    /// Its identifier.
    pub id: u16,
    /// Version of its layout.
    pub version: u16,
    /// All of the answer from its header on.
    bytes: &'a [u8],
}

/// Bytes of a header.
const HEADER: usize = 8;

impl Capability<'_> {
    /// The 32-bit word at an offset from its header.
    fn word(&self, at: usize) -> Option<u32> {
        word(self.bytes, at)
    }

    /// The 64-bit word at an offset from its header.
    fn long(&self, at: usize) -> Option<u64> {
        let bytes = self.bytes.get(at..)?.first_chunk::<8>()?;
        Some(u64::from_ne_bytes(*bytes))
    }

    /// A list of pairs of 64-bit words behind a count at offset 8.
    fn pairs(&self) -> Result<Vec<(u64, u64)>> {
        const FIRST: usize = 16;
        let malformed = || Error::Malformed { what: "a list of ranges", why: "it is cut short" };
        let count = self.word(HEADER).ok_or_else(malformed)?;
        let mut pairs = Vec::new();
        let mut at = FIRST;
        for _ in 0..count {
            let second = at.checked_add(8).ok_or_else(malformed)?;
            let pair = self.long(at).zip(self.long(second)).ok_or_else(malformed)?;
            pairs.push(pair);
            at = second.checked_add(8).ok_or_else(malformed)?;
        }
        Ok(pairs)
    }

    /// The areas of a region that may be mapped (`VFIO_REGION_INFO_CAP_SPARSE_MMAP`): offset in the
    /// region and bytes.
    ///
    /// # Errors
    /// [`Error::Malformed`] when it is cut short.
    pub fn sparse_areas(&self) -> Result<Vec<(u64, u64)>> {
        self.pairs()
    }

    /// The addresses that may be mapped (`VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE`): first and last.
    ///
    /// # Errors
    /// [`Error::Malformed`] when it is cut short.
    pub fn iova_ranges(&self) -> Result<Vec<(u64, u64)>> {
        self.pairs()
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk::<4>()?;
    Some(u32::from_ne_bytes(*bytes))
}

/// The capabilities of an answer whose chain begins at `first`; none where that is 0.
///
/// # Errors
/// [`Error::Malformed`] when a header leaves the answer, or does not lead on.
pub fn chain(answer: &[u8], first: u32) -> Result<Vec<Capability<'_>>> {
    let malformed = |why| Error::Malformed { what: "capabilities", why };
    let mut found = Vec::new();
    let mut next = first;
    let mut before = 0;
    while next != 0 {
        // The kernel appends them in order: a link back would lead round for ever.
        if next <= before {
            return Err(malformed("one leads back"));
        }
        before = next;
        let at = usize::try_from(next).map_err(|_| malformed("one leads out"))?;
        let bytes = answer.get(at..).ok_or_else(|| malformed("one leads out"))?;
        let (id, after) = word(bytes, 0)
            .zip(word(bytes, 4))
            .ok_or_else(|| malformed("the header of one is cut short"))?;
        let [low0, low1, high0, high1] = id.to_ne_bytes();
        let id = u16::from_ne_bytes([low0, low1]);
        let version = u16::from_ne_bytes([high0, high1]);
        found.push(Capability { id, version, bytes });
        next = after;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(id: u16, next: u32) -> Vec<u8> {
        let mut bytes = id.to_ne_bytes().to_vec();
        bytes.extend(1u16.to_ne_bytes());
        bytes.extend(next.to_ne_bytes());
        bytes
    }

    /// An answer of 16 bytes, a capability 7, and one with two ranges.
    fn answer() -> Vec<u8> {
        let mut bytes = vec![0; 16];
        bytes.extend(header(7, 24));
        bytes.extend(header(1, 0));
        bytes.extend(2u32.to_ne_bytes());
        bytes.extend([0; 4]);
        for number in [0x1000u64, 0x2000, 0x8000, 0x1000] {
            bytes.extend(number.to_ne_bytes());
        }
        bytes
    }

    #[test]
    fn a_chain_is_followed_to_its_end() {
        let answer = answer();
        let found = chain(&answer, 16).unwrap();
        assert_eq!(
            found.iter().map(|it| (it.id, it.version)).collect::<Vec<_>>(),
            [(7, 1), (1, 1)]
        );
        assert_eq!(found[1].sparse_areas().unwrap(), [(0x1000, 0x2000), (0x8000, 0x1000)]);
        assert!(chain(&answer, 0).unwrap().is_empty());
    }

    #[test]
    fn no_byte_of_an_answer_makes_it_panic_or_run_for_ever() {
        let good = answer();
        for length in 0..=good.len() {
            for first in 0..=u32::try_from(good.len()).unwrap() + 1 {
                let found = chain(&good[..length], first).unwrap_or_default();
                for capability in found {
                    let _ = (capability.sparse_areas(), capability.iova_ranges());
                }
            }
        }
        for at in 0..good.len() {
            for value in [0, 1, 8, 16, 17, 24, 0x7f, 0xff] {
                let mut bad = good.clone();
                bad[at] = value;
                for capability in chain(&bad, 16).unwrap_or_default() {
                    let _ = capability.sparse_areas();
                }
            }
        }
    }

    #[test]
    fn a_chain_that_leads_back_or_out_is_refused() {
        let mut bytes = answer();
        bytes[20] = 16;
        assert!(chain(&bytes, 16).unwrap_err().to_string().contains("leads back"));
        assert!(chain(&bytes, 4096).unwrap_err().to_string().contains("leads out"));
        let short = &answer()[..60];
        let found = chain(short, 16).unwrap();
        assert!(found[1].sparse_areas().unwrap_err().to_string().contains("cut short"));
    }
}
