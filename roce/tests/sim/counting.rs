//! Atomics of all flows to a node meet in a few words of it: each is executed once, one after the
//! other, those of a queue pair in their order.

use std::collections::BTreeMap;

use roce::AtomicOperation;

use crate::connection::End;
use crate::memory::{Memory, Region};
use crate::network::Network;
use crate::workload::Flow;
use trial::rng::Rng;

pub const RKEY: u32 = 0x50;
pub const VA: u64 = 0x3_0000_0000;
const WORDS: u64 = 3;

/// An atomic that is complete.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    /// Offset of its word.
    pub word: usize,
    pub operation: AtomicOperation,
    /// The value that it found.
    pub before: u64,
}

/// Gives a node the words, before any of its flows has begun.
pub fn lay_out(memory: &mut Memory) {
    let region = Region { va: VA, bytes: vec![0; 8 * WORDS as usize], writable: true };
    memory.regions.insert(RKEY, region);
}

pub fn draw_word(rng: &mut Rng) -> usize {
    8 * rng.below(WORDS) as usize
}

fn value(memory: &Memory, word: usize) -> u64 {
    u64::from_ne_bytes(memory.regions[&RKEY].bytes[word..word + 8].try_into().unwrap())
}

/// An atomic on a word. Values are random, so that none comes twice. The compared value is mostly the
/// one at this moment, which others may change before this one arrives.
pub fn draw(rng: &mut Rng, memory: &Memory, word: usize) -> AtomicOperation {
    if rng.chance(5_000) {
        return AtomicOperation::FetchAdd { add: rng.next() };
    }
    let compare = if rng.chance(8_000) { value(memory, word) } else { rng.next() };
    AtomicOperation::CompareSwap { compare, swap: rng.next() }
}

/// Follows each word through all its values, from the first to the one that it has.
pub fn check(network: &Network, flows: &[Flow]) {
    let nodes: std::collections::BTreeSet<usize> = flows.iter().map(|flow| flow.to.node).collect();
    for node in nodes {
        let memory = &network.sim.hosts[node].memory;
        let flows: Vec<&Flow> = flows.iter().filter(|flow| flow.to.node == node).collect();
        for word in (0..WORDS as usize).map(|n| 8 * n) {
            let ops: Vec<(End, Counted)> = flows
                .iter()
                .flat_map(|flow| flow.counted.iter().map(|counted| (flow.to, *counted)))
                .filter(|(_, counted)| counted.word == word)
                .collect();
            follow(&ops, value(memory, word));
        }
    }
}

fn follow(ops: &[(End, Counted)], end: u64) {
    let mut changes = BTreeMap::new();
    for (_, Counted { operation, before, .. }) in ops {
        if let Some(after) = operation.apply(*before) {
            let twice = changes.insert(*before, after);
            assert_eq!(twice, None, "two found {before:#x}, and changed it");
        }
    }
    // The values in their order.
    let (mut at, mut turns) = (0, BTreeMap::from([(0, 0_usize)]));
    while let Some(after) = changes.remove(&at) {
        assert_eq!(turns.insert(after, turns.len()), None, "{after:#x} came twice");
        at = after;
    }
    assert_eq!((at, changes), (end, BTreeMap::new()), "values that nobody has left there");
    let mut last: BTreeMap<End, usize> = BTreeMap::new();
    for (queue_pair, Counted { before, operation, .. }) in ops {
        let turn = *turns.get(before).unwrap_or_else(|| panic!("{before:#x} was never there"));
        // Behind an own change comes its value at the earliest.
        let earliest = last.entry(*queue_pair).or_default();
        assert!(turn >= *earliest, "{operation:?} overtook one of before");
        *earliest = turn + usize::from(operation.apply(*before).is_some());
    }
}
