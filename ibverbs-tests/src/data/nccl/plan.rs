//! The messages and their places, which both sides know from a seed.

use std::collections::VecDeque;

/// Receives that are asked for together, at most.
pub(super) const GROUP: usize = 8;
/// Requests that are under way at a time.
pub(super) const UNDER_WAY: u64 = 32;
/// Bytes of a short message, at most.
const SHORT: usize = 20_000;
/// Bytes that more may be received than are sent, and that lie behind a message and must stay as they are.
const MORE: usize = 100;
pub(super) const GUARD: usize = 64;
/// Bytes that a short message has for itself.
const STRIDE: usize = SHORT + MORE + GUARD + 8;
/// Bytes of all short messages that are under way.
const SHORTS: usize = UNDER_WAY as usize * GROUP * STRIDE;

/// How messages go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mode {
    /// Over all QPs, each of which has a part; else each request over one, in turn.
    pub(super) striped: bool,
    /// Packets may overtake each other: the notice of a long message is apart from it.
    pub(super) routed: bool,
}

/// One message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    /// Its first byte in either side's memory.
    pub(super) offset: usize,
    pub(super) size: usize,
    /// Bytes that may be received.
    pub(super) room: usize,
    pub(super) seed: u64,
    pub(super) tag: u32,
}

/// Bytes that messages take, the long ones so many.
pub(super) const fn room(long: usize) -> usize {
    SHORTS + long + MORE + GUARD
}

/// Requests of short messages, and a long message at the end.
pub(super) fn requests(seed: u64, count: usize, long: usize) -> VecDeque<Vec<Message>> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut below = |bound: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % bound as u64) as usize
    };
    let mut requests: VecDeque<Vec<Message>> = (0..count)
        .map(|number| {
            let group = 1 + below(GROUP);
            let place = number % UNDER_WAY as usize * GROUP;
            let messages = (0..group).map(|index| {
                let size = match below(8) {
                    0 => 0,
                    1 => below(64),
                    _ => below(SHORT),
                };
                Message {
                    offset: (place + index) * STRIDE + below(8),
                    size,
                    room: size + below(MORE),
                    seed: seed ^ (number * GROUP + index) as u64,
                    tag: (number as u32) << 8 | index as u32,
                }
            });
            messages.collect()
        })
        .collect();
    requests.push_back(vec![Message {
        offset: SHORTS,
        size: long,
        room: long,
        seed,
        tag: (count as u32) << 8,
    }]);
    requests
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_that_are_under_way_together_do_not_touch() {
        let long = 1 << 20;
        let requests: Vec<Vec<Message>> = requests(3, 100, long).into();
        assert_eq!(requests.len(), 101);
        for together in requests.windows(UNDER_WAY as usize) {
            let mut messages: Vec<&Message> = together.iter().flatten().collect();
            messages.sort_by_key(|message| message.offset);
            for pair in messages.windows(2) {
                assert!(pair[0].offset + pair[0].room + GUARD <= pair[1].offset, "{pair:?}");
            }
        }
        let ends = requests.iter().flatten().map(|it| it.offset + it.room + GUARD);
        assert!(ends.max().unwrap() <= room(long));
        assert!(requests.iter().any(|group| group.len() == GROUP));
        assert!(requests.iter().flatten().any(|message| message.size == 0));
    }
}
