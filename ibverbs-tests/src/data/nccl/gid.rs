//! The GID that a connection goes by where none is named: of RoCE v2, and of the wanted family of addresses.

use std::fs;
use std::net::{IpAddr, Ipv6Addr};

use anyhow::{Context as _, Result, bail, ensure};

use crate::ffi::Context;

/// The properties of the wanted GID.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted {
    /// Whether it is of IPv6, not IPv4.
    pub ipv6: bool,
    /// The network that it must be of: its address and the bits of it that count.
    pub network: Option<(IpAddr, u8)>,
}

/// The kernel's name for the type of an entry that carries UDP.
const ROCE_V2: &str = "RoCE v2";

/// The first of a device's GIDs that is wanted. Every entry of the table is read, the empty ones too.
pub(super) fn choose(context: &Context, device: &str, wanted: Wanted) -> Result<(u8, [u8; 16])> {
    let entries = u8::try_from(context.port()?.gid_tbl_len)?;
    ensure!(entries > 0, "{device} has no GIDs");
    let mut found = None;
    for index in 0..entries {
        let gid = context.gid(index).with_context(|| format!("GID {index} of {entries}"))?;
        if found.is_none() && is_wanted(gid, wanted) && is_v2(device, index)? {
            found = Some((index, gid));
        }
    }
    found.with_context(|| format!("{device} has no GID as {wanted:?}"))
}

fn is_v2(device: &str, index: u8) -> Result<bool> {
    let file = format!("/sys/class/infiniband/{device}/ports/1/gid_attrs/types/{index}");
    match fs::read_to_string(&file) {
        Ok(kind) => Ok(kind.trim() == ROCE_V2),
        // So the kernel tells of an entry that is empty.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
        Err(error) => bail!("cannot read {file}: {error}"),
    }
}

/// Whether a GID is an address that others are reached by, and as it is wanted.
fn is_wanted(gid: [u8; 16], Wanted { ipv6, network }: Wanted) -> bool {
    let address = Ipv6Addr::from(gid);
    let told = match (address.to_ipv4_mapped(), ipv6) {
        (Some(mapped), false) => IpAddr::V4(mapped),
        (None, true) if !address.is_unspecified() && !address.is_unicast_link_local() => {
            IpAddr::V6(address)
        }
        _ => return false,
    };
    network.is_none_or(|(network, bits)| is_in(told, network, bits))
}

fn is_in(address: IpAddr, network: IpAddr, bits: u8) -> bool {
    let (address, network, all) = match (address, network) {
        (IpAddr::V4(address), IpAddr::V4(network)) => {
            (address.to_bits().into(), network.to_bits().into(), 32)
        }
        (IpAddr::V6(address), IpAddr::V6(network)) => (address.to_bits(), network.to_bits(), 128),
        _ => return false,
    };
    let beside: u32 = all - u32::from(bits).min(all);
    let differ: u128 = address ^ network;
    differ.checked_shr(beside).unwrap_or(0) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(text: &str) -> [u8; 16] {
        text.parse::<Ipv6Addr>().unwrap().octets()
    }

    #[test]
    fn what_is_wanted_is_of_its_family_and_network() {
        let four = Wanted::default();
        assert!(is_wanted(gid("::ffff:10.77.0.1"), four));
        for other in ["::", "fe80::1", "2001:db8::1"] {
            assert!(!is_wanted(gid(other), four), "{other}");
        }
        let six = Wanted { ipv6: true, network: None };
        assert!(is_wanted(gid("2001:db8::1"), six));
        for other in ["::", "fe80::1", "::ffff:10.77.0.1"] {
            assert!(!is_wanted(gid(other), six), "{other}");
        }
        let near =
            |bits| Wanted { ipv6: false, network: Some(("10.77.9.0".parse().unwrap(), bits)) };
        assert!(is_wanted(gid("::ffff:10.77.0.1"), near(16)));
        assert!(!is_wanted(gid("::ffff:10.77.0.1"), near(24)));
        assert!(is_wanted(gid("::ffff:1.2.3.4"), near(0)));
        assert!(!is_wanted(gid("::ffff:10.77.0.1"), Wanted { ipv6: true, ..near(16) }));
    }
}
