//! Messages with patterns in them that a service looks for, and messages without.

use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use tempfile::NamedTempFile;
use verbs_sys::current::verbs as v;

use super::MTUS;
use super::link::{BEFORE, ConnectedSides, LIMIT, Options};
use super::port::run;
use crate::ffi::Operation;

/// Patterns, as a person writes them down: the one in the messages, and one that is in none.
const FILE: &str = "# bytes, and a text\n0xfffe00fdfcfbfaf9\nDROP TABLE\n";
/// The one in the messages; none of its bytes is anywhere else in them but the third.
const PATTERN: [u8; 8] = [0xff, 0xfe, 0, 0xfd, 0xfc, 0xfb, 0xfa, 0xf9];
/// Operations, and how the one of a message ends that is refused.
pub(super) const ENDS: [(Operation, v::ibv_wc_status); 3] = [
    (Operation::Write, v::IBV_WC_REM_OP_ERR),
    (Operation::Read, v::IBV_WC_BAD_RESP_ERR),
    (Operation::Send, v::IBV_WC_REM_OP_ERR),
];

/// Bytes of a packet.
pub(super) const fn packet(mtu: v::ibv_mtu) -> usize {
    128 << mtu
}

/// A message of three packets and a bit, with these bytes across the border of the first two.
fn message(mtu: v::ibv_mtu, bytes: &[u8]) -> Vec<u8> {
    let mut message: Vec<u8> = (0..3 * packet(mtu) + 7).map(|at| (at % 127) as u8).collect();
    message[packet(mtu) - 5..][..bytes.len()].copy_from_slice(bytes);
    message
}

/// Moves a message that arrives whole.
pub(super) fn whole(link: &ConnectedSides, operation: Operation, message: &[u8]) -> Result<()> {
    let (status, found) = link.pass(operation, message)?;
    ensure!(status == v::IBV_WC_SUCCESS, "{operation:?}: {}", link.library.status_name(status));
    ensure!(found == message, "{operation:?}: not byte for byte");
    Ok(())
}

/// Moves a message whose second packet is refused.
fn refused(
    link: &ConnectedSides,
    (operation, end): (Operation, v::ibv_wc_status),
    message: &[u8],
    mtu: v::ibv_mtu,
    bad_cable: bool,
) -> Result<()> {
    let (status, found) = link.pass(operation, message)?;
    // A NAK that is lost is not sent again: its queue pair is in ERR.
    let unheard = bad_cable && operation != Operation::Read && status == v::IBV_WC_RETRY_EXC_ERR;
    ensure!(status == end || unheard, "{operation:?}: {}", link.library.status_name(status));
    let (first, rest) = found.split_at(packet(mtu));
    ensure!(first == &message[..packet(mtu)], "{operation:?}: the first packet is not there");
    ensure!(rest.iter().all(|byte| *byte == BEFORE), "{operation:?}: a refused packet is there");
    let states = [&link.left, &link.right].map(|side| side.qp.query().map(|is| is.qp_state));
    let [left, right] = states;
    ensure!(left? == v::IBV_QPS_ERR, "{operation:?}: the QP that asked goes on");
    if operation == Operation::Read {
        ensure!(right? == v::IBV_QPS_RTS, "the QP that answers has nothing to do with it");
        return Ok(());
    }
    ensure!(right? == v::IBV_QPS_ERR, "{operation:?}: the QP that refused goes on");
    let event = link.right.context.async_event(LIMIT)?;
    let told = (event.kind, event.element) == (v::IBV_EVENT_QP_FATAL, link.right.qp.element());
    ensure!(told, "{operation:?}: {event:?}");
    Ok(())
}

/// Attaches a service with those words to both peers, moves a message that passes it and one that it refuses with each
/// path MTU and operation, checks that it counted what it refused, and detaches it; answers how many messages.
pub(super) fn refuses(
    options: &Options,
    balboa: &Path,
    bad_cable: bool,
    words: &[&str],
    messages: impl Fn(v::ibv_mtu) -> [Vec<u8>; 2],
) -> Result<usize> {
    let ends = options.peer_addresses()?;
    let service = |words: &[&str]| run(balboa, &[&["service"], words].concat());
    let mut count = 0;
    for (device, peer) in &ends {
        service(&[&["attach", device][..], words, &["--peer", peer]].concat())?;
    }
    for mtu in MTUS {
        let [passing, failing] = messages(mtu);
        for end in ENDS {
            let link = ConnectedSides::new(options, mtu, passing.len())?;
            whole(&link, end.0, &passing)?;
            refused(&link, end, &failing, mtu, bad_cable)
                .with_context(|| format!("ibv_mtu {mtu}"))?;
            count += 2;
        }
    }
    for ((device, peer), refused) in ends.iter().zip([MTUS.len(), 2 * MTUS.len()]) {
        let shown = service(&["stats", device])?;
        let expected = format!("matches {refused}, refused_packets {refused}\n");
        ensure!(shown.contains(&expected), "{shown}");
        service(&["detach", device, "--peer", peer])?;
    }
    Ok(count)
}

/// Moves messages with and without a pattern, with the service attached by the `balboa` at that path to peers, to refuse
/// and to count, and to one queue pair of two; answers how many. On a bad cable a sender may not hear of its refusal.
///
/// # Errors
/// At the first message that does not end as it should.
pub fn all(options: &Options, balboa: &Path, bad_cable: bool) -> Result<usize> {
    let mut file = NamedTempFile::new()?;
    file.write_all(FILE.as_bytes())?;
    let file = file.path().to_str().context("a path that is text")?;
    let ends = options.peer_addresses()?;
    let right = ends[1].0;
    let service = |words: &[&str]| run(balboa, &[&["service"], words].concat());
    let messages = |mtu| [message(mtu, &PATTERN[..7]), message(mtu, &PATTERN)];
    let mut count =
        refuses(options, balboa, bad_cable, &["inspect", "--patterns", file], messages)?;

    for (device, peer) in &ends {
        let words = ["attach", device, "inspect", "--patterns", file, "--mode", "count", "--peer"];
        service(&[&words[..], &[peer]].concat())?;
    }
    let mtu = v::IBV_MTU_1024;
    let link = || ConnectedSides::new(options, mtu, message(mtu, &[]).len());
    let counted = link()?;
    for (operation, _) in ENDS {
        whole(&counted, operation, &message(mtu, &[PATTERN, PATTERN].concat()))?;
        count += 1;
    }
    for ((device, peer), matches) in ends.iter().zip([2, 4]) {
        let shown = service(&["stats", device])?;
        ensure!(shown.contains(&format!("matches {matches}\n")), "{shown}");
        service(&["detach", device, "--peer", peer])?;
    }

    // One queue pair has the service, and its neighbour moves the same bytes before and behind the refusal.
    let (neighbour, number) = (link()?, format!("{:#x}", counted.right.qp.number()));
    service(&["attach", right, "inspect", "--patterns", file, "--qp", &number])?;
    let mut beside = || -> Result<()> {
        for (operation, _) in ENDS {
            whole(&neighbour, operation, &message(mtu, &PATTERN)).context("the neighbour")?;
            count += 1;
        }
        Ok(())
    };
    beside()?;
    whole(&counted, Operation::Read, &message(mtu, &PATTERN)).context("what others READ")?;
    refused(&counted, ENDS[0], &message(mtu, &PATTERN), mtu, bad_cable)?;
    beside()?;
    Ok(count + 2)
}
