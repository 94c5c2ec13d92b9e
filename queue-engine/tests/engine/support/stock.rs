//! A transport as a published Coyote bitstream allows: WRITE and READ, and nothing but counters.
//!
//! The hardware takes commands into one FIFO, which drops commands beyond its room, and counts completions
//! per QP: acknowledged WRITEs in one counter, landed READs in another. Nothing says which message
//! completed, nothing is received, and the two counters move independently.

use std::collections::{BTreeMap, VecDeque};

use fpga_regs::engine::admin::{AdminStatus, CreateQp};
use fpga_regs::engine::qp::{AttributeMask, Attributes};
use queue_engine::{Message, Transport, TransportError, TransportEvent, WqeOperation};

/// Commands the hardware holds.
pub const ROOM: usize = 32;
/// QPs the hardware has.
const QPS: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestKind {
    Write,
    Read,
}

/// The hardware's counters of one QP: they wrap, and are never reset.
#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    writes: u32,
    reads: u32,
}

impl Counters {
    fn of(&mut self, kind: RequestKind) -> &mut u32 {
        match kind {
            RequestKind::Write => &mut self.writes,
            RequestKind::Read => &mut self.reads,
        }
    }
}

#[derive(Debug, Default)]
struct Qp {
    attributes: Attributes,
    submitted: u64,
    /// The commands under way, oldest first.
    under_way: VecDeque<RequestKind>,
    /// As the hardware counts.
    counted: Counters,
    /// As far as reported to the engine.
    reported: Counters,
}

/// The transport.
#[derive(Debug, Default)]
pub struct Stock {
    qps: BTreeMap<u32, Qp>,
}

impl Stock {
    /// Puts a QP's counters where they are about to wrap.
    pub fn near_wrap(&mut self, qpn: u32) {
        let qp = self.qps.get_mut(&qpn).unwrap();
        let counters = Counters { writes: u32::MAX - 1, reads: u32::MAX - 2 };
        (qp.counted, qp.reported) = (counters, counters);
    }

    /// The hardware finishes WRITEs: it counts their acknowledgements.
    pub fn writes_done(&mut self, qpn: u32, count: u32) {
        let counted = &mut self.qps.get_mut(&qpn).unwrap().counted.writes;
        *counted = counted.wrapping_add(count);
    }

    /// The hardware finishes READs: it counts those that landed.
    pub fn reads_done(&mut self, qpn: u32, count: u32) {
        let counted = &mut self.qps.get_mut(&qpn).unwrap().counted.reads;
        *counted = counted.wrapping_add(count);
    }

    /// The hardware finishes the oldest commands of a QP, as many as there are of `count`.
    pub fn finish(&mut self, qpn: u32, count: u32) {
        let qp = self.qps.get_mut(&qpn).unwrap();
        for &kind in qp.under_way.iter().take(count as usize) {
            let counted = qp.counted.of(kind);
            *counted = counted.wrapping_add(1);
        }
    }

    /// Reads the counters and retires the covered messages, in the order of submission.
    pub fn harvest(&mut self) -> Vec<TransportEvent> {
        let mut events = Vec::new();
        for (&qpn, qp) in &mut self.qps {
            let mut count = 0;
            while let Some(&kind) = qp.under_way.front() {
                if *qp.counted.of(kind) == *qp.reported.of(kind) {
                    break;
                }
                let reported = qp.reported.of(kind);
                *reported = reported.wrapping_add(1);
                qp.under_way.pop_front();
                count += 1;
            }
            if count > 0 {
                events.push(TransportEvent::Completed { qpn, count });
            }
        }
        events
    }

    /// Messages under way, of all QPs.
    pub fn under_way(&self) -> usize {
        self.qps.values().map(|qp| qp.under_way.len()).sum()
    }
}

impl Transport for Stock {
    fn create_qp(&mut self, qpn: u32, _: &CreateQp) -> Result<(), AdminStatus> {
        if self.qps.len() == QPS {
            return Err(AdminStatus::NoResources);
        }
        self.qps.insert(qpn, Qp::default());
        Ok(())
    }

    fn modify_qp(&mut self, _: u64, qpn: u32, attributes: &Attributes) -> Result<(), AdminStatus> {
        let qp = self.qps.get_mut(&qpn).ok_or(AdminStatus::NotFound)?;
        if attributes.mask.contains(AttributeMask::STATE) {
            qp.attributes.state = attributes.state;
        }
        Ok(())
    }

    fn query_qp(&self, qpn: u32) -> Option<Attributes> {
        self.qps.get(&qpn).map(|qp| qp.attributes)
    }

    fn destroy_qp(&mut self, qpn: u32) {
        self.qps.remove(&qpn);
    }

    fn room(&self, _: u32) -> usize {
        ROOM - self.under_way()
    }

    fn submit(&mut self, _: u64, qpn: u32, message: &Message) -> Result<u64, TransportError> {
        let kind = match message.operation {
            WqeOperation::Write { immediate: None, .. } => RequestKind::Write,
            WqeOperation::Read { .. } => RequestKind::Read,
            WqeOperation::Write { .. }
            | WqeOperation::Send { .. }
            | WqeOperation::SendInvalidate { .. }
            | WqeOperation::Datagram { .. }
            | WqeOperation::Atomic { .. } => {
                return Err(TransportError::Unsupported);
            }
        };
        assert!(self.under_way() < ROOM, "the FIFO would drop this command unseen");
        let qp = self.qps.get_mut(&qpn).ok_or(TransportError::WrongState)?;
        qp.under_way.push_back(kind);
        qp.submitted += 1;
        Ok(qp.submitted - 1)
    }

    fn counters(&self) -> Vec<u64> {
        Vec::new()
    }
}
