//! The queue engine's transport over the RoCE v2 stack: two vocabularies, one meaning.

use fpga_regs::engine::admin::{AdminStatus, CreateAh, CreateQp, PortAttributes};
use fpga_regs::engine::cqe::Status;
use fpga_regs::engine::qp::Attributes;
use fpga_regs::engine::wqe::Datagram;
use queue_engine::{
    LocalGid, Message, ReceivedMessage, Transport, TransportError, TransportEvent, WqeOperation,
};
use roce::{
    Address, DatagramRequest, Event, Gid, Operation, PostError, QpAttributes, Qpn, SendRequest,
    Service, Stack,
};

use super::CardEngine;
use crate::vfpga::Ports;

/// The message ports of a vFPGA, as the queue engine in it names them.
pub(super) struct RoceTransport<'a, 'b>(pub(super) &'a mut Ports<'b>);

const _: () = assert!(Stack::MESSAGE_BYTES <= queue_engine::TRANSPORT_MESSAGE_BYTES);
const _: () = assert!(Stack::DATAGRAM_BYTES <= queue_engine::TRANSPORT_MESSAGE_BYTES);

impl Transport for RoceTransport<'_, '_> {
    fn create_qp(&mut self, qpn: u32, command: &CreateQp) -> Result<(), AdminStatus> {
        let qpn = Qpn::new(qpn).ok_or(AdminStatus::NoResources)?;
        let service =
            Service::from_contract(command.kind, command.xrcdn).ok_or(AdminStatus::Unsupported)?;
        self.0.create_qp(qpn, service, command.page).map_err(AdminStatus::from)
    }

    fn modify_qp(&mut self, now: u64, qpn: u32, a: &Attributes) -> Result<(), AdminStatus> {
        let qpn = Qpn::new(qpn).ok_or(AdminStatus::NotFound)?;
        let change = QpAttributes::from_contract(a).ok_or(AdminStatus::Invalid)?;
        self.0.modify_qp(now, qpn, &change).map_err(refused)
    }

    fn refuse(&mut self, _now: u64, qpn: u32) -> bool {
        Qpn::new(qpn).is_some_and(|qpn| self.0.refuse_unacknowledged(qpn))
    }

    fn query_qp(&self, qpn: u32) -> Option<Attributes> {
        self.0.query_qp(Qpn::new(qpn)?).map(Attributes::from)
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
        self.0.create_ah(now, ah, command.page, &command.into()).map_err(refused)
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
        self.0.set_member(now, qpn, Gid::from_bytes(group), member).map_err(refused)
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
            WqeOperation::Datagram { datagram, immediate } => {
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
        Some(self.0.attributes())
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
    const NOWHERE: (u64, u32) = (0, 0);
    let (operation, (remote_va, rkey), imm) = match message.operation {
        WqeOperation::Send { immediate: None } => (Operation::Send, NOWHERE, None),
        WqeOperation::Send { immediate } => (Operation::SendImm, NOWHERE, immediate),
        WqeOperation::SendInvalidate { rkey } => {
            (Operation::SendInvalidate { rkey }, NOWHERE, None)
        }
        WqeOperation::Write { remote_address, rkey, immediate } => {
            let has_immediate = immediate.is_some();
            let operation = if has_immediate { Operation::WriteImm } else { Operation::Write };
            (operation, (remote_address, rkey), immediate)
        }
        WqeOperation::Read { remote_address, rkey } => {
            (Operation::Read, (remote_address, rkey), None)
        }
        WqeOperation::Atomic { remote_address, rkey, operation } => {
            (Operation::Atomic(operation), (remote_address, rkey), None)
        }
        WqeOperation::Datagram { .. } => return None,
    };
    let imm = imm.map_or(0, immediate);
    let Message { length, solicited, fence, .. } = *message;
    Some(SendRequest { operation, length, remote_va, rkey, imm, solicited, fence })
}

/// The status that the driver gets of a refused change.
fn refused(error: roce::Error) -> AdminStatus {
    match error {
        // The remedy is up to the user who started balboad.
        roce::Error::Unprotected { .. } => log::warn!("{error}"),
        _ => log::debug!("{error}"),
    }
    error.into()
}

/// The event that an event of the stack is to the engine of its QP. All fields of an event are named here, for the
/// compiler to report a new one: messages and receive requests end in their order, which tells the engine which one is
/// meant.
pub(super) fn transport_event(engine: &CardEngine, event: Event) -> Option<TransportEvent> {
    Some(match event {
        Event::SendsCompleted { qpn, through } => {
            let qpn = qpn.value();
            let oldest = engine.oldest_message(qpn)?;
            let count = through.checked_sub(oldest)?.saturating_add(1);
            TransportEvent::Completed { qpn, count }
        }
        Event::SendFailed { qpn, status, message: _ } => {
            TransportEvent::Failed { qpn: qpn.value(), status: status.into() }
        }
        Event::ReceiveCompleted { qpn, srqn, id, length, kind, imm, solicited, source_qpn } => {
            let received = ReceivedMessage {
                qpn: qpn.value(),
                length,
                kind,
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
            let (qpn, status): (u32, Status) = (qpn.value(), status.into());
            match srqn {
                None => TransportEvent::ReceiveFailed { qpn, status },
                Some(srqn) => TransportEvent::XrcReceiveFailed { srqn, id, qpn, status },
            }
        }
        Event::Async { qpn, kind } => TransportEvent::Async { qpn: qpn.value(), event: kind },
        Event::EnteredError { qpn } => TransportEvent::Error { qpn: qpn.value() },
    })
}
