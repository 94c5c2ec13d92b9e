//! Two machines: network namespaces of the case's user, joined by a cable of the kernel's, each with addresses of its
//! own. A program in one reaches the other by its addresses alone.

use std::cell::RefCell;
use std::fs::OpenOptions;
use std::io::Write as _;

use anyhow::{Context as _, Result, ensure};

use crate::pair::{Both, free_port, run_pair_in};
use crate::process::{Running, Task};
use crate::setting::{Daemon, Setting};

/// The machines' IPv4 addresses.
pub const IPV4: [&str; 2] = ["10.99.0.1", "10.99.0.2"];
/// Those of IPv6.
pub const IPV6: [&str; 2] = ["fd99::1", "fd99::2"];
/// The name of the device by which each has them.
pub const WIRE: &str = "wire";

/// The script that holds the namespaces: the user's, the first machine's network in it, and a child with the second's.
/// It joins them by a cable, and then executes commands line by line, for no other process has the right to.
const HOLDER: &str = r#"
ip link set lo up
setpriv --pdeathsig KILL unshare --net sh -c 'ip link set lo up; exec sleep 10000' & other=$!
while [ "$(readlink /proc/$other/ns/net)" = "$(readlink /proc/$$/ns/net)" ]; do sleep 0.01; done
rm -f orders && mkfifo orders && exec 3<>orders
echo "second $other"
while read -r order <&3; do
    if sh -c "$order"; then echo "done"; else echo "failed: $order"; fi
done
"#;

/// Two machines.
#[derive(Debug)]
pub struct Machines<'a> {
    setting: &'a Setting,
    holder: RefCell<Running>,
    /// A process on each.
    processes: [i32; 2],
}

impl<'a> Machines<'a> {
    /// Two machines whose devices have an MTU.
    ///
    /// # Errors
    /// When this user may have none.
    pub fn new(setting: &'a Setting, mtu: u32) -> Result<Self> {
        // Not as root: there are programs that refuse to be run by root.
        let words = "--user --map-current-user --keep-caps --net sh -c";
        let mut holder = setting.task("unshare").words(words).arg(HOLDER).tidy().start()?;
        let second =
            |text: &str| text.lines().find_map(|line| line.strip_prefix("second ")?.parse().ok());
        holder.wait_until("its networks were there", |it| second(&it.output()).is_some())?;
        let other: i32 = second(&holder.output()).context("the other machine")?;
        let processes = [holder.pid(), other];
        let machines = Self { setting, holder: RefCell::new(holder.unlimited()), processes };
        machines.ip(
            0,
            &format!(
                "link add {WIRE} mtu {mtu} type veth peer name {WIRE} mtu {mtu} netns {other}"
            ),
        )?;
        for side in 0..2 {
            // A link-local address would come some time later.
            machines.ip(side, &format!("link set {WIRE} addrgenmode none"))?;
            machines.ip(side, &format!("addr add {}/24 dev {WIRE}", IPV4[side]))?;
            machines.ip(side, &format!("addr add {}/64 dev {WIRE} nodad", IPV6[side]))?;
            machines.ip(side, &format!("link set {WIRE} up"))?;
        }
        Ok(machines)
    }

    /// Runs `ip` on one of them.
    ///
    /// # Errors
    /// When it fails.
    pub fn ip(&self, side: usize, words: &str) -> Result<()> {
        self.tool(side, &format!("ip {words}"))
    }

    /// Runs a tool of its administrator's on one of them.
    ///
    /// # Errors
    /// When it fails.
    pub fn tool(&self, side: usize, command: &str) -> Result<()> {
        let order = match side {
            0 => command.to_owned(),
            _ => format!("nsenter --net --target {} {command}", self.processes[1]),
        };
        let mut holder = self.holder.borrow_mut();
        let before = holder.output().lines().count();
        let said = |it: &Running| {
            let output = it.output();
            let line = output
                .lines()
                .skip(before)
                .find(|line| *line == "done" || line.starts_with("failed: "));
            line.map(str::to_owned)
        };
        let mut orders =
            OpenOptions::new().write(true).open(self.setting.directory().join("orders"))?;
        writeln!(orders, "{order}")?;
        holder.wait_until("the order was done", |it| said(it).is_some())?;
        ensure!(said(&holder).as_deref() == Some("done"), "{order}: {}", holder.errors());
        Ok(())
    }

    /// Waits until the kernel calls both devices running, which it does of a new one up to a second after it carries
    /// packets. There are programs that take no other.
    ///
    /// # Errors
    /// When it cannot be asked.
    pub fn until_running(&self) -> Result<()> {
        let until = format!("until ip link show {WIRE} | grep -q 'state UP'; do sleep 0.01; done");
        (0..2).try_for_each(|side| self.tool(side, &format!("sh -c \"{until}\"")))
    }

    /// A program that runs on one of them.
    pub fn task(&self, side: usize, program: &Task) -> Task {
        let words =
            format!("--user --net --preserve-credentials --target {}", self.processes[side]);
        self.setting.task("nsenter").words(&words).args(program.command_line())
    }

    /// Starts balboad on one of them.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn balboad(&self, side: usize, arguments: &str) -> Result<Daemon<'a>> {
        let state_dir = self.setting.directory().join(format!("machine{side}"));
        self.setting.balboad_within(&state_dir, arguments, |task| self.task(side, task))
    }

    /// The same on both.
    ///
    /// # Errors
    /// When one does not come up.
    pub fn balboads(&self, arguments: &str) -> Result<[Daemon<'a>; 2]> {
        Ok([self.balboad(0, arguments)?, self.balboad(1, arguments)?])
    }

    /// Runs a command line on the first as server and on the second as client, which is told the server's address.
    ///
    /// # Errors
    /// When one of them fails.
    pub fn run_between(
        &self,
        daemons: &[Daemon<'_>; 2],
        command: &str,
        address: &str,
    ) -> Result<Both> {
        let port = free_port()?;
        let side = |number: usize| {
            let task = daemons[number].run(command).words(&format!("-d balboa0 -p {port}"));
            self.task(number, &task)
        };
        let both = run_pair_in(&self.process(0), side(0), side(1).arg(address), port);
        both.map_err(|error| {
            let [first, second] = [&daemons[0], &daemons[1]].map(counted);
            error.context(format!("the machines' cards have counted {first} and {second}"))
        })
    }

    /// A process on one of them.
    pub fn process(&self, side: usize) -> String {
        self.processes[side].to_string()
    }

    /// A program under `balboa run` on one of them.
    pub fn run(&self, side: usize, daemon: &Daemon<'_>, command: &str) -> Task {
        self.task(side, &daemon.run(command))
    }
}

/// The counters of a balboad's first card, as far as it can be asked.
fn counted(daemon: &Daemon<'_>) -> serde_json::Value {
    let mut counters = match daemon.status() {
        Ok(mut status) => status["cards"][0]["counters"].take(),
        Err(error) => return error.to_string().into(),
    };
    if let Some(counters) = counters.as_object_mut() {
        counters.retain(|_, count| *count != 0);
    }
    counters
}
