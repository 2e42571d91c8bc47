//! Parses `.dockerignore` and decides which files of a context are excluded, by Docker's rules.
//!
//! The file is untrusted: the time for a match is bounded by the length of the pattern times that of the path.

use std::cell::LazyCell;

use belljar_spec::text::escape;

use super::ignore_pattern::{IgnorePattern, characters};

/// An invalid line.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(".dockerignore, line {line}: \"{shown}\" is not a valid pattern: {why}")]
pub struct IgnoreError {
    line: usize,
    shown: String,
    why: &'static str,
}

/// The patterns of one file, in order: the last match decides.
#[derive(Debug, Default)]
pub(super) struct IgnoreFile {
    patterns: Vec<IgnorePattern>,
}

impl IgnoreFile {
    pub(super) fn parse(file: &[u8]) -> Result<Self, IgnoreError> {
        let file = file.strip_prefix(b"\xef\xbb\xbf").unwrap_or(file);
        let mut patterns = Vec::new();
        for (at, line) in file.split(|byte| *byte == b'\n').enumerate() {
            if line.starts_with(b"#") {
                continue;
            }
            let line = line.trim_ascii();
            let (pattern, negated) = match line.strip_prefix(b"!") {
                Some(pattern) => (pattern.trim_ascii(), true),
                None => (line, false),
            };
            let pattern = clean(pattern);
            if pattern.is_empty() {
                continue;
            }
            let made = IgnorePattern::new(&pattern, negated);
            let bad = |why| IgnoreError { line: at + 1, shown: escape(line), why };
            patterns.push(made.map_err(bad)?);
        }
        Ok(Self { patterns })
    }

    /// Whether a path is excluded. Files in an excluded directory are excluded too, unless a later pattern includes
    /// them again.
    pub(super) fn excludes(&self, path: &[u8]) -> bool {
        let characters: LazyCell<Vec<u32>, _> = LazyCell::new(|| characters(path));
        let mut out = false;
        for pattern in &self.patterns {
            // Only patterns that would change the result are tried.
            if pattern.negated == out && pattern.matches_path_or_parent(path, &characters) {
                out = !pattern.negated;
            }
        }
        out
    }

    /// Whether a pattern could include something in an excluded directory again.
    pub(super) fn may_reinclude_below(&self, directory: &[u8]) -> bool {
        let begins = |long: &[u8], short: &[u8]| {
            long.starts_with(short) && (long.len() == short.len() || long[short.len()] == b'/')
        };
        self.patterns.iter().filter(|pattern| pattern.negated).any(|pattern| {
            pattern.has_wildcard && directory.starts_with(&pattern.plain)
                || begins(&pattern.plain, directory)
                || pattern.has_wildcard && pattern.plain.starts_with(directory)
        })
    }
}

/// As a path relative to the context: no slash at either end, no `.`, no `..`.
fn clean(pattern: &[u8]) -> Vec<u8> {
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in pattern.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => _ = parts.pop(),
            part => parts.push(part),
        }
    }
    parts.join(&b'/')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn out(file: &str, path: &str) -> bool {
        IgnoreFile::parse(file.as_bytes()).unwrap().excludes(path.as_bytes())
    }

    #[test]
    fn patterns_mean_what_docker_says() {
        for (file, path, expected) in [
            ("target", "target", true),
            ("target", "target/debug/x", true),
            ("/target/", "target/x", true),
            ("./target", "target/x", true),
            ("a/../target", "target", true),
            ("target", "src/target", false),
            ("target", "targets", false),
            ("*/temp*", "a/temporary.txt", true),
            ("*/temp*", "a/b/temporary.txt", false),
            ("*/temp*", "temporary.txt", false),
            ("*/*/temp*", "a/b/temp", true),
            ("temp?", "tempa", true),
            ("temp?", "tempä", true),
            ("temp?", "temp", false),
            ("temp?", "temp/", false),
            ("**/*.go", "x.go", true),
            ("**/*.go", "a/b/x.go", true),
            ("**/x", "ax", false),
            ("**/x", "a/x/y", true),
            ("a/**", "a", false),
            ("a/**", "a/b/c", true),
            ("a/**/z", "a/z", true),
            ("a/**/z", "a/b/c/z", true),
            ("a/**/z", "a/bz", false),
            ("**", "anything/at/all", true),
            ("a**z", "ab/cz", true),
            ("[a-c]x", "bx", true),
            ("[^a-c]x", "bx", false),
            ("[^a-c]x", "dx", true),
            ("[]a]", "a", true),
            ("\\*", "*", true),
            ("\\*", "x", false),
            ("# comment\n\n  x  \r\n", "x", true),
            ("#x", "#x", false),
            (" #x", "#x", true),
            ("\u{feff}x", "x", true),
        ] {
            assert_eq!(out(file, path), expected, "{file:?} {path:?}");
        }
    }

    #[test]
    fn the_last_pattern_that_fits_counts() {
        let file = "*.md\n!README*.md\nREADME-secret.md";
        assert!(out(file, "a.md"));
        assert!(!out(file, "README.md"));
        assert!(out(file, "README-secret.md"));
        let file = "*\n!src\nsrc/x";
        assert!(!out(file, "src/lib.rs"));
        assert!(out(file, "src/x/y"));
        assert!(out(file, "Cargo.toml"));
    }

    #[test]
    fn a_directory_is_entered_only_for_what_could_be_taken_back() {
        let may = |file: &str, directory: &str| {
            IgnoreFile::parse(file.as_bytes()).unwrap().may_reinclude_below(directory.as_bytes())
        };
        assert!(!may("node_modules", "node_modules"));
        assert!(may("a\n!a/b/c", "a") && may("a\n!a/b/c", "a/b"));
        assert!(!may("a\n!a/b/c", "a/x") && !may("a\nb\n!b/x", "a"));
        assert!(may("a\n!**/keep", "a/x") && may("a\n!a/*/keep", "a/x"));
    }

    #[test]
    fn an_invalid_pattern_is_reported_with_its_line() {
        let error = IgnoreFile::parse(b"ok\n[a").unwrap_err();
        assert_eq!(
            error.to_string(),
            ".dockerignore, line 2: \"[a\" is not a valid pattern: a \"[\" has no \"]\""
        );
        assert!(IgnoreFile::parse(b"x\\").is_err());
    }

    #[test]
    fn a_hostile_pattern_takes_no_time() {
        let pattern = "*a".repeat(200) + "b";
        let started = std::time::Instant::now();
        assert!(!out(&pattern, &"a".repeat(2000)));
        assert!(!out(&("**/".repeat(200) + "y"), &"x/".repeat(1000)));
        assert!(started.elapsed().as_secs() < 5);
    }
}
