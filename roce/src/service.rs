//! Transport services, and the sides of XRC.

use fpga_regs::engine::qp::QpType;

use crate::opcode::{Opcode, code};

/// The transport service of a queue pair, and its side of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Reliable Connection, both sides.
    Rc,
    /// Unreliable Connection.
    Uc,
    /// Unreliable Datagram.
    Ud,
    /// XRC, the side that sends.
    XrcSend,
    /// XRC, the side that receives for the shared receive queues of a domain.
    XrcReceive {
        /// The XRC domain, a number that the layer above gave.
        domain: u32,
    },
}

impl Service {
    /// The service that the card contract's code stands for, with the XRC domain of those that receive; `None`
    /// where this transport has none such.
    #[must_use]
    pub fn from_contract(kind: QpType, domain: u32) -> Option<Self> {
        Some(match kind {
            QpType::Rc => Self::Rc,
            QpType::Uc => Self::Uc,
            QpType::Ud | QpType::Gsi => Self::Ud,
            QpType::XrcSend => Self::XrcSend,
            QpType::XrcReceive => Self::XrcReceive { domain },
            _ => return None,
        })
    }

    /// The name of it in the card's contract.
    pub(crate) const fn kind(self) -> QpType {
        match self {
            Self::Rc => QpType::Rc,
            Self::Uc => QpType::Uc,
            Self::Ud => QpType::Ud,
            Self::XrcSend => QpType::XrcSend,
            Self::XrcReceive { .. } => QpType::XrcReceive,
        }
    }

    /// The bits of opcodes that name it.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Rc => code::RELIABLE_CONNECTION,
            Self::Uc => code::UNRELIABLE_CONNECTION,
            Self::Ud => code::UNRELIABLE_DATAGRAM,
            Self::XrcSend | Self::XrcReceive { .. } => code::EXTENDED_RELIABLE_CONNECTION,
        }
    }

    /// Whether packets of an opcode are for it.
    // RC-6, XRC-3, UC-1
    #[inline]
    pub(crate) const fn hears(self, opcode: &Opcode) -> bool {
        let is_heard = match opcode.class.is_response() {
            true => self.hears_responses(),
            false => self.hears_requests(),
        };
        is_heard && opcode.service() == self.code()
    }

    /// Whether it answers requests whose opcode has such a service.
    pub(crate) const fn answers(self, opcode: u8) -> bool {
        self.hears_requests() && opcode & code::SERVICE == self.code()
    }

    /// Whether its requests name a shared receive queue.
    #[inline]
    pub(crate) const fn names_srq(self) -> bool {
        matches!(self, Self::XrcSend)
    }

    const fn hears_requests(self) -> bool {
        !matches!(self, Self::XrcSend)
    }

    pub(crate) const fn hears_responses(self) -> bool {
        !matches!(self, Self::XrcReceive { .. })
    }
}
