//! The cache of Ethernet addresses.

/// 256 entries, by the last byte of an IPv4 address.
#[derive(Debug)]
pub(crate) struct Cache {
    entries: [Option<[u8; 6]>; 256],
}

impl Default for Cache {
    fn default() -> Self {
        Self { entries: [None; 256] }
    }
}

impl Cache {
    // STOCK-29
    pub(crate) fn find(&self, ipv4: u32) -> Option<[u8; 6]> {
        self.entries.get(index(ipv4)).copied().flatten()
    }

    pub(crate) fn insert(&mut self, ipv4: u32, mac: [u8; 6]) {
        if let Some(entry) = self.entries.get_mut(index(ipv4)) {
            *entry = Some(mac);
        }
    }
}

const fn index(ipv4: u32) -> usize {
    (ipv4 & 0xff) as usize
}
