//! Services on the path of packets, attached by `balboa service`.

use std::fs;
use std::time::Duration;

use anyhow::{Result, ensure};
use harness::process::Task;
use harness::runner::Case;
use harness::setting::Setting;

use super::faults::was_bad;

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
        Case::new("services/attached whole or not at all", &[], refusals),
    ]
}

fn rows(setting: &Setting, fault: Option<&str>) -> Result<()> {
    through(setting, fault, "rows", "24 tables arrived as they should")
}

fn patterns(setting: &Setting, fault: Option<&str>) -> Result<()> {
    let all = "41 messages were let pass, counted or refused as they should";
    through(setting, fault, "inspected", all)
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
    daemon.stop()
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
        let refused = service(&words).run()?.code(1)?.complains(why)?;
        ensure!(refused.stderr.trim_end().lines().count() == 1, "one sentence: {refused}");
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
        ("detach balboa0 --peer 10.77.0.2", 1, "peer 10.77.0.2 has no services"),
        ("attach balboa0 preprocess", 2, "--qp"),
        ("attach balboa0 --peer 10.77.0.2", 2, "SERVICE"),
        ("attach balboa0 preprocess --qp 5 --peer 10.77.0.2", 2, "--peer"),
        ("attach balboa0 preprocess --peer 10.77.0", 2, "write an address"),
    ] {
        let refused = service(words).run()?.code(code)?.complains(why)?;
        ensure!(refused.stderr.trim_end().lines().count() == 1, "one sentence: {refused}");
        none("balboa0")?;
    }
    bad_patterns(setting, &service)?;
    none("balboa0")?;
    service("attach balboa0 preprocess --peer 10.77.0.2").run()?.success()?;
    let again = service("attach balboa0 preprocess --peer 10.77.0.2").run()?.code(1)?;
    again.complains("peer 10.77.0.2 has services already; detach them first")?;
    let shown = setting.built("balboa").words("status --state-dir").arg(daemon.state_dir());
    shown.run()?.success()?.says("services  preprocess on peer 10.77.0.2: 0 QPs\n")?;
    none("balboa1")?;
    // A card that is reset has none any more.
    let reset = setting.built("balboa").words("reset balboa0 --yes --state-dir");
    reset.arg(daemon.state_dir()).run()?.success()?;
    none("balboa0")?;
    daemon.stop()
}
