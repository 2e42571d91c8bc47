//! The attack catalogue.

mod collect;
mod counters;
mod egress;
mod environment;
mod files;
mod judge;
mod kernel;
mod life;
mod misled_launcher;
mod mounts;
mod network;
mod plants;
mod processes;
mod race;
mod reach;
mod record;
mod resources;
mod siblings;
mod sockets;

use crate::case::Case;

/// Every attack there is, in a stable order.
pub fn catalogue() -> Vec<Case> {
    let mut all = [
        siblings::CASES,
        files::CASES,
        mounts::CASES,
        misled_launcher::CASES,
        race::CASES,
        plants::CASES,
        sockets::CASES,
        processes::CASES,
        kernel::CASES,
        reach::CASES,
        network::CASES,
        resources::CASES,
        counters::CASES,
        life::CASES,
        environment::CASES,
        record::CASES,
    ]
    .concat();
    all.extend(collect::cases());
    all.extend(egress::cases());
    all
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_plain() {
        let cases = catalogue();
        let names: BTreeSet<&str> = cases.iter().map(|case| case.name).collect();
        assert_eq!(names.len(), cases.len());
        for name in names {
            let plain =
                |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
            assert!(name.chars().all(plain) && name.contains('.'), "{name}");
            assert!(name.len() <= 30, "{name} does not fit its column");
        }
    }
}
