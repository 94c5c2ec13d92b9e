//! The attributes that bring a connection's queue pair to its states, from REQ and REP.

use crate::connection::Connection;
use crate::machine::State;
use crate::param;
use crate::types::{Path, Transport};

/// The state that a queue pair is brought to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QpTarget {
    /// Initialised.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send.
    Rts,
}

/// Attributes of a queue pair, by the state that they bring it to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpAttributes {
    /// The change to INIT.
    Init {
        /// Whether the peer may READ and have atomics executed, besides WRITE.
        remote_read_atomic: bool,
    },
    /// The change to RTR.
    Rtr {
        /// The transport service; the last two fields are Reliable Connection's.
        transport: Transport,
        /// The address vector, and the path MTU.
        path: Path,
        /// The peer's queue pair.
        dest_qpn: u32,
        /// The first PSN that the peer sends.
        rq_psn: u32,
        /// READs and atomics of the peer that are served at a time.
        max_dest_rd_atomic: u8,
        /// The timer code of RNR NAKs.
        min_rnr_timer: u8,
    },
    /// The change to RTS.
    Rts {
        /// The transport service; all fields but the PSN are Reliable Connection's.
        transport: Transport,
        /// The first PSN to send.
        sq_psn: u32,
        /// READs and atomics that may be under way.
        max_rd_atomic: u8,
        /// Retries.
        retry_cnt: u8,
        /// Retries after RNR NAKs.
        rnr_retry: u8,
        /// The acknowledgement timeout: 4.096 µs · 2^code.
        timeout: u8,
    },
}

/// The attributes; `None` where the connection's state does not know them.
pub(crate) fn attributes(connection: &Connection, target: QpTarget) -> Option<QpAttributes> {
    let asks = matches!(connection.state, State::ReqSent | State::RepWait);
    let lives = matches!(
        connection.state,
        State::RepReceived
            | State::ReqReceived
            | State::RepSent
            | State::RtuWait
            | State::Established
    );
    let transport = connection.transport;
    match target {
        // CM-47
        QpTarget::Init if asks || lives => {
            Some(QpAttributes::Init { remote_read_atomic: connection.responder_resources > 0 })
        }
        QpTarget::Rtr if lives => Some(QpAttributes::Rtr {
            transport,
            path: connection.path,
            dest_qpn: connection.remote_qpn,
            rq_psn: connection.local_psn,
            max_dest_rd_atomic: connection.responder_resources,
            min_rnr_timer: min_rnr_timer(connection),
        }),
        QpTarget::Rts if lives => Some(QpAttributes::Rts {
            transport,
            sq_psn: connection.remote_psn,
            max_rd_atomic: connection.initiator_depth,
            retry_cnt: connection.retry_count,
            rnr_retry: connection.rnr_retry_count,
            timeout: connection.ack_timeout,
        }),
        _ => None,
    }
}

/// How long the peer is to wait where there is no receive for its message: as long as Linux says; but where it tries
/// for ever, a short time, for then nothing is lost by asking soon.
fn min_rnr_timer(connection: &Connection) -> u8 {
    let is_endless = connection.peer_rnr_retry_count == param::ENDLESS_RNR_RETRIES;
    if is_endless { param::SHORT_RNR_TIMER } else { param::RNR_TIMER }
}
