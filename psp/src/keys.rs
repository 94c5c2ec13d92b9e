//! Keys: the ones that hosts share, and those that are derived of them.

use std::fmt;
use std::net::IpAddr;

use aes::Aes256;
use cmac::{Cmac, Mac};

use crate::param::SECRET;
use crate::version::Version;

/// The label of the keys that are derived of a shared one, beside those of the specification.
const LABEL: &[u8; 12] = b"balboa psp 1";

/// A key that two hosts share. It never encrypts anything.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; SECRET]);

impl Secret {
    /// The key of these bytes.
    #[must_use]
    pub const fn new(bytes: [u8; SECRET]) -> Self {
        Self(bytes)
    }

    /// The master key of one sender, towards one receiver, in one epoch: no two senders have the same, and no epoch has that
    /// of another. NIST SP 800-108 in counter mode, over CMAC with AES-256.
    pub(crate) fn master(&self, ends: Ends, epoch: u64) -> [u8; SECRET] {
        let [from, to] = [ends.from, ends.to].map(|ip| match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        });
        let mut master = [0; SECRET];
        for (number, half) in (1_u32..).zip(master.chunks_exact_mut(16)) {
            let epoch = epoch.to_be_bytes();
            let bits = 256_u32.to_be_bytes();
            let parts = [&number.to_be_bytes()[..], LABEL, &[0], &from, &to, &epoch, &bits];
            half.copy_from_slice(&mac(&self.0, &parts));
        }
        master
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// The addresses of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ends {
    /// The sender's.
    pub from: IpAddr,
    /// The receiver's.
    pub to: IpAddr,
}

/// The key that PSP derives of a master key and a security parameters index. A version of 128 bits has the first half.
#[must_use]
pub fn derived(master: &[u8; SECRET], spi: u32, version: Version) -> [u8; SECRET] {
    let bits = version.key_bits();
    let mut key = [0; SECRET];
    for (number, half) in (1_u32..).zip(key.chunks_exact_mut(16)) {
        let label = [b'P', b'v', b'0'.wrapping_add(version.number()), 0];
        let length = u32::from(bits).to_be_bytes();
        let parts = [&number.to_be_bytes()[..], &label, &spi.to_be_bytes(), &length];
        half.copy_from_slice(&mac(master, &parts));
        if bits == 128 {
            break;
        }
    }
    key
}

fn mac(key: &[u8; SECRET], parts: &[&[u8]]) -> [u8; 16] {
    let mut mac = <Cmac<Aes256> as Mac>::new(key.into());
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_sender_receiver_epoch_and_index_has_a_key_of_its_own() {
        let [one, other] = ["10.0.0.1", "2001:db8::1"].map(|ip| ip.parse().unwrap());
        let mut keys = HashSet::new();
        for secret in [Secret::new([1; SECRET]), Secret::new([2; SECRET])] {
            for ends in [(one, other), (other, one), (one, one)] {
                let ends = Ends { from: ends.0, to: ends.1 };
                for (epoch, spi) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                    for version in Version::ALL {
                        keys.insert(derived(&secret.master(ends, epoch), spi, version));
                    }
                }
            }
        }
        assert_eq!(keys.len(), 2 * 3 * 4 * 4);
    }

    #[test]
    fn nobody_sees_a_secret_by_its_debugging_text() {
        assert_eq!(format!("{:?}", Secret::new([0x55; SECRET])), "Secret");
    }
}
