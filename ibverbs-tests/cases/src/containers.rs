//! Containers as their runtimes make them by default: root without a capability, a /dev of its own, and a profile by which
//! nothing in them makes a namespace or mounts anything.

use anyhow::Result;
use harness::machines::{IPV4, Machines, WIRE};
use harness::pair::{both_say, free_port, run_pair_in, start_server};
use harness::process::Task;
use harness::runner::{Case, Need};
use harness::setting::Setting;

use super::PERFTEST;

const UNSHARE: Need = Need::Program("unshare", "util-linux");
const IP: Need = Need::Program("ip", "iproute2");

/// The steps of a container's runtime that programs notice: device nodes from the machine, namespaces of its own, no
/// capabilities, and the profile.
const RUNTIME: &str = r#"
set -e
dev=$(mktemp -d)
mount -t tmpfs -o mode=755 dev "$dev"
for node in null zero full random urandom; do
    : > "$dev/$node"
    mount --bind "/dev/$node" "$dev/$node"
done
mkdir "$dev/shm"
mount -t tmpfs shm "$dev/shm"
mount --rbind "$dev" /dev
echo 0 > /proc/sys/user/max_user_namespaces
exec setpriv --bounding-set=-all --inh-caps=-all "$@"
"#;

/// The family.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("containers/cards of the machine's balboad", &[PERFTEST, UNSHARE], one_balboad),
        Case::new(
            "containers/two with a balboad each on one network",
            &[PERFTEST, UNSHARE, IP],
            two_balboads,
        ),
    ]
}

/// A program as the first process of a container.
fn container(setting: &Setting, program: &Task) -> Task {
    let words = "--user --map-root-user --mount --pid --fork --kill-child --mount-proc sh -c";
    let task = setting.task("unshare").words(words).arg(RUNTIME).arg("sh");
    task.arg(setting.bin.join("deny-namespaces")).args(program.command_line())
}

/// Each container has one of two cards.
fn one_balboad(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 2")?;
    let port = free_port()?;
    let side = |card: u32, option: &str| {
        let balboa = setting.built("balboa").words("run").words(option).arg("--state-dir");
        let task = balboa.arg(daemon.state_dir()).words("-- ib_write_bw -F -x 1 -n 200");
        task.words(&format!("-d balboa{card} -p {port}"))
    };
    // The container allows no namespace, and the sentence names the option that needs none.
    let refused = container(setting, &side(0, "")).run()?.code(125)?;
    refused.complains("the kernel does not let even root make a user namespace")?;
    let server = start_server(container(setting, &side(0, "--in-place")), port)?;
    container(setting, &side(1, "--in-place").arg("127.0.0.1")).run()?.success()?;
    server.wait()?.success()?;
    daemon.stop()
}

/// Each container has a network of its own, and starts a balboad there.
fn two_balboads(setting: &Setting) -> Result<()> {
    let machines = Machines::new(setting, 1500)?;
    let port = free_port()?;
    let side = |number: usize, option: &str| {
        let state = setting.directory().join(format!("container{number}"));
        let balboa = setting.built("balboa").words("run --in-place --state-dir").arg(state);
        let task = balboa.words(&format!("--start --soft 1 --port udp:{WIRE} --"));
        let task = task.words(&format!("ib_write_bw -F -x 0 -n 200 -d balboa0 -p {port} {option}"));
        machines.task(number, &container(setting, &task))
    };
    let both = run_pair_in(&machines.process(0), side(0, ""), side(1, IPV4[0]), port)?;
    both_say(&both, "65536 ")
}
