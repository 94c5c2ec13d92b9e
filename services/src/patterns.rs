//! Patterns of bytes, as a person writes them down: one a line.

use crate::limit;

/// Why a text is no list of patterns.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternsError {
    /// There is none.
    #[error("there is no pattern in the file; write one on each line")]
    None,
    /// A line of text has an invisible byte.
    #[error(
        "line {line} of the patterns has the control character {byte:#04x}; write the whole line as hexadecimal digits behind 0x"
    )]
    Control {
        /// The line, from 1.
        line: usize,
        /// The byte.
        byte: u8,
    },
    /// A line that begins with 0x has something else than pairs of digits behind that.
    #[error(
        "line {line} of the patterns is no pairs of hexadecimal digits behind 0x; write two for each byte"
    )]
    Digits {
        /// The line.
        line: usize,
    },
    /// A pattern is too long.
    #[error("line {line} of the patterns has {bytes} bytes; {most} are the most", most = limit::PATTERN)]
    Long {
        /// The line.
        line: usize,
        /// Its bytes.
        bytes: usize,
    },
    /// There are too many.
    #[error("line {line} has one pattern more than {most}, which are the most", most = limit::PATTERNS)]
    Many {
        /// The first line too many.
        line: usize,
    },
    /// They are too long together.
    #[error(
        "the patterns have more than {most} bytes from line {line} on, which are the most; name fewer, or parts of them",
        most = limit::PATTERN_BYTES
    )]
    Bytes {
        /// The first line too many.
        line: usize,
    },
    /// A pattern is there already.
    #[error("line {line} of the patterns says the same as line {before}; write it once")]
    Again {
        /// The line.
        line: usize,
        /// The one before.
        before: usize,
    },
}

/// A half of a byte.
fn digit(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

/// The bytes that pairs of hexadecimal digits stand for; none where they are no such pairs.
fn bytes(digits: &[u8]) -> Option<Vec<u8>> {
    let pair = |pair: &[u8]| match *pair {
        [high, low] => Some(digit(high)? << 4 | digit(low)?),
        _ => None,
    };
    digits.chunks(2).map(pair).collect::<Option<Vec<u8>>>().filter(|bytes| !bytes.is_empty())
}

/// The pattern on a line.
fn pattern(line: usize, written: &[u8]) -> Result<Vec<u8>, PatternsError> {
    let pattern = match written.strip_prefix(b"0x") {
        Some(digits) => bytes(digits).ok_or(PatternsError::Digits { line })?,
        None => match written.iter().find(|byte| byte.is_ascii_control()) {
            Some(&byte) => return Err(PatternsError::Control { line, byte }),
            None => written.to_vec(),
        },
    };
    match pattern.len() {
        0..=limit::PATTERN => Ok(pattern),
        bytes => Err(PatternsError::Long { line, bytes }),
    }
}

/// Reads patterns, of which there is at least one, none is empty, and no two are the same.
///
/// Each line is one: a text as it stands, with its spaces, or bytes as hexadecimal digits behind 0x. Lines that are empty
/// or begin with # are none.
///
/// # Errors
/// Why it is no list of patterns; with the first line that is wrong.
pub fn patterns(text: &[u8]) -> Result<Vec<Vec<u8>>, PatternsError> {
    let mut found: Vec<(usize, Vec<u8>)> = Vec::new();
    let mut total = 0usize;
    for (line, written) in (1..).zip(text.split(|byte| *byte == b'\n')) {
        if written.is_empty() || written.starts_with(b"#") {
            continue;
        }
        let pattern = pattern(line, written)?;
        if let Some(&(before, _)) = found.iter().find(|(_, other)| *other == pattern) {
            return Err(PatternsError::Again { line, before });
        }
        if found.len() >= limit::PATTERNS {
            return Err(PatternsError::Many { line });
        }
        total = total.saturating_add(pattern.len());
        if total > limit::PATTERN_BYTES {
            return Err(PatternsError::Bytes { line });
        }
        found.push((line, pattern));
    }
    if found.is_empty() {
        return Err(PatternsError::None);
    }
    Ok(found.into_iter().map(|(_, pattern)| pattern).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_text_or_bytes_and_some_are_neither() {
        let text = b"# what we look for\nDROP TABLE\n\n0x4d5A00ff\n  # spaces count \n\xc3\xa4";
        let expected: [&[u8]; 4] =
            [b"DROP TABLE", &[0x4d, 0x5a, 0, 0xff], b"  # spaces count ", b"\xc3\xa4"];
        assert_eq!(patterns(text).unwrap(), expected);
    }

    #[test]
    fn what_is_no_list_of_patterns_is_refused_with_its_line() {
        use PatternsError as E;
        let long = |bytes| [b'a'].repeat(bytes);
        let lines = |count: usize, bytes: usize| {
            let line = |number| format!("{number:0bytes$}\n").into_bytes();
            (0..count).flat_map(line).collect::<Vec<_>>()
        };
        let full = limit::PATTERN_BYTES / limit::PATTERN;
        for (text, why) in [
            (b"".to_vec(), E::None),
            (b"# nothing\n\n#\n".to_vec(), E::None),
            (b"one\r\ntwo\r\n".to_vec(), E::Control { line: 1, byte: 13 }),
            (b"one\n\0".to_vec(), E::Control { line: 2, byte: 0 }),
            (b"0x".to_vec(), E::Digits { line: 1 }),
            (b"\n0x0".to_vec(), E::Digits { line: 2 }),
            (b"0x0g".to_vec(), E::Digits { line: 1 }),
            (b"0x+1".to_vec(), E::Digits { line: 1 }),
            (b"0x00 01".to_vec(), E::Digits { line: 1 }),
            (long(limit::PATTERN + 1), E::Long { line: 1, bytes: limit::PATTERN + 1 }),
            (b"a\n#\n0x61".to_vec(), E::Again { line: 3, before: 1 }),
            (lines(limit::PATTERNS + 1, 3), E::Many { line: limit::PATTERNS + 1 }),
            (lines(full + 1, limit::PATTERN), E::Bytes { line: full + 1 }),
        ] {
            assert_eq!(patterns(&text), Err(why.clone()), "{}", text.escape_ascii());
            assert!(!why.to_string().contains('\n'));
        }
        assert_eq!(patterns(&long(limit::PATTERN)).unwrap().len(), 1);
        assert_eq!(patterns(&lines(limit::PATTERNS, 3)).unwrap().len(), limit::PATTERNS);
        assert_eq!(patterns(&lines(full, limit::PATTERN)).unwrap().len(), full);
    }
}
