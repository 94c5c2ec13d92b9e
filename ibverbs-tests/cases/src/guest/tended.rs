//! Cards behind vfio-pci as they are tended: flashed, reset, and examined by the doctor, whose advice is followed.

use std::fs;
use std::os::unix::fs::chown;

use anyhow::{Context as _, Result, ensure};
use harness::pair::run_between;
use harness::process::{Finished, Running, Task};
use harness::setting::Daemon;
use nix::sys::signal::Signal;
use serde_json::Value;

use super::cards::{
    bind, bound_for, cards, cards_in, driver, drivers, functions, pingpong, unbind,
};
use super::deaths::{asking_back, let_go, said};
use super::{Case, Hardware, Need, Setting, have_host};
use crate::flash::{
    beside_another, dies_on_the_way, driven_as, engines, flash, has_begun, json, prepare, refuses,
};
use crate::{IBVERBS_UTILS, PERFTEST};

/// Bytes of an image of a dozen chunks.
const IMAGE: u32 = 24 << 20;

/// The family.
pub(super) fn cases(hardware: Hardware) -> Vec<Case> {
    let case = |name: &str, body: fn(&Setting, Hardware) -> Result<()>| {
        let name = format!("tended/{name}");
        Case::new(&name, &[IBVERBS_UTILS, PERFTEST, Need::Root], move |setting| {
            body(setting, hardware)
        })
    };
    vec![
        case("an image is loaded and put back", loaded).as_root(),
        case("what is not for a card is refused", refused).as_root(),
        case("a program is told and disconnected", disconnected).as_root(),
        case("one vFPGA, under a program of another", one_vfpga).as_root(),
        case("a card becomes one as published, and back", published).as_root(),
        case("a card that has another image than its record says", another_image).as_root(),
        case("a reset, asked for by the tool", reset).as_root(),
        case("the doctor's advice is followed", doctor),
    ]
}

/// The cases that leave a card without a server.
pub(super) fn cases_of_second_boot(hardware: Hardware) -> Vec<Case> {
    if hardware != Hardware::IntelIommu {
        return Vec::new();
    }
    let body = move |setting: &Setting| died(setting, hardware);
    vec![Case::new("tended/a card dies while it takes an image", &[], body).as_root()]
}

/// `balboa` for a balboad.
fn balboa(daemon: &Daemon<'_>, setting: &Setting, words: &str) -> Result<Finished> {
    let (command, rest) = words.split_once(' ').unwrap_or((words, ""));
    let task = setting.built("balboa").arg(command).arg("--state-dir").arg(daemon.state_dir());
    task.words(rest).run()
}

fn loaded(setting: &Setting, hardware: Hardware) -> Result<()> {
    prepare(setting)?;
    let daemon = cards(setting, hardware)?;
    let on_it = |words: &str| flash(&daemon, setting, words).run();
    on_it("verify balboa0")?.success()?.says("balboa0 is what its record says")?;
    ensure!(engines(&daemon, setting, 0)?.0 == 4);
    let words: [u32; 5] = [0xaa99_5566, 0x3001_8001, 0x14b7_d093, 0x3000_8001, 13];
    let partial: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    fs::write(setting.directory().join("shell.bin"), partial)?;
    let refused = on_it("apply balboa0 shell.bin --allow-unsigned --yes")?.code(5)?;
    refused.complains("for xcu55c or xcu280, and balboa0 is a Balboa software card")?;
    on_it("plan balboa0 two.soft --keys keys")?.success()?.says("incoming  two.soft: vqe, vqe")?;
    ensure!(engines(&daemon, setting, 0)?.0 == 4, "what was refused or planned changed the card");
    balboa(&daemon, setting, "addr balboa0 add 10.88.0.1")?.success()?;
    let told = on_it("apply balboa0 two.soft --keys keys --yes")?.success()?;
    told.says("balboa0 has the image two.soft, and was brought up with it")?;
    ensure!(engines(&daemon, setting, 0)? == (2, "two.soft".into()));
    ensure!(engines(&daemon, setting, 1)?.0 == 4, "the other card is another one");
    let shown = balboa(&daemon, setting, "show balboa0 --json")?.success()?;
    let shown: Value = serde_json::from_str(&shown.stdout)?;
    ensure!(shown["card"]["gids"][2] == "::ffff:10.88.0.1", "its addresses: {shown}");
    pingpong(&daemon, "")?;
    pingpong(&daemon, "-e")?;
    on_it("verify balboa0 two.soft")?.success()?;
    // The next balboad knows it again, though the function was reset between.
    let state = daemon.state_dir().to_owned();
    daemon.stop()?;
    let daemon = cards_in(setting, &state, hardware)?;
    let on_it = |words: &str| flash(&daemon, setting, words).run();
    ensure!(engines(&daemon, setting, 0)? == (2, "two.soft".into()));
    on_it("verify balboa0 two.soft")?.success()?;
    on_it("rollback balboa0 --yes")?.success()?.says("again, and was brought up with it")?;
    ensure!(engines(&daemon, setting, 0)?.0 == 4);
    pingpong(&daemon, "-e")?;
    on_it("history balboa0")?.success()?.says("rollback")?;
    daemon.stop()
}

fn disconnected(setting: &Setting, hardware: Hardware) -> Result<()> {
    prepare(setting)?;
    let daemon = cards(setting, hardware)?;
    let mut program = daemon.mortal("survive async-event --card").start()?;
    said(&mut program, "waiting")?;
    let refused = flash(&daemon, setting, "apply balboa0 two.soft --keys keys --yes").run()?;
    refused.code(7)?.complains("has balboa0 open: end it, or say --force-disconnect")?;
    ensure!(engines(&daemon, setting, 0)?.0 == 4, "a card was flashed under a program");
    // It waits for news of the first card, and then looks at both.
    balboa(&daemon, setting, "reset balboa1 --yes")?.success()?;
    let words = "apply balboa0 two.soft --keys keys --force-disconnect --yes";
    flash(&daemon, setting, words).run()?.success()?.says("told that the device is gone")?;
    said(&mut program, "told")?;
    said(&mut program, "again")?;
    program.wait()?.success()?;
    ensure!(engines(&daemon, setting, 0)? == (2, "two.soft".into()));
    pingpong(&daemon, "")?;
    flash(&daemon, setting, "rollback balboa0 --yes").run()?.success()?;
    daemon.stop()
}

fn refused(setting: &Setting, hardware: Hardware) -> Result<()> {
    prepare(setting)?;
    let daemon = cards(setting, hardware)?;
    refuses(setting, &daemon, &["apply"])?;
    daemon.stop()
}

/// And then balboad dies while another vFPGA takes an image: the next one finds that without an engine.
fn one_vfpga(setting: &Setting, hardware: Hardware) -> Result<()> {
    prepare(setting)?;
    let words = "image make --soft vqe,vqe,vqe,vqe -o four.soft --sign key";
    setting.built("balboa").words(words).run()?.success()?;
    let daemon = cards(setting, hardware)?;
    beside_another(setting, &daemon)?;
    let state = daemon.state_dir().to_owned();
    dies_on_the_way(setting, daemon)?;
    let daemon = cards_in(setting, &state, hardware)?;
    let on_it = |words: &str| flash(&daemon, setting, words).run();
    let history = json(flash(&daemon, setting, "history balboa0 --json"))?;
    let last = history["history"].as_array().and_then(|it| it.last()).context("no history")?;
    let found = engines(&daemon, setting, 0)?.0;
    if found == 4 {
        // It was done just before, or the card had been given nothing of it yet.
        on_it("verify balboa0")?.success()?;
    } else {
        ensure!(found == 3 && !last["failed"].is_null(), "{found} engines of four: {last}");
        on_it("verify balboa0")?.code(8)?.complains("vFPGA 3 needs to be flashed again")?;
        let told = balboa(&daemon, setting, "doctor")?.code(1)?;
        told.says("balboa0: vFPGA 3 needs to be flashed again: balboad ended while the image was")?
            .says("balboa flash apply balboa0 FILE, with an image of the whole card")?;
        on_it("apply balboa0 one-3.soft --keys keys --yes")?.code(5)?;
    }
    // The others are served.
    pingpong(&daemon, "-e")?;
    on_it("apply balboa0 four.soft --keys keys --yes")?.success()?;
    ensure!(engines(&daemon, setting, 0)?.0 == 4);
    on_it("verify balboa0 four.soft")?.success()?;
    let told = balboa(&daemon, setting, "doctor --json")?;
    let (verdict, line) = finding(&told, "engine", "balboa0")?;
    ensure!(verdict == "ok", "{line}");
    pingpong(&daemon, "")?;
    daemon.stop()
}

/// An emulated processor stores the engine's commands in parts, so that no data moves: the card is brought up, found again
/// and examined.
fn published(setting: &Setting, hardware: Hardware) -> Result<()> {
    prepare(setting)?;
    let daemon = cards(setting, hardware)?;
    let mut program = daemon.mortal("survive async-event --card").start()?;
    said(&mut program, "waiting")?;
    let words = "apply balboa0 published.soft --keys keys --yes";
    flash(&daemon, setting, words).run()?.code(7)?.complains("has balboa0 open")?;
    let told = flash(&daemon, setting, &format!("{words} --force-disconnect")).run()?.success()?;
    told.says("balboa0 has the image published.soft, and was brought up with it")?;
    said(&mut program, "told")?;
    program.signal(Signal::SIGKILL)?;
    program.wait()?;
    ensure!((driven_as(&daemon, 0)?, driven_as(&daemon, 1)?) == ("stock".into(), "vqe".into()));
    let state = daemon.state_dir().to_owned();
    daemon.stop()?;
    let daemon = cards_in(setting, &state, hardware)?;
    ensure!(driven_as(&daemon, 0)? == "stock", "it is not what it was");
    flash(&daemon, setting, "verify balboa0 published.soft").run()?.success()?;
    daemon.run("ibv_devinfo -d balboa0").run()?.success()?.says("PORT_ACTIVE (4)")?;
    let told = balboa(&daemon, setting, "doctor --json")?;
    for check in ["engine", "link", "contract"] {
        let (verdict, line) = finding(&told, check, "balboa0")?;
        ensure!(verdict == "ok", "{check}: {line}");
    }
    flash(&daemon, setting, "rollback balboa0 --yes").run()?.success()?;
    ensure!(driven_as(&daemon, 0)? == "vqe");
    pingpong(&daemon, "-e")?;
    daemon.stop()
}

/// Two balboads with records of their own: an image loaded by one is found by the other.
fn another_image(setting: &Setting, hardware: Hardware) -> Result<()> {
    prepare(setting)?;
    let words = "image make --soft vqe,vqe,vqe,vqe -o four.soft --sign key";
    setting.built("balboa").words(words).run()?.success()?;
    let apply = |daemon: &Daemon<'_>, file: &str| {
        let words = format!("apply balboa0 {file} --keys keys --yes");
        flash(daemon, setting, &words).run()?.success().map(drop)
    };
    let daemon = cards(setting, hardware)?;
    apply(&daemon, "two.soft")?;
    let first = daemon.state_dir().to_owned();
    daemon.stop()?;
    let daemon = cards_in(setting, &setting.directory().join("second"), hardware)?;
    ensure!(engines(&daemon, setting, 0)?.0 == 2, "it has lost its image");
    apply(&daemon, "one.soft")?;
    daemon.stop()?;
    let daemon = cards_in(setting, &first, hardware)?;
    let verified = flash(&daemon, setting, "verify balboa0").run()?.code(8)?;
    verified.complains("its shell has 1 vFPGAs, and two.soft has 2 by its manifest")?;
    let told = balboa(&daemon, setting, "doctor")?.code(1)?;
    told.says("balboa0 needs to be flashed again")?.says("balboa flash rollback balboa0")?;
    let refused = daemon.run("ibv_devinfo -d balboa0").run()?;
    ensure!(!refused.status.success(), "a card without a known image is opened: {refused}");
    flash(&daemon, setting, "rollback balboa0 --yes").run()?.success()?;
    ensure!(engines(&daemon, setting, 0)? == (2, "two.soft".into()));
    pingpong(&daemon, "")?;
    apply(&daemon, "four.soft")?;
    daemon.stop()
}

fn reset(setting: &Setting, hardware: Hardware) -> Result<()> {
    let daemon = cards(setting, hardware)?;
    balboa(&daemon, setting, "reset balboa0")?.code(1)?.complains("say --yes")?;
    let mut program = daemon.mortal("survive epoll --card").start()?;
    said(&mut program, "waiting")?;
    let told = balboa(&daemon, setting, "reset balboa0 --yes")?.success()?;
    told.says("balboa0 was reset; 1 programs still have the former card open")?;
    balboa(&daemon, setting, "reset balboa1 --yes")?.success()?;
    said(&mut program, "told")?;
    said(&mut program, "again")?;
    program.wait()?.success()?;
    pingpong(&daemon, "-e")?;
    balboa(&daemon, setting, "reset balboa0 --yes")?.success()?.says("balboa0 was reset\n")?;
    pingpong(&daemon, "")?;
    daemon.stop()
}

/// The doctor's finding by one of its checks: the verdict, and all of the line.
fn finding(finished: &Finished, check: &str, of: &str) -> Result<(String, String)> {
    let document: Value = serde_json::from_str(&finished.stdout)?;
    let checks = document["checks"].as_array().context("no checks")?;
    let mut found = checks.iter().filter(|it| it["check"] == check);
    let says = |it: &Value| it["says"].as_str().unwrap_or_default().to_owned();
    let it =
        found.find(|it| says(it).contains(of)).with_context(|| format!("{check}: {finished}"))?;
    let verdict = it["verdict"].as_str().unwrap_or_default().to_owned();
    Ok((verdict, format!("{}: {}", says(it), it["mend"].as_str().unwrap_or_default())))
}

/// Each check of cards behind VFIO is made to fail, and its advice is followed.
fn doctor(setting: &Setting, hardware: Hardware) -> Result<()> {
    drivers(hardware)?;
    let arguments = bound_for(setting, setting.uid())?;
    let daemon = setting.balboad(&arguments)?;
    let examined = || balboa(&daemon, setting, "doctor --json");
    let is = |check: &str, of: &str, verdict: &str, says: &str| -> Result<String> {
        let (found, line) = finding(&examined()?, check, of)?;
        let as_wanted = found == verdict && line.contains(says);
        ensure!(as_wanted, "{check}, {of}: {verdict} with {says:?} is wanted, not {found}: {line}");
        Ok(line)
    };
    let [card, other] = functions()?.try_into().map_err(|it| anyhow::anyhow!("cards {it:?}"))?;
    for (check, of) in [
        ("balboad", "serves"),
        ("IOMMU", &*card),
        ("vfio-pci", &card),
        ("permissions", &card),
        ("engine", "balboa0"),
        ("link", "balboa0"),
        ("GID", "balboa0"),
        ("contract", "balboa0"),
    ] {
        is(check, of, "ok", "")?;
    }
    is("FEC", "balboa0", "nothing", "software card")?;
    is("ptrace", "", "ok", "")?;

    // Locked memory: that of a program started here, and the advice is ulimit.
    let limited = Task::new("prlimit").arg("--memlock=65536:65536").arg(setting.bin.join("balboa"));
    let limited = limited.words("doctor --json --state-dir").arg(daemon.state_dir());
    let limited = limited.user(Some(setting.uid())).run()?;
    let (verdict, line) = finding(&limited, "memlock", "")?;
    ensure!(verdict == "wrong" && line.contains("ulimit -l"), "{line}");
    is("memlock", "", "ok", "")?;

    // The node of a card belongs to another user; chown is the advice.
    let nodes: Vec<String> = bind(setting, &card)?;
    for node in &nodes {
        chown(node, Some(0), None)?;
    }
    let told = is("permissions", &nodes[0], "wrong", "sudo chown $USER ")?;
    ensure!(nodes.iter().all(|node| told.contains(node)), "{told}");
    for node in &nodes {
        chown(node, Some(setting.uid()), None)?;
    }
    is("permissions", &card, "ok", "")?;
    daemon.stop()?;

    // The driver of a card; balboa bind is the advice.
    let state = setting.directory().join("none");
    let examined = || {
        let task = setting.built("balboa").words("doctor --json --state-dir").arg(&state);
        task.run()
    };
    unbind(&other)?;
    ensure!(driver(&other).is_none());
    let (verdict, line) = finding(&examined()?, "vfio-pci", &other)?;
    let advice = format!("sudo balboa bind {other}, then balboad --vfio {other}");
    ensure!(verdict == "wrong" && line.contains(&advice), "{line}");
    bind(setting, &other)?;
    let (verdict, line) = finding(&examined()?, "vfio-pci", &other)?;
    ensure!(verdict == "ok", "{line}");
    Ok(())
}

/// The server of a card is killed when the card has taken a part of an image.
fn died(setting: &Setting, hardware: Hardware) -> Result<()> {
    prepare(setting)?;
    let words = format!("image make --soft vqe,vqe,vqe -o long.soft --bytes {IMAGE} --sign key");
    setting.built("balboa").words(&words).run()?.success()?;
    let daemon = cards(setting, hardware)?;
    let record = daemon.state_dir().join("images").join(format!("{}.json", functions()?[0]));
    let tool = loop {
        let words = "apply balboa0 long.soft --keys keys --yes --force-disconnect";
        let mut tool = flash(&daemon, setting, words).start()?;
        has_begun(&mut tool);
        // Nothing goes on until the card is dead, if it is not at its end yet.
        daemon.signal(Signal::SIGSTOP)?;
        let record: Value = serde_json::from_str(&fs::read_to_string(&record)?)?;
        if !record["writing"].is_null() {
            break tool;
        }
        daemon.signal(Signal::SIGCONT)?;
        tool.wait()?.success()?;
    };
    have_host("kill", 0)?;
    daemon.signal(Signal::SIGCONT)?;
    after_death(setting, &daemon, tool).with_context(|| daemon.log())?;
    // To close a card that does not answer would take the kernel a minute, unless it takes it out.
    let remove = format!("1 > /sys/bus/pci/devices/{}/remove", functions()?[0]);
    asking_back(&remove)?.wait()?.success()?;
    let_go(&daemon, 1)?;
    daemon.stop()
}

/// The tool that loads the image is told of the card's death, nothing is claimed of the card, and the other one is
/// served.
fn after_death(setting: &Setting, daemon: &Daemon<'_>, tool: Running) -> Result<()> {
    let card =
        || Ok::<_, anyhow::Error>(json(flash(daemon, setting, "list --json"))?["cards"][0].clone());
    let told = tool.wait()?.code(8)?;
    told.complains("needs to be flashed again")?.complains("the card is gone")?;
    let listed = card()?;
    ensure!(listed["current"].is_null() && listed["writing"].is_null(), "{listed}");
    flash(daemon, setting, "verify balboa0").run()?.code(8)?;
    let doctor = balboa(daemon, setting, "doctor")?.code(1)?;
    doctor.says("balboa0 needs to be flashed again")?;
    // It cannot be given one before its server is back; that is told, and nothing is claimed.
    let again = flash(daemon, setting, "rollback balboa0 --yes").run()?;
    again.code(1)?.complains("the card is gone")?;
    balboa(daemon, setting, "reset balboa0 --yes")?.code(1)?.complains("the card is gone")?;
    ensure!(card()?["current"].is_null());
    let both = run_between((daemon, 1), (daemon, 1), "ibv_rc_pingpong -c -g 1 -n 100")?;
    both.client.says("100 iters in ").map(drop)
}
