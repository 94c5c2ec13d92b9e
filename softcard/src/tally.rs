//! What went through the port, by kind, for the shell's statistics registers.

/// Packets of one kind, transmitted and received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    tx: u32,
    rx: u32,
}

impl Count {
    /// Transmitted and received, modulo 2^32.
    pub(crate) fn get(self) -> (u32, u32) {
        (self.tx, self.rx)
    }
}

/// Which way a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Sent,
    Received,
}

/// Packets of every kind that the registers tell apart.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) packets: Count,
    pub(crate) arp: Count,
    pub(crate) icmp: Count,
    pub(crate) tcp: Count,
    pub(crate) roce: Count,
}

impl Tally {
    /// Counts an Ethernet frame.
    pub(crate) fn count(&mut self, way: Way, frame: &[u8]) {
        let bump = |count: &mut Count| {
            let place = match way {
                Way::Sent => &mut count.tx,
                Way::Received => &mut count.rx,
            };
            *place = place.wrapping_add(1);
        };
        bump(&mut self.packets);
        match frame.get(12..14) {
            Some([0x08, 0x06]) => bump(&mut self.arp),
            Some([0x08, 0x00]) => match frame.get(23) {
                Some(1) => bump(&mut self.icmp),
                Some(6) => bump(&mut self.tcp),
                Some(17) if frame.get(36..38) == Some(&ROCE_PORT) => bump(&mut self.roce),
                _ => {}
            },
            Some([0x86, 0xdd]) => match frame.get(20) {
                Some(58) => bump(&mut self.icmp),
                Some(6) => bump(&mut self.tcp),
                Some(17) if frame.get(56..58) == Some(&ROCE_PORT) => bump(&mut self.roce),
                _ => {}
            },
            _ => {}
        }
    }
}

/// 4791, as it stands in a UDP header.
const ROCE_PORT: [u8; 2] = 4791u16.to_be_bytes();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_told_apart_by_their_headers() {
        let mut ipv4 = [0u8; 60];
        ipv4[12..14].copy_from_slice(&[8, 0]);
        let mut tally = Tally::default();
        for (protocol, port) in [(17, 4791u16), (17, 53), (1, 0), (6, 4791)] {
            ipv4[23] = protocol;
            ipv4[36..38].copy_from_slice(&port.to_be_bytes());
            tally.count(Way::Received, &ipv4);
        }
        let mut ipv6 = [0u8; 80];
        ipv6[12..14].copy_from_slice(&[0x86, 0xdd]);
        ipv6[20] = 17;
        ipv6[56..58].copy_from_slice(&ROCE_PORT);
        tally.count(Way::Sent, &ipv6);
        let mut arp = [0u8; 42];
        arp[12..14].copy_from_slice(&[8, 6]);
        tally.count(Way::Sent, &arp);
        tally.count(Way::Sent, &[]);
        assert_eq!(tally.packets.get(), (3, 4));
        assert_eq!((tally.roce.get(), tally.arp.get()), ((1, 1), (1, 0)));
        assert_eq!((tally.icmp.get(), tally.tcp.get()), ((0, 1), (0, 1)));
    }
}
