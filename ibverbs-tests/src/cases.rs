//! The table of cases, by family.

use crate::attack::{self, phase::Length};
use crate::runner::{Case, Need};

mod acknowledged;
pub(crate) mod capture;
mod chaos;
mod cm;
pub(crate) mod counters;
mod data;
mod death;
mod discovery;
pub(crate) mod faults;
mod image;
mod lifecycle;
mod many;
mod perftest;
pub(crate) mod pingpong;
mod port;
mod scale;
mod sentences;
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
        ucx::cases(),
        data::cases(),
        faults::cases(),
        capture::cases(),
        cm::cases(),
        acknowledged::cases(),
        counters::cases(),
        port::cases(),
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
