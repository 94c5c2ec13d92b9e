//! Queue pairs 1 of software cards on a switch.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use bitstreams::{EngineKind, Manifest};
use fpga_regs::coyote::shell::Map;
use fpga_regs::engine::admin::AdminStatus;
use fpga_regs::engine::window::Capabilities;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use softcard::Runtime;

use fpga_regs::engine::cqe::{self, Cqe, Flags, Status};
use fpga_regs::engine::doorbell::{Arm, ArmKind, record};

use super::*;
use crate::address::PortAddress;
use crate::bringup::bring_up;
use crate::device::Device;
use crate::fake::FakeCard;
use crate::soft::{self, SoftCard};

/// The party that all of it counts for, if there is no other.
const ME: Party = Party(Some(1));
/// How long anything may take on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(60);

fn device(number: u32, backend: Arc<dyn CardBackend>) -> Device {
    let name = "test.bit".into();
    let (map, engine) = (Map::Since2026, EngineKind::Vqe);
    let manifest = Manifest { name, map, engine, ..Manifest::default() };
    let mut device = bring_up(number, backend, PortAddress::default_of(number), &manifest).unwrap();
    device.serve_interrupts().unwrap();
    device
}

/// Cards on a switch, and their queue pairs 1.
struct Bench {
    devices: Vec<Device>,
    gsis: Vec<Arc<Gsi>>,
    runtime: Option<Runtime>,
}

impl Bench {
    fn new() -> Self {
        let cards = [SoftCard::default(), SoftCard::default()];
        let (runtime, backends) = soft::start(&cards, &[], None, vec![], 0).unwrap();
        let mut devices: Vec<_> = (0..)
            .zip(backends)
            .map(|(number, backend)| device(number, Arc::new(backend)))
            .collect();
        let gsis = devices.iter_mut().map(|device| device.open_gsi().unwrap()).collect();
        Self { devices, gsis, runtime: Some(runtime) }
    }

    /// Where card `to` is reached from the other one, by the address of that index.
    fn address(&self, to: usize, index: u8) -> GsiAddress {
        let dgid = self.devices[to].gids[usize::from(index)];
        let (hop_limit, traffic_class, flow_label, sl) = (7, 0x28, 0, 0);
        GsiAddress { sgid_index: index, dgid, hop_limit, traffic_class, flow_label, sl }
    }

    fn service(&mut self) {
        let windows = self.devices.iter_mut().flat_map(|device| &mut device.windows);
        windows.for_each(|window| window.engine.service());
    }

    /// Serves the engines until a datagram arrives.
    fn receive(&mut self, at: usize) -> GsiArrival {
        let begun = Instant::now();
        loop {
            self.service();
            if let Some(arrival) = self.gsis[at].take() {
                return arrival;
            }
            assert!(begun.elapsed() < PATIENCE, "nothing arrives");
            is_readable(&self.gsis[at], Duration::from_millis(10));
        }
    }

    /// Sends a datagram of the first card's to the second one until it is there: one is lost whose receiver's engine has
    /// just started, and not looked at its receives yet.
    fn gets_through(&mut self, to: &GsiAddress, wanted: &Datagram) {
        let begun = Instant::now();
        loop {
            self.gsis[0].send(ME, to, wanted).unwrap();
            let sent = Instant::now();
            while sent.elapsed() < Duration::from_millis(200) {
                self.service();
                // Copies of those before may come as well.
                if self.gsis[1].take().is_some_and(|it| it.datagram == *wanted) {
                    return;
                }
                is_readable(&self.gsis[1], Duration::from_millis(10));
            }
            assert!(begun.elapsed() < PATIENCE, "nothing arrives");
        }
    }

    fn counter(&mut self, card: usize, name: &str) -> u64 {
        let counters = self.devices[card].counters();
        counters.iter().find(|(its, _)| its == name).unwrap().1
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.gsis.clear();
        self.devices.clear();
        self.runtime.take().into_iter().for_each(Runtime::shutdown);
    }
}

fn is_readable(gsi: &Gsi, within: Duration) -> bool {
    let timeout = PollTimeout::try_from(within).unwrap();
    poll(&mut [PollFd::new(gsi.news().as_fd(), PollFlags::POLLIN)], timeout).unwrap() == 1
}

fn datagram(number: u32) -> Datagram {
    let mut datagram = [number as u8; DATAGRAM_BYTES];
    datagram[..4].copy_from_slice(&number.to_be_bytes());
    datagram
}

#[test]
fn beside_the_arm_word_stands_that_it_is_for_any() {
    let bench = Bench::new();
    let gsi = &bench.gsis[0];
    let at = |offset: usize| RECEIVE_CQ_AT as usize + offset;
    for sequence in 1..4 {
        let word = gsi.memory.load_acquire_u64(at(record::ARM)).unwrap();
        let armed = Arm::decode(word).unwrap();
        assert_eq!((armed.kind, armed.sequence), (ArmKind::Any, sequence));
        let any = gsi.memory.load_acquire_u32(at(record::ARMED_FOR_ANY)).unwrap();
        assert_eq!(any, sequence);
        lock(&gsi.state).queues.as_mut().unwrap().arm();
    }
}

#[test]
fn two_cards_talk_by_every_kind_of_address() {
    let mut bench = Bench::new();
    for (number, index) in [(1, 1), (2, 0), (3, 1)] {
        let to = GsiAddress { flow_label: 0xa_bcde, ..bench.address(1, index) };
        bench.gsis[0].send(ME, &to, &datagram(number)).unwrap();
        let arrival = bench.receive(1);
        let wanted = GsiArrival {
            source: bench.devices[0].gids[usize::from(index)],
            destination_gid_index: index,
            hop_limit: 7,
            traffic_class: 0x28,
            flow_label: if index == 0 { 0xa_bcde } else { 0 },
            source_qpn: 1,
            datagram: datagram(number),
        };
        assert_eq!(arrival, wanted);
        // Its sender's address leads back.
        let sgid_index = arrival.destination_gid_index;
        let back = GsiAddress { sgid_index, dgid: arrival.source, ..to };
        bench.gsis[1].send(ME, &back, &datagram(!number)).unwrap();
        assert_eq!(bench.receive(0).datagram, datagram(!number));
    }
    // A card talks to itself, too.
    let to = bench.address(0, 1);
    bench.gsis[0].send(ME, &to, &datagram(9)).unwrap();
    assert_eq!(bench.receive(0).datagram, datagram(9));
    assert_eq!((bench.gsis[0].lost(), bench.gsis[1].lost()), (0, 0));
}

#[test]
fn datagrams_keep_their_order_over_many_laps_of_all_rings() {
    let mut bench = Bench::new();
    let to = bench.address(1, 1);
    for round in 0..40u32 {
        let numbers = round * 100..(round + 1) * 100;
        numbers.clone().for_each(|number| bench.gsis[0].send(ME, &to, &datagram(number)).unwrap());
        for number in numbers {
            assert_eq!(bench.receive(1).datagram, datagram(number));
        }
    }
    assert_eq!(bench.gsis[0].lost(), 0);
}

#[test]
fn it_is_told_of_what_arrives_and_only_then() {
    let mut bench = Bench::new();
    let to = bench.address(1, 1);
    assert_eq!(bench.gsis[1].take(), None);
    assert!(!is_readable(&bench.gsis[1], Duration::ZERO));
    for number in 0..20 {
        bench.gsis[0].send(ME, &to, &datagram(number)).unwrap();
        bench.service();
        // By the thread that serves interrupts: this thread does not look meanwhile.
        assert!(is_readable(&bench.gsis[1], PATIENCE));
        assert_eq!(bench.gsis[1].take().unwrap().datagram, datagram(number));
        assert_eq!(bench.gsis[1].take(), None);
        assert!(!is_readable(&bench.gsis[1], Duration::ZERO));
    }
}

#[test]
fn a_flood_costs_the_receives_that_there_are_and_is_counted() {
    let mut bench = Bench::new();
    let to = bench.address(1, 1);
    bench.gsis[0].send(ME, &to, &datagram(0)).unwrap();
    assert_eq!(bench.receive(1).datagram, datagram(0));
    const SENT: u64 = 3000;
    for number in 1..=SENT {
        bench.gsis[0].send(ME, &to, &datagram(number as u32)).unwrap();
    }
    let sent = SENT - bench.gsis[0].lost();
    let begun = Instant::now();
    while bench.counter(1, "rdma_recvs") + bench.counter(1, "out_of_buffer") < sent + 1 {
        assert!(begun.elapsed() < PATIENCE);
    }
    let arrived = std::iter::from_fn(|| bench.gsis[1].take()).count() as u64;
    let dropped = bench.counter(1, "out_of_buffer");
    assert_eq!(arrived + dropped, sent);
    // All receives, but for those that the card was not told of yet.
    assert!((481..=512).contains(&arrived) && dropped > 0, "{arrived} arrived, {dropped} did not");
    // And it goes on.
    bench.gsis[0].send(ME, &to, &datagram(77)).unwrap();
    assert_eq!(bench.receive(1).datagram, datagram(77));
}

#[test]
fn who_sends_into_the_void_holds_up_nobody_for_long() {
    let mut bench = Bench::new();
    let nobody = |number: u8| {
        let dgid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 100 + number];
        GsiAddress { dgid, ..bench.address(1, 1) }
    };
    let nobodies: Vec<_> = (0..40).map(nobody).collect();
    for (number, nobody) in (0..).zip(&nobodies) {
        bench.gsis[0].send(ME, nobody, &datagram(number)).unwrap();
    }
    let to = bench.address(1, 1);
    bench.gsis[0].send(ME, &to, &datagram(1000)).unwrap();
    assert_eq!(bench.receive(1).datagram, datagram(1000));
    assert_eq!(bench.counter(0, "drop_no_neighbour"), 40);
    // An address that cannot be is nothing to the others either.
    let wrong = GsiAddress { sgid_index: 9, ..to };
    bench.gsis[0].send(ME, &wrong, &datagram(1)).unwrap();
    bench.gsis[0].send(ME, &to, &datagram(1001)).unwrap();
    assert_eq!(bench.receive(1).datagram, datagram(1001));
    assert_eq!(bench.gsis[0].lost(), 1);
}

#[test]
fn a_peer_is_found_once_it_has_the_address() {
    let mut bench = Bench::new();
    let find = |bench: &mut Bench, to: &GsiAddress| {
        let begun = Instant::now();
        while !bench.gsis[0].find(ME, to).unwrap() {
            assert!(begun.elapsed() < PATIENCE, "it is not found");
            bench.service();
        }
    };
    // Nobody has been sent anything.
    for (to, index) in [(1, 0), (1, 1), (0, 1)] {
        let to = bench.address(to, index);
        assert!(!bench.gsis[0].find(ME, &to).unwrap());
        find(&mut bench, &to);
        assert!(bench.gsis[0].find(ME, &to).unwrap(), "and from then on it is known");
    }
    let dgid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 100];
    let late = GsiAddress { dgid, ..bench.address(1, 1) };
    let asked = bench.counter(0, "sent_arp_requests");
    let begun = Instant::now();
    while bench.counter(0, "sent_arp_requests") < asked + 8 {
        assert!(begun.elapsed() < PATIENCE, "it is not asked for");
        assert!(!bench.gsis[0].find(ME, &late).unwrap());
        bench.service();
    }
    let (mut gids, vlans) = (bench.devices[1].gids.clone(), bench.devices[1].vlans.clone());
    *gids.iter_mut().find(|gid| **gid == [0; 16]).unwrap() = dgid;
    bench.devices[1].set_gids(gids, vlans).unwrap();
    find(&mut bench, &late);
    // An address that cannot be is asked about in vain, and is no hindrance.
    let wrong = GsiAddress { sgid_index: 99, ..late };
    assert!(!bench.gsis[0].find(ME, &wrong).unwrap());
    find(&mut bench, &GsiAddress { hop_limit: 3, ..late });
    assert!(!bench.gsis[0].find(ME, &wrong).unwrap());
    bench.devices[0].close_gsi();
    assert!(bench.gsis[0].find(ME, &late).is_err());
}

#[test]
fn a_card_that_cannot_tell_whether_a_peer_is_found_is_sent_to_without() {
    use fpga_regs::engine::admin::Opcode;
    let card = Arc::new(FakeCard::new(1));
    let mut device = device(0, Arc::<FakeCard>::clone(&card));
    let gsi = device.open_gsi().unwrap();
    let to = GsiAddress {
        sgid_index: 1,
        dgid: GIDS[1],
        hop_limit: 1,
        traffic_class: 0,
        flow_label: 0,
        sl: 0,
    };
    for (status, is_found) in [(AdminStatus::NotFound, false), (AdminStatus::Unsupported, true)] {
        card.window(0, |window| window.refuse.insert(Opcode::QueryAh, status));
        assert!(!gsi.find(ME, &to).unwrap());
        device.windows[0].engine.service();
        assert_eq!(gsi.find(ME, &to).unwrap(), is_found, "{status:?}");
        device.windows[0].engine.service();
    }
}

#[test]
fn peers_that_are_asked_about_have_a_bound_and_take_turns_with_datagrams() {
    let to = |number: u8| GsiAddress {
        sgid_index: 1,
        dgid: GIDS[1],
        hop_limit: 1,
        traffic_class: number,
        flow_label: 0,
        sl: 0,
    };
    let mut all = Handles::default();
    for number in 0..=255 {
        assert!(!all.is_found(ME, &to(number), 0));
        assert!(!all.is_found(ME, &to(number), 0), "who asks twice is asked about once");
    }
    let more = GsiAddress { sl: 1, ..to(0) };
    assert!(!all.is_found(ME, &more, 0));
    all.wait(ME, &more, &datagram(0));
    all.wait(ME, &to(1), &datagram(1));
    assert_eq!(all.next(0), Task::Make(more));
    all.take_waiting(&more);
    all.add(ME, more, 99);
    assert_eq!(all.next(0), Task::Make(to(0)));
    all.add(ME, to(0), 100);
    // A question about a peer uses the handle of its datagrams.
    assert_eq!(all.next(0), Task::Make(to(1)));
    assert_eq!(all.take_waiting(&to(1)).len(), 1);
    all.add(ME, to(1), 101);
    assert_eq!(all.next(0), Task::Ask(to(0), 100));
    all.answer(&to(0), 7, true);
    assert!(!all.is_found(ME, &to(0), 0), "that was about another handle");
    assert_eq!(all.next(0), Task::Ask(to(1), 101));
    all.answer(&to(1), 101, true);
    assert!(all.is_found(ME, &to(1), 0));
    for number in 2..=255 {
        assert_eq!(all.next(0), Task::Make(to(number)));
        all.give_up(&to(number));
    }
    assert_eq!(all.next(0), Task::Ask(to(0), 100));
    assert_eq!(all.next(0), Task::Nothing);
    assert!(!all.is_found(ME, &more, 0));
    assert_eq!(all.next(0), Task::Ask(more, 99));
}

#[test]
fn it_is_opened_once_and_again_after_it_was_closed() {
    let mut bench = Bench::new();
    let first = Arc::clone(&bench.gsis[0]);
    assert!(Arc::ptr_eq(&first, &bench.devices[0].open_gsi().unwrap()));
    let to = bench.address(1, 1);
    for number in 0..5 {
        bench.gsis[0].send(ME, &to, &datagram(number)).unwrap();
        assert_eq!(bench.receive(1).datagram, datagram(number));
        let closed = Arc::clone(&bench.gsis[0]);
        bench.devices[0].close_gsi();
        bench.devices[0].close_gsi();
        assert!(!closed.is_open() && is_readable(&closed, Duration::ZERO));
        assert_eq!(closed.take(), None);
        let refused = closed.send(ME, &to, &datagram(number)).unwrap_err().to_string();
        assert_eq!(refused, "balboa0 window 0: its queue pair 1 was closed");
        bench.gsis[0] = bench.devices[0].open_gsi().unwrap();
    }
    // Datagrams for a card without one are dropped and counted, as for any missing queue pair.
    bench.devices[1].close_gsi();
    let before = bench.counter(1, "drop_unknown_qp");
    bench.gsis[0].send(ME, &to, &datagram(5)).unwrap();
    let begun = Instant::now();
    while bench.counter(1, "drop_unknown_qp") == before {
        bench.service();
        assert!(begun.elapsed() < PATIENCE);
    }
}

#[test]
fn an_engine_that_starts_anew_has_it_again() {
    let mut bench = Bench::new();
    let to = bench.address(1, 1);
    for number in 0..3 {
        bench.gets_through(&to, &datagram(number));
        let restarted = usize::from(number == 1);
        bench.devices[restarted].restart(0).unwrap();
        assert!(bench.gsis[restarted].is_open());
    }
    bench.gets_through(&to, &datagram(9));
}

#[test]
fn the_end_of_an_engine_and_of_a_card_is_its_end() {
    let card = Arc::new(FakeCard::new(1));
    let mut device = device(0, Arc::<FakeCard>::clone(&card));
    let gsi = device.open_gsi().unwrap();
    assert_eq!(gsi.take(), None);
    device.abandon("the test says so");
    assert!(is_readable(&gsi, Duration::ZERO));
    assert_eq!(gsi.take(), None);
    let gids = device.gids.clone();
    let dgid = gids[1];
    let (sgid_index, hop_limit, traffic_class, flow_label, sl) = (1, 64, 0, 0, 0);
    let to = GsiAddress { sgid_index, dgid, hop_limit, traffic_class, flow_label, sl };
    let refused = gsi.send(ME, &to, &datagram(0)).unwrap_err().to_string();
    assert_eq!(refused, "balboa0 window 0: the test says so");
    assert!(device.open_gsi().is_ok_and(|its| !its.is_open()), "it is the engine's, when it lives");
    card.reset();
    device.renew(|_| ()).unwrap();
    assert!(!gsi.is_open());
    let gsi = device.open_gsi().unwrap();
    gsi.send(ME, &to, &datagram(4)).unwrap();
    let begun = Instant::now();
    let arrival = loop {
        device.windows[0].engine.service();
        if let Some(arrival) = gsi.take() {
            break arrival;
        }
        assert!(begun.elapsed() < PATIENCE);
    };
    assert_eq!(arrival.datagram, datagram(4));
}

#[test]
fn who_keeps_it_longer_than_its_card_keeps_nothing_of_that() {
    let card = Arc::new(FakeCard::new(1));
    let mut device = device(0, Arc::<FakeCard>::clone(&card));
    let gsi = device.open_gsi().unwrap();
    drop(device);
    assert_eq!(Arc::strong_count(&card), 1);
    assert!(is_readable(&gsi, Duration::ZERO) && !gsi.is_open());
    assert_eq!(gsi.take(), None);
}

#[test]
fn a_card_that_does_not_offer_it_refuses() {
    let card = FakeCard::new(2);
    card.hide(Capabilities::GSI);
    let mut device = device(0, Arc::new(card));
    let refused = device.open_gsi().unwrap_err();
    assert!(
        matches!(&refused, Error::Refused { status: AdminStatus::Unsupported, .. }),
        "{refused}"
    );
    for window in &mut device.windows {
        assert!(window.engine.open_gsi().is_err());
    }
}

#[test]
fn an_engine_that_refuses_to_make_it_has_nothing_left_of_it() {
    use fpga_regs::engine::admin::Opcode;
    let card = Arc::new(FakeCard::new(1));
    let mut device = device(0, Arc::<FakeCard>::clone(&card));
    let opcodes =
        [Opcode::CreateCq, Opcode::CreateRq, Opcode::CreateKey, Opcode::CreateQp, Opcode::ModifyQp];
    for opcode in opcodes {
        card.window(0, |window| window.refuse.insert(opcode, AdminStatus::NoResources));
        let refused = device.open_gsi().unwrap_err();
        assert!(matches!(refused, Error::Refused { .. }), "{refused}");
        card.window(0, |window| window.refuse.clear());
        assert_eq!(card.window(0, |window| window.live.clone()), [].into(), "{opcode:?}");
        assert_eq!(card.granted(), 0);
    }
    assert!(device.open_gsi().unwrap().is_open());
    assert_eq!(card.granted(), 1);
    device.close_gsi();
    assert_eq!(card.window(0, |window| window.live.clone()), [].into());
    assert_eq!(card.granted(), 0);
}

#[test]
fn an_address_that_changes_is_sent_from_no_more() {
    let mut bench = Bench::new();
    let to = bench.address(1, 1);
    bench.gsis[0].send(ME, &to, &datagram(0)).unwrap();
    assert_eq!(bench.receive(1).source, bench.devices[0].gids[1]);
    let mut gids = bench.devices[0].gids.clone();
    let vlans = bench.devices[0].vlans.clone();
    gids[1][15] = 50;
    bench.devices[0].set_gids(gids.clone(), vlans.clone()).unwrap();
    bench.gsis[0].send(ME, &to, &datagram(1)).unwrap();
    let arrival = bench.receive(1);
    assert_eq!((arrival.source, arrival.datagram), (gids[1], datagram(1)));
    // And datagrams for it are found.
    let back = GsiAddress { dgid: gids[1], ..to };
    bench.gsis[1].send(ME, &back, &datagram(2)).unwrap();
    assert_eq!(bench.receive(0).destination_gid_index, 1);
}

#[test]
fn a_send_that_the_card_fails_is_the_end_of_that_one_alone() {
    let mut bench = Bench::new();
    let to = bench.address(1, 1);
    bench.gsis[0].send(ME, &to, &datagram(0)).unwrap();
    assert_eq!(bench.receive(1).datagram, datagram(0));
    let ah = lock(&bench.gsis[0].state).handles.find(ME, &to).unwrap().ah;
    bench.devices[0].windows[0].engine.destroy_ah(ah).unwrap();
    bench.gsis[0].send(ME, &to, &datagram(1)).unwrap();
    let begun = Instant::now();
    // The next send finds that out.
    let arrival = loop {
        bench.gsis[0].send(ME, &to, &datagram(2)).unwrap();
        bench.service();
        if let Some(arrival) = bench.gsis[1].take() {
            break arrival;
        }
        assert!(begun.elapsed() < PATIENCE);
    };
    assert_eq!(arrival.datagram, datagram(2));
}

/// Queues that a test completes in the card's place.
struct Scene {
    memory: Arc<SharedMapping>,
    queues: Queues,
    /// Completions that it wrote.
    written: u32,
}

const GIDS: [[u8; 16]; 2] = [[0xfd; 16], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 1]];
const LOG2: u8 = 2;

impl Scene {
    fn new() -> Self {
        let backend: Arc<dyn CardBackend> = Arc::new(FakeCard::new(1));
        let bell = DriverBell { backend, page: fpga_regs::coyote::vfpga::user_csr(0) + (15 << 12) };
        let bytes = usize::try_from(MEMORY_BYTES).unwrap();
        let fd = hostmem::memfd::create("test", bytes).unwrap();
        let access = hostmem::Access::ReadWrite;
        let memory = Arc::new(SharedMapping::new(fd.as_fd(), 0, bytes, access).unwrap());
        let sizes = Sizes { log2_sends: 5, log2_send_cq: LOG2, log2_receives: LOG2 };
        let names = Names { receive_cqn: 7, rqn: 8, key: 9, generation: 3 };
        let mut queues = Queues::new(bell, (&memory, 0), sizes, names).unwrap();
        queues.begin();
        Self { memory, queues, written: 0 }
    }

    fn complete(&mut self, entry: Cqe) {
        let at = usize::try_from(RECEIVE_CQ_AT + 64).unwrap();
        let ring = hostmem::BlockRing::new(Arc::clone(&self.memory), at, 1 << LOG2).unwrap();
        let phase = cqe::expected_phase(self.written, LOG2).into();
        let [block] = Cqe { phase, ..entry }.encode();
        ring.write_published(self.written, &block);
        self.written += 1;
    }

    fn fill(&self, buffer: u64, header: &[u8; 40]) {
        let at = usize::try_from(BUFFERS_AT + 320 * buffer).unwrap();
        self.memory.write_bytes(at, header).unwrap();
    }

    fn take(&mut self) -> Option<GsiArrival> {
        self.queues.take(&self.memory, &GIDS)
    }
}

fn ipv4_header() -> [u8; 40] {
    let mut header = [0; 40];
    header[20..]
        .copy_from_slice(&[0x45, 0x28, 0, 0, 0, 0, 0, 0, 9, 17, 0, 0, 10, 77, 0, 2, 10, 77, 0, 1]);
    header
}

const WHOLE: Cqe = Cqe {
    byte_count: 296,
    flags: Flags::RECEIVE.union(Flags::GRH),
    source_qpn: 1,
    ..Cqe {
        qpn: 1,
        wqe_index: 0,
        byte_count: 0,
        immediate: 0,
        source_qpn: 0,
        opcode: cqe::Opcode::Receive,
        status: Status::Success,
        vendor_code: 0,
        flags: Flags::RECEIVE,
        timestamp: 0,
        srqn: 0,
        generation: 3,
        phase: 0,
    }
};

#[test]
fn what_is_no_datagram_for_an_address_of_the_cards_does_not_arrive() {
    let mut scene = Scene::new();
    let good = ipv4_header();
    let mut elsewhere = good;
    elsewhere[39] = 9;
    let mut other_version = good;
    other_version[20] = 0x55;
    let mut ipv6 = [0; 40];
    ipv6[0] = 0x60;
    let wrongs = [
        (Cqe { byte_count: 295, ..WHOLE }, good),
        (Cqe { byte_count: 297, ..WHOLE }, good),
        (Cqe { byte_count: 0, ..WHOLE }, good),
        (Cqe { flags: Flags::RECEIVE, ..WHOLE }, good),
        (Cqe { status: Status::LocalLength, ..WHOLE }, good),
        (WHOLE, [0; 40]),
        (WHOLE, [0xff; 40]),
        (WHOLE, elsewhere),
        (WHOLE, other_version),
        (WHOLE, ipv6),
        // Of no buffer.
        (Cqe { wqe_index: 4, ..WHOLE }, good),
        (Cqe { wqe_index: u32::MAX, ..WHOLE }, good),
    ];
    for (number, (entry, header)) in wrongs.into_iter().enumerate() {
        scene.fill(0, &header);
        scene.complete(entry);
        assert_eq!(scene.take(), None, "wrong one {number}");
        scene.fill(0, &good);
        scene.complete(WHOLE);
        let arrival = scene.take().unwrap();
        assert_eq!((arrival.destination_gid_index, arrival.hop_limit), (1, 9));
        assert_eq!((arrival.traffic_class, arrival.source[15]), (0x28, 2));
        assert_eq!(scene.take(), None);
    }
}

#[test]
fn a_buffer_does_not_lend_its_next_datagram_a_header() {
    let mut scene = Scene::new();
    let mut ipv6 = [0xfd; 40];
    ipv6[..8].copy_from_slice(&[0x61, 0x2a, 0xbc, 0xde, 0, 0, 17, 64]);
    scene.fill(2, &ipv6);
    scene.complete(Cqe { wqe_index: 2, ..WHOLE });
    let arrival = scene.take().unwrap();
    assert_eq!(
        (arrival.traffic_class, arrival.flow_label, arrival.hop_limit),
        (0x12, 0xa_bcde, 64)
    );
    // Of IPv4 the card writes the last 20 bytes alone.
    let at = usize::try_from(BUFFERS_AT + 2 * 320 + 20).unwrap();
    scene.memory.write_bytes(at, &ipv4_header()[20..]).unwrap();
    scene.complete(Cqe { wqe_index: 2, ..WHOLE });
    assert_eq!(scene.take().unwrap().destination_gid_index, 1);
}

#[test]
fn of_handles_the_one_not_used_for_longest_goes_once_nothing_is_under_way_by_it() {
    use handles::HANDLES;
    let to = |number: usize| {
        let mut dgid = GIDS[1];
        dgid[14..].copy_from_slice(&u16::try_from(number).unwrap().to_be_bytes());
        GsiAddress { sgid_index: 1, dgid, hop_limit: 1, traffic_class: 0, flow_label: 0, sl: 0 }
    };
    let (mut scene, mut all) = (Scene::new(), Handles::default());
    for number in 0..HANDLES {
        assert_eq!(all.wait(ME, &to(number), &datagram(0)), Sent::Waits);
        assert_eq!(all.next(0), Task::Make(to(number)));
        assert_eq!(all.take_waiting(&to(number)).len(), 1);
        all.add(ME, to(number), number as u32);
    }
    for number in (0..6).rev() {
        let handle = all.find(ME, &to(number)).unwrap();
        assert_eq!(handle.send(&mut scene.queues, &datagram(1)), Sent::Posted);
    }
    // The ring has room for six.
    let handle = all.find(ME, &to(0)).unwrap();
    assert_eq!(handle.send(&mut scene.queues, &datagram(1)), Sent::Lost);
    all.wait(ME, &to(HANDLES), &datagram(2));
    let mut ended = Vec::new();
    while let Task::End(ah) = all.next(0) {
        ended.push(ah);
        all.add(ME, to(2 * HANDLES + ended.len()), 1 << 20);
        let its = all.find(ME, &to(2 * HANDLES + ended.len())).unwrap();
        its.send(&mut scene.queues, &datagram(1));
    }
    assert_eq!(ended.len(), HANDLES - 6, "all by which nothing is under way");
    assert_eq!(all.next(0), Task::Drop(to(HANDLES)));
    assert_eq!(all.next(1), Task::End(5), "the first of those that sent");
    // An address that is another's now has none, and theirs end when nothing is under way by them.
    all.forget(1);
    assert!(all.find(ME, &to(3)).is_none());
    assert_eq!(all.next(2), Task::End(4));
    assert_eq!(all.next(2), Task::Make(to(HANDLES)));
    for _ in 0..300 {
        all.wait(ME, &to(1), &datagram(1));
    }
    assert_eq!(all.take_waiting(&to(1)).len(), 255);
    assert_eq!(all.into_all().len(), HANDLES - 2);
}

/// A party, and a peer of its.
fn party(number: u8) -> Party {
    Party(Some(number.into()))
}

fn peer_of(party: u8, number: usize) -> GsiAddress {
    let mut dgid = GIDS[1];
    dgid[14..].copy_from_slice(&u16::try_from(number).unwrap().to_be_bytes());
    GsiAddress { sgid_index: 1, dgid, hop_limit: party, traffic_class: 0, flow_label: 0, sl: 0 }
}

#[test]
fn nobody_has_more_waiting_than_is_left_for_the_others() {
    let mut all = Handles::default();
    let mut waiting = |its: u8| {
        let mut waits = |n| all.wait(party(its), &peer_of(its, n), &datagram(0)) == Sent::Waits;
        (0..1000).filter(|&n| waits(n)).count()
    };
    assert_eq!([0, 1, 2, 3, 0].map(&mut waiting), [256, 128, 64, 32, 0]);

    // Of peers that are asked about, too.
    let mut all = Handles::default();
    for its in 0..4 {
        (0..1000).for_each(|n| assert!(!all.is_found(party(its), &peer_of(its, n), 0)));
    }
    let mut made = [0; 4];
    while let Task::Make(address) = all.next(0) {
        made[usize::from(address.hop_limit)] += 1;
        all.give_up(&address);
    }
    assert_eq!(made, [256, 128, 64, 32]);
}

#[test]
fn who_has_most_handles_gives_one_to_who_has_fewer() {
    use handles::HANDLES;
    let mut all = Handles::default();
    let mut scene = Scene::new();
    // A flooder has all but one, which was not used for longest.
    all.add(party(1), peer_of(1, 0), 5000);
    for n in 0..HANDLES - 1 {
        let handle = all.add(party(0), peer_of(0, n), n as u32);
        // By six of its handles something is under way, for which the ring has room.
        if n < 6 {
            assert_eq!(handle.send(&mut scene.queues, &datagram(1)), Sent::Posted);
        }
    }
    let wants = |all: &mut Handles, its: u8, n: usize| {
        assert_eq!(all.wait(party(its), &peer_of(its, n), &datagram(0)), Sent::Waits);
        let task = all.next(0);
        all.take_waiting(&peer_of(its, n));
        task
    };
    // Another handle replaces one of the client's own, or a third client's replaces one of the flooder's; never a
    // client's only one.
    for n in HANDLES..2 * HANDLES {
        let Task::End(ah) = wants(&mut all, 0, n) else { panic!("none of its own is idle") };
        assert!((6..2 * HANDLES as u32).contains(&ah), "{ah}");
        all.add(party(0), peer_of(0, n), n as u32);
    }
    let Task::End(ah) = wants(&mut all, 2, 0) else { panic!("none is idle") };
    assert!((6..2 * HANDLES as u32).contains(&ah), "{ah}");
    all.add(party(2), peer_of(2, 0), 5002);
    // A handle that two clients use counts for the one with fewer.
    let mut its = (HANDLES..2 * HANDLES).map(|n| peer_of(0, n));
    let shared = its.find(|address| all.find(party(0), address).is_some()).unwrap();
    all.find(party(3), &shared).unwrap();
    for n in 3 * HANDLES..4 * HANDLES {
        assert!(matches!(wants(&mut all, 0, n), Task::End(_)));
        all.add(party(0), peer_of(0, n), n as u32);
    }
    let kept = [(1, peer_of(1, 0)), (2, peer_of(2, 0)), (3, shared)];
    for (its, address) in kept {
        assert!(all.find(party(its), &address).is_some(), "of {its}");
    }
}
