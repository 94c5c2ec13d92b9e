//! The table of cases, by family.

use anyhow::{Context as _, Result};
use verbs_sys::{RELEASES, Release};

use crate::attack::{self, phase::Length};
use crate::process::Task;
use crate::runner::{Case, Need};

mod acknowledged;
pub mod apps;
pub(crate) mod capture;
mod chaos;
pub(crate) mod cm;
pub(crate) mod counters;
mod data;
mod death;
mod discovery;
pub(crate) mod faults;
pub(crate) mod flash;
pub(crate) mod image;
mod lifecycle;
mod many;
mod nccl;
mod perftest;
pub(crate) mod pingpong;
mod port;
pub(crate) mod rdmacm;
pub mod release;
mod scale;
mod sentences;
pub(crate) mod stock;
mod tool;
mod ucx;
mod usage;

/// ibv_devices, ibv_devinfo and the pingpongs.
pub(crate) const IBVERBS_UTILS: Need = Need::Program("ibv_devinfo", "ibverbs-utils");
/// ib_write_bw and its kin.
pub(crate) const PERFTEST: Need = Need::Program("ib_write_bw", "perftest");

/// The release of rdma-core that is installed here.
///
/// # Errors
/// When it is none that there is a provider for.
pub(crate) fn installed_release() -> Result<&'static Release> {
    let query = Task::new("dpkg-query").args(["-W", "-f", "${Version}", "libibverbs1"]);
    let version = query.run()?.success()?.stdout;
    let number = version.split('.').next().and_then(|number| number.parse().ok());
    let release = RELEASES.iter().find(|it| Some(it.number) == number);
    release.with_context(|| format!("there is no provider for libibverbs1 {version}"))
}

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
