//! States of queue pairs beside the way up: a send queue that is drained, one that failed alone, a QP that
//! is used again, one whose peer it is itself; and fences.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use verbs_sys::current::verbs as v;

use super::link::{ACCESS, ConnectedSides, Options, Side, completion};
use super::queries;
use super::transfer;
use crate::ffi::{
    Ah, AsyncEvent, Context, Destination, Operation, Peer, Qp, Recv, Region, Send, Service,
};

/// How long an asynchronous event may take.
const EVENT: Duration = Duration::from_secs(30);
/// Bytes of a region, and of a message that takes a while.
const ROOM: usize = 1 << 18;
const LONG: usize = 60_000;
/// Messages before a send queue is drained, and behind that.
const BEFORE: u64 = 10;
const BEHIND: u64 = 4;
const QKEY: u32 = 0x0123_4567;
/// Bytes of the network header before each datagram.
const GRH: usize = 40;

/// A trial: its name, whether it takes nothing but Reliable Connections, and its body.
type Trial = (&'static str, bool, fn(&Options) -> Result<()>);

const TRIALS: [Trial; 15] = [
    ("SQD of RC", true, |options| drained(&reliable(options))),
    ("SQD of UC", false, |options| drained(&unreliable(options))),
    ("SQD of UD", false, drained_datagrams),
    ("attributes of RC in SQD", true, changed_in_sqd),
    ("attributes of UC in SQD", false, |options| path_changed_in_sqd(&unreliable(options))),
    ("SQE of UC", false, broken),
    ("SQE of UD", false, broken_datagrams),
    ("a QP used again", false, used_again),
    ("RC to itself", true, |options| to_itself(&reliable(options))),
    ("UC to itself", false, |options| to_itself(&unreliable(options))),
    ("UD to itself", false, datagrams_to_itself),
    ("fences", true, fences),
    ("what a QP of RC tells", true, |options| queries::reliable(&reliable(options))),
    ("what a QP of UC tells", false, |options| queries::unreliable(&unreliable(options))),
    ("what a QP of UD tells", false, queries::datagrams),
];

/// Runs all of them, or those of Reliable Connections; answers how many.
///
/// # Errors
/// At the first that is not as it should be.
pub fn all(options: &Options, reliable_only: bool) -> Result<usize> {
    let mut count = 0;
    for (name, _, trial) in TRIALS.iter().filter(|(_, of_rc, _)| *of_rc || !reliable_only) {
        trial(options).context(*name)?;
        count += 1;
    }
    Ok(count)
}

fn reliable(options: &Options) -> Options {
    Options { service: Service::Reliable, ..options.clone() }
}

fn unreliable(options: &Options) -> Options {
    Options { service: Service::Unreliable, ..options.clone() }
}

fn link(options: &Options) -> Result<ConnectedSides> {
    ConnectedSides::new(options, v::IBV_MTU_1024, transfer::room(ROOM))
}

/// A SEND of the left side's first bytes.
fn message(link: &ConnectedSides, wr_id: u64, length: usize) -> Send {
    Send {
        wr_id,
        operation: Operation::Send,
        pieces: vec![link.left.region.piece(0, length)],
        remote: (0, 0),
        immediate: 0,
        flags: v::IBV_SEND_SIGNALED,
    }
}

fn post(qp: &Qp, requests: &[Send]) -> Result<()> {
    qp.post_send(requests).map_err(|(failed, _)| failed.into())
}

fn receives(side: &Side, count: u64) -> Result<()> {
    for wr_id in 0..count {
        let pieces = vec![side.region.piece(LONG, LONG)];
        side.qp.post_recv(&Recv { wr_id, pieces })?;
    }
    Ok(())
}

fn state(qp: &Qp) -> Result<v::ibv_qp_state> {
    Ok(qp.query()?.qp_state)
}

fn is_in(qp: &Qp, wanted: v::ibv_qp_state) -> Result<()> {
    let found = state(qp)?;
    ensure!(found == wanted, "the QP is in state {found}, not {wanted}");
    Ok(())
}

/// The next event is that a QP's send queue was drained; another one has not come.
fn is_drained(context: &Context, qp: &Qp) -> Result<()> {
    let event = context.async_event(EVENT)?;
    let wanted = AsyncEvent { kind: v::IBV_EVENT_SQ_DRAINED, element: qp.element() };
    ensure!(event == wanted, "{event:?}, not {wanted:?}");
    quiet(context)
}

/// No event waits.
fn quiet(context: &Context) -> Result<()> {
    let event = context.async_event(Duration::ZERO);
    ensure!(event.is_err(), "{event:?}");
    Ok(())
}

/// Waits until all that had begun is complete.
fn settles(qp: &Qp) -> Result<()> {
    let deadline = std::time::Instant::now() + EVENT;
    while qp.query()?.sq_draining != 0 {
        ensure!(std::time::Instant::now() < deadline, "it drains without end");
        std::thread::yield_now();
    }
    Ok(())
}

/// In SQD messages that have begun are finished, none begins, and an event tells when that is so, if it was asked for.
/// Back in RTS the rest goes on, in order.
fn drained(options: &Options) -> Result<()> {
    let link = link(options)?;
    let (left, right) = (&link.left, &link.right);
    quiet(&left.context)?;
    for told in [false, true] {
        receives(right, BEFORE + BEHIND)?;
        let list: Vec<Send> = (0..BEFORE).map(|id| message(&link, id, LONG)).collect();
        post(&left.qp, &list)?;
        left.qp.drain(told)?;
        if told {
            is_drained(&left.context, &left.qp)?;
        } else {
            settles(&left.qp)?;
            quiet(&left.context)?;
        }
        is_in(&left.qp, v::IBV_QPS_SQD)?;
        ensure!(left.qp.query()?.sq_draining == 0, "it drains still");
        let mut done = 0;
        while let Some(completion) = left.send_cq.poll()? {
            ensure!((completion.wr_id, completion.status) == (done, v::IBV_WC_SUCCESS));
            done += 1;
        }
        let later: Vec<Send> = (BEFORE..BEFORE + BEHIND).map(|id| message(&link, id, 9)).collect();
        post(&left.qp, &later)?;
        // A second change to the same state is allowed at any time.
        left.qp.to(v::IBV_QPS_SQD)?;
        link.nothing_more(&left.send_cq)?;
        left.qp.to(v::IBV_QPS_RTS)?;
        for id in done..BEFORE + BEHIND {
            let completion = link.success(&left.send_cq)?;
            ensure!(completion.wr_id == id, "{completion:?} in place of {id}");
        }
        for id in 0..BEFORE + BEHIND {
            let received = link.success(&right.receive_cq)?;
            ensure!(received.wr_id == id, "{received:?} in place of {id}");
        }
        quiet(&left.context)?;
    }
    Ok(())
}

/// The attributes of RC that can be changed in SQD are changed, and the rest refused.
fn changed_in_sqd(options: &Options) -> Result<()> {
    let options = reliable(options);
    let link = link(&options)?;
    let qp = &link.left.qp;
    ensure!(qp.set_timeout(17).is_err(), "the timeout changed in RTS");
    qp.drain(true)?;
    is_drained(&link.left.context, qp)?;
    qp.set_timeout(17)?;
    let found = qp.query()?.timeout;
    ensure!(found == 17, "the timeout is {found}");
    let qkey = qp.set_qkey(1);
    ensure!(qkey.as_ref().is_err_and(|it| it.errno == libc::EINVAL), "a Q_Key: {qkey:?}");
    drop(link);
    path_changed_in_sqd(&options)
}

/// The path is another one, and messages arrive by it.
fn path_changed_in_sqd(options: &Options) -> Result<()> {
    let link = link(options)?;
    let (left, right) = (&link.left, &link.right);
    let gid_index = options.gid_index;
    let peer = Peer {
        qpn: right.qp.number(),
        gid: right.context.gid(gid_index)?,
        gid_index,
        send_psn: 0,
        receive_psn: 0,
        mtu: v::IBV_MTU_1024,
    };
    let refused = left.qp.set_traffic_class(&peer, 0x68);
    ensure!(refused.as_ref().is_err_and(|it| it.errno == libc::EINVAL), "in RTS: {refused:?}");
    left.qp.drain(true)?;
    is_drained(&left.context, &left.qp)?;
    left.qp.set_traffic_class(&peer, 0x68)?;
    let found = left.qp.query()?.ah_attr.grh.traffic_class;
    ensure!(found == 0x68, "the traffic class is {found:#x}");
    left.qp.to(v::IBV_QPS_RTS)?;
    works(&link)
}

/// A message arrives whole.
fn works(link: &ConnectedSides) -> Result<()> {
    let (left, right) = (&link.left, &link.right);
    let bytes: Vec<u8> = (0..3000).map(|index| ((index * 13) >> 2) as u8).collect();
    left.region.write(0, &bytes);
    right.region.write(LONG, &[0; 3000]);
    receives(right, 1)?;
    post(&left.qp, &[message(link, 77, bytes.len())])?;
    ensure!(link.success(&left.send_cq)?.wr_id == 77);
    ensure!(link.success(&right.receive_cq)?.byte_len == 3000);
    let mut found = vec![0; 3000];
    right.region.read(LONG, &mut found);
    ensure!(found == bytes, "other bytes arrived");
    Ok(())
}

/// A message that cannot be read breaks the send queue and nothing else: sends are flushed, messages are received, and
/// RTS mends it.
fn broken(options: &Options) -> Result<()> {
    let link = link(&unreliable(options))?;
    let (left, right) = (&link.left, &link.right);
    for _ in 0..3 {
        let mut list: Vec<Send> = (0..4).map(|id| message(&link, id, 64)).collect();
        list[1].pieces = vec![left.region.piece(0, 64).with_wrong_key()];
        list[2].flags = 0;
        receives(right, 1)?;
        post(&left.qp, &list)?;
        let wanted = [
            v::IBV_WC_SUCCESS,
            v::IBV_WC_LOC_PROT_ERR,
            v::IBV_WC_WR_FLUSH_ERR,
            v::IBV_WC_WR_FLUSH_ERR,
        ];
        sends_end(left, &wanted)?;
        link.success(&right.receive_cq)?;
        is_in(&left.qp, v::IBV_QPS_SQE)?;
        post(&left.qp, &[message(&link, 0, 64)])?;
        sends_end(left, &[v::IBV_WC_WR_FLUSH_ERR])?;
        // It receives.
        receives(left, 1)?;
        let pieces = vec![right.region.piece(0, 64)];
        post(&right.qp, &[Send { pieces, ..message(&link, 5, 64) }])?;
        link.success(&right.send_cq)?;
        link.success(&left.receive_cq)?;
        is_in(&left.qp, v::IBV_QPS_SQE)?;
        left.qp.to(v::IBV_QPS_RTS)?;
        is_in(&left.qp, v::IBV_QPS_RTS)?;
        works(&link)?;
    }
    Ok(())
}

/// The next completions of a side's sends, with wr_id counting from 0.
fn sends_end(side: &Side, wanted: &[v::ibv_wc_status]) -> Result<()> {
    for (id, status) in wanted.iter().enumerate() {
        let found = completion(&side.send_cq)?;
        ensure!((found.wr_id, found.status) == (id as u64, *status), "{found:?}, not {status}");
    }
    Ok(())
}

/// A QP of datagrams that sends to itself, and to others.
struct End {
    side: Side,
    ah: Ah,
}

impl End {
    fn new(options: &Options) -> Result<Self> {
        let library = crate::ffi::Library::open()?;
        let mut side = Side::new(library, &reliable(options), 0, transfer::room(ROOM))?;
        let cqs = [&side.send_cq, &side.receive_cq];
        side.qp = Qp::of(Service::Datagram, &side.pd, cqs, side.qp.capabilities)?;
        side.qp.to_datagrams(QKEY, 0)?;
        let own = side.context.gid(options.gid_index)?;
        let ah = Ah::new(&side.pd, own, options.gid_index, (0, 64))?;
        Ok(Self { side, ah })
    }

    /// Posts a datagram of the region's first bytes to a queue pair of the same device.
    fn post_to(&self, qpn: u32, wr_id: u64, qkey: u32, length: usize) -> Result<()> {
        self.post(self.datagram(wr_id, length), qpn, qkey)
    }

    /// Posts one to itself.
    fn post_own(&self, wr_id: u64, qkey: u32, length: usize) -> Result<()> {
        self.post_to(self.side.qp.number(), wr_id, qkey, length)
    }

    fn post(&self, datagram: Send, qpn: u32, qkey: u32) -> Result<()> {
        let to = Destination { handle: &self.ah, qpn, qkey };
        Ok(self.side.qp.post_datagram(&datagram, to)?)
    }

    /// A datagram of the region's first bytes.
    fn datagram(&self, wr_id: u64, length: usize) -> Send {
        Send {
            wr_id,
            operation: Operation::Send,
            pieces: vec![self.side.region.piece(0, length)],
            remote: (0, 0),
            immediate: 0,
            flags: v::IBV_SEND_SIGNALED,
        }
    }

    fn sent(&self, wanted: u64) -> Result<()> {
        let found = completion(&self.side.send_cq)?;
        ensure!((found.wr_id, found.status) == (wanted, v::IBV_WC_SUCCESS), "{found:?}");
        Ok(())
    }

    fn received(&self, wanted: u64, length: usize) -> Result<()> {
        let found = completion(&self.side.receive_cq)?;
        ensure!((found.wr_id, found.status) == (wanted, v::IBV_WC_SUCCESS), "{found:?}");
        ensure!(found.byte_len as usize == GRH + length, "{found:?}");
        Ok(())
    }
}

fn drained_datagrams(options: &Options) -> Result<()> {
    let end = End::new(options)?;
    let (side, qp) = (&end.side, &end.side.qp);
    quiet(&side.context)?;
    receives(side, BEFORE + BEHIND)?;
    for id in 0..BEFORE {
        end.post_own(id, QKEY, 4096)?;
    }
    qp.drain(true)?;
    is_drained(&side.context, qp)?;
    let mut done = 0;
    while let Some(completion) = side.send_cq.poll()? {
        ensure!((completion.wr_id, completion.status) == (done, v::IBV_WC_SUCCESS));
        done += 1;
    }
    for id in BEFORE..BEFORE + BEHIND {
        end.post_own(id, QKEY, 4096)?;
    }
    qp.to(v::IBV_QPS_SQD)?;
    ensure!(side.send_cq.poll()?.is_none(), "a datagram was sent in SQD");
    qp.to(v::IBV_QPS_RTS)?;
    for id in done..BEFORE + BEHIND {
        end.sent(id)?;
    }
    for id in 0..BEFORE + BEHIND {
        end.received(id, 4096)?;
    }
    // In SQD it gets another Q_Key, and takes only datagrams with that.
    qp.drain(true)?;
    is_drained(&side.context, qp)?;
    qp.set_qkey(QKEY ^ 1)?;
    qp.to(v::IBV_QPS_RTS)?;
    receives(side, 1)?;
    end.post_own(0, QKEY, 5)?;
    end.post_own(1, QKEY ^ 1, 6)?;
    end.sent(0)?;
    end.sent(1)?;
    end.received(0, 6)
}

fn broken_datagrams(options: &Options) -> Result<()> {
    let end = End::new(options)?;
    let (side, qp) = (&end.side, &end.side.qp);
    let other = End::new(options)?;
    for _ in 0..3 {
        receives(side, 3)?;
        end.post_own(0, QKEY, 64)?;
        let wrong = vec![side.region.piece(0, 64).with_wrong_key()];
        end.post(Send { pieces: wrong, ..end.datagram(1, 64) }, qp.number(), QKEY)?;
        end.post(Send { flags: 0, ..end.datagram(2, 64) }, qp.number(), QKEY)?;
        let wanted = [v::IBV_WC_SUCCESS, v::IBV_WC_LOC_PROT_ERR, v::IBV_WC_WR_FLUSH_ERR];
        sends_end(side, &wanted)?;
        end.received(0, 64)?;
        is_in(qp, v::IBV_QPS_SQE)?;
        end.post_own(0, QKEY, 64)?;
        sends_end(side, &[v::IBV_WC_WR_FLUSH_ERR])?;
        // It receives.
        other.post_to(qp.number(), 9, QKEY, 50)?;
        other.sent(9)?;
        end.received(1, 50)?;
        is_in(qp, v::IBV_QPS_SQE)?;
        qp.to(v::IBV_QPS_RTS)?;
        end.post_own(7, QKEY, 33)?;
        end.sent(7)?;
        end.received(2, 33)?;
    }
    Ok(())
}

/// A QP fails, is reset and connected anew, again and again; nothing of before comes out of it.
fn used_again(options: &Options) -> Result<()> {
    for options in [reliable(options), unreliable(options)] {
        let link = link(&options)?;
        for _ in 0..5 {
            receives(&link.right, 2)?;
            link.right.qp.to(v::IBV_QPS_ERR)?;
            for id in 0..2 {
                let flushed = link.completion(&link.right.receive_cq)?;
                let wanted = (id, v::IBV_WC_WR_FLUSH_ERR);
                ensure!((flushed.wr_id, flushed.status) == wanted, "{flushed:?}");
            }
            link.left.qp.to(v::IBV_QPS_ERR)?;
            post(&link.left.qp, &[message(&link, 0, 64)])?;
            sends_end(&link.left, &[v::IBV_WC_WR_FLUSH_ERR])?;
            // Posted messages that were never sent are forgotten.
            for side in [&link.left, &link.right] {
                side.qp.to(v::IBV_QPS_RESET)?;
            }
            link.connect()?;
            receives(&link.left, 1)?;
            for side in [&link.left, &link.right] {
                side.qp.to(v::IBV_QPS_RESET)?;
            }
            link.connect()?;
            works(&link)?;
            for cq in [&link.left.send_cq, &link.left.receive_cq, &link.right.receive_cq] {
                link.nothing_more(cq)?;
            }
        }
    }
    Ok(())
}

/// A QP whose peer is itself.
fn to_itself(options: &Options) -> Result<()> {
    let link = link(options)?;
    let side = &link.left;
    let gid_index = options.gid_index;
    let own = Peer {
        qpn: side.qp.number(),
        gid: side.context.gid(gid_index)?,
        gid_index,
        send_psn: 0xff_fffe,
        receive_psn: 0xff_fffe,
        mtu: v::IBV_MTU_1024,
    };
    side.qp.to(v::IBV_QPS_RESET)?;
    side.qp.init(ACCESS)?;
    side.qp.receive_from(&own)?;
    side.qp.send_to(&own, options.patience)?;
    let bytes: Vec<u8> = (0..LONG).map(|index| ((index * 31) >> 3) as u8).collect();
    side.region.write(0, &bytes);
    let into = (side.region.address() + LONG as u64, side.region.rkey());
    let mut operations = vec![Operation::SendImmediate, Operation::WriteImmediate];
    if options.service == Service::Reliable {
        operations.extend([Operation::Write, Operation::Read]);
    }
    for operation in operations {
        side.region.write(LONG, &vec![0; LONG]);
        if operation.receives() {
            receives(side, 1)?;
        }
        let pieces = match operation {
            Operation::Read => vec![side.region.piece(LONG, LONG)],
            _ => vec![side.region.piece(0, LONG)],
        };
        let remote = match operation {
            Operation::Read => (side.region.address(), side.region.rkey()),
            _ => into,
        };
        let request = Send { operation, pieces, remote, ..message(&link, 3, LONG) };
        post(&side.qp, &[request])?;
        ensure!(link.success(&side.send_cq)?.wr_id == 3);
        if operation.receives() {
            let received = link.success(&side.receive_cq)?;
            ensure!(received.immediate == Some(0), "{received:?}");
        }
        let mut found = vec![0; LONG];
        side.region.read(LONG, &mut found);
        ensure!(found == bytes, "{operation:?}: other bytes arrived");
    }
    Ok(())
}

fn datagrams_to_itself(options: &Options) -> Result<()> {
    let end = End::new(options)?;
    let bytes: Vec<u8> = (0..4096).map(|index| ((index * 31) >> 3) as u8).collect();
    end.side.region.write(0, &bytes);
    for length in [0, 1, 4096] {
        receives(&end.side, 1)?;
        end.post_own(4, QKEY, length)?;
        end.sent(4)?;
        end.received(0, length)?;
        let mut found = vec![0; length];
        end.side.region.read(LONG + GRH, &mut found);
        ensure!(found == bytes[..length], "other bytes arrived");
    }
    Ok(())
}

/// A message behind a fence takes bytes that a READ before it has brought.
fn fences(options: &Options) -> Result<()> {
    let link = link(&reliable(options))?;
    let (left, right) = (&link.left, &link.right);
    let source = Region::new(&right.pd, LONG, ACCESS, false)?;
    for round in 0..20u8 {
        let bytes: Vec<u8> = (0..LONG).map(|index| (index >> 2) as u8 ^ round).collect();
        source.write(0, &bytes);
        left.region.write(0, &vec![!round; LONG]);
        receives(right, 1)?;
        let read = Send {
            operation: Operation::Read,
            remote: (source.address(), source.rkey()),
            ..message(&link, 0, LONG)
        };
        let flags = v::IBV_SEND_SIGNALED | v::IBV_SEND_FENCE;
        let fenced = Send { flags, ..message(&link, 1, LONG) };
        post(&left.qp, &[read, fenced])?;
        sends_end(left, &[v::IBV_WC_SUCCESS; 2])?;
        link.success(&right.receive_cq)?;
        let mut found = vec![0; LONG];
        right.region.read(LONG, &mut found);
        ensure!(found == bytes, "round {round}: it was sent before the READ had come");
    }
    Ok(())
}
