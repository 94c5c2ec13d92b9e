//! The cable inside the process: a learning switch that joins any number of ports.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use super::{Frame, Port};

/// Frames that wait for a port before its senders feel back-pressure.
const QUEUE_LIMIT: usize = 256;

/// MAC addresses a switch remembers.
const LEARNED_LIMIT: usize = 1024;

#[derive(Debug, Default)]
struct Switch {
    /// For each port, the frames that wait to be received there.
    queues: Vec<VecDeque<Frame>>,
    learned: Vec<([u8; 6], usize)>,
}

/// One port of a switch.
#[derive(Debug)]
pub struct SwitchPort {
    switch: Rc<RefCell<Switch>>,
    number: usize,
    sent: u64,
    received: u64,
    unknown: u64,
}

/// The ports of a new switch.
#[must_use]
pub fn switch(ports: usize) -> Vec<SwitchPort> {
    let queues = (0..ports).map(|_| VecDeque::new()).collect();
    let switch = Rc::new(RefCell::new(Switch { queues, learned: Vec::new() }));
    (0..ports)
        .map(|number| SwitchPort {
            switch: Rc::clone(&switch),
            number,
            sent: 0,
            received: 0,
            unknown: 0,
        })
        .collect()
}

impl Switch {
    fn learn(&mut self, source: [u8; 6], port: usize) {
        if let Some(entry) = self.learned.iter_mut().find(|(mac, _)| *mac == source) {
            entry.1 = port;
        } else if self.learned.len() < LEARNED_LIMIT {
            self.learned.push((source, port));
        }
    }

    /// The one port a frame goes to, or `None` for all others.
    fn destination(&self, mac: [u8; 6]) -> Option<usize> {
        self.learned.iter().find(|(learned, _)| *learned == mac).map(|(_, port)| *port)
    }

    fn is_full(&self, port: usize) -> bool {
        self.queues.get(port).is_none_or(|queue| queue.len() >= QUEUE_LIMIT)
    }

    fn put(&mut self, port: usize, frame: Frame) {
        if let Some(queue) = self.queues.get_mut(port) {
            queue.push_back(frame);
        }
    }
}

/// Destination and source address of a frame.
fn addresses(frame: &Frame) -> Option<([u8; 6], [u8; 6])> {
    let (destination, rest) = frame.as_slice().split_first_chunk()?;
    Some((*destination, *rest.first_chunk()?))
}

impl Port for SwitchPort {
    fn send(&mut self, _now: u64, burst: &mut VecDeque<Frame>) {
        let mut switch = self.switch.borrow_mut();
        while let Some(frame) = burst.front() {
            let Some((destination, source)) = addresses(frame) else {
                burst.pop_front();
                continue;
            };
            switch.learn(source, self.number);
            let ports = switch.queues.len();
            let others = (0..ports).filter(|port| *port != self.number);
            let targets: Vec<usize> = match switch.destination(destination) {
                Some(port) if port == self.number => Vec::new(),
                Some(port) => vec![port],
                None => others.collect(),
            };
            if targets.iter().any(|port| switch.is_full(*port)) {
                return;
            }
            let Some(frame) = burst.pop_front() else { return };
            self.sent = self.sent.saturating_add(1);
            let Some((last, copies)) = targets.split_last() else {
                self.unknown = self.unknown.saturating_add(1);
                continue;
            };
            for port in copies {
                switch.put(*port, frame.clone());
            }
            switch.put(*last, frame);
        }
    }

    fn receive(&mut self, _now: u64, into: &mut VecDeque<Frame>, budget: usize) {
        let mut switch = self.switch.borrow_mut();
        let Some(queue) = switch.queues.get_mut(self.number) else { return };
        let count = queue.len().min(budget);
        into.extend(queue.drain(..count));
        self.received = self.received.saturating_add(count as u64);
    }

    fn room(&self) -> usize {
        let switch = self.switch.borrow();
        let others = switch.queues.iter().enumerate().filter(|(port, _)| *port != self.number);
        let fullest = others.map(|(_, queue)| queue.len()).max().unwrap_or(0);
        QUEUE_LIMIT.saturating_sub(fullest)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("port_frames_sent", self.sent),
            ("port_frames_received", self.received),
            ("port_frames_unknown", self.unknown),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(destination: u8, source: u8) -> Frame {
        let mut bytes = [0; 64];
        bytes[..6].fill(destination);
        bytes[6..12].fill(source);
        Frame::from_bytes(&bytes).unwrap()
    }

    fn waiting(port: &mut SwitchPort) -> usize {
        let mut into = VecDeque::new();
        port.receive(0, &mut into, usize::MAX);
        into.len()
    }

    #[test]
    fn frames_to_unknown_addresses_go_everywhere_and_to_known_ones_to_their_port() {
        let mut ports = switch(3);
        ports[0].send(0, &mut VecDeque::from([frame(0xff, 1)]));
        assert_eq!([1, 2].map(|port| waiting(&mut ports[port])), [1, 1]);
        ports[2].send(0, &mut VecDeque::from([frame(1, 3)]));
        assert_eq!([0, 1].map(|port| waiting(&mut ports[port])), [1, 0]);
    }

    #[test]
    fn a_full_queue_keeps_frames_with_their_sender_and_loses_none() {
        let mut ports = switch(2);
        let mut burst: VecDeque<Frame> = (0..QUEUE_LIMIT + 10).map(|_| frame(2, 1)).collect();
        ports[0].send(0, &mut burst);
        assert_eq!((burst.len(), ports[0].room()), (10, 0));
        assert_eq!(waiting(&mut ports[1]), QUEUE_LIMIT);
        ports[0].send(0, &mut burst);
        assert_eq!((burst.len(), waiting(&mut ports[1])), (0, 10));
    }
}
