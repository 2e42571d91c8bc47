//! Checks what can be checked of the oldest supported Rust with one toolchain: no crate that is built needs a newer
//! one, clippy refuses newer parts of the standard library, and the documents name the same version.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use toml_edit::DocumentMut;

use super::files::read;
use super::{Packages, metadata, text};
use crate::host;
use crate::test::built_crates;

/// The lint that compares calls of the standard library with `rust-version`.
const LINT: &str = "incompatible_msrv";
/// Documents that say which Rust is needed.
const DOCUMENTS: [&str; 2] = ["README.md", "CONTRIBUTING.md"];

type Version = (u64, u64, u64);

pub(super) fn faults() -> Result<Vec<String>> {
    let root = host::workspace()?;
    let manifest: DocumentMut = read(&root, Path::new("Cargo.toml"))?.parse()?;
    let workspace = &manifest["workspace"];
    let ours = workspace["package"]["rust-version"].as_str();
    let ours = ours.context("Cargo.toml has no workspace.package.rust-version")?;
    let built = built_crates()?;
    let is_built = |package: &Value| {
        let name = format!("{} {}", text(package, "name")?, text(package, "version")?);
        Ok::<_, anyhow::Error>(built.contains(&name))
    };
    let mut packages = Vec::new();
    for package in metadata(Packages::All)? {
        if is_built(&package)? {
            packages.push(package);
        }
    }
    let mut faults = too_new(&packages, ours)?;
    if workspace["lints"]["clippy"].get(LINT).is_none() {
        faults.push(format!("Cargo.toml: [workspace.lints.clippy] has no {LINT}"));
    }
    for document in DOCUMENTS {
        faults.extend(other_versions(document, &read(&root, Path::new(document))?, ours));
    }
    Ok(faults)
}

/// Crates that need a newer Rust, and crates of ours that name none or another.
fn too_new(packages: &[Value], ours: &str) -> Result<Vec<String>> {
    let limit = parse(ours).with_context(|| format!("rust-version {ours}"))?;
    ensure!(!packages.is_empty(), "no crate is built");
    let mut faults = Vec::new();
    for package in packages {
        let name = format!("{} {}", text(package, "name")?, text(package, "version")?);
        match (package["rust_version"].as_str(), package["source"].is_null()) {
            (Some(needed), true) if needed != ours => {
                faults.push(format!("{name} has rust-version {needed}, the workspace {ours}"));
            }
            (None, true) => faults.push(format!("{name} has no rust-version")),
            (Some(needed), _) => {
                let version = parse(needed).with_context(|| format!("{name}: {needed}"))?;
                if version > limit {
                    faults.push(format!("{name} needs Rust {needed}, the workspace has {ours}"));
                }
            }
            (None, false) => {} // it does not say
        }
    }
    Ok(faults)
}

/// `1.91` or `1.91.1`.
fn parse(version: &str) -> Option<Version> {
    let mut numbers = version.split('.').map(|number| number.parse().ok());
    let parsed = (numbers.next()??, numbers.next()??, numbers.next().unwrap_or(Some(0))?);
    numbers.next().is_none().then_some(parsed)
}

/// Every `Rust 1.x` of a document is our version, and there is at least one.
fn other_versions(document: &str, content: &str, ours: &str) -> Vec<String> {
    let versions = content.split("Rust 1.").skip(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        format!("1.{}", &rest[..end])
    });
    let versions: Vec<String> = versions.collect();
    if versions.is_empty() {
        return vec![format!("{document} does not name Rust {ours}")];
    }
    let wrong = versions.into_iter().filter(|version| version != ours);
    wrong.map(|version| format!("{document} names Rust {version}, not {ours}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn package(source: Value, rust_version: Value) -> Value {
        json!({ "name": "a", "version": "1.0.0", "source": source, "rust_version": rust_version })
    }

    #[test]
    fn a_crate_that_needs_a_newer_rust_is_a_fault() {
        let found = |package: Value| too_new(&[package], "1.91").unwrap();
        for fine in ["1.91", "1.91.0", "1.60", "1.9.9"] {
            assert_eq!(found(package(json!("registry"), json!(fine))), Vec::<String>::new());
        }
        assert_eq!(found(package(json!("registry"), Value::Null)), Vec::<String>::new());
        for newer in ["1.91.1", "1.100", "2.0"] {
            let faults = found(package(json!("registry"), json!(newer)));
            assert_eq!(faults, [format!("a 1.0.0 needs Rust {newer}, the workspace has 1.91")]);
        }
        assert_eq!(found(package(Value::Null, Value::Null)), ["a 1.0.0 has no rust-version"]);
        assert_eq!(found(package(Value::Null, json!("1.90"))).len(), 1);
        assert!(too_new(&[package(json!("registry"), json!("new"))], "1.91").is_err());
    }

    #[test]
    fn a_document_names_the_same_version() {
        assert_eq!(other_versions("a.md", "Rust 1.91 or newer.", "1.91"), Vec::<String>::new());
        assert_eq!(
            other_versions("a.md", "Rust 1.9 or", "1.91"),
            ["a.md names Rust 1.9, not 1.91"]
        );
        assert_eq!(other_versions("a.md", "Rust.", "1.91"), ["a.md does not name Rust 1.91"]);
    }
}
