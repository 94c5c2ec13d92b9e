//! The extended verbs: their answers, their refusals, and their use together with the plain ones.

use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use verbs_sys::current::verbs as v;

use super::link::{ConnectedSides, LIMIT, Options, completion};
use super::{batch, transfer};
use crate::ffi::{
    Cq, CqWishes, EVERYTHING, Failed, ListEnd, Operation, Pd, Qp, QpWishes, Recv, Send,
    ThreadDomain,
};

/// Messages of which the times are looked at.
const MESSAGES: u64 = 20;
/// Bytes of a message.
const BYTES: usize = 512;
/// An event that must not come is given so long to come.
const GRACE: Duration = Duration::from_millis(20);

/// Runs all of it.
///
/// # Errors
/// At the first thing that is not as it should be.
pub fn all(options: &Options) -> Result<()> {
    let options = Options { extended: Some(EVERYTHING), ..options.clone() };
    let link = ConnectedSides::new(&options, v::IBV_MTU_1024, transfer::room(1 << 16))?;
    device(&link).context("what the device tells")?;
    completion_queues(&link).context("completion queues")?;
    queue_pairs(&link).context("queue pairs")?;
    times(&link).context("times")?;
    both_ways(&link).context("extended and plain calls in turn")?;
    nothing_or_all(&link).context("lists that are not posted")?;
    reset_under_a_list(&link).context("a QP that is reset under a list")?;
    batch::all(&options, write).context("what is done in a poll")?;
    let options = Options { events: true, ..options };
    let link = ConnectedSides::new(&options, v::IBV_MTU_1024, transfer::room(1 << 16))?;
    moderation(&link).context("moderated events")?;
    solicited(&link).context("events of what is solicited")?;
    // A wait for a completion may leave an event over: this link has no waits.
    let link = ConnectedSides::new(&options, v::IBV_MTU_1024, transfer::room(1 << 16))?;
    untold(&link).context("events of what came before the arming")
}

/// Events that are of several completions, and that come for fewer once they have waited.
fn moderation(link: &ConnectedSides) -> Result<()> {
    const COUNT: u16 = 4;
    const PERIOD: Duration = Duration::from_millis(20);
    let (qp, cq) = (&link.left.qp, &link.left.send_cq);
    let most = link.left.context.extended_attributes()?.cq_mod_caps;
    ensure!((most.max_cq_count, most.max_cq_period) == (u16::MAX, u16::MAX));
    let period = u16::try_from(PERIOD.as_micros())?;
    for mask in [0, 2, v::IBV_CQ_ATTR_MODERATE | 1 << 7] {
        refused(cq.moderate(mask, COUNT, period), libc::EINVAL)?;
    }
    let channel = cq.channel().context("the queue has a channel")?;
    let all = |count: u64| -> Result<()> {
        for wr_id in 0..count {
            ensure!(cq.poll()?.context("a completion is missing")?.wr_id == wr_id);
        }
        link.nothing_more(cq)
    };
    let post = |count: u64| -> Result<()> {
        let list: Vec<Send> = (0..count).map(|wr_id| write(link, wr_id)).collect();
        Ok(qp.build(&list, ListEnd::Complete)?)
    };
    for round in 0..5 {
        // So long that only the count can be it.
        cq.moderate(v::IBV_CQ_ATTR_MODERATE, COUNT, u16::MAX)?;
        cq.arm()?;
        post(COUNT.into())?;
        channel.wait(LIMIT)?;
        all(COUNT.into()).with_context(|| format!("round {round} of count"))?;
        cq.moderate(v::IBV_CQ_ATTR_MODERATE, COUNT, period)?;
        cq.arm()?;
        post(1)?;
        channel.wait(LIMIT)?;
        all(1).with_context(|| format!("round {round} of time"))?;
        cq.moderate(v::IBV_CQ_ATTR_MODERATE, 0, 0)?;
        cq.arm()?;
        post(1)?;
        channel.wait(LIMIT)?;
        all(1).with_context(|| format!("round {round} without"))?;
    }
    Ok(())
}

/// Events of messages that ask for them, and of none before.
fn solicited(link: &ConnectedSides) -> Result<()> {
    let (sender, receiver) = (&link.left, &link.right);
    let channel = receiver.receive_cq.channel().context("the queue has a channel")?;
    let send = |wr_id: u64, flag: v::ibv_send_flags| -> Result<()> {
        let pieces = vec![receiver.region.piece(0, BYTES)];
        receiver.qp.post_recv(&Recv { wr_id, pieces })?;
        let flags = v::IBV_SEND_SIGNALED | flag;
        let message = Send { operation: Operation::Send, flags, ..write(link, wr_id) };
        sender.qp.build(&[message], ListEnd::Complete)?;
        link.success(&sender.send_cq).map(drop)
    };
    for round in 0..5 {
        receiver.receive_cq.arm_for(true)?;
        (0..3).try_for_each(|wr_id| send(wr_id, 0))?;
        ensure!(!channel.is_ready(GRACE)?, "round {round}: an event of what is not solicited");
        send(3, v::IBV_SEND_SOLICITED)?;
        let told = channel.wait(LIMIT)?;
        ensure!(told.addr() == receiver.receive_cq.element());
        for wr_id in 0..4 {
            let found = receiver.receive_cq.poll()?.context("a completion is missing")?;
            ensure!(found.wr_id == wr_id, "round {round}: {found:?}");
        }
        link.nothing_more(&receiver.receive_cq)?;
        // A request for solicited completions does not undo one for any completion, and counts by itself behind its
        // event.
        for (first, last, when) in [(false, true, "first"), (true, false, "last")] {
            receiver.receive_cq.arm_for(first)?;
            receiver.receive_cq.arm_for(last)?;
            send(0, 0)?;
            channel.wait(LIMIT).with_context(|| format!("round {round}, armed for any {when}"))?;
            ensure!(receiver.receive_cq.poll()?.context("a completion is missing")?.wr_id == 0);
            link.nothing_more(&receiver.receive_cq)?;
        }
    }
    Ok(())
}

/// A completion from before the arming causes an event, unless it was there when the last event was taken.
fn untold(link: &ConnectedSides) -> Result<()> {
    let cq = &link.left.send_cq;
    let channel = cq.channel().context("the queue has a channel")?;
    for round in 0..5 {
        link.left.qp.build(&[write(link, round)], ListEnd::Complete)?;
        // It is there by the end of this, unless the machine is very busy.
        ensure!(!channel.is_ready(GRACE)?, "round {round}: an event that nobody asked for");
        cq.arm()?;
        channel.wait(LIMIT).with_context(|| format!("round {round}"))?;
        cq.arm()?;
        ensure!(!channel.is_ready(GRACE)?, "round {round}: an event of what was told of");
        ensure!(cq.poll()?.context("a completion is missing")?.wr_id == round);
        link.left.qp.build(&[write(link, round)], ListEnd::Complete)?;
        channel.wait(LIMIT).with_context(|| format!("round {round}, armed before"))?;
        ensure!(cq.poll()?.context("a completion is missing")?.wr_id == round);
        link.nothing_more(cq)?;
    }
    Ok(())
}

/// A WRITE of bytes of the left region to the right one.
fn write(link: &ConnectedSides, wr_id: u64) -> Send {
    link.request(wr_id, Operation::Write, BYTES)
}

fn refused<T>(outcome: Result<T>, errno: i32) -> Result<()> {
    let error = outcome.err().context("it is not refused")?;
    let found = error.downcast::<Failed>()?;
    ensure!(found.errno == errno, "refused otherwise: {found}");
    Ok(())
}

fn device(link: &ConnectedSides) -> Result<()> {
    let context = &link.left.context;
    let (extended, plain) = (context.extended_attributes()?, context.attributes()?);
    ensure!(extended.orig_attr.max_qp == plain.max_qp);
    ensure!(extended.phys_port_cnt_ex == u32::from(plain.phys_port_cnt));
    ensure!(extended.device_cap_flags_ex == u64::from(plain.device_cap_flags));
    ensure!(extended.completion_timestamp_mask == u64::MAX);
    ensure!(extended.hca_core_clock == 1_000_000, "it counts nanoseconds, which is so many kHz");
    let not_offered = [
        extended.odp_caps.general_caps,
        u64::from(extended.tso_caps.max_tso),
        u64::from(extended.rss_caps.supported_qpts),
        u64::from(extended.raw_packet_caps),
        u64::from(extended.tm_caps.max_num_tags),
    ];
    ensure!(not_offered == [0; 5], "{not_offered:?}");
    let before = context.clock(v::IBV_VALUES_MASK_RAW_CLOCK)?;
    ensure!(context.clock(v::IBV_VALUES_MASK_RAW_CLOCK)? >= before);
    refused(context.clock(1 << 5), libc::EINVAL)
}

fn completion_queues(link: &ConnectedSides) -> Result<()> {
    let side = &link.left;
    let make = |wishes: CqWishes<'_>| Cq::extended(&side.context, 4, None, wishes);
    for flag in [
        v::IBV_WC_EX_WITH_CVLAN,
        v::IBV_WC_EX_WITH_FLOW_TAG,
        v::IBV_WC_EX_WITH_TM_INFO,
        v::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
        1 << 20,
    ] {
        let wc_flags = EVERYTHING | u64::from(flag);
        let made = make(CqWishes { wc_flags, ..CqWishes::default() });
        refused(made, libc::EOPNOTSUPP).with_context(|| format!("wc_flags {wc_flags:#x}"))?;
    }
    let thread = ThreadDomain::new(&side.context)?;
    let parent = Pd::parent(&Pd::new(&side.context)?, &thread)?;
    let (with_flags, with_pd) = (v::IBV_CQ_INIT_ATTR_MASK_FLAGS, v::IBV_CQ_INIT_ATTR_MASK_PD);
    let wishes =
        |comp_mask, flags, parent| CqWishes { comp_mask, flags, parent, ..CqWishes::default() };
    refused(make(wishes(1 << 9, 0, None)), libc::EINVAL)?;
    refused(make(wishes(with_flags, 1 << 9, None)), libc::EINVAL)?;
    let overrun = v::IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
    refused(make(wishes(with_flags, overrun, None)), libc::EOPNOTSUPP)?;
    refused(make(wishes(with_pd, 0, None)), libc::EINVAL)?;
    refused(make(wishes(with_pd, 0, Some(&side.pd))), libc::EINVAL)?;
    let one_thread = v::IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
    make(wishes(with_flags | with_pd, one_thread, Some(&parent)))?;
    make(wishes(0, u32::MAX, None)).context("flags without their bit in the mask")?;
    Ok(())
}

fn queue_pairs(link: &ConnectedSides) -> Result<()> {
    let side = &link.left;
    let capabilities = side.qp.capabilities;
    let cqs: [&Rc<Cq>; 2] = [&side.send_cq, &side.receive_cq];
    let make = |wishes: QpWishes| Qp::extended(&side.pd, cqs, capabilities, wishes);
    let (send_ops, flags) = (v::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, v::IBV_QP_INIT_ATTR_CREATE_FLAGS);
    let plain = QpWishes { comp_mask: flags, send_ops: 0, create_flags: 0 };
    ensure!(!make(plain)?.is_extended(), "it was not asked for send operations");
    ensure!(make(QpWishes { comp_mask: send_ops, ..plain })?.is_extended());
    for send_ops_flags in [v::IBV_QP_EX_WITH_TSO, 1 << 30] {
        let wishes = QpWishes { comp_mask: send_ops, send_ops: send_ops_flags.into(), ..plain };
        refused(make(wishes), libc::EOPNOTSUPP)?;
    }
    refused(make(QpWishes { create_flags: 1 << 1, ..plain }), libc::EOPNOTSUPP)?;
    for (comp_mask, errno) in [
        (v::IBV_QP_INIT_ATTR_XRCD, libc::EINVAL),
        (v::IBV_QP_INIT_ATTR_IND_TABLE, libc::EOPNOTSUPP),
        (v::IBV_QP_INIT_ATTR_RX_HASH, libc::EOPNOTSUPP),
        (1 << 20, libc::EINVAL),
    ] {
        refused(make(QpWishes { comp_mask, ..plain }), errno)?;
    }
    Ok(())
}

/// Completions are stamped while the message is under way, by the clock that the device tells.
fn times(link: &ConnectedSides) -> Result<()> {
    let context = &link.left.context;
    let clock = || context.clock(v::IBV_VALUES_MASK_RAW_CLOCK);
    for _ in 0..2 {
        let begun = clock()?;
        let list: Vec<Send> = (0..MESSAGES).map(|wr_id| write(link, wr_id)).collect();
        link.left.qp.build(&list, ListEnd::Complete)?;
        let mut found = Vec::new();
        while found.len() < list.len() {
            found.extend(link.left.send_cq.poll_extended(7)?);
        }
        let ended = clock()?;
        let mut before = begun;
        for ((completion, time), wr_id) in found.iter().zip(0..) {
            let told = (completion.wr_id, completion.status);
            ensure!(told == (wr_id, v::IBV_WC_SUCCESS), "{completion:?}");
            let time = time.context("no time is told")?;
            ensure!(
                (before..=ended).contains(&time),
                "{before} <= {time} <= {ended} does not hold"
            );
            before = time;
        }
    }
    Ok(())
}

/// One queue pair is posted to by either call, one completion queue is polled by either.
fn both_ways(link: &ConnectedSides) -> Result<()> {
    let (qp, cq) = (&link.left.qp, &link.left.send_cq);
    for wr_id in 0..MESSAGES {
        let list = [write(link, wr_id)];
        if wr_id % 2 == 0 {
            qp.build(&list, ListEnd::Complete)?;
        } else {
            qp.post_send(&list).map_err(|(failed, _)| failed)?;
        }
    }
    for wr_id in 0..MESSAGES {
        let found = loop {
            let plain = wr_id % 3 == 0;
            if let Some(found) = if plain { cq.poll_plain()? } else { cq.poll()? } {
                break found;
            }
            std::thread::yield_now();
        };
        let told = (found.wr_id, found.status, found.opcode, found.qp_num);
        let wanted = (wr_id, v::IBV_WC_SUCCESS, v::IBV_WC_RDMA_WRITE, qp.number());
        ensure!(told == wanted, "{found:?}");
    }
    link.nothing_more(cq)
}

/// A QP that is reset, or destroyed, while a list is open: neither waits for the list, and nothing of it is posted.
fn reset_under_a_list(link: &ConnectedSides) -> Result<()> {
    let (left, right) = (&link.left, &link.right);
    let (before, after) = ([0x33; BYTES], [0x44; BYTES]);
    for end in [ListEnd::Complete, ListEnd::Abort] {
        right.region.write(0, &before);
        left.region.write(0, &after);
        left.qp.start(&[write(link, 1), write(link, 2)]);
        for side in [left, right] {
            side.qp.to(v::IBV_QPS_RESET)?;
        }
        link.connect()?;
        let outcome = left.qp.end(end).map_err(anyhow::Error::from);
        if end == ListEnd::Complete {
            refused(outcome, libc::EINVAL)?;
        }
        // Later completions would show the outcomes of those.
        let elsewhere = (right.region.address() + BYTES as u64, right.region.rkey());
        left.qp.build(&[Send { remote: elsewhere, ..write(link, 3) }], ListEnd::Complete)?;
        ensure!(completion(&left.send_cq)?.wr_id == 3);
        link.nothing_more(&left.send_cq)?;
        let mut found = [0; BYTES];
        right.region.read(0, &mut found);
        ensure!(found == before, "bytes of a list that was not posted");
    }
    let cqs: [&Rc<Cq>; 2] = [&left.send_cq, &left.receive_cq];
    let other = Qp::extended(&left.pd, cqs, left.qp.capabilities, QpWishes::default())?;
    other.start(&[write(link, 1)]);
    drop(other);
    Ok(())
}

/// A list with anything wrong in it, or that is aborted, is not posted in part.
fn nothing_or_all(link: &ConnectedSides) -> Result<()> {
    let (left, right) = (&link.left, &link.right);
    let (before, after) = ([0x11; BYTES], [0x22; BYTES]);
    right.region.write(0, &before);
    left.region.write(0, &after);
    let good = write(link, 1);
    let long = Send { pieces: vec![left.region.piece(0, 1); 17], ..good.clone() };
    let inline = Send {
        pieces: vec![left.region.piece(0, BYTES)],
        flags: v::IBV_SEND_INLINE,
        ..good.clone()
    };
    let read = Send {
        operation: Operation::Read,
        pieces: vec![left.region.piece(0, 8)],
        ..inline.clone()
    };
    let flags = Send { flags: v::IBV_SEND_IP_CSUM, ..good.clone() };
    let most = left.qp.capabilities.max_send_wr as usize + 1;
    let mut lists: Vec<(Vec<Send>, i32)> = [long, inline, read, flags]
        .map(|wrong| (vec![good.clone(), wrong, good.clone()], libc::EINVAL))
        .into();
    lists.push((vec![good.clone(); most], libc::ENOMEM));
    for (number, (list, errno)) in lists.iter().enumerate() {
        let outcome = left.qp.build(list, ListEnd::Complete).map_err(anyhow::Error::from);
        refused(outcome, *errno).with_context(|| format!("list {number}"))?;
        left.qp.build(list, ListEnd::Abort)?;
    }
    // Later completions would show the outcomes of those.
    let last = Send { operation: Operation::Send, ..write(link, 2) };
    right.qp.post_recv(&crate::ffi::Recv {
        wr_id: 3,
        pieces: vec![right.region.piece(BYTES, BYTES)],
    })?;
    left.qp.build(&[last], ListEnd::Complete)?;
    ensure!(completion(&right.receive_cq)?.wr_id == 3);
    ensure!(completion(&left.send_cq)?.wr_id == 2);
    link.nothing_more(&left.send_cq)?;
    let mut found = [0; BYTES];
    right.region.read(0, &mut found);
    ensure!(found == before, "bytes of a list that was not posted");
    Ok(())
}
