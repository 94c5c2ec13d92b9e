//! Two cards, of which one has a cable that carries less than the other sends.

use fpga_regs::engine::wqe::SendOpcode;
use roce::qos::Qos;

use super::pair::{MEMORY, Pair};
use super::rig::{REGION, Rig};
use super::*;
use crate::congestion::Congestion;
use crate::port::{FaultSource, FaultSpec, Faults};

/// The cable of the card that sends, and of its peer.
const LINE: &str = "rate=4G";
const CABLE: &str = "rate=1G,buffer=128k,ecn=8k:32k:10%";
const LENGTH: u32 = 0x1_0000;
const MESSAGES: usize = 64;
/// Messages that are posted at a time.
const AHEAD: usize = 8;

/// The outcome of a card's messages.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    nanoseconds: u64,
    dropped: u64,
    marked: u64,
    sent_again: u64,
    notified: u64,
    handled: u64,
    ignored: u64,
    /// Those that were said, and those that were heeded.
    pauses: [u64; 2],
}

/// Sends messages of the first card through a cable, where both cards have this reaction to congestion.
fn outcome(opcode: SendOpcode, reaction: &str) -> Outcome {
    outcome_with(opcode, reaction, &Qos::default())
}

/// The same, with these settings of priorities.
fn outcome_with(opcode: SendOpcode, reaction: &str, qos: &Qos) -> Outcome {
    let mut cables: [FaultSpec; 2] = [LINE, CABLE].map(|cable| cable.parse().unwrap());
    let reaction = reaction.parse::<Congestion>().unwrap().reaction(cables[0].rate).unwrap();
    if opcode == SendOpcode::Read {
        cables.reverse();
    }
    let put = |card: usize, port, pool: &FramePool| -> Box<dyn Port> {
        let source = FaultSource { seed: 1, card, layer: 0 };
        Box::new(Faults::new(port, &cables[card], source, pool))
    };
    let mut pair = Pair::behind(1, &reaction, put);
    for Rig { card, now, .. } in [&mut pair.one, &mut pair.other] {
        card.network.set_qos(*now, qos).unwrap();
    }
    let (mut posted, mut done, begun) = (0, 0, pair.one.now);
    while done < MESSAGES {
        while posted < MESSAGES.min(done + AHEAD) {
            pair.one.post_from(MEMORY, opcode, LENGTH, pair.other.rkey);
            posted += 1;
        }
        pair.step();
        let ended = pair.one.poll_all();
        assert!(ended.iter().all(|cqe| cqe.status == Status::Success), "{ended:?}");
        done += ended.len();
    }
    assert_eq!(pair.other.read(REGION, 64), pair.one.read(MEMORY, 64));
    let sum = |name: &str| -> u64 {
        let cards = [&pair.one, &pair.other].map(|rig| rig.card.network.port.counters());
        cards.iter().flatten().filter(|(found, _)| *found == name).map(|(_, count)| count).sum()
    };
    let [one, other] = [&pair.one, &pair.other].map(|rig| *rig.card.network.stack.counters());
    Outcome {
        nanoseconds: pair.one.now - begun,
        dropped: sum("fault_dropped_rx"),
        marked: sum("fault_ecn_marked_rx"),
        sent_again: one.retransmitted_pkts + other.retransmitted_pkts,
        notified: one.np_cnp_sent + other.np_cnp_sent,
        handled: one.rp_cnp_handled + other.rp_cnp_handled,
        ignored: one.rp_cnp_ignored + other.rp_cnp_ignored,
        pauses: [sum("tx_prio0_pause"), sum("rx_prio0_pause")],
    }
}

/// The bits of all messages, for the least time of the cable.
const LEAST: u64 = MESSAGES as u64 * LENGTH as u64 * 8;

#[test]
fn a_card_that_reacts_sends_as_fast_as_the_cable_carries_and_loses_little() {
    let off = outcome(SendOpcode::Write, "off");
    assert_eq!((off.marked, off.notified), (0, 0), "nothing may be marked");
    assert!(off.dropped > 100 && off.sent_again > off.dropped, "{off:?}");
    for reaction in ["dcqcn-paper", "dcqcn-mlx5"] {
        let on = outcome(SendOpcode::Write, reaction);
        let told = format!("{reaction}: {on:?}, off: {off:?}");
        assert!(on.marked > 0 && on.handled > 0, "{told}");
        assert_eq!(on.handled + on.ignored, on.notified, "{told}");
        assert!(on.dropped * 10 < off.dropped, "{told}");
        assert!(on.nanoseconds < off.nanoseconds && on.nanoseconds < LEAST * 3 / 2, "{told}");
        assert_eq!(on, outcome(SendOpcode::Write, reaction), "the same again is not the same");
    }
}

/// Of READs few are under way, so that nothing is lost in any case.
#[test]
fn a_card_that_reacts_slows_its_responses_to_reads_down() {
    let off = outcome(SendOpcode::Read, "off");
    assert_eq!((off.marked, off.notified), (0, 0), "nothing may be marked");
    let on = outcome(SendOpcode::Read, "dcqcn-mlx5");
    assert!(on.marked > 0 && on.handled > 0, "{on:?}");
    assert!(on.nanoseconds > off.nanoseconds && on.nanoseconds < LEAST * 2, "{on:?}, off: {off:?}");
}

#[test]
fn with_flow_control_the_sender_pauses_and_nothing_is_lost() {
    let off = outcome(SendOpcode::Write, "off");
    assert_eq!(off.pauses, [0, 0]);
    let lossless = Qos { pfc: 1, ..Qos::default() };
    let on = outcome_with(SendOpcode::Write, "off", &lossless);
    assert_eq!((on.dropped, on.sent_again), (0, 0), "{on:?}");
    assert!(on.pauses[0] > 10 && on.pauses[0] == on.pauses[1], "{on:?}");
    assert!(on.nanoseconds < LEAST * 11 / 10, "{on:?}");
    // No host is paused in another priority.
    let other = outcome_with(SendOpcode::Write, "off", &Qos { pfc: 2, ..Qos::default() });
    assert!(other.pauses == [0, 0] && other.dropped > 100, "{other:?}");
}

#[test]
fn who_notifies_nobody_leaves_senders_as_fast_as_they_are() {
    let off = outcome(SendOpcode::Write, "dcqcn-paper,np=off");
    assert!(off.marked > 0 && off.dropped > 100, "{off:?}");
    assert_eq!((off.notified, off.handled), (0, 0));
}
