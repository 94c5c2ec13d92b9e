//! Services on the path of packets, attached by `balboa service`.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use harness::process::{Finished, Task};
use harness::runner::Case;
use harness::setting::Setting;

use super::faults::was_bad;
use super::start::{GCC, VERBS_H};

/// How long all tables, or all messages, may take.
const LIMIT: Duration = Duration::from_secs(180);

/// The family.
pub fn cases() -> Vec<Case> {
    let bad = "loss=3%,dup=3%,reorder=3%";
    vec![
        Case::new("services/rows become features", &[], |setting| rows(setting, None)),
        Case::new("services/rows become features", &[], |setting| rows(setting, None)).as_root(),
        Case::new("services/rows become features/bad cable", &[], move |setting| {
            rows(setting, Some(bad))
        }),
        Case::new("services/patterns end connections", &[], |setting| patterns(setting, None)),
        Case::new("services/patterns end connections/bad cable", &[], move |setting| {
            patterns(setting, Some(bad))
        }),
        Case::new("services/change under traffic", &[], |setting| tended(setting, None)),
        Case::new("services/change under traffic/bad cable", &[], move |setting| {
            tended(setting, Some(bad))
        }),
        Case::new("services/training of a model takes less of its program", &[], training),
        Case::new("services/machine code ends connections", &[], |setting| code(setting, None)),
        Case::new("services/machine code ends connections/bad cable", &[], move |setting| {
            code(setting, Some(bad))
        }),
        Case::new("services/attached whole or not at all", &[], refusals),
        Case::new("services/a program asks for them", &[GCC, VERBS_H], asks),
    ]
}

fn rows(setting: &Setting, fault: Option<&str>) -> Result<()> {
    through(setting, fault, "rows", "48 tables arrived as they should")
}

fn patterns(setting: &Setting, fault: Option<&str>) -> Result<()> {
    let all = "41 messages were let pass, counted or refused as they should";
    through(setting, fault, &refusing("inspected", fault), all)
}

fn code(setting: &Setting, fault: Option<&str>) -> Result<()> {
    let all = "36 messages were let pass or refused as they should";
    through(setting, fault, &refusing("classified", fault), all)
}

/// The words for a program whose peers refuse messages: a cable that loses frames may lose refusals.
fn refusing(words: &str, fault: Option<&str>) -> String {
    format!("{words}{}", if fault.is_some() { " --bad-cable" } else { "" })
}

fn tended(setting: &Setting, fault: Option<&str>) -> Result<()> {
    let all = "tables arrived whole around 25 rounds of services";
    through(setting, fault, "tended", all)
}

/// A program that READs a table and learns from it needs less processor time where a service makes its features.
fn training(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 2")?;
    let task = daemon.run("").arg(setting.bin.join("verbs-data")).words("training --events");
    let task = task.arg("--balboa").arg(setting.bin.join("balboa")).limit(LIMIT);
    let said = task.run()?.success()?;
    let saved = said.stdout.lines().find_map(|line| {
        line.strip_suffix(" % of the program's processor time saved")?.parse::<i32>().ok()
    });
    ensure!(saved.is_some_and(|saved| saved > 0), "{said}");
    daemon.stop()
}

/// Has a program of the data's attach services and move messages through them.
fn through(setting: &Setting, fault: Option<&str>, words: &str, says: &str) -> Result<()> {
    let faults = fault.map(|fault| format!(" --fault {fault}")).unwrap_or_default();
    let daemon = setting.balboad(&format!("--soft 2{faults}"))?;
    let task = daemon.run("").arg(setting.bin.join("verbs-data")).words(words).words("--balboa");
    let task = task.arg(setting.bin.join("balboa")).limit(LIMIT);
    task.run()?.success()?.says(says)?;
    if let Some(fault) = fault {
        was_bad(&daemon, fault)?;
    }
    // What it left attached to its process ends with that.
    let deadline = Instant::now() + LIMIT;
    for card in ["balboa0", "balboa1"] {
        let list = || {
            let task = setting.built("balboa").words("service list --state-dir");
            task.arg(daemon.state_dir()).arg(card).run()?.success()
        };
        while !list()?.stdout.ends_with("attached\n  none\n") {
            ensure!(Instant::now() < deadline, "there is something attached: {}", list()?);
        }
    }
    daemon.stop()
}

/// A program in C that asks for services by `balboa_dv.h`, and the owner of the card, who goes before it; and the same on a
/// card that has no place for services.
pub(super) fn asks(setting: &Setting) -> Result<()> {
    let directory = setting.directory();
    for (name, text) in [
        ("services.c", include_str!("../../scripts/services.c")),
        ("balboa_dv.h", include_str!("../../../provider/include/balboa_dv.h")),
        ("patterns", "0xc0ffee\n"),
    ] {
        fs::write(directory.join(name), text)?;
    }
    let flags = "-std=c99 -Wall -Wextra -Wpedantic -Werror -o asks services.c -libverbs -lm";
    setting.task("gcc").words(flags).run()?.success()?;
    let program = directory.join("asks");
    let files = ["looked", "attached"].map(|name| directory.join(name));

    let daemon = setting.balboad("--soft 1")?;
    let service = |words: &str| -> Result<Finished> {
        let task = setting.built("balboa").words("service").words(words);
        task.arg("--state-dir").arg(daemon.state_dir()).run()
    };
    let mut asks = daemon.run("").arg(&program).arg("balboa0").args(&files).limit(LIMIT).start()?;
    asks.wait_until("it asked", |it| it.has_said("asked"))?;
    let list = service("list balboa0")?.success()?.stdout;
    let line = list.lines().find(|line| line.contains("inspect, preprocess on queue pair "));
    let line = line.with_context(|| format!("not attached: {list}"))?;
    ensure!(line.ends_with(" as responder: 1 QPs, asked for by its program"), "{list}");
    let qpn = line.split(' ').find(|word| word.starts_with("0x")).context("no number")?;
    let owners = format!("attach balboa0 inspect --patterns {}/patterns", directory.display());
    service(&format!("{owners} --peer 10.77.0.1"))?
        .code(1)?
        .complains("has services that its program asked for; detach those first, by --qp")?;
    service(&format!("detach balboa0 --qp {qpn}"))?.success()?;
    fs::write(&files[0], "")?;
    asks.wait_until("it asked again", |it| it.has_said("again"))?;
    service(&format!("{owners} --peer 10.77.0.1"))?.success()?;
    fs::write(&files[1], "")?;
    asks.wait()?.success()?.says("services were had and refused as they should")?;
    ensure!(daemon.log().contains("has attached others to peer 10.77.0.1"), "{}", daemon.log());
    daemon.stop()?;

    let bare = setting.balboad("--soft 1 --soft-image stock")?;
    let asks = bare.run("").arg(&program).arg("balboa0").limit(LIMIT).run()?.success()?;
    asks.says("this card has no services, and says so")?;
    bare.stop()
}

/// Tries files that are no patterns.
fn bad_patterns(setting: &Setting, service: &dyn Fn(&str) -> Task) -> Result<()> {
    let file = setting.directory().join("patterns");
    for (bytes, why) in [
        (vec![], "there is no pattern in the file"),
        (b"one\r\n".to_vec(), "line 1 of the patterns has the control character 0x0d"),
        (b"one\n0x4".to_vec(), "line 2 of the patterns is no pairs of hexadecimal digits"),
        (vec![b'a'; 129], "line 1 of the patterns has 129 bytes; 128 are the most"),
        (b"a\n0x61".to_vec(), "line 2 of the patterns says the same as line 1"),
        (vec![b'a'; 32769], "it has more than 32768 bytes"),
    ] {
        fs::write(&file, bytes)?;
        let words =
            format!("attach balboa0 inspect --peer 10.77.0.2 --patterns {}", file.display());
        service(&words).run()?.refuses(1, why)?;
    }
    Ok(())
}

fn refusals(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 2")?;
    let service = |words: &str| {
        let task = setting.built("balboa").words("service").words(words);
        task.arg("--state-dir").arg(daemon.state_dir())
    };
    let none = |card: &str| -> Result<()> {
        service(&format!("list {card}")).run()?.success()?.says("attached\n  none\n")?;
        Ok(())
    };
    for (words, code, why) in [
        ("attach balboa0 preprocess --qp 0x123456", 1, "there is no queue pair 0x123456"),
        ("attach balboa0 preprocess --qp 0x1000000", 1, "there is no queue pair 0x1000000"),
        ("attach balboa0 preprocess preprocess --peer 10.77.0.2", 1, "preprocess stands twice"),
        ("attach balboa0 nonsense --peer 10.77.0.2", 1, "there is no service \"nonsense\""),
        ("attach balboa7 preprocess --peer 10.77.0.2", 1, "its cards are balboa0, balboa1"),
        ("attach balboa0 inspect --peer 10.77.0.2", 1, "inspect has no patterns to look for"),
        (
            "attach balboa0 inspect --patterns /nowhere --peer 10.77.0.2",
            1,
            "/nowhere: No such file",
        ),
        (
            "attach balboa0 inspect --patterns /dev/zero --peer 10.77.0.2",
            1,
            "it is no regular file",
        ),
        ("attach balboa0 preprocess --mode count --peer 10.77.0.2", 1, "has a setting \"mode\""),
        ("attach balboa0 inspect --mode drop --peer 10.77.0.2", 2, "refuse"),
        ("attach balboa0 preprocess --process 1", 1, "process 1 has not opened balboa0"),
        ("attach balboa0 preprocess --process one", 2, "'one'"),
        ("attach balboa0 preprocess --dscp 64", 2, "64 is not in 0..=63"),
        ("attach balboa0 preprocess --dscp 5 --peer 10.77.0.2", 2, "--dscp"),
        ("attach balboa0 preprocess --dscp 5 --side left", 2, "requester"),
        ("detach balboa0 --dscp 5", 1, "DSCP 5 has no services"),
        ("attach balboa0 preprocess --words 2 --peer 10.77.0.2", 1, "has a setting \"words\""),
        ("attach balboa0 classifier --words 0 --peer 10.77.0.2", 2, "--words"),
        ("detach balboa0 --peer 10.77.0.2", 1, "peer 10.77.0.2 has no services"),
        ("attach balboa0 preprocess", 2, "--qp"),
        ("attach balboa0 --peer 10.77.0.2", 2, "SERVICE"),
        ("attach balboa0 preprocess --qp 5 --peer 10.77.0.2", 2, "--peer"),
        ("attach balboa0 preprocess --peer 10.77.0", 2, "write an address"),
    ] {
        service(words).run()?.refuses(code, why)?;
        none("balboa0")?;
    }
    bad_patterns(setting, &service)?;
    none("balboa0")?;
    service("attach balboa0 preprocess --peer 10.77.0.2").run()?.success()?;
    let again = service("attach balboa0 preprocess --peer 10.77.0.2").run()?.code(1)?;
    again.complains("peer 10.77.0.2 has services already; detach them first")?;
    let shown = setting.built("balboa").words("status --state-dir").arg(daemon.state_dir());
    shown.run()?.success()?.says("services  preprocess on peer 10.77.0.2: 0 QPs\n")?;
    service("attach balboa0 preprocess --dscp 26 --side requester").run()?.success()?;
    let listed = service("list balboa0").run()?.success()?;
    listed.says("  preprocess on DSCP 26 as requester: 0 QPs\n")?;
    none("balboa1")?;
    // A card that is reset has none any more.
    let reset = setting.built("balboa").words("reset balboa0 --yes --state-dir");
    reset.arg(daemon.state_dir()).run()?.success()?;
    none("balboa0")?;
    daemon.stop()
}
