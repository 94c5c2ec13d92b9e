//! The notification point of congestion control: who sends too fast is told.
//!
//! A switch marks packets when its queue grows (RFC 3168), and the receiver of a marked packet sends
//! its peer a congestion notification packet (annex A17.9.3), of a queue pair at most one in
//! [`param::CNP_INTERVAL`], as DCQCN has it (Zhu et al., SIGCOMM 2015). What the peer does about it is
//! its own affair.

use crate::api::Transmit;
use crate::counters::bump;
use crate::opcode::code;
use crate::param;
use crate::psn::Psn;
use crate::qp::{QpCore, Shared};
use crate::types::Instant;
use crate::wire::bth;

/// Reserved bytes that follow the Base Transport Header of a notification.
const RESERVED: [u8; 16] = [0; 16];

/// What a queue pair owes its peer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Notification {
    due: bool,
    /// No other is sent before.
    next: Instant,
}

impl Notification {
    /// A marked packet of the peer was received.
    pub(crate) fn note(&mut self, core: &mut QpCore, shared: &mut Shared, now: Instant) {
        // RC-95
        if self.due || now < self.next || !core.state().serves_requests() {
            return;
        }
        *self = Self { due: true, next: now.after(param::CNP_INTERVAL) };
        core.make_ready(shared);
    }

    /// Emits the notification that is due.
    #[inline]
    pub(crate) fn transmit(&mut self, core: &mut QpCore, shared: &mut Shared) -> Option<Transmit> {
        if !std::mem::take(&mut self.due) || !core.state().serves_requests() {
            return None;
        }
        // RC-94
        // It is of no service.
        let transport = core.transport_header(0, Psn::default(), 0);
        let transport = bth::Repr { opcode: code::CNP, becn: true, ..transport };
        let mut header = core.path.as_ref()?.header(&transport, RESERVED.len());
        header.push(&RESERVED);
        bump(&mut shared.counters.np_cnp_sent);
        bump(&mut core.counters.np_cnp_sent);
        Some(Transmit::without_payload(core.qpn, header))
    }
}
