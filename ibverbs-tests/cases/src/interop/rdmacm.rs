//! Programs of rdma_cm: those here ask balboad, those in the machine the kernel.

use std::net::Ipv4Addr;

use anyhow::{Context as _, Result};
use harness::agent::Listens;
use harness::pair::{Both, both_say, listening, until_in_time};
use harness::process::Finished;
use harness::runner::Need;

use super::{ADDRESS, Body, LIMIT, RXE, Trial};
use crate::PERFTEST;
use crate::guest_pair::one_row;
use crate::rdmacm::{RDMACM_UTILS, nothing_left};

/// The card's address.
const HERE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// The prefix of their IPv6 addresses, which the IPv4 ones follow.
const PREFIX: &str = "2001:db8::";
/// The group that datagrams are sent to.
const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);

/// A line of the table.
pub(super) struct Row {
    pub(super) name: String,
    pub(super) needs: Vec<Need>,
    pub(super) fault: &'static str,
    pub(super) body: Body,
}

/// The command lines of both sides.
#[derive(Clone, Copy)]
struct Program {
    name: &'static str,
    need: Need,
    /// `ADDRESS` stands for the server's address, `DEVICE` for the side's device.
    server: &'static str,
    client: &'static str,
    check: fn(&Both) -> Result<()>,
    /// Whether the server is run there too. perftest's client would always come too early for a machine that is
    /// emulated.
    both_roles: bool,
}

const RPING: Program = Program {
    name: "rping",
    need: RDMACM_UTILS,
    server: "rping -s -a ADDRESS -v -V -C 10 -S 4000",
    client: "rping -c -a ADDRESS -v -V -C 10 -S 4000",
    check: |both| both_say(both, "ping data: rdma-ping-9: "),
    both_roles: true,
};
const UCMATOSE: Program = Program {
    name: "ucmatose",
    need: RDMACM_UTILS,
    server: "ucmatose -b ADDRESS -c 5 -C 20 -S 5000",
    client: "ucmatose -s ADDRESS -c 5 -C 20 -S 5000",
    check: |both| both_say(both, "return status 0"),
    both_roles: true,
};
const UDADDY: Program = Program {
    name: "udaddy",
    need: RDMACM_UTILS,
    server: "udaddy -b ADDRESS -c 5 -C 10 -S 1000",
    client: "udaddy -s ADDRESS -c 5 -C 10 -S 1000",
    check: |both| both_say(both, "return status 0"),
    both_roles: true,
};
/// Over both kinds of addresses.
const PROGRAMS: [Program; 3] = [RPING, UCMATOSE, UDADDY];
/// Over IPv4.
const OTHERS: [Program; 5] = [
    Program {
        name: "rstream",
        need: RDMACM_UTILS,
        server: "rstream -b ADDRESS -S 65536 -C 100 -T v",
        client: "rstream -s ADDRESS -S 65536 -C 100 -T v",
        check: |both| both_say(both, "custom"),
        both_roles: true,
    },
    Program {
        name: "ib_write_bw -R",
        need: PERFTEST,
        server: "ib_write_bw -R -u 18 -d DEVICE -F -s 65536 -n 40",
        client: "ib_write_bw -R -u 18 -d DEVICE -F -s 65536 -n 40 ADDRESS",
        check: one_row,
        both_roles: false,
    },
    Program {
        name: "ib_read_bw -R",
        need: PERFTEST,
        server: "ib_read_bw -R -u 18 -d DEVICE -F -o 16 -s 65536 -n 40",
        client: "ib_read_bw -R -u 18 -d DEVICE -F -o 16 -s 65536 -n 40 ADDRESS",
        check: one_row,
        both_roles: false,
    },
    Program {
        name: "ib_send_bw -R",
        need: PERFTEST,
        server: "ib_send_bw -R -u 18 -d DEVICE -F -s 65536 -n 40",
        client: "ib_send_bw -R -u 18 -d DEVICE -F -s 65536 -n 40 ADDRESS",
        check: one_row,
        both_roles: false,
    },
    Program {
        name: "ib_send_bw -R -c UD",
        need: PERFTEST,
        server: "ib_send_bw -R -c UD -d DEVICE -F -s 1024 -n 40",
        client: "ib_send_bw -R -c UD -d DEVICE -F -s 1024 -n 40 ADDRESS",
        check: one_row,
        both_roles: false,
    },
];
/// The programs for bad cables: they lose no datagram of their own, and stay until the other side has got all.
const ON_BAD_CABLES: [Program; 2] = [RPING, UCMATOSE];
/// Faults that hit more frames than elsewhere, for the connection manager has few.
const FAULTS: [(&str, &str); 2] =
    [("loss", "loss=5%"), ("all", "loss=2%,dup=5%,reorder=5%,corrupt=5%")];

/// The cases.
pub(super) fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    let mut add = |name: &str, needs: &[Need], fault, body: Body| {
        rows.push(Row { name: name.to_owned(), needs: needs.to_vec(), fault, body });
    };
    for program in PROGRAMS.into_iter().chain(OTHERS) {
        let body = move |trial: &Trial<'_>| trial.connect(&program, "");
        add(program.name, &[program.need], "", Box::new(body));
    }
    for program in PROGRAMS {
        let name = format!("{}/IPv6", program.name);
        let body = move |trial: &Trial<'_>| trial.connect_by_ipv6(&program);
        add(&name, &[program.need], "", Box::new(body));
    }
    add("mckey", &[RDMACM_UTILS], "", Box::new(|trial| trial.group()));
    for (name, fault) in FAULTS {
        let body = |trial: &Trial<'_>| {
            ON_BAD_CABLES.iter().try_for_each(|program| {
                trial.connect(program, "").with_context(|| program.name.to_owned())
            })
        };
        add(&format!("bad cable/{name}"), &[RDMACM_UTILS], fault, Box::new(body));
    }
    rows
}

impl Trial<'_> {
    /// Runs a program with the server here and the client there, then, if it can be, the other way round.
    fn connect(&self, program: &Program, prefix: &str) -> Result<()> {
        let both = self.listens_here(program, prefix).context("with the server here")?;
        (program.check)(&both)?;
        if !program.both_roles {
            return Ok(());
        }
        let both = self.listens_there(program, prefix).context("with the server there")?;
        (program.check)(&both)
    }

    fn connect_by_ipv6(&self, program: &Program) -> Result<()> {
        let balboa = self.setting.built("balboa").words("addr --state-dir");
        let words = format!("balboa0 add {PREFIX}{HERE}");
        balboa.arg(self.daemon.state_dir()).words(&words).run()?.success()?;
        self.connect(program, PREFIX)
    }

    fn listens_here(&self, program: &Program, prefix: &str) -> Result<Both> {
        let said = |line: &str, device| said(line, &format!("{prefix}{HERE}"), device);
        let (server, client) = until_in_time(|| {
            nothing_left(self.daemon)?;
            let server = self.daemon.run(&said(program.server, "balboa0")).limit(LIMIT);
            let server = listening(self.daemon, server, "listeners")?;
            Ok((server, self.peer.machine.run(&said(program.client, RXE))?))
        })?;
        let client = client
            .success()
            .with_context(|| format!("the server said\n{}{}", server.output(), server.errors()))?;
        let server = server.wait().and_then(Finished::success);
        let server = server.with_context(|| format!("its client was fine: {client}"))?;
        nothing_left(self.daemon)?;
        Ok(Both { server, client })
    }

    fn listens_there(&self, program: &Program, prefix: &str) -> Result<Both> {
        let said = |line: &str, device| said(line, &format!("{prefix}{ADDRESS}"), device);
        self.peer.machine.start_server(&said(program.server, RXE), Listens::Cm)?;
        self.client_here(&said(program.client, "balboa0"))
    }

    /// Datagrams to a group that the other side joined. Not the other way round: mckey waits for no
    /// completion, and rxe drops unsent packets when the queue pair is destroyed.
    fn group(&self) -> Result<()> {
        let line = |address, role| format!("mckey -m {GROUP} {role} -b {address} -C 10 -S 1000");
        self.peer.machine.start_server(&line(ADDRESS, ""), Listens::Group(GROUP))?;
        both_say(&self.client_here(&line(HERE, "-s"))?, "data transfers complete")
    }

    /// Runs a client here, whose server there listens; nothing is left of it.
    fn client_here(&self, line: &str) -> Result<Both> {
        let client = self.daemon.run(line).limit(LIMIT).run().and_then(Finished::success);
        let client = client.with_context(|| self.peer.machine.log())?;
        let server = self.peer.machine.wait().and_then(Finished::success);
        let server = server.with_context(|| format!("its client was fine: {client}"))?;
        nothing_left(self.daemon)?;
        Ok(Both { server, client })
    }
}

fn said(line: &str, address: &str, device: &str) -> String {
    line.replace("ADDRESS", address).replace("DEVICE", device)
}
