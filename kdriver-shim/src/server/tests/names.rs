//! The names by which peers reach registered memory.

use fpga_regs::engine::window::Capabilities;

use super::*;

const LOCAL_WRITE: u32 = 1;
const REMOTE_WRITE: u32 = 2;
const REMOTE_READ: u32 = 4;
const ZERO_BASED: u32 = 1 << 5;

/// The answers to registrations by names other than the memory's address, and to changes of rights behind them.
fn outcomes(bench: &mut Bench) -> [Vec<Result<Response, Refusal>>; 2] {
    let peer = bench.provider();
    let (context, _fds) = bench.open(&peer, 0);
    let pdn = bench.pd(&peer, context.context);
    let memory = vec![0u8; 8192];
    let (address, length) = (memory.as_ptr() as u64, 4096);
    let mut ask = |request| bench.try_ask(&peer, &request).0;
    let mut reserve =
        |hca_va, access| ask(Request::ReserveMr { pdn, address, length, hca_va, access });
    let open = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ;
    let taken = vec![reserve(address, open), reserve(0, LOCAL_WRITE)];
    let mut others = vec![
        reserve(address + 1, open),
        reserve(address + 4096, REMOTE_READ),
        reserve(1 << 47, LOCAL_WRITE | REMOTE_WRITE),
        reserve(address, REMOTE_READ | ZERO_BASED),
    ];
    let Ok(Response::Reserved { mr, .. }) = taken[1] else { panic!("{taken:?}") };
    assert!(ask(Request::CommitMr { mr }).is_ok());
    others.push(ask(Request::ModifyMr { mr, pdn, access: REMOTE_READ }));
    [taken, others]
}

#[test]
fn what_peers_find_by_its_address_alone_has_no_other_name_for_them() {
    let [taken, others] = outcomes(&mut Bench::lacking(Capabilities::SEND, 1, 1));
    assert!(taken.iter().all(Result::is_ok), "{taken:?}");
    for other in others {
        let refusal = other.unwrap_err();
        assert_eq!(refusal.errno, Errno::EOPNOTSUPP as i32, "{refusal:?}");
        assert!(refusal.reason.contains("tunnel"), "{refusal:?}");
    }
    let [taken, others] = outcomes(&mut Bench::new(1, 1));
    assert!(taken.iter().chain(&others).all(Result::is_ok), "{taken:?} {others:?}");
}
