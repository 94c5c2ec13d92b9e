//! A middleware that records what passes a port.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use super::pcapng::{Direction, Writer};
use super::{Frame, Port};

/// A capture file that several ports write to.
pub type SharedWriter = Rc<RefCell<Writer>>;

/// A port whose frames are recorded, each way, as one interface of a capture.
///
/// A frame that its port left with the sender is not recorded until it goes.
pub struct Capture {
    port: Box<dyn Port>,
    writer: SharedWriter,
    interface: u32,
    /// Where each frame of a burst begins in the capture's buffer; kept for its memory.
    marks: Vec<usize>,
}

impl Capture {
    /// Records a port as the interface of that number.
    #[must_use]
    pub fn new(port: Box<dyn Port>, writer: SharedWriter, interface: u32) -> Self {
        Self { port, writer, interface, marks: Vec::new() }
    }
}

impl Port for Capture {
    fn send(&mut self, now: u64, burst: &mut VecDeque<Frame>) {
        self.marks.clear();
        let mut writer = self.writer.borrow_mut();
        for frame in burst.iter() {
            self.marks.push(writer.mark());
            writer.packet(self.interface, Direction::Outbound, now, frame.as_slice());
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
            writer.packet(self.interface, Direction::Inbound, now, frame.as_slice());
        }
        writer.write_due(now);
    }

    fn room(&self) -> usize {
        self.port.room()
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
            writer.packet(self.interface, Direction::Outbound, now, frame.as_slice());
            writer.packet(self.interface, Direction::Inbound, now, frame.as_slice());
        }
        writer.write_due(now);
        drop(writer);
        self.port.loop_back(now, frames);
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
