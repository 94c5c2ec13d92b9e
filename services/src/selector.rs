//! The queue pairs that services are for, and the ends of messages at which they stand there.

use std::fmt;
use std::net::Ipv6Addr;

use crate::part::Operation;

/// The largest DSCP.
pub const MAX_DSCP: u8 = 63;

/// The queue pairs that services are for. Where several hold for a connection, the one that stands first here counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Selector {
    /// The queue pair of that number.
    Qp(u32),
    /// All reliable connections of the process of that number.
    Process(u32),
    /// All reliable connections with a peer of that address, network order.
    Peer([u8; 16]),
    /// All reliable connections that send with that DSCP, the upper six bits of the traffic class.
    Dscp(u8),
}

/// A reliable connection, by all that selectors know it by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The process that has its queue pair, if one does.
    pub process: Option<u32>,
    /// The peer's address, network order.
    pub peer: [u8; 16],
    /// The traffic class of what it sends.
    pub traffic_class: u8,
}

impl Subject {
    /// The selectors that hold for it, the one that counts first.
    pub(crate) fn selectors(&self) -> impl Iterator<Item = Selector> {
        let process = self.process.map(Selector::Process);
        let others = [Selector::Peer(self.peer), Selector::Dscp(self.traffic_class >> 2)];
        process.into_iter().chain(others)
    }
}

impl Selector {
    /// Whether it holds for a connection; that of a single queue pair holds for none.
    #[must_use]
    pub fn selects(&self, subject: &Subject) -> bool {
        subject.selectors().any(|selector| selector == *self)
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Qp(qpn) => write!(f, "queue pair {qpn:#x}"),
            Self::Process(pid) => write!(f, "process {pid}"),
            Self::Peer(address) => write!(f, "peer {}", Ipv6Addr::from(*address).to_canonical()),
            Self::Dscp(dscp) => write!(f, "DSCP {dscp}"),
        }
    }
}

/// The ends of messages at which services stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Side {
    /// Both.
    #[default]
    Both,
    /// The end that asks: responses of its READs as they come, its SENDs and WRITEs as they leave.
    Requester,
    /// The end that is asked: SENDs and WRITEs as they come, its responses to READs as they leave.
    Responder,
}

impl Side {
    /// Whether services there see a message as it comes.
    #[must_use]
    pub const fn receives(self, operation: Operation) -> bool {
        match operation {
            Operation::Send | Operation::Write => !matches!(self, Self::Requester),
            Operation::Read => !matches!(self, Self::Responder),
        }
    }

    /// Whether services there see a message as it leaves.
    #[must_use]
    pub const fn sends(self, operation: Operation) -> bool {
        match operation {
            Operation::Send | Operation::Write => !matches!(self, Self::Responder),
            Operation::Read => !matches!(self, Self::Requester),
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Both => "both sides",
            Self::Requester => "requester",
            Self::Responder => "responder",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selector_holds_for_its_process_peer_or_dscp_whatever_the_congestion_marks() {
        let of = |process, traffic_class| Subject { process, peer: [7; 16], traffic_class };
        let all = [Selector::Process(5), Selector::Peer([7; 16]), Selector::Dscp(26)];
        let subject = of(Some(5), 26 << 2 | 3);
        assert_eq!(subject.selectors().collect::<Vec<_>>(), all);
        assert!(all.iter().all(|selector| selector.selects(&subject)));
        assert!(!Selector::Process(5).selects(&of(None, 0)));
        assert!(!Selector::Dscp(26).selects(&of(None, 25 << 2)));
        assert!(!Selector::Qp(5).selects(&subject));
    }

    #[test]
    fn each_message_is_seen_at_one_side_as_it_leaves_and_at_the_other_as_it_comes() {
        for operation in [Operation::Send, Operation::Write, Operation::Read] {
            for (one, other) in
                [(Side::Requester, Side::Responder), (Side::Responder, Side::Requester)]
            {
                assert_eq!(one.sends(operation), other.receives(operation));
                assert_ne!(one.sends(operation), one.receives(operation));
            }
            assert!(Side::Both.sends(operation) && Side::Both.receives(operation));
        }
    }
}
