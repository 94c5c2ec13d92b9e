//! Requests to the endpoint for Prometheus: answered once, with any content and in any pieces.

use arbitrary::Unstructured;
use kdriver_shim::metrics::Endpoint;
use kdriver_shim::metrics::request::{HttpAnswer, MAX_BYTES, answer};

use crate::Outcome;

/// Words of requests.
const WORDS: &[&[u8]] = &[
    b"GET ",
    b"HEAD ",
    b"POST ",
    b"/metrics",
    b"/",
    b"?name=x",
    b" HTTP/1.0",
    b" HTTP/1.1",
    b" HTTP/9.9",
    b"\r\n",
    b"\r\n\r\n",
    b"\r",
    b"\n",
    b"\0",
    b"Host: x",
    b" ",
];

pub fn run(u: &mut Unstructured<'_>) -> Outcome {
    let mut received = Vec::new();
    let mut answered = None;
    while !u.is_empty() && received.len() < MAX_BYTES {
        match u.ratio(1, 4)? {
            true => {
                let count = u.int_in_range(0..=MAX_BYTES)?.min(u.len());
                received.extend_from_slice(u.bytes(count)?);
            }
            false => received.extend_from_slice(u.choose(WORDS)?),
        }
        answered = answer(&received);
        if answered.is_some() {
            break;
        }
    }
    let ended = received.windows(4).any(|bytes| bytes == b"\r\n\r\n");
    assert_eq!(answered.is_some(), ended || received.len() >= MAX_BYTES);
    if answered == Some(HttpAnswer::Page) {
        let asked = |method: &[u8]| received.starts_with(method);
        assert!(asked(b"GET /metrics ") || asked(b"GET /metrics?"), "{received:?}");
    }
    if let Some(answer) = answered {
        for page in [None, Some("x 1\n")] {
            let response = answer.response(page);
            let (head, body) = response.split_once("\r\n\r\n").unwrap_or_default();
            assert!(head.starts_with("HTTP/1.1 "), "{response}");
            assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{response}");
        }
    }
    if let Ok(text) = std::str::from_utf8(&received) {
        match text.parse::<Endpoint>() {
            Ok(endpoint) => assert_eq!(endpoint.to_string().parse(), Ok(endpoint), "{text:?}"),
            Err(sentence) => assert!(!sentence.is_empty()),
        }
    }
    Ok(())
}
