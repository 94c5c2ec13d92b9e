//! Where datagrams of a card's vFPGAs wait: for another vFPGA of the card, or for the way to another card.
//!
//! Each way has a queue of its own, so that a flood of one delays no other; a sender waits while its queue is full.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fpga_regs::engine::tunnel::DATAGRAM_QPN;
use tunnel::Datagram;

use crate::meeting::Meetings;
use crate::param::WAITING;

/// Bits of a QPN below the vFPGA's.
const VFPGA_SHIFT: u32 = 20;

/// From where a datagram comes to a vFPGA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    /// A vFPGA of the same card.
    Vfpga(u8),
    /// Another card, by IPv4 address.
    Card(u32),
}

/// Whether a datagram can depart for another card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Departure {
    Open,
    /// Full; it moves.
    Full,
    /// It does not move, or has no peer.
    None,
}

/// The state of datagrams that the vFPGAs of a card share.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// The card's IPv4 address.
    pub(crate) own: u32,
    vfpgas: u8,
    pub(crate) meetings: Meetings,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    /// The next QPN, without the vFPGA.
    next: u32,
    /// Queue pairs of datagrams.
    qps: usize,
    arrivals: BTreeMap<(u8, Source), VecDeque<Datagram>>,
    departures: BTreeMap<u32, Departures>,
}

/// The datagrams for another card.
#[derive(Debug, Default)]
struct Departures {
    /// By the vFPGA that it is of.
    queues: BTreeMap<u8, VecDeque<Datagram>>,
    /// The vFPGA whose turn was last.
    last: u8,
    /// When the way moved, or there was nothing.
    moved: u64,
}

impl Exchange {
    /// An exchange of a card of so many vFPGAs; QPNs begin at a random number.
    #[must_use]
    pub fn new(own: u32, vfpgas: u8, random: u32, meetings: Meetings) -> Self {
        let (qps, arrivals, departures) = Default::default();
        let state = State { next: random, qps, arrivals, departures };
        Self { own, vfpgas, meetings, state: Arc::new(Mutex::new(state)) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nobody leaves it in the middle of a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A QPN of a vFPGA's that none has had for long.
    pub(crate) fn name(&self, vfpga: u8) -> u32 {
        let mut state = self.state();
        state.next = state.next.wrapping_add(1);
        let below = DATAGRAM_QPN.wrapping_sub(1);
        u32::from(vfpga).wrapping_shl(VFPGA_SHIFT) | DATAGRAM_QPN | state.next & below
    }

    /// Takes note that there are more queue pairs of datagrams, or fewer.
    pub(crate) fn count(&self, more: usize, fewer: usize) {
        let mut state = self.state();
        state.qps = state.qps.saturating_add(more).saturating_sub(fewer);
        self.meetings.set_present(self.own, state.qps > 0);
    }

    /// Whether the card has queue pairs of datagrams.
    pub(crate) fn is_used(&self) -> bool {
        self.state().qps > 0
    }

    /// The vFPGA whose QPN it is, if there is such a vFPGA.
    pub(crate) fn vfpga_of(&self, qpn: u32) -> Option<u8> {
        let vfpga = (qpn.wrapping_shr(VFPGA_SHIFT) & 0xf) as u8;
        (qpn & DATAGRAM_QPN != 0 && vfpga < self.vfpgas).then_some(vfpga)
    }

    /// Whether a vFPGA takes another datagram of a source's.
    pub(crate) fn takes(&self, vfpga: u8, source: Source) -> bool {
        self.state().arrivals.get(&(vfpga, source)).is_none_or(|queue| queue.len() < WAITING)
    }

    /// Whether all that came from a source has been taken.
    pub(crate) fn is_empty_of(&self, source: Source) -> bool {
        let state = self.state();
        (0..self.vfpgas)
            .all(|vfpga| state.arrivals.get(&(vfpga, source)).is_none_or(VecDeque::is_empty))
    }

    /// Puts a datagram where a vFPGA finds it.
    pub(crate) fn arrive(&self, vfpga: u8, source: Source, datagram: Datagram) {
        self.state().arrivals.entry((vfpga, source)).or_default().push_back(datagram);
    }

    /// Takes all that is for a vFPGA.
    pub(crate) fn arrived(&self, vfpga: u8) -> Vec<Datagram> {
        let mut state = self.state();
        let first = (vfpga, Source::Vfpga(0));
        let last = (vfpga, Source::Card(u32::MAX));
        state.arrivals.range_mut(first..=last).flat_map(|(_, queue)| queue.drain(..)).collect()
    }

    /// Whether a datagram of a vFPGA can depart for another card; the queue to that card may stand still for `patience`.
    pub(crate) fn departure(&self, now: u64, patience: u64, card: u32, vfpga: u8) -> Departure {
        if !self.meetings.is_present(card) {
            return Departure::None;
        }
        let state = self.state();
        let Some(departures) = state.departures.get(&card) else { return Departure::Open };
        let waiting = departures.queues.get(&vfpga).map_or(0, VecDeque::len);
        match waiting >= WAITING {
            true if now.saturating_sub(departures.moved) >= patience => Departure::None,
            true => Departure::Full,
            false => Departure::Open,
        }
    }

    /// Puts a datagram on the way to another card, which is open.
    pub(crate) fn depart(&self, now: u64, card: u32, vfpga: u8, datagram: Datagram) {
        let mut state = self.state();
        let departures = state.departures.entry(card).or_default();
        if departures.queues.values().all(VecDeque::is_empty) {
            departures.moved = now;
        }
        departures.queues.entry(vfpga).or_default().push_back(datagram);
    }

    /// Takes the next datagram for another card, of each vFPGA in its turn.
    pub(crate) fn departed(&self, now: u64, card: u32) -> Option<Datagram> {
        let mut state = self.state();
        let Departures { queues, last, moved } = state.departures.get_mut(&card)?;
        let waits =
            |(vfpga, queue): (&u8, &VecDeque<Datagram>)| (!queue.is_empty()).then_some(*vfpga);
        let behind = queues.iter().filter(|(vfpga, _)| **vfpga > *last).find_map(waits);
        let next = behind.or_else(|| queues.iter().find_map(waits))?;
        (*last, *moved) = (next, now);
        queues.get_mut(&next)?.pop_front()
    }

    /// Whether anything is on the way to another card.
    pub(crate) fn has_departures(&self) -> bool {
        let all = |it: &Departures| it.queues.values().all(VecDeque::is_empty);
        !self.state().departures.values().all(all)
    }

    /// Drops the datagrams on the way to another card; their number.
    pub(crate) fn drop_departures(&self, card: u32) -> u64 {
        let dropped = self.state().departures.remove(&card);
        dropped.map_or(0, |it| it.queues.values().map(|queue| queue.len() as u64).sum())
    }

    /// Forgets a vFPGA's part, as its card has with its reset.
    pub(crate) fn forget(&self, vfpga: u8) {
        let mut state = self.state();
        state.arrivals.retain(|(of, _), _| *of != vfpga);
        for departures in state.departures.values_mut() {
            departures.queues.remove(&vfpga);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may fail")]
mod tests {
    use fpga_regs::engine::tunnel::DatagramHeader;

    use super::*;

    fn datagram(byte: u8) -> Datagram {
        Datagram { from: 1, header: DatagramHeader::default(), payload: vec![byte] }
    }

    #[test]
    fn who_floods_the_way_to_a_card_keeps_no_other_vfpga_from_it() {
        let meetings = Meetings::default();
        let exchange = Exchange::new(1, 2, 0, meetings.clone());
        let departure = |now, vfpga| exchange.departure(now, 9, 2, vfpga);
        assert_eq!(departure(0, 0), Departure::None, "nobody is there");
        meetings.set_present(2, true);
        while departure(0, 0) == Departure::Open {
            exchange.depart(0, 2, 0, datagram(0));
        }
        assert_eq!(departure(0, 1), Departure::Open);
        exchange.depart(0, 2, 1, datagram(1));
        let first = [0, 0].map(|_| exchange.departed(0, 2).unwrap().payload[0]);
        assert_eq!(first, [1, 0]);
        exchange.depart(0, 2, 0, datagram(0));
        assert_eq!(
            (departure(8, 0), departure(9, 0)),
            (Departure::Full, Departure::None),
            "it does not move"
        );
        assert_eq!(exchange.drop_departures(2), WAITING as u64);
        assert!(!exchange.has_departures());
    }

    #[test]
    fn numbers_tell_the_vfpga_and_are_none_of_address_spaces() {
        let exchange = Exchange::new(1, 4, u32::MAX, Meetings::default());
        let qpn = exchange.name(3);
        assert_eq!((exchange.vfpga_of(qpn), exchange.vfpga_of(qpn & 0x3f)), (Some(3), None));
        assert_eq!(exchange.vfpga_of(exchange.name(4)), None, "there is no such vFPGA");
        assert_ne!(exchange.name(3), qpn);
    }
}
