//! Requests of a tool for a whole card: resets, captures.

use std::io::Read as _;
use std::os::unix::net::UnixStream;

use bitstreams::Manifest;
use card_driver::address::PortAddress;
use card_driver::fake::FakeCard;
use card_driver::hosted::HostedOptions;
use card_driver::shell::SpacesOfQps;
use card_driver::spaces::{Gone, Recall, Spaces};
use fpga_regs::coyote::shell::Map;

use fpga_regs::coyote::vfpga::{self, Bank, IsrWrite};
use nix::errno::Errno;
use shim_abi::{CAPTURE_RING, MAX_CAPTURED_QPS, Request, Response, ServiceChain, ServiceUsers};

use super::*;

fn capture(card: u32) -> Request {
    let ring = *CAPTURE_RING.start();
    Request::Capture { card, qpns: vec![], address: None, snap: 0, ring }
}

#[test]
fn a_tool_resets_a_card_whose_programs_are_told_and_which_is_back_at_once() {
    let mut bench = Bench::new(2, 1);
    bench.serve_interrupts();
    let (peer, tool) = (bench.provider(), bench.tool());
    let (context, fds) = bench.open(&peer, 0);
    let (_, other_fds) = bench.open(&peer, 1);
    let reset = Request::ResetCard { card: 0 };
    assert_eq!(bench.refused(&peer, reset.clone()).errno, Errno::EPERM as i32);
    assert!(records(&fds[0]).is_empty(), "a program resets nothing");

    assert_eq!(bench.ask(&tool, reset.clone()).0, Response::Reset { programs: 1 });
    assert_eq!([records(&fds[0]).len(), records(&other_fds[0]).len()], [1, 0]);
    assert_eq!(lost(&fds[4]), 1);
    let request = create_cq(context.context, 6);
    let refusal = bench.refused(&peer, request);
    assert!(refusal.reason.contains("it was reset by `balboa reset`"), "{}", refusal.reason);
    bench.ask(&peer, Request::CloseContext { context: context.context });

    let (again, _fds) = bench.open(&peer, 0);
    let (cqn, _) = bench.cq(&peer, again.context, None);
    bench.ask(&peer, Request::DestroyCq { cqn });
    bench.ask(&peer, Request::CloseContext { context: again.context });
    // If no program has it open it is back at once.
    assert_eq!(bench.ask(&tool, reset).0, Response::Reset { programs: 0 });
    assert!(!bench.server.cards[0].device.is_dead());
    let refusal = bench.refused(&tool, Request::ResetCard { card: 7 });
    assert_eq!(refusal.errno, Errno::EINVAL as i32);
}

#[test]
fn a_tool_is_told_who_serves_and_by_which_options() {
    let mut bench = Bench::new(1, 1);
    let (peer, tool) = (bench.provider(), bench.tool());
    let long = "x".repeat(shim_abi::MAX_OPTIONS);
    let words = ["--soft", "2"].map(str::to_owned);
    // A word without room is left out, and so are those behind it.
    bench.server.was_told(words.iter().cloned().chain([long, "-v".to_owned()]));
    let (Response::Balboad { pid, network_namespace, options }, _) =
        bench.ask(&tool, Request::Introduce)
    else {
        panic!()
    };
    assert_eq!((pid, &*options), (std::process::id(), &words[..]));
    assert_eq!(network_namespace, shim_abi::network_namespace());
    assert_eq!(bench.refused(&peer, Request::Introduce).errno, Errno::EPERM as i32);
}

#[test]
fn a_capture_is_a_tools_within_its_limits_and_where_a_card_has_one() {
    let mut bench = Bench::new(1, 1);
    let (peer, tool) = (bench.provider(), bench.tool());
    assert_eq!(bench.refused(&peer, capture(0)).errno, Errno::EPERM as i32);
    assert_eq!(bench.refused(&peer, Request::EndCapture { card: 0 }).errno, Errno::EPERM as i32);
    let wanted = |qps: usize, ring| Request::Capture {
        card: 0,
        qpns: vec![1; qps],
        address: None,
        snap: 0,
        ring,
    };
    let (least, most) = (*CAPTURE_RING.start(), *CAPTURE_RING.end());
    for request in [
        wanted(MAX_CAPTURED_QPS + 1, least),
        wanted(0, least - 1),
        wanted(0, most + 1),
        capture(7),
        Request::EndCapture { card: 7 },
    ] {
        assert_eq!(bench.refused(&tool, request).errno, Errno::EINVAL as i32);
    }
    // The fake card is one behind VFIO in this: it has none.
    let refusal = bench.refused(&tool, capture(0));
    assert_eq!(refusal.errno, Errno::EOPNOTSUPP as i32);
    assert!(refusal.reason.contains("behind VFIO"), "{}", refusal.reason);
    assert_eq!(bench.ask(&tool, Request::EndCapture { card: 0 }).0, Response::Done);

    bench.cards[0].record_frames();
    let (answer, mut fds) = bench.ask(&tool, capture(0));
    assert_eq!(answer, Response::Capture);
    assert_eq!(bench.refused(&tool, capture(0)).errno, Errno::EBUSY as i32);
    assert_eq!(bench.ask(&tool, Request::EndCapture { card: 0 }).0, Response::Done);
    let mut bytes = Vec::new();
    UnixStream::from(fds.remove(0)).read_to_end(&mut bytes).unwrap();
    assert!(bytes.starts_with(&0x0a0d_0d0au32.to_ne_bytes()), "no capture: {bytes:?}");
}

#[test]
fn services_are_a_tools_and_only_where_a_card_has_a_place_for_them() {
    let mut bench = Bench::new(1, 1);
    let (peer, tool) = (bench.provider(), bench.tool());
    let attach = |card| {
        let services = vec!["preprocess".to_owned()];
        let chain = ServiceChain { services, ..ServiceChain::default() };
        Request::AttachServices { card, to: ServiceUsers::Qp(5), chain, replaces: false }
    };
    let detach = |card| Request::DetachServices { card, from: ServiceUsers::Qp(5), now: true };
    let load = |card| Request::LoadService { card, module: b"\0asm".to_vec() };
    let unload = |card| Request::UnloadService { card, name: "any".to_owned(), now: true };
    for (here, nowhere) in
        [(attach(0), attach(7)), (detach(0), detach(7)), (load(0), load(7)), (unload(0), unload(7))]
    {
        assert_eq!(bench.refused(&peer, here.clone()).errno, Errno::EPERM as i32);
        assert_eq!(bench.refused(&tool, nowhere).errno, Errno::EINVAL as i32);
        // The fake card is one behind VFIO in this, too.
        let refusal = bench.refused(&tool, here);
        assert_eq!(refusal.errno, Errno::EOPNOTSUPP as i32);
        assert!(refusal.reason.contains("behind VFIO"), "{}", refusal.reason);
    }
}

#[test]
fn services_are_attached_to_a_client_that_has_opened_the_card_and_to_a_dscp_that_there_is() {
    let mut bench = Bench::new(1, 1);
    let (peer, tool) = (bench.provider(), bench.tool());
    let attach = |to| {
        let chain = ServiceChain { services: vec!["preprocess".into()], ..Default::default() };
        Request::AttachServices { card: 0, to, chain, replaces: false }
    };
    let own = ServiceUsers::Process(std::process::id());
    for (to, why) in [
        (own, "has not opened balboa0"),
        (ServiceUsers::Process(0), "process 0 has not opened balboa0"),
        (ServiceUsers::Process(u32::MAX), "has not opened balboa0"),
        (ServiceUsers::Dscp(64), "DSCP 64: write a number from 0 to 63"),
    ] {
        let refusal = bench.refused(&tool, attach(to));
        assert_eq!(refusal.errno, Errno::EINVAL as i32);
        assert!(refusal.reason.contains(why), "{}", refusal.reason);
    }
    bench.open(&peer, 0);
    // This card has no place for services, and is asked.
    for to in [own, ServiceUsers::Dscp(63)] {
        assert_eq!(bench.refused(&tool, attach(to)).errno, Errno::EOPNOTSUPP as i32);
    }
}

#[test]
fn a_queue_pair_whose_services_have_no_place_is_not_made() {
    let mut bench = Bench::new(1, 1);
    let peer = bench.provider();
    let (context, _fds) = bench.open(&peer, 0);
    let pdn = bench.pd(&peer, context.context);
    let (cqn, _) = bench.cq(&peer, context.context, None);
    let wanted = |name: &str| {
        let chain = ServiceChain { services: vec![name.into()], ..Default::default() };
        Request::CreateQp(shim_abi::CreateQp { chain: Some(chain), ..wanted_qp(pdn, cqn) })
    };
    let refusal = bench.refused(&peer, wanted("nonsense"));
    assert_eq!(refusal.errno, Errno::EINVAL as i32);
    assert!(refusal.reason.contains("there is no service \"nonsense\""), "{}", refusal.reason);
    assert_eq!(bench.refused(&peer, wanted("preprocess")).errno, Errno::EOPNOTSUPP as i32);
    bench.ask(&peer, Request::DestroyCq { cqn });
    assert_eq!(leaked(&bench.server.cards[0]), Default::default());
}

/// One page of each queue pair, which is led away when that ends.
struct Paged;

impl Spaces for Paged {
    fn mend(&self, _: u8, _: u8, _: u64) -> Vec<[u64; 2]> {
        Vec::new()
    }

    fn replace(&self, _: u8, _: &[(u64, u64)], _: usize) -> Vec<Gone> {
        Vec::new()
    }

    fn settle(&self, _: u8, _: u32, _: bool) {}

    fn reason(&self, _: u8) -> Option<String> {
        None
    }

    fn close(&self, _: u8, _: u32, _: usize) -> Vec<Gone> {
        vec![Gone { ctid: 5, vaddr: 4096, hpid: 1, words: [0; 2] }]
    }

    fn closed(&self, _: u8, _: u32) {}

    fn fill(&self, _: u8) -> Option<Vec<[u64; 2]>> {
        None
    }

    fn shut(&self, _: u8, _: usize) -> Vec<Gone> {
        Vec::new()
    }

    fn is_shut(&self, _: u8) {}

    fn lapse(&self, _: u8) {}

    fn recall(&self, _: u8, _: Recall, _: &mut (u8, u64), _: usize) -> Vec<Gone> {
        Vec::new()
    }

    fn surface(&self, _: u8) -> Vec<[u64; 2]> {
        Vec::new()
    }

    fn surfaced(&self, _: u8) {}

    fn end(&self) {}
}

#[test]
fn an_engine_whose_card_confirms_late_starts_anew_behind_its_last_program() {
    let mut bench = Bench::new(1, 1);
    let card = Arc::clone(&bench.cards[0]);
    let translator = Arc::new(SpacesOfQps::new(Arc::new(Paged)));
    bench.server.cards[0].device.shell.translate_by(translator);
    let peer = bench.provider();
    let (context, _fds) = bench.open(&peer, 0);
    let isr = Bank::Plain.cnfg(0) + vfpga::ISR;
    card.script(move |card, offset, value| {
        let silent = IsrWrite { invalidate_last: false, ..IsrWrite::decode(value) };
        card.pass(offset, if offset == isr { silent.encode() } else { value });
    });
    let shell = Arc::clone(&bench.server.cards[0].device.shell);
    shell.translator().end_space(&shell, 0, 5, false).unwrap_err();
    bench.server.cards[0].window(0).unwrap().engine.abandon("a test");
    bench.ask(&peer, Request::CloseContext { context: context.context });
    drop(peer);
    bench.turn();
    assert!(bench.server.clients.is_empty() && bench.server.cards[0].device.is_dead());

    let late = IsrWrite { invalidate: true, invalidate_last: true, ..IsrWrite::default() };
    card.pass(isr, late.encode());
    shell.attend().unwrap();
    bench.turn();
    assert!(!bench.server.cards[0].device.is_dead());
    let peer = bench.provider();
    bench.open(&peer, 0);
}

#[test]
fn a_queue_pair_of_which_something_may_be_out_stays_and_ends_when_that_is_asked_for_again() {
    let mut bench = Bench::new(1, 1);
    let card = Arc::clone(&bench.cards[0]);
    let peer = bench.provider();
    let (context, _fds) = bench.open(&peer, 0);
    let pdn = bench.pd(&peer, context.context);
    let (cqn, _) = bench.cq(&peer, context.context, None);
    let qpn = bench.qp(&peer, pdn, cqn);
    let translator = Arc::new(SpacesOfQps::new(Arc::new(Paged)));
    bench.server.cards[0].device.shell.translate_by(translator);
    let isr = Bank::Plain.cnfg(0) + vfpga::ISR;
    card.script(move |card, offset, value| {
        let silent = IsrWrite { invalidate_last: false, ..IsrWrite::decode(value) };
        card.pass(offset, if offset == isr { silent.encode() } else { value });
    });
    for _ in 0..2 {
        let refusal = bench.refused(&peer, Request::DestroyQp { qpn });
        assert_eq!(refusal.errno, Errno::EIO as i32, "{}", refusal.reason);
    }
    assert!(!bench.server.cards[0].device.is_dead());

    card.script(FakeCard::pass);
    let late = IsrWrite { invalidate: true, invalidate_last: true, ..IsrWrite::default() };
    card.pass(isr, late.encode());
    bench.server.cards[0].device.shell.attend().unwrap();
    bench.ask(&peer, Request::DestroyQp { qpn });
    bench.ask(&peer, Request::DestroyCq { cqn });
    assert_eq!(leaked(&bench.server.cards[0]), Default::default());
}

#[test]
fn a_machine_that_does_not_let_balboad_have_what_a_card_needs_ends_it() {
    let start = |takings| {
        let card = Arc::new(FakeCard::new(1));
        card.fail_after(takings);
        let (name, map, regions) = ("test".into(), Map::Since2026, Some(1));
        let manifest = Manifest { name, map, regions, ..Manifest::default() };
        let address = PortAddress::default_of(0);
        Card::start(0, card, address, manifest, None, HostedOptions::default())
    };
    assert!(start(None).unwrap().failure.is_none());
    let error = start(Some(0)).map(drop).unwrap_err();
    assert_eq!(error.to_string(), "card back-end: there is no more");
}
