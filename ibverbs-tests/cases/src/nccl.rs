//! NCCL's pattern, by a program of our own: how its transport uses queue pairs, memory and threads.

use std::time::Duration;

use anyhow::Result;
use harness::pair::{Both, free_port, run_pair};
use harness::runner::Case;
use harness::setting::{Daemon, Setting};

use super::faults::was_bad;

/// How long all of it may take.
const LIMIT: Duration = Duration::from_secs(180);
/// A path that loses, doubles and spoils frames, and lets them overtake each other.
const BAD: &str = "loss=1%,dup=1%,reorder=1%,corrupt=1%";

/// The family.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("nccl/two cards", &[], |setting| good(setting, [0, 1], "")),
        Case::new("nccl/one card", &[], |setting| good(setting, [0, 0], "")),
        Case::new("nccl/one QP", &[], |setting| good(setting, [0, 1], "--qps 1 --mib 8")),
        Case::new("nccl/16 QPs", &[], |setting| good(setting, [0, 1], "--qps 16 --mib 8")),
        Case::new("nccl/a network of IPv6", &[], of_ipv6),
        Case::new("nccl/bad cable", &[], bad),
    ]
}

fn good(setting: &Setting, cards: [u32; 2], options: &str) -> Result<()> {
    let daemon = setting.balboad("--soft 2")?;
    pair(setting, cards.map(|card| (&daemon, card)), options)?;
    daemon.stop()
}

/// A connection goes by the IPv6 address, of two, that is in the selected network.
fn of_ipv6(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 2")?;
    for card in 0..2 {
        for network in ["2001:db8:1", "2001:db8:2"] {
            let add = setting.built("balboa").words("addr --state-dir").arg(daemon.state_dir());
            let words = format!("balboa{card} add {network}::{}/64", card + 1);
            add.words(&words).run()?.success()?;
        }
    }
    pair(setting, [(&daemon, 0), (&daemon, 1)], "--mib 8 --ipv6 --network 2001:db8:2::/48")?;
    daemon.stop()
}

fn bad(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad(&format!("--soft 2 --fault {BAD}"))?;
    pair(setting, [(&daemon, 0), (&daemon, 1)], "--mib 16 --timeout 14 --bad-cable")?;
    was_bad(&daemon, BAD)?;
    daemon.stop()
}

/// Runs the pattern between two cards, each by its balboad and its number there.
pub(super) fn pair(setting: &Setting, ends: [(&Daemon<'_>, u32); 2], options: &str) -> Result<()> {
    let port = free_port()?;
    let sides = ends.map(|(daemon, card)| {
        let words = format!("nccl -d balboa{card} -p {port} {options}");
        daemon.run("").arg(setting.bin.join("verbs-data")).words(&words).limit(LIMIT)
    });
    let [server, client] = sides;
    let Both { server, client } = run_pair(server, client.arg("127.0.0.1"), port)?;
    for side in [server, client] {
        side.says(" messages arrived as NCCL's do")?;
    }
    Ok(())
}
