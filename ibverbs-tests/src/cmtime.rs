//! `cmtime`, which makes connections of librdmacm's and ends them, between the two cards of a balboad.

use anyhow::{Context as _, Result};

use crate::cases::rdmacm::listening;
use crate::namespace::Namespace;
use crate::pair::start_server_in;
use crate::process::Finished;
use crate::setting::{Daemon, Setting, installed_release};

/// From this release on both sides agree by TCP on what they measure, at the addresses of the cards, and the server
/// ends by itself and tells what it measured as well.
const BY_TCP: u32 = 52;
/// The port of either kind.
const PORT: u16 = 7471;
/// The addresses of the cards.
const SERVER: &str = "10.77.0.1";
const CLIENT: &str = "10.77.0.2";

/// The installed `cmtime`, with a network namespace that has the cards' addresses.
pub struct Cmtime<'a> {
    setting: &'a Setting,
    daemon: &'a Daemon<'a>,
    namespace: Namespace,
}

/// What both sides printed.
#[derive(Debug)]
pub struct Printed {
    /// The side that connected.
    pub client: String,
    /// The side that waited, where it tells anything.
    pub server: Option<String>,
}

impl<'a> Cmtime<'a> {
    /// Between the first two cards of a balboad.
    ///
    /// # Errors
    /// When there can be no network namespace.
    pub fn new(setting: &'a Setting, daemon: &'a Daemon<'a>) -> Result<Self> {
        Ok(Self { setting, daemon, namespace: Namespace::new(setting, 2)? })
    }

    /// Makes so many connections at once, and ends them.
    ///
    /// # Errors
    /// When a side fails.
    pub fn run(&self, connections: u32) -> Result<Printed> {
        let side = |addresses: &str| {
            let line = format!("cmtime {addresses} -c {connections} -t 20000");
            self.namespace.task(self.setting, &self.daemon.run(&line))
        };
        let server = side(&format!("-b {SERVER}"));
        let by_tcp = installed_release()?.number >= BY_TCP;
        let server = match by_tcp {
            true => start_server_in(&self.namespace.process(), server, PORT)?,
            // It serves until it is killed, when it goes out of scope.
            false => listening(self.daemon, server, "listeners")?,
        };
        let client = side(&format!("-s {SERVER} -b {CLIENT}"));
        let client = client.run().and_then(Finished::success).with_context(|| {
            format!("--- the server said\n{}{}", server.output(), server.errors())
        })?;
        // What it ends with says nothing: its thread for events meets the end of its channel, or does not.
        let server = by_tcp.then(|| server.wait()).transpose()?;
        Ok(Printed { client: client.stdout, server: server.map(|it| it.stdout) })
    }
}
