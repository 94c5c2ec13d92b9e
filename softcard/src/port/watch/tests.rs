//! Tests of recordings, over a port with a set capacity.

use std::io::Read as _;

use super::*;

/// A port that takes some frames of a burst, and has some that have arrived.
struct Cable {
    takes: usize,
    arrived: VecDeque<Frame>,
}

impl Port for Cable {
    fn send(&mut self, _now: u64, burst: &mut VecDeque<Frame>) {
        burst.drain(..self.takes.min(burst.len()));
    }

    fn receive(&mut self, _now: u64, into: &mut VecDeque<Frame>, _budget: usize) {
        into.append(&mut self.arrived);
    }

    fn room(&self) -> usize {
        self.takes
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

fn watched(takes: usize, arrived: usize) -> (Watched, Watch) {
    let arrived = (0..arrived).map(|_| roce(5)).collect();
    Watched::new(Box::new(Cable { takes, arrived }))
}

/// A frame of RoCE from 10.0.0.1 to 10.0.0.2, for a QP.
fn roce(qpn: u8) -> Frame {
    let mut bytes = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    bytes.extend([0x45, 0, 0, 44, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes.extend([0xc0, 0, 0x12, 0xb7, 0, 24, 0, 0]);
    bytes.extend([4, 0, 0xff, 0xff, 0, 0, 0, qpn, 0, 0, 0, 0, 0, 0, 0, 0]);
    Frame::from_bytes(&bytes).unwrap()
}

fn all() -> WatchFilter {
    WatchFilter { qpns: vec![], address: None, snap: 0, ring: 1 << 20 }
}

/// Begins a recording, and gives the reader's end.
fn begin(watch: &Watch, filter: WatchFilter) -> UnixStream {
    let (ours, theirs) = UnixStream::pair().unwrap();
    assert!(watch.begin(Recorder::begin(0, filter, ours, 0).unwrap()));
    theirs.set_nonblocking(true).unwrap();
    theirs
}

/// The types of the blocks that have come, after checking that each is whole; of packets with the bytes kept.
fn blocks(mut reader: &UnixStream) -> Vec<(u32, usize)> {
    let mut bytes = Vec::new();
    let _ = reader.read_to_end(&mut bytes);
    let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
    let (mut at, mut blocks) = (0, Vec::new());
    while at < bytes.len() {
        let length = word(at + 4) as usize;
        assert_eq!(word(at + length - 4) as usize, length);
        let kept = if word(at) == 6 { word(at + 20) as usize } else { 0 };
        blocks.push((word(at), kept));
        at += length;
    }
    blocks
}

#[test]
fn what_is_sent_and_delivered_is_recorded_until_the_end() {
    let (mut port, watch) = watched(2, 1);
    port.send(0, &mut VecDeque::from([roce(1)]));
    let reader = begin(&watch, all());
    let mut burst = VecDeque::from([roce(1), roce(2), roce(3)]);
    port.send(1, &mut burst);
    assert_eq!(burst.len(), 1, "the third one stays, and is none that was sent");
    port.receive(2, &mut VecDeque::new(), 8);
    watch.end(3);
    assert_eq!(port.next_timeout(), Some(3));
    port.receive(3, &mut VecDeque::new(), 8);
    let kinds: Vec<u32> = blocks(&reader).iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, [0x0a0d_0d0a, 1, 1, 6, 6, 6, 5, 5]);
    assert_eq!(port.next_timeout(), None);
    assert_eq!((&reader).read(&mut [0; 8]).unwrap(), 0, "the end of the file");
}

#[test]
fn only_what_the_filter_takes_is_kept_and_no_more_of_it_than_asked_for() {
    let address = |last| Some([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last]);
    for (qpns, wanted, expected) in [
        (vec![], None, 3),
        (vec![2, 3], None, 2),
        (vec![9], None, 0),
        (vec![], address(1), 3),
        (vec![], address(2), 3),
        (vec![], address(3), 0),
        (vec![1], address(2), 1),
    ] {
        let (mut port, watch) = watched(8, 0);
        let filter = WatchFilter { qpns, address: wanted, snap: 20, ..all() };
        let reader = begin(&watch, filter.clone());
        port.send(1, &mut VecDeque::from([roce(1), roce(2), roce(3)]));
        watch.end(2);
        port.receive(2, &mut VecDeque::new(), 8);
        let packets: Vec<_> = blocks(&reader).into_iter().filter(|(kind, _)| *kind == 6).collect();
        assert_eq!(packets, vec![(6, 20); expected], "{filter:?}");
    }
}

#[test]
fn a_reader_that_is_slow_loses_frames_and_holds_up_nobody() {
    let (mut port, watch) = watched(usize::MAX, 0);
    let reader = begin(&watch, WatchFilter { ring: 64 << 10, ..all() });
    // More than a socket takes and the ring has room for.
    let total = 40_000u64;
    for now in 0..total {
        port.send(now, &mut VecDeque::from([roce(1)]));
    }
    let held = |watch: &Watch| watch.0.borrow().as_ref().map(|it| (it.bytes.len(), it.counts[0]));
    let (bytes, (seen, lost)) = held(&watch).unwrap();
    assert!(bytes <= 3 * (64 << 10) && seen == total && lost > 0, "{bytes} bytes, {lost} lost");
    watch.end(total);
    let (mut now, mut packets) = (total, 0);
    while held(&watch).is_some() {
        packets += blocks_so_far(&reader);
        now += AGAIN_AFTER_NS;
        port.receive(now, &mut VecDeque::new(), 8);
    }
    packets += blocks_so_far(&reader);
    assert!(packets > 0);
}

/// Bytes that have come.
fn blocks_so_far(mut reader: &UnixStream) -> usize {
    let mut bytes = Vec::new();
    let _ = reader.read_to_end(&mut bytes);
    bytes.len()
}

#[test]
fn one_recording_is_read_at_a_time_and_one_that_nobody_reads_makes_room() {
    let (mut port, watch) = watched(8, 0);
    let reader = begin(&watch, all());
    let (ours, _theirs) = UnixStream::pair().unwrap();
    assert!(!watch.begin(Recorder::begin(0, all(), ours, 0).unwrap()));
    drop(reader);
    let reader = begin(&watch, all());
    drop(reader);
    port.send(0, &mut VecDeque::from([roce(1)]));
    port.receive(WRITE_AFTER_NS, &mut VecDeque::new(), 8);
    assert!(watch.0.borrow().is_none(), "nobody reads it");
}
