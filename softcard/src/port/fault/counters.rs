//! Counters of a cable with faults, by their names.

use roce::PRIORITIES;

use super::egress::{Egress, PriorityCounts};
use super::line::{Line, Passing};

/// The names of a priority's counters, which are mlx5's.
struct Names {
    packets: &'static str,
    bytes: &'static str,
    discards: &'static str,
    pauses: &'static str,
}

/// The names of a direction's counters, of each priority.
macro_rules! names {
    ($($of:literal),*) => {
        [$(Names {
            packets: concat!($of, "_packets"),
            bytes: concat!($of, "_bytes"),
            discards: concat!($of, "_discards"),
            pauses: concat!($of, "_pause"),
        }),*]
    };
}

const TX: [Names; PRIORITIES] = names!(
    "tx_prio0", "tx_prio1", "tx_prio2", "tx_prio3", "tx_prio4", "tx_prio5", "tx_prio6", "tx_prio7"
);
const RX: [Names; PRIORITIES] = names!(
    "rx_prio0", "rx_prio1", "rx_prio2", "rx_prio3", "rx_prio4", "rx_prio5", "rx_prio6", "rx_prio7"
);

/// The counters of both directions, and of the priorities of a cable of a given rate.
pub(super) fn of(tx: &Line, rx: &Line) -> Vec<(&'static str, u64)> {
    let (queues, (tx, rx)) = (tx.egress().zip(rx.egress()), (&tx.counts, &rx.counts));
    let mut counters = vec![
        ("fault_lost_tx", tx.lost),
        ("fault_lost_rx", rx.lost),
        ("fault_duplicated_tx", tx.duplicated),
        ("fault_duplicated_rx", rx.duplicated),
        ("fault_reordered_tx", tx.reordered),
        ("fault_reordered_rx", rx.reordered),
        ("fault_corrupted_tx", tx.corrupted),
        ("fault_corrupted_rx", rx.corrupted),
        ("fault_ecn_marked_tx", tx.ecn_marked),
        ("fault_ecn_marked_rx", rx.ecn_marked),
        ("fault_delayed_tx", tx.delayed),
        ("fault_delayed_rx", rx.delayed),
        ("fault_dropped_tx", tx.dropped),
        ("fault_dropped_rx", rx.dropped),
    ];
    let Some((tx, rx)) = queues else { return counters };
    counters.push(("pfc_watchdog_detected", tx.stood_still));
    counters.push(("pfc_watchdog_dropped", tx.given_up));
    append(&mut counters, &TX, tx, rx);
    append(&mut counters, &RX, rx, tx);
    counters
}

/// Appends the counters of a direction. Its pauses are those of the queues at the other end: the card heeds pauses that
/// come to it, for the frames that it sends.
fn append(
    counters: &mut Vec<(&'static str, u64)>,
    names: &[Names; PRIORITIES],
    own: &Egress<Passing>,
    other: &Egress<Passing>,
) {
    for ((names, counts), other) in names.iter().zip(&own.counts).zip(&other.counts) {
        let PriorityCounts { packets, bytes, discards, .. } = *counts;
        counters.extend([
            (names.packets, packets),
            (names.bytes, bytes),
            (names.discards, discards),
            (names.pauses, other.pauses),
        ]);
    }
}
