//! Requests to the endpoint: `GET /metrics` of HTTP/1, and nothing else.

/// Bytes of a request at most.
pub const MAX_BYTES: usize = 4096;

/// The end of a request's head.
const END: &[u8] = b"\r\n\r\n";

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpAnswer {
    /// The page.
    Page,
    /// It is no request of HTTP/1.
    Bad,
    /// There is nothing of that name.
    NotFound,
    /// The method is not offered for it.
    NotAllowed,
    /// It is too long.
    TooLong,
}

/// The answer to the bytes so far; `None` if more have to come.
#[must_use]
pub fn answer(received: &[u8]) -> Option<HttpAnswer> {
    let ended = received.windows(END.len()).any(|bytes| bytes == END);
    if !ended {
        return (received.len() >= MAX_BYTES).then_some(HttpAnswer::TooLong);
    }
    let line = received.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    let words = [words.next(), words.next(), words.next(), words.next()];
    let [Some(method), Some(target), Some(b"HTTP/1.0" | b"HTTP/1.1"), None] = words else {
        return Some(HttpAnswer::Bad);
    };
    // Prometheus may be told to add parameters.
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    Some(match (method, path) {
        (b"GET", b"/metrics") => HttpAnswer::Page,
        (_, b"/metrics") => HttpAnswer::NotAllowed,
        _ => HttpAnswer::NotFound,
    })
}

impl HttpAnswer {
    /// The response; a page that is not to be had is a fault of the server's.
    #[must_use]
    pub fn response(self, page: Option<&str>) -> String {
        let (status, body) = match (self, page) {
            (Self::Page, Some(page)) => ("200 OK", page),
            (Self::Page, None) => ("503 Service Unavailable", "balboad does not answer\n"),
            (Self::Bad, _) => ("400 Bad Request", "this is no request of HTTP/1\n"),
            (Self::NotFound, _) => ("404 Not Found", "there is /metrics\n"),
            (Self::NotAllowed, _) => ("405 Method Not Allowed", "there is GET\n"),
            (Self::TooLong, _) => ("431 Request Header Fields Too Large", "this is too long\n"),
        };
        let allow = if self == Self::NotAllowed { "Allow: GET\r\n" } else { "" };
        let length = body.len();
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n{allow}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_can_be_asked_for() {
        for (request, wanted) in [
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", Some(HttpAnswer::Page)),
            ("GET /metrics?name=a HTTP/1.0\r\n\r\nrest", Some(HttpAnswer::Page)),
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n", None),
            ("", None),
            ("GET / HTTP/1.1\r\n\r\n", Some(HttpAnswer::NotFound)),
            ("GET /metrics/ HTTP/1.1\r\n\r\n", Some(HttpAnswer::NotFound)),
            ("POST /metrics HTTP/1.1\r\n\r\n", Some(HttpAnswer::NotAllowed)),
            ("GET /metrics\r\n\r\n", Some(HttpAnswer::Bad)),
            ("GET  /metrics HTTP/1.1\r\n\r\n", Some(HttpAnswer::Bad)),
            ("GET /metrics HTTP/2\r\n\r\n", Some(HttpAnswer::Bad)),
            ("\r\n\r\n", Some(HttpAnswer::Bad)),
        ] {
            assert_eq!(answer(request.as_bytes()), wanted, "{request:?}");
        }
        assert_eq!(answer(&[b'x'; MAX_BYTES]), Some(HttpAnswer::TooLong));
        assert_eq!(answer(&[b'x'; MAX_BYTES - 1]), None);
    }

    #[test]
    fn a_response_says_how_long_it_is() {
        let told = HttpAnswer::Page.response(Some("a 1\n"));
        assert!(told.contains("\r\nContent-Length: 4\r\n") && told.ends_with("\r\n\r\na 1\n"));
        assert!(HttpAnswer::Page.response(None).starts_with("HTTP/1.1 503 "));
        assert!(HttpAnswer::NotAllowed.response(None).contains("\r\nAllow: GET\r\n"));
    }
}
