//! The interface between balboad and a module, version [`VERSION`]; `docs/services-wasm.md` has it for people.
//!
//! A module exports its memory and functions, all of which begin with `balboa_`. Numbers in its memory are
//! little-endian.

/// The version of the interface.
pub const VERSION: i32 = 1;

/// The export that is the module's memory.
pub const MEMORY: &str = "memory";
/// The beginning of the names of all other exports that balboad looks at.
pub const PREFIX: &str = "balboa_";

/// Gives the version of the interface for which the module was made: `() -> i32`.
pub const INTERFACE: &str = "balboa_interface";
/// Gives the address of the [`description`]: `() -> i32`. Called once.
pub const ABOUT: &str = "balboa_about";
/// Gives the address of the [`room`]: `() -> i32`. Called once.
pub const ROOM: &str = "balboa_room";
/// Looks at a packet, and gives a [`verdict`]: `() -> i32`. It may change the state.
pub const CHECK: &str = "balboa_check";
/// Acts on an accepted packet: `() -> ()`. It may change the payload, the state, and the address of a WRITE.
pub const ACT: &str = "balboa_act";
/// Changes the payload of a packet that leaves: `() -> ()`.
pub const TRANSFORM: &str = "balboa_transform";

/// Places in the description of a module, which has [`BYTES`](description::BYTES) bytes.
pub mod description {
    /// The name: small letters, digits and hyphens; zeros fill it up.
    pub const NAME: std::ops::Range<usize> = 0..16;
    /// The sentence for people; zeros fill it up.
    pub const SUMMARY: std::ops::Range<usize> = 16..96;
    /// The operations that the service is for: bits, [`SENDS`], [`WRITES`], [`READS`].
    pub const OPERATIONS: usize = 96;
    /// The form of payload that its *act* takes, as a number of [`FORMS`](super::FORMS).
    pub const TAKES: usize = 100;
    /// The form behind its *act*.
    pub const GIVES: usize = 104;
    /// Bits: [`REWRITES`].
    pub const FLAGS: usize = 108;
    /// Bytes of state of *check*.
    pub const CHECK_STATE: usize = 112;
    /// Bytes of state of *act*.
    pub const ACT_STATE: usize = 116;
    /// Units of work for a packet at each stage: each is [`crate::limit::FUEL_FOR_UNIT`] instructions.
    pub const WORK: usize = 120;
    /// 0.
    pub const RESERVED: usize = 124;
    /// Its bytes.
    pub const BYTES: usize = 128;

    /// SENDs.
    pub const SENDS: u32 = 1;
    /// WRITEs.
    pub const WRITES: u32 = 2;
    /// READs.
    pub const READS: u32 = 4;
    /// *act* changes payload; otherwise its changes are not heeded.
    pub const REWRITES: u32 = 1;
}

/// The forms of payload that services know, each by its place; the first says nothing.
pub const FORMS: [Option<&str>; 3] = [None, Some("int32 rows"), Some("float32 rows")];

/// Places in the room where a packet lies during a call, which has [`BYTES`](room::BYTES) bytes.
pub mod room {
    /// 0 is a SEND, 1 a WRITE, 2 a READ.
    pub const OPERATION: usize = 0;
    /// Bits: [`FIRST`], [`LAST`], [`ADDRESSED`].
    pub const FLAGS: usize = 4;
    /// Offset of the payload in its message, 64 bits.
    pub const OFFSET: usize = 8;
    /// Bytes of the payload.
    pub const LENGTH: usize = 16;
    /// Bytes of the state.
    pub const STATE_LENGTH: usize = 20;
    /// The address that a WRITE names, 64 bits.
    pub const ADDRESS: usize = 24;
    /// The state.
    pub const STATE: usize = 64;
    /// The payload.
    pub const PAYLOAD: usize = 64 + 4096;
    /// The longest payload.
    pub const LONGEST: usize = 4096;
    /// Its bytes.
    pub const BYTES: usize = PAYLOAD + LONGEST;

    /// The packet begins its message.
    pub const FIRST: u32 = 1;
    /// It ends its message.
    pub const LAST: u32 = 2;
    /// It has an address, at *act* alone.
    pub const ADDRESSED: u32 = 4;
}

/// What a check gives.
pub mod verdict {
    /// The packet goes on.
    pub const ACCEPT: i32 = 0;
    /// It is dropped as if it were lost.
    pub const DROP: i32 = 1;
    /// It ends the connection.
    pub const REFUSE: i32 = 2;
    /// All of them.
    pub const ALL: [i32; 3] = [ACCEPT, DROP, REFUSE];
}
