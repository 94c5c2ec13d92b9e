//! Completion queues of every vector, each with a channel, and one of them that is armed without end.
//!
//! It sees that each is told of, by its own channel, while another goes on. In which event ring the card tells of it,
//! and whether that is ever full, no program sees: a card tells once of armings that it finds together.

use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use verbs_sys::current::verbs as v;

use super::link::{ACCESS, ConnectedSides, LIMIT, Options, Side};
use crate::ffi::{Channel, Cq, CqWishes, EVERYTHING, Failed, Operation, Peer, Qp, Recv, Send};

const MTU: v::ibv_mtu = v::IBV_MTU_1024;
/// Bytes of a message.
const BYTES: usize = 64;
/// Messages of each vector.
const ROUNDS: u64 = 100;
/// Messages of each vector but the flooded one, while that is flooded.
const FLOODED_ROUNDS: u64 = 20;
/// Armings of the flooded one before each of those rounds.
const FLOOD: usize = 2000;

/// A completion queue of a vector, on which receives of a connection complete.
struct Receiver {
    channel: Rc<Channel>,
    cq: Rc<Cq>,
    sender: Qp,
    receiver: Qp,
}

/// Runs all of it; answers with the number of completions that were told of.
///
/// # Errors
/// At the first event that does not come, or comes to another, and at a vector that is not refused.
pub fn all(options: &Options) -> Result<u64> {
    let link = ConnectedSides::new(options, MTU, BYTES)?;
    let vectors = link.right.context.vectors();
    ensure!(vectors > 1, "there are {vectors} vectors");
    refusals(&link, vectors).context("vectors that there are not")?;
    let told =
        (0..vectors).map(|vector| Receiver::new(&link, vector)).collect::<Result<Vec<_>>>()?;
    for round in 0..ROUNDS {
        told.iter().try_for_each(|one| one.cq.arm())?;
        for (vector, one) in told.iter().enumerate() {
            let context = || format!("vector {vector}, round {round}");
            one.hear(&link, round).with_context(context)?;
        }
        quiet(&told)?;
    }
    let mut count = ROUNDS * told.len() as u64;
    for flooded in 0..told.len() {
        let context = || format!("vector {flooded} is flooded");
        count += flood(&link, &told, flooded).with_context(context)?;
    }
    Ok(count)
}

fn refusals(link: &ConnectedSides, vectors: i32) -> Result<()> {
    let context = &link.right.context;
    for vector in [vectors, vectors + 1, 255, 256, i32::MAX, -1, i32::MIN] {
        let wishes =
            CqWishes { vector: vector as u32, wc_flags: EVERYTHING, ..CqWishes::default() };
        let plain = Cq::of_vector(context, 1, None, vector).map_err(anyhow::Error::from);
        for refused in [plain, Cq::extended(context, 1, None, wishes)] {
            let error = refused.err().with_context(|| format!("{vector} is taken"))?;
            let errno = error.downcast::<Failed>()?.errno;
            ensure!(errno == libc::EINVAL, "{vector} is refused with {errno}");
        }
    }
    Ok(())
}

/// Checks that no queue has an event.
fn quiet(told: &[Receiver]) -> Result<()> {
    for (vector, one) in told.iter().enumerate() {
        ensure!(!one.channel.is_ready(Duration::ZERO)?, "vector {vector} has an event too many");
    }
    Ok(())
}

/// Arms one queue without end while its event stays unread, and hears the others'; answers with how many were.
fn flood(link: &ConnectedSides, told: &[Receiver], flooded: usize) -> Result<u64> {
    // What is there and not polled may be told of again by each arming.
    let victim = &told[flooded];
    victim.send(link, 0)?;
    while victim.cq.poll()?.is_none() {}
    victim.cq.arm()?;
    victim.send(link, 1)?;
    let others = || told.iter().enumerate().filter(|(vector, _)| *vector != flooded);
    for round in 0..FLOODED_ROUNDS {
        for (vector, one) in others() {
            one.cq.arm()?;
            for _ in 0..FLOOD {
                victim.cq.arm()?;
            }
            let context = || format!("vector {vector}, round {round}");
            one.hear(link, round).with_context(context)?;
        }
    }
    // One event of it waits to be read, and then it goes on as any other. (What the card had not told by then of
    // the armings may be told behind it; the message is there when it is waited for.)
    ensure!(victim.channel.wait(LIMIT)?.addr() == victim.cq.element());
    ensure!(victim.cq.poll()?.context("its completion is missing")?.wr_id == 1);
    victim.cq.arm()?;
    victim.hear(link, 2)?;
    Ok(FLOODED_ROUNDS * (told.len() as u64 - 1) + 2)
}

impl Receiver {
    /// Every second queue is an extended one.
    fn new(link: &ConnectedSides, vector: i32) -> Result<Self> {
        let ConnectedSides { left, right, .. } = link;
        let channel = Channel::new(&right.context)?;
        let cq = if vector % 2 == 0 {
            Cq::of_vector(&right.context, 16, Some(&channel), vector)?
        } else {
            let vector = vector as u32;
            let wishes = CqWishes { vector, wc_flags: EVERYTHING, ..CqWishes::default() };
            Cq::extended(&right.context, 16, Some(&channel), wishes)?
        };
        let capabilities = v::ibv_qp_cap {
            max_send_wr: 4,
            max_recv_wr: 4,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let sender = Qp::new(&left.pd, &left.send_cq, &left.receive_cq, capabilities)?;
        let receiver = Qp::new(&right.pd, &right.send_cq, &cq, capabilities)?;
        let peer = |side: &Side, qp: &Qp| -> Result<Peer> {
            let gid_index = link.options().gid_index;
            let gid = side.context.gid(gid_index)?;
            Ok(Peer { qpn: qp.number(), gid, gid_index, send_psn: 7, receive_psn: 7, mtu: MTU })
        };
        for (qp, far) in [(&sender, peer(right, &receiver)?), (&receiver, peer(left, &sender)?)] {
            qp.init(ACCESS)?;
            qp.connect(&far)?;
        }
        Ok(Self { channel, cq, sender, receiver })
    }

    /// Sends a message, which has been acknowledged when this returns, so that its completion is there.
    fn send(&self, link: &ConnectedSides, wr_id: u64) -> Result<()> {
        let pieces = vec![link.right.region.piece(0, BYTES)];
        self.receiver.post_recv(&Recv { wr_id, pieces })?;
        let send = Send {
            wr_id,
            operation: Operation::Send,
            pieces: vec![link.left.region.piece(0, BYTES)],
            remote: (0, 0),
            immediate: 0,
            flags: v::IBV_SEND_SIGNALED,
        };
        self.sender.post_send(&[send]).map_err(|(failed, _)| failed)?;
        link.success(&link.left.send_cq).map(drop)
    }

    /// Sends a message, of which the armed queue tells its channel.
    fn hear(&self, link: &ConnectedSides, wr_id: u64) -> Result<()> {
        self.send(link, wr_id)?;
        let told = self.channel.wait(LIMIT)?;
        ensure!(told.addr() == self.cq.element(), "told of another queue");
        let found = self.cq.poll()?.context("the completion is missing")?;
        let wanted = (wr_id, self.receiver.number(), v::IBV_WC_SUCCESS);
        ensure!((found.wr_id, found.qp_num, found.status) == wanted, "{found:?}");
        Ok(())
    }
}
