//! `belljar trust`: shows what a manifest or another file asks for, and records that it may.

use belljar::config::trust::{
    Kind, TreeBefore, TrustState, distrust, examine, examine_file, kind, trust, trust_tree,
};
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
    if let Some(tree) = &args.tree {
        let before = trust_tree(tree, &home)?;
        let tree = std::fs::canonicalize(tree).unwrap_or_else(|_| tree.clone());
        let what = match before {
            TreeBefore::Writable => {
                "counts as yours again: links in it are followed, files in it are read"
            }
            TreeBefore::Clean => "could not be written by any run; nothing to do",
        };
        report::eprintln(&format!("{} {what}", OsText::from(tree.as_path())));
        return Ok(());
    }
    if args.forget {
        let before = distrust(&args.path, &home)?;
        let word =
            if before == TrustState::Unknown { "was not trusted" } else { "is trusted no more" };
        report::eprintln(&format!("{} {word}", OsText::from(args.path.as_path())));
        return Ok(());
    }
    let kind = if args.context.is_some() { Kind::Dockerfile } else { kind(&args.path) };
    let examined = match kind {
        Kind::Manifest => examine(&args.path, &environment(), &home)?,
        Kind::Dockerfile => image::examine(&args.path, args.context.as_deref(), &home)?,
        Kind::PlainFile => examine_file(&args.path, &home)?,
    };
    let shown = OsText::from(examined.path.as_path());
    if examined.widenings.is_empty() {
        report::eprintln(&format!(
            "{shown} asks for nothing beyond the defaults and your own configuration"
        ));
    } else {
        report::eprintln(&format!("{BOLD}{shown}{BOLD:#} asks for:"));
        for widening in &examined.widenings {
            report::eprintln(&format!("  {}: {}", widening.key, widening.what));
        }
    }
    if args.show {
        return Ok(());
    }
    trust(&examined, &home)?;
    report::eprintln("trusted, as it is now; a change makes it untrusted again");
    Ok(())
}
