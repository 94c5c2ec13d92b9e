//! Programs' questions to the kernel about devices: RDMA netlink, which `balboa run` answers.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use harness::process::{self, LIMIT, Running};
use harness::runner::{Case, Need};
use harness::setting::Setting;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::IBVERBS_UTILS;

/// The program that shows RDMA devices.
const RDMA: Need = Need::Program("rdma", "iproute2");
const PYTHON: Need = Need::Program("python3", "python3");
const RDMACM: Need = Need::Library("librdmacm.so.1", "librdmacm1");

/// The family.
pub fn cases() -> Vec<Case> {
    let case = |name: &str, needs: &[Need], body: fn(&Setting) -> Result<()>| {
        Case::new(format!("netlink/{name}"), needs, body)
    };
    vec![
        case("the cards are shown", &[RDMA], shown),
        case("the cards are shown", &[RDMA], shown).as_root(),
        case("many ask at once", &[RDMA], at_once),
        case("nothing is kept of what has ended", &[RDMA], nothing_kept),
        case("without its supervisor a program is refused", &[RDMA, IBVERBS_UTILS], alone),
        case("within balboa run it is refused", &[RDMA, IBVERBS_UTILS], nested),
        case("forks need no care", &[PYTHON], forks),
        case("a librdmacm that is loaded later is found", &[PYTHON, RDMACM], later),
    ]
}

/// The answers equal sysfs, and commands that change devices are refused.
fn shown(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 16")?;
    let json = |words: &str| -> Result<Vec<Value>> {
        let finished = daemon.run(words).run()?.success()?;
        serde_json::from_str(&finished.stdout).with_context(|| format!("no JSON: {finished}"))
    };
    let (devices, links) = (json("rdma -j dev")?, json("rdma -j link")?);
    ensure!(devices.len() == 16 && links.len() == 16, "{devices:?} {links:?}");
    for (card, (device, link)) in devices.iter().zip(&links).enumerate() {
        let name = format!("balboa{card}");
        for told in [device, link] {
            ensure!(told["ifindex"] == card && told["ifname"] == *name, "{told}");
        }
        ensure!(link["state"] == "ACTIVE" && link["physical_state"] == "LINK_UP", "{link}");
    }
    let guid = daemon.run("cat /sys/class/infiniband/balboa7/node_guid").run()?.success()?;
    ensure!(devices[7]["node_guid"] == guid.stdout.trim(), "{guid} {}", devices[7]);
    daemon
        .run("rdma -d dev show balboa3")
        .run()?
        .success()?
        .says("3: balboa3: node_type ca fw ")?;
    let one = daemon.run("rdma link show balboa1/1").run()?.success()?;
    ensure!(one.stdout.trim() == "link balboa1/1 state ACTIVE physical_state LINK_UP", "{one}");
    daemon.run("rdma system").run()?.success()?.says("netns shared copy-on-fork on")?;
    let told = daemon.run("rdma statistic show link balboa0/1").run()?.success()?;
    told.says("link balboa0/1 ")?.says(" rdma_sends 0 ")?;
    for words in ["resource", "resource show qp", "statistic qp"] {
        let refused = daemon.run(&format!("rdma {words}")).run()?.code(1)?;
        refused.complains("Operation not supported")?;
    }
    for words in ["dev set balboa0 name mine", "system set netns exclusive", "link delete balboa0"]
    {
        let refused = daemon.run(&format!("rdma {words}")).run()?.code(1)?;
        refused.complains("Operation not permitted")?;
    }
    daemon.stop()
}

/// Forty children of one program, each with sockets of its own.
fn at_once(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 2")?;
    let script = "for each in $(seq 40); do rdma link & done; wait";
    let finished = daemon.run("sh -c").arg(script).run()?.success()?;
    for card in ["balboa0", "balboa1"] {
        let line = format!("link {card}/1 state ACTIVE physical_state LINK_UP");
        let told = finished.stdout.lines().filter(|it| it.trim() == line).count();
        ensure!(told == 40, "{told} of 40 saw {card}: {finished}");
    }
    daemon.stop()
}

/// The supervisor of a program that runs: it has the same namespace of mounts.
fn supervisor(program: &Running) -> Result<i32> {
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt"));
    let own = namespace(&program.pid().to_string())?;
    let is_it = |pid: &String| {
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.contains("answer-netlink") && namespace(pid).is_ok_and(|it| it == own)
    };
    let mut names =
        fs::read_dir("/proc")?.flatten().filter_map(|it| it.file_name().into_string().ok());
    names.find(is_it).context("the program has no supervisor")?.parse().context("a process")
}

/// Waits until a process has ended.
fn ends(pid: i32) -> Result<()> {
    let begun = Instant::now();
    while !matches!(process::state(pid), None | Some('Z')) {
        ensure!(begun.elapsed() < LIMIT, "process {pid} does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// A program that runs one step, waits for a file, and runs another step.
fn in_two(setting: &Setting, state: &Path, first: &str, go: &Path, then: &str) -> Result<Running> {
    let script = format!("{first}; echo there; until [ -e \"$0\" ]; do sleep 0.05; done; {then}");
    let task = setting.balboa_run(state).words("sh -c").arg(script).arg(go);
    let mut program = task.start()?;
    program.wait_until("it was there", |it| it.output().contains("there\n"))?;
    Ok(program)
}

/// A program that asks again and again; its supervisor has no more descriptors than before, and ends with it.
fn nothing_kept(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 1")?;
    let go = setting.directory().join("go");
    let first = "for each in $(seq 100); do rdma dev >&2 || exit 1; done";
    let program = in_two(setting, daemon.state_dir(), first, &go, "true")?;
    let supervisor = supervisor(&program)?;
    let open = fs::read_dir(format!("/proc/{supervisor}/fd"))?.count();
    // Its standard three, and the listener.
    ensure!(open <= 5, "{open} descriptors are open");
    ensure!(program.errors().lines().count() == 100, "{}", program.errors());
    fs::write(&go, "")?;
    program.wait()?.success()?;
    ends(supervisor)?;
    daemon.stop()
}

/// The supervisor is killed: sockets fail, which libibverbs takes for a kernel without RDMA netlink.
fn alone(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 1")?;
    let go = setting.directory().join("go");
    let then = "rdma dev; echo $?; ibv_devices";
    let program = in_two(setting, daemon.state_dir(), "rdma dev", &go, then)?;
    let supervisor = supervisor(&program)?;
    kill(Pid::from_raw(supervisor), Signal::SIGKILL)?;
    ends(supervisor)?;
    fs::write(&go, "")?;
    let finished = program.wait()?.success()?.complains("Failed to open NETLINK_RDMA socket")?;
    let (before, after) = finished.stdout.split_once("there\n").context("two parts")?;
    ensure!(before.starts_with("0: balboa0: "), "{finished}");
    ensure!(after.starts_with("1\n") && after.contains("balboa0"), "{finished}");
    daemon.stop()
}

/// A program has one supervisor at most: within another `balboa run` its sockets fail as without.
fn nested(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 1")?;
    let inner = |words: &str| daemon.run("").arg(setting.bin.join("balboa")).words(words).run();
    inner("run -- rdma dev")?.code(1)?.complains("Failed to open NETLINK_RDMA socket")?;
    inner("run -- ibv_devices")?.success()?.says("balboa0")?;
    daemon.stop()
}

/// Asks libibverbs whether forks need care, has it take care, and registers a page in the middle of 16. Prints whether
/// they were one mapping still, and the release that the library's file is named for.
const FORKS: &str = r#"
import ctypes, mmap
verbs, pointer = ctypes.CDLL("libibverbs.so.1"), ctypes.c_void_p
def call(name, *arguments):
    function = getattr(verbs, name)
    function.restype = pointer
    return pointer(function(*arguments))
print(verbs.ibv_is_fork_initialized(), verbs.ibv_fork_init(), verbs.ibv_is_fork_initialized())
device = pointer.from_address(call("ibv_get_device_list", None).value)
domain = call("ibv_alloc_pd", call("ibv_open_device", device))
memory = mmap.mmap(-1, 16 * 4096)
begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
region = call("ibv_reg_mr", domain, pointer(begin + 4096), ctypes.c_size_t(4096), 1)
maps = open("/proc/self/maps").read().splitlines()
starts = [int(line.split("-")[0], 16) for line in maps]
inside = [at for at in starts if begin < at < begin + 16 * 4096]
print("registered" if region.value else "refused", "whole" if not inside else "split")
print(next(line for line in maps if "/libibverbs.so.1." in line).split("/libibverbs.so.1.")[1].split(".")[1])
"#;

/// Since release 52 libibverbs believes the answer that forks need no care, and splits no mappings.
fn forks(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 1")?;
    let finished = daemon.run("python3 -c").arg(FORKS).run()?.success()?;
    let release: u32 = finished.stdout.lines().nth(2).context("no release")?.parse()?;
    let mapping = if release < 52 { "split" } else { "whole" };
    let told = format!("2 0 2\nregistered {mapping}\n{release}\n");
    ensure!(finished.stdout == told, "{finished}");
    daemon.stop()
}

/// Where netlink lists devices libibverbs reads no directory by which the provider would notice.
fn later(setting: &Setting) -> Result<()> {
    const SCRIPT: &str = r#"
import ctypes
for name in ("libibverbs.so.1", "librdmacm.so.1"):
    library = ctypes.CDLL(name)
    call = library["ibv_get_device_list" if "verbs" in name else "rdma_create_event_channel"]
    call.restype = ctypes.c_void_p
    print("nothing" if call(None) is None else name)
"#;
    let daemon = setting.balboad("--soft 1")?;
    let finished = daemon.run("python3 -c").arg(SCRIPT).run()?.success()?;
    ensure!(finished.stdout == "libibverbs.so.1\nlibrdmacm.so.1\n", "{finished}");
    daemon.stop()
}
