//! Limits integers in events to those that every JSON reader reads exactly.

/// Readers that have only doubles can, up to here.
pub(super) const TOO_LARGE: u64 = 1 << 53;

/// The digits of the first integer in `json` that a double cannot hold.
pub(super) fn too_large_integer(json: &[u8]) -> Option<String> {
    let mut at = 0;
    while at < json.len() {
        match json[at] {
            b'"' => {
                at += 1;
                while at < json.len() && json[at] != b'"' {
                    at += if json[at] == b'\\' { 2 } else { 1 };
                }
                at += 1;
            }
            b'0'..=b'9' => {
                let in_number =
                    |c: &u8| matches!(c, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-');
                let length = json[at..].iter().take_while(|c| in_number(c)).count();
                let number = &json[at..at + length];
                if number.len() >= 16 && number.iter().all(u8::is_ascii_digit) {
                    let digits = String::from_utf8_lossy(number);
                    if digits.parse::<u64>().map_or(true, |value| value >= TOO_LARGE) {
                        return Some(digits.into_owned());
                    }
                }
                at += length;
            }
            _ => at += 1,
        }
    }
    None
}
