//! A virtual machine that carries out requests of cases on this side: its end, and ours.
//!
//! The [`agent`] runs in the machine, gives it an RDMA device at its end of the cable, which is its
//! first network device, and runs programs; a [`Machine`] is the hold that a case has on it.

use std::fmt;
use std::fs;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use crate::pair;
use crate::process::{Finished, Running, Task};
use crate::vm::{self, DONE, package};

/// The agent's line once the machine's RDMA device is there.
const READY: &str = "the agent is ready";
/// Where the machine finds the TCP ports of the one that it runs on.
pub const HOST: &str = "10.0.2.2";
/// How long a program in the machine may take. As all limits here it is for hanging programs, and leaves
/// others many times their usual time, on a host whose processors are busy otherwise.
pub const LIMIT: Duration = Duration::from_secs(5 * 60);
/// The addresses on the cable of two machines, or of a card here and a machine.
pub const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 77, 0, 1), Ipv4Addr::new(10, 77, 0, 2)];
/// How long the agent may take to answer: as long as a program, and some more.
const ANSWER: Duration = Duration::from_secs(6 * 60);
/// How long the machine may take to come up.
const BOOT: Duration = Duration::from_secs(15 * 60);

/// How often a line is tried.
const LOOK: Duration = Duration::from_millis(5);
/// How long balboad may take to come up.
const START: Duration = Duration::from_secs(2 * 60);

/// Commands that give a machine its devices: the one on the cable, with its address there, and the one that leads to
/// the TCP ports of the machine that it runs on.
const RXE_ON_CABLE: &[&str] = &[
    "ip addr add ADDRESS/24 dev eth0",
    "ip link set eth0 up",
    // virtio-net tells its device of a new group later, by a worker, and until then the group's packets are dropped.
    "ip link set eth0 allmulticast on",
    "rdma link add rxe0 type rxe netdev eth0",
    "ip addr add 2001:db8::ADDRESS/64 dev eth0 nodad",
];
/// The network device is the card's, and has no address.
const CARD_ON_CABLE: &[&str] = &["ip link set eth0 up"];
const TO_HOST: &[&str] = &["ip addr add 10.0.2.15/24 dev eth1", "ip link set eth1 up"];

/// The device that a machine has at its end of the cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The kernel's soft-RoCE.
    Rxe,
    /// A software card that the kernel shows, of the package that users install.
    Card,
}

impl End {
    /// All there are.
    pub const ALL: [Self; 2] = [Self::Rxe, Self::Card];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rxe => "rxe",
            Self::Card => "card",
        }
    }

    /// The end of a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|end| end.name() == name)
    }

    /// The name of its RDMA device.
    pub const fn device(self) -> &'static str {
        match self {
            Self::Rxe => "rxe0",
            Self::Card => "balboa0",
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The pairs of machines that cases run in.
pub const PAIRS: [[End; 2]; 3] =
    [[End::Rxe, End::Rxe], [End::Card, End::Rxe], [End::Card, End::Card]];

/// An end of a cable of two Unix datagram sockets.
#[derive(Clone, Debug)]
pub struct Cable {
    /// The socket of this end.
    pub near: PathBuf,
    /// The socket of the other end.
    pub far: PathBuf,
}

impl Cable {
    /// The other end.
    #[must_use]
    pub fn turned(&self) -> Self {
        Self { near: self.far.clone(), far: self.near.clone() }
    }

    /// The end as an option of a card's `--port`.
    pub fn port(&self) -> String {
        format!("unix:{},{}", self.near.display(), self.far.display())
    }
}

/// Carries out requests in the machine, line by line from standard input, until that ends or an order ends it; the
/// address of its RDMA device is `address`, and a second network device leads to the TCP ports of the machine that it
/// runs on, if it has one.
///
/// # Errors
/// When the machine lacks something.
pub fn agent(end: End, address: Ipv4Addr) -> Result<()> {
    // MPI tells machines from each other by their names, and OpenMPI 5's launcher runs nothing on one that was
    // named to it otherwise than it names itself.
    fs::write("/proc/sys/kernel/hostname", address.to_string())?;
    match end {
        End::Rxe => rxe_on_cable(address)?,
        End::Card => {
            load_modules()?;
            run_all(CARD_ON_CABLE, address)?;
        }
    }
    if Path::new("/sys/class/net/eth1").exists() {
        run_all(TO_HOST, address)?;
    }
    let daemon = match end {
        End::Rxe => None,
        End::Card => Some(shadowed(address)?),
    };
    println!("{READY}");
    let mut server = None;
    for line in io::stdin().lines() {
        let order: Value = serde_json::from_str(&line?)?;
        if order["do"] == "end" {
            break;
        }
        let answer = match obey(&order, &mut server, daemon.as_ref()) {
            Ok(answer) => answer,
            Err(error) => json!({ "error": format!("{error:#}") }),
        };
        println!("{answer}");
    }
    Ok(())
}

fn load_modules() -> Result<()> {
    let modules = ["virtio_net", "ib_uverbs", "rdma_ucm", "crc32_generic", "rdma_rxe"];
    modules.into_iter().try_for_each(vm::load)
}

fn run_all(commands: &[&str], address: Ipv4Addr) -> Result<()> {
    for command in commands {
        vm::run(&command.replace("ADDRESS", &address.to_string()))?;
    }
    Ok(())
}

/// Sees to it that the kernel's soft-RoCE is on the machine's first network device.
///
/// # Errors
/// When the machine lacks something.
pub fn rxe_on_cable(address: Ipv4Addr) -> Result<()> {
    load_modules()?;
    let there = Path::new("/sys/class/infiniband").join(End::Rxe.device()).exists();
    if there {
        return Ok(());
    }
    // Without its link-local address, which it would make sure of for a second or two, the kernel asks
    // for no neighbour by IPv6.
    fs::write("/proc/sys/net/ipv6/conf/eth0/accept_dad", "0")?;
    run_all(RXE_ON_CABLE, address)
}

/// Starts the installed balboad with a card on the cable.
fn shadowed(address: Ipv4Addr) -> Result<Running> {
    package::install()?;
    let words = format!("--soft 1 --shadow --ip {address}/24 --port packet:eth0");
    let mut daemon = Task::new("balboad").words(&words).tidy().limit(START).start()?;
    daemon.wait_until("it was ready", |it| it.output().lines().any(|line| line == "ready"))?;
    Ok(daemon.unlimited())
}

/// When a server is ready for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listens {
    /// Once it listens on a TCP port.
    Tcp(u16),
    /// Once it listens for connections of the RDMA communication manager.
    Cm,
    /// Once its machine is in a group.
    Group(Ipv4Addr),
}

/// Obeys one order: to run a program, to start a server and wait until it listens, to wait for its end, to report
/// balboad's output.
fn obey(order: &Value, server: &mut Option<Running>, daemon: Option<&Running>) -> Result<Value> {
    let task = || {
        let words = order["words"].as_str().context("no words")?;
        anyhow::Ok(vm::task(words).limit(LIMIT))
    };
    let finished = match order["do"].as_str() {
        Some("run") => task()?.run()?,
        Some("start") => {
            // One that a failed case left behind ends here.
            drop(server.take());
            *server = Some(match (order["port"].as_u64(), order["group"].as_str()) {
                (Some(port), _) => pair::start_server(task()?, u16::try_from(port)?)?,
                (None, Some(group)) => start_member(task()?, group.parse()?)?,
                (None, None) => start_listener(task()?)?,
            });
            return Ok(json!({}));
        }
        Some("wait") => server.take().context("no server was started")?.wait()?,
        Some("log") => {
            let said = |running: &Running| format!("{}{}", running.output(), running.errors());
            let server = server.as_ref().map(said);
            return Ok(json!({ "server": server, "balboad": daemon.map(said) }));
        }
        _ => bail!("an order that nobody knows: {order}"),
    };
    let Finished { command, status, stdout, stderr } = finished;
    let status = status.into_raw();
    Ok(json!({ "command": command, "status": status, "stdout": stdout, "stderr": stderr }))
}

/// Starts a program and waits until the kernel's communication manager knows a listener.
pub fn start_listener(task: Task) -> Result<Running> {
    let mut running = task.start()?;
    let mut ticks_then = None;
    running.wait_until("it listened", |it| {
        let told = Task::new("rdma").words("resource show cm_id").run();
        if !told.is_ok_and(|it| it.stdout.contains("state LISTEN")) {
            return false;
        }
        // The kernel shows the state a little before the program gets the signal. A program that sleeps then, or has
        // run on since, has got it.
        let ticks = it.user_ticks();
        it.sleeps() || ticks > *ticks_then.get_or_insert(ticks)
    })?;
    Ok(running)
}

/// Starts a program and waits until the kernel is in a group.
fn start_member(task: Task, group: Ipv4Addr) -> Result<Running> {
    // As the kernel writes it: the bytes as they are, read as a number of this machine's.
    let group = format!("{:08X}", u32::from_ne_bytes(group.octets()));
    let mut running = task.start()?;
    running.wait_until("it had joined", |_| {
        fs::read_to_string("/proc/net/igmp").unwrap_or_default().contains(&group)
    })?;
    Ok(running)
}

/// Takes up the line to a machine, which does not boot before that.
///
/// # Errors
/// When no process holds its other end.
pub fn reach(line: &Path) -> Result<UnixStream> {
    let started = Instant::now();
    loop {
        match UnixStream::connect(line) {
            Ok(stream) => return Ok(stream),
            // It is bound a little before it is listened on.
            Err(error)
                if error.kind() == io::ErrorKind::ConnectionRefused
                    && started.elapsed() < START =>
            {
                std::thread::sleep(LOOK);
            }
            Err(error) => {
                return Err(error).with_context(|| format!("nobody is at {}", line.display()));
            }
        }
    }
}

/// A machine with an [`agent`].
#[derive(Debug)]
pub struct Machine {
    line: Mutex<BufReader<UnixStream>>,
}

impl Machine {
    /// Waits until the agent at the other end of a line is ready.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn new(stream: UnixStream) -> Result<Self> {
        stream.set_read_timeout(Some(BOOT))?;
        let mut line = BufReader::new(stream);
        let mut said = String::new();
        while !said.ends_with(&format!("{READY}\r\n")) && !said.ends_with(&format!("{READY}\n")) {
            let read = line.read_line(&mut said).with_context(|| format!("it said {said}"))?;
            ensure!(read > 0, "it ended: {said}");
        }
        line.get_ref().set_read_timeout(Some(ANSWER))?;
        Ok(Self { line: Mutex::new(line) })
    }

    fn line(&self) -> MutexGuard<'_, BufReader<UnixStream>> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, order: &Value) -> Result<Value> {
        let mut line = self.line();
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

    /// Starts a server there and waits until it listens.
    ///
    /// # Errors
    /// When it ends before.
    pub fn start_server(&self, words: &str, listens: Listens) -> Result<()> {
        let (port, group) = match listens {
            Listens::Tcp(port) => (Some(port), None),
            Listens::Cm => (None, None),
            Listens::Group(group) => (None, Some(group)),
        };
        let order = json!({ "do": "start", "words": words, "port": port, "group": group });
        self.ask(&order).map(drop)
    }

    /// Waits for the end of the server.
    ///
    /// # Errors
    /// When it exceeds its limit.
    pub fn wait(&self) -> Result<Finished> {
        self.finished(&json!({ "do": "wait" }))
    }

    /// The output of its server, if one runs, and of its balboad, if it has one.
    pub fn log(&self) -> String {
        let answer = self.ask(&json!({ "do": "log" }));
        let said = |who: &str| {
            let said = answer.as_ref().ok()?[who].as_str()?;
            Some(format!("--- its {who} said\n{said}"))
        };
        ["server", "balboad"].into_iter().filter_map(said).collect()
    }

    /// Ends the agent, and thereby the machine. The agent holds the line until the machine has received it: QEMU drops
    /// undelivered bytes of a line that no process holds.
    ///
    /// # Errors
    /// When it does not end.
    pub fn end(&self) -> Result<()> {
        let mut line = self.line();
        writeln!(line.get_mut(), "{}", json!({ "do": "end" }))?;
        let mut said = String::new();
        loop {
            let read = line.read_line(&mut said).context("the machine does not end")?;
            if read == 0 || said.trim_end() == DONE {
                return Ok(());
            }
            said.clear();
        }
    }
}
