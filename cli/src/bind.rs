//! `balboa bind` and `balboa unbind`: whose a card is, the kernel's or a balboad's.

use vfio::bind;
use vfio::{PciAddress, Result, Sysfs};

/// Gives a function to vfio-pci and says what comes next.
///
/// # Errors
/// What is missing, and the mend.
pub fn bind(address: PciAddress) -> Result<()> {
    let sysfs = Sysfs::default();
    let group = bind::bind(&sysfs, address)?;
    println!("{address} is bound to vfio-pci, in IOMMU group {group}");
    let others = sysfs.in_the_way(group)?;
    if !others.is_empty() {
        let others: Vec<String> = others.iter().map(ToString::to_string).collect();
        println!(
            "the group is not viable yet: {} use drivers of the kernel; unbind them, or give them to vfio-pci as well",
            others.join(", ")
        );
    }
    println!("for another user's balboad than root's: chown USER /dev/vfio/{group}");
    println!("next: balboad --vfio {address}");
    Ok(())
}

/// Gives a function back to the driver that it would have by itself.
///
/// # Errors
/// What could not be done.
pub fn unbind(address: PciAddress) -> Result<()> {
    match bind::unbind(&Sysfs::default(), address)? {
        Some(driver) => println!("{address} is bound to {driver}"),
        None => println!("{address} is bound to no driver"),
    }
    Ok(())
}
