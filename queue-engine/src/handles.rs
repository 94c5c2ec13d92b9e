//! Address handles. One that ends while datagrams stand in send rings that may name it stays until those are
//! sent: a program may end it as soon as it has posted.

use std::collections::BTreeSet;

use fpga_regs::engine::admin::{AdminStatus, MAX_ENDED_AHS};

use crate::memory::Rings;
use crate::numbers::{ByNumber, Numbers, Random, free_all, take};
use crate::qp::{MOST_HELD, Qp};

/// QPs of a domain that are looked at for datagrams in one call of [`Handles::hold`].
const LOOKED_AT: usize = 512;

const _: () = assert!(MAX_ENDED_AHS as usize == MOST_HELD);

/// An address handle.
#[derive(Debug)]
struct Handle {
    pdn: u32,
    /// The driver has ended it.
    ended: bool,
    /// QPs with datagrams that were posted before it was to end, and are not sent.
    holders: u32,
}

/// A protection domain that has QPs of datagrams.
#[derive(Debug, Default)]
struct Domain {
    qps: BTreeSet<u32>,
    /// Its handles that were ended and are held.
    ended: u32,
}

/// The address handles of an engine.
#[derive(Debug)]
pub(crate) struct Handles {
    handles: ByNumber<Handle>,
    numbers: Numbers,
    domains: ByNumber<Domain>,
    /// The first QP that was not looked at, of the domain of the handle that is to end.
    next_holder: u32,
}

impl Handles {
    /// Bytes that a handle takes.
    pub(crate) const BYTES_OF_EACH: usize = size_of::<(u32, Handle)>();
    /// Bytes that a QP takes whose domain has no other: a node of a tree, and a place in a table.
    pub(crate) const BYTES_OF_QP: usize =
        size_of::<(u32, Domain)>() + size_of::<[u32; 16]>() + size_of::<(u32, u32)>() * MOST_HELD;

    /// None, with these numbers to draw from.
    pub(crate) fn new(numbers: Numbers) -> Self {
        let (handles, domains) = (ByNumber::default(), ByNumber::default());
        Self { handles, numbers, domains, next_holder: 0 }
    }

    /// Makes a handle of a domain; `None` where there are too many.
    pub(crate) fn create(&mut self, random: &mut impl Random, pdn: u32) -> Option<u32> {
        let ah = self.numbers.draw(random)?;
        self.handles.insert(ah, Handle { pdn, ended: false, holders: 0 });
        Some(ah)
    }

    /// Forgets a handle.
    pub(crate) fn forget(&mut self, ah: u32) {
        if take(&mut self.handles, ah).is_some() {
            self.numbers.free(ah);
        }
    }

    /// Whether the driver has such a handle.
    pub(crate) fn has(&self, ah: u32) -> bool {
        self.handles.get(&ah).is_some_and(|handle| !handle.ended)
    }

    /// Whether a QP's datagram whose turn it is may name a handle: not if it was posted behind the handle's end.
    #[inline]
    pub(crate) fn serves<M: Rings>(&self, ah: u32, qp: &Qp<M>) -> bool {
        let is_held = || {
            let mut all = qp.held.iter();
            all.any(|&(until, held)| held == ah && is_before(qp.sq.fetch, until))
        };
        let handle = self.handles.get(&ah).filter(|handle| handle.pdn == qp.pdn);
        handle.is_some_and(|handle| !handle.ended || is_held())
    }

    /// Lets the QPs of a handle's domain that have datagrams to send hold it until those are sent, some QPs at a
    /// time; `true` while there are more.
    pub(crate) fn hold<M: Rings>(&mut self, ah: u32, qps: &mut ByNumber<Qp<M>>) -> bool {
        let Some(handle) = self.handles.get_mut(&ah).filter(|handle| !handle.ended) else {
            return false;
        };
        let Some(domain) = self.domains.get(&handle.pdn) else { return false };
        if domain.ended >= MAX_ENDED_AHS {
            return false;
        }
        let mut rest = domain.qps.range(self.next_holder..);
        for qpn in rest.by_ref().take(LOOKED_AT) {
            let Some(qp) = qps.get_mut(qpn).filter(|qp| qp.state.sends_requests()) else {
                continue;
            };
            qp.sq.look();
            if qp.sq.producer != qp.sq.fetch || qp.under_way.front().is_some() {
                qp.held.push_back((qp.sq.producer, ah));
                handle.holders = handle.holders.saturating_add(1);
            }
        }
        self.next_holder = rest.next().copied().unwrap_or_default();
        self.next_holder != 0
    }

    /// Ends a handle; `true` where it is to be forgotten at once, because nobody holds it.
    ///
    /// # Errors
    /// `NotFound`, or `Busy` where [`MAX_ENDED_AHS`] of the domain are held after their end.
    pub(crate) fn end(&mut self, ah: u32) -> Result<bool, AdminStatus> {
        let handle = self.handles.get_mut(&ah).filter(|handle| !handle.ended);
        let handle = handle.ok_or(AdminStatus::NotFound)?;
        let Some(domain) = self.domains.get_mut(&handle.pdn) else { return Ok(true) };
        if domain.ended >= MAX_ENDED_AHS {
            return Err(AdminStatus::Busy);
        }
        if handle.holders == 0 {
            return Ok(true);
        }
        handle.ended = true;
        domain.ended = domain.ended.saturating_add(1);
        Ok(false)
    }

    /// Notes that a QP has sent messages, or will not send them, and gives the handles that have lost their last
    /// holder.
    pub(crate) fn let_go<M: Rings>(&mut self, qp: &mut Qp<M>) -> Vec<u32> {
        let mut gone = Vec::new();
        let oldest = qp.under_way.front().map_or(qp.sq.fetch, |message| message.wqe_index);
        while let Some(&(until, ah)) = qp.held.front() {
            if qp.state.sends_requests() && is_before(oldest, until) {
                return gone;
            }
            qp.held.pop_front();
            gone.extend(self.is_free_of_one(ah).then_some(ah));
        }
        qp.held = Default::default();
        gone
    }

    /// Drops one QP's hold of a handle; `true` if the handle must be forgotten.
    fn is_free_of_one(&mut self, ah: u32) -> bool {
        let Some(handle) = self.handles.get_mut(&ah) else { return false };
        handle.holders = handle.holders.saturating_sub(1);
        let is_free = handle.ended && handle.holders == 0;
        if let Some(domain) = self.domains.get_mut(&handle.pdn).filter(|_| is_free) {
            domain.ended = domain.ended.saturating_sub(1);
        }
        is_free
    }

    /// A QP of datagrams is made.
    pub(crate) fn join(&mut self, pdn: u32, qpn: u32) {
        self.domains.entry(pdn).or_default().qps.insert(qpn);
    }

    /// A QP of datagrams, which holds nothing, ends.
    pub(crate) fn leave(&mut self, pdn: u32, qpn: u32) {
        let Some(domain) = self.domains.get_mut(&pdn) else { return };
        domain.qps.remove(&qpn);
        if domain.qps.is_empty() {
            take(&mut self.domains, pdn);
        }
    }

    /// Forgets all handles, and gives them.
    pub(crate) fn clear(&mut self) -> Vec<u32> {
        let all = self.handles.keys().copied().collect();
        free_all(&mut self.handles, &mut self.numbers);
        self.domains = ByNumber::default();
        self.next_holder = 0;
        all
    }
}

/// Whether a place in a send ring comes before another one.
fn is_before(place: u32, other: u32) -> bool {
    place.wrapping_sub(other) > u32::MAX / 2
}
