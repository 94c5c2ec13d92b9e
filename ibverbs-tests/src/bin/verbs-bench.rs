//! A verbs program for figures that perftest does not measure.

#![forbid(unsafe_code)]

use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::{Args, Parser, Subcommand, ValueEnum};
use verbs_programs::copying::{self, Copies};
use verbs_programs::data::link::{self, ConnectedSides};
use verbs_programs::ffi::{
    Context, Cq, Library, ListEnd, Operation, Patience, Pd, Peer, Qp, Recv, Region, STANDARD, Send,
    Service, Srq,
};
use verbs_programs::spinners::{self, Spinning};
use verbs_sys::current::verbs as v;

/// Measures single verbs calls between two QPs of this process.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    devices: Devices,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Post, wait until the data has arrived, and poll once for each completion
    OneByOne {
        /// Number of calls that post
        #[arg(long, default_value_t = 100)]
        count: u32,
        /// Requests that each call posts
        #[arg(long, value_enum, default_value_t = Posted::Write)]
        posted: Posted,
        /// Post and poll by the extended functions
        #[arg(long)]
        extended: bool,
    },
    /// Print how many pairs of QPs are made and connected per second
    Connect {
        /// Seconds to measure
        #[arg(long, default_value_t = 1)]
        seconds: u64,
    },
    /// Print how many milliseconds ibv_reg_mr takes
    Register {
        /// Bytes of the region
        #[arg(long)]
        bytes: usize,
        /// Number of registrations, of which the fastest counts
        #[arg(long, default_value_t = 5)]
        times: u32,
    },
    /// Connect a pair of QPs, print "ready", and do nothing
    Idle,
    /// Print the 10^6 bytes per second that this machine's kernel copies between two programs, as cards do
    Copy {
        /// Bytes of a message
        #[arg(long)]
        size: usize,
        /// Buffers on each side
        #[arg(long, default_value_t = 1)]
        buffers: usize,
        /// Copy out of one program and into the other by a thread each, as cards of two balboads do
        #[arg(long)]
        apart: bool,
        /// Seconds to measure
        #[arg(long, default_value_t = 1)]
        seconds: u64,
    },
    /// Print how many requests a second two threads exchange, which spin on a core each
    Spin {
        /// Bytes of a request, and of an answer
        #[arg(long)]
        size: usize,
        /// Requests under way
        #[arg(long, default_value_t = 1)]
        depth: u32,
        /// How long to do it
        #[arg(long, default_value_t = 1)]
        seconds: u64,
        /// Microseconds that the asking thread computes before each other request, and twice as many before the others
        #[arg(long, default_value_t = 0)]
        think: u64,
        /// Exchange by TCP in place of cards
        #[arg(long)]
        tcp: bool,
    },
    /// Register memory, print its address, and keep it until the standard input ends
    Hold {
        /// Bytes of the region
        #[arg(long)]
        bytes: usize,
    },
}

/// The work requests of a call, 64 bytes for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Posted {
    /// A signaled WRITE
    Write,
    /// A signaled WRITE, inline
    Inline,
    /// A list of 8 signaled WRITEs
    List8,
    /// A receive, and on the other side an unsignaled SEND that is taken by it
    Receive,
    /// The same with a shared receive queue
    SharedReceive,
}

#[derive(Debug, Args)]
struct Devices {
    /// Device that writes
    #[arg(long, default_value = "balboa0", global = true)]
    from: String,
    /// Device that is written to
    #[arg(long, default_value = "balboa1", global = true)]
    to: String,
    /// GID index
    #[arg(long, default_value_t = 1, global = true)]
    gid: u8,
}

fn main() -> Result<()> {
    let Arguments { command, devices } = Arguments::parse();
    match command {
        Command::OneByOne { count, posted, extended } => {
            one_by_one(linked(&devices, extended)?, count, posted)
        }
        Command::Connect { seconds } => connect(&devices, Duration::from_secs(seconds)),
        Command::Register { bytes, times } => register(&devices, bytes, times),
        Command::Idle => idle(&devices),
        Command::Copy { size, buffers, apart, seconds } => {
            let copies = Copies { size, buffers, apart, time: Duration::from_secs(seconds) };
            copying::copy(copies, [&devices.from, &devices.to])
        }
        Command::Spin { size, depth, seconds, think, tcp } => {
            let Devices { from, to, gid: gid_index } = devices;
            let (time, devices) = (Duration::from_secs(seconds), (!tcp).then_some([from, to]));
            let think = Duration::from_micros(think);
            spinners::spin(&Spinning { size, depth, think, time, devices, gid_index })
        }
        Command::Hold { bytes } => copying::hold(&devices.from, bytes),
    }
}

fn linked(devices: &Devices, extended: bool) -> Result<ConnectedSides> {
    let options = link::Options {
        devices: [devices.from.clone(), devices.to.clone()],
        gid_index: devices.gid,
        events: false,
        thread_domain: false,
        extended: extended.then_some(STANDARD),
        service: Service::Reliable,
        cq_entries: 2 * link::DEPTH,
        patience: Patience::default(),
    };
    ConnectedSides::new(&options, v::IBV_MTU_4096, MESSAGE)
}

const MESSAGE: usize = 64;

/// Longer than a completion takes once the data is there, even beside other programs.
const TO_COMPLETE: Duration = Duration::from_millis(1);
/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(20);

fn one_by_one(mut link: ConnectedSides, count: u32, posted: Posted) -> Result<()> {
    let srq = match posted {
        Posted::SharedReceive => Some(share(&mut link)?),
        _ => None,
    };
    let link = &link;
    for number in 1..=count {
        match posted {
            Posted::Write => writes(link, number, 1, v::IBV_SEND_SIGNALED)?,
            Posted::Inline => writes(link, number, 1, v::IBV_SEND_SIGNALED | v::IBV_SEND_INLINE)?,
            Posted::List8 => writes(link, number, 8, v::IBV_SEND_SIGNALED)?,
            Posted::Receive | Posted::SharedReceive => receive(link, srq.as_deref(), number)?,
        }
        // A SEND that is not signaled stays in its queue until that is reset.
        if matches!(posted, Posted::Receive | Posted::SharedReceive) && number % link::DEPTH == 0 {
            link.half_connect(link::ACCESS)?;
            link.finish()?;
        }
    }
    Ok(())
}

/// Lets the right side receive from a shared queue, as deep as its own was and for as many elements.
fn share(link: &mut ConnectedSides) -> Result<Rc<Srq>> {
    let right = &mut link.right;
    let srq = Srq::new(&right.pd, link::DEPTH, link::MAX_SGE)?;
    let capabilities = right.qp.capabilities;
    right.qp = Qp::sharing(&srq, &right.send_cq, &right.receive_cq, capabilities)?;
    link.half_connect(link::ACCESS)?;
    link.finish()?;
    Ok(srq)
}

/// Posts a list of signaled WRITEs of the same bytes, and polls once for each of them.
fn writes(
    link: &ConnectedSides,
    number: u32,
    requests: u64,
    flags: v::ibv_send_flags,
) -> Result<()> {
    let wr_id = |index| u64::from(number) * requests + index;
    let remote = (link.right.region.address(), link.right.region.rkey());
    let write = |index| send(link, wr_id(index), Operation::Write, remote, flags);
    let list: Vec<Send> = (0..requests).map(write).collect();
    link.left.region.write(0, &number.to_le_bytes());
    post(link, &list)?;
    wait_for(link, number)?;
    (0..requests).try_for_each(|index| poll_once(&link.left.send_cq, wr_id(index)))
}

/// Posts a receive, to a shared queue if there is one, has the other side send to it, and polls once for it.
fn receive(link: &ConnectedSides, srq: Option<&Srq>, number: u32) -> Result<()> {
    let wr_id = u64::from(number);
    let pieces = vec![link.right.region.piece(0, MESSAGE)];
    let request = Recv { wr_id, pieces };
    match srq {
        Some(srq) => srq.post(&request)?,
        None => link.right.qp.post_recv(&request)?,
    }
    link.left.region.write(0, &number.to_le_bytes());
    let send = send(link, wr_id, Operation::Send, (0, 0), 0);
    post(link, &[send])?;
    wait_for(link, number)?;
    poll_once(&link.right.receive_cq, wr_id)
}

/// Posts a list, as the QP was made to be posted to.
fn post(link: &ConnectedSides, list: &[Send]) -> Result<()> {
    let qp = &link.left.qp;
    if qp.is_extended() {
        return Ok(qp.build(list, ListEnd::Complete)?);
    }
    Ok(qp.post_send(list).map_err(|(failed, _)| failed)?)
}

fn send(
    link: &ConnectedSides,
    wr_id: u64,
    operation: Operation,
    remote: (u64, u32),
    flags: v::ibv_send_flags,
) -> Send {
    let pieces = vec![link.left.region.piece(0, MESSAGE)];
    Send { wr_id, operation, pieces, remote, immediate: 0, flags }
}

/// Waits until a number has arrived on the right, and its completions are there.
///
/// Looking for the data, and not for the completions: polls that find nothing would be counted too.
fn wait_for(link: &ConnectedSides, number: u32) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    let mut arrived = [0; 4];
    while arrived != number.to_le_bytes() {
        ensure!(Instant::now() < deadline, "message {number} does not arrive");
        std::thread::sleep(TO_COMPLETE);
        link.right.region.read(0, &mut arrived);
    }
    std::thread::sleep(TO_COMPLETE);
    Ok(())
}

fn poll_once(cq: &Cq, wr_id: u64) -> Result<()> {
    let polled = cq.poll()?;
    let fine = polled.is_some_and(|it| (it.wr_id, it.status) == (wr_id, v::IBV_WC_SUCCESS));
    ensure!(fine, "request {wr_id} arrived, and {TO_COMPLETE:?} later a poll finds {polled:?}");
    Ok(())
}

/// Pairs that exist at a time.
const PAIRS: usize = 32;

fn connect(devices: &Devices, limit: Duration) -> Result<()> {
    let library = Library::open()?;
    let side = |device: &str| -> Result<(Rc<Context>, Rc<Pd>, Rc<Cq>)> {
        let context = Context::open(library, device)?;
        Ok((Rc::clone(&context), Pd::new(&context)?, Cq::new(&context, 16, None)?))
    };
    let sides = [side(&devices.from)?, side(&devices.to)?];
    let gids = [sides[0].0.gid(devices.gid)?, sides[1].0.gid(devices.gid)?];
    let (mut pairs, mut spent) = (0, Duration::ZERO);
    while spent < limit {
        // Destroying them is not timed.
        let mut made = Vec::with_capacity(PAIRS);
        let start = Instant::now();
        for _ in 0..PAIRS {
            let [left, right] = [queue_pair(&sides[0])?, queue_pair(&sides[1])?];
            for (own, other, gid) in [(&left, &right, gids[1]), (&right, &left, gids[0])] {
                own.init(v::IBV_ACCESS_LOCAL_WRITE | v::IBV_ACCESS_REMOTE_WRITE)?;
                let (qpn, gid_index, mtu) = (other.number(), devices.gid, v::IBV_MTU_4096);
                own.connect(&Peer { qpn, gid, gid_index, send_psn: 0, receive_psn: 0, mtu })?;
            }
            made.push((left, right));
        }
        spent += start.elapsed();
        pairs += PAIRS;
    }
    println!("{:.1}", pairs as f64 / spent.as_secs_f64());
    Ok(())
}

fn queue_pair((_, pd, cq): &(Rc<Context>, Rc<Pd>, Rc<Cq>)) -> Result<Qp> {
    let capabilities = v::ibv_qp_cap {
        max_send_wr: 4,
        max_recv_wr: 4,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    };
    Ok(Qp::new(pd, cq, cq, capabilities)?)
}

fn register(devices: &Devices, bytes: usize, times: u32) -> Result<()> {
    let context = Context::open(Library::open()?, &devices.from)?;
    let pd = Pd::new(&context)?;
    let access = v::IBV_ACCESS_LOCAL_WRITE | v::IBV_ACCESS_REMOTE_WRITE;
    let mut fastest = Duration::MAX;
    for _ in 0..times {
        // Mapping the memory is in it too; the pages are not touched.
        let start = Instant::now();
        let region = Region::new(&pd, bytes, access, false)?;
        fastest = fastest.min(start.elapsed());
        drop(region);
    }
    println!("{:.4}", fastest.as_secs_f64() * 1e3);
    Ok(())
}

fn idle(devices: &Devices) -> Result<()> {
    let _link = linked(devices, false)?;
    println!("ready");
    loop {
        std::thread::park();
    }
}
