//! Applications as on two hosts: each on a machine of its own, found by the machine's address, and started by the launchers
//! that they come with.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result};
use harness::machines::{IPV4, Machines, WIRE};
use harness::pair::{Both, REMOTE_SHELL, free_port, run_pair_in, start_server_in};
use harness::process::Task;
use harness::runner::{Case, Need};
use harness::setting::{Daemon, Setting};
use harness::suites::MPI;

use super::ucx;
use super::udp::SMALL;

const UNSHARE: Need = Need::Program("unshare", "util-linux");
const IP: Need = Need::Program("ip", "iproute2");

/// How long a program may take.
const LIMIT: Duration = Duration::from_secs(180);
/// The same of a launcher: six busy programs on each of two cores, and more, made it two and a half minutes.
const LAUNCH_LIMIT: Duration = Duration::from_secs(900);

/// A launcher: its name, its compiler, that one's package, and its options for hosts, where `SHELL` stands for the
/// program in place of ssh, and `FIRST` and `SECOND` for the machines.
const LAUNCHERS: [(&str, &str, &str, &str); 2] = [
    (
        "mpirun.openmpi",
        "mpicc.openmpi",
        "libopenmpi-dev",
        "--leave-session-attached --mca plm_rsh_agent SHELL --mca plm_rsh_no_tree_spawn 1 \
         --mca oob_tcp_if_include wire --mca pml ucx --mca osc ucx --host FIRST,SECOND -np 2",
    ),
    (
        "mpirun.mpich",
        "mpicc.mpich",
        "libmpich-dev",
        "-launcher rsh -launcher-exec SHELL -localhost FIRST -hosts FIRST,SECOND -n 2",
    ),
];

/// The family: all cases once more with the room of an older kernel.
pub fn cases() -> Vec<Case> {
    [("hosts", ""), ("hosts/208 KiB", SMALL)].into_iter().flat_map(of).collect()
}

/// Its cases with cards that have more options, and the beginning of their names.
fn of((family, more): (&'static str, &'static str)) -> Vec<Case> {
    let body = move |setting: &Setting| nccl(setting, more);
    let mut cases = vec![Case::new(format!("{family}/nccl"), &[UNSHARE, IP], body)];
    for transport in ["rc_verbs", "ud_verbs"] {
        for test in ["tag_lat -s 8 -n 500", "tag_bw -s 1048576 -n 20"] {
            let name = format!("{family}/ucx/{transport}/{test}");
            let body = move |setting: &Setting| ucx_perftest(setting, transport, test, more);
            cases.push(Case::new(name, &[ucx::UCX, UNSHARE, IP], body));
        }
    }
    for (launcher, compiler, package, hosts) in LAUNCHERS {
        let needs = [Need::Program(compiler, package), UNSHARE, IP];
        let body = move |setting: &Setting| mpi(setting, launcher, compiler, hosts, more);
        // Its ranks look for messages without pause, so that each of some thousand exchanges waits until all other busy
        // programs have had their turn: beside another such case, and more, it takes minutes, and alone two seconds.
        cases.push(Case::new(format!("{family}/{launcher}"), &needs, body).alone());
    }
    cases
}

/// Two machines with a card each that has the machine's addresses.
fn with_cards<'a>(machines: &Machines<'a>, more: &str) -> Result<[Daemon<'a>; 2]> {
    machines.balboads(&format!("--soft 1 --port udp:{WIRE} {more}"))
}

fn stop(daemons: [Daemon<'_>; 2]) -> Result<()> {
    daemons.into_iter().try_for_each(Daemon::stop)
}

fn ucx_perftest(setting: &Setting, transport: &str, test: &str, more: &str) -> Result<()> {
    let machines = Machines::new(setting, 1500)?;
    let daemons = with_cards(&machines, more)?;
    let port = free_port()?;
    let side = |number: usize, words: &str| -> Task {
        let task = daemons[number].run(&format!("ucx_perftest -p {port} {words}"));
        let task = machines.task(number, &task).at_terminal().limit(LIMIT);
        task.env("UCX_TLS", format!("{transport},ud_verbs:aux")).env("UCX_NET_DEVICES", "balboa0:1")
    };
    let client = side(1, &format!("{} -t {test} -f -w 50", IPV4[0]));
    let both = run_pair_in(&machines.process(0), side(0, ""), client, port)?;
    ucx::has_figures(&both.client)?;
    stop(daemons)
}

fn nccl(setting: &Setting, more: &str) -> Result<()> {
    let machines = Machines::new(setting, 9000)?;
    let daemons = with_cards(&machines, more)?;
    let port = free_port()?;
    let side = |number: usize| {
        let words = format!("nccl -d balboa0 -p {port} --mib 8");
        let task = daemons[number].run("").arg(setting.bin.join("verbs-data")).words(&words);
        machines.task(number, &task).limit(LIMIT)
    };
    let client = side(1).arg(IPV4[0]);
    let Both { server, client } = run_pair_in(&machines.process(0), side(0), client, port)?;
    for side in [server, client] {
        side.says(" messages arrived as NCCL's do")?;
    }
    stop(daemons)
}

/// Rings, storms, collectives and windows of two ranks on two hosts, and each byte looked at.
fn mpi(setting: &Setting, launcher: &str, compiler: &str, hosts: &str, more: &str) -> Result<()> {
    let (file, text) = MPI;
    fs::write(setting.directory().join(file), text)?;
    let compile = setting.task(compiler).words("-O2 -o mpi").arg(file);
    compile.directory(setting.directory()).limit(LIMIT).run()?.success()?;
    let machines = Machines::new(setting, 1500)?;
    let daemons = with_cards(&machines, more)?;
    let shell = setting.bin.join("remote-shell");
    let serve = daemons[1].run("").arg(&shell).arg("serve");
    let serve = machines.task(1, &serve).limit(LAUNCH_LIMIT);
    let server = start_server_in(&machines.process(1), serve, REMOTE_SHELL)?;
    let hosts = hosts
        .replace("SHELL", &shell.display().to_string())
        .replace("FIRST", IPV4[0])
        .replace("SECOND", IPV4[1]);
    let ucx = "UCX_TLS=rc,self UCX_NET_DEVICES=balboa0:1 UCX_RC_MAX_RD_ATOMIC=16";
    let program = setting.directory().join("mpi");
    let launch = daemons[0].run(&format!("{launcher} {hosts} env {ucx}")).arg(program);
    let told = machines.task(0, &launch.words("check 2")).limit(LAUNCH_LIMIT).run()?;
    let told = told.success().with_context(|| {
        format!("the other machine's: {}", harness::pair::what_it_said(&server))
    })?;
    told.says("2 ranks")?.says(", 0 wrong")?;
    server.wait()?.success()?;
    stop(daemons)
}
