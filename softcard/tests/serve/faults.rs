//! Page faults of a served card: entries that are not there, that go away, that have no room.

use fpga_regs::coyote::vfpga;
use fpga_regs::engine::cqe::Status;
use fpga_regs::engine::window;
use fpga_regs::engine::wqe::SendOpcode;

use crate::driver::{BASE, Driver, Qp, Reach};
use crate::support::Served;

/// Bytes that tell where they belong.
fn pattern(length: usize, seed: u32) -> Vec<u8> {
    (0..length as u32).map(|n| (n * 7 + (n >> 8) + seed) as u8).collect()
}

/// Two cards whose windows are connected.
fn connected(served: &[Served]) -> (Driver, Qp, Driver, Qp) {
    let mut a = Driver::new(&served[0].socket(), Reach::Mapped, 1);
    let mut b = Driver::new(&served[1].socket(), Reach::Mapped, 2);
    let (from, to) = (a.create_qp(), b.create_qp());
    a.connect(&from, b.gid(), to.qpn);
    b.connect(&to, a.gid(), from.qpn);
    (a, from, b, to)
}

/// Every page is its own.
fn identity(vaddr: u64) -> Option<u64> {
    Some(vaddr)
}

/// Memory that repeats the first GiB of [`identity`] in every GiB: such pages share sets of the TLB.
fn aliased(vaddr: u64) -> Option<u64> {
    Some(vaddr & 0x3fff_ffff | BASE)
}

#[test]
fn pages_that_share_a_set_are_all_reached_however_few_ways_it_has() {
    let served = Served::pair();
    let (mut a, mut from, mut b, _) = connected(&served);
    let length = 50_000;
    let (mut expected, mut writes) = (Vec::new(), Vec::new());
    for n in 0..6u32 {
        // 512 large pages apart, so in one set of two ways, on both sides.
        let alias = u64::from(n + 1) << 30;
        let (source, target) = (a.allocate(length), b.allocate(length));
        let bytes = pattern(length as usize, n);
        a.guest.write(source, &bytes);
        let source = a.register_as(source, source + alias, length);
        expected.push((target, bytes));
        let target = b.register_as(target, target + alias, length);
        writes.push((source, target));
    }
    for (source, target) in writes {
        a.post_write(&mut from, source, length as u32, target);
    }
    for _ in 0..6 {
        let done = a.wait(|a| {
            a.mend(aliased);
            b.mend(aliased);
            a.poll(&mut from)
        });
        assert_eq!(done.status, Status::Success);
    }
    for (target, bytes) in expected {
        assert!(b.guest.read(target, length as usize) == bytes);
    }
    for driver in [&mut a, &mut b] {
        assert!(driver.cnfg(vfpga::COUNT_PAGE_FAULTS) >= 6);
    }
}

/// Moves 1 MiB while both sides take every page back again and again, those of the rings too.
fn under_fire(opcode: SendOpcode) {
    let served = Served::pair();
    let (mut a, mut from, mut b, _) = connected(&served);
    let length = 1 << 20;
    let (here, there) = (a.register(length), b.register(length));
    let bytes = pattern(length as usize, 9);
    match opcode {
        SendOpcode::Write => a.guest.write(here.address, &bytes),
        _ => b.guest.write(there.address, &bytes),
    }
    a.post(opcode, &mut from, here, length as u32, there);
    let mut shots = 0;
    let done = a.wait(|a| {
        if shots < 50 {
            a.take_pages_back();
            b.take_pages_back();
        }
        shots += 1;
        a.mend(identity);
        b.mend(identity);
        a.poll(&mut from)
    });
    assert_eq!(done.status, Status::Success);
    let moved = match opcode {
        SendOpcode::Write => b.guest.read(there.address, length as usize),
        _ => a.guest.read(here.address, length as usize),
    };
    assert!(moved == bytes, "bytes differ");
    for driver in [&mut a, &mut b] {
        assert!(driver.cnfg(vfpga::COUNT_PAGE_FAULTS) > 0);
        assert_eq!(driver.engine(window::STATUS), window::STATUS_ENABLED);
    }
}

#[test]
fn a_write_is_whole_though_its_pages_go_away_under_way() {
    under_fire(SendOpcode::Write);
}

#[test]
fn a_read_is_whole_though_its_pages_go_away_under_way() {
    under_fire(SendOpcode::Read);
}

#[test]
fn a_refused_fault_fails_the_request_and_nothing_hangs() {
    let served = Served::pair();
    for (bad_source, status) in [(true, Status::LocalProtection), (false, Status::RemoteOperation)]
    {
        let (mut a, mut from, mut b, _) = connected(&served);
        let elsewhere = 5 << 30;
        let source = a.allocate(8192);
        let source = a.register_as(source, source + if bad_source { elsewhere } else { 0 }, 8192);
        let target = b.allocate(8192);
        let target = b.register_as(target, target + if bad_source { 0 } else { elsewhere }, 8192);
        a.post_write(&mut from, source, 8192, target);
        let failed = a.wait(|a| {
            a.mend(|_| None);
            b.mend(|_| None);
            a.poll(&mut from)
        });
        assert_eq!(failed.status, status);
        // Others are served as before.
        a.create_qp();
        b.create_qp();
    }
}

#[test]
fn an_engine_whose_rings_are_refused_stops_and_says_why() {
    let served = Served::new();
    let mut driver = Driver::new(&served.socket(), Reach::Mapped, 1);
    driver.create_qp();
    driver.take_pages_back();
    let status = driver.wait(|driver| {
        driver.mend(|_| None);
        let status = window::Status::decode(driver.engine(window::STATUS));
        status.fatal.then_some(status)
    });
    assert_eq!(status.fatal_code, window::FATAL_RING_UNREACHABLE);
    assert!(!status.enabled);
}
