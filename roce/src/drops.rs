//! Why frames are dropped, and the one place that counts them.

use fpga_regs::engine::counters::Counters;

use crate::counters::bump;
use crate::wire::Malformed;

/// Why a frame is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// A header makes no sense.
    Malformed,
    /// It is for another address, or of another protocol.
    NotForUs,
    /// Its invariant CRC is wrong.
    Icrc,
    /// Its source address cannot be one of another host.
    MartianSource,
    /// No queue pair has the number.
    UnknownQp,
    /// It does not come from the queue pair's peer, on its path.
    WrongSource,
    /// It is of another partition.
    BadPkey,
    /// The queue pair takes none in its state.
    WrongState,
    /// Its opcode is unknown, or of another service.
    BadOpcode,
    /// It does not have the queue pair's Q_Key.
    BadQkey,
    /// Its payload is longer than the port takes.
    Oversized,
    /// A service does not let it pass.
    Service,
    /// A response to nothing that is open.
    StaleResponse,
    /// A packet before it is missing.
    AfterGap,
    /// Too many acknowledgements wait to be sent.
    AckQueue,
    /// A repeated request for a value that is no longer known, or an access that is no longer allowed.
    DuplicateRead,
    /// An unanswered request that no opcode or state allows.
    Invalid,
    /// An unanswered request that the layer above does not allow.
    Denied,
    /// An unanswered message that does not fit the receive request.
    TooLong,
    /// An unanswered message without a receive request.
    NoReceive,
    /// An unanswered message whose receive request cannot be used.
    UnusableReceive,
    /// An answer of ours finds no room.
    ControlQueue,
    /// A message of ours along an unreliable service, whose neighbour has no known address.
    NoNeighbour,
}

impl Reason {
    /// Whether the queue pair has received the packet all the same: it passed all checks of its origin.
    pub(crate) const fn is_received(self) -> bool {
        matches!(self, Self::WrongState | Self::BadOpcode | Self::BadQkey | Self::Oversized)
    }

    /// Its counter.
    fn counter(self, counters: &mut Counters) -> &mut u64 {
        match self {
            Self::Malformed | Self::Oversized => &mut counters.drop_malformed,
            Self::NotForUs => &mut counters.drop_not_for_us,
            Self::Icrc => &mut counters.rx_icrc_encapsulated,
            Self::MartianSource => &mut counters.drop_martian_source,
            Self::UnknownQp => &mut counters.drop_unknown_qp,
            Self::WrongSource => &mut counters.drop_wrong_source,
            Self::BadPkey => &mut counters.drop_bad_pkey,
            Self::WrongState => &mut counters.drop_wrong_state,
            Self::BadOpcode => &mut counters.drop_bad_opcode,
            Self::BadQkey => &mut counters.drop_bad_qkey,
            Self::Service => &mut counters.drop_by_service,
            Self::StaleResponse => &mut counters.drop_stale_response,
            Self::AfterGap => &mut counters.drop_after_gap,
            Self::AckQueue => &mut counters.drop_ack_queue,
            Self::DuplicateRead => &mut counters.drop_duplicate_read,
            Self::Invalid => &mut counters.resp_remote_invalid_request,
            Self::Denied => &mut counters.resp_remote_access_errors,
            Self::TooLong => &mut counters.resp_local_length_error,
            Self::NoReceive => &mut counters.out_of_buffer,
            Self::UnusableReceive => &mut counters.resp_cqe_error,
            Self::ControlQueue => &mut counters.drop_control_queue,
            Self::NoNeighbour => &mut counters.drop_no_neighbour,
        }
    }
}

impl From<Malformed> for Reason {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

/// Counts a frame that is dropped.
pub(crate) fn count(counters: &mut Counters, reason: Reason) {
    bump(reason.counter(counters));
}
