//! The manager's events, as Linux' RDMA CM reports them to programs.

use std::net::SocketAddr;

use cm::wire::{RejectReason, SidrStatus};
use cm::{ConnectRequest, EventKind, Farewell, Id, ResolveRequest, Resolved, Route, Transport};
use fpga_regs::engine::qp::QpType;
use nix::errno::Errno;

use super::ConnectionManager;
use super::abi::event;
use super::answers::AddressHandle;
use super::channel::{Offered, Param, Served, UnreadEvent};
use super::identifier::{Device, Identifier, IdentifierState};
use super::network::Network;
use crate::quota::Resource;

/// The status of an end for lack of an answer.
pub(super) const TIMED_OUT: u32 = (Errno::ETIMEDOUT as i32).wrapping_neg() as u32;

impl ConnectionManager {
    /// Tells the program whose identifier an event is about.
    pub(super) fn told(&mut self, network: &dyn Network, event: cm::Event) {
        match event.kind {
            EventKind::ConnectRequest(request) => self.asked(event.id, *request),
            EventKind::ResolveRequest(request) => self.asked_where(event.id, *request),
            kind if self.hear_ping(event.owner, event.id, &kind) => {}
            kind => {
                let Some(id) = self.connections.get(&event.id).copied() else { return };
                self.told_of(network, id, kind);
            }
        }
    }

    fn told_of(&mut self, network: &dyn Network, id: u32, kind: EventKind) {
        self.outdate(id, None);
        let Some(it) = self.ids.get_mut(&id) else { return };
        let exits = matches!(kind, EventKind::TimeWaitExit);
        let expected = if exits { IdentifierState::Disconnect } else { IdentifierState::Connect };
        if it.state != expected {
            return;
        }
        let (number, status, param) = match kind {
            EventKind::ConnectResponse(it) => {
                let offered = Offered {
                    qpn: it.remote_qpn,
                    private_data: it.private_data,
                    responder_resources: it.responder_resources,
                    initiator_depth: it.initiator_depth,
                    flow_control: it.flow_control,
                    retry_count: 0,
                    rnr_retry_count: it.rnr_retry_count,
                    srq: it.srq,
                };
                (event::CONNECT_RESPONSE, 0, Param::Connection(offered))
            }
            EventKind::Established { .. } => (event::ESTABLISHED, 0, Param::None),
            EventKind::Rejected(rejection) => {
                let private_data = rejection.private_data;
                let words = Offered { private_data, ..Offered::default() };
                (event::REJECTED, u32::from(rejection.reason.0), Param::Connection(words))
            }
            EventKind::Unreachable => (event::UNREACHABLE, TIMED_OUT, Param::None),
            EventKind::Disconnected { by, .. } => {
                it.state = IdentifierState::Disconnect;
                let status = if by == Farewell::Silence { TIMED_OUT } else { 0 };
                (event::DISCONNECTED, status, Param::None)
            }
            EventKind::TimeWaitExit => (event::TIMEWAIT_EXIT, 0, Param::None),
            EventKind::Resolved(resolved) => resolution(network, it, *resolved),
            EventKind::ConnectRequest(_) | EventKind::ResolveRequest(_) => return,
        };
        self.tell_of(id, number, status, param);
    }

    fn asked(&mut self, connection: Id, request: ConnectRequest) {
        let kind = match request.transport {
            Transport::Rc => QpType::Rc,
            Transport::Uc => QpType::Uc,
        };
        let offered = Offered {
            qpn: request.remote_qpn,
            private_data: request.private_data,
            responder_resources: request.responder_resources,
            initiator_depth: request.initiator_depth,
            flow_control: request.flow_control,
            retry_count: request.retry_count,
            rnr_retry_count: request.rnr_retry_count,
            srq: request.srq,
        };
        let Some(id) = self.ask(
            connection,
            request.listener,
            &request.path.route,
            request.source_port,
            kind,
            Param::Connection(offered),
        ) else {
            return;
        };
        if let Some(it) = self.ids.get_mut(&id) {
            it.path = Some(request.path);
        }
    }

    fn asked_where(&mut self, connection: Id, request: ResolveRequest) {
        let served = Served { private_data: request.private_data, ..Served::default() };
        let (route, port) = (request.route, request.source_port);
        let param = Param::Datagrams(served);
        self.ask(connection, request.listener, &route, port, QpType::Ud, param);
    }

    /// Asks a listener's program, by a new identifier. Where it may not have one more, the request is refused.
    fn ask(
        &mut self,
        connection: Id,
        listener: cm::BindingId,
        route: &Route,
        port: u16,
        kind: QpType,
        param: Param,
    ) -> Option<u32> {
        let refuse = |it: &mut Self| {
            let reason = RejectReason::NO_RESOURCES;
            let _ = it.refuse(kind, connection, reason, &[]);
            let now = it.now();
            let _ = it.manager.destroy(now, connection);
        };
        let of = self.listeners.get(&listener).copied();
        let found = of.and_then(|of| Some((of, self.ids.get(&of)?)));
        let Some((of, it)) = found else {
            refuse(self);
            return None;
        };
        let (uid, key, space, reuse) = (it.uid, it.channel, it.space, it.reuse);
        let own_port = it.source.map_or(0, |source| source.port());
        if self.charge(key, Resource::CmIds).is_err() {
            refuse(self);
            return None;
        }
        let mut it = Identifier::new(key, 0, space, kind);
        it.state = IdentifierState::Connect;
        it.source = Some(SocketAddr::new(route.local.ip(), own_port));
        it.destination = Some(SocketAddr::new(route.remote.ip(), port));
        it.device = Some(Device { card: route.port, address: route.local });
        (it.connection, it.reuse, it.is_known) = (Some(connection), reuse, false);
        let about = self.keep(it);
        self.connections.insert(connection, about);
        let number = event::CONNECT_REQUEST;
        self.tell(UnreadEvent { of, join: None, uid, about, number, status: 0, param });
        Some(about)
    }
}

/// The event with the result of a resolution.
fn resolution(network: &dyn Network, it: &Identifier, resolved: Resolved) -> (u32, u32, Param) {
    let Resolved { status, qpn, qkey, private_data } = resolved;
    if status != SidrStatus::VALID {
        let words = Served { private_data, ..Served::default() };
        return (event::UNREACHABLE, u32::from(status.0), Param::Datagrams(words));
    }
    let index = it.device.and_then(|device| network.index(device.card, device.address));
    let to = it.path.zip(index).map(|(path, index)| AddressHandle::along(&path, index));
    (event::ESTABLISHED, 0, Param::Datagrams(Served { qpn, qkey, to, private_data }))
}
