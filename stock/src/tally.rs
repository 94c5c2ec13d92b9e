//! Counts that the model knows, and that the card does not tell or only in part.

/// Why the second stage of reception stands. Only a reset ends all but the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parked {
    /// A response waits for an element of a retransmission list that it does not free itself.
    WantsElement,
    /// A packet has an opcode that the stage has no way out of.
    Opcode(u8),
    /// A WRITE says that it has no bytes.
    EmptyWrite,
    /// A packet names a stream that the logic has not.
    Stream,
}

/// Counts since the reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CardTally {
    /// Packets received, as far as their Base Transport Header.
    pub received: u32,
    /// Packets sent, those lost for want of an Ethernet address too.
    pub sent: u32,
    /// Packets dropped for their PSN, duplicates too.
    pub psn_drops: u32,
    /// Packets repeated.
    pub repeated: u32,
    /// Packets lost because their peer's Ethernet address was not known.
    pub unresolved: u32,
    /// Posts lost because the command queue was full.
    pub lost_posts: u32,
    /// Frames lost because reception stood.
    pub lost_frames: u32,
    /// Transfers from and to host memory that the driver refused.
    pub refused: u32,
}
