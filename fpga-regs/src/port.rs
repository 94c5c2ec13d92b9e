//! Words about a card's port that a card, its stack and its driver share. None of them is written anywhere: they have no
//! code.

/// The received frames whose invariant CRC a card checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IcrcPolicy {
    /// Of all frames, even if somebody vouches for them.
    #[default]
    CheckAll,
    /// Of all frames but those that a port vouches for, because it has sealed them, or seen them sealed.
    TrustVouchedFor,
}

/// The frames of a port to record, and their recorded length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchFilter {
    /// Only frames for one of these QPs, the card's or a peer's; all where there are none.
    pub qpns: Vec<u32>,
    /// Only frames from or to this address of IPv4, mapped, or of IPv6.
    pub address: Option<[u8; 16]>,
    /// Bytes of each frame that are kept; 0 for all.
    pub snap: u32,
    /// Bytes that wait for the reader at most: frames that come beyond them are counted and lost.
    pub ring: usize,
}
