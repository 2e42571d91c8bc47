//! Masks secrets in responses that repeat them, so that the sandbox does not see the values.
//!
//! This is defence in depth, not the boundary: it knows the common encodings, in uncompressed bodies, and a server
//! that wants to leak a secret can use another one.

use std::ops::Range;

use belljar_spec::egress::{EgressEvent, SecretPlace};
use bytes::{Bytes, BytesMut};
use data_encoding::{BASE64_NOPAD, BASE64URL_NOPAD};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use memchr::memmem::Finder;
use percent_encoding::utf8_percent_encode;
use zeroize::{Zeroize, Zeroizing};

use crate::http::secret_injection::{Credential, Credentials, ESCAPED, basic};
use crate::report::Reporter;

/// A shorter value would match by chance.
const MIN_LENGTH: usize = 4;
const MIN_ENCODED_LENGTH: usize = 8;

pub(crate) struct SecretMask {
    spellings: Vec<Spelling>,
    /// The end of the data, in which a value may have started. Its length does not depend on its content: otherwise a
    /// client could have a host repeat guesses, and see which are held back.
    held: Vec<u8>,
    longest: usize,
    counts: Vec<(String, u64)>,
    reporter: Reporter,
}

struct Spelling {
    /// Index into `counts`.
    credential_index: usize,
    finder: Finder<'static>,
}

impl SecretMask {
    /// `None` where there is nothing to mask.
    pub(crate) fn new(credentials: &Credentials<'_>, reporter: &Reporter) -> Option<Self> {
        let (mut spellings, mut counts) = (Vec::new(), Vec::new());
        for credential in credentials.iter() {
            for mut spelling in spellings_of(credential) {
                if spelling.len() >= MIN_LENGTH {
                    let finder = Finder::new(spelling.as_bytes()).into_owned();
                    spellings.push(Spelling { credential_index: counts.len(), finder });
                }
                spelling.zeroize();
            }
            counts.push((credential.value.env.clone(), 0));
        }
        let longest = spellings.iter().map(|spelling| spelling.finder.needle().len()).max()?;
        let (held, reporter) = (Vec::new(), reporter.clone());
        Some(Self { spellings, held, longest, counts, reporter })
    }

    /// Masks the data and returns what can be sent now.
    pub(crate) fn mask_data(&mut self, data: Bytes) -> Bytes {
        let whole = self.with_held(data);
        let held_from = whole.len().saturating_sub(self.longest - 1);
        // A match that starts in the held-back end is judged when the rest has arrived.
        let mut found = self.find(&whole);
        found.retain(|(range, _)| range.start < held_from);
        let until = found.last().map_or(held_from, |(range, _)| held_from.max(range.end));
        let mut masked = self.mask_ranges(whole, found);
        self.held = masked.split_off(until).to_vec();
        masked
    }

    /// For the end of the data, or a pause in it.
    pub(crate) fn flush(&mut self) -> Bytes {
        let held = self.with_held(Bytes::new());
        let found = self.find(&held);
        self.mask_ranges(held, found)
    }

    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }

    pub(crate) fn mask_headers(&mut self, headers: &mut HeaderMap) {
        let leaking: Vec<HeaderName> =
            headers.keys().filter(|name| self.occurs_in(name)).cloned().collect();
        for name in leaking {
            headers.remove(name);
        }
        for value in headers.values_mut() {
            let found = self.find(value.as_bytes());
            if found.is_empty() {
                continue;
            }
            let masked = self.mask_ranges(Bytes::copy_from_slice(value.as_bytes()), found);
            // Asterisks are valid in every header value.
            if let Ok(masked) = HeaderValue::from_maybe_shared(masked) {
                *value = masked;
            }
        }
    }

    /// Header names are lower case.
    fn occurs_in(&self, name: &HeaderName) -> bool {
        let spelled = |spelling: &Spelling| {
            let needle = spelling.finder.needle().to_ascii_lowercase();
            memchr::memmem::find(name.as_str().as_bytes(), &needle).is_some()
        };
        self.spellings.iter().any(spelled)
    }

    fn with_held(&mut self, data: Bytes) -> Bytes {
        if self.held.is_empty() {
            return data;
        }
        let mut joined = std::mem::take(&mut self.held);
        joined.extend_from_slice(&data);
        joined.into()
    }

    /// The matches in order, each with its credential; overlapping ones are merged.
    fn find(&self, bytes: &[u8]) -> Vec<(Range<usize>, usize)> {
        let mut found = Vec::new();
        for spelling in &self.spellings {
            let length = spelling.finder.needle().len();
            let ranges = spelling
                .finder
                .find_iter(bytes)
                .map(|at| (at..at + length, spelling.credential_index));
            found.extend(ranges);
        }
        found.sort_unstable_by_key(|(range, _)| range.start);
        found.dedup_by(|(next, _), (range, _)| {
            let overlaps = next.start < range.end;
            if overlaps {
                range.end = range.end.max(next.end);
            }
            overlaps
        });
        found
    }

    fn mask_ranges(&mut self, bytes: Bytes, found: Vec<(Range<usize>, usize)>) -> Bytes {
        if found.is_empty() {
            return bytes;
        }
        let mut masked = BytesMut::from(bytes);
        for (range, credential_index) in found {
            self.counts[credential_index].1 += 1;
            masked[range].fill(b'*');
        }
        masked.freeze()
    }
}

impl Drop for SecretMask {
    fn drop(&mut self) {
        for (env, count) in self.counts.drain(..).filter(|(_, count)| *count > 0) {
            self.reporter.send(EgressEvent::SecretMasked { env, count });
        }
    }
}

fn spellings_of(credential: &Credential<'_>) -> Vec<String> {
    let value = &credential.value.value;
    let mut spellings = vec![value.clone(), utf8_percent_encode(value, ESCAPED).to_string()];
    for encoding in [&BASE64_NOPAD, &BASE64URL_NOPAD] {
        spellings.extend((0..3).map(|before| encoded_within(encoding, before, value)));
    }
    if let Ok(quoted) = serde_json::to_string(value) {
        let quoted = Zeroizing::new(quoted);
        spellings.push(quoted[1..quoted.len() - 1].to_owned());
    }
    if let SecretPlace::Basic { user } = credential.place {
        spellings.push(basic(user, &credential.value).trim_end_matches('=').to_owned());
    }
    spellings.sort_unstable();
    spellings.dedup();
    spellings
}

/// The encoded characters that depend on the value alone, if this many bytes precede it in the encoded text.
fn encoded_within(encoding: &data_encoding::Encoding, before: usize, value: &str) -> String {
    let mut text = Zeroizing::new(vec![0; before]);
    text.extend_from_slice(value.as_bytes());
    let all = Zeroizing::new(encoding.encode(&text));
    let (first, last) = ((before * 8).div_ceil(6), text.len() * 8 / 6);
    let encoded = all.get(first..last).unwrap_or_default();
    if encoded.len() >= MIN_ENCODED_LENGTH { encoded.to_owned() } else { String::new() }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use belljar_spec::egress::SecretValue;

    use super::*;

    const VALUE: &str = "sk-se/cret\"1";

    fn mask(reporter: &Reporter) -> SecretMask {
        let value =
            SecretValue { env: "KEY".into(), value: VALUE.into(), placeholder: String::new() };
        let place = SecretPlace::Basic { user: "me".into() };
        let credentials =
            Credentials::of(vec![Credential { place: &place, value: Arc::new(value) }]);
        SecretMask::new(&credentials, reporter).unwrap()
    }

    fn masked(pieces: &[&[u8]]) -> (Vec<u8>, u64) {
        let reporter = Reporter::default();
        let mut mask = mask(&reporter);
        let mut out = Vec::new();
        for piece in pieces {
            out.extend(mask.mask_data(Bytes::copy_from_slice(piece)));
        }
        out.extend(mask.flush());
        drop(mask);
        let count = match reporter.take_all().as_slice() {
            [EgressEvent::SecretMasked { env, count }] if env == "KEY" => *count,
            [] => 0,
            other => panic!("{other:?}"),
        };
        (out, count)
    }

    #[test]
    fn every_encoding_is_masked_wherever_it_is_split() {
        let spellings = [
            VALUE.to_owned(),
            BASE64_NOPAD.encode(VALUE.as_bytes()), // as long as whole characters
            BASE64_NOPAD.encode(format!("me:{VALUE}").as_bytes()),
            "sk-se%2Fcret%221".to_owned(),
            "sk-se/cret\\\"1".to_owned(),
        ];
        for spelling in spellings {
            let text = format!("ask {spelling}, s{spelling}");
            let stars = "*".repeat(spelling.len());
            let expected = format!("ask {stars}, s{stars}").into_bytes();
            for cut in 0..text.len() {
                let (one, other) = text.as_bytes().split_at(cut);
                assert_eq!(masked(&[one, other]), (expected.clone(), 2), "{text} at {cut}");
            }
            let bytes: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
            assert_eq!(masked(&bytes), (expected, 2));
        }
    }

    #[test]
    fn how_much_is_held_back_does_not_depend_on_what_it_is() {
        let sizes = |text: &str| {
            let mut mask = mask(&Reporter::default());
            let pieces = text.as_bytes().chunks(7).map(Bytes::copy_from_slice);
            let sizes: Vec<usize> = pieces.map(|piece| mask.mask_data(piece).len()).collect();
            (sizes, mask.held())
        };
        let guess = format!("{}{}", "x".repeat(60), &VALUE[..VALUE.len() - 1]);
        let other = "x".repeat(guess.len());
        assert_eq!(sizes(&guess), sizes(&other));
        assert_eq!(masked(&[b"sk-se/cre"]), (b"sk-se/cre".to_vec(), 0));
    }

    #[test]
    fn a_value_inside_encoded_text_is_masked_except_at_its_edges() {
        for before in 0..6 {
            let text = format!("{}{VALUE}: and more", "p".repeat(before));
            let (out, count) = masked(&[BASE64_NOPAD.encode(text.as_bytes()).as_bytes()]);
            assert_eq!(count, 1, "{before}");
            let stars = out.iter().filter(|byte| **byte == b'*').count();
            assert!(stars >= VALUE.len(), "{before}: {stars}");
        }
    }

    #[test]
    fn a_header_named_like_a_secret_is_removed() {
        let value =
            SecretValue { env: "K".into(), value: "Sk-cret1".into(), placeholder: String::new() };
        let credentials = Credentials::of(vec![Credential {
            place: &SecretPlace::Bearer,
            value: Arc::new(value),
        }]);
        let mut mask = SecretMask::new(&credentials, &Reporter::default()).unwrap();
        let mut headers = HeaderMap::new();
        headers.insert("x-sk-cret1-x", HeaderValue::from_static("1"));
        headers.insert("x-other", HeaderValue::from_static("1"));
        mask.mask_headers(&mut headers);
        assert_eq!(headers.len(), 1);
    }

    #[test]
    fn headers_are_masked() {
        let mut mask = mask(&Reporter::default());
        let mut headers = HeaderMap::new();
        headers.insert("x-other", HeaderValue::from_static("same"));
        headers.insert("location", HeaderValue::from_static("/?key=sk-se%2Fcret%221&x"));
        mask.mask_headers(&mut headers);
        assert_eq!(headers["x-other"], "same");
        assert_eq!(headers["location"], "/?key=****************&x");
    }
}
