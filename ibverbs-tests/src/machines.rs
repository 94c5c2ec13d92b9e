//! Two machines: network namespaces of the case's user, joined by a cable of the kernel's, each with addresses of its
//! own. What runs in one reaches the other by its addresses alone.

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::pair::{Both, free_port, run_pair_in};
use crate::process::{Finished, Running, Task};
use crate::setting::{Daemon, Setting};

/// The machines' addresses.
pub(crate) const IPV4: [&str; 2] = ["10.99.0.1", "10.99.0.2"];
pub(crate) const IPV6: [&str; 2] = ["fd99::1", "fd99::2"];
/// The name of the device by which each has them.
pub(crate) const WIRE: &str = "wire";

/// Two machines.
pub(crate) struct Machines<'a> {
    setting: &'a Setting,
    /// Processes that hold the namespaces. The first holds that of users, too.
    holders: [Running; 2],
}

impl<'a> Machines<'a> {
    /// Two machines whose devices have an MTU.
    ///
    /// # Errors
    /// When this user may have none.
    pub(crate) fn new(setting: &'a Setting, mtu: u32) -> Result<Self> {
        const STAYS: &str = "ip link set lo up && echo there && exec sleep 10000";
        let hold = |task: Task| -> Result<Running> {
            let mut holder = task.start()?;
            holder.wait_until("its network was there", |it| it.output().contains("there"))?;
            Ok(holder)
        };
        // Not as root: there are programs that refuse to be run by root.
        let words = "--user --map-current-user --keep-caps --net sh -c";
        let first = hold(setting.task("unshare").words(words).arg(STAYS))?;
        let words =
            format!("--user --preserve-credentials --target {} unshare --net sh -c", first.pid());
        let second = hold(setting.task("nsenter").words(&words).arg(STAYS))?;
        let machines = Self { setting, holders: [first, second] };
        let other = machines.holders[1].pid();
        machines.ip(
            0,
            &format!(
                "link add {WIRE} mtu {mtu} type veth peer name {WIRE} mtu {mtu} netns {other}"
            ),
        )?;
        for side in 0..2 {
            machines.ip(side, &format!("addr add {}/24 dev {WIRE}", IPV4[side]))?;
            machines.ip(side, &format!("addr add {}/64 dev {WIRE} nodad", IPV6[side]))?;
            machines.ip(side, &format!("link set {WIRE} up"))?;
        }
        Ok(machines)
    }

    /// Runs `ip` on one of them.
    pub(crate) fn ip(&self, side: usize, words: &str) -> Result<Finished> {
        self.tool(side, &format!("ip {words}"))
    }

    /// Runs a tool of its administrator's on one of them.
    pub(crate) fn tool(&self, side: usize, command: &str) -> Result<Finished> {
        let (program, words) = command.split_once(' ').context("a command")?;
        self.task(side, &self.setting.task(program).words(words)).run()?.success()
    }

    /// A program that runs on one of them.
    pub(crate) fn task(&self, side: usize, program: &Task) -> Task {
        let words =
            format!("--user --net --preserve-credentials --target {}", self.holders[side].pid());
        self.setting.task("nsenter").words(&words).args(program.command_line())
    }

    /// Starts balboad on one of them.
    ///
    /// # Errors
    /// When it does not come up.
    pub(crate) fn balboad(&self, side: usize, arguments: &str) -> Result<Daemon<'a>> {
        let state_dir = self.setting.directory().join(format!("machine{side}"));
        self.setting.balboad_within(&state_dir, arguments, |task| self.task(side, task))
    }

    /// The same on both.
    pub(crate) fn balboads(&self, arguments: &str) -> Result<[Daemon<'a>; 2]> {
        Ok([self.balboad(0, arguments)?, self.balboad(1, arguments)?])
    }

    /// Runs a command line on the first as server and on the second as client, which is told the server's address.
    ///
    /// # Errors
    /// When one of them fails.
    pub(crate) fn run_between(
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
        run_pair_in(&self.process(0), side(0), side(1).arg(address), port)
    }

    /// A process on one of them.
    pub(crate) fn process(&self, side: usize) -> String {
        self.holders[side].pid().to_string()
    }

    /// A program under `balboa run` on one of them.
    pub(crate) fn run(&self, side: usize, daemon: &Daemon<'_>, command: &str) -> Task {
        self.task(side, &daemon.run(command))
    }

    /// One of the programs under test, on one of them.
    pub(crate) fn built(&self, side: usize, program: &Path) -> Task {
        self.task(side, &self.setting.task(self.setting.bin.join(program)))
    }
}
