//! Atomics on a word of the other side's: each answers the value before it, and counts once.

use anyhow::{Result, ensure};
use verbs_sys::current::verbs as v;

use super::{Half, RIGHTS};
use crate::data::link::success;
use crate::ffi::{Atomic, AtomicOperation};

use AtomicOperation::{CompareSwap, FetchAdd};

/// The value of the word before: the first addition carries through every byte of it.
const FIRST: u64 = 0x00ff_ffff_ffff_fffe;
/// The offset of the word, and its guard.
const AT: usize = 4096 - 8;
const BESIDE: u8 = 0x5a;
/// Bytes from one result to the next.
const RESULT: usize = 16;

/// The atomics, in this order. No value has the same bytes from behind.
const ATOMICS: [AtomicOperation; 8] = [
    FetchAdd { add: 5 },
    CompareSwap { compare: FIRST + 5, swap: 0x0102_0304_0506_0708 },
    FetchAdd { add: 0 },
    // It finds another value, and swaps nothing.
    CompareSwap { compare: FIRST, swap: 7 },
    FetchAdd { add: 0x8000_0000_0000_0000 },
    FetchAdd { add: 0x8000_0000_0000_0001 },
    CompareSwap { compare: 0x0102_0304_0506_0709, swap: u64::MAX },
    // It wraps around.
    FetchAdd { add: 2 },
];

/// The answer of each, and the word's value in the end.
fn expected() -> ([u64; ATOMICS.len()], u64) {
    let mut word = FIRST;
    let answers = ATOMICS.map(|atomic| {
        let before = word;
        word = match atomic {
            FetchAdd { add } => word.wrapping_add(add),
            CompareSwap { compare, swap } if word == compare => swap,
            CompareSwap { .. } => word,
        };
        before
    });
    (answers, word)
}

/// Both sides' atomics, of which more are posted than the QP may have under way; answers how many.
pub(super) fn run(half: &mut Half<'_>) -> Result<usize> {
    let words = half.second_region(RIGHTS)?;
    let (answers, last) = expected();
    for sender in [0, 1] {
        words.region.write(0, &[BESIDE; 2 * 4096]);
        words.region.write(AT, &FIRST.to_ne_bytes());
        half.line.meet()?;
        if sender == half.line.role {
            let side = half.side;
            for (operation, number) in ATOMICS.into_iter().zip(0..) {
                let result = vec![words.region.piece(RESULT * number, 8)];
                let remote = (words.far.0 + AT as u64, words.far.1);
                let atomic = Atomic { wr_id: number as u64, operation, result, remote };
                side.qp.post_atomic(&atomic)?;
            }
            for (number, (operation, answer)) in ATOMICS.into_iter().zip(answers).enumerate() {
                let done = success(side.context.library(), &side.send_cq)?;
                let opcode = match operation {
                    FetchAdd { .. } => v::IBV_WC_FETCH_ADD,
                    CompareSwap { .. } => v::IBV_WC_COMP_SWAP,
                };
                let told = (done.wr_id, done.opcode, done.byte_len);
                ensure!(told == (number as u64, opcode, 8), "{done:?}");
                let mut bytes = [0; RESULT];
                words.region.read(RESULT * number, &mut bytes);
                let (value, beside) = bytes.split_at(8);
                let value = u64::from_ne_bytes(value.try_into()?);
                ensure!(value == answer, "{operation:?} answers {value:#x}, not {answer:#x}");
                ensure!(beside == [BESIDE; 8], "something was written behind a result");
            }
        }
        half.line.meet()?;
        if sender != half.line.role {
            let mut bytes = [0; 2 * 4096];
            words.region.read(0, &mut bytes);
            let mut right = [BESIDE; 2 * 4096];
            right[AT..AT + 8].copy_from_slice(&last.to_ne_bytes());
            ensure!(bytes == right, "the word is {:02x?}, not {last:#x}", &bytes[AT..AT + 8]);
        }
    }
    Ok(2 * ATOMICS.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_swap_but_one_finds_what_it_compares_with() {
        let (answers, last) = expected();
        let found = ATOMICS.into_iter().zip(answers).filter(
            |(atomic, before)| matches!(atomic, CompareSwap { compare, .. } if compare == before),
        );
        assert_eq!((found.count(), last), (2, 1));
    }
}
