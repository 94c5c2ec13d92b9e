//! Transfers of host memory that logic makes by itself, and cards whose time is their logic's.

use std::task::Poll;

use hostmem::DmaMemory;
use roce::{AccessDenied, ReceiveError, TakenReceive, Target};

use super::rig::{BASE, BYTES, LOCAL, REGION, Rig, WINDOW};
use super::*;
use crate::processes::tests::process;
use crate::vfpga::{Access, HostTransfer, Missed, Occupant, Ports, Tag};

/// What logic wants, and what came of it.
#[derive(Default)]
struct Wishes {
    transfers: VecDeque<HostTransfer>,
    ends: Vec<Result<Vec<u8>, Missed>>,
    goes_on_to: Option<u64>,
}

struct Mover(Rc<RefCell<Wishes>>);

impl Logic for Mover {
    fn read_register(&self, _: u64, _: u64) -> u64 {
        0
    }

    fn write_register(&mut self, _: u64, _: u64, _: u64, _: &mut Ports<'_>) {}

    fn reset(&mut self, _: &mut Ports<'_>) {
        self.0.borrow_mut().transfers.clear();
    }

    fn lost_memory(&mut self, _: u64, _: &mut Ports<'_>) {}

    fn work(&mut self, _: u64, _: &mut Ports<'_>) -> bool {
        false
    }

    fn take_notify(&mut self) -> Option<u32> {
        None
    }

    fn goes_on_to(&self) -> Option<u64> {
        self.0.borrow().goes_on_to
    }

    fn transfer(&self) -> Option<HostTransfer> {
        self.0.borrow().transfers.front().cloned()
    }

    fn transferred(&mut self, end: Result<&[u8], Missed>) {
        let mut wishes = self.0.borrow_mut();
        wishes.transfers.pop_front();
        wishes.ends.push(end.map(<[u8]>::to_vec));
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![("moved", self.0.borrow().ends.len() as u64)]
    }

    fn check_remote(&mut self, _: Tag, _: &Access) -> Poll<Result<(), AccessDenied>> {
        Poll::Ready(Err(AccessDenied::Memory))
    }

    fn take_receive(&mut self, _: Tag, _: Target) -> Poll<Result<TakenReceive, ReceiveError>> {
        Poll::Ready(Err(ReceiveError::Invalid))
    }

    fn take_event(&mut self, _: u64, _: Event, _: &mut Ports<'_>) {}
}

/// A card whose logic wants these transfers.
fn moving(transfers: &[HostTransfer]) -> (Rig, Rc<RefCell<Wishes>>) {
    let mut rig = Rig::new();
    let transfers = transfers.iter().cloned().collect();
    let wishes = Rc::new(RefCell::new(Wishes { transfers, ..Wishes::default() }));
    let logic = Occupant::Other(Box::new(Mover(Rc::clone(&wishes))));
    rig.card.vfpgas[usize::from(WINDOW)].logic = logic;
    (rig, wishes)
}

#[test]
fn logic_reads_and_writes_host_memory_in_its_order() {
    let block: Vec<u8> = (0..64).collect();
    let (mut rig, wishes) = moving(&[
        HostTransfer::Write { address: LOCAL, bytes: vec![7; 4096] },
        HostTransfer::Read { address: LOCAL + 4000, length: 200 },
        HostTransfer::Reach { writes: true, address: REGION, length: 4096 },
        HostTransfer::Write { address: REGION, bytes: block.clone() },
        HostTransfer::Write { address: REGION + 1, bytes: block.clone() },
        HostTransfer::Read { address: REGION, length: 2 },
    ]);
    rig.write(LOCAL + 4096, &[9; 200]);
    rig.work();
    let read = [[7; 96].as_slice(), &[9; 104]].concat();
    let nothing = Ok(Vec::new());
    let ends = wishes.borrow().ends.clone();
    assert_eq!(ends[1], Ok(read));
    assert_eq!(ends[2], nothing);
    assert_eq!(ends[5], Ok(vec![0, 0]));
    assert_eq!(ends.len(), 6);
    assert_eq!(rig.read(REGION, 65), [&[0], block.as_slice()].concat());
    let counters = rig.card.counters();
    assert!(counters.contains(&("moved", 6)), "{counters:?}");
}

#[test]
fn a_page_that_the_driver_refuses_is_out_of_reach_and_the_next_transfer_goes_on() {
    const NOWHERE: u64 = 0x7000_0000;
    for transfer in [
        HostTransfer::Read { address: NOWHERE, length: 64 },
        HostTransfer::Reach { writes: false, address: NOWHERE, length: 64 },
    ] {
        let (mut rig, wishes) =
            moving(&[transfer, HostTransfer::Read { address: LOCAL, length: 1 }]);
        rig.work();
        assert!(rig.card.waits_for_driver() && wishes.borrow().ends.is_empty());
        let unit = &rig.card.vfpgas[usize::from(WINDOW)].control.unit;
        unit.mmu.borrow_mut().restart(MemoryDirection::Read, false);
        rig.work();
        let ends = wishes.borrow().ends.clone();
        assert_eq!(ends.len(), 2);
        assert_eq!((ends[0].clone(), ends[1].is_ok()), (Err(Missed::Refused), true));
    }
}

#[test]
fn memory_that_a_process_took_away_is_out_of_reach_though_the_driver_maps_it() {
    let memory = vec![7u8; 64];
    let there = memory.as_ptr() as u64;
    for (address, ends) in
        [(there, [Ok(memory.clone()), Ok(Vec::new())]), (8, [Err(Missed::Gone), Err(Missed::Gone)])]
    {
        for (writes, end) in [false, true].into_iter().zip(ends) {
            let reach = HostTransfer::Reach { writes, address: LOCAL, length: 64 };
            let (mut rig, wishes) = moving(&[reach]);
            rig.card.memory.unmap(BASE, BYTES);
            let process = process(std::process::id());
            let its = DmaMemory::Process { process, address };
            rig.card.memory.map(LOCAL, 64, its).unwrap();
            rig.work();
            assert_eq!(wishes.borrow().ends, std::slice::from_ref(&end));
        }
    }
    assert_eq!(memory, [7; 64]);
}

#[test]
fn a_card_goes_on_to_the_time_of_logic_that_is_not_cut_off() {
    let (mut rig, wishes) = moving(&[]);
    assert_eq!(rig.card.goes_on_to(), None);
    wishes.borrow_mut().goes_on_to = Some(5);
    assert_eq!(rig.card.goes_on_to(), Some(5));
    // It waits for the driver then, and other cards not for it.
    let toggle_lock = |card: &mut Card| {
        card.vfpgas[usize::from(WINDOW)].control.unit.mmu.borrow_mut().toggle_lock();
    };
    toggle_lock(&mut rig.card);
    assert_eq!(rig.card.goes_on_to(), None);
    toggle_lock(&mut rig.card);
    assert_eq!(rig.card.goes_on_to(), Some(5));
    rig.card.vfpgas[usize::from(WINDOW)].decoupled = true;
    assert_eq!(rig.card.goes_on_to(), None);
}
