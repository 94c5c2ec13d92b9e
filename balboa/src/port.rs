//! `balboa link`: what is changed of a card's port.

use std::path::Path;
use std::time::Duration;

use anyhow::bail;
use nix::unistd::geteuid;

use crate::args::{self, CardName};
use crate::client::Client;

/// Takes a port off its cable, or puts it back.
///
/// # Errors
/// When there is no such balboad or card, or it refuses.
pub fn link(arguments: &args::Link) -> anyhow::Result<()> {
    let args::Link { state_dir, card, state } = arguments;
    Ok(client_with(state_dir.as_deref(), *card)?.set_link(card.0, state.up)?)
}

/// A connection to a balboad that has the card.
fn client_with(state_dir: Option<&Path>, card: CardName) -> anyhow::Result<Client> {
    let dir = shim_abi::state_dir(state_dir, geteuid().as_raw());
    let mut client = Client::connect(&dir, Duration::ZERO)?;
    let cards = client.cards()?;
    if !cards.iter().any(|it| it.card == card.0) {
        let names: Vec<_> = cards.iter().map(|card| card.name.as_str()).collect();
        bail!("balboad in {} has no {card}: its cards are {}", dir.display(), names.join(", "));
    }
    Ok(client)
}
