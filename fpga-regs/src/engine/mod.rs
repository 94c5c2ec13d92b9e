//! The verbs queue engine (VQE), contract version 1.
//!
//! One engine sits in one vFPGA's 64 KiB user CSR window: page 0 is its [`window`] of control
//! registers, pages 1 to 15 are doorbell pages. Rings live in host memory. The driver talks to the
//! engine by [`admin`] commands and hears from it by [`event`]s; programs post [`wqe`]s, ring
//! [`doorbell`]s and poll [`cqe`]s.

pub mod admin;
pub mod counters;
pub mod cqe;
pub mod doorbell;
pub mod event;
pub mod key;
pub mod message;
pub mod qp;
pub mod transition;
pub mod tunnel;
pub mod window;
pub mod wqe;

use crate::{Codes, Constant, Describe, Layout, RegisterBlock, Word};

/// The engine's blocks of registers.
pub const BLOCKS: &[&RegisterBlock] = &[window::WINDOW];

/// Every entry of the rings and every command, in the order of the documents.
pub const LAYOUTS: &[&Layout] = &[
    doorbell::ProducerRecord::LAYOUT,
    doorbell::CompletionRecord::LAYOUT,
    wqe::SendHeader::LAYOUT,
    wqe::Sge::LAYOUT,
    wqe::Datagram::LAYOUT,
    wqe::Atomic::LAYOUT,
    wqe::Bind::LAYOUT,
    wqe::ReceiveHeader::LAYOUT,
    cqe::Cqe::LAYOUT,
    event::Event::LAYOUT,
    admin::Header::LAYOUT,
    admin::Completion::LAYOUT,
    admin::CreateCq::LAYOUT,
    admin::ResizeCq::LAYOUT,
    admin::ModerateCq::LAYOUT,
    admin::CreateRq::LAYOUT,
    admin::ModifyRq::LAYOUT,
    admin::CreateQp::LAYOUT,
    admin::ModifyQp::LAYOUT,
    qp::Attributes::LAYOUT,
    admin::CreateKey::LAYOUT,
    admin::ModifyKey::LAYOUT,
    admin::AllocDm::LAYOUT,
    admin::CopyDm::LAYOUT,
    admin::CreateAh::LAYOUT,
    admin::Membership::LAYOUT,
    admin::SetGid::LAYOUT,
    admin::SetNeighbour::LAYOUT,
    admin::SetLink::LAYOUT,
    admin::Destroy::LAYOUT,
    admin::PortAttributes::LAYOUT,
    tunnel::SlotHeader::LAYOUT,
    tunnel::DatagramHeader::LAYOUT,
];

/// Words of bit fields that are no registers.
pub const WORDS: &[&Word] =
    &[doorbell::SlotValue::WORD, doorbell::ArmWord::WORD, key::KeyWord::WORD];

/// Every set of named values that an entry, a register or a word uses.
pub const CODES: &[Option<&Codes>] = &[
    window::Profile::CODES,
    window::Capabilities::CODES,
    doorbell::QueueCode::CODES,
    doorbell::ArmCode::CODES,
    wqe::SendOpcode::CODES,
    wqe::SendFlags::CODES,
    cqe::Opcode::CODES,
    cqe::Status::CODES,
    cqe::Flags::CODES,
    event::EventType::CODES,
    event::QpEvent::CODES,
    admin::Opcode::CODES,
    admin::AdminStatus::CODES,
    admin::RqKind::CODES,
    admin::DmDirection::CODES,
    admin::KeyKind::CODES,
    qp::QpType::CODES,
    qp::QpState::CODES,
    qp::AttributeMask::CODES,
    key::Access::CODES,
    tunnel::SlotOperation::CODES,
    tunnel::SlotFlags::CODES,
];

/// Numbers that belong to no entry and no register.
pub const CONSTANTS: &[&[Constant]] = &[
    window::CONSTANTS,
    doorbell::CONSTANTS,
    wqe::CONSTANTS,
    cqe::CONSTANTS,
    admin::CONSTANTS,
    qp::CONSTANTS,
    tunnel::CONSTANTS,
];
