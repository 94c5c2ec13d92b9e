//! Programs of another release of rdma-core, by cases of the other families, in a root directory that has them.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use harness::runner::{Case, Filter};
use harness::setting::Setting;

use super::{IBVERBS_UTILS, services};

/// Cases of the other families: each kind of object and operation once, by polling, by events and by the extended
/// verbs, and connections by rdma_cm.
const NAMES: [&str; 41] = [
    "ibv_devices",
    "ibv_devinfo/-v",
    "netlink/forks need no care",
    "netlink/a librdmacm that is loaded later is found",
    "ibv_rc_pingpong/-m 1024 -g 1",
    "ibv_rc_pingpong/-m 4096 -g 0 -e",
    "ibv_rc_pingpong/-g 1 -t",
    "ibv_rc_pingpong/-g 1 -t -N",
    "ibv_rc_pingpong/-g 1 -j -N -e",
    "ibv_srq_pingpong/-g 1",
    "ibv_srq_pingpong/-g 1 -e",
    "ibv_uc_pingpong/-g 1",
    "ibv_ud_pingpong/-g 1 -e",
    "ibv_xsrq_pingpong/-g 1",
    "ib_write_bw/-b",
    "ib_write_lat/-I 200 -s 200 -n 400",
    "ib_read_bw/-b",
    "ib_send_bw/-e",
    "ib_send_bw/--use-srq -q 8 -r 64",
    "ib_send_bw/-c UD -s 4096 -n 400",
    "ib_send_bw/-c UD -g -x 0 -s 1024 -n 400",
    "ib_send_bw/-c XRC -n 400",
    "ib_write_bw/-c UC -b",
    "ib_atomic_bw/-A CMP_AND_SWAP",
    "ib_atomic_lat/-A FETCH_AND_ADD",
    "rdmacm/rping",
    "rdmacm/rping/IPv6",
    "rdmacm/rping/killed balboad",
    "rdmacm/ucmatose",
    "rdmacm/udaddy",
    "rdmacm/mckey",
    "rdmacm/rstream",
    "rdmacm/rdma_xclient",
    "rdmacm/ib_write_bw -R -s 65536 -n 40",
    "rdmacm/ib_send_bw -R -s 65536 -n 40",
    "rdmacm/ib_send_bw -R -c UD -s 1024 -n 40",
    "ucx/rc_verbs/tag_bw -s 4096 -n 1000/gid 1",
    "ucx/rc_verbs/ucp_cswap -s 8 -n 500/gid 1",
    "ucx/ud_verbs/tag_bw -s 1048576 -n 50/gid 1",
    "ucx/ud_verbs/stream_bw -s 8192 -n 500/gid 1",
    "ucx/ucx_info -d",
];

/// The family.
pub fn cases(release: u32) -> Vec<Case> {
    let filter = Filter { parts: NAMES.map(str::to_owned).to_vec(), exact: true };
    let mut cases = super::all();
    cases.retain(|case| filter.takes(&case.name));
    for case in &mut cases {
        case.name = format!("release {release}/{}", case.name);
    }
    cases.push(Case::new(format!("release {release}/{OWN}"), &[IBVERBS_UTILS], own));
    // The compiler is this machine's.
    cases.push(Case::new(format!("release {release}/{ASKS}"), &[], services::asks));
    cases
}

/// A program that asks the provider by `balboa_dv.h`.
const ASKS: &str = "a program asks for services";
/// A program with an rdma-core of its own, on a machine with another.
const OWN: &str = "an rdma-core of the program's own";

/// The libraries that the programs of [`own`] load.
const LIBRARIES: [&str; 4] =
    ["libc.so.6", "libibverbs.so.1", "libnl-3.so.200", "libnl-route-3.so.200"];
const LOADER: &str = "ld-linux-x86-64.so.2";

/// A program with its own libraries, as in a build tree, conda or Spack, and nothing else of its own.
fn own(setting: &Setting) -> Result<()> {
    let root = &setting.root().context("a root")?.path;
    // Where roots are kept only their owner may look.
    let tree = setting.directory().join("own");
    fs::create_dir(&tree)?;
    let places = ["lib64", "lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu", "usr/bin"];
    let take = |name: &str| -> Result<()> {
        let found = places.iter().map(|place| root.join(place).join(name)).find(|it| it.exists());
        let found = found.with_context(|| format!("no {name} in {}", root.display()))?;
        fs::copy(found, tree.join(name)).map(drop).context(name.to_owned())
    };
    LIBRARIES.into_iter().chain([LOADER]).try_for_each(take)?;
    let daemon = setting.balboad("--soft 1")?;
    for program in ["ibv_devices", "ibv_devinfo"] {
        take(program)?;
        let task = setting.built("balboa").arg("run").arg("--state-dir").arg(daemon.state_dir());
        let task = task.arg("--").arg(tree.join(LOADER)).arg("--library-path").arg(&tree);
        let finished = task.arg(tree.join(program)).run()?.success()?.says("balboa0")?;
        // Of the machine's other drivers it may say that it has none.
        ensure!(!finished.stderr.contains("balboa"), "{finished}");
    }
    daemon.stop()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_cases() {
        let mut names: Vec<String> =
            super::super::all().into_iter().map(|case| case.name).collect();
        names.sort_unstable();
        let missing =
            NAMES.iter().filter(|name| names.binary_search(&(**name).to_owned()).is_err());
        assert_eq!(missing.collect::<Vec<_>>(), Vec::<&&str>::new());
        assert_eq!(cases(56).len(), NAMES.len() + 2);
    }
}
