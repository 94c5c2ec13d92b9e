//! The connection manager between a hostile peer and a hostile owner: messages that fit earlier ones, and messages that
//! do not, calls in any order, and time.
//!
//! Checked promises: a datagram is answered by two at most, and each answer is a message; events are of
//! identifiers that their owner has, and none comes of one that was destroyed; a connection is there
//! once, and ends once; limits hold; and when the owner has destroyed everything nothing is left.

use std::collections::BTreeMap;

use arbitrary::Unstructured;
use cm::wire::{Attribute, Body, IpHeader, Mad, Message, RejectReason, SidrStatus};
use cm::{
    Accept, Address, Answer, Bind, BindingId, Connect, EventKind, Id, Instant, Limits, Manager,
    Offer, Owner, Path, PortAttributes, PortSpace, QpTarget, Resolve, Route, Transport,
};

use crate::Outcome;

const OWNERS: [Owner; 2] = [Owner(1), Owner(2)];
const IDS_PER_OWNER: usize = 6;
const LINGERING: usize = 4;
const BACKLOG: usize = 3;
/// Services' ports, and a free one.
const PORTS: [u16; 3] = [10, 11, 12];
/// Messages kept to be said again.
const SAID: usize = 32;

/// How far an identifier has come, as its owner was told.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    there: bool,
    over: bool,
    exit: bool,
}

struct Bench {
    manager: Manager,
    now: Instant,
    /// Identifiers that an owner has.
    ids: BTreeMap<Id, (Owner, Progress)>,
    bindings: Vec<BindingId>,
    /// The messages of either side: the peer knows all of them.
    said: Vec<Mad>,
}

fn address(last: u8) -> Address {
    Address::untagged(std::net::Ipv4Addr::new(10, 0, 0, last).into())
}

pub fn run(u: &mut Unstructured<'_>) -> Outcome {
    let mut state = 1_u64;
    let random = move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state ^ state >> 29
    };
    let limits = Limits {
        ids_per_owner: IDS_PER_OWNER,
        ids: 2 * IDS_PER_OWNER - 1,
        bindings_per_owner: 4,
        backlog: BACKLOG,
        lingering: LINGERING,
        ephemeral_ports: 100..=103,
    };
    let mut manager = Manager::new(limits, Box::new(random));
    manager.set_port(0, PortAttributes { ca_guid: 1, ack_delay: 3, mtu: 4 });
    manager.set_presence("0.1.0", 0);
    let mut bench = Bench {
        manager,
        now: Instant(1_000_000),
        ids: BTreeMap::new(),
        bindings: Vec::new(),
        said: Vec::new(),
    };
    bench.listen(0, PortSpace::Tcp, PORTS[0], Offer::Connections(Transport::Rc));
    bench.listen(1, PortSpace::Udp, PORTS[1], Offer::Datagrams);
    while !u.is_empty() {
        bench.act(u)?;
    }
    bench.finish();
    Ok(())
}

impl Bench {
    fn listen(&mut self, owner: usize, space: PortSpace, port: u16, offer: Offer) {
        let address = address(1).ip();
        let bind = Bind { space, address, vlan: 0, port, reuse: false, only_ipv6: false };
        if let Ok((id, _)) = self.manager.bind(OWNERS[owner], bind) {
            let _ = self.manager.listen(id, offer, BACKLOG);
            self.bindings.push(id);
        }
    }

    fn route(&self, u: &mut Unstructured<'_>) -> arbitrary::Result<Route> {
        // Mostly the two parties; itself and a stranger, too.
        let remote = address(*u.choose(&[2, 2, 2, 2, 2, 2, 1, 3])?);
        Ok(Route::between(0, address(1), remote))
    }

    fn act(&mut self, u: &mut Unstructured<'_>) -> Outcome {
        match u.int_in_range(0..=11)? {
            0..=6 => self.hear(u)?,
            7 => self.ask(u)?,
            8 | 9 => self.call(u)?,
            10 => {
                let nanos = 1_u64 << u.int_in_range(0..=38)?;
                self.now = Instant(self.now.0.saturating_add(nanos));
                self.manager.poll(self.now);
            }
            _ => self.bind(u)?,
        }
        self.drain(usize::MAX);
        let (owned, lingering, _) = self.manager.census();
        assert_eq!(owned, self.ids.len(), "an identifier is nobody's");
        assert!(owned < 2 * IDS_PER_OWNER && lingering <= LINGERING, "limits do not hold");
        Ok(())
    }

    /// A datagram: an earlier one, changed or not, or anything.
    fn hear(&mut self, u: &mut Unstructured<'_>) -> Outcome {
        let route = self.route(u)?;
        let mut datagram = match self.said.last() {
            None => [0; 256],
            Some(last) if u.ratio(2, 3)? => *last,
            Some(_) => self.said[u.choose_index(self.said.len())?],
        };
        if u.ratio(3, 4)? {
            // The peer answers: another attribute, and the numbers change their places.
            datagram[..4].copy_from_slice(&[1, 7, 2, 3]);
            datagram[16..18].copy_from_slice(&[0, u.int_in_range(0x10..=0x1a)?]);
            if u.ratio(1, 2)? {
                let (first, second) = datagram[24..32].split_at_mut(4);
                first.swap_with_slice(second);
            }
            if u.ratio(1, 4)? {
                datagram[24..28].copy_from_slice(u.bytes(4)?);
            }
            self.make_plausible(u, &route, &mut datagram)?;
        }
        for _ in 0..u.int_in_range(0..=3)? {
            let at = u.int_in_range(0..=255_usize)?;
            datagram[at] = u.arbitrary()?;
        }
        self.manager.input(self.now, &route, 1, &datagram);
        self.keep(datagram);
        self.drain(2);
        Ok(())
    }

    /// Gives a request the fields that a listener checks.
    fn make_plausible(
        &self,
        u: &mut Unstructured<'_>,
        route: &Route,
        datagram: &mut Mad,
    ) -> Outcome {
        let Ok(mut message) = Message::parse(&datagram[..]) else { return Ok(()) };
        let header =
            IpHeader { source: route.remote.ip(), source_port: 5, destination: route.local.ip() };
        let space = *u.choose(&[PortSpace::Tcp, PortSpace::Udp])?;
        let service = cm::ServiceId::new(space, *u.choose(&PORTS)?).0;
        match &mut message.body {
            Body::Req(req) => {
                req.service_id = service;
                req.local_qpn = u.int_in_range(1..=6)?;
                req.path_mtu = u.int_in_range(1..=4)?;
                req.pkey = 0xffff;
                req.transport_service.0 = 0;
                req.primary_local_gid = route.remote.gid;
                req.primary_remote_gid = route.local.gid;
                req.private_data[..36].copy_from_slice(&header.to_bytes());
            }
            Body::SidrReq(req) => {
                req.service_id = service;
                req.pkey = 0xffff;
                req.private_data[..36].copy_from_slice(&header.to_bytes());
            }
            Body::Rep(rep) => rep.local_qpn = u.int_in_range(1..=6)?,
            Body::Dreq(dreq) => dreq.remote_qpn = u.int_in_range(1..=6)?,
            Body::Mra(mra) => mra.message.0 = u.int_in_range(0..=2)?,
            Body::Rej(rej) => rej.reason.0 = *u.choose(&[4, 4, 10, 28])?,
            _ => {}
        }
        *datagram = message.to_bytes();
        Ok(())
    }

    fn keep(&mut self, datagram: Mad) {
        if self.said.len() == SAID {
            self.said.remove(0);
        }
        self.said.push(datagram);
    }

    fn ask(&mut self, u: &mut Unstructured<'_>) -> Outcome {
        let owner = *u.choose(&OWNERS)?;
        let path = Path::along(self.route(u)?, 3, 7);
        let (response_timeout, max_cm_retries) = (u.int_in_range(0..=32)?, u.int_in_range(0..=16)?);
        let private_data = &[7; 181][..u.int_in_range(0..=181)?];
        let (space, destination_port) = (PortSpace::Tcp, *u.choose(&PORTS)?);
        let asked = if u.ratio(3, 4)? {
            let connect = Connect {
                path,
                space,
                source_port: 9,
                destination_port,
                transport: Transport::Rc,
                qpn: u.int_in_range(1..=6)?,
                srq: u.arbitrary()?,
                responder_resources: u.arbitrary()?,
                initiator_depth: u.arbitrary()?,
                flow_control: u.arbitrary()?,
                retry_count: u.int_in_range(0..=8)?,
                rnr_retry_count: u.int_in_range(0..=8)?,
                response_timeout,
                max_cm_retries,
                private_data,
            };
            self.manager.connect(self.now, owner, &connect)
        } else {
            let resolve = Resolve {
                path,
                space: PortSpace::Udp,
                source_port: 9,
                destination_port,
                response_timeout,
                max_cm_retries,
                private_data,
            };
            self.manager.resolve(self.now, owner, &resolve)
        };
        if let Ok(id) = asked {
            let before = self.ids.insert(id, (owner, Progress::default()));
            assert!(before.is_none(), "a number is given twice");
        }
        Ok(())
    }

    fn call(&mut self, u: &mut Unstructured<'_>) -> Outcome {
        let ids: Vec<Id> = self.ids.keys().copied().collect();
        let id = match ids.len() {
            0 => Id(u.arbitrary()?),
            count => ids[u.choose_index(count)?],
        };
        let (now, manager) = (self.now, &mut self.manager);
        let private_data = &[9; 225][..u.int_in_range(0..=225)?];
        let qpn = u.int_in_range(1..=6)?;
        let reason = RejectReason(u.arbitrary()?);
        let info = &[3; 80][..u.int_in_range(0..=80)?];
        let status = SidrStatus(u.int_in_range(0..=5)?);
        let accept = Accept {
            qpn,
            srq: false,
            responder_resources: u.arbitrary()?,
            initiator_depth: u.arbitrary()?,
            flow_control: false,
            rnr_retry_count: u.int_in_range(0..=8)?,
            private_data,
        };
        let answer = Answer { status, qpn, qkey: 7, private_data };
        let before = manager.state(id);
        let done = match u.int_in_range(0..=7)? {
            0 => manager.accept(now, id, &accept),
            1 => manager.ready(now, id, private_data),
            2 => manager.reject(now, id, reason, info, private_data),
            3 => manager.disconnect(now, id, private_data),
            4 => manager.communication_established(now, id),
            5 => manager.answer(now, id, &answer),
            6 => {
                for target in [QpTarget::Init, QpTarget::Rtr, QpTarget::Rts] {
                    let _ = manager.qp_attributes(id, target);
                }
                return Ok(());
            }
            _ => {
                let done = manager.destroy(now, id);
                assert_eq!(done.is_ok(), self.ids.remove(&id).is_some());
                return Ok(());
            }
        };
        if done.is_err() {
            assert_eq!(manager.state(id), before, "a call that failed did something");
        }
        Ok(())
    }

    fn bind(&mut self, u: &mut Unstructured<'_>) -> Outcome {
        if u.ratio(1, 2)? && !self.bindings.is_empty() {
            let binding = self.bindings.remove(u.choose_index(self.bindings.len())?);
            assert!(self.manager.unbind(binding).is_ok() && self.manager.unbind(binding).is_err());
        } else {
            let offers = [Offer::Connections(Transport::Rc), Offer::Datagrams];
            let offer = *u.choose(&offers)?;
            let space = *u.choose(&[PortSpace::Tcp, PortSpace::Udp, PortSpace::Ipoib])?;
            let port = *u.choose(&[PORTS[0], PORTS[1], 0])?;
            self.listen(u.int_in_range(0..=1)?, space, port, offer);
        }
        Ok(())
    }

    /// Takes datagrams and events, of which there may be so many datagrams.
    fn drain(&mut self, most: usize) {
        let mut count = 0;
        while let Some(transmit) = self.manager.poll_transmit() {
            count += 1;
            let message = Message::parse(&transmit.datagram[..]).expect("a message goes out");
            let attribute = message.body.attribute();
            assert_ne!(attribute, Attribute::LAP, "nobody asks for an alternate path");
            assert_eq!(transmit.route.local, address(1), "somebody else's address");
            self.keep(*transmit.datagram);
        }
        assert!(count <= most, "{count} datagrams for one");
        while let Some(event) = self.manager.poll_event() {
            let is_new =
                matches!(event.kind, EventKind::ConnectRequest(_) | EventKind::ResolveRequest(_));
            if is_new {
                let before = self.ids.insert(event.id, (event.owner, Progress::default()));
                assert!(before.is_none(), "a number is given twice");
            }
            let (owner, told) = self.ids.get_mut(&event.id).expect("an event of nobody's");
            assert_eq!(*owner, event.owner, "an event of somebody else's");
            match event.kind {
                EventKind::Established { .. } => {
                    assert!(!told.there && !told.over, "there twice, or after its end");
                    told.there = true;
                }
                EventKind::Disconnected { .. }
                | EventKind::Rejected(_)
                | EventKind::Unreachable
                | EventKind::Resolved(_) => {
                    assert!(!told.over, "ended twice");
                    told.over = true;
                }
                EventKind::TimeWaitExit => {
                    assert!(!told.exit, "out of the time-wait twice");
                    told.exit = true;
                }
                EventKind::ConnectResponse(_) => assert!(!told.there && !told.over),
                EventKind::ConnectRequest(_) | EventKind::ResolveRequest(_) => {}
            }
        }
    }

    /// When the owners have destroyed everything nothing is left, and all in some time.
    fn finish(&mut self) {
        for (id, _) in std::mem::take(&mut self.ids) {
            self.manager.destroy(self.now, id).expect("it is there");
        }
        for binding in std::mem::take(&mut self.bindings) {
            self.manager.unbind(binding).expect("it is there");
        }
        for steps in 0.. {
            self.drain(usize::MAX);
            let Some(at) = self.manager.next_deadline() else { break };
            assert!(steps < 1000, "it never ends");
            self.now = self.now.max(at);
            self.manager.poll(self.now);
        }
        assert_eq!(self.manager.census(), (0, 0, 0), "something is left");
    }
}
