//! Every command, and every way to get it wrong.

use std::io::Write;
use std::os::fd::AsFd;

use hostmem::{Access, EventFd, SharedMapping, memfd};

use crate::client::*;
use crate::support::Served;

fn json(reply: &Message) -> String {
    let text = &reply.payload[4..];
    assert_eq!(text.last(), Some(&0));
    String::from_utf8(text[..text.len() - 1].to_vec()).unwrap()
}

#[test]
fn the_version_is_agreed_on_and_no_more_than_was_proposed() {
    let served = Served::new();
    let mut client = VfioUserClient::connect(&served.socket());
    let reply = client.propose(0, 0, CAPABILITIES).unwrap();
    assert_eq!(reply.payload[..4], [0, 0, 0, 0]);
    let agreed = r#"{"capabilities":{"max_data_xfer_size":1048576,"max_dma_maps":65535,"#
        .to_owned()
        + r#""max_msg_fds":16,"pgsizes":4096,"write_multiple":true}}"#;
    assert_eq!(json(&reply), agreed);
    assert!(reply.payload.len() <= 4 + CAPABILITIES.len(), "QEMU has no more room");
    assert_eq!(client.propose(0, 0, CAPABILITIES).unwrap_err(), EINVAL, "once is enough");

    for (minor, proposed, agreed) in [
        (
            9,
            r#"{"capabilities":{"pgsizes":4096,"frobnicate":{}}}"#,
            r#"{"capabilities":{"pgsizes":4096}}"#,
        ),
        (1, "{}", r#"{"capabilities":{}}"#),
        (1, "", r#"{"capabilities":{}}"#),
    ] {
        drop(client);
        client = VfioUserClient::connect(&served.socket());
        let reply = client.propose(0, minor, proposed).unwrap();
        assert_eq!((&reply.payload[..4], json(&reply).as_str()), (&[0, 0, 1, 0][..], agreed));
    }
}

#[test]
fn proposals_that_make_no_sense_are_refused() {
    let served = Served::new();
    let mut client = VfioUserClient::connect(&served.socket());
    assert_eq!(client.call(GET_INFO, &u32s(&[16, 0, 0, 0])).unwrap_err(), EINVAL, "too early");
    let deep = "[".repeat(10_000);
    for proposed in [
        "{",
        "[]",
        "7",
        r#"{"capabilities":[]}"#,
        r#"{"capabilities":{"max_msg_fds":"many"}}"#,
        r#"{"capabilities":{"max_data_xfer_size":-1}}"#,
        &deep,
    ] {
        assert_eq!(client.propose(0, 0, proposed).unwrap_err(), EINVAL, "{proposed}");
    }
    client.propose(0, 0, "{}").unwrap();
    let mut client = VfioUserClient::connect(&served.socket());
    assert!(client.hear().is_none(), "a second client is turned away");
}

#[test]
fn another_major_version_ends_the_connection() {
    let served = Served::new();
    let mut client = VfioUserClient::connect(&served.socket());
    assert_eq!(client.propose(1, 0, "{}").unwrap_err(), 93);
    assert!(client.is_ended());
    VfioUserClient::new(&served.socket());
}

#[test]
fn streams_that_make_no_sense_end_their_connection_only() {
    let served = Served::new();
    let headers = [
        u32s(&[0x0001_0001, 15, 0, 0]),
        u32s(&[0x0001_0001, 0, 0, 0]),
        u32s(&[0x0001_0001, u32::MAX, 0, 0]),
        u32s(&[0x0001_0001, (1 << 20) + 4097, 0, 0]),
        u32s(&[0x0001_0001, 16, 2, 0]),
        u32s(&[0x0001_0001, 16, 15, 0]),
    ];
    for header in headers {
        let mut client = VfioUserClient::connect(&served.socket());
        client.socket.write_all(&header).unwrap();
        assert!(client.is_ended());
    }
    let mut client = VfioUserClient::connect(&served.socket());
    client.socket.write_all(&[1, 2, 3]).unwrap();
    drop(client);
    assert_eq!(VfioUserClient::new(&served.socket()).read(CONFIG, 0, 2).unwrap(), [0xee, 0x10]);
}

#[test]
fn the_device_says_what_it_is_and_has() {
    let served = Served::new();
    let mut client = VfioUserClient::new(&served.socket());
    let info = client.call(GET_INFO, &u32s(&[16, 0, 0, 0])).unwrap();
    assert_eq!(info.payload, u32s(&[16, 3, 9, 5]));
    let ask = |argsz, index| [u32s(&[argsz, 0, index, 0]), u64s(&[0, 0])].concat();
    let sizes = [1u64 << 20, 0, 64 << 10, 0, 256 << 20, 0, 0, 4096, 0];
    for (index, size) in (0u32..).zip(sizes).filter(|(index, _)| *index != BAR4) {
        let info = client.call(GET_REGION_INFO, &ask(32, index)).unwrap();
        let flags = if size > 0 { 3 } else { 0 };
        assert_eq!(info.payload, [u32s(&[32, flags, index, 0]), u64s(&[size, 0])].concat());
        assert!(info.fds.is_empty());
    }
    for (index, flags, count) in [(0, 1, 0), (1, 1, 0), (2, 3, 32), (3, 1, 1), (4, 1, 1)] {
        let info = client.call(GET_IRQ_INFO, &u32s(&[16, 0, index, 0])).unwrap();
        assert_eq!(info.payload, u32s(&[16, flags, index, count]));
    }
    assert_eq!(client.call(GET_INFO, &u32s(&[15])).unwrap_err(), EINVAL);
    assert_eq!(client.call(GET_REGION_INFO, &ask(31, 0)).unwrap_err(), EINVAL);
    assert_eq!(client.call(GET_REGION_INFO, &ask(32, 9)).unwrap_err(), EINVAL);
    assert_eq!(client.call(GET_IRQ_INFO, &u32s(&[16, 0, 5, 0])).unwrap_err(), EINVAL);
}

#[test]
fn doorbell_pages_can_be_mapped_by_who_has_room_for_the_answer() {
    let served = Served::new();
    let mut client = VfioUserClient::new(&served.socket());
    let ask = |argsz| [u32s(&[argsz, 0, BAR4, 0]), u64s(&[0, 0])].concat();
    let bar =
        |argsz: u32, flags, at| [u32s(&[argsz, flags, BAR4, at]), u64s(&[256 << 20, 0])].concat();
    for short in [32, 111] {
        let info = client.call(GET_REGION_INFO, &ask(short)).unwrap();
        assert_eq!((info.payload, info.fds.len()), (bar(112, 3, 0), 0));
    }
    let info = client.call(GET_REGION_INFO, &ask(112)).unwrap();
    let areas: Vec<u64> =
        (0..4).flat_map(|window| [0x12_1000 + window * 0x4_0000, 0xf000]).collect();
    let capability = [u32s(&[0x0001_0001, 0, 4, 0]), u64s(&areas)].concat();
    assert_eq!(info.payload, [bar(112, 0xf, 32), capability].concat());
    let [file] = &info.fds[..] else { panic!("one descriptor comes with it") };
    for area in areas.chunks(2) {
        let bytes = area[1] as usize;
        SharedMapping::new(file.as_fd(), area[0], bytes, Access::ReadWrite).unwrap();
    }

    drop(client);
    let mut client = VfioUserClient::connect(&served.socket());
    client.propose(0, 0, r#"{"capabilities":{"max_msg_fds":0}}"#).unwrap();
    let info = client.call(GET_REGION_INFO, &ask(112)).unwrap();
    assert_eq!((info.payload, info.fds.len()), (bar(32, 3, 0), 0));
}

#[test]
fn regions_are_read_and_written_at_any_size_within_their_bounds() {
    let served = Served::new();
    let mut client = VfioUserClient::enabled(&served.socket());
    assert_eq!(client.read(BAR0, 0, 4).unwrap(), [0xce, 0xf1, 0x0f, 0x00]);
    assert_eq!(client.read(BAR0, 1, 2).unwrap(), [0xf1, 0x0f]);
    assert_eq!(client.read(BAR4, 0x12_0003, 9).unwrap()[..5], *b"BVQE1");
    assert!(client.read(BAR4, 0, 0).unwrap().is_empty());
    client.write64(BAR4, 0x12_0100, 0x1234_5678_9abc_def0);
    assert_eq!(client.read64(BAR4, 0x12_0100), 0x1234_5678_9abc_def0);
    assert_eq!(client.read(BAR4, 0x12_0104, 4).unwrap(), 0x1234_5678_u32.to_le_bytes());
    let whole = client.read(BAR2, 0, 64 << 10).unwrap();
    assert_eq!(whole[..4], [0x00, 0x00, 0xc0, 0x1f]);
    assert_eq!(client.read(BAR4, (256 << 20) - 8, 8).unwrap(), [0; 8]);
    for (region, offset, count) in [
        (BAR0, (1 << 20) - 3, 4),
        (BAR0, u64::MAX, 4),
        (BAR4, 256 << 20, 1),
        (CONFIG, 4095, 2),
        (1, 0, 1),
        (6, 0, 4),
        (8, 0, 1),
        (9, 0, 1),
        (u32::MAX, 0, 1),
    ] {
        assert_eq!(client.read(region, offset, count), Err(EINVAL), "{region} {offset:#x}");
        let data = vec![0; count as usize];
        assert_eq!(client.write(region, offset, &data), Err(EINVAL), "{region} {offset:#x}");
    }
    let too_much = access(BAR4, 0, (1 << 20) + 1, &[]);
    assert_eq!(client.call(REGION_READ, &too_much).unwrap_err(), E2BIG);
    assert_eq!(client.call(REGION_WRITE, &too_much).unwrap_err(), E2BIG);
    assert_eq!(client.call(REGION_WRITE, &access(BAR4, 0, 9, &[0; 8])).unwrap_err(), EINVAL);
    assert_eq!(client.read(BAR4, 0, 1 << 20).unwrap().len(), 1 << 20);
}

#[test]
fn posted_writes_are_done_before_what_follows_and_answered_by_nothing() {
    let served = Served::new();
    let mut client = VfioUserClient::enabled(&served.socket());
    for value in 0..100u64 {
        let write = access(BAR4, 0x12_0100, 8, &value.to_le_bytes());
        client.say(REGION_WRITE, NO_REPLY, &write, &[]);
        assert_eq!(client.read64(BAR4, 0x12_0100), value);
    }
    // Not even an error is.
    client.say(REGION_WRITE, NO_REPLY, &[], &[]);
    client.say(99, NO_REPLY, &[], &[]);
    assert_eq!(client.read64(BAR4, 0x12_0100), 99);
}

#[test]
fn many_writes_in_a_message_are_done_in_order_or_none_is() {
    let served = Served::new();
    let mut client = VfioUserClient::enabled(&served.socket());
    let multi = |writes: &[(u32, u64, u32, u64)]| {
        let writes = writes.iter().map(|(region, offset, count, data)| {
            access(*region, *offset, *count, &data.to_le_bytes())
        });
        let writes: Vec<_> = writes.collect();
        [u64s(&[writes.len() as u64]), writes.concat()].concat()
    };
    let done = client.call(
        WRITE_MULTI,
        &multi(&[(BAR4, 0x12_0100, 8, 1), (CONFIG, 0x0c, 1, 0x10), (BAR4, 0x12_0100, 8, 2)]),
    );
    assert_eq!(done.unwrap().payload, u64s(&[3]));
    assert_eq!((client.read64(BAR4, 0x12_0100), client.read(CONFIG, 0x0c, 1)), (2, Ok(vec![0x10])));
    for refused in [
        multi(&[(BAR4, 0x12_0100, 8, 7), (1, 0, 8, 7)]),
        multi(&[(BAR4, 0x12_0100, 9, 7)]),
        u64s(&[1]),
        u64s(&[u64::MAX]),
        vec![],
    ] {
        assert_eq!(client.call(WRITE_MULTI, &refused).unwrap_err(), EINVAL);
    }
    assert_eq!(client.call(WRITE_MULTI, &multi(&[])).unwrap().payload, u64s(&[0]));
    assert_eq!(client.read64(BAR4, 0x12_0100), 2);
}

#[test]
fn memory_space_gates_the_bars_and_a_reset_takes_all_back() {
    let served = Served::new();
    let mut client = VfioUserClient::enabled(&served.socket());
    client.write64(BAR4, 0x12_0100, 7);
    client.write(CONFIG, 4, &[0x04]).unwrap();
    assert_eq!(client.read64(BAR4, 0x12_0100), u64::MAX);
    client.write64(BAR4, 0x12_0100, 8);
    client.write(CONFIG, 4, &[0x06]).unwrap();
    assert_eq!(client.read64(BAR4, 0x12_0100), 7);

    // Device Control, Initiate Function-Level Reset.
    for reset in 0..2 {
        match reset {
            0 => client.write(CONFIG, 0x78, &[0x10, 0xa8]).unwrap(),
            _ => assert!(client.call(RESET, &[]).unwrap().payload.is_empty()),
        }
        assert_eq!(client.read(CONFIG, 4, 2).unwrap(), [0, 0]);
        client.write(CONFIG, 4, &[0x06]).unwrap();
        assert_eq!(client.read64(BAR4, 0x12_0100), 0);
        client.write64(BAR4, 0x12_0100, 9);
    }
}

#[test]
fn maps_are_taken_and_refused_one_by_one() {
    let served = Served::new();
    let mut client = VfioUserClient::new(&served.socket());
    let memory = memfd::create("guest", 1 << 20).unwrap();
    let fd = memory.as_fd();
    client.call_with(DMA_MAP, &map(3, 0, 0, 1 << 20), &[fd]).unwrap();
    client.call(DMA_MAP, &map(1, 0, 0xfffc_0000, 0x4_0000)).unwrap();
    assert_eq!(client.call_with(DMA_MAP, &map(3, 0, 0x8_0000, 4096), &[fd]).unwrap_err(), EEXIST);
    assert_eq!(client.call_with(DMA_MAP, &map(3, 0, 1 << 30, 2 << 20), &[fd]).unwrap_err(), EINVAL);
    assert_eq!(
        client.call_with(DMA_MAP, &map(3, 0, 1 << 30, 4096), &[fd, fd]).unwrap_err(),
        EINVAL
    );
    assert_eq!(client.call(DMA_UNMAP, &unmap(0, 0, 4096)).unwrap_err(), EINVAL, "cuts a map");
    assert_eq!(client.call(DMA_UNMAP, &unmap(1, 0, 1 << 20)).unwrap_err(), ENOTSUP);
    let gone = client.call(DMA_UNMAP, &unmap(0, 0, 1 << 20)).unwrap();
    assert_eq!(gone.payload, unmap(0, 0, 1 << 20));
    client.call(DMA_UNMAP, &unmap(0, 0, 1 << 20)).unwrap();
    client.call(DMA_UNMAP, &unmap(2, 0, 0)).unwrap();
    client.call(DMA_MAP, &map(3, 0, 0xfffc_0000, 0x4_0000)).unwrap();
}

#[test]
fn pipelined_maps_are_answered_in_order() {
    let served = Served::new();
    let mut client = VfioUserClient::new(&served.socket());
    let memory = memfd::create("guest", 64 << 12).unwrap();
    let ids: Vec<u16> = (0..64)
        .map(|page| {
            let payload = map(3, page << 12, page << 12, 4096);
            client.say(DMA_MAP, 0, &payload, &[memory.as_fd()])
        })
        .collect();
    for id in ids {
        client.reply_to(id).unwrap();
    }
    client.call(DMA_UNMAP, &unmap(0, 0, 2 << 20)).unwrap();
}

#[test]
fn interrupts_are_set_up_and_triggered_and_confused_requests_refused() {
    let served = Served::new();
    let mut client = VfioUserClient::enabled(&served.socket());
    let events: Vec<EventFd> = (0..16).map(|_| EventFd::new().unwrap()).collect();
    let fds: Vec<_> = events.iter().map(AsFd::as_fd).collect();
    // Eventfd, trigger; MSI-X; all 32 vectors in two messages.
    for start in [0, 16] {
        client.call_with(SET_IRQS, &u32s(&[20, 0x24, 2, start, 16]), &fds).unwrap();
    }
    client.call(SET_IRQS, &u32s(&[20, 0x21, 2, 3, 1])).unwrap();
    let chosen = [u32s(&[24, 0x22, 2, 20, 4]), vec![0, 1, 0, 0]].concat();
    client.call(SET_IRQS, &chosen).unwrap();
    let counts: Vec<u64> = events.iter().map(|event| event.drain().unwrap()).collect();
    let expected: Vec<u64> = (0..16).map(|n| u64::from(n == 3 || n == 5)).collect();
    assert_eq!(counts, expected);
    for refused in [
        u32s(&[20, 0x21, 2, 32, 1]),
        u32s(&[20, 0x21, 2, u32::MAX, u32::MAX]),
        u32s(&[20, 0x21, 5, 0, 1]),
        u32s(&[20, 0x31, 2, 0, 1]),
        u32s(&[20, 0x22, 2, 0, 1]),
        u32s(&[19, 0x21, 2, 0, 1]),
        u32s(&[20, 0x21, 2, 0]),
    ] {
        assert_eq!(client.call(SET_IRQS, &refused).unwrap_err(), EINVAL);
    }
    assert_eq!(client.call(SET_IRQS, &u32s(&[20, 0x09, 3, 0, 1])).unwrap_err(), ENOTSUP);
    client.call(SET_IRQS, &u32s(&[20, 0x21, 2, 0, 0])).unwrap();
    client.call(SET_IRQS, &u32s(&[20, 0x21, 2, 3, 1])).unwrap();
    assert_eq!(events[3].drain().unwrap(), 0);
}

#[test]
fn the_msix_table_is_kept_and_what_waits_shows_in_the_pending_bits() {
    let served = Served::new();
    let mut client = VfioUserClient::enabled(&served.socket());
    client.write(BAR2, 0x8010, &[0x11; 16]).unwrap();
    assert_eq!(client.read(BAR2, 0x8010, 16).unwrap(), [0x11; 16]);
    // Masked, triggered, unmasked without a waiting descriptor, and then with one.
    client.call(SET_IRQS, &u32s(&[20, 0x09, 2, 0, 32])).unwrap();
    client.call(SET_IRQS, &u32s(&[20, 0x21, 2, 7, 2])).unwrap();
    assert_eq!(client.read(BAR2, 0x8fe0, 8).unwrap(), [0x80, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(client.read(BAR2, 0x8fe1, 1).unwrap(), [1]);
    client.write(BAR2, 0x8fe0, &[0; 8]).unwrap();
    client.call(SET_IRQS, &u32s(&[20, 0x11, 2, 0, 32])).unwrap();
    assert_eq!(client.read64(BAR2, 0x8fe0), 0x180);
    let event = EventFd::new().unwrap();
    client.call_with(SET_IRQS, &u32s(&[20, 0x24, 2, 8, 1]), &[event.as_fd()]).unwrap();
    assert_eq!((event.drain().unwrap(), client.read64(BAR2, 0x8fe0)), (1, 0x80));
}

#[test]
fn what_is_not_offered_is_not_supported() {
    let served = Served::new();
    let mut client = VfioUserClient::new(&served.socket());
    for command in [0, GET_REGION_IO_FDS, DMA_READ, DMA_WRITE, 14, 16, 17, 18, 19, u16::MAX] {
        assert_eq!(client.call(command, &[0; 64]).unwrap_err(), ENOTSUP, "command {command}");
    }
    // Replies to nothing are overheard.
    client.say_as(7, DMA_READ, REPLY, &[1; 100], &[]);
    assert_eq!(client.read(CONFIG, 0, 2).unwrap(), [0xee, 0x10]);
}

#[test]
fn descriptors_where_none_belong_are_refused_and_closed() {
    let served = Served::new();
    let mut client = VfioUserClient::new(&served.socket());
    let (reader, writer) = nix::unistd::pipe().unwrap();
    for command in [GET_INFO, REGION_READ, RESET, DMA_UNMAP] {
        let refused = client.call_with(command, &[64; 64], &[writer.as_fd(); 16]);
        assert!(matches!(refused, Err(EINVAL | E2BIG)));
    }
    let refused = client.call_with(SET_IRQS, &u32s(&[20, 0x24, 2, 0, 1]), &[writer.as_fd()]);
    assert_eq!(refused.unwrap_err(), EINVAL);
    drop(writer);
    // All writers are closed: the end of the file.
    assert_eq!(nix::unistd::read(&reader, &mut [0]).unwrap(), 0);
}

#[test]
fn one_client_after_another_finds_the_card_reset_and_its_memory_let_go() {
    let served = Served::new();
    for _ in 0..3 {
        let mut client = VfioUserClient::new(&served.socket());
        assert_eq!(client.read(CONFIG, 4, 2).unwrap(), [0, 0]);
        client.write(CONFIG, 4, &[0x06]).unwrap();
        assert_eq!(client.read64(BAR4, 0x12_0100), 0);
        client.write64(BAR4, 0x12_0100, 7);
        let memory = memfd::create("guest", 4096).unwrap();
        client.call_with(DMA_MAP, &map(3, 0, 0, 4096), &[memory.as_fd()]).unwrap();
        let event = EventFd::new().unwrap();
        client.call_with(SET_IRQS, &u32s(&[20, 0x24, 2, 0, 1]), &[event.as_fd()]).unwrap();
    }
}
