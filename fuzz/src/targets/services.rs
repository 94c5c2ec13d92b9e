//! Packets of any shape and order through services: no panic, no byte more or less, and no work without end.

use std::sync::Arc;

use ::services::{Chain, Operation, Part, Placing, ServedQp, Settings, Verdict};
use arbitrary::Unstructured;

use crate::Outcome;

/// Bytes of a packet at most.
const LONGEST: usize = 300;

fn part(u: &mut Unstructured<'_>, length: usize, goes_on: u64) -> arbitrary::Result<Part> {
    let operation = *u.choose(&[Operation::Send, Operation::Write, Operation::Read])?;
    // Mostly such as a transport gives; it gives no others, and nothing may depend on that.
    let offset = match u.int_in_range(0..=7)? {
        0 => u.arbitrary()?,
        1..=3 => 0,
        _ => goes_on,
    };
    Ok(Part { operation, offset, length: length as u32, is_last: u.ratio(1, 4)? })
}

/// A chain, where the bytes are such as make one: those of a file of patterns, which a person gives.
fn chain(u: &mut Unstructured<'_>) -> arbitrary::Result<Option<Chain>> {
    if u.ratio(1, 4)? {
        return Ok(Chain::named(&["preprocess"], Settings::default()).ok());
    }
    if u.ratio(1, 4)? {
        // More words than come: none is refused.
        let words = Settings::new(vec![("words".into(), b"65535".to_vec())]);
        return Ok(words.and_then(|words| Chain::named(&["classifier"], words)).ok());
    }
    let length = u.int_in_range(0..=LONGEST)?;
    let bytes = u.bytes(length.min(u.len()))?;
    let text = match u.ratio(1, 4)? {
        true => bytes.to_vec(),
        // Short ones, which are found.
        false => {
            let line = |pattern: &[u8]| match *pattern {
                [one, other] => format!("0x{one:02x}{other:02x}\n"),
                _ => "#\n".into(),
            };
            bytes.chunks(2).map(line).collect::<String>().into_bytes()
        }
    };
    let settings = vec![("patterns".into(), text), ("mode".into(), b"count".to_vec())];
    let settings = Settings::new(settings);
    Ok(settings.and_then(|settings| Chain::named(&["inspect", "preprocess"], settings)).ok())
}

pub fn run(u: &mut Unstructured<'_>) -> Outcome {
    let Some(chain) = chain(u)? else { return Ok(()) };
    let mut connection = ServedQp::new(Arc::new(chain));
    let mut waiting = Vec::new();
    let mut end = 0u64;
    let (mut checked, mut acted) = (0u64, 0u64);
    while !u.is_empty() {
        let length = u.int_in_range(1..=LONGEST)?.min(u.len().max(1));
        let mut bytes = u.bytes(length.min(u.len()))?.to_vec();
        bytes.resize(length, 0);
        let part = part(u, length, end)?;
        match u.int_in_range(0..=5)? {
            0 => assert!(connection.transform(&part, &mut bytes), "there is nothing to transform"),
            1 => {
                connection.check(None);
            }
            _ => {
                let verdict = connection.check(Some((&part, &bytes)));
                assert_eq!(verdict, Verdict::Accept, "the service refuses nothing");
                checked += 1;
                if u.ratio(7, 8)? {
                    connection.accept();
                    end = part.offset.wrapping_add(u64::from(part.length));
                    waiting.push(bytes);
                }
            }
        }
        if u.ratio(1, 2)? {
            for mut bytes in waiting.drain(..) {
                let (length, mut placing) =
                    (bytes.len(), Placing { bytes: &mut bytes, address: None });
                assert!(connection.act(&mut placing), "it has work enough");
                assert_eq!(placing.bytes.len(), length);
                acted += 1;
            }
        }
    }
    let counters = connection.counters();
    assert!(counters.checked_packets <= checked && counters.acted_packets <= acted);
    assert_eq!((counters.over_budget, counters.refused_packets), (0, 0));
    Ok(())
}
