//! Checks of the machine, for programs and balboad.

use serde_json::Value;
use shim_abi::MAX_IMAGE;

use super::{Finding, Patient, items, refusal, text};

/// Bytes that balboad and each program lock at least for a card behind an IOMMU: rings and registered memory.
const LOCKED: u64 = 64 << 20;
/// Bytes that balboad locks besides for a card as published, and for each of its vFPGAs: the guard pages of stray
/// copies, and sinks, rings and slots.
const LOCKED_AS_PUBLISHED: (u64, u64) = (6 << 20, 13 << 20);
/// Clocks of the kernel that programs read without asking it.
const FAST_CLOCKS: [&str; 4] =
    ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"];

/// Whether a balboad answers.
pub(super) fn balboad(patient: &Patient) -> Vec<Finding> {
    const CHECK: &str = "balboad";
    vec![match &patient.state {
        Ok(state) => {
            let of = |field| text(&state[field]);
            Finding::fine(CHECK, format!("process {} serves {}", of("pid"), of("state_dir")))
        }
        // The client's sentences have the mend behind the colon.
        Err(why) => match why.split_once(": ") {
            Some((says, mend)) => Finding::wrong(CHECK, says, mend),
            None => Finding::wrong(CHECK, why, "look at balboad's log"),
        },
    }]
}

/// Whether balboad and this program are of one release.
pub(super) fn release(patient: &Patient) -> Vec<Finding> {
    const CHECK: &str = "release";
    let Ok(state) = &patient.state else { return Vec::new() };
    let (theirs, ours) = (text(&state["version"]), env!("CARGO_PKG_VERSION"));
    vec![match theirs == ours {
        true => Finding::fine(CHECK, format!("balboad and balboa are {ours}")),
        false => Finding::wrong(
            CHECK,
            format!("balboad is {theirs}, and this is {ours}"),
            "end balboad and start the one of this release",
        ),
    }]
}

/// Whether there is a provider for the libibverbs that programs load.
pub(super) fn provider(patient: &Patient) -> Vec<Finding> {
    const CHECK: &str = "libibverbs";
    vec![match &patient.provider {
        Ok(provider) => Finding::fine(CHECK, provider),
        Err(why) => match why.rsplit_once(": ") {
            Some((says, mend)) => Finding::wrong(CHECK, says, mend),
            None => Finding::wrong(CHECK, why, "install the provider of that release"),
        },
    }]
}

/// Whether `balboa run` may make a world for a program.
pub(super) fn namespaces(patient: &Patient) -> Vec<Finding> {
    const CHECK: &str = "namespaces";
    if patient.user == 0 {
        return vec![Finding::fine(CHECK, "root may make them")];
    }
    vec![match refusal::forbidden(&patient.root) {
        None => Finding::fine(CHECK, "this user may make them, as balboa run does"),
        Some((says, mend)) => Finding::wrong(CHECK, says, mend),
    }]
}

/// Whether the kernel lets balboad reach the memory of programs: a program out of its reach is not served.
pub(super) fn reach(patient: &Patient) -> Vec<Finding> {
    const CHECK: &str = "ptrace";
    let scope = patient.read("proc/sys/kernel/yama/ptrace_scope");
    let forbids = |scope: &str| scope == "3" || (scope == "2" && patient.user != 0);
    vec![match scope {
        Some(scope) if forbids(&scope) => Finding::wrong(
            CHECK,
            format!(
                "kernel.yama.ptrace_scope is {scope}: balboad does not reach the memory of programs"
            ),
            match &*scope {
                "3" => "set it to 1 in /etc/sysctl.d, and boot: 3 stays until then",
                _ => "sudo sysctl kernel.yama.ptrace_scope=1, or run balboad as root",
            },
        ),
        Some(scope) => Finding::fine(CHECK, format!("kernel.yama.ptrace_scope is {scope}")),
        None => Finding::fine(CHECK, "the kernel has no Yama"),
    }]
}

/// Whether enough memory may be locked for cards behind an IOMMU.
pub(super) fn memlock(patient: &Patient) -> Vec<Finding> {
    const CHECK: &str = "memlock";
    if !patient.has("vfio-pci") {
        return vec![Finding::nothing(CHECK, "no card behind VFIO locks memory")];
    }
    let balboad = patient.state.as_ref().map(|state| text(&state["pid"])).unwrap_or_default();
    let limit = |process: &str| {
        let limits = patient.read(&format!("proc/{process}/limits"))?;
        let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
        // Soft, hard: balboad raises its own as far as it may.
        let mut words = line.split_whitespace();
        match process == "self" {
            true => words.next().map(str::to_owned),
            false => words.nth(1).map(str::to_owned),
        }
    };
    let is_hosted = |card: &&Value| card["driver"] == "vfio-pci" && card["engine"] == "stock";
    let published = patient.cards().iter().filter(is_hosted);
    let (of_card, of_vfpga) = LOCKED_AS_PUBLISHED;
    let hosting = published.map(|card| {
        of_card.saturating_add(of_vfpga.saturating_mul(items(&card["windows"]).len() as u64))
    });
    let of_balboad = hosting.fold(LOCKED, u64::saturating_add);
    let mut small = Vec::new();
    let whose = [("balboad", &*balboad, of_balboad), ("programs started here", "self", LOCKED)];
    for (whose, process, wanted) in whose {
        match limit(process) {
            Some(limit) if limit == "unlimited" => {}
            Some(limit) if limit.parse().is_ok_and(|limit: u64| limit >= wanted) => {}
            Some(limit) => small.push(format!("{whose} may lock {limit} bytes, not {wanted}")),
            // It is another user's, say.
            None => {}
        }
    }
    let is_fpga =
        |card: &Value| card["driver"] == "vfio-pci" && card["flash"]["takes"] == "bitstreams";
    let of_shell = of_balboad.saturating_add(MAX_IMAGE);
    let is_tight = limit(&balboad).is_some_and(|it| it.parse().is_ok_and(|it: u64| it < of_shell));
    vec![match small.is_empty() {
        true if is_tight && patient.cards().iter().any(is_fpga) => Finding::note(
            CHECK,
            format!(
                "balboad may lock less than {of_shell} bytes, so that it may refuse to load a shell"
            ),
            "raise it with ulimit -l or LimitMEMLOCK= before balboa flash loads a large one",
        ),
        true => Finding::fine(CHECK, "balboad and programs may lock memory for rings and regions"),
        false => Finding::wrong(
            CHECK,
            small.join(", "),
            "raise it with ulimit -l, LimitMEMLOCK= or /etc/security/limits.conf (memlock unlimited), and start them again",
        ),
    }]
}

/// Whether the provider may put huge pages behind memory that programs register.
pub(super) fn huge_pages(patient: &Patient) -> Vec<Finding> {
    const CHECK: &str = "huge pages";
    let setting = patient.read("sys/kernel/mm/transparent_hugepage/enabled");
    vec![match setting {
        Some(setting) if setting.contains("[never]") => Finding::note(
            CHECK,
            "transparent huge pages are off: large messages are slower",
            "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
        ),
        Some(setting) => Finding::fine(CHECK, format!("transparent huge pages: {setting}")),
        None => Finding::note(
            CHECK,
            "the kernel has no transparent huge pages: large messages are slower",
            "boot a kernel with CONFIG_TRANSPARENT_HUGEPAGE",
        ),
    }]
}

/// Whether programs and cards read the time without asking the kernel.
pub(super) fn clock(patient: &Patient) -> Vec<Finding> {
    const CHECK: &str = "clock";
    let clock = patient.read("sys/devices/system/clocksource/clocksource0/current_clocksource");
    vec![match clock {
        Some(clock) if FAST_CLOCKS.contains(&&*clock) => Finding::fine(CHECK, clock),
        Some(clock) => Finding::note(
            CHECK,
            format!(
                "the kernel's clock is {clock}: each look at it costs a system call, or a device's access"
            ),
            "boot with clocksource=tsc, if the kernel's log does not call the TSC unstable",
        ),
        None => Finding::nothing(CHECK, "the kernel does not tell which clock it has"),
    }]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Verdict;
    use super::super::tests::Machine;
    use super::memlock;

    #[test]
    fn a_balboad_of_another_release_is_to_be_started_again() {
        let mut machine = Machine::well();
        machine.patient.state.as_mut().unwrap()["version"] = "0.0.9".into();
        let (says, mend) = machine.ill("release", Verdict::Wrong);
        assert!(says.starts_with("balboad is 0.0.9") && mend.contains("start"), "{says}: {mend}");
    }

    #[test]
    fn a_missing_provider_is_told_with_what_to_install() {
        let mut machine = Machine::well();
        machine.patient.provider = Err("libibverbs is not installed: apt-get install it".into());
        assert_eq!(machine.ill("libibverbs", Verdict::Wrong).1, "apt-get install it");
        machine.patient.provider = Err("it has no provider".into());
        assert!(machine.ill("libibverbs", Verdict::Wrong).1.starts_with("install the provider"));
    }

    #[test]
    fn switches_of_the_kernel_that_stand_in_the_way_are_named() {
        let mut machine = Machine::well();
        machine.patient.user = 1000;
        // The user of this test owns the device's node.
        machine.patient.groups = vec![nix::unistd::getegid().as_raw()];
        std::fs::set_permissions(
            machine.home.path().join("dev/vfio/7"),
            std::os::unix::fs::PermissionsExt::from_mode(0o666),
        )
        .unwrap();
        machine.write("proc/sys/user/max_user_namespaces", "0\n");
        let (_, mend) = machine.ill("namespaces", Verdict::Wrong);
        assert!(mend.contains("sysctl user.max_user_namespaces=10000"), "{mend}");
        machine.write("proc/sys/user/max_user_namespaces", "10000\n");
        machine.write("proc/sys/kernel/yama/ptrace_scope", "2\n");
        let (_, mend) = machine.ill("ptrace", Verdict::Wrong);
        assert!(mend.contains("sysctl kernel.yama.ptrace_scope=1"), "{mend}");
        machine.write("proc/sys/kernel/yama/ptrace_scope", "3\n");
        assert!(machine.ill("ptrace", Verdict::Wrong).1.contains("boot"));
    }

    #[test]
    fn whose_limit_of_locked_memory_is_small_is_told() {
        let mut machine = Machine::well();
        let small = "Max locked memory  8388608  8388608  bytes\n";
        machine.write("proc/self/limits", small);
        let (says, mend) = machine.ill("memlock", Verdict::Wrong);
        assert_eq!(says, "programs started here may lock 8388608 bytes, not 67108864");
        assert!(mend.contains("ulimit -l"), "{mend}");
        machine.write("proc/7/limits", small);
        assert!(machine.ill("memlock", Verdict::Wrong).0.starts_with("balboad may lock 8388608"));
        // balboad raises its limits as far as it is allowed to.
        machine.write("proc/7/limits", "Max locked memory  8388608  unlimited  bytes\n");
        assert!(machine.ill("memlock", Verdict::Wrong).0.starts_with("programs"));
        // A published card takes more, by its vFPGAs.
        let enough = "Max locked memory  67108864  67108864  bytes\n";
        machine.write("proc/self/limits", enough);
        machine.write("proc/7/limits", enough);
        let fine = |machine: &Machine| memlock(&machine.patient)[0].verdict == Verdict::Fine;
        assert!(fine(&machine));
        *machine.card("driver") = "vfio-pci".into();
        *machine.card("engine") = "stock".into();
        *machine.card("windows") = json!([{ "window": 0 }, { "window": 1 }]);
        let says = memlock(&machine.patient).remove(0).says;
        let wanted = (64 + 6 + 2 * 13) << 20;
        assert_eq!(says, format!("balboad may lock 67108864 bytes, not {wanted}"));
        // A shell on its way into an FPGA is locked as a whole.
        *machine.card("engine") = "vqe".into();
        assert!(fine(&machine));
        *machine.card("flash") = json!({ "takes": "bitstreams" });
        assert!(machine.ill("memlock", Verdict::Note).0.contains("refuse to load a shell"));
        machine.write("proc/7/limits", "Max locked memory  201326592  201326592  bytes\n");
        assert!(fine(&machine));
    }

    #[test]
    fn what_costs_speed_is_noted() {
        let machine = Machine::well();
        machine.write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
        assert!(machine.ill("huge pages", Verdict::Note).1.contains("echo madvise"));
        std::fs::remove_dir_all(machine.home.path().join("sys/kernel/mm")).unwrap();
        assert!(machine.ill("huge pages", Verdict::Note).1.contains("CONFIG_TRANSPARENT"));
        let machine = Machine::well();
        machine.write("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet");
        assert!(machine.ill("clock", Verdict::Note).1.contains("clocksource=tsc"));
    }
}
