//! A start with the tree layered, beside one with the tree as it is and one without a tree to speak of.

use anyhow::{Result, bail};

use super::Bench;
use crate::bench::outcome::{Part, figure, latency};
use crate::bench::peer::{Case, Then};
use crate::bench::rounds;

const EMPTY: &str = "rw, an empty directory";
const RW: &str = "rw";
const RO: &str = "ro";
const OVERLAY: &str = "overlay";
/// Of a start over the same tree without an overlay.
const MAX_COUNT: f64 = 1.2;

pub(super) fn measure(bench: &Bench<'_>) -> Result<Part> {
    let who = &bench.identity.name;
    let title = format!("belljar run -- /bin/true over {} files, as {who}", bench.sizes.files);
    let mut part = Part::new("start", title);
    let case = |name: &str, workspace: String| {
        let words = ["run", "--no-config", "-q", "--workspace", &workspace, "--"];
        Case {
            name: name.to_owned(),
            identity: bench.identity.clone(),
            program: bench.belljar.to_owned(),
            words: words.map(str::to_owned).to_vec(),
            then: Then::Nothing,
        }
    };
    let over = |mode: &str| format!("{}:{mode}", bench.tree.display());
    let cases = vec![
        case(EMPTY, format!("{}:rw", bench.identity.workspace.display())),
        case(RW, over(RW)),
        case(RO, over(RO)),
        case(OVERLAY, over(OVERLAY)),
    ];
    let mut found = Vec::new();
    for measured in rounds::measure(cases, bench.sizes.starts)? {
        match measured.times {
            Ok(times) => {
                part.row(measured.name.clone(), latency(&times));
                found.push((measured.name, times.percentile(50)));
            }
            Err(why) => bail!("{}: {why}", measured.name),
        }
    }
    let of = |name: &str| found.iter().find(|(one, _)| one == name).map_or(f64::NAN, |one| one.1);
    let ratios = [("to rw", RW), ("to ro", RO), ("to an empty directory", EMPTY)];
    part.row(
        "overlay, ratio",
        ratios.map(|(name, other)| figure(name, of(OVERLAY) / of(other), "x")).into(),
    );
    part.at_most("overlay to rw over the same tree, p50", of(OVERLAY) / of(RW), MAX_COUNT, "x");
    part.at_most("overlay to an empty directory, p50", of(OVERLAY) / of(EMPTY), MAX_COUNT, "x");
    Ok(part)
}
