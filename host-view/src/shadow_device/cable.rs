//! The kernel's work at the far end of a card's port, where that is a network device of the kernel.

use std::fs;
use std::io;
use std::path::Path;

/// The kernel's settings of network devices.
const SETTINGS: &str = "/proc/sys/net/ipv4/conf";

/// Makes the network devices that cards are plugged into answer ARP for their own addresses only.
///
/// Unless told so, the kernel answers on each device for all addresses that it has, those of the
/// cards' network devices among them: by the Ethernet address of the wrong device, where no card
/// listens.
pub fn keep_apart<'a>(devices: impl IntoIterator<Item = &'a str>) {
    for device in devices {
        match own_addresses_only(Path::new(SETTINGS), device) {
            Ok(true) => log::info!("{device}: answers ARP for its own addresses only from now on"),
            Ok(false) => {}
            Err(error) => log::warn!(
                "{device}: the kernel may answer ARP for the cards' addresses there, and their frames get lost ({error}): sysctl -w net.ipv4.conf.{device}.arp_ignore=1"
            ),
        }
    }
}

/// True if that was changed.
fn own_addresses_only(settings: &Path, device: &str) -> io::Result<bool> {
    // There is no such name, which is told when the port is opened.
    if device.contains('/') {
        return Ok(false);
    }
    let setting = |of: &str| settings.join(of).join("arp_ignore");
    // The larger of the two counts.
    for of in ["all", device] {
        if fs::read_to_string(setting(of))?.trim() != "0" {
            return Ok(false);
        }
    }
    fs::write(setting(device), "1")?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_device_that_would_answer_for_all_addresses_is_told_not_to() {
        let home = tempfile::tempdir().unwrap();
        let write = |of: &str, value: &str| {
            fs::create_dir_all(home.path().join(of)).unwrap();
            fs::write(home.path().join(of).join("arp_ignore"), value).unwrap();
        };
        write("all", "0\n");
        write("eth0", "0\n");
        write("eth1", "2\n");
        assert!(own_addresses_only(home.path(), "eth0").unwrap());
        assert_eq!(fs::read_to_string(home.path().join("eth0/arp_ignore")).unwrap(), "1");
        assert!(!own_addresses_only(home.path(), "eth0").unwrap());
        assert!(!own_addresses_only(home.path(), "eth1").unwrap());
        assert!(!own_addresses_only(home.path(), "../eth1").unwrap());
        assert!(own_addresses_only(home.path(), "eth2").is_err());
        write("all", "1\n");
        write("eth2", "0\n");
        assert!(!own_addresses_only(home.path(), "eth2").unwrap());
    }
}
