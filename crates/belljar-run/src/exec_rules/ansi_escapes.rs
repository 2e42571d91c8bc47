//! Decodes the escapes in `$'…'`.

/// `text` is the part between the quotes.
pub(super) fn unescape(text: &str) -> String {
    let mut bytes: Vec<u8> = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        bytes.extend_from_slice(&rest.as_bytes()[..at]);
        rest = &rest[at + 1..];
        let Some(kind) = rest.chars().next() else { break };
        let digits = |from: usize, radix: u32, most: usize| {
            let digits: String =
                rest[from..].chars().take(most).take_while(|one| one.is_digit(radix)).collect();
            (u32::from_str_radix(&digits, radix).ok(), from + digits.len())
        };
        let (number, used) = match kind {
            '0'..='7' => digits(0, 8, 3),
            'x' => digits(1, 16, 2),
            'u' => digits(1, 16, 4),
            'U' => digits(1, 16, 8),
            _ => (None, 0),
        };
        match (kind, number) {
            ('u' | 'U', Some(number)) => {
                let character = char::from_u32(number).unwrap_or(char::REPLACEMENT_CHARACTER);
                bytes.extend_from_slice(character.to_string().as_bytes());
                rest = &rest[used..];
                continue;
            }
            (_, Some(number)) => {
                bytes.push(number as u8);
                rest = &rest[used..];
                continue;
            }
            _ => {}
        }
        let plain = match kind {
            'n' => Some('\n'),
            't' => Some('\t'),
            'r' => Some('\r'),
            'a' => Some('\x07'),
            'b' => Some('\x08'),
            'e' | 'E' => Some('\x1b'),
            'f' => Some('\x0c'),
            'v' => Some('\x0b'),
            '\\' | '\'' | '"' | '?' => Some(kind),
            _ => None,
        };
        match plain {
            Some(plain) => bytes.extend_from_slice(plain.to_string().as_bytes()),
            None => bytes.extend_from_slice(format!("\\{kind}").as_bytes()),
        }
        rest = &rest[kind.len_utf8()..];
    }
    bytes.extend_from_slice(rest.as_bytes());
    String::from_utf8_lossy(&bytes).into_owned()
}
