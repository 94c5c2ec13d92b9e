//! A connection or resolution: its state, and its messages.

use core::time::Duration;

use crate::event::{Accept, Connect, Resolve};
use crate::machine::State;
use crate::param;
use crate::presence::{self, Presence};
use crate::service::ServiceId;
use crate::types::{
    Address, BindingId, Error, Instant, Owner, Path, PortAttributes, Route, Transport,
};
use crate::wire::{
    self, Body, Drep, Dreq, IpHeader, Mad, Mra, Rej, RejectReason, Rejected, Rep, Req, Rtu,
    SidrRep, SidrReq, SidrStatus, TransportService,
};

/// The side of a connection or resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Role {
    /// The side that asks.
    Active,
    /// The side that is asked.
    Passive,
}

/// A connection or a resolution: their numbers are drawn apart by peers that are not Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum ExchangeKind {
    Connection,
    Resolution,
}

/// A connection or resolution.
#[derive(Debug)]
pub(crate) struct Connection {
    /// The owner, which gets the events; `None` after a destroyed connection, while that is being ended.
    pub owner: Option<Owner>,
    pub state: State,
    pub role: Role,
    pub kind: ExchangeKind,
    /// The listener that has to decide, of the side that is asked.
    pub binding: Option<BindingId>,
    pub path: Path,
    pub ca_guid: u64,
    pub local_id: u32,
    /// The peer's number, once it is known.
    pub remote_id: Option<u32>,
    /// The transaction of the latest request, one's own or the peer's.
    pub transaction_id: u64,
    pub service_id: ServiceId,
    pub transport: Transport,
    pub local_qpn: u32,
    pub remote_qpn: u32,
    /// The PSN that the peer begins with.
    pub local_psn: u32,
    /// The PSN that this side begins with.
    pub remote_psn: u32,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    /// Tries of the peer after RNR NAKs: the number that this side tells it, and before that the one that it tells us.
    pub peer_rnr_retry_count: u8,
    /// The acknowledgement timeout of the queue pair.
    pub ack_timeout: u8,
    /// Whether the peer offered an alternate path.
    pub alternate: bool,
    /// How long an answer is waited for.
    pub patience: Duration,
    /// How long it is waited for because of an MRA.
    pub longer: Duration,
    /// How often a message is sent again.
    pub retries: u8,
    /// How often the present one still is.
    pub left: u8,
    /// The message that is repeated.
    pub last_word: Option<Box<Mad>>,
    pub deadline: Option<Instant>,
    /// Its place among those without an owner.
    pub lingers: Option<u64>,
}

/// Whether a number is that of a queue pair that can have a connection.
pub(crate) const fn is_qpn(number: u32) -> bool {
    number > param::QPN && number < 0xff_ffff
}

/// Whether a code is a path MTU.
pub(crate) const fn is_mtu(code: u8) -> bool {
    code >= 1 && code <= 5
}

/// The consumer's words as a message's field.
// CM-4
pub(crate) fn words<const N: usize>(private_data: &[u8]) -> Result<[u8; N], Error> {
    let length = private_data.len();
    wire::padded(private_data).ok_or(Error::PrivateData { length, most: N })
}

/// The private data of RDMA CM's requests: addresses, and then the consumer's words.
fn words_behind_addresses<const N: usize>(
    header: IpHeader,
    private_data: &[u8],
) -> Result<[u8; N], Error> {
    let most = N.saturating_sub(IpHeader::LENGTH);
    let length = private_data.len();
    let all = [&header.to_bytes()[..], private_data].concat();
    wire::padded(&all).ok_or(Error::PrivateData { length, most })
}

fn in_range(what: &'static str, is: bool) -> Result<(), Error> {
    if is { Ok(()) } else { Err(Error::Range(what)) }
}

/// The path as a request may have it.
fn check_path(path: &Path, response_timeout: u8, retries: u8) -> Result<IpHeader, Error> {
    let Route { local, remote, flow_label, sl, .. } = path.route;
    let (source, destination) = (local.ip(), remote.ip());
    if source.is_ipv4() != destination.is_ipv4() || local.vlan != remote.vlan {
        return Err(Error::Family);
    }
    in_range("path MTU", is_mtu(path.mtu))?;
    in_range("flow label", flow_label <= 0xf_ffff)?;
    in_range("service level", sl <= 15)?;
    in_range("rate", path.rate <= 63)?;
    in_range("packet lifetime", path.packet_lifetime <= 31)?;
    in_range("response timeout", response_timeout <= 31)?;
    in_range("CM retries", retries <= 15)?;
    Ok(IpHeader { source, source_port: 0, destination })
}

/// The time that an answer may take: the peer's, and that of the way there and back.
// CM-23
fn patience(response_timeout: u8, round_trip: u8) -> Duration {
    param::time(response_timeout).saturating_add(param::time(round_trip))
}

impl Connection {
    /// The state of a connection that this side requests.
    pub(crate) fn asking(
        kind: ExchangeKind,
        owner: Owner,
        path: Path,
        port: PortAttributes,
    ) -> Self {
        Self {
            owner: Some(owner),
            state: State::Ended,
            role: Role::Active,
            kind,
            binding: None,
            path,
            ca_guid: port.ca_guid,
            local_id: 0,
            remote_id: None,
            transaction_id: 0,
            service_id: ServiceId(0),
            transport: Transport::Rc,
            local_qpn: 0,
            remote_qpn: 0,
            local_psn: 0,
            remote_psn: 0,
            responder_resources: 0,
            initiator_depth: 0,
            retry_count: 0,
            rnr_retry_count: 0,
            peer_rnr_retry_count: 0,
            ack_timeout: path.packet_lifetime.saturating_add(1).min(31),
            alternate: false,
            patience: Duration::ZERO,
            longer: Duration::ZERO,
            retries: 0,
            left: 0,
            last_word: None,
            deadline: None,
            lingers: None,
        }
    }

    /// Takes the owner's parameters of a request for a connection; answers with the REQ.
    pub(crate) fn request(
        &mut self,
        asked: &Connect<'_>,
        port: PortAttributes,
    ) -> Result<Req, Error> {
        let Connect { path, response_timeout, max_cm_retries, .. } = *asked;
        let header = check_path(&path, response_timeout, max_cm_retries)?;
        let header = IpHeader { source_port: asked.source_port, ..header };
        in_range("QPN", is_qpn(asked.qpn))?;
        in_range("retry count", asked.retry_count <= 7)?;
        in_range("RNR retry count", asked.rnr_retry_count <= 7)?;
        let private_data = words_behind_addresses(header, asked.private_data)?;
        self.service_id = ServiceId::new(asked.space, asked.destination_port);
        self.transport = asked.transport;
        self.local_qpn = asked.qpn;
        self.responder_resources = asked.responder_resources;
        self.initiator_depth = asked.initiator_depth;
        self.retry_count = asked.retry_count;
        self.rnr_retry_count = asked.rnr_retry_count;
        self.peer_rnr_retry_count = asked.rnr_retry_count;
        self.patience = patience(response_timeout, path.packet_lifetime.saturating_add(1));
        self.retries = max_cm_retries;
        // CM-8
        let local = path.route.hop_limit <= 1;
        let lid = if local { 0 } else { 0xffff };
        Ok(Req {
            local_comm_id: self.local_id,
            service_id: self.service_id.0,
            local_ca_guid: self.ca_guid,
            local_qpn: asked.qpn,
            responder_resources: asked.responder_resources,
            initiator_depth: asked.initiator_depth,
            remote_cm_response_timeout: response_timeout,
            transport_service: match asked.transport {
                Transport::Rc => TransportService::RC,
                Transport::Uc => TransportService::UC,
            },
            end_to_end_flow_control: asked.flow_control,
            starting_psn: self.local_psn,
            local_cm_response_timeout: response_timeout,
            retry_count: asked.retry_count,
            pkey: param::PKEY,
            path_mtu: path.mtu,
            rnr_retry_count: asked.rnr_retry_count,
            max_cm_retries,
            srq: asked.srq,
            primary_local_lid: lid,
            primary_remote_lid: lid,
            primary_local_gid: path.route.local.gid,
            primary_remote_gid: path.route.remote.gid,
            primary_flow_label: path.route.flow_label,
            primary_packet_rate: path.rate,
            primary_traffic_class: path.route.traffic_class,
            primary_hop_limit: path.route.hop_limit,
            primary_sl: path.route.sl,
            primary_subnet_local: local,
            primary_local_ack_timeout: param::ack_timeout(port.ack_delay, path.packet_lifetime),
            private_data,
            ..Req::ZERO
        })
    }

    /// Takes the owner's parameters of a request for a resolution; answers with the SIDR_REQ.
    pub(crate) fn resolve(&mut self, asked: &Resolve<'_>) -> Result<SidrReq, Error> {
        let Resolve { path, response_timeout, max_cm_retries, .. } = *asked;
        let header = check_path(&path, response_timeout, max_cm_retries)?;
        let header = IpHeader { source_port: asked.source_port, ..header };
        let private_data = words_behind_addresses(header, asked.private_data)?;
        self.service_id = ServiceId::new(asked.space, asked.destination_port);
        self.patience = patience(response_timeout, path.packet_lifetime.saturating_add(1));
        self.retries = max_cm_retries;
        Ok(SidrReq {
            request_id: self.local_id,
            pkey: param::PKEY,
            service_id: self.service_id.0,
            private_data,
        })
    }

    /// Asks once for the peer's presence; answers with the SIDR_REQ.
    pub(crate) fn who_is_there(&mut self, response_timeout: u8) -> Result<SidrReq, Error> {
        check_path(&self.path, response_timeout, 0)?;
        self.service_id = presence::SERVICE;
        self.patience = patience(response_timeout, self.path.packet_lifetime.saturating_add(1));
        self.retries = 0;
        Ok(SidrReq {
            request_id: self.local_id,
            pkey: param::PKEY,
            service_id: self.service_id.0,
            private_data: Presence::question(),
        })
    }

    /// The state of a connection that a REQ asks for, seen from here.
    pub(crate) fn asked(from: &Route, transaction_id: u64, req: &Req, ca_guid: u64) -> Self {
        // CM-8
        let hop_limit = match req.primary_hop_limit {
            0 | 1 => param::HOP_LIMIT,
            limit => limit,
        };
        let route = Route {
            traffic_class: req.primary_traffic_class,
            flow_label: req.primary_flow_label,
            hop_limit,
            sl: req.primary_sl,
            ..*from
        };
        let ack_timeout = req.primary_local_ack_timeout;
        let packet_lifetime = ack_timeout.saturating_sub(1);
        let path =
            Path { route, mtu: req.path_mtu, rate: req.primary_packet_rate, packet_lifetime };
        let response_timeout = req.local_cm_response_timeout.min(param::LONGEST_RESPONSE_TIMEOUT);
        let port = PortAttributes { ca_guid, ack_delay: 0, mtu: 0 };
        Self {
            owner: None,
            state: State::ReqReceived,
            role: Role::Passive,
            remote_id: Some(req.local_comm_id),
            transaction_id,
            service_id: ServiceId(req.service_id),
            transport: transport(req).unwrap_or(Transport::Rc),
            remote_qpn: req.local_qpn,
            remote_psn: req.starting_psn,
            responder_resources: req.initiator_depth,
            initiator_depth: req.responder_resources,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            peer_rnr_retry_count: req.rnr_retry_count,
            ack_timeout,
            alternate: req.alternate.exists(),
            // CM-51
            patience: patience(response_timeout, ack_timeout.min(param::LONGEST_ROUND_TRIP)),
            retries: req.max_cm_retries,
            ..Self::asking(ExchangeKind::Connection, Owner(0), path, port)
        }
    }

    /// The state of a resolution that a SIDR_REQ asks for, seen from here.
    pub(crate) fn asked_where(from: &Route, transaction_id: u64, req: &SidrReq) -> Self {
        let port = PortAttributes { ca_guid: 0, ack_delay: 0, mtu: 0 };
        Self {
            owner: None,
            state: State::SidrReqReceived,
            role: Role::Passive,
            remote_id: Some(req.request_id),
            transaction_id,
            service_id: ServiceId(req.service_id),
            ..Self::asking(ExchangeKind::Resolution, Owner(0), Path::along(*from, 0, 0), port)
        }
    }

    /// Takes the peer's parameters of its acceptance.
    pub(crate) fn take_reply(&mut self, rep: &Rep) {
        self.remote_id = Some(rep.local_comm_id);
        self.remote_qpn = rep.local_qpn;
        self.remote_psn = rep.starting_psn;
        self.responder_resources = rep.initiator_depth;
        self.initiator_depth = rep.responder_resources;
        self.rnr_retry_count = rep.rnr_retry_count;
        self.ack_timeout = param::ack_timeout(rep.target_ack_delay, self.path.packet_lifetime);
    }

    /// Takes the owner's parameters of its acceptance; answers with the REP.
    pub(crate) fn accept(
        &mut self,
        accept: &Accept<'_>,
        port: PortAttributes,
    ) -> Result<Rep, Error> {
        in_range("QPN", is_qpn(accept.qpn))?;
        in_range("RNR retry count", accept.rnr_retry_count <= 7)?;
        let private_data = words(accept.private_data)?;
        self.local_qpn = accept.qpn;
        self.responder_resources = accept.responder_resources;
        self.initiator_depth = accept.initiator_depth;
        self.peer_rnr_retry_count = accept.rnr_retry_count;
        Ok(Rep {
            local_comm_id: self.local_id,
            remote_comm_id: self.remote(),
            local_qpn: accept.qpn,
            starting_psn: self.local_psn,
            responder_resources: accept.responder_resources,
            initiator_depth: accept.initiator_depth,
            target_ack_delay: port.ack_delay.min(31),
            // CM-42
            failover_accepted: u8::from(self.alternate),
            end_to_end_flow_control: accept.flow_control,
            rnr_retry_count: accept.rnr_retry_count,
            srq: accept.srq,
            local_ca_guid: self.ca_guid,
            private_data,
            ..Rep::ZERO
        })
    }

    /// The RTU, with the consumer's words.
    pub(crate) fn rtu(&self, private_data: &[u8]) -> Result<Rtu, Error> {
        let private_data = words(private_data)?;
        Ok(Rtu { local_comm_id: self.local_id, remote_comm_id: self.remote(), private_data })
    }

    /// A REJ of the peer's last message.
    pub(crate) fn rej(
        &self,
        reason: RejectReason,
        info: &[u8],
        private_data: &[u8],
    ) -> Result<Rej, Error> {
        let info_length = u8::try_from(info.len()).unwrap_or(u8::MAX);
        Ok(Rej {
            local_comm_id: self.local_id,
            remote_comm_id: self.remote(),
            message: match self.state {
                State::ReqReceived => Rejected::REQ,
                State::RepReceived => Rejected::REP,
                _ => Rejected::OTHER,
            },
            info_length,
            reason,
            info: wire::padded(info).ok_or(Error::Range("reject information"))?,
            private_data: words(private_data)?,
        })
    }

    /// The MRA of the peer's last message.
    pub(crate) fn mra(&self) -> Mra {
        let message = if self.role == Role::Active { Rejected::REP } else { Rejected::REQ };
        Mra {
            local_comm_id: self.local_id,
            remote_comm_id: self.remote(),
            message,
            service_timeout: param::SERVICE_TIMEOUT,
            ..Mra::ZERO
        }
    }

    /// The DREQ, with the consumer's words.
    pub(crate) fn dreq(&self, private_data: &[u8]) -> Result<Dreq, Error> {
        Ok(Dreq {
            local_comm_id: self.local_id,
            remote_comm_id: self.remote(),
            remote_qpn: self.remote_qpn,
            private_data: words(private_data)?,
        })
    }

    /// The DREP, with the consumer's words.
    pub(crate) fn drep(&self, private_data: &[u8]) -> Result<Drep, Error> {
        let private_data = words(private_data)?;
        Ok(Drep { local_comm_id: self.local_id, remote_comm_id: self.remote(), private_data })
    }

    /// The SIDR_REP of a refusal.
    pub(crate) fn no_resolution(&self) -> SidrRep {
        SidrRep {
            request_id: self.remote(),
            status: SidrStatus::REJECTED,
            service_id: self.service_id.0,
            ..SidrRep::ZERO
        }
    }

    /// The message to the peer when this side stops waiting for an answer.
    // CM-28
    pub(crate) fn timed_out(&self) -> Option<Body> {
        let guid = self.ca_guid.to_be_bytes();
        self.rej(RejectReason::TIMEOUT, &guid, &[]).ok().map(Body::from)
    }

    /// The message to the peer when the owner destroys its identifier.
    // CM-41
    pub(crate) fn farewell(&self) -> Option<Body> {
        let body: Result<Body, Error> = match self.state {
            State::ReqSent | State::RepWait => return self.timed_out(),
            State::RepReceived | State::ReqReceived | State::RepSent | State::RtuWait => {
                self.rej(RejectReason::CONSUMER, &[], &[]).map(Body::from)
            }
            State::Established => self.dreq(&[]).map(Body::from),
            State::DreqReceived => self.drep(&[]).map(Body::from),
            State::SidrReqReceived => Ok(self.no_resolution().into()),
            State::DreqSent
            | State::TimeWait
            | State::Answered
            | State::SidrReqSent
            | State::Ended => return None,
        };
        body.ok()
    }

    /// The peer's number, or 0.
    fn remote(&self) -> u32 {
        self.remote_id.unwrap_or(0)
    }

    /// Whether a datagram that came this way is the peer's.
    // CM-9
    pub(crate) fn is_between(&self, route: &Route) -> bool {
        let own = &self.path.route;
        (own.local, own.remote) == (route.local, route.remote)
    }

    /// The peer's address and queue pair.
    pub(crate) fn far_end(&self) -> (Address, u32) {
        (self.path.route.remote, self.remote_qpn)
    }

    /// How long packets of the connection may be under way.
    // CM-40
    pub(crate) fn time_wait(&self) -> Duration {
        param::time(self.ack_timeout.min(param::LONGEST_TIME_WAIT))
    }
}

/// The transport service of the connection that a REQ asks for; `None` if it is not offered.
pub(crate) fn transport(req: &Req) -> Option<Transport> {
    match req.transport_service {
        TransportService::RC => Some(Transport::Rc),
        TransportService::UC => Some(Transport::Uc),
        _ => None,
    }
}
