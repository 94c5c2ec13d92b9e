//! What others read in our frames: tshark dissects them, scapy computes their ICRC.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use crate::process::{Finished, Task};
use crate::runner::{Case, Need};
use crate::scapy;
use crate::setting::Setting;

pub(super) const TSHARK: Need = Need::Program("tshark", "tshark");
/// Frames whose ICRC is computed again.
const FRAMES: usize = 5000;
/// Without these tshark takes payload for other protocols, and correct frames for malformed.
const DISSECT: &str = "-o infiniband.identify_payload:FALSE --disable-protocol rpcordma";
/// Every RC opcode that SEND, WRITE and READ use, with and without immediate.
const OPCODES: std::ops::RangeInclusive<u8> = 0x00..=0x11;

/// The family.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("capture/tshark finds no malformed frame", &[TSHARK], dissected),
        Case::new("capture/every ICRC is scapy's", &[Need::Scapy], icrcs),
    ]
}

/// A capture of messages of every kind and size over IPv4 and IPv6.
fn capture(setting: &Setting) -> Result<PathBuf> {
    let file = setting.directory().join("frames.pcapng");
    let daemon = setting.balboad(&format!("--soft 2 --pcap {}", file.display()))?;
    for gid in [0, 1] {
        let program = setting.bin.join("verbs-data");
        let task = daemon.run("").arg(program).words(&format!("sweep --gid {gid}"));
        task.limit(std::time::Duration::from_secs(180)).run()?.success()?;
    }
    daemon.stop()?;
    Ok(file)
}

fn dissected(setting: &Setting) -> Result<()> {
    let file = capture(setting)?;
    let read = |filter: &str, field: &str| -> Result<Finished> {
        let task = Task::new("tshark").env("HOME", setting.directory()).arg("-r").arg(&file);
        let task = task.words(DISSECT).args(["-Y", filter, "-T", "fields", "-e", field]);
        task.limit(std::time::Duration::from_secs(180)).run()?.success()
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

fn number(text: &str) -> Result<u8> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u8::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.with_context(|| format!("{text:?} is no opcode"))
}

fn icrcs(setting: &Setting) -> Result<()> {
    let python = scapy::python().context("scapy went away")?;
    let file: &Path = &capture(setting)?;
    let (ipv4, ipv6) = scapy::compare_icrcs(&python, file, FRAMES)?;
    ensure!(ipv4 > 1000 && ipv6 > 1000, "only {ipv4} frames of IPv4 and {ipv6} of IPv6");
    Ok(())
}
