//! States of a queue pair: what it does in each.
//!
//! Which transitions there are, and with which attributes, says the card contract
//! ([`fpga_regs::engine::transition`]). Besides the transitions that the layer above asks for there is one that a queue pair takes by
//! itself: to ERR, from RTR, RTS and SQD, when a message or a request fails for good.

use fpga_regs::engine::qp;

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
    /// Send queue error, where messages are not answered: nothing is sent until the QP is brought back to RTS.
    Sqe,
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

    /// Whether messages that nobody answers are received.
    pub(crate) const fn receives_unreliable(self) -> bool {
        // UC-5, UD-10
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd | Self::Sqe)
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

impl QpState {
    /// The state that the card contract's code stands for; `None` where this transport has none such.
    #[must_use]
    pub fn from_contract(code: qp::QpState) -> Option<Self> {
        let states =
            [Self::Reset, Self::Init, Self::Rtr, Self::Rts, Self::Sqd, Self::Sqe, Self::Err];
        states.into_iter().find(|state| qp::QpState::from(*state) == code)
    }
}

impl From<QpState> for qp::QpState {
    fn from(state: QpState) -> Self {
        match state {
            QpState::Reset => Self::Reset,
            QpState::Init => Self::Init,
            QpState::Rtr => Self::Rtr,
            QpState::Rts => Self::Rts,
            QpState::Sqd => Self::Sqd,
            QpState::Sqe => Self::Sqe,
            QpState::Err => Self::Err,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};

    const STATES: [QpState; 7] = [Reset, Init, Rtr, Rts, Sqd, Sqe, Err];

    #[test]
    fn every_state_has_its_code_in_the_contract() {
        for state in STATES {
            assert_eq!(QpState::from_contract(state.into()), Some(state));
        }
        for code in [qp::QpState(7), qp::QpState(255)] {
            assert_eq!(QpState::from_contract(code), None);
        }
    }

    /// UC-5, UD-10.
    #[test]
    fn what_nobody_answers_is_received_from_rtr_on_also_behind_an_error_of_the_send_queue() {
        let receives = STATES.map(QpState::receives_unreliable);
        assert_eq!(receives, [false, false, true, true, true, true, false]);
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
                (Sqe, false, false, false),
                (Err, false, false, false),
            ]
        );
    }
}
