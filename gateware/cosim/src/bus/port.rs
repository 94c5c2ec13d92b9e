//! The ports between a vFPGA's logic and host memory, as the shell has them: records on wires, one set for each cycle.
//!
//! | the shell's port | here |
//! |---|---|
//! | `sq_rd`, `sq_wr` | [`Master::read`], [`Master::write`], and their ready in [`Driven`] |
//! | `axis_host_recv[n]` | [`Driven::data`], ready [`Master::takes`] |
//! | `axis_host_send[n]` | [`Master::data`], ready [`Driven::data_ready`] |
//! | `cq_rd`, `cq_wr` | [`Driven::read_done`], [`Driven::write_done`]: one cycle each, taken in it |
//! | `notify` | [`Master::notify`] |
//!
//! Something passes in a cycle in which both valid (`Some`) and ready are up. Who has raised valid holds it, and what it
//! shows, until that. Ready comes and goes.

/// Bytes of a beat.
pub const BEAT_BYTES: usize = 64;
/// Bytes of a request at most.
pub const MAX_REQUEST: u32 = 4096;
/// Streams of each direction at most.
pub const STREAMS: usize = 4;

/// A request for host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The virtual address of the first byte.
    pub address: u64,
    /// Bytes, 1 to [`MAX_REQUEST`].
    pub length: u32,
    /// The stream that its data takes.
    pub stream: u8,
}

/// Data of a request; it begins at byte 0, whatever the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beat {
    /// The bytes, and zeros behind them.
    pub data: [u8; BEAT_BYTES],
    /// How many; less than [`BEAT_BYTES`] in the last beat of a request alone.
    pub bytes: u8,
    /// The last of its request.
    pub last: bool,
}

impl Beat {
    /// A beat of so many bytes, [`BEAT_BYTES`] at most.
    pub(super) fn new(bytes: &[u8], last: bool) -> Self {
        // Bytes that do not count may be anything.
        let mut data = [0xb6; BEAT_BYTES];
        data[..bytes.len()].copy_from_slice(bytes);
        Self { data, bytes: bytes.len() as u8, last }
    }

    /// The beats of a request.
    pub fn all_of(bytes: &[u8]) -> impl Iterator<Item = Self> {
        let count = bytes.len().div_ceil(BEAT_BYTES);
        let parts = bytes.chunks(BEAT_BYTES).zip(1..);
        parts.map(move |(part, number)| Self::new(part, number == count))
    }

    /// The bytes that count.
    #[must_use]
    pub fn content(&self) -> &[u8] {
        &self.data[..usize::from(self.bytes).min(BEAT_BYTES)]
    }
}

/// The end of the oldest request of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The stream.
    pub stream: u8,
}

/// What the logic drives in a cycle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Master {
    /// A request to read.
    pub read: Option<Request>,
    /// A request to write.
    pub write: Option<Request>,
    /// Data of requests to write.
    pub data: [Option<Beat>; STREAMS],
    /// Whether it takes data of requests to read.
    pub takes: [bool; STREAMS],
    /// An interrupt of that value.
    pub notify: Option<u32>,
}

/// What the bus drives in a cycle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Driven {
    /// Ready for a request to read.
    pub read_ready: bool,
    /// Ready for a request to write.
    pub write_ready: bool,
    /// Ready for data of requests to write.
    pub data_ready: [bool; STREAMS],
    /// Ready for an interrupt.
    pub notify_ready: bool,
    /// Data of requests to read.
    pub data: [Option<Beat>; STREAMS],
    /// A request to read ended: its last beat was taken.
    pub read_done: Option<Done>,
    /// A request to write ended: it is on its way to memory, and nothing of the logic's passes it.
    pub write_done: Option<Done>,
}
