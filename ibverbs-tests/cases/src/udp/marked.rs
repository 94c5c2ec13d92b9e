//! Networks of the kernel's that mark datagrams instead of dropping them.

use anyhow::{Result, ensure};
use harness::machines::{IPV4, Machines, WIRE};
use harness::pair::both_say;
use harness::runner::Need;
use harness::setting::Setting;

use super::{counter, stop};

/// The program that sets the kernel's filters of packets.
pub(super) const NFT: Need = Need::Program("nft", "nftables");

/// The counters of the receiver of marked packets, and of their sender.
const NOTIFIES: [&str; 2] = ["np_ecn_marked_roce_packets", "np_cnp_sent"];
const HANDLES: &str = "rp_cnp_handled";

/// Programs, by IPv4 and by IPv6, and the machine that their data goes to.
const TRANSFERS: [(&str, usize); 2] =
    [("ib_write_bw -F -x 0 -u 16 -n 200", 0), ("ib_read_bw -F -x 1 -u 16 -n 200", 1)];

/// Each machine marks every sixteenth ECN-capable datagram that it sends.
pub(super) fn marks(setting: &Setting) -> Result<()> {
    let sixteenth =
        ["ip", "ip6"].map(|it| format!("; {it} ecn ect0 numgen inc mod 16 0 {it} ecn set ce"));
    let rules = sixteenth.concat();
    let chain = format!("type filter hook egress device {WIRE} priority 0{rules};");
    reacts(setting, &[&format!("nft 'table netdev marks {{ chain leaving {{ {chain} }} ; }}'")])
}

/// If commands have each machine mark datagrams that leave it, cards that react to congestion get notifications and slow
/// down, and datagrams of other cards are never marked.
pub(crate) fn reacts(setting: &Setting, marking: &[&str]) -> Result<()> {
    for (congestion, is_marked) in [("dcqcn-mlx5,line=10G", true), ("off", false)] {
        let machines = Machines::new(setting, 1500)?;
        for side in 0..2 {
            marking.iter().try_for_each(|command| machines.tool(side, command))?;
        }
        let options = format!("--soft 1 --port udp:{WIRE} --congestion {congestion}");
        let daemons = machines.balboads(&options)?;
        for (command, to) in TRANSFERS {
            both_say(&machines.run_between(&daemons, command, IPV4[0])?, "65536 ")?;
            let (receiver, sender) = (&daemons[to], &daemons[1 - to]);
            let counted = [(receiver, NOTIFIES[0]), (receiver, NOTIFIES[1]), (sender, HANDLES)];
            for (daemon, name) in counted {
                let count = counter(daemon, name)?;
                ensure!(
                    (count > 0) == is_marked,
                    "{name} is {count} after {command} with --congestion {congestion}: {}",
                    daemon.status()?
                );
            }
        }
        stop(daemons)?;
    }
    Ok(())
}
