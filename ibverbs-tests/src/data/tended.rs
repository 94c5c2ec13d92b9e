//! Services that come, are followed by others, and go, while messages are under way: none is lost, and each has met one
//! chain of services from its first byte to its last.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use tempfile::NamedTempFile;
use verbs_sys::current::verbs as v;

use super::link::{BEFORE, ConnectedSides, Options};
use super::rows::{COMPILED_IN, Tables};
use crate::ffi::Operation;

/// Tables under way at a time.
const TABLES: usize = 8;
/// Bytes that are in no table.
const PATTERN: &str = "0xfffe00fdfcfbfaf9deadbeef\n";

/// What a table may be where it arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Rows,
    Features,
    /// One of the two, whole.
    Either,
}

/// Moves tables on one connection.
struct Mover<'a> {
    tables: &'a Tables,
    link: &'a ConnectedSides,
    operation: Operation,
    /// Tables that have arrived.
    moved: usize,
}

impl Mover<'_> {
    fn length(&self) -> usize {
        self.tables.rows.len()
    }

    /// Moves some tables at once, which arrive as they may.
    fn batch(&mut self, found: Found) -> Result<()> {
        let (link, length) = (self.link, self.length());
        let [_, to] = link.ends_of(self.operation);
        let is_read = self.operation == Operation::Read;
        to.region.write(length, &vec![BEFORE; TABLES * length]);
        let request = |number: usize| {
            let place = (number + 1) * length;
            let (here, there) = if is_read { (place, 0) } else { (0, place) };
            let mut request = link.request(number as u64, self.operation, length);
            request.pieces = vec![link.left.region.piece(here, length)];
            request.remote.0 += there as u64;
            request
        };
        let requests: Vec<_> = (0..TABLES).map(request).collect();
        link.left.qp.post_send(&requests).map_err(|(failed, _)| failed)?;
        for _ in 0..TABLES {
            link.success(&link.left.send_cq)?;
        }
        let mut table = vec![0; length];
        for number in 0..TABLES {
            to.region.read((number + 1) * length, &mut table);
            let is_made = match found {
                Found::Rows => false,
                Found::Features => true,
                Found::Either => table != self.tables.rows,
            };
            self.tables.check(&table, is_made).with_context(|| format!("table {number}"))?;
        }
        self.moved += TABLES;
        Ok(())
    }

    /// Moves tables as long as `balboa` runs with those words, and some behind its end.
    fn beside(&mut self, balboa: &Path, words: &[&str], then: Found) -> Result<()> {
        let mut tool = Command::new(balboa);
        // It may say that a message keeps its services.
        tool.args(words).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut running = tool.spawn()?;
        while running.try_wait()?.is_none() {
            self.batch(Found::Either)?;
        }
        let finished = running.wait_with_output()?;
        let told = String::from_utf8_lossy(&finished.stderr);
        ensure!(finished.status.success() && told.is_empty(), "balboa {words:?}: {told}");
        self.batch(then).with_context(|| format!("behind balboa {words:?}"))
    }
}

/// A command of `balboa service`, what follows the card in it, and the tables that arrive behind it.
type Step<'a> = (&'static str, Vec<&'a str>, Found);

/// The changes of a round, of services that are compiled in.
fn compiled_in<'a>(qp: &'a str, patterns: &'a str) -> Vec<Step<'a>> {
    let to = ["--qp", qp];
    let with = |rest: &[&'a str]| [&to[..], rest].concat();
    vec![
        ("attach", with(&["preprocess"]), Found::Features),
        ("attach", with(&["inspect", "--replace", "--patterns", patterns]), Found::Rows),
        ("attach", with(&["preprocess", "--replace"]), Found::Features),
        ("detach", with(&["--now"]), Found::Rows),
    ]
}

/// The changes of a round, of two modules: the template's service `rows`, and `passes`, which lets all pass.
fn loaded<'a>(qp: &'a str, [rows, passes]: [&'a str; 2]) -> Vec<Step<'a>> {
    vec![
        ("load", vec![rows, "--allow-unsigned"], Found::Rows),
        ("attach", vec!["--qp", qp, "rows"], Found::Features),
        ("load", vec![passes, "--allow-unsigned"], Found::Features),
        ("attach", vec!["--qp", qp, "passes", "--replace"], Found::Rows),
        ("unload", vec!["rows"], Found::Rows),
        ("detach", vec!["--qp", qp, "--now"], Found::Rows),
        ("unload", vec!["passes"], Found::Rows),
    ]
}

/// Attaches services to a connection, has others follow them, and detaches them, so many times; answers how many tables
/// arrived meanwhile. WRITEs and READs take turns. The services are compiled in, or modules that come and go with them.
///
/// # Errors
/// At the first table that is not whole, and where a command is refused.
pub fn all(
    options: &Options,
    balboa: &Path,
    rounds: usize,
    modules: Option<[&str; 2]>,
) -> Result<usize> {
    let tables = Tables::new(if modules.is_some() { "rows" } else { COMPILED_IN })?;
    let mut file = NamedTempFile::new()?;
    file.write_all(PATTERN.as_bytes())?;
    let file = file.path().to_str().context("a path that is text")?;
    let room = (TABLES + 1) * tables.rows.len();
    let link = ConnectedSides::new(options, v::IBV_MTU_1024, room)?;
    for side in [&link.left, &link.right] {
        side.region.write(0, &tables.rows);
    }
    let mut moved = 0;
    for round in 0..rounds {
        // Where tables arrive.
        let (operation, index) =
            if round % 2 == 0 { (Operation::Write, 1) } else { (Operation::Read, 0) };
        let [_, to] = link.ends_of(operation);
        let (device, number) = (&*options.devices[index], format!("{:#x}", to.qp.number()));
        let mut mover = Mover { tables: &tables, link: &link, operation, moved: 0 };
        let steps = match modules {
            None => compiled_in(&number, file),
            Some(modules) => loaded(&number, modules),
        };
        for (verb, rest, found) in steps {
            let words = [&["service", verb, device][..], &rest].concat();
            mover.beside(balboa, &words, found).with_context(|| format!("round {round}"))?;
        }
        moved += mover.moved;
    }
    Ok(moved)
}
