//! Queue pairs: the state that posting and polling share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use fpga_regs::engine::qp::QpState;

use crate::rq::ReceiveQueue;
use crate::sq::SendQueue;
use crate::srq::SharedReceiveQueue;

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
    /// Its own receive queue.
    pub receive: ReceiveQueue,
    /// The shared receive queue that it uses, where it has one; then its own is
    /// [never opened](ReceiveQueue::beside).
    pub shared: Option<Arc<SharedReceiveQueue>>,
    /// Requests can be posted to its send queue, and to its own receive queue.
    sends: bool,
    receives: bool,
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
        let (sends, receives, shared) = (true, true, None);
        Self {
            qpn,
            send_cqn,
            receive_cqn,
            generation,
            state,
            send,
            receive,
            shared,
            sends,
            receives,
        }
    }

    /// Uses a shared receive queue, beside which its own was made.
    pub(crate) fn with_shared(self, shared: Arc<SharedReceiveQueue>) -> Self {
        Self { shared: Some(shared), ..self.without_receives() }
    }

    /// A QP without a receive queue of its own, which is [never opened](ReceiveQueue::absent).
    pub(crate) fn without_receives(self) -> Self {
        Self { receives: false, ..self }
    }

    /// A QP without a send queue, which is never opened.
    pub(crate) fn without_sends(self) -> Self {
        Self { sends: false, ..self }
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

    /// Enters another generation with nothing posted to its own receive queue; the receive CQ's lock is
    /// held.
    pub(crate) fn reset_receives(&self, generation: u8) {
        self.generation.store(generation, Ordering::Relaxed);
        if self.receives {
            self.receive.reset(generation);
        }
    }

    /// The state as far as this side knows: the card may have gone on to ERR.
    pub(crate) fn state(&self) -> QpState {
        QpState(self.state.load(Ordering::Relaxed))
    }

    /// Notes a state; posting is open or closed accordingly.
    pub(crate) fn set_state(&self, state: QpState) {
        self.state.store(state.0, Ordering::Relaxed);
        let sends = matches!(state, QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err);
        self.send.set_gate(if sends && self.sends { 0 } else { libc::EINVAL });
        let receives = state != QpState::Reset && self.receives;
        self.receive.set_gate(if receives { 0 } else { libc::EINVAL });
    }

    /// Closes both of its queues with an errno.
    pub(crate) fn close(&self, errno: i32) {
        self.send.set_gate(errno);
        self.receive.set_gate(errno);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use fpga_regs::engine::qp::QpType;
    use fpga_regs::engine::window::Capabilities;
    use hostmem::{BlockRing, Record};

    use super::*;
    use crate::doorbell::CardPath;
    use crate::doorbell::tests::{memory, path};
    use crate::rq::ReceivePlace;
    use crate::sq::{SendPlace, SendShape};
    use crate::srq::tests::{post, shared};
    use crate::wr::{FlagTable, Operations};

    /// The completion queue of QPs made here.
    pub(crate) const CQN: u32 = 77;

    /// A QP of 8 sends and 8 receives on a card that is nobody, in RTS.
    pub(crate) fn queues(qpn: u32, generation: u8) -> Arc<Queues> {
        queues_on(qpn, generation, &path().0)
    }

    pub(crate) fn queues_on(qpn: u32, generation: u8, path: &Arc<CardPath>) -> Arc<Queues> {
        made(QpType::Rc, qpn, generation, path)
    }

    /// As [`queues`], of another kind.
    pub(crate) fn queues_of(kind: QpType) -> Arc<Queues> {
        made(kind, 1, 0, &path().0)
    }

    fn made(kind: QpType, qpn: u32, generation: u8, path: &Arc<CardPath>) -> Arc<Queues> {
        let memory = memory(8192);
        let ring = |at| BlockRing::new(memory.clone(), at, 8).unwrap();
        let record = |at| Record::new(memory.clone(), at).unwrap();
        let send = SendPlace {
            qpn,
            generation,
            ring: ring(64),
            record: record(0),
            path: path.clone(),
            lender: None,
        };
        let receive = ReceivePlace {
            rqn: qpn,
            generation,
            ring: ring(4096 + 64),
            log2_stride: 0,
            record: record(4096),
            path: path.clone(),
            lender: None,
        };
        let shape = SendShape {
            max_wr: 8,
            max_sge: 2,
            max_inline: 32,
            operations: Operations::offered(Capabilities::all(), kind),
            flags: FlagTable::new(false),
        };
        let send = SendQueue::new(send, shape, false).unwrap();
        let receive = ReceiveQueue::new(receive, 3, false).unwrap();
        let queues = Queues::new(qpn, generation, (send, CQN), (receive, CQN));
        queues.set_state(QpState::Rts);
        Arc::new(queues)
    }

    /// A QP of 8 sends that uses a shared receive queue, in RTS.
    pub(crate) fn sharing(
        qpn: u32,
        generation: u8,
        (path, shared): (&Arc<CardPath>, &Arc<SharedReceiveQueue>),
    ) -> Arc<Queues> {
        let mut queues = Arc::into_inner(queues_on(qpn, generation, path)).unwrap();
        queues.receive = shared.queue.beside();
        let queues = queues.with_shared(Arc::clone(shared));
        queues.set_state(QpState::Rts);
        Arc::new(queues)
    }

    #[test]
    fn nothing_is_posted_to_a_qp_that_uses_a_shared_receive_queue() {
        let path = path().0;
        let shared = shared(4, &path);
        let queues = sharing(1, 0, (&path, &shared));
        for state in [QpState::Reset, QpState::Init, QpState::Rts, QpState::Err] {
            queues.set_state(state);
            assert_eq!(queues.receive.begin().err(), Some(libc::EINVAL), "{state:?}");
        }
        post(&shared, 7).unwrap();
        queues.reset_receives(1);
        assert_eq!((queues.receive.retire(0), shared.retire(0)), (None, Some(7)));
    }

    #[test]
    fn a_side_of_xrc_posts_nothing_to_the_queue_it_does_not_have() {
        let all = [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Err];
        for (kind, sends) in [(QpType::XrcSend, true), (QpType::XrcReceive, false)] {
            let queues = Arc::into_inner(queues_of(kind)).unwrap().without_receives();
            let queues = if sends { queues } else { queues.without_sends() };
            for state in all {
                queues.set_state(state);
                assert_eq!(queues.receive.begin().err(), Some(libc::EINVAL), "{kind:?} {state:?}");
                let is_open = sends && matches!(state, QpState::Rts | QpState::Err);
                let posted = queues.send.begin().err();
                assert_eq!(posted, (!is_open).then_some(libc::EINVAL), "{kind:?} {state:?}");
            }
        }
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
