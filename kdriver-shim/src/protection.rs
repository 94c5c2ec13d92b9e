//! PSP of cards: the keys that their hosts share with peers.

use std::collections::BTreeSet;
use std::net::IpAddr;

use card_driver::soft::SoftCard;
use psp::param::SECRET;
use psp::{Peer, Secret};
use softcard::{Link, Protection};

use crate::args::{Args, one_of_all};
use crate::key_source::KeySource;
use crate::shared_keys::{key_of, lines};

/// Why keys are not taken.
#[derive(Debug, thiserror::Error)]
#[error("--psp-peers {keys}: {why}")]
pub struct ProtectionError {
    keys: KeySource,
    why: String,
}

/// Makes software cards seal their frames, if the options ask for it.
///
/// # Errors
/// [`ProtectionError`]: a file is not taken, or a card has an image that cannot.
pub fn protect(args: &Args, cards: &mut [SoftCard]) -> anyhow::Result<()> {
    for (number, card) in (0_u32..).zip(cards) {
        let keys =
            one_of_all(&args.psp_peers, number, "--psp-peers").map_err(anyhow::Error::msg)?;
        let Some(keys) = keys else { continue };
        let failed = |why| ProtectionError { keys: keys.clone(), why };
        if card.image.is_published() {
            let why = format!(
                "card {number} was flashed with the published image, whose stack seals nothing; flash it back, or leave the option out for it"
            );
            return Err(failed(why).into());
        }
        let peers = keys.read().and_then(|text| parse(&text)).map_err(failed)?;
        let port = args.psp_port.unwrap_or_default().number();
        if let Link::Udp(_, options) = &mut card.link {
            options.port = Some(port);
        }
        let version = args.psp_version.unwrap_or_default();
        log::info!("balboa{number}: {version} with {} peers, UDP port {port}", peers.len());
        card.protection = Some(Protection { version, port, peers });
    }
    Ok(())
}

/// Takes peers from text: lines with addresses and a key.
fn parse(text: &str) -> Result<Vec<Peer>, String> {
    let (mut peers, mut known) = (Vec::<Peer>::new(), BTreeSet::new());
    for (number, line) in lines(text) {
        let wrong = |what: &str| format!("line {number}: {what}");
        let (addresses, key) = line.split_once(char::is_whitespace).ok_or_else(|| {
            wrong("write an address, or several with commas between, and 64 hexadecimal digits")
        })?;
        let addresses = addresses.split(',').map(str::parse).collect::<Result<Vec<IpAddr>, _>>();
        let addresses = addresses.map_err(|_| wrong("what stands first are no addresses"))?;
        for address in &addresses {
            if address.is_unspecified() || address.is_multicast() || is_mapped(*address) {
                return Err(wrong(&format!("{address} is no address of one host")));
            }
            if !known.insert(*address) {
                return Err(wrong(&format!("{address} was there before")));
            }
        }
        let key: [u8; SECRET] =
            key_of(key.trim()).ok_or_else(|| wrong("a key has 64 hexadecimal digits"))?;
        if key == [0; SECRET] {
            return Err(wrong(
                "a key of zeros is nobody's secret; make one with `openssl rand -hex 32`",
            ));
        }
        let secret = Secret::new(key);
        if peers.iter().any(|peer| peer.secret == secret) {
            return Err(wrong(
                "another line has the same key, so each of the two peers could pass for the other; make one for each",
            ));
        }
        peers.push(Peer { addresses, secret });
    }
    match peers.is_empty() {
        true => Err("there is no peer in it, so the card could speak to nobody".into()),
        false => Ok(peers),
    }
}

/// Whether it is an IPv4 address in IPv6, as no datagram has it.
fn is_mapped(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may fail")]
mod tests {
    use super::*;

    const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

    #[test]
    fn a_file_names_peers_and_the_key_of_each() {
        let other = KEY.replace("00", "ff");
        let text = format!("# both\n\n10.0.0.2,fe80::2 {KEY}\n10.0.0.3\t{other}\n");
        let key: [u8; 32] = core::array::from_fn(|index| index as u8);
        let peers = parse(&text).unwrap();
        let addresses = ["10.0.0.2", "fe80::2"].map(|it| it.parse().unwrap()).to_vec();
        assert_eq!(peers.len(), 2);
        assert_eq!(peers.first(), Some(&Peer { addresses, secret: Secret::new(key) }));
        for (text, what) in [
            (String::new(), "there is no peer in it"),
            ("10.0.0.2".into(), "line 1: write an address"),
            (format!("\nten {KEY}"), "line 2: what stands first"),
            (format!("10.0.0.2, {KEY}"), "line 1: what stands first"),
            (format!("10.0.0.2 {KEY}0"), "line 1: a key has 64"),
            (format!("10.0.0.2 {}", "0".repeat(64)), "line 1: a key of zeros"),
            (format!("10.0.0.2 {KEY}\n10.0.0.2 {other}"), "line 2: 10.0.0.2 was there before"),
            (format!("10.0.0.2,10.0.0.2 {KEY}"), "line 1: 10.0.0.2 was there before"),
            (format!("10.0.0.2 {KEY}\n10.0.0.3 {KEY}"), "line 2: another line has the same key"),
            (format!("224.0.0.1 {KEY}"), "line 1: 224.0.0.1 is no address of one host"),
            (format!("ff02::1 {KEY}"), "line 1: ff02::1 is no address"),
            (format!(":: {KEY}"), "line 1: :: is no address"),
            (format!("::ffff:10.0.0.1 {KEY}"), "line 1: ::ffff:10.0.0.1 is no address"),
        ] {
            assert!(parse(&text).unwrap_err().starts_with(what), "{text}: {:?}", parse(&text));
        }
    }
}
