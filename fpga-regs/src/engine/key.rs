//! Keys, which name a piece of memory to the engine and to remote peers.
//!
//! Bits 31 to 8: number, drawn at random from the free ones of a sparse 24-bit space; bits 7 to 0:
//! variant, random for memory regions, the consumer's own for type-2 windows. A number rests before
//! it is used again.

flags! {
    /// The rights to the memory behind a key; the bits are those of `ibv_access_flags`.
    pub struct Access(u32) {
        /// Local writes: receives, READ responses, atomic results.
        LOCAL_WRITE = 1 << 0,
        /// Remote RDMA WRITE.
        REMOTE_WRITE = 1 << 1,
        /// Remote RDMA READ.
        REMOTE_READ = 1 << 2,
        /// Remote atomics.
        REMOTE_ATOMIC = 1 << 3,
        /// Windows may be bound to the region.
        WINDOW_BIND = 1 << 4,
        /// Addresses count from the start of the region: its `va` is taken as 0.
        ZERO_BASED = 1 << 5,
        /// The program allows reordering of its payload writes; the engine need not use it.
        RELAXED_ORDERING = 1 << 20,
    }
}

bits! {
    /// A key.
    pub struct KeyWord(u32) {
        /// Random for memory regions, the consumer's own for type-2 windows.
        variant[7:0]: u8,
        /// Drawn at random from the free ones; rests before it is used again.
        number[31:8]: u32,
    }
}

/// The number of a key.
#[inline(always)]
#[must_use]
pub const fn number(key: u32) -> u32 {
    KeyWord::decode(key).number
}

/// The variant of a key.
#[inline(always)]
#[must_use]
pub const fn variant(key: u32) -> u8 {
    KeyWord::decode(key).variant
}

/// A key from its parts; `number` is below 2^24.
#[inline(always)]
#[must_use]
pub const fn key(number: u32, variant: u8) -> u32 {
    KeyWord { variant, number }.encode()
}
