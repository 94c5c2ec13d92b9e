//! Beginning anew with the card's sequence numbers: both ends drain, rewrite the context, and go on.

use fpga_regs::engine::tunnel::SlotOperation;

/// Where an end is in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Turnover {
    /// Nowhere: slots go.
    #[default]
    None,
    /// The peer is to be asked to stop.
    Pause,
    /// It was asked.
    Pausing,
    /// It has stopped: to rewrite, when all of one's own is acknowledged.
    Rewrite,
    /// Rewritten: the peer is to be told.
    Rewritten,
    /// It was told.
    Resuming,
    /// The peer has asked: to say so, when all of one's own is acknowledged.
    Asked,
    /// It was said.
    Waiting,
    /// The peer has rewritten: to do the same.
    Follow,
    /// Done: the peer is to be told.
    Resume,
}

/// The step that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// To send this.
    Slot(SlotOperation),
    /// To rewrite the context.
    Rewrite,
}

impl Turnover {
    /// The step that is due, if the card has acknowledged all packets (`quiet`) or not, and the peer's card has stopped
    /// repeating (`rested`) or not.
    pub(crate) fn due(self, quiet: bool, rested: bool) -> Option<Due> {
        match self {
            Self::Pause => Some(Due::Slot(SlotOperation::Pause)),
            Self::Asked if quiet => Some(Due::Slot(SlotOperation::Paused)),
            Self::Rewrite | Self::Follow if quiet && rested => Some(Due::Rewrite),
            Self::Rewritten => Some(Due::Slot(SlotOperation::Rewritten)),
            Self::Resume => Some(Due::Slot(SlotOperation::Resume)),
            _ => None,
        }
    }

    /// Notes that the step that was due is done.
    pub(crate) fn done(&mut self) {
        *self = match *self {
            Self::Pause => Self::Pausing,
            Self::Asked => Self::Waiting,
            Self::Rewrite => Self::Rewritten,
            Self::Rewritten => Self::Resuming,
            Self::Follow => Self::Resume,
            Self::Resume => Self::None,
            other => other,
        };
    }

    /// Takes the peer's slot; `false` if it makes no sense.
    pub(crate) fn hear(&mut self, operation: SlotOperation, leads: bool) -> bool {
        let next = match (*self, operation) {
            (Self::None, SlotOperation::Pause) if !leads => Self::Asked,
            (Self::Pausing, SlotOperation::Paused) => Self::Rewrite,
            (Self::Waiting, SlotOperation::Rewritten) => Self::Follow,
            (Self::Resuming, SlotOperation::Resume) => Self::None,
            _ => return false,
        };
        *self = next;
        true
    }
}
