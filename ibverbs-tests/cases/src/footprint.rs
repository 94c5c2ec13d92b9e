//! The footprint of a balboad: an unchanged one shows that nothing was left behind.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use harness::setting::Daemon;
use serde_json::Value;

use crate::attack::level::Level;

/// How long balboad may take to have noticed the end of its clients.
const LIMIT: Duration = Duration::from_secs(120);
/// KiB that its resident memory may have grown: memory that its allocator and its tables keep for reuse.
const GROWTH: u64 = 16 << 10;

/// KiB more that a connected program may take, beside its many objects.
const OF_PROGRAM: u64 = 4 << 10;
/// And for each QP with short rings, and for each region.
const OF_QP: u64 = 6;
const OF_REGION: u64 = 4;
/// Descriptors of a program with places on two cards and a handful of channels.
const DESCRIPTORS_OF_PROGRAM: usize = 16;

/// Threads that are started at their first use, and stay: the one that sums up suppressed log lines.
const KEPT: [&str; 1] = ["log"];

/// The objects of connected programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// How many they are.
    pub programs: usize,
    /// QPs beyond a handful, of all of them together.
    pub qps: u64,
    /// Regions beyond a handful.
    pub regions: u64,
}

/// The resources of a balboad without clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Descriptors by kind.
    descriptors: BTreeMap<String, usize>,
    /// Mappings of memory files.
    mappings: usize,
    /// Threads by name.
    threads: BTreeMap<String, usize>,
    /// Clients, free pages and quarantined ones, from the status.
    table: String,
    /// Files in its state directory.
    files: Vec<String>,
    /// Resident memory, KiB; compared with tolerance.
    resident: u64,
}

impl Footprint {
    /// Looks at a balboad.
    ///
    /// # Errors
    /// When it has ended.
    pub fn of(daemon: &Daemon<'_>) -> Result<Self> {
        let table = table(&daemon.status()?);
        let process = Path::new("/proc").join(daemon.pid().to_string());
        let mut descriptors = BTreeMap::new();
        for entry in fs::read_dir(process.join("fd")).context("balboad's descriptors")? {
            // One that was closed meanwhile is none.
            let Ok(target) = fs::read_link(entry?.path()) else { continue };
            let target = target.to_string_lossy().into_owned();
            let kind = target.split(['[', ' ']).next().unwrap_or_default().to_owned();
            *descriptors.entry(kind).or_insert(0) += 1;
        }
        let maps = fs::read_to_string(process.join("maps")).context("balboad's mappings")?;
        let status = fs::read_to_string(process.join("status")).context("balboad's status")?;
        let number = |name: &str| -> Result<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
            number.with_context(|| format!("no {name} in {}", process.display()))
        };
        Ok(Self {
            descriptors,
            mappings: maps.lines().filter(|line| line.contains("/memfd:")).count(),
            threads: threads(&process)?,
            table,
            files: files_in(daemon.state_dir(), "")?,
            resident: number("VmRSS:")?,
        })
    }

    /// Checks that a balboad takes no more than programs that are connected may cost.
    ///
    /// # Errors
    /// With balboad's memory, when it takes more.
    pub fn bounded(&self, daemon: &Daemon<'_>, holding: Holding) -> Result<()> {
        let Holding { programs, qps, regions } = holding;
        let now = Level::of(daemon)?;
        let more = now.resident.saturating_sub(self.resident);
        let limit = GROWTH + OF_PROGRAM * programs as u64 + OF_QP * qps + OF_REGION * regions;
        ensure!(more <= limit, "{more} KiB more with {holding:?}, and {limit} are the limit");
        let before: usize = self.descriptors.values().sum();
        let more = now.descriptors.saturating_sub(before);
        let limit = DESCRIPTORS_OF_PROGRAM * programs;
        ensure!(
            more <= limit,
            "{more} descriptors more with {holding:?}, and {limit} are the limit"
        );
        Ok(())
    }

    /// Waits until a balboad is back where it was.
    ///
    /// # Errors
    /// With the differences, when balboad does not come to that.
    pub fn restored(&self, daemon: &Daemon<'_>) -> Result<()> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let now = Self::of(daemon)?;
            let grown = now.resident.saturating_sub(self.resident);
            let Self { descriptors, threads, resident, .. } = self.clone();
            let rest = Self { descriptors, threads, resident, ..now.clone() } == *self;
            let descriptors = no_more(&now.descriptors, &self.descriptors);
            if grown <= GROWTH && rest && descriptors && no_more(&now.threads, &self.threads) {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("balboad does not get back to what it was: {}", self.differences(&now));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The differences from the present state, for a reader.
    fn differences(&self, now: &Self) -> String {
        let mut found = Vec::new();
        let mut look = |what: &str, before: &dyn fmt::Debug, now: &dyn fmt::Debug| {
            let (before, now) = (format!("{before:?}"), format!("{now:?}"));
            if before != now {
                found.push(format!("{what} {before}, now {now}"));
            }
        };
        look("descriptors", &self.descriptors, &now.descriptors);
        look("mappings", &self.mappings, &now.mappings);
        look("threads", &self.threads, &now.threads);
        look("its table", &self.table, &now.table);
        let only = |of: &Self, other: &Self| -> Vec<String> {
            of.files.iter().filter(|file| !other.files.contains(file)).cloned().collect()
        };
        look("files", &only(self, now), &only(now, self));
        look("resident KiB", &self.resident, &now.resident);
        found.join("; ")
    }
}

/// Whether there are no more of any kind than before. There may be fewer: when they were counted, balboad may not have
/// closed the connection that asked, and a separate thread has its maker's name as it begins.
fn no_more(now: &BTreeMap<String, usize>, before: &BTreeMap<String, usize>) -> bool {
    now.iter().all(|(kind, count)| *count <= before.get(kind).copied().unwrap_or(0))
}

/// The threads of a process by their names, but those that balboad starts when it first needs them and
/// then keeps.
fn threads(process: &Path) -> Result<BTreeMap<String, usize>> {
    let mut threads = BTreeMap::new();
    for thread in fs::read_dir(process.join("task")).context("balboad's threads")? {
        // One that has ended meanwhile is none.
        let Ok(name) = fs::read_to_string(thread?.path().join("comm")) else { continue };
        let name = name.trim_end();
        if !KEPT.contains(&name) {
            *threads.entry(name.to_owned()).or_insert(0) += 1;
        }
    }
    Ok(threads)
}

/// The parts of the status that have to be as before.
fn table(status: &Value) -> String {
    let clients = status["clients"].as_array().map_or(0, Vec::len);
    let mut text = format!("{clients} clients");
    for card in status["cards"].as_array().into_iter().flatten() {
        let pages: Vec<String> = card["windows"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|window| format!("{}+{}", window["free_pages"], window["free_relays"]))
            .collect();
        text.push_str(&format!("; free pages {}", pages.join(" ")));
        text.push_str(&format!(", quarantine {}", card["quarantine"]));
    }
    text
}

/// The names of all files in a directory and below.
fn files_in(directory: &Path, prefix: &str) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            names.extend(files_in(&entry.path(), &format!("{name}/"))?);
        } else {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}
