//! `belljar trust`: shows what a manifest or another file asks for, and trusts it.

use belljar::config::trust::{
    Kind, TreeBefore, TrustState, distrust, examine, examine_file, kind, trust, trust_tree,
};
use belljar::image;
use belljar::spec::{EXIT_NOT_STARTED, OsText};
use serde_json::{Value, json};

use super::result::causes;
use super::{environment, open_home};
use crate::cli::TrustArgs;
use crate::report::{self, BOLD};

pub(crate) fn run(args: &TrustArgs) -> i32 {
    match act(args) {
        Ok(object) => {
            let printed = if args.json { report::json(&object) } else { Ok(()) };
            if printed.is_ok() { 0 } else { EXIT_NOT_STARTED }
        }
        Err(error) => {
            if args.json {
                let _ = report::json(&json!({ "error": causes(error.as_ref()) }));
            }
            report::error(error.as_ref(), None);
            EXIT_NOT_STARTED
        }
    }
}

/// The object is what `--json` prints.
fn act(args: &TrustArgs) -> Result<Value, Box<dyn std::error::Error>> {
    let home = open_home()?;
    let say = |text: &str| {
        if !args.json {
            report::eprintln(text);
        }
    };
    if let Some(tree) = &args.tree {
        let before = trust_tree(tree, &home)?;
        let tree = std::fs::canonicalize(tree).unwrap_or_else(|_| tree.clone());
        let tree = OsText::from(tree.as_path());
        let what = match before {
            TreeBefore::Writable => {
                "is trusted again: links in it are followed, files in it are read"
            }
            TreeBefore::Clean => "is trusted already: no run could write to it",
        };
        say(&format!("{tree} {what}"));
        let was_trusted = before == TreeBefore::Clean;
        return Ok(json!({ "path": tree, "trusted": true, "was_trusted": was_trusted }));
    }
    if args.forget {
        let before = distrust(&args.path, &home)?;
        let what =
            if before == TrustState::Unknown { "was not trusted" } else { "is no longer trusted" };
        let path = OsText::from(args.path.as_path());
        say(&format!("{path} {what}"));
        let was_trusted = before == TrustState::Trusted;
        return Ok(json!({ "path": path, "trusted": false, "was_trusted": was_trusted }));
    }
    let kind = if args.context.is_some() { Kind::Dockerfile } else { kind(&args.path) };
    let examined = match kind {
        Kind::Manifest => examine(&args.path, &environment(), &home)?,
        Kind::Dockerfile => image::examine(&args.path, args.context.as_deref(), &home)?,
        Kind::PlainFile => examine_file(&args.path, &home)?,
    };
    let shown = OsText::from(examined.path.as_path());
    if examined.widenings.is_empty() {
        say(&format!("{shown} asks for nothing beyond the defaults and your own configuration"));
    } else {
        say(&format!("{BOLD}{shown}{BOLD:#} asks for:"));
        for widening in &examined.widenings {
            say(&format!("  {}: {}", widening.key, widening.what));
        }
    }
    let asks_for = examined.widenings.iter();
    let asks_for = asks_for.map(|asked| json!({ "key": asked.key, "what": asked.what }));
    let asks_for: Vec<Value> = asks_for.collect();
    let was_trusted = examined.standing == TrustState::Trusted;
    if !args.show {
        trust(&examined, &home)?;
        say("trusted, with its current content; after a change, trust it again");
    }
    let trusted = !args.show || was_trusted;
    Ok(json!({
        "path": shown, "trusted": trusted, "was_trusted": was_trusted, "asks_for": asks_for,
    }))
}
