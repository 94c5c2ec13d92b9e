//! Programs of two virtual machines on one cable, which find each other by rdma_cm or TCP.
//!
//! The cases run here and hold the line to an agent in each machine. Each runs with the server in
//! the one machine, then with the server in the other.

use std::net::Ipv4Addr;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use harness::agent::{ADDRESSES, End, Listens, Machine, PAIRS};
use harness::pair::{Both, REMOTE_SHELL, both_say, until_in_time};
use harness::process::Finished;
use harness::runner::{Case, Need};
use harness::setting::SHARES;
use harness::suites::MPI_COMPILERS;
use harness::table::table;
use serde_json::Value;

use crate::rdmacm::{IPERF3, LIBFABRIC, RDMACM_UTILS};
use crate::{IBVERBS_UTILS, PERFTEST};

/// The port at which fi_pingpong's sides agree on the run.
const FI_PINGPONG: u16 = 47592;
/// The port of the pingpongs of libibverbs.
const PINGPONG: u16 = 18515;
/// The programs that the test command runs of each pair with a card: of each kind of rdma_cm's one.
const IN_TEST: [&str; 4] = ["rping", "ucmatose", "ib_write_bw -R", "fi_pingpong"];

/// A program that both sides run, and the signs of its success.
struct Row {
    /// The last word of the case's name.
    name: &'static str,
    need: Need,
    /// The server's command; `ADDRESS` stands for its address, `DEVICE` for its device.
    server: &'static str,
    listens: Listens,
    /// The client's command; `ADDRESS` stands for the server's address, `HERE` for its own, `DEVICE` for its own
    /// device.
    client: &'static str,
    check: fn(&Both) -> Result<()>,
    /// Bytes that each card must have received, by its own counter.
    received: u64,
}

const ROWS: &[Row] = &[
    Row {
        name: "TCP",
        need: IPERF3,
        server: "iperf3 -s -1 -p 18515",
        listens: Listens::Tcp(PINGPONG),
        client: "iperf3 -c ADDRESS -p 18515 -n 4M",
        check: |both| both_say(both, "receiver"),
        received: 0,
    },
    Row {
        name: "ibv_rc_pingpong",
        need: IBVERBS_UTILS,
        server: "ibv_rc_pingpong -d DEVICE -g 1 -m 4096 -n 50 -c",
        listens: Listens::Tcp(PINGPONG),
        client: "ibv_rc_pingpong -d DEVICE -g 1 -m 4096 -n 50 -c ADDRESS",
        check: |both| both_say(both, "50 iters in "),
        received: 0,
    },
    Row {
        name: "ibv_rc_pingpong -e",
        need: IBVERBS_UTILS,
        server: "ibv_rc_pingpong -d DEVICE -g 1 -m 1024 -n 50 -c -e",
        listens: Listens::Tcp(PINGPONG),
        client: "ibv_rc_pingpong -d DEVICE -g 1 -m 1024 -n 50 -c -e ADDRESS",
        check: |both| both_say(both, "50 iters in "),
        received: 0,
    },
    Row {
        name: "verbs-data",
        need: IBVERBS_UTILS,
        server: "verbs-data apart --timeout 18 -d DEVICE -p 18515",
        listens: Listens::Tcp(PINGPONG),
        client: "verbs-data apart --timeout 18 -d DEVICE -p 18515 ADDRESS",
        check: |both| both_say(both, "350 messages arrived as they should"),
        received: 0,
    },
    Row {
        name: "ib_send_bw",
        need: PERFTEST,
        server: "ib_send_bw -x 1 -u 18 -d DEVICE -F -s 65536 -n 40",
        listens: Listens::Tcp(PINGPONG),
        client: "ib_send_bw -x 1 -u 18 -d DEVICE -F -s 65536 -n 40 ADDRESS",
        check: one_row,
        received: 0,
    },
    Row {
        name: "rping",
        need: RDMACM_UTILS,
        server: "rping -s -a ADDRESS -v -V -C 10 -S 4000",
        listens: Listens::Cm,
        client: "rping -c -a ADDRESS -v -V -C 10 -S 4000",
        check: |both| both_say(both, "ping data: rdma-ping-9: "),
        received: 0,
    },
    Row {
        name: "ucmatose",
        need: RDMACM_UTILS,
        server: "ucmatose -b ADDRESS -c 3 -C 10 -S 5000",
        listens: Listens::Cm,
        client: "ucmatose -s ADDRESS -c 3 -C 10 -S 5000",
        check: |both| both_say(both, "return status 0"),
        received: 0,
    },
    Row {
        name: "ib_write_bw -R",
        need: PERFTEST,
        server: "ib_write_bw -R -u 18 -d DEVICE -F -s 65536 -n 40",
        listens: Listens::Cm,
        client: "ib_write_bw -R -u 18 -d DEVICE -F -s 65536 -n 40 ADDRESS",
        check: one_row,
        received: 0,
    },
    Row {
        name: "ib_read_bw -R",
        need: PERFTEST,
        server: "ib_read_bw -R -u 18 -d DEVICE -F -o 16 -s 65536 -n 40",
        listens: Listens::Cm,
        client: "ib_read_bw -R -u 18 -d DEVICE -F -o 16 -s 65536 -n 40 ADDRESS",
        check: one_row,
        received: 0,
    },
    Row {
        name: "ib_send_lat -R",
        need: PERFTEST,
        server: "ib_send_lat -R -u 18 -d DEVICE -F -s 64 -n 20",
        listens: Listens::Cm,
        client: "ib_send_lat -R -u 18 -d DEVICE -F -s 64 -n 20 ADDRESS",
        check: one_row,
        received: 0,
    },
    Row {
        name: "fi_pingpong",
        need: LIBFABRIC,
        server: "fi_pingpong -p verbs -e msg -c -S 65536 -I 10",
        listens: Listens::Tcp(FI_PINGPONG),
        client: "fi_pingpong -p verbs -e msg -c -S 65536 -I 10 ADDRESS",
        check: |both| both_say(both, "64k"),
        received: 0,
    },
    // The launcher starts its daemon on the other machine by `remote-shell`, and speaks to it by TCP: by the device that
    // has the address, which is rxe's or the card's. (OpenMPI 5 takes networks as well, but finds none.) UCX has as
    // many READs outstanding as its own device allows, even if the peer's allows fewer: rxe 128, a card 16.
    Row {
        name: "OpenMPI",
        need: Need::Program(MPI_COMPILERS[0].0, MPI_COMPILERS[0].1),
        server: "remote-shell serve",
        listens: Listens::Tcp(REMOTE_SHELL),
        client: "env HOME=/tmp mpirun.openmpi --allow-run-as-root --leave-session-attached \
                 --mca plm_rsh_agent SHARES/built/remote-shell --mca plm_rsh_no_tree_spawn 1 \
                 --mca oob_tcp_if_include eth0,balboa0 --mca pml ucx --mca osc ucx \
                 -x UCX_TLS=rc,self -x UCX_UD_ETH_DGID_CHECK=n \
                 -x UCX_RC_MAX_RD_ATOMIC=16 --host HERE,ADDRESS -np 2 \
                 SHARES/job/mpi check 1",
        check: two_ranks,
        received: 8 << 20,
    },
    Row {
        name: "MPICH",
        need: Need::Program(MPI_COMPILERS[1].0, MPI_COMPILERS[1].1),
        server: "remote-shell serve",
        listens: Listens::Tcp(REMOTE_SHELL),
        client: "mpirun.mpich -launcher rsh -launcher-exec SHARES/built/remote-shell \
                 -localhost HERE -hosts HERE,ADDRESS -genv UCX_TLS rc,self \
                 -genv UCX_UD_ETH_DGID_CHECK n -genv UCX_RC_MAX_RD_ATOMIC 16 \
                 -n 2 SHARES/job/mpi-mpich check 1",
        check: two_ranks,
        received: 8 << 20,
    },
];

/// The MPI program found nothing wrong, as one of two ranks.
fn two_ranks(both: &Both) -> Result<()> {
    for text in ["2 ranks, ", ", 0 wrong"] {
        ensure!(both.client.stdout.contains(text), "no {text:?}: {}", both.client);
    }
    Ok(())
}

/// The client of a program of perftest's has one row of figures.
pub(crate) fn one_row(both: &Both) -> Result<()> {
    let rows = table(&both.client)?.len();
    ensure!(rows == 1, "{rows} rows of figures, not 1: {}", both.client);
    Ok(())
}

/// The names of all cases of a pair.
pub fn names(ends: [End; 2]) -> Vec<String> {
    ROWS.iter().map(|row| name(ends, row.name)).collect()
}

/// The name of the one that the test command runs on every kernel: their rdma_cm differ in the rights
/// that they give a QP.
pub fn on_every_kernel() -> String {
    name([End::Card, End::Rxe], "rping")
}

/// The names of the cases that the test command runs.
pub fn in_test() -> Vec<String> {
    let pairs = PAIRS.into_iter().filter(|ends| ends.contains(&End::Card));
    let names = |ends| IN_TEST.map(|few| name(ends, few));
    pairs.flat_map(names).collect()
}

fn name([first, second]: [End; 2], row: &str) -> String {
    format!("pair/{first} and {second}/{row}")
}

/// A machine of a pair.
#[derive(Debug)]
pub struct Side {
    /// The device at its end of the cable.
    pub end: End,
    /// The hold on it.
    pub machine: Machine,
}

/// All cases of a pair, in the machines that have these ends.
pub fn cases(sides: &Arc<[Side; 2]>) -> Vec<Case> {
    let ends = [sides[0].end, sides[1].end];
    let case = |row: &'static Row| {
        let sides = Arc::clone(sides);
        Case::new(name(ends, row.name), &[row.need], move |_| both_ways(&sides, row))
    };
    ROWS.iter().map(case).collect()
}

fn both_ways([first, second]: &[Side; 2], row: &Row) -> Result<()> {
    let [one, other] = ADDRESSES;
    for (server, client, addresses) in
        [(first, second, [one, other]), (second, first, [other, one])]
    {
        let both = run(server, client, row, addresses).and_then(|it| (row.check)(&it));
        let whole = || [first, second].into_iter().try_for_each(nothing_lost);
        both.and_then(|()| whole()).with_context(|| {
            let said = |who: &str, side: &Side| {
                format!("{who}, {} in its machine\n{}", side.end, side.machine.log())
            };
            format!("{}{}", said("server", server), said("client", client))
        })?;
    }
    Ok(())
}

/// The counters of a machine's card, if it has one.
fn counters(side: &Side) -> Result<Option<Value>> {
    if side.end != End::Card {
        return Ok(None);
    }
    let told = side.machine.run("balboa status --json")?.success()?;
    let status: Value = serde_json::from_str(&told.stdout)?;
    Ok(Some(status["cards"][0]["counters"].clone()))
}

/// Bytes that a machine's card has received, if it has one.
fn received(side: &Side) -> Result<Option<u64>> {
    let Some(counters) = counters(side)? else { return Ok(None) };
    counters["rcvd_bytes"].as_u64().context("no rcvd_bytes").map(Some)
}

/// Every frame that arrived at a card's end was taken, and as long as frames are.
fn nothing_lost(side: &Side) -> Result<()> {
    let Some(counters) = counters(side)? else { return Ok(()) };
    for name in ["port_frames_lost", "port_frames_bad_length"] {
        ensure!(counters[name] == 0, "{name} is {}: {counters}", counters[name]);
    }
    Ok(())
}

/// Runs both sides to their ends; the addresses are the server's and the client's.
fn run(server: &Side, client: &Side, row: &Row, [there, here]: [Ipv4Addr; 2]) -> Result<Both> {
    let words = |text: &str, side: &Side| {
        let text = text.replace("ADDRESS", &there.to_string()).replace("HERE", &here.to_string());
        text.replace("DEVICE", side.end.device()).replace("SHARES", SHARES)
    };
    let before = [received(server)?, received(client)?];
    // A server whose client failed may wait for ever: the next one that is started ends it.
    let ((), said) = until_in_time(|| {
        server.machine.start_server(&words(row.server, server), row.listens)?;
        Ok(((), client.machine.run(&words(row.client, client))?))
    })?;
    let said = said.success()?;
    let ended = server.machine.wait().and_then(Finished::success);
    let ended = ended.with_context(|| format!("its client was fine: {said}"))?;
    for (side, before) in [server, client].into_iter().zip(before) {
        let now = received(side)?;
        let enough = now.zip(before).is_none_or(|(now, before)| now - before >= row.received);
        ensure!(enough, "{}'s card went from {before:?} to {now:?} bytes: {said}", side.end);
    }
    Ok(Both { server: ended, client: said })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_test_command_runs_is_among_the_cases() {
        let all: Vec<String> = PAIRS.into_iter().flat_map(names).collect();
        let few = in_test();
        assert_eq!(few.len(), 2 * IN_TEST.len());
        assert!(few.iter().all(|few| all.contains(few)), "{few:?} in {all:?}");
        assert!(few.contains(&on_every_kernel()));
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<String> = PAIRS.into_iter().flat_map(names).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
