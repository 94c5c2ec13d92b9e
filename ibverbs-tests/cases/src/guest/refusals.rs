//! Obstacles to the use of a card, each with its mend.

use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use harness::process::Task;

use super::cards::{
    bind, bound_for, cards, driver, drivers, functions, neighbours, override_driver, unbind,
};
use super::{Case, Hardware, Kernel, Need, Setting, load};

/// The vendor of QEMU's own devices.
const QEMU: &str = "0x1af4";

/// The family; the first one wants a kernel that has not loaded `vfio-pci` yet.
pub(super) fn cases(hardware: Hardware, kernel: Kernel<'_>) -> Vec<Case> {
    let by_a_user = |name: &str, body: fn(&Setting, Hardware) -> Result<()>| {
        let name = format!("refused/{name}");
        Case::new(name, &[Need::Root], move |setting| body(setting, hardware))
    };
    let case = |name, body| by_a_user(name, body).as_root();
    let mut cases = Vec::new();
    if !kernel.iommufd {
        cases.push(case("vfio-pci is not loaded", no_driver));
    }
    cases.push(case("another device", another_device));
    cases.push(by_a_user("a user who may not open the nodes", no_permission));
    cases.push(by_a_user("memory that may not be locked", no_memory));
    cases.push(case("a card that somebody else has", in_use));
    cases.push(case("a group that the kernel uses", not_viable));
    if hardware == Hardware::VirtioIommu {
        cases.push(case("interrupts that are not remapped", unsafe_interrupts));
    }
    cases
}

/// The case for a machine without an IOMMU.
pub(super) fn without_iommu() -> [Case; 1] {
    [Case::new("refused/a card behind no IOMMU", &[], no_iommu).as_root()]
}

/// Firmware and kernel parameters are named, and the card is left as it was.
fn no_iommu(setting: &Setting) -> Result<()> {
    load("vfio_pci")?;
    let found = functions()?;
    let function = found.first().context("the machine has no card")?;
    let reason = format!("{function} is behind no IOMMU");
    let mend = "switch VT-d or AMD-Vi on in the firmware, and boot with intel_iommu=on";
    refused(balboa_bind(setting, function), &[&reason, mend])?;
    ensure!(driver(function).is_none(), "{function} is bound to {:?}", driver(function));
    refused(balboad(setting, function), &["run balboa bind"])?;
    // As a user would who does not know `balboa bind`: the kernel itself refuses.
    let sysfs = Path::new("/sys/bus/pci");
    let choice = sysfs.join("devices").join(function).join("driver_override");
    fs::write(&choice, "vfio-pci")?;
    let _ = fs::write(sysfs.join("drivers_probe"), function);
    ensure!(driver(function).is_none(), "vfio-pci took a card behind no IOMMU");
    fs::write(choice, "\n").map_err(Into::into)
}

/// balboad on one function, as the case's user.
fn balboad(setting: &Setting, function: &str) -> Task {
    let balboad = setting.built("balboad").arg("--state-dir");
    balboad.arg(setting.directory().join("refused")).arg("--vfio").arg(function)
}

/// balboad on one function refuses, in one line.
fn refused(task: Task, sentences: &[&str]) -> Result<()> {
    let finished = task.run()?.code(1)?;
    let lines = finished.stderr.lines().count();
    ensure!(lines == 1, "it says {lines} lines: {finished}");
    sentences.iter().try_fold(finished, |finished, it| finished.complains(it)).map(drop)
}

fn balboa_bind(setting: &Setting, function: &str) -> Task {
    setting.built("balboa").arg("bind").arg(function)
}

fn no_driver(setting: &Setting, _: Hardware) -> Result<()> {
    let [function, _] = two_functions()?;
    let mend = "the kernel has no driver vfio-pci; load it with: modprobe vfio-pci";
    refused(balboa_bind(setting, &function), &[mend])?;
    refused(balboad(setting, &function), &["bound to no driver, not to vfio-pci: run balboa bind"])
}

fn two_functions() -> Result<[String; 2]> {
    functions()?.try_into().map_err(|found| anyhow::anyhow!("there are {found:?}"))
}

/// A working device keeps its driver, for any address typed.
fn another_device(setting: &Setting, hardware: Hardware) -> Result<()> {
    drivers(hardware)?;
    let mut other = None;
    for entry in fs::read_dir("/sys/bus/pci/devices")? {
        let entry = entry?;
        let vendor = fs::read_to_string(entry.path().join("vendor"))?;
        let address = entry.file_name().to_string_lossy().into_owned();
        if vendor.trim() == QEMU && driver(&address).as_deref() == Some("virtio-pci") {
            other = Some(address);
        }
    }
    let other = other.context("the machine has no device of QEMU's with a driver")?;
    let sentence = "not a Coyote card (10ee:903f); lspci -D -d 10ee: lists those that may be";
    refused(balboa_bind(setting, &other), &[&other, "1af4:", sentence])?;
    ensure!(driver(&other).as_deref() == Some("virtio-pci"), "{other} lost its driver");
    refused(balboad(setting, &other), &[&other, "1af4:", sentence])
}

/// Each missing node is named until the user has them all; so is the step that only root may take.
fn no_permission(setting: &Setting, hardware: Hardware) -> Result<()> {
    drivers(hardware)?;
    let [function, _] = two_functions()?;
    bound_for(setting, 0)?;
    for node in bind(setting, &function)? {
        let mend = format!("{node} may not be opened by this user");
        refused(balboad(setting, &function), &[&mend, &format!("chown USER {node}")])?;
        chown(&node, Some(setting.uid()), None).with_context(|| node.clone())?;
    }
    let unbind = Task::new(setting.bin.join("balboa")).arg("unbind").arg(&function);
    unbind.run()?.success()?;
    refused(balboa_bind(setting, &function), &["only root may write it: run this as root"])
}

/// The limit of locked memory is named, with the way to raise it.
fn no_memory(setting: &Setting, hardware: Hardware) -> Result<()> {
    drivers(hardware)?;
    let [function, _] = two_functions()?;
    bound_for(setting, setting.uid())?;
    let limited = setting.task("prlimit").arg("--memlock=8192").arg(setting.bin.join("balboad"));
    let limited = limited.arg("--state-dir").arg(setting.directory().join("refused"));
    let sentence = "cannot be locked in memory (the limit is 8192 bytes";
    refused(limited.arg("--vfio").arg(&function), &[sentence, "ulimit -l"])
}

/// A card in use by another balboad, or by a program that has only the group open, is refused.
fn in_use(setting: &Setting, hardware: Hardware) -> Result<()> {
    let daemon = cards(setting, hardware)?;
    let [function, _] = two_functions()?;
    refused(balboad(setting, &function), &["is in use: another process has /dev/vfio/"])?;
    daemon.stop()?;
    let link = fs::read_link(format!("/sys/bus/pci/devices/{function}/iommu_group"))?;
    let group = link.file_name().unwrap_or_default();
    let node = Path::new("/dev/vfio").join(group);
    let held = fs::File::options().read(true).write(true).open(&node)?;
    let sentence = format!("is in use: another process has {} open", node.display());
    refused(balboad(setting, &function), &[&sentence])?;
    drop(held);
    Ok(())
}

/// A driver in the way is named, with the way to remove it; then the card can be used.
fn not_viable(setting: &Setting, hardware: Hardware) -> Result<()> {
    drivers(hardware)?;
    let [_, function] = two_functions()?;
    let [neighbour] = <[String; 1]>::try_from(neighbours(&function))
        .map_err(|found| anyhow::anyhow!("not one neighbour: {found:?}"))?;
    override_driver(&neighbour, "")?;
    fs::write("/sys/bus/pci/drivers/virtio-pci/bind", &neighbour).context(neighbour.clone())?;
    ensure!(driver(&neighbour).as_deref() == Some("virtio-pci"), "{:?}", driver(&neighbour));
    let mend =
        "take each from its driver: echo ADDRESS > /sys/bus/pci/devices/ADDRESS/driver/unbind";
    let said = balboa_bind(setting, &function).run()?.success()?;
    let said =
        said.says(&format!("not viable yet: drivers of the kernel's use {neighbour} of it"))?;
    said.says(mend)?;
    let why = format!("not viable: drivers of the kernel's use {neighbour} of it");
    refused(balboad(setting, &function), &["the IOMMU group ", &function, &why, mend])?;
    unbind(&neighbour)?;
    cards(setting, hardware)?.stop()
}

/// Where interrupts are not remapped a card could raise any: the kernel has to be told.
fn unsafe_interrupts(setting: &Setting, hardware: Hardware) -> Result<()> {
    drivers(hardware)?;
    // That it has a neighbour must not make the reason another.
    let [_, function] = two_functions()?;
    bound_for(setting, 0)?;
    let parameters: Vec<_> = ["vfio_iommu_type1", "iommufd"]
        .map(|module| format!("/sys/module/{module}/parameters/allow_unsafe_interrupts"))
        .into_iter()
        .filter(|it| Path::new(it).exists())
        .collect();
    for parameter in &parameters {
        fs::write(parameter, "N")?;
    }
    // The last of them is the one that is asked.
    let mend = format!("echo 1 > {}", parameters.last().context("VFIO takes no parameter")?);
    let outcome = refused(balboad(setting, &function), &["switch interrupt remapping on", &mend]);
    drivers(hardware)?;
    outcome
}
