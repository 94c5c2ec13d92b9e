//! `balboa bind` and `balboa unbind`: whose a card is, the kernel's or a balboad's.

use terminal::say;
use vfio::bind;
use vfio::{Interface, PciAddress, Sysfs};

/// Gives a function to vfio-pci and names the next step.
///
/// # Errors
/// The missing condition, and the mend.
pub fn bind(address: PciAddress) -> anyhow::Result<()> {
    let sysfs = Sysfs::default();
    let group = bind::bind(&sysfs, address)?;
    say(format_args!("{address} is bound to vfio-pci, in IOMMU group {group}\n"))?;
    let others = sysfs.in_the_way(group)?;
    if !others.is_empty() {
        let others: Vec<String> = others.iter().map(ToString::to_string).collect();
        say(format_args!(
            "the group is not viable yet: drivers of the kernel's use {} of it; take each from its driver: echo ADDRESS > /sys/bus/pci/devices/ADDRESS/driver/unbind\n",
            others.join(", ")
        ))?;
    }
    let interface = Interface::of(&sysfs.function(address)?)?;
    let nodes = interface.nodes();
    let nodes: Vec<String> = nodes.iter().map(|node| node.display().to_string()).collect();
    Ok(say(format_args!(
        "for another user's balboad than root's: chown USER {}\nnext: balboad --vfio {address}\n",
        nodes.join(" ")
    ))?)
}

/// Gives a function back to its default driver.
///
/// # Errors
/// The step that failed.
pub fn unbind(address: PciAddress) -> anyhow::Result<()> {
    let driver = bind::unbind(&Sysfs::default(), address)?;
    let driver = driver.as_deref().unwrap_or("no driver");
    Ok(say(format_args!("{address} is bound to {driver}\n"))?)
}
