//! A host's numbering of its IPv4 datagrams, and the possible numbers of a datagram.
//!
//! The number explains a wrong invariant CRC, so it has to be a likely one: damage would name any. But it proves nothing
//! about its writer. So a forger takes no more with it than one place of several, and a host that counts is heard as long
//! as some of its own datagrams are among the last ones.

/// How many datagrams' numbers are kept, each of which others may go on from.
const LAST: usize = 16;
/// How far a count may run ahead from one datagram for us to the next.
const AHEAD: u16 = 4096;
/// And behind, where datagrams overtook each other; and ahead, of a number that is not believed yet.
const NEAR: u16 = 64;

/// A number that a datagram had, as far as its invariant CRC tells.
#[derive(Clone, Copy, Debug)]
struct Seen {
    number: u16,
    /// It was believed: the host counts so.
    is_count: bool,
}

impl Seen {
    fn overtook(self, id: u16) -> bool {
        self.is_count && self.number.wrapping_sub(id) < NEAR
    }

    /// Whether a datagram that came behind it can have a number.
    fn leads_to(self, id: u16) -> bool {
        let ahead = id.wrapping_sub(self.number);
        match self.is_count {
            true => ahead < AHEAD || self.overtook(id),
            false => matches!(ahead, 1..=NEAR),
        }
    }
}

/// How a host numbers its IPv4 datagrams, as far as is known.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Numbers {
    /// It has written 0.
    is_zero: bool,
    /// Numbers from which others go on, the one that did last first; a datagram that had 0 takes a place.
    last: [Option<Seen>; LAST],
}

impl Numbers {
    /// Whether a datagram can have that number, which is not 0.
    pub(super) fn admit(&mut self, id: u16) -> bool {
        let is_empty = self.last.iter().all(Option::is_none);
        let from = self.take(id);
        // Datagrams that are never sent again count from the first one on.
        let is_count = from.is_some() || is_empty && !self.is_zero;
        let number = from.filter(|seen| seen.overtook(id)).map_or(id, |seen| seen.number);
        self.put(Some(Seen { number, is_count }));
        is_count
    }

    /// Takes note of a datagram that had 0. A host that counts has that, too, but not often.
    pub(super) fn was_zero(&mut self) {
        self.is_zero = true;
        if self.last.iter().any(Option::is_some) {
            self.put(None);
        }
    }

    /// Takes the number away from which a datagram's goes on, if there is one.
    fn take(&mut self, id: u16) -> Option<Seen> {
        let place = self.last.iter().position(|it| it.is_some_and(|seen| seen.leads_to(id)))?;
        let behind = self.last.get_mut(place..)?;
        behind.rotate_left(1);
        behind.last_mut()?.take()
    }

    /// Puts one first; the last is forgotten.
    fn put(&mut self, seen: Option<Seen>) {
        self.last.rotate_right(1);
        if let Some(first) = self.last.first_mut() {
            *first = seen;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_believed_that_rise() {
        let mut numbers = Numbers::default();
        assert!(numbers.admit(700), "it is the first");
        assert!(!numbers.admit(40_000), "it jumps");
        assert!(!numbers.admit(9), "it was no number, or is none");
        assert!(numbers.admit(10));
        assert!(numbers.admit(2000) && numbers.admit(1999));
        assert!(numbers.admit(701), "the first count goes on");
    }

    #[test]
    fn where_a_host_writes_0_a_single_number_is_damage() {
        let mut numbers = Numbers::default();
        numbers.was_zero();
        assert!(!numbers.admit(700));
        for _ in 0..LAST {
            numbers.was_zero();
        }
        assert!(!numbers.admit(701), "much was between them");
        numbers.was_zero();
        // Another system runs there now.
        assert!(numbers.admit(702));
        numbers.was_zero();
        assert!(numbers.admit(703), "whoever counts has 0, too");
        for _ in 0..LAST {
            numbers.was_zero();
        }
        assert!(!numbers.admit(704), "it does not count any more");
    }

    /// Forges numbers in a host's name, so many between two of its own; gives how many of its own 200 still count.
    fn forged(numbers: &mut Numbers, between: u16, forge: impl Fn(u16) -> u16) -> usize {
        let mut forgeries = 0;
        let mut heard = 0;
        for own in 0..200 {
            for _ in 0..between {
                numbers.admit(forge(forgeries) | 0x8000);
                forgeries += 1;
            }
            heard += usize::from(numbers.admit(1000 + own));
        }
        heard
    }

    #[test]
    fn whoever_forges_numbers_silences_no_host_that_counts() {
        let scattered = |number: u16| number.wrapping_mul(331).wrapping_mul(257);
        let one_behind_the_other = |number: u16| number;
        let in_pairs = |number: u16| (number / 2).wrapping_mul(5003).wrapping_add(number % 2);
        for (forge, between) in [
            (&scattered as &dyn Fn(u16) -> u16, LAST as u16 - 1),
            (&one_behind_the_other, 100),
            (&in_pairs, LAST as u16 - 1),
        ] {
            for is_known in [true, false] {
                let mut numbers = Numbers::default();
                if is_known {
                    numbers.admit(999);
                }
                let heard = forged(&mut numbers, between, forge);
                assert!(heard >= 199, "{heard} of 200");
            }
        }
    }

    #[test]
    fn whoever_forges_0_silences_no_host_that_counts() {
        let mut numbers = Numbers::default();
        let mut heard = 0;
        for own in 0..100 {
            for _ in 0..LAST - 1 {
                numbers.was_zero();
            }
            heard += usize::from(numbers.admit(1000 + own));
        }
        assert_eq!(heard, 99);
    }
}
