//! Every limit of services, in one place.

/// Services in a chain.
pub const CHAIN: usize = 8;
/// Units of work that a chain may declare for a packet. A unit is a word of payload that is looked at or changed, or as
/// much.
pub const WORK: u32 = 1 << 16;
/// Bytes of state that a chain may declare for each way of a connection.
pub const STATE: usize = 4096;
/// Patterns that an inspection looks for.
pub const PATTERNS: usize = 256;
/// Bytes of a pattern.
pub const PATTERN: usize = 128;
/// Bytes of all patterns of an inspection. Its automaton has a state for each and one more, of 1 KiB each at most.
pub const PATTERN_BYTES: usize = 4096;
/// Chains that are attached to a card by its owner.
pub const ATTACHED: usize = 64;
/// Chains on a card for which the programs of their queue pairs asked.
pub const ASKED: usize = 512;
/// Bytes of memory that a chain with its connection takes at most: mostly the automaton of an inspection.
pub const CHAIN_BYTES: usize = (PATTERN_BYTES + 1) * 1024 + 4 * STATE + (64 << 10);
/// Services that are loaded into a card.
pub const LOADED: usize = 16;
/// Packets that wait on a card for the turn of their connections' services: as many as a queue pair sends without
/// acknowledgement, and at least one of each connection.
pub const WAITING: usize = 1024;
