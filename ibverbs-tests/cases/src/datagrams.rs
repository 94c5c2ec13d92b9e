//! Datagrams through the tunnel between cards with the published image, and the programs that connect by them: UCX, and MPI
//! over it.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::pair::{Both, free_port, run_between, run_pair, start_server};
use harness::process::last_lines;
use harness::runner::{Case, Need};
use harness::setting::{Daemon, Setting};
use harness::suites::MPI;
use nix::sys::signal::Signal;

use super::capture::TSHARK;
use super::perftest::STEADY_CLOCK;
use super::stock::{HARM, TUNNEL, are_zero, counter, dissect, peers};
use super::{IBVERBS_UTILS, PERFTEST, ucx};

/// How long a program may take.
const LIMIT: Duration = Duration::from_secs(300);
/// Bytes that each card's posts carried at least, in slots of 4096.
const MPI_SLOTS: u64 = 2000;

/// How many lines of balboad's are shown where MPI fails.
const LOG_LINES: usize = 20;

/// The family.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for command in [
        "ib_send_bw -c UD -s 4096 -n 400",
        "ib_send_bw -c UD -s 1 -n 400",
        "ib_send_bw -c UD -I 64 -s 64 -n 400 -l 8",
        "ib_send_bw -c UD -q 4 -n 100",
        "ib_send_bw -c UD --use-srq -n 400",
        "ib_send_lat -c UD -n 500",
    ] {
        let name = format!("stock/tunnel/{command}");
        cases.push(Case::new(name, &[PERFTEST], move |setting| {
            between(setting, 1, &format!("{command} -x 1 {STEADY_CLOCK}"))
        }));
    }
    for options in ["-g 1", "-g 1 -e", "-g 1 -s 4096"] {
        let name = format!("stock/tunnel/ibv_ud_pingpong {options}");
        let command = format!("ibv_ud_pingpong {options}");
        cases.push(Case::new(name, &[IBVERBS_UTILS], move |setting| between(setting, 1, &command)));
    }
    cases.push(Case::new("stock/tunnel/one card/ibv_ud_pingpong -g 1", &[IBVERBS_UTILS], |it| {
        between(it, 0, "ibv_ud_pingpong -g 1")
    }));
    cases.push(Case::new("stock/tunnel/verbs-data apart --service ud", &[], apart));
    cases.push(Case::new(
        "stock/tunnel/datagrams to another balboad are refused",
        &[IBVERBS_UTILS],
        elsewhere,
    ));
    for transport in ["rc_verbs", "ud_verbs"] {
        for test in ["tag_lat -s 8 -n 500", "tag_bw -s 4096 -n 500", "tag_bw -s 1048576 -n 10"] {
            let name = format!("stock/tunnel/ucx/{transport}/{test}");
            cases.push(Case::new(name, &[ucx::UCX], move |it| ucx_perftest(it, transport, test)));
        }
    }
    for (compiler, launcher, package) in [
        ("mpicc.openmpi", "mpirun.openmpi", "libopenmpi-dev"),
        ("mpicc.mpich", "mpirun.mpich", "libmpich-dev"),
    ] {
        for transport in ["rc", "ud"] {
            let name = format!("stock/tunnel/{launcher} over {transport}_verbs");
            let needs = [Need::Program(compiler, package)];
            cases.push(Case::new(name, &needs, move |it| mpi(it, compiler, launcher, transport)));
        }
    }
    cases.push(Case::new(
        "stock/tunnel/datagrams as tshark sees them",
        &[IBVERBS_UTILS, TSHARK],
        only_writes,
    ));
    cases.push(Case::new("stock/tunnel/datagrams behind a reset", &[IBVERBS_UTILS], behind_reset));
    cases
}

/// No card was harmed, and datagrams went from card to card.
fn exchanged(daemon: &Daemon<'_>) -> Result<()> {
    are_zero(daemon, &HARM)?;
    let status = daemon.status()?;
    for card in [0, 1] {
        for name in ["tunnel_datagrams_received", "tunnel_slots_sent", "engine_posts"] {
            ensure!(counter(&status, card, name) > 0, "{name} of card {card} is 0: {status:#}");
        }
    }
    Ok(())
}

/// A program between the first card and another one, or itself.
fn between(setting: &Setting, client: u32, command: &str) -> Result<()> {
    let daemon = setting.balboad(TUNNEL)?;
    run_between((&daemon, 0), (&daemon, client), command)?;
    let status = daemon.status()?;
    ensure!(counter(&status, 0, "tunnel_datagrams_received") > 0, "no datagrams: {status:#}");
    let posts = counter(&status, 0, "engine_posts");
    ensure!((posts > 0) == (client != 0), "{posts} posts");
    are_zero(&daemon, &HARM)?;
    daemon.stop()
}

/// Each side in a program of its own, and each byte looked at.
fn apart(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad(TUNNEL)?;
    let program = setting.bin.join("verbs-data");
    let command = format!("{} apart --service ud --gid 1", program.display());
    let Both { server, client } = run_between((&daemon, 0), (&daemon, 1), &command)?;
    for side in [server, client] {
        side.says("64 messages arrived as they should")?;
    }
    exchanged(&daemon)?;
    daemon.stop()
}

/// An address handle to a card of another balboad is refused, in its place, and by a line.
fn elsewhere(setting: &Setting) -> Result<()> {
    let arguments = peers(setting, "peers", "5a", 20_000)?;
    let [one, other] = setting.cabled_balboads_with(&arguments)?;
    let port = free_port()?;
    let side = |daemon: &Daemon<'_>| {
        daemon.run("ibv_ud_pingpong -g 1").words(&format!("-d balboa0 -p {port}"))
    };
    let server = start_server(side(&one), port)?;
    let client = side(&other).arg("127.0.0.1").run()?;
    ensure!(!client.status.success(), "it went well");
    server.signal(Signal::SIGKILL)?;
    server.wait()?;
    // The first one is told of the other one's address.
    let log = one.log();
    ensure!(log.contains("datagrams go through the tunnel"), "no line says why: {log}");
    for daemon in [one, other] {
        ensure!(counter(&daemon.status()?, 0, "stock_reception_stands") == 0, "a card stands");
        daemon.stop()?;
    }
    Ok(())
}

fn ucx_perftest(setting: &Setting, transport: &str, test: &str) -> Result<()> {
    let daemon = setting.balboad(TUNNEL)?;
    let port = free_port()?;
    let side = |card: u32| ucx::perftest(&daemon, transport, card, port).limit(LIMIT);
    let client = side(1).arg("127.0.0.1").arg("-t").words(test).args(["-f", "-w", "50"]);
    let client = run_pair(side(0), client, port)?.client;
    ucx::has_figures(&client)?;
    exchanged(&daemon)?;
    daemon.stop()
}

/// Rings, storms, collectives and windows of two ranks, of a card each, and each byte looked at.
fn mpi(setting: &Setting, compiler: &str, launcher: &str, transport: &str) -> Result<()> {
    let (file, text) = MPI;
    fs::write(setting.directory().join(file), text)?;
    let compile = setting.task(compiler).words("-O2 -o mpi").arg(file);
    compile.directory(setting.directory()).limit(LIMIT).run()?.success()?;
    let daemon = setting.balboad(TUNNEL)?;
    let (how, rank) = match launcher {
        "mpirun.mpich" => ("-n 2", "PMI_RANK"),
        _ => ("--oversubscribe -np 2", "OMPI_COMM_WORLD_RANK"),
    };
    let each = format!("UCX_NET_DEVICES=balboa${rank}:1 exec ./mpi check 4");
    let task = daemon.run(&format!("{launcher} {how} sh -c")).arg(each);
    let task = task.directory(setting.directory()).limit(LIMIT);
    let task = task.env("UCX_TLS", format!("{transport},self")).env("MPIR_CVAR_NOLOCAL", "1");
    let task = task.env("OMPI_MCA_pml", "ucx").env("OMPI_MCA_osc", "ucx");
    let told = task.run()?.success().with_context(|| {
        let log = daemon.log();
        format!("--- balboad said at the end\n{}", last_lines(&log, LOG_LINES).join("\n"))
    })?;
    told.says("2 ranks")?.says(", 0 wrong")?;
    exchanged(&daemon)?;
    let status = daemon.status()?;
    for card in [0, 1] {
        let posts = counter(&status, card, "engine_posts");
        // Long messages take none.
        let without = counter(&status, card, "tunnel_granted_bytes_sent") / 4096;
        let slots = posts + without;
        ensure!(slots > MPI_SLOTS, "card {card} has moved {slots} slots, or as much as these have");
    }
    daemon.stop()
}

/// Nothing but WRITEs of one packet and their acknowledgements goes over the link.
fn only_writes(setting: &Setting) -> Result<()> {
    let file = setting.directory().join("frames.pcapng");
    let daemon = setting.balboad(&format!("{TUNNEL} --pcap {}", file.display()))?;
    run_between((&daemon, 0), (&daemon, 1), "ibv_ud_pingpong -g 1 -s 4096 -n 50")?;
    exchanged(&daemon)?;
    daemon.stop()?;
    let seen = dissect(setting, &file)?;
    ensure!(seen == [0x0a, 0x11].into(), "{seen:x?}");
    Ok(())
}

/// A card that was reset, and has forgotten the state of datagrams to it, gets them again, and harms no other.
fn behind_reset(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad(TUNNEL)?;
    for card in [1, 0, 1] {
        run_between((&daemon, 0), (&daemon, 1), "ibv_ud_pingpong -g 1 -n 100")?;
        let task = setting.built("balboa").words(&format!("reset balboa{card} --yes"));
        task.arg("--state-dir").arg(daemon.state_dir()).run()?.success()?;
    }
    run_between((&daemon, 1), (&daemon, 0), "ibv_ud_pingpong -g 1 -n 100")?;
    exchanged(&daemon)?;
    are_zero(&daemon, &["engine_wants_reset"])?;
    daemon.stop()
}
