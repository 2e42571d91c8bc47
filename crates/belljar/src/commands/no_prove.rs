//! `belljar prove` of a build without the feature `jail`, which has no attack catalogue.

use belljar::spec::{EXIT_NOT_STARTED, Hint};

use crate::cli::ProveArgs;
use crate::report::{self, BAD};

pub(crate) fn run(_: &ProveArgs) -> i32 {
    let why =
        "this build of belljar has no attack catalogue: it was built without the feature jail";
    report::eprintln(&format!("{BAD}error:{BAD:#} {why}"));
    report::hint(Hint::DefaultBuild);
    EXIT_NOT_STARTED
}
