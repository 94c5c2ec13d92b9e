//! The logic of a vFPGA: the seam between the shell and its logic.
//!
//! The shell knows logic by [`Logic`] alone, and logic knows the shell by [`Ports`]. Both have
//! the shape of the published wrapper, so that RTL behind an adaptor reads the same:
//!
//! | published port | here |
//! |---|---|
//! | `axi_ctrl`, 64 KiB of user registers | `read_register`, `write_register`; pages of it that clients map are memory (`open_page`) |
//! | clock, reset, decoupling | `work` and `next_wake`, `reset`; a decoupled vFPGA has no clock, and no host memory |
//! | `notify` | `take_notify` |
//! | host streams, by virtual address through the MMU | rings by [`Ports::memory`]; payload by [`Piece`]s that the shell moves; or both by [`Logic::transfer`] |
//! | `sq_rd`, `sq_wr` towards the network | whole messages: [`Ports::post_send`], with QPs of its own |
//! | `cq_rd`, `cq_wr` | `take_event`: messages end in the order of a QP |
//! | `rq_rd`, `rq_wr` | whole messages: `check_remote`, `take_receive` |
//! | `axis_rreq`, `axis_rrsp` | packets' payload: `place`, `fetch`; or `locate`, and it does not pass through the logic |
//!
//! What the shell asks is split in two phases: it has a [`Tag`], and logic answers at once
//! ([`Poll::Ready`]) or, by the tag, from `poll_answer` whenever it likes and in any order. All waiting is by QP: of one, at
//! most one packet waits for a decision, with the later ones behind it in the shell, and at most one burst each way for its
//! payload; other QPs go on. A question that has no answer after 5 seconds is refused, and its QP fails.
//! [`Logic::locate`] alone is answered at once: logic that does not know the payload's place lets it pass through.
//!
//! The shell turns verdicts into the transport's commit: a packet is acknowledged, and its message ends, once all its
//! payload was placed. Until then the QP takes no later packet, and sends nothing.
//!
//! [`Logic::is_ready`] is the ready of all questions and messages of the shell: they stay with the shell while logic is
//! not ready. Ready towards the shell is [`Ports::send_room`]. Logic has no thread and no clock: it does its work in
//! `work`, and says by `next_wake` when it has work though no driver rings or writes and no peer sends. A cycle is
//! whatever time it takes it to be.
//!
//! For the queue engine all of this is a function call: [`super::Occupant`] dispatches
//! statically, nothing is stored, and no request of before is looked for.
//!
//! Logic that moves bytes of host memory by itself, as by the streams of the published wrapper, asks for one
//! [`HostTransfer`] after the other. Logic with a clock of its own ([`Logic::goes_on_to`]) is the time of all cards of a
//! thread while it has work.

use std::task::Poll;

use fpga_regs::engine::admin::PortAttributes;
use hostmem::WakeFor;
use roce::{
    AccessDenied, Address, AddressVector, Counters, DatagramRequest, Event, Gid, Instant, PathMtu,
    PostError, QpAttributes, QpSnapshot, Qpn, ReceiveError, SendRequest, Service, TakenReceive,
    Target,
};

use super::Slots;
use super::request::{
    Access, Answer, HostTransfer, Missed, Piece, QPN_BITS, Tag, Unreachable, Wanted, vfpga_of,
};
use crate::mmu::Unit;
use crate::network::Network;

/// Logic in a vFPGA. Nothing that registers, memory, clients or peers hold may make it panic.
///
/// Along XRC it is asked about peers of other vFPGAs' QPs that name a shared receive queue of its number: logic without
/// such queues refuses them.
pub trait Logic {
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

    /// Bytes that are kept of a client's work under way, beyond those of each of its QPs.
    fn under_way_bytes(&self, _page: u8) -> usize {
        0
    }

    /// The stores to pages that the logic wants to be woken for.
    fn wakes_for(&self) -> WakeFor {
        WakeFor::All
    }

    /// Forgets everything, and every page: the effect of a reset of the shell or of the vFPGA.
    fn reset(&mut self, ports: &mut Ports<'_>);

    /// The driver took memory away that the logic keeps views of, and refuses to give it back.
    fn lost_memory(&mut self, now: u64, ports: &mut Ports<'_>);

    /// Does a bounded piece of the work that is due; `true` if there was any: then another call is due, as it is after
    /// any call of the shell's.
    fn work(&mut self, now: u64, ports: &mut Ports<'_>) -> bool;

    /// When [`Logic::work`] is due at the latest, though nothing happens.
    fn next_wake(&self) -> Option<u64> {
        None
    }

    /// The value of a notification that is due; asking clears it.
    fn take_notify(&mut self) -> Option<u32>;

    /// Where the logic's time is not the host's, and it has work: the time that the cards go on to in their next round, at
    /// most. While no logic says so, their time passes as the host's.
    fn goes_on_to(&self) -> Option<u64> {
        None
    }

    /// The transfer of host memory that is due, until its end is told.
    fn transfer(&self) -> Option<HostTransfer> {
        None
    }

    /// Takes the end of the transfer that was due, with the bytes of one that read.
    fn transferred(&mut self, _end: Result<&[u8], Missed>) {}

    /// Counters of its own, by names that stay.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Whether the logic takes questions and events of the shell now. Payload comes by bursts of up to 128 packets of a
    /// card: logic that is ready takes all of one.
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

    /// Whether payload passes through the logic ([`Logic::place`], [`Logic::fetch`]), rather than between frames and the
    /// memory that it names ([`Logic::locate`]).
    fn carries_payload(&self) -> bool {
        false
    }

    /// Adds to `pieces` where bytes of a payload lie at this moment, as many as are wanted. They are moved before
    /// [`Logic::work`] is called.
    ///
    /// # Errors
    /// Where they are not within reach: the request fails.
    fn locate(&mut self, _wanted: &Wanted, _pieces: &mut Vec<Piece>) -> Result<(), Unreachable> {
        Err(Unreachable)
    }

    /// Takes payload that has come, of one packet: of a QP in their order, each byte once, unless an unreliable peer gives a
    /// message up, whose receive is then filled anew. What is said decides: nothing of the packet is acknowledged before, and
    /// a refusal fails the QP.
    fn place(
        &mut self,
        _tag: Tag,
        _wanted: &Wanted,
        _bytes: &[u8],
    ) -> Poll<Result<(), Unreachable>> {
        Poll::Ready(Err(Unreachable))
    }

    /// Gives payload of one packet that is to leave, at once by filling `bytes`. A message may be asked for again, from any
    /// offset that is not acknowledged; so may what a peer READs.
    fn fetch(
        &mut self,
        _tag: Tag,
        _wanted: &Wanted,
        _bytes: &mut [u8],
    ) -> Poll<Result<(), Unreachable>> {
        Poll::Ready(Err(Unreachable))
    }

    /// Takes an event of messages and QPs of its own.
    fn take_event(&mut self, now: u64, event: Event, ports: &mut Ports<'_>);

    /// Takes note that the port was taken off its cable, or put back.
    fn hear_link(&mut self, _now: u64, _up: bool) {}

    /// Gives up queue pair 1, whose number other logic answers for.
    fn withhold_gsi(&mut self) {}

    /// The next answer to a question that was [`Poll::Pending`]. Answers about QPs that were reset or destroyed since
    /// may be left out.
    fn poll_answer(&mut self) -> Option<(Tag, Answer)> {
        None
    }
}

/// The shell's offers to logic while it works.
pub struct Ports<'a> {
    vfpga: usize,
    unit: &'a Unit,
    network: &'a mut Network,
    stops: bool,
}

impl<'a> Ports<'a> {
    #[inline]
    pub(crate) fn new(vfpga: usize, unit: &'a Unit, network: &'a mut Network) -> Self {
        Self { vfpga, unit, network, stops: false }
    }

    /// Whether the logic has given up its work.
    pub(crate) fn has_stopped(&self) -> bool {
        self.stops
    }

    /// Host memory by addresses of the vFPGA, for rings and records.
    pub fn memory(&self) -> &'a Unit {
        self.unit
    }

    /// Ends the present work of the logic: the shell ends its transfers.
    pub fn stop(&mut self) {
        self.stops = true;
    }

    /// Whether a QP is the logic's own.
    fn owns(&self, qpn: Qpn) -> bool {
        vfpga_of(qpn) == self.vfpga
    }

    /// Whether an address handle is the logic's own.
    fn owns_ah(&self, ah: u32) -> bool {
        (ah >> QPN_BITS) as usize == self.vfpga
    }

    /// Makes a QP in RESET of a client's; its number has the vFPGA's in bits 23 to 20.
    pub fn create_qp(&mut self, qpn: Qpn, service: Service, number: u8) -> Result<(), roce::Error> {
        if !self.owns(qpn) {
            return Err(roce::Error::UnknownQp(qpn));
        }
        self.network.stack.create_qp(qpn, service, client(self.vfpga, number))
    }

    /// Makes an address handle of a client's. Its number is drawn as a QP's.
    pub fn create_ah(
        &mut self,
        now: u64,
        ah: u32,
        number: u8,
        vector: &AddressVector,
    ) -> Result<(), roce::Error> {
        self.network.check_peer(vector.dgid)?;
        let client = client(self.vfpga, number);
        self.network.stack.create_ah(Instant(now), ah, client, vector)
    }

    /// Forgets an address handle.
    pub fn destroy_ah(&mut self, ah: u32) {
        if self.owns_ah(ah) {
            self.network.stack.destroy_ah(ah);
        }
    }

    /// Whether the Ethernet address that an address handle leads to is known; `None` for an unknown handle.
    pub fn is_ah_resolved(&self, ah: u32) -> Option<bool> {
        self.network.stack.is_ah_resolved(ah)
    }

    /// Takes a QP of datagrams into a multicast group, or out of it.
    pub fn set_member(
        &mut self,
        now: u64,
        qpn: Qpn,
        group: Gid,
        member: bool,
    ) -> Result<(), roce::Error> {
        if !self.owns(qpn) {
            return Err(roce::Error::UnknownQp(qpn));
        }
        self.network.set_member(now, qpn, group, member)
    }

    /// Takes a datagram, as [`Ports::post_send`] another message.
    pub fn post_datagram(&mut self, qpn: Qpn, request: DatagramRequest) -> Result<u64, PostError> {
        if !self.owns(qpn) {
            return Err(PostError::UnknownQp(qpn));
        }
        self.network.stack.post_datagram(qpn, request)
    }

    /// Fails a connection of which no program can be told: see [`roce::Stack::refuse_unacknowledged`]. An XRC target's messages
    /// are told of by the logic of the queue that took them.
    pub fn refuse_unacknowledged(&mut self, qpn: Qpn) -> bool {
        let may = self.owns(qpn) || self.network.stack.is_xrc_target(qpn);
        may && self.network.stack.refuse_unacknowledged(qpn)
    }

    /// Changes a QP. What was asked about it is forgotten where it goes to RESET.
    pub fn modify_qp(
        &mut self,
        now: u64,
        qpn: Qpn,
        change: &QpAttributes,
    ) -> Result<(), roce::Error> {
        if !self.owns(qpn) {
            return Err(roce::Error::UnknownQp(qpn));
        }
        if let Some(path) = &change.path {
            self.network.check_peer(path.dgid)?;
            self.network.check_services(qpn, path)?;
        }
        self.network.stack.modify_qp(Instant(now), qpn, change)?;
        match change.state {
            Some(roce::QpState::Reset) => {
                self.network.forget_qp(qpn);
                self.network.restart_services(qpn);
            }
            Some(roce::QpState::Rtr) => self.network.begin_services(qpn),
            _ => {}
        }
        Ok(())
    }

    /// The attributes of a QP of its own.
    pub fn query_qp(&self, qpn: Qpn) -> Option<QpSnapshot> {
        self.network.stack.query_qp(qpn).filter(|_| self.owns(qpn))
    }

    /// Whether a QP has packets to send, and waits only for its turn.
    pub fn stands_in_line(&self, qpn: Qpn) -> bool {
        self.owns(qpn) && self.network.stack.stands_in_line(qpn)
    }

    /// Forgets a QP, and the questions about it.
    pub fn destroy_qp(&mut self, qpn: Qpn) {
        if self.owns(qpn) {
            self.network.destroy_qp(qpn);
        }
    }

    /// Messages that a QP takes now.
    #[inline]
    pub fn send_room(&self, qpn: Qpn) -> usize {
        self.network.stack.send_room(qpn)
    }

    /// Gives memory back that messages of before took.
    pub fn narrow(&mut self, qpn: Qpn) {
        if self.owns(qpn) {
            self.network.stack.narrow(qpn);
        }
    }

    /// Takes a message, along XRC for the peer's shared receive queue of that number, and answers with its
    /// number: from 0 on since RESET.
    #[inline]
    pub fn post_send(
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
    pub fn set_gid(&mut self, index: u8, address: Option<Address>) {
        self.network.set_gid(self.vfpga, index, address);
    }

    /// Takes the port off its cable, or puts it back.
    pub fn set_link(&mut self, up: bool) {
        self.network.set_link(up);
    }

    /// The largest path MTU that the cable carries.
    pub fn path_mtu(&self) -> PathMtu {
        self.network.path_mtu()
    }

    /// The number of multicast groups that the port can be in.
    pub fn most_groups(&self) -> u16 {
        u16::try_from(self.network.most_groups()).unwrap_or(u16::MAX)
    }

    /// Whether the port is on its cable.
    pub fn is_link_up(&self) -> bool {
        self.network.is_link_up()
    }

    /// The port's Ethernet address.
    pub fn mac(&self) -> [u8; 6] {
        self.network.identity().mac
    }

    /// The port's attributes, in the words of the contract.
    pub fn attributes(&self) -> PortAttributes {
        let mtu = self.path_mtu() as u8;
        PortAttributes {
            mac: self.mac(),
            link_up: self.is_link_up().into(),
            max_mtu: mtu,
            active_mtu: mtu,
            ..PortAttributes::default()
        }
    }

    /// The port's counters.
    pub fn counters(&self) -> &Counters {
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
