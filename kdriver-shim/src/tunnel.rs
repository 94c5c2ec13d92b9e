//! The peers at the other end of a tunnel: found out of band, for a question on the link would stop a published card
//! that does not know it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use bitstreams::EngineKind;

use crate::args::{Args, Tunnel, WantedCards};
use crate::shared_keys::{key_of, lines, read_own};

/// Bytes that are shared with a peer.
const KEY_BYTES: usize = 16;

/// The fault of an address.
const NO_CARD: &str =
    "an address of one card is wanted, and no group's, broadcast, loopback or unspecified one";

/// Peers by their address, and the secret shared with each.
pub type Peers = BTreeMap<Ipv4Addr, [u8; KEY_BYTES]>;

/// Why balboad cannot have a tunnel as asked for.
#[derive(Debug, thiserror::Error)]
pub enum TunnelError {
    /// A file of peers is not taken.
    #[error("{}: {why}", path.display())]
    Peers {
        /// The file.
        path: PathBuf,
        /// The fault in it.
        why: String,
    },
    /// An address of `--rnic-peers` is no card's.
    #[error("--rnic-peers {peer}: {NO_CARD}")]
    Rnic {
        /// The address.
        peer: Ipv4Addr,
    },
    /// An option is for published cards.
    #[error("{option}: no card here has a published bitstream, and others do without")]
    NoCard {
        /// The option.
        option: &'static str,
    },
}

/// The other ends of tunnels: this balboad's own cards as published, by a key that no other has, and those that a file
/// names. `flashed` gives the driver of a card that was flashed; such cards may be flashed back, and so they may have
/// none.
///
/// # Errors
/// A manifest's, or [`TunnelError`].
pub fn peers(
    args: &Args,
    cards: &WantedCards,
    flashed: impl Fn(u32) -> Option<EngineKind>,
) -> anyhow::Result<Peers> {
    let mut peers = Peers::new();
    let option = match (args.tunnel, &args.tunnel_peers) {
        (Some(Tunnel::On), _) => "--tunnel on",
        (_, Some(_)) => "--tunnel-peers",
        _ if args.lossy => "--lossy",
        _ if !args.rnic_peers.is_empty() => "--rnic-peers",
        _ => return Ok(peers),
    };
    let (mut published, mut may_change) = (Vec::new(), false);
    for (number, address) in (0u32..).zip(&cards.addresses) {
        let engine = match flashed(number) {
            Some(engine) => {
                may_change = true;
                engine
            }
            None => cards.manifest(number)?.engine,
        };
        if engine == EngineKind::Stock {
            published.push(address.ip);
        }
    }
    if published.is_empty() {
        let error = TunnelError::NoCard { option };
        if !may_change {
            return Err(error.into());
        }
        log::warn!("{error}");
    }
    if args.tunnel == Some(Tunnel::On) {
        let mut key = [0; KEY_BYTES];
        getrandom::fill(&mut key)?;
        peers.extend(published.into_iter().map(|ip| (ip, key)));
    }
    if let Some(path) = &args.tunnel_peers {
        for (peer, key) in read(path)? {
            if peers.insert(peer, key).is_some() {
                let why = format!("{peer} is a card of this balboad's");
                return Err(TunnelError::Peers { path: path.clone(), why }.into());
            }
        }
    }
    Ok(peers)
}

/// Peers that are RNICs to cards as published: those that are named, and cards of this balboad's that are no such ones, nor
/// have been flashed so.
///
/// # Errors
/// A manifest's.
pub fn rnics(
    args: &Args,
    cards: &WantedCards,
    flashed: impl Fn(u32) -> Option<EngineKind>,
) -> anyhow::Result<BTreeSet<Ipv4Addr>> {
    let mut rnics: BTreeSet<_> = args.rnic_peers.iter().copied().collect();
    if let Some(peer) = rnics.iter().find(|peer| !is_one_card(**peer)) {
        return Err(TunnelError::Rnic { peer: *peer }.into());
    }
    for (number, address) in (0u32..).zip(&cards.addresses) {
        let engine = flashed(number).map_or_else(|| cards.manifest(number).map(|it| it.engine), Ok);
        if engine? != EngineKind::Stock {
            rnics.insert(address.ip);
        }
    }
    Ok(rnics)
}

/// Reads a file of peers, which no other user can read.
fn read(path: &Path) -> Result<Peers, TunnelError> {
    let text = read_own(path).and_then(|text| parse(&text));
    text.map_err(|why| TunnelError::Peers { path: path.into(), why })
}

/// Takes peers from text: lines with an address and a key, empty ones, and such as begin with `#`.
fn parse(text: &str) -> Result<Peers, String> {
    let mut peers = Peers::new();
    for (number, line) in lines(text) {
        let wrong = |what: &str| format!("line {number}: {what}");
        let (peer, key) = line
            .split_once(char::is_whitespace)
            .ok_or_else(|| wrong("write an IPv4 address and 32 hexadecimal digits"))?;
        let peer: Ipv4Addr =
            peer.parse().map_err(|_| wrong("what stands first is no IPv4 address"))?;
        if !is_one_card(peer) {
            return Err(wrong(NO_CARD));
        }
        let key: [u8; KEY_BYTES] =
            key_of(key.trim()).ok_or_else(|| wrong("a key has 32 hexadecimal digits"))?;
        if key == [0; KEY_BYTES] {
            return Err(wrong(
                "a key of zeros is nobody's secret; make one with `openssl rand -hex 16`",
            ));
        }
        if peers.insert(peer, key).is_some() {
            return Err(wrong("the address was there before"));
        }
    }
    match peers.is_empty() {
        true => {
            Err("there is no peer in it; write an IPv4 address and 32 hexadecimal digits".into())
        }
        false => Ok(peers),
    }
}

/// Whether an address can be that of one card on a network.
fn is_one_card(address: Ipv4Addr) -> bool {
    let all = address.is_broadcast() || address.is_multicast();
    !(all || address.is_loopback() || address.octets().first() == Some(&0))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may fail")]
mod tests {
    use clap::Parser as _;

    use super::*;

    const TEXT: &str = "# the other machine\n\n10.0.0.2 000102030405060708090a0b0c0d0e0f\n";

    #[test]
    fn what_is_for_published_cards_is_refused_where_there_is_none() {
        let peers = |arguments: &[&str], flashed: Option<EngineKind>| {
            let args = Args::try_parse_from([&["balboad", "--soft", "2"], arguments].concat());
            let args = args.unwrap();
            let cards = args.cards().unwrap();
            super::peers(&args, &cards, |card| flashed.filter(|_| card == 1))
                .map(|peers| peers.len())
                .map_err(|error| error.to_string())
        };
        for (option, value) in [
            ("--tunnel on", None),
            ("--tunnel-peers", Some("/nowhere")),
            ("--lossy", None),
            ("--rnic-peers", Some("10.0.0.9")),
        ] {
            let words: Vec<_> = option.split(' ').chain(value).collect();
            let why = peers(&words, None).unwrap_err();
            assert!(why.starts_with(&format!("{option}: ")), "{why}");
            assert!(why.contains("no card here has a published bitstream"), "{why}");
        }
        assert_eq!(peers(&[], None), Ok(0));
        assert_eq!(peers(&["--tunnel", "on"], Some(EngineKind::Stock)), Ok(1), "a flashed one");
        assert_eq!(peers(&["--tunnel", "on", "--soft-image", "stock"], None), Ok(2));
        assert_eq!(peers(&["--tunnel", "on"], Some(EngineKind::Vqe)), Ok(0), "it may come back");
        let image = ["--tunnel", "on", "--soft-image", "stock"];
        assert_eq!(peers(&image, Some(EngineKind::Vqe)), Ok(1), "one was flashed to another");
    }

    #[test]
    fn own_cards_that_are_not_as_published_are_rnics_to_those_that_are() {
        let words =
            ["balboad", "--soft", "3", "--soft-image", "0=stock", "--rnic-peers", "10.0.0.9"];
        let args = Args::try_parse_from(words).unwrap();
        let cards = args.cards().unwrap();
        let [_, own, flashed] = [0, 1, 2].map(|card| cards.addresses[card].ip);
        let engine = |card| (card == 2).then_some(EngineKind::Stock);
        let named = Ipv4Addr::new(10, 0, 0, 9);
        assert_eq!(rnics(&args, &cards, engine).unwrap(), BTreeSet::from([named, own]));
        assert_eq!(rnics(&args, &cards, |_| None).unwrap(), BTreeSet::from([named, own, flashed]));
        let group = Args::try_parse_from(["balboad", "--soft", "1", "--rnic-peers", "224.0.0.1"]);
        let why = rnics(&group.unwrap(), &cards, |_| None).unwrap_err().to_string();
        assert!(why.starts_with("--rnic-peers 224.0.0.1: an address of one card"), "{why}");
    }

    #[test]
    fn a_file_names_peers_and_what_is_shared_with_them() {
        let key: [u8; 16] = core::array::from_fn(|index| index as u8);
        assert_eq!(parse(TEXT), Ok(Peers::from([(Ipv4Addr::new(10, 0, 0, 2), key)])));
        for (text, what) in [
            ("", "there is no peer in it; write an IPv4"),
            ("# none\n", "there is no peer in it; write an IPv4"),
            ("10.0.0.2", "line 1: write an IPv4"),
            ("\nten 00", "line 2: what stands first"),
            ("10.0.0.2 +00102030405060708090a0b0c0d0e0f", "line 1: a key has"),
            ("10.0.0.2 000102030405060708090a0b0c0d0e", "line 1: a key has"),
            (&format!("{TEXT}{TEXT}"), "line 6: the address was there"),
            (&format!("10.0.0.2 {}", "0".repeat(32)), "line 1: a key of zeros"),
            (&TEXT.replace("10.0.0.2", "224.0.0.1"), "line 3: an address of one card"),
            (&TEXT.replace("10.0.0.2", "255.255.255.255"), "line 3: an address of one card"),
            (&TEXT.replace("10.0.0.2", "127.0.0.1"), "line 3: an address of one card"),
            (&TEXT.replace("10.0.0.2", "0.0.0.0"), "line 3: an address of one card"),
        ] {
            assert!(parse(text).unwrap_err().starts_with(what), "{text}");
        }
    }
}
