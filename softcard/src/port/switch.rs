//! The cable inside the process: a learning switch that joins any number of ports.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use super::{Counters, Frame, FramePool, MIN_FRAME, Port};

/// Frames that wait for a port before its senders feel back-pressure.
const QUEUE_LIMIT: usize = 256;

/// MAC addresses a switch remembers.
const LEARNED_LIMIT: usize = 1024;

#[derive(Debug)]
struct Switch {
    /// The frames that wait to be received at each port.
    queues: Vec<VecDeque<Frame>>,
    learned: Vec<([u8; 6], usize)>,
    pool: FramePool,
}

/// One port of a switch.
#[derive(Debug)]
pub struct SwitchPort {
    switch: Rc<RefCell<Switch>>,
    number: usize,
    counters: Counters,
}

/// The ports of a new switch, which takes copies from a pool and gives dropped frames back to it.
///
/// No frame is lost on the way: one that finds a queue full stays with its sender.
#[must_use]
pub fn switch(ports: usize, pool: &FramePool) -> Vec<SwitchPort> {
    let queues = (0..ports).map(|_| VecDeque::new()).collect();
    let switch = Rc::new(RefCell::new(Switch { queues, learned: Vec::new(), pool: pool.clone() }));
    let port =
        |number| SwitchPort { switch: Rc::clone(&switch), number, counters: Counters::default() };
    (0..ports).map(port).collect()
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

    /// Moves a frame from one port to those it is for; `Err` gives it back if a queue is full.
    /// `last` carries the lookup of addresses from one frame of a burst to the next.
    fn forward(
        &mut self,
        from: usize,
        frame: Frame,
        last: &mut Option<Lookup>,
    ) -> Result<Forwarded, Frame> {
        let Some(addresses) = addresses(&frame) else {
            self.pool.put(frame);
            return Ok(Forwarded::BadLength);
        };
        let destination = match *last {
            Some(lookup) if lookup.addresses == addresses => lookup.destination,
            _ => self.look_up(from, addresses),
        };
        *last = Some(Lookup { addresses, destination });
        match destination {
            Some(port) if port == from => {
                self.pool.put(frame);
                Ok(Forwarded::Nobody)
            }
            Some(port) => match self.queues.get_mut(port) {
                Some(queue) if queue.len() < QUEUE_LIMIT => {
                    queue.push_back(frame);
                    Ok(Forwarded::Moved)
                }
                _ => Err(frame),
            },
            // What is for the port at this end of the cable alone goes no further (IEEE 802.1Q, 8.6.3).
            None if is_reserved(addresses) => {
                self.pool.put(frame);
                Ok(Forwarded::Nobody)
            }
            None => self.flood(from, frame),
        }
    }

    /// Learns the source, and answers the one port the frame goes to, or `None` for all others.
    fn look_up(&mut self, from: usize, addresses: [u8; ADDRESSES]) -> Option<usize> {
        let (destination, source) = addresses.split_first_chunk::<6>()?;
        let source = *source.first_chunk()?;
        // A group address belongs to no port.
        if !is_group(source) {
            self.learn(source, from);
        }
        self.destination(*destination)
    }

    /// Moves a frame to all ports but its own.
    fn flood(&mut self, from: usize, frame: Frame) -> Result<Forwarded, Frame> {
        let mut others = self.others(from);
        if others.any(|queue| queue.len() >= QUEUE_LIMIT) {
            return Err(frame);
        }
        drop(others);
        let others = self.queues.iter_mut().enumerate().filter(|(port, _)| *port != from);
        let mut others = others.map(|(_, queue)| queue);
        let Some(first) = others.next() else {
            self.pool.put(frame);
            return Ok(Forwarded::Nobody);
        };
        for queue in others {
            queue.push_back(self.pool.copy_of(&frame));
        }
        first.push_back(frame);
        Ok(Forwarded::Moved)
    }

    /// The queues of all ports but one.
    fn others(&self, from: usize) -> impl Iterator<Item = &VecDeque<Frame>> {
        let others = self.queues.iter().enumerate().filter(move |(port, _)| *port != from);
        others.map(|(_, queue)| queue)
    }
}

/// The fate of a frame.
enum Forwarded {
    Moved,
    /// No port has the address.
    Nobody,
    BadLength,
}

/// Whether a MAC address is a multicast or the broadcast address.
fn is_group(mac: [u8; 6]) -> bool {
    mac.first().is_some_and(|first| first & 1 == 1)
}

/// Whether the first of a frame's addresses is one that no switch forwards to.
fn is_reserved(addresses: [u8; ADDRESSES]) -> bool {
    matches!(addresses, [0x01, 0x80, 0xc2, 0, 0, last, ..] if last < 16)
}

/// Bytes of destination and source address, which a frame begins with.
const ADDRESSES: usize = 12;

/// The port that was looked up for a frame's addresses.
#[derive(Clone, Copy)]
struct Lookup {
    addresses: [u8; ADDRESSES],
    /// The port, or `None` for all others.
    destination: Option<usize>,
}

/// The addresses of a frame that is long enough.
fn addresses(frame: &Frame) -> Option<[u8; ADDRESSES]> {
    let bytes = frame.as_slice();
    if bytes.len() < MIN_FRAME {
        return None;
    }
    bytes.first_chunk().copied()
}

impl Port for SwitchPort {
    fn send(&mut self, _now: u64, burst: &mut VecDeque<Frame>) {
        let mut switch = self.switch.borrow_mut();
        let mut last = None;
        while let Some(frame) = burst.pop_front() {
            let counter = match switch.forward(self.number, frame, &mut last) {
                Ok(Forwarded::Moved) => &mut self.counters.sent,
                Ok(Forwarded::Nobody) => &mut self.counters.no_peer,
                Ok(Forwarded::BadLength) => &mut self.counters.bad_length,
                Err(frame) => {
                    burst.push_front(frame);
                    self.counters.held = self.counters.held.saturating_add(1);
                    return;
                }
            };
            *counter = counter.saturating_add(1);
        }
    }

    fn receive(&mut self, _now: u64, into: &mut VecDeque<Frame>, budget: usize) {
        let mut switch = self.switch.borrow_mut();
        let Some(queue) = switch.queues.get_mut(self.number) else { return };
        let count = queue.len().min(budget);
        into.extend(queue.drain(..count));
        self.counters.received = self.counters.received.saturating_add(count as u64);
    }

    fn room(&self) -> usize {
        let switch = self.switch.borrow();
        let fullest = switch.others(self.number).map(VecDeque::len).max().unwrap_or(0);
        QUEUE_LIMIT.saturating_sub(fullest)
    }

    fn ways(&self) -> usize {
        self.switch.borrow().queues.len()
    }

    fn way_of(&self, source: [u8; 6]) -> usize {
        self.switch.borrow().destination(source).unwrap_or_default()
    }

    fn answer(&mut self, _now: u64, way: usize, frame: &mut VecDeque<Frame>) {
        let mut switch = self.switch.borrow_mut();
        if let Some(queue) = switch.queues.get_mut(way) {
            frame.drain(..).for_each(|frame| queue.push_front(frame));
        }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.counters.list()
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

    fn of_ports(ports: usize) -> Vec<SwitchPort> {
        switch(ports, &FramePool::new(16))
    }

    fn waiting(port: &mut SwitchPort) -> usize {
        let mut into = VecDeque::new();
        port.receive(0, &mut into, usize::MAX);
        into.len()
    }

    #[test]
    fn frames_to_unknown_addresses_go_everywhere_and_to_known_ones_to_their_port() {
        let mut ports = of_ports(3);
        ports[0].send(0, &mut VecDeque::from([frame(0xff, 2)]));
        assert_eq!([1, 2].map(|port| waiting(&mut ports[port])), [1, 1]);
        ports[2].send(0, &mut VecDeque::from([frame(2, 4)]));
        assert_eq!([0, 1].map(|port| waiting(&mut ports[port])), [1, 0]);
    }

    #[test]
    fn a_full_queue_keeps_frames_with_their_sender_and_loses_none() {
        let mut ports = of_ports(2);
        let mut burst: VecDeque<Frame> = (0..QUEUE_LIMIT + 10).map(|_| frame(2, 4)).collect();
        ports[0].send(0, &mut burst);
        assert_eq!((burst.len(), ports[0].room()), (10, 0));
        assert_eq!(waiting(&mut ports[1]), QUEUE_LIMIT);
        ports[0].send(0, &mut burst);
        assert_eq!((burst.len(), waiting(&mut ports[1])), (0, 10));
    }

    fn counter(port: &SwitchPort, name: &str) -> u64 {
        port.counters().iter().find(|(found, _)| *found == name).unwrap().1
    }

    #[test]
    fn frames_that_are_too_short_or_for_nobody_are_dropped_and_counted() {
        let mut ports = of_ports(2);
        let short = Frame::from_bytes(&[1; MIN_FRAME - 1]).unwrap();
        // The third is for an address learned at the port it comes from.
        let mut burst = VecDeque::from([short, frame(2, 4), frame(4, 4)]);
        ports[0].send(0, &mut burst);
        assert!(burst.is_empty());
        assert_eq!(waiting(&mut ports[1]), 1);
        let count = |name| counter(&ports[0], name);
        assert_eq!(count("port_frames_bad_length"), 1);
        assert_eq!((count("port_frames_no_peer"), count("port_frames_sent")), (1, 1));

        let mut alone = of_ports(1);
        alone[0].send(0, &mut VecDeque::from([frame(2, 4)]));
        assert_eq!(counter(&alone[0], "port_frames_no_peer"), 1);
        assert_eq!(alone[0].room(), QUEUE_LIMIT);
    }

    #[test]
    fn a_group_address_is_never_learned() {
        let mut ports = of_ports(3);
        ports[0].send(0, &mut VecDeque::from([frame(2, 0xff)]));
        ports[1].send(0, &mut VecDeque::from([frame(0xff, 4)]));
        assert_eq!([0, 1, 2].map(|port| waiting(&mut ports[port])), [1, 1, 2]);
    }

    #[test]
    fn an_address_that_moves_is_followed() {
        let mut ports = of_ports(3);
        ports[0].send(0, &mut VecDeque::from([frame(0xff, 8)]));
        ports[1].send(0, &mut VecDeque::from([frame(0xff, 8)]));
        let _ = [0, 1, 2].map(|port| waiting(&mut ports[port]));
        ports[2].send(0, &mut VecDeque::from([frame(8, 4)]));
        assert_eq!([0, 1].map(|port| waiting(&mut ports[port])), [0, 1]);
    }

    #[test]
    fn a_frame_for_all_waits_until_all_have_room() {
        let mut ports = of_ports(3);
        ports[1].send(0, &mut VecDeque::from([frame(0xfe, 2)]));
        let _ = [0, 2].map(|port| waiting(&mut ports[port]));
        let mut full: VecDeque<Frame> = (0..QUEUE_LIMIT).map(|_| frame(2, 4)).collect();
        ports[0].send(0, &mut full);
        let mut broadcast = VecDeque::from([frame(0xff, 6)]);
        ports[2].send(0, &mut broadcast);
        assert_eq!((broadcast.len(), counter(&ports[2], "port_frames_held")), (1, 1));
        assert_eq!(waiting(&mut ports[0]), 0);
        assert_eq!(waiting(&mut ports[1]), QUEUE_LIMIT);
        ports[2].send(0, &mut broadcast);
        assert_eq!([0, 1].map(|port| waiting(&mut ports[port])), [1, 1]);
    }
}
