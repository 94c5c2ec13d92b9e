//! Lengths and limits.

/// The UDP port that PSP has been given.
pub const UDP_PORT: u16 = 1000;
/// Bytes of a header with a virtualization cookie.
pub const HEADER: usize = 24;
/// Bytes of the integrity check value behind a packet.
pub const ICV: usize = 16;
/// Bytes that a packet has beside the enclosed datagram.
pub const LONGER: usize = HEADER + ICV;
/// Bytes of a key that two hosts share.
pub const SECRET: usize = 32;

/// Packets of an epoch at most: half of the PSNs that there are, so that no connection's PSN comes twice under one key.
pub const EPOCH_PACKETS: u32 = 1 << 23;
/// Bits of an epoch's number.
pub const EPOCH_BITS: u32 = 40;
/// Bits of the number of an epoch's packet, the low ones of an initialization vector. Those above them are random for each
/// epoch.
pub const PACKET_BITS: u32 = 24;
/// How far behind the newest packet of an epoch another one may come.
pub const WINDOW: u64 = 64 * (WINDOW_WORDS as u64 - 1);
/// Words of a replay window.
pub(crate) const WINDOW_WORDS: usize = 256;

/// Associations of a peer in each direction at most: as many as a card has addresses.
pub(crate) const ASSOCIATIONS: usize = 16;

const _: () = assert!(EPOCH_PACKETS < 1 << PACKET_BITS);
