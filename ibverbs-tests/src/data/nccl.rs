//! NCCL's pattern: queue pairs, memory and threads as its transport for verbs uses them.
//!
//! Each side sends to the other, over queue pairs of its own. A receiver writes the places of its
//! messages into the sender's memory; the sender writes the messages there, over all queue pairs or one, and ends each
//! queue pair's part by a WRITE with immediate, for which an empty receive is posted. The receiver then
//! READs one byte of the message by a queue pair that is connected to itself, so that a GPU would find
//! all of it there. A thread waits for asynchronous events all the while.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::mpsc::Receiver as Heard;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use verbs_sys::current::verbs as v;

use super::line::Line;
use super::transfer;
use crate::ffi::{AsyncEvent, Context, Library, Operation, Pd, Qp, Region, Send};

mod ends;
mod gid;
mod plan;

use ends::{Far, Receiver, Sender, Surroundings};
pub use gid::Wanted;
use plan::{GUARD, Message, Mode, UNDER_WAY};

/// How long nothing may come.
const LIMIT: Duration = Duration::from_secs(60);
/// How long an asynchronous event may take.
const EVENT: Duration = Duration::from_secs(30);
/// Requests of short messages in each mode.
const SHORTS: usize = 200;
/// The long message of all modes but the first.
const LESS: usize = 3 << 20;

const MODES: [Mode; 4] = [
    Mode { striped: true, routed: true },
    Mode { striped: true, routed: false },
    Mode { striped: false, routed: true },
    Mode { striped: false, routed: false },
];

/// The options of a run.
#[derive(Clone, Debug)]
pub struct Wishes {
    /// The device.
    pub device: String,
    /// Its GID.
    pub gid: Wanted,
    /// QPs to send by, and as many to receive by.
    pub qps: usize,
    /// Bytes of the longest message.
    pub long: usize,
    /// Local ACK timeout, 4.096 µs × 2^timeout.
    pub timeout: u8,
    /// The cable loses frames: no refusal is asked for, which is said only once.
    pub bad_cable: bool,
}

/// One side: both its ends, and the memory of each.
struct Side {
    place: Surroundings,
    sender: Sender,
    receiver: Receiver,
    outgoing: Rc<Region>,
    incoming: Rc<Region>,
    events: Heard<AsyncEvent>,
}

/// Waits on a TCP port, or connects to it, and moves messages both ways at once; answers how many came.
///
/// # Errors
/// At the first that goes wrong.
pub fn run(wishes: &Wishes, host: Option<&str>, port: u16) -> Result<usize> {
    let library = Library::open()?;
    let mut line = Line::new(host, port)?;
    let mut side = Side::connected(library, wishes, &mut line)?;
    let mut count = 0;
    for (turn, mode) in MODES.into_iter().enumerate() {
        let long = if turn == 0 { wishes.long } else { LESS.min(wishes.long) };
        let requests = |role| plan::requests((2 * turn + role) as u64, SHORTS, long);
        let (own, others) = (requests(line.role), requests(1 - line.role));
        line.meet()?;
        count += side.exchange(own, others, mode).with_context(|| format!("{mode:?}"))?;
    }
    line.meet()?;
    side.hears(wishes, &mut line).context("asynchronous events")?;
    Ok(count)
}

impl Side {
    fn connected(library: &'static Library, wishes: &Wishes, line: &mut Line) -> Result<Self> {
        let context = Context::open(library, &wishes.device)?;
        let port = context.port()?;
        ensure!(port.state == v::IBV_PORT_ACTIVE, "the port's state is {}", port.state);
        let events = context.watch();
        let gid = gid::choose(&context, &wishes.device, wishes.gid)?;
        let [far_gid, mtu, qps] = line.exchange([
            u128::from_be_bytes(gid.1),
            port.active_mtu.into(),
            wishes.qps as u128,
        ])?;
        ensure!(qps == wishes.qps as u128, "the other side has {qps} QPs");
        let mtu = port.active_mtu.min(v::ibv_mtu::try_from(mtu)?);
        let pd = Pd::new(&context)?;
        let place = Surroundings { context, pd, gid, mtu, timeout: wishes.timeout };
        let mut sender = Sender::new(&place, wishes.qps)?;
        let mut receiver = Receiver::new(&place, wishes.qps)?;
        receiver.far = exchange(line, &sender.told)?;
        sender.records = exchange(line, &receiver.records)?;
        let numbers = |qps: &[Qp]| qps.iter().map(Qp::number).collect::<Vec<_>>();
        let (mut senders, mut receivers) = (Vec::new(), Vec::new());
        let own = numbers(&sender.lanes.qps).into_iter().zip(numbers(&receiver.lanes.qps));
        for (sends, receives) in own {
            let [sends, receives] = line.exchange([sends.into(), receives.into()])?;
            senders.push(sends.try_into()?);
            receivers.push(receives.try_into()?);
        }
        let far_gid = far_gid.to_be_bytes();
        sender.lanes.connect(&place, &receivers, far_gid)?;
        receiver.lanes.connect(&place, &senders, far_gid)?;
        let room = plan::room(wishes.long);
        let (outgoing, incoming) = (place.data(room)?, place.data(room)?);
        Ok(Self { place, sender, receiver, outgoing, incoming, events })
    }

    /// Sends one list of requests and receives another; answers how many messages came.
    fn exchange(
        &mut self,
        mut own: VecDeque<Vec<Message>>,
        mut others: VecDeque<Vec<Message>>,
        mode: Mode,
    ) -> Result<usize> {
        let (mut filled, mut count) = (false, 0);
        let mut progress = Instant::now();
        while !(own.is_empty() && others.is_empty()) || self.is_under_way() {
            let before = progress;
            let room = self.receiver.under_way() < UNDER_WAY;
            if let Some(messages) = room.then(|| others.pop_front()).flatten() {
                messages.iter().for_each(|message| self.guard(message));
                // The sender finds the message by its tag.
                let turned: Vec<Message> = messages.into_iter().rev().collect();
                self.receiver.receive(&turned, &self.incoming, mode)?;
                progress = Instant::now();
            }
            let room = self.sender.under_way() < UNDER_WAY;
            if let Some(messages) = own.front().filter(|_| room) {
                if !filled {
                    messages.iter().for_each(|message| self.fill(message));
                    filled = true;
                }
                if self.sender.send(messages, &self.outgoing, mode)? {
                    own.pop_front();
                    (filled, progress) = (false, Instant::now());
                }
            }
            while self.sender.poll(&self.place)? {
                progress = Instant::now();
            }
            while let Some(messages) = self.receiver.poll(&self.place, &self.incoming)? {
                progress = Instant::now();
                messages.iter().try_for_each(|message| self.check(message))?;
                count += messages.len();
            }
            if progress == before {
                ensure!(before.elapsed() < LIMIT, "nothing came for {LIMIT:?}");
                std::thread::yield_now();
            }
        }
        Ok(count)
    }

    fn is_under_way(&self) -> bool {
        self.sender.under_way() > 0 || self.receiver.under_way() > 0
    }

    fn guard(&self, message: &Message) {
        transfer::guard_part(&self.incoming, message.offset, message.room + GUARD);
    }

    fn fill(&self, message: &Message) {
        transfer::fill(&self.outgoing, &[(message.offset, message.size)], message.seed);
    }

    fn check(&self, message: &Message) -> Result<()> {
        let (part, end) = ((message.offset, message.size), message.offset + message.room + GUARD);
        transfer::check_part(&self.incoming, part, end, message.seed)
            .with_context(|| format!("{message:?}"))
    }

    /// The thread gets the events of queue pairs, and no others.
    fn hears(&self, wishes: &Wishes, line: &mut Line) -> Result<()> {
        self.receiver.flush.drain(true)?;
        self.heard(v::IBV_EVENT_SQ_DRAINED, &self.receiver.flush)?;
        line.meet()?;
        if wishes.bad_cable {
            return Ok(());
        }
        if line.role == 1 {
            let wrong = Send {
                wr_id: 0,
                operation: Operation::Write,
                pieces: vec![self.outgoing.piece(0, 1)],
                remote: (self.sender.records.address, self.sender.records.key ^ 0x0100_0000),
                immediate: 0,
                flags: v::IBV_SEND_SIGNALED,
            };
            let qp = self.sender.lanes.qps.first().context("there is no QP")?;
            qp.post_send(&[wrong]).map_err(|(failed, _)| failed)?;
            let asked = Instant::now();
            let refused = loop {
                match self.sender.lanes.poll_any()? {
                    Some(completion) => break completion,
                    None => ensure!(asked.elapsed() < LIMIT, "a wrong key is not refused"),
                }
                std::thread::yield_now();
            };
            ensure!(refused.status == v::IBV_WC_REM_ACCESS_ERR, "{refused:?}");
        } else {
            let qp = self.receiver.lanes.qps.first().context("there is no QP")?;
            self.heard(v::IBV_EVENT_QP_ACCESS_ERR, qp)?;
        }
        line.meet()
    }

    fn heard(&self, kind: v::ibv_event_type, qp: &Qp) -> Result<()> {
        loop {
            let event = self.events.recv_timeout(EVENT).context("no event was heard")?;
            // So a message before the last step of its QP is told.
            if event.kind != v::IBV_EVENT_COMM_EST {
                let wanted = AsyncEvent { kind, element: qp.element() };
                ensure!(event == wanted, "{event:?}, not {wanted:?}");
                return Ok(());
            }
        }
    }
}

/// Tells the other side where memory is that it may write to, and hears where its own is.
fn exchange(line: &mut Line, region: &Region) -> Result<Far> {
    let [address, key] = line.exchange([region.address().into(), region.rkey().into()])?;
    Ok(Far { address: address.try_into()?, key: key.try_into()? })
}
