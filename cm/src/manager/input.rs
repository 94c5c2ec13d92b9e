//! The messages of peers, and of all other hosts that reach queue pair 1.
//!
//! Every message is looked up by numbers and by addresses, in tables; nothing here grows with
//! connections, and no datagram is answered by more than two (CM-50).

use super::{Manager, Prepared};
use crate::binding::Offer;
use crate::connection::{self, Connection, ExchangeKind, Role};
use crate::counters::{self, Counters};
use crate::event::{
    ConnectRequest, ConnectResponse, Event, EventKind, Farewell, Rejection, ResolveRequest,
    Resolved,
};
use crate::machine::{self, Input, State};
use crate::param;
use crate::presence::{self, Presence};
use crate::service::ServiceId;
use crate::types::{BindingId, Error, Id, Instant, Owner, Route};
use crate::wire::{
    ApPathStatus, Apr, Body, Drep, Dreq, IpHeader, Lap, Message, Mra, Rej, RejectReason, Rejected,
    Rep, Req, Rtu, SidrRep, SidrReq, SidrStatus,
};

/// Why a request is refused: the reason, and more about it.
type Refusal = (RejectReason, Vec<u8>);

impl Manager {
    /// Takes a datagram that came to queue pair 1 with its Q_Key.
    ///
    /// `from` is the way that it came, seen from here: `local` is the address that it was sent to.
    /// `source_qpn` is the queue pair that it came from.
    pub fn input(&mut self, now: Instant, from: &Route, source_qpn: u32, datagram: &[u8]) {
        let message = Message::parse(datagram).ok().filter(|_| source_qpn == param::QPN);
        // CM-1, CM-3
        let Some(Message { transaction_id, body }) = message else {
            counters::add(&mut self.counters.drop_malformed);
            return;
        };
        Counters::count(&mut self.counters.received, body.attribute());
        // An answer asks for no congestion marks, and has its own way to go.
        let (traffic_class, hop_limit) = (from.traffic_class & 0xfc, param::HOP_LIMIT);
        let from = &Route { traffic_class, hop_limit, ..*from };
        match body {
            Body::Req(req) => self.req(now, from, transaction_id, &req),
            Body::Mra(mra) => self.mra(now, from, transaction_id, &mra),
            Body::Rej(rej) => self.rej(now, from, transaction_id, &rej),
            Body::Rep(rep) => self.rep(now, from, transaction_id, &rep),
            Body::Rtu(rtu) => self.rtu(now, from, &rtu),
            Body::Dreq(dreq) => self.dreq(now, from, transaction_id, &dreq),
            Body::Drep(drep) => self.drep(now, from, &drep),
            Body::SidrReq(req) => self.sidr_req(now, from, transaction_id, &req),
            Body::SidrRep(rep) => self.sidr_rep(now, from, transaction_id, &rep),
            Body::Lap(lap) => self.lap(from, transaction_id, &lap),
            // CM-43
            Body::Apr(_) => self.unknown(),
        }
    }

    /// Takes the last datagram once more, which found its listener's backlog full ([`Self::take_full`]). It counts as
    /// one, and as dropped only if there is still no room.
    pub fn input_again(&mut self, now: Instant, from: &Route, source_qpn: u32, datagram: &[u8]) {
        let Counters { received, drop_backlog, .. } = self.counters;
        self.counters.drop_backlog = drop_backlog.saturating_sub(1);
        self.input(now, from, source_qpn, datagram);
        self.counters.received = received;
    }

    fn unknown(&mut self) {
        counters::add(&mut self.counters.drop_unknown);
    }

    /// The connection that both numbers and both addresses name.
    // CM-9
    fn both(&self, from: &Route, local: u32, remote: u32) -> Option<&Connection> {
        let connection = self.ids.get(&local)?;
        let same = connection.kind == ExchangeKind::Connection
            && connection.is_between(from)
            && connection.remote_id == Some(remote);
        same.then_some(connection)
    }

    /// The request, not answered yet, that a first answer to it names.
    // CM-9, CM-11
    fn asked(&self, from: &Route, local: u32, transaction_id: u64) -> Option<&Connection> {
        let connection = self.ids.get(&local)?;
        let same = connection.is_between(from)
            && connection.remote_id.is_none()
            && connection.transaction_id == transaction_id;
        same.then_some(connection)
    }

    fn heard(&mut self, now: Instant, id: u32, input: Input, tell: Option<EventKind>) {
        self.run(now, id, input, Prepared { tell, ..Prepared::default() });
    }

    // The side that is asked.

    fn req(&mut self, now: Instant, from: &Route, transaction_id: u64, req: &Req) {
        // CM-10
        if (req.primary_local_gid, req.primary_remote_gid) != (from.remote.gid, from.local.gid) {
            let (number, own) = (req.local_comm_id, from.local.gid.octets());
            let reason = RejectReason::INVALID_GID;
            self.refuse(from, transaction_id, number, 0, Rejected::REQ, reason, &own);
            return;
        }
        let number = (ExchangeKind::Connection, from.remote, req.local_comm_id);
        let known = self.remotes.get(&number).and_then(|id| Some((*id, self.ids.get(id)?)));
        // CM-31
        if let Some((id, _)) = known.filter(|(_, it)| it.transaction_id == transaction_id) {
            let prepared = Prepared { answers: transaction_id, ..Prepared::default() };
            self.run(now, id, Input::Req, prepared);
            return;
        }
        // CM-35
        let far_end = self.far_ends.get(&(from.remote, req.local_qpn)).copied();
        if let Some(id) = known.map(|(id, _)| id).or(far_end) {
            self.refuse_stale(now, from, transaction_id, req, id);
            return;
        }
        match self.listener_for(from, req) {
            Ok((binding, header)) => self.new_request(from, transaction_id, req, binding, header),
            Err((reason, info)) => {
                let number = req.local_comm_id;
                self.refuse(from, transaction_id, number, 0, Rejected::REQ, reason, &info);
            }
        }
    }

    fn refuse_stale(
        &mut self,
        now: Instant,
        from: &Route,
        transaction_id: u64,
        req: &Req,
        old: u32,
    ) {
        let (number, reason) = (req.local_comm_id, RejectReason::STALE_CONNECTION);
        self.refuse(from, transaction_id, number, 0, Rejected::REQ, reason, &[]);
        self.end_stale(now, old);
    }

    /// The listener that a REQ is for, if the requested service is offered.
    fn listener_for(&mut self, from: &Route, req: &Req) -> Result<(BindingId, IpHeader), Refusal> {
        let refusal = |reason| (reason, Vec::new());
        // CM-18
        let transport = connection::transport(req)
            .ok_or_else(|| refusal(RejectReason::INVALID_TRANSPORT_TYPE))?;
        // CM-19
        let most = self.ports.get(&from.port).map_or(0, |port| port.mtu);
        if !connection::is_mtu(req.path_mtu) || req.path_mtu > most {
            return Err((RejectReason::INVALID_MTU, vec![most]));
        }
        // CM-20
        let partition = req.pkey & param::PARTITION == param::PKEY & param::PARTITION;
        if !connection::is_qpn(req.local_qpn) || !partition {
            return Err(refusal(RejectReason::UNSUPPORTED));
        }
        let service = ServiceId(req.service_id);
        let binding = self.find(from, service).ok_or_else(|| {
            // CM-15
            refusal(RejectReason::INVALID_SERVICE_ID)
        })?;
        let header =
            own_header(from, &req.private_data).ok_or_else(|| refusal(RejectReason::CONSUMER))?;
        let offer = self.bindings.listener(binding).map(|(_, listener)| listener.offer);
        if offer != Some(Offer::Connections(transport)) {
            return Err(refusal(RejectReason::INVALID_TRANSPORT_TYPE));
        }
        Ok((binding, header))
    }

    /// The listener for a service at the address that a datagram was sent to.
    fn find(&self, from: &Route, service: ServiceId) -> Option<BindingId> {
        let (space, port) = service.port()?;
        self.bindings.find(space, port, from.local)
    }

    /// Whether a listener can be asked one thing more: its owner, and the number of the question.
    fn may_ask(&mut self, binding: BindingId) -> Option<Result<(Owner, u32), Error>> {
        let (owner, listener) = self.bindings.listener(binding)?;
        // CM-21
        if listener.undecided >= listener.backlog {
            counters::add(&mut self.counters.drop_backlog);
            self.found_full = Some(binding);
            return None;
        }
        if let Err(error) = self.may_own(owner) {
            return Some(Err(error));
        }
        let id = match self.draw_id() {
            Ok(id) => id,
            Err(error) => return Some(Err(error)),
        };
        let (_, listener) = self.bindings.listener(binding)?;
        listener.undecided = listener.undecided.saturating_add(1);
        Some(Ok((owner, id)))
    }

    // CM-22, CM-30
    fn new_request(
        &mut self,
        from: &Route,
        transaction_id: u64,
        req: &Req,
        binding: BindingId,
        header: IpHeader,
    ) {
        let (owner, id) = match self.may_ask(binding) {
            None => return,
            Some(Ok(both)) => both,
            Some(Err(_)) => {
                let (number, reason) = (req.local_comm_id, RejectReason::NO_RESOURCES);
                self.refuse(from, transaction_id, number, 0, Rejected::REQ, reason, &[]);
                return;
            }
        };
        let ca_guid = self.ports.get(&from.port).map_or(0, |port| port.ca_guid);
        let mut connection = Connection::asked(from, transaction_id, req, ca_guid);
        connection.binding = Some(binding);
        connection.local_id = id;
        connection.local_psn = self.draw_psn();
        let request = ConnectRequest {
            listener: binding,
            path: connection.path,
            source_port: header.source_port,
            transport: connection.transport,
            remote_qpn: connection.remote_qpn,
            remote_ca_guid: req.local_ca_guid,
            responder_resources: connection.responder_resources,
            initiator_depth: connection.initiator_depth,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            flow_control: req.end_to_end_flow_control,
            srq: req.srq,
            private_data: behind_header(&req.private_data),
        };
        self.keep(owner, connection);
        let kind = EventKind::ConnectRequest(Box::new(request));
        self.events.push_back(Event { owner, id: Id(id), kind });
    }

    fn rtu(&mut self, now: Instant, from: &Route, rtu: &Rtu) {
        // CM-33
        if self.both(from, rtu.remote_comm_id, rtu.local_comm_id).is_none() {
            self.unknown();
            return;
        }
        let private_data = rtu.private_data.into();
        let tell = Some(EventKind::Established { private_data });
        self.heard(now, rtu.remote_comm_id, Input::Rtu, tell);
    }

    // The side that asks.

    fn rep(&mut self, now: Instant, from: &Route, transaction_id: u64, rep: &Rep) {
        let id = rep.remote_comm_id;
        if let Some(known) = self.both(from, id, rep.local_comm_id) {
            // CM-26
            match known.role {
                Role::Active => self.heard(now, id, Input::Rep, None),
                Role::Passive => self.unknown(),
            }
            return;
        }
        let number = rep.local_comm_id;
        let waits = self
            .asked(from, id, transaction_id)
            .filter(|it| machine::step(it.state, Input::Rep).is_some());
        let reason = if waits.is_none() {
            // CM-29
            self.unknown();
            RejectReason::INVALID_COMM_ID
        } else if !connection::is_qpn(rep.local_qpn) {
            RejectReason::UNSUPPORTED
        } else if let Some(&old) = self.far_ends.get(&(from.remote, rep.local_qpn)) {
            // CM-35
            self.end_stale(now, old);
            RejectReason::STALE_CONNECTION
        } else if self.remotes.contains_key(&(ExchangeKind::Connection, from.remote, number)) {
            RejectReason::DUPLICATE_COMM_ID
        } else {
            self.accepted(now, from, id, rep);
            return;
        };
        self.refuse(from, transaction_id, number, id, Rejected::REP, reason, &[]);
    }

    // CM-25
    fn accepted(&mut self, now: Instant, from: &Route, id: u32, rep: &Rep) {
        let Some(connection) = self.ids.get_mut(&id) else { return };
        connection.take_reply(rep);
        self.remotes.insert((ExchangeKind::Connection, from.remote, rep.local_comm_id), id);
        self.far_ends.insert((from.remote, rep.local_qpn), id);
        let response = ConnectResponse {
            remote_qpn: rep.local_qpn,
            remote_ca_guid: rep.local_ca_guid,
            responder_resources: rep.initiator_depth,
            initiator_depth: rep.responder_resources,
            rnr_retry_count: rep.rnr_retry_count,
            flow_control: rep.end_to_end_flow_control,
            srq: rep.srq,
            private_data: rep.private_data.into(),
        };
        let tell = Some(EventKind::ConnectResponse(Box::new(response)));
        self.heard(now, id, Input::Rep, tell);
    }

    // Both sides.

    // CM-24, CM-32
    fn mra(&mut self, now: Instant, from: &Route, transaction_id: u64, mra: &Mra) {
        let id = mra.remote_comm_id;
        let (known, input) = match mra.message {
            Rejected::REQ => (self.asked(from, id, transaction_id), Input::MraOfReq),
            Rejected::REP => (self.both(from, id, mra.local_comm_id), Input::MraOfRep),
            // An MRA of a LAP: none is sent here.
            _ => (None, Input::MraOfRep),
        };
        if known.is_none() {
            self.unknown();
            return;
        }
        if let Some(connection) = self.ids.get_mut(&id) {
            // CM-51
            let service = mra.service_timeout.min(param::LONGEST_SERVICE_TIMEOUT);
            let way = connection.ack_timeout.min(param::LONGEST_ROUND_TRIP);
            connection.longer = param::time(service).saturating_add(param::time(way));
        }
        self.heard(now, id, input, None);
    }

    // CM-27, CM-34
    fn rej(&mut self, now: Instant, from: &Route, transaction_id: u64, rej: &Rej) {
        let Some(id) = self.rejected(from, transaction_id, rej) else {
            self.unknown();
            return;
        };
        let info_length = usize::from(rej.info_length);
        let kind = if self.ids.get(&id).is_some_and(|it| it.state == State::DreqSent) {
            EventKind::Disconnected { by: Farewell::Drep, private_data: Box::default() }
        } else {
            EventKind::Rejected(Box::new(Rejection {
                reason: rej.reason,
                message: rej.message,
                info: rej.info.get(..info_length).unwrap_or(&rej.info).into(),
                private_data: rej.private_data.into(),
            }))
        };
        self.heard(now, id, Input::Rej, Some(kind));
    }

    /// The connection that a REJ refers to.
    fn rejected(&self, from: &Route, transaction_id: u64, rej: &Rej) -> Option<u32> {
        let (local, remote) = (rej.remote_comm_id, rej.local_comm_id);
        if self.both(from, local, remote).is_some() {
            return Some(local);
        }
        if self.asked(from, local, transaction_id).is_some() {
            return Some(local);
        }
        // A peer that has given up before it was answered knows no number of ours.
        let id = *self.remotes.get(&(ExchangeKind::Connection, from.remote, remote))?;
        let gave_up = rej.reason == RejectReason::TIMEOUT && local == 0;
        let same = self.ids.get(&id)?.is_between(from);
        (gave_up && same).then_some(id)
    }

    fn dreq(&mut self, now: Instant, from: &Route, transaction_id: u64, dreq: &Dreq) {
        let (id, number) = (dreq.remote_comm_id, dreq.local_comm_id);
        let Some(connection) = self.both(from, id, number) else {
            // CM-38
            self.unknown();
            self.say_drep(*from, transaction_id, id, number);
            return;
        };
        if connection.local_qpn != dreq.remote_qpn {
            self.unknown();
            return;
        }
        let taken = machine::step(connection.state, Input::Dreq);
        if taken.is_some_and(|row| row.to == State::DreqReceived) {
            if let Some(connection) = self.ids.get_mut(&id) {
                connection.transaction_id = transaction_id;
            }
        }
        // CM-37, CM-39
        let by = Farewell::Dreq;
        let tell = EventKind::Disconnected { by, private_data: dreq.private_data.into() };
        let prepared = Prepared { send: None, tell: Some(tell), answers: transaction_id };
        self.run(now, id, Input::Dreq, prepared);
    }

    fn drep(&mut self, now: Instant, from: &Route, drep: &Drep) {
        // CM-36
        if self.both(from, drep.remote_comm_id, drep.local_comm_id).is_none() {
            self.unknown();
            return;
        }
        let private_data = drep.private_data.into();
        let tell = Some(EventKind::Disconnected { by: Farewell::Drep, private_data });
        self.heard(now, drep.remote_comm_id, Input::Drep, tell);
    }

    // CM-43
    fn lap(&mut self, from: &Route, transaction_id: u64, lap: &Lap) {
        let known = self.both(from, lap.remote_comm_id, lap.local_comm_id).is_some();
        let apr = Apr {
            local_comm_id: lap.remote_comm_id,
            remote_comm_id: lap.local_comm_id,
            status: if known { ApPathStatus::UNSUPPORTED } else { ApPathStatus::INVALID_COMM_ID },
            ..Apr::ZERO
        };
        counters::add(&mut self.counters.refused);
        self.say(*from, transaction_id, apr.into());
    }

    // Resolution.

    fn sidr_req(&mut self, now: Instant, from: &Route, transaction_id: u64, req: &SidrReq) {
        if ServiceId(req.service_id) == presence::SERVICE {
            self.who_is_there(now, from, transaction_id, req);
            return;
        }
        // CM-45
        if let Some(&id) =
            self.remotes.get(&(ExchangeKind::Resolution, from.remote, req.request_id))
        {
            self.heard(now, id, Input::SidrReq, None);
            return;
        }
        match self.resolver_for(from, req) {
            Ok((binding, header)) => {
                self.new_question(from, transaction_id, req, binding, header);
            }
            Err(status) => self.no_resolution(from, transaction_id, req, status),
        }
    }

    /// Answers a question for presence, and keeps no state of it.
    // CM-52
    fn who_is_there(&mut self, now: Instant, from: &Route, transaction_id: u64, req: &SidrReq) {
        let mtu = self.ports.get(&from.port).map(|port| port.mtu);
        let (Some((version, flags)), Some(mtu)) = (&self.presence, mtu) else {
            self.no_resolution(from, transaction_id, req, SidrStatus::UNSUPPORTED);
            return;
        };
        let presence = Presence { version: version.clone(), mtu, flags: *flags };
        // CM-53
        if !self.presences.has_room(now) {
            counters::add(&mut self.counters.drop_presence);
            return;
        }
        let SidrReq { request_id, service_id, .. } = *req;
        let private_data = presence.to_bytes();
        let rep = SidrRep {
            request_id,
            status: SidrStatus::VALID,
            qpn: param::QPN,
            service_id,
            private_data,
            ..SidrRep::ZERO
        };
        self.say(*from, transaction_id, rep.into());
    }

    /// The listener that a SIDR_REQ is for.
    // CM-46
    fn resolver_for(
        &mut self,
        from: &Route,
        req: &SidrReq,
    ) -> Result<(BindingId, IpHeader), SidrStatus> {
        let binding = self.find(from, ServiceId(req.service_id)).ok_or(SidrStatus::UNSUPPORTED)?;
        let offer = self.bindings.listener(binding).map(|(_, listener)| listener.offer);
        let partition = req.pkey & param::PARTITION == param::PKEY & param::PARTITION;
        if offer != Some(Offer::Datagrams) || !partition {
            return Err(SidrStatus::UNSUPPORTED);
        }
        let header = own_header(from, &req.private_data).ok_or(SidrStatus::REJECTED)?;
        Ok((binding, header))
    }

    // CM-44
    fn new_question(
        &mut self,
        from: &Route,
        transaction_id: u64,
        req: &SidrReq,
        listener: BindingId,
        header: IpHeader,
    ) {
        let (owner, id) = match self.may_ask(listener) {
            None => return,
            Some(Ok(both)) => both,
            Some(Err(_)) => {
                self.no_resolution(from, transaction_id, req, SidrStatus::NO_QP);
                return;
            }
        };
        let mut connection = Connection::asked_where(from, transaction_id, req);
        connection.binding = Some(listener);
        connection.local_id = id;
        let private_data = behind_header(&req.private_data);
        let source_port = header.source_port;
        self.keep(owner, connection);
        let request = ResolveRequest { listener, route: *from, source_port, private_data };
        let kind = EventKind::ResolveRequest(Box::new(request));
        self.events.push_back(Event { owner, id: Id(id), kind });
    }

    fn no_resolution(
        &mut self,
        from: &Route,
        transaction_id: u64,
        req: &SidrReq,
        status: SidrStatus,
    ) {
        let SidrReq { request_id, service_id, .. } = *req;
        let rep = SidrRep { request_id, status, service_id, ..SidrRep::ZERO };
        counters::add(&mut self.counters.refused);
        self.say(*from, transaction_id, rep.into());
    }

    fn sidr_rep(&mut self, now: Instant, from: &Route, transaction_id: u64, rep: &SidrRep) {
        if self.asked(from, rep.request_id, transaction_id).is_none() {
            self.unknown();
            return;
        }
        let resolved = Resolved {
            status: rep.status,
            qpn: rep.qpn,
            qkey: rep.qkey,
            private_data: rep.private_data.into(),
        };
        let tell = Some(EventKind::Resolved(Box::new(resolved)));
        self.heard(now, rep.request_id, Input::SidrRep, tell);
    }

    /// Refuses a message by which no connection came to be.
    #[expect(clippy::too_many_arguments, reason = "they are the fields of a REJ")]
    fn refuse(
        &mut self,
        from: &Route,
        transaction_id: u64,
        remote: u32,
        local: u32,
        message: Rejected,
        reason: RejectReason,
        info: &[u8],
    ) {
        counters::add(&mut self.counters.refused);
        let rej = Rej {
            local_comm_id: local,
            remote_comm_id: remote,
            message,
            info_length: u8::try_from(info.len()).unwrap_or(0),
            reason,
            info: crate::wire::padded(info).unwrap_or([0; 72]),
            ..Rej::ZERO
        };
        self.say(*from, transaction_id, rej.into());
    }
}

/// The addresses in a request's private data, if they are those of its datagram.
// CM-10
fn own_header(from: &Route, private_data: &[u8]) -> Option<IpHeader> {
    let header = IpHeader::parse(private_data).ok()?;
    let same = header.source == from.remote.ip() && header.destination == from.local.ip();
    same.then_some(header)
}

/// The private data of the peer's consumer behind the addresses.
fn behind_header(private_data: &[u8]) -> Box<[u8]> {
    private_data.get(IpHeader::LENGTH..).unwrap_or_default().into()
}
