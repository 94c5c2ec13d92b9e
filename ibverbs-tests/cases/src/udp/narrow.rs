//! A route that carries less than the device by which it leaves.

use anyhow::{Result, ensure};
use harness::machines::{IPV4, Machines, WIRE};
use harness::pair::both_say;
use harness::setting::{Daemon, Setting};

use super::{pings, stop, until};

/// The default path MTU, and rdma_cm's, fit each route. balboad refuses in one sentence a path MTU that does not fit
/// the route to the peer, and allows it on a route that is wide enough.
pub(super) fn narrow(setting: &Setting) -> Result<()> {
    let machines = Machines::new(setting, 9000)?;
    let daemons = machines.balboads(&format!("--soft 1 --port udp:{WIRE}"))?;
    let carries = |what: &str, bytes: u64| -> Result<()> {
        daemons.iter().try_for_each(|it| until(it, what, &|card| card["active_mtu"] == bytes))
    };
    carries("as wide as its device", 4096)?;
    let route = |verb: &str| -> Result<()> {
        (0..2).try_for_each(|side| {
            let words = format!("route {verb} {}/32 dev {WIRE} mtu 1500", IPV4[1 - side]);
            machines.ip(side, &words)
        })
    };
    route("add")?;
    carries("as narrow as its route", 1024)?;
    for daemon in &daemons {
        ensure!(daemon.status()?["cards"][0]["max_mtu"] == 4096, "{}", daemon.status()?);
    }

    both_say(&machines.run_between(&daemons, "ib_write_bw -F -x 0 -n 200", IPV4[0])?, "65536 ")?;
    pings(&machines, &daemons, IPV4[0])?;
    refused(&machines, &daemons)?;
    // The other route is as wide as the device.
    let wide = "ibv_rc_pingpong -c -g 1 -m 4096 -s 65536 -n 100";
    both_say(&machines.run_between(&daemons, wide, IPV4[0])?, "100 iters in")?;

    route("del")?;
    carries("as wide as its device again", 4096)?;
    let wide = wide.replace("-g 1", "-g 0");
    both_say(&machines.run_between(&daemons, &wide, IPV4[0])?, "100 iters in")?;
    stop(daemons)
}

/// A path MTU that the route does not carry.
fn refused(machines: &Machines<'_>, daemons: &[Daemon<'_>; 2]) -> Result<()> {
    let port = harness::pair::free_port()?;
    let command = format!("ibv_rc_pingpong -g 0 -m 2048 -n 100 -p {port}");
    let waiting = machines.run(0, &daemons[0], &command);
    let waiting = harness::pair::start_server_in(&machines.process(0), waiting, port)?;
    let failed = machines.run(1, &daemons[1], &format!("{command} {}", IPV4[0])).run()?;
    ensure!(!failed.status.success(), "{failed}");
    drop(waiting);
    // The server is told the client's address first, and connects first.
    let says = format!(
        "a path MTU of 2048 is more than the machine's route to {} carries, which is 1024",
        IPV4[1]
    );
    let log = daemons[0].log();
    ensure!(log.contains(&says), "{log}");
    Ok(())
}
