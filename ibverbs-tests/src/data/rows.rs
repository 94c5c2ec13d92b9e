//! Tables of rows that a service makes features of on their way, against those that numpy made, or this file.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use verbs_sys::current::verbs as v;

use super::MTUS;
use super::link::{ConnectedSides, Options};
use super::port::run;
use crate::ffi::Operation;

/// Rows as they come and as numpy makes them, by `services/tests/preprocess.py`.
const VECTORS: &str = include_str!("../../../services/tests/preprocess.txt");
/// Columns of a row, and how many of them are dense: of those the features are logarithms.
pub(super) const ROW: usize = 48;
pub(super) const DENSE: usize = 16;
/// Units of the last place by which a logarithm may differ.
const NEAR: u32 = 2;

/// The service that is compiled in, whose features numpy made.
pub(super) const COMPILED_IN: &str = "preprocess";

/// The same table as it comes, and as features.
pub(super) struct Tables {
    pub(super) rows: Vec<u8>,
    features: Vec<u8>,
    /// Units of the last place by which a logarithm may differ.
    near: u32,
}

/// The feature of a column by the module `services-wasm/template/rows.rs`, exactly.
fn feature(column: usize, value: u32) -> u32 {
    let feature = match column % ROW {
        0..DENSE => (value as i32 as f32 - 4999.5) / 2886.75,
        _ => (value.wrapping_mul(0x9e37_79b1) >> 19) as f32,
    };
    feature.to_bits()
}

/// The bytes that a text of hexadecimal digits stands for.
fn bytes(text: &str) -> Result<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2).map(|pair| {
        let digits = std::str::from_utf8(pair)?;
        Ok(u8::from_str_radix(digits, 16)?)
    });
    pairs.collect()
}

/// The words of a table.
pub(super) fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.chunks_exact(4).map(|word| word.try_into().map_or(0, u32::from_le_bytes))
}

impl Tables {
    pub(super) fn new(service: &str) -> Result<Self> {
        let mut tables = Self { rows: Vec::new(), features: Vec::new(), near: NEAR };
        for line in VECTORS.lines() {
            let (row, features) = line.split_once(' ').context("two rows")?;
            tables.rows.extend(bytes(row)?);
            tables.features.extend(bytes(features)?);
        }
        if service != COMPILED_IN {
            let features = words(&tables.rows).enumerate().map(|(at, word)| feature(at, word));
            (tables.features, tables.near) = (features.flat_map(u32::to_le_bytes).collect(), 0);
        }
        ensure!(!tables.rows.is_empty() && tables.rows.len() == tables.features.len());
        Ok(tables)
    }

    /// Checks that a place has the rows, or the features of them.
    pub(super) fn check(&self, found: &[u8], is_made: bool) -> Result<()> {
        if !is_made {
            ensure!(found == self.rows, "the rows are not as they were sent");
            return Ok(());
        }
        for (at, (ours, theirs)) in words(found).zip(words(&self.features)).enumerate() {
            // No logarithm is negative, so the distance of the bits is that in units of the last place.
            let most = if at % ROW < DENSE { self.near } else { 0 };
            ensure!(ours.abs_diff(theirs) <= most, "column {at} is {ours:#x}, not {theirs:#x}");
        }
        Ok(())
    }

    /// Moves the rows; where they arrive they are features, or as they were.
    fn pass(&self, link: &ConnectedSides, operation: Operation, is_made: bool) -> Result<()> {
        let (status, mut found) = link.pass(operation, &self.rows)?;
        ensure!(status == v::IBV_WC_SUCCESS, "{operation:?}: {}", link.library.status_name(status));
        self.check(&found, is_made).with_context(|| format!("{operation:?}"))?;
        let [from, _] = link.ends_of(operation);
        from.region.read(0, &mut found);
        self.check(&found, false).with_context(|| format!("{operation:?}, where it came from"))
    }
}

/// Moves tables, with that service attached by the `balboa` at that path to peers, to a queue pair, and to nothing; answers
/// how many.
///
/// # Errors
/// At the first table that is not as it should be.
pub fn all(options: &Options, balboa: &Path, service: &str) -> Result<usize> {
    let tables = Tables::new(service)?;
    let ends = options.peer_addresses()?;
    let right = ends[1].0;
    let make = |mtu| ConnectedSides::new(options, mtu, tables.rows.len());
    let mut count = 0;
    let mut pass = |link: &ConnectedSides, made: [bool; 3]| -> Result<()> {
        let operations = [Operation::Write, Operation::Read, Operation::Send];
        for (operation, is_made) in operations.into_iter().zip(made) {
            tables.pass(link, operation, is_made)?;
            count += 1;
        }
        Ok(())
    };

    for (device, peer) in &ends {
        run(balboa, &["service", "attach", device, service, "--peer", peer])?;
    }
    for mtu in MTUS {
        pass(&make(mtu)?, [true, true, false]).with_context(|| format!("ibv_mtu {mtu}"))?;
    }
    let link = make(v::IBV_MTU_1024)?;
    pass(&link, [true, true, false])?;
    // The tables that came to that card: WRITEs to the right one, READs to the left one.
    for (device, _) in &ends {
        let shown = run(balboa, &["service", "stats", device])?;
        ensure!(shown.contains(&format!("acted_messages {}", MTUS.len() + 1)), "{shown}");
    }
    for (device, peer) in &ends {
        run(balboa, &["service", "detach", device, "--peer", peer])?;
    }
    pass(&link, [false; 3]).context("detached")?;

    let number = format!("{:#x}", link.right.qp.number());
    run(balboa, &["service", "attach", right, service, "--qp", &number])?;
    pass(&link, [true, false, false]).context("attached to a queue pair")?;
    drop(link);
    let shown = run(balboa, &["service", "list", right])?;
    ensure!(shown.ends_with("attached\n  none\n"), "with its queue pair it ends: {shown}");

    // By this process, and by the DSCP that its connections have, at one side: connections that are there, and new ones.
    let process = std::process::id().to_string();
    let attach = |users: [&str; 2], side: &str| -> Result<()> {
        for (device, _) in &ends {
            let words = ["service", "attach", device, service, "--side", side];
            run(balboa, &[&words[..], &users].concat())?;
        }
        Ok(())
    };
    for (users, side, made) in [
        (["--process", &process], "responder", [true, false, false]),
        (["--process", &process], "requester", [false, true, false]),
        (["--dscp", "0"], "responder", [true, false, false]),
        (["--dscp", "1"], "responder", [false; 3]),
    ] {
        let link = make(v::IBV_MTU_1024)?;
        attach(users, side)?;
        let links = [link, make(v::IBV_MTU_1024)?];
        for link in &links {
            pass(link, made).with_context(|| format!("{users:?} as {side}"))?;
        }
        for (device, _) in &ends {
            run(balboa, &[&["service", "detach", device], &users[..]].concat())?;
        }
    }
    // Those end with the process, or its last open device.
    let _open = make(v::IBV_MTU_1024)?;
    attach(["--process", &process], "responder")?;
    Ok(count)
}
