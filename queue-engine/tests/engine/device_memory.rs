//! The card's own memory: its parts and their owners, and bytes that go in and out.

use fpga_regs::engine::admin::{
    AdminStatus, AllocDm, CopyDm, CreateKey, DmDirection, KeyKind, ModifyKey, Opcode,
};
use fpga_regs::engine::key::Access;
use fpga_regs::engine::window::{self as w, Capabilities};
use queue_engine::{EngineConfig, Payload, Piece, RemoteAccess, RemoteRange};

use crate::engine::support::bench::{Bench, PDN, standard};
use crate::engine::support::device::{Device as _, Need, needs};
use crate::engine::support::manual::Manual;
use crate::engine::support::memory::OWN;

const ACCESS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::ZERO_BASED);

fn alloc(bench: &mut Bench<Manual>, length: u32, log2_alignment: u8) -> Result<u32, AdminStatus> {
    let completion = bench.run(Opcode::AllocDm, &AllocDm { length, log2_alignment }.encode());
    match completion.status {
        AdminStatus::Success => Ok(completion.result),
        status => Err(status),
    }
}

fn key(bench: &mut Bench<Manual>, dm: u32, offset: u64, length: u64) -> Result<u32, AdminStatus> {
    let kind = KeyKind::DeviceMemory;
    let command = CreateKey { va: 9, length, iova: offset, pdn: PDN, access: ACCESS, kind, dm };
    let completion = bench.run(Opcode::CreateKey, &command.encode());
    match completion.status {
        AdminStatus::Success => Ok(completion.result),
        status => Err(status),
    }
}

/// Where a part lies, as a key tells.
fn place(bench: &mut Bench<Manual>, dm: u32) -> u64 {
    let cq = bench.create_cq(2);
    let qp = bench.ready_qp(&cq);
    let rkey = key(bench, dm, 0, 1).unwrap();
    let access = RemoteAccess::Read;
    let mut pieces: Vec<Piece> = Vec::new();
    let payload = Payload::Remote { rkey, address: 0, access };
    bench.device.resolve(qp.qpn, payload, 0, 1, &mut pieces).unwrap();
    assert_eq!(bench.destroy(Opcode::DestroyKey, rkey), AdminStatus::Success);
    pieces[0].iova - OWN
}

#[test]
fn the_window_says_how_much_there_is() {
    needs!(Need::OtherLimits, Capabilities::DEVICE_MEMORY);
    let mut bench = Bench::new();
    assert_eq!(bench.read(w::LIMIT_DM), 64 << 10 | (64 << 10) << 32);
    let config = EngineConfig { device_memory: 4 << 20, ..standard() };
    let mut bench = Bench::with(config, Manual::default());
    assert_eq!(bench.read(w::LIMIT_DM), 4 << 20 | (1 << 20) << 32);
}

#[test]
fn parts_do_not_overlap_are_aligned_and_come_back() {
    needs!(Capabilities::DEVICE_MEMORY);
    let mut bench = Bench::new();
    let mut parts: Vec<(u32, u64, u64)> = Vec::new();
    for (step, (length, log2)) in [(1, 0), (65, 3), (4096, 12), (100, 6), (3, 13), (640, 7)]
        .into_iter()
        .cycle()
        .take(120)
        .enumerate()
    {
        match alloc(&mut bench, length, log2) {
            Ok(dm) => {
                let at = place(&mut bench, dm);
                let end = at + u64::from(length);
                assert!(at % (1 << log2) == 0 && end <= 64 << 10, "{at:#x} of {length}");
                let apart = |(_, start, behind): &(u32, u64, u64)| end <= *start || at >= *behind;
                assert!(parts.iter().all(apart), "step {step}: {at:#x}");
                parts.push((dm, at, end));
            }
            Err(status) => {
                assert_eq!(status, AdminStatus::NoResources, "step {step}");
                assert!(parts.len() > 10, "after {}", parts.len());
                let (dm, ..) = parts.swap_remove(step * 7 % parts.len());
                assert_eq!(bench.destroy(Opcode::FreeDm, dm), AdminStatus::Success);
                assert_eq!(bench.destroy(Opcode::FreeDm, dm), AdminStatus::NotFound);
            }
        }
    }
    for (dm, ..) in parts {
        assert_eq!(bench.destroy(Opcode::FreeDm, dm), AdminStatus::Success);
    }
    let all = alloc(&mut bench, 64 << 10, 0).unwrap();
    assert_eq!(alloc(&mut bench, 1, 0), Err(AdminStatus::NoResources));
    assert_eq!(bench.destroy(Opcode::FreeDm, all), AdminStatus::Success);
}

#[test]
fn what_cannot_be_given_out_is_refused() {
    needs!(Need::OtherLimits, Capabilities::DEVICE_MEMORY);
    let mut bench = Bench::new();
    for (length, log2) in [(0, 0), ((64 << 10) + 1, 0), (u32::MAX, 0), (64, 17), (64, 255)] {
        assert_eq!(alloc(&mut bench, length, log2), Err(AdminStatus::Invalid), "{length}, {log2}");
    }
    let capabilities = standard().capabilities.difference(w::Capabilities::DEVICE_MEMORY);
    let config = EngineConfig { capabilities, ..standard() };
    let mut bench = Bench::with(config, Manual::default());
    assert_eq!(alloc(&mut bench, 64, 0), Err(AdminStatus::Unsupported));
    assert_eq!(key(&mut bench, 5, 0, 8), Err(AdminStatus::Unsupported));
    assert_eq!(bench.destroy(Opcode::FreeDm, 5), AdminStatus::Unsupported);
    let copy = CopyDm::default().encode();
    assert_eq!(bench.status(Opcode::CopyDm, &copy), AdminStatus::Unsupported);
}

#[test]
fn bytes_go_in_and_out_at_any_offset_and_no_others_change() {
    needs!(Capabilities::DEVICE_MEMORY);
    let mut bench = Bench::new();
    let dm = alloc(&mut bench, 1000, 0).unwrap();
    let next = alloc(&mut bench, 64, 0).unwrap();
    let host = bench.memory.allocate(64 << 4);
    let mut truth = vec![0u8; 1000];
    let store = |bench: &Bench<Manual>, bytes: &[u8]| {
        for (at, word) in (host..).step_by(8).zip(bytes.chunks(8)) {
            let word: [u8; 8] = std::array::from_fn(|i| word.get(i).copied().unwrap_or(0xee));
            bench.memory.store(at, u64::from_le_bytes(word));
        }
    };
    let load = |bench: &Bench<Manual>| -> Vec<u8> {
        (0..128).flat_map(|word| bench.memory.load(host + 8 * word).to_le_bytes()).collect()
    };
    for step in 0..200u32 {
        let offset = step * 37 % 1000;
        let length = (step * 101 % 300).min(1000 - offset);
        let within = (offset % 64) as usize;
        let bytes: Vec<u8> = (0..1024).map(|i| (step * 13 + i) as u8).collect();
        store(&bench, &bytes);
        let to_card =
            CopyDm { host, offset, length, dm, log2_blocks: 4, direction: DmDirection::ToCard };
        bench.succeed(Opcode::CopyDm, &to_card.encode());
        let (from, to) = (offset as usize, (offset + length) as usize);
        truth[from..to].copy_from_slice(&bytes[within..within + length as usize]);
        store(&bench, &[0x55; 1024]);
        let direction = DmDirection::ToHost;
        let all = CopyDm { offset: 0, length: 1000, direction, ..to_card };
        bench.succeed(Opcode::CopyDm, &all.encode());
        assert_eq!(load(&bench)[..1000], truth, "step {step}");
    }
    // The part behind it keeps its bytes, and a new one has none of an old one.
    let other = CopyDm {
        host,
        offset: 0,
        length: 64,
        dm: next,
        log2_blocks: 0,
        direction: DmDirection::ToHost,
    };
    bench.succeed(Opcode::CopyDm, &other.encode());
    assert_eq!(load(&bench)[..64], [0; 64]);
    assert_eq!(bench.destroy(Opcode::FreeDm, dm), AdminStatus::Success);
    let again = alloc(&mut bench, 1000, 0).unwrap();
    let all = CopyDm { length: 1000, dm: again, log2_blocks: 4, ..other };
    bench.succeed(Opcode::CopyDm, &all.encode());
    assert_eq!(load(&bench)[..1000], [0; 1000]);
}

#[test]
fn copies_beyond_anything_are_refused_and_change_nothing() {
    needs!(Capabilities::DEVICE_MEMORY);
    let mut bench = Bench::new();
    let dm = alloc(&mut bench, 200, 0).unwrap();
    let host = bench.memory.allocate(64 << 2);
    let direction = DmDirection::ToCard;
    let sound = CopyDm { host, offset: 0, length: 200, dm, log2_blocks: 2, direction };
    let cases = [
        (CopyDm { dm: dm ^ 1, ..sound }, AdminStatus::NotFound),
        (CopyDm { length: 201, ..sound }, AdminStatus::Invalid),
        (CopyDm { offset: 1, ..sound }, AdminStatus::Invalid),
        (CopyDm { offset: u32::MAX, length: 2, ..sound }, AdminStatus::Invalid),
        (CopyDm { log2_blocks: 1, ..sound }, AdminStatus::Invalid),
        (CopyDm { log2_blocks: 11, ..sound }, AdminStatus::Invalid),
        (CopyDm { log2_blocks: 255, ..sound }, AdminStatus::Invalid),
        (CopyDm { direction: DmDirection(2), ..sound }, AdminStatus::Invalid),
        (CopyDm { host: host + 8, ..sound }, AdminStatus::BadAddress),
        (CopyDm { host: 64, ..sound }, AdminStatus::BadAddress),
        (CopyDm { host: OWN, ..sound }, AdminStatus::BadAddress),
        (sound, AdminStatus::Success),
        (CopyDm { length: 0, offset: 200, ..sound }, AdminStatus::Success),
    ];
    for (command, status) in cases {
        assert_eq!(bench.status(Opcode::CopyDm, &command.encode()), status, "{command:?}");
    }
}

#[test]
fn a_key_names_its_part_which_stays_as_long() {
    needs!(Capabilities::DEVICE_MEMORY);
    let mut bench = Bench::new();
    let _first = alloc(&mut bench, 100, 0).unwrap();
    let dm = alloc(&mut bench, 256, 0).unwrap();
    let at = place(&mut bench, dm);
    assert_eq!(at, 128);
    for (offset, length) in [(0, 257), (256, 1), (u64::MAX, 2), (1, u64::MAX)] {
        assert_eq!(key(&mut bench, dm, offset, length), Err(AdminStatus::Invalid), "{offset}");
    }
    assert_eq!(key(&mut bench, dm ^ 1, 0, 1), Err(AdminStatus::NotFound));
    let rkey = key(&mut bench, dm, 200, 56).unwrap();
    let cq = bench.create_cq(2);
    let qpn = bench.ready_qp(&cq).qpn;
    let access = RemoteAccess::Write;
    let memory = RemoteRange { rkey, va: 0, length: 56 };
    assert!(bench.device.allows(qpn, memory, access));
    assert!(!bench.device.allows(qpn, RemoteRange { length: 57, ..memory }, access));
    let mut pieces: Vec<Piece> = Vec::new();
    let payload = Payload::Remote { rkey, address: 6, access };
    bench.device.resolve(qpn, payload, 0, 50, &mut pieces).unwrap();
    assert_eq!(pieces, [Piece { iova: OWN + at + 206, length: 50 }]);
    // It is not turned into one of the host's, and none of the host's into it.
    let change = ModifyKey { va: 0, length: 8, iova: 0x1000, pdn: PDN, access: ACCESS, key: rkey };
    assert_eq!(bench.status(Opcode::ModifyKey, &change.encode()), AdminStatus::Invalid);
    let host = bench.register(64);
    let change = ModifyKey { iova: OWN, key: host.key, ..change };
    assert_eq!(bench.status(Opcode::ModifyKey, &change.encode()), AdminStatus::BadAddress);
    assert_eq!(bench.destroy(Opcode::FreeDm, dm), AdminStatus::Busy);
    assert_eq!(bench.destroy(Opcode::DestroyKey, rkey), AdminStatus::Success);
    assert!(!bench.device.allows(qpn, RemoteRange { length: 1, ..memory }, access));
    assert_eq!(bench.destroy(Opcode::FreeDm, dm), AdminStatus::Success);
}

#[test]
fn a_reset_takes_all_parts_back() {
    needs!(Capabilities::DEVICE_MEMORY);
    let mut bench = Bench::new();
    let dm = alloc(&mut bench, 64 << 10, 0).unwrap();
    key(&mut bench, dm, 0, 1).unwrap();
    bench.write(w::CONTROL, w::CONTROL_RESET);
    bench.start();
    assert_eq!(bench.destroy(Opcode::FreeDm, dm), AdminStatus::NotFound);
    assert_ne!(alloc(&mut bench, 64 << 10, 0).unwrap(), dm);
}
