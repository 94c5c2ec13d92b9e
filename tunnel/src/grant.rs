//! Payload that no slot carries: a grant is asked for, given, used by WRITEs of the sender's card, and said to be used.
//!
//! No slot's MAC is over these bytes, and a card may take them from elsewhere, or put them elsewhere, and report
//! success. So the sender sends their sum, and the receiver compares it with that of the landed bytes; if it differs,
//! they come once more, in slots.

use std::collections::VecDeque;

use fpga_regs::engine::tunnel::{GRANT_BYTES, GRANT_PARTS, SlotFlags, SlotHeader, SlotOperation};
use libdeflater::Crc;
use queue_engine::Payload;

use crate::host::Host;
use crate::param::MORE;

/// First address that no WRITE may name: published cards stop.
const ADDRESSES: u64 = 1 << 48;
/// Bytes that are added up at a time.
const STRIDE: u32 = 64 << 10;
/// Parts of a message that the card WRITEs at a time: the next one moves while the peer adds up the one before, and
/// requests meanwhile do not wait behind all granted parts.
const OUT: usize = 2;

/// The next slot of a side of an end.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Next {
    /// A slot.
    Slot(SlotHeader),
    /// Nothing: its card is to WRITE.
    Write(Use),
}

/// A WRITE that the card is to make of bytes behind a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Use {
    /// The window's first address.
    pub(crate) window: u64,
    /// The granted address.
    pub(crate) remote: u64,
    pub(crate) bytes: u32,
}

/// Bytes of a program's that move, and the window that leads to them.
#[derive(Clone, Copy, Debug)]
struct Part {
    memory: (Payload, u64),
    /// Where in the message they are.
    offset: u32,
    bytes: u32,
    window: u64,
    /// When it was first looked at.
    since: Option<u64>,
}

impl Part {
    /// The rest of a message behind a place, as far as one grant goes. The last bytes of each message go in a slot: a
    /// program that looks at the last byte, instead of waiting for a completion, sees it when all before it has been
    /// compared.
    fn open(
        qpn: u32,
        memory: (Payload, u64),
        header: &SlotHeader,
        host: &mut impl Host,
    ) -> Option<Self> {
        let SlotHeader { offset, length, .. } = *header;
        let bytes = length.saturating_sub(offset).saturating_sub(1).min(GRANT_BYTES) & !3;
        let (payload, at) = memory;
        let window = if bytes > 0 { host.open(qpn, payload, at, bytes)? } else { return None };
        Some(Self { memory, offset, bytes, window, since: None })
    }

    /// Ends the window if the peer has let so much time pass. Its card's later accesses then meet no memory, and are
    /// detected.
    fn lapse(&mut self, now: u64, after: u64, qpn: u32, host: &mut impl Host) {
        let since = *self.since.get_or_insert(now);
        if now.saturating_sub(since) >= after {
            host.close(qpn, self.window);
        }
    }

    /// The sum of its bytes; `None` if they are out of reach by now.
    fn sum(&self, qpn: u32, host: &mut impl Host) -> Option<u32> {
        let (payload, at) = self.memory;
        let mut crc = Crc::new();
        let mut buffer = vec![0; STRIDE.min(self.bytes) as usize];
        let mut done = 0u32;
        while done < self.bytes {
            let here = self.bytes.saturating_sub(done).min(STRIDE);
            let bytes = buffer.get_mut(..here as usize)?;
            let (payload, at) = behind(payload, at, done.into());
            host.read(qpn, payload, at, bytes).ok()?;
            crc.update(bytes);
            done = done.saturating_add(here);
        }
        Some(crc.sum())
    }
}

/// Bytes of a payload further on; where a peer has named them, the address moves and the offset means nothing.
fn behind(payload: Payload, at: u64, bytes: u64) -> (Payload, u64) {
    match payload {
        Payload::Remote { rkey, address, access } => {
            (Payload::Remote { rkey, address: address.saturating_add(bytes), access }, at)
        }
        _ => (payload, at.saturating_add(bytes)),
    }
}

/// Where the sender of a part is with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Asked,
    Granted(u64),
    /// The card was told to WRITE, and the peer not yet that it has.
    Posted,
    /// The peer is to say whether all is there.
    Said,
}

/// A part of a message for which its sender has asked for a grant.
#[derive(Clone, Copy, Debug)]
struct Sending {
    part: Part,
    stage: Stage,
}

/// The next step for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Wait,
    Use(Use),
    /// The peer must be told that the bytes from there on were written, and their sum; `None` if they went away
    /// meanwhile. Both sides count the card's packets by that word, and so the peer has it all the same.
    Written {
        offset: u32,
        sum: Option<u32>,
    },
}

/// The parts of a message for which its sender has asked for grants, in order.
#[derive(Debug, Default)]
pub(crate) struct Sendings {
    parts: VecDeque<Sending>,
    /// Bytes in slots behind them that count once they have landed.
    behind: u32,
    /// Some of the message was asked for, and nothing more of it is.
    asked: bool,
    by_slots: bool,
    /// Refusals that are still to come, of requests behind a refused one.
    refusals: usize,
    /// One has not landed: those behind it count for nothing either.
    void: bool,
}

impl Sendings {
    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Bytes that are under way, by grants and behind them.
    pub(crate) fn bytes(&self) -> u32 {
        let parts = self.parts.iter().map(|sending| sending.part.bytes);
        parts.fold(self.behind, u32::saturating_add)
    }

    /// Whether so much of the message is left that it is to be asked for, now or later, where the first request takes `long` bytes.
    pub(crate) fn suits(&self, long: Option<u32>, left: u32) -> bool {
        let least = |long: u32| if self.asked { long.min(MORE) } else { long };
        !self.by_slots && long.is_some_and(|long| left >= least(long))
    }

    /// Whether the next bytes may go in slots: the peer takes no slots of the message between its grants.
    pub(crate) fn lets_slots(&self) -> bool {
        let said = |sending: &Sending| sending.stage == Stage::Said;
        !self.void && self.refusals == 0 && self.parts.iter().all(said)
    }

    /// Takes note of bytes in a slot; those that count by now.
    pub(crate) fn add_slot(&mut self, bytes: u32) -> u32 {
        if self.parts.is_empty() {
            return bytes;
        }
        self.behind = self.behind.saturating_add(bytes);
        0
    }

    /// Asks for a grant of the rest of a message; `false` if it does not suit, or not now.
    pub(crate) fn ask(
        &mut self,
        qpn: u32,
        source: (Payload, u64),
        header: &mut SlotHeader,
        host: &mut impl Host,
    ) -> bool {
        if self.parts.len() >= GRANT_PARTS {
            return false;
        }
        let Some(part) = Part::open(qpn, source, header, host) else {
            self.by_slots = true;
            return false;
        };
        header.flags |= SlotFlags::ASKS;
        self.asked = true;
        self.parts.push_back(Sending { part, stage: Stage::Asked });
        true
    }

    /// Takes the peer's answer to the first request that has none; `false` where it makes no sense.
    pub(crate) fn granted(&mut self, qpn: u32, header: &SlotHeader, host: &mut impl Host) -> bool {
        let SlotHeader { offset, length, address, .. } = *header;
        if let Some(left) = self.refusals.checked_sub(1) {
            self.refusals = left;
            return length == 0;
        }
        let asked = |sending: &Sending| sending.stage == Stage::Asked;
        let Some(at) = self.parts.iter().position(asked) else { return false };
        let Some(sending) = self.parts.get_mut(at) else { return false };
        if offset != sending.part.offset {
            return false;
        }
        if length == 0 {
            self.refusals = self.parts.len().saturating_sub(at).saturating_sub(1);
            self.by_slots = true;
            for sending in self.parts.drain(at..) {
                host.close(qpn, sending.part.window);
            }
            self.void &= !self.parts.is_empty();
            return true;
        }
        let end = address.checked_add(length.into()).filter(|end| *end <= ADDRESSES);
        sending.stage = Stage::Granted(address);
        length == sending.part.bytes && end.is_some()
    }

    /// Takes the peer's word for how many bytes of the oldest have landed, all or none; those that count by now. `None` where it makes
    /// no sense.
    pub(crate) fn landed(
        &mut self,
        qpn: u32,
        header: &SlotHeader,
        host: &mut impl Host,
    ) -> Option<u32> {
        let SlotHeader { offset, length, .. } = *header;
        let Sending { part, stage } = *self.parts.front()?;
        let fits = length == 0 || length == part.bytes && !self.void;
        if stage != Stage::Said || offset != part.offset || !fits {
            return None;
        }
        host.close(qpn, part.window);
        self.parts.pop_front();
        if length == 0 {
            (self.by_slots, self.void, self.behind) = (true, true, 0);
        }
        let mut bytes = length;
        if self.parts.is_empty() {
            bytes = bytes.saturating_add(std::mem::take(&mut self.behind));
            self.void = false;
        }
        Some(bytes)
    }

    /// Whether the card was told to WRITE, and the peer not yet that it has.
    pub(crate) fn is_posted(&self) -> bool {
        self.parts.iter().any(|sending| sending.stage == Stage::Posted)
    }

    /// Whether the card may be about to WRITE.
    pub(crate) fn is_out(&self) -> bool {
        let out = |sending: &Sending| matches!(sending.stage, Stage::Posted | Stage::Said);
        self.parts.iter().any(out)
    }

    /// Asks for nothing any more, for the message begins anew; `false` where any was granted.
    pub(crate) fn begin_anew(&mut self, qpn: u32, host: &mut impl Host) -> bool {
        for sending in &self.parts {
            host.close(qpn, sending.part.window);
        }
        let asked = self.parts.iter().all(|sending| sending.stage == Stage::Asked);
        *self = Self::default();
        asked
    }

    pub(crate) fn lapse(&mut self, now: u64, after: u64, qpn: u32, host: &mut impl Host) {
        for sending in &mut self.parts {
            sending.part.lapse(now, after, qpn, host);
        }
    }

    /// The next slot.
    pub(crate) fn turn(&mut self, qpn: u32, host: &mut impl Host) -> Turn {
        let said = self.parts.iter().take_while(|sending| sending.stage == Stage::Said).count();
        let Some(Sending { part, stage }) = self.parts.get_mut(said) else { return Turn::Wait };
        match *stage {
            Stage::Granted(remote) if said < OUT => {
                *stage = Stage::Posted;
                Turn::Use(Use { window: part.window, remote, bytes: part.bytes })
            }
            // The slot that says so goes behind the WRITE, on one way.
            Stage::Posted => {
                *stage = Stage::Said;
                Turn::Written { offset: part.offset, sum: part.sum(qpn, host) }
            }
            _ => Turn::Wait,
        }
    }
}

/// A grant that was given for a part of a message.
#[derive(Clone, Copy, Debug)]
struct Landing {
    part: Part,
    /// It was used, and this is the sum of the written bytes.
    used: Option<u32>,
}

/// The grants that were given for parts of a message, in order.
#[derive(Debug, Default)]
pub(crate) struct Landings {
    parts: VecDeque<Landing>,
    /// No more are given.
    by_slots: bool,
    /// The bytes of a grant have not landed: everything behind them is ignored until they come in slots.
    void: bool,
}

impl Landings {
    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Bytes that they were given for.
    pub(crate) fn bytes(&self) -> u32 {
        self.parts.iter().map(|landing| landing.part.bytes).fold(0, u32::saturating_add)
    }

    /// Answers a request for a grant of the bytes behind them; `None` if there are too many for a sane request.
    pub(crate) fn grant(
        &mut self,
        qpn: u32,
        target: (Payload, u64),
        header: &SlotHeader,
        operation: SlotOperation,
        host: &mut impl Host,
    ) -> Option<SlotHeader> {
        if self.parts.len() >= GRANT_PARTS {
            return None;
        }
        let SlotHeader { message, offset, .. } = *header;
        let mut answer = SlotHeader { operation, message, offset, ..SlotHeader::default() };
        let part = if self.by_slots { None } else { Part::open(qpn, target, header, host) };
        self.by_slots = part.is_none();
        if let Some(part) = part {
            (answer.address, answer.length) = (part.window, part.bytes);
            self.parts.push_back(Landing { part, used: None });
        }
        Some(answer)
    }

    /// The peer says that it has used the oldest that it has not: its bytes. `None` where it makes no sense.
    pub(crate) fn written(
        &mut self,
        qpn: u32,
        header: &SlotHeader,
        host: &mut impl Host,
    ) -> Option<u32> {
        let landing = self.parts.iter_mut().find(|landing| landing.used.is_none())?;
        if header.offset != landing.part.offset {
            return None;
        }
        landing.used = Some(header.sum);
        host.close(qpn, landing.part.window);
        Some(landing.part.bytes)
    }

    /// Whether no further grants are given.
    pub(crate) fn is_over(&self) -> bool {
        self.by_slots
    }

    /// Whether any was used, and has not ended.
    pub(crate) fn is_closing(&self) -> bool {
        self.parts.front().is_some_and(|landing| landing.used.is_some())
    }

    /// Whether all were used; slots behind them have to wait for their end.
    pub(crate) fn hold_up(&self) -> bool {
        self.parts.back().is_some_and(|landing| landing.used.is_some())
    }

    /// Whether to pass over a slot that belongs to `offset`: its sender has not heard yet that the bytes before have
    /// not landed.
    pub(crate) fn passes_over(&mut self, offset: u32, expected: u32) -> bool {
        self.void &= offset != expected;
        self.void
    }

    pub(crate) fn lapse(&mut self, now: u64, after: u64, qpn: u32, host: &mut impl Host) {
        for landing in &mut self.parts {
            landing.part.lapse(now, after, qpn, host);
        }
    }

    /// How many bytes of the oldest have landed, all or none, once it was used and nothing is on its way to its memory: the answer says so.
    pub(crate) fn ended(
        &mut self,
        qpn: u32,
        answer: &mut SlotHeader,
        host: &mut impl Host,
    ) -> Option<u32> {
        let Landing { part, used } = *self.parts.front()?;
        let sum = used.filter(|_| host.is_closed(qpn, part.window))?;
        self.parts.pop_front();
        let landed = !self.void && part.sum(qpn, host) == Some(sum);
        let bytes = if landed { part.bytes } else { 0 };
        self.void |= !landed;
        self.by_slots |= !landed;
        (answer.offset, answer.length) = (part.offset, bytes);
        Some(bytes)
    }
}
