//! What the program finds in /sys/class and /dev/infiniband: the cards, as the kernel would show them.

use std::collections::BTreeMap;

use shim_abi::{COUNTERS_DIR, CardInfo, PortInfo};

/// Number of the first device node. Far from 0: a fake `uverbs0` would keep the kernel from making
/// the real one, were an RDMA driver loaded later.
const FIRST_NODE: u32 = 900;
/// Every node's device number: that of /dev/full, which stands in for it. Opening it needs no
/// privilege, and a command written to it past the provider fails instead of seeming to succeed.
const NODE_NUMBER: &str = "1:7";
/// Version of the kernel's uverbs interface as a whole.
const CLASS_ABI: u32 = 6;
/// Version that a device node speaks; the provider accepts it.
const DEVICE_ABI: u32 = 1;

/// Files below /sys/class, and names below /dev/infiniband.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct World {
    /// Path below /sys/class → text, each with its final newline.
    pub class: BTreeMap<String, String>,
    /// Device nodes below /dev/infiniband.
    pub nodes: Vec<String>,
    /// Directories that balboad keeps: path below /sys/class → path below the state directory.
    pub live: BTreeMap<String, String>,
}

/// Directories of /sys/class that are the program's own.
pub const CLASSES: [&str; 2] = ["infiniband", "infiniband_verbs"];

impl World {
    /// The world with these cards in it.
    pub fn of(cards: &[CardInfo]) -> Self {
        let mut world = Self::default();
        world.file("infiniband_verbs/abi_version", CLASS_ABI);
        for card in cards {
            world.card(card);
        }
        world
    }

    fn file(&mut self, path: impl Into<String>, value: impl ToString) {
        self.class.insert(path.into(), value.to_string() + "\n");
    }

    fn card(&mut self, card: &CardInfo) {
        let node = format!("uverbs{}", FIRST_NODE.saturating_add(card.card));
        let verbs = format!("infiniband_verbs/{node}");
        self.file(format!("{verbs}/ibdev"), &card.name);
        self.file(format!("{verbs}/dev"), NODE_NUMBER);
        self.file(format!("{verbs}/abi_version"), DEVICE_ABI);
        self.nodes.push(node);

        let device = format!("infiniband/{}", card.name);
        let guid = groups(&card.node_guid.to_be_bytes());
        for (name, value) in [
            ("node_type", "1: CA"),
            ("node_guid", &guid),
            ("sys_image_guid", &guid),
            ("node_desc", &card.name),
            ("fw_ver", &card.firmware),
            ("hw_rev", "0x1"),
            ("board_id", &card.board),
            ("hca_type", &card.board),
        ] {
            self.file(format!("{device}/{name}"), value);
        }
        self.port(&format!("{device}/ports/1"), &card.port);
        for counters in ["hw_counters", "counters"] {
            let kept = format!("{COUNTERS_DIR}/{}/{counters}", card.name);
            self.live.insert(format!("{device}/ports/1/{counters}"), kept);
        }
    }

    fn port(&mut self, directory: &str, port: &PortInfo) {
        let (state, physical) =
            if port.link_up { ("4: ACTIVE", "5: LinkUp") } else { ("1: DOWN", "3: Disabled") };
        for (name, value) in [
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
            self.file(format!("{directory}/{name}"), value);
        }
        for (index, pkey) in port.pkeys.iter().enumerate() {
            self.file(format!("{directory}/pkeys/{index}"), format!("{pkey:#06x}"));
        }
        for (index, gid) in port.gids.iter().enumerate() {
            self.file(format!("{directory}/gids/{index}"), groups(gid));
            // A slot without a GID has neither type nor netdev; for the kernel reading them is an
            // error. No netdev has the addresses, and a name that is none would make libibverbs take
            // the whole table for unreadable; but programs (the crate `sideway`) rely on the file.
            if gid.iter().any(|byte| *byte != 0) {
                self.file(format!("{directory}/gid_attrs/types/{index}"), "RoCE v2");
                self.file(format!("{directory}/gid_attrs/ndevs/{index}"), "");
            }
        }
    }
}

/// Bytes as groups of four hexadecimal digits with colons between them.
fn groups(bytes: &[u8]) -> String {
    let pairs = bytes
        .chunks(2)
        .map(|pair| pair.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    pairs.collect::<Vec<_>>().join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(number: u32) -> CardInfo {
        let mut link_local = [0; 16];
        link_local[..2].copy_from_slice(&[0xfe, 0x80]);
        link_local[15] = 7;
        CardInfo {
            card: number,
            name: format!("balboa{number}"),
            node_guid: 0x0250_c2ff_fe00_0001,
            firmware: "1.2.3".into(),
            board: "soft".into(),
            port: PortInfo {
                link_up: number == 0,
                max_mtu: 5,
                active_mtu: 5,
                mac: [2, 0, 0, 0, 0, 1],
                gids: vec![link_local, [0; 16]],
                pkeys: vec![0xffff],
            },
        }
    }

    #[test]
    fn a_card_looks_as_the_kernel_shows_one() {
        let world = World::of(&[card(0), card(1)]);
        let text = |path: &str| world.class.get(path).map(|text| text.trim_end());
        assert_eq!(world.nodes, ["uverbs900", "uverbs901"]);
        assert_eq!(text("infiniband_verbs/abi_version"), Some("6"));
        assert_eq!(text("infiniband_verbs/uverbs901/ibdev"), Some("balboa1"));
        assert_eq!(text("infiniband_verbs/uverbs901/dev"), Some("1:7"));
        assert_eq!(text("infiniband/balboa0/node_guid"), Some("0250:c2ff:fe00:0001"));
        assert_eq!(text("infiniband/balboa0/ports/1/state"), Some("4: ACTIVE"));
        assert_eq!(
            world.live.get("infiniband/balboa1/ports/1/hw_counters").map(String::as_str),
            Some("counters/balboa1/hw_counters")
        );
        assert_eq!(text("infiniband/balboa1/ports/1/phys_state"), Some("3: Disabled"));
        assert_eq!(text("infiniband/balboa0/ports/1/pkeys/0"), Some("0xffff"));
        assert_eq!(
            text("infiniband/balboa0/ports/1/gids/0"),
            Some("fe80:0000:0000:0000:0000:0000:0000:0007")
        );
    }

    #[test]
    fn attributes_of_a_gid_stand_only_where_a_gid_does() {
        let world = World::of(&[card(0)]);
        for (attribute, value) in [("types", "RoCE v2\n"), ("ndevs", "\n")] {
            let path = |index| format!("infiniband/balboa0/ports/1/gid_attrs/{attribute}/{index}");
            assert_eq!(world.class.get(&path(0)).map(String::as_str), Some(value));
            assert_eq!(world.class.get(&path(1)), None);
        }
    }
}
