//! Matches a pattern of the list against a path. Names are separated by `/`; `*` stands for any part of a
//! name, `**` for any number of names. A pattern holds at any depth: the path's end has to match.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// Whether the path is a parent directory of what the pattern matches. One matched by `**` is not.
pub(super) fn leads_to(pattern: &str, names: &[&OsStr]) -> bool {
    let mut rest = pattern;
    while let Some((parent, _)) = rest.rsplit_once('/') {
        let (_, last) = parent.rsplit_once('/').unwrap_or(("", parent));
        if last != "**" && matches(parent, names) {
            return true;
        }
        rest = parent;
    }
    false
}

/// From the end: the last name of the pattern against the last of the path.
pub(super) fn matches(pattern: &str, names: &[&OsStr]) -> bool {
    let (rest, last) = match pattern.rsplit_once('/') {
        Some((rest, last)) => (Some(rest), last),
        None => (None, pattern),
    };
    let fits_before = |names: &[&OsStr]| rest.is_none_or(|rest| matches(rest, names));
    if last == "**" {
        return (0..=names.len()).rev().any(|taken| fits_before(&names[..taken]));
    }
    match names.split_last() {
        Some((name, before)) => name_fits(last, name.as_bytes()) && fits_before(before),
        None => false,
    }
}

fn name_fits(pattern: &str, name: &[u8]) -> bool {
    match pattern.split_once('*') {
        None => name.eq_ignore_ascii_case(pattern.as_bytes()),
        Some((head, tail)) => {
            let Some((start, rest)) = name.split_at_checked(head.len()) else { return false };
            start.eq_ignore_ascii_case(head.as_bytes())
                && (0..=rest.len()).any(|skipped| name_fits(tail, &rest[skipped..]))
        }
    }
}
