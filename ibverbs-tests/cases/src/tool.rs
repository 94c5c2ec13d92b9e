//! The tool that shows and tends cards.

use anyhow::{Context as _, Result, ensure};
use harness::pair::{free_port, run_between, start_server};
use harness::process::Task;
use harness::runner::Case;
use harness::setting::{Daemon, Setting};
use serde_json::Value;

use super::capture::TSHARK;
use super::counters::frames;
use super::{IBVERBS_UTILS, PERFTEST};

/// The family.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("tool/cards are listed, shown and counted", &[IBVERBS_UTILS], facts),
        Case::new("tool/the doctor's advice is followed", &[], doctor),
        Case::new("tool/the doctor's advice is followed", &[], doctor).as_root(),
        Case::new("tool/two cards are measured, and one with itself", &[IBVERBS_UTILS], perf),
        Case::new("tool/who is at an address is asked", &[], ping),
        Case::new("tool/a card is reset under a program and is back", &[PERFTEST], reset),
        Case::new("tool/a card that runs is captured", &[PERFTEST, TSHARK], capture),
    ]
}

/// A command of the tool for a balboad.
fn balboa(daemon: &Daemon<'_>, setting: &Setting, words: &str) -> Task {
    let (command, rest) = words.split_once(' ').unwrap_or((words, ""));
    setting.built("balboa").arg(command).arg("--state-dir").arg(daemon.state_dir()).words(rest)
}

fn json(task: Task) -> Result<Value> {
    let finished = task.run()?.success()?;
    serde_json::from_str(&finished.stdout).with_context(|| format!("no JSON: {finished}"))
}

fn facts(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 2")?;
    let listed = balboa(&daemon, setting, "list").run()?.success()?;
    let line =
        "balboa1  soft:01:00.0  Balboa software card  software card  vqe     up, switch  softcard";
    ensure!(listed.stdout.lines().nth(2) == Some(line), "{listed}");
    let list = json(balboa(&daemon, setting, "list --json"))?;
    ensure!(list["format"] == 1 && list["cards"][0]["name"] == "balboa0", "{list}");

    let number = |name: &str| -> Result<u64> {
        let counted = json(balboa(&daemon, setting, "counters balboa0 --json"))?;
        counted["counters"][name].as_u64().with_context(|| format!("no {name} in {counted}"))
    };
    let before = number("sent_pkts")?;
    run_between((&daemon, 0), (&daemon, 1), "ibv_rc_pingpong -g 1 -n 100")?;
    ensure!(number("sent_pkts")? >= before + 100, "a pingpong was not counted");
    let plain = balboa(&daemon, setting, "counters balboa0").run()?.success()?;
    ensure!(plain.stdout.lines().any(|line| line.starts_with("rdma_sends ")), "{plain}");
    let watched = json(balboa(&daemon, setting, "counters balboa0 --watch=1 --count 1 --json"))?;
    ensure!(watched["rates"]["sent_pkts"].is_number() && watched["seconds"].is_number());

    let shown = balboa(&daemon, setting, "show balboa1").run()?.success()?;
    ensure!(shown.stdout.starts_with("balboa1  Balboa software card"), "{shown}");
    let shown = json(balboa(&daemon, setting, "show balboa1 --json"))?;
    ensure!(shown["card"] == json(balboa(&daemon, setting, "status --json"))?["cards"][1]);
    let told = json(balboa(&daemon, setting, "top --count 1 --json"))?;
    let (seconds, card) = (&told["seconds"], &told["cards"][1]);
    ensure!(seconds.as_f64() > Some(0.0) && card["name"] == "balboa1" && card["link_up"] == true);
    let told = balboa(&daemon, setting, "top --count 1").run()?.success()?;
    told.says("balboa0 up sent 0 b/s 0 pkt/s ")?;
    let told = json(balboa(&daemon, setting, "addr balboa1 show --json"))?;
    ensure!(told["addresses"][1]["address"] == "10.77.0.2", "{told}");
    for command in ["show balboa7", "counters balboa7"] {
        let refused = balboa(&daemon, setting, command).run()?.code(1)?;
        refused.complains("has no balboa7: its cards are balboa0, balboa1")?;
    }
    daemon.stop()
}

/// Figures that are there, of messages whose bytes the program has looked at.
fn perf(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 2")?;
    for to in ["balboa1", "balboa0"] {
        let told =
            json(balboa(&daemon, setting, &format!("perf --to {to} --seconds 0.05 --json")))?;
        let rows = told["operations"].as_array().context("no operations")?;
        let names: Vec<&str> = rows.iter().filter_map(|it| it["operation"].as_str()).collect();
        ensure!(names == ["WRITE", "READ", "SEND"] && told["gid_index"] == 1, "{told}");
        for row in rows {
            let figure = |name: &str| row[name].as_f64().unwrap_or(0.0);
            let (p50, p99) = (figure("latency_p50_us"), figure("latency_p99_us"));
            ensure!(p50 > 0.0 && p99 >= p50, "{row}");
            ensure!(figure("bandwidth_mb_per_s") > 0.0 && figure("messages_per_s") > 0.0, "{row}");
        }
    }
    let plain = balboa(&daemon, setting, "perf --seconds 0.05").run()?.success()?;
    ensure!(plain.stdout.lines().count() == 5, "{plain}");
    let refused = balboa(&daemon, setting, "perf --to balboa7").run()?.code(1)?;
    refused.complains("there is no device balboa7; there are balboa0, balboa1")?;
    daemon.stop()
}

/// Pings between cards of one balboad, of two on a cable, and to an address that no host has.
fn ping(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 2")?;
    for words in ["10.77.0.2 -d balboa0", "10.77.0.2", "10.77.0.1 --card balboa1"] {
        let told = json(balboa(&daemon, setting, &format!("ping {words} -c 1 --json")))?;
        ensure!(told["who"] == "balboad" && told["mtu"] == 4096, "{words}: {told}");
        ensure!(told["version"] == env!("CARGO_PKG_VERSION"), "{words}: {told}");
        ensure!(told["round_trip_us"].as_f64() > Some(0.0), "{words}: {told}");
    }
    let twice = balboa(&daemon, setting, "ping 10.77.0.2 -c 2").run()?.success()?;
    ensure!(twice.stdout.lines().count() == 2, "{twice}");
    let nobody = balboa(&daemon, setting, "ping 10.77.0.99 -c 1").run()?.code(4)?;
    nobody.says("10.77.0.99: nobody on the link of balboa0 has this address")?;
    for (words, code, sentence) in [
        ("10.77.0.2 -d balboa7", 1, "there is no balboa7"),
        ("192.0.2.1", 1, "192.0.2.1 is in the network of no card"),
        ("224.0.0.1", 1, "224.0.0.1 is the address of no card"),
        ("10.77.0", 2, "write an address of IPv4"),
        ("10.77.0.2 -d eth0", 2, "write the name of a card"),
        ("10.77.0.2 -c 0", 2, "0 is not in 1..=86400"),
    ] {
        balboa(&daemon, setting, &format!("ping {words}")).run()?.refuses(code, sentence)?;
    }
    daemon.stop()?;
    let daemons = setting.cabled_balboads()?;
    let told = json(balboa(&daemons[0], setting, "ping 10.77.0.2 -c 1 --json"))?;
    ensure!(told["who"] == "balboad" && told["from"] == "10.77.0.1", "{told}");
    daemons.into_iter().try_for_each(Daemon::stop)
}

/// Faults of cards are told, and mended by the commands that are told.
fn doctor(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 2")?;
    // The machine's PCI cards are none of this.
    let wrong = || -> Result<Vec<(String, String)>> {
        let finished = balboa(&daemon, setting, "doctor --json").run()?;
        let found: Value = serde_json::from_str(&finished.stdout).context("no JSON")?;
        let checks = found["checks"].as_array().context("no checks")?;
        let wrong: Vec<&Value> = checks.iter().filter(|it| it["verdict"] == "wrong").collect();
        ensure!(found["well"] == wrong.is_empty(), "{found}");
        let finished = finished.code(if wrong.is_empty() { 0 } else { 1 })?;
        ensure!(finished.stderr.is_empty(), "{finished}");
        let text = |it: &Value| it.as_str().unwrap_or_default().to_owned();
        let found = wrong.iter().map(|it| (text(&it["check"]), text(&it["mend"])));
        let of_bus = ["IOMMU", "vfio-pci", "permissions"];
        Ok(found.filter(|(check, _)| !of_bus.contains(&&**check)).collect())
    };
    ensure!(wrong()?.is_empty(), "all is well, and not by {:?}", wrong()?);
    for (spoil, check, mend) in [
        ("link balboa1 down", "link", "balboa link balboa1 up; "),
        ("addr balboa1 del 10.77.0.2", "GID", "balboa addr balboa1 add ADDRESS/PREFIX"),
    ] {
        balboa(&daemon, setting, spoil).run()?.success()?;
        let [(found, told)] = &*wrong()? else { anyhow::bail!("{spoil}: {:?}", wrong()?) };
        ensure!(found == check && told.starts_with(mend), "{spoil}: {found}: {told}");
        let advice = told.split(';').next().unwrap_or_default();
        let advice = advice.replace("ADDRESS/PREFIX", "10.77.0.2/24");
        let words = advice.strip_prefix("balboa ").context("it is none of balboa's")?;
        balboa(&daemon, setting, words).run()?.success()?;
        ensure!(wrong()?.is_empty(), "after {words}: {:?}", wrong()?);
    }
    let told = balboa(&daemon, setting, "doctor").run()?.success()?;
    told.says("link         balboa1 is up, switch\n")?;
    let state = daemon.state_dir().to_owned();
    daemon.stop()?;
    let none = setting.built("balboa").words("doctor --state-dir").arg(state).run()?.code(1)?;
    none.says("WRONG  balboad")?;
    Ok(())
}

/// A program in the middle of its work loses its card, and the next one has it.
fn reset(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 2")?;
    let asked = balboa(&daemon, setting, "reset balboa0").run()?.code(1)?;
    asked.complains("standard input is no terminal: say --yes")?;
    let mut asked = balboa(&daemon, setting, "reset balboa0").at_terminal().start()?;
    asked.wait_until("it asks", |it| it.output().contains("Reset balboa0? [y/N] "))?;
    asked.type_in("\n")?;
    asked.wait()?.code(3)?;
    balboa(&daemon, setting, "addr balboa0 add 10.88.0.1").run()?.success()?;
    let port = free_port()?;
    let side = |card: u32| daemon.run(&format!("ib_write_bw -d balboa{card} -x 1 -D 60 -p {port}"));
    let server = start_server(side(0), port)?;
    let mut client = side(1).arg("127.0.0.1").start()?;
    client.wait_until("data moved", |_| {
        let counted = json(balboa(&daemon, setting, "counters balboa0 --json"));
        counted.is_ok_and(|it| it["counters"]["rx_write_requests"].as_u64() > Some(0))
    })?;
    let told = balboa(&daemon, setting, "reset balboa0 --yes").run()?.success()?;
    told.says("balboa0 was reset; 1 programs still have the former card open")?;
    let other = "ib_write_bw -F -x 1 -n 100";
    // A program that keeps it delays no other.
    run_between((&daemon, 0), (&daemon, 1), other)?;
    let client = client.wait()?;
    ensure!(!client.status.success(), "its peer was reset: {client}");
    // A server of perftest waits for a completion, and not for the event of a lost device.
    server.signal(nix::sys::signal::Signal::SIGKILL)?;
    server.wait()?;
    let status = json(balboa(&daemon, setting, "show balboa0 --json"))?;
    ensure!(status["card"]["gids"][2] == "::ffff:10.88.0.1", "its addresses: {status}");
    run_between((&daemon, 0), (&daemon, 1), "ib_write_bw -F -x 1 -n 100")?;
    let told = balboa(&daemon, setting, "reset balboa0 --yes").run()?.success()?;
    ensure!(told.stdout == "balboa0 was reset\n", "{told}");
    run_between((&daemon, 1), (&daemon, 0), "ib_write_bw -F -x 1 -n 100")?;
    daemon.stop()
}

/// Frames of a running card, all of them and those of an address, as tshark reads them.
fn capture(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 2")?;
    let file = |name: &str| setting.directory().join(name);
    let capture = |name: &str, words: &str| {
        let task = balboa(&daemon, setting, "capture balboa0 -o").arg(file(name));
        task.words(words).start()
    };
    let is_there = |name: &str| {
        let path = file(name);
        move || std::fs::metadata(&path).is_ok_and(|found| found.len() > 0)
    };
    for (name, words) in
        [("all", "--ring 64"), ("none", "--address 10.99.0.9"), ("head", "--snap 70")]
    {
        let mut running = capture(name, words)?;
        let there = is_there(name);
        running.wait_until("the file was begun", |_| there())?;
        let refused = balboa(&daemon, setting, "capture balboa0 -o other").run()?.code(1)?;
        refused.complains("its port is being captured already")?;
        run_between((&daemon, 0), (&daemon, 1), "ib_write_bw -F -x 1 -n 100 -s 20000")?;
        running.signal(nix::sys::signal::Signal::SIGINT)?;
        let ended = running.wait()?.success()?;
        let frames = frames(setting, &file(name))?;
        let expected = match name {
            "none" => 0..1,
            // 500 packets at least, five to a message, and acknowledgements.
            _ => 500..100_000,
        };
        ensure!(expected.contains(&frames.len()), "{name}: {} frames, {ended}", frames.len());
        ensure!(ended.stderr == format!("{} frames\n", frames.len()), "{ended}");
    }
    // What is not the user's alone is refused before the card is asked.
    std::fs::hard_link(file("all"), file("again"))?;
    std::os::unix::fs::symlink("all", file("link"))?;
    nix::unistd::mkfifo(&file("fifo"), nix::sys::stat::Mode::from_bits_truncate(0o600))?;
    std::os::unix::fs::chown(file("fifo"), Some(setting.uid()), None)?;
    let whole = std::fs::read(file("all"))?;
    for (name, why) in [
        ("again", "has another name"),
        ("link", "a symbolic link"),
        ("fifo", "nobody reads this FIFO"),
    ] {
        capture(name, "")?.wait()?.code(1)?.complains(why)?;
    }
    ensure!(std::fs::read(file("all"))? == whole, "a refused capture wrote to a file");
    std::fs::remove_file(file("again"))?;
    let size = |name: &str| std::fs::metadata(file(name)).map(|found| found.len());
    ensure!(size("head")? * 4 < size("all")?, "70 bytes of each frame are less than all");
    // One that dies leaves nothing behind, and ends are of many kinds.
    let dead = capture("dead", "")?;
    dead.signal(nix::sys::signal::Signal::SIGKILL)?;
    dead.wait()?;
    let task = balboa(&daemon, setting, "capture balboa0 -o").arg(file("short"));
    task.words("--seconds 1").run()?.success()?.complains("0 frames")?;
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(file("short"))?);
    ensure!(mode & 0o077 == 0, "others can read memory of programs: {mode:o}");
    let mut last = capture("last", "")?;
    let there = is_there("last");
    last.wait_until("the file was begun", |_| there())?;
    daemon.stop()?;
    last.wait()?.code(1)?.complains("balboad ended the capture")?;
    Ok(())
}
