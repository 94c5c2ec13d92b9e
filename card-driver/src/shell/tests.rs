use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bitstreams::Manifest;
use fpga_regs::coyote::shell::Map;
use fpga_regs::coyote::tlb::{Entry, Geometry};
use fpga_regs::engine::admin::{AdminStatus, CreateCq, Opcode};

use super::*;
use crate::address::PortAddress;
use crate::bringup::bring_up;
use crate::device::{Device, Reach};
use crate::fake::FakeCard;
use crate::interrupts::Interrupts;
use crate::spaces::{Recall, Spaces};

const PAGE: u64 = 2 << 20;
const LARGE: Geometry = Geometry { page_bits: 21, order: 9, ways: 2 };

fn shell() -> (Arc<FakeCard>, Shell) {
    let card = Arc::new(FakeCard::with_interrupts(2));
    let backend: Arc<dyn CardBackend> = Arc::<FakeCard>::clone(&card);
    (card, Shell::new(0, backend, Bank::Plain, 2, Arc::new(SpacesOfWindows::new(LARGE, 2))))
}

/// A shell whose queue pairs have address spaces of their own.
fn shell_of(spaces: impl Spaces + 'static) -> (Arc<FakeCard>, Shell) {
    let card = Arc::new(FakeCard::with_interrupts(2));
    let backend: Arc<dyn CardBackend> = Arc::<FakeCard>::clone(&card);
    let translator = Arc::new(SpacesOfQps::new(Arc::new(spaces)));
    (card, Shell::new(0, backend, Bank::Plain, 2, translator))
}

/// The orders that a card got.
struct Orders {
    /// Pages inserted and removed, by vFPGA.
    entries: Vec<(u64, u64, bool)>,
    /// Answers to events, and orders, by vFPGA; locks aside.
    answers: Vec<(u64, IsrWrite)>,
}

fn told(card: &FakeCard) -> Orders {
    let mut told = Orders { entries: Vec::new(), answers: Vec::new() };
    let clear = IsrWrite { clear_pending: true, ..IsrWrite::default() };
    let mut first = 0;
    for (offset, value) in card.take_writes() {
        for index in 0..2 {
            let window = vfpga::large_tlb(index);
            if offset == window + vfpga::TLB_WORD_0 {
                first = value;
            } else if offset == window + vfpga::TLB_WORD_1 {
                let entry = Entry::decode([first, value], LARGE);
                told.entries.push((index, entry.vaddr / PAGE, entry.valid));
            } else if offset == isr(index) {
                let answer = IsrWrite::decode(value);
                told.answers.extend((!answer.lock && answer != clear).then_some((index, answer)));
            }
        }
    }
    told
}

/// First bytes of the pages that vFPGA 0 is to invalidate, with the process named, in order.
#[derive(Clone, Default)]
struct Invalidated(Arc<Mutex<Vec<(u64, u32)>>>);

impl Invalidated {
    /// Notes the pages that an order names when it arrives.
    fn note(&self, card: &FakeCard, offset: u64, value: u64) {
        let order = IsrWrite::decode(value);
        if offset == isr(0) && order.invalidate && !order.lock {
            let read = |register| card.read64(Bar::Shell, Bank::Plain.cnfg(0) + register);
            let process = IsrPid::decode(read(vfpga::ISR_PID)).hpid;
            lock(&self.0).push((read(vfpga::ISR_VADDR), process));
        }
    }
}

fn isr(index: u64) -> u64 {
    Bank::Plain.cnfg(index) + vfpga::ISR
}

#[test]
fn memory_is_inserted_once_and_taken_back_before_it_goes() {
    let (card, shell) = shell();
    shell.map(1, PAGE, 4096, Purpose::Payload);
    shell.map(1, PAGE + 8192, PAGE, Purpose::Payload);
    assert_eq!(told(&card).entries, [(1, 1, true), (1, 2, true)]);
    assert!(shell.unmap(1, &[(PAGE, 4096)]).unwrap());
    let Orders { entries, answers } = told(&card);
    assert_eq!(entries, [], "others are in that page");
    assert!(answers.is_empty());
    assert!(shell.unmap(1, &[(PAGE + 8192, PAGE)]).unwrap());
    let Orders { entries, answers } = told(&card);
    assert_eq!(entries, [(1, 1, false), (1, 2, false)]);
    let kinds: Vec<_> = answers.iter().map(|(_, isr)| isr.invalidate_last).collect();
    assert_eq!(kinds, [false, true], "each page, the last of them marked");
    assert_eq!(card.written(Bar::Shell, Bank::Plain.cnfg(1) + vfpga::ISR_LEN), PAGE);
}

#[test]
fn an_invalidation_that_is_not_confirmed_is_an_error() {
    let (card, shell) = shell();
    shell.map(0, 0, 4096, Purpose::Payload);
    card.script(|card, offset, value| {
        let silent = IsrWrite { invalidate_last: false, ..IsrWrite::decode(value) };
        card.pass(offset, if offset == isr(0) { silent.encode() } else { value });
    });
    let error = shell.unmap(0, &[(0, 4096)]).unwrap_err();
    assert!(matches!(error, Error::Dead { .. }));
    assert!(error.to_string().contains("does not confirm within 1s"), "{error}");
    // The regions of a program are many: the next one is not waited for, nor asked of it.
    card.script(FakeCard::pass);
    shell.map(0, PAGE, 4096, Purpose::Payload);
    shell.unmap(0, &[(PAGE, 4096)]).unwrap_err();
    // Another vFPGA is.
    shell.map(1, PAGE, 4096, Purpose::Payload);
    assert!(shell.unmap(1, &[(PAGE, 4096)]).unwrap());
}

/// A card whose invalidations end without a report.
fn silent(card: &FakeCard, offset: u64, value: u64) {
    let silent = IsrWrite { invalidate_last: false, ..IsrWrite::decode(value) };
    card.pass(offset, if offset == isr(0) { silent.encode() } else { value });
}

/// The end of an invalidation, as a card reports it late.
fn report_late(card: &FakeCard) {
    let late = IsrWrite { invalidate: true, invalidate_last: true, ..IsrWrite::default() };
    card.pass(isr(0), late.encode());
}

fn orders(card: &FakeCard) -> usize {
    told(card).answers.iter().filter(|(_, isr)| isr.invalidate_last).count()
}

#[test]
fn a_confirmation_that_comes_late_is_not_the_next_ones() {
    let (card, shell) = shell();
    (0..4).for_each(|page| shell.map(0, page * PAGE, 4096, Purpose::Payload));
    card.script(silent);
    shell.unmap(0, &[(0, 4096)]).unwrap_err();
    assert_eq!(orders(&card), 1);
    // Nothing more is asked of it before that has come.
    shell.unmap(0, &[(PAGE, 4096)]).unwrap_err();
    assert_eq!(orders(&card), 0);
    // It comes while the next one waits for it, whose own does not come.
    report_late(&card);
    silence_passes(&shell);
    shell.unmap(0, &[(2 * PAGE, 4096)]).unwrap_err();
    assert_eq!(orders(&card), 1);
    // A card that has confirmed all is believed again at once.
    report_late(&card);
    shell.attend().unwrap();
    card.script(FakeCard::pass);
    assert!(shell.unmap(0, &[(3 * PAGE, 4096)]).unwrap());
}

#[test]
fn one_who_gives_up_does_not_free_what_another_waits_for() {
    let (card, shell) = shell();
    lock(&shell.vfpgas[0].state).ordered = 2;
    report_late(&card);
    shell.attend().unwrap();
    drop(shell.unconfirmed(&shell.vfpgas[0]));
    let state = lock(&shell.vfpgas[0].state);
    assert_eq!([1, 2].map(|wanted| state.has_confirmed(wanted)), [true, false]);
}

#[test]
fn an_engine_that_starts_anew_owes_no_confirmation() {
    let (card, shell) = shell();
    (0..3).for_each(|page| shell.map(0, page * PAGE, 4096, Purpose::Payload));
    card.script(silent);
    shell.unmap(0, &[(0, 4096)]).unwrap_err();
    // It was lost.
    shell.begin_anew(0);
    card.script(FakeCard::pass);
    assert!(shell.unmap(0, &[(PAGE, 4096)]).unwrap());
    // It is reported behind a fault, and not heard of: it is not the next one's.
    card.script(silent);
    shell.unmap(0, &[(2 * PAGE, 4096)]).unwrap_err();
    card.fault(0, false, 8 * PAGE, 64);
    report_late(&card);
    shell.begin_anew(0);
    shell.map(0, 3 * PAGE, 4096, Purpose::Payload);
    shell.unmap(0, &[(3 * PAGE, 4096)]).unwrap_err();
}

/// A card that was brought up, with interrupts that the waiting thread serves.
fn device() -> (Arc<FakeCard>, Device) {
    let card = Arc::new(FakeCard::new(2));
    let (name, map, regions) = ("test".into(), Map::Since2026, Some(2));
    let manifest = Manifest { name, map, regions, ..Manifest::default() };
    let backend: Arc<dyn CardBackend> = Arc::<FakeCard>::clone(&card);
    let device = bring_up(0, backend, PortAddress::default_of(0), &manifest).unwrap();
    (card, device)
}

/// One of which queue pairs have address spaces of their own.
fn device_of(spaces: Rows) -> (Arc<FakeCard>, Device) {
    let (card, device) = device();
    device.shell.translate_by(Arc::new(SpacesOfQps::new(Arc::new(spaces))));
    (card, device)
}

fn silence_passes(shell: &Shell) {
    lock(&shell.vfpgas[0].state).silent = None;
}

#[test]
fn an_end_that_never_comes_is_waited_for_twice() {
    let (card, shell) = shell();
    (0..4).for_each(|page| shell.map(0, page * PAGE, 4096, Purpose::Payload));
    card.script(silent);
    shell.unmap(0, &[(0, 4096)]).unwrap_err();
    // A call in between does not wait.
    shell.unmap(0, &[(PAGE, 4096)]).unwrap_err();
    assert_eq!(shell.failure(0), None);
    silence_passes(&shell);
    shell.unmap(0, &[(2 * PAGE, 4096)]).unwrap_err();
    assert!(shell.failure(0).is_some() && shell.failure(1).is_none());
    silence_passes(&shell);
    shell.unmap(0, &[(3 * PAGE, 4096)]).unwrap_err();
    assert_eq!(lock(&shell.vfpgas[0].state).silent, None, "it was not waited for");
    // If it comes all the same, the card is believed again.
    card.script(FakeCard::pass);
    report_late(&card);
    shell.attend().unwrap();
    assert_eq!(shell.failure(0), None);
    shell.map(0, 5 * PAGE, 4096, Purpose::Payload);
    assert!(shell.unmap(0, &[(5 * PAGE, 4096)]).unwrap());
}

#[test]
fn an_engine_whose_mmu_does_not_confirm_is_given_up_and_started_anew() {
    let (card, mut device) = device();
    let _gsi = device.open_gsi().unwrap();
    let mut ranges = || {
        let range = device.arena.allocate(PAGE, 0, Instant::now()).unwrap();
        device.shell.map(0, range.start(), range.length(), Purpose::Payload);
        range
    };
    let ranges = [(); 3].map(|()| ranges());
    card.script(silent);
    device.take_back(0, &[&ranges[0]]).unwrap_err();
    assert_eq!(device.windows[0].engine.death(), None);
    silence_passes(&device.shell);
    device.take_back(0, &[&ranges[1]]).unwrap_err();
    let death = device.windows[0].engine.death().unwrap();
    assert!(death.contains("does not confirm that pages are gone"), "{death}");
    assert_eq!(device.windows[1].engine.death(), None);
    let commands = Arc::new(AtomicUsize::new(0));
    let (counted, shell) = (Arc::clone(&commands), Arc::clone(&device.shell));
    card.script(move |card, offset, value| {
        if offset == vfpga::user_csr(0) + fpga_regs::engine::window::ADMIN_DOORBELL {
            assert_eq!(shell.failure(0), None, "who looks meanwhile gives it up again");
            counted.fetch_add(1, Ordering::Relaxed);
        }
        card.pass(offset, value);
    });
    device.restart(0).unwrap();
    assert!(commands.load(Ordering::Relaxed) > 5, "those of queue pair 1");
    assert_eq!(device.windows[0].engine.death(), None);
    assert!(device.take_back(0, &[&ranges[2]]).unwrap());
}

/// Pages that are led away at each call; the reason of a refused command; and the number of reports that pages are
/// gone.
#[derive(Default)]
struct Rows(Mutex<VecDeque<Vec<Gone>>>, Mutex<Option<String>>, Arc<AtomicUsize>);

impl Rows {
    /// A page each, so many times, none of them next to another, and then none.
    fn of(count: u64) -> Self {
        let row = |at| vec![Gone { ctid: 5, vaddr: at * 8192, hpid: 1, words: [0; 2] }];
        Self(Mutex::new((0..count).map(row).collect()), Mutex::default(), Arc::default())
    }
}

impl Spaces for Rows {
    fn mend(&self, _: u8, _: u8, _: u64) -> Vec<[u64; 2]> {
        Vec::new()
    }

    fn replace(&self, _: u8, _: &[(u64, u64)], _: usize) -> Vec<Gone> {
        lock(&self.0).pop_front().unwrap_or_default()
    }

    fn settle(&self, _: u8, _: u32, _: bool) {}

    fn reason(&self, _: u8) -> Option<String> {
        lock(&self.1).take()
    }

    fn close(&self, vfpga: u8, _: u32, most: usize) -> Vec<Gone> {
        self.replace(vfpga, &[], most)
    }

    fn closed(&self, _: u8, _: u32) {}

    fn fill(&self, _: u8) -> Option<Vec<[u64; 2]>> {
        None
    }

    fn shut(&self, vfpga: u8, most: usize) -> Vec<Gone> {
        self.replace(vfpga, &[], most)
    }

    fn is_shut(&self, _: u8) {
        self.2.fetch_add(1, Ordering::Relaxed);
    }

    fn lapse(&self, _: u8) {}

    fn recall(&self, _: u8, _: Recall, _: &mut (u8, u64), _: usize) -> Vec<Gone> {
        Vec::new()
    }

    fn surface(&self, _: u8) -> Vec<[u64; 2]> {
        Vec::new()
    }

    fn surfaced(&self, _: u8) {}

    fn end(&self) {}
}

#[test]
fn memory_whose_pages_a_queue_pair_was_led_away_from_is_free_when_the_card_confirms_that() {
    let (card, shell) = shell_of(Rows::of(1));
    card.script(silent);
    shell.translator().end_space(&shell, 0, 5, false).unwrap_err();
    // None of its pages is there any more, but accesses to them may be under way.
    shell.unmap(0, &[(0, 4096)]).unwrap_err();
    assert!(shell.is_in_doubt(0) && shell.failure(0).is_none());
    report_late(&card);
    shell.attend().unwrap();
    assert!(shell.unmap(0, &[(0, 4096)]).unwrap());
    assert!(!shell.is_in_doubt(0));
}

#[test]
fn a_card_is_told_of_pages_as_soon_as_it_has_confirmed_the_ones_before() {
    let (card, shell) = shell_of(Rows::of(2));
    card.script(silent);
    shell.translator().end_space(&shell, 0, 5, false).unwrap_err();
    assert_eq!(orders(&card), 1);
    shell.translator().end_space(&shell, 0, 6, false).unwrap_err();
    assert_eq!(orders(&card), 0, "it owes one");
    assert!(shell.is_put_off(0) && !shell.is_put_off(1));
    assert!(shell.is_in_doubt(0) && shell.failure(0).is_none());
    report_late(&card);
    shell.attend().unwrap();
    assert_eq!(orders(&card), 1);
    assert!(!shell.is_put_off(0), "it has confirmed something");
    assert!(shell.is_in_doubt(0) && !shell.is_in_doubt(1));
    report_late(&card);
    assert!(shell.unmap(0, &[(0, 4096)]).unwrap());
    assert!(!shell.is_in_doubt(0));
    assert_eq!((orders(&card), shell.failure(0)), (0, None));
}

#[test]
fn pages_one_behind_the_other_are_one_order_and_gone_once_nothing_is_owed() {
    let page = |at: u64| Gone { ctid: 5, vaddr: at * 4096, hpid: 1, words: [0; 2] };
    let other = Gone { ctid: 6, vaddr: 12 * 4096, hpid: 2, words: [0; 2] };
    let rows = Rows(
        Mutex::new([(2..10).map(page).chain([page(11), other]).collect()].into()),
        Mutex::default(),
        Arc::default(),
    );
    let shut = Arc::clone(&rows.2);
    let (card, shell) = shell_of(rows);
    let lengths = Arc::<Mutex<Vec<_>>>::default();
    let notes = Arc::clone(&lengths);
    card.script(move |card, offset, value| {
        let cnfg = Bank::Plain.cnfg(0);
        if offset == cnfg + vfpga::ISR_LEN {
            lock(&notes).push(IsrLen::decode(value).length / 4096);
        }
        silent(card, offset, value);
    });
    shell.translator().shut(&shell, 0).unwrap_err();
    assert_eq!(*lock(&lengths), [8, 1, 1]);
    assert_eq!((orders(&card), shut.load(Ordering::Relaxed)), (1, 0));
    report_late(&card);
    shell.attend().unwrap();
    shell.translator().shut(&shell, 0).unwrap();
    assert_eq!((orders(&card), shut.load(Ordering::Relaxed)), (0, 1));
}

#[test]
fn a_card_that_confirms_something_is_not_waited_for_in_vain() {
    let (card, shell) = shell_of(Rows::of(2 + 2 * ROW as u64));
    card.script(silent);
    (0..2 + 2 * ROW)
        .for_each(|_| drop(shell.translator().end_space(&shell, 0, 5, false).unwrap_err()));
    let vain = || lock(&shell.vfpgas[0].state).vain;
    assert_eq!(vain(), 1);
    // The first end comes while the pages are waited for, of which it is not told all before the next.
    report_late(&card);
    silence_passes(&shell);
    shell.unmap(0, &[(0, 4096)]).unwrap_err();
    assert_eq!((vain(), orders(&card)), (0, 2));
    for times in 1..=2 {
        assert_eq!(shell.failure(0), None);
        silence_passes(&shell);
        shell.unmap(0, &[(0, 4096)]).unwrap_err();
        assert_eq!(vain(), times);
    }
    assert!(shell.failure(0).is_some() && !shell.is_put_off(0));
    // All ends come, and with each it is told of the next ones.
    (0..3).for_each(|_| {
        report_late(&card);
        shell.attend().unwrap();
    });
    assert!(!shell.is_in_doubt(0) && shell.failure(0).is_none());
}

#[test]
fn an_engine_of_balboads_starts_anew_when_its_card_owes_no_confirmation() {
    let (card, mut device) = device_of(Rows::of(1));
    let range = device.arena.allocate(PAGE, 0, Instant::now()).unwrap();
    card.script(silent);
    device.shell.translator().end_space(&device.shell, 0, 5, false).unwrap_err();
    device.release_iova(range, Reach::Engine(0));
    device.windows[0].engine.abandon("a test");
    let error = device.restart(0).unwrap_err();
    assert!(error.to_string().contains("only balboa reset balboa0 ends that"), "{error}");
    // Memory that the card may still write to is not given out, and the late end belongs to its own invalidation.
    assert_eq!(device.arena.lost_bytes(), PAGE);
    assert!(device.shell.is_in_doubt(0) && device.windows[0].engine.death().is_some());
    report_late(&card);
    device.shell.attend().unwrap();
    device.restart(0).unwrap();
    assert_eq!((device.arena.lost_bytes(), device.windows[0].engine.death()), (0, None));
}

#[test]
fn no_command_is_told_why_one_before_it_was_refused() {
    let why = Mutex::new(Some("another program's".to_owned()));
    let (card, mut device) = device_of(Rows(Mutex::default(), why, Arc::default()));
    card.window(0, |window| window.refuse.insert(Opcode::CreateCq, AdminStatus::NoResources));
    let refused = device.windows[0].engine.create_cq(&CreateCq::default()).unwrap_err();
    assert!(matches!(&refused, Error::Refused { detail, .. } if detail.is_empty()), "{refused}");
}

#[test]
fn a_fault_is_mended_from_the_shadow() {
    let (card, shell) = shell();
    shell.map(0, 4 * PAGE, PAGE, Purpose::Rings);
    assert_eq!(told(&card).entries, []);
    card.fault(0, true, 4 * PAGE + 100, 64);
    shell.attend().unwrap();
    let Orders { entries, answers } = told(&card);
    assert_eq!(entries, [(0, 4, true)]);
    let mended = IsrWrite { restart_write: true, success: true, ..IsrWrite::default() };
    assert_eq!(answers, [(0, mended)]);
    assert_eq!(shell.counts(), FaultCounts { refilled: 1, refused: 0 });
}

/// Where engine 0 is told of faults.
const FAULTS: u64 = vfpga::user_csr(0) + FAULT_REFUSED;

/// The notes of faults and the answers to faults of vFPGA 0, in the order in which a card got them.
fn notes(card: &FakeCard) -> Vec<Result<FaultRefused, IsrWrite>> {
    let note = |(offset, value): (u64, u64)| match offset {
        FAULTS => Some(Ok(FaultRefused::decode(value))),
        offset if offset == isr(0) => Some(Err(IsrWrite::decode(value))),
        _ => None,
    };
    let is_answer = |isr: &IsrWrite| isr.restart_read || isr.restart_write;
    let told = card.take_writes().into_iter().filter_map(note);
    told.filter(|told| told.as_ref().err().is_none_or(is_answer)).collect()
}

#[test]
fn an_engine_that_has_to_be_told_of_a_refused_fault_is_told_before_the_answer() {
    for is_write in [false, true] {
        let (card, shell) = shell();
        let address = 8 * PAGE + 64;
        let refused =
            IsrWrite { restart_read: !is_write, restart_write: is_write, ..IsrWrite::default() };
        card.fault(0, is_write, address, 64);
        shell.attend().unwrap();
        assert_eq!(notes(&card), [Err(refused)], "an engine that sees it by itself");
        shell.tell_faults(0);
        card.fault(0, is_write, address, 64);
        shell.attend().unwrap();
        assert_eq!(notes(&card), [Ok(FaultRefused { address, is_write }), Err(refused)]);
        // A note of the other direction is none of this.
        let other = FaultNotes { has_read: is_write, has_write: !is_write };
        card.set(Bar::Shell, FAULTS, other.encode());
        card.fault(0, is_write, address + 64, 64);
        shell.attend().unwrap();
        let address = address + 64;
        assert_eq!(notes(&card), [Ok(FaultRefused { address, is_write }), Err(refused)]);
        // One that is mended is not told.
        shell.map(0, address, 64, Purpose::Rings);
        card.fault(0, is_write, address, 64);
        shell.attend().unwrap();
        assert_eq!(notes(&card), [Err(IsrWrite { success: true, ..refused })]);
        assert_eq!(shell.counts(), FaultCounts { refilled: 1, refused: 3 });
    }
}

#[test]
fn an_engine_is_told_of_a_fault_once_it_has_used_the_note_of_the_one_before() {
    let (card, shell) = shell();
    shell.tell_faults(0);
    let used = FaultNotes { has_read: true, has_write: false };
    card.set(Bar::Shell, FAULTS, used.encode());
    card.fault(0, false, 8 * PAGE, 64);
    std::thread::scope(|scope| {
        let served = scope.spawn(|| shell.attend());
        let clear = IsrWrite { clear_pending: true, ..IsrWrite::default() }.encode();
        while card.written(Bar::Shell, isr(0)) != clear {
            std::thread::yield_now();
        }
        assert_eq!(card.written(Bar::Shell, FAULTS), 0);
        card.set(Bar::Shell, FAULTS, 0);
        served.join().unwrap().unwrap();
    });
    assert_eq!(notes(&card)[0], Ok(FaultRefused { address: 8 * PAGE, is_write: false }));
}

#[test]
fn a_fault_without_memory_or_of_another_address_space_is_refused() {
    let (card, shell) = shell();
    shell.map(0, 4 * PAGE, PAGE, Purpose::Payload);
    shell.map(1, 6 * PAGE, PAGE, Purpose::Payload);
    told(&card);
    card.fault(0, false, 6 * PAGE, 64);
    shell.attend().unwrap();
    let drop = IsrWrite { restart_read: true, ..IsrWrite::default() };
    let Orders { entries, answers } = told(&card);
    assert_eq!(answers, [(0, drop)], "the page is the other vFPGA's");
    assert_eq!(entries, []);
    card.set(Bar::Shell, Bank::Plain.cnfg(0) + vfpga::ISR_PID, 5);
    card.fault(0, false, 4 * PAGE, 64);
    shell.attend().unwrap();
    let Orders { entries, answers } = told(&card);
    assert_eq!(answers, [(0, drop)], "no address space 5 is known");
    assert_eq!(entries, []);
    assert_eq!(shell.counts(), FaultCounts { refilled: 0, refused: 2 });
}

#[test]
fn an_interrupt_that_was_left_over_clears_nothing() {
    let (card, shell) = shell();
    shell.map(0, 4 * PAGE, PAGE, Purpose::Rings);
    card.hold_clears();
    card.signal(0);
    shell.attend().unwrap();
    card.fault(0, false, 4 * PAGE, 64);
    card.let_clears_arrive();
    shell.attend().unwrap();
    assert_eq!(shell.counts().refilled, 1);
}

#[test]
fn who_waits_for_one_vfpga_serves_the_faults_of_the_others() {
    let (card, shell) = shell();
    shell.map(0, 0, PAGE, Purpose::Payload);
    shell.map(1, 4 * PAGE, PAGE, Purpose::Rings);
    card.fault(1, false, 4 * PAGE, 64);
    assert!(shell.unmap(0, &[(0, PAGE)]).unwrap());
    card.signal(1);
    let seen = [shell.signals(0), shell.signals(1)];
    assert!(!shell.wait(0, seen[0], Duration::ZERO).unwrap());
    assert!(shell.wait(1, seen[1], Duration::ZERO).unwrap(), "it was signalled meanwhile");
    assert_eq!(shell.counts().refilled, 1);
}

#[test]
fn a_thread_serves_while_another_waits_for_nothing_but_its_own() {
    let (card, shell) = shell();
    let shell = Arc::new(shell);
    let interrupts = Interrupts::serve(&shell).unwrap();
    shell.map(1, 4 * PAGE, PAGE, Purpose::Rings);
    for round in 0..1000 {
        let seen = shell.signals(1);
        card.fault(1, false, 4 * PAGE, 64);
        while !shell.wait(1, seen, Duration::from_secs(10)).unwrap() {}
        shell.map(0, PAGE * round, PAGE, Purpose::Payload);
        assert!(shell.unmap(0, &[(PAGE * round, PAGE)]).unwrap(), "round {round}");
    }
    // Once told to stop, it serves nothing more, and the waiting thread does.
    drop(interrupts);
    let seen = shell.signals(0);
    card.signal(0);
    assert_eq!(shell.signals(0), seen);
    assert!(shell.wait(0, seen, Duration::from_secs(10)).unwrap());
    assert_eq!(shell.counts().refused, 0);
}

#[test]
fn a_fault_amid_the_orders_of_an_invalidation_comes_again_and_spoils_none_of_them() {
    use vfpga::{ISR, ISR_LEN, ISR_PID, ISR_VADDR};
    let success = IsrWrite { restart_read: true, success: true, ..IsrWrite::default() };
    for register in [ISR, ISR_PID, ISR_VADDR, ISR_LEN] {
        let (card, shell) = shell();
        shell.map(0, 2 * PAGE, 2 * PAGE, Purpose::Payload);
        shell.map(0, 8 * PAGE, PAGE, Purpose::Rings);
        // The first write of the ISR is the lock's, ahead of all orders.
        let once = AtomicBool::new(true);
        let invalidated = Invalidated::default();
        let notes = invalidated.clone();
        card.script(move |card, offset, value| {
            notes.note(card, offset, value);
            card.pass(offset, value);
            if offset == Bank::Plain.cnfg(0) + register && once.swap(false, Ordering::Relaxed) {
                card.fault(0, false, 8 * PAGE + 64, 64);
            }
        });
        assert!(shell.unmap(0, &[(2 * PAGE, 2 * PAGE)]).unwrap());
        let invalidated = lock(&invalidated.0);
        for page in [2 * PAGE, 3 * PAGE] {
            let ours = (page, std::process::id());
            assert!(invalidated.contains(&ours), "behind {register:#x}: {invalidated:x?}");
        }
        let Orders { entries, answers } = told(&card);
        let restarts = answers.into_iter().filter(|(_, isr)| !isr.invalidate);
        assert_eq!(restarts.collect::<Vec<_>>(), [(0, success)], "behind {register:#x}");
        let inserted = entries.into_iter().filter(|(.., valid)| *valid);
        assert_eq!(inserted.map(|(_, page, _)| page).collect::<Vec<_>>(), [2, 3]);
        assert_eq!(shell.counts(), FaultCounts::default(), "nothing is known of it yet");
        card.fault(0, false, 8 * PAGE + 64, 64);
        shell.attend().unwrap();
        assert_eq!(told(&card).entries, [(0, 8, true)]);
        assert_eq!(shell.counts(), FaultCounts { refilled: 1, refused: 0 });
    }
}

#[test]
fn pages_of_many_ranges_are_taken_back_by_rows_with_a_confirmation_for_each() {
    const RANGES: u64 = 100;
    let (card, shell) = shell();
    let ranges: Vec<_> = (0..RANGES).map(|n| (n * 2 * PAGE, PAGE)).collect();
    ranges.iter().for_each(|&(start, length)| shell.map(0, start, length, Purpose::Payload));
    told(&card);
    let invalidated = Invalidated::default();
    let notes = invalidated.clone();
    card.script(move |card, offset, value| {
        notes.note(card, offset, value);
        card.pass(offset, value);
    });
    let (mut rows, mut confirmed, mut done) = (0, 0, false);
    while !done {
        done = shell.unmap(0, &ranges).unwrap();
        rows += 1;
        let Orders { entries, answers } = told(&card);
        assert!(entries.len() <= ROW && entries.iter().all(|(.., valid)| !valid));
        confirmed += answers.iter().filter(|(_, isr)| isr.invalidate_last).count();
    }
    assert_eq!(rows, RANGES as usize / ROW + 1);
    assert_eq!(confirmed, rows);
    let pages: Vec<_> = lock(&invalidated.0).iter().map(|(page, _)| *page).collect();
    assert_eq!(pages, ranges.iter().map(|(start, _)| *start).collect::<Vec<_>>());
}

#[test]
fn terabytes_cost_no_more_than_what_is_inserted_of_them() {
    let (card, shell) = shell();
    shell.map(0, 0, 4 << 40, Purpose::Payload);
    let inserted = told(&card).entries.len();
    assert!(inserted <= 64, "{inserted} entries");
    while !shell.unmap(0, &[(0, 4 << 40)]).unwrap() {}
    let Orders { entries, answers } = told(&card);
    let invalidated = answers.iter().filter(|(_, isr)| isr.invalidate).count();
    assert_eq!((entries.len(), invalidated), (inserted, inserted));
}
