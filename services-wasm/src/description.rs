//! The description that a module gives of itself.

use std::borrow::Cow;
use std::ops::Range;

use services::limit::{STATE as MOST_STATE, WORK as MOST_WORK};
use services::{About, Operations, Stages};

use crate::error::Error;
use crate::interface::{FORMS, description as at};

/// A number in memory.
fn word(bytes: &[u8], place: usize) -> Option<u32> {
    let bytes = bytes.get(place..)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}

/// Reads the description of a module that has these stages.
pub(crate) fn read(bytes: &[u8], stages: Stages) -> Result<About, Error> {
    let number = |place| word(bytes, place).ok_or(Error::Place(crate::interface::ABOUT));
    let wrong = |why: String| Err(Error::Description(why));
    let name = text(bytes, at::NAME, "name")?;
    let is_plain = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
    if name.is_empty() || !name.bytes().all(is_plain) {
        return wrong(format!("the name {name:?}: write small letters, digits and hyphens"));
    }
    let summary = text(bytes, at::SUMMARY, "summary")?;
    if summary.chars().any(char::is_control) {
        return wrong("the summary has control characters; take them out".into());
    }
    let operations = number(at::OPERATIONS)?;
    if !(1..=at::SENDS | at::WRITES | at::READS).contains(&operations) {
        return wrong(format!("operations are {operations:#x}; set bits 0 to 2, one at least"));
    }
    let has = |bit| operations & bit != 0;
    let operations =
        Operations { send: has(at::SENDS), write: has(at::WRITES), read: has(at::READS) };
    let flags = number(at::FLAGS)?;
    if flags & !at::REWRITES != 0 || number(at::RESERVED)? != 0 {
        return wrong(format!("flags are {flags:#x}; set bit 0 alone, and nothing behind work"));
    }
    let [takes, gives] = [number(at::TAKES)?, number(at::GIVES)?].map(form);
    let rewrites = flags & at::REWRITES != 0;
    if rewrites && !stages.act {
        return wrong("it changes payload, and exports no balboa_act, which would".into());
    }
    let state = |place| Ok(usize::try_from(number(place)?).unwrap_or(usize::MAX));
    let (check_state, act_state) = (state(at::CHECK_STATE)?, state(at::ACT_STATE)?);
    if check_state.saturating_add(act_state) > MOST_STATE {
        let asked = check_state.saturating_add(act_state);
        return wrong(format!("its state has {asked} bytes; {MOST_STATE} are the most"));
    }
    let work = number(at::WORK)?;
    if !(1..=MOST_WORK).contains(&work) {
        return wrong(format!("its work is {work}; write 1 to {MOST_WORK}"));
    }
    Ok(About {
        name: Cow::Owned(name),
        summary: Cow::Owned(summary),
        stages: Stages { rewrites, ..stages },
        operations,
        takes: takes?,
        gives: gives?,
        check_state,
        act_state,
        work,
    })
}

/// A text, up to the zeros that fill it up.
fn text(bytes: &[u8], range: Range<usize>, what: &str) -> Result<String, Error> {
    let bytes = bytes.get(range).unwrap_or_default();
    let filled = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = std::str::from_utf8(filled);
    text.map(str::to_owned).map_err(|_| Error::Description(format!("the {what} is no UTF-8")))
}

fn form(number: u32) -> Result<Option<&'static str>, Error> {
    let known = usize::try_from(number).ok().and_then(|number| FORMS.get(number));
    known.copied().ok_or_else(|| {
        Error::Description(format!("there is no form {number} of payload; write 0 for any"))
    })
}
