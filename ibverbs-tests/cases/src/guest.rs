//! Cases for a virtual machine: with kernels, modules and settings that the host may not have.
//!
//! `cargo xtask guest` boots the machine and runs `cases` in it, as root.

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use harness::pair;
use harness::process::Task;
use harness::runner::{Case, Need};
use harness::setting::Setting;
use harness::vm::{Hardware, Kernel, ask_host, have_host, load, program, run, task};
use nix::errno::Errno;

mod across;
mod cards;
mod deaths;
mod interfaces;
mod mappings;
mod published;
mod rdma_core;
mod refusals;
mod server;
mod shadow;
mod shells;
mod tended;
mod udp;
mod yama;

/// All cases of a machine, in the order in which they run: those that want a kernel without RDMA come
/// first, and of the others those that want a kernel without `vfio-pci`.
pub fn cases(hardware: Hardware, kernel: Kernel<'_>) -> Vec<Case> {
    let mut cases = vec![boot(kernel)];
    match hardware {
        // It is for VFIO: the rest is as on Debian's of its release, but for RDMA, which it always has.
        Hardware::Plain if kernel.iommufd => cases.extend(refusals::without_iommu()),
        Hardware::Plain => {
            cases.extend(refusals::without_iommu());
            cases.extend(yama::cases());
            cases.extend(shadow::refusals());
            cases.extend(rdma_core::cases());
            cases.extend(shadow::cases());
        }
        Hardware::IntelIommuRxe => {
            cases.extend(server::cases());
            cases.extend(across::cases());
            cases.extend(udp::cases());
        }
        Hardware::Published => cases.extend(published::cases()),
        Hardware::Fpga => cases.extend(shells::cases()),
        Hardware::IntelIommu | Hardware::VirtioIommu => {
            cases.extend(refusals::cases(hardware, kernel));
            cases.extend(interfaces::cases(hardware, kernel));
            cases.extend(cards::cases(hardware));
            cases.extend(mappings::cases(hardware));
            cases.extend(tended::cases(hardware));
            cases.extend(deaths::cases(hardware));
        }
    }
    named_after(hardware, cases)
}

/// The cases of the machine's second boot, with the cards as the first one left them; a server that was
/// killed has been started again. None of most hardware, which then boots once.
pub fn cases_of_second_boot(hardware: Hardware, kernel: Kernel<'_>) -> Vec<Case> {
    let mut cases = deaths::cases_of_second_boot(hardware);
    cases.extend(tended::cases_of_second_boot(hardware));
    if !cases.is_empty() {
        cases.insert(0, boot(kernel));
    }
    cases.iter_mut().for_each(|case| case.name.insert_str(0, "second boot/"));
    named_after(hardware, cases)
}

fn named_after(hardware: Hardware, mut cases: Vec<Case>) -> Vec<Case> {
    cases.iter_mut().for_each(|case| case.name.insert_str(0, &format!("{}/", hardware.name())));
    cases
}

/// The machine is the one that was asked for.
fn boot(kernel: Kernel<'_>) -> Case {
    let wanted = format!("{}.", kernel.release);
    let iommufd = kernel.iommufd;
    Case::new("boot", &[Need::Root], move |_| {
        let running = fs::read_to_string("/proc/sys/kernel/osrelease")?;
        ensure!(running.starts_with(&wanted), "the kernel is {running}, not {wanted}");
        let there = Path::new("/dev/iommu").exists();
        ensure!(
            there == iommufd,
            "/dev/iommu should{} be there",
            if iommufd { "" } else { " not" }
        );
        let written = File::create("/balboa-was-here").map(drop);
        let errno = written.err().and_then(|error| error.raw_os_error()).map(Errno::from_raw);
        ensure!(errno == Some(Errno::EROFS), "the host's root is not read-only: {errno:?}");
        Ok(())
    })
}

/// Waits until a condition holds.
fn until(limit: Duration, what: &str, is: impl Fn() -> Result<bool>) -> Result<()> {
    let started = Instant::now();
    while !is()? {
        ensure!(started.elapsed() < limit, "it took too long until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// `name` for an ordinary user and for root.
fn for_both(
    name: &str,
    needs: &[Need],
    body: impl Fn(&Setting) -> Result<()> + Clone + Send + Sync + 'static,
) -> [Case; 2] {
    let needs = [needs, &[Need::Root]].concat();
    [Case::new(name, &needs, body.clone()), Case::new(name, &needs, body).as_root()]
}

/// Data and events between two software cards; few messages, for a wake takes long on an emulated
/// processor.
fn two_cards(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 2")?;
    let command = "ibv_rc_pingpong -c -m 1024 -g 1 -e -n 100";
    let both = pair::run_between((&daemon, 0), (&daemon, 1), command)?;
    both.server.says("100 iters in ")?;
    both.client.says("100 iters in ")?;
    daemon.stop()
}
