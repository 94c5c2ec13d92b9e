//! States of a queue pair as data: which transitions there are, which attributes each of them
//! needs and allows, and what a queue pair does in each state.
//!
//! Besides the transitions that the layer above asks for there is one that a queue pair takes by
//! itself: to ERR, from RTR, RTS and SQD, when a message or a request fails for good.

use crate::attributes::Mask;

/// The state of a queue pair (specification, section 10.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum QpState {
    /// Just created, or reset: nothing is sent or received.
    #[default]
    Reset,
    /// Initialised: receive requests may be posted.
    Init,
    /// Ready to receive: requests of the peer are served.
    Rtr,
    /// Ready to send.
    Rts,
    /// Send queue drain: messages that have begun are finished, no new one starts.
    Sqd,
    /// Error: nothing is sent or received until the QP is reset.
    Err,
}

impl QpState {
    /// Whether the responder works: requests of the peer are executed and answered.
    #[inline]
    pub(crate) const fn serves_requests(self) -> bool {
        // RC-79
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd)
    }

    /// Whether the requester works: messages are taken, those that have begun go on, and what the
    /// peer answers is heard.
    #[inline]
    pub(crate) const fn sends_requests(self) -> bool {
        // RC-79
        matches!(self, Self::Rts | Self::Sqd)
    }

    /// Whether a message that has not begun may begin.
    #[inline]
    pub(crate) const fn begins_messages(self) -> bool {
        // RC-80
        matches!(self, Self::Rts)
    }
}

/// A transition that the layer above may ask for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transition {
    from: QpState,
    to: QpState,
    /// The attributes that must be given.
    pub required: Mask,
    /// The attributes that may be given besides.
    pub optional: Mask,
}

use QpState::{Err, Init, Reset, Rtr, Rts, Sqd};

const NOTHING: Mask = Mask::empty();
const ACCESS: Mask = Mask::ACCESS.union(Mask::PKEY_INDEX);
const RECEIVE: Mask = Mask::PATH
    .union(Mask::PATH_MTU)
    .union(Mask::DEST_QPN)
    .union(Mask::RQ_PSN)
    .union(Mask::MAX_DEST_RD_ATOMIC)
    .union(Mask::MIN_RNR_TIMER);
const RETRY: Mask =
    Mask::TIMEOUT.union(Mask::RETRY_CNT).union(Mask::RNR_RETRY).union(Mask::MAX_RD_ATOMIC);
const SEND: Mask = Mask::SQ_PSN.union(RETRY);
const LIVE: Mask = Mask::ACCESS.union(Mask::MIN_RNR_TIMER);
// RC-81
const DRAINED: Mask = Mask::PATH
    .union(RETRY)
    .union(Mask::MAX_DEST_RD_ATOMIC)
    .union(Mask::MIN_RNR_TIMER)
    .union(ACCESS);

/// Every transition of a Reliable Connection QP (specification, section 11.2, Modify Queue Pair,
/// and the manual page of `ibv_modify_qp`). What is not here is refused.
// RC-77, RC-78
static TRANSITIONS: [Transition; 20] = [
    row(Reset, Reset, NOTHING, NOTHING),
    row(Reset, Init, ACCESS, NOTHING),
    row(Reset, Err, NOTHING, NOTHING),
    row(Init, Reset, NOTHING, NOTHING),
    row(Init, Init, NOTHING, ACCESS),
    row(Init, Rtr, RECEIVE, ACCESS),
    row(Init, Err, NOTHING, NOTHING),
    row(Rtr, Reset, NOTHING, NOTHING),
    row(Rtr, Rts, SEND, LIVE),
    row(Rtr, Err, NOTHING, NOTHING),
    row(Rts, Reset, NOTHING, NOTHING),
    row(Rts, Rts, NOTHING, LIVE),
    row(Rts, Sqd, NOTHING, NOTHING),
    row(Rts, Err, NOTHING, NOTHING),
    row(Sqd, Reset, NOTHING, NOTHING),
    row(Sqd, Rts, NOTHING, LIVE),
    row(Sqd, Sqd, NOTHING, DRAINED),
    row(Sqd, Err, NOTHING, NOTHING),
    row(Err, Reset, NOTHING, NOTHING),
    row(Err, Err, NOTHING, NOTHING),
];

const fn row(from: QpState, to: QpState, required: Mask, optional: Mask) -> Transition {
    Transition { from, to, required, optional }
}

/// The transition between two states, if it is allowed.
pub(crate) fn transition(from: QpState, to: QpState) -> Option<&'static Transition> {
    TRANSITIONS.iter().find(|row| row.from == from && row.to == to)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [QpState; 6] = [Reset, Init, Rtr, Rts, Sqd, Err];

    /// Every pair of states, allowed or not, as one line.
    fn table() -> String {
        let mut table = String::new();
        for from in STATES {
            for to in STATES {
                let line = match transition(from, to) {
                    None => format!("{from:?} > {to:?}: refused"),
                    Some(row) => format!(
                        "{from:?} > {to:?}: needs [{}], allows [{}]",
                        row.required.names(),
                        row.optional.names()
                    ),
                };
                table.push_str(&line);
                table.push('\n');
            }
        }
        table
    }

    const EXPECTED: &str = "\
Reset > Reset: needs [], allows []
Reset > Init: needs [access, pkey_index], allows []
Reset > Rtr: refused
Reset > Rts: refused
Reset > Sqd: refused
Reset > Err: needs [], allows []
Init > Reset: needs [], allows []
Init > Init: needs [], allows [access, pkey_index]
Init > Rtr: needs [path, path_mtu, dest_qpn, rq_psn, max_dest_rd_atomic, min_rnr_timer], \
allows [access, pkey_index]
Init > Rts: refused
Init > Sqd: refused
Init > Err: needs [], allows []
Rtr > Reset: needs [], allows []
Rtr > Init: refused
Rtr > Rtr: refused
Rtr > Rts: needs [sq_psn, max_rd_atomic, timeout, retry_cnt, rnr_retry], \
allows [min_rnr_timer, access]
Rtr > Sqd: refused
Rtr > Err: needs [], allows []
Rts > Reset: needs [], allows []
Rts > Init: refused
Rts > Rtr: refused
Rts > Rts: needs [], allows [min_rnr_timer, access]
Rts > Sqd: needs [], allows []
Rts > Err: needs [], allows []
Sqd > Reset: needs [], allows []
Sqd > Init: refused
Sqd > Rtr: refused
Sqd > Rts: needs [], allows [min_rnr_timer, access]
Sqd > Sqd: needs [], allows [path, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, timeout, \
retry_cnt, rnr_retry, access, pkey_index]
Sqd > Err: needs [], allows []
Err > Reset: needs [], allows []
Err > Init: refused
Err > Rtr: refused
Err > Rts: refused
Err > Sqd: refused
Err > Err: needs [], allows []
";

    /// RC-77, RC-78, RC-81.
    #[test]
    fn the_whole_transition_table_is_as_written_here() {
        assert_eq!(table(), EXPECTED);
    }

    #[test]
    fn no_transition_is_listed_twice() {
        for (index, row) in TRANSITIONS.iter().enumerate() {
            let first = TRANSITIONS.iter().position(|one| (one.from, one.to) == (row.from, row.to));
            assert_eq!(first, Some(index), "{:?} to {:?}", row.from, row.to);
        }
    }

    /// RC-79.
    #[test]
    fn what_a_queue_pair_does_in_each_state_is_as_written_here() {
        let abilities = STATES.map(|state| {
            (state, state.serves_requests(), state.sends_requests(), state.begins_messages())
        });
        assert_eq!(
            abilities,
            [
                (Reset, false, false, false),
                (Init, false, false, false),
                (Rtr, true, false, false),
                (Rts, true, true, true),
                (Sqd, true, true, false),
                (Err, false, false, false),
            ]
        );
    }
}
