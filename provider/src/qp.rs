//! Queue pairs: what posting and polling share.

use std::sync::atomic::{AtomicU8, Ordering};

use fpga_regs::engine::qp::QpState;

use crate::rq::ReceiveQueue;
use crate::sq::SendQueue;

/// The queues of a QP.
#[derive(Debug)]
pub(crate) struct Queues {
    qpn: u32,
    /// The completion queue of the send queue.
    pub send_cqn: u32,
    /// The completion queue of the receive queue.
    pub receive_cqn: u32,
    /// Completions of another generation are of before the last RESET.
    generation: AtomicU8,
    /// The state the last modify or query found.
    state: AtomicU8,
    /// The send queue.
    pub send: SendQueue,
    /// The receive queue.
    pub receive: ReceiveQueue,
}

impl Queues {
    /// Joins the queues of a QP in RESET.
    pub(crate) fn new(
        qpn: u32,
        generation: u8,
        (send, send_cqn): (SendQueue, u32),
        (receive, receive_cqn): (ReceiveQueue, u32),
    ) -> Self {
        let (generation, state) = (AtomicU8::new(generation), AtomicU8::new(QpState::Reset.0));
        Self { qpn, send_cqn, receive_cqn, generation, state, send, receive }
    }

    /// The QP's number.
    #[inline(always)]
    pub(crate) fn qpn(&self) -> u32 {
        self.qpn
    }

    /// The QP's generation.
    #[inline(always)]
    pub(crate) fn generation(&self) -> u8 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Enters another generation; the send CQ's lock is held.
    pub(crate) fn set_generation(&self, generation: u8) {
        self.generation.store(generation, Ordering::Relaxed);
    }

    /// The state as far as this side knows: the card may have gone on to ERR.
    pub(crate) fn state(&self) -> QpState {
        QpState(self.state.load(Ordering::Relaxed))
    }

    /// Notes a state; posting is open or closed accordingly.
    pub(crate) fn set_state(&self, state: QpState) {
        self.state.store(state.0, Ordering::Relaxed);
        let sends = matches!(state, QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err);
        self.send.set_gate(if sends { 0 } else { libc::EINVAL });
        self.receive.set_gate(if state == QpState::Reset { libc::EINVAL } else { 0 });
    }

    /// Closes both queues with an errno.
    pub(crate) fn close(&self, errno: i32) {
        self.send.set_gate(errno);
        self.receive.set_gate(errno);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use fpga_regs::engine::window::Capabilities;
    use hostmem::{BlockRing, Record};

    use super::*;
    use crate::doorbell::CardPath;
    use crate::doorbell::tests::{memory, path};
    use crate::rq::ReceivePlace;
    use crate::sq::{SendPlace, SendShape};
    use crate::wr::{FlagTable, Operations};

    /// The completion queue of QPs made here.
    pub(crate) const CQN: u32 = 77;

    /// A QP of 8 sends and 8 receives on a card that is nobody, in RTS.
    pub(crate) fn queues(qpn: u32, generation: u8) -> Arc<Queues> {
        queues_on(qpn, generation, &path().0)
    }

    pub(crate) fn queues_on(qpn: u32, generation: u8, path: &Arc<CardPath>) -> Arc<Queues> {
        let memory = memory(8192);
        let ring = |at| BlockRing::new(memory.clone(), at, 8).unwrap();
        let record = |at| Record::new(memory.clone(), at).unwrap();
        let send =
            SendPlace { qpn, generation, ring: ring(64), record: record(0), path: path.clone() };
        let receive = ReceivePlace {
            rqn: qpn,
            generation,
            ring: ring(4096 + 64),
            log2_stride: 0,
            record: record(4096),
            path: path.clone(),
        };
        let shape = SendShape {
            max_wr: 8,
            max_sge: 2,
            max_inline: 32,
            operations: Operations::offered(Capabilities::all()),
            flags: FlagTable::new(false),
        };
        let send = SendQueue::new(send, shape, false);
        let receive = ReceiveQueue::new(receive, 3, false);
        let queues = Queues::new(qpn, generation, (send, CQN), (receive, CQN));
        queues.set_state(QpState::Rts);
        Arc::new(queues)
    }

    #[test]
    fn posting_is_open_exactly_in_the_states_verbs_names() {
        let queues = queues(1, 0);
        for (state, sends, receives) in [
            (QpState::Reset, false, false),
            (QpState::Init, false, true),
            (QpState::Rtr, false, true),
            (QpState::Rts, true, true),
            (QpState::Sqd, true, true),
            (QpState::Sqe, true, true),
            (QpState::Err, true, true),
        ] {
            queues.set_state(state);
            assert_eq!(queues.send.begin().err(), (!sends).then_some(libc::EINVAL), "{state:?}");
            let posted = queues.receive.begin().err();
            assert_eq!(posted, (!receives).then_some(libc::EINVAL), "{state:?}");
        }
    }
}
