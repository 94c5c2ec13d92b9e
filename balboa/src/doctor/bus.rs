//! Cards on the PCI bus, on their way to a balboad.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use vfio::sysfs::{Function, VFIO_PCI};
use vfio::{Interface, Sysfs};

use super::{Finding, Patient};

/// Directories of udev's rules.
const RULES: [&str; 4] =
    ["etc/udev/rules.d", "run/udev/rules.d", "usr/lib/udev/rules.d", "lib/udev/rules.d"];

fn sysfs(patient: &Patient) -> Sysfs {
    Sysfs::at(patient.at("sys"))
}

/// One finding for each card on the bus; where there is none, that.
fn each(
    patient: &Patient,
    check: &'static str,
    look: impl Fn(&Sysfs, &Function) -> Option<Finding>,
) -> Vec<Finding> {
    let sysfs = sysfs(patient);
    let cards = sysfs.cards();
    if cards.is_empty() {
        return vec![Finding::nothing(check, "no card is on the PCI bus")];
    }
    cards.iter().filter_map(|card| look(&sysfs, card)).collect()
}

/// Whether the cards are behind an IOMMU.
pub(super) fn iommu(patient: &Patient) -> Vec<Finding> {
    const CHECK: &str = "IOMMU";
    each(patient, CHECK, |_, card| {
        let address = card.address;
        Some(match card.iommu_group() {
            Some(group) => Finding::fine(CHECK, format!("{address} is in group {group}")),
            None => Finding::wrong(
                CHECK,
                format!("{address} is behind no IOMMU"),
                "switch VT-d or AMD-Vi on in the firmware; on an Intel machine boot with intel_iommu=on",
            ),
        })
    })
}

/// Whether they are bound to `vfio-pci`, in groups without other users.
pub(super) fn binding(patient: &Patient) -> Vec<Finding> {
    const CHECK: &str = "vfio-pci";
    each(patient, CHECK, |sysfs, card| {
        let address = card.address;
        let group = card.iommu_group()?;
        Some(match card.driver().as_deref() {
            Some(VFIO_PCI) => match sysfs.in_the_way(group) {
                Ok(others) if !others.is_empty() => {
                    let others: Vec<_> = others.iter().map(ToString::to_string).collect();
                    Finding::wrong(
                        CHECK,
                        format!(
                            "drivers of the kernel's use {} in the group of {address}",
                            others.join(", ")
                        ),
                        "take each from its driver: echo ADDRESS | sudo tee /sys/bus/pci/devices/ADDRESS/driver/unbind",
                    )
                }
                _ => Finding::fine(CHECK, format!("{address} is bound to it")),
            },
            _ if sysfs.driver(VFIO_PCI).is_none() => Finding::wrong(
                CHECK,
                "the kernel has not loaded it",
                "sudo modprobe vfio-pci, then sudo balboa bind",
            ),
            driver => Finding::wrong(
                CHECK,
                format!("{address} is bound to {}", driver.unwrap_or("no driver")),
                format!("sudo balboa bind {address}, then balboad --vfio {address}"),
            ),
        })
    })
}

/// The nodes by which a card that is bound is reached.
fn nodes(patient: &Patient, card: &Function) -> Vec<std::path::PathBuf> {
    if card.driver().as_deref() != Some(VFIO_PCI) {
        return Vec::new();
    }
    let interface = Interface::in_machine(&patient.root, card);
    interface.map(|it| it.nodes().into_iter().map(Path::to_owned).collect()).unwrap_or_default()
}

/// Whether this user may open the nodes of the cards.
pub(super) fn permissions(patient: &Patient) -> Vec<Finding> {
    const CHECK: &str = "permissions";
    each(patient, CHECK, |_, card| {
        let nodes = nodes(patient, card);
        if nodes.is_empty() {
            return None;
        }
        let shut: Vec<String> = nodes
            .iter()
            .filter(|node| !may_open(patient, node))
            .map(|node| node.display().to_string())
            .collect();
        Some(match shut.is_empty() {
            true => Finding::fine(CHECK, format!("this user may open {}", card.address)),
            false => Finding::wrong(
                CHECK,
                format!("this user may not open {}", shut.join(" ")),
                format!("sudo chown $USER {}, or run balboad as root", shut.join(" ")),
            ),
        })
    })
}

/// Whether the patient's user may read and write a node, by its mode.
fn may_open(patient: &Patient, node: &Path) -> bool {
    let Ok(found) = fs::metadata(patient.root.join(node.strip_prefix("/").unwrap_or(node))) else {
        return false;
    };
    let bits = match () {
        () if patient.user == 0 => return true,
        () if found.uid() == patient.user => found.mode() >> 6,
        () if patient.groups.contains(&found.gid()) => found.mode() >> 3,
        () => found.mode(),
    };
    bits & 0o6 == 0o6
}

/// Whether the permissions of an ordinary user last over a boot.
pub(super) fn udev(patient: &Patient) -> Vec<Finding> {
    const CHECK: &str = "udev";
    let bound = sysfs(patient).cards().iter().any(|card| !nodes(patient, card).is_empty());
    if !bound {
        return vec![Finding::nothing(CHECK, "no card behind VFIO has a node")];
    }
    let ruled = RULES.iter().find_map(|rules| {
        let files = fs::read_dir(patient.at(rules)).ok()?;
        files.flatten().map(|file| file.path()).find(|path| {
            fs::read_to_string(path).is_ok_and(|text| {
                let rules = text.lines().filter(|line| !line.trim_start().starts_with('#'));
                let mut of_vfio = rules.filter(|line| line.contains("\"vfio"));
                of_vfio.any(|line| ["GROUP", "OWNER", "MODE"].iter().any(|it| line.contains(it)))
            })
        })
    });
    vec![match ruled {
        Some(path) => {
            let path = path.strip_prefix(&patient.root).unwrap_or(&path).display();
            Finding::fine(CHECK, format!("/{path} says whose the nodes of VFIO are"))
        }
        None => Finding::note(
            CHECK,
            "no rule gives the nodes of VFIO to a group: only root has them after a boot",
            r#"write SUBSYSTEM=="vfio", GROUP="rdma", MODE="0660" to /etc/udev/rules.d/70-balboa.rules"#,
        ),
    }]
}

#[cfg(test)]
mod tests {
    use super::super::tests::Machine;
    use super::super::{Verdict, examine};
    use super::*;

    #[test]
    fn a_card_behind_no_iommu_is_told_and_nothing_that_follows_from_it() {
        let machine = Machine::well();
        let function = machine.home.path().join("sys/bus/pci/devices/0000:3b:00.0");
        fs::remove_file(function.join("iommu_group")).unwrap();
        let (says, mend) = machine.ill("IOMMU", Verdict::Wrong);
        assert!(says.contains("0000:3b:00.0") && mend.contains("intel_iommu=on"), "{says}: {mend}");
    }

    #[test]
    fn a_card_with_another_driver_is_to_be_bound() {
        let machine = Machine::well();
        let function = machine.home.path().join("sys/bus/pci/devices/0000:3b:00.0");
        fs::remove_file(function.join("driver")).unwrap();
        let (says, mend) = machine.ill("vfio-pci", Verdict::Wrong);
        assert!(says.ends_with("no driver"), "{says}");
        assert!(mend.starts_with("sudo balboa bind 0000:3b:00.0"), "{mend}");
        fs::remove_dir_all(machine.home.path().join("sys/bus/pci/drivers/vfio-pci")).unwrap();
        assert!(machine.ill("vfio-pci", Verdict::Wrong).1.starts_with("sudo modprobe vfio-pci"));
    }

    #[test]
    fn a_neighbour_that_the_kernel_uses_is_named() {
        let machine = Machine::well();
        machine.write("sys/bus/pci/drivers/e1000e/unbind", "");
        machine.function("0000:3b:00.1", "0x10d3", Some("e1000e"));
        let (says, mend) = machine.ill("vfio-pci", Verdict::Wrong);
        assert!(says.contains("0000:3b:00.1") && mend.contains("driver/unbind"), "{says}: {mend}");
    }

    #[test]
    fn a_node_of_somebody_elses_is_to_be_given_away() {
        let mut machine = Machine::well();
        machine.patient.user = 12345;
        let (says, mend) = machine.ill("permissions", Verdict::Wrong);
        assert_eq!(says, "this user may not open /dev/vfio/7");
        assert!(mend.starts_with("sudo chown $USER /dev/vfio/7"), "{mend}");
        machine.patient.user = 0;
        let ill = |it: &Finding| matches!(it.verdict, Verdict::Note | Verdict::Wrong);
        assert!(!examine(&machine.patient).iter().any(ill));
    }

    #[test]
    fn nodes_that_no_rule_gives_away_are_roots_after_a_boot() {
        let machine = Machine::well();
        machine.write("etc/udev/rules.d/70-b.rules", "# SUBSYSTEM==\"vfio\", GROUP=\"rdma\"\n");
        let (_, mend) = machine.ill("udev", Verdict::Note);
        assert!(mend.contains("70-balboa.rules"), "{mend}");
    }

    #[test]
    fn without_a_card_on_the_bus_nothing_is_asked_of_it() {
        let machine = Machine::well();
        fs::remove_dir_all(machine.home.path().join("sys/bus/pci")).unwrap();
        for check in [iommu, binding, permissions, udev] {
            assert_eq!(check(&machine.patient)[0].verdict, Verdict::Nothing);
        }
    }
}
