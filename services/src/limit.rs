//! Every limit of services, in one place.

/// Services in a chain.
pub const CHAIN: usize = 8;
/// Units of work that a chain may declare for a packet. A unit is a word of payload that is looked at or changed, or as
/// much.
pub const WORK: u32 = 1 << 16;
/// Bytes of state that a chain may declare for each way of a connection.
pub const STATE: usize = 4096;
/// Chains that are attached to a card.
pub const ATTACHED: usize = 64;
