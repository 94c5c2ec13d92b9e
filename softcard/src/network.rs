//! The card's network: its addresses, the transport, the port, and the traffic between them.

mod decisions;
mod gids;
mod host;
mod tended;
mod waits;

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use roce::qos::Qos;
use roce::{
    Address, Event, Gid, IcrcPolicy, Instant, MacAddr, PathMtu, Qpn, Stack, StackConfig, Trust,
};
use services::{Attachments, SharedTime, Turns};

use crate::Error;
use crate::congestion::Reaction;
use crate::port::{Direction, Frame, FramePool, Port, Rooms, Watch, Watched};
use crate::protection::Protection;
use crate::sealing::Steps;
use crate::tally::PortTally;
use crate::vfpga::{vfpga_asked, vfpga_of};
pub(crate) use decisions::{Decisions, OpenDecisions, Question};
use gids::Gids;
pub(crate) use gids::Identity;
pub(crate) use host::{HOST_TURN, Host};
pub(crate) use waits::{Asked, EndedWait, Making, PATIENCE, Waits};

/// The network of a card.
pub(crate) struct Network {
    identity: Identity,
    pub(crate) stack: Stack,
    /// The GID tables of the vFPGAs.
    gids: Gids,
    pub(crate) port: Box<dyn Port>,
    /// The recording of the port.
    pub(crate) watch: Watch,
    /// The policy of the port's link, for every stack of the card.
    icrc_policy: IcrcPolicy,
    /// The settings of congestion for every stack.
    reaction: Reaction,
    /// The fields by which every stack tells a packet's priority.
    trust: Trust,
    /// The steps outside of the invariant CRC.
    pub(crate) steps: Steps,
    /// The services of the card's queue pairs.
    services: Rc<RefCell<Attachments>>,
    /// The queue pairs whose services wait for their turn, with the frames that have come for them.
    pub(crate) turns: Rc<RefCell<Turns<Frame>>>,
    /// The time that services of all cards of the thread share.
    pub(crate) time: Rc<SharedTime>,
    /// The processor time of the thread that runs the card, in nanoseconds.
    pub(crate) clock: fn() -> u64,
    /// The processes that have queue pairs.
    owners: HashMap<Qpn, u32>,
    /// The host's network stack, where it shares the port's addresses.
    pub(crate) host: Option<Host>,
    pub(crate) pool: FramePool,
    pub(crate) tally: PortTally,
    /// The questions to logic about requests of peers.
    pub(crate) decisions: Decisions,
    /// Payload that logic is to take, or to give.
    pub(crate) waits: Waits,
    /// Events for logic that was not ready, in their order.
    pub(crate) unheard: VecDeque<Event>,
    link: LinkState,
}

/// Whether the port is on its cable.
#[derive(Clone, Copy, Debug)]
struct LinkState {
    up: bool,
    /// The state that the engines were told last.
    told: bool,
    /// Frames that were lost because it was down.
    lost: u64,
}

impl Default for LinkState {
    fn default() -> Self {
        Self { up: true, told: true, lost: 0 }
    }
}

/// Nanoseconds of processor time that the calling thread has had.
fn processor_time() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from);
    time.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

fn ip_of(gid: Gid) -> IpAddr {
    gid.as_ipv6().to_canonical()
}

fn new_stack(identity: Identity, icrc_policy: IcrcPolicy, mtu_max: PathMtu) -> Stack {
    Stack::new(StackConfig {
        mac: MacAddr(identity.mac),
        ipv4: identity.ipv4.into(),
        mtu_max,
        icrc_policy,
    })
}

impl Network {
    pub(crate) fn new(port: Box<dyn Port>, icrc_policy: IcrcPolicy, pool: FramePool) -> Self {
        let (port, watch) = Watched::new(port);
        let mtu_max = port.path_mtu(0);
        let time = Rc::default();
        Self {
            identity: Identity::default(),
            stack: new_stack(Identity::default(), icrc_policy, mtu_max),
            gids: Gids::default(),
            port: Box::new(port),
            watch,
            icrc_policy,
            reaction: Reaction::default(),
            trust: Qos::untouched().trust,
            steps: Steps::default(),
            services: Rc::default(),
            turns: Rc::new(RefCell::new(Turns::sharing(&time))),
            time,
            clock: processor_time,
            owners: HashMap::new(),
            host: None,
            pool,
            tally: PortTally::default(),
            decisions: Decisions::default(),
            waits: Waits::default(),
            unheard: VecDeque::new(),
            link: LinkState::default(),
        }
    }

    pub(crate) fn identity(&self) -> Identity {
        self.identity
    }

    /// Takes a new address, as long as no QP uses the old one.
    pub(crate) fn set_identity(&mut self, identity: Identity) {
        if !self.stack.is_used() {
            self.identity = identity;
            self.renew_stack();
            self.apply_gids();
        }
    }

    /// Begins with a stack that has nothing but its services.
    fn renew_stack(&mut self) {
        self.end_all_services();
        let services = self.stack.take_services();
        self.stack = new_stack(self.identity, self.icrc_policy, self.path_mtu());
        self.reaction.tell(&mut self.stack);
        // What is out of range was refused when it was set.
        let _ = self.stack.set_trust(self.trust.clone());
        self.stack.set_services(services);
    }

    /// Sets the card's reaction to congestion, before it has queue pairs.
    pub(crate) fn react(&mut self, reaction: Reaction) {
        self.reaction = reaction;
        self.reaction.tell(&mut self.stack);
    }

    /// Has everything that is RoCE sealed on its way, before the card has queue pairs.
    pub(crate) fn protect(&mut self, protection: &Protection) {
        let (sealing, opening) = protection.steps();
        self.steps = Steps { sealing: Some(sealing), opening: Some(opening), ..Steps::default() };
        self.renew_stack();
        self.apply_gids();
    }

    /// Whether nothing of RoCE leaves unsealed.
    pub(crate) fn seals(&self) -> bool {
        self.steps.sealing.is_some()
    }

    /// Refuses peers, and groups, for which frames could not leave.
    pub(crate) fn check_peer(&self, dgid: Gid) -> Result<(), roce::Error> {
        let is_own = || (0..=u8::MAX).any(|index| self.stack.gid(index) == Some(dgid));
        match self.steps.seals_for(ip_of(dgid)) || is_own() {
            true => Ok(()),
            false => Err(roce::Error::Unprotected { dgid }),
        }
    }

    /// Changes the settings of the port's priorities, which stay over resets.
    pub(crate) fn set_qos(&mut self, now: u64, qos: &Qos) -> Result<(), Error> {
        qos.check()?;
        self.port.set_qos(now, qos)?;
        self.trust = qos.trust.clone();
        Ok(self.stack.set_trust(qos.trust.clone()).map_err(roce::qos::BadQos::from)?)
    }

    /// Takes note of an entry of a vFPGA's GID table.
    pub(crate) fn set_gid(&mut self, vfpga: usize, index: u8, address: Option<Address>) {
        self.gids.set(vfpga, index, address);
        self.apply_gids();
    }

    /// Tells the stack and the port which addresses the card has.
    fn apply_gids(&mut self) {
        let gids = self.gids.apply(&mut self.stack, self.identity);
        let addresses: Vec<IpAddr> = gids.iter().flatten().map(|own| ip_of(own.gid)).collect();
        self.port.set_addresses(self.identity.mac, &addresses);
    }

    /// The largest path MTU of the card's queue pairs.
    pub(crate) fn path_mtu(&self) -> PathMtu {
        self.port.path_mtu(self.steps.length())
    }

    /// The number of multicast groups that the card's queue pairs can be in.
    pub(crate) fn most_groups(&self) -> usize {
        self.port.most_groups()
    }

    /// Takes a QP of datagrams into a multicast group, or out of it. The port joins the group before balboad learns
    /// that the QP is in it.
    pub(crate) fn set_member(
        &mut self,
        now: u64,
        qpn: Qpn,
        group: Gid,
        member: bool,
    ) -> Result<(), roce::Error> {
        if !member {
            self.stack.detach(Instant(now), qpn, group)?;
            self.leave(&[group]);
            return Ok(());
        }
        self.check_peer(group)?;
        let had_members = self.stack.has_members(group);
        let groups = self.stack.groups();
        if !had_members && groups >= self.most_groups() {
            return Err(roce::Error::TooManyGroups(groups));
        }
        self.stack.attach(Instant(now), qpn, group)?;
        if had_members || self.port.hear_group(ip_of(group), true) {
            return Ok(());
        }
        self.stack.detach(Instant(now), qpn, group)?;
        Err(roce::Error::TooManyGroups(groups))
    }

    /// Makes the port leave those of some groups that have no members.
    fn leave(&mut self, groups: &[Gid]) {
        for group in groups.iter().filter(|group| !self.stack.has_members(**group)) {
            self.port.hear_group(ip_of(*group), false);
        }
    }

    /// Destroys a queue pair, and forgets the decisions about it.
    pub(crate) fn destroy_qp(&mut self, qpn: Qpn) {
        let groups: Vec<Gid> = self.stack.groups_of(qpn).collect();
        self.stack.destroy_qp(qpn);
        self.leave(&groups);
        self.forget_qp(qpn);
        self.end_services(qpn);
    }

    /// Resets as a pulse on the shell's reset does: frames and messages under way are gone.
    pub(crate) fn reset(&mut self) {
        self.renew_stack();
        self.decisions.open.clear();
        self.waits.clear();
        self.turns.borrow_mut().clear();
        self.unheard.clear();
        self.port.reset();
    }

    /// Resets the rest for a function-level reset.
    pub(crate) fn reset_function(&mut self) {
        self.tally = PortTally::default();
        self.detach_all();
        self.identity = Identity::default();
        self.set_link(true);
        self.link = LinkState::default();
    }

    pub(crate) fn is_link_up(&self) -> bool {
        self.link.up
    }

    /// Takes the port off its cable, or puts it back. The host's network device follows.
    pub(crate) fn set_link(&mut self, up: bool) {
        if up && !self.link.up {
            self.stack.tell_groups_anew();
        }
        self.link.up = up;
        if let Some(host) = &mut self.host {
            host.port.set_carrier(up);
        }
    }

    /// Whether the port is on its cable, if that has changed since this was last asked.
    pub(crate) fn take_link_change(&mut self) -> Option<bool> {
        let LinkState { up, told, .. } = &mut self.link;
        (std::mem::replace(told, *up) != *up).then_some(*up)
    }

    /// Loses frames that the cable does not carry.
    fn lose(&mut self, frames: &mut VecDeque<Frame>) {
        self.link.lost = self.link.lost.saturating_add(frames.len() as u64);
        self.pool.put_all(frames);
    }

    /// Forgets the decisions about a QP, and its events for logic.
    pub(crate) fn forget_qp(&mut self, qpn: Qpn) {
        self.decisions.close(qpn);
        self.waits.forget_qp(qpn, &self.pool);
        // A receive of a shared queue along XRC ends there all the same.
        self.unheard.retain(|event| event.qpn() != qpn || event.srqn().is_some());
    }

    /// Forgets the decisions and events of a vFPGA's logic, and destroys its remaining queue pairs.
    pub(crate) fn forget_vfpga(&mut self, vfpga: usize) {
        for qpn in self.stack.queue_pairs().into_iter().filter(|qpn| vfpga_of(*qpn) == vfpga) {
            self.destroy_qp(qpn);
        }
        self.waits.fail(vfpga);
        self.decisions.forget(vfpga);
        self.unheard.retain(|event| vfpga_asked(event.qpn(), event.srqn()) != vfpga);
    }

    /// Frames that the port takes beside `waiting` ones, `most` at most.
    pub(crate) fn room(&self, most: usize, waiting: usize) -> usize {
        let room = if self.link.up { self.port.room() } else { most };
        room.min(most).saturating_sub(waiting)
    }

    /// The frames of each priority that the port takes beside those that wait, where it has queues for them.
    pub(crate) fn rooms(&self, waiting: &VecDeque<Frame>) -> Option<Rooms> {
        let mut rooms = self.port.rooms().filter(|_| self.link.up)?;
        for frame in waiting {
            rooms.take(self.trust.of_frame(frame.as_slice()));
        }
        Some(rooms)
    }

    /// Takes frames that have arrived, and gives the host those that it is to see; how many have come.
    pub(crate) fn receive(&mut self, now: u64, into: &mut VecDeque<Frame>, budget: usize) -> usize {
        let before = into.len();
        self.port.receive(now, into, budget);
        let burst = into.len();
        if !self.link.up {
            // They are taken all the same: the other end must not wait for room.
            self.lose(&mut into.split_off(before));
        }
        self.steps.open(into, &self.stack, &self.pool);
        if burst > 0 {
            self.share_received(now, into);
        }
        burst
    }

    /// Sends frames as far as the port takes them, those to the card itself to `looped`; `true` if any
    /// were.
    pub(crate) fn send(
        &mut self,
        now: u64,
        sending: &mut VecDeque<Frame>,
        looped: &mut VecDeque<Frame>,
    ) -> bool {
        if sending.is_empty() {
            return false;
        }
        let own = self.identity.mac;
        if sending.iter().any(|frame| frame.as_slice().starts_with(&own)) {
            let (mut to_self, to_others): (VecDeque<Frame>, _) =
                sending.drain(..).partition(|frame| frame.as_slice().starts_with(&own));
            to_self.iter_mut().for_each(Frame::loop_back);
            *sending = to_others;
            self.port.loop_back(now, &to_self);
            looped.extend(to_self);
        }
        let before = sending.len();
        match self.link.up {
            true => self.port.send(now, sending),
            false => self.lose(sending),
        }
        sending.len() < before || !looped.is_empty()
    }

    pub(crate) fn count_sent(&mut self, frame: &Frame) {
        self.tally.count(Direction::Outbound, frame.as_slice());
    }

    /// The time of its next work by itself.
    pub(crate) fn next_timeout(&mut self) -> Option<u64> {
        self.stack.settle_timeouts();
        let stack = self.stack.next_timeout().map(|instant| instant.0);
        let host = self.host.as_ref().and_then(|host| host.port.next_timeout());
        let logic = [self.decisions.next_timeout(), self.waits.next_timeout()];
        let turns = self.time.has_services().then(|| self.turns.borrow().next_timeout()).flatten();
        let all = [stack, self.port.next_timeout(), host, turns].into_iter().chain(logic);
        all.flatten().min()
    }

    /// Counters that are the port's and the host's, not the stack's.
    pub(crate) fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut counters = self.port.counters();
        counters.push(("port_frames_link_down", self.link.lost));
        counters.push(("logic_unanswered", self.waits.unanswered));
        counters.extend(self.steps.counters());
        counters.extend(self.host.iter().flat_map(Host::counters));
        counters
    }
}

#[cfg(test)]
mod tests;
