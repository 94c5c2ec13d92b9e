//! Logic that answers SENDs by itself: the bytes that have come go back, in a message of its own.
//!
//! It has one queue pair, which stands in registers of 64 bits:
//!
//! | offset | what |
//! |---|---|
//! | 0x00 | read: the number of its queue pair |
//! | 0x08 | the number of the peer's |
//! | 0x10, 0x18 | the peer's GID, first byte lowest |
//! | 0x20 | written: connects with that peer; read: 1 once it is |
//! | 0x28 | written: sends so many bytes, 7 each; read: messages that have come |
//! | 0x30 | read: bytes that have come, but for those that were 7 |
//! | 0x38 | read: errors that it has heard of |

use std::collections::VecDeque;
use std::task::Poll;

use roce::{
    AccessDenied, AccessFlags, AddressVector, Event, Gid, Operation, PathMtu, Psn, QpAttributes,
    Qpn, ReceiveError, SendRequest, Service, TakenReceive, Target,
};
use softcard::logic::{Access, Logic, Payload, Ports, Tag, Unreachable, Wanted};

/// Bytes of the longest message that it takes.
const CAPACITY: usize = 0x1_0000;
/// Messages that it has under way each way, at most.
const MESSAGES: usize = 16;

/// The logic.
#[derive(Debug, Default)]
pub struct Echo {
    vfpga: u8,
    peer: u64,
    gid: [u64; 2],
    connected: bool,
    /// Receives by their names, with the bytes of their messages so far.
    receives: VecDeque<(u64, Vec<u8>)>,
    next_receive: u64,
    /// Messages to be sent, and sent ones with their numbers.
    waiting: VecDeque<Vec<u8>>,
    sent: VecDeque<(u64, Vec<u8>)>,
    heard: u64,
    others: u64,
    errors: u64,
}

impl Echo {
    /// The logic in the vFPGA of that number.
    pub fn make(vfpga: u8) -> Box<dyn Logic> {
        Box::new(Self { vfpga, ..Self::default() })
    }

    /// The number of its queue pair, which has its vFPGA's in bits 23 to 20.
    fn qpn(&self) -> Qpn {
        Qpn::new(u32::from(self.vfpga) << 20 | 0x42).expect("a number of 24 bits")
    }

    /// Makes its queue pair and takes it to RTS; packet numbers begin with 0.
    fn connect(&mut self, now: u64, ports: &mut Ports<'_>) -> Result<(), roce::Error> {
        ports.create_qp(self.qpn(), Service::Rc, 0)?;
        let [low, high] = self.gid.map(u64::to_le_bytes);
        let mut gid = [0; 16];
        gid[..8].copy_from_slice(&low);
        gid[8..].copy_from_slice(&high);
        let dgid = Gid::from_bytes(gid);
        let path = AddressVector::new(0, dgid);
        let peer = u32::try_from(self.peer).ok().and_then(Qpn::new);
        let init = QpAttributes::to_init(AccessFlags::empty());
        let rtr = QpAttributes {
            dest_qpn: peer,
            max_dest_rd_atomic: Some(0),
            min_rnr_timer: Some(1),
            ..QpAttributes::to_rtr(path, PathMtu::Mtu1024, self.qpn(), Psn::new(0))
        };
        let rts = QpAttributes { max_rd_atomic: Some(0), ..QpAttributes::to_rts(Psn::new(0)) };
        for change in [init, rtr, rts] {
            ports.modify_qp(now, self.qpn(), &change)?;
        }
        self.connected = true;
        Ok(())
    }
}

impl Logic for Echo {
    fn read_register(&self, _now: u64, offset: u64) -> u64 {
        match offset {
            0x00 => self.qpn().value().into(),
            0x08 => self.peer,
            0x10 => self.gid[0],
            0x18 => self.gid[1],
            0x20 => self.connected.into(),
            0x28 => self.heard,
            0x30 => self.others,
            0x38 => self.errors,
            _ => 0,
        }
    }

    fn write_register(&mut self, now: u64, offset: u64, value: u64, ports: &mut Ports<'_>) {
        match offset {
            0x08 => self.peer = value,
            0x10 => self.gid[0] = value,
            0x18 => self.gid[1] = value,
            0x20 => self.errors += u64::from(self.connect(now, ports).is_err()),
            0x28 => self.waiting.push_back(vec![7; (value as usize).min(CAPACITY)]),
            _ => {}
        }
    }

    /// The shell ends its queue pair.
    fn reset(&mut self, _ports: &mut Ports<'_>) {
        *self = Self { vfpga: self.vfpga, ..Self::default() };
    }

    /// It has no rings.
    fn lost_memory(&mut self, _now: u64, _ports: &mut Ports<'_>) {}

    fn work(&mut self, now: u64, ports: &mut Ports<'_>) -> bool {
        let mut worked = false;
        while self.connected && ports.send_room(self.qpn()) > 0 {
            let Some(bytes) = self.waiting.pop_front() else { break };
            let request = SendRequest {
                operation: Operation::Send,
                // At most CAPACITY.
                length: bytes.len() as u32,
                remote_va: 0,
                rkey: 0,
                imm: 0,
                solicited: false,
                fence: false,
            };
            match ports.post_send(now, self.qpn(), None, request) {
                Ok(number) => self.sent.push_back((number, bytes)),
                Err(_) => self.errors += 1,
            }
            worked = true;
        }
        worked
    }

    fn take_notify(&mut self) -> Option<u32> {
        None
    }

    /// Refuses all accesses to memory.
    fn check_remote(&mut self, _: Tag, access: &Access) -> Poll<Result<(), AccessDenied>> {
        let denied = access.target.srq.map_or(AccessDenied::Memory, |_| AccessDenied::Srq);
        Poll::Ready(Err(denied))
    }

    fn take_receive(&mut self, _: Tag, target: Target) -> Poll<Result<TakenReceive, ReceiveError>> {
        let under_way = self.receives.len() + self.waiting.len() + self.sent.len();
        Poll::Ready(match target.srq {
            Some(_) => Err(ReceiveError::NoSrq),
            // The peer tries again a little later.
            None if under_way >= MESSAGES => Err(ReceiveError::Empty),
            None => {
                let id = self.next_receive;
                self.next_receive += 1;
                self.receives.push_back((id, Vec::new()));
                let left = (MESSAGES - 1 - under_way) as u32;
                Ok(TakenReceive { id, capacity: CAPACITY as u64, left: Some(left) })
            }
        })
    }

    fn carries_payload(&self) -> bool {
        true
    }

    fn place(&mut self, _: Tag, wanted: &Wanted, bytes: &[u8]) -> Poll<Result<(), Unreachable>> {
        let Payload::Receive { id: wanted_id } = wanted.payload else {
            return Poll::Ready(Err(Unreachable));
        };
        let found = self.receives.iter_mut().find(|(id, _)| *id == wanted_id);
        Poll::Ready(match found {
            Some((_, come)) if come.len() as u64 == wanted.offset => {
                come.extend(bytes);
                Ok(())
            }
            _ => Err(Unreachable),
        })
    }

    fn fetch(&mut self, _: Tag, wanted: &Wanted, into: &mut [u8]) -> Poll<Result<(), Unreachable>> {
        let Payload::Message { number: wanted_number } = wanted.payload else {
            return Poll::Ready(Err(Unreachable));
        };
        let found = self.sent.iter().find(|(number, _)| *number == wanted_number);
        let start = wanted.offset as usize;
        let bytes = found.and_then(|(_, bytes)| bytes.get(start..start + into.len()));
        Poll::Ready(bytes.map(|bytes| into.copy_from_slice(bytes)).ok_or(Unreachable))
    }

    fn take_event(&mut self, _now: u64, event: Event, _ports: &mut Ports<'_>) {
        match event {
            Event::ReceiveCompleted { id, .. } => {
                let place = self.receives.iter().position(|(its, _)| *its == id);
                let Some((_, bytes)) = place.and_then(|place| self.receives.remove(place)) else {
                    return;
                };
                self.heard += 1;
                self.others += bytes.iter().filter(|byte| **byte != 7).count() as u64;
                self.waiting.push_back(bytes);
            }
            Event::SendsCompleted { through, .. } => {
                self.sent.retain(|(number, _)| *number > through);
            }
            Event::ReceiveFailed { .. } | Event::SendFailed { .. } => self.errors += 1,
            Event::EnteredError { .. } => {
                self.connected = false;
                self.receives.clear();
                self.waiting.clear();
                self.sent.clear();
            }
            Event::Async { .. } => {}
        }
    }
}
