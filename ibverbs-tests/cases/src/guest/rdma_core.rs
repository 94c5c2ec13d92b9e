//! `balboa run` on a kernel with RDMA support, whose netlink answers hide a device that is none of
//! the kernel's, and beside a device of the kernel's own.

use anyhow::{Result, ensure};
use harness::vm::rxe::soft_roce;

use super::{Case, Need, Setting, Task};
use crate::IBVERBS_UTILS;

/// The family, and the cases of every other machine, once more.
pub(super) fn cases() -> Vec<Case> {
    let mut all: Vec<Case> = super::for_both("beside rxe", &[IBVERBS_UTILS, RDMA], beside).into();
    for case in crate::for_kernels_with_rdma() {
        let Case { name, mut needs, who, when, alone, body } = case;
        needs.extend([Need::Root, RDMA]);
        let name = format!("beside rxe/{name}");
        let body = Box::new(move |setting: &Setting| {
            soft_roce()?;
            body(setting)
        });
        all.push(Case { name, needs, who, when, alone, body });
    }
    all
}

/// The program that makes a device of the kernel's.
const RDMA: Need = Need::Program("rdma", "iproute2");

/// Outside of `balboa run` a program sees the kernel's device, inside only the cards.
fn beside(setting: &Setting) -> Result<()> {
    let kernels = soft_roce()?;
    let names = |task: Task| -> Result<Vec<String>> {
        let finished = task.run()?.success()?;
        let lines = finished.stdout.lines().skip(2);
        Ok(lines.filter_map(|line| Some(line.split_whitespace().next()?.to_owned())).collect())
    };
    let daemon = setting.balboad("--soft 2")?;
    let outside = names(setting.task("ibv_devices"))?;
    ensure!(outside == [kernels], "a program of its own sees {outside:?}");
    let inside = names(daemon.run("ibv_devices"))?;
    ensure!(inside == ["balboa0", "balboa1"], "a program under balboa run sees {inside:?}");
    daemon.stop()?;
    super::two_cards(setting)
}
