//! Bitstreams of shells, loaded into software cards that play FPGAs: the road of a real card's.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;

use anyhow::{Context as _, Result, ensure};
use harness::pair::{free_port, run_between, start_server};
use harness::runner::Case;
use harness::setting::{Daemon, Setting};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::PERFTEST;
use super::flash::{driven_as, engines, flash, has_begun, json, prepare, written_to};
use super::image::put;

/// Frames of a bitstream of several chunks.
const LONG: u32 = 24 << 20;
/// The options that such cards are started with.
const CARDS: &str = "--soft 2 --soft-fpga --manifest 0=held.toml --manifest 1=held.toml";

/// The family.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("shell/a bitstream is loaded, put back and known again", &[PERFTEST], loaded),
        Case::new("shell/what is not for a card is refused by its reason", &[], refused),
        Case::new("shell/one that is another than its manifest says", &[], another),
        Case::new("shell/balboad is killed on the way", &[], killed),
        Case::new(
            "shell/programs are told and disconnected, not those of another card",
            &[PERFTEST],
            under_programs,
        ),
    ]
}

/// A manifest of the model's part, with a file of a digest or without one.
fn manifest(engine: &str, regions: usize, file: Option<&Value>) -> String {
    let head = format!(
        "format = 1\nname = \"{engine} {regions}\"\nshell-map = \"since-2026\"\nengine = \"{engine}\"\nregions = {regions}\n\
         board = \"model\"\npart = \"balboa\"\nservices = [\"rdma\"]\n"
    );
    let Some(facts) = file else { return head };
    format!(
        "{head}verified = true\n[[files]]\nname = \"shell_top.bin\"\nkind = \"shell\"\nlength = {}\nsha256 = {}\n",
        facts["bytes"], facts["sha256"]
    )
}

/// Makes a signed bitstream NAME.bin, and its manifest NAME.toml.
fn make(setting: &Setting, name: &str, logic: &str, words: &str) -> Result<()> {
    let made = format!("image make --soft {logic} --bitstream -o {name}.bin --sign key {words}");
    setting.built("balboa").words(&made).run()?.success()?;
    let inspected = setting.built("balboa").words(&format!("image inspect {name}.bin --json"));
    let (engine, regions) = (logic.split(',').next().unwrap_or_default(), logic.split(',').count());
    put(setting, &format!("{name}.toml"), manifest(engine, regions, Some(&json(inspected)?)))?;
    sign(setting, &format!("{name}.toml"))
}

fn sign(setting: &Setting, name: &str) -> Result<()> {
    let words = format!("image sign {name} --key key");
    setting.built("balboa").words(&words).run()?.success().map(drop)
}

/// Makes keys, the manifest of the cards' shells, and bitstreams with their manifests.
pub(crate) fn prepare_shells(setting: &Setting) -> Result<()> {
    prepare(setting)?;
    put(setting, "held.toml", manifest("vqe", 4, None))?;
    for (name, logic) in [
        ("one", "vqe"),
        ("two", "vqe,vqe"),
        ("four", "vqe,vqe,vqe,vqe"),
        ("again", "vqe,vqe"),
        ("published", "stock,stock"),
    ] {
        // Another build of one of the others.
        make(setting, name, logic, if name == "again" { "--bytes 5000" } else { "" })?;
    }
    make(setting, "long", "vqe,vqe,vqe", &format!("--bytes {LONG}"))
}

/// The command that loads a bitstream into the first card.
pub(crate) fn apply(name: &str) -> String {
    format!("apply balboa0 {name}.bin --manifest {name}.toml --keys keys --yes")
}

fn loaded(setting: &Setting) -> Result<()> {
    prepare_shells(setting)?;
    let daemon = setting.balboad(CARDS)?;
    let balboa = |words: &str| flash(&daemon, setting, words);
    balboa("verify balboa0").run()?.success()?.says("balboa0 is what its manifest says")?;
    let plan = balboa("plan balboa0 two.bin --manifest two.toml --keys keys").run()?.success()?;
    plan.says("incoming  two.bin: vqe, vqe (")?
        .says("part      balboa, as the card's manifest says; the card does not")?
        .says("signed by keys/site.pub")?
        .says("manifest  vqe 2, signed by keys/site.pub")?;
    let task = setting.built("balboa").words("addr --state-dir").arg(daemon.state_dir());
    task.words("balboa0 add 10.88.0.1").run()?.success()?;

    let told = balboa(&apply("two")).run()?.success()?;
    told.says("balboa0 has the image two.bin, and was brought up with it")?;
    ensure!(engines(&daemon, setting, 0)? == (2, "vqe 2".into()));
    run_between((&daemon, 0), (&daemon, 1), "ib_write_bw -F -x 1 -n 100")?;
    let show = setting.built("balboa").words("show --state-dir").arg(daemon.state_dir());
    let shown = json(show.words("balboa0 --json"))?;
    ensure!(shown["card"]["gids"][2] == "::ffff:10.88.0.1", "its addresses: {shown}");
    balboa("verify balboa0 two.bin").run()?.success()?.says("is what its record says: two.bin")?;
    unseen(setting, &daemon)?;

    // Only another description by the shell shows that queue engines are gone, and that comes after loading.
    balboa(&apply("published")).run()?.code(10)?.complains("--allow-unseen")?;
    let told = balboa(&format!("{} --allow-unseen", apply("published"))).run()?.success()?;
    told.says("balboa0 has the image published.bin, and was brought up with it")?;
    ensure!(driven_as(&daemon, 0)? == "stock" && driven_as(&daemon, 1)? == "vqe");
    // Nor are queue engines foreseen where the card is driven as one without, for it may have kept its own.
    balboa("rollback balboa0 --yes").run()?.code(10)?.complains("--allow-unseen")?;
    let told = balboa("rollback balboa0 --yes --allow-unseen").run()?.success()?;
    told.says("balboa0 has the image two.bin again")?;
    run_between((&daemon, 1), (&daemon, 0), "ib_write_bw -F -x 1 -n 100")?;
    let history = json(balboa("history balboa0 --json"))?;
    let deeds: Vec<_> = history["history"].as_array().into_iter().flatten().collect();
    ensure!(deeds.len() == 6 && deeds.iter().all(|it| it["failed"].is_null()), "{history}");
    let state = daemon.state_dir().to_owned();
    daemon.stop()?;
    let daemon = setting.balboad_in(&state, CARDS)?;
    ensure!(engines(&daemon, setting, 0)? == (2, "vqe 2".into()));
    ensure!(engines(&daemon, setting, 1)?.0 == 4);
    run_between((&daemon, 0), (&daemon, 1), "ib_write_bw -F -x 1 -n 100")?;
    daemon.stop()
}

/// The loading of another build of the same image cannot be verified: a flag is asked for, and no line calls it
/// success.
fn unseen(setting: &Setting, daemon: &Daemon<'_>) -> Result<()> {
    let balboa = |words: &str| flash(daemon, setting, words).run();
    for words in [apply("again"), apply("again").replace("apply", "plan").replace(" --yes", "")] {
        let told = balboa(&words)?.code(10)?;
        told.complains("--allow-unseen loads it all the same")?
            .says("then      the card will say of itself what it may have said before")?;
    }
    balboa("verify balboa0 two.bin")?.success()?;
    let told = balboa(&format!("{} --allow-unseen", apply("again")))?.success()?;
    told.says("balboa0 was given again.bin, and came up; whether it has taken it was NOT SEEN")?;
    balboa("verify balboa0 again.bin")?.code(10)?.complains("NOT SEEN")?;
    balboa("list")?.success()?.says("not seen to have it")?;
    balboa("history balboa0")?.success()?.says("not seen")?;
    let history = json(flash(daemon, setting, "history balboa0 --json"))?;
    ensure!(history["history"][1]["unseen"] == true, "{history}");
    balboa("rollback balboa0 --yes")?.code(10)?.complains("--allow-unseen")?;
    // By way of another it is seen.
    balboa(&apply("four"))?.success()?;
    balboa(&apply("two"))?.success()?.says("balboa0 has the image two.bin")?;
    balboa("verify balboa0 two.bin")?.success().map(drop)
}

fn refused(setting: &Setting) -> Result<()> {
    prepare_shells(setting)?;
    let daemon = setting.balboad(&CARDS.replace(" --manifest 1=held.toml", ""))?;
    refuses(setting, &daemon)?;
    // No manifest names the part of the second card.
    let words = apply("two").replace("balboa0", "balboa1");
    let told = flash(&daemon, setting, &words).run()?.code(5)?;
    told.complains("start balboad with --manifest CARD=FILE")?;
    daemon.stop()
}

/// Each bitstream that is not for the first card is refused with its reason, and the card keeps its image.
pub(crate) fn refuses(setting: &Setting, daemon: &Daemon<'_>) -> Result<()> {
    let at = |name: &str| setting.directory().join(name);
    let good = fs::read(at("two.bin"))?;
    let text = fs::read_to_string(at("two.toml"))?;
    put(setting, "cut.bin", &good[..good.len() - 100])?;
    let mut spoilt = good.clone();
    spoilt[150] ^= 1;
    put(setting, "spoilt.bin", &spoilt)?;
    put(setting, "unsigned.bin", &good)?;
    put(setting, "untried.toml", text.replace("verified = true", "verified = false"))?;
    let u55c =
        text.replace("\"model\"", "\"u55c\"").replace("\"balboa\"", "\"xcu55c-fsvh2892-2L-e\"");
    put(setting, "u55c.toml", u55c)?;
    put(setting, "tcp.toml", text.replace("\"rdma\"", "\"tcp\""))?;
    let app = text.replace("kind = \"shell\"", "kind = \"vfpga\"\nregion = 0");
    put(setting, "app.toml", app)?;
    for name in ["untried.toml", "u55c.toml", "tcp.toml", "app.toml"] {
        sign(setting, name)?;
    }
    put(setting, "unsigned.toml", &text)?;
    put(setting, "two.txt", &text)?;
    // The signed manifest's author had not seen the shell work.
    put(setting, "forged.toml", text.replace("vqe 2", "vqe 7"))?;
    fs::copy(at("two.toml.minisig"), at("forged.toml.minisig"))?;
    let words: [u32; 7] = [0xaa99_5566, 0x3001_8001, 0x0ba1_b001, 0x3001_2001, 0, 0x3000_8001, 5];
    let end: [u32; 2] = [0x3000_8001, 13];
    let whole: Vec<u8> = words.iter().chain(&end).flat_map(|word| word.to_be_bytes()).collect();
    put(setting, "full.bin", whole)?;
    for (words, code, why) in [
        ("cut.bin --manifest unsigned.toml --allow-unsigned", 4, "it is truncated"),
        (
            "spoilt.bin --manifest unsigned.toml --allow-unsigned",
            4,
            "is no shell of the manifest vqe 2",
        ),
        ("one.bin --manifest two.toml --keys keys", 4, "is no shell of the manifest vqe 2"),
        ("two.bin --keys keys", 5, "say --manifest FILE"),
        ("two.bin --manifest u55c.toml --keys keys", 5, "and its manifest is xcu55c's"),
        ("two.bin --manifest tcp.toml --keys keys", 5, "names no service rdma"),
        ("two.bin --manifest app.toml --keys keys", 5, "it is of one vFPGA by the manifest vqe 2"),
        ("full.bin --manifest unsigned.toml --allow-unsigned", 5, "a bitstream of a whole device"),
        ("two.soft --keys keys", 5, "it is a software card's, and balboa0 is a "),
        ("unsigned.bin --manifest unsigned.toml --keys keys", 6, "--allow-unsigned does without"),
        ("two.bin --manifest two.txt --keys keys", 1, "call it NAME.toml"),
        ("two.bin --manifest unsigned.toml --keys keys", 6, "unsigned.toml.minisig is not there"),
        (
            "two.bin --manifest forged.toml --keys keys --allow-unsigned",
            6,
            "forged.toml: its signature is by none of the keys, or of other bytes",
        ),
        ("two.bin --manifest two.toml --keys nothing", 6, "nothing has no key"),
        (
            "two.bin --manifest untried.toml --keys keys",
            9,
            "--allow-unverified loads it all the same",
        ),
    ] {
        for command in ["plan", "apply"] {
            let yes = if command == "apply" { "--yes" } else { "" };
            let task = flash(daemon, setting, &format!("{command} balboa0 {words} {yes}"));
            task.run()?.code(code)?.complains(why).with_context(|| words.to_owned())?;
        }
    }
    ensure!(engines(daemon, setting, 0)?.0 == 4, "what was refused changed the card");
    // Whoever has signed the manifest has signed the digest of the bitstream.
    let words = "plan balboa0 unsigned.bin --manifest two.toml --keys keys";
    let told = flash(daemon, setting, words).run()?.success()?;
    told.says("signed by nobody")?.says("manifest  vqe 2, signed by keys/site.pub")?;
    let words =
        "apply balboa0 two.bin --manifest untried.toml --keys keys --yes --allow-unverified";
    flash(daemon, setting, words)
        .run()?
        .success()?
        .says("verified  no: nobody has seen it work")?;
    ensure!(engines(daemon, setting, 0)?.0 == 2);
    Ok(())
}

/// A loaded shell counts only if the card's answers afterwards agree with it.
fn another(setting: &Setting) -> Result<()> {
    prepare_shells(setting)?;
    let daemon = setting.balboad(CARDS)?;
    is_another(setting, &daemon)?;
    daemon.stop()
}

/// A shell that differs from its manifest, and one whose frames have another sum, are no success; the next one mends
/// it.
pub(crate) fn is_another(setting: &Setting, daemon: &Daemon<'_>) -> Result<()> {
    let at = |name: &str| setting.directory().join(name);
    let mut spoilt = fs::read(at("two.bin"))?;
    spoilt[150] ^= 1;
    put(setting, "spoilt.bin", &spoilt)?;
    let facts =
        |name: &str| json(setting.built("balboa").words(&format!("image inspect {name} --json")));
    put(setting, "spoilt.toml", manifest("vqe", 2, Some(&facts("spoilt.bin")?)))?;
    put(setting, "three.toml", manifest("vqe", 3, Some(&facts("two.bin")?)))?;
    for (file, manifest, why, (mend, count)) in [
        ("spoilt.bin", "spoilt.toml", "its shell reads all ones", ("one", 1)),
        ("two.bin", "three.toml", "its shell has 2 vFPGAs, and vqe 3 has 3", ("four", 4)),
    ] {
        let words = format!(
            "apply balboa0 {file} --manifest {manifest} --allow-unsigned --keys keys --yes"
        );
        let told = flash(daemon, setting, &words).run()?.code(8)?;
        told.complains("it needs to be flashed again")?.complains(why)?;
        flash(daemon, setting, "verify balboa0").run()?.code(8)?;
        let opened = daemon.run("ibv_devinfo -d balboa0").run()?;
        ensure!(!opened.status.success(), "a card without a shell is opened: {opened}");
        // The card's description afterwards cannot be distinguished from its description before.
        let mends = apply(mend);
        flash(daemon, setting, &mends).run()?.code(10)?.complains("--allow-unseen")?;
        flash(daemon, setting, &format!("{mends} --allow-unseen")).run()?.success()?;
        ensure!(engines(daemon, setting, 0)?.0 == count);
        flash(daemon, setting, &format!("verify balboa0 {mend}.bin")).run()?.code(10)?;
    }
    Ok(())
}

/// A program of the card is told that it is gone before it goes, and works with the next shell; one that does not listen
/// loses it all the same; a transfer between two other cards goes on.
fn under_programs(setting: &Setting) -> Result<()> {
    prepare_shells(setting)?;
    let cards = CARDS.replace("--soft 2", "--soft 3");
    let daemon = setting.balboad(&format!("{cards} --manifest 2=held.toml"))?;
    let on_it = |words: &str| flash(&daemon, setting, words).run();
    let (port, other) = (free_port()?, free_port()?);
    let side = |card: u32, words: &str, port: u16| {
        daemon.run(&format!("ib_write_bw -F -d balboa{card} -x 1 -D 5 {words} -p {port}"))
    };
    let far = start_server(side(2, "--run_infinitely", port), port)?;
    let mut near = side(1, "--run_infinitely", port).arg("127.0.0.1").start()?;
    let written = || written_to(&daemon, setting, 2);
    near.wait_until("data moved", |_| written().is_ok_and(|it| it > 0))?;
    let deaf = start_server(side(0, "", other), other)?;
    let mut program = daemon.mortal("survive async-event --card").start()?;
    program.wait_until("it waits", |it| it.output().contains("waiting"))?;

    for words in [apply("two"), apply("two").replace("apply", "plan").replace(" --yes", "")] {
        let told = on_it(&words)?.code(7)?;
        told.complains("have balboa0 open: end them, or say --force-disconnect")?;
    }
    ensure!(engines(&daemon, setting, 0)?.0 == 4, "a shell was loaded under programs");
    let told = on_it(&format!("{} --force-disconnect", apply("two")))?.success()?;
    told.says("told that the device is gone, and ended where they keep it open")?
        .says("balboa0 has the image two.bin, and was brought up with it")?;
    program.wait_until("it was told", |it| it.output().contains("told"))?;
    program.wait()?.success()?;
    // It waits for a peer, without its card.
    deaf.signal(Signal::SIGKILL)?;
    deaf.wait()?;
    let before = written()?;
    near.wait_until("data moved on", |_| written().is_ok_and(|it| it > before))?;
    // A side ends by itself where the other one does.
    for side in [&near, &far] {
        side.signal(Signal::SIGSTOP)?;
    }
    for side in [near, far] {
        side.signal(Signal::SIGKILL)?;
        let ended = side.wait()?;
        ensure!(ended.status.signal() == Some(Signal::SIGKILL as i32), "it ended before: {ended}");
    }
    ensure!(engines(&daemon, setting, 0)?.0 == 2 && engines(&daemon, setting, 2)?.0 == 4);
    run_between((&daemon, 0), (&daemon, 1), "ib_write_bw -F -x 1 -n 100")?;
    daemon.stop()
}

fn killed(setting: &Setting) -> Result<()> {
    prepare_shells(setting)?;
    let daemon = setting.balboad(CARDS)?;
    flash(&daemon, setting, &apply("two")).run()?.success()?;
    let state = daemon.state_dir().to_owned();
    dies(setting, daemon)?;
    let daemon = setting.balboad_in(&state, CARDS)?;
    after_death(setting, &daemon)?;
    daemon.stop()
}

/// balboad dies while the first card takes a bitstream.
pub(crate) fn dies(setting: &Setting, daemon: Daemon<'_>) -> Result<()> {
    let mut tool = flash(&daemon, setting, &apply("long")).start()?;
    has_begun(&mut tool);
    daemon.kill()?;
    tool.wait().map(drop)
}

/// The next balboad reports the card's state as far as it is known, and puts the old image back.
pub(crate) fn after_death(setting: &Setting, daemon: &Daemon<'_>) -> Result<()> {
    let card = &json(flash(daemon, setting, "list --json"))?["cards"][0];
    let seen = match card["needs"].as_str() {
        // It may have been done just before.
        None => {
            ensure!(card["current"]["name"] == "long.bin", "{card}");
            true
        }
        Some(needs) => {
            ensure!(needs.contains("balboad ended while the image was on its way"), "{card}");
            flash(daemon, setting, "verify balboa0").run()?.code(8)?;
            // What the card had said of itself went with that balboad.
            let told = flash(daemon, setting, "rollback balboa0 --yes").run()?.code(10)?;
            told.complains("--allow-unseen")?;
            false
        }
    };
    flash(daemon, setting, "rollback balboa0 --yes --allow-unseen").run()?.success()?;
    ensure!(engines(daemon, setting, 0)?.0 == 2);
    let verified = flash(daemon, setting, "verify balboa0 two.bin").run()?;
    verified.code(if seen { 0 } else { 10 }).map(drop)
}
