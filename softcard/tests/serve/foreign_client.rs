//! The client of the `vfio_user` crate, which is not ours, drives a served card.

use std::os::fd::{AsFd, AsRawFd};

use hostmem::{Access, EventFd, SharedMapping, memfd};
use vfio_user::Client;

use crate::support::Served;

const BAR0: u32 = 0;
const BAR4: u32 = 4;
const CONFIG: u32 = 7;
const MSIX: u32 = 2;

fn read<const N: usize>(client: &mut Client, region: u32, offset: u64) -> [u8; N] {
    let mut bytes = [0; N];
    client.region_read(region, offset, &mut bytes).unwrap();
    bytes
}

#[test]
fn it_finds_the_card_its_regions_and_its_interrupts() {
    let served = Served::new();
    let mut client = Client::new(&served.socket()).unwrap();
    assert_eq!(read(&mut client, CONFIG, 0), [0xee, 0x10, 0x3f, 0x90]);
    let sizes: Vec<u64> = (0..9).map(|index| client.region(index).unwrap().size).collect();
    assert_eq!(sizes, [1 << 20, 0, 64 << 10, 0, 256 << 20, 0, 0, 4096, 0]);
    let shell = client.region(BAR4).unwrap();
    let areas: Vec<(u64, u64)> = shell.sparse_areas.iter().map(|a| (a.offset, a.size)).collect();
    let area = |window: u64| (0x12_1000 + window * 0x4_0000, 0xf000);
    assert_eq!(areas, [area(0), area(1), area(2), area(3)]);
    assert!(shell.file_offset.is_some() && client.region(BAR0).unwrap().file_offset.is_none());
    let irqs: Vec<u32> = (0..5).map(|index| client.get_irq_info(index).unwrap().count).collect();
    assert_eq!(irqs, [0, 0, 32, 1, 1]);
}

#[test]
fn registers_decode_once_memory_space_is_enabled_and_no_more_after_a_reset() {
    let served = Served::new();
    let mut client = Client::new(&served.socket()).unwrap();
    assert_eq!(read(&mut client, BAR0, 0), [0xff; 4]);
    client.region_write(CONFIG, 4, &[0x06, 0x00]).unwrap();
    assert_eq!(read(&mut client, BAR0, 0), 0x000f_f1ce_u32.to_le_bytes());
    assert_eq!(read::<8>(&mut client, BAR4, 0x12_0000), *b"BALBVQE1");
    assert_eq!(read::<3>(&mut client, BAR4, 0x12_0002), *b"LBV");
    client.reset().unwrap();
    assert_eq!(read(&mut client, CONFIG, 4), [0, 0]);
    assert_eq!(read(&mut client, BAR0, 0), [0xff; 4]);
}

#[test]
fn a_doorbell_stored_through_the_bar_shows_in_the_mapped_page() {
    let served = Served::new();
    let mut client = Client::new(&served.socket()).unwrap();
    client.region_write(CONFIG, 4, &[0x06, 0x00]).unwrap();
    client.region_write(BAR4, 0x1e_1000 + 8 * 9, &7u64.to_le_bytes()).unwrap();
    // A write is posted; a read waits for it.
    assert_eq!(read::<4>(&mut client, BAR0, 0), 0x000f_f1ce_u32.to_le_bytes());
    let shell = client.region(BAR4).unwrap();
    let file = shell.file_offset.as_ref().unwrap();
    let area = &shell.sparse_areas[3];
    let pages = SharedMapping::new(
        file.file().as_fd(),
        file.start() + area.offset,
        area.size as usize,
        Access::ReadWrite,
    );
    let pages = pages.unwrap();
    assert_eq!(pages.load_acquire_u64(8 * 9).unwrap(), 7);
    // The next client's pages are others.
    client.shutdown().unwrap();
    let next = Client::new(&served.socket()).unwrap();
    let file = next.region(BAR4).unwrap().file_offset.as_ref().unwrap().file().as_fd();
    let theirs = SharedMapping::new(file, 0x1e_1000, 4096, Access::ReadWrite).unwrap();
    pages.store_release_u64(8 * 9, 8).unwrap();
    assert_eq!(theirs.load_acquire_u64(8 * 9).unwrap(), 0);
}

#[test]
fn memory_is_mapped_and_unmapped_by_range() {
    let served = Served::new();
    let mut client = Client::new(&served.socket()).unwrap();
    let memory = memfd::create("guest", 64 << 12).unwrap();
    for page in 0..64u64 {
        client.dma_map(page << 12, page << 12, 4096, memory.as_raw_fd()).unwrap();
    }
    client.dma_unmap(0, 2 << 20).unwrap();
    client.dma_unmap(0, 2 << 20).unwrap();
    client.dma_map(0, 0, 64 << 12, memory.as_raw_fd()).unwrap();
}

#[test]
fn an_interrupt_reaches_the_counter_it_was_given() {
    let served = Served::new();
    let mut client = Client::new(&served.socket()).unwrap();
    client.region_write(CONFIG, 4, &[0x06, 0x00]).unwrap();
    let events: Vec<EventFd> = (0..4).map(|_| EventFd::new().unwrap()).collect();
    let fds: Vec<_> = events.iter().map(|event| event.as_fd().as_raw_fd()).collect();
    client.set_irqs(MSIX, 1 << 2 | 1 << 5, 0, 4, &fds).unwrap();
    client.set_irqs(MSIX, 1 << 0 | 1 << 5, 2, 1, &[]).unwrap();
    let counts: Vec<u64> = events.iter().map(|event| event.drain().unwrap()).collect();
    assert_eq!(counts, [0, 0, 1, 0]);
}

#[test]
fn one_client_may_follow_another_and_finds_the_card_reset() {
    let served = Served::new();
    for _ in 0..3 {
        let mut client = Client::new(&served.socket()).unwrap();
        assert_eq!(read(&mut client, CONFIG, 4), [0, 0]);
        client.region_write(CONFIG, 4, &[0x06, 0x00]).unwrap();
        // The loser of a race for the one place is turned away, and this one has left.
        client.shutdown().unwrap();
    }
}
