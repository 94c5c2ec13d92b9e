//! A balboad that `balboa run --start` starts, and that ends with its last program.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use harness::pair::{free_port, start_server};
use harness::process::{self, LIMIT, Running, Task};
use harness::runner::{Case, Need};
use harness::setting::Setting;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{IBVERBS_UTILS, PERFTEST};

/// A shell that can close descriptors of more than one digit.
const BASH: Need = Need::Program("bash", "bash");
/// Pins a program to a processor.
const TASKSET: Need = Need::Program("taskset", "util-linux");
/// The program that starts another with signals ignored.
const ENV: Need = Need::Program("env", "coreutils");
/// Compiles the book's first program.
pub(super) const GCC: Need = Need::Program("gcc", "gcc");
/// The header that the program includes.
pub(super) const VERBS_H: Need = Need::File("/usr/include/infiniband/verbs.h", "libibverbs-dev");
/// A namespace of its own with the caller's uid.
const UNSHARE: Need = Need::Program("unshare", "util-linux");

/// The family.
pub fn cases() -> Vec<Case> {
    let case = |name: &str, needs: &[Need], body: fn(&Setting) -> Result<()>| {
        Case::new(format!("start/{name}"), needs, body)
    };
    vec![
        case("a demo without a balboad", &[PERFTEST], demo),
        case("a demo without a balboad", &[PERFTEST], demo).as_root(),
        case("the book's first program", &[GCC, VERBS_H], first_program),
        case("nothing of the starter's is balboad's", &[BASH, TASKSET], nothing_of_ours),
        case("a starter that ignores its children", &[ENV], childless),
        case("the first process of a container", &[BASH, UNSHARE], first_process),
        case("eight at once start one", &[], at_once),
        case("children keep it, and it ends behind them", &[BASH], children),
        case("a connected program keeps it", &[BASH, IBVERBS_UTILS], connected),
        case("one that was killed is started again", &[], killed),
        case("each network namespace has its own", &[UNSHARE], namespaces),
        case("other options are told", &[], other_options),
    ]
}

/// `balboa run --state-dir DIR --start OPTIONS --`, to which the program is to be added.
fn run(setting: &Setting, options: &str) -> Task {
    let task = setting.built("balboa").arg("run").arg("--state-dir").arg(setting.state_dir());
    task.arg("--start").words(options).arg("--")
}

/// The process that has the lock of a state directory.
fn pid(state: &Path) -> Result<i32> {
    let text = fs::read_to_string(state.join("balboad.lock")).context("no balboad serves")?;
    text.trim().parse().with_context(|| format!("no process: {text:?}"))
}

/// Waits until a process has ended, and has tidied up.
fn ends(state: &Path, pid: i32) -> Result<()> {
    let begun = Instant::now();
    while !matches!(process::state(pid), None | Some('Z')) {
        ensure!(begun.elapsed() < LIMIT, "balboad ({pid}) does not end: {}", log(state));
        std::thread::sleep(Duration::from_millis(20));
    }
    ensure!(!state.join("balboad.sock").exists(), "balboad left its socket: {}", log(state));
    ensure!(!state.join("balboad.lock").exists(), "balboad left its lock: {}", log(state));
    Ok(())
}

fn log(state: &Path) -> String {
    fs::read_to_string(state.join("balboad.log")).unwrap_or_default()
}

/// A program that tells which balboad it has, and stays.
fn staying(setting: &Setting, options: &str) -> Result<Running> {
    let lock = setting.state_dir().join("balboad.lock");
    let task = run(setting, options).words("sh -c").arg("cat \"$0\"; exec sleep 600").arg(lock);
    task.start()
}

/// The process id that it has printed.
fn balboad_of(program: &mut Running) -> Result<i32> {
    program.wait_until("it told its balboad", |it| it.output().ends_with('\n'))?;
    program.output().trim().parse().with_context(|| format!("no process: {}", program.output()))
}

/// The two lines of the README, in a directory of their own.
fn demo(setting: &Setting) -> Result<()> {
    let port = free_port()?;
    let side = |card: u32| {
        run(setting, "").words(&format!("ib_write_bw -F -x 1 -n 100 -d balboa{card} -p {port}"))
    };
    let server = start_server(side(0), port)?;
    let state = setting.state_dir();
    let balboad = pid(&state)?;
    side(1).arg("127.0.0.1").run()?.success()?;
    server.wait()?.success()?;
    ends(&state, balboad)?;
    let told = log(&state);
    ensure!(told.contains("no program is left: balboad stops"), "{told}");
    Ok(())
}

/// The program of docs/first-program.md, compiled and run by the page's own two lines, prints the page's output.
fn first_program(setting: &Setting) -> Result<()> {
    let page = include_str!("../../../docs/first-program.md");
    let between = |before: &str, after: &str| -> Result<&str> {
        let found = page.split_once(before).and_then(|(_, rest)| rest.split_once(after));
        Ok(found.with_context(|| format!("the page has no {before:?}"))?.0)
    };
    let directory = setting.directory();
    fs::write(directory.join("first.c"), between("```c\n", "```\n")?)?;
    let gcc = between("\ngcc ", "\n")?;
    let built = setting.task("gcc").words("-Wall -Wextra -Werror").words(gcc).run()?;
    built.success()?;
    let program = between("target/release/balboa run --start -- ", "\n")?;
    let printed = run(setting, "").arg(directory.join(program)).run()?.success()?.stdout;
    ensure!(printed.trim_end() == between("It prints `", "`")?, "it prints {printed:?}");
    let state = setting.state_dir();
    let balboad = pid(&state)?;
    kill(Pid::from_raw(balboad), Signal::SIGTERM)?;
    ends(&state, balboad)
}

/// balboad inherits nothing that a launcher gives to its program: no descriptor, variable, processor or session.
fn nothing_of_ours(setting: &Setting) -> Result<()> {
    let state = setting.state_dir();
    let script = "mkfifo \"$HOME/ours\"; exec 7<> \"$HOME/ours\"; exec taskset -c \"$0\" \"$@\"";
    let inner = run(setting, "--soft 1").words("sh -c").arg("echo there; exec sleep 600");
    let allowed = |pid: &str| -> Result<String> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        Ok(line.context("no processors")?.trim().to_owned())
    };
    let all = allowed("self")?;
    let first: String = all.chars().take_while(char::is_ascii_digit).collect();
    let task = setting.task("bash").arg("-c").arg(script).arg(first).args(inner.command_line());
    let mut program = task.env("OURS", "ours").start()?;
    program.wait_until("it has begun", |it| it.output() == "there\n")?;
    let balboad = pid(&state)?;
    let proc = |file: &str| fs::read(format!("/proc/{balboad}/{file}"));
    let environment = proc("environ")?;
    let has = |name: &[u8]| environment.split(|it| *it == 0).any(|it| it.starts_with(name));
    ensure!(has(b"BALBOAD_LEASE=") && has(b"PATH=") && !has(b"OURS="), "its environment");
    let stat = String::from_utf8(proc("stat")?)?;
    let behind = stat.rsplit(')').next().unwrap_or_default();
    // Behind the name: state, parent, group, session, terminal.
    let numbers: Vec<&str> = behind.split_whitespace().collect();
    let ours = nix::unistd::getsid(None)?.to_string();
    ensure!(numbers[3] != ours && numbers[4] == "0", "its session: {stat}");
    ensure!(numbers[1] != program.pid().to_string(), "its parent: {stat}");
    let descriptors: Vec<String> = fs::read_dir(format!("/proc/{balboad}/fd"))?
        .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
        .map(|link| link.display().to_string())
        .collect();
    let open = |name: &str| descriptors.iter().any(|it| it.ends_with(name));
    ensure!(open("/balboad.log") && !open("/ours"), "its descriptors: {descriptors:?}");
    let allowed = allowed(&balboad.to_string())?;
    ensure!(allowed == all, "its processors are {allowed}, not {all}");
    drop(program);
    ends(&state, balboad)
}

/// With SIGCHLD ignored no parent learns how a child has ended. The program has it so, too, and balboad has not.
fn childless(setting: &Setting) -> Result<()> {
    const SIGCHLD: u64 = 1 << (Signal::SIGCHLD as u32 - 1);
    let state = setting.state_dir();
    // No shell, which would have a handler for it.
    let inner = run(setting, "--soft 1").words("sleep 600");
    let task = setting.task("env").arg("--ignore-signal=CHLD").args(inner.command_line());
    let program = task.start()?;
    let begun = Instant::now();
    while fs::read_to_string(format!("/proc/{}/comm", program.pid()))?.trim() != "sleep" {
        ensure!(begun.elapsed() < LIMIT, "the program has not begun: {}", program.errors());
        std::thread::sleep(Duration::from_millis(20));
    }
    let balboad = pid(&state)?;
    let ignores = |pid: i32| -> Result<bool> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        Ok(u64::from_str_radix(ignored.context("no signals")?.trim(), 16)? & SIGCHLD != 0)
    };
    ensure!(ignores(program.pid())?, "the program does not ignore SIGCHLD");
    ensure!(!ignores(balboad)?, "balboad ignores SIGCHLD");
    drop(program);
    ends(&state, balboad)
}

/// A process without its parent becomes the first process's child, and the program may wait for all children that it
/// has.
fn first_process(setting: &Setting) -> Result<()> {
    let state = setting.state_dir();
    let script = "echo $$; balboad=$(cat \"$0\"); grep PPid: \"/proc/$balboad/status\"; kill -TERM 1; \
        sleep 600 & wait $!";
    let inner = run(setting, "--soft 1").words("bash -c").arg(script);
    let task = setting.task("unshare").words("--map-current-user --pid --fork --mount-proc --");
    let task = task.args(inner.arg(state.join("balboad.lock")).command_line());
    // What the first process is sent the program gets, and its end is told.
    let told = task.run()?.code(128 + Signal::SIGTERM as i32)?;
    let lines: Vec<&str> = told.stdout.lines().collect();
    let [program, parent] = &*lines else { anyhow::bail!("two lines: {told}") };
    let parent = parent.trim_start_matches("PPid:").trim();
    ensure!(*program != "1" && parent == "1", "the program has balboad for a child: {told}");
    Ok(())
}

/// Programs started at once, as the ranks of a launcher are, share one balboad.
fn at_once(setting: &Setting) -> Result<()> {
    let started = (0..8).map(|_| staying(setting, "--soft 1"));
    let mut started = started.collect::<Result<Vec<_>>>()?;
    let balboads = started.iter_mut().map(balboad_of).collect::<Result<BTreeSet<_>>>()?;
    ensure!(balboads.len() == 1, "more than one balboad: {balboads:?}");
    drop(started);
    balboads.into_iter().try_for_each(|balboad| ends(&setting.state_dir(), balboad))
}

/// A program has ended, and its child has not.
fn children(setting: &Setting) -> Result<()> {
    let state = setting.state_dir();
    let script =
        "cat \"$0\"; mkfifo \"$HOME/end\"; read -r line < \"$HOME/end\" > /dev/null 2>&1 &";
    let task = run(setting, "--soft 1").words("bash -c").arg(script);
    let told = task.arg(state.join("balboad.lock")).run()?.success()?;
    let balboad: i32 = told.stdout.trim().parse()?;
    longer_than_the_grace();
    ensure!(pid(&state)? == balboad, "it ended before the child: {}", log(&state));
    fs::write(setting.directory().join("end"), "end\n")?;
    ends(&state, balboad)
}

/// A program that has closed its descriptors, and a card open.
fn connected(setting: &Setting) -> Result<()> {
    let state = setting.state_dir();
    let script = "for fd in /proc/self/fd/*; do fd=${fd##*/}; \
        if ((fd > 2 && fd != 255)); then eval \"exec $fd>&-\"; fi; done; \
        ls -l /proc/self/fd >&2; exec ibv_asyncwatch -d balboa0";
    let mut program = run(setting, "--soft 1").words("bash -c").arg(script).start()?;
    program.wait_until("it has the card open", |it| it.output().contains("async event FD"))?;
    ensure!(
        !program.errors().contains("balboad.lease"),
        "it holds the lease: {}",
        program.errors()
    );
    let balboad = pid(&state)?;
    longer_than_the_grace();
    ensure!(pid(&state)? == balboad, "it ended before the program: {}", log(&state));
    program.signal(Signal::SIGKILL)?;
    program.wait()?;
    ends(&state, balboad)
}

/// Sleeps beyond balboad's grace, before a check that it is still there; a busy machine makes it longer, never shorter.
fn longer_than_the_grace() {
    std::thread::sleep(Duration::from_secs(8));
}

fn killed(setting: &Setting) -> Result<()> {
    let state = setting.state_dir();
    let (mut programs, mut balboads) = (Vec::new(), Vec::new());
    for signal in [Some(Signal::SIGKILL), Some(Signal::SIGTERM), None] {
        let mut program = staying(setting, "--soft 1")?;
        let balboad = balboad_of(&mut program)?;
        programs.push(program);
        ensure!(!balboads.contains(&balboad), "{balboad} again, of {balboads:?}");
        balboads.push(balboad);
        // What comes next may meet one that was killed, or that ends.
        signal.map_or(Ok(()), |signal| kill(Pid::from_raw(balboad), signal))?;
    }
    // Those of the first two hold it still.
    drop(programs);
    let last = *balboads.last().context("none was started")?;
    ends(&state, last)?;
    let is_there = |pid: &i32| !matches!(process::state(*pid), None | Some('Z'));
    let left: Vec<_> = balboads.into_iter().filter(is_there).collect();
    ensure!(left.is_empty(), "balboads that are there still: {left:?}");
    Ok(())
}

/// Programs in other namespaces find the first one's balboad by the default directory.
fn namespaces(setting: &Setting) -> Result<()> {
    let runtime = setting.directory();
    let users = runtime.join("balboa");
    let script = "echo $BALBOA_STATE_DIR; exec sleep 600";
    let task = setting.built("balboa").words("run --start --soft 1 -- sh -c").arg(script);
    let mut here = task.env("XDG_RUNTIME_DIR", runtime).start()?;
    here.wait_until("it has begun", |it| it.output().ends_with('\n'))?;
    ensure!(Path::new(here.output().trim()) == users, "{}", here.output());
    // In another, the tool finds the one of that.
    let script = "set -e; readlink /proc/self/ns/net; \
        \"$0\" run --start --soft 2 -- sh -c 'echo $BALBOA_STATE_DIR; cat $BALBOA_STATE_DIR/balboad.lock'; \
        \"$0\" list";
    let task = setting.task("unshare").words("--map-current-user --net -- sh -c").arg(script);
    let task = task.arg(setting.bin.join("balboa")).env("XDG_RUNTIME_DIR", runtime);
    let there = task.run()?.success()?;
    let lines: Vec<&str> = there.stdout.lines().collect();
    let number = lines[0].trim_matches(|it: char| !it.is_ascii_digit());
    let own = users.join(format!("net-{number}"));
    ensure!(lines.len() > 2 && Path::new(lines[1]) == own, "{there}");
    let there = there.says("balboa1")?;
    let lock: i32 = there.stdout.lines().nth(2).unwrap_or_default().trim().parse()?;
    ends(&own, lock)?;
    let found = setting.built("balboa").arg("list").env("XDG_RUNTIME_DIR", runtime).run()?;
    let found = found.success()?.says("balboa0")?;
    ensure!(!found.stdout.contains("balboa1"), "the other's cards: {found}");
    let balboad = pid(&users)?;
    drop(here);
    ends(&users, balboad)
}

fn other_options(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 2 -v")?;
    for options in ["", "--soft=2"] {
        run(setting, options).arg("true").run()?.success()?;
    }
    let refused = run(setting, "--soft 1").arg("true").run()?;
    let told = format!("(process {}) was started with `--soft 2 -v`, not with", daemon.pid());
    refused.refuses(125, &told)?;
    let refused = setting.built("balboa").words("run --start --soft 99 --state-dir");
    let refused =
        refused.arg(setting.directory().join("other")).words("-- true").run()?.code(125)?;
    refused
        .complains("balboad did not start (exit status: 2): invalid value '99' for '--soft <N>'")?;
    let refused = setting.built("balboa").words("run --start --help -- true").run()?;
    refused.refuses(125, "balboad ended without serving")?;
    daemon.stop()
}
