//! The bystander: two QPs that send each other a message, to and fro, and wait for events. It counts how long that takes,
//! and what balboad works meanwhile.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use verbs_sys::current::verbs as v;

use crate::attack::latency::Trips;
use crate::data::link::{Link, Options, Side};
use crate::ffi::{Cq, Operation, Patience, Recv, Send, Service};
use crate::mortal::say;

/// How often the round trips are told of.
const PERIOD: Duration = Duration::from_millis(100);
/// Longer than anybody waits for a bystander.
const LIMIT: Duration = Duration::from_secs(600);
/// Bytes of a message.
const MESSAGE: usize = 64;

/// Sends a message to and fro between two cards until it is killed, and prints how long each round
/// trip took, and how long the threads of a balboad, by its process id, ran meanwhile.
///
/// # Errors
/// When anything fails.
pub fn run(balboad: i32) -> Result<()> {
    let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(balboad)).context("balboad's clock")?;
    let options = Options {
        devices: ["balboa0".into(), "balboa1".into()],
        gid_index: super::GID,
        events: true,
        thread_domain: false,
        extended: None,
        service: Service::Reliable,
        cq_entries: 64,
        patience: Patience::default(),
    };
    let link = Link::new(&options, v::IBV_MTU_1024, MESSAGE)?;
    for side in [&link.left, &link.right] {
        receive(side)?;
        side.receive_cq.arm()?;
    }
    let (mut trips, mut told) = (Trips::default(), Instant::now());
    loop {
        let (begin, worked) = (Instant::now(), Duration::from(clock_gettime(clock)?));
        pass(&link.left, &link.right).context("there")?;
        pass(&link.right, &link.left).context("and back")?;
        let now = Duration::from(clock_gettime(clock)?);
        trips.add(begin.elapsed(), now.saturating_sub(worked));
        if told.elapsed() >= PERIOD {
            say(&trips.to_string());
            (trips, told) = (Trips::default(), Instant::now());
        }
    }
}

/// Sends a message, and sleeps until it has come.
fn pass(from: &Side, to: &Side) -> Result<()> {
    let pieces = vec![from.region.piece(0, MESSAGE)];
    let (operation, flags) = (Operation::Send, v::IBV_SEND_SIGNALED);
    let request = Send { wr_id: 0, operation, pieces, remote: (0, 0), immediate: 0, flags };
    from.qp.post_send(&[request]).map_err(|(failed, _)| failed)?;
    let channel = to.receive_cq.channel().context("no channel")?;
    channel.wait(LIMIT)?;
    to.receive_cq.arm()?;
    ensure!(success(&to.receive_cq)? == 1, "not one message has come");
    receive(to)?;
    // That of the last message may come later than its answer.
    success(&from.send_cq).map(drop)
}

fn receive(side: &Side) -> Result<()> {
    Ok(side.qp.post_recv(&Recv { wr_id: 0, pieces: vec![side.region.piece(0, MESSAGE)] })?)
}

/// Takes the completions there are, all of which must be good.
fn success(cq: &Cq) -> Result<usize> {
    let mut count = 0;
    while let Some(done) = cq.poll()? {
        ensure!(done.status == v::IBV_WC_SUCCESS, "{done:?}");
        count += 1;
    }
    Ok(count)
}
