//! Rates that queue pairs are held to. A busy machine is slower than any rate, so messages are judged by the time that they
//! take at least.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use verbs_sys::current::verbs as v;

use super::link::{ACCESS, ConnectedSides, Options, becomes};
use super::transfer;
use crate::ffi::{Operation, Qp, Service};

/// Bytes of a message, and of a burst.
const BYTES: usize = 256 << 10;
const BURST: u32 = 128 << 10;
/// A rate in kb/s, at which a message takes 105 ms: cards are a hundred times as fast.
const RATE: u32 = 20_000;
/// The code of 2.5 Gb/s, and that in kb/s.
const SLOW_PATH: u8 = 2;
const SLOW: u32 = 2_500_000;
/// By so much a card that comes late may catch up, and its clock differ from this one.
const SLACK: Duration = Duration::from_millis(1);

/// The time that bytes take at a rate at least.
fn time_of(bytes: usize, rate: u32) -> Duration {
    let nanos = bytes as u64 * 8_000_000 / u64::from(rate);
    Duration::from_nanos(nanos).saturating_sub(SLACK)
}

fn limit(qp: &Qp, rate_limit: u32, max_burst_sz: u32) -> Result<()> {
    let (typical_pkt_sz, comp_mask) = (0, 0);
    let rate = v::ibv_qp_rate_limit_attr { rate_limit, max_burst_sz, typical_pkt_sz, comp_mask };
    qp.limit_rate(rate)?;
    let told = qp.query()?.rate_limit;
    ensure!(told == rate_limit, "a rate of {rate_limit} kb/s is told as {told}");
    Ok(())
}

/// Moves a message, and checks its bytes and that it took so long at least.
fn moves(link: &ConnectedSides, operation: Operation, at_least: Duration) -> Result<()> {
    let [from, to] = link.ends_of(operation);
    let message: Vec<u8> = (0..BYTES).map(|index| (index / 251 + index) as u8).collect();
    to.region.write(0, &vec![0; BYTES]);
    from.region.write(0, &message);
    let begun = Instant::now();
    let request = link.request(1, operation, BYTES);
    link.left.qp.post_send(&[request]).map_err(|(failed, _)| failed)?;
    link.success(&link.left.send_cq)?;
    let took = begun.elapsed();
    ensure!(took >= at_least, "a {operation:?} of {BYTES} bytes took {took:?}, not {at_least:?}");
    becomes(&to.region, &message)
}

/// The slower path of both sides, from RESET on.
fn reconnect(link: &ConnectedSides) -> Result<()> {
    let (left, right) = link.peers()?;
    for (side, peer) in [(&link.left, right), (&link.right, left)] {
        let qp = &side.qp;
        qp.to(v::IBV_QPS_RESET)?;
        let forgotten = qp.query()?.rate_limit;
        ensure!(forgotten == 0, "after a RESET there is a rate of {forgotten} kb/s");
        qp.init(ACCESS)?;
        qp.receive_at(&peer, SLOW_PATH)?;
        qp.send_to(&peer, link.options().patience)?;
        let told = qp.query()?.ah_attr.static_rate;
        ensure!(told == SLOW_PATH, "a static_rate of {SLOW_PATH} is told as {told}");
    }
    Ok(())
}

/// Runs all of it; answers with the number of messages.
///
/// # Errors
/// When a message is too fast, or a rate is told otherwise.
pub fn all(options: &Options) -> Result<usize> {
    let link = ConnectedSides::new(options, v::IBV_MTU_1024, transfer::room(BYTES))?;
    let caps = link.left.context.extended_attributes()?.packet_pacing_caps;
    let range = caps.qp_rate_limit_min..=caps.qp_rate_limit_max;
    ensure!(range.contains(&RATE) && range.contains(&SLOW), "rates of {range:?} kb/s are offered");
    let kinds = [v::IBV_QPT_RC, v::IBV_QPT_UC, v::IBV_QPT_UD, v::IBV_QPT_XRC_SEND];
    let bits = kinds.iter().fold(0, |bits, kind| bits | 1 << kind);
    ensure!(caps.supported_qpts == bits, "of types {:#x}", caps.supported_qpts);
    let operations = match options.service {
        Service::Reliable => &[Operation::Write, Operation::Read][..],
        _ => &[Operation::Write],
    };
    let mut count = 0;
    for &operation in operations {
        let [from, _] = link.ends_of(operation);
        let burst = BURST as usize;
        let steps = [
            (0, 0, Duration::ZERO),
            (RATE, 0, time_of(BYTES, RATE)),
            // A packet more than a burst leaves at once.
            (RATE, BURST, time_of(BYTES - burst - 2_048, RATE)),
            (0, 0, Duration::ZERO),
        ];
        for (rate, burst, at_least) in steps {
            limit(&from.qp, rate, burst)?;
            moves(&link, operation, at_least).with_context(|| format!("{rate} kb/s, {burst}"))?;
            count += 1;
        }
    }
    limit(&link.left.qp, RATE, 0)?;
    reconnect(&link)?;
    for &operation in operations {
        moves(&link, operation, time_of(BYTES, SLOW)).context("a path of 2.5 Gb/s")?;
        count += 1;
    }
    Ok(count)
}
