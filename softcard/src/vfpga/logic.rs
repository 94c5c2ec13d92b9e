//! What stands in a vFPGA: the seam between the shell and its logic.
//!
//! The shell knows of logic what [`Logic`] says, and logic of the shell what [`Ports`] offers. Both have
//! the shape of the published wrapper, so that RTL behind an adaptor reads the same:
//!
//! | published port | here |
//! |---|---|
//! | `axi_ctrl`, 64 KiB of user registers | `read_register`, `write_register`; pages of it that clients map are memory (`open_page`) |
//! | clock, reset, decoupling | `work` and `next_wake`, `reset`; a decoupled vFPGA has no clock, and no host memory |
//! | `notify` | `take_notify` |
//! | host streams, by virtual address through the MMU | rings by [`Ports::memory`]; payload by [`Piece`]s that the shell moves |
//! | `sq_rd`, `sq_wr` towards the network | whole messages: [`Ports::post_send`], with QPs of its own |
//! | `cq_rd`, `cq_wr` | `take_event`: messages end in the order of a QP |
//! | `rq_rd`, `rq_wr` | whole messages: `check_remote`, `take_receive`, `locate` |
//!
//! What the shell asks is split in two phases: it has a [`Tag`], and logic answers at once
//! ([`Poll::Ready`]) or, by the tag, from `poll_answer` whenever it likes and in any order. Of a QP at
//! most one packet waits for an answer, with the later ones behind it in the shell; other QPs go on. A
//! location is asked for bytes that are about to move, and the whole data path waits for it, as it
//! waits for a TLB entry. [`Logic::is_ready`] is the ready of all that the shell asks and tells: what
//! meets logic that is not ready stays with the shell. Ready towards the shell is [`Ports::send_room`].
//! Logic has no thread and no clock: it does in `work` what it can, and says by `next_wake` when it has
//! something to do though nobody rings, writes or sends. A cycle is whatever time it takes it to be.
//!
//! For logic that answers at once all of this is a function call: [`super::Occupant`] dispatches
//! statically, nothing is stored, and no request of before is looked for.
//!
//! The streams themselves (`axis_host`, `axis_card`, `axis_rreq`, `axis_rrsp`) and their requests are
//! for logic that moves its bytes itself; they stand beside the messages here once such logic is built.

use std::task::Poll;

use hostmem::WakeFor;
use roce::{
    AccessDenied, Address, AddressVector, Counters, DatagramRequest, Event, Gid, Instant, PathMtu,
    PostError, QpAttributes, QpSnapshot, Qpn, ReceiveError, SendRequest, Service, TakenReceive,
    Target,
};

use super::Slots;
use super::request::{Access, Answer, Piece, Tag, Unreachable, Wanted, vfpga_of};
use crate::mmu::Unit;
use crate::network::Network;

/// Logic in a vFPGA. Nothing that registers, memory, clients or peers hold may make it panic.
pub(crate) trait Logic {
    /// Reads the 64-bit user register at `offset`, without any effect.
    fn read_register(&self, now: u64, offset: u64) -> u64;

    /// Writes the 64-bit user register at `offset`. [`Logic::work`] is called next.
    fn write_register(&mut self, now: u64, offset: u64, value: u64, ports: &mut Ports<'_>);

    /// Puts memory in the place of a page of user registers, to which a client stores without notice;
    /// `false` where the logic has no such page, or has one there.
    fn open_page(&mut self, _page: u8, _slots: Slots) -> bool {
        false
    }

    /// Takes the memory of a page away.
    fn close_page(&mut self, _page: u8) {}

    /// Bytes that are kept of what a client has under way, beyond what each of its QPs
    /// has of its own.
    fn under_way_bytes(&self, _page: u8) -> usize {
        0
    }

    /// The stores to pages that the logic wants to be woken for.
    fn wakes_for(&self) -> WakeFor {
        WakeFor::All
    }

    /// Forgets everything, and every page: what a reset of the shell or of the vFPGA does.
    fn reset(&mut self, ports: &mut Ports<'_>);

    /// The driver took memory away that the logic keeps views of, and refuses to give it back.
    fn lost_memory(&mut self, now: u64, ports: &mut Ports<'_>);

    /// Does a bounded piece of what there is to do; `true` if there was anything: then another call is
    /// due, as it is after anything that the shell tells.
    fn work(&mut self, now: u64, ports: &mut Ports<'_>) -> bool;

    /// When [`Logic::work`] is due at the latest, though nothing happens.
    fn next_wake(&self) -> Option<u64> {
        None
    }

    /// The value of a notification that is due; asking clears it.
    fn take_notify(&mut self) -> Option<u32>;

    /// Whether the logic takes what the shell asks and tells it now.
    fn is_ready(&self) -> bool {
        true
    }

    /// Whether a peer may access memory.
    fn check_remote(&mut self, tag: Tag, access: &Access) -> Poll<Result<(), AccessDenied>>;

    /// Takes the next receive of a QP, in the order of the calls of a QP, or of the shared receive queue that a
    /// request along XRC names; then the logic is that of the queue. If the QP enters the error
    /// state before a message has come of it, it is the logic's again.
    fn take_receive(
        &mut self,
        tag: Tag,
        target: Target,
    ) -> Poll<Result<TakenReceive, ReceiveError>>;

    /// Adds to `pieces` where bytes of a payload lie at this moment; nothing where it does not say so
    /// now. They are moved before [`Logic::work`] is called with [`Ports::is_moving`] false.
    fn locate(
        &mut self,
        tag: Tag,
        wanted: &Wanted,
        pieces: &mut Vec<Piece>,
    ) -> Poll<Result<(), Unreachable>>;

    /// Takes note of what became of messages and QPs of its own.
    fn take_event(&mut self, now: u64, event: Event, ports: &mut Ports<'_>);

    /// Takes note that the port was taken off its cable, or put back.
    fn hear_link(&mut self, _now: u64, _up: bool) {}

    /// Has no queue pair 1: somebody else answers for that number.
    fn withhold_gsi(&mut self) {}

    /// The next answer to what was [`Poll::Pending`]. What concerns QPs that were reset or destroyed
    /// since may be left out.
    fn poll_answer(&mut self) -> Option<(Tag, Answer)> {
        None
    }
}

/// What the shell offers to logic while it works.
pub(crate) struct Ports<'a> {
    vfpga: usize,
    unit: &'a Unit,
    network: &'a mut Network,
    moving: bool,
    stops: bool,
}

impl<'a> Ports<'a> {
    #[inline]
    pub(crate) fn new(
        vfpga: usize,
        unit: &'a Unit,
        network: &'a mut Network,
        moving: bool,
    ) -> Self {
        Self { vfpga, unit, network, moving, stops: false }
    }

    /// Whether the logic has given up what it was at.
    pub(crate) fn has_stopped(&self) -> bool {
        self.stops
    }

    /// Host memory by addresses of the vFPGA, for rings and records.
    pub(crate) fn memory(&self) -> &'a Unit {
        self.unit
    }

    /// Whether payload is on its way whose place the logic has named: it must let go of no memory yet.
    /// Never so for logic that names every place at once.
    #[cfg_attr(not(test), expect(dead_code, reason = "the queue engine answers at once"))]
    pub(crate) fn is_moving(&self) -> bool {
        self.moving
    }

    /// Gives up what the logic is at: the shell ends its transfers.
    pub(crate) fn stop(&mut self) {
        self.stops = true;
    }

    /// Whether a QP is the logic's own.
    fn owns(&self, qpn: Qpn) -> bool {
        vfpga_of(qpn) == self.vfpga
    }

    /// Makes a QP in RESET of a client's; its number has the vFPGA's in bits 23 to 20.
    pub(crate) fn create_qp(
        &mut self,
        qpn: Qpn,
        service: Service,
        number: u8,
    ) -> Result<(), roce::Error> {
        if !self.owns(qpn) {
            return Err(roce::Error::UnknownQp(qpn));
        }
        self.network.stack.create_qp(qpn, service, client(self.vfpga, number))
    }

    /// Makes an address handle of a client's. Its number is drawn as a QP's.
    pub(crate) fn create_ah(
        &mut self,
        now: u64,
        ah: u32,
        number: u8,
        vector: &AddressVector,
    ) -> Result<(), roce::Error> {
        let client = client(self.vfpga, number);
        self.network.stack.create_ah(Instant(now), ah, client, vector)
    }

    /// Forgets an address handle.
    pub(crate) fn destroy_ah(&mut self, ah: u32) {
        self.network.stack.destroy_ah(ah);
    }

    /// Whether the Ethernet address that an address handle leads to is known; `None` for an unknown handle.
    pub(crate) fn is_ah_resolved(&self, ah: u32) -> Option<bool> {
        self.network.stack.is_ah_resolved(ah)
    }

    /// Takes a QP of datagrams into a multicast group, or out of it.
    pub(crate) fn set_member(
        &mut self,
        now: u64,
        qpn: Qpn,
        group: Gid,
        member: bool,
    ) -> Result<(), roce::Error> {
        if !self.owns(qpn) {
            return Err(roce::Error::UnknownQp(qpn));
        }
        let most = self.network.most_groups();
        let stack = &mut self.network.stack;
        if member && !stack.has_members(group) && stack.groups() >= most {
            return Err(roce::Error::TooManyGroups(most));
        }
        match member {
            true => stack.attach(Instant(now), qpn, group),
            false => stack.detach(Instant(now), qpn, group),
        }
    }

    /// Takes a datagram, as [`Ports::post_send`] another message.
    pub(crate) fn post_datagram(
        &mut self,
        qpn: Qpn,
        request: DatagramRequest,
    ) -> Result<u64, PostError> {
        if !self.owns(qpn) {
            return Err(PostError::UnknownQp(qpn));
        }
        self.network.stack.post_datagram(qpn, request)
    }

    /// Fails a connection of which no program can be told: see [`Stack::refuse_unacknowledged`]. An XRC target's messages
    /// are told of by the logic of the queue that took them.
    pub(crate) fn refuse_unacknowledged(&mut self, qpn: Qpn) -> bool {
        let may = self.owns(qpn) || self.network.stack.is_xrc_target(qpn);
        may && self.network.stack.refuse_unacknowledged(qpn)
    }

    /// Changes a QP. What was asked about it is forgotten where it goes to RESET.
    pub(crate) fn modify_qp(
        &mut self,
        now: u64,
        qpn: Qpn,
        change: &QpAttributes,
    ) -> Result<(), roce::Error> {
        if !self.owns(qpn) {
            return Err(roce::Error::UnknownQp(qpn));
        }
        self.network.stack.modify_qp(Instant(now), qpn, change)?;
        if change.state == Some(roce::QpState::Reset) {
            self.network.forget_qp(qpn);
        }
        Ok(())
    }

    pub(crate) fn query_qp(&self, qpn: Qpn) -> Option<QpSnapshot> {
        self.network.stack.query_qp(qpn).filter(|_| self.owns(qpn))
    }

    pub(crate) fn stands_in_line(&self, qpn: Qpn) -> bool {
        self.owns(qpn) && self.network.stack.stands_in_line(qpn)
    }

    /// Forgets a QP, and what was asked about it.
    pub(crate) fn destroy_qp(&mut self, qpn: Qpn) {
        if self.owns(qpn) {
            self.network.stack.destroy_qp(qpn);
            self.network.forget_qp(qpn);
        }
    }

    /// Messages that a QP takes now.
    #[inline]
    pub(crate) fn send_room(&self, qpn: Qpn) -> usize {
        self.network.stack.send_room(qpn)
    }

    /// Gives memory back that messages of before took.
    pub(crate) fn narrow(&mut self, qpn: Qpn) {
        self.network.stack.narrow(qpn);
    }

    /// Takes a message, along XRC for the peer's shared receive queue of that number, and answers with its
    /// number: from 0 on since RESET.
    #[inline]
    pub(crate) fn post_send(
        &mut self,
        now: u64,
        qpn: Qpn,
        srqn: Option<u32>,
        request: SendRequest,
    ) -> Result<u64, PostError> {
        if !self.owns(qpn) {
            return Err(PostError::UnknownQp(qpn));
        }
        match srqn {
            None => self.network.stack.post_send(Instant(now), qpn, request),
            Some(srqn) => self.network.stack.post_xrc_send(Instant(now), qpn, srqn, request),
        }
    }

    /// Gives the port an address beside those of the other vFPGAs, or takes it back.
    pub(crate) fn set_gid(&mut self, index: u8, address: Option<Address>) {
        self.network.set_gid(self.vfpga, index, address);
    }

    /// Takes the port off its cable, or puts it back.
    pub(crate) fn set_link(&mut self, up: bool) {
        self.network.set_link(up);
    }

    /// The largest path MTU that the cable carries.
    pub(crate) fn path_mtu(&self) -> PathMtu {
        self.network.path_mtu()
    }

    /// In how many multicast groups the port can be.
    pub(crate) fn most_groups(&self) -> u16 {
        u16::try_from(self.network.most_groups()).unwrap_or(u16::MAX)
    }

    /// Whether the port is on its cable.
    pub(crate) fn is_link_up(&self) -> bool {
        self.network.is_link_up()
    }

    /// The port's Ethernet address.
    pub(crate) fn mac(&self) -> [u8; 6] {
        self.network.identity().mac
    }

    /// The port's counters.
    pub(crate) fn counters(&self) -> &Counters {
        self.network.stack.counters()
    }
}

/// The number of a client of a vFPGA among those of the card.
fn client(vfpga: usize, number: u8) -> u16 {
    (vfpga << 8) as u16 | u16::from(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_taken_for_another() {
        let all = (0..usize::from(crate::WINDOWS)).flat_map(|w| (0..=u8::MAX).map(move |n| (w, n)));
        let numbers: std::collections::BTreeSet<u16> =
            all.clone().map(|(w, n)| client(w, n)).collect();
        assert_eq!(numbers.len(), all.count());
    }
}
