//! What others read in our frames: tshark dissects them, scapy computes their ICRC.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::process::{Finished, Task};
use crate::runner::{Case, Need};
use crate::scapy;
use crate::setting::Setting;

pub(crate) const TSHARK: Need = Need::Program("tshark", "tshark");
/// How long a program may take that makes or reads a capture.
pub(crate) const LIMIT: Duration = Duration::from_secs(180);
/// Frames whose ICRC is computed again.
const FRAMES: usize = 5000;
/// Without these tshark takes payload for other protocols, and correct frames for malformed.
pub(crate) const DISSECT: &str = "-o infiniband.identify_payload:FALSE --disable-protocol rpcordma";
/// Every RC opcode that SEND, WRITE, READ and atomics use, with and without immediate.
const OPCODES: std::ops::RangeInclusive<u8> = 0x00..=0x14;
/// The opcode of congestion notification packets.
const NOTIFICATION: u8 = 0x81;
/// The opcode of acknowledgements, whose syndrome says what they are.
const ACKNOWLEDGE: u8 = 0x11;
/// Every kind of them, as [`scapy::Compared::kinds`] names it.
const ACKNOWLEDGEMENTS: [(&str, &str); 6] = [
    ("ACK", "11:00"),
    ("RNR NAK", "11:20"),
    ("NAK: PSN sequence error", "11:60"),
    ("NAK: invalid request", "11:61"),
    ("NAK: remote access error", "11:62"),
    ("NAK: remote operational error", "11:63"),
];

/// The family.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("capture/tshark finds no malformed frame", &[TSHARK], dissected),
        Case::new("capture/every ICRC is scapy's", &[Need::Scapy], icrcs),
    ]
}

/// A capture of messages of every kind and size over IPv4 and IPv6, and of every error.
fn capture(setting: &Setting) -> Result<PathBuf> {
    let file = setting.directory().join("frames.pcapng");
    let daemon = setting.balboad(&format!("--soft 2 --pcap {}", file.display()))?;
    for command in ["sweep", "errors", "counter"]
        .iter()
        .flat_map(|command| [0, 1].map(|gid| format!("{command} --gid {gid}")))
    {
        let task = daemon.run("").arg(setting.bin.join("verbs-data")).words(&command);
        task.limit(LIMIT).run()?.success()?;
    }
    daemon.stop()?;
    Ok(file)
}

/// A capture on a bad cable, for what only lost and marked frames bring about.
fn capture_of_losses(setting: &Setting) -> Result<PathBuf> {
    let file = setting.directory().join("losses.pcapng");
    let balboad = format!("--soft 2 --fault loss=1%,ecn=1% --pcap {}", file.display());
    let daemon = setting.balboad(&balboad)?;
    let command = "huge --mib 8 --mtu 1024 write";
    let task = daemon.run("").arg(setting.bin.join("verbs-data")).words(command);
    task.limit(LIMIT).run()?.success()?;
    daemon.stop()?;
    Ok(file)
}

fn dissected(setting: &Setting) -> Result<()> {
    let file = capture(setting)?;
    let read = |filter: &str, field: &str| -> Result<Finished> {
        let task = Task::new("tshark").env("HOME", setting.directory()).arg("-r").arg(&file);
        let task = task.words(DISSECT).args(["-Y", filter, "-T", "fields", "-e", field]);
        task.limit(LIMIT).run()?.success()
    };
    let malformed = read("_ws.malformed || _ws.short", "frame.number")?;
    ensure!(malformed.stdout.is_empty(), "malformed frames in {}: {malformed}", file.display());

    let lines = read("udp.port == 4791", "infiniband.bth.opcode")?.stdout;
    let opcodes: BTreeSet<u8> =
        lines.lines().map(number).collect::<Result<_>>().context("a frame without a BTH")?;
    let missing: Vec<u8> = OPCODES.filter(|opcode| !opcodes.contains(opcode)).collect();
    ensure!(missing.is_empty(), "no frame with opcodes {missing:02x?}, only {opcodes:02x?}");
    Ok(())
}

pub(crate) fn number(text: &str) -> Result<u8> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u8::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.with_context(|| format!("{text:?} is no opcode"))
}

fn icrcs(setting: &Setting) -> Result<()> {
    let python = scapy::python().context("scapy went away")?;
    let file: &Path = &capture(setting)?;
    let compared = scapy::compare_icrcs(&python, file, FRAMES)?;
    ensure!(compared.ipv4 > 1000 && compared.ipv6 > 1000, "too few frames: {compared:?}");

    let file: &Path = &capture_of_losses(setting)?;
    let mut kinds = compared.kinds;
    kinds.extend(scapy::compare_icrcs(&python, file, FRAMES)?.kinds);
    let mut missing: Vec<String> = OPCODES
        .filter(|opcode| *opcode != ACKNOWLEDGE)
        .chain([NOTIFICATION])
        .map(|opcode| format!("{opcode:02x}"))
        .chain(ACKNOWLEDGEMENTS.iter().map(|(_, kind)| (*kind).to_owned()))
        .collect();
    missing.retain(|kind| !kinds.contains(kind));
    ensure!(missing.is_empty(), "no frame of the kinds {missing:?}, only {kinds:?}");
    Ok(())
}
