//! Programs whose packets pass services that change nothing: on each cable, in the clear and sealed.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::namespace::Namespace;
use harness::pair::{both_say, run_between};
use harness::runner::{Case, Need};
use harness::setting::{Daemon, Setting};
use harness::suites::MPI;
use serde_json::Value;

use super::faults::was_bad;
use super::{PERFTEST, nccl, psp, udp};

/// How long a program may take.
const LIMIT: Duration = Duration::from_secs(180);
/// Bytes that are in no message.
const PATTERNS: &str = "0xfffe00fdfcfbfaf9deadbeefc0ffee\n0xbadc0de0ff1ce5eedfee1900\n";
/// A path that loses, doubles and spoils frames, and lets them overtake each other.
const BAD: &str = "loss=1%,dup=1%,reorder=1%,corrupt=1%";

/// The cables, by their names in cases.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cable {
    Switch,
    Bad,
    Udp,
}
use Cable::{Bad, Switch, Udp};

/// Each service that changes nothing, in each way of it.
const CHAINS: [(&str, &str); 2] =
    [("inspect", "inspect --mode refuse"), ("inspect that counts", "inspect --mode count")];

/// Cables, whether they carry everything sealed, and the chain there.
const TABLE: [(&str, Cable, bool, usize); 6] = [
    ("switch", Switch, false, 0),
    ("bad cable", Bad, false, 1),
    ("machine's own network", Udp, false, 0),
    ("switch/sealed", Switch, true, 1),
    ("bad cable/sealed", Bad, true, 0),
    ("machine's own network/sealed", Udp, true, 1),
];

/// The programs of the MPI cases.
const MPI_NEEDS: [Need; 3] = [
    Need::Program("unshare", "util-linux"),
    Need::Program("mpicc.openmpi", "libopenmpi-dev"),
    Need::Program("mpirun.openmpi", "openmpi-bin"),
];

/// The family.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, cable, sealed, chain) in TABLE {
        let (of_chain, chain) = CHAINS[chain];
        let name = format!("served/{name}/{of_chain}");
        cases.push(Case::new(name, &[PERFTEST], move |setting| {
            let there = There::new(setting, cable, sealed, &format!("{chain} --dscp 0"))?;
            there.data(setting)?;
            there.perftest()?;
            there.nccl(setting)?;
            there.end()
        }));
    }
    for (name, sealed) in [("", false), ("/sealed", true)] {
        let (_, chain) = CHAINS[0];
        let name = format!("served/MPI{name}");
        cases.push(Case::new(name, &MPI_NEEDS, move |setting| {
            // UCX's traffic class is 106.
            let there = There::new(setting, Switch, sealed, &format!("{chain} --dscp 26"))?;
            there.mpi(setting)?;
            there.end()
        }));
    }
    cases
}

/// Two cards with services, and what is between them.
struct There<'a> {
    daemons: Vec<Daemon<'a>>,
    cable: Cable,
}

impl<'a> There<'a> {
    /// Starts balboads, and has connections of both cards pass a chain: its services, their options, and a DSCP.
    fn new(setting: &'a Setting, cable: Cable, sealed: bool, chain: &str) -> Result<Self> {
        let fault = if cable == Bad { format!("--fault {BAD}") } else { String::new() };
        let daemons = match (cable, sealed) {
            (Udp, true) => psp::sealed_on_own_network(setting)?.into(),
            (Udp, false) => udp::near(setting)?.0.into(),
            (_, true) => vec![psp::sealed(setting, &fault)?],
            (_, false) => vec![setting.balboad(&format!("--soft 2 {fault}"))?],
        };
        let there = Self { daemons, cable };
        let patterns = setting.directory().join("patterns");
        fs::write(&patterns, PATTERNS)?;
        for (daemon, card) in there.ends() {
            let words = format!("service attach balboa{card} {chain} --patterns");
            let attach = setting.built("balboa").words(&words).arg(&patterns);
            attach.arg("--state-dir").arg(daemon.state_dir()).run()?.success()?;
        }
        Ok(there)
    }

    /// Each card, by its balboad and its number there.
    fn ends(&self) -> [(&Daemon<'a>, u32); 2] {
        match &*self.daemons {
            [first, other] => [(first, 0), (other, 0)],
            all => [0, 1].map(|card| (&all[0], card)),
        }
    }

    /// What programs are told about a cable that loses frames.
    fn caution(&self) -> &'static str {
        if self.cable == Bad { " --bad-cable" } else { "" }
    }

    /// Every byte is checked.
    fn data(&self, setting: &Setting) -> Result<()> {
        let program = setting.bin.join("verbs-data");
        // On the machine's own network it is the first.
        let gid = u8::from(self.cable != Udp);
        let command = format!("{} apart --gid {gid}{}", program.display(), self.caution());
        let [server, client] = self.ends();
        let both = run_between(server, client, &command)?;
        both_say(&both, "350 messages arrived as they should")
    }

    fn perftest(&self) -> Result<()> {
        let [server, client] = self.ends();
        for program in ["ib_write_bw", "ib_read_bw"] {
            let both = run_between(server, client, &format!("{program} -F -s 65536 -n 200"))?;
            both_say(&both, "65536 ")?;
        }
        Ok(())
    }

    fn nccl(&self, setting: &Setting) -> Result<()> {
        nccl::pair(setting, self.ends(), &format!("--mib 4 --timeout 14{}", self.caution()))
    }

    /// The ring of ranks and the rest of the program that checks MPI, a rank on each card.
    fn mpi(&self, setting: &Setting) -> Result<()> {
        let (name, text) = MPI;
        fs::write(setting.directory().join(name), text)?;
        setting.task("mpicc.openmpi").words("-O2 -o mpi").arg(name).run()?.success()?;
        let [(daemon, _), _] = self.ends();
        let rank = "UCX_NET_DEVICES=balboa$OMPI_COMM_WORLD_RANK:1 exec ./mpi check 1";
        let task = daemon.run("mpirun.openmpi --oversubscribe -np 2 sh -c").arg(rank);
        let namespace = Namespace::new(setting, 2)?;
        let task = namespace.task(setting, &task);
        let task = task.env("UCX_TLS", "rc,self").env("OMPI_MCA_pml", "ucx");
        let task = task.env("OMPI_MCA_osc", "ucx").limit(LIMIT);
        task.run()?.success()?.says("2 ranks")?.says(", 0 wrong").map(drop)
    }

    /// Checks that packets of both cards were seen and none was refused, and stops everything.
    fn end(self) -> Result<()> {
        for (daemon, card) in self.ends() {
            let counters = counters(&daemon.status()?, card)?;
            let count = |name: &str| counters[name].as_u64().with_context(|| name.to_owned());
            ensure!(count("checked_packets")? > 500, "card {card}: {counters}");
            for name in ["refused_packets", "dropped_packets", "over_budget", "matches"] {
                ensure!(count(name)? == 0, "card {card}: {counters}");
            }
        }
        if self.cable == Bad {
            was_bad(&self.daemons[0], BAD)?;
        }
        self.daemons.into_iter().try_for_each(Daemon::stop)
    }
}

/// The counters of the chain on a card.
fn counters(status: &Value, card: u32) -> Result<Value> {
    let cards = status["cards"].as_array().context("no cards")?;
    let card = cards.iter().find(|it| it["card"] == card).context("no such card")?;
    let attached = card["services"]["attached"].as_array().context("no services")?;
    let [attached] = &attached[..] else { anyhow::bail!("{attached:?}") };
    Ok(attached["counters"].clone())
}
