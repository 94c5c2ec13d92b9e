//! Memory windows.

use fpga_regs::engine::window::Capabilities;

use super::bench::Peer;
use super::*;

fn owner(bench: &mut Bench) -> (Peer, u32, Vec<OwnedFd>) {
    let peer = bench.provider();
    let (context, fds) = bench.open(&peer, 0);
    let pdn = bench.pd(&peer, context.context);
    (peer, pdn, fds)
}

#[test]
fn a_memory_window_keeps_its_domain_and_is_its_clients() {
    let mut bench = Bench::new(1, 1);
    let (peer, pdn, _fds) = owner(&mut bench);
    for type_2 in [false, true] {
        let alloc = Request::AllocMw { pdn, type_2 };
        let Response::Mw { mw, rkey } = bench.ask(&peer, alloc.clone()).0 else { panic!() };
        assert_ne!(rkey, 0);
        let refusal = bench.refused(&peer, Request::DeallocPd { pdn });
        assert_eq!(refusal.errno, Errno::EBUSY as i32);
        assert!(refusal.reason.contains("1 memory windows"), "{refusal:?}");
        let other = bench.provider();
        let dealloc = Request::DeallocMw { mw };
        assert_eq!(bench.refused(&other, dealloc.clone()).errno, Errno::EINVAL as i32);
        assert_eq!(bench.refused(&other, alloc).errno, Errno::EINVAL as i32);
        assert_eq!(bench.ask(&peer, dealloc.clone()).0, Response::Done);
        assert_eq!(bench.refused(&peer, dealloc).errno, Errno::EINVAL as i32);
    }
    bench.ask(&peer, Request::DeallocPd { pdn });
    bench.cards[0].window(0, |w| assert!(w.live.is_empty(), "{:?}", w.live));
}

#[test]
fn memory_windows_end_with_their_client() {
    let mut bench = Bench::new(1, 1);
    let (peer, pdn, fds) = owner(&mut bench);
    for type_2 in [false, true, true] {
        bench.ask(&peer, Request::AllocMw { pdn, type_2 });
    }
    drop((peer, fds));
    bench.turn();
    bench.cards[0].window(0, |w| assert!(w.live.is_empty(), "{:?}", w.live));
}

#[test]
fn a_card_without_memory_windows_refuses_them() {
    let mut bench = Bench::lacking(Capabilities::MEMORY_WINDOW, 1, 1);
    let (peer, pdn, _fds) = owner(&mut bench);
    let refusal = bench.refused(&peer, Request::AllocMw { pdn, type_2: true });
    assert_eq!(refusal.errno, Errno::EOPNOTSUPP as i32, "{refusal:?}");
}
