//! Frames as other programs read them: tshark dissects them, scapy computes their ICRC.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use harness::process::{Finished, Task};
use harness::runner::{Case, Need};
use harness::scapy;
use harness::setting::Setting;

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
/// The opcode of acknowledgements, whose kind is in their syndrome.
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
        Case::new("capture/UDP source ports are those of Linux' verbs", &[TSHARK], source_ports),
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

/// A capture on a bad cable, for packets that only losses and marks bring about.
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

/// tshark on a capture, with its settings in the case's directory.
pub(crate) fn tshark(setting: &Setting, file: &Path) -> Task {
    Task::new("tshark").env("HOME", setting.directory()).arg("-r").arg(file)
}

fn dissected(setting: &Setting) -> Result<()> {
    let file = capture(setting)?;
    let read = |filter: &str, field: &str| -> Result<Finished> {
        let task = tshark(setting, &file).words(DISSECT);
        task.args(["-Y", filter, "-T", "fields", "-e", field]).run()?.success()
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

/// The identity of a packet's flow: its source address, and the queue pair that it goes to.
type Known = (IpAddr, u32);

/// The port that the kernel's `rdma_get_udp_sport` gives (include/rdma/ib_verbs.h): that of a flow label, or of the
/// label that a flow without one gets by the numbers of both queue pairs.
fn linux_port(label: u32, own_qpn: u32, peer_qpn: u32) -> u32 {
    let label = match label {
        0 => {
            let product = u64::from(own_qpn) * u64::from(peer_qpn);
            let once = product ^ product >> 20;
            (once ^ once >> 40) as u32 & 0xf_ffff
        }
        label => label,
    };
    0xc000 | (label & 0x3fff) ^ (label & 0xf_c000) >> 14
}

/// A flow in a line of verbs-data: its identity, its port and its label.
fn flow(line: &str) -> Option<(Known, [u32; 2])> {
    let words: Vec<&str> = line.strip_prefix("flow ")?.split(' ').collect();
    let [own, own_qpn, _, peer_qpn, label] = words[..] else { return None };
    let own = own.parse::<Ipv6Addr>().ok()?.to_canonical();
    let (own_qpn, peer_qpn) = (own_qpn.parse().ok()?, peer_qpn.parse().ok()?);
    let label = hexadecimal(label).ok()?;
    Some(((own, peer_qpn), [linux_port(label, own_qpn, peer_qpn), label]))
}

/// All packets of a flow have one port, that of the label or of both queue pairs.
fn source_ports(setting: &Setting) -> Result<()> {
    let file = setting.directory().join("flows.pcapng");
    let daemon = setting.balboad(&format!("--soft 2 --pcap {}", file.display()))?;
    let task = daemon.run("").arg(setting.bin.join("verbs-data")).words("flows");
    let said = task.limit(LIMIT).run()?.success()?.says("36 flows arrived")?;
    daemon.stop()?;
    let flows: BTreeMap<Known, [u32; 2]> = said.stdout.lines().filter_map(flow).collect();
    ensure!(flows.len() == 36, "flows that cannot be told apart: {said}");

    let fields = ["ip.src", "ipv6.src", "ipv6.flow", "udp.srcport", "infiniband.bth.destqp"];
    let task = tshark(setting, &file)
        .words(DISSECT)
        .words("-Y udp.dstport==4791 -T fields -E separator=;");
    let task = fields.iter().fold(task, |task, field| task.args(["-e", field]));
    let mut seen: BTreeMap<Known, usize> = BTreeMap::new();
    for line in task.run()?.success()?.stdout.lines() {
        let [ipv4, ipv6, label, port, qpn] = line.split(';').collect::<Vec<_>>()[..] else {
            bail!("{line:?} has other fields than {fields:?}");
        };
        let source: IpAddr = if ipv4.is_empty() { ipv6.parse()? } else { ipv4.parse()? };
        let qpn = hexadecimal(qpn)?;
        let Some([wanted, labelled]) = flows.get(&(source, qpn)) else { continue };
        ensure!(port.parse::<u32>()? == *wanted, "{line:?} has not the port {wanted}");
        if source.is_ipv6() {
            ensure!(hexadecimal(label)? == *labelled, "{line:?} has not the label {labelled:#x}");
        }
        *seen.entry((source, qpn)).or_default() += 1;
    }
    // Of each flow there are three messages, or their acknowledgements.
    let missing: Vec<_> = flows.keys().filter(|it| seen.get(it).is_none_or(|n| *n < 3)).collect();
    ensure!(missing.is_empty(), "too few packets of {missing:?}: {seen:?}");
    Ok(())
}

fn hexadecimal(text: &str) -> Result<u32> {
    let digits = text.trim_start_matches("0x");
    u32::from_str_radix(digits, 16).with_context(|| format!("{text:?} is no number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_those_that_the_kernel_computes() {
        assert_eq!(linux_port(0x01234, 1, 2), 0xd234);
        assert_eq!(linux_port(0xfedcb, 1, 2), 0xc000 | 0x2dcb ^ 0x3f);
        assert_eq!(linux_port(0, 17, 18), 0xc000 | 306);
        assert_eq!(linux_port(0, 0x1234, 0xff_ffff), linux_port(0, 0xff_ffff, 0x1234));
    }
}
