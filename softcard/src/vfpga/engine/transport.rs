//! The queue engine's transport over the RoCE v2 stack: two vocabularies, one meaning.

use fpga_regs::engine::admin::{AdminStatus, CreateAh, CreateQp, PortAttributes};
use fpga_regs::engine::cqe::Status;
use fpga_regs::engine::event::QpEvent;
use fpga_regs::engine::key::Access;
use fpga_regs::engine::qp::{AttributeMask, Attributes, QpType};
use fpga_regs::engine::wqe::Datagram;
use queue_engine::{
    LocalGid, Message, Operation, ReceiveKind, ReceivedMessage, Transport, TransportError,
    TransportEvent,
};
use roce::{
    AccessFlags, Address, AddressVector, AsyncKind, DatagramRequest, Event, Gid, PathMtu,
    PostError, Psn, QpAttributes, Qpn, ReceiveStatus, SendRequest, SendStatus, Stack,
};

use super::CardEngine;
use crate::vfpga::{Ports, Service};

/// The message ports of a vFPGA, as the queue engine in it names them.
pub(super) struct RoceTransport<'a, 'b>(pub(super) &'a mut Ports<'b>);

const _: () = assert!(Stack::MESSAGE_BYTES <= queue_engine::TRANSPORT_MESSAGE_BYTES);
const _: () = assert!(Stack::DATAGRAM_BYTES <= queue_engine::TRANSPORT_MESSAGE_BYTES);

impl Transport for RoceTransport<'_, '_> {
    fn create_qp(&mut self, qpn: u32, command: &CreateQp) -> Result<(), AdminStatus> {
        let qpn = Qpn::new(qpn).ok_or(AdminStatus::NoResources)?;
        let service = service(command).ok_or(AdminStatus::Unsupported)?;
        self.0.create_qp(qpn, service, command.page).map_err(|error| admin_status(&error))
    }

    fn modify_qp(&mut self, now: u64, qpn: u32, a: &Attributes) -> Result<(), AdminStatus> {
        let qpn = Qpn::new(qpn).ok_or(AdminStatus::NotFound)?;
        let change = attributes(a).ok_or(AdminStatus::Invalid)?;
        self.0.modify_qp(now, qpn, &change).map_err(|error| {
            log::debug!("{error}");
            admin_status(&error)
        })
    }

    fn refuse(&mut self, _now: u64, qpn: u32) -> bool {
        Qpn::new(qpn).is_some_and(|qpn| self.0.refuse_unacknowledged(qpn))
    }

    fn query_qp(&self, qpn: u32) -> Option<Attributes> {
        let snapshot = self.0.query_qp(Qpn::new(qpn)?)?;
        let path = snapshot.path;
        Some(Attributes {
            state: snapshot.state.into(),
            current_state: snapshot.state.into(),
            path_mtu: snapshot.path_mtu.map_or(0, |mtu| mtu as u8),
            pkey_index: snapshot.pkey_index,
            port: 1,
            timeout: snapshot.timeout,
            dest_qpn: snapshot.dest_qpn.map_or(0, Qpn::value),
            rq_psn: snapshot.rq_psn.value(),
            sq_psn: snapshot.sq_psn.value(),
            max_rd_atomic: snapshot.max_rd_atomic,
            max_dest_rd_atomic: snapshot.max_dest_rd_atomic,
            min_rnr_timer: snapshot.min_rnr_timer,
            retry_count: snapshot.retry_cnt,
            rnr_retry: snapshot.rnr_retry,
            sq_draining: u8::from(snapshot.sq_draining),
            sgid_index: path.map_or(0, |path| path.sgid_index),
            hop_limit: path.map_or(0, |path| path.hop_limit),
            traffic_class: path.map_or(0, |path| path.traffic_class),
            sl: path.map_or(0, |path| path.sl),
            flow_label: path.map_or(0, |path| path.flow_label),
            dgid: path.map_or([0; 16], |path| path.dgid.to_bytes()),
            qkey: snapshot.qkey,
            ..Attributes::default()
        })
    }

    fn stands_in_line(&self, qpn: u32) -> bool {
        Qpn::new(qpn).is_some_and(|qpn| self.0.stands_in_line(qpn))
    }

    fn destroy_qp(&mut self, qpn: u32) {
        if let Some(qpn) = Qpn::new(qpn) {
            self.0.destroy_qp(qpn);
        }
    }

    fn create_ah(&mut self, now: u64, ah: u32, command: &CreateAh) -> Result<(), AdminStatus> {
        let vector = AddressVector {
            sgid_index: command.sgid_index,
            dgid: Gid::from_bytes(command.dgid),
            hop_limit: command.hop_limit,
            traffic_class: command.traffic_class,
            flow_label: command.flow_label,
            sl: command.sl,
        };
        self.0.create_ah(now, ah, command.page, &vector).map_err(|error| {
            log::debug!("{error}");
            admin_status(&error)
        })
    }

    fn destroy_ah(&mut self, ah: u32) {
        self.0.destroy_ah(ah);
    }

    fn query_ah(&self, ah: u32) -> Result<bool, AdminStatus> {
        self.0.is_ah_resolved(ah).ok_or(AdminStatus::NotFound)
    }

    fn set_member(
        &mut self,
        now: u64,
        qpn: u32,
        group: [u8; 16],
        member: bool,
    ) -> Result<(), AdminStatus> {
        let qpn = Qpn::new(qpn).ok_or(AdminStatus::NotFound)?;
        self.0.set_member(now, qpn, Gid::from_bytes(group), member).map_err(|error| {
            log::debug!("{error}");
            admin_status(&error)
        })
    }

    fn room(&self, qpn: u32) -> usize {
        Qpn::new(qpn).map_or(0, |qpn| self.0.send_room(qpn))
    }

    fn narrow(&mut self, qpn: u32) {
        if let Some(qpn) = Qpn::new(qpn) {
            self.0.narrow(qpn);
        }
    }

    fn submit(&mut self, now: u64, qpn: u32, message: &Message) -> Result<u64, TransportError> {
        let qpn = Qpn::new(qpn).ok_or(TransportError::WrongState)?;
        let posted = match message.operation {
            Operation::Datagram { datagram, immediate } => {
                let request = datagram_request(message, datagram, immediate);
                self.0.post_datagram(qpn, request.ok_or(TransportError::Unsupported)?)
            }
            _ => {
                let request = request(message).ok_or(TransportError::Unsupported)?;
                self.0.post_send(now, qpn, message.srqn, request)
            }
        };
        posted.map_err(|error| match error {
            PostError::Full(_) => TransportError::Full,
            PostError::State { .. } | PostError::UnknownQp(_) => TransportError::WrongState,
            PostError::TooLong(_) => TransportError::TooLong,
            PostError::NotOffered(_) | PostError::ReadsDisabled(_) | PostError::AtomicLength(_) => {
                TransportError::Unsupported
            }
        })
    }

    fn port(&self) -> Option<PortAttributes> {
        let mtu = self.0.path_mtu() as u8;
        Some(PortAttributes {
            mac: self.0.mac(),
            link_up: self.0.is_link_up().into(),
            max_mtu: mtu,
            active_mtu: mtu,
            ..PortAttributes::default()
        })
    }

    fn set_link(&mut self, up: bool) -> Result<(), AdminStatus> {
        self.0.set_link(up);
        Ok(())
    }

    fn set_gid(&mut self, index: u8, gid: Option<LocalGid>) -> Result<(), AdminStatus> {
        let address = |LocalGid { gid, vlan }| Address { gid: Gid::from_bytes(gid), vlan };
        self.0.set_gid(index, gid.map(address));
        Ok(())
    }

    fn counters(&self) -> Vec<u64> {
        self.0.counters().iter().map(|(_, value)| value).collect()
    }
}

/// The transport service of a QP, as the shell calls it.
fn service(command: &CreateQp) -> Option<Service> {
    Some(match command.kind {
        QpType::Rc => Service::Reliable,
        QpType::Uc => Service::Unreliable,
        QpType::Ud | QpType::Gsi => Service::Datagram,
        QpType::XrcSend => Service::XrcSend,
        QpType::XrcReceive => Service::XrcReceive { domain: command.xrcdn },
        _ => return None,
    })
}

/// Immediate data stands in entries in the order of its bytes on the wire, which are big-endian.
const fn immediate(entry: u32) -> u32 {
    entry.swap_bytes()
}

/// A datagram; `None` where there can be no such peer.
fn datagram_request(
    message: &Message,
    Datagram { ah, qpn, qkey }: Datagram,
    imm: Option<u32>,
) -> Option<DatagramRequest> {
    let (length, solicited) = (message.length, message.solicited);
    let (dest_qpn, imm) = (Qpn::destination(qpn)?, imm.map(immediate));
    Some(DatagramRequest { ah, dest_qpn, qkey, length, imm, solicited })
}

/// A message along a connection; `None` for a datagram.
fn request(message: &Message) -> Option<SendRequest> {
    let (operation, remote_va, rkey, imm) = match message.operation {
        Operation::Send { immediate: None } => (roce::Operation::Send, 0, 0, 0),
        Operation::SendInvalidate { rkey } => (roce::Operation::SendInvalidate, 0, 0, rkey),
        Operation::Send { immediate: Some(value) } => {
            (roce::Operation::SendImm, 0, 0, immediate(value))
        }
        Operation::Write { remote_address, rkey, immediate: None } => {
            (roce::Operation::Write, remote_address, rkey, 0)
        }
        Operation::Write { remote_address, rkey, immediate: Some(value) } => {
            (roce::Operation::WriteImm, remote_address, rkey, immediate(value))
        }
        Operation::Read { remote_address, rkey } => {
            (roce::Operation::Read, remote_address, rkey, 0)
        }
        Operation::Atomic { remote_address, rkey, operation } => {
            (roce::Operation::Atomic(operation), remote_address, rkey, 0)
        }
        Operation::Datagram { .. } => return None,
    };
    Some(SendRequest {
        operation,
        length: message.length,
        remote_va,
        rkey,
        imm,
        solicited: message.solicited,
        fence: message.fence,
    })
}

/// The attributes a mask names; `None` when one is out of its range, or not offered.
fn attributes(a: &Attributes) -> Option<QpAttributes> {
    use AttributeMask as M;
    let has = |bit| a.mask.contains(bit);
    let mut change = QpAttributes::default();
    if has(M::STATE) {
        change.state = Some(roce::QpState::from_contract(a.state)?);
    }
    // Frames have no tags here.
    if has(M::AV) {
        change.path = Some(AddressVector {
            sgid_index: a.sgid_index,
            dgid: Gid::from_bytes(a.dgid),
            hop_limit: a.hop_limit,
            traffic_class: a.traffic_class,
            flow_label: a.flow_label,
            sl: a.sl,
        });
    }
    if has(M::PATH_MTU) {
        change.path_mtu = Some(path_mtu(a.path_mtu)?);
    }
    if has(M::DEST_QPN) {
        change.dest_qpn = Some(Qpn::new(a.dest_qpn)?);
    }
    if has(M::RQ_PSN) {
        change.rq_psn = Some(Psn::new(a.rq_psn));
    }
    if has(M::SQ_PSN) {
        change.sq_psn = Some(Psn::new(a.sq_psn));
    }
    change.max_rd_atomic = has(M::MAX_RD_ATOMIC).then_some(a.max_rd_atomic);
    change.max_dest_rd_atomic = has(M::MAX_DEST_RD_ATOMIC).then_some(a.max_dest_rd_atomic);
    change.min_rnr_timer = has(M::MIN_RNR_TIMER).then_some(a.min_rnr_timer);
    change.timeout = has(M::TIMEOUT).then_some(a.timeout);
    change.retry_cnt = has(M::RETRY_COUNT).then_some(a.retry_count);
    change.rnr_retry = has(M::RNR_RETRY).then_some(a.rnr_retry);
    change.access = has(M::ACCESS).then(|| access(Access::from_bits_truncate(a.access)));
    change.pkey_index = has(M::PKEY_INDEX).then_some(a.pkey_index);
    change.qkey = has(M::QKEY).then_some(a.qkey);
    Some(change)
}

fn path_mtu(code: u8) -> Option<PathMtu> {
    PathMtu::ALL.into_iter().find(|mtu| *mtu as u8 == code)
}

fn access(access: Access) -> AccessFlags {
    let pairs = [
        (Access::REMOTE_WRITE, AccessFlags::REMOTE_WRITE),
        (Access::REMOTE_READ, AccessFlags::REMOTE_READ),
        (Access::REMOTE_ATOMIC, AccessFlags::REMOTE_ATOMIC),
    ];
    pairs.into_iter().filter(|(ours, _)| access.contains(*ours)).map(|(_, theirs)| theirs).collect()
}

fn admin_status(error: &roce::Error) -> AdminStatus {
    match error {
        roce::Error::QpExists(_)
        | roce::Error::TooManyQps(_)
        | roce::Error::AhExists(_)
        | roce::Error::TooManyGroups(_)
        | roce::Error::TooManyMembers { .. }
        | roce::Error::TooManyAhs(_) => AdminStatus::NoResources,
        roce::Error::UnknownQp(_) | roce::Error::NoMember { .. } => AdminStatus::NotFound,
        roce::Error::BadTransition { refused, .. } => (*refused).into(),
        _ => AdminStatus::Invalid,
    }
}

/// The completion status of a message that failed.
fn send_status(status: SendStatus) -> Status {
    match status {
        SendStatus::RemoteAccess => Status::RemoteAccess,
        SendStatus::RemoteInvalidRequest => Status::RemoteInvalidRequest,
        SendStatus::RemoteInvalidRdRequest => Status::RemoteInvalidRdRequest,
        SendStatus::RemoteOperation => Status::RemoteOperation,
        SendStatus::RetryExceeded => Status::RetryExceeded,
        SendStatus::RnrRetryExceeded => Status::RnrRetryExceeded,
        SendStatus::LocalProtection => Status::LocalProtection,
        SendStatus::BadResponse => Status::BadResponse,
    }
}

/// The completion status of a receive that failed.
fn receive_status(status: ReceiveStatus) -> Status {
    match status {
        ReceiveStatus::LocalLength => Status::LocalLength,
        ReceiveStatus::LocalProtection => Status::LocalProtection,
        ReceiveStatus::Flushed => Status::Flushed,
    }
}

/// The driver's name of something that happened to a QP.
fn qp_event(kind: AsyncKind) -> QpEvent {
    match kind {
        AsyncKind::CommunicationEstablished => QpEvent::CommunicationEstablished,
        AsyncKind::SqDrained => QpEvent::SqDrained,
        AsyncKind::RequestError => QpEvent::RequestError,
        AsyncKind::AccessError => QpEvent::AccessError,
        AsyncKind::Fatal => QpEvent::Fatal,
    }
}

/// What an event of the stack means to the engine of its QP. All that an event says has its name here,
/// so that nothing new is left out unnoticed: messages and receive requests end in their order, which
/// tells the engine which one is meant.
pub(super) fn transport_event(engine: &CardEngine, event: Event) -> Option<TransportEvent> {
    Some(match event {
        Event::SendsCompleted { qpn, through } => {
            let qpn = qpn.value();
            let oldest = engine.oldest_message(qpn)?;
            let count = through.checked_sub(oldest)?.saturating_add(1);
            TransportEvent::Completed { qpn, count }
        }
        Event::SendFailed { qpn, status, message: _ } => {
            TransportEvent::Failed { qpn: qpn.value(), status: send_status(status) }
        }
        Event::ReceiveCompleted { qpn, srqn, id, length, kind, imm, solicited, source_qpn } => {
            let received = ReceivedMessage {
                qpn: qpn.value(),
                length,
                kind: match kind {
                    roce::ReceiveKind::Send => ReceiveKind::Send,
                    roce::ReceiveKind::SendInvalidate { rkey } => {
                        ReceiveKind::SendInvalidate { rkey }
                    }
                    roce::ReceiveKind::Write => ReceiveKind::Write,
                },
                immediate: imm.map(immediate),
                solicited,
                source_qpn,
            };
            match srqn {
                None => TransportEvent::Received(received),
                Some(srqn) => TransportEvent::XrcReceived { srqn, id, received },
            }
        }
        Event::ReceiveFailed { qpn, srqn, id, status } => {
            let (qpn, status): (u32, Status) = (qpn.value(), receive_status(status));
            match srqn {
                None => TransportEvent::ReceiveFailed { qpn, status },
                Some(srqn) => TransportEvent::XrcReceiveFailed { srqn, id, qpn, status },
            }
        }
        Event::Async { qpn, kind } => {
            TransportEvent::Async { qpn: qpn.value(), event: qp_event(kind) }
        }
        Event::EnteredError { qpn } => TransportEvent::Error { qpn: qpn.value() },
    })
}
