//! Priorities of a port: the one that sends next, the senders that pause, and the room of each.
//!
//! [`Qos`] is a port's settings, in the words of IEEE 802.1Q and of iproute2's `dcb`. [`Schedule`] chooses among traffic
//! classes, [`Buffer`] is the room of a switch with flow control by priority, [`pfc`] has the frames by which a port
//! pauses its peer, and [`Hold`] the pauses of a queue. None of them keeps frames: netsim's ports and
//! those of software cards do.
//!
//! Times are in the units of the caller's clock.

mod buffer;
mod ets;
pub mod pfc;

mod hold;

pub use buffer::{Buffer, BufferConfig};
pub use ets::{BadEts, Ets, Schedule};
pub use hold::{Hold, Watchdog};

use crate::error::OutOfRange;
use crate::priority::{PRIORITIES, Trust};

/// A port's settings about priorities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qos {
    /// The fields by which a packet's priority is told.
    pub trust: Trust,
    /// The traffic class of each priority, 0 to 7.
    pub classes: [u8; PRIORITIES],
    /// How traffic classes share the line.
    pub ets: Ets,
    /// The priorities with flow control, a bit each.
    pub pfc: u8,
}

impl Qos {
    /// The settings of a port that nobody has set up, as a NIC's are: the tag alone tells a priority, so that packets
    /// without one leave in the order in which they came.
    #[must_use]
    pub fn untouched() -> Self {
        Self { trust: Trust::Pcp, ..Self::default() }
    }
}

impl Default for Qos {
    /// A DSCP's upper half is its priority. Each priority is a traffic class of its own, the highest goes first, and none has flow control.
    fn default() -> Self {
        Self {
            trust: Trust::default(),
            classes: core::array::from_fn(|priority| priority as u8),
            ets: Ets::default(),
            pfc: 0,
        }
    }
}

/// Why a port has no such settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadQos {
    /// A number is out of its range.
    #[error(transparent)]
    Range(#[from] OutOfRange),
    /// Traffic classes cannot share the line so.
    #[error(transparent)]
    Ets(#[from] BadEts),
}

impl Qos {
    /// Refuses priorities and classes that are none, and shares that are not 100.
    pub fn check(&self) -> Result<(), BadQos> {
        self.trust.check()?;
        let class = |it: &u8| OutOfRange::check("a traffic class", (*it).into(), 0, 7);
        self.classes.iter().try_for_each(class)?;
        Ok(self.ets.check("traffic class")?)
    }

    /// The traffic class of a priority.
    #[must_use]
    pub fn class(&self, priority: u8) -> usize {
        self.classes.get(usize::from(priority)).copied().unwrap_or_default().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_are_none_are_refused_by_their_names() {
        let refused = |qos: Qos| qos.check().map_err(|error| error.to_string());
        assert_eq!(refused(Qos::default()), Ok(()));
        let classes = [0, 1, 2, 8, 0, 0, 0, 0];
        let qos = Qos { classes, ..Qos::default() };
        assert_eq!(refused(qos), Err("a traffic class is 8; it can be 0 to 7".into()));
        let trust = Trust::Dscp(Box::new([9; 64]));
        let qos = Qos { trust, ..Qos::default() };
        assert_eq!(refused(qos), Err("a DSCP's priority is 9; it can be 0 to 7".into()));
        let ets = Ets { strict: 0x80, weights: [50, 40, 0, 0, 0, 0, 0, 0] };
        let qos = Qos { ets, ..Qos::default() };
        assert_eq!(refused(qos), Err("the weights are 90 in all, and have to be 100".into()));
    }

    #[test]
    fn priorities_share_a_class_where_they_are_told_to() {
        let qos = Qos { classes: [0, 0, 0, 3, 3, 3, 7, 7], ..Qos::default() };
        assert_eq!((0..9).map(|it| qos.class(it)).collect::<Vec<_>>(), [0, 0, 0, 3, 3, 3, 7, 7, 0]);
    }
}
