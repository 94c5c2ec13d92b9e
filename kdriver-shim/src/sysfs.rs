//! The counters as files, which `balboa run` shows to its programs below /sys/class/infiniband.
//!
//! `STATE_DIR/counters/balboaN` has the directories `hw_counters` and `counters` of the port. They
//! are written once a second at most, only while verbs programs are connected and once after, and
//! only where a number has changed: nobody pays for them on an idle machine.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use shim_abi::COUNTERS_DIR;

use crate::cards::Card;
use crate::error::Error;
use crate::status::counters;

/// How often the files are written at most.
const PERIOD: Duration = Duration::from_secs(1);
/// The directories of a card.
const DIRECTORIES: [&str; 2] = ["hw_counters", "counters"];
/// Files of `counters`, the counter that each shows, and what it is divided by: the InfiniBand
/// architecture counts data in words of 4 bytes.
const PORT_COUNTERS: [(&str, &str, u64); 4] = [
    ("port_xmit_data", "sent_bytes", 4),
    ("port_rcv_data", "rcvd_bytes", 4),
    ("port_xmit_packets", "sent_pkts", 1),
    ("port_rcv_packets", "rcvd_pkts", 1),
];

/// The files of all cards; they go when this is dropped.
#[derive(Debug)]
pub struct CounterFiles {
    root: PathBuf,
    /// What each file says, by its path below the root.
    written: BTreeMap<String, u64>,
    due: Instant,
    /// Programs may have been at work since the files were last written.
    stale: bool,
}

impl CounterFiles {
    /// Makes the files in a state directory that is ours, in place of those a dead balboad left.
    ///
    /// # Errors
    /// [`Error::StateDir`] when they cannot be made.
    pub fn new(state_dir: &Path, cards: &mut [Card], now: Instant) -> Result<Self, Error> {
        let root = state_dir.join(COUNTERS_DIR);
        let fail = |error: io::Error| Error::StateDir {
            dir: state_dir.to_owned(),
            why: format!("{COUNTERS_DIR} in it cannot be made: {error}"),
        };
        clear(&root).map_err(fail)?;
        let mut files = Self { root, written: BTreeMap::new(), due: now, stale: false };
        for card in cards.iter() {
            for directory in DIRECTORIES {
                let directory = files.root.join(card.name()).join(directory);
                DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(fail)?;
            }
        }
        files.write(cards).map_err(fail)?;
        Ok(files)
    }

    /// How long may be waited before [`Self::refresh`]; `None` for ever.
    #[must_use]
    pub fn patience(&self, programs: bool, now: Instant) -> Option<Duration> {
        (programs || self.stale).then(|| self.due.saturating_duration_since(now))
    }

    /// Writes what has changed, if it is time; `programs` tells whether any are connected.
    pub fn refresh(&mut self, cards: &mut [Card], programs: bool, now: Instant) {
        if self.patience(programs, now).is_none_or(|patience| !patience.is_zero()) {
            self.stale |= programs;
            return;
        }
        self.stale = programs;
        self.due = now.checked_add(PERIOD).unwrap_or(now);
        if let Err(error) = self.write(cards) {
            log::warn!("counters in {} cannot be written: {error}", self.root.display());
        }
    }

    fn write(&mut self, cards: &mut [Card]) -> io::Result<()> {
        for card in cards {
            let name = card.name();
            let values: BTreeMap<String, u64> = counters(card).into_iter().collect();
            for (counter, value) in &values {
                self.set(format!("{name}/hw_counters/{counter}"), *value)?;
            }
            for (file, counter, unit) in PORT_COUNTERS {
                let value = values.get(counter).and_then(|value| value.checked_div(unit));
                self.set(format!("{name}/counters/{file}"), value.unwrap_or(0))?;
            }
        }
        Ok(())
    }

    /// Writes one file in place. A number never has fewer digits than before, and so few bytes
    /// are written at once: a reader sees the old number or the new one.
    fn set(&mut self, file: String, value: u64) -> io::Result<()> {
        if self.written.get(&file).is_some_and(|written| *written >= value) {
            return Ok(());
        }
        let open: File = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(self.root.join(&file))?;
        open.write_all_at(format!("{value}\n").as_bytes(), 0)?;
        self.written.insert(file, value);
        Ok(())
    }
}

impl Drop for CounterFiles {
    fn drop(&mut self) {
        let _ = clear(&self.root);
    }
}

/// Removes the files and directories that a balboad makes, and nothing else.
fn clear(root: &Path) -> io::Result<()> {
    let foreign = || io::Error::other("it holds what no balboad put there; move that away");
    let cards = match fs::read_dir(root) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        cards => cards?,
    };
    if fs::symlink_metadata(root)?.is_symlink() {
        return Err(foreign());
    }
    for card in cards {
        let card = card?;
        let name = card.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("balboa"));
        let ours = number.is_some_and(|number| number.parse::<u32>().is_ok());
        if !ours || !card.file_type()?.is_dir() {
            return Err(foreign());
        }
        for directory in DIRECTORIES {
            let directory = card.path().join(directory);
            let files = match fs::read_dir(&directory) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                files => files?,
            };
            for file in files {
                fs::remove_file(file?.path())?;
            }
            fs::remove_dir(&directory)?;
        }
        fs::remove_dir(card.path()).map_err(|_| foreign())?;
    }
    fs::remove_dir(root)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(root: &Path, now: Instant) -> CounterFiles {
        CounterFiles::new(root, &mut [], now).unwrap()
    }

    #[test]
    fn nothing_is_waited_for_without_programs() {
        let root = tempfile::tempdir().unwrap();
        let now = Instant::now();
        let mut files = files(root.path(), now);
        assert_eq!(files.patience(false, now), None);
        files.refresh(&mut [], true, now);
        assert_eq!(files.patience(true, now), Some(PERIOD));
        // The last program has ended: once more, and then no more.
        assert_eq!(files.patience(false, now), Some(PERIOD));
        files.refresh(&mut [], false, now);
        assert_eq!(files.patience(false, now), Some(PERIOD), "not yet");
        files.refresh(&mut [], false, now + PERIOD);
        assert_eq!(files.patience(false, now + PERIOD), None);
    }

    #[test]
    fn a_program_between_two_writings_is_not_missed() {
        let root = tempfile::tempdir().unwrap();
        let now = Instant::now();
        let mut files = files(root.path(), now);
        files.refresh(&mut [], true, now);
        files.refresh(&mut [], false, now + PERIOD);
        files.refresh(&mut [], true, now + PERIOD);
        assert_eq!(files.patience(false, now + PERIOD), Some(PERIOD));
    }

    #[test]
    fn what_no_balboad_made_is_refused_and_stays() {
        let precious = ["notes", "balboa0/notes", "balboa/x", "balboa0/counters/of/notes"];
        for precious in precious.map(Path::new) {
            let root = tempfile::tempdir().unwrap();
            let file = root.path().join(COUNTERS_DIR).join(precious);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, "precious").unwrap();
            let refused = CounterFiles::new(root.path(), &mut [], Instant::now());
            let why = refused.unwrap_err().to_string();
            assert!(why.contains("counters in it cannot be made"), "{why}");
            assert_eq!(fs::read_to_string(file).unwrap(), "precious");
        }
        let root = tempfile::tempdir().unwrap();
        let elsewhere = root.path().join("elsewhere");
        fs::create_dir_all(elsewhere.join("balboa0/counters")).unwrap();
        std::os::unix::fs::symlink(&elsewhere, root.path().join(COUNTERS_DIR)).unwrap();
        let refused = CounterFiles::new(root.path(), &mut [], Instant::now()).unwrap_err();
        assert!(refused.to_string().contains("move that away"), "{refused}");
        assert!(elsewhere.join("balboa0/counters").exists());
    }

    #[test]
    fn a_file_says_the_greatest_number_and_goes_in_the_end() {
        let root = tempfile::tempdir().unwrap();
        // Of a balboad that was killed.
        let old = root.path().join(COUNTERS_DIR).join("balboa7");
        fs::create_dir_all(old.join("hw_counters")).unwrap();
        fs::write(old.join("hw_counters/sent_pkts"), "1\n").unwrap();
        let mut files = files(root.path(), Instant::now());
        assert!(!old.exists());
        fs::create_dir_all(files.root.join("balboa0/counters")).unwrap();
        for value in [7, 10, 9] {
            files.set("balboa0/counters/x".into(), value).unwrap();
        }
        assert_eq!(fs::read_to_string(files.root.join("balboa0/counters/x")).unwrap(), "10\n");
        drop(files);
        assert!(!root.path().join(COUNTERS_DIR).exists());
    }
}
