//! The table of cases, by family.

use crate::attack::{self, phase::Length};
use crate::runner::{Case, Need};

mod acknowledged;
pub mod apps;
pub(crate) mod capture;
mod chaos;
pub(crate) mod cm;
pub(crate) mod counters;
mod data;
mod datagrams;
mod death;
mod discovery;
pub(crate) mod faults;
pub(crate) mod flash;
pub(crate) mod image;
mod lifecycle;
mod many;
mod nccl;
pub(crate) mod perftest;
pub(crate) mod pingpong;
mod port;
pub(crate) mod rdmacm;
pub mod release;
mod scale;
mod sentences;
pub(crate) mod shell;
pub(crate) mod stock;
mod tool;
mod ucx;
mod usage;

/// ibv_devices, ibv_devinfo and the pingpongs.
pub(crate) const IBVERBS_UTILS: Need = Need::Program("ibv_devinfo", "ibverbs-utils");
/// ib_write_bw and its kin.
pub(crate) const PERFTEST: Need = Need::Program("ib_write_bw", "perftest");

/// All cases, in the order in which they run: what fails for simple reasons first.
pub fn all() -> Vec<Case> {
    let families = [
        sentences::cases(),
        usage::cases(),
        image::cases(),
        discovery::cases(),
        lifecycle::cases(),
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
        counters::cases(),
        port::cases(),
        tool::cases(),
        flash::cases(),
        shell::cases(),
        many::cases(),
        death::cases(),
        scale::cases(),
        chaos::cases(),
        attack::cases(Length::Short),
    ];
    families.into_iter().flatten().collect()
}

/// Those that are to be tried on kernels with RDMA support as well: what `balboa run` hides and
/// shows, and that data moves.
pub(crate) fn for_kernels_with_rdma() -> Vec<Case> {
    let few = |case: &Case| ["verbs-data/sweep", "verbs-data/errors"].contains(&&*case.name);
    discovery::cases().into_iter().chain(data::cases().into_iter().filter(few)).collect()
}
