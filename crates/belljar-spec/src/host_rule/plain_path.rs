//! Decides whether a request's path is unambiguous: whether every server resolves it to the same place. A rule on
//! paths matches no other path.

use std::borrow::Cow;

/// Whether every server reads this path in the same way, below every prefix that it begins with.
///
/// Servers differ in how often they decode, what they trim from a segment, what they cut off as parameters, and which
/// characters they take for a dot or a slash. So it is not asked what a path means: a path in which some server could
/// see a `.` or `..` segment, or a separator that is not written as one, is not plain.
pub fn is_plain_path(path: &str) -> bool {
    path.starts_with('/')
        && path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\')
        && !path.contains("//")
        && decoded(path).is_some_and(|path| {
            !path.contains(is_separator_form) && !path.split('/').any(may_be_dot_segment)
        })
}

/// With its escapes decoded, once. `None` where an escape is malformed, stands for what must not be escaped, or where
/// the bytes are not UTF-8: those are overlong forms, or a character set that servers guess.
fn decoded(path: &str) -> Option<Cow<'_, str>> {
    if !path.contains('%') {
        return Some(Cow::Borrowed(path));
    }
    let mut parts = path.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let digits =
            part.get(..2).filter(|two| two.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
        let byte = u8::from_str_radix(digits, 16).ok().filter(|byte| may_be_escaped(*byte))?;
        bytes.push(byte);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

/// Not what would mean something if it were decoded, or decoded once more: a dot, a separator, a percent sign, a
/// control character. A question mark or `#` only cuts the path off, which leads nowhere above a prefix.
fn may_be_escaped(byte: u8) -> bool {
    !byte.is_ascii_control() && !b"./\\;%".contains(&byte)
}

/// Characters that become `/` or `\` where text is brought into a compatible form or another character set.
fn is_separator_form(c: char) -> bool {
    matches!(
        c,
        '\u{a5}' // yen sign: a backslash in Japanese character sets
            | '\u{20a9}' // won sign: the same in Korean ones
            | '\u{2044}' // fraction slash
            | '\u{2215}' // division slash
            | '\u{2216}' // set minus
            | '\u{29f5}' // reverse solidus operator
            | '\u{29f8}' // big solidus
            | '\u{29f9}' // big reverse solidus
            | '\u{fe68}' // small reverse solidus
            | '\u{ff0f}' // fullwidth solidus
            | '\u{ff3c}' // fullwidth reverse solidus
    )
}

/// Characters that become one or more dots in the same way.
fn is_dot_form(c: char) -> bool {
    matches!(
        c,
        '.' | '\u{2024}' // one dot leader
            | '\u{2025}' // two dot leader
            | '\u{2026}' // ellipsis
            | '\u{3002}' // ideographic full stop
            | '\u{fe52}' // small full stop
            | '\u{ff0e}' // fullwidth full stop
            | '\u{ff61}' // halfwidth ideographic full stop
    )
}

/// Dots at the beginning of a segment, with nothing behind them that belongs to a name. What surrounds the dots may be
/// trimmed (blanks, invisible characters), cut off (`;x`, `::$INDEX_ALLOCATION`) or read as a blank (`+`).
fn may_be_dot_segment(segment: &str) -> bool {
    let is_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '~');
    let visible = segment.trim_start_matches(|c| !is_name(c) && !is_dot_form(c));
    let rest = visible.trim_start_matches(is_dot_form);
    rest.len() < visible.len() && !rest.starts_with(is_name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PLAIN: &[&str] = &[
        "/",
        "/docs",
        "/docs/",
        "/docs/a.b/c..d/e.",
        "/docs/.well-known/x",
        "/docs/..name/...x/.-y/._z",
        "/docs/a%20b/caf%C3%A9/%e3%81%82",
        "/docs/@scope/x/$metadata/~me",
        "/v1/models/m-1.5:generate",
        "/docs/a;v=1.2/b,c/(x)/a+b",
        "/docs/x%E2%80%A6",
        "/docs/%40x/%24y/%3Dz",
        "/wiki/C%23/Why%3F",
    ];

    const AMBIGUOUS: &[&str] = &[
        "",
        "docs",
        "*",
        "/docs/.",
        "/docs/..",
        "/docs/./x",
        "/docs/../admin",
        "/docs/.../admin",
        "/docs//admin",
        "/docs\\..\\admin",
        "/docs/ ../admin",
        "/docs/\u{e4}",
        // escaped, once and more often
        "/docs/%2e%2e/admin",
        "/docs/.%2E/admin",
        "/docs/..%2fadmin",
        "/docs/..%5Cadmin",
        "/docs/%252e%252e/admin",
        "/docs/..%252fadmin",
        "/docs/%25%32%65/admin",
        "/docs/%",
        "/docs/%2",
        "/docs/%zz",
        "/docs/%u002e%u002e/admin",
        "/docs/%+2/x",
        "/docs/x%3f/../admin",
        // trimmed
        "/docs/..%20/admin",
        "/docs/%20../admin",
        "/docs/.%20./admin",
        "/docs/..%09/admin",
        "/docs/..%0a/admin",
        "/docs/..%00/admin",
        "/docs/x%00",
        "/docs/..%7f/admin",
        "/docs/..+/admin",
        "/docs/..%c2%a0/admin",
        "/docs/..%c2%85/admin",
        "/docs/..%e2%80%8b/admin",
        "/docs/..%ef%bb%bf/admin",
        "/docs/..%e3%80%80/admin",
        "/docs/..%c2%ad/admin",
        // cut off
        "/docs/..;/admin",
        "/docs/..;a=b/admin",
        "/docs/.;/admin",
        "/docs/;/../admin",
        "/docs/..%3b/admin",
        "/docs/..::$INDEX_ALLOCATION/admin",
        "/docs/..,x/admin",
        "/docs/..!/admin",
        // overlong and other forms
        "/docs/%c0%ae%c0%ae/admin",
        "/docs/%e0%80%ae%e0%80%ae/admin",
        "/docs/%f0%80%80%ae/admin",
        "/docs/..%c0%afadmin",
        "/docs/..%e0%80%afadmin",
        "/docs/%e4",
        "/docs/%ef%bc%8e%ef%bc%8e/admin",
        "/docs/.%ef%bc%8e/admin",
        "/docs/%e2%80%a5/admin",
        "/docs/%e2%80%a4%e2%80%a4/admin",
        "/docs/%e3%80%82%e3%80%82/admin",
        "/docs/..%ef%bc%8fadmin",
        "/docs/x%e2%88%95..%e2%88%95..%e2%88%95admin",
        "/docs/..%ef%bc%bcadmin",
        "/docs/..%c2%a5admin",
    ];

    #[test]
    fn only_a_path_with_one_reading_is_plain() {
        for path in PLAIN {
            assert!(is_plain_path(path), "{path}");
        }
        for path in AMBIGUOUS {
            assert!(!is_plain_path(path), "{path}");
        }
    }

    /// One interpretation of a path by a server. Written without the functions above.
    #[derive(Clone, Copy, Debug)]
    struct Reader {
        decodings: usize,
        maps_forms: bool,
        cuts_parameters: bool,
        trims: bool,
        drops_invisible: bool,
    }

    fn readers() -> impl Iterator<Item = Reader> {
        (0..3usize).flat_map(|decodings| {
            (0..16u8).map(move |bits| Reader {
                decodings,
                maps_forms: bits & 1 != 0,
                cuts_parameters: bits & 2 != 0,
                trims: bits & 4 != 0,
                drops_invisible: bits & 8 != 0,
            })
        })
    }

    impl Reader {
        /// The path that it serves.
        fn resolves(self, path: &str) -> String {
            let mut text = path.to_owned();
            for _ in 0..self.decodings {
                text = decode_leniently(&text);
            }
            if self.maps_forms {
                let dots = ['\u{ff0e}', '\u{2024}', '\u{fe52}', '\u{3002}', '\u{ff61}'];
                text = text.replace(dots, ".").replace('\u{2025}', "..").replace('\u{2026}', "...");
                let slashes = ['\u{ff0f}', '\u{2215}', '\u{2044}', '\u{ff3c}', '\u{a5}', '\\'];
                text = text.replace(slashes, "/");
            }
            if self.drops_invisible {
                text.retain(|c| {
                    !c.is_control() && !matches!(c, '\u{200b}' | '\u{feff}' | '\u{ad}')
                });
            }
            let mut place: Vec<&str> = Vec::new();
            for mut segment in text.split('/') {
                if self.cuts_parameters {
                    segment = segment.split([';', ':', ',', '\0']).next().unwrap_or_default();
                }
                if self.trims {
                    segment = segment.trim_matches(|c: char| c.is_whitespace() || c == '+');
                }
                match segment {
                    "" | "." => {}
                    ".." => drop(place.pop()),
                    other => place.push(other),
                }
            }
            format!("/{}", place.join("/"))
        }
    }

    /// As many do: an invalid escape stays, and invalid UTF-8 is read with its overlong forms.
    fn decode_leniently(text: &str) -> String {
        let bytes = text.as_bytes();
        let mut out = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let digits = bytes.get(at + 1..at + 3).and_then(|two| std::str::from_utf8(two).ok());
            match digits.and_then(|two| u8::from_str_radix(two, 16).ok()) {
                Some(byte) if bytes[at] == b'%' => {
                    out.push(byte);
                    at += 3;
                }
                _ => {
                    out.push(bytes[at]);
                    at += 1;
                }
            }
        }
        let overlong: [(&[u8], &str); 4] = [
            (b"\xc0\xae", "."),
            (b"\xe0\x80\xae", "."),
            (b"\xc0\xaf", "/"),
            (b"\xe0\x80\xaf", "/"),
        ];
        let mut text = String::new();
        let mut rest = out.as_slice();
        while let Some(first) = rest.first() {
            if let Some((form, read)) = overlong.iter().find(|(form, _)| rest.starts_with(form)) {
                text.push_str(read);
                rest = &rest[form.len()..];
                continue;
            }
            let length = (1..=4.min(rest.len()))
                .find(|length| std::str::from_utf8(&rest[..*length]).is_ok());
            match length {
                Some(length) => {
                    text.push_str(&String::from_utf8_lossy(&rest[..length]));
                    rest = &rest[length..];
                }
                None => {
                    text.push(char::from(*first));
                    rest = &rest[1..];
                }
            }
        }
        text
    }

    fn piece() -> impl Strategy<Value = String> {
        let pieces = [
            ".",
            "..",
            "/",
            "//",
            "x",
            "admin",
            "%2e",
            "%2E",
            "%252e",
            "%2f",
            "%5c",
            "%20",
            "%09",
            "%00",
            "%3b",
            ";",
            ":",
            ",",
            "+",
            "%",
            "2e",
            "%c0%ae",
            "%e0%80%ae",
            "%c0%af",
            "%ef%bc%8e",
            "%ef%bc%8f",
            "%e2%80%a5",
            "%e2%80%a4",
            "%c2%a0",
            "%e2%80%8b",
            "%c2%ad",
            "%e3%80%82",
            "%c3%a9",
            "%25",
            "~",
            "-",
        ];
        prop_oneof![
            4 => proptest::sample::select(pieces.map(str::to_owned).to_vec()),
            1 => "[!-~]{1,3}",
        ]
    }

    proptest! {
        #[test]
        fn no_server_reads_a_plain_path_as_one_above_its_prefix(
            pieces in proptest::collection::vec(piece(), 0..8),
        ) {
            let path = format!("/docs/{}", pieces.concat());
            if is_plain_path(&path) {
                for reader in readers() {
                    let place = reader.resolves(&path);
                    prop_assert!(
                        place == "/docs" || place.starts_with("/docs/"),
                        "{} is {} for {:?}", path, place, reader,
                    );
                }
            }
        }

        /// The control: it refuses no path of plain names.
        #[test]
        fn plain_names_make_a_plain_path(
            names in proptest::collection::vec("[a-z0-9_~-][A-Za-z0-9._~@:+-]{0,8}", 1..6),
        ) {
            let path = format!("/{}", names.join("/"));
            prop_assert!(is_plain_path(&path), "{}", path);
        }
    }

    /// Those readers do escape from what is not plain, so the test above proves something.
    #[test]
    fn the_readers_of_this_test_find_ways_out() {
        let escapes = [
            "/docs/%2e%2e/admin",
            "/docs/..%20/admin",
            "/docs/..;/admin",
            "/docs/%252e%252e/admin",
            "/docs/%ef%bc%8e%ef%bc%8e/admin",
            "/docs/%c0%ae./admin",
        ];
        for path in escapes {
            assert!(readers().any(|reader| reader.resolves(path) == "/admin"), "{path}");
        }
    }
}
