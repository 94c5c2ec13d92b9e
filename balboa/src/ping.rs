//! The command `balboa ping`: the owner of an address of RoCE.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use nix::unistd::geteuid;
use serde_json::{Value, json};
use shim_abi::{Pinged, Who};
use terminal::say;

use crate::args::{self, CardName};
use crate::client::ToolClient;
use crate::state::{FORMAT, text};

/// Exit code where another connection manager answered.
const OTHER: u8 = 3;
/// Exit code if none answered.
const NOBODY: u8 = 4;
/// Time from one question to the next.
const INTERVAL: Duration = Duration::from_secs(1);

/// Asks, and prints the answer; returns the exit code.
///
/// # Errors
/// When no balboad here could ask.
pub fn ping(arguments: &args::Ping) -> anyhow::Result<u8> {
    let dir = shim_abi::state_dir(arguments.state_dir.path(), geteuid().as_raw());
    let mut client = ToolClient::connect(&dir, Duration::ZERO)?;
    let address = match arguments.address.0 {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    let cards = client.cards()?;
    let mut best = NOBODY;
    for number in 0..arguments.count {
        if number > 0 {
            std::thread::sleep(INTERVAL);
        }
        let pinged = client.ping(arguments.card.map(|card| card.0), address)?;
        best = best.min(code(&pinged.who));
        let asked = cards.iter().find(|card| card.card == pinged.card);
        let own = asked.map_or(0, |card| card.port.max_mtu);
        match arguments.json {
            true => say(format_args!("{}\n", document(arguments.address.0, &pinged, own)))?,
            false => say(format_args!("{}\n", line(arguments.address.0, &pinged, own)))?,
        }
    }
    Ok(best)
}

const fn code(who: &Who) -> u8 {
    match who {
        Who::Balboad { .. } => 0,
        Who::Other { .. } => OTHER,
        Who::Silent | Who::Nobody => NOBODY,
    }
}

/// Milliseconds to three places.
fn milliseconds(nanoseconds: u64) -> String {
    format!("{}.{:03} ms", nanoseconds / 1_000_000, nanoseconds / 1000 % 1000)
}

/// `own` is the code of the path MTU of the port that has asked.
fn line(address: IpAddr, pinged: &Pinged, own: u8) -> String {
    let Pinged { card, who, nanoseconds, .. } = pinged;
    let (card, time) = (CardName(*card), milliseconds(*nanoseconds));
    match who {
        Who::Balboad { version, mtu, flags } => {
            let version = text(&Value::from(version.as_str()));
            let segments =
                if flags & NUMBERS_SEGMENTS == 0 { "" } else { ", numbers its segments" };
            let (theirs, ours) = (bytes(*mtu), bytes(own));
            let smaller = match theirs == ours {
                true => String::new(),
                false => format!(
                    " and {ours} here, of which queue pairs between the two need the smaller"
                ),
            };
            format!(
                "{address}: balboad {version}, MTU {theirs}{smaller}{segments}; {time} from {card}"
            )
        }
        Who::Other { status } => format!(
            "{address}: a connection manager that is no balboad's ({}); {time} from {card}",
            reason(*status)
        ),
        Who::Silent => format!(
            "{address}: no connection manager answers {card}, which proves nothing about an RNIC: its kernel may have no ib_cm, something filters UDP port 4791, or who had the address has gone since it was found"
        ),
        Who::Nobody => format!("{address}: nobody on the link of {card} has this address"),
    }
}

/// The bit of the flags.
const NUMBERS_SEGMENTS: u8 = 1;

/// Bytes of a path MTU; 0 for an unknown code.
fn bytes(mtu: u8) -> u32 {
    if (1..=5).contains(&mtu) { 128 << mtu } else { 0 }
}

/// The meaning of a status of a SIDR_REP.
fn reason(status: u8) -> String {
    match status {
        1 => "it does not know the service".to_owned(),
        2 => "it rejects the question".to_owned(),
        3 => "it has no room".to_owned(),
        other => format!("it answers with status {other}"),
    }
}

fn document(address: IpAddr, pinged: &Pinged, own: u8) -> Value {
    let Pinged { card, source, who, nanoseconds } = pinged;
    let (name, version, mtu, flags, status) = match who {
        Who::Balboad { version, mtu, flags } => {
            ("balboad", Some(version), Some(bytes(*mtu)), Some(*flags), None)
        }
        Who::Other { status } => ("other", None, None, None, Some(*status)),
        Who::Silent => ("silent", None, None, None, None),
        Who::Nobody => ("nobody", None, None, None, None),
    };
    let answered = matches!(who, Who::Balboad { .. } | Who::Other { .. });
    json!({
        "format": FORMAT,
        "address": address.to_string(),
        "card": CardName(*card).to_string(),
        "from": Ipv6Addr::from(*source).to_canonical().to_string(),
        "who": name,
        "version": version,
        "mtu": mtu,
        "own_mtu": bytes(own),
        "numbers_segments": flags.map(|flags| flags & NUMBERS_SEGMENTS != 0),
        "status": status,
        "round_trip_us": answered.then_some(*nanoseconds as f64 / 1000.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pinged(who: Who) -> Pinged {
        Pinged { card: 1, source: [0; 16], who, nanoseconds: 1_234_567 }
    }

    #[test]
    fn each_that_may_be_there_has_its_line_its_document_and_its_code() {
        let address = "10.77.0.2".parse().unwrap();
        let balboad =
            |version: &str, flags| Who::Balboad { version: version.into(), mtu: 5, flags };
        for (who, words, name, exit) in [
            (balboad("0.1.0", 0), "balboad 0.1.0, MTU 4096; 1.234 ms from balboa1", "balboad", 0),
            (balboad("a\x1bb", 1), "balboad a?b, MTU 4096, numbers its segments;", "balboad", 0),
            (Who::Other { status: 1 }, "no balboad's (it does not know the service);", "other", 3),
            (Who::Other { status: 9 }, "status 9", "other", 3),
            (Who::Silent, "proves nothing about an RNIC", "silent", 4),
            (Who::Nobody, "nobody on the link of balboa1", "nobody", 4),
        ] {
            let pinged = pinged(who);
            let told = line(address, &pinged, 5);
            assert!(told.starts_with("10.77.0.2: ") && told.contains(words), "{told}");
            let document = document(address, &pinged, 5);
            assert_eq!((&document["who"], code(&pinged.who)), (&json!(name), exit));
            assert_eq!(document["round_trip_us"].is_null(), exit == NOBODY, "{document}");
        }
        let other = document(address, &pinged(balboad("1", 1)), 3);
        assert_eq!(other["numbers_segments"], true);
        assert_eq!((&other["mtu"], &other["own_mtu"]), (&json!(4096), &json!(1024)));
        let told = line(address, &pinged(balboad("1", 0)), 3);
        assert!(told.contains("MTU 4096 and 1024 here, of which"), "{told}");
        assert_eq!([0, 1, 5, 6].map(bytes), [0, 256, 4096, 0]);
    }
}
