//! Prints the cost of a frame: `cargo run --release -p roce --example frame_cost`.
//!
//! Two stacks talk over nothing; the time in `poll_transmit`, in `receive` with `commit`, and in
//! the two passes of the invariant CRC is measured per frame, without any copy of payload to
//! memory.
//!
//! Instructions do not depend on other work of the machine. To count them, give the number of messages and a part of a
//! measurement's name, and have callgrind count one of the functions `emit` and `take`:
//!
//! ```text
//! valgrind --tool=callgrind --toggle-collect='frame_cost::take' target/release/examples/frame_cost 2000 'WRITE 64'
//! ```

#![expect(clippy::expect_used, reason = "a measuring program may stop")]

use std::net::Ipv4Addr;
use std::task::Poll;
use std::time::{Duration, Instant as Clock};

use roce::wire::icrc;
use roce::{
    AccessDenied, AccessFlags, AddressVector, Event, Gid, IcrcPolicy, Instant, MacAddr, Operation,
    PathMtu, Placed, Placement, Psn, QpAttributes, Qpn, ReceiveError, RemoteAccess, RemoteRange,
    ResponderMemory, SendRequest, Stack, StackConfig, TakenReceive, Target, Transmit,
};

/// Allows everything, and always has a receive request.
struct Permissive;

impl ResponderMemory for Permissive {
    fn check_remote(
        &mut self,
        _: Target,
        _: RemoteRange,
        _: RemoteAccess,
    ) -> Poll<Result<(), AccessDenied>> {
        Poll::Ready(Ok(()))
    }

    fn take_receive(&mut self, _: Target) -> Poll<Result<TakenReceive, ReceiveError>> {
        Poll::Ready(Ok(TakenReceive { id: 0, capacity: u64::MAX, left: Some(500) }))
    }
}

#[derive(Default)]
struct Times {
    transmit: Duration,
    seal: Duration,
    receive: Duration,
    frames: u32,
}

/// The measurements that the command line selects.
struct Only {
    messages: u32,
    /// Text that the name of a measurement contains.
    name: String,
}

const NOW: Instant = Instant(0);
const BURST: usize = 64;

fn stack(number: u8) -> Stack {
    Stack::new(StackConfig {
        mac: MacAddr([2, 0, 0, 0, 0, number]),
        ipv4: Ipv4Addr::new(10, 0, 0, number),
        mtu_max: PathMtu::Mtu4096,
        icrc_policy: IcrcPolicy::CheckAll,
    })
}

fn connect(stack: &mut Stack, qpn: Qpn, dgid: Gid, dest_qpn: Qpn) {
    let path = AddressVector { hop_limit: 1, ..AddressVector::new(1, dgid) };
    let rtr = QpAttributes {
        max_dest_rd_atomic: Some(16),
        ..QpAttributes::to_rtr(path, PathMtu::Mtu4096, dest_qpn, Psn::new(0))
    };
    let rts = QpAttributes { max_rd_atomic: Some(16), ..QpAttributes::to_rts(Psn::new(0)) };
    stack.create_qp(qpn, roce::Service::Rc, 0).expect("a free number");
    for change in [QpAttributes::to_init(AccessFlags::all()), rtr, rts] {
        stack.modify_qp(NOW, qpn, &change).expect("a transition");
    }
}

/// A burst of frames.
#[inline(never)]
fn emit(from: &mut Stack) -> Vec<Transmit> {
    (0..BURST).map_while(|_| from.poll_transmit(NOW)).collect()
}

/// Takes a burst of frames.
#[inline(never)]
fn take(to: &mut Stack, frames: &mut [Vec<u8>], placements: &mut Vec<Placement>) {
    for (index, frame) in frames.iter_mut().enumerate() {
        assert!(to.receive(NOW, frame, index, &mut Permissive, placements).is_ready());
    }
    to.commit(NOW, &[Placed::Copied; BURST]);
    while to.poll_event().is_some() {}
}

/// Carries the frames of `from` to `to`.
fn carry(from: &mut Stack, to: &mut Stack, times: &mut Times) -> usize {
    let start = Clock::now();
    let burst = emit(from);
    times.transmit += start.elapsed();
    let mut frames = Vec::with_capacity(BURST);
    for transmit in &burst {
        let mut frame = transmit.header.as_slice().to_vec();
        frame.resize(transmit.frame_length(), 0x5a);
        frames.push(frame);
    }
    let start = Clock::now();
    for frame in &mut frames {
        // ARP frames are not sealed.
        let _ = icrc::append(frame);
    }
    times.seal += start.elapsed();
    let mut placements: Vec<Placement> = Vec::with_capacity(BURST);
    let start = Clock::now();
    take(to, &mut frames, &mut placements);
    times.receive += start.elapsed();
    times.frames = times.frames.saturating_add(u32::try_from(frames.len()).expect("a burst"));
    frames.len()
}

fn measure(only: &Only, name: &str, operation: Operation, length: u32) {
    if !name.contains(&only.name) {
        return;
    }
    let (mut a, mut b) = (stack(1), stack(2));
    let (one, other) =
        (Qpn::new(0x11_2233).expect("24 bits"), Qpn::new(0x44_5566).expect("24 bits"));
    connect(&mut a, one, Gid::from_ipv4(Ipv4Addr::new(10, 0, 0, 2)), other);
    connect(&mut b, other, Gid::from_ipv4(Ipv4Addr::new(10, 0, 0, 1)), one);
    let mut warm_up = Times::default();
    for _ in 0..4 {
        carry(&mut a, &mut b, &mut warm_up);
        carry(&mut b, &mut a, &mut warm_up);
    }
    let (mut forth, mut back) = (Times::default(), Times::default());
    let (mut messages, mut post) = (0_u32, Duration::ZERO);
    let request = SendRequest {
        operation,
        length,
        remote_va: 0x1000,
        rkey: 1,
        imm: 0,
        solicited: false,
        fence: false,
    };
    while messages < only.messages && forth.frames < 1_000_000 && back.frames < 1_000_000 {
        let start = Clock::now();
        while a.send_room(one) > 900 {
            a.post_send(NOW, one, request).expect("room");
            messages = messages.saturating_add(1);
        }
        post += start.elapsed();
        while carry(&mut a, &mut b, &mut forth) != 0 {}
        while carry(&mut b, &mut a, &mut back) != 0 {}
    }
    assert!(a.poll_event().is_none_or(|event| !matches!(event, Event::SendFailed { .. })));
    let each = |time: Duration, count: u32| time.as_nanos() / u128::from(count.max(1));
    println!(
        "{name}: post {} ns; requests: emit {}, seal {}, receive {} ns; answers ({}): emit {}, seal {}, receive {} ns",
        each(post, messages),
        each(forth.transmit, forth.frames),
        each(forth.seal, forth.frames),
        each(forth.receive, forth.frames),
        back.frames,
        each(back.transmit, back.frames),
        each(back.seal, back.frames),
        each(back.receive, back.frames),
    );
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let messages = arguments.next().and_then(|count| count.parse().ok()).unwrap_or(200_000);
    let only = Only { messages, name: arguments.next().unwrap_or_default() };
    measure(&only, "WRITE 64 B", Operation::Write, 64);
    measure(&only, "WRITE 4 KiB", Operation::Write, 4096);
    measure(&only, "WRITE 1 MiB", Operation::Write, 1 << 20);
    measure(&only, "SEND 64 B", Operation::Send, 64);
    measure(&only, "READ 64 B", Operation::Read, 64);
    measure(&only, "READ 1 MiB", Operation::Read, 1 << 20);
}
