//! Secrets are covered at equal length, however the bytes come.

use belljar_record::{Masker, Secrets, looks_secret};
use proptest::prelude::*;

fn secrets(values: &[&str]) -> Secrets {
    Secrets::new(values.iter().map(|value| value.as_bytes().to_vec()))
}

fn masked(values: &[&str], pieces: &[&str]) -> (String, u64) {
    let mut masker = Masker::new(secrets(values));
    let mut out = Vec::new();
    for piece in pieces {
        masker.push(piece.as_bytes(), &mut out);
    }
    masker.finish(&mut out);
    (String::from_utf8(out).unwrap(), masker.count())
}

/// Said as simply as it can be.
fn model(values: &[Vec<u8>], text: &[u8]) -> (Vec<u8>, u64) {
    let mut out = text.to_vec();
    let mut count = 0;
    for value in values.iter().filter(|value| value.len() >= 4) {
        for at in 0..text.len() {
            if text[at..].starts_with(value) {
                out[at..at + value.len()].fill(b'*');
                count += 1;
            }
        }
    }
    (out, count)
}

#[test]
fn a_secret_is_covered_also_across_writes_and_counted_once() {
    assert_eq!(masked(&["hunter2"], &["my hunter2 is"]), ("my ******* is".into(), 1));
    assert_eq!(masked(&["hunter2"], &["my hun", "ter2 is"]), ("my ******* is".into(), 1));
    let single: Vec<String> = "a hunter2, hunter2".chars().map(String::from).collect();
    let single: Vec<&str> = single.iter().map(String::as_str).collect();
    assert_eq!(masked(&["hunter2"], &single), ("a *******, *******".into(), 2));
    assert_eq!(masked(&["hunter2"], &["hunter", " and hunter"]), ("hunter and hunter".into(), 0));
}

#[test]
fn overlapping_and_nested_secrets_are_covered_whole() {
    assert_eq!(masked(&["abab"], &["ab", "ab", "ab!"]), ("******!".into(), 2));
    assert_eq!(masked(&["abcd", "cdef"], &["xabc", "defx"]), ("x******x".into(), 2));
    assert_eq!(masked(&["bcde", "abcdef"], &["abcde", "g"]), ("a****g".into(), 1));
    assert_eq!(masked(&["bcde", "abcdef"], &["abcde", "f"]), ("******".into(), 2));
}

#[test]
fn only_what_may_become_a_secret_waits() {
    let mut masker = Masker::new(secrets(&["abcdefgh", "abxx"]));
    let mut out = Vec::new();
    masker.push(b"0123 ab", &mut out);
    assert_eq!((out.as_slice(), masker.held()), (&b"0123 "[..], 2));
    masker.push(b"cd", &mut out);
    assert_eq!((out.as_slice(), masker.held()), (&b"0123 "[..], 4));
    masker.push(b"!", &mut out);
    assert_eq!((out.as_slice(), masker.held()), (&b"0123 abcd!"[..], 0));
}

#[test]
fn short_values_and_none_change_nothing() {
    assert_eq!(masked(&["", "a", "abc"], &["abcabc"]), ("abcabc".into(), 0));
    assert!(Masker::new(secrets(&["abc"])).is_idle());
    assert!(!Masker::new(secrets(&["abcd"])).is_idle());
    assert_eq!(format!("{:?}", secrets(&["abcd"])), "Secrets(1 hidden)");
}

#[test]
fn arguments_are_covered_too() {
    let secrets = secrets(&["hunter2"]);
    assert_eq!(secrets.mask_text(b"--password=hunter2").unwrap(), b"--password=*******");
    assert_eq!(secrets.mask_text(b"--password=hunter"), None);
}

#[test]
fn names_that_look_secret() {
    for name in [
        "OPENAI_API_KEY",
        "github_token",
        "DB_PASSWORD",
        "DB_PASS",
        "AWS_SECRET_ACCESS_KEY",
        "apiKey",
        "SIGNING_KEY",
        "KEY",
        "X-Cred",
        "MY_CREDS",
        "BASIC_AUTH",
        "KEY_ID",
    ] {
        assert!(looks_secret(name), "{name}");
    }
    for name in ["PATH", "PWD", "MONKEY", "KEYBOARD", "PASSENGERS", "HOME", "COMPASS", "LANG", ""] {
        assert!(!looks_secret(name), "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_chunking_gives_the_same(
        values in prop::collection::vec(prop::collection::vec(b'a'..b'd', 1..8), 0..4),
        text in prop::collection::vec(b'a'..b'd', 0..200),
        cuts in prop::collection::vec(0..200_usize, 0..20),
    ) {
        let mut unique = values.clone();
        unique.sort();
        unique.dedup();
        let mut masker = Masker::new(Secrets::new(values));
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
        cuts.push(text.len());
        cuts.sort_unstable();
        let (mut out, mut from) = (Vec::new(), 0);
        for cut in cuts {
            masker.push(&text[from..cut], &mut out);
            from = cut;
            prop_assert!(masker.held() < 8);
            prop_assert_eq!(out.len() + masker.held(), from);
        }
        masker.finish(&mut out);
        prop_assert_eq!((out, masker.count()), model(&unique, &text));
    }
}
