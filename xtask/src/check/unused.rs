//! Finds dependencies that no source file names, and rows of `[workspace.dependencies]` that no crate uses.
//!
//! A name counts as used where a path begins with it (`name::`), or where it is imported. So a local module of the
//! same name hides an unused dependency; nothing that is used is ever reported.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;
use toml_edit::DocumentMut;

use super::files::{below, has_extension, read};
use super::{Packages, metadata, text};
use crate::host;

const RULES: &str = "xtask/dependencies.toml";

pub(super) fn faults() -> Result<Vec<String>> {
    let root = host::workspace()?;
    let workspace: DocumentMut = read(&root, Path::new("Cargo.toml"))?.parse()?;
    let rules: DocumentMut = read(&root, Path::new(RULES))?.parse()?;
    let allowed = |name: &str| rules.get("unused").is_some_and(|table| table.get(name).is_some());
    let mut used_by_members = BTreeSet::new();
    let mut faults = Vec::new();
    for package in metadata(Packages::Own)? {
        let name = text(&package, "name")?;
        let manifest = Path::new(text(&package, "manifest_path")?);
        let directory = manifest.parent().context("a manifest without a directory")?;
        let sources = Sources::read(directory)?;
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let dependency = Dependency::from_json(dependency)?;
            if !sources.use_it(&dependency) && !allowed(&dependency.package) {
                let Dependency { package, kind, .. } = &dependency;
                faults.push(format!("{name}: no source uses {package} ({})", kind.table()));
            }
            used_by_members.insert(dependency.package);
        }
    }
    let declared = workspace["workspace"]["dependencies"].as_table_like();
    for (name, _) in declared.context("Cargo.toml has no [workspace.dependencies]")?.iter() {
        if !used_by_members.contains(name) {
            faults.push(format!("Cargo.toml: no crate of the workspace uses {name}"));
        }
    }
    Ok(faults)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DependencyKind {
    Normal,
    Dev,
    Build,
}

impl DependencyKind {
    fn table(self) -> &'static str {
        match self {
            Self::Normal => "dependencies",
            Self::Dev => "dev-dependencies",
            Self::Build => "build-dependencies",
        }
    }
}

struct Dependency {
    package: String,
    /// What the sources call it.
    ident: String,
    kind: DependencyKind,
}

impl Dependency {
    fn from_json(value: &Value) -> Result<Self> {
        let package = text(value, "name")?.to_owned();
        let ident = value["rename"].as_str().unwrap_or(&package).replace('-', "_");
        let kind = match value["kind"].as_str() {
            Some("dev") => DependencyKind::Dev,
            Some("build") => DependencyKind::Build,
            _ => DependencyKind::Normal,
        };
        Ok(Self { package, ident, kind })
    }
}

/// The values of `#[path = "…"]`: modules that another crate's files are.
fn named_files(code: &str) -> impl Iterator<Item = &str> {
    code.split("#[path = \"").skip(1).filter_map(|rest| rest.split('"').next())
}

/// A file of another crate; all of its directory, if it is the module of one.
fn with_what_is_beside(directory: &Path, file: &Path) -> Result<String> {
    let mut code = without_comments(&read(directory, file)?);
    if file.ends_with("mod.rs") {
        let above = directory.join(file.parent().unwrap_or(Path::new("")));
        for beside in below(&above)?.into_iter().filter(|path| has_extension(path, "rs")) {
            code.push_str(&without_comments(&read(&above, &beside)?));
        }
    }
    Ok(code)
}

/// The sources of one crate, by what may use which kind of dependency.
#[derive(Default)]
struct Sources {
    library: String,
    tests: String,
    build: String,
}

impl Sources {
    fn read(directory: &Path) -> Result<Self> {
        let mut sources = Self::default();
        for file in below(directory)? {
            if !has_extension(&file, "rs") {
                continue;
            }
            let code = without_comments(&read(directory, &file)?);
            let first = file.components().next().map(|first| first.as_os_str().to_owned());
            let place = match first.as_deref().and_then(|first| first.to_str()) {
                Some("build.rs" | "build") => &mut sources.build,
                Some("src") => &mut sources.library,
                _ => &mut sources.tests,
            };
            place.push_str(&code);
            for named in named_files(&code) {
                let beside = file.parent().unwrap_or(Path::new("")).join(named);
                place.push_str(&with_what_is_beside(directory, &beside)?);
            }
        }
        Ok(sources)
    }

    fn use_it(&self, dependency: &Dependency) -> bool {
        let ident = &dependency.ident;
        match dependency.kind {
            DependencyKind::Normal => names(&self.library, ident),
            DependencyKind::Build => names(&self.build, ident),
            // Unit tests are in the library's files.
            DependencyKind::Dev => names(&self.tests, ident) || names(&self.library, ident),
        }
    }
}

fn without_comments(code: &str) -> String {
    let line = |line: &str| match line.trim_start().starts_with("//") {
        true => String::new(),
        false => format!("{line}\n"),
    };
    code.lines().map(line).collect()
}

/// Whether a path begins with this name, or it is imported.
fn names(code: &str, ident: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(ident).any(|(at, _)| {
        let (before, after) = (&code[..at], &code[at + ident.len()..]);
        let before_it = before.trim_end_matches("::");
        let global = before_it.len() != before.len() && !before_it.ends_with(is_word);
        let starts = global || !before.ends_with(|c: char| is_word(c) || c == ':');
        let import = before.ends_with("use ") || before.ends_with("extern crate ");
        let path = after.starts_with("::");
        starts && (path || import && !after.starts_with(is_word))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_or_an_import_uses_a_crate_and_nothing_else_does() {
        let uses = [
            "use tar::Builder;",
            "use tar;",
            "use tar as archive;",
            "let x = tar::Builder::new();",
            "#[tar::attribute]",
            "let x = ::tar::y();",
            "pub use tar::{A, B};",
        ];
        for code in uses {
            assert!(names(&without_comments(code), "tar"), "{code}");
        }
        let others = [
            "use crate::tar::Builder;",
            "let tar = 1;",
            "start::tar();",
            "use tarball::x;",
            "use star::x;",
            "// tar::Builder",
            "/// See tar::Builder.",
        ];
        for code in others {
            assert!(!names(&without_comments(code), "tar"), "{code}");
        }
    }

    #[test]
    fn each_kind_is_looked_for_where_it_may_be_used() {
        let sources = Sources {
            library: "a::x();".to_owned(),
            tests: "b::x();".to_owned(),
            build: "c::x();".to_owned(),
        };
        let used = |ident: &str, kind: DependencyKind| {
            let (package, ident) = (ident.to_owned(), ident.to_owned());
            sources.use_it(&Dependency { package, ident, kind })
        };
        assert!(
            used("a", DependencyKind::Normal)
                && used("a", DependencyKind::Dev)
                && !used("a", DependencyKind::Build)
        );
        assert!(!used("b", DependencyKind::Normal) && used("b", DependencyKind::Dev));
        assert!(used("c", DependencyKind::Build) && !used("c", DependencyKind::Normal));
    }
}
