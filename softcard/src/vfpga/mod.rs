//! A vFPGA: the shell's part of it, and the logic that stands in it.

mod control;
mod engine;
mod logic;
mod offered;
mod pass_through;
mod request;

use std::rc::Rc;
use std::sync::Arc;

use bitstreams::soft::Logic as Named;
use fpga_regs::coyote::shell::CtrlCnfg;
use fpga_regs::engine::window::DOORBELL_PAGES;
use hostmem::DoorbellPage;

use crate::bus::Bus;
use crate::isr::Event;
use crate::network::Network;
use crate::published::IsrCopy;
pub(crate) use control::{Beat, Control};
pub(crate) use engine::QueueEngine;
pub use engine::{
    AH_BYTES, CQ_BYTES, DM_BYTES, MEMBERSHIP_BYTES, MR_BYTES, MW_BYTES, QP_BYTES, RQ_BYTES,
    UNDER_WAY_BYTES,
};
pub use logic::{Logic, Ports};
pub use offered::{Make, is_known, names, offer};
use pass_through::PassThrough;
pub use request::{Access, Answer, HostTransfer, Missed, Payload, Piece, Tag, Unreachable, Wanted};
pub(crate) use request::{Passed, vfpga_asked, vfpga_of};

/// A page of user registers whose memory a client stores to.
#[derive(Clone, Debug)]
pub struct Slots(pub(crate) Arc<DoorbellPage>);

impl Slots {
    /// The last value stored to the 64-bit slot of that number; 0 if the page has no such slot.
    #[inline]
    #[must_use]
    pub fn read(&self, slot: usize) -> u64 {
        self.0.read(slot)
    }
}

/// The pages of a vFPGA, for stores that come through the BAR.
pub(crate) type Pages = [Option<Slots>; DOORBELL_PAGES as usize];

/// The logic in a vFPGA. One kind of it is asked for every message, and known statically.
pub(crate) enum Occupant {
    Engine(Box<QueueEngine>),
    PassThrough(PassThrough),
    Other(Box<dyn Logic>),
}

/// Calls a method of the logic that stands there.
macro_rules! occupant {
    ($occupant:expr, $logic:ident => $call:expr) => {
        match $occupant {
            $crate::vfpga::Occupant::Engine($logic) => $call,
            $crate::vfpga::Occupant::PassThrough($logic) => $call,
            $crate::vfpga::Occupant::Other($logic) => $call,
        }
    };
}
pub(crate) use occupant;

impl Occupant {
    /// Logic in the vFPGA of that number; without any, nothing stands there, and its user registers read 0.
    fn of(logic: Option<Named>, number: u8) -> Self {
        match logic {
            Some(Named::Vqe) => Self::Engine(Box::new(QueueEngine::new(number))),
            Some(Named::Other(name)) => {
                let made = offered::make(name, number);
                made.map_or(Self::PassThrough(PassThrough), Self::Other)
            }
            Some(Named::Stock) | None => Self::PassThrough(PassThrough),
        }
    }
}

/// A vFPGA.
pub(crate) struct Vfpga {
    number: usize,
    pub(crate) control: Control,
    pub(crate) logic: Occupant,
    pages: Pages,
    /// The shell's datapath register cuts it off.
    pub(crate) decoupled: bool,
}

impl Vfpga {
    /// A vFPGA with logic after a reset; `None` where the shapes of its TLBs make no sense.
    pub(crate) fn new(
        number: u8,
        logic: Option<Named>,
        ctrl_cnfg: CtrlCnfg,
        bus: &Rc<Bus>,
        isr: Arc<IsrCopy>,
    ) -> Option<Self> {
        Some(Self {
            number: number.into(),
            control: Control::new(number, ctrl_cnfg, bus, isr)?,
            logic: Occupant::of(logic, number),
            pages: Pages::default(),
            decoupled: false,
        })
    }

    /// Puts logic in the place of the present one.
    pub(crate) fn load(&mut self, logic: Option<Named>, network: &mut Network) {
        self.reset_logic(network);
        let number = u8::try_from(self.number).unwrap_or(u8::MAX);
        self.logic = Occupant::of(logic, number);
        for (page, slots) in (1..).zip(&self.pages) {
            if let Some(slots) = slots {
                occupant!(&mut self.logic, logic => logic.open_page(page, slots.clone()));
            }
        }
    }

    /// The logic, and the ports that it has.
    #[inline]
    pub(crate) fn parts<'a>(
        &'a mut self,
        network: &'a mut Network,
    ) -> (&'a mut Occupant, Ports<'a>) {
        let Self { number, control, logic, .. } = self;
        (logic, Ports::new(*number, &control.unit, network))
    }

    /// Gives it the shell's part of a vFPGA after a reset, without the memory of any page.
    pub(crate) fn reset_shell(&mut self, control: Control) {
        self.pages = Pages::default();
        self.control = control;
        self.decoupled = false;
    }

    /// Resets the logic.
    pub(crate) fn reset_logic(&mut self, network: &mut Network) {
        let number = self.number;
        let (logic, mut ports) = self.parts(network);
        occupant!(logic, logic => logic.reset(&mut ports));
        network.forget_vfpga(number);
    }

    /// Lets the logic work.
    pub(crate) fn work(&mut self, now: u64, network: &mut Network) -> bool {
        let (logic, mut ports) = self.parts(network);
        occupant!(logic, logic => logic.work(now, &mut ports))
    }

    pub(crate) fn open_page(&mut self, page: u8, slots: Slots) -> bool {
        let Some(place) = self.page(page) else { return false };
        *place = Some(slots.clone());
        occupant!(&mut self.logic, logic => logic.open_page(page, slots))
    }

    pub(crate) fn close_page(&mut self, page: u8) {
        if let Some(place) = self.page(page) {
            *place = None;
        }
        occupant!(&mut self.logic, logic => logic.close_page(page));
    }

    /// The memory of a page, numbered from 1.
    pub(crate) fn page(&mut self, page: u8) -> Option<&mut Option<Slots>> {
        self.pages.get_mut(usize::from(page).checked_sub(1)?)
    }

    /// Notes a notification that is due; `true` when the interrupt is to be signalled.
    #[inline]
    pub(crate) fn notify(&mut self) -> bool {
        let value = occupant!(&mut self.logic, logic => logic.take_notify());
        value.is_some_and(|value| self.control.isr.raise(Event::Notify { value }))
    }
}
