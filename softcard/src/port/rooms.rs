//! The room of a port with queues, by priority.

use roce::{PRIORITIES, Priorities};

/// The frames that a port with queues takes now, of each priority.
#[derive(Clone, Copy, Debug)]
pub struct Rooms {
    /// The traffic class of each priority.
    classes: [u8; PRIORITIES],
    /// Frames of each class.
    frames: [usize; PRIORITIES],
}

impl Rooms {
    /// The room of each traffic class; `classes` has that of each priority.
    pub(super) const fn new(classes: [u8; PRIORITIES], frames: [usize; PRIORITIES]) -> Self {
        Self { classes, frames }
    }

    /// Room for any frames.
    pub(super) const fn endless() -> Self {
        Self { classes: [0; PRIORITIES], frames: [usize::MAX; PRIORITIES] }
    }

    /// Room for nothing.
    pub(super) const fn none() -> Self {
        Self { classes: [0; PRIORITIES], frames: [0; PRIORITIES] }
    }

    fn of(&self, priority: u8) -> Option<usize> {
        let class = self.classes.get(usize::from(priority))?;
        self.frames.get(usize::from(*class)).copied()
    }

    /// Takes the room for a frame, and says whether there was some.
    pub(crate) fn take(&mut self, priority: u8) -> bool {
        let class = self.classes.get(usize::from(priority)).copied().unwrap_or_default();
        let frames = self.frames.get_mut(usize::from(class)).filter(|frames| **frames > 0);
        frames.map(|frames| *frames = frames.saturating_sub(1)).is_some()
    }

    /// The priorities for which there is room.
    pub(crate) fn open(&self) -> Priorities {
        let has_room = |priority: &u8| self.of(*priority).is_some_and(|frames| frames > 0);
        let open = (0..PRIORITIES as u8).filter(has_room);
        open.fold(Priorities::default(), |open, priority| open.with(priority, true))
    }

    /// The most frames that there is room for of any priority.
    pub(crate) fn most(&self) -> usize {
        let all = (0..PRIORITIES as u8).filter_map(|priority| self.of(priority));
        all.max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_of_a_class_share_its_room() {
        let mut rooms = Rooms::new([0, 0, 2, 2, 2, 2, 2, 7], [2, 9, 1, 9, 9, 9, 9, 0]);
        assert_eq!((rooms.open(), rooms.most()), (Priorities(0x7f), 2));
        assert!(rooms.take(3) && !rooms.take(2) && !rooms.take(7));
        assert_eq!(rooms.open(), Priorities(3));
        assert!(rooms.take(0) && rooms.take(1) && !rooms.take(0));
        assert_eq!((rooms.open(), rooms.most()), (Priorities(0), 0));
    }
}
