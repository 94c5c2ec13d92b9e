//! Software cards of this machine against the kernel's rdma_rxe in a virtual one.
//!
//! The cases run here and hold one end of everything; an [`agent`] in the machine runs the programs
//! of its end. The frames go over Unix datagram sockets from a card's port to the machine's first
//! network device, the programs' own TCP connections over its second.

use std::cell::RefCell;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use crate::process::{Finished, Running, Task};
use crate::{guest, pair};

mod cases;

pub use cases::{cases, names};

/// What the agent says once the machine's RDMA device is there.
const READY: &str = "the agent is ready";
/// The machine's RDMA device.
pub const DEVICE: &str = "rxe0";
/// Where the machine finds this one's TCP ports.
pub const HOST: &str = "10.0.2.2";
/// The machine's MTU on the cable: path MTU 4096 and its headers fit.
pub const MTU: u32 = 4200;
/// How long a program in the machine may take.
const LIMIT: Duration = Duration::from_secs(60);
/// How long the agent may take to answer: as long as a program, and some more.
const ANSWER: Duration = Duration::from_secs(75);
/// How long the machine may take to come up.
const BOOT: Duration = Duration::from_secs(180);

/// Commands that give the machine its devices: first what is on the cable, in the subnet of the
/// cards, then what leads to this machine's TCP ports.
const SETUP: [&str; 5] = [
    "ip addr add 10.77.0.2/24 dev eth0",
    "ip link set eth0 up",
    "ip addr add 10.0.2.15/24 dev eth1",
    "ip link set eth1 up",
    "rdma link add rxe0 type rxe netdev eth0",
];

/// Does in the machine what it is asked for, line by line on standard input, until that ends or it
/// is told to.
///
/// # Errors
/// When the machine lacks something.
pub fn agent() -> Result<()> {
    for module in ["virtio_net", "ib_uverbs", "crc32_generic", "rdma_rxe"] {
        guest::load(module, c"")?;
    }
    for command in SETUP {
        let (program, words) = command.split_once(' ').unwrap_or_default();
        Task::new(program).words(words).run()?.success()?;
    }
    println!("{READY}");
    let mut server = None;
    for line in io::stdin().lines() {
        let order: Value = serde_json::from_str(&line?)?;
        if order["do"] == "end" {
            break;
        }
        let answer = match obey(&order, &mut server) {
            Ok(answer) => answer,
            Err(error) => json!({ "error": format!("{error:#}") }),
        };
        println!("{answer}");
    }
    Ok(())
}

/// One order: to run a program, to start a server and wait until it listens, to wait for its end.
fn obey(order: &Value, server: &mut Option<Running>) -> Result<Value> {
    let task = || {
        let words = order["words"].as_str().context("no words")?;
        let (program, words) = words.split_once(' ').unwrap_or((words, ""));
        let built = Path::new(guest::SHARES).join("built").join(program);
        let task = if built.exists() { Task::new(built) } else { Task::new(program) };
        anyhow::Ok(task.words(words).limit(LIMIT))
    };
    let finished = match order["do"].as_str() {
        Some("run") => task()?.run()?,
        Some("start") => {
            let port = u16::try_from(order["port"].as_u64().context("no port")?)?;
            // One that a failed case left behind ends here.
            drop(server.take());
            *server = Some(pair::start_server(task()?, port)?);
            return Ok(json!({}));
        }
        Some("wait") => server.take().context("no server was started")?.wait()?,
        _ => bail!("an order that nobody knows: {order}"),
    };
    let Finished { command, status, stdout, stderr } = finished;
    let status = status.into_raw();
    Ok(json!({ "command": command, "status": status, "stdout": stdout, "stderr": stderr }))
}

/// A machine with an [`agent`].
#[derive(Debug)]
pub struct Machine {
    line: RefCell<BufReader<UnixStream>>,
    /// Where its end of the cable is, and where it looks for ours.
    cable: [PathBuf; 2],
    /// The port of this machine that leads to the same one there.
    port: u16,
}

impl Machine {
    /// Waits until the agent at the other end of a line is ready.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn new(stream: UnixStream, cable: [PathBuf; 2], port: u16) -> Result<Self> {
        stream.set_read_timeout(Some(BOOT))?;
        let mut line = BufReader::new(stream);
        let mut said = String::new();
        while !said.ends_with(&format!("{READY}\r\n")) && !said.ends_with(&format!("{READY}\n")) {
            let read = line.read_line(&mut said).with_context(|| format!("it said {said}"))?;
            ensure!(read > 0, "it ended: {said}");
        }
        line.get_ref().set_read_timeout(Some(ANSWER))?;
        Ok(Self { line: RefCell::new(line), cable, port })
    }

    /// The TCP port at which servers there are reached from here.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// balboad's option for a card at the other end of the cable.
    pub fn cable(&self) -> String {
        let [theirs, ours] = &self.cable;
        format!("--port unix:{},{}", ours.display(), theirs.display())
    }

    fn ask(&self, order: &Value) -> Result<Value> {
        let mut line = self.line.borrow_mut();
        writeln!(line.get_mut(), "{order}")?;
        loop {
            let mut answer = String::new();
            let read = line.read_line(&mut answer).context("the machine does not answer")?;
            ensure!(read > 0, "the machine has gone");
            // What else comes is the kernel's, or a shell's.
            if answer.starts_with('{') {
                let answer: Value = serde_json::from_str(&answer)?;
                match answer["error"].as_str() {
                    Some(error) => bail!("in the machine: {error}"),
                    None => return Ok(answer),
                }
            }
        }
    }

    fn finished(&self, order: &Value) -> Result<Finished> {
        let answer = self.ask(order)?;
        let text = |name: &str| answer[name].as_str().unwrap_or_default().to_owned();
        let status = answer["status"].as_i64().context("no status")?;
        Ok(Finished {
            command: text("command"),
            status: ExitStatus::from_raw(i32::try_from(status)?),
            stdout: text("stdout"),
            stderr: text("stderr"),
        })
    }

    /// Runs a program there to its end.
    ///
    /// # Errors
    /// When it cannot be started, or exceeds its limit.
    pub fn run(&self, words: &str) -> Result<Finished> {
        self.finished(&json!({ "do": "run", "words": words }))
    }

    /// Starts a server there and waits until it listens on [`Machine::port`].
    ///
    /// # Errors
    /// When it ends before.
    pub fn start_server(&self, words: &str) -> Result<()> {
        self.ask(&json!({ "do": "start", "words": words, "port": self.port })).map(drop)
    }

    /// Waits for the end of the server.
    ///
    /// # Errors
    /// When it exceeds its limit.
    pub fn wait(&self) -> Result<Finished> {
        self.finished(&json!({ "do": "wait" }))
    }

    /// Ends the agent, and thereby the machine.
    ///
    /// # Errors
    /// When it has gone.
    pub fn end(&self) -> Result<()> {
        Ok(writeln!(self.line.borrow_mut().get_mut(), "{}", json!({ "do": "end" }))?)
    }
}
