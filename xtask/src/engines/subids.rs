//! User and group ids that an ordinary user may hand to its containers.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::{command, host};

const COUNT: u32 = 65536;
/// Where distributions begin.
const FIRST: u32 = 100_000;

/// `useradd` gives some only where `/etc/subuid` was there already. Needs root.
pub(super) fn ensure(user: &str) -> Result<()> {
    for (file, option) in [("/etc/subuid", "--add-subuids"), ("/etc/subgid", "--add-subgids")] {
        let text = fs::read_to_string(file).unwrap_or_default(); // none is an empty one
        if ranges(&text).any(|range| range.user == user) {
            continue;
        }
        if text.is_empty() {
            fs::write(file, "").with_context(|| format!("cannot make {file}"))?;
        }
        let first = free(&text);
        let usermod = host::require_program("usermod", "passwd")?;
        let range = format!("{first}-{}", first + COUNT - 1);
        command::check(
            Command::new(usermod).args([option, &range, user]),
            Duration::from_secs(30),
        )?;
    }
    Ok(())
}

struct Range<'a> {
    user: &'a str,
    first: u32,
    count: u32,
}

fn ranges(text: &str) -> impl Iterator<Item = Range<'_>> {
    text.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let (user, first, count) = (fields.next()?, fields.next()?, fields.next()?);
        Some(Range { user, first: first.trim().parse().ok()?, count: count.trim().parse().ok()? })
    })
}

/// Behind everybody else's.
fn free(text: &str) -> u32 {
    ranges(text).map(|range| range.first.saturating_add(range.count)).fold(FIRST, u32::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_range_lies_behind_the_others() {
        assert_eq!(free(""), FIRST);
        assert_eq!(free("a:100000:65536\nbroken\nb:300000:10\n"), 300_010);
        assert!(ranges("a:100000:65536\n").any(|range| range.user == "a"));
    }
}
