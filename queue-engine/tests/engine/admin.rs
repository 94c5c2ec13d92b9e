//! Admin commands and their refusals.

use fpga_regs::engine::admin::{
    AdminStatus, Completion, CreateAh, CreateCq, CreateKey, CreateQp, CreateRq, Destroy, Header,
    KeyKind, ModifyKey, ModifyQp, Opcode, PortAttributes, ResizeCq, RqKind, SetGid, SetLink,
    SetNeighbour,
};
use fpga_regs::engine::key::{self, Access};
use fpga_regs::engine::qp::{Attributes, QpState, QpType};
use fpga_regs::engine::window as w;
use queue_engine::{EngineConfig, LocalGid};

use crate::engine::support::bench::{Bench, GID, PAGE, PDN, Region, standard, step_to};
use crate::engine::support::device::{Device as _, Need, needs};
use crate::engine::support::manual::Manual;

#[test]
fn a_completion_queue_is_made_and_destroyed() {
    let mut bench = Bench::new();
    let cq = bench.create_cq(3);
    assert_eq!(bench.destroy(Opcode::DestroyCq, cq.cqn), AdminStatus::Success);
    assert_eq!(bench.destroy(Opcode::DestroyCq, cq.cqn), AdminStatus::NotFound);
}

#[test]
fn a_completion_queue_is_refused_for_its_size_vector_or_memory() {
    let mut bench = Bench::new();
    let ring = bench.memory.allocate(64 + 256);
    let sound = CreateCq { ring, log2_entries: 2, page: PAGE, vector: 0 };
    let cases = [
        (CreateCq { log2_entries: 13, ..sound }, AdminStatus::Invalid),
        (CreateCq { log2_entries: 255, ..sound }, AdminStatus::Invalid),
        (CreateCq { page: 0, ..sound }, AdminStatus::Invalid),
        (CreateCq { vector: 1, ..sound }, AdminStatus::Invalid),
        (CreateCq { ring: ring + 8, ..sound }, AdminStatus::Invalid),
        (CreateCq { log2_entries: 3, ..sound }, AdminStatus::BadAddress),
        (CreateCq { ring: 0, ..sound }, AdminStatus::BadAddress),
        (CreateCq { ring: u64::MAX - 63, ..sound }, AdminStatus::BadAddress),
        (sound, AdminStatus::Success),
    ];
    for (command, status) in cases {
        assert_eq!(bench.status(Opcode::CreateCq, &command.encode()), status, "{command:?}");
    }
}

#[test]
fn a_receive_queue_is_refused_for_its_size_stride_kind_or_memory() {
    let mut bench = Bench::new();
    let ring = bench.memory.allocate(64 + (64 << 4));
    let sound =
        CreateRq { ring, log2_entries: 2, log2_stride: 2, page: PAGE, ..Default::default() };
    let cases = [
        (CreateRq { log2_entries: 11, ..sound }, AdminStatus::Invalid),
        (CreateRq { log2_stride: 4, ..sound }, AdminStatus::Invalid),
        (CreateRq { ring: ring + 32, ..sound }, AdminStatus::Invalid),
        (CreateRq { log2_entries: 3, ..sound }, AdminStatus::BadAddress),
        (CreateRq { log2_stride: 3, ..sound }, AdminStatus::BadAddress),
        (CreateRq { kind: RqKind::Xrc, ..sound }, AdminStatus::Unsupported),
        (CreateRq { kind: RqKind(9), ..sound }, AdminStatus::Unsupported),
        (CreateRq { kind: RqKind::Shared, ..sound }, AdminStatus::Success),
        (sound, AdminStatus::Success),
    ];
    for (command, status) in cases {
        assert_eq!(bench.status(Opcode::CreateRq, &command.encode()), status, "{command:?}");
    }
    assert_eq!(bench.destroy(Opcode::DestroyRq, 1), AdminStatus::NotFound);
}

#[test]
fn a_qp_is_refused_for_its_kind_size_memory_or_queues() {
    let mut bench = Bench::new();
    let (cq, rq) = (bench.create_cq(2), bench.create_rq(2, 0));
    let taken = bench.create_rq(2, 0);
    let taken = bench.create_qp(0, &cq, &cq, taken).rq.rqn;
    let sq_ring = bench.memory.allocate(64 + 256);
    let sound = CreateQp {
        sq_ring,
        log2_sq_blocks: 2,
        page: PAGE,
        kind: QpType::Rc,
        pdn: PDN,
        send_cqn: cq.cqn,
        receive_cqn: cq.cqn,
        rqn: rq.rqn,
        xrcdn: 0,
    };
    let cases = [
        (CreateQp { kind: QpType::Uc, ..sound }, AdminStatus::Unsupported),
        (CreateQp { kind: QpType::XrcSend, ..sound }, AdminStatus::Unsupported),
        (CreateQp { kind: QpType(0), ..sound }, AdminStatus::Unsupported),
        (CreateQp { log2_sq_blocks: 11, ..sound }, AdminStatus::Invalid),
        (CreateQp { sq_ring: sq_ring + 16, ..sound }, AdminStatus::Invalid),
        (CreateQp { log2_sq_blocks: 3, ..sound }, AdminStatus::BadAddress),
        (CreateQp { send_cqn: cq.cqn ^ 1, ..sound }, AdminStatus::NotFound),
        (CreateQp { receive_cqn: 0, ..sound }, AdminStatus::NotFound),
        (CreateQp { rqn: rq.rqn ^ 1, ..sound }, AdminStatus::NotFound),
        (CreateQp { rqn: taken, ..sound }, AdminStatus::Busy),
        (sound, AdminStatus::Success),
        (sound, AdminStatus::Busy),
    ];
    for (command, status) in cases {
        assert_eq!(bench.status(Opcode::CreateQp, &command.encode()), status, "{command:?}");
    }
}

#[test]
fn a_queue_is_refused_whose_page_is_not_open() {
    needs!(Need::Pages);
    let mut bench = Bench::new();
    let (cq, rq) = (bench.create_cq(2), bench.create_rq(2, 0));
    let ring = bench.memory.allocate(64 + 256);
    for page in [2, 3, 16, 200] {
        let command = CreateCq { ring, log2_entries: 2, page, vector: 0 };
        assert_eq!(bench.status(Opcode::CreateCq, &command.encode()), AdminStatus::Invalid);
        let command = CreateRq { ring, log2_entries: 2, page, ..CreateRq::default() };
        assert_eq!(bench.status(Opcode::CreateRq, &command.encode()), AdminStatus::Invalid);
        let command = CreateQp {
            sq_ring: ring,
            page,
            kind: QpType::Rc,
            send_cqn: cq.cqn,
            receive_cqn: cq.cqn,
            rqn: rq.rqn,
            ..CreateQp::default()
        };
        assert_eq!(bench.status(Opcode::CreateQp, &command.encode()), AdminStatus::Invalid);
    }
}

#[test]
fn a_transport_that_refuses_a_qp_leaves_no_trace_of_it() {
    needs!(Need::OtherLimits);
    let config = EngineConfig { qps: 1, ..standard() };
    let mut bench = Bench::with(config, Manual::default());
    let (cq, rq) = (bench.create_cq(2), bench.create_rq(2, 0));
    let sq_ring = bench.memory.allocate(128);
    let command = CreateQp {
        sq_ring,
        page: PAGE,
        kind: QpType::Rc,
        send_cqn: cq.cqn,
        receive_cqn: cq.cqn,
        rqn: rq.rqn,
        ..Default::default()
    };
    bench.transport.admin_refusal = Some(AdminStatus::NoResources);
    assert_eq!(bench.status(Opcode::CreateQp, &command.encode()), AdminStatus::NoResources);
    bench.transport.admin_refusal = None;
    bench.succeed(Opcode::CreateQp, &command.encode());
}

#[test]
fn objects_in_use_are_busy() {
    let mut bench = Bench::new();
    let (send, receive) = (bench.create_cq(2), bench.create_cq(2));
    let rq = bench.create_rq(2, 0);
    let qp = bench.create_qp(2, &send, &receive, rq);
    assert_eq!(bench.destroy(Opcode::DestroyCq, send.cqn), AdminStatus::Busy);
    assert_eq!(bench.destroy(Opcode::DestroyCq, receive.cqn), AdminStatus::Busy);
    assert_eq!(bench.destroy(Opcode::DestroyRq, qp.rq.rqn), AdminStatus::Busy);
    assert_eq!(bench.destroy(Opcode::DestroyQp, qp.qpn), AdminStatus::Success);
    assert_eq!(bench.destroy(Opcode::DestroyQp, qp.qpn), AdminStatus::NotFound);
    assert_eq!(bench.destroy(Opcode::DestroyCq, send.cqn), AdminStatus::Success);
    assert_eq!(bench.destroy(Opcode::DestroyCq, receive.cqn), AdminStatus::Success);
    assert_eq!(bench.destroy(Opcode::DestroyRq, qp.rq.rqn), AdminStatus::Success);
}

#[test]
fn tables_are_full_at_their_limit() {
    needs!(Need::OtherLimits);
    let config = EngineConfig { qps: 1, cqs: 2, rqs: 2, keys: 1, ..standard() };
    let mut bench = Bench::with(config, Manual::default());
    let (cq, _other) = (bench.create_cq(0), bench.create_cq(0));
    let (rq, spare) = (bench.create_rq(0, 0), bench.create_rq(0, 0));
    let qp = bench.create_qp(0, &cq, &cq, rq);
    let region = bench.register(64);

    let ring = bench.memory.allocate(128);
    let cq_command = CreateCq { ring, page: PAGE, ..Default::default() };
    let rq_command = CreateRq { ring, page: PAGE, ..Default::default() };
    let qp_command = CreateQp {
        sq_ring: ring,
        page: PAGE,
        kind: QpType::Rc,
        send_cqn: cq.cqn,
        receive_cqn: cq.cqn,
        rqn: spare.rqn,
        ..Default::default()
    };
    let key_command = CreateKey { length: 64, iova: ring, ..Default::default() };
    let full = AdminStatus::NoResources;
    assert_eq!(bench.status(Opcode::CreateCq, &cq_command.encode()), full);
    assert_eq!(bench.status(Opcode::CreateRq, &rq_command.encode()), full);
    assert_eq!(bench.status(Opcode::CreateQp, &qp_command.encode()), full);
    assert_eq!(bench.status(Opcode::CreateKey, &key_command.encode()), full);

    assert_eq!(bench.destroy(Opcode::DestroyQp, qp.qpn), AdminStatus::Success);
    bench.succeed(Opcode::CreateQp, &qp_command.encode());
    assert_eq!(bench.destroy(Opcode::DestroyKey, region.key), AdminStatus::Success);
    bench.succeed(Opcode::CreateKey, &key_command.encode());
}

#[test]
fn a_key_is_refused_for_its_kind_rights_range_or_memory() {
    let mut bench = Bench::new();
    let iova = bench.memory.allocate(4096);
    let sound = CreateKey {
        va: 0x1000,
        length: 4096,
        iova,
        pdn: PDN,
        access: Access::LOCAL_WRITE | Access::REMOTE_WRITE,
        kind: KeyKind::Region,
        dm: 0,
    };
    let cases = [
        (CreateKey { kind: KeyKind(9), ..sound }, AdminStatus::Unsupported),
        (CreateKey { access: Access::REMOTE_WRITE, ..sound }, AdminStatus::Invalid),
        (CreateKey { access: Access::REMOTE_ATOMIC, ..sound }, AdminStatus::Invalid),
        (CreateKey { va: u64::MAX - 4094, ..sound }, AdminStatus::Invalid),
        (CreateKey { iova: u64::MAX, ..sound }, AdminStatus::BadAddress),
        (CreateKey { access: Access::REMOTE_READ, ..sound }, AdminStatus::Success),
        (CreateKey { length: 0, iova: 0, ..sound }, AdminStatus::Success),
        (sound, AdminStatus::Success),
    ];
    for (command, status) in cases {
        assert_eq!(bench.status(Opcode::CreateKey, &command.encode()), status, "{command:?}");
    }
}

#[test]
fn a_key_is_refused_for_memory_that_is_not_mapped() {
    needs!(Need::Mappings);
    let mut bench = Bench::new();
    let Region { va, iova, key } = bench.register(4096);
    let (length, pdn, access) = (4097, PDN, Access::LOCAL_WRITE);
    let command = CreateKey { va, length, iova, pdn, access, ..CreateKey::default() };
    assert_eq!(bench.status(Opcode::CreateKey, &command.encode()), AdminStatus::BadAddress);
    let command = ModifyKey { va, length, iova, pdn, access, key };
    assert_eq!(bench.status(Opcode::ModifyKey, &command.encode()), AdminStatus::BadAddress);
}

#[test]
fn a_key_that_cannot_be_changed_keeps_what_it_has() {
    let mut bench = Bench::new();
    let Region { va, iova, key, .. } = bench.register(4096);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let sound = ModifyKey { va, length: 4096, iova, pdn: PDN, access, key };
    let cases = [
        (ModifyKey { key: key ^ 1, ..sound }, AdminStatus::NotFound),
        (ModifyKey { key: key ^ 0x100, ..sound }, AdminStatus::NotFound),
        (ModifyKey { access: Access::REMOTE_WRITE, ..sound }, AdminStatus::Invalid),
        (ModifyKey { va: u64::MAX - 4094, ..sound }, AdminStatus::Invalid),
        (sound, AdminStatus::Success),
    ];
    for (command, status) in cases {
        assert_eq!(bench.status(Opcode::ModifyKey, &command.encode()), status, "{command:?}");
    }
    assert_eq!(bench.destroy(Opcode::DestroyKey, key), AdminStatus::Success);
    assert_eq!(bench.status(Opcode::ModifyKey, &sound.encode()), AdminStatus::NotFound);
}

#[test]
fn a_key_is_destroyed_by_its_whole_name() {
    let mut bench = Bench::new();
    let region = bench.register(64);
    let other = key::key(key::number(region.key), key::variant(region.key) ^ 0x80);
    assert_eq!(bench.destroy(Opcode::DestroyKey, other), AdminStatus::NotFound);
    assert_eq!(bench.destroy(Opcode::DestroyKey, region.key), AdminStatus::Success);
    assert_eq!(bench.destroy(Opcode::DestroyKey, region.key), AdminStatus::NotFound);
}

#[test]
fn commands_that_are_not_offered_are_unsupported() {
    needs!(Need::OtherLimits);
    let capabilities = standard().capabilities.difference(w::Capabilities::RESIZE_CQ);
    let mut bench = Bench::with(EngineConfig { capabilities, ..standard() }, Manual::default());
    let resize = ResizeCq::default().encode();
    assert_eq!(bench.status(Opcode::ResizeCq, &resize), AdminStatus::Unsupported);
    for code in [0, 28, 200, 255] {
        assert_eq!(bench.destroy(Opcode(code), 1), AdminStatus::Unsupported, "{code}");
    }
}

#[test]
fn gids_reach_the_transport() {
    let mut bench = Bench::new();
    assert_eq!(bench.transport.gids[&0], LocalGid { gid: GID, vlan: 0 });
    bench.set_gid(15, Some([9; 16]));
    assert_eq!(bench.transport.gids[&15].gid, [9; 16]);
    let tagged = |vlan| SetGid { index: 14, valid: 1, vlan, gid: GID }.encode();
    assert_eq!(bench.status(Opcode::SetGid, &tagged(4095)), AdminStatus::Invalid);
    bench.succeed(Opcode::SetGid, &tagged(4094));
    assert_eq!(bench.transport.gids[&14], LocalGid { gid: GID, vlan: 4094 });
    bench.set_gid(14, None);
    bench.set_gid(15, None);
    assert_eq!(bench.transport.gids.len(), 1);
    let beyond = SetGid { index: 16, valid: 1, vlan: 0, gid: GID }.encode();
    assert_eq!(bench.status(Opcode::SetGid, &beyond), AdminStatus::Invalid);
}

#[test]
fn neighbours_reach_the_transport() {
    needs!(Need::Words);
    let mut bench = Bench::new();
    let neighbour = SetNeighbour { mac: [2, 0, 0, 0, 0, 9], valid: 1, gid: GID };
    bench.succeed(Opcode::SetNeighbour, &neighbour.encode());
    assert_eq!(bench.transport.neighbours[&GID], [2, 0, 0, 0, 0, 9]);
    bench.succeed(Opcode::SetNeighbour, &SetNeighbour { valid: 0, ..neighbour }.encode());
    assert!(bench.transport.neighbours.is_empty());
}

#[test]
fn a_gid_that_the_transport_refuses_stays_as_it_was() {
    let mut bench = Bench::new();
    bench.transport.admin_refusal = Some(AdminStatus::NoResources);
    let clear = SetGid::default().encode();
    assert_eq!(bench.status(Opcode::SetGid, &clear), AdminStatus::NoResources);
    bench.transport.admin_refusal = None;
    let cq = bench.create_cq(2);
    // The path of RTR names GID 0, which is there still.
    bench.ready_qp(&cq);
}

#[test]
fn the_port_is_what_the_transport_says() {
    let mut bench = Bench::new();
    let response = bench.memory.allocate(64);
    let [query] = Destroy::default().encode();
    let completion = bench.run_with(Opcode::QueryPort, &[query], response);
    assert_eq!(completion.status, AdminStatus::Unsupported);
    let port =
        PortAttributes { mac: [2, 1, 2, 3, 4, 5], link_up: 1, max_mtu: 5, active_mtu: 3, rate: 9 };
    bench.transport.port = Some(port);
    let completion = bench.run_with(Opcode::QueryPort, &[query], response);
    assert_eq!(completion.status, AdminStatus::Success);
    assert_eq!(PortAttributes::decode(&[bench.memory.load_block(response)]), port);
}

#[test]
fn a_link_goes_down_where_the_transport_can_take_it_down() {
    let mut bench = Bench::new();
    let set = |up| SetLink { up }.encode();
    assert_eq!(bench.status(Opcode::SetLink, &set(0)), AdminStatus::Unsupported);
    bench.transport.port = Some(PortAttributes { link_up: 1, ..PortAttributes::default() });
    // An unknown word for the cable counts as no cable.
    for (up, link_up) in [(0, 0), (1, 1), (2, 0)] {
        bench.succeed(Opcode::SetLink, &set(up));
        assert_eq!(bench.transport.port.map(|port| port.link_up), Some(link_up), "{up}");
    }
}

#[test]
fn counters_come_in_as_many_blocks_as_they_need() {
    let mut bench = Bench::new();
    let [query] = Destroy::default().encode();
    // Exactly three blocks are within reach.
    let response = bench.memory.allocate(3 * 64);
    bench.transport.counters = (100..120).collect();
    let completion = bench.run_with(Opcode::QueryCounters, &[query], response);
    assert_eq!(completion.status, AdminStatus::Success);
    let blocks: Vec<_> = (0..3).map(|i| bench.memory.load_block(response + 64 * i)).collect();
    let expected: Vec<u64> = (100..120).chain([0; 4]).collect();
    assert_eq!(blocks.as_flattened(), expected);
    bench.transport.counters = (0..25).collect();
    let completion = bench.run_with(Opcode::QueryCounters, &[query], response);
    assert_eq!(completion.status, AdminStatus::BadAddress);
}

#[test]
fn an_answer_needs_an_aligned_buffer_within_reach() {
    let mut bench = Bench::new();
    bench.memory.map(0, 4096);
    let cq = bench.create_cq(2);
    let qp = bench.ready_qp(&cq);
    let [query] = Destroy { number: qp.qpn }.encode();
    let response = bench.memory.allocate(64);
    let cases = [
        (0, AdminStatus::Invalid),
        (response + 8, AdminStatus::Invalid),
        (response, AdminStatus::BadAddress),
        (u64::MAX - 63, AdminStatus::BadAddress),
    ];
    for (response, status) in cases {
        let completion = bench.run_with(Opcode::QueryQp, &[query], response);
        assert_eq!(completion.status, status, "{response:#x}");
    }
    assert_eq!(bench.memory.load_block(0), [0; 8], "address 0 means no buffer");
    assert_eq!(bench.query(qp.qpn).state, QpState::Rts);
    let [query] = Destroy { number: 1 }.encode();
    let completion = bench.run_with(Opcode::QueryQp, &[query], response);
    assert_eq!(completion.status, AdminStatus::NotFound);
}

#[test]
fn a_command_whose_blocks_cannot_be_is_invalid_and_takes_one_block() {
    let mut bench = Bench::new();
    for blocks in [0, 5, 255] {
        let header = Header { opcode: Opcode::SetGid, blocks, tag: 7, response: 0 };
        bench.push_admin(&header.encode());
        bench.execute_admin();
        let expected = Completion {
            tag: 7,
            opcode: Opcode::SetGid,
            status: AdminStatus::Invalid,
            ..Default::default()
        };
        let completions = bench.admin_completions();
        assert_eq!(completions.len(), 1);
        assert_eq!(Completion { phase: 0, ..completions[0] }, expected, "{blocks} blocks");
    }
    bench.set_gid(1, Some([1; 16]));
}

#[test]
fn a_command_with_fewer_blocks_than_its_fields_need_is_invalid() {
    let mut bench = Bench::new();
    let cq = bench.create_cq(2);
    let qp = bench.ready_qp(&cq);
    let [head] = ModifyQp { qpn: qp.qpn }.encode();
    assert_eq!(bench.status(Opcode::ModifyQp, &[head]), AdminStatus::Invalid);
    assert_eq!(bench.status(Opcode::ModifyQp, &[head, [0; 8]]), AdminStatus::Invalid);
    if standard().capabilities.contains(w::Capabilities::UD) {
        let [ah, _] = CreateAh::default().encode();
        assert_eq!(bench.status(Opcode::CreateAh, &[ah]), AdminStatus::Invalid);
    }
    // More blocks than needed do no harm.
    let empty = Attributes::default().encode();
    let blocks = [head, empty[0], empty[1], [u64::MAX; 8]];
    assert_eq!(bench.status(Opcode::ModifyQp, &blocks), AdminStatus::Success);
}

#[test]
fn a_command_is_executed_once_it_is_there_in_whole() {
    let mut bench = Bench::new();
    let cq = bench.create_cq(2);
    let rq = bench.create_rq(0, 0);
    let qp = bench.create_qp(0, &cq, &cq, rq);
    let [mut head] = ModifyQp { qpn: qp.qpn }.encode();
    head[0] = Header { opcode: Opcode::ModifyQp, blocks: 3, ..Default::default() }.encode()[0][0];
    let [first, second] = step_to(QpState::Init).encode();
    bench.push_admin(&[head, first]);
    bench.execute_admin();
    assert!(bench.admin_completions().is_empty());
    bench.push_admin(&[second]);
    bench.execute_admin();
    let completions = bench.admin_completions();
    assert_eq!(completions.len(), 1);
    assert_eq!(completions[0].status, AdminStatus::Success);
    assert_eq!(bench.query(qp.qpn).state, QpState::Init);
}

#[test]
fn one_doorbell_executes_a_list_of_commands_in_order_across_the_end_of_the_ring() {
    let mut bench = Bench::new();
    for round in 0..20u16 {
        let commands = 5;
        for step in 0..commands {
            let tag = round * commands + step;
            let mut block = SetGid { index: 3, valid: 1, vlan: 0, gid: [tag as u8; 16] }.encode();
            let header = Header { opcode: Opcode::SetGid, blocks: 1, tag, response: 0 };
            block[0][0] = header.encode()[0][0];
            bench.push_admin(&block);
        }
        bench.execute_admin();
        let tags: Vec<_> = bench.admin_completions().iter().map(|c| c.tag).collect();
        let expected: Vec<_> = (round * commands..(round + 1) * commands).collect();
        assert_eq!(tags, expected);
    }
    assert_eq!(bench.transport.gids[&3].gid, [99; 16]);
}

#[test]
fn an_admin_producer_index_that_cannot_be_is_ignored() {
    let mut bench = Bench::new();
    for index in [17, 1000, u32::MAX] {
        let index = bench.admin_producer.wrapping_add(index);
        bench.write(w::ADMIN_DOORBELL, index.into());
        bench.settle();
        assert!(bench.admin_completions().is_empty(), "{index}");
    }
    bench.set_gid(1, Some([1; 16]));
}

#[test]
fn an_admin_completion_raises_an_interrupt_and_asking_clears_it() {
    let mut bench = Bench::new();
    assert!(bench.device.take_interrupt());
    assert!(!bench.device.take_interrupt());
    bench.set_gid(1, None);
    assert!(bench.device.take_interrupt());
}
