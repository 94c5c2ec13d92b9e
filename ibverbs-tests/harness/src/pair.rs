//! Server and client: the shape of all programs of perftest and of the pingpongs.

use std::collections::BTreeSet;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use crate::process::{Finished, Running, Task};
use crate::setting::Daemon;

/// The TCP port of `remote-shell`.
pub const REMOTE_SHELL: u16 = 2222;

/// A TCP port of this machine that no program listens on now, and that was given to no other case.
///
/// # Errors
/// When there is none.
pub fn free_port() -> Result<u16> {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    for _ in 0..TRIES {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free TCP port")?;
        let port = listener.local_addr()?.port();
        if GIVEN.lock().unwrap_or_else(PoisonError::into_inner).insert(port) {
            return Ok(port);
        }
    }
    bail!("{TRIES} free TCP ports were all given to a case before")
}

/// How often a port is asked for that may have been given before.
const TRIES: u32 = 1000;

/// Whether a program listens on a TCP port in the network namespace of a process, or `self`. Looked up rather than
/// tried: a connection would be taken for the client's.
fn is_listening(process: &str, port: u16) -> bool {
    const LISTEN: &str = "0A";
    let ending = format!(":{port:04X}");
    ["tcp", "tcp6"].iter().any(|table| {
        fs::read_to_string(format!("/proc/{process}/net/{table}")).unwrap_or_default().lines().any(
            |line| {
                let mut words = line.split_whitespace().skip(1);
                words.next().is_some_and(|local| local.ends_with(&ending))
                    && words.nth(1) == Some(LISTEN)
            },
        )
    })
}

/// How long a server may take to end whose client has failed.
const LAST_WORDS: Duration = Duration::from_secs(20);

/// How both sides ended.
#[derive(Debug)]
pub struct Both {
    /// The side that waited.
    pub server: Finished,
    /// The side that connected.
    pub client: Finished,
}

/// Checks that the output of both sides has a text.
///
/// # Errors
/// When one does not.
pub fn both_say(both: &Both, text: &str) -> Result<()> {
    for side in [&both.server, &both.client] {
        ensure!(side.stdout.contains(text), "it does not say {text:?}: {side}");
    }
    Ok(())
}

/// Starts a server and waits until it listens on its port.
///
/// # Errors
/// When it ends before.
pub fn start_server(server: Task, port: u16) -> Result<Running> {
    start_server_in("self", server, port)
}

/// The same with one that runs in the network namespace of a process.
///
/// # Errors
/// When it ends before.
pub fn start_server_in(process: &str, server: Task, port: u16) -> Result<Running> {
    let mut running = server.start()?;
    running.wait_until("it listened", |_| is_listening(process, port))?;
    Ok(running)
}

/// Runs a server, then its client, to the end of both, which must be exit code 0.
///
/// # Errors
/// When one of them fails; both are shown then, for the cause is often on the other side.
pub fn run_pair(server: Task, client: Task, port: u16) -> Result<Both> {
    run_pair_in("self", server, client, port)
}

/// The same with a server in the network namespace of a process.
///
/// # Errors
/// As [`run_pair`].
pub fn run_pair_in(process: &str, server: Task, client: Task, port: u16) -> Result<Both> {
    let server = start_server_in(process, server, port)?;
    let client = client.start()?.wait();
    let client = match client {
        Ok(client) if client.status.success() => client,
        Ok(client) => {
            // Where the server is done, it may say so only as it ends.
            let mut server = server.limited(LAST_WORDS);
            let _ = server.wait_until("its end", |_| false);
            let said = format!("{}{}", server.output(), server.errors());
            anyhow::bail!("the client failed: {client}\n--- the server said\n{said}");
        }
        Err(error) => {
            let said = format!("{}{}", server.output(), server.errors());
            return Err(error.context(format!("the client hung; the server said\n{said}")));
        }
    };
    let server = server
        .wait()
        .and_then(Finished::success)
        .with_context(|| format!("the server failed; its client was fine: {client}"))?;
    Ok(Both { server, client })
}

/// The number of programs' objects of a kind in the connection manager.
pub fn count(daemon: &Daemon<'_>, what: &str) -> Result<u64> {
    let status = daemon.status()?;
    status["connections"][what].as_u64().with_context(|| format!("no {what}: {status}"))
}

/// Starts a server and waits until it listens for connections, or has joined its group.
pub fn listening(daemon: &Daemon<'_>, server: Task, what: &str) -> Result<Running> {
    let mut running = server.start()?;
    let mut asked = Ok(0);
    running.wait_until("it listened", |_| {
        asked = count(daemon, what);
        !matches!(asked, Ok(0))
    })?;
    asked?;
    Ok(running)
}

/// Runs a client to its end, while a server runs, and shows both where it fails.
pub fn beside(server: &Running, client: Task) -> Result<Finished> {
    client.run().and_then(Finished::success).with_context(|| what_it_said(server))
}

/// The output of a server so far, for a failure that shows it.
pub fn what_it_said(server: &Running) -> String {
    format!("--- the server said\n{}{}", server.output(), server.errors())
}

/// Runs a pair of perftest's with `-R` to the end of its client, again where that came too early.
///
/// # Errors
/// As `run`; when the client fails for another reason, or each time.
pub fn until_in_time<T>(mut run: impl FnMut() -> Result<(T, Finished)>) -> Result<(T, Finished)> {
    const ATTEMPTS: usize = 10;
    for _ in 1..ATTEMPTS {
        let (server, client) = run()?;
        if !came_too_early(&client) {
            return Ok((server, client));
        }
    }
    run()
}

/// Whether a client of perftest's came before its server listened. With `-R` the server begins to listen for the
/// queue pairs when the client begins to connect them; a client that is faster says that it was rejected, or for
/// datagrams that the service is not there (status 1 of a SIDR REP), and may crash as it tries again.
fn came_too_early(client: &Finished) -> bool {
    const TOLD: [&str; 2] = ["RDMA_CM_EVENT_REJECTED", "RDMA_CM_EVENT_UNREACHABLE; error: 1."];
    !client.status.success() && TOLD.iter().any(|event| client.stderr.contains(event))
}

/// Runs a command line on one card as server and on another, or the same, as client.
///
/// # Errors
/// As [`run_pair`].
pub fn run_between(
    server: (&Daemon<'_>, u32),
    client: (&Daemon<'_>, u32),
    command: &str,
) -> Result<Both> {
    let port = free_port()?;
    let side = |(daemon, card): (&Daemon<'_>, u32)| {
        daemon.run(command).words(&format!("-d balboa{card} -p {port}"))
    };
    run_pair(side(server), side(client).arg("127.0.0.1"), port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_seen_without_being_disturbed() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        assert!(is_listening("self", listener.local_addr().unwrap().port()));
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_err(), "nobody connected");
    }
}
