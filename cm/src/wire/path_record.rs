//! Path records (specification, section 15.2.5.16), which RoCE makes up of addresses.

use core::net::Ipv6Addr;

use super::layout;
use crate::param;
use crate::types::Path;

layout! {
    /// A subnet manager's record of a path.
    PathRecord of 64 {
        /// The service that the path is for.
        service_id: u64 = 0:0 + 64;
        /// The destination's GID.
        dgid: Ipv6Addr = 8:0 + 128;
        /// The source's GID.
        sgid: Ipv6Addr = 24:0 + 128;
        /// The destination's LID; none in RoCE.
        dlid: u16 = 40:0 + 16;
        /// The source's LID; none in RoCE.
        slid: u16 = 42:0 + 16;
        /// Whether the path is one of raw packets.
        raw_traffic: bool = 44:0 + 1;
        /// The flow label.
        flow_label: u32 = 44:4 + 20;
        /// The hop limit.
        hop_limit: u8 = 47:0 + 8;
        /// The traffic class.
        traffic_class: u8 = 48:0 + 8;
        /// Whether the way back is the same.
        reversible: bool = 49:0 + 1;
        /// How many paths are asked for.
        numb_path: u8 = 49:1 + 7;
        /// The partition key.
        pkey: u16 = 50:0 + 16;
        /// The class of the quality of service.
        qos_class: u16 = 52:0 + 12;
        /// The service level.
        sl: u8 = 53:4 + 4;
        /// How the MTU is meant; 2 is exactly.
        mtu_selector: u8 = 54:0 + 2;
        /// The path MTU's code.
        mtu: u8 = 54:2 + 6;
        /// How the rate is meant.
        rate_selector: u8 = 55:0 + 2;
        /// The rate's code.
        rate: u8 = 55:2 + 6;
        /// How the packet lifetime is meant.
        packet_lifetime_selector: u8 = 56:0 + 2;
        /// How long a packet lives at most: 4.096 µs · 2^code.
        packet_lifetime: u8 = 56:2 + 6;
        /// Its place among several.
        preference: u8 = 57:0 + 8;
    }
}

/// A selector: the value is exactly this.
const EXACTLY: u8 = 2;

impl From<Path> for PathRecord {
    fn from(path: Path) -> Self {
        let route = path.route;
        // CM-8
        Self {
            dgid: route.remote.gid,
            sgid: route.local.gid,
            flow_label: route.flow_label,
            hop_limit: route.hop_limit,
            traffic_class: route.traffic_class,
            reversible: true,
            numb_path: 1,
            pkey: param::PKEY,
            sl: route.sl,
            mtu_selector: EXACTLY,
            mtu: path.mtu,
            rate_selector: EXACTLY,
            rate: path.rate,
            packet_lifetime_selector: EXACTLY,
            packet_lifetime: path.packet_lifetime,
            ..Self::ZERO
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Address, Route};

    /// CM-8.
    #[test]
    fn a_path_record_is_made_up_of_addresses() {
        let local = Address::untagged("10.0.0.1".parse().unwrap());
        let remote = Address::untagged("10.0.0.2".parse().unwrap());
        let route = Route {
            flow_label: 0x12345,
            traffic_class: 0x68,
            sl: 3,
            ..Route::between(0, local, remote)
        };
        let bytes = PathRecord::from(Path::along(route, 3, 7)).to_bytes();
        assert_eq!(bytes[8..24], local_remote(2));
        assert_eq!(bytes[24..40], local_remote(1));
        let rest = [
            0, 0, 0, 0, 0x01, 0x23, 0x45, 64, 0x68, 0x81, 0xff, 0xff, 0, 3, 0x83, 0x87, 0x90, 0, 0,
            0, 0, 0, 0, 0,
        ];
        assert_eq!(bytes[40..], rest);
    }

    fn local_remote(last: u8) -> [u8; 16] {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last]
    }
}
