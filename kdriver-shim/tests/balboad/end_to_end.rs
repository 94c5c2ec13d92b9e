//! A real balboad, real clients, real frames between two software cards.

use crate::common::Balboad;
use crate::node::Node;
use fpga_regs::engine::cqe::Status;
use nix::sys::signal::Signal;
use shim_abi::{Request, Response};

const BYTES: usize = 200_000;

fn pattern(at: usize) -> u64 {
    (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn connected(balboad: &Balboad) -> (Node, Node) {
    let mut a = Node::new(&balboad.dir, 0, BYTES);
    let mut b = Node::new(&balboad.dir, 1, BYTES);
    a.connect(b.gid, b.qpn);
    b.connect(a.gid, a.qpn);
    (a, b)
}

#[test]
fn a_write_crosses_the_wire_and_its_completion_wakes_the_channel() {
    let balboad = Balboad::start(&["--soft", "2"]);
    let (mut a, b) = connected(&balboad);
    for at in (0..BYTES).step_by(8) {
        a.memory.store_relaxed_u64(at, pattern(at)).unwrap();
    }
    a.arm();
    a.write(BYTES as u32, b.memory.address() as u64, b.key);
    a.await_event();
    let completion = a.poll().expect("the completion precedes its event");
    assert_eq!((completion.status, completion.qpn), (Status::Success, a.qpn));
    for at in (0..BYTES).step_by(8) {
        assert_eq!(b.memory.load_relaxed_u64(at).unwrap(), pattern(at), "at {at}");
    }
    let status = balboad.status();
    let counter = |card: usize, name: &str| status["cards"][card]["counters"][name].clone();
    assert_eq!(counter(0, "retransmitted_pkts"), 0);
    assert!(counter(1, "rcvd_pkts").as_u64().unwrap() >= BYTES as u64 / 1024, "{status:#}");
    assert_eq!(counter(0, "dma_faults"), 0);
    let qp = &status["clients"][0]["queue_pairs"][0];
    assert_eq!((qp["state"].as_str(), qp["dest_qpn"].as_u64()), (Some("RTS"), Some(b.qpn.into())));
    let answer = a.client.ask(Request::DestroyQp { qpn: a.qpn }).0;
    assert_eq!(answer, Response::Destroyed { completion_events: 0, async_events: 0 });
    let answer = a.client.ask(Request::DestroyCq { cqn: a.cqn }).0;
    assert_eq!(answer, Response::Destroyed { completion_events: 1, async_events: 0 });
}

#[test]
fn the_status_says_of_which_frames_the_icrc_is_checked() {
    let ends = tempfile::tempdir().unwrap();
    let [local, remote] = ["local", "remote"].map(|end| ends.path().join(end));
    let cable = format!("1=unix:{},{}", local.display(), remote.display());
    let balboad = Balboad::start(&["--soft", "2", "--port", &cable]);
    let status = balboad.status();
    let checked = |card: usize| status["cards"][card]["icrc_checked"].as_str();
    assert_eq!(checked(0), Some("frames from outside this balboad"), "it is on the switch");
    assert_eq!(checked(1), Some("every frame"), "it is on a cable");
}

#[test]
fn cards_of_either_register_map_come_up_and_talk() {
    let balboad = Balboad::start(&["--soft", "2", "--soft-map", "before-2026"]);
    let (mut a, b) = connected(&balboad);
    a.memory.store_relaxed_u64(0, 77).unwrap();
    a.arm();
    a.write(8, b.memory.address() as u64, b.key);
    a.await_event();
    assert_eq!(a.poll().unwrap().status, Status::Success);
    assert_eq!(b.memory.load_relaxed_u64(0).unwrap(), 77);
}

/// More memory than the TLB reaches, in pages that share its sets: 2 MiB pages 1 GiB apart.
#[test]
fn memory_beyond_the_reach_of_the_tlb_is_written_where_it_should_be() {
    const GIB: usize = 1 << 30;
    const AREAS: usize = 5;
    const LENGTH: usize = 64 << 10;
    let balboad = Balboad::start(&["--soft", "2"]);
    let mut a = Node::new(&balboad.dir, 0, LENGTH);
    let mut b = Node::new(&balboad.dir, 1, AREAS * GIB);
    a.connect(b.gid, b.qpn);
    b.connect(a.gid, a.qpn);
    for round in 0..3usize {
        for area in 0..AREAS {
            for at in (0..LENGTH).step_by(8) {
                a.memory.store_relaxed_u64(at, pattern(at + area + round)).unwrap();
            }
            // Across the border of two pages.
            let target = area * GIB + GIB / 2 - LENGTH / 2;
            a.arm();
            a.write(LENGTH as u32, (b.memory.address() + target) as u64, b.key);
            a.await_event();
            assert_eq!(a.poll().unwrap().status, Status::Success);
            for at in (0..LENGTH).step_by(8) {
                let found = b.memory.load_relaxed_u64(target + at).unwrap();
                assert_eq!(found, pattern(at + area + round), "round {round}, area {area}, {at}");
            }
        }
    }
    let status = balboad.status();
    let counter = |name: &str| status["cards"][1]["counters"][name].as_u64().unwrap();
    // Five pages share a set of two ways: each access in turn finds its page gone.
    assert!(counter("tlb_faults") >= 15, "{status:#}");
    assert!(counter("tlb_misses") >= counter("tlb_faults"));
    assert_eq!(counter("mmu_faults_mended"), counter("tlb_faults"));
    assert_eq!((counter("mmu_faults_refused"), counter("dma_faults")), (0, 0));
}

#[test]
fn every_arming_brings_one_event() {
    let balboad = Balboad::start(&["--soft", "2"]);
    let (mut a, b) = connected(&balboad);
    for _ in 0..1000 {
        a.arm();
        a.write(8, b.memory.address() as u64, b.key);
        a.await_event();
        assert_eq!(a.poll().unwrap().status, Status::Success);
        assert!(a.poll().is_none());
    }
}

#[test]
fn a_forbidden_write_is_an_error_at_both_ends() {
    let balboad = Balboad::start(&["--soft", "2"]);
    let (mut a, b) = connected(&balboad);
    a.arm();
    a.write(8, b.memory.address() as u64, b.key ^ 0x100);
    a.await_event();
    assert_eq!(a.poll().unwrap().status, Status::RemoteAccess);
    // IBV_EVENT_QP_ACCESS_ERR
    assert_eq!(b.await_asynchronous(), 3);
}

#[test]
fn the_death_of_balboad_is_seen_by_its_clients() {
    let mut balboad = Balboad::start(&["--soft", "1"]);
    let node = Node::new(&balboad.dir, 0, 4096);
    assert!(!node.card_is_dead());
    balboad.signal(Signal::SIGKILL);
    node.client.await_end();
    assert!(node.card_is_dead());
}

#[test]
fn a_client_that_leaves_gives_everything_back() {
    let balboad = Balboad::start(&["--soft", "2"]);
    for _ in 0..70 {
        let (a, b) = connected(&balboad);
        drop((a, b));
        // More clients than pages in all, one after the other.
        balboad.await_status("a card at rest", |status| {
            let window = |card: usize, n: usize| &status["cards"][card]["windows"][n];
            status["clients"].as_array().is_some_and(Vec::is_empty)
                && (0..2).all(|card| (0..4).all(|n| window(card, n)["free_pages"] == 14))
        });
    }
    let status = balboad.status();
    assert_eq!(status["cards"][0]["quarantine"]["queues"], 0, "{status:#}");
}

#[test]
fn a_capture_holds_what_crossed_the_wire() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("frames.pcapng");
    let mut balboad = Balboad::start(&["--soft", "2", "--pcap", file.to_str().unwrap()]);
    let (mut a, b) = connected(&balboad);
    a.arm();
    a.write(BYTES as u32, b.memory.address() as u64, b.key);
    a.await_event();
    assert_eq!(balboad.signal(Signal::SIGTERM).code(), Some(0));
    let capture = std::fs::read(file).unwrap();
    // The section header block of a pcapng file.
    assert_eq!(capture[..4], [0x0a, 0x0d, 0x0d, 0x0a]);
    assert!(capture.len() > BYTES, "{} bytes", capture.len());
}
