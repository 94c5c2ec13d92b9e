//! Keys that Google's program psp_encrypt derives, and packets that OpenSSL seals of the program's inputs.
//!
//! The program's own packets encrypt from another offset on than a Balboa card's. OpenSSL made three of those again, byte for
//! byte, before it made these.

#![allow(clippy::indexing_slicing, clippy::unwrap_used, reason = "tests may fail")]

use psp::{Cipher, Header, Version, derived, param};
use sha2::{Digest, Sha256};

/// The second of the program's two master keys.
const MASTER: [u8; 32] = [
    0x56, 0x39, 0x52, 0x56, 0x5d, 0x3a, 0x78, 0xae, 0x77, 0x3e, 0xc1, 0xb7, 0x79, 0xf2, 0xf2, 0xd9,
    0x9f, 0x4a, 0x7f, 0x53, 0xa6, 0xfb, 0xb9, 0xb0, 0x7d, 0x5b, 0x71, 0xf3, 0x93, 0x64, 0xd7, 0x39,
];
const SPI: u32 = 0x9a34_5678;

/// The keys that the program derives of it.
const KEY_128: &str = "3946da2554eae46ad1ef77a64372edc4";
const KEY_256: &str = "fa00f609df6020289a1c93d6027081a637ad45b24a5576b36e6f49dd43114d80";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The program's datagram: UDP from port 11111 to 22222, with bytes that count up.
fn datagram() -> Vec<u8> {
    let header = [0x2b, 0x67, 0x56, 0xce, 0x05, 0x78, 0x89, 0x3b];
    header.into_iter().chain((0..1392).map(|at| at as u8)).collect()
}

#[test]
fn keys_are_derived_as_the_program_derives_them() {
    assert_eq!(hex(&derived(&MASTER, SPI, Version::AesGcm128)[..16]), KEY_128);
    assert_eq!(hex(&derived(&MASTER, SPI, Version::AesGcm256)), KEY_256);
}

/// The packet that the program makes of its datagram with the cookie 0: its start, its end, and the SHA-256 of all.
#[test]
fn packets_are_sealed_as_the_program_seals_them() {
    for (version, start, icv, sum) in [
        (
            Version::AesGcm128,
            "110202039a34567800000000000000010000000000000000429c7ead9516e5ad",
            "3618df3a7f8eda7c737168a18ea48a97",
            "47b419398e2f0536606f058f78f3065b994bb2943ef6b08a9e5c17c794b8000d",
        ),
        (
            Version::AesGcm256,
            "110202079a345678000000000000000100000000000000003d1f9f2dd67746f3",
            "e42fa8608dd31dac097200cf48fec959",
            "5d9437749c8c47ffa7a93ff2e50e2fa27494bb87236ad2878a2400d9a465ddc2",
        ),
    ] {
        let cipher = Cipher::new(version, &derived(&MASTER, SPI, version));
        let header = Header { version, spi: SPI, iv: 1, epoch: 0, qpn: 0 };
        let inner = datagram();
        let mut packet = [&[0; param::HEADER][..], &inner, &[0; param::ICV]].concat();
        assert!(cipher.seal(&header, &mut packet));
        assert_eq!(hex(&packet[..32]), start, "{version}");
        assert_eq!(hex(&packet[packet.len() - param::ICV..]), icv, "{version}");
        assert_eq!(hex(&Sha256::digest(&packet)), sum, "{version}");
        assert_eq!(Header::parse(&packet), Some(header));
        assert!(cipher.open(&header, &mut packet));
        assert_eq!(packet[param::HEADER..packet.len() - param::ICV], inner);
    }
}

/// The program knows no GMAC. GMAC is the check value of AES-GCM over no text: that of the program's own packet without
/// its encrypted bytes.
#[test]
fn what_is_only_authenticated_stands_there_as_it_is() {
    for version in [Version::AesGmac128, Version::AesGmac256] {
        let cipher = Cipher::new(version, &derived(&MASTER, SPI, version));
        let header = Header { version, spi: SPI, iv: 1, epoch: 0, qpn: 0 };
        let inner = datagram();
        let mut packet = [&[0; param::HEADER][..], &inner, &[0; param::ICV]].concat();
        assert!(cipher.seal(&header, &mut packet));
        assert_eq!(packet[param::HEADER..packet.len() - param::ICV], inner);
        for at in [0, 20, 30, 700, packet.len() - 1] {
            let mut other = packet.clone();
            other[at] ^= 1;
            assert!(!cipher.open(&header, &mut other), "byte {at}");
        }
        assert!(cipher.open(&header, &mut packet));
    }
}

#[test]
fn packets_without_room_are_not_sealed() {
    let version = Version::AesGcm128;
    let cipher = Cipher::new(version, &derived(&MASTER, SPI, version));
    let header = Header { version, spi: SPI, iv: 1, epoch: 0, qpn: 0 };
    for length in 0..param::LONGER {
        let mut packet = vec![0; length];
        assert!(!cipher.seal(&header, &mut packet) && !cipher.open(&header, &mut packet));
    }
    assert!(cipher.seal(&header, &mut [0; param::LONGER]), "of nothing");
}
