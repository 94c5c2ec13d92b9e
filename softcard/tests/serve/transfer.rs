//! Whole transfers between two served cards on one cable.

use fpga_regs::engine::admin::{Opcode, SetGid};
use fpga_regs::engine::cqe::Status;
use fpga_regs::engine::window;

use crate::client::*;
use crate::driver::{BASE, Driver, Reach};
use crate::support::Served;

/// Bytes that tell where they belong.
fn pattern(length: usize) -> Vec<u8> {
    (0..length as u32).map(|n| (n * 7 + (n >> 8)) as u8).collect()
}

/// Writes from one card's guest to the other's.
fn writes(reach: [Reach; 2], length: usize, count: usize) {
    let served = Served::pair();
    let mut a = Driver::new(&served[0].socket(), reach[0], 1);
    let mut b = Driver::new(&served[1].socket(), reach[1], 2);
    let (mut from, mut to) = (a.create_qp(), b.create_qp());
    a.connect(&from, b.gid(), to.qpn);
    b.connect(&to, a.gid(), from.qpn);
    // Not at the start of a page, so that every piece spans two.
    a.allocate(192);
    let (source, target) = (a.register(length as u64), b.register(length as u64));
    for round in 0..count {
        let mut bytes = pattern(length);
        bytes[0] = round as u8;
        a.guest.write(source.address, &bytes);
        a.arm(&from);
        a.post_write(&mut from, source, length as u32, target);
        let done = a.wait(|a| {
            b.attend();
            a.poll(&mut from)
        });
        assert_eq!((done.status, done.qpn), (Status::Success, from.qpn));
        assert!(b.guest.read(target.address, length) == bytes, "round {round}");
    }
    assert!(b.poll(&mut to).is_none(), "a WRITE is not seen by its target");
    a.wait(|a| (a.interrupt.drain().unwrap() > 0).then_some(()));
}

#[test]
fn a_write_arrives_between_memories_mapped_page_by_page() {
    writes([Reach::Mapped; 2], 100_000, 3);
}

#[test]
fn a_write_arrives_between_memories_that_must_be_asked_for() {
    writes([Reach::Asked; 2], 20_000, 2);
}

#[test]
fn a_write_arrives_from_one_kind_of_memory_in_the_other() {
    writes([Reach::Mapped, Reach::Asked], 10_000, 1);
    writes([Reach::Asked, Reach::Mapped], 10_000, 1);
}

/// A card in the middle of a command, waiting for the guest's memory; its request is returned.
fn busy_card(driver: &mut Driver) -> Message {
    let command = SetGid { index: 2, valid: 1, vlan: 0, gid: [7; 16] };
    driver.submit(Opcode::SetGid, &command.encode());
    driver.client.hear_request()
}

#[test]
fn requests_that_cross_the_cards_are_answered_first() {
    let served = Served::new();
    let mut driver = Driver::new(&served.socket(), Reach::Asked, 1);
    let request = busy_card(&mut driver);
    assert_eq!(request.command, DMA_READ);
    // QEMU holds its lock until it has these answers.
    let magic = driver.client.read64(BAR4, 0x16_0000);
    assert_eq!(magic, window::MAGIC_VALUE);
    assert_eq!(driver.client.read(CONFIG, 0, 2).unwrap(), [0xee, 0x10]);
    driver.client.write(BAR2, 0x2084, &[4, 5, 6, 7]).unwrap();
    assert_eq!(driver.client.read64(BAR4, 0x16_0000), magic, "behind a write to other registers");
    driver.client.call(DMA_MAP, &map(3, 0, 0, 4096)).unwrap();
    driver.client.call(DMA_UNMAP, &unmap(0, 0, 4096)).unwrap();
    assert!(driver.client.requests.is_empty(), "one request at a time");
    driver.attend_to(&request);
    driver.wait(Driver::answer);
    assert_eq!(driver.client.read(BAR2, 0x2084, 4).unwrap(), [4, 5, 6, 7]);
}

#[test]
fn a_read_behind_a_write_that_waits_gets_its_answer_at_the_cost_of_the_cards_request() {
    let served = Served::new();
    let mut driver = Driver::new(&served.socket(), Reach::Asked, 1);
    let request = busy_card(&mut driver);
    let event_size = 0x16_0000 + window::EVENT_SIZE;
    driver.client.write64(BAR4, event_size, 9);
    assert_eq!(driver.client.read64(BAR4, event_size), 9);
    // The late answer belongs to no question; the card goes on.
    driver.attend_to(&request);
    driver.client.call(RESET, &[]).unwrap();
    drop(driver);
    Driver::new(&served.socket(), Reach::Mapped, 1);
}

#[test]
fn a_reset_does_not_wait_for_memory() {
    let served = Served::new();
    let mut driver = Driver::new(&served.socket(), Reach::Asked, 1);
    let _request = busy_card(&mut driver);
    driver.client.call(RESET, &[]).unwrap();
    assert_eq!(driver.client.read(CONFIG, 4, 2).unwrap(), [0, 0]);
}

#[test]
fn a_client_that_leaves_while_it_is_asked_leaves_the_card_to_the_next() {
    let served = Served::new();
    let mut driver = Driver::new(&served.socket(), Reach::Asked, 1);
    let _request = busy_card(&mut driver);
    drop(driver);
    Driver::new(&served.socket(), Reach::Mapped, 1);
}

#[test]
fn a_client_that_never_answers_is_given_up() {
    let served = Served::impatient();
    let mut driver = Driver::new(&served.socket(), Reach::Mapped, 1);
    // Its memory is now one that must be asked for.
    driver.client.call(DMA_UNMAP, &unmap(2, 0, 0)).unwrap();
    driver.client.call(DMA_MAP, &map(3, 0, BASE, 4 << 20)).unwrap();
    let command = SetGid { index: 2, valid: 1, vlan: 0, gid: [7; 16] };
    driver.submit(Opcode::SetGid, &command.encode());
    assert_eq!(driver.client.hear_request().command, DMA_READ);
    // Not even by talking of other things is time to be had.
    while driver.client.try_say(GET_INFO, NO_REPLY, &u32s(&[16, 0, 0, 0])) {}
    assert!(driver.client.hear().is_none());
    Driver::new(&served.socket(), Reach::Mapped, 1);
}

#[test]
fn a_client_that_refuses_or_garbles_its_memory_fails_the_transfer_only() {
    let served = Served::pair();
    let mut a = Driver::new(&served[0].socket(), Reach::Asked, 1);
    let mut b = Driver::new(&served[1].socket(), Reach::Mapped, 2);
    for garbled in [&[][..], &[0; 16], &[0; 5000]] {
        let (mut from, to) = (a.create_qp(), b.create_qp());
        a.connect(&from, b.gid(), to.qpn);
        b.connect(&to, a.gid(), from.qpn);
        let (source, target) = (a.register(4096), b.register(4096));
        a.post_write(&mut from, source, 4096, target);
        let failed = a.wait_but(
            |request| (request.payload[..8] == source.address.to_le_bytes()).then_some(garbled),
            |a| a.poll(&mut from),
        );
        assert_ne!(failed.status, Status::Success);
    }
}

#[test]
fn memory_that_was_unmapped_is_not_reached() {
    let served = Served::pair();
    let mut a = Driver::new(&served[0].socket(), Reach::Mapped, 1);
    let mut b = Driver::new(&served[1].socket(), Reach::Mapped, 2);
    let (mut from, to) = (a.create_qp(), b.create_qp());
    a.connect(&from, b.gid(), to.qpn);
    b.connect(&to, a.gid(), from.qpn);
    let (source, target) = (a.register(64 << 10), b.register(64 << 10));
    let page = (target.address + (32 << 10)) & !4095;
    assert!(page > BASE);
    b.client.call(DMA_UNMAP, &unmap(0, page, 4096)).unwrap();
    let before = b.guest.read(page, 4096);
    a.guest.write(source.address, &[0xa5; 64 << 10]);
    a.post_write(&mut from, source, 64 << 10, target);
    let failed = a.wait(|a| a.poll(&mut from));
    assert_ne!(failed.status, Status::Success);
    assert_eq!(b.guest.read(page, 4096), before);
}

#[test]
fn a_card_that_is_no_bus_master_reaches_nothing() {
    let served = Served::new();
    let mut driver = Driver::new(&served.socket(), Reach::Mapped, 1);
    driver.client.write(CONFIG, 4, &[0x02]).unwrap();
    let command = SetGid { index: 2, valid: 1, vlan: 0, gid: [7; 16] };
    driver.submit(Opcode::SetGid, &command.encode());
    // The read comes behind the command.
    driver.client.read64(BAR4, 0x16_0000);
    assert!(driver.answer().is_none());
}
