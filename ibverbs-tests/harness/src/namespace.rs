//! A network namespace that knows the cards' addresses, for programs that speak to them by TCP besides.

use std::fs;

use anyhow::Result;

use crate::process::{Running, Task};
use crate::setting::Setting;

/// A network namespace of the case's user with two devices: `lo`, and one that has the addresses of cards.
pub struct Namespace {
    holder: Running,
}

impl Namespace {
    /// One with the addresses of this many cards of one balboad, the first of its network's.
    ///
    /// # Errors
    /// When this user may have none.
    pub fn new(setting: &Setting, cards: u32) -> Result<Self> {
        // libfabric takes no addresses of the loopback device's.
        let mut script = "ip link set lo up && ip link add cards type veth peer name other \
            && ip link set cards up && ip link set other up"
            .to_owned();
        for card in 1..=cards {
            script.push_str(&format!(" && ip addr add 10.77.0.{card}/24 dev cards"));
        }
        script.push_str(" && echo there && exec sleep 10000");
        // Not as root: there are programs that refuse to be run by root.
        let words = "--user --map-current-user --keep-caps --net sh -c";
        let mut holder = setting.task("unshare").words(words).arg(script).start()?;
        holder.wait_until("its network was there", |it| it.output().contains("there"))?;
        Ok(Self { holder })
    }

    /// A program that runs in it.
    pub fn task(&self, setting: &Setting, program: &Task) -> Task {
        let words = format!("--user --net --preserve-credentials --target {}", self.holder.pid());
        setting.task("nsenter").words(&words).args(program.command_line())
    }

    /// The process that holds it.
    pub fn process(&self) -> String {
        self.holder.pid().to_string()
    }

    /// How many TCP sockets in it listen.
    pub fn listeners(&self) -> usize {
        const LISTEN: &str = "0A";
        let count = |table: &str| {
            let sockets = fs::read_to_string(format!("/proc/{}/net/{table}", self.process()));
            let sockets = sockets.unwrap_or_default();
            sockets.lines().filter(|it| it.split_whitespace().nth(3) == Some(LISTEN)).count()
        };
        count("tcp") + count("tcp6")
    }
}
