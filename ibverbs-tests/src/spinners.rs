//! Programs that spin: two threads, each on a core of its own, that exchange requests and answers and never sleep, as
//! those of SPDK do.
//!
//! Each has an end of one connection, by cards or by TCP. No other thread gets a core that such threads do not give up;
//! a software card's thread has to come between them.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use verbs_sys::current::verbs as v;

use crate::data::link::{self, DEPTH, Side};
use crate::ffi::{Cq, Library, Operation, Patience, Peer, Recv, Send, Service};

/// How long nothing may come.
const LIMIT: Duration = Duration::from_secs(20);
/// Turns of a loop between looks at the clock.
const LOOK: u32 = 256;

/// What is exchanged, and how long.
#[derive(Clone, Debug)]
pub struct Spinning {
    /// Bytes of a request, and of an answer.
    pub size: usize,
    /// Requests under way.
    pub depth: u32,
    /// How long the asking thread computes before each other request; before the others it does so twice as long.
    pub think: Duration,
    /// How long.
    pub time: Duration,
    /// The devices of the asking and of the answering thread; none, and they exchange by TCP.
    pub devices: Option<[String; 2]>,
    /// Index of the GIDs.
    pub gid_index: u8,
}

/// Prints how many requests are answered per second.
///
/// # Errors
/// When there are fewer than two cores, or a connection fails.
pub fn spin(spinning: &Spinning) -> Result<()> {
    ensure!(spinning.size >= 8, "a message holds a number of 8 bytes");
    ensure!((1..=DEPTH).contains(&spinning.depth), "1 to {DEPTH} requests can be under way");
    let cores = two_cores()?;
    let rate = match &spinning.devices {
        Some(devices) => {
            let (left, right) = (channel(), channel());
            let end = |index, tells: Sender<Peer>, hears: Receiver<Peer>| {
                move || Verbs::new(spinning, devices, index, &tells, &hears)
            };
            between(spinning, cores, end(0, left.0, right.1), end(1, right.0, left.1))?
        }
        None => {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let asking = Tcp::new(TcpStream::connect(listener.local_addr()?)?, spinning.size)?;
            let answering = Tcp::new(listener.accept()?.0, spinning.size)?;
            between(spinning, cores, || Ok(asking), || Ok(answering))?
        }
    };
    println!("{rate:.1}");
    Ok(())
}

/// The first two cores that this process may run on.
fn two_cores() -> Result<[usize; 2]> {
    let allowed = sched_getaffinity(Pid::from_raw(0))?;
    let mut cores = (0..CpuSet::count()).filter(|core| allowed.is_set(*core).unwrap_or(false));
    match (cores.next(), cores.next()) {
        (Some(first), Some(second)) => Ok([first, second]),
        _ => bail!("two threads that spin need two cores"),
    }
}

fn stay_on(core: usize) -> Result<()> {
    let mut only = CpuSet::new();
    only.set(core)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &only)?)
}

/// An end of a connection. No call waits.
trait End {
    /// Sends a message with that number; `false` where there is no room for it now.
    fn send(&mut self, number: u64) -> Result<bool>;
    /// The number of the next message that has come.
    fn receive(&mut self) -> Result<Option<u64>>;
}

/// Lets two threads exchange; answers the rate of requests.
fn between<A: End, B: End>(
    spinning: &Spinning,
    [first, second]: [usize; 2],
    asking: impl FnOnce() -> Result<A> + std::marker::Send,
    answering: impl FnOnce() -> Result<B> + std::marker::Send,
) -> Result<f64> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let answers = scope.spawn(|| {
            stay_on(second)?;
            answer(&mut answering()?, &over)
        });
        let asked = stay_on(first).and_then(|()| {
            let mut end = asking()?;
            Ok((ask(&mut end, spinning)?, end))
        });
        // The end lasts until its peer sends no more.
        over.store(true, Ordering::Relaxed);
        let answered = answers.join().ok().context("the answering thread panicked")?;
        let (rate, _) = asked.context("asking")?;
        answered.context("answering")?;
        Ok(rate)
    })
}

fn ask(end: &mut impl End, spinning: &Spinning) -> Result<f64> {
    let (mut asked, mut answered, mut thinks_until) = (0, 0, None);
    let start = Instant::now();
    let mut last = (start, 0);
    for turn in 0u32.. {
        let has_thought = thinks_until.is_none_or(|until| Instant::now() >= until);
        if has_thought && asked - answered < u64::from(spinning.depth) && end.send(asked)? {
            asked += 1;
        }
        if let Some(number) = end.receive()? {
            ensure!(number == answered, "answer {number} came in place of answer {answered}");
            answered += 1;
            if !spinning.think.is_zero() {
                let times = 1 + (answered % 2) as u32;
                thinks_until = Some(Instant::now() + times * spinning.think);
            }
        }
        if turn % LOOK != 0 {
            continue;
        }
        let now = Instant::now();
        if now - start >= spinning.time {
            break;
        }
        if last.1 != answered {
            last = (now, answered);
        }
        ensure!(now - last.0 < LIMIT, "nothing came for {LIMIT:?} behind {answered} answers");
    }
    Ok(answered as f64 / start.elapsed().as_secs_f64())
}

fn answer(end: &mut impl End, over: &AtomicBool) -> Result<()> {
    let (mut asked, mut answered) = (0, 0);
    while !over.load(Ordering::Relaxed) {
        if let Some(number) = end.receive()? {
            ensure!(number == asked, "request {number} came in place of request {asked}");
            asked += 1;
        }
        if answered < asked && end.send(answered)? {
            answered += 1;
        }
    }
    Ok(())
}

/// An end of a queue pair's.
struct Verbs {
    side: Side,
    library: &'static Library,
    size: usize,
    /// Messages whose sending has not completed.
    under_way: u32,
    /// Messages that were sent.
    sent: usize,
}

impl Verbs {
    fn new(
        spinning: &Spinning,
        devices: &[String; 2],
        index: usize,
        tells: &Sender<Peer>,
        hears: &Receiver<Peer>,
    ) -> Result<Self> {
        let options = link::Options {
            devices: devices.clone(),
            gid_index: spinning.gid_index,
            events: false,
            thread_domain: false,
            extended: None,
            service: Service::Reliable,
            cq_entries: 2 * DEPTH,
            patience: Patience::default(),
        };
        let library = Library::open()?;
        let places = 2 * DEPTH as usize;
        let side = Side::new(library, &options, index, places * spinning.size)?;
        side.qp.init(link::ACCESS)?;
        let end = Self { side, library, size: spinning.size, under_way: 0, sent: 0 };
        (0..DEPTH as usize).try_for_each(|place| end.expect(place))?;
        let Self { side, .. } = &end;
        let (gid_index, mtu) = (spinning.gid_index, v::IBV_MTU_4096);
        let (qpn, gid) = (side.qp.number(), side.context.gid(gid_index)?);
        tells.send(Peer { qpn, gid, gid_index, send_psn: 0, receive_psn: 0, mtu })?;
        side.qp.connect(&hears.recv()?)?;
        // The first message comes to a queue pair that is ready.
        tells.send(Peer { qpn, gid, gid_index, send_psn: 0, receive_psn: 0, mtu })?;
        hears.recv()?;
        Ok(end)
    }

    /// Lets the next message come to a place in the first half of the region.
    fn expect(&self, place: usize) -> Result<()> {
        let pieces = vec![self.side.region.piece(place * self.size, self.size)];
        Ok(self.side.qp.post_recv(&Recv { wr_id: place as u64, pieces })?)
    }

    /// The work request that a queue's next completion is of.
    fn completed(&self, cq: &Rc<Cq>) -> Result<Option<u64>> {
        let Some(completion) = cq.poll()? else { return Ok(None) };
        let status = completion.status;
        ensure!(status == v::IBV_WC_SUCCESS, "a message: {}", self.library.status_name(status));
        Ok(Some(completion.wr_id))
    }
}

impl End for Verbs {
    fn send(&mut self, number: u64) -> Result<bool> {
        if self.under_way == DEPTH {
            return Ok(false);
        }
        let depth = DEPTH as usize;
        let offset = (depth + self.sent % depth) * self.size;
        self.side.region.write(offset, &number.to_le_bytes());
        let send = Send {
            wr_id: number,
            operation: Operation::Send,
            pieces: vec![self.side.region.piece(offset, self.size)],
            remote: (0, 0),
            immediate: 0,
            flags: v::IBV_SEND_SIGNALED,
        };
        self.side.qp.post_send(&[send]).map_err(|(failed, _)| failed)?;
        self.under_way += 1;
        self.sent += 1;
        Ok(true)
    }

    fn receive(&mut self) -> Result<Option<u64>> {
        if self.under_way > 0 && self.completed(&self.side.send_cq)?.is_some() {
            self.under_way -= 1;
        }
        let Some(wr_id) = self.completed(&self.side.receive_cq)? else { return Ok(None) };
        let place = usize::try_from(wr_id)?;
        let mut number = [0; 8];
        self.side.region.read(place * self.size, &mut number);
        self.expect(place)?;
        Ok(Some(u64::from_le_bytes(number)))
    }
}

/// An end of a TCP connection.
struct Tcp {
    stream: TcpStream,
    incoming: Vec<u8>,
    /// Bytes of the next message that have come.
    come: usize,
    outgoing: Vec<u8>,
    /// Bytes of the last message that are gone.
    gone: usize,
}

impl Tcp {
    fn new(stream: TcpStream, size: usize) -> Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self { stream, incoming: vec![0; size], come: 0, outgoing: vec![0; size], gone: size })
    }

    /// Goes on with the last message; whether all of it is gone.
    fn flush(&mut self) -> Result<bool> {
        if self.gone < self.outgoing.len() {
            self.gone += moved(self.stream.write(&self.outgoing[self.gone..]))?;
        }
        Ok(self.gone == self.outgoing.len())
    }
}

/// The bytes that a call has moved, none where it would have had to wait.
fn moved(outcome: std::io::Result<usize>) -> Result<usize> {
    match outcome {
        Ok(0) => bail!("the connection has ended"),
        Ok(bytes) => Ok(bytes),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
        Err(error) => Err(error.into()),
    }
}

impl End for Tcp {
    fn send(&mut self, number: u64) -> Result<bool> {
        if !self.flush()? {
            return Ok(false);
        }
        self.outgoing[..8].copy_from_slice(&number.to_le_bytes());
        self.gone = 0;
        self.flush()?;
        Ok(true)
    }

    fn receive(&mut self) -> Result<Option<u64>> {
        self.flush()?;
        self.come += moved(self.stream.read(&mut self.incoming[self.come..]))?;
        if self.come < self.incoming.len() {
            return Ok(None);
        }
        self.come = 0;
        let number: [u8; 8] = self.incoming[..8].try_into()?;
        Ok(Some(u64::from_le_bytes(number)))
    }
}
