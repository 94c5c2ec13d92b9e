//! The queue pairs that services are for.

use std::fmt;
use std::net::Ipv6Addr;

/// The queue pairs that services are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Selector {
    /// The queue pair of that number.
    Qp(u32),
    /// All reliable connections with a peer of that address, network order.
    Peer([u8; 16]),
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Qp(qpn) => write!(f, "queue pair {qpn:#x}"),
            Self::Peer(address) => write!(f, "peer {}", Ipv6Addr::from(*address).to_canonical()),
        }
    }
}
