//! The program's files in /sys/class and /dev/infiniband: the cards, as the kernel would show them.

use std::collections::BTreeMap;

use shim_abi::{CardInfo, PORTS_DIR};

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
/// Version of the kernel's interface of rdma_cm, for which the provider answers.
const CM_ABI: u32 = 4;

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
/// The class that has the host's devices, but for one.
pub const MISC: &str = "misc";
/// The name of that device: librdmacm asks for its version, and opens it through the provider.
pub const CM: &str = "rdma_cm";

impl World {
    /// The world with these cards in it.
    pub fn of(cards: &[CardInfo]) -> Self {
        let mut world = Self::default();
        world.file("infiniband_verbs/abi_version", CLASS_ABI);
        world.file(format!("{MISC}/{CM}/abi_version"), CM_ABI);
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
        let groups = [48, 32, 16, 0].map(|bits| card.node_guid >> bits & 0xffff);
        let guid = groups.map(|group| format!("{group:04x}")).join(":");
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
        let kept = format!("{PORTS_DIR}/{}", card.name);
        self.live.insert(format!("{device}/ports/1"), kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::tests::card;

    #[test]
    fn a_card_looks_as_the_kernel_shows_one() {
        let world = World::of(&[card(0), card(1)]);
        let text = |path: &str| world.class.get(path).map(|text| text.trim_end());
        assert_eq!(world.nodes, ["uverbs900", "uverbs901"]);
        assert_eq!(text("infiniband_verbs/abi_version"), Some("6"));
        assert_eq!(text("misc/rdma_cm/abi_version"), Some("4"));
        assert_eq!(text("infiniband_verbs/uverbs901/ibdev"), Some("balboa1"));
        assert_eq!(text("infiniband_verbs/uverbs901/dev"), Some("1:7"));
        assert_eq!(text("infiniband/balboa0/node_guid"), Some("0250:c2ff:fe00:0001"));
        let live = world.live.get("infiniband/balboa1/ports/1").map(String::as_str);
        assert_eq!(live, Some("ports/balboa1"));
    }
}
