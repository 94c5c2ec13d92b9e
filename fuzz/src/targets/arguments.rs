//! Command lines: taken, or refused by one sentence.

use arbitrary::Unstructured;
use clap::Parser as _;
use kdriver_shim::args::Args;
use softcard::FaultSpec;

use crate::Outcome;

/// Words that command lines are made of.
const WORDS: &[&str] = &[
    "loss=",
    "dup=",
    "reorder=",
    "corrupt=",
    "delay=",
    "ecn=",
    "card=",
    "0=",
    "1=",
    "3=",
    "0",
    "1",
    "2",
    "0.5%",
    "1e-9",
    "100%",
    "10us",
    "1ms",
    "..",
    "18446744073709551615",
    "NaN",
    "-",
    "unix:",
    "10.0.0.1",
    "10.77.0.2/24",
    "255.255.255.255",
    "/33",
    "/tmp/a",
    ",",
    ",",
    ",",
];

const OPTIONS: &[&str] = &[
    "--soft",
    "--fault",
    "--port",
    "--ip",
    "--seed",
    "--pcap",
    "--state-dir",
    "--vfio",
    "-v",
    "--help",
    "",
];

pub fn run(u: &mut Unstructured<'_>) -> Outcome {
    let mut line = vec!["balboad".to_owned()];
    while !u.is_empty() && line.len() < 12 {
        let option = *u.choose(OPTIONS)?;
        let value = text(u)?;
        match value.parse::<FaultSpec>() {
            Ok(fault) => assert_eq!(fault.to_string().parse().ok(), Some(fault), "{value}"),
            Err(error) => one_sentence(&error.to_string()),
        }
        match (option, u.arbitrary()?) {
            ("", _) => line.push(value),
            (option, true) => line.extend([option.to_owned(), value]),
            (option, false) => line.push(format!("{option}={value}")),
        }
    }
    if let Ok(args) = Args::try_parse_from(line) {
        match args.cards() {
            Ok(cards) => {
                let count = cards.soft.len() + cards.vfio.len();
                assert!(count <= 16 && count == cards.addresses.len(), "{cards:?}");
            }
            Err(sentence) => one_sentence(&sentence),
        }
    }
    Ok(())
}

fn text(u: &mut Unstructured<'_>) -> arbitrary::Result<String> {
    let mut text = String::new();
    for _ in 0..u.int_in_range(0..=8)? {
        match u.ratio(1, 8)? {
            true => text.push(u.arbitrary()?),
            false => text.push_str(u.choose(WORDS)?),
        }
    }
    Ok(text)
}

fn one_sentence(error: &str) {
    assert!(!error.is_empty() && error.len() < 1000, "{error:?}");
}
