//! Many connections at once, with messages on all of them.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use verbs_sys::current::verbs as v;

use super::link::{ACCESS, Options, completion};
use super::managed::Managed;
use crate::ffi::{
    Channel, Completion, Context, Cq, Failed, Library, Operation, Pd, Peer, Qp, Recv, Region, Send,
    Srq,
};
use crate::mortal::say;

/// Bytes of a message.
const MESSAGE: usize = 64;
/// Connections with a message under way at a time.
const BURST: usize = 64;
/// Work requests of each kind that a QP takes.
const DEPTH: u32 = 4;
/// How long the word to begin is waited for.
const PATIENCE: Duration = Duration::from_secs(600);
/// How often it is looked for.
const LOOK: Duration = Duration::from_millis(20);
/// The lines that are printed when all is connected, and when all messages have arrived.
pub const CONNECTED: &str = "connected";
/// See [`CONNECTED`].
pub const ARRIVED: &str = "arrived";

/// The numbers of connections and messages, and the service.
#[derive(Clone, Debug)]
pub struct Wishes {
    /// Connections.
    pub pairs: usize,
    /// Messages on each.
    pub rounds: u32,
    /// All receivers take from one queue.
    pub shared: bool,
    /// A file that says, by being there, that messages are to be sent.
    pub go: Option<PathBuf>,
    /// Whether to stay when they have arrived, until killed.
    pub stay: bool,
    /// The port at which the side that receives listens, where librdmacm is to connect them; they are parted, too, then.
    pub managed: Option<u16>,
}

/// One end of all connections.
struct End {
    context: Rc<Context>,
    pd: Rc<Pd>,
    cq: Rc<Cq>,
    /// A message for each connection.
    region: Rc<Region>,
}

impl End {
    fn new(
        library: &'static Library,
        options: &Options,
        side: usize,
        pairs: usize,
    ) -> Result<Self> {
        let context = Context::open(library, &options.devices[side])?;
        let pd = Pd::new(&context)?;
        let channel = if options.events { Some(Channel::new(&context)?) } else { None };
        let cq = Cq::new(&context, BURST as u32, channel.as_ref())?;
        let region = Region::new(&pd, pairs * MESSAGE, ACCESS, false)?;
        Ok(Self { context, pd, cq, region })
    }

    fn qp(&self, srq: Option<&Rc<Srq>>) -> Result<Qp> {
        let capabilities = v::ibv_qp_cap {
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        Ok(match srq {
            Some(srq) => Qp::sharing(srq, &self.cq, &self.cq, capabilities)?,
            None => Qp::new(&self.pd, &self.cq, &self.cq, capabilities)?,
        })
    }
}

/// Makes and connects them, sends on all of them and checks every message; answers how many arrived.
///
/// # Errors
/// At the first thing that is not as it should be.
pub fn all(options: &Options, wishes: &Wishes) -> Result<usize> {
    let stays = wishes.stay;
    let stay = move || match stays {
        true => loop {
            std::thread::park();
        },
        false => Ok(()),
    };
    held(options, wishes, stay)
}

/// The same; `hold` is done while all of them are there.
///
/// # Errors
/// As [`all`].
pub fn held(
    options: &Options,
    wishes: &Wishes,
    hold: impl FnOnce() -> Result<()>,
) -> Result<usize> {
    let library = Library::open()?;
    let [left, right] = [0, 1].map(|side| End::new(library, options, side, wishes.pairs));
    let (left, right) = (left?, right?);
    let srq = match wishes.shared {
        true => Some(Srq::new(&right.pd, BURST as u32, 1)?),
        false => None,
    };
    let contexts = [&*left.context, &*right.context];
    let managed = wishes.managed.map(|port| Managed::new(contexts, options.gid_index, port));
    let mut managed = managed.transpose()?;
    let mut pairs = Vec::with_capacity(wishes.pairs);
    for number in 0..wishes.pairs {
        let pair = (left.qp(None)?, right.qp(srq.as_ref())?);
        match &mut managed {
            Some(managed) => managed.connect([&pair.0, &pair.1]),
            None => connect(options, [&left, &right], [&pair.0, &pair.1]),
        }
        .with_context(|| format!("connection {number} of {}", wishes.pairs))?;
        pairs.push(pair);
    }
    say(CONNECTED);
    wishes.go.as_deref().map_or(Ok(()), await_word)?;
    let mut arrived = 0;
    for round in 1..=wishes.rounds {
        for begin in (0..pairs.len()).step_by(BURST) {
            let burst = begin..(begin + BURST).min(pairs.len());
            arrived += exchange([&left, &right], &pairs, burst, srq.as_deref(), round)?;
        }
    }
    say(ARRIVED);
    hold()?;
    managed.as_mut().map_or(Ok(()), Managed::part)?;
    Ok(arrived)
}

/// Makes as many QPs on both devices as they say a program may have; one more is refused.
///
/// # Errors
/// When there are fewer, or more.
pub fn fill(options: &Options) -> Result<()> {
    let library = Library::open()?;
    let [left, right] = [0, 1].map(|side| End::new(library, options, side, 1));
    let mut kept = Vec::new();
    let ends = [left?, right?];
    for end in &ends {
        let most = end.context.attributes()?.max_qp;
        for number in 0..most {
            kept.push(end.qp(None).with_context(|| format!("QP {number} of {most}"))?);
        }
    }
    for end in &ends {
        let refused = end.qp(None).err().context("there are more QPs than a device says")?;
        let failed = refused.downcast_ref::<Failed>();
        ensure!(failed.is_some_and(|it| it.errno == libc::ENOMEM), "one more: {refused:#}");
    }
    Ok(())
}

fn connect(options: &Options, ends: [&End; 2], qps: [&Qp; 2]) -> Result<()> {
    let gid_index = options.gid_index;
    for (own, other) in [(0, 1), (1, 0)] {
        let gid = ends[other].context.gid(gid_index)?;
        let (qpn, mtu) = (qps[other].number(), v::IBV_MTU_1024);
        let peer = Peer { qpn, gid, gid_index, send_psn: 7, receive_psn: 7, mtu };
        qps[own].init(ACCESS)?;
        qps[own].receive_from(&peer)?;
        qps[own].send_to(&peer, options.patience)?;
    }
    Ok(())
}

fn await_word(file: &Path) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !file.exists() {
        ensure!(Instant::now() < deadline, "no word to begin within {PATIENCE:?}");
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// The message on a connection in a round.
fn message(pair: usize, round: u32) -> [u8; MESSAGE] {
    let mut bytes = [round as u8; MESSAGE];
    bytes[..8].copy_from_slice(&(pair as u64).to_le_bytes());
    bytes[8..12].copy_from_slice(&round.to_le_bytes());
    bytes
}

/// Sends a message on each of some connections, and checks that it arrives on that one.
fn exchange(
    [left, right]: [&End; 2],
    pairs: &[(Qp, Qp)],
    burst: std::ops::Range<usize>,
    srq: Option<&Srq>,
    round: u32,
) -> Result<usize> {
    let count = burst.len();
    for (pair, (_, receiver)) in burst.clone().zip(&pairs[burst.clone()]) {
        right.region.write(pair * MESSAGE, &[0; MESSAGE]);
        let pieces = vec![right.region.piece(pair * MESSAGE, MESSAGE)];
        let receive = Recv { wr_id: pair as u64, pieces };
        match srq {
            Some(srq) => srq.post(&receive)?,
            None => receiver.post_recv(&receive)?,
        }
    }
    for (pair, (sender, _)) in burst.clone().zip(&pairs[burst.clone()]) {
        left.region.write(pair * MESSAGE, &message(pair, round));
        let send = Send {
            wr_id: pair as u64,
            operation: Operation::Send,
            pieces: vec![left.region.piece(pair * MESSAGE, MESSAGE)],
            remote: (0, 0),
            immediate: 0,
            flags: v::IBV_SEND_SIGNALED,
        };
        sender.post_send(&[send]).map_err(|(failed, _)| failed)?;
    }
    let mut seen = vec![false; count];
    for _ in 0..count {
        let received = good(&right.cq)?;
        let slot = usize::try_from(received.wr_id)?;
        let mut bytes = [0; MESSAGE];
        right.region.read(slot * MESSAGE, &mut bytes);
        // Which receive of a shared queue it took is not said.
        let pair = burst.clone().find(|pair| pairs[*pair].1.number() == received.qp_num);
        let pair = pair.with_context(|| format!("no such connection: {received:?}"))?;
        ensure!(srq.is_some() || pair == slot, "{received:?} by a receive of another");
        ensure!(bytes == message(pair, round), "on connection {pair} came {bytes:?}");
        ensure!(!std::mem::replace(&mut seen[pair - burst.start], true), "twice: {received:?}");
    }
    for _ in 0..count {
        good(&left.cq)?;
    }
    Ok(count)
}

fn good(cq: &Cq) -> Result<Completion> {
    let completion = completion(cq)?;
    ensure!(completion.status == v::IBV_WC_SUCCESS, "{completion:?}");
    Ok(completion)
}
