//! Cards that seal all their frames, and take only sealed ones.

use std::collections::HashMap;
use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use harness::pair::{Both, beside, both_say, free_port, listening, run_between, start_server};
use harness::runner::{Case, Need};
use harness::setting::{Daemon, Setting};
use nix::sys::signal::Signal;

use super::capture::{TSHARK, tshark};
use super::counters::counters;
use super::faults::was_bad;
use super::rdmacm::RDMACM_UTILS;
use super::{IBVERBS_UTILS, PERFTEST};

/// How long all messages of a program may take.
const LIMIT: Duration = Duration::from_secs(180);
/// The addresses of the first two cards.
const CARDS: [&str; 2] = ["10.77.0.1,fe80::aff:fe4d:1", "10.77.0.2,fe80::aff:fe4d:2"];
const KEY: &str = "7fd1a4b3c2908e6d5f4e3d2c1b0a99887766554433221100ffeeddccbbaa9901";
const OTHER_KEY: &str = "0fd1a4b3c2908e6d5f4e3d2c1b0a99887766554433221100ffeeddccbbaa9902";
/// Faults that the cables of a case have.
const BAD: &str = "loss=2%,dup=2%,reorder=2%,corrupt=1%,ecn=1%";

/// The algorithms.
const VERSIONS: [&str; 4] =
    ["hdr0-aes-gcm-128", "hdr0-aes-gcm-256", "hdr0-aes-gmac-128", "hdr0-aes-gmac-256"];

/// The words of `verbs-data`, and the line that it prints.
const DATA: [(&str, &str); 6] = [
    ("sweep --gid 0", "850 messages arrived"),
    ("sweep --to balboa0", "850 messages arrived"),
    ("sweep --unreliable", "510 messages arrived"),
    ("xrc", "555 XRC messages arrived"),
    ("counter", "3200 atomics counted once"),
    ("errors", "25 errors came"),
];

/// The family.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for version in VERSIONS {
        cases.push(Case::new(format!("psp/data/sweep/{version}"), &[], move |setting| {
            let daemon = sealed(setting, &format!("--psp-version {version}"))?;
            data(setting, &daemon, "sweep", "850 messages arrived")?;
            daemon.stop()
        }));
    }
    for (command, says) in DATA {
        cases.push(Case::new(format!("psp/data/{command}"), &[], move |setting| {
            let daemon = sealed(setting, "")?;
            data(setting, &daemon, command, says)?;
            daemon.stop()
        }));
    }
    type Body = fn(&Setting) -> Result<()>;
    let more: [(&str, &[Need], Body); 9] = [
        ("bad cable", &[], bad_cable),
        ("distribution's programs", &[IBVERBS_UTILS, PERFTEST], programs),
        ("rdma_cm", &[RDMACM_UTILS], rdma_cm),
        ("machine's own network", &[PERFTEST], own_network),
        ("a wrong key", &[IBVERBS_UTILS], wrong_key),
        ("a peer without a key", &[], strangers),
        ("keys that are not taken", &[], refusals),
        ("captures show nothing, and no vector twice", &[TSHARK, IBVERBS_UTILS], captured),
        ("an injector on the cable", &[], injector),
    ];
    for (name, needs, body) in more {
        cases.push(Case::new(format!("psp/{name}"), needs, body));
    }
    cases
}

/// Writes a file of keys that is the user's alone.
fn key_file(setting: &Setting, name: &str, text: &str) -> Result<PathBuf> {
    let path = setting.directory().join(name);
    fs::write(&path, text)?;
    fs::set_permissions(&path, Permissions::from_mode(0o600))?;
    chown(&path, Some(setting.uid()), None)?;
    Ok(path)
}

/// The options of two cards, each of which has a key for the other.
fn options(setting: &Setting, keys: [&str; 2]) -> Result<String> {
    let file = |card: usize| {
        let text = format!("{} {}\n", CARDS[1 - card], keys[card]);
        key_file(setting, &format!("keys{card}"), &text)
    };
    let [first, second] = [file(0)?, file(1)?];
    Ok(format!("--psp-peers 0={} --psp-peers 1={}", first.display(), second.display()))
}

/// A balboad with two cards that share a key.
pub(super) fn sealed<'a>(setting: &'a Setting, more: &str) -> Result<Daemon<'a>> {
    setting.balboad(&format!("--soft 2 {} {more}", options(setting, [KEY, KEY])?))
}

/// A counter of a card's, which must be there.
fn counter(daemon: &Daemon<'_>, card: usize, name: &str) -> Result<u64> {
    counters(daemon, card)?.get(name).copied().with_context(|| format!("no counter {name}"))
}

/// Runs a program of the data's, and looks whether all that passed was sealed.
fn data(setting: &Setting, daemon: &Daemon<'_>, command: &str, says: &str) -> Result<()> {
    let task = daemon.run("").arg(setting.bin.join("verbs-data")).words(command);
    task.limit(LIMIT).run()?.success()?.says(says)?;
    all_was_sealed(daemon)
}

fn all_was_sealed(daemon: &Daemon<'_>) -> Result<()> {
    let mut passed = 0;
    for card in [0, 1] {
        let count = |name: &str| counter(daemon, card, name);
        passed += count("psp_rx_packets")?;
        for name in ["psp_rx_in_clear", "psp_rx_bad", "psp_rx_error", "psp_rx_auth_fail"] {
            ensure!(count(name)? == 0, "card {card}: {name} is {}", count(name)?);
        }
    }
    ensure!(passed > 100, "{passed} packets were opened");
    Ok(())
}

fn bad_cable(setting: &Setting) -> Result<()> {
    let daemon = sealed(setting, &format!("--fault {BAD}"))?;
    let program = setting.bin.join("verbs-data");
    let command = format!("{} apart --bad-cable", program.display());
    let Both { server, client } = run_between((&daemon, 0), (&daemon, 1), &command)?;
    for side in [server, client] {
        side.says("350 messages arrived as they should")?.says("80 atomics counted once")?;
    }
    was_bad(&daemon, BAD)?;
    // A frame that comes twice counts as replayed, and a damaged frame does not open.
    for name in ["psp_rx_replayed", "psp_rx_auth_fail"] {
        let count = counter(&daemon, 0, name)? + counter(&daemon, 1, name)?;
        ensure!(count > 0, "{name} is 0");
    }
    daemon.stop()
}

fn programs(setting: &Setting) -> Result<()> {
    let daemon = sealed(setting, "")?;
    for (command, says) in [
        ("ibv_rc_pingpong -c -g 1 -n 200", "200 iters in"),
        ("ibv_ud_pingpong -g 0 -n 200 -s 1000", "200 iters in"),
        ("ib_write_bw -F -x 1 -q 8 -n 100", "65536 "),
        ("ib_read_bw -F -x 0 -n 200", "65536 "),
    ] {
        both_say(&run_between((&daemon, 0), (&daemon, 1), command)?, says)?;
    }
    all_was_sealed(&daemon)?;
    daemon.stop()
}

/// Messages of the connection manager are sealed, too.
fn rdma_cm(setting: &Setting) -> Result<()> {
    let daemon = sealed(setting, "")?;
    let server = daemon.run("rping -s -a 10.77.0.1 -v -V -C 100");
    let server = listening(&daemon, server, "listeners")?;
    let client = daemon.run("rping -c -a 10.77.0.1 -I 10.77.0.2 -v -V -C 100");
    beside(&server, client)?.says("ping data: rdma-ping-99: ")?;
    server.wait()?.success()?;
    all_was_sealed(&daemon)?;
    daemon.stop()
}

/// Two balboads with PSP on sockets of an ordinary user, who may not use ports below 1024.
pub(super) fn sealed_on_own_network(setting: &Setting) -> Result<[Daemon<'_>; 2]> {
    let addresses = super::udp::addresses();
    let start = |number: usize| -> Result<Daemon<'_>> {
        let text = format!("{} {KEY}\n", addresses[1 - number]);
        let keys = key_file(setting, &format!("near{number}.keys"), &text)?;
        let address = &addresses[number];
        let port = format!("--port udp:{address} --psp-port 21000 --psp-peers {}", keys.display());
        setting.balboad_in(
            &setting.directory().join(format!("near{number}")),
            &format!("--soft 1 {port}"),
        )
    };
    Ok([start(0)?, start(1)?])
}

fn own_network(setting: &Setting) -> Result<()> {
    let daemons = sealed_on_own_network(setting)?;
    let program = setting.bin.join("verbs-data");
    let command = format!("{} apart --gid 0", program.display());
    let Both { server, client } = run_between((&daemons[0], 0), (&daemons[1], 0), &command)?;
    for side in [server, client] {
        side.says("350 messages arrived as they should")?;
    }
    both_say(
        &run_between((&daemons[0], 0), (&daemons[1], 0), "ib_write_bw -F -b -n 500")?,
        "65536 ",
    )?;
    for daemon in &daemons {
        let opened = counter(daemon, 0, "psp_rx_packets")?;
        ensure!(opened > 1000, "{opened} packets were opened");
        for name in ["psp_rx_auth_fail", "psp_rx_replayed", "psp_rx_in_clear"] {
            ensure!(counter(daemon, 0, name)? == 0, "{name}");
        }
    }
    daemons.into_iter().try_for_each(Daemon::stop)
}

fn wrong_key(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad(&format!("--soft 2 {}", options(setting, [KEY, OTHER_KEY])?))?;
    let port = free_port()?;
    let program =
        |rest: &str| daemon.run(&format!("ibv_rc_pingpong -g 1 -n 1 -p {port} -d {rest}"));
    let server = start_server(program("balboa0"), port)?;
    let client = program("balboa1 127.0.0.1").limit(LIMIT).run()?.code(1)?;
    client.complains("transport retry counter exceeded")?;
    server.signal(Signal::SIGKILL)?;
    server.wait()?;
    for card in [0, 1] {
        ensure!(counter(&daemon, card, "psp_rx_packets")? == 0, "a packet was opened");
    }
    ensure!(counter(&daemon, 0, "psp_rx_auth_fail")? > 0, "no packet was refused");
    daemon.stop()
}

/// A card with keys for another peer alone: the verb that names this one says so, and so does the log.
fn strangers(setting: &Setting) -> Result<()> {
    let keys = key_file(setting, "keys", &format!("10.77.0.9 {KEY}\n"))?;
    let daemon = setting.balboad(&format!("--soft 2 --psp-peers 1={}", keys.display()))?;
    let task = daemon.run("").arg(setting.bin.join("verbs-data")).words("sweep").limit(LIMIT);
    task.run()?.code(1)?.complains("ibv_modify_qp failed: Operation not supported")?;
    ensure!(daemon.log().contains("dgid ::ffff:10.77.0.1 is of no host"), "{}", daemon.log());
    daemon.stop()
}

fn refusals(setting: &Setting) -> Result<()> {
    let good = format!("10.77.0.2 {KEY}\n");
    let file = key_file(setting, "keys", &good)?;
    let path = file.display().to_string();
    let refused = |arguments: &str, why: &str| -> Result<()> {
        let task =
            setting.built("balboad").arg("--state-dir").arg(setting.directory().join("none"));
        task.words(arguments).run()?.refuses(2, why).map(drop)
    };
    let peers = format!("--soft 1 --psp-peers {path}");
    fs::set_permissions(&file, Permissions::from_mode(0o640))?;
    refused(&peers, "others may read what is shared with peers; make it yours, and chmod 600 it")?;
    fs::set_permissions(&file, Permissions::from_mode(0o600))?;
    for (text, why) in [
        (String::new(), "there is no peer in it"),
        (format!("{good}10.77.0.3 {KEY}\n"), "line 2: another line has the same key"),
        (format!("{good}10.77.0.2 {OTHER_KEY}\n"), "line 2: 10.77.0.2 was there before"),
        ("10.77.0.2 0123\n".into(), "line 1: a key has 64 hexadecimal digits"),
        ("10.77.0.2\n".into(), "line 1: write an address"),
        ("host 00\n".into(), "line 1: what stands first are no addresses"),
    ] {
        fs::write(&file, text)?;
        refused(&peers, why)?;
    }
    fs::write(&file, &good)?;
    for (arguments, why) in [
        ("--soft 1 --psp-peers /nowhere".to_owned(), "/nowhere: it cannot be read"),
        ("--soft 1 --psp-peers credential:psp".into(), "LoadCredential=psp:FILE"),
        (format!("{peers} --shadow"), "leave --shadow or --psp-peers out"),
        (format!("{peers} --soft-image stock"), "which card 0 has, seals nothing"),
        (format!("{peers} --psp-port 4791"), "write a UDP port"),
        (format!("{peers} --psp-version aes"), "write hdr0-aes-gcm-128"),
        ("--soft 1 --psp-port 1000".into(), "no card protects anything"),
    ] {
        refused(&arguments, why)?;
    }
    Ok(())
}

/// A packet in a capture.
struct Captured {
    source: String,
    port: String,
    bytes: Vec<u8>,
}

/// The UDP datagrams of a capture.
fn datagrams(setting: &Setting, file: &Path) -> Result<Vec<Captured>> {
    let task =
        tshark(setting, file).words("-Y udp -T fields -e ip.src -e udp.dstport -e udp.payload");
    let read = task.run()?.success()?;
    let datagram = |line: &str| -> Result<Captured> {
        let mut fields = line.split('\t').map(str::to_owned);
        let mut next = || fields.next().context("a field is missing");
        let (source, port, payload) = (next()?, next()?, next()?);
        let digits: Vec<char> = payload.chars().filter(char::is_ascii_hexdigit).collect();
        let byte = |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16);
        let bytes = digits.chunks(2).map(byte).collect::<Result<_, _>>()?;
        Ok(Captured { source, port, bytes })
    };
    read.stdout.lines().map(datagram).collect()
}

/// Whether it has payload of the pingpong, whose buffer is filled with one of two bytes.
fn shows_payload(bytes: &[u8]) -> bool {
    bytes.windows(32).any(|it| *it == [0x7b; 32] || *it == [0x7c; 32])
}

/// Of programs before and behind a death of balboad's.
fn captured(setting: &Setting) -> Result<()> {
    let command = "ibv_rc_pingpong -g 1 -n 100";
    let capture = |name: &str, options: &str, kill: bool| -> Result<Vec<Captured>> {
        let file = setting.directory().join(name);
        let daemon = setting.balboad(&format!("--soft 2 {options} --pcap {}", file.display()))?;
        both_say(&run_between((&daemon, 0), (&daemon, 1), command)?, "100 iters in")?;
        match kill {
            // What is not in the file yet is lost.
            true => {
                let deadline = Instant::now() + LIMIT;
                while fs::metadata(&file)?.len() < 100_000 {
                    ensure!(Instant::now() < deadline, "nothing is captured");
                }
                daemon.kill()?;
            }
            false => daemon.stop()?,
        }
        datagrams(setting, &file)
    };
    let bare = capture("bare.pcapng", "", false)?;
    ensure!(bare.iter().any(|it| it.port == "4791" && shows_payload(&it.bytes)), "no payload");
    let keys = options(setting, [KEY, KEY])?;
    let mut vectors = HashMap::new();
    for round in 0..3 {
        for packet in capture(&format!("sealed{round}.pcapng"), &keys, round < 2)? {
            ensure!(packet.port == "1000", "a datagram to port {}", packet.port);
            ensure!(!shows_payload(&packet.bytes), "payload is to be read");
            let vector = packet.bytes.get(4..16).context("a short packet")?;
            let epoch = packet.bytes.get(16..21).context("a short packet")?;
            *vectors.entry((packet.source, epoch.to_vec(), vector.to_vec())).or_insert(0) += 1;
        }
    }
    ensure!(vectors.len() > 300, "{} packets", vectors.len());
    // Each frame is seen at both cards' ports.
    let again = vectors.values().filter(|count| **count > 2).count();
    ensure!(again == 0, "{again} vectors come twice");
    Ok(())
}

/// A cable with an attacker in the middle, who sends each frame twice and later once more, changes copies, and takes
/// the seal off others.
fn injector(setting: &Setting) -> Result<()> {
    let end = |name: &str| setting.directory().join(name);
    let daemons = (0..2).map(|card: usize| {
        let text = format!("{} {KEY}\n", CARDS[1 - card]);
        let keys = key_file(setting, &format!("keys{card}"), &text)?;
        let (local, remote) = (end(&format!("card{card}")), end(&format!("middle{card}")));
        let port = format!("--port unix:{},{}", local.display(), remote.display());
        let ip = format!("--ip 10.77.0.{}/24 --psp-peers {}", card + 1, keys.display());
        setting.balboad_in(&end(&format!("state{card}")), &format!("--soft 1 {port} {ip}"))
    });
    let daemons = daemons.collect::<Result<Vec<_>>>()?;
    let ends = Arc::new(AtomicBool::new(false));
    let middles = [0, 1].map(|card: usize| -> Result<_> {
        let path = end(&format!("middle{card}"));
        let socket = UnixDatagram::bind(&path)?;
        chown(&path, Some(setting.uid()), None)?;
        socket.set_read_timeout(Some(Duration::from_millis(20)))?;
        let (to, ends) = (end(&format!("card{}", 1 - card)), Arc::clone(&ends));
        Ok(std::thread::spawn(move || meddle(&socket, &to, &ends)))
    });
    let middles = middles.into_iter().collect::<Result<Vec<_>>>()?;
    let program = setting.bin.join("verbs-data");
    let command = format!("{} apart --bad-cable", program.display());
    let Both { server, client } = run_between((&daemons[0], 0), (&daemons[1], 0), &command)?;
    ends.store(true, Ordering::Relaxed);
    for middle in middles {
        middle.join().ok().context("the middle failed")??;
    }
    for side in [server, client] {
        side.says("350 messages arrived as they should")?.says("80 atomics counted once")?;
    }
    for daemon in &daemons {
        for name in ["psp_rx_replayed", "psp_rx_auth_fail", "psp_rx_in_clear", "psp_rx_bad"] {
            ensure!(counter(daemon, 0, name)? > 50, "{name} is {}", counter(daemon, 0, name)?);
        }
        ensure!(counter(daemon, 0, "rx_icrc_encapsulated")? == 0, "one came to the stack");
    }
    daemons.into_iter().try_for_each(Daemon::stop)
}

/// Carries frames from one end to the other, with more beside them.
fn meddle(socket: &UnixDatagram, to: &Path, ends: &AtomicBool) -> Result<()> {
    /// Frames that are remembered.
    const KEPT: usize = 500;
    /// Where in a frame over IPv4 the UDP port lies, and PSP's header.
    const PORT: usize = 14 + 20 + 2;
    const HEADER: usize = 14 + 20 + 8;
    let mut kept: Vec<Vec<u8>> = Vec::new();
    let mut frame = vec![0; 8192];
    let mut count = 0;
    while !ends.load(Ordering::Relaxed) {
        let length = match socket.recv(&mut frame) {
            Ok(length) => length,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let whole = &frame[..length];
        // What finds no room is lost, as on any cable.
        let send = |bytes: &[u8]| drop(socket.send_to(bytes, to));
        send(whole);
        if whole.get(12..14) != Some(&[8, 0]) || length < HEADER + 40 {
            continue;
        }
        count += 1;
        let changed = |at: usize, value: u8| {
            let mut other = whole.to_vec();
            // A vector that has not come.
            other[HEADER + 14] ^= 0x40;
            other[at] ^= value;
            other
        };
        match count % 8 {
            0 => send(whole),
            1 => send(&changed(length - 1, 1)),
            2 => send(&changed(HEADER + 30, 0x80)),
            3 => send(&changed(HEADER + 23, 1)),
            4 => send(&changed(HEADER + 3, 0x40)),
            5 => {
                let mut clear = whole.to_vec();
                clear[PORT..PORT + 2].copy_from_slice(&4791_u16.to_be_bytes());
                send(&clear);
            }
            6 => kept.iter().step_by(50).for_each(|frame| send(frame)),
            _ if kept.len() < KEPT => kept.push(whole.to_vec()),
            _ => {}
        }
    }
    Ok(())
}
