//! The bystander: two QPs that send each other a message, to and fro, and wait for events. It counts the time of a
//! round trip without the waits of all threads on the way for a processor, and balboad's work meanwhile.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use verbs_sys::current::verbs as v;

use super::latency::Trips;
use super::waits::Waits;
use crate::data::link::{ConnectedSides, Options, Side};
use crate::ffi::{Cq, Operation, Patience, Recv, Send, Service};
use crate::mortal::say;

/// How often the round trips are told of.
const PERIOD: Duration = Duration::from_millis(100);
/// A time longer than any wait for a bystander.
const LIMIT: Duration = Duration::from_secs(600);
/// Bytes of a message.
const MESSAGE: usize = 64;

/// Sends a message to and fro between two cards until it is killed, and prints how long each round trip took, without
/// the waits for a processor, and how long the threads of a balboad, by its process id, ran meanwhile.
///
/// # Errors
/// When anything fails.
pub fn run(balboad: i32) -> Result<()> {
    let clock = clock_of(balboad)?;
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
    let link = ConnectedSides::new(&options, v::IBV_MTU_1024, MESSAGE)?;
    for side in [&link.left, &link.right] {
        receive(side)?;
        side.receive_cq.arm()?;
    }
    let waits = Waits::on_the_way(balboad)?;
    let (mut trips, mut told, mut waited) = (Trips::default(), Instant::now(), waits.so_far());
    loop {
        let (begin, worked) = (Instant::now(), time_of(clock)?);
        pass(&link.left, &link.right).context("there")?;
        pass(&link.right, &link.left).context("and back")?;
        let (took, now, before) = (begin.elapsed(), time_of(clock)?, waited);
        // A wait that goes on is counted at its end, which may be that of a later trip.
        waited = waits.so_far();
        let took = took.saturating_sub(waited.saturating_sub(before));
        trips.add(took, now.saturating_sub(worked));
        if told.elapsed() >= PERIOD {
            say(&trips.to_string());
            (trips, told) = (Trips::default(), Instant::now());
        }
    }
}

/// The clock of a process, which goes while threads of it run.
fn clock_of(process: i32) -> Result<ClockId> {
    ClockId::pid_cpu_clock_id(Pid::from_raw(process)).context("no clock of balboad")
}

fn time_of(clock: ClockId) -> Result<Duration> {
    Ok(clock_gettime(clock).context("balboad has ended")?.into())
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

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_clock_of_another_process_goes_while_that_runs_and_not_while_it_waits() {
        let start = |script| Command::new("sh").args(["-c", script]).spawn().unwrap();
        let mut children = [start("while :; do :; done"), start("kill -STOP $$")];
        let [busy, still] = children.each_ref().map(|it| clock_of(i32::try_from(it.id()).unwrap()));
        let (busy, still) = (busy.unwrap(), still.unwrap());
        let begin = time_of(busy).unwrap();
        while time_of(busy).unwrap() < begin + Duration::from_millis(50) {
            std::thread::sleep(Duration::from_millis(1));
        }
        // It may not have stopped itself yet: then its clock goes on until it has.
        let mut last = time_of(still).unwrap();
        loop {
            std::thread::sleep(Duration::from_millis(20));
            let now = time_of(still).unwrap();
            if now == last {
                break;
            }
            last = now;
        }
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
