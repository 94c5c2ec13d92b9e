//! The command `balboa doctor`: faults of this machine, a line for each check, with the mend.
//!
//! The checks look at a [`Patient`]: the files of a machine below a root, and balboad's answers. So tests run each
//! check on machines that have its fault.

use std::fs;
use std::path::{Path, PathBuf};

use nix::unistd::{getegid, geteuid, getgroups};
use serde_json::{Value, json};
use terminal::say;

use crate::args;
use crate::run::{self, refusal};
use crate::state::{self, FORMAT, items, table, text};

mod bus;
mod cards;
mod machine;
mod network;

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// It is as it should be.
    Fine,
    /// Nothing is there to be looked at.
    Nothing,
    /// It works, but a feature or data is lost by it, or was.
    Note,
    /// Programs fail by it.
    Wrong,
}

impl Verdict {
    /// The word that is printed for it.
    const fn word(self) -> &'static str {
        match self {
            Self::Fine => "ok",
            Self::Nothing => "-",
            Self::Note => "note",
            Self::Wrong => "WRONG",
        }
    }

    /// The word for programs.
    const fn key(self) -> &'static str {
        match self {
            Self::Fine => "ok",
            Self::Nothing => "nothing",
            Self::Note => "note",
            Self::Wrong => "wrong",
        }
    }
}

/// The finding of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    /// The name of the check.
    check: &'static str,
    verdict: Verdict,
    /// The finding in a sentence that names its object.
    says: String,
    /// The mend.
    mend: Option<String>,
}

impl Finding {
    fn new(check: &'static str, verdict: Verdict, says: impl Into<String>) -> Self {
        Self { check, verdict, says: says.into(), mend: None }
    }

    fn fine(check: &'static str, says: impl Into<String>) -> Self {
        Self::new(check, Verdict::Fine, says)
    }

    fn nothing(check: &'static str, says: impl Into<String>) -> Self {
        Self::new(check, Verdict::Nothing, says)
    }

    fn note(check: &'static str, says: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { mend: Some(mend.into()), ..Self::new(check, Verdict::Note, says) }
    }

    fn wrong(check: &'static str, says: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { mend: Some(mend.into()), ..Self::new(check, Verdict::Wrong, says) }
    }
}

/// A machine and its balboad.
struct Patient {
    /// Where its files are.
    root: PathBuf,
    /// The user whose programs are to work.
    user: u32,
    /// That user's groups.
    groups: Vec<u32>,
    /// The state that balboad reports, or the reason why it reports none.
    state: Result<Value, String>,
    /// The provider for the machine's libibverbs, or why there is none.
    provider: Result<String, String>,
    /// Whether a network device takes segments together; `None` where nothing tells.
    gro: fn(&str) -> Option<bool>,
}

impl Patient {
    fn this_machine(state_dir: Option<&Path>) -> Self {
        let groups = getgroups().unwrap_or_default();
        Self {
            root: PathBuf::from("/"),
            user: geteuid().as_raw(),
            groups: groups.into_iter().chain([getegid()]).map(nix::unistd::Gid::as_raw).collect(),
            state: state::fetch(state_dir).map_err(|error| format!("{error:#}")),
            provider: run::release().map_err(|error| error.to_string()),
            gro: |device| hostmem::netdev::takes_together(device).ok(),
        }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// The text of a file; `None` where it cannot be read.
    fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.at(path)).ok().map(|text| text.trim().to_owned())
    }

    /// The cards of balboad.
    fn cards(&self) -> &[Value] {
        self.state.as_ref().map(|state| items(&state["cards"])).unwrap_or_default()
    }

    /// Whether a card is driven in this way.
    fn has(&self, driver: &str) -> bool {
        self.cards().iter().any(|card| card["driver"] == driver)
    }
}

/// Runs all checks and prints the findings; whether nothing is wrong.
///
/// # Errors
/// When it cannot be printed.
pub fn doctor(arguments: &args::Doctor) -> anyhow::Result<bool> {
    let findings = examine(&Patient::this_machine(arguments.state_dir.path()));
    let well = findings.iter().all(|finding| finding.verdict != Verdict::Wrong);
    if arguments.json {
        let checks: Vec<Value> = findings.iter().map(as_json).collect();
        let document = json!({ "format": FORMAT, "well": well, "checks": checks });
        say(format_args!("{document:#}\n"))?;
    } else {
        say(format_args!("{}", as_text(&findings)))?;
    }
    Ok(well)
}

/// Runs all checks, those first that others rest on.
fn examine(patient: &Patient) -> Vec<Finding> {
    let checks: [fn(&Patient) -> Vec<Finding>; 27] = [
        machine::balboad,
        machine::release,
        machine::provider,
        machine::namespaces,
        machine::reach,
        machine::memlock,
        machine::huge_pages,
        machine::clock,
        bus::iommu,
        bus::binding,
        bus::permissions,
        bus::udev,
        cards::contract,
        cards::engine,
        cards::link,
        cards::fec,
        cards::mtu,
        cards::gid,
        cards::neighbour,
        cards::frames,
        cards::congestion,
        cards::pauses,
        network::port,
        network::reverse_path,
        network::room,
        network::together,
        cards::shadow,
    ];
    checks.iter().flat_map(|check| check(patient)).collect()
}

fn as_json(finding: &Finding) -> Value {
    let Finding { check, verdict, says, mend } = finding;
    json!({ "check": check, "verdict": verdict.key(), "says": says, "mend": mend })
}

fn as_text(findings: &[Finding]) -> String {
    let rows = findings.iter().map(|Finding { check, verdict, says, mend }| {
        let mend = mend.as_ref().map(|mend| format!(": {mend}")).unwrap_or_default();
        let told = text(&Value::String(format!("{says}{mend}")));
        vec![verdict.word().to_owned(), (*check).to_owned(), told]
    });
    table(&rows.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// A machine on which all is well: one software card on the machine's network, one behind VFIO.
    pub(super) struct Machine {
        pub(super) home: tempfile::TempDir,
        pub(super) patient: Patient,
    }

    impl Machine {
        pub(super) fn well() -> Self {
            let home = tempfile::tempdir().unwrap();
            let user = geteuid().as_raw();
            let card = |number: u32, driver: &str, location: &str| {
                json!({
                    "card": number, "name": format!("balboa{number}"), "driver": driver,
                    "location": location, "link": "switch", "netdev": null, "link_up": true, "firmware": "1.2.1",
                    "active_mtu": 4096, "max_mtu": 4096, "gids": ["fe80::1", "::ffff:10.0.0.1"],
                    "windows": [{ "window": 0, "dead": null }], "shadow": null,
                    "counters": { "drop_no_neighbour": 0 }, "quarantine": { "keys": 0 },
                })
            };
            let mut soft = card(0, "softcard", "soft:00:00.0");
            soft["link"] = "udp:eth0".into();
            soft["netdev"] = "eth0".into();
            let state = json!({
                "version": env!("CARGO_PKG_VERSION"), "pid": 7, "state_dir": "D", "contract": "1.2",
                "cards": [soft, card(1, "vfio-pci", "0000:3b:00.0")],
            });
            let machine = Self {
                patient: Patient {
                    root: home.path().to_owned(),
                    user,
                    groups: vec![],
                    state: Ok(state),
                    provider: Ok("P, for rdma-core 44".into()),
                    gro: |_| Some(true),
                },
                home,
            };
            machine.write("proc/7/limits", "Max locked memory  unlimited  unlimited  bytes\n");
            machine.write("proc/self/limits", "Max locked memory  unlimited  unlimited  bytes\n");
            machine.write("proc/sys/kernel/yama/ptrace_scope", "1\n");
            machine.write("proc/sys/user/max_user_namespaces", "10000\n");
            machine.write("proc/sys/net/core/rmem_max", "4194304\n");
            machine.write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
            machine.write("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc");
            machine.write("dev/vfio/7", "");
            machine.write("etc/udev/rules.d/70-b.rules", "SUBSYSTEM==\"vfio\", GROUP=\"rdma\"\n");
            machine.write("sys/class/iommu/dmar0/name", "");
            machine.write("sys/bus/pci/drivers/vfio-pci/unbind", "");
            machine.function("0000:3b:00.0", "0x903f", Some("vfio-pci"));
            machine
        }

        pub(super) fn write(&self, path: &str, text: &str) {
            let path = self.home.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        /// Puts a function into IOMMU group 7.
        pub(super) fn function(&self, address: &str, device: &str, driver: Option<&str>) {
            use std::os::unix::fs::symlink;
            let at = format!("sys/bus/pci/devices/{address}");
            self.write(&format!("{at}/vendor"), "0x10ee\n");
            self.write(&format!("{at}/device"), device);
            let root = self.home.path();
            let group = root.join("sys/kernel/iommu_groups/7");
            fs::create_dir_all(group.join("devices")).unwrap();
            symlink(&group, root.join(&at).join("iommu_group")).unwrap();
            symlink(root.join(&at), group.join("devices").join(address)).unwrap();
            if let Some(driver) = driver {
                let of = root.join("sys/bus/pci/drivers").join(driver);
                symlink(of, root.join(&at).join("driver")).unwrap();
            }
        }

        /// A field of the first card.
        pub(super) fn card(&mut self, field: &str) -> &mut Value {
            &mut self.patient.state.as_mut().unwrap()["cards"][0][field]
        }

        /// The finding of the one check that does not find all well, and the mend.
        pub(super) fn ill(&self, check: &str, verdict: Verdict) -> (String, String) {
            let found = examine(&self.patient);
            let ill: Vec<_> = found
                .into_iter()
                .filter(|it| matches!(it.verdict, Verdict::Note | Verdict::Wrong))
                .collect();
            let [Finding { check: of, verdict: is, says, mend }] = &*ill else {
                panic!("one thing is wrong: {ill:?}")
            };
            assert_eq!((*of, *is), (check, verdict), "{ill:?}");
            (says.clone(), mend.clone().unwrap())
        }
    }

    #[test]
    fn on_a_machine_that_is_well_every_check_is_fine() {
        let machine = Machine::well();
        let found = examine(&machine.patient);
        let ill: Vec<_> = found.iter().filter(|it| it.verdict != Verdict::Fine).collect();
        let unknown = |it: &&Finding| it.check == "FEC" && it.verdict == Verdict::Nothing;
        assert!(ill.len() == 2 && ill.iter().all(unknown), "{ill:?}");
        let text = as_text(&found);
        assert!(text.starts_with("ok  balboad "), "{text}");
        assert_eq!(as_json(&found[0])["verdict"], "ok");
    }

    #[test]
    fn without_a_balboad_the_machine_is_looked_at_all_the_same() {
        let mut machine = Machine::well();
        machine.patient.state = Err("no balboad serves D: start one".into());
        let (says, mend) = machine.ill("balboad", Verdict::Wrong);
        assert_eq!((&*says, &*mend), ("no balboad serves D", "start one"));
        machine.patient.state = Err("it does not answer".into());
        assert_eq!(machine.ill("balboad", Verdict::Wrong).1, "look at balboad's log");
    }

    /// Each check has a machine on which it does not find all well.
    #[test]
    fn no_check_finds_all_well_on_every_machine() {
        const CLOCK: &str = "sys/devices/system/clocksource/clocksource0/current_clocksource";
        const PAGES: &str = "sys/kernel/mm/transparent_hugepage/enabled";
        const FUNCTION: &str = "sys/bus/pci/devices/0000:3b:00.0";
        type Spoil = fn(&mut Machine);
        let without = |machine: &Machine, link: &str| {
            fs::remove_file(machine.home.path().join(FUNCTION).join(link)).unwrap();
        };
        let spoilt: [(&str, Spoil); 24] = [
            ("balboad", |it| it.patient.state = Err("none: start it".into())),
            ("release", |it| it.patient.state.as_mut().unwrap()["version"] = "0.0.9".into()),
            ("libibverbs", |it| it.patient.provider = Err("none: install it".into())),
            ("ptrace", |it| it.write("proc/sys/kernel/yama/ptrace_scope", "3\n")),
            ("memlock", |it| it.write("proc/7/limits", "Max locked memory  64  64  bytes\n")),
            ("huge pages", |it| it.write(PAGES, "always madvise [never]\n")),
            ("clock", |it| it.write(CLOCK, "hpet")),
            ("permissions", |it| it.patient.user = 12345),
            ("udev", |it| it.write("etc/udev/rules.d/70-b.rules", "")),
            ("contract", |it| *it.card("firmware") = "1.9.1".into()),
            ("engine", |it| *it.card("windows") = json!([{ "window": 0, "dead": "yes" }])),
            ("link", |it| *it.card("link_up") = false.into()),
            ("MTU", |it| *it.card("active_mtu") = 1024.into()),
            ("GID", |it| *it.card("gids") = json!(["fe80::1"])),
            ("neighbour", |it| *it.card("counters") = json!({ "drop_no_neighbour": 1 })),
            ("frames", |it| *it.card("counters") = json!({ "drop_malformed": 1 })),
            ("congestion", |it| *it.card("counters") = json!({ "rp_cnp_ignored": 1_000 })),
            ("pauses", |it| *it.card("counters") = json!({ "pfc_watchdog_detected": 1 })),
            ("UDP 4791", |it| *it.card("counters") = json!({ "sent_pkts": 1 })),
            ("rp_filter", |it| {
                it.write("proc/sys/net/ipv4/conf/eth0/rp_filter", "1\n");
                it.write("proc/net/netstat", "TcpExt: IPReversePathFilter\nTcpExt: 1\n");
            }),
            ("receive room", |it| it.write("proc/sys/net/core/rmem_max", "212992\n")),
            ("GRO", |it| it.patient.gro = |_| Some(false)),
            ("shadow", |it| *it.card("shadow") = json!({ "trouble": "it is gone" })),
            ("namespaces", |it| {
                (it.patient.user, it.patient.groups) = (12345, vec![0]);
                it.write("proc/sys/user/max_user_namespaces", "0\n");
            }),
        ];
        let ill = |machine: &Machine| -> Vec<&str> {
            let found = examine(&machine.patient).into_iter();
            let ill = found.filter(|it| matches!(it.verdict, Verdict::Note | Verdict::Wrong));
            ill.map(|it| it.check).collect()
        };
        let mut seen = BTreeSet::new();
        for (check, spoil) in spoilt {
            let mut machine = Machine::well();
            spoil(&mut machine);
            assert!(ill(&machine).contains(&check), "{check}: {:?}", ill(&machine));
            seen.insert(check);
        }
        for (check, link) in [("IOMMU", "iommu_group"), ("vfio-pci", "driver")] {
            let machine = Machine::well();
            without(&machine, link);
            assert_eq!(ill(&machine), [check]);
            seen.insert(check);
        }
        // No card has a register that tells of it, as this finding says.
        seen.insert("FEC");
        let all = examine(&Machine::well().patient).into_iter().map(|it| it.check);
        assert_eq!(all.collect::<BTreeSet<_>>(), seen);
    }
}
