//! A start with the tree layered, beside one with the tree as it is and one without a tree to speak of.

use anyhow::Result;

use super::WorkspaceBench;
use crate::bench::outcome::{Part, Target, at_most, figure};
use crate::bench::rounds::{self, Case, Rounds};

const EMPTY: &str = "rw, an empty directory";
const RW: &str = "rw";
const RO: &str = "ro";
const OVERLAY: &str = "overlay";
/// Of a start over the same tree without an overlay.
const TO_PLAIN: Target = at_most(1.2, "x");

pub(super) fn measure(bench: &WorkspaceBench<'_>) -> Result<Part> {
    let who = &bench.identity.name;
    let title = format!("belljar run -- /bin/true over {} files, as {who}", bench.sizes.files);
    let mut part = Part::new("start", title);
    let case = |name: &str, workspace: String| {
        let words = ["run", "--no-config", "-q", "--workspace", &workspace, "--"];
        let words = words.map(str::to_owned).to_vec();
        Case::sandbox(name, bench.identity, bench.belljar, words)
    };
    let over = |mode: &str| format!("{}:{mode}", bench.tree.display());
    let cases = vec![
        case(EMPTY, format!("{}:rw", bench.identity.workspace.display())),
        case(RW, over(RW)),
        case(RO, over(RO)),
        case(OVERLAY, over(OVERLAY)),
    ];
    let found = rounds::measure(cases, Rounds::with_pauses(bench.sizes.starts));
    found.add_rows(&mut part);
    let overlay = found.times(OVERLAY)?.percentile(50);
    let ratio =
        |other: &str| Ok::<f64, anyhow::Error>(overlay / found.times(other)?.percentile(50));
    let ratios = [("to rw", RW), ("to ro", RO), ("to an empty directory", EMPTY)];
    let figures = ratios.map(|(name, other)| ratio(other).map(|ratio| figure(name, ratio, "x")));
    part.row("overlay, ratio", figures.into_iter().collect::<Result<_>>()?);
    let rw = found.times(RW)?.percentile(50) / found.times(EMPTY)?.percentile(50);
    part.row("rw, ratio", vec![figure("to an empty directory", rw, "x")]);
    part.compare("overlay to rw over the same tree, p50", ratio(RW)?, TO_PLAIN);
    part.compare("overlay to an empty directory, p50", ratio(EMPTY)?, TO_PLAIN);
    Ok(part)
}
