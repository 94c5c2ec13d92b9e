//! ibv_rc_pingpong, which checks its data with `-c`, and ibv_srq_pingpong, ibv_uc_pingpong and ibv_ud_pingpong,
//! which have no such check.

use anyhow::{Error, Result, ensure};
use harness::pair::{Both, free_port, run_between, start_server};
use harness::runner::Case;
use harness::setting::Setting;

use super::IBVERBS_UTILS;

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
    // The card's timestamps, which need an extended CQ, and work requests built call by call. (With
    // timestamps and events the program takes an event whose completion it has polled before for an
    // error.)
    // And memory of the device's own.
    for options in ["-g 1 -t", "-g 1 -N", "-g 1 -t -N", "-g 1 -N -e", "-g 1 -j", "-g 1 -j -N -e"] {
        let name = format!("ibv_rc_pingpong/{options}");
        cases.push(Case::new(name, &[IBVERBS_UTILS], move |setting| pingpong(setting, options, 1)));
    }
    for (program, options) in [
        ("ibv_srq_pingpong", "-g 1"),
        ("ibv_srq_pingpong", "-g 1 -e"),
        ("ibv_srq_pingpong", "-g 1 -q 3 -r 20"),
        ("ibv_srq_pingpong", "-g 1 -m 256"),
        ("ibv_srq_pingpong", "-g 0 -m 4096 -e"),
        ("ibv_uc_pingpong", "-g 0"),
        ("ibv_uc_pingpong", "-g 1"),
        ("ibv_uc_pingpong", "-g 1 -e -m 256"),
        ("ibv_uc_pingpong", "-g 1 -m 4096"),
        ("ibv_ud_pingpong", "-g 0"),
        ("ibv_ud_pingpong", "-g 1"),
        ("ibv_ud_pingpong", "-g 1 -e"),
        ("ibv_ud_pingpong", "-g 1 -s 1024"),
    ] {
        let command = format!("{program} {options}");
        let name = format!("{program}/{options}");
        cases.push(Case::new(name, &[IBVERBS_UTILS], move |setting| unchecked(setting, &command)));
    }
    for options in ["-g 0", "-g 1", "-g 1 -e", "-g 1 -m 256 -n 200"] {
        let name = format!("ibv_xsrq_pingpong/{options}");
        let command = format!("ibv_xsrq_pingpong {options}");
        cases.push(Case::new(name, &[IBVERBS_UTILS], move |setting| xsrq(setting, &command)));
    }
    for command in
        ["ibv_rc_pingpong -g 1 -o", "ibv_rc_pingpong -g 1 -O", "ibv_srq_pingpong -g 1 -o"]
    {
        let name = command.replacen(' ', "/", 1);
        cases.push(Case::new(name, &[IBVERBS_UTILS], move |setting| no_paging(setting, command)));
    }
    for options in ["-g 1", "-g 1 -e"] {
        let name = format!("ibv_xsrq_pingpong/one domain, three programs/{options}");
        cases.push(Case::new(name, &[IBVERBS_UTILS], move |setting| {
            xsrq_of_three(setting, options)
        }));
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

/// Runs a pingpong on a cable that loses frames; again, twice at most, if the loss was the acknowledgement of one
/// side's last message.
///
/// The other side is done by then: it ends and takes its queue pair along, so no side is left to acknowledge a
/// repetition. The protocol has no answer to that, with any cards.
pub(crate) fn on_bad_cable<T>(mut run: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 0..2 {
        match run() {
            Err(error) if lost_last_acknowledgement(&error) => {}
            result => return result,
        }
    }
    run()
}

/// Whether one side was done, and the other's last send failed.
fn lost_last_acknowledgement(error: &Error) -> bool {
    let text = format!("{error:#}");
    text.contains(" iters in ")
        && text.contains("transport retry counter exceeded (12) for wr_id 2")
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

/// XRC, with a domain that both sides share if they are on one card.
fn xsrq(setting: &Setting, command: &str) -> Result<()> {
    let daemon = setting.balboad("--soft 2")?;
    let Both { server, client } = run_between((&daemon, 0), (&daemon, 1), command)?;
    for side in [server, client] {
        side.says("success")?;
    }
    daemon.stop()
}

/// On-demand paging: the program asks for it, and is told that there is none.
fn no_paging(setting: &Setting, command: &str) -> Result<()> {
    let daemon = setting.balboad("--soft 1")?;
    daemon.run("").words(command).run()?.code(1)?.complains("The device isn't ODP capable")?;
    daemon.stop()
}

/// XRC of a server with two clients, all on one card, so that the file makes them share one domain.
fn xsrq_of_three(setting: &Setting, options: &str) -> Result<()> {
    let daemon = setting.balboad("--soft 1")?;
    let port = free_port()?;
    let side = |more: &str| {
        daemon.run(&format!("ibv_xsrq_pingpong {options} -d balboa0 -p {port} {more}"))
    };
    let server = start_server(side("-c 2"), port)?;
    // All are done together: each waits for the other at the server.
    let clients = [side("127.0.0.1").start()?, side("127.0.0.1").start()?];
    for program in clients.into_iter().chain([server]) {
        program.wait()?.success()?.says("success")?;
    }
    daemon.stop()
}

/// A program that says no more than that it is done.
fn unchecked(setting: &Setting, command: &str) -> Result<()> {
    let daemon = setting.balboad("--soft 2")?;
    let Both { server, client } = run_between((&daemon, 0), (&daemon, 1), command)?;
    for side in [server, client] {
        side.says("1000 iters in ")?;
    }
    daemon.stop()
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    const LOST: &str = "Failed status transport retry counter exceeded (12) for wr_id 2";
    const DONE: &str = "100 iters in 0.02 seconds = 220.51 usec/iter";

    #[test]
    fn only_a_side_whose_peer_was_done_may_try_again() {
        let lost = || anyhow!("{LOST}").context(format!("the server said\n{DONE}"));
        let tries = |mut fails: u32, error: &dyn Fn() -> Error| {
            let mut runs = 0;
            let result = on_bad_cable(|| {
                runs += 1;
                fails = fails.saturating_sub(1);
                if fails == 0 { Ok(()) } else { Err(error()) }
            });
            (runs, result.is_ok())
        };
        assert_eq!(tries(1, &lost), (1, true));
        assert_eq!(tries(3, &lost), (3, true));
        assert_eq!(tries(4, &lost), (3, false), "it is no rare loss");
        assert_eq!(tries(2, &|| anyhow!("{LOST}")), (1, false), "nobody was done");
        assert_eq!(tries(2, &|| anyhow!("invalid data; {DONE}")), (1, false));
    }
}
