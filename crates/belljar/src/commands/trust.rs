//! `belljar trust`: what a manifest asks for, and the word that it may.

use belljar::config::trust::{Standing, distrust, examine, trust};
use belljar::image;
use belljar::spec::{EXIT_NOT_STARTED, OsText};

use super::{environment, open_home};
use crate::cli::TrustArgs;
use crate::report::{self, BOLD};

pub(crate) fn run(args: &TrustArgs) -> i32 {
    match act(args) {
        Ok(()) => 0,
        Err(error) => {
            report::error(error.as_ref(), None);
            EXIT_NOT_STARTED
        }
    }
}

fn act(args: &TrustArgs) -> Result<(), Box<dyn std::error::Error>> {
    let home = open_home()?;
    if args.forget {
        let before = distrust(&args.path, &home)?;
        let word =
            if before == Standing::Unknown { "was not trusted" } else { "is trusted no more" };
        report::say(&format!("{} {word}", OsText::from(args.path.as_path())));
        return Ok(());
    }
    let examined = match is_manifest(args) {
        true => examine(&args.path, &environment(), &home)?,
        false => image::examine(&args.path, args.context.as_deref(), &home)?,
    };
    let shown = OsText::from(examined.path.as_path());
    if examined.widenings.is_empty() {
        report::say(&format!("{shown} asks for nothing beyond the built-in policy"));
    } else {
        report::say(&format!("{BOLD}{shown}{BOLD:#} asks for:"));
        for widening in &examined.widenings {
            report::say(&format!("  {}: {}", widening.key, widening.what));
        }
    }
    if args.show {
        return Ok(());
    }
    trust(&examined, &home)?;
    report::say("trusted, as it is now; a change makes it untrusted again");
    Ok(())
}

/// A manifest is a directory's, or ends as one; anything else is a Dockerfile.
fn is_manifest(args: &TrustArgs) -> bool {
    let ends_so = args.path.extension().is_some_and(|extension| extension == "toml");
    args.context.is_none() && (ends_so || args.path.is_dir())
}
