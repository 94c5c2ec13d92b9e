//! Priorities of software cards: shares of a cable, pauses, and their settings.

use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use harness::pair::{free_port, run_between, start_server};
use harness::process::{Running, Task};
use harness::runner::Case;
use harness::setting::{Daemon, Setting};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::PERFTEST;
use super::capture::{TSHARK, tshark};
use super::counters::counters_of;
use super::udp::addresses;

/// How long a case waits for programs to have sent so much.
const PATIENCE: Duration = Duration::from_secs(180);
/// The priorities that share a cable.
const SHARING: [u8; 3] = [0, 3, 4];
/// Bytes of a slow cable that are looked at, and of a faster one.
const LOOKED_AT: u64 = 500_000;
const MANY: u64 = 2_000_000;
/// The destination and type of pauses, between them a source.
const PAUSE: [&[u8]; 3] = [b"\x01\x80\xc2\0\0\x01", b"\x02\0\0\0\0\x09", b"\x88\x08\x01\x01"];

/// The family.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("qos/priorities share a cable by weights", &[PERFTEST], shares).alone(),
        Case::new(
            "qos/senders to a full cable pause, as tshark sees it",
            &[PERFTEST, TSHARK],
            full,
        )
        .alone(),
        Case::new("qos/a peer that pauses for ever stops one priority", &[PERFTEST], storm).alone(),
        Case::new("qos/tags and DSCPs tell priorities", &[PERFTEST, TSHARK], trust),
        Case::new("qos/settings are shown, set and refused", &[], settings),
    ]
}

/// `balboa qos` with some words.
fn qos(setting: &Setting, daemon: &Daemon<'_>, words: &str) -> Task {
    setting.built("balboa").words("qos --state-dir").arg(daemon.state_dir()).words(words)
}

/// A counter of a card.
fn counter(status: &Value, card: usize, name: &str) -> Result<u64> {
    counters_of(status, card)?.get(name).copied().with_context(|| format!("no {name}"))
}

/// Sends from one card to another with a traffic class, without end.
fn flow(
    (from, from_card): (&Daemon<'_>, usize),
    (to, to_card): (&Daemon<'_>, usize),
    class: u8,
) -> Result<[Running; 2]> {
    let port = free_port()?;
    let command =
        format!("ib_write_bw -F -x 1 -m 1024 -s 8192 -D 300 -u 20 --tclass {class} -p {port}");
    let side = |daemon: &Daemon<'_>, card: usize| {
        daemon.run(&command).words(&format!("-d balboa{card}")).limit(2 * PATIENCE)
    };
    let server = start_server(side(to, to_card), port)?;
    Ok([server, side(from, from_card).arg("127.0.0.1").start()?])
}

/// Ends programs that send without end.
fn end(flows: Vec<[Running; 2]>) -> Result<()> {
    let programs: Vec<Running> = flows.into_iter().flatten().collect();
    programs.iter().try_for_each(|program| program.signal(Signal::SIGKILL))?;
    programs.into_iter().try_for_each(|program| program.wait().map(drop))
}

/// Waits for a status.
fn when(daemon: &Daemon<'_>, what: &str, is: impl Fn(&Value) -> Result<bool>) -> Result<Value> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = daemon.status()?;
        if is(&status)? {
            return Ok(status);
        }
        ensure!(Instant::now() < deadline, "not {what}: {:?}", counters_of(&status, 0)?);
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Bytes that a card has sent of each of the priorities.
fn sent(status: &Value) -> Result<Vec<u64>> {
    let bytes = |priority: &u8| counter(status, 0, &format!("tx_prio{priority}_bytes"));
    SHARING.iter().map(bytes).collect()
}

fn shares(setting: &Setting) -> Result<()> {
    // What waits of each priority takes 70 ms of the cable and more, so that none lacks any while the card has not its turn.
    let daemon = setting.balboad("--soft 2 --fault rate=1M")?;
    for card in 0..2 {
        let words = format!("balboa{card} set apptrust order dscp");
        qos(setting, &daemon, &words).run()?.success()?;
    }
    let flows = SHARING.map(|priority| flow((&daemon, 0), (&daemon, 1), priority << 5));
    let flows = flows.into_iter().collect::<Result<Vec<_>>>()?;
    let all = |status: &Value| Ok(sent(status)?.iter().all(|bytes| *bytes > 0));
    when(&daemon, "all send", all)?;
    let grown = || {
        let before = sent(&daemon.status()?)?;
        let sum: u64 = before.iter().sum();
        let enough = |status: &Value| Ok(sent(status)?.iter().sum::<u64>() >= sum + LOOKED_AT);
        let after = sent(&when(&daemon, "enough was sent", enough)?)?;
        let grown: Vec<u64> = after.iter().zip(&before).map(|(after, it)| after - it).collect();
        let sum: u64 = grown.iter().sum();
        anyhow::Ok(grown.into_iter().map(|bytes| bytes * 1_000 / sum).collect::<Vec<_>>())
    };
    // The highest goes first.
    let strict = grown()?;
    let set = |words: &str| qos(setting, &daemon, words).run()?.success();
    set("balboa0 set ets tc-tsa all:ets tc-bw 0:10 3:60 4:30")?;
    let weighted = grown()?;
    set("balboa0 set ets tc-bw 3:30 4:60")?;
    let others = grown()?;
    println!("strict {strict:?}, by weights {weighted:?}, by others {others:?}");
    end(flows)?;
    // The tests of softcard judge shares to a fiftieth; here a card that comes late has nothing to send of one now and then.
    ensure!(strict[2] >= 800, "strict: {strict:?}");
    for (seen, expected) in [(&weighted, [100, 600, 300]), (&others, [100, 300, 600])] {
        let near = |(seen, expected): (&u64, u64)| seen.abs_diff(expected) <= 80;
        ensure!(seen.iter().zip(expected).all(near), "{seen:?}, not {expected:?}");
    }
    daemon.stop()
}

/// Two cards of a new balboad send to a third by one priority, and one of them to a fourth by another one.
/// Gives the frames that were dropped.
fn many_to_one(setting: &Setting, daemon: &Daemon<'_>, pfc: &str) -> Result<u64> {
    for card in 0..4 {
        let words = format!(
            "balboa{card} set ets tc-tsa 3:ets 4:ets tc-bw 3:50 4:50 pfc prio-pfc 3:{pfc} \
            apptrust order dscp"
        );
        qos(setting, daemon, &words).run()?.success()?;
    }
    let end_of = |card: usize| (daemon, card);
    let flows = [(0, 2, 3), (1, 2, 3), (0, 3, 4)];
    let flows = flows.map(|(from, to, priority)| flow(end_of(from), end_of(to), priority << 5));
    let flows = flows.into_iter().collect::<Result<Vec<_>>>()?;
    let enough = |status: &Value| {
        let [full, lost] =
            ["bytes", "discards"].map(|it| counter(status, 2, &format!("rx_prio3_{it}")));
        let other = counter(status, 3, "rx_prio4_bytes")?;
        Ok((pfc == "on" || lost? > 0) && full? >= MANY && other >= MANY / 4)
    };
    when(daemon, "both go on", enough)?;
    end(flows)?;
    counter(&daemon.status()?, 2, "rx_prio3_discards")
}

fn full(setting: &Setting) -> Result<()> {
    // A buffer takes 200 ms of its cable, so that it does not run empty while the cards have not their turn.
    let fault = "--soft 4 --fault rate=10M,buffer=256k";
    let daemon = setting.balboad(fault)?;
    many_to_one(setting, &daemon, "off")?;
    let said = counter(&daemon.status()?, 2, "tx_prio3_pause")?;
    ensure!(said == 0, "{said} pauses without flow control");
    daemon.stop()?;
    let file = setting.directory().join("pauses.pcapng");
    let daemon = setting.balboad(&format!("{fault} --pcap {}", file.display()))?;
    let lost = many_to_one(setting, &daemon, "on")?;
    ensure!(lost == 0, "{lost} frames were lost with flow control");
    let status = daemon.status()?;
    let said = counter(&status, 2, "tx_prio3_pause")?;
    let heeded = [0, 1].map(|card| counter(&status, card, "rx_prio3_pause"));
    let heeded = heeded.into_iter().collect::<Result<Vec<_>>>()?;
    ensure!(said > 0 && heeded.iter().all(|count| *count > 0), "{said} said, {heeded:?} heeded");
    ensure!(counter(&status, 3, "rx_prio3_pause")? == 0, "the fourth card was paused");
    daemon.stop()?;
    // One frame stops a priority, and another lets it go on.
    let fields = "-Y macc -T fields -e eth.dst -e macc.opcode -e macc.cbfc.enbv -e macc.cbfc.pause_time.c3 -e frame.len -e _ws.malformed";
    let lines = tshark(setting, &file).words(fields).run()?.success()?.stdout;
    let frame = |quanta: &str| format!("01:80:c2:00:00:01\t0x0101\t0x0008\t{quanta}\t60\t");
    for quanta in ["65535", "0"] {
        let frame = frame(quanta);
        ensure!(
            lines.lines().any(|line| line.trim_end() == frame.trim_end()),
            "{frame:?}: {lines}"
        );
    }
    let others: Vec<_> = lines
        .lines()
        .filter(|line| !["65535", "0"].iter().any(|it| line.trim_end() == frame(it).trim_end()))
        .collect();
    ensure!(others.is_empty(), "other pauses: {others:?}");
    Ok(())
}

fn storm(setting: &Setting) -> Result<()> {
    let daemons = setting.cabled_balboads_with("--fault rate=50M")?;
    let [one, other] = &daemons;
    for daemon in &daemons {
        qos(setting, daemon, "balboa0 set apptrust order dscp").run()?.success()?;
    }
    qos(setting, one, "balboa0 set pfc prio-pfc 3:on").run()?.success()?;
    let flows = [3, 4].map(|priority: u8| flow((one, 0), (other, 0), priority << 5));
    let flows = flows.into_iter().collect::<Result<Vec<_>>>()?;
    qos(setting, one, "balboa0 set ets tc-tsa 3:ets 4:ets tc-bw 3:50 4:50").run()?.success()?;
    let bytes = |status: &Value| -> Result<[u64; 2]> {
        Ok([counter(status, 0, "tx_prio3_bytes")?, counter(status, 0, "tx_prio4_bytes")?])
    };
    when(one, "both send", |status| Ok(bytes(status)?.iter().all(|bytes| *bytes > 500_000)))?;
    let doctor = || setting.built("balboa").words("doctor --state-dir").arg(one.state_dir()).run();
    ensure!(!doctor()?.stdout.contains("paused it without end"), "before any pause");
    // Somebody on the cable has priority 3 pause, and again long before that is over.
    let socket = UnixDatagram::unbound()?;
    let mut pause = PAUSE.concat();
    pause.extend([0, 1 << 3]);
    (0..8).for_each(|priority| pause.extend(if priority == 3 { [0xff, 0xff] } else { [0, 0] }));
    pause.resize(60, 0);
    let say = || socket.send_to(&pause, setting.cable_end(0)).context("the card's socket");
    say()?;
    when(one, "the pause is heeded", |status| Ok(counter(status, 0, "rx_prio3_pause")? > 0))?;
    let begun = bytes(&one.status()?)?;
    let stood = |status: &Value| {
        say()?;
        let detected = counter(status, 0, "pfc_watchdog_detected")?;
        Ok(detected > 0 && bytes(status)?[1] > begun[1] + 2_000_000)
    };
    let status = when(one, "the other priority goes on, and this one is given up", stood)?;
    let ended = bytes(&status)?;
    // A frame may have begun to leave.
    ensure!(ended[0] - begun[0] <= 2 * 4_352, "{begun:?} {ended:?}");
    ensure!(counter(&status, 0, "pfc_watchdog_dropped")? > 0, "nothing was dropped");
    doctor()?.says("paused it without end")?.says("balboa qos balboa0 set pfc prio-pfc all:off")?;
    // Without pauses it goes on.
    let goes_on = |status: &Value| Ok(bytes(status)?[0] > ended[0] + 500_000);
    when(one, "the priority goes on", goes_on)?;
    end(flows)?;
    daemons.into_iter().try_for_each(Daemon::stop)
}

fn trust(setting: &Setting) -> Result<()> {
    let file = setting.directory().join("priorities.pcapng");
    let capture = format!("--pcap {}", file.display());
    let options =
        "--soft 2 --fault rate=1G,ecn=1:2:100% --congestion dcqcn-mlx5,cnp_dscp=48,min_rate=100";
    let daemon = setting.balboad(&format!("{options} {capture}"))?;
    for card in 0..2 {
        let words = format!("balboa{card} add 10.88.0.{} vlan 5", card + 1);
        let addr = setting.built("balboa").words("addr --state-dir").arg(daemon.state_dir());
        addr.words(&words).run()?.success()?.says("GID 2")?;
    }
    let send = || {
        let command = "ib_write_bw -F -x 2 -n 200 -s 8192 --sl 5 --tclass 104";
        run_between((&daemon, 1), (&daemon, 0), command)
    };
    let sent = |priority: u8| {
        let status = daemon.status()?;
        let name = |way: &str| format!("{way}_prio{priority}_packets");
        anyhow::Ok([counter(&status, 0, &name("tx"))?, counter(&status, 1, &name("rx"))?])
    };
    let all = |words: &str| -> Result<()> {
        for card in 0..2 {
            let words = format!("balboa{card} set {words}");
            qos(setting, &daemon, &words).run()?.success()?;
        }
        Ok(())
    };
    // 104 is DSCP 26: by the class selector 3, by a map 1, by the tag the service level.
    for (words, priority) in
        [("apptrust order dscp", 3), ("app dscp-prio 26:1", 1), ("apptrust order pcp", 5)]
    {
        all(words)?;
        let before = sent(priority)?;
        send()?;
        let after = sent(priority)?;
        // A message of 8 KiB is two packets.
        let grown = [after[0] - before[0], after[1] - before[1]];
        ensure!(grown.iter().all(|packets| *packets >= 400), "{words}: {grown:?} of {priority}");
    }
    // Notifications are of a priority of their own.
    all("apptrust order dscp")?;
    let before = counter(&daemon.status()?, 1, "tx_prio6_packets")?;
    send()?;
    let notified = counter(&daemon.status()?, 1, "tx_prio6_packets")? - before;
    ensure!(notified > 0, "no notification was of priority 6");
    daemon.stop()?;
    let fields = "-d udp.port==4791,infiniband -Y infiniband.bth.opcode==0x81 -T fields \
        -e ip.dsfield.dscp -e ip.dsfield.ecn -e vlan.priority -e _ws.malformed";
    let lines = tshark(setting, &file).words(fields).run()?.success()?.stdout;
    let kinds: std::collections::BTreeSet<&str> = lines.lines().map(str::trim_end).collect();
    ensure!(kinds == ["48\t0\t5"].into(), "{kinds:?}");
    Ok(())
}

fn settings(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 3 --fault rate=10G,buffer=512k,card=0 --fault loss=0%")?;
    let say = |words: &str| qos(setting, &daemon, words).run();
    let shown = say("balboa0 show")?.success()?;
    shown.says("ets tc-tsa 0:strict 1:strict")?.says("prio-pfc 0:off")?.says("order pcp")?;
    say("balboa0 set apptrust order dscp")?.success()?;
    say("balboa0 show")?.success()?.says("25:3 26:3")?;
    say("balboa0 set ets tc-tsa 3:ets tc-bw 3:100 pfc prio-pfc 3:on app dscp-prio 26:4")?
        .success()?;
    let shown = say("balboa0 show --json")?.success()?;
    let document: Value = serde_json::from_str(&shown.stdout)?;
    ensure!(document["prio_pfc"][3] == true && document["prio_pfc"][4] == false, "{document}");
    ensure!(document["dscp_prio"][26] == 4 && document["tc_bw"][3] == 100, "{document}");
    ensure!(daemon.status()?["cards"][0]["qos"]["pfc"] == 8, "the status has them");
    for (words, code, why) in [
        ("balboa1 show", 1, "balboa1: nothing waits there, for its cable has no rate"),
        ("balboa1 set pfc prio-pfc 3:on", 1, "start balboad with --fault rate=10G,card=N"),
        ("balboa7 show", 1, "its cards are balboa0, balboa1, balboa2"),
        ("balboa0 set ets tc-bw 0:10", 2, "balboa0: traffic class 0 is strict, and has a weight"),
        ("balboa0 set ets tc-bw 3:90", 2, "balboa0: the weights are 90 in all, and have to be 100"),
        (
            "balboa0 set pfc prio-pfc all:on",
            2,
            "would be all of the cable's buffer of 524288 bytes",
        ),
        ("balboa0 set ets tc-bw 9:90", 2, "tc-bw `9:90`: write a number from 0 to 7"),
        ("balboa0 set pfc", 2, "`pfc`: write what it is to be behind it"),
        ("balboa0 set", 2, "WORD"),
    ] {
        say(words)?.refuses(code, why)?;
    }
    // Nothing of it has changed anything, and a reset does not either.
    let reset = setting.built("balboa").words("reset --yes --state-dir").arg(daemon.state_dir());
    reset.arg("balboa0").run()?.success()?;
    let again = say("balboa0 show --json")?.success()?;
    ensure!(again.stdout == shown.stdout, "{again}");
    daemon.stop()?;
    // The machine's own network has its own queues.
    let [address, ..] = addresses();
    let daemon = setting.balboad(&format!("--soft 1 --port udp:{address}"))?;
    let refused = qos(setting, &daemon, "balboa0 set pfc prio-pfc 3:on").run()?.code(1)?;
    refused.complains("balboa0: it is on the machine's own network")?;
    daemon.stop()
}
