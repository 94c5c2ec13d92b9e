//! The cards of a virtual machine behind vfio-pci: found, bound, given to a user, and a balboad on them.

use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use super::{Hardware, load};
use crate::process::Task;
use crate::setting::{Daemon, Setting};

/// A card's vendor and device, as sysfs shows them.
const CARD: [&str; 2] = ["0x10ee", "0x903f"];

/// The cards of the machine, by their PCI addresses.
pub fn functions() -> Result<Vec<String>> {
    let found = plugged_in()?;
    ensure!(!found.is_empty(), "the machine has no cards");
    Ok(found)
}

/// The cards that are in the machine now, by their PCI addresses.
pub fn plugged_in() -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/bus/pci/devices")? {
        let entry = entry?;
        let read = |name: &str| fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        if CARD == [read("vendor").trim(), read("device").trim()] {
            found.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    found.sort();
    Ok(found)
}

/// Loads the modules of the machine's IOMMU and cards.
pub fn drivers(hardware: Hardware) -> Result<()> {
    load("vfio_iommu_type1")?;
    load("vfio_pci")?;
    // The paravirtual one has no interrupt remapping.
    let unsafe_interrupts = if hardware == Hardware::VirtioIommu { "Y" } else { "N" };
    for module in ["vfio_iommu_type1", "iommufd"] {
        let parameter = format!("/sys/module/{module}/parameters/allow_unsafe_interrupts");
        if Path::new(&parameter).exists() {
            fs::write(parameter, unsafe_interrupts)?;
        }
    }
    functions()?.iter().flat_map(|function| neighbours(function)).try_for_each(|neighbour| {
        // The kernel waits here for a driver that is just looking at it.
        override_driver(&neighbour, "none")?;
        if driver(&neighbour).is_some() { unbind(&neighbour) } else { Ok(()) }
    })
}

/// The functions that share a card's slot, and with it its IOMMU group. Told by the address: behind a paravirtual IOMMU
/// a device gets its group only when a driver looks at it.
pub fn neighbours(function: &str) -> Vec<String> {
    let Some((slot, _)) = function.rsplit_once('.') else { return Vec::new() };
    let found = fs::read_dir("/sys/bus/pci/devices").into_iter().flatten().flatten();
    let names = found.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name != function && name.starts_with(&format!("{slot}."))).collect()
}

/// Lets only one driver have a function; any, where the name is empty.
pub fn override_driver(function: &str, driver: &str) -> Result<()> {
    let path = format!("/sys/bus/pci/devices/{function}/driver_override");
    fs::write(&path, format!("{driver}\n")).with_context(|| path.clone())
}

/// The driver of a function.
pub fn driver(function: &str) -> Option<String> {
    let link = fs::read_link(format!("/sys/bus/pci/devices/{function}/driver")).ok()?;
    Some(link.file_name()?.to_string_lossy().into_owned())
}

/// Takes a function from its driver.
pub fn unbind(function: &str) -> Result<()> {
    let path = format!("/sys/bus/pci/devices/{function}/driver/unbind");
    fs::write(&path, function).with_context(|| path.clone())
}

/// Runs `balboa bind ADDRESS` as root, for any user of the case; returns the nodes that another user is to be given by
/// its output.
pub fn bind(setting: &Setting, function: &str) -> Result<Vec<String>> {
    let task = Task::new(setting.bin.join("balboa")).arg("bind").arg(function);
    let said = task.run()?.success()?.says(&format!("{function} is bound to vfio-pci"))?;
    let nodes = said.stdout.lines().find_map(|line| line.split_once("chown USER "));
    let (_, nodes) = nodes.with_context(|| format!("it does not tell the nodes: {said}"))?;
    Ok(nodes.split_whitespace().map(str::to_owned).collect())
}

/// Binds both cards and gives them to a user; returns balboad's arguments.
pub fn bound_for(setting: &Setting, uid: u32) -> Result<String> {
    Ok(cards_of(setting, uid)?.concat())
}

/// The same, with the arguments of a balboad for each card alone.
pub fn cards_of(setting: &Setting, uid: u32) -> Result<Vec<String>> {
    let bound = |function: String| {
        for node in bind(setting, &function)? {
            chown(&node, Some(uid), None).with_context(|| node.clone())?;
        }
        Ok(format!("--vfio {function} "))
    };
    functions()?.into_iter().map(bound).collect()
}

/// Binds both cards, gives them to the case's user, and starts a balboad on them.
pub fn cards(setting: &Setting, hardware: Hardware) -> Result<Daemon<'_>> {
    cards_in(setting, &setting.state_dir(), hardware)
}

/// The same, on a state directory.
///
/// # Errors
/// When the cards cannot be had, or balboad does not come up.
pub fn cards_in<'a>(
    setting: &'a Setting,
    state_dir: &Path,
    hardware: Hardware,
) -> Result<Daemon<'a>> {
    drivers(hardware)?;
    setting.balboad_in(state_dir, &bound_for(setting, setting.uid())?)
}
