//! Address handles, and the Q_Keys of datagrams by them.

use fpga_regs::engine::qp::{AttributeMask, Attributes, QpState, QpType};
use fpga_regs::engine::window::Capabilities;
use shim_abi::{AddressVector, CreateQp};

use super::bench::{Peer, wanted_ah, wanted_qp};
use super::*;

fn owner(bench: &mut Bench) -> (Peer, u32, u32, Vec<OwnedFd>) {
    let peer = bench.provider();
    let (context, fds) = bench.open(&peer, 0);
    let pdn = bench.pd(&peer, context.context);
    (peer, context.context, pdn, fds)
}

#[test]
fn an_address_handle_keeps_its_domain_and_is_its_clients() {
    let mut bench = Bench::new(1, 1);
    let (peer, _, pdn, _fds) = owner(&mut bench);
    let ah = bench.ah(&peer, pdn);
    let refusal = bench.refused(&peer, Request::DeallocPd { pdn });
    assert_eq!(refusal.errno, Errno::EBUSY as i32);
    assert!(refusal.reason.contains("1 address handles"), "{refusal:?}");
    let other = bench.provider();
    let destroy = Request::DestroyAh { ah };
    assert_eq!(bench.refused(&other, destroy.clone()).errno, Errno::EINVAL as i32);
    assert_eq!(bench.refused(&other, wanted_ah(pdn)).errno, Errno::EINVAL as i32);
    assert_eq!(bench.ask(&peer, destroy.clone()).0, Response::Done);
    assert_eq!(bench.refused(&peer, destroy).errno, Errno::EINVAL as i32);
    bench.ask(&peer, Request::DeallocPd { pdn });
    bench.cards[0].window(0, |w| assert!(w.live.is_empty(), "{:?}", w.live));
}

#[test]
fn an_address_that_nobody_can_have_is_refused() {
    let mut bench = Bench::new(1, 1);
    let (peer, _, pdn, _fds) = owner(&mut bench);
    let Request::CreateAh { address, .. } = wanted_ah(pdn) else { unreachable!() };
    let wrong = [
        AddressVector { flow_label: 1 << 20, ..address },
        AddressVector { sgid_index: 255, ..address },
        AddressVector { dgid: [0; 16], ..address },
        AddressVector { static_rate: 1, ..address },
    ];
    for address in wrong {
        let refusal = bench.refused(&peer, Request::CreateAh { pdn, address });
        assert_eq!(refusal.errno, Errno::EINVAL as i32, "{address:?}: {refusal:?}");
    }
}

#[test]
fn a_card_without_datagrams_has_no_address_handles() {
    let mut bench = Bench::lacking(Capabilities::UD, 1, 1);
    let (peer, _, pdn, _fds) = owner(&mut bench);
    let refusal = bench.refused(&peer, wanted_ah(pdn));
    assert_eq!(refusal.errno, Errno::EOPNOTSUPP as i32, "{refusal:?}");
}

#[test]
fn a_client_cannot_have_a_privileged_qkey() {
    let mut bench = Bench::new(1, 1);
    let (peer, context, pdn, _fds) = owner(&mut bench);
    let (cqn, _) = bench.cq(&peer, context, None);
    let wanted = CreateQp { kind: QpType::Ud.0, ..wanted_qp(pdn, cqn) };
    let Response::Qp { qpn, .. } = bench.ask(&peer, Request::CreateQp(wanted)).0 else { panic!() };
    let mut to_init = |qkey| {
        let mask = AttributeMask::STATE
            | AttributeMask::PKEY_INDEX
            | AttributeMask::PORT
            | AttributeMask::QKEY;
        let state = QpState::Init;
        let attributes = Attributes { mask, state, port: 1, qkey, ..Attributes::default() };
        bench
            .try_ask(
                &peer,
                &Request::ModifyQp { qpn, first: None, attributes: attributes.encode() },
            )
            .0
    };
    let refusal = to_init(0x8001_0000).unwrap_err();
    assert_eq!(refusal.errno, Errno::EPERM as i32);
    assert!(refusal.reason.contains("0x80010000"), "{refusal:?}");
    to_init(0x7fff_ffff).unwrap();
}

#[test]
fn a_client_cannot_have_queue_pair_1() {
    let mut bench = Bench::new(1, 1);
    let (peer, context, pdn, _fds) = owner(&mut bench);
    let (cqn, _) = bench.cq(&peer, context, None);
    let gsi = bench.server.cards[0].device.open_gsi().unwrap();
    let wanted = CreateQp { kind: QpType::Gsi.0, ..wanted_qp(pdn, cqn) };
    for _ in 0..2 {
        let refusal = bench.refused(&peer, Request::CreateQp(wanted.clone()));
        assert_eq!(refusal.errno, Errno::EINVAL as i32);
        assert!(refusal.reason.contains("queue pair 1 is the driver's"), "{refusal:?}");
        // Where there is none, neither.
        bench.server.cards[0].device.close_gsi();
    }
    assert!(!gsi.is_open());
    let gsi = bench.server.cards[0].device.open_gsi().unwrap();
    // It is no client's.
    let attributes = Attributes { mask: AttributeMask::STATE, ..Attributes::default() };
    let group = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 7, 0, 2];
    for request in [
        Request::ModifyQp { qpn: 1, first: None, attributes: attributes.encode() },
        Request::QueryQp { qpn: 1 },
        Request::DestroyQp { qpn: 1 },
        Request::AttachMulticast { qpn: 1, group },
    ] {
        let refusal = bench.refused(&peer, request);
        assert_eq!(refusal.errno, Errno::EINVAL as i32, "{refusal:?}");
    }
    assert!(gsi.is_open());
    let offered = Capabilities::from_bits_retain(bench.open(&peer, 0).0.limits.capabilities);
    assert!(!offered.contains(Capabilities::GSI) && offered.contains(Capabilities::UD));
}
