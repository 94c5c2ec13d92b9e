//! The layout of the page of a thread that serves cards, which their clients can only read.

/// Byte offset of the asleep word in the card thread's page.
pub const ASLEEP_OFFSET: u32 = 0;
/// Byte offset of the u32 that counts the microseconds, modulo 2^32, in which the card thread worked.
pub const WORKED_OFFSET: u32 = 128;
/// Byte offset of the robust mutex in the card thread's page that dies with the cards.
pub const LIVENESS_OFFSET: u32 = 64;
