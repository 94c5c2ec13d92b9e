//! Datagrams as they leave a machine: from a packet socket on the cable, cut, numbered and with every checksum.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use harness::machines::{IPV4, Machines, WIRE};
use harness::pair::both_say;
use harness::runner::{Case, Need};
use harness::scapy;
use harness::setting::Setting;

use super::{ETHTOOL, IP, UNSHARE, stop};
use crate::PERFTEST;
use crate::capture::{TSHARK, tshark};

/// The type of service that programs are told to ask for, and the time to live that perftest asks for.
const CLASS: u32 = 104;
const HOPS: u32 = 255;
/// Datagrams that leave by one message at most.
const SEGMENTS: u32 = 64;
/// Datagrams whose invariant CRC is computed again, about.
const COMPARED: usize = 2000;

/// Both kinds of peers.
pub(super) fn cases() -> Vec<Case> {
    let needs = [PERFTEST, UNSHARE, IP, ETHTOOL, TSHARK, Need::Scapy];
    let case = |(name, are_strangers): (&str, bool)| {
        let body = move |setting: &Setting| leaves(setting, are_strangers);
        Case::new(format!("udp/what leaves/{name}"), &needs, body)
    };
    [("to a balboad", false), ("to a stranger", true)].map(case).into()
}

/// Lets both machines send, and checks all of their datagrams.
fn leaves(setting: &Setting, are_strangers: bool) -> Result<()> {
    let machines = Machines::new(setting, 1500)?;
    for side in 0..2 {
        // The kernel then does everything before a packet socket has it, and nothing is left to the cable.
        let off = "tx off gso off gro off tx-udp-segmentation off rx-udp-gro-forwarding off";
        machines.tool(side, &format!("ethtool -K {WIRE} {off}"))?;
        if are_strangers {
            // No word passes, so neither learns that the other is a balboad.
            for family in ["-4", "-6"] {
                let words = format!("{family} rule add ipproto udp dport 14791 prohibit");
                machines.ip(side, &words)?;
            }
        }
    }
    let file = setting.directory().join("wire.pcapng");
    let capture = format!("dumpcap -q -B 64 -i {WIRE} -f 'udp port 4791' -w {}", file.display());
    machines.tool(
        0,
        &format!(
            "(sh -c 'echo $$ >capture; exec {}' >capture.log 2>&1; touch captured) & \
             until [ -s {} ]; do [ ! -e captured ] || exit 1; sleep 0.01; done",
            capture.replace('\'', "'\\''"),
            file.display()
        ),
    )?;

    let daemons = machines.balboads(&format!("--soft 1 --port udp:{WIRE}"))?;
    for command in [
        "ib_write_bw -F -x 0 -n 30 -t 16",
        "ib_send_bw -F -x 1 -n 10 -t 8",
        "ib_send_lat -F -x 0 -c UD -s 500 -n 20",
    ] {
        let command = format!("{command} --tclass {CLASS}");
        both_say(&machines.run_between(&daemons, &command, IPV4[0])?, "#bytes")?;
    }
    let known = daemons[1].status()?["cards"][0]["counters"]["port_balboads_known"].as_u64();
    ensure!((known == Some(0)) == are_strangers, "{known:?} balboads are known");
    stop(daemons)?;
    machines.tool(
        0,
        "kill -INT $(cat capture); until [ -e captured ]; do sleep 0.01; done; cat capture.log",
    )?;

    right_headers(setting, &file, are_strangers)?;
    let python = scapy::python().context("scapy went away")?;
    let compared = scapy::compare_icrcs(&python, &file, COMPARED)?;
    // About half of them, of which a third is of IPv6.
    ensure!(compared.ipv4 > 500 && compared.ipv6 > 200, "too few datagrams: {compared:?}");
    Ok(())
}

/// The fields that tshark prints of a datagram, in this order.
const FIELDS: [&str; 12] = [
    "ip.src",
    "ip.id",
    "ip.flags.df",
    "ip.flags.mf",
    "ip.frag_offset",
    "ip.dsfield",
    "ip.ttl",
    "ip.checksum.status",
    "ipv6.tclass",
    "ipv6.hlim",
    "udp.checksum.status",
    "udp.checksum",
];

/// Each datagram is whole and may not be cut, has the fields that its program asked for, the number of its segment, and
/// right checksums.
fn right_headers(setting: &Setting, file: &Path, are_strangers: bool) -> Result<()> {
    let task = tshark(setting, file)
        .words("-o ip.check_checksum:TRUE -o udp.check_checksum:TRUE -T fields");
    let fields = FIELDS.iter().flat_map(|field| ["-e", field]);
    let said = task.args(fields).run()?.success()?.stdout;
    // The last number of each sender's, and the largest.
    let mut numbers: BTreeMap<&str, (u32, u32)> = BTreeMap::new();
    for line in said.lines() {
        let columns: Vec<&str> = line.split('\t').collect();
        let &[from, id, df, mf, offset, class, ttl, ip, class6, hops, udp, checksum] =
            columns.as_slice()
        else {
            anyhow::bail!("tshark says {line:?}");
        };
        let is_ipv6 = from.is_empty();
        let of_program = if is_ipv6 { [class6, hops] } else { [class, ttl] };
        let of_program = of_program.map(number);
        ensure!(of_program == [Some(CLASS), Some(HOPS)], "class and time to live: {line:?}");
        // 1 is good; none at all would be no checksum.
        let is_right = number(udp) == Some(1) && number(checksum).is_some_and(|it| it != 0);
        ensure!(is_right, "the UDP checksum is not right: {line:?}");
        if is_ipv6 {
            continue;
        }
        let whole = [df, mf, offset, ip].map(number);
        let expected = [Some(1), Some(0), Some(0), Some(1)];
        ensure!(whole == expected, "it may be cut, or its checksum is not right: {line:?}");
        let id = number(id).with_context(|| format!("no number: {line:?}"))?;
        let (last, largest) = numbers.entry(from).or_default();
        let most = if are_strangers { 1 } else { SEGMENTS };
        ensure!(id < most && (id == 0 || id == *last + 1), "{id} follows {last}: {line:?}");
        (*last, *largest) = (id, id.max(*largest));
    }
    ensure!(numbers.len() == 2, "there were datagrams of {numbers:?}");
    let is_cut = numbers.get(IPV4[1]).is_some_and(|(_, largest)| *largest > 0);
    ensure!(is_cut != are_strangers, "segments: {numbers:?}");
    Ok(())
}

/// A number as tshark writes it, which some releases do in words.
fn number(text: &str) -> Option<u32> {
    match text {
        "True" | "Good" => Some(1),
        "False" => Some(0),
        _ => match text.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        },
    }
}
