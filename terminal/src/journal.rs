//! The log as systemd's journal takes it: by datagrams of fields, where standard error goes there anyway.
//!
//! A line on standard error is a text; a datagram says its priority, its place in the source and its client as well, so
//! that `journalctl -p warning` and `journalctl CODE_FILE=…` find it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use log::{Level, Record};

/// The key by which a line says which client caused it, by a number: `log::info!(client = 7; "…")`.
pub(crate) const CLIENT: &str = "client";
/// Where the journal takes datagrams.
const SOCKET: &str = "/run/systemd/journal/socket";
/// Says of which file standard error is, as `DEVICE:INODE`, where systemd connected it to the journal.
const STREAM: &str = "JOURNAL_STREAM";

/// The journal.
#[derive(Debug)]
pub(crate) struct Journal {
    socket: UnixDatagram,
    /// The program that logs.
    identifier: String,
}

impl Journal {
    /// The journal, where standard error goes there.
    pub(crate) fn behind_standard_error() -> Option<Self> {
        let stream = std::env::var(STREAM).ok()?;
        if !is_of(&stream, io::stderr()) {
            return None;
        }
        Self::at(Path::new(SOCKET)).ok()
    }

    fn at(socket: &Path) -> io::Result<Self> {
        let program = std::env::args_os().next().unwrap_or_default();
        let name = Path::new(&program).file_name().unwrap_or_default();
        let identifier = name.to_string_lossy().into_owned();
        let unconnected = UnixDatagram::unbound()?;
        unconnected.connect(socket)?;
        unconnected.set_nonblocking(true)?;
        Ok(Self { socket: unconnected, identifier })
    }

    /// Hands a line over, without waiting.
    ///
    /// # Errors
    /// When the journal does not take it: it has gone or has no room, or the line is too long for a datagram.
    pub(crate) fn log(&self, record: &Record<'_>) -> io::Result<()> {
        self.socket.send(&fields(record, &self.identifier)).map(drop)
    }
}

impl AsFd for Journal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Whether a descriptor is of the file that `JOURNAL_STREAM` names.
fn is_of(stream: &str, descriptor: impl AsFd) -> bool {
    let file = descriptor.as_fd().try_clone_to_owned().map(File::from);
    let Ok(found) = file.and_then(|file| file.metadata()) else { return false };
    stream == format!("{}:{}", found.dev(), found.ino())
}

/// A line as a datagram.
fn fields(record: &Record<'_>, identifier: &str) -> Vec<u8> {
    // syslog's numbers: error, warning, informational, debug.
    let priority = match record.level() {
        Level::Error => "3",
        Level::Warn => "4",
        Level::Info => "6",
        Level::Debug | Level::Trace => "7",
    };
    let mut datagram = Vec::new();
    let mut put = |name: &str, value: &str| {
        datagram.extend_from_slice(name.as_bytes());
        if value.contains('\n') {
            // A value of several lines has its length before it.
            datagram.push(b'\n');
            datagram.extend_from_slice(&(value.len() as u64).to_le_bytes());
        } else {
            datagram.push(b'=');
        }
        datagram.extend_from_slice(value.as_bytes());
        datagram.push(b'\n');
    };
    put("PRIORITY", priority);
    put("SYSLOG_IDENTIFIER", identifier);
    put("MESSAGE", &record.args().to_string());
    put("TARGET", record.target());
    if let (Some(file), Some(line)) = (record.file(), record.line()) {
        put("CODE_FILE", file);
        put("CODE_LINE", &line.to_string());
    }
    if let Some(client) = record.key_values().get(CLIENT.into()) {
        put("BALBOA_CLIENT", &client.to_string());
    }
    datagram
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// A journal's end, and the journal of a program that logs to it.
    pub(crate) fn pair(home: &Path) -> (UnixDatagram, Journal) {
        let path = home.join("socket");
        let end = UnixDatagram::bind(&path).unwrap();
        end.set_nonblocking(true).unwrap();
        (end, Journal::at(&path).unwrap())
    }

    /// The fields of the next datagram; `None` where there is none.
    pub(crate) fn received(end: &UnixDatagram) -> Option<BTreeMap<String, String>> {
        let mut datagram = vec![0; 1 << 20];
        let length = end.recv(&mut datagram).ok()?;
        datagram.truncate(length);
        let (mut rest, mut fields) = (&*datagram, BTreeMap::new());
        while !rest.is_empty() {
            let at = rest.iter().position(|byte| b"=\n".contains(byte)).unwrap();
            let (name, after) = rest.split_at(at);
            let length = match after[0] {
                b'=' => after.iter().position(|byte| *byte == b'\n').unwrap() - 1,
                _ => u64::from_le_bytes(after[1..9].try_into().unwrap()) as usize,
            };
            let start = if after[0] == b'=' { 1 } else { 9 };
            let value = String::from_utf8(after[start..start + length].to_vec()).unwrap();
            assert_eq!(after[start + length], b'\n');
            fields.insert(String::from_utf8(name.to_vec()).unwrap(), value);
            rest = &after[start + length + 1..];
        }
        Some(fields)
    }

    #[test]
    fn a_line_has_its_priority_its_place_and_its_client() {
        let home = tempfile::tempdir().unwrap();
        let (end, journal) = pair(home.path());
        for (level, priority) in [
            (Level::Error, "3"),
            (Level::Warn, "4"),
            (Level::Info, "6"),
            (Level::Debug, "7"),
            (Level::Trace, "7"),
        ] {
            let client = Some((CLIENT, 42));
            let text = "a\nPRIORITY=0\nb";
            let mut line = Record::builder();
            line.level(level).target("balboad").file(Some("a.rs")).line(Some(7));
            line.key_values(&client);
            journal.log(&line.args(format_args!("{text}")).build()).unwrap();
            let fields = received(&end).unwrap();
            assert_eq!(fields["PRIORITY"], priority);
            assert_eq!(fields["MESSAGE"], text, "what looks like a field is none");
            assert_eq!((&*fields["CODE_FILE"], &*fields["CODE_LINE"]), ("a.rs", "7"));
            assert_eq!((&*fields["TARGET"], &*fields["BALBOA_CLIENT"]), ("balboad", "42"));
            let program = std::env::args().next().unwrap();
            assert!(program.ends_with(&fields["SYSLOG_IDENTIFIER"]));
        }
    }

    #[test]
    fn what_systemd_connected_is_told_from_what_was_led_elsewhere() {
        let file = tempfile::tempfile().unwrap();
        let found = file.metadata().unwrap();
        assert!(is_of(&format!("{}:{}", found.dev(), found.ino()), &file));
        assert!(!is_of(&format!("{}:{}", found.dev(), found.ino() + 1), &file));
        assert!(!is_of("", &file));
    }

    #[test]
    fn a_journal_that_has_gone_or_takes_no_such_line_is_an_error() {
        let home = tempfile::tempdir().unwrap();
        let (end, journal) = pair(home.path());
        let log = |text: &str| journal.log(&Record::builder().args(format_args!("{text}")).build());
        assert!(log(&"x".repeat(64 << 20)).is_err());
        assert!(log("a line").is_ok());
        drop(end);
        assert!(log("a line").is_err());
        assert!(Journal::at(&home.path().join("none")).is_err());
    }
}
