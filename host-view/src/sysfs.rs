//! The ports as files, which `balboa run` shows to its programs below /sys/class/infiniband.
//!
//! The program sees `STATE_DIR/ports/balboaN` as `ports/1` of the card: state, GIDs, P_Keys, and
//! the directories `hw_counters` and `counters`. It is written once a second at most, only while verbs
//! programs are connected and once after, when it is known that something has changed, and only where
//! it has: nobody pays for it on an idle machine.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::time::{Duration, Instant};

use hostmem::address::Addresses;
use nix::sys::stat::SFlag;
use nix::unistd::geteuid;
use shim_abi::{PORTS_DIR, PortInfo};

use crate::directory::{Directory, is};

mod port;

/// How often the files are written at most, unless something is known to have changed.
const PERIOD: Duration = Duration::from_secs(1);
/// The directories of numbers.
const COUNTER_DIRECTORIES: [&str; 2] = [HW_COUNTERS, COUNTERS];
const HW_COUNTERS: &str = "hw_counters";
const COUNTERS: &str = "counters";
/// The directories of texts, beside a port's own, and the one above the last two.
const TEXT_DIRECTORIES: [&str; 4] = ["gids", "pkeys", "gid_attrs/types", "gid_attrs/ndevs"];
const GID_ATTRIBUTES: &str = "gid_attrs";
/// A text that is not in its place yet.
const NEW: &str = ".new";
/// Bytes of a text at most: a GID is the longest.
const MAX_TEXT_BYTES: u64 = 64;
/// Bytes of a file: the digits of a number of 64 bits, and the end of the line.
const MAX_FILE_BYTES: u64 = 21;
/// Files of `counters`, the counter that each shows, and its divisor: the InfiniBand
/// architecture counts data in words of 4 bytes.
const PORT_COUNTERS: [(&str, &str, u64); 4] = [
    ("port_xmit_data", "sent_bytes", 4),
    ("port_rcv_data", "rcvd_bytes", 4),
    ("port_xmit_packets", "sent_pkts", 1),
    ("port_rcv_packets", "rcvd_pkts", 1),
];

/// A file: its card, the path of its directory in that, and its own name.
type CounterFile = (String, &'static str, String);

/// The port of a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardPort {
    /// The card's name.
    pub name: String,
    /// The port.
    pub port: PortInfo,
    /// The counters, by name.
    pub counters: Vec<(String, u64)>,
}

/// The files of all cards; they go when this is dropped.
#[derive(Debug)]
pub struct PortFiles {
    /// The state directory.
    state: Directory,
    /// The directories of each card, by the card's name and their path in that, empty for its own.
    directories: BTreeMap<(String, &'static str), Directory>,
    /// The number in each file of one.
    written: BTreeMap<CounterFile, u64>,
    /// The texts of each card, by their paths.
    texts: BTreeMap<String, BTreeMap<String, String>>,
    due: Instant,
    /// Programs may have been at work since the files were last written.
    stale: bool,
}

impl PortFiles {
    /// Makes the files in a state directory that is ours, in place of those a dead balboad left.
    ///
    /// # Errors
    /// Those of the file system, and a foreign file in the place of one.
    pub fn new(state: &Directory, cards: &[CardPort], now: Instant) -> io::Result<Self> {
        let names: Vec<String> = cards.iter().map(|card| card.name.clone()).collect();
        let mut files = Self::make(state, &names, now)?;
        files.write(cards.iter().cloned())?;
        Ok(files)
    }

    fn make(state: &Directory, cards: &[String], now: Instant) -> io::Result<Self> {
        clear(state)?;
        let root = state.make(PORTS_DIR)?;
        let mut directories = BTreeMap::new();
        for name in cards {
            let card = root.make(name)?;
            let attributes = card.make(GID_ATTRIBUTES)?;
            for path in COUNTER_DIRECTORIES.into_iter().chain(TEXT_DIRECTORIES) {
                let made = match path.split_once('/') {
                    Some((_, below)) => attributes.make(below)?,
                    None => card.make(path)?,
                };
                directories.insert((name.clone(), path), made);
            }
            directories.insert((name.clone(), ""), card);
        }
        let (written, texts, state) = (BTreeMap::new(), BTreeMap::new(), state.try_clone()?);
        Ok(Self { state, directories, written, texts, due: now, stale: false })
    }

    /// How long may be waited before [`Self::refresh`]; `None` for ever.
    #[must_use]
    pub fn patience(&self, programs: bool, now: Instant) -> Option<Duration> {
        (programs || self.stale).then(|| self.due.saturating_duration_since(now))
    }

    /// Makes the next [`Self::refresh`] due now, for a change that is to be seen at once.
    pub fn hurry(&mut self, now: Instant) {
        self.due = now;
        self.stale = true;
    }

    /// Writes the changes, if it is time; `programs` tells whether any are connected. It asks the cards only then.
    pub fn refresh(
        &mut self,
        cards: impl IntoIterator<Item = CardPort>,
        programs: bool,
        now: Instant,
    ) {
        if self.patience(programs, now).is_none_or(|patience| !patience.is_zero()) {
            self.stale |= programs;
            return;
        }
        self.stale = programs;
        self.due = now.checked_add(PERIOD).unwrap_or(now);
        if let Err(error) = self.write(cards) {
            log::warn!("the files of the ports cannot be written: {error}");
        }
    }

    fn write(&mut self, cards: impl IntoIterator<Item = CardPort>) -> io::Result<()> {
        let machine = Addresses::look();
        for CardPort { name, port, counters } in cards {
            self.write_texts(&name, port::texts(&port, &machine))?;
            let values: BTreeMap<String, u64> = counters.into_iter().collect();
            for (counter, value) in &values {
                self.set((name.clone(), HW_COUNTERS, counter.clone()), *value)?;
            }
            for (file, counter, unit) in PORT_COUNTERS {
                let value = values.get(counter).and_then(|value| value.checked_div(unit));
                self.set((name.clone(), COUNTERS, file.to_owned()), value.unwrap_or(0))?;
            }
        }
        Ok(())
    }

    /// Writes a card's texts that have changed, and removes those that have gone.
    fn write_texts(&mut self, card: &str, texts: BTreeMap<String, String>) -> io::Result<()> {
        let before = self.texts.entry(card.to_owned()).or_default();
        for path in before.keys().filter(|path| !texts.contains_key(*path)) {
            let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
            if let Some(directory) = find(&self.directories, card, directory) {
                directory.remove(OsStr::new(name))?;
            }
        }
        before.retain(|path, _| texts.contains_key(path));
        for (path, text) in texts {
            if before.get(&path) == Some(&text) {
                continue;
            }
            let (directory, name) = path.rsplit_once('/').unwrap_or(("", &path));
            let Some(directory) = find(&self.directories, card, directory) else { continue };
            // A reader sees all of the old text or all of the new one.
            let mut file = directory.file(NEW)?;
            file.set_len(0)?;
            file.write_all(text.as_bytes())?;
            directory.rename(NEW, name)?;
            before.insert(path, text);
        }
        Ok(())
    }

    /// Writes one file in place. A number never has fewer digits than before, and so few bytes
    /// are written at once: a reader sees the old number or the new one.
    fn set(&mut self, place: CounterFile, value: u64) -> io::Result<()> {
        if self.written.get(&place).is_some_and(|written| *written >= value) {
            return Ok(());
        }
        let (card, directory, name) = place;
        let at = (card, directory);
        let Some(directory) = self.directories.get(&at) else { return Ok(()) };
        directory.file(&name)?.write_all_at(format!("{value}\n").as_bytes(), 0)?;
        self.written.insert((at.0, at.1, name), value);
        Ok(())
    }
}

/// The directory of a card at a path.
fn find<'a>(
    directories: &'a BTreeMap<(String, &'static str), Directory>,
    card: &str,
    path: &str,
) -> Option<&'a Directory> {
    directories.iter().find(|((of, at), _)| of == card && *at == path).map(|(_, found)| found)
}

impl Drop for PortFiles {
    fn drop(&mut self) {
        if let Err(error) = clear(&self.state) {
            log::warn!("the files of the ports stay: {error}");
        }
    }
}

/// Removes the files and directories that a balboad makes; stops at anything else.
fn clear(state: &Directory) -> io::Result<()> {
    let here = OsStr::new(PORTS_DIR);
    let Some(root) = ours(state, here)? else { return Ok(()) };
    for card in root.names()? {
        let number = card.to_str().and_then(|name| name.strip_prefix("balboa"));
        if number.is_none_or(|number| number.parse::<u32>().is_err()) {
            return Err(foreign(&card));
        }
        let Some(port) = ours(&root, &card)? else { continue };
        clear_in(&port, "")?;
        root.remove_directory(&card)?;
    }
    state.remove_directory(here)
}

/// Removes the files that a balboad makes in a port's directory of that path.
fn clear_in(directory: &Directory, path: &str) -> io::Result<()> {
    for name in directory.names()? {
        let plain = name.to_str().ok_or_else(|| foreign(&name))?;
        let at = if path.is_empty() { plain.to_owned() } else { format!("{path}/{plain}") };
        let known = COUNTER_DIRECTORIES.into_iter().chain(TEXT_DIRECTORIES);
        if known.chain([GID_ATTRIBUTES]).any(|known| known == at) {
            if let Some(below) = ours(directory, &name)? {
                clear_in(&below, &at)?;
                directory.remove_directory(&name)?;
            }
            continue;
        }
        let is_ours = match COUNTER_DIRECTORIES.contains(&path) {
            true => is_counter(directory, &name),
            false => (port::is_text(&at) || plain == NEW) && is_small(directory, plain),
        };
        if !is_ours {
            return Err(foreign(&name));
        }
        directory.remove(&name)?;
    }
    Ok(())
}

/// A directory in another; no link, and nothing else.
fn ours(above: &Directory, name: &OsStr) -> io::Result<Option<Directory>> {
    above.directory(name).map_err(|_| foreign(name))
}

fn foreign(name: &OsStr) -> io::Error {
    let name = name.to_string_lossy();
    io::Error::other(format!("no balboad put {name:?} into it; move that away"))
}

/// Whether a name is that of a file of this user's that may hold a text.
fn is_small(directory: &Directory, name: &str) -> bool {
    let Ok(Some(found)) = directory.look_at(name) else { return false };
    let bytes = u64::try_from(found.st_size).unwrap_or(u64::MAX);
    let own = found.st_uid == geteuid().as_raw();
    own && is(&found, SFlag::S_IFREG) && bytes <= MAX_TEXT_BYTES
}

/// Whether a name is that of a file with a number, or one that nothing was written to yet.
fn is_counter(directory: &Directory, name: &OsStr) -> bool {
    let plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'_';
    let Ok(file) = directory.readable(name) else { return false };
    let own = file.metadata().is_ok_and(|found| {
        found.is_file() && found.uid() == geteuid().as_raw() && found.len() <= MAX_FILE_BYTES
    });
    let mut text = String::new();
    own && name.as_encoded_bytes().iter().all(plain)
        && file.take(MAX_FILE_BYTES).read_to_string(&mut text).is_ok()
        && (text.is_empty() || text.trim_end_matches('\n').parse::<u64>().is_ok())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::*;

    fn files(root: &Path, now: Instant) -> PortFiles {
        PortFiles::make(&Directory::open(root).unwrap(), &["balboa0".into()], now).unwrap()
    }

    fn refusal(root: &Path) -> String {
        let state = Directory::open(root).unwrap();
        PortFiles::make(&state, &[], Instant::now()).unwrap_err().to_string()
    }

    #[test]
    fn nothing_is_waited_for_without_programs() {
        let root = tempfile::tempdir().unwrap();
        let now = Instant::now();
        let mut files = files(root.path(), now);
        assert_eq!(files.patience(false, now), None);
        files.refresh([], true, now);
        assert_eq!(files.patience(true, now), Some(PERIOD));
        // The last program has ended: one more write, and then none.
        assert_eq!(files.patience(false, now), Some(PERIOD));
        files.refresh([], false, now);
        assert_eq!(files.patience(false, now), Some(PERIOD), "not yet");
        files.refresh([], false, now + PERIOD);
        assert_eq!(files.patience(false, now + PERIOD), None);
    }

    #[test]
    fn a_program_between_two_writings_is_not_missed() {
        let root = tempfile::tempdir().unwrap();
        let now = Instant::now();
        let mut files = files(root.path(), now);
        files.refresh([], true, now);
        files.refresh([], false, now + PERIOD);
        files.refresh([], true, now + PERIOD);
        assert_eq!(files.patience(false, now + PERIOD), Some(PERIOD));
    }

    #[test]
    fn what_no_balboad_made_is_refused_and_stays() {
        let foreign = [
            "notes",
            "balboa0/notes",
            "balboa/x",
            "balboa0/counters/of/notes",
            "balboa0/counters/notes",
            "balboa0/hw_counters/sent_pkts.old",
            "balboa0/hw_counters/sent_pkts",
        ];
        for name in foreign.map(Path::new) {
            let root = tempfile::tempdir().unwrap();
            let file = root.path().join(PORTS_DIR).join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, "precious").unwrap();
            let why = refusal(root.path());
            assert!(why.contains("move that away"), "{why}");
            assert_eq!(fs::read_to_string(file).unwrap(), "precious");
        }
    }

    #[test]
    fn where_a_link_leads_nothing_is_removed_and_nothing_written() {
        for link in ["ports", "ports/balboa0", "ports/balboa0/hw_counters"] {
            let root = tempfile::tempdir().unwrap();
            let elsewhere = root.path().join("elsewhere");
            let number = elsewhere.join("sent_pkts");
            fs::create_dir(&elsewhere).unwrap();
            fs::write(&number, "1\n").unwrap();
            let link = root.path().join(link);
            fs::create_dir_all(link.parent().unwrap()).unwrap();
            symlink(&elsewhere, &link).unwrap();
            let why = refusal(root.path());
            assert!(why.contains("move that away"), "{why}");
            assert!(number.exists() && link.is_symlink());
        }
        let root = tempfile::tempdir().unwrap();
        let mut files = files(root.path(), Instant::now());
        let precious = root.path().join("precious");
        fs::write(&precious, "precious").unwrap();
        let link = root.path().join("ports/balboa0/counters/x");
        symlink(&precious, &link).unwrap();
        assert!(files.set(("balboa0".into(), COUNTERS, "x".into()), 1).is_err());
        drop(files);
        assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
        assert!(link.is_symlink(), "it is not balboad's to remove");
    }

    #[test]
    fn a_file_says_the_greatest_number_and_goes_in_the_end() {
        let root = tempfile::tempdir().unwrap();
        // Of a balboad that was killed, the second one before it had written anything.
        let old = root.path().join(PORTS_DIR).join("balboa7");
        fs::create_dir_all(old.join("hw_counters")).unwrap();
        fs::write(old.join("hw_counters/sent_pkts"), "18446744073709551615\n").unwrap();
        fs::write(old.join("hw_counters/rcvd_pkts"), "").unwrap();
        let mut files = files(root.path(), Instant::now());
        assert!(!old.exists());
        for value in [7, 10, 9] {
            files.set(("balboa0".into(), COUNTERS, "x".into()), value).unwrap();
        }
        let file = root.path().join("ports/balboa0/counters/x");
        assert_eq!(fs::read_to_string(file).unwrap(), "10\n");
        drop(files);
        assert!(!root.path().join(PORTS_DIR).exists());
    }
}
