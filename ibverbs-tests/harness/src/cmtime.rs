//! `cmtime`, which makes connections of librdmacm's and ends them, between the two cards of a balboad.

use anyhow::Result;

use crate::namespace::Namespace;
use crate::pair::{beside, listening, start_server_in};
use crate::process::Running;
use crate::setting::{Daemon, Setting, installed_release};

/// The release from which on both sides agree by TCP on the measurement, at the addresses of the cards, and the server
/// ends by itself and prints its figures as well.
const BY_TCP: u32 = 52;
/// The port of either kind.
const PORT: u16 = 7471;
/// The addresses of the cards.
const SERVER: &str = "10.77.0.1";
const CLIENT: &str = "10.77.0.2";

/// The installed `cmtime`.
pub struct Cmtime<'a> {
    setting: &'a Setting,
    daemon: &'a Daemon<'a>,
    server: Server,
}

/// The server that its clients connect to.
enum Server {
    /// One for all of them, which serves until it is killed, when it goes out of scope.
    Lasting(Running),
    /// A new one for each, in a network namespace that has the cards' addresses.
    ByTcp(Namespace),
}

/// The output of both sides.
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
    /// When its server does not listen; where it needs a network namespace, when there can be none.
    pub fn new(setting: &'a Setting, daemon: &'a Daemon<'a>) -> Result<Self> {
        let server = if installed_release()?.number < BY_TCP {
            let server = daemon.run(&format!("cmtime -b {SERVER}"));
            Server::Lasting(listening(daemon, server, "listeners")?)
        } else {
            Server::ByTcp(Namespace::new(setting, 2)?)
        };
        Ok(Self { setting, daemon, server })
    }

    /// Makes so many connections at once, and ends them.
    ///
    /// # Errors
    /// When a side fails.
    pub fn run(&self, connections: u32) -> Result<Printed> {
        let side = |addresses: &str| {
            self.daemon.run(&format!("cmtime {addresses} -c {connections} -t 20000"))
        };
        let client = side(&format!("-s {SERVER} -b {CLIENT}"));
        match &self.server {
            Server::Lasting(server) => {
                Ok(Printed { client: beside(server, client)?.stdout, server: None })
            }
            Server::ByTcp(namespace) => {
                let server = namespace.task(self.setting, &side(&format!("-b {SERVER}")));
                let server = start_server_in(&namespace.process(), server, PORT)?;
                let client = beside(&server, namespace.task(self.setting, &client))?;
                // What it ends with says nothing: its thread for events meets the end of its channel, or does not.
                Ok(Printed { client: client.stdout, server: Some(server.wait()?.stdout) })
            }
        }
    }
}
