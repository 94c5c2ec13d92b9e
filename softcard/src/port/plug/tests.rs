//! Tests of whole cablings, and of the captures they make as other programs read them.

use std::collections::VecDeque;
use std::process::Command;

use roce::ReceivedFrame as _;

use super::*;
use crate::port::{Frame, MIN_FRAME};

/// An IPv4 ping from one card's address to another's, as far as a capture tool looks.
fn ping(from: u8, to: u8) -> Frame {
    let mut bytes = vec![2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from, 8, 0];
    bytes.extend([0x45, 0, 0, 28, 0, 0, 0, 0, 64, 1, 0, 0, 10, 0, 0, from, 10, 0, 0, to]);
    bytes.extend([8, 0, 0xf7, 0xff, 0, 0, 0, 0]);
    Frame::from_bytes(&bytes).unwrap()
}

fn plugged(cabling: Cabling) -> Result<Vec<Box<dyn Port>>, Error> {
    plug(cabling, &FramePool::new(16))
}

fn received(port: &mut Box<dyn Port>) -> usize {
    let mut into = VecDeque::new();
    port.receive(2_000, &mut into, 64);
    into.len()
}

/// The output of tshark about a capture, or `None` where it is not installed.
fn tshark(capture: &Path, fields: &[&str]) -> Option<String> {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(capture).args(["-n", "-T", "fields"]);
    for field in fields {
        command.args(["-e", field]);
    }
    match command.output() {
        Ok(output) => {
            let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "tshark refuses the capture: {complaint}");
            assert!(!complaint.contains("cut short"), "the capture is damaged: {complaint}");
            Some(String::from_utf8(output.stdout).unwrap())
        }
        Err(error) => {
            println!("SKIPPED: tshark cannot be run ({error}); install it to check captures");
            None
        }
    }
}

#[test]
fn cards_on_a_switch_are_captured_at_both_ends_as_tshark_reads_it() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("capture.pcapng");
    let links = vec![Link::Switch, Link::Switch];
    let mut ports =
        plugged(Cabling { links, capture: Some(file.clone()), ..Cabling::default() }).unwrap();
    let burst = || VecDeque::from([ping(1, 2)]);
    ports[0].send(1_000, &mut burst());
    assert_eq!(received(&mut ports[1]), 1);
    ports[1].loop_back(3_000, &burst());
    assert!(ports[0].next_timeout().is_some(), "what is collected is written in a while");

    // The file is whole once it is flushed, though the ports, like a killed process, never end.
    ports[0].flush();
    let fields = ["frame.interface_name", "frame.packet_flags_direction", "ip.src", "ip.dst"];
    let Some(lines) = tshark(&file, &fields) else { return };
    let lines: Vec<Vec<&str>> = lines.lines().map(|line| line.split('\t').collect()).collect();
    let seen: Vec<(&str, &str)> = lines.iter().map(|line| (line[0], line[1])).collect();
    let (inbound, outbound) = ("0x00000001", "0x00000002");
    let expected = [
        ("card0-sent", outbound),
        ("card1-delivered", inbound),
        ("card1-sent", outbound),
        ("card1-delivered", inbound),
    ];
    assert_eq!(seen, expected);
    assert!(lines.iter().all(|line| (line[2], line[3]) == ("10.0.0.1", "10.0.0.2")));

    let times = tshark(&file, &["frame.time_epoch"]).unwrap();
    let nanoseconds: Vec<u64> =
        times.lines().map(|time| time.split('.').nth(1).unwrap().parse().unwrap()).collect();
    let after = |n: usize| (nanoseconds[n] + 1_000_000_000 - nanoseconds[0]) % 1_000_000_000;
    assert_eq!([after(1), after(2)], [1_000, 2_000]);
}

#[test]
fn a_frame_that_waits_is_captured_once_when_it_goes() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("capture.pcapng");
    let (local, remote) = (directory.path().join("a"), directory.path().join("b"));
    let links = vec![Link::Unix { local: local.clone(), remote: remote.clone() }];
    let mut ports =
        plugged(Cabling { links, capture: Some(file.clone()), ..Cabling::default() }).unwrap();
    let peer = std::os::unix::net::UnixDatagram::bind(&remote).unwrap();

    let offered = 2000;
    let mut burst: VecDeque<Frame> = (0..offered).map(|_| ping(1, 2)).collect();
    let mut arrived = 0;
    while !burst.is_empty() {
        let before = burst.len();
        ports[0].send(0, &mut burst);
        for _ in burst.len()..before {
            assert!(peer.recv(&mut [0; 100]).unwrap() >= MIN_FRAME);
            arrived += 1;
        }
    }
    assert_eq!(arrived, offered);
    drop(ports);
    if let Some(lines) = tshark(&file, &["frame.number"]) {
        assert_eq!(lines.lines().count(), offered);
    }
}

#[test]
fn what_cannot_be_plugged_in_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let nowhere = directory.path().join("absent").join("file");
    let links = vec![Link::Unix { local: nowhere.clone(), remote: nowhere.clone() }];
    let refused = plugged(Cabling { links, ..Cabling::default() }).err().unwrap();
    assert!(matches!(&refused, Error::Port { path, .. } if *path == nowhere), "{refused}");
    let refused = plugged(Cabling { capture: Some(nowhere.clone()), ..Cabling::default() });
    let refused = refused.err().unwrap();
    assert!(matches!(&refused, Error::Capture { path, .. } if *path == nowhere), "{refused}");
}

#[test]
fn one_way_traffic_needs_no_new_frames() {
    let directory = tempfile::tempdir().unwrap();
    let (one, two) = (directory.path().join("a"), directory.path().join("b"));
    let unix =
        |local: &Path, remote: &Path| Link::Unix { local: local.into(), remote: remote.into() };
    for links in [vec![Link::Switch, Link::Switch], vec![unix(&one, &two), unix(&two, &one)]] {
        let pool = FramePool::new(64);
        let mut ports = plug(Cabling { links, ..Cabling::default() }, &pool).unwrap();
        for _ in 0..100 {
            let mut burst: VecDeque<Frame> = (0..8).map(|_| pool.copy_of(&ping(1, 2))).collect();
            ports[0].send(0, &mut burst);
            ports[1].receive(0, &mut burst, 64);
            assert_eq!(burst.len(), 8);
            burst.drain(..).for_each(|frame| pool.put(frame));
        }
        assert!(pool.made() <= 16, "{} frames were made", pool.made());
    }
}

/// A frame as a card sends it, to an address that no switch has learned.
fn sealed() -> Frame {
    let mut bytes = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    // An IPv4 header with the length of UDP header, transport header and CRC.
    bytes.extend([0x45, 0, 0, 44, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes.resize(bytes.len() + 8 + 12 + 4, 0);
    let mut frame = Frame::from_bytes(&bytes).unwrap();
    frame.seal();
    assert!(frame.is_vouched_for());
    frame
}

#[test]
fn only_frames_that_nothing_but_the_switch_has_touched_are_vouched_for() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let capture = Some(path("capture.pcapng"));
    let switched = |cards, faults_of: &[&str]| Cabling {
        links: vec![Link::Switch; cards],
        faults: faults(faults_of),
        seed: 0,
        capture: capture.clone(),
    };
    let unix = |local, remote| Link::Unix { local: path(local), remote: path(remote) };
    let cable = Cabling { links: vec![unix("a", "b"), unix("b", "a")], ..Cabling::default() };
    let arrives = |cabling| {
        let mut ports = plugged(cabling).unwrap();
        ports[0].send(0, &mut VecDeque::from([sealed()]));
        let mut arrived = Vec::new();
        for port in ports.iter_mut().skip(1) {
            let mut into = VecDeque::new();
            // Delayed frames come a moment later.
            for now in [0, 1_000_000] {
                port.receive(now, &mut into, 64);
            }
            arrived.extend(into.iter().map(Frame::is_vouched_for));
        }
        arrived
    };
    assert_eq!(arrives(switched(2, &[])), [true]);
    assert_eq!(arrives(switched(2, &["delay=1us,card=1"])), [true]);
    assert_eq!(arrives(switched(3, &[])), [true, false], "one of two is a copy");
    assert_eq!(arrives(switched(2, &["dup=100%,card=1"])), [false, true]);
    assert_eq!(arrives(switched(2, &["corrupt=100%,card=0"])), [false]);
    assert_eq!(arrives(switched(2, &["ecn=100%,card=0"])), [false]);
    assert_eq!(arrives(cable), [false]);
}

fn faults(texts: &[&str]) -> Vec<FaultSpec> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn faults_lie_between_what_a_capture_shows_as_sent_and_as_delivered() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("capture.pcapng");
    let links = vec![Link::Switch, Link::Switch];
    let faults = faults(&["corrupt=100%,card=0", "dup=100%,card=1"]);
    let mut ports =
        plugged(Cabling { links, faults, capture: Some(file.clone()), seed: 3 }).unwrap();
    ports[0].send(0, &mut VecDeque::from([ping(1, 2)]));
    let mut into = VecDeque::new();
    ports[1].receive(0, &mut into, 64);
    let sent = ping(1, 2).as_slice().to_vec();
    let flipped = |frame: &Frame| -> u32 {
        frame.as_slice().iter().zip(&sent).map(|(a, b)| (a ^ b).count_ones()).sum()
    };
    assert_eq!(into.iter().map(flipped).collect::<Vec<_>>(), [1, 1]);
    // A card's frames to itself meet no fault.
    ports[1].loop_back(0, &VecDeque::from([ping(1, 2)]));
    ports[0].flush();

    let bytes = std::fs::read(&file).unwrap();
    let whole = bytes.windows(sent.len()).filter(|bytes| *bytes == sent).count();
    assert_eq!(whole, 3, "sent by card 0, and sent and delivered by card 1");
    let Some(lines) = tshark(&file, &["frame.interface_name"]) else { return };
    let names: Vec<&str> = lines.lines().collect();
    let expected =
        ["card0-sent", "card1-delivered", "card1-delivered", "card1-sent", "card1-delivered"];
    assert_eq!(names, expected);
}

#[test]
fn faults_apply_to_the_cards_they_name_and_to_all_where_they_name_none() {
    let links = vec![Link::Switch; 3];
    let faults = faults(&["loss=100%,card=1", "ecn=100%", "delay=1ms,card=2"]);
    let mut ports = plugged(Cabling { links, faults, ..Cabling::default() }).unwrap();
    for port in &mut ports {
        port.send(0, &mut VecDeque::from([ping(1, 2)]));
    }
    let count = |card: usize, name: &str| {
        let counters: Vec<_> = ports[card].counters();
        counters.iter().find(|(found, _)| *found == name).unwrap().1
    };
    // Card 1's is lost before the mark of the later specification, card 2's is marked, then waits.
    assert_eq!([0, 1, 2].map(|card| count(card, "fault_lost_tx")), [0, 1, 0]);
    assert_eq!([0, 1, 2].map(|card| count(card, "fault_ecn_marked_tx")), [1, 0, 1]);
    assert_eq!([0, 1, 2].map(|card| count(card, "fault_delayed_tx")), [0, 0, 1]);
    assert_eq!([0, 1, 2].map(|card| count(card, "port_frames_sent")), [1, 0, 0]);
}

#[test]
fn faults_of_a_card_that_is_not_there_are_refused() {
    let links = vec![Link::Switch];
    let faults = faults(&["loss=1%", "dup=1%,card=1"]);
    let refused = plugged(Cabling { links, faults, ..Cabling::default() }).err().unwrap();
    assert_eq!(
        refused.to_string(),
        "fault `dup=1%,card=1`: there is no card 1; cards are numbered from 0, and there are 1"
    );
}
