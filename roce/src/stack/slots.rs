//! The table of a port: queue pairs of each transport service, and address handles.

use crate::datagram::{Handle, UdQp};
use crate::qp::QpCore;
use crate::reliable::RcQp;
use crate::service::Service;
use crate::unreliable::UcQp;

/// The content of a slot.
#[derive(Debug, Default)]
pub(super) enum Slot {
    #[default]
    Free,
    /// A queue pair of Reliable Connection, or of XRC.
    Rc(Box<RcQp>),
    /// A queue pair of Unreliable Connection.
    Uc(Box<UcQp>),
    /// A queue pair of Unreliable Datagram.
    Ud(Box<UdQp>),
    /// An address handle.
    Handle(Box<Handle>),
}

impl Slot {
    /// A queue pair in RESET.
    pub(super) fn of(core: QpCore) -> Self {
        match core.service {
            Service::Rc | Service::XrcSend | Service::XrcReceive { .. } => {
                Self::Rc(Box::new(RcQp::new(core)))
            }
            Service::Uc => Self::Uc(Box::new(UcQp::new(core))),
            Service::Ud => Self::Ud(Box::new(UdQp::new(core))),
        }
    }

    /// The common part of its queue pair, if it has one.
    #[inline]
    pub(super) fn core(&self) -> Option<&QpCore> {
        match self {
            Self::Rc(qp) => Some(&qp.core),
            Self::Uc(qp) => Some(&qp.core),
            Self::Ud(qp) => Some(&qp.core),
            Self::Free | Self::Handle(_) => None,
        }
    }

    /// The same, to be changed.
    #[inline]
    pub(super) fn core_mut(&mut self) -> Option<&mut QpCore> {
        match self {
            Self::Rc(qp) => Some(&mut qp.core),
            Self::Uc(qp) => Some(&mut qp.core),
            Self::Ud(qp) => Some(&mut qp.core),
            Self::Free | Self::Handle(_) => None,
        }
    }
}

/// All slots, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Slots(Vec<Slot>);

impl Slots {
    #[inline]
    pub(super) fn get(&self, slot: u32) -> Option<&Slot> {
        self.0.get(slot as usize)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut Slot> {
        self.0.get_mut(slot as usize)
    }

    /// How many there are.
    pub(super) fn count(&self) -> u32 {
        // Bounded by MAX_QPS and MAX_AHS.
        self.0.len() as u32
    }

    /// Adds a slot with nothing in it, and gives its number.
    pub(super) fn add(&mut self) -> u32 {
        let slot = self.count();
        self.0.push(Slot::Free);
        slot
    }

    pub(super) fn put(&mut self, slot: u32, content: Slot) {
        if let Some(place) = self.get_mut(slot) {
            *place = content;
        }
    }

    /// The common part of the queue pair in a slot.
    pub(super) fn core(&self, slot: u32) -> Option<&QpCore> {
        self.get(slot)?.core()
    }

    /// The same, to be changed.
    pub(super) fn core_mut(&mut self, slot: u32) -> Option<&mut QpCore> {
        self.get_mut(slot)?.core_mut()
    }

    /// The queue pair of Reliable Connection, or of XRC, in a slot.
    #[inline]
    pub(super) fn rc(&mut self, slot: u32) -> Option<&mut RcQp> {
        match self.get_mut(slot)? {
            Slot::Rc(qp) => Some(qp),
            _ => None,
        }
    }

    /// The queue pair of Unreliable Connection in a slot.
    pub(super) fn uc(&mut self, slot: u32) -> Option<&mut UcQp> {
        match self.get_mut(slot)? {
            Slot::Uc(qp) => Some(qp),
            _ => None,
        }
    }

    /// The queue pair of Unreliable Datagram in a slot.
    pub(super) fn ud(&mut self, slot: u32) -> Option<&mut UdQp> {
        match self.get_mut(slot)? {
            Slot::Ud(qp) => Some(qp),
            _ => None,
        }
    }

    /// The address handle in a slot.
    pub(super) fn handle(&mut self, slot: u32) -> Option<&mut Handle> {
        match self.get_mut(slot)? {
            Slot::Handle(handle) => Some(handle),
            _ => None,
        }
    }
}
