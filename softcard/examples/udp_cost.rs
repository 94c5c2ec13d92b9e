//! Prints the cost of a frame at ports on the machine's own network: `cargo run --release -p softcard --example
//! udp_cost`.
//!
//! Two ports stand on two addresses of the loopback network and know each other as balboads' ports. One sends bursts as
//! cards do, and the other receives them; no card is behind either. It prints the time of the quickest burst, with the
//! kernel's part of it, because other work of the machine lengthens that burst least.
//!
//! Instructions outside of the kernel do not depend on that work. To count them, give the number of bursts and a part of
//! a measurement's name, and have callgrind count one of the functions `send` and `receive`:
//!
//! ```text
//! valgrind --tool=callgrind --toggle-collect='udp_cost::send' target/release/examples/udp_cost 100 'MTU 1024'
//! ```

#![expect(clippy::expect_used, reason = "a measuring program may stop")]

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use roce::MacAddr;
use roce::param::ROCE_UDP_PORT;
use roce::wire::ethernet::{self, EtherType};
use roce::wire::{bth, icrc, ipv4, reth, udp};
use softcard::UdpOptions;
use softcard::port::udp::machine::{MachineAddress, MachineDevice};
use softcard::port::{Frame, FramePool, Port, UdpPort};

/// Frames of a card's burst.
const BURST: usize = 128;
/// Bytes of a message.
const MESSAGE: usize = 64 << 10;

const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(127, 47, 91, 1), Ipv4Addr::new(127, 47, 91, 2)];
const MACS: [MacAddr; 2] = [MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2])];

fn port(side: usize, pool: &FramePool) -> UdpPort {
    let ip = ADDRESSES[side].into();
    let device = MachineDevice {
        name: "lo".into(),
        index: 1,
        is_up: true,
        mtu: 65_536,
        addresses: vec![MachineAddress { ip, prefix: 8 }],
    };
    let mut port =
        UdpPort::open(&device, UdpOptions::default(), pool.clone()).expect("UDP port 4791");
    port.set_addresses(MACS[side].0, &[ip]);
    port
}

/// A sealed frame with so many bytes behind its UDP header.
fn frame(pool: &FramePool, length: usize) -> Frame {
    let ethernet = ethernet::Repr {
        destination: MACS[1],
        source: MACS[0],
        tag: None,
        ethertype: EtherType::IPV4,
    };
    let ip = ipv4::Repr {
        type_of_service: 2,
        time_to_live: 64,
        protocol: ipv4::PROTOCOL_UDP,
        source: ADDRESSES[0],
        destination: ADDRESSES[1],
        payload_length: u16::try_from(length + udp::LENGTH).expect("a frame"),
    };
    let udp = udp::Repr {
        source_port: 0xc123,
        destination_port: ROCE_UDP_PORT,
        payload_length: u16::try_from(length).expect("a frame"),
    };
    let headers = [&ethernet.to_bytes()[..], &ip.to_bytes(), &udp.to_bytes()].concat();
    let mut frame = pool.take();
    assert!(frame.set_len(headers.len() + length));
    let (place, payload) = frame.as_mut_slice().split_at_mut(headers.len());
    place.copy_from_slice(&headers);
    payload.fill(0x5a);
    frame.seal();
    frame
}

/// The frames of a WRITE at a path MTU, again and again.
fn burst(pool: &FramePool, mtu: usize) -> VecDeque<Frame> {
    let each = bth::LENGTH + mtu + icrc::LENGTH;
    let of_message = MESSAGE / mtu;
    let length = |number: usize| if number % of_message == 0 { each + reth::LENGTH } else { each };
    (0..BURST).map(|number| frame(pool, length(number))).collect()
}

#[inline(never)]
fn send(port: &mut UdpPort, now: u64, burst: &mut VecDeque<Frame>) {
    port.send(now, burst);
}

#[inline(never)]
fn receive(port: &mut UdpPort, now: u64, into: &mut VecDeque<Frame>) {
    port.receive(now, into, BURST);
}

fn measure(bursts: u32, only: &str, mtu: usize) {
    let name = format!("MTU {mtu}");
    if !name.contains(only) {
        return;
    }
    let pool = FramePool::new(1024);
    let (mut one, mut two) = (port(0, &pool), port(1, &pool));
    let started = Instant::now();
    let now = || u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let (mut sent, mut received) = (Duration::MAX, Duration::MAX);
    let (mut arrived, mut ignored) = (VecDeque::new(), VecDeque::new());
    let mut done = 0;
    while done < bursts {
        let mut frames = burst(&pool, mtu);
        let start = Instant::now();
        send(&mut one, now(), &mut frames);
        let middle = Instant::now();
        receive(&mut two, now(), &mut arrived);
        let received_for = middle.elapsed();
        let is_known = one.counters().contains(&("port_balboads_known", 1));
        if is_known && arrived.len() == BURST {
            done += 1;
            sent = sent.min(middle - start);
            received = received.min(received_for);
        }
        pool.put_all(&mut arrived);
        // Words, which tell of room.
        two.receive(now(), &mut ignored, BURST);
        one.receive(now(), &mut ignored, BURST);
        pool.put_all(&mut ignored);
    }
    let each = |time: Duration| time.as_nanos() / BURST as u128;
    println!("{name}: send {} ns, receive {} ns", each(sent), each(received));
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let bursts = arguments.next().and_then(|count| count.parse().ok()).unwrap_or(20_000);
    let only = arguments.next().unwrap_or_default();
    for mtu in [256, 1024, 4096] {
        measure(bursts, &only, mtu);
    }
}
