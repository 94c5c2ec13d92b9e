//! ibv_rc_pingpong, which checks its data with `-c`.

use anyhow::{Result, ensure};

use super::IBVERBS_UTILS;
use crate::pair::{Both, run_between};
use crate::runner::Case;
use crate::setting::Setting;

/// Path MTUs in bytes.
pub(crate) const MTUS: [u32; 5] = [256, 512, 1024, 2048, 4096];

/// The family: every path MTU, both GIDs, by polling and by events.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for mtu in MTUS {
        for gid in [0, 1] {
            for events in ["", " -e"] {
                let options = format!("-m {mtu} -g {gid}{events}");
                let name = format!("ibv_rc_pingpong/{options}");
                cases.push(Case::new(name, &[IBVERBS_UTILS], move |setting| {
                    pingpong(setting, &options, 1)
                }));
            }
        }
    }
    for (name, server) in [("loopback", 0), ("two cards", 1)] {
        let options = "-m 1024 -g 1 -e";
        let case = Case::new(format!("ibv_rc_pingpong/{name}"), &[IBVERBS_UTILS], move |setting| {
            pingpong(setting, options, server)
        });
        cases.push(if server == 0 { case } else { case.as_root() });
    }
    cases
}

fn pingpong(setting: &Setting, options: &str, client_card: u32) -> Result<()> {
    let daemon = setting.balboad("--soft 2")?;
    let command = format!("ibv_rc_pingpong -c {options}");
    let Both { server, client } = run_between((&daemon, 0), (&daemon, client_card), &command)?;
    for side in [server, client] {
        // 1000 messages of 4096 bytes each way.
        let side = side.says("8192000 bytes in ")?.says("1000 iters in ")?;
        ensure!(!side.stdout.contains("invalid data"), "{side}");
    }
    daemon.stop()
}
