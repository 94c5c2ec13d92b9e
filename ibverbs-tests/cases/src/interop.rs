//! Software cards of this machine against the kernel's rdma_rxe in a virtual one, on good and on bad
//! cables.
//!
//! The cases run here and hold one end of everything; an agent in the machine runs the programs of
//! its end. The frames go over Unix datagram sockets from a card's port to the machine's first
//! network device, the programs' own TCP connections over its second.

use std::collections::BTreeMap;
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::agent::{self, ADDRESSES, Cable, HOST, Listens, Machine};
use harness::pair::{Both, free_port, start_server};
use harness::process::Finished;
use harness::runner::{Case, Need};
use harness::scapy;
use harness::setting::{Daemon, Setting, Who};
use harness::table::table;

use crate::capture::TSHARK;
use crate::counters::{counters, frames, true_of};
use crate::faults::was_bad;
use crate::pingpong::MTUS;
use crate::{IBVERBS_UTILS, PERFTEST};

mod published;
mod rdmacm;
mod rtl;

/// The machine's RDMA device.
const RXE: &str = agent::End::Rxe.device();
/// How long a program here may take: as long as one in the machine.
const LIMIT: Duration = agent::LIMIT;
/// The machine's address, in the subnet of the cards.
pub const ADDRESS: Ipv4Addr = ADDRESSES[1];
/// Frames whose ICRC scapy computes.
const FRAMES: usize = 500;
/// The card as the machine's neighbour.
const CARD: &str = "10.77.0.1 lladdr 02:00:0a:4d:00:01 dev eth0";
/// Bad cables.
const FAULTS: [(&str, &str); 5] = [
    ("loss", "loss=1%"),
    ("dup", "dup=2%"),
    ("reorder", "reorder=2%"),
    ("corrupt", "corrupt=2%"),
    ("all", "loss=1%,dup=1%,reorder=1%,corrupt=1%"),
];
/// The programs of perftest. They ask their device for as many READs at a time as the other one
/// offers, unless told how many. If a program has an option for it, the acknowledgement timeout is 1.07 s (18): with
/// seven retries it is longer than a busy machine keeps a virtual one waiting.
pub(crate) const PERFTESTS: [&str; 14] = [
    "ib_write_bw -F -x 1 -u 18 -s 65536 -n 40",
    "ib_read_bw -F -x 1 -o 16 -u 18 -s 65536 -n 40",
    "ib_send_bw -F -x 1 -u 18 -s 65536 -n 40 -e",
    "ib_atomic_bw -F -x 1 -o 16 -u 18 -A FETCH_AND_ADD -n 40",
    "ib_write_lat -F -x 1 -u 18 -s 64 -n 20",
    "ib_read_lat -F -x 1 -o 16 -u 18 -s 64 -n 20",
    "ib_atomic_lat -F -x 1 -o 16 -u 18 -A CMP_AND_SWAP -n 20",
    // Not with -e: it waits for an event before each poll, and may have taken it for another's.
    "ib_send_lat -F -x 1 -u 18 -s 64 -n 20",
    "ib_send_bw -F -c UD -x 1 -s 1024 -n 40",
    "ib_send_lat -F -c UD -x 1 -s 64 -n 20",
    "ib_send_bw -F -c UC -x 1 -s 4096 -n 40",
    "ib_write_bw -F -c UC -x 1 -s 4096 -n 40",
    "ib_send_lat -F -c UC -x 1 -s 64 -n 20",
    "ib_write_lat -F -c UC -x 1 -s 64 -n 20",
];
/// Those that bad cables see.
pub(crate) const FEW: [&str; 4] = [
    "ib_write_bw -F -x 1 -u 18 -s 65536 -n 20",
    "ib_read_bw -F -x 1 -o 16 -u 18 -s 65536 -n 20",
    "ib_send_bw -F -x 1 -u 18 -s 65536 -n 20 -e",
    "ib_atomic_bw -F -x 1 -o 16 -u 18 -A FETCH_AND_ADD -n 20",
];
/// Messages of every kind, and the output of both sides.
pub(crate) const DATA: &str = "verbs-data apart --timeout 18";
const DATA_SAYS: [&str; 3] =
    ["350 messages arrived as they should", "80 atomics counted once", "20 keys were taken back"];
/// The same of the unreliable services.
const UNRELIABLE_DATA: [(&str, &str, &str); 4] = [
    ("UC", "--service uc", "280 messages arrived as they should"),
    ("UC/GID 0", "--service uc --gid 0", "280 messages arrived as they should"),
    ("UD", "--service ud", "64 messages arrived as they should"),
    ("UD/GID 0", "--service ud --gid 0", "64 messages arrived as they should"),
];
/// Pingpongs of theirs, which do not look at their data.
pub(crate) const UNRELIABLE_PINGPONGS: [&str; 4] = [
    "ibv_uc_pingpong -g 1 -m 256 -n 50",
    "ibv_uc_pingpong -g 0 -e -n 50",
    "ibv_ud_pingpong -g 1 -e -n 50",
    "ibv_ud_pingpong -g 0 -n 50",
];

type Body = Box<dyn Fn(&Trial<'_>) -> Result<()> + Send + Sync>;

/// A line of the table.
struct Row {
    name: String,
    needs: Vec<Need>,
    fault: &'static str,
    /// Plugs a card into the cable, and checks it afterwards.
    card: fn(&Setting, &Peer, &str, &Body, &Path) -> Result<()>,
    body: Body,
}

/// The names of all cases.
pub fn names() -> Vec<String> {
    rows().into_iter().map(|row| row.name).collect()
}

/// The peer of the cases.
#[derive(Debug)]
pub struct Peer {
    /// The virtual machine.
    pub machine: Machine,
    /// Our end of the cable to it.
    pub cable: Cable,
    /// The TCP port of this machine that leads to the same one there.
    pub port: u16,
}

/// All cases, against a machine.
pub fn cases(peer: &Arc<Peer>) -> Vec<Case> {
    let case = |row: Row| {
        let peer = Arc::clone(peer);
        let Row { name, needs, fault, card, body } = row;
        let body = move |setting: &Setting| {
            captured(setting, |file| card(setting, &peer, fault, &body, file))
        };
        // The machine's end of the cable listens to the user that runs the machine.
        Case { who: Who::Ourselves, ..Case::new(name, &needs, body) }
    };
    rows().into_iter().map(case).collect()
}

fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    let mut add = |name: String, needs: &[Need], fault, body: Body| {
        let name = format!("against rxe/{name}");
        rows.push(Row { name, needs: [&[TSHARK], needs].concat(), fault, card: on_cable, body });
    };
    add("path MTU 4096".into(), &[IBVERBS_UTILS], "", Box::new(widest));
    for mtu in MTUS {
        let body = move |trial: &Trial<'_>| trial.pingpong(mtu);
        add(format!("ibv_rc_pingpong/-m {mtu}"), &[IBVERBS_UTILS], "", Box::new(body));
    }
    for command in PERFTESTS {
        let program = command.split(' ').next().unwrap_or_default();
        let services = ["-c UD", "-c UC"].into_iter().filter(|it| command.contains(it));
        let words: Vec<_> = [program].into_iter().chain(services).collect();
        let body = move |trial: &Trial<'_>| trial.perftest(command);
        add(words.join(" "), &[PERFTEST], "", Box::new(body));
    }
    for command in UNRELIABLE_PINGPONGS {
        let (program, options) = command.split_once(' ').unwrap_or_default();
        let body = move |trial: &Trial<'_>| trial.unreliable_pingpong(command);
        add(format!("{program}/{options}"), &[IBVERBS_UTILS], "", Box::new(body));
    }
    add("data".into(), &[], "", Box::new(|trial| trial.data()));
    for (name, options, says) in UNRELIABLE_DATA {
        let command = format!("{DATA} {options}");
        let body = move |trial: &Trial<'_>| trial.messages(&command, &[says]);
        add(format!("data/{name}"), &[], "", Box::new(body));
    }
    add("multicast".into(), &[], "", Box::new(|trial| trial.multicast()));
    add("every ICRC is scapy's".into(), &[Need::Scapy], "", Box::new(icrcs));
    // No pingpong: the side that is done takes its QP along, and where its last acknowledgement is lost,
    // the other one repeats its last message. It wants 7 retries, which rxe takes for endless.
    for (name, fault) in FAULTS {
        let body = |trial: &Trial<'_>| {
            FEW.iter().try_for_each(|command| trial.perftest(command))?;
            trial.data_on_bad_cable(&DATA_SAYS)?;
            ["uc", "ud"].into_iter().try_for_each(|service| trial.unreliable_on_bad_cable(service))
        };
        add(format!("bad cable/{name}"), &[PERFTEST], fault, Box::new(body));
    }
    for rdmacm::Row { name, needs, fault, body } in rdmacm::rows() {
        add(format!("rdmacm/{name}"), &needs, fault, body);
    }
    rows.extend(published::rows());
    rows.extend(rtl::rows());
    rows
}

/// A card here on a cable to a machine.
struct Trial<'a> {
    setting: &'a Setting,
    daemon: &'a Daemon<'a>,
    peer: &'a Peer,
}

/// Runs a case that writes its frames to a file; those of one that fails are kept.
fn captured(setting: &Setting, case: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let file = setting.directory().join("frames.pcapng");
    case(&file).or_else(|error| {
        let kept =
            tempfile::Builder::new().prefix("balboa-failed-").suffix(".pcapng").tempfile()?;
        if fs::copy(&file, kept.path()).is_err() {
            // balboad did not come up.
            return Err(error);
        }
        let (_, path) = kept.keep()?;
        Err(error.context(format!("its frames are in {}", path.display())))
    })
}

/// Plugs in a card, runs a case, and checks both sides' counters.
fn on_cable(setting: &Setting, peer: &Peer, fault: &str, body: &Body, file: &Path) -> Result<()> {
    plugged(("--soft 1", fault), setting, peer, body, file)
}

/// The same with a card and faults by balboad's options.
fn plugged(
    (card, fault): (&str, &str),
    setting: &Setting,
    peer: &Peer,
    body: &Body,
    file: &Path,
) -> Result<()> {
    let mut options = format!("{card} --port {} --pcap {}", peer.cable.port(), file.display());
    if !fault.is_empty() {
        options.push_str(&format!(" --fault {fault}"));
    }
    let daemon = setting.balboad(&options)?;
    let before = kernels(&peer.machine)?;
    let spoils = fault.contains("corrupt");
    if spoils {
        // ARP has no checksum: after one wrong bit the kernel sends to a missing host until it asks again.
        peer.machine.run(&format!("ip neigh replace {CARD} nud permanent"))?.success()?;
    }
    let outcome = body(&Trial { setting, daemon: &daemon, peer });
    if spoils {
        peer.machine.run(&format!("ip neigh replace {CARD} nud stale"))?.success()?;
    }
    outcome.with_context(|| format!("the card counted {:?}", counters(&daemon, 0)))?;
    let after = kernels(&peer.machine)?;
    let theirs = |name: &str| -> Result<u64> {
        let value = |of: &BTreeMap<String, u64>| of.get(name).copied().context(name.to_owned());
        Ok(value(&after)? - value(&before)?)
    };
    if !fault.is_empty() {
        was_bad(&daemon, fault)?;
    }
    let own = counters(&daemon, 0)?;
    daemon.stop()?;
    let (sent, heard) = (own["sent_pkts"], theirs("rcvd_pkts")?);
    let bad = own["rx_icrc_encapsulated"];
    if spoils {
        ensure!(bad > 0, "every frame was good: {own:?}");
        // A quarter may have been hit where no check looks, or by other faults too.
        let spoilt = own["fault_corrupted_tx"];
        let most = own["port_frames_sent"] - spoilt + spoilt / 4;
        ensure!(heard <= most, "the kernel took {heard} frames, not {most} at most: {own:?}");
    } else {
        ensure!(bad == 0, "{bad} frames of the kernel had a bad ICRC: {own:?}");
    }
    // The kernel takes a copy of frames that it sends to a group that it is in itself.
    let to_itself = own["rcvd_mcast_pkts"].saturating_sub(own["sent_mcast_pkts"]);
    let heard = heard.saturating_sub(to_itself);
    if fault.is_empty() {
        // The kernel drops frames with a bad ICRC uncounted. Only repeated packets may come to a QP
        // that is gone.
        let again = own["retransmitted_pkts"] + own["sent_questions"] + own["duplicate_request"];
        ensure!(
            heard <= sent && sent - heard <= again,
            "the kernel took {heard} frames of {sent}: {own:?}"
        );
    }
    // A datagram to a group counts for each member.
    if !spoils && own["rcvd_mcast_pkts"] == 0 {
        true_of(0, &own, &frames(setting, file)?)?;
    }
    Ok(())
}

/// The kernel's counters.
fn kernels(machine: &Machine) -> Result<BTreeMap<String, u64>> {
    let directory = format!("/sys/class/infiniband/{RXE}/ports/1/hw_counters");
    let finished = machine.run(&format!("grep -r . {directory}"))?.success()?;
    let line = |line: &str| {
        let (name, value) = line.rsplit('/').next()?.split_once(':')?;
        Some((name.to_owned(), value.parse().ok()?))
    };
    let lines: Option<_> = finished.stdout.lines().map(line).collect();
    lines.with_context(|| format!("no number: {finished}"))
}

/// The cable is wide enough for the largest path MTU.
fn widest(trial: &Trial<'_>) -> Result<()> {
    let told = trial.peer.machine.run(&format!("ibv_devinfo -v -d {RXE}"))?.success()?;
    let line = told.stdout.lines().find(|line| line.contains("active_mtu:"));
    ensure!(line.is_some_and(|line| line.contains("4096")), "{told}");
    let gid = "GID[  1]:\t\t::ffff:10.77.0.2, RoCE v2";
    told.says(gid).map(drop)
}

/// The ICRCs of both sides' frames are those of a third implementation.
fn icrcs(trial: &Trial<'_>) -> Result<()> {
    trial.data()?;
    let python = scapy::python().context("scapy went away")?;
    let file = trial.setting.directory().join("frames.pcapng");
    let compared = scapy::compare_icrcs(&python, &file, FRAMES)?;
    ensure!(compared.ipv4 > FRAMES / 2, "too few frames: {compared:?}");
    Ok(())
}

/// Both sides of `ibv_rc_pingpong -c -n 50` moved all, and found it right.
pub(crate) fn checked_pingpong(roles: [Both; 2]) -> Result<()> {
    for side in roles.into_iter().flat_map(|both| [both.server, both.client]) {
        let side = side.says("409600 bytes in ")?.says("50 iters in ")?;
        ensure!(!side.stdout.contains("invalid data"), "{side}");
    }
    Ok(())
}

/// perftest's clients reported.
pub(crate) fn checked_perftest(roles: [Both; 2]) -> Result<()> {
    for Both { client, .. } in roles {
        ensure!(table(&client)?.len() == 1, "expected one row: {client}");
    }
    Ok(())
}

/// Both sides of [`DATA`] got every message.
pub(crate) fn checked_data(roles: [Both; 2]) -> Result<()> {
    all_say(roles, &DATA_SAYS)
}

/// The same of unreliable connections and of datagrams, by a function that runs a command in both roles.
pub(crate) fn checked_unreliable_data(
    both_roles: impl Fn(&str) -> Result<[Both; 2]>,
) -> Result<()> {
    for (service, count) in [("uc", 280), ("ud", 64)] {
        let says = format!("{count} messages arrived as they should");
        all_say(both_roles(&format!("{DATA} --service {service}"))?, &[says.as_str()])?;
    }
    Ok(())
}

/// Both sides of a command say all that.
fn all_say(roles: [Both; 2], texts: &[&str]) -> Result<()> {
    for side in roles.into_iter().flat_map(|both| [both.server, both.client]) {
        texts.iter().try_fold(side, |side, text| side.says(text))?;
    }
    Ok(())
}

impl Trial<'_> {
    /// Data is checked with `-c`, and pingpong fails where it is wrong.
    fn pingpong(&self, mtu: u32) -> Result<()> {
        let command = format!("ibv_rc_pingpong -c -e -g 1 -m {mtu} -n 50");
        checked_pingpong(self.both_roles(&command, &command)?)
    }

    fn unreliable_pingpong(&self, command: &str) -> Result<()> {
        all_say(self.both_roles(command, command)?, &["50 iters in "])
    }

    fn perftest(&self, command: &str) -> Result<()> {
        checked_perftest(self.both_roles(command, command)?)
    }

    /// Every operation at every path MTU both ways, every byte and immediate compared; atomics, and keys
    /// of windows that the other side takes back.
    fn data(&self) -> Result<()> {
        self.messages(DATA, &DATA_SAYS)
    }

    /// Messages without acknowledgement: those that arrive are right.
    fn unreliable_on_bad_cable(&self, service: &str) -> Result<()> {
        let command = format!("{DATA} --service {service} --bad-cable");
        self.messages(&command, &[" messages arrived as they should"])
    }

    /// The same, READs of nothing with the key that the kernel's rxe wants in a repetition of one.
    ///
    /// A READ of nothing needs no valid key, and since Linux 6.3 rxe notes the key 0 for it instead of the
    /// named one (`qp_resp_from_reth`). A repetition with another key than the noted one it takes for another
    /// request, and drops it without an answer until the retries are used up. Before, it looked up the key
    /// of a repetition, and refused 0.
    fn data_on_bad_cable(&self, says: &[&str]) -> Result<()> {
        let release = self.peer.machine.run("uname -r")?.success()?.stdout;
        let keyless = if release.starts_with("6.1.") { "" } else { " --keyless-empty-reads" };
        self.messages(&format!("{DATA} --bad-cable{keyless}"), says)
    }

    /// Datagrams to groups of both kinds both ways. The kernel takes packets for groups that a socket is
    /// in; rxe joins none by itself.
    fn multicast(&self) -> Result<()> {
        let command = "verbs-data multicast-apart";
        let here = self.setting.bin.join(command);
        let there = format!("{command} --join eth0");
        for side in self.both_roles(&here.display().to_string(), &there)?.into_iter() {
            for side in [side.server, side.client] {
                side.says("192 copies arrived in their groups")?;
            }
        }
        Ok(())
    }

    fn messages(&self, command: &str, says: &[&str]) -> Result<()> {
        let here = self.setting.bin.join(command);
        all_say(self.both_roles(&here.display().to_string(), command)?, says)
    }

    /// Runs a command with the server here and the client there, then the other way round.
    fn both_roles(&self, here: &str, there: &str) -> Result<[Both; 2]> {
        let served_here = self.served_here(here, there).context("with the server here")?;
        Ok([served_here, self.served_there(here, there).context("with the server there")?])
    }

    fn served_here(&self, here: &str, there: &str) -> Result<Both> {
        let port = free_port()?;
        let server = self.daemon.run(here).words(&format!("-d balboa0 -p {port}")).limit(LIMIT);
        let server = start_server(server, port)?;
        let client = self.peer.machine.run(&format!("{there} -d {RXE} -p {port} {HOST}"));
        let client = client
            .and_then(Finished::success)
            .with_context(|| format!("the server said\n{}{}", server.output(), server.errors()))?;
        let server = server.wait().and_then(Finished::success);
        let server = server.with_context(|| format!("its client was fine: {client}"))?;
        Ok(Both { server, client })
    }

    fn served_there(&self, here: &str, there: &str) -> Result<Both> {
        let port = self.peer.port;
        self.peer
            .machine
            .start_server(&format!("{there} -d {RXE} -p {port}"), Listens::Tcp(port))?;
        let client = self.daemon.run(here).words(&format!("-d balboa0 -p {port} 127.0.0.1"));
        let client = client.limit(LIMIT).run().and_then(Finished::success);
        let server = self.peer.machine.wait();
        match (client, server) {
            (Ok(client), Ok(server)) => Ok(Both { server: server.success()?, client }),
            (Err(error), Ok(server)) => Err(error.context(format!("the server: {server}"))),
            (client, Err(error)) => Err(error.context(format!("the client: {client:?}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let mut names = names();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
