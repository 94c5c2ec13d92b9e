//! One end of the tunnel: a peer that has the key and says anything, messages, and time.

use std::collections::{BTreeMap, BTreeSet};

use arbitrary::Unstructured;
use fpga_regs::engine::qp::Attributes;
use fpga_regs::engine::tunnel::{
    DATAGRAM_PAYLOAD, DatagramHeader, GRANT_BYTES, SLOT_BYTES, SLOT_PAYLOAD, SlotFlags, SlotHeader,
    SlotOperation,
};
use fpga_regs::engine::wqe::AtomicOperation;
use libdeflater::Crc;
use queue_engine::{
    Message, Payload, ReceiveError, RemoteAccess, RemoteRange, TakenReceive, TransportEvent,
    Unreachable, WqeOperation,
};
use tunnel::{Datagram, Direction, End, Host, Key, Names, Pace, Traffic, Work, write_slot};

use crate::Outcome;

/// Steps of an input at most.
const STEPS: usize = 96;
const QPN: u32 = 5;
const NAMES: Names =
    Names { direction: Direction { from: (1, QPN), to: (2, 6) }, key: Key::new([9; 16]) };
/// The one region, and the size of a receive.
const OPEN: std::ops::Range<u64> = 0x1000..0x9000;
const RKEY: u32 = 7;
const CAPACITY: u64 = 9000;

/// Bytes from which on a message goes by a grant.
const LONG: u32 = 3000;
/// Windows of an end at most.
const WINDOWS: usize = 4;

/// An engine with one region, receives that come and go, and memory that is there or not.
struct Engine {
    receives: u8,
    taken: u64,
    reachable: bool,
    asked: u64,
    /// Windows that were opened, with their bytes; those of them that are open, and those that end.
    opened: BTreeMap<u64, u32>,
    open: BTreeSet<u64>,
    ending: BTreeSet<u64>,
}

impl Engine {
    fn reach(&self, payload: Payload, offset: u64, length: usize) -> Result<(), Unreachable> {
        let end = offset.saturating_add(length as u64);
        match payload {
            Payload::Receive { id } => assert!(id < self.taken && end <= CAPACITY, "{id} {end}"),
            Payload::Message { number } => assert!(number < self.asked, "message {number}"),
            Payload::Remote { rkey, address, .. } => {
                let end = address.saturating_add(length as u64);
                assert!(rkey == RKEY && OPEN.contains(&address) && end <= OPEN.end, "{address:#x}");
            }
            other => panic!("{other:?}"),
        }
        if self.reachable { Ok(()) } else { Err(Unreachable) }
    }
}

/// An end's host, with a peer beside it.
trait Side: Host {
    /// Lets time pass for the host; slots of the peer may come.
    fn tend(&mut self, u: &mut Unstructured<'_>) -> arbitrary::Result<()>;

    /// A message to send, which the end takes or not.
    fn message(&mut self, u: &mut Unstructured<'_>) -> arbitrary::Result<Message>;

    /// The card WRITEs bytes behind a window.
    fn leads(&self, window: u64, bytes: u32);

    /// Takes note of the outcomes of messages.
    fn hear(&mut self, event: &TransportEvent);
}

/// A link between two cards, whose messages are datagrams.
impl Side for Traffic {
    fn tend(&mut self, _: &mut Unstructured<'_>) -> arbitrary::Result<()> {
        Ok(())
    }

    fn message(&mut self, u: &mut Unstructured<'_>) -> arbitrary::Result<Message> {
        let payload = vec![7; u.int_in_range(0..=DATAGRAM_PAYLOAD)?];
        let header = DatagramHeader::default();
        Ok(self.send(&Datagram { from: 1, header, payload }))
    }

    fn leads(&self, window: u64, _: u32) {
        panic!("window {window} of a link");
    }

    fn hear(&mut self, event: &TransportEvent) {
        match event {
            TransportEvent::Completed { count, .. } => {
                assert!(*count <= self.out() as u64, "more were answered than sent");
                self.answered(*count);
            }
            TransportEvent::Received(received) => {
                let message = self.take().unwrap();
                assert_eq!(message.len(), received.length as usize);
                if let Some(datagram) = Datagram::from_message(2, &message) {
                    assert!(datagram.payload.len() <= DATAGRAM_PAYLOAD);
                    assert_eq!(datagram.network_header(1)[0], 0x45);
                }
            }
            _ => {}
        }
    }
}

impl Side for Engine {
    fn tend(&mut self, u: &mut Unstructured<'_>) -> arbitrary::Result<()> {
        match u.int_in_range(0..=2)? {
            0 => self.reachable = u.arbitrary()?,
            1 => self.receives = u.int_in_range(0..=3)?,
            _ => self.ending.clear(),
        }
        Ok(())
    }

    fn message(&mut self, u: &mut Unstructured<'_>) -> arbitrary::Result<Message> {
        message(u)
    }

    fn leads(&self, window: u64, bytes: u32) {
        // A window that has ended leads to the spare page.
        assert_eq!(self.opened.get(&window).map(|most| bytes <= *most), Some(true), "{window}");
    }

    fn hear(&mut self, _: &TransportEvent) {}
}

impl Host for Engine {
    fn allows(&self, _: u32, memory: RemoteRange, _: RemoteAccess) -> bool {
        let RemoteRange { rkey, va, length } = memory;
        let end = va.saturating_add(length);
        length == 0 || rkey == RKEY && OPEN.contains(&va) && end <= OPEN.end
    }

    fn take_receive(&mut self, _: u32) -> Result<TakenReceive, ReceiveError> {
        self.receives = self.receives.checked_sub(1).ok_or(ReceiveError::Empty)?;
        self.taken += 1;
        Ok(TakenReceive { id: self.taken - 1, capacity: CAPACITY, left: None })
    }

    fn read(
        &mut self,
        _: u32,
        payload: Payload,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), Unreachable> {
        self.reach(payload, offset, into.len())
    }

    fn write(
        &mut self,
        _: u32,
        payload: Payload,
        offset: u64,
        from: &[u8],
    ) -> Result<(), Unreachable> {
        self.reach(payload, offset, from.len())
    }

    fn atomic(
        &mut self,
        _: u32,
        rkey: u32,
        address: u64,
        _: AtomicOperation,
    ) -> Result<u64, Unreachable> {
        assert_eq!(address % 8, 0);
        let payload = Payload::Remote { rkey, address, access: RemoteAccess::Atomic };
        self.reach(payload, 0, 8).map(|()| 0)
    }

    fn open(&mut self, _: u32, payload: Payload, offset: u64, bytes: u32) -> Option<u64> {
        assert!(bytes > 0 && bytes % 4 == 0 && bytes <= GRANT_BYTES, "{bytes}");
        self.reach(payload, offset, bytes as usize).ok()?;
        let window = self.opened.len() as u64;
        self.opened.insert(window, bytes);
        self.open.insert(window);
        assert!(self.open.len() <= WINDOWS, "{:?}", self.open);
        Some(window)
    }

    fn close(&mut self, _: u32, window: u64) {
        assert!(self.opened.contains_key(&window), "window {window} is none");
        if self.open.remove(&window) {
            self.ending.insert(window);
        }
    }

    fn is_closed(&self, _: u32, window: u64) -> bool {
        !self.open.contains(&window) && !self.ending.contains(&window)
    }
}

/// A header of the peer's: often a sane one, or nearly.
fn header(u: &mut Unstructured<'_>) -> arbitrary::Result<SlotHeader> {
    let operation = *u.choose(&[
        1, 1, 2, 2, 3, 4, 5, 6, 7, 8, 16, 16, 17, 18, 19, 19, 20, 21, 32, 33, 34, 35, 36, 99,
    ])?;
    let length: u32 = u.int_in_range(0..=12_000)?;
    // All of the memory is zeros.
    let mut crc = Crc::new();
    crc.update(&vec![0; (length.saturating_sub(1) & !3) as usize]);
    Ok(SlotHeader {
        operation: SlotOperation(operation),
        status: *u.choose(&[0, 0, 9, 10, 200])?,
        flags: SlotFlags::from_bits_retain(u.arbitrary()?),
        timer: u.arbitrary()?,
        bytes: if u.arbitrary()? {
            u.int_in_range(0..=SLOT_PAYLOAD as u16)?
        } else {
            u.arbitrary()?
        },
        message: u.int_in_range(0..=4)?,
        consumed: u.int_in_range(0..=8)?,
        address: if u.arbitrary()? { OPEN.start } else { u.arbitrary()? },
        key: if u.arbitrary()? { RKEY } else { u.arbitrary()? },
        length: if u.arbitrary()? { length } else { u.arbitrary()? },
        offset: *u.choose(&[0, 0, SLOT_PAYLOAD as u32, 2 * SLOT_PAYLOAD as u32, u32::MAX])?,
        immediate: u.arbitrary()?,
        sum: if u.arbitrary()? { crc.sum() } else { u.arbitrary()? },
        ..SlotHeader::default()
    })
}

fn message(u: &mut Unstructured<'_>) -> arbitrary::Result<Message> {
    let (remote_address, rkey) = (0, 0);
    let (operation, length) = match u.int_in_range(0..=3)? {
        0 => (WqeOperation::Send { immediate: u.arbitrary()? }, u.int_in_range(0..=9000)?),
        1 => (
            WqeOperation::Write { remote_address, rkey, immediate: None },
            u.int_in_range(0..=9000)?,
        ),
        2 => (WqeOperation::Read { remote_address, rkey }, u.int_in_range(0..=9000)?),
        _ => {
            let operation = AtomicOperation::FetchAdd { add: 1 };
            (WqeOperation::Atomic { remote_address, rkey, operation }, 8)
        }
    };
    Ok(Message { operation, length, solicited: false, fence: u.arbitrary()?, srqn: None })
}

pub fn run(u: &mut Unstructured<'_>) -> Outcome {
    match u.ratio(1, 3)? {
        true => one(u, 0, &mut Traffic::default(), |_| {}),
        false => {
            let (opened, open, ending) = Default::default();
            let (receives, taken, reachable, asked) = (3, 0, true, 0);
            let mut engine = Engine { receives, taken, reachable, asked, opened, open, ending };
            one(u, 0xe, &mut engine, |engine| engine.asked += 1)
        }
    }
}

/// An end with a host, to which `took` says that a message of its was taken.
fn one<S: Side>(
    u: &mut Unstructured<'_>,
    access: u32,
    host: &mut S,
    took: impl Fn(&mut S),
) -> Outcome {
    let attributes =
        Attributes { rq_psn: 3, sq_psn: 4, rnr_retry: 1, access, ..Attributes::default() };
    let (mut now, mut sequence) = (0, 0);
    let pace = Pace { watchdog: 1_000_000, between: 40, rest: 200_000, long: Some(LONG) };
    let mut end = End::new(now, QPN, NAMES, &attributes, pace);
    end.let_send(&attributes);
    end.set(&attributes);
    let back = NAMES.direction.back();
    let keys = [4, 3].map(|psn| NAMES.key.of_slots(back, psn));
    let (mut slot, mut out) = (Vec::new(), 0u64);
    for _ in 0..STEPS {
        if u.is_empty() {
            break;
        }
        match u.int_in_range(0..=8)? {
            0..=3 => {
                let mut header = header(u)?;
                header.number = if u.ratio(15, 16)? { sequence + 1 } else { u.arbitrary()? };
                let payload = vec![u.arbitrary()?; usize::from(header.bytes).min(SLOT_PAYLOAD)];
                let own = header.flags.contains(SlotFlags::OWN_NUMBER);
                write_slot(&header, &payload, &keys[usize::from(own)], &mut slot);
                slot.resize(SLOT_BYTES, 0);
                if u.ratio(1, 16)? {
                    let at = u.choose_index(SLOT_BYTES)?;
                    slot[at] ^= 1;
                }
                sequence += u64::from(end.receive(now, &slot, host));
            }
            4 if end.is_live() && end.room() > 0 => {
                let message = host.message(u)?;
                if end.submit(now, &message).is_ok() {
                    took(host);
                }
            }
            5 => now += u.int_in_range(0..=400_000)?,
            6 => end.drain(now, u.arbitrary()?),
            _ => host.tend(u)?,
        }
        let acknowledged = if u.arbitrary()? { out } else { out.saturating_sub(1) };
        end.settle(now, host);
        end.advance(now, acknowledged == out);
        loop {
            match end.next(now, acknowledged >= out, host, &mut slot) {
                Work::Slot(place) => {
                    assert!(slot.len() % 64 == 0 && slot.len() <= SLOT_BYTES);
                    assert!(place % SLOT_BYTES == 0);
                }
                Work::Write { window, bytes, .. } => host.leads(window, bytes),
                Work::Rewrite(..) => continue,
                Work::Nothing => break,
            }
            out += 1;
            assert!(out < 32 * 100, "slots without credits");
        }
        while let Some(event) = end.take_event() {
            host.hear(&event);
            if matches!(event, TransportEvent::Received(_)) {
                match u.ratio(1, 50)? {
                    true => drop(end.refuse(now)),
                    false => end.told(),
                }
            }
        }
    }
    Ok(())
}
