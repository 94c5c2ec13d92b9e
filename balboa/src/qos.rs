//! `balboa qos`: which priorities of a card go first, and which have flow control.

use std::fmt::Write as _;

use anyhow::{anyhow, bail};
use nix::errno::Errno;
use serde_json::{Value, json};
use shim_abi::Qos;
use terminal::{USAGE, say};

use crate::args::{self, CardName, QosAction};
use crate::client::ClientError;
use crate::port::client_with;
use crate::state::FORMAT;

/// Why nothing was done.
pub struct Failure {
    /// The exit code.
    pub code: u8,
    /// The message.
    pub error: anyhow::Error,
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self { code: 1, error }
    }
}

/// Shows or sets the priorities of a card's port.
///
/// # Errors
/// When the words are wrong, there is no such balboad or card, or it refuses.
pub fn qos(arguments: &args::Qos) -> Result<(), Failure> {
    let args::Qos { state_dir, card, action } = arguments;
    let change = match action {
        QosAction::Set { words } => {
            // Wrong words need no balboad.
            let mut nothing = none();
            read(words, &mut nothing).map_err(|error| Failure { code: USAGE, error })?;
            Some(words)
        }
        QosAction::Show { .. } => None,
    };
    let (mut client, _) = client_with(state_dir.path(), *card)?;
    let mut qos = client.qos(card.0).map_err(|error| refused(*card, error))?;
    if let Some(words) = change {
        read(words, &mut qos).map_err(|error| Failure { code: USAGE, error })?;
        return client.set_qos(card.0, qos).map_err(|error| refused(*card, error));
    }
    let said = match action {
        QosAction::Show { json: true } => say(format_args!("{:#}\n", document(*card, &qos))),
        _ => say(format_args!("{}", list(&qos))),
    };
    Ok(said.map_err(anyhow::Error::from)?)
}

/// A refusal, of which settings that make no sense are wrong words.
fn refused(card: CardName, error: ClientError) -> Failure {
    let code = match &error {
        ClientError::Refused { errno, .. } if *errno == Errno::EINVAL as i32 => USAGE,
        _ => 1,
    };
    let error = match error {
        ClientError::Refused { reason, .. } => anyhow!("{card}: {reason}"),
        error => error.into(),
    };
    Failure { code, error }
}

/// Settings to try words on.
fn none() -> Qos {
    let dscp = Some(vec![0; 64]);
    Qos { dscp, classes: [0; 8], strict: 0, weights: [0; 8], pfc: 0 }
}

/// The groups of settings, and what stands in each.
const GROUPS: [(&str, &[&str]); 4] = [
    ("ets", &["tc-tsa", "tc-bw", "prio-tc"]),
    ("pfc", &["prio-pfc"]),
    ("app", &["dscp-prio"]),
    ("apptrust", &["order"]),
];

/// Changes the settings that words name.
fn read(words: &[String], qos: &mut Qos) -> anyhow::Result<()> {
    let (mut group, mut setting) = (None, None);
    // The DSCPs count or not before their priorities are read.
    let order = words.iter().position(|word| word == "order").and_then(|at| words.get(at + 1));
    match (order.map(String::as_str), &qos.dscp) {
        (Some("dscp"), None) => qos.dscp = Some((0..64).map(|dscp: u8| dscp >> 3).collect()),
        (Some("pcp"), _) => qos.dscp = None,
        _ => {}
    }
    // Whether the last word needs another one behind it.
    let mut is_open = false;
    for word in words {
        let known = GROUPS.iter().find(|(name, _)| name == word);
        let of_group =
            group.is_some_and(|(_, settings): (&str, &[&str])| settings.contains(&word.as_str()));
        match (known, setting) {
            (Some(_), _) if is_open => break,
            (Some(known), _) => (group, setting, is_open) = (Some(*known), None, true),
            (None, Some(_)) if of_group && is_open => break,
            (None, _) if of_group => (setting, is_open) = (Some(word.as_str()), true),
            (None, Some(setting)) => {
                set(setting, word, qos)?;
                is_open = false;
            }
            (None, None) => {
                let begins =
                    GROUPS.map(|(name, settings)| format!("{name} {}", settings.join("|")));
                bail!("`{word}`: write {}", begins.join(", "));
            }
        }
    }
    match is_open {
        false => Ok(()),
        true => bail!("`{}`: write what it is to be behind it", words.join(" ")),
    }
}

/// Changes one setting.
fn set(setting: &str, word: &str, qos: &mut Qos) -> anyhow::Result<()> {
    if setting == "order" {
        return match word {
            "dscp" | "pcp" => Ok(()),
            _ => bail!("order `{word}`: write dscp or pcp"),
        };
    }
    let (most, what) = match setting {
        "dscp-prio" => (63, "DSCP:PRIORITY, such as 26:3"),
        "prio-tc" => (7, "PRIORITY:CLASS, such as 3:3"),
        "prio-pfc" => (7, "PRIORITY:on or PRIORITY:off, such as 3:on"),
        "tc-tsa" => (7, "CLASS:strict or CLASS:ets, such as 3:ets"),
        _ => (7, "CLASS:PERCENT, such as 3:60"),
    };
    let wrong = || anyhow!("{setting} `{word}`: write {what}");
    let (number, value) = word.split_once(':').ok_or_else(wrong)?;
    let numbers = match number {
        "all" => 0..=most,
        number => {
            let number = digits(number).filter(|number| *number <= most);
            let number = number.ok_or_else(|| {
                anyhow!(
                    "{setting} `{word}`: write a number from 0 to {most} before the colon, or all"
                )
            })?;
            number..=number
        }
    };
    let up_to = |most: u8| {
        let value = digits(value).filter(|value| *value <= most);
        value
            .ok_or_else(|| anyhow!("{setting} `{word}`: write a number from 0 to {most} behind it"))
    };
    for number in numbers {
        let (place, bit) = (usize::from(number), 1_u8.wrapping_shl(number.into()));
        match (setting, value) {
            ("prio-tc", _) => put(&mut qos.classes, place, up_to(7)?),
            ("tc-bw", _) => put(&mut qos.weights, place, up_to(100)?),
            ("dscp-prio", _) => match &mut qos.dscp {
                Some(map) => put(map, place, up_to(7)?),
                None => bail!(
                    "{setting} `{word}`: no DSCP counts, for the tag is trusted; write apptrust order dscp as well"
                ),
            },
            ("tc-tsa", "strict") => {
                qos.strict |= bit;
                put(&mut qos.weights, place, 0);
            }
            ("tc-tsa", "ets") => qos.strict &= !bit,
            ("prio-pfc", "on") => qos.pfc |= bit,
            ("prio-pfc", "off") => qos.pfc &= !bit,
            _ => return Err(wrong()),
        }
    }
    Ok(())
}

fn put(places: &mut [u8], at: usize, value: u8) {
    places.get_mut(at).into_iter().for_each(|place| *place = value);
}

/// A number of nothing but digits.
fn digits(text: &str) -> Option<u8> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Values by their numbers.
fn numbered(values: impl IntoIterator<Item = impl std::fmt::Display>) -> String {
    let values = values.into_iter().enumerate();
    let values: Vec<_> = values.map(|(number, value)| format!("{number}:{value}")).collect();
    values.join(" ")
}

/// A word for each of eight bits.
fn bits(bits: u8, [no, yes]: [&'static str; 2]) -> impl Iterator<Item = &'static str> {
    (0..8).map(move |bit| if bits >> bit & 1 == 1 { yes } else { no })
}

/// The settings, as they are set.
fn list(qos: &Qos) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "ets tc-tsa {}", numbered(bits(qos.strict, ["ets", "strict"])));
    let _ = writeln!(out, "ets tc-bw {}", numbered(qos.weights));
    let _ = writeln!(out, "ets prio-tc {}", numbered(qos.classes));
    let _ = writeln!(out, "pfc prio-pfc {}", numbered(bits(qos.pfc, ["off", "on"])));
    match &qos.dscp {
        Some(map) => {
            let _ = writeln!(out, "apptrust order dscp");
            for (row, map) in map.chunks(8).enumerate() {
                let entry = |(at, priority): (usize, &u8)| format!("{}:{priority}", 8 * row + at);
                let entries: Vec<_> = map.iter().enumerate().map(entry).collect();
                let _ = writeln!(out, "app dscp-prio {}", entries.join(" "));
            }
        }
        None => out.push_str("apptrust order pcp\n"),
    }
    out
}

/// The same for programs.
fn document(card: CardName, qos: &Qos) -> Value {
    json!({
        "format": FORMAT,
        "card": card.to_string(),
        "tc_tsa": bits(qos.strict, ["ets", "strict"]).collect::<Vec<_>>(),
        "tc_bw": qos.weights,
        "prio_tc": qos.classes,
        "prio_pfc": bits(qos.pfc, ["off", "on"]).map(|it| it == "on").collect::<Vec<_>>(),
        "trust": if qos.dscp.is_some() { "dscp" } else { "pcp" },
        "dscp_prio": qos.dscp,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    fn told(text: &str) -> Qos {
        let mut qos = none();
        qos.strict = 0xff;
        read(&words(text), &mut qos).unwrap();
        qos
    }

    #[test]
    fn words_are_those_of_dcb() {
        let qos = told(
            "ets tc-tsa all:ets 6:strict tc-bw 0:10 3:60 4:30 prio-tc all:0 3:3 4:4 6:6 pfc prio-pfc 3:on app dscp-prio 26:3 48:6",
        );
        assert_eq!((qos.strict, qos.pfc), (1 << 6, 1 << 3));
        assert_eq!(qos.weights, [10, 0, 0, 60, 30, 0, 0, 0]);
        assert_eq!(qos.classes, [0, 0, 0, 3, 4, 0, 6, 0]);
        let map = qos.dscp.clone().unwrap();
        assert_eq!((map[26], map[48], map[27]), (3, 6, 0));
        assert_eq!(told("ets tc-bw 3:9 tc-tsa 3:strict").weights, [0; 8], "it has no share");
        let said = list(&qos);
        assert!(said.contains("ets tc-tsa 0:ets 1:ets 2:ets 3:ets 4:ets 5:ets 6:strict 7:ets\n"));
        assert!(said.contains("pfc prio-pfc 0:off 1:off 2:off 3:on 4:off"), "{said}");
        assert!(said.contains("app dscp-prio 24:0 25:0 26:3 27:0"), "{said}");
        assert!(said.lines().all(|line| read(&words(line), &mut none()).is_ok()), "{said}");
        let document = document(CardName(1), &qos);
        let told = [&document["card"], &document["trust"], &document["tc_bw"][3]];
        assert_eq!(told, [&json!("balboa1"), &json!("dscp"), &json!(60)]);
    }

    #[test]
    fn trust_is_in_the_tag_or_in_the_dscp() {
        let qos = told("apptrust order pcp");
        assert_eq!(
            (qos.dscp.clone(), list(&qos).lines().last().unwrap()),
            (None, "apptrust order pcp")
        );
        let mut again = qos;
        read(&words("app dscp-prio 0:7 apptrust order dscp"), &mut again).unwrap();
        let map = again.dscp.unwrap();
        assert_eq!((map[0], map[26], map[63]), (7, 3, 7), "the class selector elsewhere");
    }

    #[test]
    fn what_is_wrong_is_named_with_what_to_write_instead() {
        for (text, says) in [
            (
                "x",
                "`x`: write ets tc-tsa|tc-bw|prio-tc, pfc prio-pfc, app dscp-prio, apptrust order",
            ),
            ("ets", "`ets`: write what it is to be behind it"),
            ("ets tc-bw", "`ets tc-bw`: write what it is to be behind it"),
            (
                "ets tc-bw pfc prio-pfc 3:on",
                "`ets tc-bw pfc prio-pfc 3:on`: write what it is to be behind it",
            ),
            ("pfc tc-bw 3:1", "`tc-bw`: write ets tc-tsa"),
            ("ets tc-bw 3", "tc-bw `3`: write CLASS:PERCENT, such as 3:60"),
            ("ets tc-bw 8:1", "tc-bw `8:1`: write a number from 0 to 7 before the colon, or all"),
            ("ets tc-bw 3:101", "tc-bw `3:101`: write a number from 0 to 100 behind it"),
            ("ets tc-bw 3:+1", "tc-bw `3:+1`: write a number from 0 to 100 behind it"),
            ("ets tc-tsa 3:cbs", "tc-tsa `3:cbs`: write CLASS:strict or CLASS:ets, such as 3:ets"),
            ("pfc prio-pfc 3:yes", "prio-pfc `3:yes`: write PRIORITY:on or PRIORITY:off"),
            (
                "app dscp-prio 64:1",
                "dscp-prio `64:1`: write a number from 0 to 63 before the colon",
            ),
            ("app dscp-prio 1:8", "dscp-prio `1:8`: write a number from 0 to 7 behind it"),
            ("apptrust order both", "order `both`: write dscp or pcp"),
            ("apptrust order pcp app dscp-prio 1:1", "no DSCP counts, for the tag is trusted"),
        ] {
            let refusal = read(&words(text), &mut none()).unwrap_err().to_string();
            assert!(refusal.contains(says), "{text}: {refusal}");
        }
    }
}
