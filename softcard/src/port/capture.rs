//! A middleware that records a port's frames.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use roce::PathMtu;
use roce::qos::Qos;

use super::pcapng::{Direction, Writer};
use super::{Frame, Port, Rooms};
use crate::Error;

/// A capture file that several ports write to.
pub type SharedWriter = Rc<RefCell<Writer>>;

/// A port whose frames are recorded, each way as an interface of a capture.
///
/// It wraps everything that changes frames on their way, so that one interface has the frames that its card
/// sent and the other those that were delivered to it. A frame that its port left with the sender is not
/// recorded until it goes.
pub struct Capture {
    port: Box<dyn Port>,
    writer: SharedWriter,
    /// The interface of frames that the card sends.
    sent: u32,
    /// The interface of frames that are delivered to the card.
    delivered: u32,
    /// Where each frame of a burst begins in the capture's buffer; kept for its memory.
    marks: Vec<usize>,
}

impl Capture {
    /// The names of the interfaces of that many cards: `card0-sent`, `card0-delivered` and so on.
    #[must_use]
    pub fn interface_names(cards: usize) -> Vec<String> {
        let names = |card| [format!("card{card}-sent"), format!("card{card}-delivered")];
        (0..cards).flat_map(names).collect()
    }

    /// Records the port of the card with that number.
    #[must_use]
    pub fn new(port: Box<dyn Port>, writer: SharedWriter, card: u32) -> Self {
        let sent = card.saturating_mul(2);
        Self { port, writer, sent, delivered: sent.saturating_add(1), marks: Vec::new() }
    }
}

impl Port for Capture {
    fn send(&mut self, now: u64, burst: &mut VecDeque<Frame>) {
        self.marks.clear();
        let mut writer = self.writer.borrow_mut();
        for frame in burst.iter() {
            self.marks.push(writer.mark());
            writer.packet(self.sent, Direction::Outbound, now, frame.as_slice());
        }
        let before = burst.len();
        self.port.send(now, burst);
        let taken = before.saturating_sub(burst.len());
        if let Some(mark) = self.marks.get(taken) {
            writer.forget_after(*mark);
        }
        writer.write_due(now);
    }

    fn receive(&mut self, now: u64, into: &mut VecDeque<Frame>, budget: usize) {
        let before = into.len();
        self.port.receive(now, into, budget);
        let mut writer = self.writer.borrow_mut();
        for frame in into.range(before..) {
            writer.packet(self.delivered, Direction::Inbound, now, frame.as_slice());
        }
        writer.write_due(now);
    }

    fn room(&self) -> usize {
        self.port.room()
    }

    fn rooms(&self) -> Option<Rooms> {
        self.port.rooms()
    }

    fn qos(&self) -> Result<&Qos, Error> {
        self.port.qos()
    }

    fn set_qos(&mut self, now: u64, qos: &Qos) -> Result<(), Error> {
        self.port.set_qos(now, qos)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.port.fd()
    }

    fn next_timeout(&self) -> Option<u64> {
        let flush = self.writer.borrow().next_timeout();
        [flush, self.port.next_timeout()].into_iter().flatten().min()
    }

    fn loop_back(&mut self, now: u64, frames: &VecDeque<Frame>) {
        let mut writer = self.writer.borrow_mut();
        for frame in frames {
            writer.packet(self.sent, Direction::Outbound, now, frame.as_slice());
            writer.packet(self.delivered, Direction::Inbound, now, frame.as_slice());
        }
        writer.write_due(now);
        drop(writer);
        self.port.loop_back(now, frames);
    }

    fn set_addresses(&mut self, mac: [u8; 6], addresses: &[IpAddr]) {
        self.port.set_addresses(mac, addresses);
    }

    fn path_mtu(&self, longer: usize) -> PathMtu {
        self.port.path_mtu(longer)
    }

    fn most_groups(&self) -> usize {
        self.port.most_groups()
    }

    fn hear_group(&mut self, group: IpAddr, is_member: bool) -> bool {
        self.port.hear_group(group, is_member)
    }

    fn reset(&mut self) {
        self.port.reset();
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut counters = self.port.counters();
        counters.push(("capture_frames_lost", self.writer.borrow().lost()));
        counters
    }

    fn flush(&mut self) {
        self.writer.borrow_mut().flush();
        self.port.flush();
    }
}
