//! Services of users: loaded by `balboa service`, attached, refused and stopped.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use harness::pair::run_between;
use harness::process::{Finished, Task};
use harness::runner::Case;
use harness::setting::{Daemon, Setting};

use super::PERFTEST;
use super::faults::was_bad;
use super::flash::json;
use super::image::{OTHER, put, put_keys};

/// How long all tables may take.
const LIMIT: Duration = Duration::from_secs(180);
/// The template's service, as `docs/services-wasm.md` builds it.
const ROWS: &[u8] = include_bytes!("../../../services-wasm/template/rows.wasm");
/// An access outside of a module's memory.
const OUTSIDE: &str = r#"(func (export "balboa_act") (drop (i32.load (i32.const -4))))"#;
/// A verdict that is none.
const GARBAGE: &str = r#"(func (export "balboa_check") (result i32) (i32.const 7))"#;
/// Nearly all of the work that a service may do for a packet.
const BUSY: &str = include_str!("../../../services-wasm/tests/busy.wat");
/// What `ib_write_bw` does between two cards.
const WRITES: &str = "ib_write_bw -F -x 1 -n 100";

/// The family.
pub fn cases() -> Vec<Case> {
    let bad = "loss=3%,dup=3%,reorder=3%";
    vec![
        Case::new("services/a module makes features", &[], |setting| rows(setting, None)),
        Case::new("services/a module makes features/bad cable", &[], move |setting| {
            rows(setting, Some(bad))
        }),
        Case::new("services/what is no module is refused", &[], refused),
        Case::new("services/a module that misbehaves is stopped", &[PERFTEST], stopped),
        Case::new("services/a module that needs its budget", &[PERFTEST], neighbour).alone(),
        Case::new("services/modules come and go under traffic", &[], |it| swapped(it, None)),
        Case::new("services/modules come and go under traffic/bad cable", &[], move |setting| {
            swapped(setting, Some(bad))
        }),
        Case::new("services/a module is tried on a capture", &[], tried),
    ]
}

/// `balboa service` for a balboad, of which `service test` needs none.
fn service(daemon: &Daemon<'_>, setting: &Setting, words: &str) -> Task {
    let (command, rest) = words.split_once(' ').unwrap_or((words, ""));
    let task = setting.built("balboa").arg("service").arg(command);
    let task = match command {
        "test" => task,
        _ => task.arg("--state-dir").arg(daemon.state_dir()),
    };
    task.words(rest)
}

/// Puts keys in a folder, and the template's module, signed.
fn prepare(setting: &Setting) -> Result<()> {
    put_keys(setting)?;
    put(setting, "rows.wasm", ROWS)?;
    setting.built("balboa").words("image sign rows.wasm --key key").run()?.success()?;
    Ok(())
}

fn rows(setting: &Setting, fault: Option<&str>) -> Result<()> {
    prepare(setting)?;
    let faults = fault.map(|fault| format!(" --fault {fault}")).unwrap_or_default();
    let daemon = setting.balboad(&format!("--soft 2{faults}"))?;
    for card in 0..2 {
        let load = format!("load balboa{card} rows.wasm --keys keys");
        let said = format!("balboa{card} has the service rows\n");
        service(&daemon, setting, &load).run()?.success()?.says(&said)?;
    }
    let task = daemon.run("").arg(setting.bin.join("verbs-data"));
    let task = task.words("rows --service rows --balboa").arg(setting.bin.join("balboa"));
    task.limit(LIMIT).run()?.success()?.says("48 tables arrived as they should")?;
    if let Some(fault) = fault {
        was_bad(&daemon, fault)?;
    }
    in_use(&daemon, setting)?;
    daemon.stop()
}

/// A module is not unloaded while it is attached, unless that is wanted; then it stays there until it is detached.
fn in_use(daemon: &Daemon<'_>, setting: &Setting) -> Result<()> {
    let service = |words: &str| service(daemon, setting, words);
    service("attach balboa0 rows --peer 10.77.0.2").run()?.success()?;
    let kept = service("unload balboa0 rows").run()?.code(1)?;
    kept.complains("rows is attached in 1 places; detach it first, or unload it with --now")?;
    let again = service("load balboa0 rows.wasm --keys keys").run()?.code(1)?;
    again.complains("a service rows is loaded already; unload it first")?;
    let told = json(service("list balboa0 --json"))?;
    ensure!(told["available"][3]["name"] == "rows" && told["available"][3]["loaded"] == true);
    service("unload balboa0 rows --now").run()?.success()?;
    let told = json(service("list balboa0 --json"))?;
    ensure!(told["available"].as_array().is_some_and(|all| all.len() == 3), "{told}");
    ensure!(told["attached"][0]["services"][0] == "rows", "{told}");
    // Another may have its name meanwhile.
    service("load balboa0 rows.wasm --keys keys").run()?.success()?;
    service("detach balboa0 --peer 10.77.0.2").run()?.success()?;
    service("unload balboa0 rows").run()?.success()?;
    let gone = service("attach balboa0 rows --peer 10.77.0.2").run()?.code(1)?;
    gone.complains("there is no service \"rows\"; there are classifier, inspect, preprocess")?;
    Ok(())
}

/// A module that tells of itself, and has this text beside.
fn module(name: &str, text: &str) -> Result<Vec<u8>> {
    module_for(1, name, text)
}

/// The same for a version of the interface.
fn module_for(version: i32, name: &str, text: &str) -> Result<Vec<u8>> {
    let numbers = [7u32, 0, 0, 0, 0, 0, 65536, 0].map(u32::to_le_bytes).concat();
    let numbers: String = numbers.iter().map(|byte| format!("\\{byte:02x}")).collect();
    let text = format!(
        r#"(module
            (memory (export "memory") 1)
            (func (export "balboa_interface") (result i32) (i32.const {version}))
            (func (export "balboa_about") (result i32) (i32.const 1024))
            (func (export "balboa_room") (result i32) (i32.const 4096))
            (data (i32.const 1024) "{name}") (data (i32.const 1120) "{numbers}")
            {text})"#
    );
    Ok(wat::parse_str(text)?)
}

fn refused(setting: &Setting) -> Result<()> {
    prepare(setting)?;
    let passes = r#"(func (export "balboa_check") (result i32) (i32.const 0))"#;
    let good = module("good", passes)?;
    fs::create_dir(setting.directory().join("others"))?;
    put(setting, "others/other.pub", OTHER)?;
    put(setting, "good.wasm", &good)?;
    put(setting, "forged.wasm", &good)?;
    let signature = fs::read(setting.directory().join("rows.wasm.minisig"))?;
    put(setting, "forged.wasm.minisig", signature)?;
    put(setting, "wide.wasm", [ROWS, &vec![0; 48 << 10]].concat())?;
    put(setting, "imports.wasm", wat::parse_str(r#"(module (import "env" "now" (func)))"#)?)?;
    put(setting, "newer.wasm", module_for(2, "newer", passes)?)?;
    put(setting, "native.wasm", module("preprocess", passes)?)?;
    put(setting, "text", b"(module)")?;
    setting.built("balboa").words("image make --soft vqe -o vqe.soft").run()?.success()?;
    let daemon = setting.balboad("--soft 1")?;
    for (words, code, why) in [
        ("load balboa0 nowhere.wasm --keys keys", 1, "No such file"),
        (
            "load balboa0 good.wasm --keys keys",
            1,
            "it has no signature (good.wasm.minisig is not there)",
        ),
        (
            "load balboa0 forged.wasm --keys keys --allow-unsigned",
            1,
            "by none of the keys, or of other bytes",
        ),
        ("load balboa0 rows.wasm --keys others", 1, "by none of the keys, or of other bytes"),
        ("load balboa0 wide.wasm --allow-unsigned", 1, "it has more than 49152 bytes"),
        ("load balboa0 text --allow-unsigned", 1, "text: it is no module of WebAssembly"),
        (
            "load balboa0 vqe.soft --allow-unsigned",
            1,
            "it is a software card's image, and no module",
        ),
        ("load balboa0 imports.wasm --allow-unsigned", 1, "the module imports \"env\" \"now\""),
        ("load balboa0 newer.wasm --allow-unsigned", 1, "is for version 2 of the interface"),
        ("load balboa0 native.wasm --allow-unsigned", 1, "a service preprocess is compiled in"),
        ("load balboa7 rows.wasm --keys keys", 1, "its cards are balboa0"),
        ("unload balboa0 rows", 1, "no service \"rows\" is loaded; none is"),
        ("load balboa0", 2, "FILE"),
        ("test rows.wasm", 2, "--pcap"),
        ("test text --pcap text", 1, "text: it is no module that can be executed"),
        ("test rows.wasm --pcap text", 1, "text: it is no pcap and no pcapng file"),
    ] {
        service(&daemon, setting, words).run()?.refuses(code, why)?;
        let told = json(service(&daemon, setting, "list balboa0 --json"))?;
        ensure!(told["available"].as_array().is_some_and(|all| all.len() == 3), "{told}");
    }
    let inspected = setting.built("balboa").words("image inspect rows.wasm").run()?.success()?;
    inspected.says("a module of WebAssembly, which can be loaded as a service")?;
    let flashed = setting.built("balboa").words("flash apply balboa0 rows.wasm --keys keys --yes");
    let flashed = flashed.arg("--state-dir").arg(daemon.state_dir()).run()?.code(5)?;
    flashed.complains("`balboa service load` does that")?;
    daemon.stop()
}

fn stopped(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 3")?;
    let service = |words: &str| service(&daemon, setting, words);
    let stats = |card: u32| -> Result<Finished> {
        service(&format!("stats balboa{card}")).run()?.success()
    };
    for (name, text, counted) in [
        ("loop", r#"(func (export "balboa_act") (loop (br 0)))"#, "over_budget 1"),
        (
            "grow",
            r#"(func (export "balboa_act") (drop (memory.grow (i32.const 65535))) (i32.store (i32.const 65536) (i32.const 1)))"#,
            "faults 1",
        ),
        ("outside", OUTSIDE, "faults 1"),
        ("garbage", GARBAGE, "faults 1"),
    ] {
        put(setting, "hostile.wasm", module(name, text)?)?;
        service("load balboa1 hostile.wasm --allow-unsigned").run()?.success()?;
        service(&format!("attach balboa1 {name} --peer 10.77.0.1")).run()?.success()?;
        ensure!(run_between((&daemon, 1), (&daemon, 0), WRITES).is_err(), "{name} let all pass");
        stats(1)?.says(counted)?;
        // The same card's connection with another, meanwhile.
        run_between((&daemon, 1), (&daemon, 2), WRITES)?;
        service("detach balboa1 --peer 10.77.0.1 --now").run()?.success()?;
        service(&format!("unload balboa1 {name}")).run()?.success()?;
        run_between((&daemon, 1), (&daemon, 0), WRITES)?;
    }
    daemon.stop()
}

/// The bandwidth of a card's connection with another, in MB/s.
fn bandwidth(daemon: &Daemon<'_>) -> Result<f64> {
    let both = run_between((daemon, 1), (daemon, 2), "ib_write_bw -F -x 1 -s 65536 -n 3000")?;
    // Bytes, iterations, the peak, the mean.
    let figure = both.client.stdout.lines().rev().find_map(|line| {
        let mut words = line.split_whitespace().filter(|_| line.trim_start().starts_with("65536 "));
        words.nth(3)?.parse().ok()
    });
    figure.with_context(|| format!("no bandwidth: {}", both.client))
}

/// A module that needs nearly all of its budget for each packet, and another connection of the card, which keeps half of
/// its bandwidth. Other work of the machine slows all turns, so the times of all turns of each kind are compared.
fn neighbour(setting: &Setting) -> Result<()> {
    const TURNS: u32 = 8;
    let daemon = setting.balboad("--soft 3")?;
    let service = |words: &str| service(&daemon, setting, words);
    let acted = || -> Result<u64> {
        let told = json(service("stats balboa1 --json"))?;
        let counters = &told["attached"][0]["counters"];
        ensure!(counters["over_budget"] == 0, "it needs too much: {told}");
        counters["acted_packets"].as_u64().with_context(|| format!("no counter: {told}"))
    };
    put(setting, "busy.wasm", module("busy", BUSY)?)?;
    service("load balboa1 busy.wasm --allow-unsigned").run()?.success()?;
    service("attach balboa1 busy --peer 10.77.0.1").run()?.success()?;
    // Seconds for each MB of all turns.
    let (mut alone, mut beside) = (0.0, 0.0);
    for turn in 1..=TURNS {
        alone += bandwidth(&daemon)?.recip();
        let before = acted()?;
        let traffic = daemon.run("").arg(setting.bin.join("verbs-data"));
        let mut traffic = traffic.words("huge --mib 64 --events write").limit(LIMIT).start()?;
        let mut begun = Ok(before);
        traffic.wait_until("the module had packets", |_| {
            begun = acted();
            begun.as_ref().map_or(true, |acted| *acted > before)
        })?;
        let begun = begun?;
        beside += bandwidth(&daemon)?.recip();
        ensure!(acted()? > begun, "the module has had no turn");
        drop(traffic);
        println!("a neighbour keeps {:.2} of its bandwidth", alone / beside);
        if turn > 1 && beside <= 2.0 * alone {
            return daemon.stop();
        }
    }
    bail!("the neighbour keeps {:.2} of its bandwidth beside the module", alone / beside)
}

/// Two modules are loaded, attached, each in the place of the other, detached and unloaded while tables are under way.
fn swapped(setting: &Setting, fault: Option<&str>) -> Result<()> {
    let passes =
        r#"(func (export "balboa_check") (result i32) (i32.const 0)) (func (export "balboa_act"))"#;
    let files = [("rows.wasm", ROWS.to_vec()), ("passes.wasm", module("passes", passes)?)];
    for (name, bytes) in files {
        put(setting, name, bytes)?;
    }
    let faults = fault.map(|fault| format!(" --fault {fault}")).unwrap_or_default();
    let daemon = setting.balboad(&format!("--soft 2{faults}"))?;
    let task = daemon.run("").arg(setting.bin.join("verbs-data"));
    let task = task.words("tended --modules rows.wasm passes.wasm --balboa");
    let task = task.arg(setting.bin.join("balboa")).limit(LIMIT);
    task.run()?.success()?.says("tables arrived whole around 25 rounds of services")?;
    if let Some(fault) = fault {
        was_bad(&daemon, fault)?;
    }
    for card in ["balboa0", "balboa1"] {
        let told = json(service(&daemon, setting, &format!("list {card} --json")))?;
        ensure!(told["available"].as_array().is_some_and(|all| all.len() == 3), "{told}");
        ensure!(told["attached"].as_array().is_some_and(Vec::is_empty), "{told}");
    }
    daemon.stop()
}

fn tried(setting: &Setting) -> Result<()> {
    prepare(setting)?;
    let file = setting.directory().join("frames.pcapng");
    let daemon = setting.balboad(&format!("--soft 2 --pcap {}", file.display()))?;
    let sweep = daemon.run("").arg(setting.bin.join("verbs-data")).words("sweep --gid 0");
    sweep.limit(LIMIT).run()?.success()?;
    daemon.stop()?;
    let test = |module: &str| {
        let task = setting.built("balboa").words("service test").arg(module);
        task.arg("--pcap").arg(&file).limit(LIMIT).run()
    };
    let told = test("rows.wasm")?.success()?.says(" 0 dropped, 0 refused, 0 stopped; ")?;
    for line in [" WRITE 4 bytes at 0: passes, ", " READ "] {
        ensure!(told.stdout.contains(line), "no {line:?} in {} lines", told.stdout.lines().count());
    }
    ensure!(!told.stdout.contains(" SEND "), "rows sees no SENDs");
    let loops = module("loop", r#"(func (export "balboa_act") (loop (br 0)))"#)?;
    put(setting, "loop.wasm", loops)?;
    let told = test("loop.wasm")?.success()?;
    told.says("wants more work than it declares, and is stopped")?;
    for (text, why) in [
        (OUTSIDE, "is stopped: out of bounds memory access"),
        (GARBAGE, "is stopped: balboa_check gave the verdict 7, and there are 0, 1 and 2"),
    ] {
        put(setting, "stopped.wasm", module("stopped", text)?)?;
        test("stopped.wasm")?.success()?.says(why)?;
    }
    Ok(())
}
