//! `/bin/true` in a new sandbox: belljar beside bubblewrap plus the two syncs that a durable record costs at least.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::StartBench;
use super::cases::Start;
use crate::bench::identity::Identity;
use crate::bench::outcome::{Part, Target, at_most, figure};
use crate::bench::rounds::{self, Case, Found};

/// About as long as an event of the record.
const EVENT: [u8; 256] = [b'x'; 256];

const PEER: &str = "bwrap + 2 fdatasync";

const DEFAULT_LIMITS: Target = at_most(1.5, "x").aim(1.2);
const NO_GROUP: Target = at_most(1.5, "x").aim(1.1);

pub(super) fn measure(bench: &StartBench) -> Result<Part> {
    let title = format!(
        "/bin/true in a new sandbox, {} rounds in turn, {} ms of rest before each",
        bench.rounds.count,
        bench.rounds.pause.as_millis()
    );
    let mut part = Part::new("times", title);
    let mut cases = Vec::new();
    for identity in &bench.identities {
        let starts = Start::ALL.iter().filter_map(|start| start.case(identity, &bench.belljar));
        cases.extend(starts);
        cases.push(two_syncs(identity)?);
    }
    let found = rounds::measure(cases, bench.rounds);
    found.add_rows(&mut part);
    for identity in &bench.identities {
        compare(&mut part, &found, identity)?;
    }
    part.note(
        "targets: p50 to the p50 of bwrap plus that of two fdatasync on the disk of belljar's home; belljar also has \
         a record, a list of system calls, Landlock rules and an attestation",
    );
    Ok(part)
}

fn compare(part: &mut Part, found: &Found, identity: &Identity) -> Result<()> {
    let at = |percent: usize, start: Start| {
        found.times(&start.name(identity)).ok().map(|times| times.percentile(percent))
    };
    let peer = |percent: usize| {
        let syncs = found.times(&syncs_name(identity)).ok()?.percentile(percent);
        Some(at(percent, Start::Bwrap)? + syncs)
    };
    if let (Some(p50), Some(p10)) = (peer(50), peer(10)) {
        let figures = vec![figure("p50", p50, "ms"), figure("p10", p10, "ms")];
        part.row(format!("{PEER}, {}", identity.name), figures);
    }
    for (start, target) in [(Start::Belljar, DEFAULT_LIMITS), (Start::BelljarNoGroup, NO_GROUP)] {
        let name = start.name(identity);
        let own = found.times(&name)?;
        let (p50, p10) = (own.percentile(50), own.percentile(10));
        let ratios = [
            ("unshare", at(50, Start::Unshare).map(|other| p50 / other)),
            ("bwrap", at(50, Start::Bwrap).map(|other| p50 / other)),
            ("bwrap + 2 fdatasync, p10", peer(10).map(|other| p10 / other)),
        ];
        let figures = ratios.iter().filter_map(|(to, ratio)| Some(figure(to, (*ratio)?, "x")));
        part.row(format!("{name}, ratio to"), figures.collect());
        let ratio = peer(50).map(|other| p50 / other);
        part.compare_found(format!("{name}, to {PEER}"), ratio, target);
    }
    Ok(())
}

fn syncs_name(identity: &Identity) -> String {
    format!("2 fdatasync, {}", identity.name)
}

/// Appended to one file and synced, twice, in this process.
fn two_syncs(identity: &Identity) -> Result<Case<'static>> {
    // Beside the home and on the same disk: belljar takes no directory that holds other files.
    let path = identity.home.with_extension("syncs");
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .with_context(|| format!("cannot open {}", path.display()))?;
    Ok(Case::timed(syncs_name(identity), move || sync_twice(&mut file)))
}

fn sync_twice(file: &mut File) -> Result<Duration> {
    let started = Instant::now();
    for _ in 0..2 {
        file.write_all(&EVENT).context("cannot write the synced file")?;
        file.sync_data().context("cannot sync a file")?;
    }
    Ok(started.elapsed())
}
