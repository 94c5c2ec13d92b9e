//! verbs-data, which checks every byte it moves.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use harness::pair::{Both, run_between};
use harness::process::Finished;
use harness::runner::{Case, Need};
use harness::setting::Setting;

use super::faults::was_bad;
use super::rdmacm::RDMACM_UTILS;

/// How long a sweep may take: 850 messages, some of 1 MiB.
const SWEEP: Duration = Duration::from_secs(180);
/// How long a message of 1 GiB may take, with making and checking it.
const HUGE: Duration = Duration::from_secs(180);
/// Free memory for a message of 1 GiB: two regions of it, and some.
const HUGE_MEMORY: Need = Need::Memory(3 * 1024);

/// The family.
pub fn cases() -> Vec<Case> {
    let mut cases = vec![
        case("list", "list", "balboa1: max_qp", &[]),
        case("sweep", "sweep", "850 messages arrived", &[]),
        case("sweep/events", "sweep --events", "850 messages arrived", &[]),
        case("sweep/loopback", "sweep --to balboa0", "850 messages arrived", &[]),
        case("sweep/GID 0", "sweep --gid 0", "850 messages arrived", &[]),
        case("sweep/thread domain", "sweep --thread-domain", "850 messages arrived", &[]),
        case("sweep", "sweep --events", "850 messages arrived", &[]).as_root(),
        case("sweep/extended", "sweep --extended", "850 messages arrived", &[]),
        case("sweep/extended/events", "sweep --extended --events", "850 messages arrived", &[]),
        case("sweep/UC", "sweep --unreliable", "510 messages arrived", &[]),
        case("sweep/UC/events", "sweep --unreliable --events", "510 messages arrived", &[]),
        case("lists/extended", "lists --extended", "listed messages arrived", &[]),
        case("extended", "extended", "the extended verbs do what they should", &[]),
        case("arguments", "arguments", "calls were taken or refused", &[]),
        case("strays", "strays", "3 strays failed and harmed nobody", &[]),
        case("rates", "rates", "10 messages were no faster than they may be", &[]),
        case("rates/UC", "rates --unreliable", "5 messages were no faster", &[]),
        case("races", "races", "nothing came behind the end of memory in 800 races", &[]),
        case("rereg", "rereg", "changes of a region were made or refused", &[]),
        case("rereg/loopback", "rereg --to balboa0", "changes of a region were made", &[]),
        case("rereg/GID 0", "rereg --gid 0", "changes of a region were made", &[]),
        case("memory", "memory", "bytes moved in", &[]),
        case("memory/loopback", "memory --to balboa0", "bytes moved in", &[]),
        case("memory/huge pages", "memory", "one of them of huge pages", &[Need::HugePages(2)]),
        case("null regions", "null-regions", "16 messages of null regions", &[]),
        case("null regions/loopback", "null-regions --to balboa0", "16 messages of", &[]),
        case("lists", "lists", "listed messages arrived", &[]),
        case("shared", "shared", "600 shared messages arrived", &[]),
        case("shared/loopback", "shared --to balboa0", "600 shared messages arrived", &[]),
        case("XRC", "xrc", "555 XRC messages arrived", &[]),
        case("XRC/loopback", "xrc --to balboa0", "555 XRC messages arrived", &[]),
        case("XRC/events", "xrc --events", "555 XRC messages arrived", &[]),
        case("counter", "counter", "3200 atomics counted once", &[]),
        case("counter/loopback", "counter --to balboa0", "3200 atomics counted once", &[]),
        case("counter/events", "counter --events", "3200 atomics counted once", &[]),
        case("cancel", "cancel", "120 threads were cancelled", &[RDMACM_UTILS]),
        case("address handles", "handles", "3341 datagrams arrived in order", &[]),
        case("address handles/loopback", "handles --to balboa0", "3341 datagrams arrived", &[]),
        case("address handles/GID 0", "handles --gid 0", "3341 datagrams arrived", &[]),
        case("device memory", "device-memory", "54 messages of device memory arrived", &[]),
        case("device memory/loopback", "device-memory --to balboa0", "54 messages", &[]),
        case("resize", "resize", "3840 messages arrived around resizes", &[]),
        case("resize/loopback", "resize --to balboa0", "3840 messages arrived", &[]),
        case("resize/events", "resize --events", "3840 messages arrived", &[]),
        case("resize/extended", "resize --extended --events", "3840 messages arrived", &[]),
        case("vectors", "vectors", "648 completions were told of", &[]),
        case("vectors/loopback", "vectors --to balboa0", "648 completions were told of", &[]),
        case("states", "states", "15 states were", &[]),
        case("states/loopback", "states --to balboa0", "15 states were", &[]),
        case("states/GID 0", "states --gid 0", "15 states were", &[]),
        case("errors", "errors", "25 errors came", &[]),
        case("errors/events", "errors --events", "25 errors came", &[]),
    ];
    for operation in ["send", "send-immediate", "write", "write-immediate", "read"] {
        let command = format!("huge {operation}");
        let name = format!("1 GiB/{operation}");
        cases.push(case(&name, &command, "1024 MiB arrived", &[HUGE_MEMORY]));
    }
    cases.push(case("64 MiB/write", "huge write --mib 64 --mtu 256", "64 MiB arrived", &[]));
    for (name, options, count) in [
        ("RC", "", 350),
        ("UC", "--service uc", 280),
        ("UD", "--service ud", 64),
        ("UD/GID 0", "--service ud --gid 0", 64),
    ] {
        let name = format!("verbs-data/two processes/{name}");
        cases.push(Case::new(name, &[], move |setting| two_processes(setting, options, count)));
    }
    // On the switch, and each with a cable; 2 groups, 6 members, 24 datagrams.
    cases.push(multicast("", "--soft 3", "", "288 copies arrived"));
    let pair = "--soft 2 --port 0=unix:DIR/a,DIR/b --port 1=unix:DIR/b,DIR/a";
    cases.push(multicast("/cable", pair, "", "192 copies arrived"));
    let fault = "loss=5%,dup=5%,reorder=5%,corrupt=5%";
    cases.push(multicast("/bad cable", "--soft 3", fault, "288 copies arrived"));
    cases.push(Case::new("verbs-data/a path that is not UTF-8", &[], elsewhere));
    cases.push(Case::new("verbs-data/refusals say why", &[], refusals));
    cases
}

/// A program whose memory map names files in any bytes.
fn elsewhere(setting: &Setting) -> Result<()> {
    let directory = setting.directory().join(OsStr::from_bytes(b"caf\xe9"));
    fs::create_dir(&directory)?;
    let program = directory.join("verbs-data");
    fs::copy(setting.bin.join("verbs-data"), &program)?;
    let daemon = setting.balboad("--soft 2")?;
    let task = daemon.run("").arg(program).words("lists").limit(SWEEP);
    task.run()?.success()?.says("listed messages arrived")?;
    daemon.stop()
}

/// Each verb and each flag that cards do not offer is refused by one line in the log that gives a reason, on standard error
/// or in libibverbs' file, and by none where no log is asked for.
fn refusals(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 2")?;
    let file = setting.directory().join("verbs.log");
    let run = |level: &str, file: Option<&Path>| -> Result<Finished> {
        let task = daemon.run("").arg(setting.bin.join("verbs-data")).words("refusals");
        let task = task.env("VERBS_LOG_LEVEL", level).limit(SWEEP);
        let task = file.into_iter().fold(task, |task, file| task.env("VERBS_LOG_FILE", file));
        task.run()?.success()?.says("calls were refused as they should be")
    };
    let said = run("2", None)?;
    // Only at the start of a line does the program tell of a call.
    let lines = format!("\n{}", said.stderr);
    let mut sections = lines.split("\ncall ");
    // What makes the scene is refused more than it can be given.
    let before = sections.next().map_or(0, |text| reasons_in(text).len());
    let mut reasons = Vec::new();
    for section in sections {
        let (told, lines) = section.split_once('\n').unwrap_or((section, ""));
        let (call, _) = told.split_once(": ").context("a call and its argument")?;
        let lines = reasons_in(lines);
        let [line] = lines[..] else { bail!("{told:?} is refused by {lines:?}") };
        let reason = line.strip_prefix(&format!("balboa: {call}: "));
        ensure!(reason.is_some_and(|it| it.contains(' ')), "{told:?} is refused by {line:?}");
        reasons.push(line);
    }
    ensure!(!reasons.is_empty(), "no call was told of: {said}");
    let quiet = run("1", None)?;
    ensure!(reasons_in(&quiet.stderr).is_empty(), "{quiet}");
    run("2", Some(&file))?;
    let log = fs::read_to_string(&file)?;
    let logged = reasons_in(&log);
    let logged = logged.get(before..).unwrap_or_default();
    ensure!(logged == reasons, "libibverbs' log has {logged:#?}, not {reasons:#?}");
    daemon.stop()
}

/// The lines of a text in which the provider says why it refuses a call.
fn reasons_in(text: &str) -> Vec<&str> {
    text.lines().filter(|line| line.starts_with("balboa: ")).collect()
}

/// Each side of a connection in a program of its own.
fn two_processes(setting: &Setting, options: &str, count: usize) -> Result<()> {
    let daemon = setting.balboad("--soft 2")?;
    let program = setting.bin.join("verbs-data");
    let command = format!("{} apart {options}", program.display());
    let Both { server, client } = run_between((&daemon, 0), (&daemon, 1), &command)?;
    for side in [server, client] {
        let side = side.says(&format!("{count} messages arrived as they should"))?;
        if options.is_empty() {
            side.says("80 atomics counted once")?.says("20 keys were taken back")?;
        }
    }
    daemon.stop()
}

/// Groups of members on all cards.
fn multicast(name: &str, cards: &'static str, fault: &'static str, says: &'static str) -> Case {
    Case::new(format!("verbs-data/multicast{name}"), &[], move |setting| {
        let directory = setting.directory();
        let mut options = cards.replace("DIR", &directory.display().to_string());
        let mut command = "multicast".to_owned();
        if !fault.is_empty() {
            options.push_str(&format!(" --fault {fault}"));
            command.push_str(" --bad");
        }
        let daemon = setting.balboad(&options)?;
        let program = setting.bin.join("verbs-data");
        daemon.run("").arg(program).words(&command).limit(SWEEP).run()?.success()?.says(says)?;
        if !fault.is_empty() {
            was_bad(&daemon, fault)?;
        }
        daemon.stop()
    })
}

fn case(name: &str, command: &str, says: &'static str, needs: &[Need]) -> Case {
    let command = command.to_owned();
    let limit = if command.starts_with("huge") { HUGE } else { SWEEP };
    Case::new(format!("verbs-data/{name}"), needs, move |setting| {
        let daemon = setting.balboad("--soft 2")?;
        let program = setting.bin.join("verbs-data");
        let task = daemon.run("").arg(program).words(&command).limit(limit);
        task.run()?.success()?.says(says)?;
        daemon.stop()
    })
}
