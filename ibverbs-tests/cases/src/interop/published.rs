//! A published card that WRITEs to the kernel's RNIC, and READs from it: that much two of them have in common.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Result, ensure};
use harness::setting::Setting;
use harness::table::table;

use super::{ADDRESS, Body, Peer, Row, Trial};
use crate::PERFTEST;
use crate::capture::TSHARK;
use crate::stock::{HARM, dissect};

/// The tests of perftest that the card runs as the side that connects.
const PERFTESTS: [&str; 2] =
    ["ib_write_bw -F -x 1 -u 18 -s 65536 -n 40", "ib_read_bw -F -x 1 -o 16 -u 18 -s 65536 -n 40"];
/// The data of both, compared.
const DATA: &str = "verbs-data apart --one-sided --timeout 18";
const DATA_SAYS: &str = "12 messages arrived as they should";
/// WRITE Only and its acknowledgement; READ request, and responses of one packet and of several.
const OPCODES: [u8; 7] = [0x0a, 0x11, 0x0c, 0x0d, 0x0e, 0x0f, 0x10];

/// The cases.
pub(super) fn rows() -> Vec<Row> {
    let row = |name: &str, needs: &[_], body: Body| {
        let name = format!("against rxe/published/{name}");
        Row { name, needs: [&[TSHARK], needs].concat(), fault: "", card: on_cable, body }
    };
    let mut rows = vec![row("data", &[], Box::new(|trial| trial.data_of_published()))];
    for command in PERFTESTS {
        let program = command.split(' ').next().unwrap_or_default();
        let body = move |trial: &Trial<'_>| trial.perftest_of_published(command);
        rows.push(row(program, &[PERFTEST], Box::new(body)));
    }
    rows
}

/// Plugs in a published card, runs a case, and checks the frames of both sides.
fn on_cable(setting: &Setting, peer: &Peer, _fault: &str, body: &Body, file: &Path) -> Result<()> {
    // A machine of which every processor is busy is slower than any peer.
    let options = "--soft 1 --soft-image stock --tunnel off --watchdog 120000";
    let options = format!("{options} --rnic-peers {ADDRESS}");
    let (port, file_name) = (peer.cable.port(), file.display());
    let daemon = setting.balboad(&format!("{options} --port {port} --pcap {file_name}"))?;
    body(&Trial { setting, daemon: &daemon, peer })?;
    let status = daemon.status()?;
    for name in HARM {
        let count = &status["cards"][0]["counters"][name];
        ensure!(count.as_u64() == Some(0), "{name} is {count}");
    }
    daemon.stop()?;
    let seen = dissect(setting, file)?;
    ensure!(seen.is_subset(&BTreeSet::from(OPCODES)), "{seen:x?}");
    Ok(())
}

impl Trial<'_> {
    fn perftest_of_published(&self, command: &str) -> Result<()> {
        let client = self.served_there(command, command)?.client;
        ensure!(table(&client)?.len() == 1, "expected one row: {client}");
        Ok(())
    }

    fn data_of_published(&self) -> Result<()> {
        let here = self.setting.bin.join(DATA);
        let both = self.served_there(&here.display().to_string(), DATA)?;
        both.server.says(DATA_SAYS)?;
        both.client.says(DATA_SAYS).map(drop)
    }
}
