//! Requests as anybody inside can write them: what is taken ends where the plainest reading has its end, however it
//! is cut. Run: `cargo +nightly fuzz run request`.
#![no_main]

use belljar_egress::fuzzing::{ParsedRequest, requests};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((piece, bytes)) = data.split_first() else { return };
    let at_once = requests(bytes, bytes.len());
    let in_pieces = requests(bytes, usize::from(*piece));
    // Cut up, a later fault is seen later.
    assert!(in_pieces.starts_with(&at_once), "{at_once:?} {in_pieces:?}");
    let plainly = plainly(bytes);
    for (number, taken) in in_pieces.iter().enumerate() {
        // The target is not compared: what it is brought into has no fragment, and a path.
        let own = plainly.get(number).map(|one| (&one.method, &one.body));
        assert_eq!(own, Some((&taken.method, &taken.body)), "{plainly:?}");
    }
});

/// As a careless server reads it: chunks before a length, the first of each, nothing checked.
fn plainly(mut bytes: &[u8]) -> Vec<ParsedRequest> {
    let mut all = Vec::new();
    loop {
        // Empty lines in front of a request are nobody's.
        while let Some(rest) = bytes.strip_prefix(b"\r\n").or(bytes.strip_prefix(b"\n")) {
            bytes = rest;
        }
        let Some((head, rest)) = cut(bytes, b"\r\n\r\n") else { return all };
        let head = String::from_utf8_lossy(head).into_owned();
        let value = |wanted: &str| {
            let pairs = head.split("\r\n").skip(1).filter_map(|line| line.split_once(':'));
            let mut found = pairs.filter(|(name, _)| name.trim().eq_ignore_ascii_case(wanted));
            found.next().map(|(_, value)| value.trim().to_ascii_lowercase())
        };
        let (body, rest) = if value("transfer-encoding")
            .is_some_and(|value| value.contains("chunked"))
        {
            let Some(found) = chunks(rest) else { return all };
            found
        } else {
            let length = value("content-length").and_then(|value| value.parse().ok()).unwrap_or(0);
            if length > rest.len() {
                return all;
            }
            (rest[..length].to_vec(), &rest[length..])
        };
        let mut words = head.split(' ');
        let mut word = || words.next().unwrap_or_default().to_owned();
        all.push(ParsedRequest { method: word(), target: word(), body });
        bytes = rest;
    }
}

fn cut<'a>(bytes: &'a [u8], mark: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let at = bytes.windows(mark.len()).position(|window| window == mark)?;
    Some((&bytes[..at], &bytes[at + mark.len()..]))
}

fn chunks(mut bytes: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut body = Vec::new();
    loop {
        let (line, rest) = cut(bytes, b"\r\n")?;
        let digits = String::from_utf8_lossy(line).into_owned();
        let digits = digits.split(';').next().unwrap_or_default().trim();
        let length = usize::from_str_radix(digits, 16).ok()?;
        bytes = rest;
        if length == 0 {
            // Trailers, up to an empty line.
            loop {
                let (line, rest) = cut(bytes, b"\r\n")?;
                bytes = rest;
                if line.is_empty() {
                    return Some((body, bytes));
                }
            }
        }
        body.extend(bytes.get(..length)?);
        bytes = bytes.get(length..)?.strip_prefix(b"\r\n")?;
    }
}
