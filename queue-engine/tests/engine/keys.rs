//! The rights of remote peers: keys, rights of the QP, domains.

use fpga_regs::engine::admin::{CreateKey, KeyKind, ModifyKey, Opcode};
use fpga_regs::engine::key::Access;
use fpga_regs::engine::qp::{AttributeMask, Attributes, QpState};
use fpga_regs::engine::window::Capabilities;
use queue_engine::{Payload, Piece, RemoteAccess, RemoteRange, Unreachable};

use crate::engine::support::bench::{Bench, PDN, Region, sound_attributes};
use crate::engine::support::device::{Device as _, needs};
use crate::engine::support::manual::Manual;

struct Fixture {
    bench: Bench<Manual>,
    qpn: u32,
}

impl Fixture {
    fn new() -> Self {
        let mut bench = Bench::new();
        let cq = bench.create_cq(4);
        let qpn = bench.ready_qp(&cq).qpn;
        Self { bench, qpn }
    }

    /// Whether a peer may do it; asked both ways, which must agree.
    fn allows(&self, rkey: u32, address: u64, length: u32, access: RemoteAccess) -> bool {
        let engine = &self.bench.device;
        let memory = RemoteRange { rkey, va: address, length: length.into() };
        let allowed = engine.allows(self.qpn, memory, access);
        let payload = Payload::Remote { rkey, address, access };
        let mut pieces: Vec<Piece> = Vec::new();
        let resolved = engine.resolve(self.qpn, payload, 0, length, &mut pieces);
        if allowed {
            assert_eq!(resolved, Ok(()));
        }
        assert_eq!(pieces.len(), usize::from(resolved.is_ok() && length > 0));
        allowed
    }

    fn set_rights(&mut self, access: Access) {
        let mask = AttributeMask::ACCESS;
        let attributes = Attributes { mask, access: access.bits(), ..sound_attributes() };
        self.bench.modify(self.qpn, &attributes);
    }
}

use RemoteAccess::{Atomic, Read, Write};

#[test]
fn atomics_need_their_own_right_and_words_that_are_aligned_for_the_card() {
    needs!(Capabilities::ATOMIC);
    let mut fixture = Fixture::new();
    let rights = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC;
    let Region { va, key, .. } = fixture.bench.register_with(64, rights, PDN);
    assert!(!fixture.allows(key, va, 8, Atomic), "the QP does not");
    fixture.set_rights(Access::REMOTE_ATOMIC | Access::REMOTE_READ | Access::REMOTE_WRITE);
    assert!(fixture.allows(key, va, 8, Atomic) && fixture.allows(key, va + 56, 8, Atomic));
    assert!(!fixture.allows(key, va + 64, 8, Atomic) && !fixture.allows(key, va - 8, 8, Atomic));
    for access in [Read, Write] {
        assert!(!fixture.allows(key, va, 8, access));
    }
    let plain = fixture.bench.register(64);
    assert!(!fixture.allows(plain.key, plain.va, 8, Atomic));
    // A region may begin anywhere.
    let iova = fixture.bench.memory.allocate(64) + 4;
    let access = rights | Access::ZERO_BASED;
    let command =
        CreateKey { va: 0, length: 32, iova, pdn: PDN, access, kind: KeyKind::Region, dm: 0 };
    let key = fixture.bench.succeed(Opcode::CreateKey, &command.encode()).result;
    assert!(!fixture.allows(key, 8, 8, Atomic) && fixture.allows(key, 4, 8, Atomic));
}

#[test]
fn a_key_opens_its_region_to_the_last_byte_and_no_further() {
    let mut fixture = Fixture::new();
    let Region { va, key, .. } = fixture.bench.register(4096);
    for access in [Read, Write] {
        assert!(fixture.allows(key, va, 4096, access));
        assert!(fixture.allows(key, va + 4095, 1, access));
        assert!(!fixture.allows(key, va, 4097, access));
        assert!(!fixture.allows(key, va + 4095, 2, access));
        assert!(!fixture.allows(key, va - 1, 1, access));
        assert!(!fixture.allows(key, va + 4096, 1, access));
        assert!(!fixture.allows(key, 0, 1, access));
        assert!(!fixture.allows(key, u64::MAX, 2, access));
        assert!(!fixture.allows(key, va + 1, u32::MAX, access));
    }
    let engine = &fixture.bench.device;
    let memory = RemoteRange { rkey: key, va: va + 1, length: u64::MAX };
    assert!(!engine.allows(fixture.qpn, memory, Write));
}

#[test]
fn a_region_at_the_end_of_the_address_space_does_not_wrap() {
    let mut fixture = Fixture::new();
    let iova = fixture.bench.memory.allocate(4096);
    let va = u64::MAX - 4096;
    let command = fpga_regs::engine::admin::CreateKey {
        va,
        length: 4096,
        iova,
        pdn: PDN,
        access: Access::REMOTE_READ,
        ..Default::default()
    };
    let key = fixture.bench.succeed(Opcode::CreateKey, &command.encode()).result;
    assert!(fixture.allows(key, va, 4096, Read));
    assert!(fixture.allows(key, va + 4095, 1, Read));
    assert!(!fixture.allows(key, va + 4095, 2, Read));
    assert!(!fixture.allows(key, u64::MAX, 1, Read));
}

#[test]
fn both_the_key_and_the_qp_must_grant_the_right() {
    let (read, write) = (Access::REMOTE_READ, Access::REMOTE_WRITE | Access::LOCAL_WRITE);
    let sets = [Access::LOCAL_WRITE, read | Access::LOCAL_WRITE, write, read | write];
    for of_key in sets {
        for of_qp in sets {
            let mut fixture = Fixture::new();
            let Region { va, key, .. } = fixture.bench.register_with(64, of_key, PDN);
            fixture.set_rights(of_qp);
            for (access, right) in [(Read, Access::REMOTE_READ), (Write, Access::REMOTE_WRITE)] {
                let expected = of_key.contains(right) && of_qp.contains(right);
                assert_eq!(fixture.allows(key, va, 64, access), expected, "{of_key:?} {of_qp:?}");
            }
        }
    }
}

#[test]
fn keys_of_other_domains_variants_and_numbers_open_nothing() {
    let mut fixture = Fixture::new();
    let foreign = fixture.bench.register_with(64, Access::REMOTE_READ, PDN + 1);
    assert!(!fixture.allows(foreign.key, foreign.va, 1, Read));
    let Region { va, key, .. } = fixture.bench.register(64);
    for bit in 0..32 {
        assert!(!fixture.allows(key ^ 1 << bit, va, 1, Read), "bit {bit}");
    }
    assert!(fixture.allows(key, va, 1, Read));
    let memory = RemoteRange { rkey: key, va, length: 1 };
    assert!(!fixture.bench.device.allows(fixture.qpn ^ 1, memory, Read));
}

#[test]
fn a_destroyed_key_opens_nothing_from_then_on() {
    let mut fixture = Fixture::new();
    let Region { va, key, .. } = fixture.bench.register(64);
    assert!(fixture.allows(key, va, 64, Write));
    fixture.bench.destroy(Opcode::DestroyKey, key);
    assert!(!fixture.allows(key, va, 64, Write));
}

#[test]
fn a_changed_key_opens_what_it_was_given_last_and_nothing_of_before() {
    let mut fixture = Fixture::new();
    let before = fixture.bench.register(64);
    let other = fixture.bench.register(128);
    let Region { va, iova, .. } = other;
    let modify = |fixture: &mut Fixture, access, pdn| {
        let command = ModifyKey { va, length: 128, iova, pdn, access, key: before.key };
        fixture.bench.succeed(Opcode::ModifyKey, &command.encode());
    };
    modify(&mut fixture, Access::REMOTE_READ, PDN);
    assert!(fixture.allows(before.key, va, 128, Read));
    assert!(!fixture.allows(before.key, va, 128, Write));
    assert!(!fixture.allows(before.key, before.va, 64, Read));
    let payload = Payload::Remote { rkey: before.key, address: va + 100, access: Read };
    let mut pieces: Vec<Piece> = Vec::new();
    assert_eq!(fixture.bench.device.resolve(fixture.qpn, payload, 0, 8, &mut pieces), Ok(()));
    assert_eq!(pieces, [Piece { iova: iova + 100, length: 8 }]);
    modify(&mut fixture, Access::REMOTE_READ, PDN + 1);
    assert!(!fixture.allows(before.key, va, 128, Read));
    assert!(fixture.allows(other.key, va, 128, Read), "the other key is as before");
}

#[test]
fn an_empty_access_needs_the_right_of_the_qp_and_no_key() {
    let mut fixture = Fixture::new();
    assert!(fixture.allows(0xdead, 0, 0, Read));
    fixture.set_rights(Access::REMOTE_WRITE | Access::LOCAL_WRITE);
    let nothing = RemoteRange { rkey: 0xdead, va: 0, length: 0 };
    assert!(!fixture.bench.device.allows(fixture.qpn, nothing, Read));
}

#[test]
fn a_reset_takes_the_rights_of_the_qp() {
    let mut fixture = Fixture::new();
    let Region { va, key, .. } = fixture.bench.register(64);
    assert!(fixture.allows(key, va, 1, Read));
    fixture.bench.go(fixture.qpn, QpState::Reset);
    let memory = RemoteRange { rkey: key, va, length: 1 };
    assert!(!fixture.bench.device.allows(fixture.qpn, memory, Read));
    // Nor are bytes moved that were allowed before.
    for access in [Read, Write] {
        let payload = Payload::Remote { rkey: key, address: va, access };
        let mut pieces: Vec<Piece> = Vec::new();
        let resolved = fixture.bench.device.resolve(fixture.qpn, payload, 0, 1, &mut pieces);
        assert_eq!((resolved, pieces), (Err(Unreachable), Vec::new()));
    }
}

#[test]
fn remote_payload_is_where_the_key_says() {
    let mut fixture = Fixture::new();
    let Region { va, iova, key, .. } = fixture.bench.register(4096);
    let payload = Payload::Remote { rkey: key, address: va + 100, access: Write };
    let mut pieces = vec![Piece { iova: 1, length: 1 }];
    let engine = &fixture.bench.device;
    assert_eq!(engine.resolve(fixture.qpn, payload, 77, 50, &mut pieces), Ok(()));
    assert_eq!(pieces[1..], [Piece { iova: iova + 100, length: 50 }]);
    let beyond = engine.resolve(fixture.qpn, payload, 0, 4000, &mut pieces);
    assert_eq!((beyond, pieces.len()), (Err(Unreachable), 2));
    let stranger = engine.resolve(1, payload, 0, 1, &mut pieces);
    assert_eq!((stranger, pieces.len()), (Err(Unreachable), 2));
}
