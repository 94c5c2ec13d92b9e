//! An RDMA device of the kernel's own.

use anyhow::Result;

use super::{MTU, load, run};

/// The kernel's own device.
const KERNELS: &str = "rxe0";

/// Sees to it that the kernel has an RDMA device of its own, of the cards' path MTU; its name.
///
/// # Errors
/// When the kernel lacks a module, or refuses the device.
pub fn soft_roce() -> Result<&'static str> {
    for module in ["dummy", "ib_uverbs", "crc32_generic", "rdma_rxe"] {
        load(module)?;
    }
    if run("rdma link show")?.contains(KERNELS) {
        return Ok(KERNELS);
    }
    for command in [
        "ip link add rxedev type dummy",
        "ip addr add 192.0.2.1/24 dev rxedev",
        &format!("ip link set rxedev mtu {MTU} up"),
        &format!("rdma link add {KERNELS} type rxe netdev rxedev"),
    ] {
        run(command)?;
    }
    Ok(KERNELS)
}
