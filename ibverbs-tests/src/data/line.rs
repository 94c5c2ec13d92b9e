//! The line on which the two processes agree on their steps.

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

/// How long the other process may keep us waiting.
const LIMIT: Duration = Duration::from_secs(60);

/// The side that sends, writes and reads: the one that waited or the one that connected.
pub(super) type Role = usize;

/// A TCP connection.
pub(super) struct Line {
    reader: BufReader<TcpStream>,
    /// 0 for the side that waited.
    pub(super) role: Role,
}

impl Line {
    /// Waits on a TCP port of this machine, or connects to it on another.
    pub(super) fn new(host: Option<&str>, port: u16) -> Result<Self> {
        let (role, stream) = match host {
            None => {
                // Where the machine has IPv6, by either.
                let both = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port));
                let any = both.or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))?;
                (0, any.accept()?.0)
            }
            Some(host) => (1, TcpStream::connect((host, port))?),
        };
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_nodelay(true)?;
        Ok(Self { reader: BufReader::new(stream), role })
    }

    /// Tells the other side numbers, and hears its own.
    pub(super) fn exchange<const N: usize>(&mut self, numbers: [u128; N]) -> Result<[u128; N]> {
        let words = numbers.map(|number| number.to_string());
        writeln!(self.reader.get_mut(), "{}", words.join(" "))?;
        let mut text = String::new();
        self.reader.read_line(&mut text).context("the other side keeps us waiting")?;
        let told: Result<Vec<u128>, _> = text.split_whitespace().map(str::parse).collect();
        let told = told.ok().and_then(|told| told.try_into().ok());
        told.with_context(|| format!("the other side says {text:?}"))
    }

    /// Waits until the other side has come as far.
    pub(super) fn meet(&mut self) -> Result<()> {
        self.exchange([]).map(|[]: [u128; 0]| ())
    }

    /// Tells the other side that the message that it repeats has come.
    pub(super) fn heard(&mut self) -> Result<()> {
        Ok(self.reader.get_mut().write_all(b"!")?)
    }

    /// Whether the other side says so within a time.
    pub(super) fn was_heard(&mut self, within: Duration) -> Result<bool> {
        self.reader.get_ref().set_read_timeout(Some(within))?;
        let mut byte = [0];
        let read = self.reader.read_exact(&mut byte);
        self.reader.get_ref().set_read_timeout(Some(LIMIT))?;
        match read {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Ok(false)
            }
            read => {
                read.context("the other side has gone")?;
                ensure!(byte == *b"!", "the other side says {byte:?}");
                Ok(true)
            }
        }
    }
}
