//! Memory that a card can reach is mapped for it: the IOMMU enforces that, and its refusals are told.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::setting::Daemon;

use super::cards::{bound_for, cards, data, drivers};
use super::deaths::{Held, counted, said};
use super::{Case, Hardware, Need, Setting};

/// How long a program may take.
const LIMIT: Duration = Duration::from_secs(120);
/// balboad's line about a QP whose peer reached for memory that is not mapped.
const TOLD: &str = "is in ERR: its peer has a key to memory that the card cannot reach";

/// The family.
pub(super) fn cases(hardware: Hardware) -> Vec<Case> {
    let case = |name: &str, body: fn(&Setting, Hardware) -> Result<()>| {
        Case::new(name, &[Need::Root], move |setting| body(setting, hardware))
    };
    vec![
        case("a page before and after its deregistration", registered),
        case("memory that is not mapped", unmapped),
    ]
}

fn registered(setting: &Setting, hardware: Hardware) -> Result<()> {
    let daemon = cards(setting, hardware)?;
    let before = Held::of(&daemon)?;
    // Emulated processors take a tenth of a second for each.
    let says = "reached in 200 of 200 before and in 0 of 200 after";
    data(setting, &daemon, "reach --tries 200", says)?;
    before.restored(&daemon)?;
    daemon.stop()
}

/// A mapping is ended at the kernel while the key lives: the card's own refusal and nothing else keeps
/// it from the memory. QPs, status and one line of the log tell.
fn unmapped(setting: &Setting, hardware: Hardware) -> Result<()> {
    drivers(hardware)?;
    let cards = bound_for(setting, setting.uid())?;
    let daemon = setting.balboad(&format!("-v {cards}"))?;
    let before = Held::of(&daemon)?;
    let place = setting.directory().join("place");
    let program = daemon.run("").arg(setting.bin.join("verbs-data"));
    let program = program.words("unmapped --from balboa0 --to balboa0").arg(&place);
    let mut program = program.limit(LIMIT).start()?;
    said(&mut program, "registered ")?;
    let bytes = program.output();
    let bytes = bytes.trim().strip_prefix("registered ").context("no number of bytes")?;
    let log = daemon.log();
    let address = log.lines().rev().find_map(|line| {
        let (_, region) = line.split_once(&format!(": {bytes} bytes at "))?;
        region.split_whitespace().next()
    });
    let address = address.with_context(|| format!("no address of {bytes} bytes: {log}"))?;
    let refused = |counts: &str| counted(counts, "bus_refusals");
    let refusals = refused(&super::ask_host("count", 0)?)?;
    fs::write(&place, format!("{address}\n"))?;
    said(&mut program, "refused")?;

    told_once(&daemon, log.len())?;
    let after = super::ask_host("count", 0)?;
    ensure!(refused(&after)? > refusals, "the bus refused nothing: {after}");
    fs::remove_file(&place)?;
    let says = "reached in 20 of 20 before and in 0 of 20 after";
    program.wait()?.success()?.says(says)?;
    before.restored(&daemon)?;
    daemon.stop()
}

/// Behind its first bytes, the log has one line that is no detail; the status has both QPs in ERR.
fn told_once(daemon: &Daemon<'_>, behind: usize) -> Result<()> {
    let status = daemon.status()?;
    let counters = &status["cards"][0]["counters"];
    ensure!(counters["resp_remote_operational_errors"] == 1, "{counters:#}");
    let clients = status["clients"].as_array().context("the status lists no clients")?;
    let client = clients.iter().find(|client| client["role"] == "provider");
    let qps = client.and_then(|client| client["queue_pairs"].as_array()).context("no QPs")?;
    let failed = qps.len() == 2 && qps.iter().all(|qp| qp["state"] == "ERR");
    ensure!(failed, "{qps:?}");
    let log = daemon.log();
    let new = log.get(behind..).unwrap_or_default();
    let lines: Vec<&str> = new.lines().filter(|line| !line.starts_with("[DEBUG")).collect();
    ensure!(lines.len() == 1 && lines.iter().all(|line| line.contains(TOLD)), "{lines:?}");
    Ok(())
}
