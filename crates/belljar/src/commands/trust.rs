//! `belljar trust`: shows what a manifest or another file asks for, and trusts it.

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
                "is trusted again: links in it are followed, files in it are read"
            }
            TreeBefore::Clean => "is trusted already: no run could write to it",
        };
        report::eprintln(&format!("{} {what}", OsText::from(tree.as_path())));
        return Ok(());
    }
    if args.forget {
        let before = distrust(&args.path, &home)?;
        let what =
            if before == TrustState::Unknown { "was not trusted" } else { "is no longer trusted" };
        report::eprintln(&format!("{} {what}", OsText::from(args.path.as_path())));
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
    report::eprintln("trusted, with its current content; after a change, trust it again");
    Ok(())
}
