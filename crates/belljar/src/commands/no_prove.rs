//! `belljar prove` of a build without the feature `jail`, which has no attack catalogue.

use belljar::spec::EXIT_NOT_STARTED;

use crate::cli::ProveArgs;
use crate::report::{self, BAD, BOLD};

pub(crate) fn run(_: &ProveArgs) -> i32 {
    let why =
        "this build of belljar has no attack catalogue: it was built without the feature jail";
    report::eprintln(&format!("{BAD}error:{BAD:#} {why}"));
    report::eprintln(&format!("{BOLD}hint:{BOLD:#}  use a default build of belljar on Linux"));
    EXIT_NOT_STARTED
}
