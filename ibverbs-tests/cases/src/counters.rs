//! Counters: the same in `balboa status`, in the program's sysfs and in the capture.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use harness::pair::run_between;
use harness::runner::{Case, Need};
use harness::setting::{Daemon, Setting};
use serde_json::Value;

use super::PERFTEST;
use super::capture::{TSHARK, tshark};

/// How long the files may lag behind. They are written once a second.
const LAG: Duration = Duration::from_secs(30);
/// Files of sysfs that show other counters' numbers, and their units.
const PORT_COUNTERS: [(&str, &str, u64); 4] = [
    ("port_xmit_data", "sent_bytes", 4),
    ("port_rcv_data", "rcvd_bytes", 4),
    ("port_xmit_packets", "sent_pkts", 1),
    ("port_rcv_packets", "rcvd_pkts", 1),
];

/// Prometheus' own program, which exports the counters below `/sys`.
const EXPORTER: Need = Need::Program("prometheus-node-exporter", "prometheus-node-exporter");

/// The family.
pub fn cases() -> Vec<Case> {
    let files = |name: &str| Case::new(name, &[PERFTEST], files_follow);
    vec![
        files("counters/sysfs follows balboa status"),
        files("counters/sysfs follows balboa status").as_root(),
        Case::new(
            "counters/node_exporter shows what balboad shows",
            &[PERFTEST, EXPORTER],
            exported,
        ),
        Case::new("counters/true against the capture", &[PERFTEST, TSHARK], captured),
        Case::new("counters/congestion true against the capture", &[PERFTEST, TSHARK], congested),
    ]
}

/// A card's counters in `balboa status`.
pub(crate) fn counters(daemon: &Daemon<'_>, card: usize) -> Result<BTreeMap<String, u64>> {
    counters_of(&daemon.status()?, card)
}

/// The counters of a card by its balboad's status.
pub(crate) fn counters_of(status: &Value, card: usize) -> Result<BTreeMap<String, u64>> {
    let counters = status["cards"][card]["counters"].as_object().context("no counters")?;
    let number = |(name, value): (&String, &Value)| Some((name.clone(), value.as_u64()?));
    counters.iter().map(number).collect::<Option<_>>().context("a counter is no number")
}

/// So many bytes at least went by the cards of balboads, which have so many each, by their own counters, and some by each
/// card where it is any.
pub(crate) fn went_through(daemons: &[Daemon<'_>], cards: usize, bytes: u64) -> Result<()> {
    let mut received = Vec::new();
    for daemon in daemons {
        for card in 0..cards {
            let counters = counters(daemon, card)?;
            received.push(counters.get("rcvd_bytes").copied().context("no rcvd_bytes")?);
        }
    }
    let enough = received.iter().sum::<u64>() >= bytes;
    let idle = bytes > 0 && received.contains(&0);
    ensure!(enough && !idle, "the cards received {received:?} bytes, not {bytes}");
    Ok(())
}

/// The counters of two cards between which everything has arrived that was sent: programs may end before it has, and then a
/// busy card counts it late.
fn settled(daemon: &Daemon<'_>) -> Result<[BTreeMap<String, u64>; 2]> {
    let look = || anyhow::Ok([counters(daemon, 0)?, counters(daemon, 1)?]);
    let deadline = Instant::now() + LAG;
    let mut before = look()?;
    loop {
        std::thread::sleep(Duration::from_millis(20));
        let now = look()?;
        let [one, other] = &now;
        let arrived = |from: &BTreeMap<String, u64>, to: &BTreeMap<String, u64>| {
            from["port_frames_sent"] == to["port_frames_received"]
        };
        if arrived(one, other) && arrived(other, one) && now == before {
            return Ok(now);
        }
        ensure!(Instant::now() < deadline, "frames are still on their way: {now:?}");
        before = now;
    }
}

fn files_follow(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 2")?;
    run_between((&daemon, 0), (&daemon, 1), "ib_send_bw -F -s 4096 -n 100")?;
    let kept = daemon.state_dir().join("counters");
    for (card, status) in settled(&daemon)?.into_iter().enumerate() {
        let mut expected = status.clone();
        for (file, counter, unit) in PORT_COUNTERS {
            expected.insert(file.into(), status.get(counter).context(counter)? / unit);
        }
        ensure!(status["sent_pkts"] > 0 && status["rcvd_pkts"] > 0, "{status:?}");
        let deadline = Instant::now() + LAG;
        loop {
            let shown = shown(&daemon, card)?;
            if shown == expected {
                break;
            }
            ensure!(Instant::now() < deadline, "sysfs shows {shown:?}, status {expected:?}");
        }
        let file = format!("/sys/class/infiniband/balboa{card}/ports/1/hw_counters/sent_pkts");
        let write = daemon.run("sh -c").arg(format!("echo 1 > {file}")).run()?;
        ensure!(!write.status.success(), "{file} can be written to");
    }
    daemon.stop()?;
    ensure!(!kept.exists(), "balboad left {}", kept.display());
    Ok(())
}

/// node_exporter within `balboa run`, and `balboad --metrics`, say the same of the ports.
fn exported(setting: &Setting) -> Result<()> {
    let socket = setting.directory().join("metrics");
    let daemon = setting.balboad(&format!("--soft 2 --metrics unix:{}", socket.display()))?;
    run_between((&daemon, 0), (&daemon, 1), "ib_send_bw -F -s 4096 -n 100")?;
    let exporter = daemon.run("prometheus-node-exporter");
    let exporter = exporter.words("--collector.disable-defaults --collector.infiniband");
    let mut exporter = exporter.words("--web.listen-address=127.0.0.1:0").start()?;
    exporter.wait_until("it listened", |it| port_in(&it.errors()).is_some())?;
    let port = port_in(&exporter.errors()).context("no port")?;
    settled(&daemon)?;
    let deadline = Instant::now() + LAG;
    let ours = samples(UnixStream::connect(&socket)?)?;
    ensure!(ours.len() >= 14 && ours.values().any(|value| *value >= 409_600.0), "{ours:?}");
    loop {
        let theirs = samples(TcpStream::connect(("127.0.0.1", port))?)?;
        if theirs == ours {
            break;
        }
        ensure!(Instant::now() < deadline, "node_exporter shows {theirs:?}, balboad {ours:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
    drop(exporter);
    daemon.stop()
}

/// The port at which node_exporter's log says that it listens.
fn port_in(log: &str) -> Option<u16> {
    let (_, rest) = log.split_once("address=127.0.0.1:")?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// The metrics of ports, by their names and labels, that an endpoint shows.
fn samples(mut endpoint: impl Read + Write) -> Result<BTreeMap<String, f64>> {
    endpoint.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    let mut page = String::new();
    endpoint.read_to_string(&mut page)?;
    let ours = page.lines().filter(|line| line.starts_with("node_infiniband_"));
    // What a device is has labels in an order of its own.
    let ours = ours.filter(|line| !line.starts_with("node_infiniband_info"));
    ours.map(|line| {
        let (name, value) = line.rsplit_once(' ').context("no value")?;
        Ok((name.to_owned(), value.parse()?))
    })
    .collect()
}

/// All counters that a program finds.
fn shown(daemon: &Daemon<'_>, card: usize) -> Result<BTreeMap<String, u64>> {
    let port = format!("/sys/class/infiniband/balboa{card}/ports/1");
    let list = format!("cd {port} && grep . hw_counters/* counters/*");
    let finished = daemon.run("sh -c").arg(list).run()?.success()?;
    let line = |line: &str| {
        let (path, value) = line.split_once(':')?;
        let (_, name) = path.split_once('/')?;
        Some((name.to_owned(), value.parse().ok()?))
    };
    let lines: Option<_> = finished.stdout.lines().map(line).collect();
    lines.with_context(|| format!("no number: {finished}"))
}

/// The fields of a frame, as tshark reads them.
pub(crate) struct Frame {
    interface: String,
    /// Opcode, destination QP and PSN of a RoCE frame.
    transport: Option<(u8, String, String)>,
    /// Marked "congestion experienced".
    marked: bool,
}

/// The frames of a capture.
pub(crate) fn frames(setting: &Setting, file: &Path) -> Result<Vec<Frame>> {
    let task =
        tshark(setting, file).words("-T fields -e frame.interface_name -e infiniband.bth.opcode");
    let task = task.words("-e infiniband.bth.destqp -e infiniband.bth.psn -e ip.dsfield.ecn");
    let finished = task.run()?.success()?;
    let frame = |line: &str| {
        let mut fields = line.split('\t');
        let mut next = || fields.next().map(str::to_owned);
        let (interface, opcode, qp, psn, ecn) = (next()?, next()?, next()?, next()?, next()?);
        let transport = (!opcode.is_empty()).then(|| Some((opcode.parse().ok()?, qp, psn)));
        Some(Frame {
            interface,
            marked: ecn == CONGESTION_EXPERIENCED,
            transport: match transport {
                Some(read) => Some(read?),
                None => None,
            },
        })
    };
    let frames: Option<_> = finished.stdout.lines().map(frame).collect();
    frames.with_context(|| format!("tshark's fields are not as expected: {finished}"))
}

/// The value of the mark in IP's header, as tshark prints it.
const CONGESTION_EXPERIENCED: &str = "3";
/// The opcode of congestion notification packets.
const NOTIFICATION: u8 = 0x81;
/// Whether an opcode is that of a request of one PSN: SEND, WRITE, an atomic, SEND with invalidate.
fn has_one_psn(opcode: u8) -> bool {
    matches!(opcode, 0x00..=0x0b | 0x13 | 0x14 | 0x16 | 0x17)
}

/// The opcode of READ requests.
const READ_REQUEST: u8 = 0x0c;

/// Checks a card's counters of RoCE frames by a capture.
pub(crate) fn true_of(card: usize, own: &BTreeMap<String, u64>, frames: &[Frame]) -> Result<()> {
    let roce = |direction: &str| {
        let interface = format!("card{card}-{direction}");
        let of = frames.iter().filter(move |frame| frame.interface == interface);
        of.filter_map(|frame| frame.transport.as_ref())
    };
    let dropped = own.iter().filter(|(name, _)| name.starts_with("drop_"));
    // These come after the frame has reached its QP, where it was counted already.
    let inside = [
        "drop_ack_queue",
        "drop_after_gap",
        "drop_bad_qkey",
        "drop_bad_opcode",
        "drop_duplicate_read",
        "drop_stale_response",
        "drop_wrong_state",
    ];
    let others = ["drop_not_for_us", "drop_control_queue", "drop_no_neighbour"];
    let counted_so = |name: &str| inside.contains(&name) || others.contains(&name);
    let before_qp: u64 = dropped.filter(|it| !counted_so(it.0.as_str())).map(|it| it.1).sum();
    let mut seen = BTreeSet::new();
    let again = roce("sent").filter(|it| has_one_psn(it.0) && !seen.insert((&it.1, &it.2)));
    for (what, counted, captured) in [
        ("RoCE frames sent", own["sent_pkts"], roce("sent").count()),
        ("RoCE frames received", own["rcvd_pkts"] + before_qp, roce("delivered").count()),
    ] {
        ensure!(
            counted == captured as u64,
            "{what} of card {card}: {counted} counted, {captured} captured; {own:?}"
        );
    }
    // A question is a frame sent again that is no retransmission.
    let counted = own["retransmitted_pkts"] + own["sent_questions"];
    let again = again.count() as u64;
    // A READ may be asked for again from a PSN that no request had before.
    let reads = roce("sent").filter(|it| it.0 == READ_REQUEST).count() as u64;
    ensure!(
        (again..=again + reads).contains(&counted),
        "frames sent again of card {card}: {counted} counted, {again} captured; {own:?}"
    );
    Ok(())
}

fn captured(setting: &Setting) -> Result<()> {
    let file = setting.directory().join("frames.pcapng");
    let daemon = setting.balboad(&format!("--soft 2 --fault loss=1% --pcap {}", file.display()))?;
    for command in ["ib_write_bw -F -s 65536 -n 200", "ib_send_bw -F -s 4096 -n 500"] {
        run_between((&daemon, 0), (&daemon, 1), command)?;
    }
    let counters = settled(&daemon)?;
    daemon.stop()?;
    let frames = frames(setting, &file)?;
    for card in 0..2 {
        let (own, other) = (&counters[card], &counters[1 - card]);
        let of = |direction: &str| {
            let interface = format!("card{card}-{direction}");
            frames.iter().filter(move |frame| frame.interface == interface)
        };
        true_of(card, own, &frames)?;
        for (what, counted, captured) in [
            // The port counts between the two directions' faults, the capture before and behind.
            ("frames sent", own["port_frames_sent"] + own["fault_lost_tx"], of("sent").count()),
            (
                "frames delivered",
                other["port_frames_sent"] - own["fault_lost_rx"],
                of("delivered").count(),
            ),
        ] {
            ensure!(
                counted == captured as u64,
                "{what} of card {card}: {counted} counted, {captured} captured; {own:?}"
            );
        }
    }
    ensure!(counters[1]["retransmitted_pkts"] > 0, "nothing was lost");
    Ok(())
}

fn congested(setting: &Setting) -> Result<()> {
    let file = setting.directory().join("frames.pcapng");
    let daemon = setting.balboad(&format!("--soft 2 --fault ecn=2% --pcap {}", file.display()))?;
    for command in ["ib_write_bw -F -s 65536 -n 200", "ib_read_bw -F -s 65536 -n 200"] {
        run_between((&daemon, 0), (&daemon, 1), command)?;
    }
    let counters = settled(&daemon)?;
    daemon.stop()?;
    let frames = frames(setting, &file)?;
    for (card, own) in counters.iter().enumerate() {
        let count = |direction: &str, counted: fn(&Frame, u8) -> bool| {
            let interface = format!("card{card}-{direction}");
            let of = frames.iter().filter(|frame| frame.interface == interface);
            let counted = |frame: &&Frame| {
                frame.transport.as_ref().is_some_and(|transport| counted(frame, transport.0))
            };
            of.filter(counted).count() as u64
        };
        for (name, captured) in [
            ("np_ecn_marked_roce_packets", count("delivered", |frame, _| frame.marked)),
            ("np_cnp_sent", count("sent", |_, opcode| opcode == NOTIFICATION)),
            ("rp_cnp_ignored", count("delivered", |_, opcode| opcode == NOTIFICATION)),
        ] {
            ensure!(
                own[name] == captured && captured > 0,
                "{name} of card {card}: {} counted, {captured} captured; {own:?}",
                own[name]
            );
        }
    }
    Ok(())
}
