use std::rc::Rc;

use fpga_regs::coyote::shell::CTRL_CNFG_DEFAULT;
use fpga_regs::coyote::vfpga::Stream;

use super::*;
use crate::bus::Bus;

const PAGE: u64 = 2 << 20;

fn mmu() -> Mmu {
    Mmu::new(CTRL_CNFG_DEFAULT, 0).unwrap()
}

fn words(pages: Pages, vaddr: u64, paddr: u64, valid: bool) -> [u64; 2] {
    let entry = Entry { vaddr, paddr, hpid: 9, ctid: 0, stream: Stream::Host, valid };
    entry.encode(match pages {
        Pages::Small => Geometry::small(CTRL_CNFG_DEFAULT).unwrap(),
        Pages::Large => Geometry::large(CTRL_CNFG_DEFAULT).unwrap(),
    })
}

fn insert(mmu: &mut Mmu, page: u64) {
    mmu.write_entry(Pages::Large, words(Pages::Large, page * PAGE, page * PAGE, true));
}

fn read(mmu: &mut Mmu, vaddr: u64) -> Translation {
    mmu.translate(MemoryDirection::Read, vaddr, 64)
}

#[test]
fn a_miss_is_told_once_and_found_when_the_driver_has_answered() {
    let mut mmu = mmu();
    assert_eq!(read(&mut mmu, 5 * PAGE + 7), Translation::Waits);
    assert_eq!(read(&mut mmu, 6 * PAGE), Translation::Waits);
    let fault =
        Fault { direction: MemoryDirection::Read, ctid: 0, vaddr: 5 * PAGE + 7, length: 64 };
    assert_eq!(mmu.take_news(), [Some(fault), None], "the second waits behind the first");
    assert!(mmu.waits());
    insert(&mut mmu, 5);
    mmu.restart(MemoryDirection::Read, true);
    assert!(!mmu.waits());
    let found = Translation::Found { bus: 5 * PAGE + 7, bytes: PAGE - 7 };
    assert_eq!(read(&mut mmu, 5 * PAGE + 7), found);
    assert_eq!(mmu.take_news(), [None, None]);
}

#[test]
fn directions_fault_by_themselves() {
    let mut mmu = mmu();
    read(&mut mmu, 0);
    mmu.translate(MemoryDirection::Write, 0, 8);
    assert!(mmu.take_news().iter().all(Option::is_some));
    mmu.restart(MemoryDirection::Read, false);
    assert!(mmu.waits(), "the write waits");
    mmu.restart(MemoryDirection::Write, true);
    assert!(!mmu.waits());
}

#[test]
fn a_refusal_holds_for_its_page_until_everybody_was_told() {
    let mut mmu = mmu();
    insert(&mut mmu, 3);
    read(&mut mmu, 5 * PAGE);
    mmu.restart(MemoryDirection::Read, false);
    assert_eq!(read(&mut mmu, 5 * PAGE), Translation::Refused);
    assert_eq!(read(&mut mmu, 6 * PAGE - 1), Translation::Refused);
    assert!(matches!(read(&mut mmu, 3 * PAGE), Translation::Found { .. }));
    mmu.settle();
    assert_eq!(read(&mut mmu, 5 * PAGE), Translation::Waits, "the driver is asked anew");
    assert_eq!(mmu.counters.refusals, 1);
}

#[test]
fn an_answer_without_a_fault_changes_nothing() {
    let mut mmu = mmu();
    mmu.restart(MemoryDirection::Write, false);
    assert_eq!(mmu.translate(MemoryDirection::Write, 0, 8), Translation::Waits);
    assert_eq!(mmu.counters.refusals, 0);
}

#[test]
fn what_was_found_last_is_forgotten_with_its_entry() {
    let mut mmu = mmu();
    insert(&mut mmu, 1);
    assert!(matches!(read(&mut mmu, PAGE), Translation::Found { .. }));
    let moved = words(Pages::Large, PAGE, 9 * PAGE, true);
    assert_eq!(mmu.write_entry(Pages::Large, moved), Some(Gone { start: PAGE, bytes: PAGE }));
    assert_eq!(read(&mut mmu, PAGE), Translation::Found { bus: 9 * PAGE, bytes: PAGE });
    mmu.write_entry(Pages::Large, words(Pages::Large, PAGE, 0, false));
    assert_eq!(read(&mut mmu, PAGE), Translation::Waits);
}

#[test]
fn large_pages_come_first_and_small_ones_fill_what_they_leave() {
    let mut mmu = mmu();
    mmu.write_entry(Pages::Small, words(Pages::Small, 0x5000, 0xa000, true));
    assert_eq!(read(&mut mmu, 0x5010), Translation::Found { bus: 0xa010, bytes: 0xff0 });
    insert(&mut mmu, 0);
    // The page found last still holds; another direction looks anew.
    assert!(matches!(
        mmu.translate(MemoryDirection::Write, 0x5010, 8),
        Translation::Found { bus: 0x5010, .. }
    ));
}

#[test]
fn nothing_is_looked_up_while_the_tlb_is_locked() {
    let mut mmu = mmu();
    insert(&mut mmu, 1);
    mmu.toggle_lock();
    assert_eq!(read(&mut mmu, PAGE), Translation::Waits);
    assert_eq!(mmu.take_news(), [None, None], "that is no fault");
    assert!(mmu.waits());
    mmu.toggle_lock();
    assert!(matches!(read(&mut mmu, PAGE), Translation::Found { .. }));
}

#[test]
fn more_pages_than_a_set_has_ways_are_all_reached_by_asking_again() {
    let mut mmu = mmu();
    // Large pages 512 apart share a set of two ways.
    let pages: Vec<u64> = (0..5).map(|i| 7 + i * 512).collect();
    for round in 0..3 {
        for &page in &pages {
            if read(&mut mmu, page * PAGE) == Translation::Waits {
                insert(&mut mmu, page);
                mmu.restart(MemoryDirection::Read, true);
            }
            let found = Translation::Found { bus: page * PAGE, bytes: PAGE };
            assert_eq!(read(&mut mmu, page * PAGE), found, "round {round}, page {page}");
        }
    }
    assert_eq!(mmu.counters.faults, 15, "a set of two ways keeps none of five for a round");
}

#[test]
fn addresses_end_where_those_of_the_bus_do() {
    let unit = Unit::new(mmu(), Rc::new(Bus::default()));
    let end = 1 << 44;
    assert!(unit.reachable(0, end) && unit.reachable(end - 1, 1));
    assert!(!unit.reachable(end - 1, 2) && !unit.reachable(end, 1) && !unit.reachable(1, u64::MAX));
}

#[test]
fn where_there_is_no_memory_there_are_no_pages_either() {
    let mut mmu = mmu().of_vfpga(1);
    mmu.toggle_lock();
    let found = |vaddr| Translation::Found { bus: vaddr, bytes: u64::MAX - vaddr };
    for vaddr in [NULL_MEMORY, NULL_MEMORY + 77] {
        assert_eq!(read(&mut mmu, vaddr), found(vaddr));
    }
    assert_eq!(mmu.take_news(), [None, None]);
}

#[test]
fn the_cards_own_memory_has_no_pages_and_each_vfpga_has_its_part() {
    let bytes = u64::from(OWN_BYTES);
    for number in 0..3 {
        let mut mmu = mmu().of_vfpga(number);
        mmu.toggle_lock();
        let first = OWN_MEMORY + u64::from(number) * bytes;
        for within in [0, 77, bytes - 1] {
            let found = Translation::Found { bus: first + within, bytes: bytes - within };
            assert_eq!(read(&mut mmu, OWN_MEMORY + within), found);
        }
        for beyond in [bytes, bytes + 1, NULL_MEMORY - 1 - OWN_MEMORY] {
            assert_eq!(read(&mut mmu, OWN_MEMORY + beyond), Translation::Refused);
        }
        assert_eq!(mmu.take_news(), [None, None]);
    }
}
