//! Images of running cards: loaded, put back, refused, and the state of a card after deaths meanwhile.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;

use anyhow::{Context as _, Result, ensure};
use harness::pair::{free_port, run_between, start_server};
use harness::process::{Finished, Running, Task};
use harness::runner::Case;
use harness::setting::{Daemon, Setting};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::PERFTEST;
use super::image::{OTHER, put, put_keys};
use super::perftest::STEADY_CLOCK;

/// The family.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("flash/an image is loaded, put back and known again", &[PERFTEST], loaded),
        Case::new("flash/what is not for a card is refused by its reason", &[], refused),
        Case::new("flash/a person is asked, and only yes is yes", &[], asked),
        Case::new("flash/a program is told and disconnected", &[PERFTEST], disconnected),
        Case::new("flash/the tool or balboad is killed on the way", &[], |setting| {
            killed(setting, "vqe")
        }),
        Case::new("flash/the same with an image of another engine", &[], |setting| {
            killed(setting, "stock")
        }),
        Case::new("flash/cards become such as published, and back", &[PERFTEST], published),
        Case::new("flash/one vFPGA, under a program of another", &[PERFTEST], one_vfpga),
    ]
}

/// Bytes of an image of several chunks.
const LONG: u32 = 48 << 20;

/// `balboa flash` for a balboad.
pub(crate) fn flash(daemon: &Daemon<'_>, setting: &Setting, words: &str) -> Task {
    let (command, rest) = words.split_once(' ').unwrap_or((words, ""));
    let task = setting.built("balboa").arg("flash").arg(command);
    task.arg("--state-dir").arg(daemon.state_dir()).words(rest)
}

pub(crate) fn json(task: Task) -> Result<Value> {
    let finished = task.run()?.success()?;
    serde_json::from_str(&finished.stdout).with_context(|| format!("no JSON: {finished}"))
}

/// Puts keys in a folder, and makes signed images.
pub(crate) fn prepare(setting: &Setting) -> Result<()> {
    put_keys(setting)?;
    for (name, logic) in [
        ("one", "vqe"),
        ("two", "vqe,vqe"),
        ("five", "vqe,vqe,vqe,vqe,vqe"),
        ("published", "stock,stock"),
    ] {
        let words = format!("image make --soft {logic} -o {name}.soft --sign key");
        setting.built("balboa").words(&words).run()?.success()?;
    }
    Ok(())
}

/// The engines of a card, and the name of its image.
pub(crate) fn engines(
    daemon: &Daemon<'_>,
    setting: &Setting,
    card: u32,
) -> Result<(usize, String)> {
    let task = setting.built("balboa").arg("show").arg("--state-dir").arg(daemon.state_dir());
    let shown = json(task.words(&format!("balboa{card} --json")))?;
    let windows = shown["card"]["windows"].as_array().context("no windows")?.len();
    Ok((windows, shown["card"]["image"].as_str().unwrap_or_default().to_owned()))
}

fn loaded(setting: &Setting) -> Result<()> {
    prepare(setting)?;
    let daemon = setting.balboad("--soft 2")?;
    let balboa = |words: &str| flash(&daemon, setting, words);
    balboa("history balboa0").run()?.success()?.says("balboa0 was never flashed")?;
    balboa("verify balboa0").run()?.success()?.says("balboa0 is what its record says")?;
    let plan = balboa("plan balboa0 two.soft --keys keys").run()?.success()?;
    plan.says("current   software card: vqe, vqe, vqe, vqe (113 bytes,")?
        .says("incoming  two.soft: vqe, vqe (81 bytes,")?
        .says("signed by keys/site.pub")?
        .says("programs  none has it open")?;
    let dry = "apply balboa0 two.soft --keys keys --dry-run --yes";
    balboa(dry).run()?.success()?.says("incoming  two.soft")?;
    let asked = balboa("apply balboa0 two.soft --keys keys").run()?.code(1)?;
    asked.complains("cannot ask for confirmation, for standard input is no terminal")?;
    let asked = balboa("apply balboa0 two.soft --keys keys --json").at_terminal();
    asked.run()?.code(1)?.complains("cannot ask for confirmation with --json")?;
    ensure!(engines(&daemon, setting, 0)?.0 == 4, "a plan changed the card");
    let task = setting.built("balboa").words("addr --state-dir").arg(daemon.state_dir());
    task.words("balboa0 add 10.88.0.1").run()?.success()?;

    let told = balboa("apply balboa0 two.soft --keys keys --yes").run()?.success()?;
    told.says("balboa0 has the image two.soft, and was brought up with it")?;
    ensure!(engines(&daemon, setting, 0)? == (2, "two.soft".into()));
    run_between((&daemon, 0), (&daemon, 1), "ib_write_bw -F -x 1 -n 100")?;
    run_between((&daemon, 1), (&daemon, 0), "ib_write_bw -F -x 1 -n 100")?;
    let show = setting.built("balboa").words("show --state-dir").arg(daemon.state_dir());
    let shown = json(show.words("balboa0 --json"))?;
    ensure!(shown["card"]["gids"][2] == "::ffff:10.88.0.1", "its addresses: {shown}");
    balboa("verify balboa0 two.soft").run()?.success()?;
    balboa("verify balboa0 one.soft").run()?.code(5)?.complains("and balboa0 has two.soft")?;
    let document = json(balboa("apply balboa1 one.soft --keys keys --yes --json"))?;
    ensure!(document["done"] == true && document["incoming"]["logic"][0] == "vqe", "{document}");
    let told = balboa("rollback balboa0 --yes").run()?.success()?;
    told.says("balboa0 has the image software card again")?;
    ensure!(engines(&daemon, setting, 0)?.0 == 4);
    balboa("rollback balboa0 --yes").run()?.success()?;
    let list = json(balboa("list --json"))?;
    ensure!(list["cards"][0]["current"]["name"] == "two.soft", "{list}");
    ensure!(list["cards"][0]["previous"]["name"] == "software card", "{list}");
    let history = json(balboa("history balboa0 --json"))?;
    let deeds: Vec<_> = history["history"].as_array().into_iter().flatten().collect();
    ensure!(deeds.len() == 3 && deeds.iter().all(|it| it["failed"].is_null()), "{history}");
    balboa("history balboa0").run()?.success()?.says("rollback")?;
    // The next balboad has the same cards, with their addresses as they are given.
    let state = daemon.state_dir().to_owned();
    daemon.stop()?;
    let daemon = setting.balboad_in(&state, "--soft 2")?;
    ensure!(engines(&daemon, setting, 0)? == (2, "two.soft".into()));
    ensure!(engines(&daemon, setting, 1)? == (1, "one.soft".into()));
    run_between((&daemon, 0), (&daemon, 1), "ib_write_bw -F -x 1 -n 100")?;
    daemon.stop()
}

fn refused(setting: &Setting) -> Result<()> {
    prepare(setting)?;
    let daemon = setting.balboad("--soft 1")?;
    refuses(setting, &daemon, &["plan", "apply"])?;
    let task = flash(&daemon, setting, "apply balboa7 two.soft --keys keys --yes");
    task.run()?.code(1)?.complains("has no balboa7")?;
    let task = flash(&daemon, setting, "rollback balboa0 --yes");
    task.run()?.code(1)?.complains("had no other image")?;
    for (file, code, why) in [("none.soft", 1, "No such file"), ("cut.soft", 4, "it is truncated")]
    {
        let verify = flash(&daemon, setting, &format!("verify balboa0 {file}"));
        let inspect = setting.built("balboa").words("flash inspect").arg(file);
        for task in [verify, inspect] {
            task.run()?.code(code)?.complains(why)?;
        }
    }
    ensure!(engines(&daemon, setting, 0)?.0 == 4, "what was refused changed the card");
    let task = flash(&daemon, setting, "apply balboa0 unsigned.soft --allow-unsigned --yes");
    task.run()?.success()?.says("signed by nobody")?;
    ensure!(engines(&daemon, setting, 0)?.0 == 2);
    // What loads images of whole devices is told, and not run.
    let inspected = setting.built("balboa").words("flash inspect two.soft --keys keys").run()?;
    inspected.success()?.says("signed_by    keys/site.pub")?;
    daemon.stop()
}

fn asked(setting: &Setting) -> Result<()> {
    prepare(setting)?;
    let daemon = setting.balboad("--soft 1")?;
    let answered = |words: &str, question: &str, answer: &str| -> Result<Finished> {
        let mut tool = flash(&daemon, setting, words).at_terminal().start()?;
        tool.wait_until("it asks", |it| it.output().contains(question))?;
        tool.type_in(answer)?;
        tool.wait()
    };
    let apply = ("apply balboa0 two.soft --keys keys", "Flash balboa0? [y/N] ");
    let rollback = ("rollback balboa0", "Put back the image that balboa0 had? [y/N] ");
    for ((words, question), (before, behind)) in [(apply, (4, 2)), (rollback, (2, 4))] {
        for answer in ["\n", "n\n", "yess\n", "\x04"] {
            let told = answered(words, question, answer)?.code(3)?;
            ensure!(told.stderr.is_empty(), "{told}");
            ensure!(engines(&daemon, setting, 0)?.0 == before, "{words} after {answer:?}");
        }
        answered(words, question, " Yes\n")?.success()?.says("balboa0 has the image ")?;
        ensure!(engines(&daemon, setting, 0)?.0 == behind, "{words}");
    }
    daemon.stop()
}

/// Each image that is not for the first card of queue engines is refused by each of the commands, with its reason.
pub(crate) fn refuses(setting: &Setting, daemon: &Daemon<'_>, commands: &[&str]) -> Result<()> {
    let put = |name: &str, bytes: &[u8]| put(setting, name, bytes);
    let at = |name: &str| setting.directory().join(name);
    let good = fs::read(at("two.soft"))?;
    let mut spoilt = good.clone();
    spoilt[60] ^= 1;
    put("cut.soft", &good[..80])?;
    put("spoilt.soft", &spoilt)?;
    put("unsigned.soft", &good)?;
    put("forged.soft", &good)?;
    fs::copy(at("one.soft.minisig"), at("forged.soft.minisig"))?;
    fs::create_dir(at("others"))?;
    put("others/other.pub", OTHER.as_bytes())?;
    for (file, logic) in [("none-9", "vqe --vfpga 9"), ("other-1", "stock --vfpga 1")] {
        let words = format!("image make --soft {logic} -o {file}.soft --sign key");
        setting.built("balboa").words(&words).run()?.success()?;
    }
    let words: [u32; 5] = [0xaa99_5566, 0x3001_8001, 0x14b7_d093, 0x3000_8001, 13];
    put("shell.bin", &words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<_>>())?;
    for (words, code, why) in [
        ("cut.soft --allow-unsigned", 4, "it is truncated: it says 81 bytes and has 80"),
        ("spoilt.soft --allow-unsigned", 4, "its SHA-256 is "),
        (
            "shell.bin --allow-unsigned",
            5,
            "for xcu55c or xcu280, and balboa0 is a Balboa software card",
        ),
        (
            "five.soft --keys keys",
            5,
            "has logic for 5 vFPGAs, and the shell of balboa0 has room for 4",
        ),
        ("none-9.soft --keys keys", 5, "of vFPGA 9, in which balboad drives no engine"),
        ("other-1.soft --keys keys", 5, "wants another network"),
        ("unsigned.soft --keys keys", 6, "--allow-unsigned does without"),
        ("forged.soft --keys keys --allow-unsigned", 6, "by none of the keys, or of other bytes"),
        ("two.soft --keys others", 6, "by none of the keys, or of other bytes"),
        ("two.soft --keys nothing", 6, "nothing has no key"),
        ("none.soft", 1, "none.soft"),
    ] {
        for command in commands {
            let yes = if *command == "apply" { "--yes" } else { "" };
            let task = flash(daemon, setting, &format!("{command} balboa0 {words} {yes}"));
            task.run()?.code(code)?.complains(why).with_context(|| words.to_owned())?;
        }
    }
    ensure!(engines(daemon, setting, 0)?.0 == 4, "what was refused changed the card");
    Ok(())
}

fn disconnected(setting: &Setting) -> Result<()> {
    prepare(setting)?;
    let daemon = setting.balboad("--soft 2")?;
    let port = free_port()?;
    let side = |card: u32| daemon.run(&format!("ib_write_bw -d balboa{card} -x 1 -D 60 -p {port}"));
    let server = start_server(side(0), port)?;
    let mut client = side(1).arg("127.0.0.1").start()?;
    client.wait_until("data moved", |_| written_to(&daemon, setting, 0).is_ok_and(|it| it > 0))?;
    for command in ["plan balboa0 two.soft --keys keys", "apply balboa0 two.soft --keys keys --yes"]
    {
        let told = flash(&daemon, setting, command).run()?.code(7)?;
        told.complains("ib_write_bw has balboa0 open: end it, or say --force-disconnect")?;
    }
    let told =
        flash(&daemon, setting, "plan balboa0 two.soft --keys keys --json").run()?.code(7)?;
    let plan: Value = serde_json::from_str(&told.stdout)?;
    ensure!(plan["refused"]["code"] == 7 && plan["programs"][0]["command"] == "ib_write_bw");
    ensure!(engines(&daemon, setting, 0)?.0 == 4, "a card was flashed under a program");
    let command = "apply balboa0 two.soft --keys keys --force-disconnect --yes";
    let told = flash(&daemon, setting, command).run()?.success()?;
    told.says("told that the device is gone")?.says("balboa0 has the image two.soft")?;
    let client = client.wait()?;
    ensure!(!client.status.success(), "its peer's card was flashed: {client}");
    // A server of perftest waits for a completion, and not for the event of a lost device.
    server.signal(Signal::SIGKILL)?;
    server.wait()?;
    run_between((&daemon, 0), (&daemon, 1), "ib_write_bw -F -x 1 -n 100")?;
    daemon.stop()
}

/// The driver of a card.
pub(crate) fn driven_as(daemon: &Daemon<'_>, card: usize) -> Result<String> {
    let status = daemon.status()?;
    Ok(status["cards"][card]["engine"].as_str().context("no engine")?.to_owned())
}

/// Two cards become published ones and back beside a program of another balboad's card, and transfer data in each
/// state.
fn published(setting: &Setting) -> Result<()> {
    prepare(setting)?;
    let daemon = setting.balboad("--soft 3 --watchdog 20000")?;
    let on_it = |words: &str| flash(&daemon, setting, words).run();
    let port = free_port()?;
    let side = |_: u32| daemon.run(&format!("ib_write_bw -d balboa2 -x 1 -D 4 -p {port}"));
    let bystander = start_server(side(0), port)?;
    let bystanders = side(1).arg("127.0.0.1").start()?;
    let mut program = daemon.mortal("survive async-event --card").start()?;
    program.wait_until("it waits", |it| it.output().contains("waiting"))?;
    let told = on_it("apply balboa0 published.soft --keys keys --yes")?.code(7)?;
    told.complains("has balboa0 open: end it, or say --force-disconnect")?;
    for card in [0, 1] {
        let words = format!("apply balboa{card} published.soft --keys keys --force-disconnect");
        on_it(&format!("{words} --yes"))?.success()?.says("has the image published.soft")?;
        ensure!(driven_as(&daemon, card)? == "stock");
        on_it(&format!("verify balboa{card} published.soft"))?.success()?;
    }
    // It opens its card again, which is another one now.
    program.wait_until("it was told", |it| it.output().contains("told"))?;
    program.wait()?;
    bystanders.wait()?.success()?;
    bystander.wait()?.success()?;
    for command in ["ib_write_bw -n 100", "ib_read_bw -n 50"] {
        run_between((&daemon, 0), (&daemon, 1), &format!("{command} {STEADY_CLOCK}"))?;
    }
    for (number, card) in [(0, "balboa0"), (1, "balboa1")] {
        on_it(&format!("rollback {card} --yes"))?.success()?;
        ensure!(driven_as(&daemon, number)? == "vqe");
    }
    run_between((&daemon, 0), (&daemon, 1), "ib_send_bw -F -x 1 -n 100")?;
    run_between((&daemon, 1), (&daemon, 2), "ib_write_bw -F -x 1 -n 100")?;
    // A tunnel's ends are settled when balboad starts.
    on_it("apply balboa0 published.soft --keys keys --yes")?.success()?;
    let state = daemon.state_dir().to_owned();
    daemon.stop()?;
    let daemon = setting.balboad_in(&state, "--soft 3 --tunnel on")?;
    ensure!(driven_as(&daemon, 0)? == "stock");
    let told = flash(&daemon, setting, "rollback balboa0 --yes").run()?.code(1)?;
    told.complains("start balboad without --tunnel")?;
    ensure!(driven_as(&daemon, 0)? == "stock");
    daemon.stop()
}

/// The vFPGA of the first card in which a program has its place.
fn vfpga_of(daemon: &Daemon<'_>, command: &str) -> Result<u64> {
    let status = daemon.status()?;
    let mut clients = status["clients"].as_array().into_iter().flatten();
    let client = clients.find(|it| it["command"] == command).context("it has gone")?;
    let mut places = client["places"].as_array().into_iter().flatten();
    let place = places.find(|it| it["card"] == 0).context("no place")?;
    place["window"].as_u64().context("no window")
}

/// The program of a flashed vFPGA is told; a transfer by another vFPGA of the card goes on.
fn one_vfpga(setting: &Setting) -> Result<()> {
    prepare(setting)?;
    let daemon = setting.balboad("--soft 2")?;
    beside_another(setting, &daemon)?;
    // balboad dies on the way: the next one has the card as its whole image makes it.
    let state = daemon.state_dir().to_owned();
    let told = dies_on_the_way(setting, daemon)?;
    let daemon = setting.balboad_in(&state, "--soft 2")?;
    let history = json(flash(&daemon, setting, "history balboa0 --json"))?;
    let last = history["history"].as_array().and_then(|it| it.last()).context("no history")?;
    ensure!(last["image"]["vfpga"] == 3, "{last}");
    match last["failed"].as_str() {
        // It may have been done just before.
        None => {}
        Some(why) => ensure!(
            !told.status.success() && why.contains("balboad ended while the image was on its way"),
            "{why} after {told}"
        ),
    }
    flash(&daemon, setting, "verify balboa0").run()?.success()?;
    ensure!(engines(&daemon, setting, 0)?.0 == 4);
    run_between((&daemon, 0), (&daemon, 1), "ib_write_bw -F -x 1 -n 100")?;
    daemon.stop()
}

/// Makes the image of one vFPGA alone, `one-N.soft`.
fn make_one(setting: &Setting, vfpga: u64, more: &str) -> Result<()> {
    let words = format!("image make --soft vqe --vfpga {vfpga} -o one-{vfpga}.soft {more}");
    setting.built("balboa").words(&words).run()?.success().map(drop)
}

/// Kills balboad while the first card takes an image of vFPGA 3; gives the tool's output.
pub(crate) fn dies_on_the_way(setting: &Setting, daemon: Daemon<'_>) -> Result<Finished> {
    make_one(setting, 3, &format!("--bytes {LONG} --sign key"))?;
    let mut tool = flash(&daemon, setting, "apply balboa0 one-3.soft --keys keys --yes").start()?;
    let begun = has_begun(&mut tool);
    daemon.kill()?;
    let told = tool.wait()?;
    ensure!(begun, "the card took nothing: {told}");
    Ok(told)
}

/// How many WRITE requests have come to a card.
pub(crate) fn written_to(daemon: &Daemon<'_>, setting: &Setting, card: u32) -> Result<u64> {
    let task = setting.built("balboa").words("counters --state-dir").arg(daemon.state_dir());
    let counters = json(task.words(&format!("balboa{card} --json")))?;
    counters["counters"]["rx_write_requests"].as_u64().context("no count of WRITEs")
}

/// Flashes the vFPGA of one program, while one of perftest's moves data by another vFPGA of the card.
pub(crate) fn beside_another(setting: &Setting, daemon: &Daemon<'_>) -> Result<()> {
    let on_it = |words: &str| flash(daemon, setting, words).run();
    let port = free_port()?;
    let side = |card: u32| {
        daemon.run(&format!("ib_write_bw -F -d balboa{card} -x 1 -D 5 --run_infinitely -p {port}"))
    };
    let server = start_server(side(0), port)?;
    let mut client = side(1).arg("127.0.0.1").start()?;
    let written = || written_to(daemon, setting, 0);
    client.wait_until("data moved", |_| written().is_ok_and(|it| it > 0))?;
    let mut program = daemon.mortal("survive async-event --card").start()?;
    program.wait_until("it waits", |it| it.output().contains("waiting"))?;
    let vfpga = vfpga_of(daemon, "verbs-mortal")?;
    ensure!(vfpga != vfpga_of(daemon, "ib_write_bw")?, "both are in vFPGA {vfpga}");
    make_one(setting, vfpga, "--sign key")?;
    let file = format!("balboa0 one-{vfpga}.soft --keys keys");
    let plan = on_it(&format!("plan {file} --force-disconnect"))?.success()?;
    plan.says(&format!("vFPGA {vfpga} alone, vqe"))?.says("programs  verbs-mortal (")?;
    let told = on_it(&format!("apply {file} --yes"))?.code(7)?;
    told.complains("verbs-mortal has balboa0 open")?;
    let told = on_it(&format!("apply {file} --yes --force-disconnect"))?.success()?;
    told.says(&format!("vFPGA {vfpga} of balboa0 has the image one-{vfpga}.soft"))?;
    program.wait_until("it was told", |it| it.output().contains("told"))?;
    program.signal(Signal::SIGKILL)?;
    program.wait()?;
    let before = written()?;
    client.wait_until("data moved on", |_| written().is_ok_and(|it| it > before))?;
    // A side ends by itself where the other one does.
    for side in [&client, &server] {
        side.signal(Signal::SIGSTOP)?;
    }
    for side in [client, server] {
        side.signal(Signal::SIGKILL)?;
        let ended = side.wait()?;
        ensure!(ended.status.signal() == Some(Signal::SIGKILL as i32), "it ended before: {ended}");
    }
    let told = on_it(&format!("verify balboa0 one-{vfpga}.soft"))?.code(1)?;
    told.complains(&format!("it is of vFPGA {vfpga} alone"))?;
    on_it("verify balboa0")?.success()?;
    ensure!(engines(daemon, setting, 0)?.0 == 4);
    Ok(())
}

/// Waits until a card has taken a part of an image; false where the tool has ended before that was seen.
pub(crate) fn has_begun(tool: &mut Running) -> bool {
    tool.wait_until("the card took something", |it| it.output().contains("balboa0: ")).is_ok()
}

/// After any kill, the card has the old image, the new one, or needs to be flashed again and says so.
fn killed(setting: &Setting, logic: &str) -> Result<()> {
    prepare(setting)?;
    let logic = [logic; 3].join(",");
    let words = format!("image make --soft {logic} -o long.soft --bytes {LONG} --sign key");
    setting.built("balboa").words(&words).run()?.success()?;
    let apply = "apply balboa0 long.soft --keys keys --yes";

    // The tool dies as soon as the card has taken something: balboad goes on.
    let daemon = setting.balboad("--soft 1")?;
    let mut tool = flash(&daemon, setting, apply).start()?;
    if has_begun(&mut tool) {
        tool.signal(Signal::SIGKILL)?;
    }
    tool.wait()?;
    let state = daemon.state_dir().to_owned();
    let follow = || json(flash(&daemon, setting, "list --json"));
    let begun = std::time::Instant::now();
    loop {
        let card = &follow()?["cards"][0];
        if card["writing"].is_null() {
            ensure!(card["current"]["name"] == "long.soft" && card["needs"].is_null(), "{card}");
            break;
        }
        ensure!(begun.elapsed().as_secs() < 120, "it does not come to an end: {card}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    flash(&daemon, setting, "verify balboa0 long.soft").run()?.success()?;
    flash(&daemon, setting, "rollback balboa0 --yes").run()?.success()?;

    // balboad dies while the card takes it; the next one knows.
    let mut tool = flash(&daemon, setting, apply).start()?;
    has_begun(&mut tool);
    daemon.kill()?;
    let told = tool.wait()?;
    let daemon = setting.balboad_in(&state, "--soft 1")?;
    let card = &json(flash(&daemon, setting, "list --json"))?["cards"][0];
    match card["needs"].as_str() {
        // It may have been done just before.
        None => ensure!(card["current"]["name"] == "long.soft", "{card} after {told}"),
        Some(needs) => {
            ensure!(!told.status.success(), "success was told of {card}: {told}");
            ensure!(needs.contains("balboad ended while the image was on its way"), "{card}");
            let verified = flash(&daemon, setting, "verify balboa0").run()?.code(8)?;
            verified.complains("needs to be flashed again")?;
            let doctor = setting.built("balboa").words("doctor --state-dir").arg(&state).run()?;
            doctor.code(1)?.says("balboa0 needs to be flashed again")?;
            let listed = flash(&daemon, setting, "list").run()?.success()?;
            listed.says("needs to be flashed again")?;
            flash(&daemon, setting, "rollback balboa0 --yes").run()?.success()?;
            ensure!(engines(&daemon, setting, 0)?.0 == 4);
        }
    }
    flash(&daemon, setting, "apply balboa0 two.soft --keys keys --yes").run()?.success()?;
    ensure!(engines(&daemon, setting, 0)?.0 == 2);
    daemon.stop()
}
