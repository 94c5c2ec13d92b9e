//! A virtual machine: booted, watched until it says that it is done, and never left behind.

use std::ffi::OsString;
use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::Ipv4Addr;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use harness::agent::{ADDRESSES, Cable, End};
use harness::process::{Running, Task};
use harness::setting::SHARES;
use harness::vm::{ASK, DONE, Hardware, MTU};

use super::cards::{Cards, Served};
use super::initramfs;
use super::linux::{AT_BOOT, Linux};
use super::qemu::Qemu;

/// The time limit of all machines that a run boots of the same parts: some twenty times their need on a host with
/// nothing else to do, so that only a hang meets it.
pub const LIMIT: Duration = Duration::from_secs(2 * 60 * 60);
/// How long a machine may take to end once it was told to.
pub const END: Duration = Duration::from_secs(5 * 60);
/// Lines of the console that a failure shows.
const SHOWN_LINES: usize = 40;
/// The parameters of every kernel. Without `no_timer_check` it counts timer interrupts while it spins, and panics where
/// a busy host let none through.
const KERNEL_PARAMETERS: &str =
    "console=ttyS0 panic=-1 quiet net.ifnames=0 intel_iommu=on no_timer_check";
/// The guest's memory, MiB.
const MEMORY: u32 = 1024;

/// The parts of a machine.
#[derive(Clone, Debug)]
pub struct Parts {
    /// The machine.
    pub qemu: Qemu,
    /// The kernel.
    pub linux: Linux,
    /// The busybox of the initial file system.
    pub busybox: PathBuf,
    /// The directory with the programs under test.
    pub built: PathBuf,
    /// When the last machine that is made of them has to have ended.
    pub until: Instant,
}

/// A machine that has been laid out: its files are in a directory of its own.
#[derive(Debug)]
pub struct Machine<'a> {
    parts: &'a Parts,
    hardware: Hardware,
    directory: &'a Path,
    cards: Cards,
}

impl<'a> Machine<'a> {
    /// Lays out a machine; its job, a shell script, comes with each boot.
    ///
    /// # Errors
    /// When the files cannot be written.
    pub fn new(parts: &'a Parts, hardware: Hardware, directory: &'a Path) -> Result<Self> {
        let modules = parts.linux.modules()?;
        fs::write(directory.join("initramfs"), initramfs::archive(&parts.busybox, &modules)?)?;
        fs::create_dir(directory.join("job"))?;
        let cards = Cards::new(directory, &parts.built, hardware);
        Ok(Self { parts, hardware, directory, cards })
    }

    fn give(&self, job: &str) -> Result<()> {
        Ok(fs::write(self.directory.join("job/job.sh"), job)?)
    }

    /// The cards that it has.
    pub fn cards(&self) -> &Cards {
        &self.cards
    }

    /// QEMU and the arguments that all machines have: two processors without help of the host's, the host's root and
    /// two directories as shares, and no default devices. The cards are to be added, for a machine that serves has
    /// none.
    fn task(&self) -> Task {
        let file = |name: &str| self.directory.join(name);
        let mut task = self
            .parts
            .qemu
            .task()
            .words("-M q35 -accel tcg,thread=multi -cpu max -smp 2")
            .words("-nodefaults -nic none -vga none -display none -no-reboot")
            .words(&format!(
                "-m {MEMORY}M -object memory-backend-memfd,id=mem,size={MEMORY}M,share=on"
            ))
            .words("-machine memory-backend=mem -object rng-random,id=rng,filename=/dev/urandom")
            .words("-device virtio-rng-pci,rng=rng")
            .arg("-kernel")
            .arg(self.parts.linux.image())
            .arg("-initrd")
            .arg(file("initramfs"))
            .arg("-append")
            .arg(KERNEL_PARAMETERS);
        // The IOMMU comes before the devices behind it.
        task = match self.hardware {
            Hardware::Plain => task,
            Hardware::IntelIommu
            | Hardware::IntelIommuRxe
            | Hardware::Published
            | Hardware::Fpga => task.words("-device intel-iommu,intremap=on,caching-mode=on"),
            Hardware::VirtioIommu => task.words("-device virtio-iommu-pci"),
        };
        for (tag, path) in
            [("hostroot", Path::new("/")), ("built", &self.parts.built), ("job", &file("job"))]
        {
            let share =
                format!("local,id={tag},security_model=none,readonly=on,multidevs=remap,path=");
            let share = option(&share, path);
            let device = format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}");
            task = task.arg("-fsdev").arg(share).arg("-device").arg(device);
        }
        task
    }

    /// Adds the console, which goes to a file, and the line of the job, a socket, with options of QEMU's; answers both
    /// with the arguments.
    fn with_job(&self, task: Task, job: &str, options: &str) -> Result<(Task, PathBuf, PathBuf)> {
        self.give(job)?;
        let (console, line) = (self.directory.join("console"), self.directory.join("job.sock"));
        // An earlier boot's.
        let _ = fs::remove_file(&line);
        let task = task
            .arg("-serial")
            .arg(option("file:", &console))
            .arg("-chardev")
            .arg(option(&format!("socket,id=job,{options}path="), &line))
            .words("-serial chardev:job")
            .limit(self.parts.until.saturating_duration_since(Instant::now()));
        Ok((task, line, console))
    }

    /// Boots the machine with its cards, and hands each line that `job` writes to `line`, until it has
    /// ended.
    ///
    /// # Errors
    /// When the machine does not come up, ends before its job, or runs until [`Parts::until`]; with
    /// the end of its console's output.
    pub fn run(&self, job: &str, cards: &mut Served, line: impl FnMut(&str)) -> Result<()> {
        let mut task = self.cards.plugged_into(self.task());
        if self.hardware == Hardware::IntelIommuRxe {
            task = on_cable(task, &self.cards.cable().turned(), ADDRESSES[1]);
        }
        let (task, line_of_job, console) = self.with_job(task, job, "")?;
        let listener = UnixListener::bind(line_of_job)?;
        listener.set_nonblocking(true)?;
        let mut results = Results { listener, stream: None, pending: Vec::new(), cards, line };
        let outcome = task.start().and_then(|running| results.until_done(running));
        let said = cards.log();
        outcome
            .map_err(|error| anyhow!("{}\n--- its cards\n{said}", with_console(&error, &console)))
    }

    /// Starts the machine, which boots once the line to its agent is taken up, with its first network device, of which the agent's address is `address`, at
    /// an end of a cable and, where a port is named, a second one over which that TCP port of this
    /// machine leads to the same one there.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn serve(
        &self,
        job: &str,
        cable: &Cable,
        address: Ipv4Addr,
        port: Option<u16>,
    ) -> Result<Booting> {
        let mut task = on_cable(self.task(), cable, address);
        if let Some(port) = port {
            task = task
                .arg("-netdev")
                .arg(format!("user,id=tcp,ipv6=off,hostfwd=tcp:127.0.0.1:{port}-:{port}"))
                .words("-device virtio-net-pci,netdev=tcp,romfile=,addr=9");
        }
        let (task, line, console) = self.with_job(task, job, "server=on,wait=on,")?;
        let mut running = task.start()?;
        let there = running.wait_until("its line was there", |_| line.exists());
        there.map_err(|error| with_console(&error, &console))?;
        Ok(Booting { running, line, console })
    }

    /// Boots the machine with its first console on this terminal, until it is switched off.
    ///
    /// # Errors
    /// When QEMU cannot be started.
    pub fn interact(&self) -> Result<ExitStatus> {
        self.give(&shell_job())?;
        let _cards = self.cards.serve()?;
        let task = self.cards.plugged_into(self.task()).words("-serial mon:stdio");
        let mut words = task.command_line();
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).status().context("QEMU cannot be started")
    }
}

/// Adds to QEMU's arguments a network device at an end of a cable, which is to have that address.
fn on_cable(task: Task, cable: &Cable, address: Ipv4Addr) -> Task {
    let mut ends = option("dgram,id=cable,local.type=unix,local.path=", &cable.near);
    ends.push(option(",remote.type=unix,remote.path=", &cable.far));
    // QEMU gives every machine's first device the same.
    let [a, b, c, d] = address.octets();
    let mac = format!("52:54:{a:02x}:{b:02x}:{c:02x}:{d:02x}");
    let device = format!("virtio-net-pci,netdev=cable,mac={mac},host_mtu={MTU},romfile=,addr=8");
    task.arg("-netdev").arg(ends).arg("-device").arg(device)
}

/// A machine that boots once the line to its agent is taken up.
#[derive(Debug)]
pub struct Booting {
    running: Running,
    line: PathBuf,
    console: PathBuf,
}

impl Booting {
    /// The line to its agent, a Unix socket.
    pub fn line(&self) -> &Path {
        &self.line
    }

    /// The outcome of cases that end the agent, once the machine has ended as well.
    ///
    /// # Errors
    /// When the cases could not be run, or the machine does not end well; with the end of its console's output.
    pub fn ended<T>(self, outcome: Result<T>) -> Result<T> {
        let Self { running, console, .. } = self;
        let ended = outcome.and_then(|of_cases| {
            running.limited(END).wait()?.success()?;
            Ok(of_cases)
        });
        ended.map_err(|error| with_console(&error, &console))
    }
}

/// An error, and the last lines of a machine's console.
fn with_console(error: &anyhow::Error, console: &Path) -> anyhow::Error {
    let text = fs::read(console).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let last = lines.get(lines.len().saturating_sub(SHOWN_LINES)..).unwrap_or_default();
    anyhow!("{error:#}\n--- the end of its console\n{}", last.join("\n"))
}

/// An option of QEMU's that ends with a path, in which it wants commas twice.
fn option(name: &str, path: &Path) -> OsString {
    let mut option = name.as_bytes().to_vec();
    for byte in path.as_os_str().as_bytes() {
        option.push(*byte);
        if *byte == b',' {
            option.push(b',');
        }
    }
    OsString::from_vec(option)
}

/// The host's end of the line that a job writes to.
struct Results<'a, F> {
    listener: UnixListener,
    stream: Option<UnixStream>,
    pending: Vec<u8>,
    cards: &'a mut Served,
    line: F,
}

impl<F: FnMut(&str)> Results<'_, F> {
    fn until_done(&mut self, mut running: Running) -> Result<()> {
        let mut broken = None;
        running.wait_until("its job was done", |_| match self.look() {
            Ok(done) => done,
            Err(error) => {
                broken = Some(error);
                true
            }
        })?;
        if let Some(error) = broken {
            // Most likely because QEMU ended, which says why.
            let ended = running.limited(END).wait()?;
            return Err(error).with_context(|| format!("the line to the machine broke; {ended}"));
        }
        // Only now may it end: its output has arrived.
        if let Some(stream) = &mut self.stream {
            stream.write_all(b"bye\n")?;
        }
        running.limited(END).wait()?.success().map(drop)
    }

    /// Takes the output that has come; true once the job has ended.
    fn look(&mut self) -> std::io::Result<bool> {
        if self.stream.is_none() {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(true)?;
                    self.stream = Some(stream);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        let Some(stream) = &mut self.stream else { return Ok(false) };
        let mut room = [0; 4096];
        loop {
            match stream.read(&mut room) {
                // QEMU has gone; the caller that waits for it sees its end.
                Ok(0) => return Ok(false),
                Ok(read) => self.pending.extend(room.get(..read).unwrap_or_default()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
            while let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                let line = String::from_utf8_lossy(&line);
                let line = line.trim_end();
                if line == DONE {
                    return Ok(true);
                }
                match line.strip_prefix(ASK) {
                    Some(asked) => writeln!(stream, "{}", self.cards.answer(asked))?,
                    None => (self.line)(line),
                }
            }
        }
    }
}

/// The script of a job that carries out requests, with a device and its address on the cable, for [`Machine::serve`].
pub fn agent_job(end: End, address: Ipv4Addr) -> String {
    job_with(&format!("{SHARES}/built/cases agent --end {end} --address {address}"), "")
}

/// The script of a job that runs `command` and reports its output.
pub fn job(command: &str) -> String {
    job_with(&format!("{command} </dev/null"), "read -r farewell")
}

fn job_with(command: &str, last: &str) -> String {
    format!(
        "\
#!/bin/sh
exec </dev/ttyS1 >/dev/ttyS1 2>&1
stty raw -echo
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ip link set lo up
ulimit -l unlimited
cd /tmp
{command}
echo
echo {DONE}
{last}
echo b > /proc/sysrq-trigger
sleep 60
"
    )
}

/// The script of an interactive machine.
fn shell_job() -> String {
    let modules = AT_BOOT.join(" ");
    format!(
        "\
#!/bin/sh
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:{SHARES}/built
export HOME=/tmp TERM=linux
ip link set lo up
cd /tmp
echo
echo 'The host'\\''s root, read-only; /tmp, /run and /var/tmp are memory. Programs: {SHARES}/built'
echo 'Loaded: {modules}. Others: cases load NAME. Leave with exit; Ctrl-A X kills the machine.'
setsid --ctty --wait /bin/bash --norc -i </dev/ttyS0 >/dev/ttyS0 2>&1
echo b > /proc/sysrq-trigger
sleep 60
"
    )
}
