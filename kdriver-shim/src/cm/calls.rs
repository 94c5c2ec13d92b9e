//! Programs' calls on their identifiers, as Linux' RDMA CM executes them.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use cm::wire::{PathRecord, RejectReason, SidrStatus};
use cm::{
    Accept, Answer, Bind, Connect, Id, Offer, Owner, Path, PortSpace, QpAttributes, QpTarget,
    Resolve, Transport, param,
};
use fpga_regs::engine::qp::{QpState, QpType};
use nix::errno::Errno;

use super::abi::{self, Address, Command, ConnParam, event, option, query, space};
use super::answers::{AddressHandle, QpChange};
use super::channel::{Param, Served, UnreadEvent};
use super::identifier::{Device, Identifier, IdentifierState, in_kind, unspecified};
use super::network::{self, Network};
use super::{Asker, ConnectionManager, HasQp, Join, owner, refused, refused_by, take};
use crate::error::Error;
use crate::quota::Resource;

/// Ports below this are the superuser's.
const FIRST_USER_PORT: u16 = 1024;
/// Requests that wait for a listener that names no number, or a larger one.
const BACKLOG: u32 = 1024;
/// Unread events of an identifier, beyond which no command brings one about: all of them move, or end, with it at once.
pub(super) const MOST_UNREAD: usize = 4096;
/// Numbers of events that verbs have and NOTIFY takes.
const COMMUNICATION_ESTABLISHED: u32 = 4;
/// Groups are at no queue pair.
const GROUP_QPN: u32 = 0xff_ffff;

/// The client that makes a call, and the channel of it.
#[derive(Clone, Copy)]
pub(super) struct Caller<'a> {
    /// The channel.
    pub key: u64,
    /// The caller.
    pub asker: Asker,
    /// The channel that MIGRATE_ID names.
    pub from: Option<u64>,
    /// The check whether a queue pair is the caller's.
    pub has_qp: HasQp<'a>,
}

/// The two addresses of a connection that a program wants.
struct Flow {
    source: Address,
    destination: Address,
}

impl ConnectionManager {
    /// Does a command, and answers with its answer's bytes.
    pub(super) fn execute(
        &mut self,
        network: &mut dyn Network,
        caller: Caller<'_>,
        command: &Command<'_>,
        out: usize,
    ) -> Result<Vec<u8>, Error> {
        let key = caller.key;
        let number = |number: u32| number.to_ne_bytes().to_vec();
        let done = |()| Vec::new();
        match *command {
            Command::CreateId { uid, space, kind } => {
                self.create_id(key, uid, space, kind).map(number)
            }
            Command::DestroyId { id } => {
                let it = self.find(key, id)?;
                // They end with it. A thread that was woken for them gets a moment to read them: see the provider.
                if !it.unread.is_empty() && !std::mem::replace(&mut it.is_ending, true) {
                    return Err(refused(Errno::EAGAIN, "it has events that were not read"));
                }
                Ok(number(self.destroy(id)))
            }
            Command::Bind { id, address } => {
                let address = of_ip(address)?;
                self.bind(network, caller, id, address).map(done)
            }
            Command::ResolveAddr { id, source, destination, timeout_ms } => {
                let flow = Flow { source, destination };
                self.resolve_addr(network, caller, id, flow, timeout_ms).map(done)
            }
            Command::ResolveRoute { id } => self.resolve_route(network, key, id).map(done),
            Command::QueryRoute { id } => {
                let it = self.check(key, id)?;
                Ok(it.facts(guid(network, it)).route(out))
            }
            Command::Query { id, what } => {
                let it = self.check(key, id)?;
                let facts = it.facts(guid(network, it));
                let least = match what {
                    query::ADDR | query::GID => abi::length::QUERY_ADDR_LEAST,
                    query::PATH => abi::length::QUERY_PATH,
                    _ => return Err(refused(Errno::ENOSYS, "there is no such question")),
                };
                if out < least {
                    return Err(refused(Errno::ENOSPC, "the answer has no room"));
                }
                Ok(match what {
                    query::ADDR => facts.address(out),
                    query::GID => facts.gid(out),
                    _ => facts.paths(out),
                })
            }
            Command::Connect { id, param } => self.connect(caller, id, &param).map(done),
            Command::Listen { id, backlog } => self.listen(network, caller, id, backlog).map(done),
            Command::Accept { id, uid, param } => self.accept(caller, id, uid, param).map(done),
            Command::Reject { id, reason, private_data } => {
                self.reject(key, id, reason, private_data).map(done)
            }
            Command::Disconnect { id } => self.disconnect(key, id).map(done),
            Command::InitQpAttr { id, state } => self.init_qp_attr(network, key, id, state),
            Command::GetEvent => {
                let why = "events come by the channel's socket, and are not asked for";
                Err(refused(Errno::EOPNOTSUPP, why))
            }
            Command::SetOption { id, level, name, value } => {
                self.set_option(key, id, level, name, value).map(done)
            }
            Command::Notify { id, event } => self.notify(key, id, event).map(done),
            Command::Join { id, uid, group } => self.join(network, key, id, uid, group).map(number),
            Command::Leave { join } => self.leave(key, join).map(number),
            Command::MigrateId { id } => self.migrate(key, caller.from, id).map(number),
            Command::WriteEvent { id, event, status, argument } => {
                self.write_event(key, id, event, status, argument).map(done)
            }
        }
    }

    /// An identifier of a channel's, in any state. One of a request that was not read is not there yet.
    fn find(&mut self, key: u64, id: u32) -> Result<&mut Identifier, Error> {
        let it = self.ids.get_mut(&id).filter(|it| it.is_known).ok_or_else(no_identifier)?;
        if it.channel != key {
            return Err(refused(Errno::EINVAL, "the identifier is another channel's"));
        }
        Ok(it)
    }

    /// One whose card is not gone.
    pub(super) fn check(&mut self, key: u64, id: u32) -> Result<&mut Identifier, Error> {
        let it = self.find(key, id)?;
        match it.state {
            IdentifierState::Removed => Err(refused(Errno::EIO, "the card is gone")),
            _ => Ok(it),
        }
    }

    /// One that is in a state.
    fn in_state(
        &mut self,
        key: u64,
        id: u32,
        state: IdentifierState,
    ) -> Result<&mut Identifier, Error> {
        let it = self.check(key, id)?;
        if it.state == state {
            return Ok(it);
        }
        let why = format!("the identifier is in the state {:?}, not {state:?}", it.state);
        Err(refused(Errno::EINVAL, why))
    }

    /// One's connection, or resolution.
    fn connection(&mut self, key: u64, id: u32) -> Result<Id, Error> {
        let none = || refused(Errno::EINVAL, "the identifier has no connection");
        self.check(key, id)?.connection.ok_or_else(none)
    }

    fn create_id(&mut self, key: u64, uid: u64, space: u16, kind: QpType) -> Result<u32, Error> {
        let (space, kind) = match (space, kind) {
            (space::TCP, _) => (PortSpace::Tcp, QpType::Rc),
            (space::UDP, _) => (PortSpace::Udp, QpType::Ud),
            (space::IB, QpType::Rc | QpType::Uc | QpType::Ud) => (PortSpace::Ib, kind),
            (space::IB, _) => {
                let why = "queue pairs of that kind are not connected";
                return Err(refused(Errno::EPROTONOSUPPORT, why));
            }
            (space::IPOIB, _) => {
                let why = "IP over InfiniBand takes a subnet manager";
                return Err(refused(Errno::EPROTONOSUPPORT, why));
            }
            _ => return Err(refused(Errno::EINVAL, "there is no such port space")),
        };
        self.charge(key, Resource::CmIds)?;
        Ok(self.keep(Identifier::new(key, uid, space, kind)))
    }

    /// Keeps a new identifier, which was counted, under a number of its own.
    pub(super) fn keep(&mut self, it: Identifier) -> u32 {
        let id = self.numbers.next(u32::MAX, |number| self.ids.contains_key(&number));
        if let Some(channel) = self.channels.get_mut(&it.channel) {
            channel.ids.insert(id);
        }
        self.ids.insert(id, it);
        id
    }

    /// Destroys an identifier, with its objects and unread events; gives the number of its events that were read.
    pub(super) fn destroy(&mut self, id: u32) -> u32 {
        let mut left = vec![id];
        let mut reported = None;
        while let Some(id) = left.pop() {
            let Some(mut it) = self.ids.remove(&id) else { continue };
            self.end_era(it.told_ahead.map(|(client, _)| client));
            self.let_go(id, &mut it);
            for place in std::mem::take(&mut it.unread) {
                // A request that the program has not taken up goes with its listener.
                left.extend(self.forget_event(it.channel, place));
            }
            for join in std::mem::take(&mut it.joins) {
                self.joins.remove(&join);
                self.give(it.channel, Resource::CmJoins);
            }
            if let Some(channel) = self.channels.get_mut(&it.channel) {
                channel.ids.remove(&id);
            }
            self.give(it.channel, Resource::CmIds);
            // Identifiers that end with it were not told of anything.
            reported.get_or_insert(it.reported);
        }
        reported.unwrap_or(0)
    }

    /// Takes an event out of its channel; the identifier that it brought, if it is one of a request.
    fn forget_event(&mut self, key: u64, place: u64) -> Option<u32> {
        let event = self.take_out(key, place)?;
        self.settle(key, &event);
        (event.number == event::CONNECT_REQUEST).then_some(event.about)
    }

    /// An event is not waiting any more: it does not count.
    pub(super) fn settle(&mut self, key: u64, event: &UnreadEvent) {
        if is_own_doing(event.number) {
            self.give(key, Resource::CmEvents);
        }
    }

    pub(super) fn give(&mut self, key: u64, resource: Resource) {
        if let Some((client, _)) = self.channel(key) {
            client.usage.give(None, resource, 1);
        }
    }

    /// Gives back an identifier's objects of the manager.
    fn let_go(&mut self, id: u32, it: &mut Identifier) {
        self.end_search(id, it);
        let now = self.now();
        if let Some(connection) = it.connection.take() {
            self.connections.remove(&connection);
            // A connection may be gone by itself.
            let _ = self.manager.destroy(now, connection);
        }
        if let Some(binding) = it.binding.take() {
            self.listeners.remove(&binding);
            let _ = self.manager.unbind(binding);
        }
        log::trace!("connection manager: identifier {id} lets go");
    }

    /// An identifier's card is gone.
    pub(super) fn remove(&mut self, id: u32) {
        self.outdate(id, None);
        let Some(mut it) = self.ids.remove(&id) else { return };
        self.let_go(id, &mut it);
        it.state = IdentifierState::Removed;
        let (uid, param) = (it.uid, Param::None);
        self.ids.insert(id, it);
        if uid != 0 {
            let number = event::DEVICE_REMOVAL;
            self.tell(UnreadEvent { of: id, join: None, uid, about: id, number, status: 0, param });
        }
    }

    fn bind(
        &mut self,
        network: &dyn Network,
        caller: Caller<'_>,
        id: u32,
        address: SocketAddr,
    ) -> Result<(), Error> {
        let it = self.in_state(caller.key, id, IdentifierState::Idle)?;
        let ip = address.ip().to_canonical();
        if network::is_link_local(ip) && scope(address) == 0 {
            return Err(refused(Errno::EINVAL, "a link-local address without a scope"));
        }
        // As in the kernel, the loopback address stands for all: libfabric looks for its devices by it.
        let any = ip.is_unspecified() || ip.is_loopback();
        let device = if any {
            None
        } else {
            let none = || refused(Errno::EADDRNOTAVAIL, format!("{ip} is no address of a card"));
            let local = network::owner(&network.addresses(), ip).ok_or_else(none)?;
            Some(Device { card: local.card, address: local.address })
        };
        if (1..FIRST_USER_PORT).contains(&address.port()) && caller.asker.uid != 0 {
            let why = format!("port {} is the superuser's", address.port());
            return Err(refused(Errno::EACCES, why));
        }
        let wanted = Bind {
            space: it.space,
            address: if any { unspecified(address).ip() } else { address.ip() },
            vlan: device.map_or(0, |device| device.address.vlan),
            port: address.port(),
            reuse: it.reuse,
            only_ipv6: it.only_family,
        };
        let owner = self.owner_of(caller.key)?;
        let (binding, port) = self.manager.bind(owner, wanted).map_err(refused_by)?;
        let it = self.find(caller.key, id)?;
        let mut source = address;
        source.set_port(port);
        it.source = Some(source);
        it.destination = Some(unspecified(address));
        (it.device, it.binding, it.state) = (device, Some(binding), IdentifierState::Bound);
        Ok(())
    }

    fn resolve_addr(
        &mut self,
        network: &dyn Network,
        caller: Caller<'_>,
        id: u32,
        Flow { source, destination }: Flow,
        timeout_ms: u32,
    ) -> Result<(), Error> {
        let to = of_ip(destination)?;
        if self.check(caller.key, id)?.state == IdentifierState::Idle {
            let source = match source {
                Address::None => unspecified(to),
                given => of_ip(given)?,
            };
            self.bind(network, caller, id, source)?;
        }
        let it = self.in_state(caller.key, id, IdentifierState::Bound)?;
        if it.source.is_none_or(|source| source.is_ipv4() != to.is_ipv4()) {
            return Err(refused(Errno::EINVAL, "source and destination are of two kinds"));
        }
        let ip = to.ip().to_canonical();
        let is_own = ip.is_unspecified() || ip.is_loopback();
        let found = |local: network::Local| Device { card: local.card, address: local.address };
        let device = match it.device {
            Some(device) => device,
            None if is_own => {
                let none = || refused(Errno::ENODEV, format!("no card has an address like {ip}"));
                network::first(&network.addresses(), ip).map(found).ok_or_else(none)?
            }
            None => {
                let none = || refused(Errno::ENETUNREACH, format!("{ip} is in no card's network"));
                network::route(&network.addresses(), ip).map(found).ok_or_else(none)?
            }
        };
        // A request to the loopback address is for the card itself, which is known by an address of its own.
        let to = if is_own { in_kind(device.address.gid, to) } else { to };
        self.charge_event(caller.key, id)?;
        self.find(caller.key, id)?.destination = Some(to);
        self.search(network, id, device, timeout_ms);
        Ok(())
    }

    /// Counts a resource of a channel's client, of which it may have a limited number; an event, where a command brings
    /// one about.
    pub(super) fn charge(&mut self, key: u64, resource: Resource) -> Result<(), Error> {
        let (client, _) = self.channel(key).ok_or_else(no_channel)?;
        take(&mut client.usage, resource)
    }

    /// Counts an event of an identifier's that a command brings about.
    fn charge_event(&mut self, key: u64, id: u32) -> Result<(), Error> {
        let unread = self.find(key, id)?.unread.len();
        if unread >= MOST_UNREAD {
            let why = format!("{unread} events of the identifier wait to be read");
            return Err(refused(Errno::ENOMEM, why));
        }
        self.charge(key, Resource::CmEvents)
    }

    /// The manager's owner for a channel's client.
    fn owner_of(&self, key: u64) -> Result<Owner, Error> {
        Ok(owner(self.channels.get(&key).ok_or_else(no_channel)?.client))
    }

    fn resolve_route(&mut self, network: &mut dyn Network, key: u64, id: u32) -> Result<(), Error> {
        let gone = || refused(Errno::ENODEV, "the card is gone");
        let it = self.in_state(key, id, IdentifierState::AddrResolved)?;
        let (device, to) = it.device.zip(it.destination).ok_or_else(gone)?;
        let port = network.port(device.card).ok_or_else(gone)?;
        let mtu = network.path_mtu(device.card, device.address.ip(), to.ip()).ok_or_else(gone)?;
        let path = it.path_along(mtu, network::rate_code(port.rate)).ok_or_else(gone)?;
        self.have_path(key, id, path)
    }

    fn have_path(&mut self, key: u64, id: u32, path: Path) -> Result<(), Error> {
        self.charge_event(key, id)?;
        let it = self.find(key, id)?;
        (it.path, it.state) = (Some(path), IdentifierState::RouteResolved);
        self.tell_of(id, event::ROUTE_RESOLVED, 0, Param::None);
        Ok(())
    }

    /// Checks that a queue pair that is named to a peer is one of the caller's, or of the channel's client, on the
    /// identifier's card. By naming another client's, a program would have the peer end that one's connection, for the
    /// peer takes a queue pair that connects again to have lost the connection before.
    fn check_qp(&self, caller: Caller<'_>, id: u32, qpn: u32) -> Result<(), Error> {
        let card = self.ids.get(&id).and_then(|it| it.device).map(|device| device.card);
        let owner = self.channels.get(&caller.key).map(|channel| channel.client);
        let has = |client| card.is_some_and(|card| (caller.has_qp)(client, card, qpn));
        if has(caller.asker.client) || owner.is_some_and(has) {
            return Ok(());
        }
        let why = format!("QP {qpn:#x} is none that this process has on the identifier's card");
        Err(refused(Errno::EINVAL, why))
    }

    fn connect(&mut self, caller: Caller<'_>, id: u32, asked: &ConnParam<'_>) -> Result<(), Error> {
        let key = caller.key;
        let it = self.in_state(key, id, IdentifierState::RouteResolved)?;
        let (Some(path), Some(source), Some(destination)) = (it.path, it.source, it.destination)
        else {
            return Err(refused(Errno::EINVAL, "the identifier has no path"));
        };
        let (space, kind) = (it.space, it.kind);
        let (source_port, destination_port) = (source.port(), destination.port());
        let (response_timeout, max_cm_retries) = (param::RESPONSE_TIMEOUT, param::MAX_CM_RETRIES);
        let owner = self.owner_of(key)?;
        let now = self.now();
        let private_data = asked.private_data;
        let asks = if kind == QpType::Ud {
            let wanted = Resolve {
                path,
                space,
                source_port,
                destination_port,
                response_timeout,
                max_cm_retries,
                private_data,
            };
            self.manager.resolve(now, owner, &wanted)
        } else {
            self.check_qp(caller, id, asked.qpn)?;
            let wanted = Connect {
                path,
                space,
                source_port,
                destination_port,
                transport: if kind == QpType::Uc { Transport::Uc } else { Transport::Rc },
                qpn: asked.qpn,
                srq: asked.srq,
                responder_resources: asked.responder_resources,
                initiator_depth: asked.initiator_depth,
                flow_control: asked.flow_control,
                retry_count: asked.retry_count.min(7),
                rnr_retry_count: asked.rnr_retry_count.min(7),
                response_timeout,
                max_cm_retries,
                private_data,
            };
            self.manager.connect(now, owner, &wanted)
        };
        let connection = asks.map_err(refused_by)?;
        self.connections.insert(connection, id);
        let it = self.find(key, id)?;
        (it.connection, it.state) = (Some(connection), IdentifierState::Connect);
        Ok(())
    }

    fn listen(
        &mut self,
        network: &dyn Network,
        caller: Caller<'_>,
        id: u32,
        backlog: u32,
    ) -> Result<(), Error> {
        if self.check(caller.key, id)?.state == IdentifierState::Idle {
            let any = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0);
            self.bind(network, caller, id, any)?;
        }
        let it = self.in_state(caller.key, id, IdentifierState::Bound)?;
        let none = || refused(Errno::EINVAL, "the identifier has no port");
        let (binding, kind) = (it.binding.ok_or_else(none)?, it.kind);
        let offer = match kind {
            QpType::Ud => Offer::Datagrams,
            QpType::Uc => Offer::Connections(Transport::Uc),
            _ => Offer::Connections(Transport::Rc),
        };
        let backlog = if (1..BACKLOG).contains(&backlog) { backlog } else { BACKLOG };
        let backlog = usize::try_from(backlog).unwrap_or(usize::MAX);
        self.manager.listen(binding, offer, backlog).map_err(refused_by)?;
        self.listeners.insert(binding, id);
        self.find(caller.key, id)?.state = IdentifierState::Listen;
        Ok(())
    }

    fn accept(
        &mut self,
        caller: Caller<'_>,
        id: u32,
        uid: u64,
        param: Option<ConnParam<'_>>,
    ) -> Result<(), Error> {
        let key = caller.key;
        let kind = self.in_state(key, id, IdentifierState::Connect)?.kind;
        let connection = self.connection(key, id)?;
        let named = param.map_or(Ok(()), |it| self.check_qp(caller, id, it.qpn));
        let outcome = named.and_then(|()| self.answer(kind, connection, param).map_err(refused_by));
        if outcome.is_err() {
            // The refusal ends the peer's wait. A connection that is over cannot be refused, and need not be.
            let _ = self.refuse(kind, connection, RejectReason::CONSUMER, &[]);
            return outcome;
        }
        if param.is_some() {
            self.find(key, id)?.uid = uid;
        }
        Ok(())
    }

    /// Accepts a peer's request; without parameters tells the peer that this side, which asked, is ready.
    fn answer(
        &mut self,
        kind: QpType,
        connection: Id,
        param: Option<ConnParam<'_>>,
    ) -> Result<(), cm::Error> {
        let now = self.now();
        match param {
            _ if kind == QpType::Ud => {
                let (qpn, private_data) =
                    param.map_or((0, &[][..]), |it| (it.qpn, it.private_data));
                let (status, qkey) = (SidrStatus::VALID, param::UDP_QKEY);
                self.manager.answer(now, connection, &Answer { status, qpn, qkey, private_data })
            }
            None => self.manager.ready(now, connection, &[]),
            Some(it) => {
                let accept = Accept {
                    qpn: it.qpn,
                    srq: it.srq,
                    responder_resources: it.responder_resources,
                    initiator_depth: it.initiator_depth,
                    flow_control: it.flow_control,
                    rnr_retry_count: it.rnr_retry_count.min(7),
                    private_data: it.private_data,
                };
                self.manager.accept(now, connection, &accept)
            }
        }
    }

    fn reject(&mut self, key: u64, id: u32, reason: u8, private_data: &[u8]) -> Result<(), Error> {
        let reason = match RejectReason(reason.into()) {
            RejectReason(0) => RejectReason::CONSUMER,
            reason @ (RejectReason::CONSUMER | RejectReason::VENDOR_OPTION) => reason,
            _ => return Err(refused(Errno::EINVAL, "no program refuses for that reason")),
        };
        let connection = self.connection(key, id)?;
        let kind = self.find(key, id)?.kind;
        self.refuse(kind, connection, reason, private_data).map_err(refused_by)
    }

    pub(super) fn refuse(
        &mut self,
        kind: QpType,
        connection: Id,
        reason: RejectReason,
        private_data: &[u8],
    ) -> Result<(), cm::Error> {
        let now = self.now();
        if kind == QpType::Ud {
            let (status, qpn, qkey) = (SidrStatus::REJECTED, 0, 0);
            return self.manager.answer(
                now,
                connection,
                &Answer { status, qpn, qkey, private_data },
            );
        }
        self.manager.reject(now, connection, reason, &[], private_data)
    }

    fn disconnect(&mut self, key: u64, id: u32) -> Result<(), Error> {
        let connection = self.connection(key, id)?;
        let now = self.now();
        // As with Linux, it is no error if it is over already.
        let _ = self.manager.disconnect(now, connection, &[]);
        Ok(())
    }

    pub(super) fn init_qp_attr(
        &mut self,
        network: &dyn Network,
        key: u64,
        id: u32,
        state: u32,
    ) -> Result<Vec<u8>, Error> {
        self.check(key, id)?;
        self.qp_change(network, id, state)
    }

    /// The attributes that a queue pair is to be changed to, whether its program knows of the identifier already or
    /// not.
    pub(super) fn qp_change(
        &self,
        network: &dyn Network,
        id: u32,
        state: u32,
    ) -> Result<Vec<u8>, Error> {
        let it = self.ids.get(&id).ok_or_else(no_identifier)?;
        let (Some(device), kind, connection) = (it.device, it.kind, it.connection) else {
            return Err(refused(Errno::EINVAL, "the identifier has no card"));
        };
        let chosen = it.ack_timeout;
        let state = u8::try_from(state).ok().filter(|state| *state <= QpState::Err.0);
        let none = || refused(Errno::EINVAL, "queue pairs have no such state");
        let state = QpState(state.ok_or_else(none)?);
        let change = QpChange::to(state);
        let Some(connection) = connection.filter(|_| kind != QpType::Ud) else {
            return Ok(change.unconnected(kind, param::UDP_QKEY).encode());
        };
        let target = match state {
            QpState::Init => QpTarget::Init,
            QpState::Rtr => QpTarget::Rtr,
            QpState::Rts => QpTarget::Rts,
            _ => return Err(refused(Errno::EINVAL, "a connection says nothing of that state")),
        };
        let mut attributes = self.manager.qp_attributes(connection, target).map_err(refused_by)?;
        // As with Linux, the timeout that the program chose holds for this side, against the messages' one.
        if let (QpAttributes::Rts { timeout, .. }, Some(chosen)) = (&mut attributes, chosen) {
            *timeout = chosen;
        }
        let gone = || refused(Errno::EINVAL, "the card has the connection's address no more");
        let index = network.index(device.card, device.address).ok_or_else(gone)?;
        Ok(change.connected(&attributes, index).encode())
    }

    fn set_option(
        &mut self,
        key: u64,
        id: u32,
        level: u32,
        name: u32,
        value: &[u8],
    ) -> Result<(), Error> {
        let it = self.check(key, id)?;
        let invalid = |why| refused(Errno::EINVAL, why);
        let byte = value.first().copied().filter(|_| value.len() == 1);
        let flag = value.try_into().ok().map(|it| i32::from_ne_bytes(it) != 0);
        let size = "the option's value is of another size";
        match (level, name) {
            (option::LEVEL_ID, option::ID_TOS) => it.tos = byte.ok_or_else(|| invalid(size))?,
            (option::LEVEL_ID, option::ID_REUSEADDR) => {
                let reuse = flag.ok_or_else(|| invalid(size))?;
                let late = if reuse {
                    it.state == IdentifierState::Listen
                } else {
                    it.state != IdentifierState::Idle
                };
                if late {
                    return Err(invalid("it has its port already"));
                }
                it.reuse = reuse;
                return self.share(key, id);
            }
            (option::LEVEL_ID, option::ID_AFONLY) => {
                let only = flag.ok_or_else(|| invalid(size))?;
                if !matches!(it.state, IdentifierState::Idle | IdentifierState::Bound) {
                    return Err(invalid("it has its port already"));
                }
                it.only_family = only;
                return self.share(key, id);
            }
            (option::LEVEL_ID, option::ID_ACK_TIMEOUT) => {
                let code = byte.ok_or_else(|| invalid(size))?;
                if it.kind != QpType::Rc {
                    return Err(invalid("only Reliable Connections are acknowledged"));
                }
                it.ack_timeout = Some(code & 0x1f);
            }
            (option::LEVEL_IB, option::IB_PATH) => return self.set_path(key, id, value),
            _ => return Err(refused(Errno::ENOSYS, "there is no such option")),
        }
        Ok(())
    }

    /// Applies an identifier's options to its binding.
    fn share(&mut self, key: u64, id: u32) -> Result<(), Error> {
        let it = self.find(key, id)?;
        let (binding, reuse, only_ipv6) = (it.binding, it.reuse, it.only_family);
        let shared = binding.map(|binding| self.manager.share(binding, reuse, only_ipv6));
        shared.unwrap_or(Ok(())).map_err(refused_by)
    }

    /// Takes a path that a program found out by itself: one between the addresses that it resolved.
    fn set_path(&mut self, key: u64, id: u32, value: &[u8]) -> Result<(), Error> {
        let invalid = |why| refused(Errno::EINVAL, why);
        let mut records = value.chunks_exact(abi::length::PATH);
        let whole = records.remainder().is_empty();
        let flags = abi::PATH_FLAGS.to_ne_bytes();
        let record = records.find(|record| record.starts_with(&flags));
        let bytes = record.filter(|_| whole).and_then(|it| it.last_chunk::<64>());
        let record = PathRecord::load(bytes.ok_or_else(|| invalid("there is no path in it"))?);
        let it = self.in_state(key, id, IdentifierState::AddrResolved)?;
        let path = it.path_along(record.mtu, record.rate).ok_or_else(|| invalid("no address"))?;
        let route = path.route;
        if (record.sgid, record.dgid) != (route.local.gid, route.remote.gid) {
            return Err(invalid("the path is not between the addresses of the identifier"));
        }
        let route = cm::Route {
            traffic_class: record.traffic_class,
            flow_label: record.flow_label,
            hop_limit: record.hop_limit,
            sl: record.sl,
            ..route
        };
        let packet_lifetime = record.packet_lifetime.min(31);
        self.have_path(key, id, Path { route, packet_lifetime, ..path })
    }

    fn notify(&mut self, key: u64, id: u32, event: u32) -> Result<(), Error> {
        let connection = self.connection(key, id)?;
        if event != COMMUNICATION_ESTABLISHED {
            return Err(refused(Errno::EINVAL, "there is nothing to be told of by that event"));
        }
        let now = self.now();
        if self.manager.state(connection) == Some(cm::State::Established) {
            return Err(refused(Errno::EISCONN, "the connection is there already"));
        }
        self.manager.communication_established(now, connection).map_err(refused_by)
    }

    /// Queues an event that a program reports to itself: its own, or one that its librdmacm has found.
    fn write_event(
        &mut self,
        key: u64,
        id: u32,
        event: u32,
        status: u32,
        argument: u64,
    ) -> Result<(), Error> {
        if !matches!(event, event::USER | event::INTERNAL) {
            return Err(refused(Errno::EINVAL, "programs write no events of that number"));
        }
        self.find(key, id)?;
        self.charge_event(key, id)?;
        self.tell_of(id, event, status, Param::Argument(argument));
        Ok(())
    }

    fn join(
        &mut self,
        network: &mut dyn Network,
        key: u64,
        id: u32,
        uid: u64,
        group: Address,
    ) -> Result<u32, Error> {
        let invalid = |why| refused(Errno::EINVAL, why);
        let group = of_ip(group)?;
        let it = self.check(key, id)?;
        let is_bound = matches!(it.state, IdentifierState::Bound | IdentifierState::AddrResolved);
        let device = it.device.filter(|_| is_bound && it.kind == QpType::Ud);
        let device = device.ok_or_else(|| invalid("only datagrams of a card's go to groups"))?;
        if !group.ip().to_canonical().is_multicast() {
            return Err(invalid("the address is no group's"));
        }
        let gone = || refused(Errno::ENODEV, "the card, or its address, is gone");
        let sgid_index = network.index(device.card, device.address).ok_or_else(gone)?;
        let rate = network::rate_code(network.port(device.card).ok_or_else(gone)?.rate);
        let to = AddressHandle {
            dgid: abi::gid(group.ip()),
            sgid_index,
            flow_label: 0,
            hop_limit: param::HOP_LIMIT,
            traffic_class: it.tos,
            sl: 0,
            rate,
        };
        self.charge_event(key, id)?;
        if let Err(error) = self.charge(key, Resource::CmJoins) {
            self.give(key, Resource::CmEvents);
            return Err(error);
        }
        let join = self.join_numbers.next(u32::MAX, |number| self.joins.contains_key(&number));
        self.joins.insert(join, Join { of: id, reported: 0, unread: None });
        self.find(key, id)?.joins.insert(join);
        let served =
            Served { qpn: GROUP_QPN, qkey: param::UDP_QKEY, to: Some(to), ..Served::default() };
        self.tell(UnreadEvent {
            of: id,
            join: Some(join),
            uid,
            about: join,
            number: event::MULTICAST_JOIN,
            status: 0,
            param: Param::Datagrams(served),
        });
        Ok(join)
    }

    fn leave(&mut self, key: u64, join: u32) -> Result<u32, Error> {
        let none = || refused(Errno::ENOENT, "no such join");
        let of = self.joins.get(&join).ok_or_else(none)?.of;
        let it = self.find(key, of)?;
        it.joins.remove(&join);
        let left = self.joins.remove(&join).ok_or_else(none)?;
        if let Some(place) = left.unread {
            if let Some(it) = self.ids.get_mut(&of) {
                it.unread.retain(|unread| *unread != place);
            }
            self.forget_event(key, place);
        }
        self.give(key, Resource::CmJoins);
        Ok(left.reported)
    }

    /// Moves an identifier to another channel of the same client's, with its unread events.
    fn migrate(&mut self, key: u64, from: Option<u64>, id: u32) -> Result<u32, Error> {
        let from = from.ok_or_else(|| refused(Errno::ENOENT, "no channel to move it from"))?;
        let it = self.check(from, id)?;
        if from == key {
            return Ok(it.reported);
        }
        let [own, other] = [key, from].map(|key| self.channels.get(&key).map(|it| it.client));
        if own != other {
            let why = "the identifier is of a channel that another process opened";
            return Err(refused(Errno::EINVAL, why));
        }
        let it = self.check(from, id)?;
        it.channel = key;
        let (reported, unread) = (it.reported, std::mem::take(&mut it.unread));
        self.move_to(id, from, key);
        let mut places = VecDeque::new();
        for place in unread {
            let Some(event) = self.take_out(from, place) else { continue };
            if event.number == event::CONNECT_REQUEST {
                self.move_to(event.about, from, key);
            }
            let join = event.join;
            let Some(channel) = self.channels.get_mut(&key) else { continue };
            let place = channel.push(event);
            if let Some(join) = join.and_then(|join| self.joins.get_mut(&join)) {
                join.unread = Some(place);
            }
            places.push_back(place);
        }
        self.unsent.insert(key);
        self.find(key, id)?.unread = places;
        Ok(reported)
    }

    fn move_to(&mut self, id: u32, from: u64, to: u64) {
        if let Some(it) = self.ids.get_mut(&id) {
            it.channel = to;
        }
        if let Some(channel) = self.channels.get_mut(&from) {
            channel.ids.remove(&id);
        }
        if let Some(channel) = self.channels.get_mut(&to) {
            channel.ids.insert(id);
        }
    }

    /// Tells of an identifier, if its program has said by which number it knows it.
    pub(super) fn tell_of(&mut self, id: u32, number: u32, status: u32, param: Param) {
        let Some(it) = self.ids.get(&id) else { return };
        let (uid, key) = (it.uid, it.channel);
        let event = UnreadEvent { of: id, join: None, uid, about: id, number, status, param };
        if uid == 0 {
            return self.settle(key, &event);
        }
        self.tell(event);
    }
}

/// Whether an event is one that a command of its own program's brings about, so that there may be any number.
fn is_own_doing(number: u32) -> bool {
    matches!(
        number,
        event::ADDR_RESOLVED
            | event::ADDR_ERROR
            | event::ROUTE_RESOLVED
            | event::MULTICAST_JOIN
            | event::USER
            | event::INTERNAL
    )
}

fn no_identifier() -> Error {
    refused(Errno::ENOENT, "no such identifier")
}

fn no_channel() -> Error {
    refused(Errno::EBADF, "no such channel")
}

/// An address of IP; of others, Linux' error for those that it does not know.
fn of_ip(address: Address) -> Result<SocketAddr, Error> {
    match address {
        Address::Ip(address) => Ok(address),
        Address::Infiniband => {
            Err(refused(Errno::EAFNOSUPPORT, "addresses of InfiniBand's own are not offered"))
        }
        Address::None | Address::Other => {
            Err(refused(Errno::EAFNOSUPPORT, "the address is of a family that is not offered"))
        }
    }
}

fn scope(address: SocketAddr) -> u32 {
    match address {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(address) => address.scope_id(),
    }
}

/// The GUID of an identifier's card.
pub(super) fn guid(network: &dyn Network, it: &Identifier) -> Option<u64> {
    it.device.and_then(|device| network.guid(device.card))
}
