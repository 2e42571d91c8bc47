//! `.dockerignore`: which files of a context stay out of it, by docker's own rules.
//!
//! A pattern is matched in time that grows with its length times that of the path, whatever stands in it:
//! the file may have been written by anybody.

use std::cell::LazyCell;

use belljar_spec::text::escape;

use super::pattern::{Pattern, characters};

/// A line that cannot be understood.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of .dockerignore, \"{shown}\", is no pattern: {why}")]
pub struct IgnoreError {
    line: usize,
    shown: String,
    why: &'static str,
}

/// The patterns of one file, in order: the last that fits counts.
#[derive(Debug, Default)]
pub(super) struct Ignored {
    patterns: Vec<Pattern>,
}

impl Ignored {
    pub(super) fn parse(file: &[u8]) -> Result<Self, IgnoreError> {
        let file = file.strip_prefix(b"\xef\xbb\xbf").unwrap_or(file);
        let mut patterns = Vec::new();
        for (at, line) in file.split(|byte| *byte == b'\n').enumerate() {
            if line.starts_with(b"#") {
                continue;
            }
            let line = line.trim_ascii();
            let (pattern, takes_back) = match line.strip_prefix(b"!") {
                Some(pattern) => (pattern.trim_ascii(), true),
                None => (line, false),
            };
            let pattern = clean(pattern);
            if pattern.is_empty() {
                continue;
            }
            let made = Pattern::new(&pattern, takes_back);
            let bad = |why| IgnoreError { line: at + 1, shown: escape(line), why };
            patterns.push(made.map_err(bad)?);
        }
        Ok(Self { patterns })
    }

    /// Whether a path stays out. One below a directory that stays out stays out too, unless a later
    /// pattern takes it back.
    pub(super) fn has(&self, path: &[u8]) -> bool {
        let characters: LazyCell<Vec<u32>, _> = LazyCell::new(|| characters(path));
        let mut out = false;
        for pattern in &self.patterns {
            // Only a pattern that would change the answer is tried.
            if pattern.takes_back == out && pattern.fits_or_holds(path, &characters) {
                out = !pattern.takes_back;
            }
        }
        out
    }

    /// Whether something below a directory that stays out could be taken back.
    pub(super) fn may_take_back_below(&self, directory: &[u8]) -> bool {
        let begins = |long: &[u8], short: &[u8]| {
            long.starts_with(short) && (long.len() == short.len() || long[short.len()] == b'/')
        };
        self.patterns.iter().filter(|pattern| pattern.takes_back).any(|pattern| {
            pattern.has_wildcard && directory.starts_with(&pattern.plain)
                || begins(&pattern.plain, directory)
                || pattern.has_wildcard && pattern.plain.starts_with(directory)
        })
    }
}

/// As a path relative to the context: no slash at either end, no `.`, no `..`.
fn clean(pattern: &[u8]) -> Vec<u8> {
    let mut kept: Vec<&[u8]> = Vec::new();
    for part in pattern.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => _ = kept.pop(),
            part => kept.push(part),
        }
    }
    kept.join(&b'/')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn out(file: &str, path: &str) -> bool {
        Ignored::parse(file.as_bytes()).unwrap().has(path.as_bytes())
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
            Ignored::parse(file.as_bytes()).unwrap().may_take_back_below(directory.as_bytes())
        };
        assert!(!may("node_modules", "node_modules"));
        assert!(may("a\n!a/b/c", "a") && may("a\n!a/b/c", "a/b"));
        assert!(!may("a\n!a/b/c", "a/x") && !may("a\nb\n!b/x", "a"));
        assert!(may("a\n!**/keep", "a/x") && may("a\n!a/*/keep", "a/x"));
    }

    #[test]
    fn what_is_no_pattern_is_told_with_its_line() {
        let error = Ignored::parse(b"ok\n[a").unwrap_err();
        assert_eq!(
            error.to_string(),
            "line 2 of .dockerignore, \"[a\", is no pattern: a \"[\" has no \"]\""
        );
        assert!(Ignored::parse(b"x\\").is_err());
    }

    #[test]
    fn a_hostile_pattern_takes_no_time() {
        let pattern = "*a".repeat(200) + "b";
        let begun = std::time::Instant::now();
        assert!(!out(&pattern, &"a".repeat(2000)));
        assert!(!out(&("**/".repeat(200) + "y"), &"x/".repeat(1000)));
        assert!(begun.elapsed().as_secs() < 5);
    }
}
