//! Ranges of user and group ids that a user may hand to containers.

use super::{Change, Finding, IdRange, Machine, Needed, SetupError};

const FILES: [&str; 2] = ["/etc/subuid", "/etc/subgid"];
/// What the usual images need.
const COUNT: u32 = 65536;
/// Where distributions begin and end, if `/etc/login.defs` says nothing else.
const FIRST: u32 = 100_000;
const LAST: u32 = 600_100_000;

pub(super) fn check(machine: &Machine) -> Result<Finding, SetupError> {
    let account = machine.account();
    let texts = FILES.map(|file| machine.read(file).map(Option::unwrap_or_default));
    let [uids, gids] = texts;
    let texts = [uids?, gids?];
    let uid = account.uid.to_string();
    let is_theirs = |range: &IdRange| range.user == account.name || range.user == uid;
    let has_enough =
        |text: &String| ranges(text).any(|range| is_theirs(&range) && range.count >= COUNT);
    let missing: Vec<&str> = FILES
        .into_iter()
        .zip(&texts)
        .filter_map(|(file, text)| (!has_enough(text)).then_some(file))
        .collect();
    if missing.is_empty() {
        return Ok(Finding::Ready(format!("{} has {COUNT} or more", account.name)));
    }
    let (first, last) = bounds(&machine.read("/etc/login.defs")?.unwrap_or_default());
    let taken: Vec<IdRange> = texts.iter().flat_map(|text| ranges(text)).collect();
    let Some(first) = free(&taken, first, last) else {
        let what = format!("no {COUNT} ids are free between {first} and {last}");
        return Ok(Finding::Blocked(what));
    };
    let range = IdRange { user: account.name.clone(), first, count: COUNT };
    let changes =
        missing.iter().map(|file| Change::Ids { path: file.into(), range: range.clone() });
    let has_newuidmap = machine.program(&["/usr/bin/newuidmap", "/bin/newuidmap"]).is_some();
    Ok(Finding::Needed(Needed {
        what: format!("{} has less than {COUNT} in {}", account.name, missing.join(" and ")),
        changes: changes.collect(),
        note: (!has_newuidmap).then(|| {
            "rootless engines also need the program newuidmap (package uidmap)".to_owned()
        }),
    }))
}

/// Lines that cannot be read are left out, as the programs that use the file do.
pub(super) fn ranges(text: &str) -> impl Iterator<Item = IdRange> + '_ {
    text.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let (user, first, count) = (fields.next()?, fields.next()?, fields.next()?);
        let (first, count) = (first.trim().parse().ok()?, count.trim().parse().ok()?);
        Some(IdRange { user: user.to_owned(), first, count })
    })
}

fn bounds(login_defs: &str) -> (u32, u32) {
    let value = |name: &str| {
        login_defs.lines().find_map(|line| {
            let mut words = line.split_whitespace();
            (words.next() == Some(name)).then(|| words.next()?.parse().ok())?
        })
    };
    let first = value("SUB_UID_MIN").into_iter().chain(value("SUB_GID_MIN")).max();
    let last = value("SUB_UID_MAX").into_iter().chain(value("SUB_GID_MAX")).min();
    (first.unwrap_or(FIRST), last.unwrap_or(LAST))
}

/// The lowest range that touches nobody else's.
fn free(taken: &[IdRange], first: u32, last: u32) -> Option<u32> {
    let mut starts: Vec<u64> = taken.iter().map(IdRange::end).chain([u64::from(first)]).collect();
    starts.sort_unstable();
    starts.into_iter().filter(|start| *start >= u64::from(first)).find_map(|start| {
        let range = IdRange { user: String::new(), first: start.try_into().ok()?, count: COUNT };
        let fits = range.end() <= u64::from(last) + 1;
        (fits && !taken.iter().any(|other| other.overlaps(&range))).then_some(range.first)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(text: &str) -> Vec<IdRange> {
        ranges(text).collect()
    }

    #[test]
    fn a_new_range_touches_no_other() {
        assert_eq!(free(&[], FIRST, LAST), Some(FIRST));
        let behind = free(&taken("a:100000:65536\nbroken\nb:300000:10\n"), FIRST, LAST);
        assert_eq!(behind, Some(165_536), "the gap is large enough");
        let small_gap = free(&taken("a:100000:65536\nb:165546:65536\n"), FIRST, LAST);
        assert_eq!(small_gap, Some(231_082));
        assert_eq!(free(&taken("a:1:4294967295\n"), FIRST, LAST), None);
        assert_eq!(free(&taken("a:100000:65536\n"), FIRST, 200_000), None, "past the end");
    }

    #[test]
    fn the_bounds_of_the_distribution_are_kept() {
        assert_eq!(bounds("SUB_UID_MIN\t 200000\n#SUB_UID_MAX 5\n"), (200_000, LAST));
        assert_eq!(bounds("SUB_UID_MAX 300000\nSUB_GID_MAX 250000\n"), (FIRST, 250_000));
    }
}
