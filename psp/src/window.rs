//! The packets of an epoch that have come, so that none is taken twice.

use crate::param::{WINDOW, WINDOW_WORDS};

/// Which numbers have come, up to [`WINDOW`] behind the highest.
#[derive(Debug)]
pub(crate) struct Window {
    highest: u64,
    /// A ring of bits: that of a number is where its low bits say.
    words: Box<[u64; WINDOW_WORDS]>,
}

/// The word of a number's bit, not yet modulo the ring's length, and its bit.
const fn place(number: u64) -> (u64, u64) {
    (number >> 6, 1 << (number & 63))
}

impl Window {
    /// A window in which that number alone has come.
    pub(crate) fn beginning_with(number: u64) -> Self {
        let mut window = Self { highest: number, words: Box::new([0; WINDOW_WORDS]) };
        window.take(number);
        window
    }

    /// Whether a number has not come, as far as that is known.
    pub(crate) fn is_new(&self, number: u64) -> bool {
        let Some(behind) = self.highest.checked_sub(number) else { return true };
        let (word, bit) = place(number);
        behind < WINDOW && self.words.get(ring(word)).is_some_and(|word| word & bit == 0)
    }

    /// Notes that a number has come.
    pub(crate) fn take(&mut self, number: u64) {
        let (word, bit) = place(number);
        let (newest, _) = place(self.highest);
        if number > self.highest {
            // Words that the ring comes to anew.
            let skipped = word.saturating_sub(newest).min(WINDOW_WORDS as u64);
            for step in 0..skipped {
                if let Some(passed) = self.words.get_mut(ring(word.wrapping_sub(step))) {
                    *passed = 0;
                }
            }
            self.highest = number;
        }
        if let Some(word) = self.words.get_mut(ring(word)) {
            *word |= bit;
        }
    }
}

const _: () = assert!(WINDOW_WORDS.is_power_of_two());

const fn ring(word: u64) -> usize {
    // A power of two.
    word as usize & (WINDOW_WORDS - 1)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use trial::rng::Rng;

    use super::*;

    #[test]
    fn each_number_is_new_once() {
        for seed in 0..20 {
            let mut rng = Rng::new(seed);
            let mut highest = rng.next() >> 1;
            let mut window = Window::beginning_with(highest);
            let mut taken = HashSet::from([highest]);
            for _ in 0..50_000 {
                let number = match rng.below(8) {
                    0 => highest.wrapping_add(rng.below(3 * WINDOW)),
                    1..=4 => highest.wrapping_add(rng.below(3)),
                    _ => highest.saturating_sub(rng.below(2 * WINDOW)),
                };
                let is_near = number > highest || highest - number < WINDOW;
                assert_eq!(window.is_new(number), is_near && !taken.contains(&number), "{number}");
                if window.is_new(number) {
                    window.take(number);
                    taken.insert(number);
                    highest = highest.max(number);
                }
            }
        }
    }
}
