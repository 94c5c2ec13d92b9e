//! Every limit, in one place.

/// Messages of a QP that are taken.
pub const MESSAGES: usize = 64;
/// READs and atomics of the peer's that wait for their answers.
pub const READS: u8 = 16;
/// The value of `rnr_retry` that means "for ever".
pub const RNR_RETRY_INFINITE: u8 = 7;
/// Nanoseconds between two looks at a ring that count as the peer's silence at most.
pub const GAP: u64 = 10_000_000;
/// Bytes of the rest of a message from which on the sender asks for a grant; less goes in slots.
pub const LONG: u32 = 256 << 10;
/// The same where some of a message has gone by grants before.
pub const MORE: u32 = 16 << 10;
/// Periods of the watchdog after which a peer that has not used a grant, or not given one, finds no window any more.
pub const LAPSE: u64 = 2;
