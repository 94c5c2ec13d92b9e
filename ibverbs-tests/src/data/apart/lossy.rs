//! Unreliable services on cables that lose frames: messages may be lost, and those that arrive are right.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use verbs_sys::current::verbs as v;

use super::datagrams::{Datagrams, HEADER};
use super::{Done, Half, Wishes};
use crate::data::line::Line;
use crate::data::link::{ACCESS, LIMIT, Options, Side, success};
use crate::data::transfer;
use crate::ffi::{Completion, Operation, Piece, Recv, Region, Send};

/// Messages each way, and of those as many as are under way at a time.
const MESSAGES: u32 = 96;
const BURST: u32 = 8;
/// The path MTU of connections, as a code and in bytes.
const MTU: (v::ibv_mtu, usize) = (v::IBV_MTU_1024, 1024);
/// Bytes of the longest SEND and of the longest datagram.
const LONGEST: usize = 3 * MTU.1 + 3;
const LARGEST: usize = 4096;
/// Receives that are posted, each with a place of its own: a header, a message, and a few bytes.
const PLACES: u64 = 32;
const PLACE: usize = HEADER + LARGEST + 64;
/// Bytes from the target of one WRITE to the next.
const TARGET: usize = MTU.1 + 64;
/// Immediate data of the message that ends a burst, and is repeated until it arrives: earlier ones are there by then,
/// or never will be. The number of the burst is added.
const END: u32 = 0xffff_0000;
/// The wait before the first repetition, doubled for each further one: so few repetitions that there are receives for
/// all of them, however late the other side looks.
const PATIENCE: Duration = Duration::from_millis(20);

/// A service, towards the other side.
trait Service {
    fn side(&self) -> &Side;
    fn line(&mut self) -> &mut Line;
    /// The operation of a message, and its length.
    fn message(&self, number: u32) -> (Operation, usize);
    /// Posts one.
    fn post(&self, request: Send) -> Result<()>;
    /// Where the other side has its targets of WRITEs.
    fn targets(&self) -> (u64, u32);
    /// The first byte of a receive, in its place.
    fn start(&self) -> usize;
    /// Bytes that a message which never became whole may have written.
    fn reach(&self) -> usize;
    /// Checks the bytes in a place beside the message, and gives the message's length.
    fn check(&self, received: &Completion, places: &Region, place: usize) -> Result<usize>;
}

/// Messages of an unreliable connection, both ways.
///
/// WRITEs have one packet: a QP of rdma_rxe that has not got the last of several takes nothing more for
/// good (`do_class_d1e_error` forgets the first packet only where a receive request is in use).
pub(super) fn connections(side: Side, line: &mut Line, options: &Options) -> Result<Done> {
    let wishes = Wishes { bad_cable: true, ..Wishes::default() };
    let half = Half::connected(&side, line, options, ACCESS, (MTU.0, wishes))?;
    let targets = Region::new(&side.pd, TARGET * MESSAGES as usize, ACCESS, false)?;
    let [address, key] = half.line.exchange([targets.address().into(), targets.rkey().into()])?;
    let far = (address.try_into()?, key.try_into()?);
    both_ways(&mut Unreliable { half, far }, &targets)
}

/// Datagrams, both ways.
pub(super) fn datagrams(half: &mut Datagrams<'_>) -> Result<Done> {
    let unused = Region::new(&half.side.pd, TARGET * MESSAGES as usize, ACCESS, false)?;
    both_ways(half, &unused)
}

fn both_ways(service: &mut impl Service, targets: &Rc<Region>) -> Result<Done> {
    let places = Region::new(&service.side().pd, PLACE * PLACES as usize, ACCESS, false)?;
    let mut done = Done::default();
    for sender in [0, 1] {
        transfer::fill_guard(targets, targets.length());
        transfer::fill_guard(&places, places.length());
        let near = sender == service.line().role;
        let arrived = if near {
            send(service, targets).context("sending")?;
            let [arrived] = service.line().exchange([0])?;
            usize::try_from(arrived)?
        } else {
            let arrived = receive(service, &places, targets).context("receiving")?;
            service.line().exchange([arrived as u128])?;
            arrived
        };
        ensure!(arrived >= MESSAGES as usize / 2, "only {arrived} of {MESSAGES} arrived");
        done.messages += arrived;
    }
    Ok(done)
}

/// Sends bursts of messages, and the end of each until it has arrived.
fn send(service: &mut impl Service, source: &Rc<Region>) -> Result<()> {
    service.line().meet()?;
    for burst in 0..MESSAGES / BURST {
        for number in burst * BURST..(burst + 1) * BURST {
            let (operation, size) = service.message(number);
            transfer::fill(source, &[(0, size)], number.into());
            // An empty piece means something else on every vendor's card.
            let pieces = (size > 0).then(|| source.piece(0, size)).into_iter().collect();
            post(service, (operation, number), pieces)?;
        }
        let deadline = Instant::now() + LIMIT;
        let mut patience = PATIENCE;
        loop {
            post(service, (Operation::SendImmediate, END + burst), Vec::new())?;
            if service.line().was_heard(patience)? {
                break;
            }
            ensure!(Instant::now() < deadline, "nothing arrives any more after burst {burst}");
            patience *= 2;
        }
    }
    Ok(())
}

/// Posts a message, and waits until it has left: its bytes may change then.
fn post(
    service: &impl Service,
    (operation, immediate): (Operation, u32),
    pieces: Vec<Piece>,
) -> Result<()> {
    let (address, key) = service.targets();
    let target = if operation == Operation::WriteImmediate {
        u64::from(immediate) * TARGET as u64
    } else {
        0
    };
    service.post(Send {
        wr_id: immediate.into(),
        operation,
        pieces,
        remote: (address + target, key),
        immediate,
        flags: v::IBV_SEND_SIGNALED,
    })?;
    let side = service.side();
    let sent = success(side.context.library(), &side.send_cq)?;
    ensure!(sent.wr_id == u64::from(immediate), "{sent:?}");
    Ok(())
}

/// Receives the messages of all bursts; gives their number.
fn receive(service: &mut impl Service, places: &Rc<Region>, targets: &Region) -> Result<usize> {
    (0..PLACES).try_for_each(|place| post_place(service, places, place))?;
    service.line().meet()?;
    let mut arrived = BTreeSet::new();
    for burst in 0..MESSAGES / BURST {
        loop {
            let side = service.side();
            let received = success(side.context.library(), &side.receive_cq)?;
            let number = received.immediate.context("no immediate data")?;
            if number < END {
                check(service, &received, places, targets)
                    .with_context(|| format!("{received:?}"))?;
                arrived.insert(number);
            }
            post_place(service, places, received.wr_id)?;
            if number == END + burst {
                break;
            }
        }
        service.line().heard()?;
    }
    Ok(arrived.len())
}

/// Posts the receive of a place.
fn post_place(service: &impl Service, places: &Rc<Region>, place: u64) -> Result<()> {
    let (at, start) = (place as usize * PLACE, service.start());
    transfer::guard_part(places, at, PLACE);
    let pieces = vec![places.piece(at + start, HEADER + LARGEST - start)];
    Ok(service.side().qp.post_recv(&Recv { wr_id: place, pieces })?)
}

/// Checks a message that has arrived.
fn check(
    service: &impl Service,
    received: &Completion,
    places: &Region,
    targets: &Region,
) -> Result<()> {
    let number = received.immediate.unwrap_or(END);
    ensure!(number < MESSAGES, "nobody sent that");
    let (operation, size) = service.message(number);
    let at = received.wr_id as usize * PLACE;
    if operation == Operation::WriteImmediate {
        let told = (received.opcode, received.byte_len as usize);
        ensure!(told == (v::IBV_WC_RECV_RDMA_WITH_IMM, size), "{size} bytes were written");
        let start = number as usize * TARGET;
        return transfer::check_part(targets, (start, size), start + TARGET, number.into());
    }
    let bytes = service.check(received, places, at)?;
    ensure!((received.opcode, bytes) == (v::IBV_WC_RECV, size), "{size} bytes were sent");
    let body = at + HEADER;
    transfer::check_part(places, (body, size), body + size, number.into())?;
    // Behind it there may be more of a message of several packets that was dropped in the middle.
    let reached = body + service.reach().max(size);
    transfer::check_part(places, (reached, 0), at + PLACE, 0)
}

/// SENDs and WRITEs of an unreliable connection.
struct Unreliable<'a> {
    half: Half<'a>,
    /// Where the other side's targets are.
    far: (u64, u32),
}

impl Service for Unreliable<'_> {
    fn side(&self) -> &Side {
        self.half.side
    }

    fn line(&mut self) -> &mut Line {
        self.half.line
    }

    fn message(&self, number: u32) -> (Operation, usize) {
        let any = 37 * number as usize;
        match number % 3 {
            0 => (Operation::WriteImmediate, any % (MTU.1 + 1)),
            1 => (Operation::SendImmediate, LONGEST - number as usize),
            _ => (Operation::SendImmediate, any % MTU.1),
        }
    }

    fn post(&self, request: Send) -> Result<()> {
        self.half.side.qp.post_send(&[request]).map_err(|(failed, _)| failed)?;
        Ok(())
    }

    fn targets(&self) -> (u64, u32) {
        self.far
    }

    fn start(&self) -> usize {
        HEADER
    }

    fn reach(&self) -> usize {
        LONGEST
    }

    fn check(&self, received: &Completion, _: &Region, _: usize) -> Result<usize> {
        Ok(received.byte_len as usize)
    }
}

impl Service for Datagrams<'_> {
    fn side(&self) -> &Side {
        self.side
    }

    fn line(&mut self) -> &mut Line {
        self.line
    }

    fn message(&self, number: u32) -> (Operation, usize) {
        let short = if number % 2 == 0 { 3000 } else { 0 };
        (Operation::SendImmediate, LARGEST - short - number as usize)
    }

    fn post(&self, request: Send) -> Result<()> {
        Ok(self.side.qp.post_datagram(&request, self.destination())?)
    }

    fn targets(&self) -> (u64, u32) {
        (0, 0)
    }

    fn start(&self) -> usize {
        0
    }

    fn reach(&self) -> usize {
        0
    }

    fn check(&self, received: &Completion, places: &Region, place: usize) -> Result<usize> {
        self.check_header(received, places, place)
    }
}
