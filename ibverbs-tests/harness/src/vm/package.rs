//! The package as users install it, in a machine whose files are the host's.

use std::fs;
use std::path::Path;

use anyhow::Result;

use super::load;
use crate::process::Task;
use crate::setting::{SHARES, installed_release};

/// Where the files are that name libibverbs' providers.
pub const DRIVERS: &str = "/etc/libibverbs.d";

/// Installs the package, once for the machine, into memory on top of the host's files.
///
/// # Errors
/// When the kernel lacks a module, or dpkg fails.
pub fn install() -> Result<()> {
    for module in ["tun", "ib_uverbs", "crc32_generic", "rdma_rxe", "rdma_ucm", "overlay"] {
        load(module)?;
    }
    if Path::new(DRIVERS).join("balboa.driver").exists() {
        return Ok(());
    }
    for share in ["etc", "usr", "var"] {
        let upper = format!("/run/overlay/{share}/upper");
        let work = format!("/run/overlay/{share}/work");
        fs::create_dir_all(&upper)?;
        fs::create_dir_all(&work)?;
        if !fs::read_to_string("/proc/mounts")?.contains(&format!("upperdir={upper},")) {
            let layers = format!("lowerdir=/{share},upperdir={upper},workdir={work}");
            let mount = Task::new("mount").words("-t overlay overlay -o").arg(layers);
            mount.arg(format!("/{share}")).run()?.success()?;
        }
    }
    let packages = Path::new(SHARES).join("built/dist");
    let provider = format!("balboa-provider-{}.deb", installed_release()?.number);
    let install = Task::new("dpkg").words("--force-unsafe-io --no-triggers --install");
    let install = install.arg(packages.join("balboa.deb")).arg(packages.join(provider));
    install.run()?.success().map(drop)
}
