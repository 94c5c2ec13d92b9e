//! Queues that are misused.

use std::rc::Rc;

use anyhow::Result;
use verbs_sys::current::verbs as v;

use super::{ATTACKING, Opened, PATIENCE, PATIENT, stay};
use crate::data::link::ACCESS;
use crate::ffi::{Channel, Cq, Failed, Operation, Qp, Recv, Region, Send};
use crate::mortal::say;

/// A QP number that no QP has.
const NOBODY: u32 = 2;
/// Work requests that are posted at a time.
const LIST: usize = 64;

/// Keeps so many messages under way on each of so many QPs, for as long as the card tries: to a QP that does not exist.
/// Says of how many QPs, of `qps` or fewer where the device gives no more.
///
/// # Errors
/// When the device gives none.
pub fn under_way(qps: usize, messages: usize) -> Result<()> {
    let place = Opened::open("balboa0", 16)?;
    let region = Region::new(&place.pd, 64, ACCESS, false)?;
    let peer = place.peer(NOBODY);
    let make = || -> Result<Qp> {
        let qp = place.qp(u32::try_from(messages)?)?;
        qp.init(ACCESS)?;
        qp.receive_from(&peer)?;
        qp.send_to(&peer, PATIENT)?;
        Ok(qp)
    };
    let mut kept = vec![make()?];
    // When balboad refuses another one, it has all that it can have.
    while kept.len() < qps {
        let Ok(qp) = make() else { break };
        kept.push(qp);
    }
    let pieces = vec![region.piece(0, 1)];
    let request = Send {
        wr_id: 0,
        operation: Operation::Send,
        pieces,
        remote: (0, 0),
        immediate: 0,
        flags: 0,
    };
    let list = vec![request; LIST];
    for qp in &kept {
        for _ in 0..messages / LIST {
            qp.post_send(&list).map_err(|(failed, _)| failed)?;
        }
    }
    say(&format!("under way {}", kept.len()));
    stay()
}

/// A completion queue, and a QP on it that is in ERR: requests posted to it complete at once.
struct Flushing {
    qp: Qp,
    cq: Rc<Cq>,
}

impl Flushing {
    /// Makes one whose receives end in a queue of so many entries.
    fn new(place: &Opened, cq: Rc<Cq>, requests: u32) -> Result<Self> {
        let qp = place.qp_on(&cq, requests)?;
        qp.init(ACCESS)?;
        qp.to(v::IBV_QPS_ERR)?;
        Ok(Self { qp, cq })
    }

    fn post(&self) -> Result<(), Failed> {
        self.qp.post_recv(&Recv { wr_id: 0, pieces: Vec::new() })
    }
}

/// Arms so many completion queues and completes a request on each, over and over, and never reads an event.
///
/// # Errors
/// When the device refuses a step of it.
pub fn unread(queues: usize) -> Result<()> {
    let place = Opened::open("balboa0", 16)?;
    let channel = Channel::new(&place.context)?;
    let queue = |_| Flushing::new(&place, Cq::new(&place.context, 4, Some(&channel))?, 2);
    let queues = (0..queues).map(queue).collect::<Result<Vec<_>>>()?;
    say(ATTACKING);
    loop {
        for queue in &queues {
            queue.cq.arm()?;
        }
        for queue in &queues {
            queue.post()?;
        }
        // The program polls all completions before it arms the queues again, because earlier ones would raise no event.
        for queue in &queues {
            while queue.cq.poll()?.is_none() {
                std::thread::yield_now();
            }
        }
    }
}

/// Lets so many completion queues run over, one after the other, and then more of them without end.
///
/// # Errors
/// When the device refuses a step of it.
pub fn overruns(queues: usize) -> Result<()> {
    let place = Opened::open("balboa0", 16)?;
    for turn in 0.. {
        let cq = Cq::new(&place.context, 1, None)?;
        let requests = cq.entries() + 1;
        let queue = Flushing::new(&place, cq, requests)?;
        (0..requests).try_for_each(|_| queue.post())?;
        while place.context.async_event(PATIENCE)?.kind != v::IBV_EVENT_CQ_ERR {}
        if turn == queues {
            say(ATTACKING);
        }
    }
    Ok(())
}
