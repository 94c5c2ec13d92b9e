//! Asking a silent peer how far it has come, long before the acknowledgement timeout.
//!
//! A responder reports a gap once (specification, section 9.7.5.1.1). If that NAK is lost, or the
//! last packet before a pause, nothing but the requester's timer helps; and that one is set for the
//! longest path of a fabric, tens of milliseconds, while a round trip takes tens of microseconds.
//! So, when nothing has moved for some round trips, the requester sends its oldest packet again, by
//! itself, and asks for an acknowledgement. The answer tells everything: a responder that had the
//! packet acknowledges all it has; one that lacked it acknowledges this packet alone, and then the
//! later packets are known to be lost too and sent again. But that packet may have asked when it
//! was first sent, and this be the answer to that, with those to later packets close behind. So the
//! requester waits for them, for a round trip.
//!
//! A question costs one frame, so it does no harm when the peer is merely slow; each further one
//! waits twice as long. It uses up no retry: those, and the time until a peer counts as gone, are
//! the acknowledgement timer's as ever. Nothing is asked before a round trip has been measured.
//!
//! A card that does not run for a while, because its thread was scheduled away, finds its timers late.
//! That says nothing about the peer, which may well have been kept from running by the same machine.
//! So a late timer waits once more, for as long as a question would.

use core::time::Duration;

use crate::param;
use crate::types::Instant;

/// When a requester asks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Probe {
    /// The time of the next question, unless there is progress before.
    deadline: Option<Instant>,
    /// Questions since the last progress.
    asked: u32,
    /// A question is to be sent.
    due: bool,
    /// The sequence after the packet that the question repeated.
    end: Option<u64>,
    /// The sequence from which data is asked for again, by way of a question.
    repeats: Option<u64>,
    /// Whether that packet is acknowledged, and nothing after it.
    alone: bool,
    /// A packet whose round trip is being measured: the sequence after it, and when it was sent.
    timed: Option<(u64, Instant)>,
    /// The smoothed round-trip time in nanoseconds.
    round_trip: Option<u64>,
    /// How far round-trip times are from that, smoothed, in nanoseconds.
    variation: u64,
    /// Whether a late timer has waited once more since the last progress.
    excused: bool,
}

impl Probe {
    /// When to ask.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Begins to measure with a new packet that asks for an acknowledgement.
    pub(crate) fn time(&mut self, sequence: u64, now: Instant) {
        if self.timed.is_none() {
            self.timed = Some((sequence.wrapping_add(1), now));
        }
    }

    /// Forgets running measures, for all packets are sent again, and an answer could be to either sending.
    pub(crate) fn forget(&mut self) {
        (self.due, self.end, self.alone, self.timed) = (false, None, false, None);
        self.repeats = None;
    }

    /// Whether the packet of this sequence, about to be sent again, is a question.
    pub(crate) fn take_question(&mut self, sequence: u64) -> bool {
        self.repeats.take_if(|repeats| *repeats == sequence).is_some()
    }

    /// Marks a question as due, and counts it as one more since the last progress.
    pub(crate) fn ask(&mut self) {
        self.asked = self.asked.saturating_add(1);
        self.due = true;
    }

    /// Whether a question is to be sent.
    pub(crate) fn is_due(&self) -> bool {
        self.due
    }

    /// Whether a question is to be sent, now.
    pub(crate) fn take_due(&mut self) -> bool {
        core::mem::take(&mut self.due)
    }

    /// Whether the packet that a question repeated is acknowledged, and nothing after it; told once.
    pub(crate) fn take_alone(&mut self) -> bool {
        core::mem::take(&mut self.alone)
    }

    /// The packet of this sequence is sent again, as a question.
    pub(crate) fn sent(&mut self, sequence: u64) {
        self.end = Some(sequence.wrapping_add(1));
    }

    /// Data is asked for again from this sequence on, by way of a question.
    pub(crate) fn repeat(&mut self, sequence: u64) {
        self.repeats = Some(sequence);
    }

    /// Waits anew, if the acknowledgement timer runs.
    pub(crate) fn restart(&mut self, now: Instant, is_timed: bool) {
        let patience = match self.round_trip {
            _ if !is_timed => None,
            Some(round_trip) if self.alone => Some(Duration::from_nanos(round_trip)),
            _ => self.patience().map(|patience| patience.saturating_mul(1 << self.asked.min(16))),
        };
        self.deadline = patience.map(|patience| now.after(patience));
    }

    /// The time without progress before a question, if a round trip was measured: some round trips and their variation
    /// (as in RFC 6298).
    fn patience(&self) -> Option<Duration> {
        let round_trip = self.round_trip?;
        let varied = round_trip.saturating_add(self.variation.saturating_mul(4));
        let patience = round_trip.saturating_mul(param::PROBE_ROUND_TRIPS).max(varied);
        Some(Duration::from_nanos(patience).max(param::PROBE_FLOOR))
    }

    /// When this and the acknowledgement timer, due at `ack`, may fire at the earliest, if they have
    /// to wait because the card did not run.
    pub(crate) fn excuse(&mut self, ack: Instant, now: Instant) -> Option<Instant> {
        let until = now.after(self.patience().unwrap_or(param::LATE_TIMER));
        let due = self.deadline.map_or(ack, |deadline| deadline.min(ack));
        if self.excused || until <= due {
            return None;
        }
        self.excused = true;
        self.deadline = self.deadline.map(|deadline| deadline.max(until));
        Some(until)
    }

    /// The acknowledgement timer has fired: the next time it may be late again.
    pub(crate) fn fired(&mut self) {
        self.excused = false;
    }

    /// Everything before `unacked` is acknowledged. Gives the round-trip time that this has measured.
    pub(crate) fn progress(&mut self, now: Instant, unacked: u64) -> Option<Duration> {
        self.asked = 0;
        self.due = false;
        self.excused = false;
        let timed = self.timed.take_if(|(end, _)| *end <= unacked);
        let measured = timed.map(|(_, sent)| now.since(sent));
        if let Some((_, sent)) = timed {
            let sample = now.0.saturating_sub(sent.0);
            let (known, variation) =
                self.round_trip.map_or((sample, sample / 2), |known| (known, self.variation));
            let off = known.abs_diff(sample);
            self.variation = variation.saturating_sub(variation / 4).saturating_add(off / 4);
            self.round_trip = Some(known.saturating_sub(known / 8).saturating_add(sample / 8));
        }
        self.alone = self.end.take_if(|end| *end <= unacked) == Some(unacked);
        measured
    }
}
