//! perftest on RDMA devices, and on our cards `verbs-bench`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use harness::machines::{IPV4, Machines};
use harness::pair::{free_port, run_between, run_pair, start_server};
use harness::process::{Finished, Task};
use harness::setting::{Daemon, Setting};
use harness::table::table;

/// Bytes of a MiB, which perftest calls MB.
const MIB: f64 = 1_048_576.0;
/// How long any one run may take.
const LIMIT: Duration = Duration::from_secs(120);
/// Programs that make connections at once.
const CONNECTING: usize = 8;
/// How often a program is run that could not tell how fast its clock goes.
const TRIES: usize = 5;
/// perftest's own depth where a run asks for no other.
const DEPTH: u32 = 128;

/// Where perftest runs.
#[derive(Clone, Copy, Debug)]
pub enum Devices<'a> {
    /// From the second card of a balboad to the first.
    Cards(&'a Daemon<'a>),
    /// From the card of the second balboad to that of the first, which a cable joins.
    Cabled(&'a [Daemon<'a>; 2]),
    /// From the card of the second of two machines to that of the first.
    Machines(&'a Machines<'a>, &'a [Daemon<'a>; 2]),
    /// From a device of the kernel's to itself.
    Kernels(&'a str),
}

impl Devices<'_> {
    /// The first row of figures that a command line prints, run as a pair, of which one cannot be zero.
    ///
    /// perftest measures how fast its clock goes before it measures anything else, and where another
    /// program took the processor meanwhile, it knows no time, and shows zeros: then it is run again.
    fn perftest(self, command: &str, telling: usize) -> Result<Vec<f64>> {
        let tells = |row: &Vec<f64>| row.get(telling).is_none_or(|it| it.is_finite() && *it > 0.0);
        for _ in 1..TRIES {
            let row = self.perftest_once(command)?;
            if tells(&row) {
                return Ok(row);
            }
        }
        let row = self.perftest_once(command)?;
        ensure!(tells(&row), "{command}: the machine is too busy to measure time on");
        Ok(row)
    }

    fn perftest_once(self, command: &str) -> Result<Vec<f64>> {
        let both = match self {
            Self::Cards(daemon) => run_between((daemon, 0), (daemon, 1), command)?,
            Self::Cabled([first, second]) => run_between((first, 0), (second, 0), command)?,
            Self::Machines(machines, daemons) => machines.run_between(daemons, command, IPV4[0])?,
            Self::Kernels(device) => {
                let (program, words) = command.split_once(' ').context("no arguments")?;
                let port = free_port()?;
                let side = Task::new(program).words(words);
                let side = side.words(&format!("-x 1 -d {device} -p {port}")).limit(LIMIT);
                run_pair(side.clone(), side.arg("127.0.0.1"), port)?
            }
        };
        let rows = table(&both.client)?;
        rows.into_iter().next().with_context(|| format!("no figures: {}", both.client))
    }
}

/// Starts a balboad whose cable loses 1 % of all frames.
///
/// # Errors
/// When it does not come up.
pub fn lossy(setting: &Setting) -> Result<Daemon<'_>> {
    setting.balboad_in(&setting.directory().join("lossy"), "--soft 2 --fault loss=1%")
}

/// The copies of a card's thread to be repeated, and the balboad with which memory is registered.
#[derive(Clone, Copy, Debug)]
pub enum Copying<'a> {
    /// Those of a balboad's two cards, which have one thread.
    OneThread(&'a Daemon<'a>),
    /// Those of two balboads' cards, of which each has a thread; one of the two.
    ThreadEach(&'a Daemon<'a>),
    /// The same, on the first of two machines.
    ThreadEachOf(&'a Machines<'a>, &'a Daemon<'a>),
}

/// The carrier of messages between threads that spin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// The two cards of a balboad.
    Cards,
    /// TCP over the loopback interface.
    Tcp,
}

/// A bandwidth run of perftest.
#[derive(Clone, Copy, Debug)]
pub struct Bandwidth {
    kind: &'static str,
    size: u64,
    seconds: u32,
    queue_pairs: u32,
    depth: u32,
    messages: Option<u32>,
    option: &'static str,
}

/// The rates of a bandwidth run.
#[derive(Clone, Copy, Debug)]
pub struct Moved {
    /// 10^6 bytes per second.
    pub megabytes: f64,
    /// 10^6 messages per second.
    pub messages: f64,
}

impl Bandwidth {
    /// One of "write", "read" and "send", with one QP of perftest's usual depth.
    pub fn of(kind: &'static str, size: u64, seconds: u32) -> Self {
        Self { kind, size, seconds, queue_pairs: 1, depth: DEPTH, messages: None, option: "" }
    }

    /// With so many QPs.
    pub fn queue_pairs(self, queue_pairs: u32) -> Self {
        Self { queue_pairs, ..self }
    }

    /// With so many work requests outstanding on each QP.
    pub fn depth(self, depth: u32) -> Self {
        Self { depth, ..self }
    }

    /// With so many messages, however long they take.
    pub fn messages(self, messages: u32) -> Self {
        Self { messages: Some(messages), ..self }
    }

    /// With another option of perftest's.
    pub fn option(self, option: &'static str) -> Self {
        Self { option, ..self }
    }

    /// Runs it.
    ///
    /// # Errors
    /// When perftest fails, or says nothing.
    pub fn run(self, devices: Devices<'_>) -> Result<Moved> {
        let Self { kind, size, seconds, queue_pairs, depth, messages, option } = self;
        let length = messages
            .map_or_else(|| format!("-D {seconds} -f 0"), |messages| format!("-n {messages}"));
        let command =
            format!("ib_{kind}_bw -s {size} {length} -q {queue_pairs} -t {depth} -F {option}");
        let row = devices.perftest(&command, 3)?;
        let column = |index: usize| {
            row.get(index).copied().with_context(|| format!("no column {index}: {command}"))
        };
        Ok(Moved { megabytes: column(3)? * MIB / 1e6, messages: column(4)? })
    }
}

/// One-way latency in µs.
#[derive(Clone, Copy, Debug)]
pub struct Latency {
    /// Half of all exchanges were faster.
    pub median: f64,
    /// 99 % of all exchanges were faster.
    pub p99: f64,
}

/// Latency of a WRITE that the other side polls for.
///
/// # Errors
/// When perftest fails, or says nothing.
pub fn latency(devices: Devices<'_>, size: u64, exchanges: u32) -> Result<Latency> {
    latency_of(devices, &format!("ib_write_lat -s {size} -n {exchanges} -F"))
}

/// Latency of a SEND of 2 bytes between programs that sleep until a completion event comes.
///
/// # Errors
/// When perftest fails, or says nothing.
pub fn latency_by_events(devices: Devices<'_>, exchanges: u32) -> Result<Latency> {
    latency_of(devices, &format!("ib_send_lat -e -s 2 -n {exchanges} -F"))
}

fn latency_of(devices: Devices<'_>, command: &str) -> Result<Latency> {
    let row = devices.perftest(command, 4)?;
    match (row.get(4), row.get(7)) {
        (Some(&median), Some(&p99)) => Ok(Latency { median, p99 }),
        _ => bail!("{command}: too few columns in {row:?}"),
    }
}

/// Programs of our own, where cargo put them.
#[derive(Debug)]
pub struct Programs {
    verbs_bench: PathBuf,
    verbs_mortal: PathBuf,
    /// A directory for files that programs leave behind.
    pub scratch: PathBuf,
}

impl Programs {
    /// Finds them.
    pub fn new(built: &Path, scratch: &Path) -> Self {
        Self {
            verbs_bench: built.join("verbs-bench"),
            verbs_mortal: built.join("verbs-mortal"),
            scratch: scratch.to_owned(),
        }
    }

    /// `verbs-bench` with arguments, behind words that run it.
    pub fn verbs_bench(&self, daemon: &Daemon<'_>, under: &str, arguments: &str) -> Task {
        daemon.run(under).arg(&self.verbs_bench).words(arguments).limit(LIMIT)
    }

    /// Milliseconds that ibv_reg_mr of 1 GiB takes.
    ///
    /// # Errors
    /// When it fails.
    pub fn registration(&self, daemon: &Daemon<'_>) -> Result<f64> {
        number(&self.verbs_bench(daemon, "", "register --bytes 1073741824").run()?)
    }

    /// 10^6 bytes per second of a loop of nothing but copies, as cards make them of messages of a size between that
    /// many buffers on each side.
    ///
    /// # Errors
    /// When it fails.
    pub fn copy_limit(
        &self,
        cards: Copying<'_>,
        size: u64,
        buffers: u32,
        seconds: u32,
    ) -> Result<f64> {
        let arguments = format!("copy --size {size} --buffers {buffers} --seconds {seconds}");
        // Of one card each, so that both regions are registered there.
        let apart = format!("{arguments} --apart --to balboa0");
        let task = match cards {
            Copying::OneThread(daemon) => self.verbs_bench(daemon, "", &arguments),
            Copying::ThreadEach(daemon) => self.verbs_bench(daemon, "", &apart),
            Copying::ThreadEachOf(machines, daemon) => {
                machines.task(0, &self.verbs_bench(daemon, "", &apart)).limit(LIMIT)
            }
        };
        number(&task.run()?)
    }

    /// Requests of 4 KiB that two threads exchange in a second, which spin on a core each, with so many under way.
    ///
    /// They are of another session than balboad, as programs are of a service's, and so share the cores with it by the
    /// kernel's groups.
    ///
    /// # Errors
    /// When they fail.
    pub fn spinners(
        &self,
        daemon: &Daemon<'_>,
        by: Carrier,
        depth: u32,
        seconds: u32,
    ) -> Result<f64> {
        let tcp = if by == Carrier::Tcp { " --tcp" } else { "" };
        let arguments = format!("spin --size 4096 --depth {depth} --seconds {seconds}{tcp}");
        number(&self.verbs_bench(daemon, "setsid --wait", &arguments).run()?)
    }

    /// Pairs of QPs made and connected per second.
    ///
    /// # Errors
    /// When it fails.
    pub fn connects(&self, devices: Devices<'_>, seconds: u32) -> Result<f64> {
        let arguments = format!("connect --seconds {seconds}");
        let task = match devices {
            Devices::Cards(daemon) => self.verbs_bench(daemon, "", &arguments),
            Devices::Cabled(_) | Devices::Machines(..) => {
                bail!("one program connects QPs on cards of one balboad only")
            }
            Devices::Kernels(device) => {
                let both = format!("{arguments} --from {device} --to {device}");
                Task::new(&self.verbs_bench).words(&both).limit(LIMIT)
            }
        };
        number(&task.run()?)
    }

    /// [`Self::connects`] beside two programs that sleep until events come, each for the other's message.
    ///
    /// # Errors
    /// When any of them fails.
    pub fn connects_beside_events(&self, daemon: &Daemon<'_>, seconds: u32) -> Result<f64> {
        let port = free_port()?;
        let side = |card| {
            // By lines, although into a pipe: the caller waits for its output while it runs.
            let endless = format!(
                "stdbuf -oL ibv_rc_pingpong -e -g 1 -n 2000000000 -d balboa{card} -p {port}"
            );
            daemon.run(&endless).limit(LIMIT)
        };
        // They are killed when they go out of scope.
        let mut server = start_server(side(0), port)?;
        let mut client = side(1).arg("127.0.0.1").start()?;
        for program in [&mut server, &mut client] {
            program.wait_until("it was connected", |it| it.output().contains("remote address"))?;
        }
        self.connects(Devices::Cards(daemon), seconds)
    }

    /// [`latency_by_events`] beside a client that makes and destroys everything in a loop.
    ///
    /// # Errors
    /// When either fails.
    pub fn latency_beside_churn(&self, daemon: &Daemon<'_>, exchanges: u32) -> Result<Latency> {
        // The file that would end it never comes: it is killed when it goes out of scope.
        let never = self.scratch.join("never");
        let churn = daemon.run("").arg(&self.verbs_mortal).arg("churn").arg(never).limit(LIMIT);
        let mut churn = churn.start()?;
        churn.wait_until("it was at work", |it| it.output().contains("running"))?;
        latency_by_events(Devices::Cards(daemon), exchanges)
    }

    /// [`latency`] of programs that balboad relays, because others have the cards' doorbell pages.
    ///
    /// # Errors
    /// When any of them fails.
    pub fn latency_relayed(&self, daemon: &Daemon<'_>, exchanges: u32) -> Result<Latency> {
        let _holder = daemon.take_pages()?;
        latency(Devices::Cards(daemon), 2, exchanges)
    }

    /// Pairs of QPs made and connected per second by some programs together.
    ///
    /// # Errors
    /// When any of them fails.
    pub fn connects_of_many(&self, daemon: &Daemon<'_>, seconds: u32) -> Result<f64> {
        let start =
            |_| self.verbs_bench(daemon, "", &format!("connect --seconds {seconds}")).start();
        let programs = (0..CONNECTING).map(start).collect::<Result<Vec<_>>>()?;
        programs.into_iter().map(|program| number(&program.wait()?)).sum()
    }

    /// Per cent of one core that balboad uses while two programs hold connected QPs and do nothing.
    ///
    /// # Errors
    /// When they fail, or the kernel does not say.
    pub fn idle_cpu(&self, daemon: &Daemon<'_>, watched: Duration) -> Result<f64> {
        let start = || -> Result<_> {
            let mut client = self.verbs_bench(daemon, "", "idle").start()?;
            client.wait_until("it was ready", |it| it.output().contains("ready"))?;
            Ok(client)
        };
        let _clients = (start()?, start()?);
        // The work of their start shall be over.
        std::thread::sleep(Duration::from_millis(500));
        let (before, begin) = (cpu_time(daemon.pid())?, Instant::now());
        std::thread::sleep(watched);
        let used = cpu_time(daemon.pid())?.saturating_sub(before);
        Ok(100.0 * used.as_secs_f64() / begin.elapsed().as_secs_f64())
    }
}

/// The number that a program answers.
fn number(finished: &Finished) -> Result<f64> {
    let finished = finished.clone().success()?;
    finished.stdout.trim().parse().with_context(|| format!("no number: {finished}"))
}

/// Time that all threads of a process have run.
fn cpu_time(pid: i32) -> Result<Duration> {
    let mut nanoseconds = 0u64;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let file = thread?.path().join("schedstat");
        let text = fs::read_to_string(&file).with_context(|| format!("no {}", file.display()))?;
        let ran = text.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
        nanoseconds += ran.with_context(|| format!("{} says {text:?}", file.display()))?;
    }
    Ok(Duration::from_nanos(nanoseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_that_we_ran_is_known_and_grows() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let before = cpu_time(pid).unwrap();
        while cpu_time(pid).unwrap() <= before {}
    }
}
