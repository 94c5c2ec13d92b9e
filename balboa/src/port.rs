//! The commands `balboa link` and `balboa addr`: changes of a card's port.

use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;
use std::time::Duration;

use anyhow::bail;
use nix::unistd::geteuid;
use serde_json::{Value, json};
use shim_abi::{CardInfo, PortInfo};
use terminal::say;

use crate::args::{self, Action, AddressInVlan, CardName};
use crate::client::ToolClient;
use crate::state::FORMAT;

/// Takes a port off its cable, or puts it back.
///
/// # Errors
/// When there is no such balboad or card, or it refuses.
pub fn link(arguments: &args::Link) -> anyhow::Result<()> {
    let args::Link { state_dir, card, state } = arguments;
    let (mut client, _) = client_with(state_dir.path(), *card)?;
    Ok(client.set_link(card.0, state.up)?)
}

/// Shows, adds or deletes addresses.
///
/// # Errors
/// When there is no such balboad or card, or it refuses.
pub fn addr(arguments: &args::Addr) -> anyhow::Result<()> {
    let args::Addr { state_dir, card, action } = arguments;
    let (mut client, shown) = client_with(state_dir.path(), *card)?;
    match action {
        Action::Show { json: true } => {
            Ok(say(format_args!("{:#}\n", document(*card, &shown.port)))?)
        }
        Action::Show { json: false } => Ok(say(format_args!("{}", list(&shown.port)))?),
        Action::Add(AddressInVlan { address, vlan, .. }) => {
            let index = client.add_gid(card.0, address.gid(), vlan.unwrap_or(0))?;
            Ok(say(format_args!("GID {index}\n"))?)
        }
        Action::Del(AddressInVlan { address, vlan, .. }) => {
            Ok(client.del_gid(card.0, address.gid(), vlan.unwrap_or(0))?)
        }
    }
}

/// Addresses with their index and VLAN, which is 0 where they are in none.
fn addresses(port: &PortInfo) -> impl Iterator<Item = (usize, IpAddr, u16)> {
    let vlans = port.vlans.iter().copied().chain(std::iter::repeat(0));
    let entries = port.gids.iter().zip(vlans).enumerate();
    let there = entries.filter(|(_, (gid, _))| **gid != [0; 16]);
    there.map(|(index, (gid, vlan))| (index, Ipv6Addr::from(*gid).to_canonical(), vlan))
}

/// Addresses by their index, a line each.
fn list(port: &PortInfo) -> String {
    let line = |(index, address, vlan): (usize, IpAddr, u16)| {
        let vlan = if vlan == 0 { String::new() } else { format!(" vlan {vlan}") };
        format!("{index:<3} {address}{vlan}\n")
    };
    addresses(port).map(line).collect()
}

/// The same for programs.
fn document(card: CardName, port: &PortInfo) -> Value {
    let entry = |(index, address, vlan): (usize, IpAddr, u16)| {
        let vlan = (vlan != 0).then_some(vlan);
        json!({ "index": index, "address": address.to_string(), "vlan": vlan })
    };
    let addresses: Vec<Value> = addresses(port).map(entry).collect();
    json!({ "format": FORMAT, "card": card.to_string(), "addresses": addresses })
}

/// A connection to a balboad that has the card, and the card.
pub(crate) fn client_with(
    state_dir: Option<&Path>,
    card: CardName,
) -> anyhow::Result<(ToolClient, CardInfo)> {
    let dir = shim_abi::state_dir(state_dir, geteuid().as_raw());
    let mut client = ToolClient::connect(&dir, Duration::ZERO)?;
    let mut cards = client.cards()?;
    match cards.iter().position(|it| it.card == card.0) {
        Some(at) => Ok((client, cards.swap_remove(at))),
        None => {
            let names: Vec<_> = cards.iter().map(|card| card.name.as_str()).collect();
            bail!("balboad in {} has no {card}: its cards are {}", dir.display(), names.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_listed_as_people_write_them_and_keep_their_index() {
        let text = |text: &str| text.parse::<Ipv6Addr>().unwrap().octets();
        let gids = [text("fe80::1"), text("::ffff:10.0.0.1"), [0; 16], text("2001:db8::7")];
        let port = PortInfo {
            link_up: true,
            max_mtu: 5,
            active_mtu: 5,
            mac: [0; 6],
            gids: gids.into(),
            vlans: vec![0, 0, 0, 5],
            pkeys: Vec::new(),
        };
        assert_eq!(list(&port), "0   fe80::1\n1   10.0.0.1\n3   2001:db8::7 vlan 5\n");
        let told = document(CardName(2), &port);
        assert_eq!(
            (&told["card"], &told["addresses"][0]["vlan"]),
            (&json!("balboa2"), &Value::Null)
        );
        let last = json!({ "index": 3, "address": "2001:db8::7", "vlan": 5 });
        assert_eq!(told["addresses"][2], last);
    }
}
