//! QEMU's machine protocol: devices taken out of a running machine and put into it.

use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

/// How long QEMU may take to answer.
const ANSWER: Duration = Duration::from_secs(10);

/// A connection to the monitor of a machine.
#[derive(Debug)]
pub struct Qmp {
    stream: BufReader<UnixStream>,
    /// Devices that have left the machine and that nobody has asked after yet.
    deleted: Vec<String>,
}

impl Qmp {
    /// Connects to a monitor and greets it.
    ///
    /// # Errors
    /// When nobody listens there, or it does not speak the protocol.
    pub fn connect(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket).with_context(|| socket.display().to_string())?;
        let mut monitor = Self { stream: BufReader::new(stream), deleted: Vec::new() };
        monitor.message(Instant::now() + ANSWER)?.context("the monitor says nothing")?;
        monitor.execute("qmp_capabilities", &json!({}))?;
        Ok(monitor)
    }

    /// Runs a command.
    ///
    /// # Errors
    /// What QEMU says when it refuses.
    pub fn execute(&mut self, command: &str, arguments: &Value) -> Result<()> {
        let request = json!({ "execute": command, "arguments": arguments });
        writeln!(self.stream.get_mut(), "{request}")?;
        let deadline = Instant::now() + ANSWER;
        loop {
            let Some(message) = self.message(deadline)? else {
                bail!("the monitor does not answer {command} within {ANSWER:?}");
            };
            ensure!(message["error"].is_null(), "{command}: {}", message["error"]["desc"]);
            if !message["return"].is_null() {
                return Ok(());
            }
            self.note(&message);
        }
    }

    /// Waits until a device has left the machine.
    ///
    /// # Errors
    /// When it has not within the time.
    pub fn await_deletion(&mut self, device: &str, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(at) = self.deleted.iter().position(|deleted| deleted == device) {
                self.deleted.swap_remove(at);
                return Ok(());
            }
            let Some(message) = self.message(deadline)? else {
                bail!("{device} has not left the machine within {limit:?}");
            };
            self.note(&message);
        }
    }

    fn note(&mut self, message: &Value) {
        if message["event"] == "DEVICE_DELETED" {
            self.deleted.extend(message["data"]["device"].as_str().map(str::to_owned));
        }
    }

    /// The next message; `None` when none comes in time.
    fn message(&mut self, deadline: Instant) -> Result<Option<Value>> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        self.stream.get_ref().set_read_timeout(Some(left))?;
        let mut line = String::new();
        match self.stream.read_line(&mut line) {
            Ok(0) => bail!("the monitor has closed the connection"),
            Ok(_) => Ok(Some(serde_json::from_str(&line).with_context(|| line.clone())?)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn events_that_come_between_are_kept() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("qmp");
        let listener = UnixListener::bind(&path).unwrap();
        let qemu = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut stream = BufReader::new(stream);
            let mut heard = Vec::new();
            let answers = [
                "{\"QMP\": {}}\n",
                "{\"return\": {}}\n",
                "{\"event\": \"DEVICE_DELETED\", \"data\": {\"device\": \"card1\"}}\n{\"return\": {}}\n",
                "{\"error\": {\"class\": \"GenericError\", \"desc\": \"no\"}}\n",
            ];
            for (number, answer) in answers.iter().enumerate() {
                if number > 0 {
                    let mut line = String::new();
                    stream.read_line(&mut line).unwrap();
                    let request: Value = serde_json::from_str(&line).unwrap();
                    heard.push(request["execute"].as_str().unwrap().to_owned());
                }
                stream.get_mut().write_all(answer.as_bytes()).unwrap();
            }
            heard
        });
        let mut monitor = Qmp::connect(&path).unwrap();
        monitor.execute("device_del", &json!({ "id": "card1" })).unwrap();
        monitor.await_deletion("card1", Duration::from_secs(5)).unwrap();
        let refused = monitor.execute("device_del", &json!({ "id": "card1" })).unwrap_err();
        assert!(refused.to_string().contains("no"), "{refused}");
        assert_eq!(qemu.join().unwrap(), ["qmp_capabilities", "device_del", "device_del"]);
        assert!(monitor.await_deletion("card1", Duration::from_secs(5)).is_err(), "it came once");
    }
}
