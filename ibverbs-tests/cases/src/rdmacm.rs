//! Programs of rdma_cm: the distribution's librdmacm, which asks balboad by way of the provider.
//!
//! No kernel knows the cards' addresses. Programs that also use TCP run in a network namespace with a device
//! that has them.
//!
//! `udpong` is not here: datagrams of rsockets are not for RoCE, for their address handles have no global route.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use harness::cmtime::Cmtime;
use harness::namespace::Namespace;
use harness::pair::{
    Both, beside, both_say, count, listening, run_between, start_server_in, until_in_time,
    what_it_said,
};
use harness::process::{Finished, LIMIT, Running, Task};
use harness::runner::{Body, Case, Need};
use harness::setting::{Daemon, Setting};
use harness::table::table;
use nix::sys::signal::Signal;

use super::PERFTEST;

/// The distribution's programs of librdmacm.
pub(crate) const RDMACM_UTILS: Need = Need::Program("rping", "rdmacm-utils");
/// TCP that is measured.
pub(crate) const IPERF3: Need = Need::Program("iperf3", "iperf3");
/// libfabric over verbs.
pub(crate) const LIBFABRIC: Need = Need::Program("fi_pingpong", "libfabric-bin");
/// The program iperf, not iperf3: in the `select` of its server, librspreload 44 takes the descriptor behind an
/// accepted socket for the socket's.
const IPERF: Need = Need::Program("iperf", "iperf");
const QPERF: Need = Need::Program("qperf", "qperf");
pub(crate) const PYTHON: Need = Need::Program("python3", "python3");
const UNSHARE: Need = Need::Program("unshare", "util-linux");

/// The cards' addresses.
const SERVER: &str = "10.77.0.1";
const CLIENT: &str = "10.77.0.2";
/// Makes the calls of a program's that are of sockets be librdmacm's.
const RSPRELOAD: &str = "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so";

/// A program that both sides run.
struct Row {
    name: &'static str,
    need: Need,
    /// `SERVER` and `CLIENT` stand for the addresses of the cards.
    server: &'static str,
    client: &'static str,
    check: fn(&Both) -> Result<()>,
}

const ROWS: &[Row] = &[
    Row {
        name: "rping",
        need: RDMACM_UTILS,
        server: "rping -s -a SERVER -v -V -C 10 -S 4000",
        client: "rping -c -a SERVER -I CLIENT -v -V -C 10 -S 4000",
        check: pings,
    },
    Row {
        name: "rping/one card",
        need: RDMACM_UTILS,
        server: "rping -s -a SERVER -v -V -C 10",
        client: "rping -c -a SERVER -I SERVER -v -V -C 10",
        check: pings,
    },
    Row {
        name: "rping/any address",
        need: RDMACM_UTILS,
        server: "rping -s -v -V -C 10",
        client: "rping -c -a SERVER -v -V -C 10",
        check: pings,
    },
    Row {
        name: "rping/IPv6",
        need: RDMACM_UTILS,
        server: "rping -s -a 2001:db8::1 -v -V -C 10",
        client: "rping -c -a 2001:db8::1 -I 2001:db8::2 -v -V -C 10",
        check: pings,
    },
    Row {
        name: "rping/loopback address",
        need: RDMACM_UTILS,
        server: "rping -s -a 127.0.0.1 -v -V -C 10",
        client: "rping -c -a 127.0.0.1 -v -V -C 10",
        check: pings,
    },
    Row {
        name: "rping/loopback address of IPv6",
        need: RDMACM_UTILS,
        server: "rping -s -a ::1 -v -V -C 10",
        client: "rping -c -a ::1 -v -V -C 10",
        check: pings,
    },
    Row {
        name: "rping/own queue pair",
        need: RDMACM_UTILS,
        server: "rping -s -a SERVER -v -V -C 10 -q",
        client: "rping -c -a SERVER -I CLIENT -v -V -C 10 -q",
        check: pings,
    },
    Row {
        name: "ucmatose",
        need: RDMACM_UTILS,
        server: "ucmatose -b SERVER -c 3 -C 10 -S 5000",
        client: "ucmatose -s SERVER -b CLIENT -c 3 -C 10 -S 5000",
        check: status_0,
    },
    Row {
        name: "ucmatose/100 connections",
        need: RDMACM_UTILS,
        server: "ucmatose -b SERVER -c 100 -C 2",
        client: "ucmatose -s SERVER -b CLIENT -c 100 -C 2",
        check: status_0,
    },
    Row {
        name: "ucmatose/-m",
        need: RDMACM_UTILS,
        server: "ucmatose -b SERVER -c 4 -C 4 -m",
        client: "ucmatose -s SERVER -b CLIENT -c 4 -C 4 -m",
        check: status_0,
    },
    Row {
        name: "udaddy",
        need: RDMACM_UTILS,
        server: "udaddy -b SERVER -c 3 -C 10 -S 500",
        client: "udaddy -s SERVER -b CLIENT -c 3 -C 10 -S 500",
        check: status_0,
    },
    Row {
        name: "rdma_client",
        need: RDMACM_UTILS,
        server: "rdma_server -s SERVER",
        client: "rdma_client -s SERVER",
        check: ended_with_0,
    },
    Row {
        name: "rdma_xclient",
        need: RDMACM_UTILS,
        server: "rdma_xserver -c r",
        client: "rdma_xclient -c r -s SERVER",
        check: ended_with_0,
    },
    Row {
        name: "rstream",
        need: RDMACM_UTILS,
        server: "rstream -b SERVER -S 65536 -C 100 -T v",
        client: "rstream -s SERVER -b CLIENT -S 65536 -C 100 -T v",
        check: streams,
    },
    Row {
        name: "rstream/nonblocking",
        need: RDMACM_UTILS,
        server: "rstream -b SERVER -S 4096 -C 100 -T n",
        client: "rstream -s SERVER -S 4096 -C 100 -T n",
        check: streams,
    },
    Row {
        name: "rstream/rdma_resolve",
        need: RDMACM_UTILS,
        server: "rstream -b SERVER -S 4096 -C 100 -T r",
        client: "rstream -s SERVER -S 4096 -C 100 -T r",
        check: streams,
    },
    Row {
        name: "riostream",
        need: RDMACM_UTILS,
        server: "riostream -b SERVER -S 65536 -C 100 -T v",
        client: "riostream -s SERVER -S 65536 -C 100 -T v",
        check: streams,
    },
];

/// The tests of perftest with queue pairs of rdma_cm's.
const PERFTESTS: &[&str] = &[
    "ib_write_bw -R -s 65536 -n 40",
    "ib_read_bw -R -s 65536 -n 40",
    "ib_send_bw -R -s 65536 -n 40",
    "ib_atomic_bw -R -n 40",
    "ib_write_lat -R -n 40",
    "ib_read_lat -R -n 40",
    "ib_send_lat -R -n 40",
    "ib_send_bw -R -q 4 -n 40",
    "ib_send_bw -R -c UD -s 1024 -n 40",
    "ib_write_bw -z -n 40",
];

/// The tests of qperf with `-cm1`.
const QPERFS: &[&str] = &[
    "rc_bw",
    "rc_lat",
    "rc_rdma_write_bw",
    "rc_rdma_read_lat",
    "rc_compare_swap_mr",
    "rc_fetch_add_mr",
    "ver_rc_compare_swap",
    "ver_rc_fetch_add",
];

type Plain = fn(&Setting) -> Result<()>;

/// The family.
pub fn cases() -> Vec<Case> {
    let case = |name: &str, needs: &[Need], body: Body| {
        Case::new(format!("rdmacm/{name}"), needs, move |setting| body(setting))
    };
    let mut cases: Vec<Case> = Vec::new();
    for row in ROWS {
        cases.push(case(row.name, &[row.need], Box::new(|setting| pair(setting, row))));
    }
    for line in PERFTESTS {
        let body = |setting: &Setting| {
            let daemon = daemon(setting)?;
            perftest(&daemon, line)?;
            daemon.stop()
        };
        cases.push(case(line, &[PERFTEST], Box::new(body)));
    }
    for test in QPERFS {
        let body = move |setting: &Setting| qperf(setting, test);
        cases.push(case(&format!("qperf/{test}"), &[QPERF, UNSHARE], Box::new(body)));
    }
    let others: [(&str, &[Need], Plain); 13] = [
        ("queue pairs of the program's own", &[RDMACM_UTILS], own_queue_pairs),
        ("channel", &[RDMACM_UTILS, PYTHON], channel),
        ("a card is reset, and connects again", &[RDMACM_UTILS, PYTHON, PERFTEST], reset),
        ("rping/killed client", &[RDMACM_UTILS], killed_client),
        ("rping/killed balboad", &[RDMACM_UTILS], killed_balboad),
        ("rping/nobody listens", &[RDMACM_UTILS], nobody_listens),
        ("rping/nobody there", &[RDMACM_UTILS], nobody_there),
        ("rdma_xclient/XRC is refused", &[RDMACM_UTILS], no_xrc),
        ("cmtime", &[RDMACM_UTILS, UNSHARE], cmtime),
        ("mckey", &[RDMACM_UTILS], mckey),
        ("rcopy", &[RDMACM_UTILS], rcopy),
        ("fi_pingpong", &[LIBFABRIC, UNSHARE], fi_pingpong),
        ("librspreload", &[RDMACM_UTILS, IPERF], preloaded),
    ];
    for (name, needs, body) in others {
        cases.push(case(name, needs, Box::new(body)));
    }
    cases
}

/// balboad with two cards on one network, with an IPv6 address each.
fn daemon(setting: &Setting) -> Result<Daemon<'_>> {
    let daemon = setting.balboad("--soft 2")?;
    for card in [1, 2] {
        let words = format!("balboa{} add 2001:db8::{card}", card - 1);
        let balboa = setting.built("balboa").words("addr --state-dir").arg(daemon.state_dir());
        balboa.words(&words).run()?.success()?;
    }
    Ok(daemon)
}

fn said(line: &str) -> String {
    line.replace("SERVER", SERVER).replace("CLIENT", CLIENT)
}

/// Both to their end, which must be exit code 0, and afterwards nothing is left.
pub(crate) fn to_the_end(daemon: &Daemon<'_>, server: Running, client: Task) -> Result<Both> {
    let client = beside(&server, client)?;
    let server = server.wait().and_then(Finished::success);
    let server = server.with_context(|| format!("its client was fine: {client}"))?;
    nothing_left(daemon)?;
    Ok(Both { server, client })
}

/// Checks that the programs' objects have gone with them, or go.
pub(crate) fn nothing_left(daemon: &Daemon<'_>) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    for what in ["channels", "identifiers", "listeners", "ports", "joins"] {
        loop {
            let left = count(daemon, what)?;
            if left == 0 {
                break;
            }
            ensure!(Instant::now() < deadline, "{left} {what} are left: {}", daemon.status()?);
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    Ok(())
}

fn pair(setting: &Setting, row: &Row) -> Result<()> {
    let daemon = daemon(setting)?;
    let server = listening(&daemon, daemon.run(&said(row.server)), "listeners")?;
    let both = to_the_end(&daemon, server, daemon.run(&said(row.client)))?;
    (row.check)(&both)?;
    daemon.stop()
}

fn pings(both: &Both) -> Result<()> {
    both_say(both, "ping data: rdma-ping-9: ")
}

fn status_0(both: &Both) -> Result<()> {
    both_say(both, "return status 0")
}

fn ended_with_0(both: &Both) -> Result<()> {
    let silent = both.server.stderr.is_empty() && both.client.stderr.is_empty();
    ensure!(silent, "they complain: {} {}", both.server, both.client);
    Ok(())
}

fn streams(both: &Both) -> Result<()> {
    let rows = |side: &Finished| side.stdout.lines().filter(|line| line.contains("custom")).count();
    let rows = (rows(&both.server), rows(&both.client));
    ensure!(rows == (1, 1), "not one row of figures: {} {}", both.server, both.client);
    Ok(())
}

/// A pair of perftest's, with queue pairs of rdma_cm's.
pub(crate) fn perftest(daemon: &Daemon<'_>, line: &str) -> Result<()> {
    let side = |card: u32| daemon.run(line).words(&format!("-d balboa{card} -F"));
    let (server, client) = until_in_time(|| {
        nothing_left(daemon)?;
        let server = listening(daemon, side(0), "listeners")?;
        Ok((server, side(1).words(&said("--source_ip CLIENT SERVER")).run()?))
    })?;
    let client = client.success().with_context(|| what_it_said(&server))?;
    server.wait().and_then(Finished::success).context("its client was fine")?;
    let rows = table(&client)?.len();
    ensure!(rows == 1, "{rows} rows of figures, not 1: {client}");
    nothing_left(daemon)
}

fn qperf(setting: &Setting, test: &str) -> Result<()> {
    const PORT: u16 = 19765;
    let daemon = daemon(setting)?;
    let namespace = Namespace::new(setting, 2)?;
    let run = |line: &str| namespace.task(setting, &daemon.run(&said(line)));
    let server = start_server_in(&namespace.process(), run("qperf"), PORT)?;
    // Its server tells the port before it listens there (qperf 0.4.11, mended behind that by "Fix rdmacm race"), and refuses a
    // client that is faster.
    const ATTEMPTS: usize = 6;
    let measure = || beside(&server, run(&format!("qperf SERVER -cm1 -t 1 {test}")));
    let mut finished = measure();
    for _ in 1..ATTEMPTS {
        match &finished {
            Err(error) if format!("{error:#}").contains("Event rejected") => finished = measure(),
            _ => break,
        }
    }
    let finished = finished?;
    let value = finished.stdout.lines().any(|line| line.trim_start().starts_with(figure(test)));
    ensure!(value, "there is no figure: {finished}");
    drop(server);
    nothing_left(&daemon)?;
    daemon.stop()
}

/// The figure that qperf prints for a test.
fn figure(test: &str) -> &'static str {
    match test {
        _ if test.ends_with("_bw") => "bw",
        _ if test.ends_with("_lat") => "latency",
        _ => "msg_rate",
    }
}

fn fi_pingpong(setting: &Setting) -> Result<()> {
    let daemon = daemon(setting)?;
    let namespace = Namespace::new(setting, 2)?;
    let run = |line: &str| fi_pingpong_once(setting, &daemon, &namespace, line);
    run("fi_pingpong -p verbs -e msg -c -S 65536 -I 10")?;
    // With ofi_rxm the slower side may lose its last completion: it polls its completions and then its events
    // (rxm_ep_do_progress), and if the peer has left between the two it ends the queue pair, with its unread
    // completions (rxm_close_conn). On a busy machine it then waits for ever, or fails.
    const ATTEMPTS: usize = 4;
    let rxm = "fi_pingpong -p verbs;ofi_rxm -e rdm -c -S 65536 -I 10";
    let mut outcome = run(rxm);
    for _ in 1..ATTEMPTS {
        if outcome.is_ok() {
            break;
        }
        nothing_left(&daemon)?;
        outcome = run(rxm);
    }
    outcome?;
    daemon.stop()
}

fn fi_pingpong_once(
    setting: &Setting,
    daemon: &Daemon<'_>,
    namespace: &Namespace,
    line: &str,
) -> Result<()> {
    /// The port at which both sides agree on the run.
    const PORT: u16 = 47592;
    /// Dozens of times its duration on an idle machine.
    const LIMIT: Duration = Duration::from_secs(60);
    let run = |line: &str| namespace.task(setting, &daemon.run(&said(line))).limit(LIMIT);
    let server = start_server_in(&namespace.process(), run(line), PORT)?;
    let both = to_the_end(daemon, server, run(&format!("{line} SERVER")))?;
    both_say(&both, "64k")
}

fn preloaded(setting: &Setting) -> Result<()> {
    let daemon = daemon(setting)?;
    let run = |line: &str| daemon.run(&said(&format!("env LD_PRELOAD={RSPRELOAD} {line}")));
    let server = listening(&daemon, run("iperf -s -P 1 -B SERVER"), "listeners")?;
    let both = to_the_end(&daemon, server, run("iperf -c SERVER -B CLIENT -n 4M"))?;
    both_say(&both, "4.00 MBytes")?;
    daemon.stop()
}

/// A channel is used in every way that a program may use the kernel's file.
fn channel(setting: &Setting) -> Result<()> {
    let daemon = daemon(setting)?;
    let program = include_str!("../../scripts/channel.py");
    daemon.run("python3 -c").arg(program).run()?.success()?.says("as the kernel's")?;
    nothing_left(&daemon)?;
    daemon.stop()
}

/// A program with a connection of its own, in one of its ways, and the file that it waits for.
fn connection<'a>(daemon: &Daemon<'a>, mode: &str, go: &Path) -> Result<Running> {
    let program = daemon.run("python3 -c").arg(include_str!("../../scripts/connection.py"));
    let mut running = program.words(&format!("{mode} {SERVER} 7474")).arg(go).start()?;
    running.wait_until("it was connected", |it| it.output().contains("connected"))?;
    Ok(running)
}

/// A program that names a queue pair of another program, found in the status, does not end it.
pub(crate) fn name_anothers(setting: &Setting) -> Result<()> {
    let daemon = daemon(setting)?;
    let go = setting.directory().join("go");
    let victim = connection(&daemon, "keep", &go)?;
    let status = daemon.status()?;
    let clients = status["clients"].as_array().context("no clients")?;
    let qps = clients.iter().flat_map(|it| it["queue_pairs"].as_array().into_iter().flatten());
    let qpns: Vec<_> = qps.filter_map(|qp| Some(qp["qpn"].as_u64()?.to_string())).collect();
    ensure!(qpns.len() == 2, "not its two queue pairs: {status}");
    let program = daemon.run("python3 -c").arg(include_str!("../../scripts/connection.py"));
    let words = format!("name {SERVER} 7474 {} 0 1 16777215", qpns.join(" "));
    program.words(&words).run()?.success()?.says("refused")?;
    fs::write(&go, "")?;
    victim.wait()?.success()?.says("its own end")?;
    nothing_left(&daemon)?;
    daemon.stop()
}

/// A card that is reset is other programs' at once, though an inattentive program keeps objects of it; and that program
/// connects by it again, once it looks, in the same process.
fn reset(setting: &Setting) -> Result<()> {
    let daemon = daemon(setting)?;
    let go = setting.directory().join("go");
    let program = connection(&daemon, "lose", &go)?;
    for _ in 0..2 {
        let balboa = setting.built("balboa").words("reset balboa0 --yes --state-dir");
        let told = balboa.arg(daemon.state_dir()).run()?.success()?;
        told.says("balboa0 was reset; 1 programs still have the former card open")?;
        run_between((&daemon, 0), (&daemon, 1), "ib_write_bw -F -x 1 -n 100")?;
    }
    fs::write(&go, "")?;
    program.wait()?.success()?.says("connected again")?;
    nothing_left(&daemon)?;
    let status = daemon.status()?;
    ensure!(status["clients"].as_array().is_some_and(|it| it.len() <= 1), "{status}");
    daemon.stop()
}

/// A program that makes its queue pairs and brings them up itself, has messages on all of them, and parts.
fn own_queue_pairs(setting: &Setting) -> Result<()> {
    let daemon = daemon(setting)?;
    let program = daemon.run("").arg(setting.bin.join("verbs-data"));
    let finished = program.words("many --pairs 100 --managed 7471").run()?.success()?;
    finished.says("200 messages arrived on 100 connections")?;
    nothing_left(&daemon)?;
    daemon.stop()
}

fn cmtime(setting: &Setting) -> Result<()> {
    let daemon = daemon(setting)?;
    let printed = Cmtime::new(setting, &daemon)?.run(200)?;
    ensure!(printed.client.contains("connect"), "there are no figures: {printed:?}");
    nothing_left(&daemon)?;
    daemon.stop()
}

fn mckey(setting: &Setting) -> Result<()> {
    let daemon = daemon(setting)?;
    let receiver = daemon.run(&said("mckey -m 239.1.2.3 -b SERVER -C 10 -S 1000"));
    let receiver = listening(&daemon, receiver, "joins")?;
    let sender = daemon.run(&said("mckey -m 239.1.2.3 -s -b CLIENT -C 10 -S 1000"));
    let both = to_the_end(&daemon, receiver, sender)?;
    both_say(&both, "data transfers complete")?;
    daemon.stop()
}

fn rcopy(setting: &Setting) -> Result<()> {
    let daemon = daemon(setting)?;
    let bytes: Vec<u8> = (0..300_001u32).map(|at| (at % 251) as u8).collect();
    let [from, to] = ["from", "to"].map(|name| setting.directory().join(name));
    fs::write(&from, &bytes)?;
    // It serves until it is killed.
    let server = listening(&daemon, daemon.run("rcopy"), "listeners")?;
    let line = format!("rcopy {} {SERVER}:{}", from.display(), to.display());
    beside(&server, daemon.run(&line))?;
    ensure!(fs::read(&to)? == bytes, "the copy is another file");
    drop(server);
    nothing_left(&daemon)?;
    daemon.stop()
}

/// A client that is killed in the middle leaves nothing, and its server ends: by the event, or by a request to
/// memory that is gone, whichever is first.
fn killed_client(setting: &Setting) -> Result<()> {
    let daemon = daemon(setting)?;
    let server = listening(&daemon, daemon.run(&said("rping -s -a SERVER -v")), "listeners")?;
    let mut client = daemon.run(&said("rping -c -a SERVER -I CLIENT -v")).start()?;
    client.wait_until("it pinged", |it| it.output().contains("rdma-ping-9"))?;
    client.signal(Signal::SIGKILL)?;
    client.wait()?;
    server.wait()?;
    nothing_left(&daemon)?;
    let status = daemon.status()?;
    let asked = &status["connections"]["counters"]["sent_dreq"];
    ensure!(asked.as_u64().is_some_and(|count| count > 0), "nobody was told: {status}");
    daemon.stop()
}

/// balboad's death is told to both sides, which end.
fn killed_balboad(setting: &Setting) -> Result<()> {
    let daemon = daemon(setting)?;
    let server = listening(&daemon, daemon.run(&said("rping -s -a SERVER -v")), "listeners")?;
    let mut client = daemon.run(&said("rping -c -a SERVER -I CLIENT -v")).start()?;
    client.wait_until("it pinged", |it| it.output().contains("rdma-ping-9"))?;
    daemon.kill()?;
    for side in [client, server] {
        let finished = side.wait()?;
        ensure!(!finished.status.success(), "it ended well: {finished}");
    }
    Ok(())
}

fn nobody_listens(setting: &Setting) -> Result<()> {
    let daemon = daemon(setting)?;
    let finished = daemon.run(&said("rping -c -a SERVER -I CLIENT")).run()?;
    let told = finished.stderr.contains("RDMA_CM_EVENT_REJECTED")
        || finished.stdout.contains("RDMA_CM_EVENT_REJECTED");
    ensure!(!finished.status.success() && told, "it was not refused: {finished}");
    nothing_left(&daemon)?;
    daemon.stop()
}

/// librdmacm connects queue pairs of XRC by addresses of InfiniBand's own alone, which its probe has seen refused.
fn no_xrc(setting: &Setting) -> Result<()> {
    let daemon = daemon(setting)?;
    for line in ["rdma_xserver -c x", "rdma_xclient -c x -s SERVER"] {
        let finished = daemon.run(&said(line)).run()?;
        let is_told = finished.stderr.contains("rdma_create_ep: Protocol not supported");
        ensure!(!finished.status.success() && is_told, "it is not refused: {finished}");
    }
    nothing_left(&daemon)?;
    daemon.stop()
}

/// A connection to an address that no host has fails within the program's time, 2 s, not when the request is given up.
fn nobody_there(setting: &Setting) -> Result<()> {
    let daemon = daemon(setting)?;
    let finished = daemon.run(&said("rping -c -a 10.77.0.99 -I CLIENT")).run()?;
    let told = "RDMA_CM_EVENT_ADDR_ERROR, error -110";
    let is_told = finished.stderr.contains(told) || finished.stdout.contains(told);
    ensure!(!finished.status.success() && is_told, "it is not told of that: {finished}");
    nothing_left(&daemon)?;
    daemon.stop()
}
