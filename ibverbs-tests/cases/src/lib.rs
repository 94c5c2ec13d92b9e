//! End-to-end tests: the distribution's verbs programs on software cards, as their users run them.
//!
//! This file is the table of cases on this machine, by family; [`guest`] is that of the virtual machine, [`interop`] and
//! [`guest_pair`] have the cases against machines. Their [`harness`] runs and counts them.

#![forbid(unsafe_code)]

use harness::runner::{Case, Need, When};

use crate::attack::phase::Length;

mod acknowledged;
pub mod apps;
pub mod attack;
pub(crate) mod capture;
pub mod chaos;
pub(crate) mod cm;
mod congestion;
mod containers;
pub(crate) mod counters;
mod data;
mod datagrams;
mod death;
mod discovery;
pub(crate) mod faults;
pub(crate) mod flash;
mod footprint;
pub mod guest;
pub mod guest_pair;
mod hosts;
pub(crate) mod image;
pub mod interop;
mod lifecycle;
mod many;
mod modules;
mod nccl;
mod netlink;
pub(crate) mod perftest;
pub(crate) mod pingpong;
mod port;
mod psp;
mod qos;
pub(crate) mod rdmacm;
pub mod release;
mod scale;
mod sentences;
mod served;
mod services;
pub(crate) mod shell;
mod start;
pub(crate) mod stock;
mod tool;
mod ucx;
mod udp;
mod usage;

/// ibv_devices, ibv_devinfo and the pingpongs.
pub(crate) const IBVERBS_UTILS: Need = Need::Program("ibv_devinfo", "ibverbs-utils");
/// ib_write_bw and its kin.
pub(crate) const PERFTEST: Need = Need::Program("ib_write_bw", "perftest");

/// All cases, in the order in which they run: those that fail for simple reasons first.
pub fn all() -> Vec<Case> {
    let families = [
        sentences::cases(),
        usage::cases(),
        image::cases(),
        discovery::cases(),
        netlink::cases(),
        lifecycle::cases(),
        start::cases(),
        pingpong::cases(),
        perftest::cases(),
        stock::cases(),
        datagrams::cases(),
        rdmacm::cases(),
        ucx::cases(),
        apps::quick(),
        data::cases(),
        nccl::cases(),
        faults::cases(),
        capture::cases(),
        cm::cases(),
        acknowledged::cases(),
        congestion::cases(),
        qos::cases(),
        counters::cases(),
        port::cases(),
        services::cases(),
        served::cases(),
        modules::cases(),
        psp::cases(),
        udp::cases(),
        containers::cases(),
        hosts::cases(),
        tool::cases(),
        flash::cases(),
        shell::cases(),
        many::cases(),
        death::cases(),
        scale::cases(),
        chaos::cases(),
        attack::cases(Length::Short),
        usage::cases_that_build(),
    ];
    let mut cases: Vec<Case> = families.into_iter().flatten().collect();
    for case in cases.iter_mut().filter(|case| !in_default(&case.name)) {
        case.when = When::Full;
    }
    cases
}

/// The cases of large families that the default run has, by the beginnings of their names: one or two of each way that
/// data takes. The default run has the other families whole, except for the cases that root repeats and those of [`LEFT_OUT`].
const FEW: [(&str, &[&str]); 18] = [
    (
        "ibv_rc_pingpong/",
        &["-m 1024 -g 1", "-m 4096 -g 0 -e", "-g 1 -t -N", "-g 1 -j -N -e", "loopback"],
    ),
    ("ib_write_bw/", &["-b", "-a -n 200", "-c UC -b", "-I 64", "-W ", "-m 256"]),
    ("ib_read_bw/", &["-b", "-e", "-q 8", "-m 256"]),
    (
        "ib_send_bw/",
        &[
            "-b",
            "-e",
            "--use-srq -q 8",
            "-c UD -s",
            "-c UD -g",
            "-c UC -s",
            "-c XRC -n 400",
            "-m 256",
        ],
    ),
    ("ib_write_lat/", &["-n 500", "-I 200"]),
    ("ib_send_lat/", &["-n 500", "-c UD -n 500"]),
    ("ib_atomic_bw/", &["-A CMP_AND_SWAP", "-c XRC -A CMP"]),
    (
        "stock/",
        &[
            "ib_write_bw with",
            "verbs-data published",
            "what needs the tunnel",
            "a program is told",
            "tunnel/ib_send_bw -b",
            "tunnel/ibv_rc_pingpong -c",
            "tunnel/verbs-data sweep --gid 1",
            "tunnel/verbs-data grants",
            "tunnel/two balboads",
            "tunnel/a balboad is killed amid ib_send_bw",
            "tunnel/one card/ib_send_bw",
            "tunnel/ibv_ud_pingpong",
            "a loss stops a card",
        ],
    ),
    (
        "rdmacm/",
        &[
            "rping",
            "ucmatose",
            "udaddy",
            "rdma_",
            "rstream",
            "ib_write_bw -R",
            "ib_send_bw -R",
            "mckey",
            "channel",
            "cmtime",
        ],
    ),
    (
        "ucx/",
        &[
            "rc_verbs/tag_bw",
            "rc_verbs/ucp_cswap",
            "ud_verbs/tag_bw",
            "its own choice/tag_lat",
            "ucx_info",
        ],
    ),
    ("udp/208 KiB/", &["data/MTU", "incast"]),
    ("hosts/208 KiB/", &["nccl"]),
    (
        "psp/",
        &[
            "data/sweep/hdr0-aes-gcm-128",
            "bad cable",
            "rdma_cm",
            "a wrong key",
            "keys that",
            "an injector",
        ],
    ),
    ("served/", &["switch/sealed"]),
    ("qos/", &["settings", "a peer that pauses", "tags"]),
    ("bad cable/", &["loss/", "all/data", "all/unreliable", "corrupt/data"]),
    ("chaos/", &["50 random deaths from seed 0"]),
    (
        "attack/",
        &[
            "a receiver that is never ready",
            "neighbours",
            "pages",
            "registrations of nothing",
            "memory that does not answer/fuse",
            "a mapping",
            "a capture",
            "counters",
            "a cable",
            "requests for connections/by a program",
            "events that nobody reads",
            "another's queue pair",
            "a file for containers",
            "keys that others",
            "files and sockets",
            "a configuration",
            "an image whose name",
            "a program whose loader",
        ],
    ),
];

/// Cases that the default run leaves to the full run: those of a quarter of a minute and more that do over a bad cable
/// what another one does over a good one, and the one that needs the providers of other releases, which the default
/// run does not build.
const LEFT_OUT: [&str; 3] = [
    "usage/provider of another release",
    "services/change under traffic/bad cable",
    "services/modules come and go under traffic/bad cable",
];

/// Whether a case is in the default run of the test command.
fn in_default(name: &str) -> bool {
    if name.ends_with("/root") || LEFT_OUT.contains(&name) {
        return false;
    }
    let few = FEW.iter().find_map(|(family, few)| Some((name.strip_prefix(family)?, few)));
    few.is_none_or(|(name, few)| few.iter().any(|beginning| name.starts_with(beginning)))
}

/// The cases to be tried on kernels with RDMA support as well: devices that `balboa run` hides and shows, and transfers
/// of data.
pub(crate) fn for_kernels_with_rdma() -> Vec<Case> {
    let few = |case: &Case| ["verbs-data/sweep", "verbs-data/errors"].contains(&&*case.name);
    // The kernels have no network devices that could be made there.
    let makes_devices = |case: &Case| case.needs.contains(&Need::Program("ip", "iproute2"));
    let found = discovery::cases().into_iter().filter(|case| !makes_devices(case));
    found.chain(data::cases().into_iter().filter(few)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest;
    use harness::setting::Who;
    use harness::vm::{Hardware, Kernel};

    #[test]
    fn what_the_default_run_has_of_a_family_is_there_and_not_the_whole_of_it() {
        let cases = all();
        for (family, few) in FEW {
            for beginning in few {
                let begins = format!("{family}{beginning}");
                let mut named = cases.iter().filter(|case| case.name.starts_with(&begins));
                assert!(named.any(|case| case.when == When::Always), "{begins}");
            }
            let mut all = cases.iter().filter(|case| case.name.starts_with(family));
            assert!(all.any(|case| case.when == When::Full), "{family}");
        }
    }

    #[test]
    fn what_is_left_out_is_there_and_in_the_full_run() {
        let cases = all();
        for name in LEFT_OUT {
            assert!(
                cases.iter().any(|case| case.name == name && case.when == When::Full),
                "{name}"
            );
        }
    }

    #[test]
    fn each_family_of_cases_is_in_the_default_run() {
        let family = |name: &str| name.split(['/', '_']).next().unwrap_or_default().to_owned();
        let cases = all();
        let default = cases.iter().filter(|case| case.when == When::Always);
        let default: Vec<String> = default.map(|case| family(&case.name)).collect();
        for case in &cases {
            assert!(default.contains(&family(&case.name)), "{}", case.name);
        }
    }

    #[test]
    fn names_are_unique_and_root_is_in_the_name() {
        let guests = |iommufd| {
            let kernel = Kernel { release: "6.12", iommufd };
            let of = |hardware| guest::cases(hardware, kernel);
            Hardware::ALL.into_iter().flat_map(of).collect()
        };
        for cases in [all(), guests(false), guests(true)] {
            let mut names: Vec<&str> = cases.iter().map(|case| case.name.as_str()).collect();
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count);
            let says_so = |case: &Case| (case.who == Who::Root) == case.name.ends_with("/root");
            assert!(cases.iter().all(says_so));
        }
    }
}
