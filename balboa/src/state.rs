//! balboad's description of itself, for the commands that show facts.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use nix::unistd::geteuid;
use serde_json::{Value, json};

use crate::args::CardName;
use crate::client::{ClientError, ToolClient};

/// Version of the commands' output with `--json`: under the same number a field is only added.
pub const FORMAT: u32 = 1;

/// The state as balboad wrote it.
///
/// # Errors
/// When there is no balboad, or it does not answer.
pub fn fetch_text(state_dir: Option<&Path>) -> Result<String, ClientError> {
    let dir = shim_abi::state_dir(state_dir, geteuid().as_raw());
    ToolClient::connect(&dir, Duration::ZERO)?.status()
}

/// The state.
///
/// # Errors
/// As [`fetch_text`], and when it is no JSON.
pub fn fetch(state_dir: Option<&Path>) -> anyhow::Result<Value> {
    parse(&fetch_text(state_dir)?)
}

/// Parses a state's text.
///
/// # Errors
/// When it is no JSON.
pub fn parse(text: &str) -> anyhow::Result<Value> {
    serde_json::from_str(text).context("balboad's answer is no JSON")
}

/// A card in a state.
///
/// # Errors
/// When there is none of that name.
pub fn card(state: &Value, name: CardName) -> anyhow::Result<&Value> {
    let cards = items(&state["cards"]);
    if let Some(card) = cards.iter().find(|card| card["card"] == name.0) {
        return Ok(card);
    }
    let names: Vec<_> = cards.iter().map(|card| text(&card["name"])).collect();
    bail!(
        "balboad in {} has no {name}: its cards are {}",
        text(&state["state_dir"]),
        names.join(", ")
    )
}

/// The clients in a state that have a place on a card.
pub fn clients_of(state: &Value, name: CardName) -> Vec<Value> {
    let on = |client: &&Value| items(&client["places"]).iter().any(|it| it["card"] == name.0);
    items(&state["clients"]).iter().filter(on).cloned().collect()
}

/// The clients in a state that have a card open, or one vFPGA of it, each by its `command` and `pid`.
pub fn programs_of(state: &Value, name: CardName, vfpga: Option<u8>) -> Vec<Value> {
    let clients = clients_of(state, name);
    // One that has closed it keeps its place for the next time.
    let opens = |client: &&Value| {
        items(&client["places"]).iter().any(|it| {
            let there = vfpga.is_none_or(|vfpga| it["window"] == vfpga);
            it["card"] == name.0 && it["open"] == true && there
        })
    };
    clients
        .iter()
        .filter(opens)
        .map(|it| json!({ "command": it["command"], "pid": it["pid"] }))
        .collect()
}

/// The items of a list; none if it is no list.
pub fn items(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// A value as text: strings without quotes and control characters, and nothing for an absent one.
pub fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.replace(char::is_control, "?"),
        other => other.to_string(),
    }
}

/// The numbers of an object that are not 0, by name.
pub fn counted(object: &Value) -> Vec<String> {
    let entries = object.as_object().into_iter().flatten();
    let counted = entries.filter(|(_, value)| value.as_u64().is_some_and(|value| value > 0));
    counted.map(|(name, value)| format!("{name} {value}")).collect()
}

/// Rows as columns, each as wide as its longest cell, two spaces apart.
pub fn table(rows: &[Vec<String>]) -> String {
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let widths = rows.iter().filter_map(|row| row.get(column));
            let width = widths.map(|cell| cell.chars().count()).max().unwrap_or(0);
            line.push_str(&format!("{cell:<width$}  "));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_that_is_not_there_is_told_with_those_that_are() {
        let state = json!({
            "state_dir": "D", "cards": [{"card": 0, "name": "balboa0"}],
            "clients": [{"pid": 1, "places": [{"card": 0}]}, {"pid": 2, "places": []}],
        });
        assert_eq!(card(&state, CardName(0)).unwrap()["name"], "balboa0");
        let error = card(&state, CardName(7)).unwrap_err().to_string();
        assert_eq!(error, "balboad in D has no balboa7: its cards are balboa0");
        assert_eq!(clients_of(&state, CardName(0)).len(), 1);
        assert!(clients_of(&state, CardName(1)).is_empty());
    }

    #[test]
    fn columns_are_as_wide_as_their_longest_cell() {
        let rows = [["a", "b"], ["long", ""]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(table(&rows), "a     b\nlong\n");
    }
}
