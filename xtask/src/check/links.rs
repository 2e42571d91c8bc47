//! Checks that links between documents lead somewhere, and that paths of the tree that documents name exist.
//! Addresses of other sites are not fetched: a test must not depend on the network.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use anyhow::{Result, ensure};

use super::files::{below, has_extension, read};
use super::markdown::{Document, Spot};
use crate::host;

/// This check's own tests name pages that do not exist.
const OWN_SOURCES: &str = "xtask/src/check";
/// Names paths that no longer exist, as a history does. Its links are checked.
const HISTORY: &str = "CHANGELOG.md";

pub(super) fn faults() -> Result<Vec<String>> {
    let root = host::workspace()?;
    let tree = SourceTree::new(below(&root)?);
    let mut documents = BTreeMap::new();
    let mut faults = Vec::new();
    for file in &tree.files {
        if has_extension(file, "md") {
            documents.insert(file.clone(), Document::read(&read(&root, file)?));
        } else if has_extension(file, "rs") && !file.starts_with(OWN_SOURCES) {
            faults.extend(tree.pages_named_in_code(file, &read(&root, file)?));
        }
    }
    ensure!(documents.len() > 10, "only {} documents found", documents.len());
    for (file, document) in &documents {
        faults.extend(tree.dead_links(&documents, file, document));
        if file != Path::new(HISTORY) {
            faults.extend(tree.missing_paths(file, document));
        }
    }
    Ok(faults)
}

/// The files of the checkout, and which directories there are at its top.
struct SourceTree {
    files: Vec<PathBuf>,
    top: Vec<String>,
}

impl SourceTree {
    fn new(files: Vec<PathBuf>) -> Self {
        let directory = |file: &PathBuf| {
            let first = file.parent()?.components().next()?;
            first.as_os_str().to_str().map(str::to_owned)
        };
        let mut top: Vec<String> = files.iter().filter_map(directory).collect();
        top.dedup();
        Self { files, top }
    }

    /// A file, or a directory with a file in it.
    fn has(&self, path: &Path) -> bool {
        self.files.iter().any(|file| file.starts_with(path))
    }

    fn dead_links(
        &self,
        documents: &BTreeMap<PathBuf, Document>,
        file: &Path,
        document: &Document,
    ) -> Vec<String> {
        let mut faults = Vec::new();
        for Spot { line, text } in &document.links {
            let at = format!("{}:{line}", file.display());
            if text.contains("://") || text.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) = text.split_once('#').unwrap_or((text, ""));
            let target = match path {
                "" => file.to_owned(),
                path => normal(&file.parent().unwrap_or(Path::new("")).join(path)),
            };
            if !self.has(&target) {
                faults.push(format!("{at}: the link to {text} leads nowhere"));
                continue;
            }
            let known = |document: &Document| document.anchors.iter().any(|one| one == anchor);
            if !anchor.is_empty() && !documents.get(&target).is_some_and(known) {
                faults.push(format!("{at}: {} has no heading #{anchor}", target.display()));
            }
        }
        faults
    }

    /// Code spans that name a path of this tree: one that begins with a directory at its top, or a Rust file by the
    /// end of its path.
    fn missing_paths(&self, file: &Path, document: &Document) -> Vec<String> {
        let mut faults = Vec::new();
        for Spot { line, text } in &document.spans {
            for path in alternatives(text) {
                if !is_missing(&path, self) {
                    continue;
                }
                faults.push(format!("{}:{line}: there is no {path}", file.display()));
            }
        }
        faults
    }

    /// Comments and messages name pages of the documentation: `docs/NAME.md`.
    fn pages_named_in_code(&self, file: &Path, code: &str) -> Vec<String> {
        let mut faults = Vec::new();
        for (number, line) in code.lines().enumerate() {
            for (start, _) in line.match_indices("docs/") {
                let is_path = |c: char| c.is_ascii_alphanumeric() || "/-_.".contains(c);
                let rest = &line[start..];
                let end = rest.find(|c| !is_path(c)).unwrap_or(rest.len());
                let path = rest[..end].trim_end_matches('.');
                let begins = !line[..start].ends_with(|c: char| is_path(c) || c == '{');
                if begins && path.ends_with(".md") && !self.has(Path::new(path)) {
                    faults.push(format!("{}:{}: there is no {path}", file.display(), number + 1));
                }
            }
        }
        faults
    }
}

fn is_missing(path: &str, tree: &SourceTree) -> bool {
    let is_path = |c: char| c.is_ascii_alphanumeric() || "/-_.".contains(c);
    let is_placeholder = |part: &str| {
        let name = part.split('.').next().unwrap_or_default();
        name.len() > 1 && name.chars().all(|c| c.is_ascii_uppercase())
    };
    let (first, rest) = path.split_once('/').unwrap_or(("", path));
    if !path.chars().all(is_path) || rest.is_empty() || rest.starts_with('.') || path.contains("//")
    {
        return false; // a pattern, a command line, an address
    }
    let named = Path::new(path.trim_end_matches('/'));
    // ARCHITECTURE.md and the like are in capitals too, at the end of a path.
    if path.split('/').any(is_placeholder) && !tree.files.iter().any(|file| file.ends_with(named)) {
        return false;
    }
    match tree.top.iter().any(|top| top == first) {
        true => !tree.has(named),
        false => path.ends_with(".rs") && !tree.files.iter().any(|file| file.ends_with(named)),
    }
}

/// `a/{b,c}.rs` names two paths.
fn alternatives(text: &str) -> Vec<String> {
    let whole = || vec![text.to_owned()];
    let Some((before, rest)) = text.split_once('{') else { return whole() };
    let Some((inside, after)) = rest.split_once('}') else { return whole() };
    inside.split(',').map(|one| format!("{before}{}{after}", one.trim())).collect()
}

/// Without `..`, which a link may have.
fn normal(path: &Path) -> PathBuf {
    let mut parts = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                if !parts.pop() {
                    return path.to_owned(); // out of the tree: found nowhere
                }
            }
            Component::CurDir => {}
            other => parts.push(other),
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> SourceTree {
        let files = ["README.md", "crates/a/src/jail/start.rs", "docs/b.md", "docs/design/c.md"];
        SourceTree::new(files.map(PathBuf::from).to_vec())
    }

    fn dead(file: &str, content: &str) -> Vec<String> {
        let mut documents = BTreeMap::new();
        documents.insert(PathBuf::from("docs/b.md"), Document::read("# B\n## A part\n"));
        let document = Document::read(content);
        let file = Path::new(file);
        let mut faults = tree().dead_links(&documents, file, &document);
        faults.extend(tree().missing_paths(file, &document));
        faults
    }

    #[test]
    fn links_that_lead_somewhere_pass() {
        let content = "[a](docs/b.md#a-part) [b](docs) [c](https://example.org/x#y)\n";
        assert_eq!(dead("README.md", content), Vec::<String>::new());
        assert_eq!(dead("docs/design/c.md", "[up](../b.md#b)"), Vec::<String>::new());
    }

    #[test]
    fn links_that_lead_nowhere_are_faults() {
        assert_eq!(
            dead("README.md", "\n[a](b.md)"),
            ["README.md:2: the link to b.md leads nowhere"]
        );
        let faults = dead("README.md", "[a](docs/b.md#other)");
        assert_eq!(faults, ["README.md:1: docs/b.md has no heading #other"]);
        assert_eq!(dead("docs/b.md", "[up](../../x.md)").len(), 1);
    }

    #[test]
    fn paths_in_code_spans_exist_unless_they_are_patterns() {
        let fine = "`crates/a/src/` `jail/start.rs` `start.rs` `.rs` `a/src/{jail}/start.rs` `docs/*.md` `x/NAME.rs` `git a/b`";
        assert_eq!(dead("README.md", fine), Vec::<String>::new());
        for gone in ["crates/a/src/end.rs", "jail/end.rs", "end.rs", "docs/{b,d}.md", "docs/b/"] {
            assert_eq!(dead("README.md", &format!("`{gone}`")).len(), 1, "{gone}");
        }
    }

    #[test]
    fn pages_that_code_names_exist() {
        let found = |code: &str| tree().pages_named_in_code(Path::new("x.rs"), code);
        assert_eq!(found("// see docs/b.md."), Vec::<String>::new());
        assert_eq!(found("see docs/gone.md, or"), ["x.rs:1: there is no docs/gone.md"]);
        assert_eq!(found("other/docs/gone.md"), Vec::<String>::new());
    }
}
