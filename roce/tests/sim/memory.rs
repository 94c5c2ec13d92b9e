//! A node's memory, receive queues and keys: the layer above the transport.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::task::Poll;

use netsim::Time;
use netsim::frame::{Frame, Received};
use roce::opcode::{Class, Opcode};
use roce::wire::icrc;
use roce::{
    AccessDenied, FramePayload, Instant, Placed, Placement, Qpn, ReceiveError, ReceivedFrame as _,
    RemoteAccess, RemoteRange, ResponderMemory, Sink, Source, Stack, TakenReceive, Target, XrcSrq,
};

use crate::ledger::{Asked, Ledger};
use crate::script::Script;
use trial::rng::pattern;

/// Memory that peers may address by key.
#[derive(Debug)]
pub struct Region {
    pub va: u64,
    pub bytes: Vec<u8>,
    pub writable: bool,
}

impl Region {
    /// The bytes from `va` on, if all of them belong to the region.
    pub fn range(&mut self, va: u64, length: usize) -> Option<&mut [u8]> {
        let start = usize::try_from(va.checked_sub(self.va)?).ok()?;
        self.bytes.get_mut(start..start.checked_add(length)?)
    }
}

/// Where the bytes of an own message are.
#[derive(Debug)]
pub enum Local {
    /// A message sent: the pattern of this key.
    Pattern(u64),
    /// A READ or an atomic: where the responses go.
    Buffer(Vec<u8>),
    /// Memory that cannot be read.
    Unreadable,
}

#[derive(Debug)]
pub struct ReceiveBuffer {
    pub bytes: Vec<u8>,
}

/// Everything a node's transport asks for.
#[derive(Debug, Default)]
pub struct Memory {
    pub regions: BTreeMap<u32, Region>,
    /// Shared receive queues of XRC, each with its domain.
    pub srqs: BTreeMap<u32, u32>,
    /// Receive requests not yet taken, by QP; those of shared receive queues of XRC by [`of_srq`].
    pub receives: BTreeMap<u32, VecDeque<TakenReceive>>,
    /// Receive buffers by id, until their completion is checked.
    pub buffers: BTreeMap<u64, ReceiveBuffer>,
    /// Own messages by QP and number, until their completion is checked.
    pub messages: BTreeMap<(u32, u64), Local>,
    pub next_receive: u64,
    /// The next receive request of these QPs is unusable.
    pub bad_receives: Vec<u32>,
    /// QPs whose receive queue counts as shared with others.
    pub shared: BTreeSet<u32>,
    /// Receive requests whose buffer cannot be written.
    pub unwritable: Vec<u64>,
    /// Keys that peers may take back.
    pub revocable: Vec<u32>,
    /// Keys that are good, and whose memory cannot be written.
    pub unwritable_keys: Vec<u32>,
    /// Every request asks for an acknowledgement, as those of some cards do.
    pub insists: bool,
    /// The layer above cannot tell its program of the messages that come.
    pub untold: bool,
    pub roce_frames_sent: u64,
    /// Copies of the frames emitted, if they are wanted.
    pub capture: Option<Vec<Vec<u8>>>,
    /// Copies of the frames received, if they are wanted.
    pub heard: Option<Vec<Received>>,
    /// The ledger of answers owed to peers, if one is kept.
    pub ledger: Option<Ledger>,
    /// The script of events on the node's cable, if there is one.
    pub script: Option<Rc<RefCell<Script>>>,
}

/// The number that stands for a shared receive queue of XRC in place of a QP.
pub const fn of_srq(srqn: u32) -> u32 {
    1 << 31 | srqn
}

impl Memory {
    /// Whether there is the shared receive queue that a request names.
    fn has(&self, srq: Option<XrcSrq>) -> bool {
        srq.is_none_or(|XrcSrq { srqn, domain }| self.srqs.get(&srqn) == Some(&domain))
    }

    /// Posts a receive request and gives its id.
    pub fn post_receive(&mut self, qpn: Qpn, capacity: usize) -> u64 {
        self.post_to(qpn.value(), capacity)
    }

    /// Posts a receive request to a shared receive queue of XRC; otherwise as [`Memory::post_receive`].
    pub fn post_xrc_receive(&mut self, srqn: u32, capacity: usize) -> u64 {
        self.post_to(of_srq(srqn), capacity)
    }

    fn post_to(&mut self, queue: u32, capacity: usize) -> u64 {
        let id = self.next_receive;
        self.next_receive += 1;
        self.buffers.insert(id, ReceiveBuffer { bytes: vec![0xee; capacity] });
        let receive = TakenReceive { id, capacity: capacity as u64, left: None };
        self.receives.entry(queue).or_default().push_back(receive);
        id
    }
}

impl netsim::memory::Memory for Memory {
    const BYTES: bool = true;

    fn place(&mut self, placement: &Placement, frame: &[u8]) -> Placed {
        let source = &frame[placement.range.clone()];
        if let Sink::Atomic { rkey, va, operation } = placement.sink {
            assert!(source.is_empty() && va % 8 == 0, "{placement:?}");
            let region = self.regions.get_mut(&rkey);
            let Some(word) = region.and_then(|region| region.range(va, 8)) else {
                return Placed::Failed;
            };
            let before = u64::from_ne_bytes((&*word).try_into().unwrap());
            if let Some(value) = operation.apply(before) {
                word.copy_from_slice(&value.to_ne_bytes());
            }
            return Placed::Executed { before };
        }
        assert!(!source.is_empty(), "an empty placement");
        let offset = placement.offset as usize;
        let target = match placement.sink {
            Sink::Remote { rkey, .. } if self.unwritable_keys.contains(&rkey) => None,
            Sink::Remote { rkey, va } => {
                let Some(region) = self.regions.get_mut(&rkey) else { return Placed::Failed };
                region.range(va, source.len())
            }
            Sink::Receive { id } => {
                if self.unwritable.contains(&id) {
                    return Placed::Failed;
                }
                let buffer = self.buffers.get_mut(&id).expect("an unknown receive request");
                buffer.bytes.get_mut(offset..offset + source.len())
            }
            Sink::Message { message } => {
                match self.messages.get_mut(&(placement.qpn.value(), message)) {
                    Some(Local::Buffer(bytes)) => bytes.get_mut(offset..offset + source.len()),
                    Some(Local::Unreadable) => None,
                    other => panic!("a response to {other:?}"),
                }
            }
            Sink::Atomic { .. } => unreachable!(),
        };
        match target {
            Some(target) => {
                target.copy_from_slice(source);
                Placed::Copied
            }
            None => Placed::Failed,
        }
    }

    fn fetch(&mut self, payload: &FramePayload, frame: &mut Vec<u8>) -> bool {
        let start = frame.len();
        let length = payload.length as usize;
        assert!(length != 0, "an empty payload");
        match payload.source {
            Source::Message { message } => {
                match self.messages.get(&(payload.qpn.value(), message)) {
                    Some(&Local::Pattern(key)) => {
                        frame.resize(start + length, 0);
                        pattern(key, payload.offset, &mut frame[start..]);
                        true
                    }
                    Some(Local::Unreadable) => false,
                    other => panic!("payload of {other:?}, message {message}"),
                }
            }
            Source::Remote { rkey, va } => {
                let Some(region) = self.regions.get_mut(&rkey) else { return false };
                match region.range(va, length) {
                    Some(bytes) => {
                        frame.extend_from_slice(bytes);
                        true
                    }
                    None => false,
                }
            }
        }
    }

    fn receive(
        &mut self,
        stack: &mut Stack,
        now: Instant,
        frame: &mut Received,
        index: usize,
        placements: &mut Vec<Placement>,
    ) {
        let asked = self.ledger.as_ref().and_then(|_| Asked::of(stack, frame.bytes()));
        assert!(stack.receive(now, frame, index, self, placements).is_ready());
        if let (Some(asked), Some(ledger)) = (asked, &mut self.ledger) {
            ledger.hear(stack, &asked);
        }
        if let Some(heard) = &mut self.heard {
            heard.push(frame.clone());
        }
    }

    fn seal(&mut self, frame: &mut Vec<u8>, needs_icrc: bool) {
        if needs_icrc {
            if self.insists {
                insist(frame);
            }
            frame.extend([0; icrc::LENGTH]);
            icrc::append(frame).expect("a frame that can be sealed");
            self.roce_frames_sent += 1;
        }
        if let Some(ledger) = &mut self.ledger {
            ledger.speak(frame);
        }
        if let Some(capture) = &mut self.capture {
            capture.push(frame.clone());
        }
    }

    fn sees_off(&mut self, host: u32, now: Time, frame: &mut Frame) -> bool {
        let script = self.script.as_ref();
        script.is_none_or(|script| script.borrow_mut().carry(host as usize, now, frame))
    }
}

/// Sets the bit of a request that asks for an acknowledgement.
fn insist(frame: &mut [u8]) {
    let transport = match frame[12..14] {
        [0x08, 0x00] => 14 + 20 + 8,
        [0x86, 0xdd] => 14 + 40 + 8,
        _ => return,
    };
    let is_request = Opcode::find(frame[transport])
        .is_some_and(|row| !row.class.is_response() && row.class != Class::CongestionNotification);
    if is_request {
        frame[transport + 8] |= 0x80;
    }
}

impl ResponderMemory for Memory {
    fn check_remote(
        &mut self,
        target: Target,
        memory: RemoteRange,
        access: RemoteAccess,
    ) -> Poll<Result<(), AccessDenied>> {
        let RemoteRange { rkey, va, length } = memory;
        if !self.has(target.srq) {
            return Poll::Ready(Err(AccessDenied::Srq));
        }
        if access == RemoteAccess::Invalidate {
            let may = self.revocable.contains(&rkey);
            return Poll::Ready(if may { Ok(()) } else { Err(AccessDenied::Memory) });
        }
        if length == 0 {
            return Poll::Ready(Ok(()));
        }
        Poll::Ready(match self.regions.get_mut(&rkey) {
            Some(region) if access == RemoteAccess::Read || region.writable => {
                region.range(va, length as usize).map(|_| ()).ok_or(AccessDenied::Memory)
            }
            _ => Err(AccessDenied::Memory),
        })
    }

    fn take_receive(&mut self, target: Target) -> Poll<Result<TakenReceive, ReceiveError>> {
        let Target { qpn, srq } = target;
        if !self.has(srq) {
            return Poll::Ready(Err(ReceiveError::NoSrq));
        }
        if self.bad_receives.contains(&qpn.value()) {
            return Poll::Ready(Err(ReceiveError::Invalid));
        }
        let queue = srq.map_or(qpn.value(), |srq| of_srq(srq.srqn));
        let queue = self.receives.get_mut(&queue);
        let Some((queue, receive)) = queue.and_then(|queue| {
            let receive = queue.pop_front()?;
            Some((queue, receive))
        }) else {
            return Poll::Ready(Err(ReceiveError::Empty));
        };
        let is_shared = srq.is_some() || self.shared.contains(&qpn.value());
        let left = (!is_shared).then_some(queue.len() as u32);
        Poll::Ready(Ok(TakenReceive { left, ..receive }))
    }
}
