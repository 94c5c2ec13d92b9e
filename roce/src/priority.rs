//! The priority of a packet, and the fields by which a port tells it.

use crate::error::OutOfRange;
use crate::wire::ethernet::{self, EtherType};
use crate::wire::{ipv4, ipv6};

/// How many priorities there are.
pub const PRIORITIES: usize = 8;

/// How many values a DSCP has.
const DSCPS: usize = 64;

/// A set of priorities, a bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Priorities(pub u8);

impl Priorities {
    /// All of them.
    pub const ALL: Self = Self(u8::MAX);

    /// Whether a priority, 0 to 7, is among them.
    #[inline]
    #[must_use]
    pub const fn has(self, priority: u8) -> bool {
        self.0 & bit(priority) != 0
    }

    /// The same, with a priority, 0 to 7, or without it.
    #[inline]
    #[must_use]
    pub const fn with(self, priority: u8, is_in: bool) -> Self {
        let bit = bit(priority);
        Self(if is_in { self.0 | bit } else { self.0 & !bit })
    }
}

/// The bit of a priority.
#[inline]
pub(crate) const fn bit(priority: u8) -> u8 {
    1_u8.wrapping_shl(priority as u32)
}

/// The fields of a packet that a port trusts for its priority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// The priority in the 802.1Q tag (PCP), which is the service level of the queue pair or address handle; 0 without a
    /// tag.
    Pcp,
    /// The DSCP: the upper six bits of the traffic class. Of each, the priority, 0 to 7.
    Dscp(Box<[u8; DSCPS]>),
}

impl Default for Trust {
    /// The class selector: the upper half of the DSCP.
    fn default() -> Self {
        Self::Dscp(Box::new(core::array::from_fn(|dscp| (dscp >> 3) as u8)))
    }
}

impl Trust {
    /// Refuses priorities that are none.
    pub(crate) fn check(&self) -> Result<(), OutOfRange> {
        match self {
            Self::Pcp => Ok(()),
            Self::Dscp(map) => {
                let refuse = |it: &u8| OutOfRange::check("a DSCP's priority", (*it).into(), 0, 7);
                map.iter().try_for_each(refuse)
            }
        }
    }

    /// The priority of an Ethernet frame: 0 of one that has no such field.
    #[must_use]
    pub fn of_frame(&self, frame: &[u8]) -> u8 {
        let Ok((header, packet)) = ethernet::Repr::parse(frame) else { return 0 };
        let class = match header.ethertype {
            EtherType::IPV4 => ipv4::Header::new(packet).map(|(ip, _)| ip.type_of_service()),
            EtherType::IPV6 => ipv6::Header::new(packet).map(|(ip, _)| ip.traffic_class()),
            _ => Ok(0),
        };
        self.priority(header.tag.map(|tag| tag.priority), class.unwrap_or_default())
    }

    /// The priority of a packet of a traffic class, with the priority in its tag, if it has one.
    // RC-108
    pub(crate) fn priority(&self, tag: Option<u8>, class: u8) -> u8 {
        match self {
            Self::Pcp => tag.unwrap_or_default(),
            Self::Dscp(map) => map.get(usize::from(class >> 2)).copied().unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RC-108.
    #[test]
    fn a_priority_is_the_tags_or_what_the_dscp_stands_for() {
        assert_eq!(Trust::default().priority(Some(5), 26 << 2 | 2), 3);
        assert_eq!((Trust::Pcp.priority(Some(5), 106), Trust::Pcp.priority(None, 106)), (5, 0));
        let mut map = [0; DSCPS];
        map[26] = 6;
        let trust = Trust::Dscp(Box::new(map));
        assert_eq!((trust.priority(Some(5), 106), trust.priority(None, 48 << 2)), (6, 0));
    }

    /// RC-108.
    #[test]
    fn a_frame_is_of_the_priority_of_its_tag_or_of_its_dscp() {
        let header = ipv4::Repr {
            type_of_service: 26 << 2 | 2,
            time_to_live: 64,
            protocol: 17,
            source: [10, 0, 0, 1].into(),
            destination: [10, 0, 0, 2].into(),
            payload_length: 0,
        };
        let ipv6 = [&[0x66, 0x80][..], &[0; 38]].concat();
        let tag = ethernet::Tag { priority: 5, drop_eligible: false, vlan: 7 }.to_bytes();
        let dscp = Trust::default();
        for packet in
            [[&[8, 0][..], &header.to_bytes()].concat(), [&[0x86, 0xdd], &ipv6[..]].concat()]
        {
            let untagged = [&[2; 12][..], &packet].concat();
            let tagged = [&[2; 12][..], &tag, &packet].concat();
            assert_eq!((dscp.of_frame(&untagged), dscp.of_frame(&tagged)), (3, 3));
            assert_eq!((Trust::Pcp.of_frame(&untagged), Trust::Pcp.of_frame(&tagged)), (0, 5));
        }
        let arp = [&[2; 12][..], &[8, 6], &[0xff; 28]].concat();
        assert_eq!(
            (dscp.of_frame(&arp), dscp.of_frame(&[]), Trust::Pcp.of_frame(&[2; 13])),
            (0, 0, 0)
        );
    }

    #[test]
    fn a_priority_that_is_none_is_refused() {
        let mut map = [0; DSCPS];
        assert_eq!(Trust::Dscp(Box::new(map)).check(), Ok(()));
        map[63] = 8;
        let refused = Trust::Dscp(Box::new(map)).check().unwrap_err();
        assert_eq!(refused.to_string(), "a DSCP's priority is 8; it can be 0 to 7");
    }

    #[test]
    fn a_set_has_what_was_put_in() {
        let set = Priorities::default().with(3, true).with(7, true).with(3, false);
        assert_eq!((set, set.has(7), set.has(3)), (Priorities(0x80), true, false));
        assert!((0..8).all(|priority| Priorities::ALL.has(priority)));
    }
}
