//! The interrupt register of a vFPGA: one event is reported at a time, until the driver took it back.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fpga_regs::coyote::vfpga::{EventKind, IsrLen, IsrPid, IsrRead, Stream};

use crate::mmu::{Fault, MemoryDirection};
use crate::published::IsrCopy;

/// An event that waits to be reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Offload,
    Sync,
    Invalidated,
    PageFault(Fault),
    Notify { value: u32 },
}

impl Event {
    fn kind(self) -> EventKind {
        match self {
            Self::Offload => EventKind::Offload,
            Self::Sync => EventKind::Sync,
            Self::Invalidated => EventKind::Invalidated,
            Self::PageFault(_) => EventKind::PageFault,
            Self::Notify { .. } => EventKind::Notify,
        }
    }

    /// Events of one source are queued together; sources are reported in this order.
    fn source(self) -> usize {
        match self {
            Self::Offload => 0,
            Self::Sync => 1,
            Self::Invalidated => 2,
            Self::PageFault(Fault { direction: MemoryDirection::Read, .. }) => 3,
            Self::PageFault(_) => 4,
            Self::Notify { .. } => 5,
        }
    }
}

const SOURCES: usize = 6;
/// Events a source keeps; further ones are lost.
const DEPTH: usize = 16;

/// The events of a vFPGA, and the registers around them.
#[derive(Debug)]
pub(crate) struct Isr {
    /// The copy that other threads see, with the value that it reads.
    copy: Arc<IsrCopy>,
    waiting: [VecDeque<Event>; SOURCES],
    reported: Option<Event>,
    pub(crate) pid: u64,
    pub(crate) vaddr: u64,
    pub(crate) length: u64,
    /// Invalidations, page faults and notifications reported.
    pub(crate) counts: [u64; 3],
}

impl Isr {
    /// A register with nothing to report.
    pub(crate) fn new(copy: Arc<IsrCopy>) -> Self {
        let (waiting, reported, counts) = Default::default();
        let isr = Self { copy, waiting, reported, pid: 0, vaddr: 0, length: 0, counts };
        isr.publish();
        isr
    }

    /// Whether an event is reported.
    pub(crate) fn is_pending(&self) -> bool {
        self.reported.is_some()
    }

    /// Queues an event; `true` if it is reported at once, and the interrupt with it.
    pub(crate) fn raise(&mut self, event: Event) -> bool {
        let notify = matches!(event, Event::Notify { .. });
        if let Some(queue) = self.waiting.get_mut(event.source()) {
            // A notification says "look": one that waits says it for those after it.
            if queue.len() < if notify { 1 } else { DEPTH } {
                queue.push_back(event);
            }
        }
        self.report()
    }

    /// Takes the reported event back; `true` if another is reported at once.
    pub(crate) fn clear(&mut self) -> bool {
        self.reported = None;
        self.report()
    }

    /// Reports the next event unless one is reported; whether it did.
    fn report(&mut self) -> bool {
        let reports = self.reported.is_none() && self.report_next();
        self.publish();
        reports
    }

    fn report_next(&mut self) -> bool {
        let Some(event) = self.waiting.iter_mut().find_map(VecDeque::pop_front) else {
            return false;
        };
        self.reported = Some(event);
        let count = match event {
            Event::Offload | Event::Sync => None,
            Event::Invalidated => Some(0),
            Event::PageFault(fault) => {
                self.pid = IsrPid { ctid: fault.ctid, hpid: 0 }.encode();
                self.vaddr = fault.vaddr;
                self.length = IsrLen { length: fault.length, value: 0 }.encode();
                Some(1)
            }
            Event::Notify { value } => {
                self.pid = IsrPid { ctid: fpga_regs::engine::window::CTID, hpid: 0 }.encode();
                self.length = IsrLen { length: 0, value }.encode();
                Some(2)
            }
        };
        if let Some(count) = count.and_then(|count| self.counts.get_mut(count)) {
            *count = count.wrapping_add(1);
        }
        true
    }

    /// The value of the register.
    pub(crate) fn read(&self) -> u64 {
        self.copy.register.load(Ordering::Relaxed)
    }

    /// Sets the copy: ahead of the interrupt, after which the driver looks.
    fn publish(&self) {
        let fault = match self.reported {
            Some(Event::PageFault(fault)) => Some(fault),
            _ => None,
        };
        let read = IsrRead {
            kind: self.reported.map_or(EventKind(0), Event::kind),
            invalidate_ready: true,
            fault_ready: true,
            stream: fault.map_or(Stream(0), |_| Stream::Host),
            write: fault.is_some_and(|fault| fault.direction == MemoryDirection::Write),
        };
        let more = self.waiting.iter().any(|events| !events.is_empty());
        self.copy.more.store(more, Ordering::Relaxed);
        self.copy.register.store(read.encode(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(direction: MemoryDirection, vaddr: u64) -> Event {
        Event::PageFault(Fault { direction, ctid: 1, vaddr, length: 0x40 })
    }

    #[test]
    fn events_are_reported_one_by_one_in_the_published_order() {
        let mut isr = Isr::new(Arc::default());
        assert!(isr.raise(Event::Notify { value: 5 }), "the first is reported at once");
        for event in [
            Event::Notify { value: 6 },
            fault(MemoryDirection::Write, 0x2000),
            fault(MemoryDirection::Read, 0x1000),
            Event::Invalidated,
            Event::Sync,
            Event::Offload,
        ] {
            assert!(!isr.raise(event), "an event is reported already");
        }
        let mut seen = vec![IsrRead::decode(isr.read()).kind];
        let mut faults = Vec::new();
        while isr.clear() {
            let now = IsrRead::decode(isr.read());
            seen.push(now.kind);
            if now.kind == EventKind::PageFault {
                faults.push((now.write, now.stream, isr.vaddr, IsrLen::decode(isr.length).length));
            }
        }
        use EventKind as K;
        let wanted =
            [K::Notify, K::Offload, K::Sync, K::Invalidated, K::PageFault, K::PageFault, K::Notify];
        assert_eq!(seen, wanted);
        let host = Stream::Host;
        assert_eq!(faults, [(false, host, 0x1000, 0x40), (true, host, 0x2000, 0x40)]);
        assert_eq!(isr.counts, [1, 2, 2]);
        assert_eq!(IsrLen::decode(isr.length).value, 6);
        assert!(!isr.is_pending());
    }

    #[test]
    fn a_notification_that_waits_stands_for_later_ones() {
        let mut isr = Isr::new(Arc::default());
        assert!(isr.raise(Event::Notify { value: 1 }));
        assert!(!isr.raise(Event::Notify { value: 2 }) && !isr.raise(Event::Notify { value: 3 }));
        assert!(isr.clear(), "news that came behind the report is reported too");
        assert!(!isr.clear());
    }
}
