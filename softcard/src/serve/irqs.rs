//! Interrupts as VFIO has them: indices of vectors, each with the event counter of its waiter.
//!
//! The client says with `DEVICE_SET_IRQS` which counter stands for which vector. Nothing here looks
//! at the MSI-X table in BAR2: clients that emulate it (QEMU does) never show it to us, and the
//! counters say the same. An interrupt that cannot be delivered yet stays pending, once, and shows
//! in the pending bits: while its vector is masked or has no counter, or the card is no bus master.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use fpga_regs::coyote::pci::MSIX_TABLE_ENTRIES;
use hostmem::ForeignEventFd;
use nix::errno::Errno;

use crate::interrupts::Interrupts;

/// Interrupt indices of a PCI device.
pub(crate) const INDICES: u32 = 5;
const MSIX: u32 = 2;
const ERROR: u32 = 3;
const REQUEST: u32 = 4;

/// `DEVICE_GET_IRQ_INFO`: vectors can have event counters.
const INFO_EVENTFD: u32 = 1 << 0;
/// `DEVICE_GET_IRQ_INFO`: vectors can be masked.
const INFO_MASKABLE: u32 = 1 << 1;

/// `DEVICE_SET_IRQS`: which data there is, of which exactly one is said.
const DATA_NONE: u32 = 1 << 0;
const DATA_BOOL: u32 = 1 << 1;
const DATA_EVENTFD: u32 = 1 << 2;
const DATA: u32 = DATA_NONE | DATA_BOOL | DATA_EVENTFD;
/// Flags of `DEVICE_SET_IRQS` that name the action, of which exactly one is set.
const ACTION_MASK: u32 = 1 << 3;
const ACTION_UNMASK: u32 = 1 << 4;
const ACTION_TRIGGER: u32 = 1 << 5;
const ACTION: u32 = ACTION_MASK | ACTION_UNMASK | ACTION_TRIGGER;

/// Vectors that the card signalled, one bit each, until they are collected.
#[derive(Clone, Debug, Default)]
pub(crate) struct Raised(Rc<Cell<u32>>);

impl Interrupts for Raised {
    fn signal(&self, vector: usize) {
        let bit = u32::try_from(vector).ok().and_then(|vector| 1u32.checked_shl(vector));
        self.0.set(self.0.get() | bit.unwrap_or(0));
    }
}

#[derive(Debug, Default)]
struct Vector {
    event: Option<ForeignEventFd>,
    masked: bool,
    pending: bool,
}

/// The properties of an index.
pub(crate) struct Info {
    pub(crate) flags: u32,
    pub(crate) vectors: u32,
}

/// A client's request about the vectors of an index.
pub(crate) struct Wanted {
    pub(crate) flags: u32,
    pub(crate) index: u32,
    /// The first of them.
    pub(crate) start: u32,
    pub(crate) count: u32,
}

/// All interrupts of the card.
#[derive(Debug)]
pub(crate) struct Irqs {
    raised: Raised,
    msix: Vec<Vector>,
    error: [Vector; 1],
    request: [Vector; 1],
    /// The card is a bus master: MSI-X messages are writes.
    enabled: bool,
}

/// The data of a `DEVICE_SET_IRQS` request.
enum Data<'a> {
    None,
    Bools(&'a [u8]),
    Events(Vec<ForeignEventFd>),
}

impl Irqs {
    pub(crate) fn new(raised: Raised) -> Self {
        raised.0.set(0);
        Self {
            raised,
            msix: (0..MSIX_TABLE_ENTRIES).map(|_| Vector::default()).collect(),
            error: Default::default(),
            request: Default::default(),
            enabled: false,
        }
    }

    /// The properties of an index.
    pub(crate) fn info(index: u32) -> Option<Info> {
        let flags = INFO_EVENTFD;
        match index {
            MSIX => {
                Some(Info { flags: flags | INFO_MASKABLE, vectors: u32::from(MSIX_TABLE_ENTRIES) })
            }
            ERROR | REQUEST => Some(Info { flags, vectors: 1 }),
            // INTx and MSI, which the card has not.
            _ => (index < INDICES).then_some(Info { flags, vectors: 0 }),
        }
    }

    fn vectors(&mut self, index: u32) -> &mut [Vector] {
        match index {
            MSIX => &mut self.msix,
            ERROR => &mut self.error,
            REQUEST => &mut self.request,
            _ => &mut [],
        }
    }

    /// Carries out a client's request about vectors.
    ///
    /// # Errors
    /// EINVAL for a request that contradicts itself or leaves the index, ENOTSUP for an action that
    /// the index does not know.
    pub(crate) fn set(
        &mut self,
        Wanted { flags, index, start, count }: Wanted,
        data: &[u8],
        fds: Vec<OwnedFd>,
    ) -> Result<(), Errno> {
        if flags & !(DATA | ACTION) != 0 || (flags & ACTION).count_ones() != 1 {
            return Err(Errno::EINVAL);
        }
        let Info { vectors, .. } = Self::info(index).ok_or(Errno::EINVAL)?;
        if start.checked_add(count).is_none_or(|end| end > vectors) {
            return Err(Errno::EINVAL);
        }
        let data = parse_data(flags & DATA, count, data, fds)?;
        if count == 0 {
            return match (flags & ACTION, data) {
                (ACTION_TRIGGER, Data::None) if start == 0 => {
                    self.vectors(index).fill_with(Vector::default);
                    Ok(())
                }
                _ => Err(Errno::EINVAL),
            };
        }
        let range = start as usize..start.saturating_add(count) as usize;
        let Some(vectors) = self.vectors(index).get_mut(range) else { return Err(Errno::EINVAL) };
        match (flags & ACTION, data) {
            (ACTION_TRIGGER, Data::Events(events)) => {
                // No counters at all take those away that were there.
                let mut events = events.into_iter();
                for vector in vectors {
                    vector.event = events.next();
                }
            }
            (_, Data::Events(_)) => return Err(Errno::ENOTSUP),
            (ACTION_TRIGGER, data) => {
                chosen(vectors, &data).for_each(|vector| vector.pending = true);
            }
            (action, data) if index == MSIX => {
                chosen(vectors, &data).for_each(|vector| vector.masked = action == ACTION_MASK);
            }
            _ => return Err(Errno::ENOTSUP),
        }
        self.deliver();
        Ok(())
    }

    /// Takes over the interrupts that the card raised, and signals all that can be.
    pub(crate) fn collect(&mut self) {
        let raised = self.raised.0.take();
        if raised == 0 {
            return;
        }
        for (number, vector) in self.msix.iter_mut().enumerate() {
            vector.pending |= raised >> number & 1 != 0;
        }
        self.deliver();
    }

    /// Lets interrupts out, or keeps them: bus mastering.
    pub(crate) fn set_enabled(&mut self, enabled: bool) {
        self.enabled = enabled;
        self.deliver();
    }

    /// Forgets pending interrupts, as a reset of the function does; counters and masks are the client's.
    pub(crate) fn reset(&mut self) {
        self.raised.0.set(0);
        self.enabled = false;
        for vector in &mut self.msix {
            vector.pending = false;
        }
    }

    /// Event counters that are held.
    pub(crate) fn held(&self) -> usize {
        let vectors = self.msix.iter().chain(&self.error).chain(&self.request);
        vectors.filter(|vector| vector.event.is_some()).count()
    }

    /// The MSI-X pending bits.
    pub(crate) fn pending(&self) -> u64 {
        let bits = self.msix.iter().enumerate();
        bits.fold(0, |bits, (number, vector)| bits | u64::from(vector.pending) << number)
    }

    fn deliver(&mut self) {
        let Self { msix, error, request, enabled, .. } = self;
        let msix = msix.iter_mut().filter(|_| *enabled);
        for vector in msix.chain(error).chain(request) {
            if let (true, false, Some(event)) = (vector.pending, vector.masked, &vector.event) {
                vector.pending = false;
                if let Err(error) = event.signal() {
                    log::warn!("an interrupt is lost: {error}");
                }
            }
        }
    }
}

fn parse_data(kind: u32, count: u32, data: &[u8], fds: Vec<OwnedFd>) -> Result<Data<'_>, Errno> {
    match kind {
        DATA_NONE if fds.is_empty() => Ok(Data::None),
        DATA_BOOL if fds.is_empty() => {
            data.get(..count as usize).map(Data::Bools).ok_or(Errno::EINVAL)
        }
        DATA_EVENTFD if fds.is_empty() || fds.len() == count as usize => {
            let events: Result<_, _> = fds.into_iter().map(ForeignEventFd::new).collect();
            events.map(Data::Events).map_err(|_| Errno::EINVAL)
        }
        _ => Err(Errno::EINVAL),
    }
}

/// The vectors that an action without counters is meant for.
fn chosen<'a>(
    vectors: &'a mut [Vector],
    data: &'a Data<'_>,
) -> impl Iterator<Item = &'a mut Vector> {
    vectors.iter_mut().enumerate().filter_map(move |(place, vector)| {
        let wanted = match data {
            Data::Bools(bools) => bools.get(place).is_some_and(|wanted| *wanted != 0),
            Data::None | Data::Events(_) => true,
        };
        wanted.then_some(vector)
    })
}

#[cfg(test)]
mod tests {
    use hostmem::EventFd;

    use super::*;

    fn irqs() -> (Irqs, Raised) {
        let raised = Raised::default();
        let mut irqs = Irqs::new(raised.clone());
        irqs.set_enabled(true);
        (irqs, raised)
    }

    fn wanted(flags: u32, index: u32, start: u32, count: u32) -> Wanted {
        Wanted { flags, index, start, count }
    }

    fn events(count: usize) -> (Vec<EventFd>, Vec<OwnedFd>) {
        let ours: Vec<EventFd> = (0..count).map(|_| EventFd::new().unwrap()).collect();
        let theirs = ours.iter().map(|event| event.try_clone().unwrap().into_fd()).collect();
        (ours, theirs)
    }

    fn counts(events: &[EventFd]) -> Vec<u64> {
        events.iter().map(|event| event.drain().unwrap()).collect()
    }

    #[test]
    fn a_raised_vector_signals_its_counter_and_no_other() {
        let (mut irqs, raised) = irqs();
        let (ours, theirs) = events(3);
        irqs.set(wanted(DATA_EVENTFD | ACTION_TRIGGER, MSIX, 4, 3), &[], theirs).unwrap();
        raised.signal(5);
        raised.signal(5);
        raised.signal(99);
        irqs.collect();
        assert_eq!(counts(&ours), [0, 1, 0]);
        irqs.collect();
        assert_eq!(counts(&ours), [0, 0, 0]);
    }

    #[test]
    fn an_interrupt_waits_for_its_counter_its_mask_and_bus_mastering() {
        let (mut irqs, raised) = irqs();
        raised.signal(0);
        irqs.collect();
        assert_eq!(irqs.pending(), 1);
        let (ours, theirs) = events(1);
        irqs.set(wanted(DATA_EVENTFD | ACTION_TRIGGER, MSIX, 0, 1), &[], theirs).unwrap();
        assert_eq!((counts(&ours), irqs.pending()), (vec![1], 0));

        irqs.set(wanted(DATA_NONE | ACTION_MASK, MSIX, 0, 32), &[], vec![]).unwrap();
        raised.signal(0);
        irqs.collect();
        assert_eq!((counts(&ours), irqs.pending()), (vec![0], 1));
        irqs.set(wanted(DATA_BOOL | ACTION_UNMASK, MSIX, 0, 2), &[0, 1], vec![]).unwrap();
        assert_eq!(irqs.pending(), 1);
        irqs.set(wanted(DATA_BOOL | ACTION_UNMASK, MSIX, 0, 1), &[1], vec![]).unwrap();
        assert_eq!((counts(&ours), irqs.pending()), (vec![1], 0));

        irqs.set_enabled(false);
        raised.signal(0);
        irqs.collect();
        assert_eq!(counts(&ours), [0]);
        irqs.set_enabled(true);
        assert_eq!(counts(&ours), [1]);
    }

    #[test]
    fn a_client_may_trigger_a_vector_itself() {
        let (mut irqs, _) = irqs();
        for (index, count) in [(MSIX, 2), (ERROR, 1), (REQUEST, 1)] {
            let (ours, theirs) = events(count as usize);
            irqs.set(wanted(DATA_EVENTFD | ACTION_TRIGGER, index, 0, count), &[], theirs).unwrap();
            irqs.set(wanted(DATA_NONE | ACTION_TRIGGER, index, 0, count), &[], vec![]).unwrap();
            assert_eq!(counts(&ours), vec![1; count as usize]);
            irqs.set(wanted(DATA_BOOL | ACTION_TRIGGER, index, 0, 1), &[1], vec![]).unwrap();
            assert_eq!(counts(&ours)[0], 1);
        }
    }

    #[test]
    fn counters_are_taken_away_one_by_one_or_all_at_once() {
        let (mut irqs, raised) = irqs();
        let (ours, theirs) = events(2);
        irqs.set(wanted(DATA_EVENTFD | ACTION_TRIGGER, MSIX, 0, 2), &[], theirs).unwrap();
        irqs.set(wanted(DATA_EVENTFD | ACTION_TRIGGER, MSIX, 0, 1), &[], vec![]).unwrap();
        raised.signal(0);
        raised.signal(1);
        irqs.collect();
        assert_eq!(counts(&ours), [0, 1]);
        irqs.set(wanted(DATA_NONE | ACTION_TRIGGER, MSIX, 0, 0), &[], vec![]).unwrap();
        raised.signal(1);
        irqs.collect();
        assert_eq!(counts(&ours), [0, 0]);
        assert_eq!(irqs.pending(), 2);
    }

    #[test]
    fn a_reset_forgets_what_is_pending_and_keeps_the_counters() {
        let (mut irqs, raised) = irqs();
        let (ours, theirs) = events(1);
        irqs.set(wanted(DATA_EVENTFD | ACTION_TRIGGER, MSIX, 0, 1), &[], theirs).unwrap();
        irqs.set_enabled(false);
        raised.signal(0);
        irqs.collect();
        irqs.reset();
        irqs.set_enabled(true);
        assert_eq!((counts(&ours), irqs.pending()), (vec![0], 0));
        raised.signal(0);
        irqs.collect();
        assert_eq!(counts(&ours), [1]);
    }

    #[test]
    fn requests_that_contradict_themselves_are_refused() {
        let (mut irqs, _) = irqs();
        let mut set = |flags, index, (start, count), data: &[u8], fds| {
            irqs.set(wanted(flags, index, start, count), data, fds).unwrap_err()
        };
        let two = || events(2).1;
        let refused = [
            set(0, MSIX, (0, 1), &[], vec![]),
            set(DATA_NONE, MSIX, (0, 1), &[], vec![]),
            set(ACTION_TRIGGER, MSIX, (0, 1), &[], vec![]),
            set(DATA_NONE | DATA_BOOL | ACTION_TRIGGER, MSIX, (0, 1), &[1], vec![]),
            set(DATA_NONE | ACTION_MASK | ACTION_UNMASK, MSIX, (0, 1), &[], vec![]),
            set(DATA_NONE | ACTION_TRIGGER | 1 << 6, MSIX, (0, 1), &[], vec![]),
            set(DATA_NONE | ACTION_TRIGGER, MSIX, (0, 33), &[], vec![]),
            set(DATA_NONE | ACTION_TRIGGER, MSIX, (33, 0), &[], vec![]),
            set(DATA_NONE | ACTION_TRIGGER, MSIX, (u32::MAX, 2), &[], vec![]),
            set(DATA_NONE | ACTION_TRIGGER, MSIX, (1, 0), &[], vec![]),
            set(DATA_NONE | ACTION_MASK, MSIX, (0, 0), &[], vec![]),
            set(DATA_NONE | ACTION_TRIGGER, 0, (0, 1), &[], vec![]),
            set(DATA_NONE | ACTION_TRIGGER, INDICES, (0, 0), &[], vec![]),
            set(DATA_NONE | ACTION_TRIGGER, u32::MAX, (0, 1), &[], vec![]),
            set(DATA_BOOL | ACTION_TRIGGER, MSIX, (0, 3), &[1, 1], vec![]),
            set(DATA_EVENTFD | ACTION_TRIGGER, MSIX, (0, 3), &[], two()),
            set(DATA_EVENTFD | ACTION_TRIGGER, MSIX, (0, 0), &[], vec![]),
            set(DATA_NONE | ACTION_TRIGGER, MSIX, (0, 2), &[], two()),
        ];
        assert_eq!(refused, [Errno::EINVAL; 18]);
        let file = std::fs::File::open("/dev/null").unwrap();
        let no_counter = set(DATA_EVENTFD | ACTION_TRIGGER, MSIX, (0, 1), &[], vec![file.into()]);
        assert_eq!(no_counter, Errno::EINVAL);
        let refused = [
            set(DATA_EVENTFD | ACTION_MASK, MSIX, (0, 2), &[], two()),
            set(DATA_NONE | ACTION_MASK, ERROR, (0, 1), &[], vec![]),
        ];
        assert_eq!(refused, [Errno::ENOTSUP; 2]);
    }
}
