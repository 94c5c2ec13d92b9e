//! A card whose queue engine is RTL, simulated cycle by cycle, against the kernel's RNIC: messages of every kind, and
//! perftest.

use std::path::Path;

use anyhow::Result;
use harness::runner::Need;
use harness::setting::Setting;

use super::{Body, DATA, DATA_SAYS, Peer, Row};
use crate::PERFTEST;
use crate::capture::TSHARK;

/// A MB takes the simulation a second.
const PERFTESTS: [&str; 3] = [
    "ib_write_bw -F -x 1 -u 18 -s 65536 -n 10",
    "ib_read_bw -F -x 1 -o 16 -u 18 -s 65536 -n 10",
    "ib_send_bw -F -x 1 -u 18 -s 65536 -n 10 -e",
];

/// The cases.
pub(super) fn rows() -> Vec<Row> {
    let row = |name: &str, needs: &[_], fault, body: Body| {
        let needs = [&[TSHARK, Need::Rtl], needs].concat();
        Row { name: format!("against rxe/rtl/{name}"), needs, fault, card: on_cable, body }
    };
    let [messages, ..] = DATA_SAYS;
    let mut rows = vec![
        row("data", &[], "", Box::new(move |trial| trial.messages(DATA, &[messages]))),
        row(
            "bad cable",
            &[],
            "loss=1%",
            Box::new(move |trial| trial.data_on_bad_cable(&[messages])),
        ),
    ];
    for command in PERFTESTS {
        let program = command.split(' ').next().unwrap_or_default();
        rows.push(row(program, &[PERFTEST], "", Box::new(move |trial| trial.perftest(command))));
    }
    rows
}

/// Plugs in such a card.
fn on_cable(setting: &Setting, peer: &Peer, fault: &str, body: &Body, file: &Path) -> Result<()> {
    super::plugged(("--soft 1 --soft-image rtl", fault), setting, peer, body, file)
}
