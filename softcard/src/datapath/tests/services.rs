//! Services between a frame and the memory that it is for.

use std::sync::atomic::{AtomicU64, Ordering};

use ::services::{
    About, Budget, Chain, Error, Halt, Inspect, Operations, PacketService, Part, Placing, Selector,
    Settings, Stages,
};
use fpga_regs::engine::wqe::SendOpcode;
use roce::opcode::code;
use roce::{Checked, Placement, Services, Sink, Verdict};

use super::pair::{MEMORY, Pair};
use super::rig::{REGION, REGION_BYTES, Rig, Say, VA};
use super::*;

/// Does nothing anywhere, and counts.
#[derive(Debug, Default)]
struct Nothing(Rc<RefCell<[u64; 3]>>);

impl Services for Nothing {
    fn check(&mut self, _: &Checked<'_>) -> Verdict {
        self.0.borrow_mut()[0] += 1;
        Verdict::Accept
    }

    fn act(&mut self, placement: &Placement, _: &mut [u8]) -> Option<Sink> {
        self.0.borrow_mut()[1] += 1;
        Some(placement.sink)
    }

    fn done(&mut self, _: Qpn, placed: Placed) {
        assert_eq!(placed, Placed::Copied);
        self.0.borrow_mut()[2] += 1;
    }
}

/// Turns the bits of all payload, and puts WRITEs so many bytes further.
#[derive(Debug)]
struct Turns(u64);

impl Services for Turns {
    fn act(&mut self, placement: &Placement, frame: &mut [u8]) -> Option<Sink> {
        for byte in &mut frame[placement.range.clone()] {
            *byte = !*byte;
        }
        Some(match placement.sink {
            Sink::Remote { rkey, va } => Sink::Remote { rkey, va: va + self.0 },
            other => other,
        })
    }
}

#[test]
fn services_that_do_nothing_see_each_packet_at_each_place() {
    let mut pair = Pair::new();
    let seen = Rc::default();
    // A new address begins with a new stack, and the same services.
    pair.other.card.network.serve(Box::new(Nothing(Rc::clone(&seen))));
    pair.one.write(MEMORY, &[7; 3000]);
    let done = pair.carry(SendOpcode::Write, 3000).unwrap();
    assert_eq!(done.status, Status::Success);
    assert_eq!(*seen.borrow(), [3; 3]);
    assert_eq!(pair.other.read(REGION, 3000), [7; 3000]);
}

#[test]
fn services_stay_when_a_card_gets_another_address() {
    let (mut card, _) = card(IcrcPolicy::CheckAll);
    card.network.serve(Box::new(Turns(0)));
    card.network.set_identity(Identity { mac: PEER, ipv4: 0x0a00_0002 });
    assert!(card.network.stack.services().is_some());
    card.network.reset();
    assert!(card.network.stack.services().is_some());
}

fn write(rig: &mut Rig) -> u8 {
    let reth = Some((VA, 44));
    let say = Say { opcode: code::WRITE_ONLY, reth, payload: vec![0x0f; 44], ..Say::default() };
    rig.say(&[say])[0].aeth.unwrap().0
}

#[test]
fn an_act_changes_bytes_and_place_and_keys_are_checked_behind_it() {
    let mut rig = Rig::new();
    rig.write(REGION, &[0x77; REGION_BYTES as usize]);
    rig.card.network.serve(Box::new(Turns(100)));
    assert_eq!(write(&mut rig) & 0x60, 0, "acknowledged");
    assert_eq!(rig.read(REGION, 100), [0x77; 100]);
    assert_eq!(rig.read(REGION + 100, 44), [0xf0; 44]);

    // Behind the end of the region.
    let mut rig = Rig::new();
    rig.write(REGION, &[0x77; REGION_BYTES as usize]);
    rig.card.network.serve(Box::new(Turns(REGION_BYTES - 43)));
    assert_eq!(write(&mut rig), 0x63, "remote operational error");
    assert_eq!(rig.read(REGION, REGION_BYTES as usize), vec![0x77; REGION_BYTES as usize]);
}

/// Refuses all payload whose turn it is.
#[derive(Debug)]
struct Refuser;

impl Services for Refuser {
    fn check(&mut self, packet: &Checked<'_>) -> Verdict {
        if packet.part.is_some() { Verdict::Refuse } else { Verdict::Accept }
    }
}

#[test]
fn what_a_check_refuses_ends_its_connection_before_a_byte_is_placed() {
    let mut rig = Rig::new();
    rig.write(REGION, &[0x77; REGION_BYTES as usize]);
    rig.card.network.serve(Box::new(Refuser));
    assert_eq!(write(&mut rig), 0x63, "remote operational error");
    assert_eq!(rig.read(REGION, REGION_BYTES as usize), vec![0x77; REGION_BYTES as usize]);
    assert_eq!(rig.card.network.stack.counters().drop_by_service, 1);
    assert_eq!(rig.state(), QpState::Err);

    let mut pair = Pair::new();
    pair.one.card.network.serve(Box::new(Refuser));
    pair.one.write(MEMORY, &[0x77; 3000]);
    // The acknowledgement of earlier packets has no payload.
    assert_eq!(pair.carry(SendOpcode::Write, 3000).unwrap().status, Status::Success);
    assert_eq!(pair.carry(SendOpcode::Read, 3000).unwrap().status, Status::BadResponse);
    assert_eq!(pair.one.read(MEMORY, 3000), [0x77; 3000]);
}

/// A row as a card has it, and the features of it.
fn rows(count: i32) -> (Vec<u8>, Vec<u8>) {
    let value = |number: i32| number * 97 - 3000;
    let feature = |number: i32| match number % 48 {
        0..16 => (f64::from(value(number).max(0)) + 1.0).ln() as f32,
        _ => value(number).rem_euclid(8192) as f32,
    };
    let numbers = 0..count * 48;
    let rows = numbers.clone().flat_map(|number| value(number).to_le_bytes());
    (rows.collect(), numbers.flat_map(|number| feature(number).to_le_bytes()).collect())
}

/// The chain that makes them.
fn preprocess() -> Chain {
    Chain::named(&["preprocess"], Settings::default()).unwrap()
}

/// Whether features are the same but for rounding.
fn alike(one: &[u8], other: &[u8]) -> bool {
    let words = |bytes: &[u8]| -> Vec<f32> {
        bytes.chunks(4).map(|word| f32::from_le_bytes(word.try_into().unwrap())).collect()
    };
    let near = |(one, other): (&f32, &f32)| (one - other).abs() <= 1e-6 * one.abs();
    one.len() == other.len() && words(one).iter().zip(&words(other)).all(near)
}

#[test]
fn rows_are_features_where_they_are_written_and_where_they_are_read() {
    let (table, made) = rows(50);
    let length = table.len() as u32;
    let mut pair = Pair::new();
    let qpn = pair.other.qpn;
    pair.other.card.network.attach(Selector::Qp(qpn), preprocess()).unwrap();
    pair.one.write(MEMORY, &table);
    assert_eq!(pair.carry(SendOpcode::Write, length).unwrap().status, Status::Success);
    assert!(alike(&pair.other.read(REGION, table.len()), &made));
    // The end that answers a READ leaves its bytes as they are.
    assert_eq!(pair.carry(SendOpcode::Read, length).unwrap().status, Status::Success);
    assert!(alike(&pair.one.read(MEMORY, table.len()), &made));
    assert_eq!(pair.other.card.network.detach(Selector::Qp(qpn), false), Ok(0));
    assert!(pair.other.card.network.stack.services().is_none(), "it is as if there had been none");

    let peer = Gid::from_ipv6(MacAddr(PEER).link_local()).to_bytes();
    pair.one.card.network.attach(Selector::Peer(peer), preprocess()).unwrap();
    pair.other.write(REGION, &table);
    assert_eq!(pair.carry(SendOpcode::Read, length).unwrap().status, Status::Success);
    assert!(alike(&pair.one.read(MEMORY, table.len()), &made));
    let told = pair.one.card.network.attached();
    assert_eq!(told[0].counters.acted_bytes, u64::from(length));
    assert_eq!(told[0].connections.len(), 1);
}

#[test]
fn a_chain_is_for_the_connections_of_a_process_or_of_a_dscp_and_ends_with_the_process() {
    let (table, made) = rows(5);
    let length = table.len() as u32;
    let mut pair = Pair::new();
    let qpn = Qpn::new(pair.other.qpn).unwrap();
    pair.other.card.network.own(qpn, 42);
    pair.one.write(MEMORY, &table);
    let mut is_made = |selector, other: Option<u32>| {
        pair.other.card.network.attach(selector, preprocess()).unwrap();
        assert_eq!(pair.carry(SendOpcode::Write, length).unwrap().status, Status::Success);
        if let Some(process) = other {
            pair.other.card.network.end_process(process);
        }
        let left = pair.other.card.network.attached().len();
        if left > 0 {
            pair.other.card.network.detach(selector, false).unwrap();
        }
        let found = pair.other.read(REGION, table.len());
        (alike(&found, &made), found == table, left)
    };
    assert_eq!(is_made(Selector::Process(41), None), (false, true, 1));
    assert_eq!(is_made(Selector::Process(42), Some(41)), (true, false, 1));
    assert_eq!(is_made(Selector::Process(42), Some(42)), (true, false, 0));
    assert_eq!(is_made(Selector::Dscp(0), Some(42)), (true, false, 1));
    assert_eq!(is_made(Selector::Dscp(26), None), (false, true, 1));
}

#[test]
fn what_a_program_asked_for_gets_past_nothing_of_the_owners() {
    let mut rig = Rig::new();
    let (number, qpn) = (rig.qpn, Qpn::new(rig.qpn).unwrap());
    let network = &mut rig.card.network;
    assert_eq!(network.ask(5, preprocess()), Err(Error::NoQp(5)));
    network.ask(number, preprocess()).unwrap();
    assert_eq!(network.attach(Selector::Dscp(0), preprocess()), Err(Error::Asked(number)));
    network.attach(Selector::Dscp(26), preprocess()).unwrap();
    let peer = Gid::from_ipv6(MacAddr(PEER).link_local());
    let mut path = roce::AddressVector::new(0, peer);
    network.check_services(qpn, &path).unwrap();
    path.traffic_class = 26 << 2;
    assert_eq!(network.check_services(qpn, &path), Err(roce::Error::Served(qpn)));
    rig.destroy();
    let told = rig.card.network.attached();
    assert_eq!(told.len(), 1, "{told:?}");
}

/// Wants more work than it may have for messages that begin with that byte, and counts all that it did.
#[derive(Debug)]
struct Glutton(About, AtomicU64);

impl PacketService for Glutton {
    fn about(&self) -> &About {
        &self.0
    }

    fn act(
        &self,
        _: &Part,
        placing: &mut Placing<'_>,
        _: &mut [u8],
        budget: &mut Budget,
    ) -> Result<(), Halt> {
        if placing.bytes[0] == 0xee {
            loop {
                budget.spend(1)?;
                self.1.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }
}

/// Rounds of both cards in which so many messages pass on the present queue pair.
fn rounds_of(pair: &mut Pair, messages: usize) -> usize {
    pair.one.write(MEMORY, &[1; 3000]);
    let before = pair.rounds;
    for _ in 0..messages {
        assert_eq!(pair.carry(SendOpcode::Write, 3000).unwrap().status, Status::Success);
    }
    pair.rounds - before
}

#[test]
fn a_service_without_end_fails_its_connection_and_no_other() {
    let mut pair = Pair::with_qps(2);
    let about = About {
        name: "glutton".into(),
        summary: "works without end".into(),
        stages: Stages { act: true, ..Stages::default() },
        operations: Operations::ALL,
        takes: None,
        gives: None,
        check_state: 0,
        act_state: 0,
        work: 1000,
    };
    let work = u64::from(about.work);
    let glutton = Arc::new(Glutton(about, AtomicU64::new(0)));
    let chain = Chain::new(vec![Arc::clone(&glutton) as Arc<dyn PacketService>]).unwrap();
    let peer = Gid::from_ipv6(MacAddr(OWN).link_local()).to_bytes();
    pair.other.card.network.attach(Selector::Peer(peer), chain).unwrap();
    pair.other.write(REGION, &[0x77; 100]);
    pair.one.write(MEMORY, &[0xee; 100]);
    assert_eq!(pair.carry(SendOpcode::Write, 100).unwrap().status, Status::RemoteOperation);
    assert_eq!(pair.other.read(REGION, 100), [0x77; 100]);
    pair.drive_next();
    pair.one.write(MEMORY, &[1; 100]);
    assert_eq!(pair.carry(SendOpcode::Write, 100).unwrap().status, Status::Success);
    assert_eq!(pair.other.read(REGION, 100), [1; 100]);
    let counters = pair.other.card.network.attached()[0].counters;
    assert_eq!((counters.over_budget, counters.acted_packets), (1, 1));
    // It has worked for one packet, as much as it had declared, and from then on its neighbour's messages take as many
    // turns of the cards as if it had never been there.
    let with = rounds_of(&mut pair, 20);
    assert_eq!(glutton.1.load(Ordering::Relaxed), work);
    let mut alone = Pair::with_qps(2);
    alone.drive_next();
    assert_eq!(with, rounds_of(&mut alone, 20));
}

#[test]
fn services_are_attached_whole_or_not_at_all() {
    let mut rig = Rig::new();
    let network = &mut rig.card.network;
    let own = Selector::Qp(rig.qpn);
    assert_eq!(network.attach(Selector::Qp(5), preprocess()), Err(Error::NoQp(5)));
    let ud = Qpn::new(0x10_0abc).unwrap();
    network.stack.create_qp(ud, roce::Service::Ud, 0).unwrap();
    let number = ud.value();
    let refused = network.attach(Selector::Qp(number), preprocess());
    assert_eq!(refused, Err(Error::NotConnection(number)));
    assert!(network.attached().is_empty() && network.stack.services().is_none());

    network.attach(own, preprocess()).unwrap();
    assert!(network.stack.services().is_some());
    rig.destroy();
    assert!(rig.card.network.attached().is_empty() && rig.card.network.stack.services().is_none());
}

#[test]
fn services_are_detached_from_a_queue_pair_that_failed_in_the_middle_of_a_message() {
    let mut rig = Rig::new();
    let to = Selector::Qp(rig.qpn);
    rig.card.network.attach(to, preprocess()).unwrap();
    let (opcode, reth) = (code::WRITE_FIRST, Some((VA, 2048)));
    rig.say(&[Say { opcode, reth, payload: vec![0; 1024], ..Say::default() }]);
    assert!(rig.card.network.detach(to, false).is_err(), "a message is under way");
    // It does not go on as it began.
    rig.say(&[Say { opcode: code::SEND_ONLY, psn: 1, ..Say::default() }]);
    assert_eq!(rig.state(), QpState::Err);
    assert_eq!(rig.card.network.detach(to, false), Ok(0));
    assert_eq!(rig.card.network.attached(), []);
}

/// A message of three packets, with a text across the border of the first two.
fn message_with(text: &[u8]) -> Vec<u8> {
    let mut message: Vec<u8> = (0..2100u32).map(|at| at as u8 & 0x7f).collect();
    message[1020..1020 + text.len()].copy_from_slice(text);
    message
}

#[test]
fn a_pattern_across_packets_ends_its_connection_before_the_second_is_placed_and_no_other() {
    let pattern = vec![0xc0, 0xff, 0xee, 0xc0, 0xff, 0xee];
    let inspect = || {
        let inspect = Inspect::new(std::slice::from_ref(&pattern), true).unwrap();
        Chain::new(vec![Arc::new(inspect)]).unwrap()
    };
    let (message, before) = (message_with(&pattern), vec![0x77; 2100]);
    let good = message_with(&pattern[1..]);
    // The refused packet is not placed, and earlier ones of the message are.
    let is_cut = |found: &[u8]| found[..1024] == message[..1024] && found[1024..] == before[1024..];

    let mut pair = Pair::with_qps(2);
    let qpn = pair.other.qpn;
    pair.other.card.network.attach(Selector::Qp(qpn), inspect()).unwrap();
    pair.one.write(MEMORY, &good);
    assert_eq!(pair.carry(SendOpcode::Write, 2100).unwrap().status, Status::Success);
    assert!(pair.other.read(REGION, 2100) == good);
    pair.other.write(REGION, &before);
    pair.one.write(MEMORY, &message);
    assert_eq!(pair.carry(SendOpcode::Write, 2100).unwrap().status, Status::RemoteOperation);
    assert!(is_cut(&pair.other.read(REGION, 2100)));
    let told = pair.other.card.network.attached();
    let counters = told[0].counters;
    assert_eq!((counters.refused_packets, counters.matches, counters.acted_bytes), (1, 1, 3124));
    // It is no traffic any more.
    assert_eq!(pair.other.card.network.detach(Selector::Qp(qpn), false), Ok(0));

    // The neighbour has no services, and goes on, with the pattern too.
    pair.drive_next();
    assert_eq!(pair.carry(SendOpcode::Write, 2100).unwrap().status, Status::Success);
    assert!(pair.other.read(REGION, 2100) == message);

    let mut pair = Pair::new();
    let qpn = pair.one.qpn;
    pair.one.card.network.attach(Selector::Qp(qpn), inspect()).unwrap();
    pair.one.write(MEMORY, &before);
    pair.other.write(REGION, &message);
    assert_eq!(pair.carry(SendOpcode::Read, 2100).unwrap().status, Status::BadResponse);
    assert!(is_cut(&pair.one.read(MEMORY, 2100)));
}

#[test]
fn messages_before_the_refused_one_arrive_though_all_come_at_once() {
    let inspect = Inspect::new(&[vec![0xee]], true).unwrap();
    let mut pair = Pair::new();
    let qpn = pair.other.qpn;
    let chain = Chain::new(vec![Arc::new(inspect)]).unwrap();
    pair.other.card.network.attach(Selector::Qp(qpn), chain).unwrap();
    for (number, byte) in [1u8, 2, 0xee, 3].into_iter().enumerate() {
        let from = MEMORY + 100 * number as u64;
        pair.one.write(from, &[byte; 100]);
        pair.one.post_from(from, SendOpcode::Write, 100, pair.other.rkey);
    }
    pair.work();
    let done: Vec<_> = pair.one.poll_all().iter().map(|done| done.status).collect();
    let expected = [Status::Success, Status::Success, Status::RemoteOperation, Status::Flushed];
    assert_eq!(done, expected);
    // All were for the same place.
    assert_eq!(pair.other.read(REGION, 100), [2; 100]);
    assert_eq!(pair.other.card.network.attached()[0].counters.acted_messages, 2);
}
