//! The step that looks at what others have written and Belljar is built with: licences, where it comes from,
//! crates that are not wanted. The rules are in `xtask/dependencies.toml`.

mod licence;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use toml_edit::DocumentMut;

use super::report::Outcome;
use crate::{command, host};

const RULES: &str = "xtask/dependencies.toml";

pub(super) fn step() -> Result<Outcome> {
    let workspace = host::workspace()?;
    let rules = rules(&workspace)?;
    let packages = packages()?;
    let built = built(&rules.platforms)?;
    ensure!(built.len() > 1, "cargo tree names no dependency");
    let faults = faults(&rules, &packages, &built, &workspace)?;
    for fault in &faults {
        eprintln!("{fault}");
    }
    if !faults.is_empty() {
        bail!("{} faults; the rules are in {RULES}: {}", faults.len(), faults.join("; "));
    }
    eprintln!("{} crates are built, of {} in the lock file", built.len(), packages.len());
    Ok(Outcome::Passed)
}

fn rules(workspace: &Path) -> Result<Rules> {
    let text = fs::read_to_string(workspace.join(RULES))
        .with_context(|| format!("cannot read {RULES}"))?;
    Rules::read(&text).with_context(|| format!("in {RULES}"))
}

/// `NAME VERSION` of every crate that is built on one of the platforms.
pub(crate) fn built_crates() -> Result<BTreeSet<String>> {
    built(&rules(&host::workspace()?)?.platforms)
}

struct Rules {
    platforms: Vec<String>,
    sources: Vec<String>,
    licences: Vec<String>,
    /// Names with reasons.
    banned: Vec<(String, String)>,
}

impl Rules {
    /// A key that is not known is refused: whoever wrote it believes that it is heeded.
    fn read(text: &str) -> Result<Self> {
        let document: DocumentMut = text.parse().context("not TOML")?;
        let known = ["platforms", "sources", "licences", "banned", "unused"];
        if let Some((key, _)) = document.iter().find(|(key, _)| !known.contains(key)) {
            bail!("there is no rule `{key}`");
        }
        let list = |key: &str| {
            let items = document.get(key).and_then(|item| item.as_array());
            let items = items.with_context(|| format!("`{key}` is no list"))?;
            let text = |item: &toml_edit::Value| item.as_str().map(str::to_owned);
            let texts: Option<Vec<String>> = items.iter().map(text).collect();
            texts
                .filter(|all| !all.is_empty())
                .with_context(|| format!("`{key}` is no list of texts"))
        };
        let banned = document.get("banned").and_then(|item| item.as_table_like());
        let banned = banned.context("`banned` is no table")?.iter();
        let reason = |(name, item): (&str, &toml_edit::Item)| {
            let reason =
                item.as_str().with_context(|| format!("{name} is banned without a reason"))?;
            Ok((name.to_owned(), reason.to_owned()))
        };
        Ok(Self {
            platforms: list("platforms")?,
            sources: list("sources")?,
            licences: list("licences")?,
            banned: banned.map(reason).collect::<Result<_>>()?,
        })
    }
}

/// Every package of the lock file, as cargo describes it.
fn packages() -> Result<Vec<Value>> {
    let mut cargo = host::cargo()?;
    let text = command::read(cargo.args(["metadata", "--format-version=1", "--locked"]))?;
    let metadata: Value = serde_json::from_str(&text).context("cargo metadata is not JSON")?;
    let packages = metadata["packages"].as_array().cloned();
    packages.context("cargo metadata has no packages")
}

/// Name and version of what is really built: the lock file also has what only features that are off would need.
fn built(platforms: &[String]) -> Result<BTreeSet<String>> {
    let mut cargo = host::cargo()?;
    cargo.args(["tree", "--workspace", "--all-features", "--locked", "--prefix=none"]);
    cargo.args(["--edges=normal,build,dev", "--format={p}"]);
    cargo.args(platforms.iter().map(|platform| format!("--target={platform}")));
    Ok(names_in(&command::read(&mut cargo)?))
}

/// `NAME vVERSION`, and more behind that.
fn names_in(tree: &str) -> BTreeSet<String> {
    let name = |line: &str| {
        let (name, rest) = line.split_once(" v")?;
        let version = rest.split(' ').next()?;
        Some(format!("{name} {version}"))
    };
    tree.lines().filter_map(name).collect()
}

fn faults(
    rules: &Rules,
    packages: &[Value],
    built: &BTreeSet<String>,
    workspace: &Path,
) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    let mut seen = BTreeSet::new();
    for package in packages {
        let text = |key: &str| package[key].as_str();
        let name = text("name").context("a package without a name")?;
        let one = format!("{name} {}", text("version").context("a package without a version")?);
        let own = match text("source") {
            Some(source) => {
                if !rules.sources.iter().any(|allowed| allowed == source) {
                    faults.push(format!("{one} comes from {source}"));
                }
                false
            }
            None => {
                let manifest = Path::new(text("manifest_path").unwrap_or_default());
                if !manifest.starts_with(workspace) {
                    faults.push(format!("{one} comes from {}", manifest.display()));
                }
                true
            }
        };
        if own {
            faults
                .extend(any_version(package).map(|of| format!("{one} takes any version of {of}")));
        }
        if !built.contains(&one) {
            continue;
        }
        match text("license") {
            None => faults.push(format!("{one} names no licence")),
            Some(licence)
                if !licence::is_allowed(licence, &rules.licences).context(one.clone())? =>
            {
                faults.push(format!("{one} has the licence {licence}"));
            }
            Some(_) => {}
        }
        if let Some((_, reason)) = rules.banned.iter().find(|(banned, _)| banned == name) {
            faults.push(format!("{one} is banned: {reason}"));
        }
        seen.insert(one);
    }
    // What is built and is not described was not looked at.
    faults.extend(built.difference(&seen).map(|one| format!("{one} is not in cargo's metadata")));
    Ok(faults)
}

/// Dependencies of our own that are written as `*`; the crates of the workspace name each other by path.
fn any_version(package: &Value) -> impl Iterator<Item = &str> {
    let all = package["dependencies"].as_array().into_iter().flatten();
    let open = all.filter(|one| one["req"] == "*" && one["path"].is_null());
    open.filter_map(|one| one["name"].as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const REGISTRY: &str = "registry+https://example.org/index";

    fn rules() -> Rules {
        let text = format!(
            "platforms = [\"p\"]\nsources = [\"{REGISTRY}\"]\nlicences = [\"MIT\"]\n\
             [banned]\nbad = \"not wanted\"\n"
        );
        Rules::read(&text).unwrap()
    }

    fn package(name: &str, licence: &str, source: &str) -> Value {
        json!({ "name": name, "version": "1.0.0", "license": licence, "source": source })
    }

    fn found(packages: &[Value], built: &[&str]) -> Vec<String> {
        let built = built.iter().map(|name| (*name).to_owned()).collect();
        faults(&rules(), packages, &built, Path::new("/work")).unwrap()
    }

    #[test]
    fn a_licence_a_source_and_a_crate_that_are_not_allowed_are_faults() {
        let good = package("good", "MIT OR GPL-3.0", REGISTRY);
        assert_eq!(found(std::slice::from_ref(&good), &["good 1.0.0"]), Vec::<String>::new());
        let cases = [
            (package("a", "GPL-3.0", REGISTRY), "a 1.0.0 has the licence GPL-3.0"),
            (package("a", "MIT", "git+https://example.org/a"), "comes from git+https"),
            (package("bad", "MIT", REGISTRY), "bad 1.0.0 is banned: not wanted"),
            (json!({ "name": "a", "version": "1.0.0", "source": REGISTRY }), "names no licence"),
        ];
        for (package, expected) in cases {
            let name = format!("{} 1.0.0", package["name"].as_str().unwrap());
            let faults = found(&[good.clone(), package], &["good 1.0.0", &name]);
            assert_eq!(faults.len(), 1, "{faults:?}");
            assert!(faults[0].contains(expected), "{faults:?}");
        }
    }

    #[test]
    fn what_is_not_built_may_be_in_the_lock_file_but_not_from_elsewhere() {
        assert_eq!(found(&[package("bad", "MIT", REGISTRY)], &[]), Vec::<String>::new());
        assert_eq!(found(&[package("bad", "MIT", "git+x")], &[]).len(), 1);
        assert_eq!(found(&[], &["a 1.0.0"]), ["a 1.0.0 is not in cargo's metadata"]);
    }

    #[test]
    fn own_crates_name_the_versions_they_take() {
        let own = |path: Value| {
            json!({
                "name": "own", "version": "1.0.0", "license": "MIT",
                "manifest_path": "/work/own/Cargo.toml",
                "dependencies": [{ "name": "x", "req": "*", "path": path }],
            })
        };
        assert_eq!(found(&[own(Value::Null)], &[]), ["own 1.0.0 takes any version of x"]);
        assert_eq!(found(&[own("/work/x".into())], &[]), Vec::<String>::new());
        let mut elsewhere = own("/work/x".into());
        elsewhere["manifest_path"] = "/home/own/Cargo.toml".into();
        assert_eq!(found(&[elsewhere], &[]).len(), 1);
    }

    #[test]
    fn names_are_read_from_the_tree() {
        let tree = "belljar v0.1.0 (/w/crates/belljar)\nserde_derive v1.0.2 (proc-macro) (*)\n\n";
        let wanted = ["belljar 0.1.0", "serde_derive 1.0.2"].map(str::to_owned);
        assert_eq!(names_in(tree), BTreeSet::from(wanted));
    }

    #[test]
    fn a_rule_that_nobody_heeds_is_refused() {
        let text = fs::read_to_string(host::workspace().unwrap().join(RULES)).unwrap();
        Rules::read(&text).unwrap();
        assert!(Rules::read(&format!("skip = []\n{text}")).is_err());
        assert!(Rules::read(&text.replace("\"MIT\",", "7,")).is_err());
    }
}
