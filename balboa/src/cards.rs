//! `balboa list`, `balboa show` and `balboa counters`: the cards, one by one.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use terminal::{complain, say};
use vfio::Sysfs;

use crate::args::{self, CardName};
use crate::client::ClientError;
use crate::state::{self, FORMAT, items, table, text};
use crate::status;

/// Lists the cards of a balboad, and those on the bus that it does not drive.
///
/// # Errors
/// When there is no balboad and no card on the bus, or it does not answer.
pub fn list(arguments: &args::List) -> anyhow::Result<()> {
    let cards = match state::fetch_text(arguments.state_dir.path()) {
        Ok(text) => rows(&state::parse(&text)?, &Sysfs::default()),
        Err(error @ (ClientError::NoBalboad { .. } | ClientError::Stale { .. })) => {
            let cards = rows(&Value::Null, &Sysfs::default());
            if cards.is_empty() {
                return Err(error.into());
            }
            complain("balboa list", error);
            cards
        }
        Err(error) => return Err(error.into()),
    };
    if arguments.json {
        return say_json(&json!({ "format": FORMAT, "cards": cards }));
    }
    let lines = cards.iter().map(|card| {
        let link = match card["link_up"].as_bool() {
            Some(up) => format!("{}, {}", if up { "up" } else { "down" }, text(&card["link"])),
            None => "-".to_owned(),
        };
        let of = |field: &str| match text(&card[field]) {
            empty if empty.is_empty() => "-".to_owned(),
            text => text,
        };
        ["name", "address", "board", "image", "engine"]
            .map(of)
            .into_iter()
            .chain([link, of("driver")])
            .collect()
    });
    let head = ["NAME", "ADDRESS", "BOARD", "IMAGE", "ENGINE", "LINK", "DRIVER"];
    let head = head.map(str::to_owned).to_vec();
    let lines: Vec<Vec<String>> = std::iter::once(head).chain(lines).collect();
    Ok(say(format_args!("{}", table(&lines)))?)
}

/// A card each: those of the state, then those on the bus that are not among them.
fn rows(state: &Value, bus: &Sysfs) -> Vec<Value> {
    let mut rows: Vec<Value> = items(&state["cards"])
        .iter()
        .map(|card| {
            json!({
                "name": card["name"], "address": card["location"], "board": card["board"],
                "image": card["image"], "engine": card["engine"], "link_up": card["link_up"],
                "link": card["link"], "driver": card["driver"],
            })
        })
        .collect();
    for function in bus.cards() {
        let address = function.address.to_string();
        if rows.iter().all(|row| row["address"] != address.as_str()) {
            rows.push(json!({
                "name": null, "address": address, "board": null, "image": null, "engine": null,
                "link_up": null, "link": null, "driver": function.driver(),
            }));
        }
    }
    rows
}

/// Shows a whole card, and its users.
///
/// # Errors
/// When there is no such balboad or card.
pub fn show(arguments: &args::Show) -> anyhow::Result<()> {
    let state = state::fetch(arguments.state_dir.path())?;
    let card = state::card(&state, arguments.card)?;
    let clients = state::clients_of(&state, arguments.card);
    if arguments.json {
        return say_json(&json!({ "format": FORMAT, "card": card, "clients": clients }));
    }
    Ok(say(format_args!("{}", status::describe_one(card, &clients)))?)
}

/// Shows a card's counters, once or again and again.
///
/// # Errors
/// When there is no such balboad or card, or it goes meanwhile.
pub fn counters(arguments: &args::Counters) -> anyhow::Result<()> {
    let args::Counters { state_dir, card, watch, count, json } = arguments;
    let mut before = counted(state_dir.path(), *card)?;
    let Some(period) = watch.map(|seconds| Duration::from_secs(seconds.into())) else {
        let text = match json {
            true => format!("{:#}\n", as_json(*card, &before.1, None)),
            false => plain(&before.1),
        };
        return Ok(say(format_args!("{text}"))?);
    };
    let mut left = *count;
    while left != Some(0) {
        std::thread::sleep(period);
        let now = counted(state_dir.path(), *card)?;
        let rates =
            Rates { seconds: now.0.duration_since(before.0).as_secs_f64(), from: &before.1 };
        let text = match json {
            true => format!("{}\n", as_json(*card, &now.1, Some(&rates))),
            false => changes(&now.1, &rates),
        };
        say(format_args!("{text}"))?;
        before = now;
        left = left.map(|left| left.saturating_sub(1));
    }
    Ok(())
}

/// Counters of a card, in the order of their names.
type Counts = BTreeMap<String, u64>;

fn counted(state_dir: Option<&Path>, name: CardName) -> anyhow::Result<(Instant, Counts)> {
    let state = state::fetch(state_dir)?;
    Ok((Instant::now(), counts(state::card(&state, name)?)))
}

/// The counters of a card in a state.
pub fn counts(card: &Value) -> Counts {
    let counters = card["counters"].as_object().into_iter().flatten();
    counters.filter_map(|(name, value)| Some((name.clone(), value.as_u64()?))).collect()
}

/// The rates of counters.
pub struct Rates<'a> {
    /// Seconds between two looks.
    pub seconds: f64,
    /// The counts of the first look.
    pub from: &'a Counts,
}

impl Rates<'_> {
    /// The increase in a second; a counter that a reset of its card has set back rises from 0.
    pub fn of(&self, name: &str, now: u64) -> f64 {
        let before = self.from.get(name).copied().unwrap_or(0);
        now.checked_sub(before).unwrap_or(now) as f64 / self.seconds.max(f64::MIN_POSITIVE)
    }
}

fn as_json(card: CardName, counts: &Counts, rates: Option<&Rates<'_>>) -> Value {
    let mut document = json!({ "format": FORMAT, "card": card.to_string(), "counters": counts });
    if let Some(rates) = rates {
        let each = counts.iter().map(|(name, now)| (name.clone(), rates.of(name, *now).into()));
        document["seconds"] = rates.seconds.into();
        document["rates"] = Value::Object(each.collect::<Map<_, _>>());
    }
    document
}

/// All counters, a line each.
fn plain(counts: &Counts) -> String {
    let rows = counts.iter().map(|(name, value)| vec![name.clone(), value.to_string()]);
    table(&rows.collect::<Vec<_>>())
}

/// Counters that have changed, each with its rate, and an empty line behind them.
fn changes(counts: &Counts, rates: &Rates<'_>) -> String {
    let changed = counts.iter().filter(|(name, now)| rates.from.get(*name) != Some(now));
    let rows = changed.map(|(name, now)| {
        vec![name.clone(), now.to_string(), format!("{:+.0}/s", rates.of(name, *now))]
    });
    let mut text = table(&rows.collect::<Vec<_>>());
    if text.is_empty() {
        text.push_str("nothing has changed\n");
    }
    let _ = writeln!(text);
    text
}

fn say_json(document: &Value) -> anyhow::Result<()> {
    Ok(say(format_args!("{document:#}\n"))?)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn cards_on_the_bus_that_nobody_drives_are_listed_too() {
        let home = tempfile::tempdir().unwrap();
        for address in ["0000:3b:00.0", "0000:5e:00.0"] {
            let function = home.path().join("bus/pci/devices").join(address);
            fs::create_dir_all(&function).unwrap();
            fs::write(function.join("vendor"), "0x10ee\n").unwrap();
            fs::write(function.join("device"), "0x903f\n").unwrap();
        }
        let state = json!({ "cards": [{
            "name": "balboa0", "location": "0000:3b:00.0", "board": "B", "image": "I",
            "engine": "vqe", "link_up": true, "link": "its own port", "driver": "vfio-pci",
        }]});
        let rows = rows(&state, &Sysfs::at(home.path()));
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0]["engine"], "vqe");
        assert_eq!((&rows[1]["name"], &rows[1]["driver"]), (&Value::Null, &Value::Null));
        assert_eq!(rows[1]["address"], "0000:5e:00.0");
    }

    #[test]
    fn rates_are_of_the_time_between_two_looks() {
        let from = Counts::from([("sent_pkts".into(), 10), ("rcvd_pkts".into(), 5)]);
        let now = Counts::from([("sent_pkts".into(), 30), ("rcvd_pkts".into(), 5)]);
        let rates = Rates { seconds: 2.0, from: &from };
        assert_eq!(changes(&now, &rates), "sent_pkts  30  +10/s\n\n");
        assert_eq!(changes(&from, &rates), "nothing has changed\n\n");
        assert_eq!(as_json(CardName(1), &now, Some(&rates))["rates"]["sent_pkts"], 10.0);
        assert_eq!(rates.of("sent_pkts", 4), 2.0, "its card was reset");
    }
}
