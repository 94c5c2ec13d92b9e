//! The contents of a port's files, but for its counters: as the kernel's.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use hostmem::address::Addresses;
use shim_abi::PortInfo;

/// Files of a port by their own names, with their texts, on a machine with these addresses.
pub(super) fn texts(port: &PortInfo, machine: &Addresses) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    let mut file = |name: String, text: &str| files.insert(name, format!("{text}\n"));
    let (state, physical) =
        if port.link_up { ("4: ACTIVE", "5: LinkUp") } else { ("1: DOWN", "3: Disabled") };
    for (name, text) in [
        ("state", state),
        ("phys_state", physical),
        ("rate", "100 Gb/sec (4X EDR)"),
        ("link_layer", "Ethernet"),
        // Local identifiers and subnet managers are InfiniBand's; RoCE has none.
        ("lid", "0x0"),
        ("lid_mask_count", "0"),
        ("sm_lid", "0x0"),
        ("sm_sl", "0"),
        ("cap_mask", "0x00010000"),
    ] {
        file(name.to_owned(), text);
    }
    for (index, pkey) in port.pkeys.iter().enumerate() {
        file(format!("pkeys/{index}"), &format!("{pkey:#06x}"));
    }
    for (index, gid) in port.gids.iter().enumerate() {
        let groups = Ipv6Addr::from(*gid).segments();
        file(format!("gids/{index}"), &groups.map(|group| format!("{group:04x}")).join(":"));
        // A slot without a GID has neither type nor netdev; for the kernel reading them is an
        // error. An address that no netdev of the machine has, or in a VLAN of the card's, has an
        // empty name: a name that is none would make libibverbs take the whole table for
        // unreadable, but programs (the crate `sideway`) rely on the file.
        if gid.iter().any(|byte| *byte != 0) {
            file(format!("gid_attrs/types/{index}"), "RoCE v2");
            let tagged = port.vlans.get(index).is_some_and(|vlan| *vlan != 0);
            let device = if tagged { None } else { machine.device(*gid) };
            file(format!("gid_attrs/ndevs/{index}"), device.unwrap_or(""));
        }
    }
    files
}

/// Whether [`texts`] may name a file so.
pub(super) fn is_text(name: &str) -> bool {
    const PLAIN: [&str; 9] = [
        "state",
        "phys_state",
        "rate",
        "link_layer",
        "lid",
        "lid_mask_count",
        "sm_lid",
        "sm_sl",
        "cap_mask",
    ];
    match name.rsplit_once('/') {
        None => PLAIN.contains(&name),
        Some((directory, index)) => {
            super::TEXT_DIRECTORIES.contains(&directory) && index.parse::<u8>().is_ok()
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn port(link_up: bool) -> PortInfo {
        let mut link_local = [0; 16];
        link_local[..2].copy_from_slice(&[0xfe, 0x80]);
        link_local[15] = 7;
        PortInfo {
            link_up,
            max_mtu: 5,
            active_mtu: 5,
            mac: [2, 0, 0, 0, 0, 1],
            gids: vec![link_local, [0; 16]],
            vlans: vec![0, 0],
            pkeys: vec![0xffff],
        }
    }

    #[test]
    fn a_port_looks_as_the_kernel_shows_one() {
        let files = texts(&port(true), &Addresses::default());
        let text = |name: &str| files.get(name).map(String::as_str);
        assert_eq!(text("state"), Some("4: ACTIVE\n"));
        assert_eq!(text("phys_state"), Some("5: LinkUp\n"));
        assert_eq!(text("pkeys/0"), Some("0xffff\n"));
        assert_eq!(text("gids/0"), Some("fe80:0000:0000:0000:0000:0000:0000:0007\n"));
        assert_eq!(text("gids/1"), Some("0000:0000:0000:0000:0000:0000:0000:0000\n"));
        let down = texts(&port(false), &Addresses::default());
        assert_eq!(down.get("state").map(String::as_str), Some("1: DOWN\n"));
        assert_eq!(down.get("phys_state").map(String::as_str), Some("3: Disabled\n"));
        assert!(files.keys().all(|name| is_text(name)), "{files:?}");
        assert!(!is_text("gids/precious") && !is_text("notes") && !is_text("lid/0"));
    }

    #[test]
    fn attributes_of_a_gid_stand_only_where_a_gid_does() {
        let files = texts(&port(true), &Addresses::default());
        for (attribute, value) in [("types", "RoCE v2\n"), ("ndevs", "\n")] {
            let text = |index| files.get(&format!("gid_attrs/{attribute}/{index}"));
            assert_eq!(text(0).map(String::as_str), Some(value));
            assert_eq!(text(1), None);
        }
    }
    #[test]
    fn a_gid_of_an_address_of_the_machines_has_its_device_unless_it_is_in_a_vlan() {
        let mut port = port(true);
        let machine = Addresses::of(vec![(Ipv6Addr::from(port.gids[0]), "eth7".to_owned())]);
        let name = |port: &PortInfo| texts(port, &machine).remove("gid_attrs/ndevs/0");
        assert_eq!(name(&port).as_deref(), Some("eth7\n"));
        port.vlans[0] = 5;
        assert_eq!(name(&port).as_deref(), Some("\n"));
    }
}
