//! Whether a change of a repository's `config` can execute anything. Nothing here is git: a small part of its
//! syntax is understood, and whatever is not is held back.

/// What a name may be called, a branch for example.
const NAME_SIGNS: &[u8] = b"._-/+";

/// Whether all that differs is about names and branches. `None`: there was no such file.
pub(super) fn is_harmless(before: Option<&[u8]>, after: &[u8]) -> bool {
    let (Some(before), Some(after)) = (entries(before.unwrap_or_default()), entries(after)) else {
        return false;
    };
    let is_remote = |entry: &&ConfigEntry| entry.section == "remote" && entry.key == "url";
    let remotes: Vec<String> =
        before.iter().filter(is_remote).filter_map(|entry| entry.subsection.clone()).collect();
    // In order: which of two entries wins is decided by it.
    let others = |entries: Vec<ConfigEntry>| -> Vec<ConfigEntry> {
        entries.into_iter().filter(|entry| !entry.is_harmless(&remotes)).collect()
    };
    others(before) == others(after)
}

#[derive(Debug, PartialEq, Eq)]
struct ConfigEntry {
    /// In lower case, as git compares it.
    section: String,
    subsection: Option<String>,
    key: String,
    value: Option<String>,
}

impl ConfigEntry {
    /// `remotes`: those that the operator has.
    fn is_harmless(&self, remotes: &[String]) -> bool {
        let Some(value) = self.value.as_deref() else { return false };
        let is_switch = matches!(value, "true" | "false");
        match (self.section.as_str(), self.subsection.as_deref(), self.key.as_str()) {
            ("user", None, "name" | "email") => is_plain(value),
            // A remote can be written as an address too, and some of those execute; a name that is none is
            // looked for in files that the run can make.
            ("branch", Some(_), "remote") => {
                value == "." || remotes.iter().any(|remote| remote == value)
            }
            ("branch", Some(_), "merge") => value.strip_prefix("refs/heads/").is_some_and(is_name),
            ("branch", Some(_), "rebase") => is_switch || value == "merges",
            ("branch", Some(_), "description") => is_plain(value),
            // What git itself writes into a new repository.
            ("core", None, "repositoryformatversion") => value == "0",
            ("core", None, "bare") => value == "false",
            ("core", None, "filemode" | "logallrefupdates") => is_switch,
            _ => false,
        }
    }
}

/// A longer file is nobody's configuration.
const MAX_BYTES: usize = 1 << 20;

/// The last `user.name` and `user.email` of a configuration file, as git reads them. Whatever else is in the file, and
/// what is not understood, is passed over; no file that it includes is read.
pub fn git_identity_in(text: &[u8]) -> (Option<String>, Option<String>) {
    let (mut name, mut email) = (None, None);
    each_value_of("user", text, |key, value| match key {
        "name" => name = Some(value),
        "email" => email = Some(value),
        _ => {}
    });
    (name, email)
}

/// The last `core.worktree` of a repository's configuration, in the same way.
pub fn git_work_tree_in(text: &[u8]) -> Option<String> {
    let mut work_tree = None;
    each_value_of("core", text, |key, value| {
        if key == "worktree" {
            work_tree = Some(value);
        }
    });
    work_tree
}

/// Whether a repository's configuration has git read `config.worktree` as well.
pub fn git_has_worktree_config(text: &[u8]) -> bool {
    let mut has_it = false;
    each_value_of("extensions", text, |key, value| {
        if key == "worktreeconfig" {
            has_it = ["true", "yes", "on", "1"].contains(&value.to_ascii_lowercase().as_str());
        }
    });
    has_it
}

/// Calls `found` with each key, in lower case, and value of a section without a name of its own.
fn each_value_of(wanted: &str, text: &[u8], mut found: impl FnMut(&str, String)) {
    let text = String::from_utf8_lossy(text.get(..MAX_BYTES).unwrap_or(text));
    let mut is_wanted = false;
    let mut lines = text.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
    while let Some(line) = lines.next() {
        let mut line = line.trim_start_matches([' ', '\t']);
        if let Some((header, rest)) = line.strip_prefix('[').and_then(|line| line.split_once(']')) {
            is_wanted =
                section(header).is_some_and(|(name, below)| name == wanted && below.is_none());
            line = rest.trim_start_matches([' ', '\t']); // a value may stand in the same line
        }
        if line.starts_with(['#', ';']) {
            continue;
        }
        let (key, value) = match line.split_once('=') {
            Some((key, value)) => (key, unquoted(value, &mut lines)),
            None => continue,
        };
        if is_wanted {
            found(&key.trim_matches([' ', '\t']).to_ascii_lowercase(), value);
        }
    }
}

/// A value without its quotes, escapes and comment. A backslash at the end of a line continues it in the next one.
fn unquoted<'t>(start: &str, lines: &mut impl Iterator<Item = &'t str>) -> String {
    let (mut value, mut is_quoted) = (String::new(), false);
    // How much of it stays where spaces at its end go.
    let mut kept = 0;
    let mut line = start;
    loop {
        let mut characters = line.chars();
        let mut continues = false;
        while let Some(c) = characters.next() {
            match c {
                '"' => is_quoted = !is_quoted,
                '#' | ';' if !is_quoted => break,
                '\\' => match characters.next() {
                    None => continues = true,
                    Some('n') => value.push('\n'),
                    Some('t') => value.push('\t'),
                    Some('b') => value.push('\u{8}'),
                    Some(other) => value.push(other),
                },
                ' ' | '\t' if !is_quoted && value.is_empty() => {}
                other => value.push(other),
            }
            if is_quoted || !matches!(c, ' ' | '\t' | '"') {
                kept = value.len();
            }
        }
        match continues.then(|| lines.next()).flatten() {
            Some(next) => line = next,
            None => break,
        }
    }
    value.truncate(kept);
    value
}

fn is_name(text: &str) -> bool {
    !text.starts_with('-')
        && !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || NAME_SIGNS.contains(&byte))
}

/// Means itself: nothing in it is an escape, a quote or the begin of a comment.
fn is_plain(text: &str) -> bool {
    !text.chars().any(|c| c.is_control() || matches!(c, '\\' | '"' | '#' | ';'))
}

/// Every entry in turn; `None` where a line is anything but the plainest form.
fn entries(text: &[u8]) -> Option<Vec<ConfigEntry>> {
    let text = std::str::from_utf8(text).ok()?;
    let mut entries = Vec::new();
    let mut section = None;
    for line in text.split('\n') {
        let line = line.strip_suffix('\r').unwrap_or(line);
        if line.chars().any(|c| c.is_control() && c != '\t') || line.ends_with('\\') {
            return None; // the next line would be a part of this one
        }
        let line = line.trim_matches([' ', '\t']);
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(header) = line.strip_prefix('[') {
            section = Some(self::section(header.strip_suffix(']')?)?);
            continue;
        }
        let (name, subsection) = section.clone()?;
        let (key, value) = match line.split_once('=') {
            None => (line, None),
            Some((key, value)) => (key, Some(value.trim_matches([' ', '\t']).to_owned())),
        };
        let key = key.trim_matches([' ', '\t']).to_ascii_lowercase();
        if !is_word(&key) {
            return None;
        }
        entries.push(ConfigEntry { section: name, subsection, key, value });
    }
    Some(entries)
}

fn section(header: &str) -> Option<(String, Option<String>)> {
    let (name, subsection) = match header.split_once([' ', '\t']) {
        None => (header, None),
        Some((name, rest)) => {
            let rest = rest.trim_matches([' ', '\t']);
            let subsection = rest.strip_prefix('"')?.strip_suffix('"')?;
            if subsection.contains(['"', '\\']) {
                return None;
            }
            (name, Some(subsection.to_owned()))
        }
    };
    is_word(name).then(|| (name.to_ascii_lowercase(), subsection))
}

fn is_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::{git_has_worktree_config, git_identity_in, git_work_tree_in, is_harmless};

    #[test]
    fn the_work_tree_is_the_last_one_of_the_plain_section() {
        let found = |text: &str| git_work_tree_in(text.as_bytes());
        let submodule =
            "[core]\n\tbare = false\n\tworktree = ../../../sub\n[remote \"origin\"]\n\turl = x\n";
        assert_eq!(found(submodule).as_deref(), Some("../../../sub"));
        let twice = "[core] worktree = \"a b\"\n[CORE]\nWorkTree = \"/c\\\\d\" # e\n";
        assert_eq!(found(twice).as_deref(), Some("/c\\d"));
        for other in ["[core \"x\"]\nworktree = a\n", "[user]\nworktree = a\n", "# [core]\n"] {
            assert_eq!(found(other), None, "{other}");
        }
    }

    #[test]
    fn a_second_configuration_counts_where_the_first_says_so() {
        let found = |text: &str| git_has_worktree_config(text.as_bytes());
        assert!(found("[extensions]\n\tworktreeConfig = true\n"));
        assert!(!found("[extensions]\nworktreeConfig = true\nworktreeConfig = false\n"));
        for other in
            ["", "[core]\nworktreeConfig = true\n", "[extensions \"x\"]\nworktreeConfig = true\n"]
        {
            assert!(!found(other), "{other}");
        }
    }

    #[test]
    fn the_author_is_found_among_whatever_else_there_is() {
        let found = |text: &str| git_identity_in(text.as_bytes());
        let pair = |name: &str, email: &str| (Some(name.to_owned()), Some(email.to_owned()));
        let usual = "# mine\n[alias]\n\tlg = !git log \\\"x\\\"\n[user]\n\tname = Ann Example\n\temail = a@example.org\n\
                     [core]\n\tname = nobody\n[include]\n\tpath = ~/other\n";
        assert_eq!(found(usual), pair("Ann Example", "a@example.org"));
        let quoted = "[USER] Name = \" Ann \\\"A\\\" \" ; a note\n\
                      email = a@exam\\\nple.org  # b\r\n[user \"x\"]\nname = other\n";
        assert_eq!(found(quoted), pair(" Ann \"A\" ", "a@example.org"));
        let twice = "[user]\nname = a\nemail = x\n[user]\nname = b c  \n";
        assert_eq!(found(twice), pair("b c", "x"));
        for none in ["", "[user", "name = x\nemail = y\n", "[user]\nname\n", "[user]\n# name = x\n"]
        {
            assert_eq!(found(none), (None, None), "{none:?}");
        }
        // Not text, cut in the middle, and without an end.
        assert_eq!(
            git_identity_in(b"[user]\nname = \xff\xfe\\"),
            (Some("\u{fffd}\u{fffd}".into()), None)
        );
        assert_eq!(found("[user]\nname = \"a"), (Some("a".into()), None));
    }

    const BEFORE: &[u8] = b"[core]\n\trepositoryformatversion = 0\n\tbare = false\n[remote \"origin\"]\n\turl = https://example.com/x.git\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n";

    fn with(more: &str) -> bool {
        let after = [BEFORE, more.as_bytes()].concat();
        is_harmless(Some(BEFORE), &after)
    }

    #[test]
    fn branches_and_names_are_let_through() {
        assert!(with(""));
        assert!(with("[branch \"main\"]\n\tremote = origin\n\tmerge = refs/heads/main\n"));
        assert!(with("[branch \"main\"]\n\tremote = .\n\tmerge = refs/heads/main\n"));
        assert!(with("[branch \"a/b\"]\n\trebase = true\n\tdescription = what it is\n"));
        assert!(with("[user]\n\tname = Ann Agent\n\temail = ann@example.com\r\n"));
        assert!(with("# a note\n; another\n"));
        assert!(is_harmless(None, b"[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = true\n"));
    }

    #[test]
    fn whatever_may_execute_is_not() {
        for more in [
            "[core]\n\tfsmonitor = x\n",
            "[core]\n\tsshCommand = x\n",
            "[CORE]\n\tHooksPath = x\n",
            "[core] hooksPath = x\n",
            "[core]\n\tbare = true\n",
            "[core]\n\tworktree = /\n",
            "[alias]\n\tst = !x\n",
            "[include]\n\tpath = x\n",
            "[includeIf \"gitdir:/\"]\n\tpath = x\n",
            "[filter \"x\"]\n\tclean = x\n",
            "[remote \"origin\"]\n\turl = ext::sh -c x\n",
            "[branch \"main\"]\n\tremote = ext::sh\n",
            "[branch \"main\"]\n\tremote = -x\n",
            "[branch \"main\"]\n\tremote = backup\n",
            "[branch \"main\"]\n\tremote = Origin\n",
            "[branch \"main\"]\n\tremote = /tmp/x\n",
            "[branch \"main\"]\n\tmergeOptions = x\n",
            "[branch \"main\"]\n\tmerge = x\n",
            "[branch.main]\n\tremote = origin\n",
            "[user]\n\tsigningKey = x\n",
            "[user]\n\tname = a \\\n[core]\n\tfsmonitor = x\n",
            "[user]\n\tname = \"a\n[core]\n\tfsmonitor = x\n",
            "[branch \"x\\\"]\n\tremote = origin\n",
            "[user]\n\tname = a\u{b}b\n",
            "\u{feff}[user]\n\tname = a\n",
            "[user\n",
            "x = y",
            "[gpg]\n\tprogram\n",
        ] {
            assert!(!with(more), "{more:?}");
        }
        let removed = &BEFORE[..BEFORE.len() - 10];
        assert!(!is_harmless(Some(BEFORE), removed));
        assert!(!is_harmless(Some(BEFORE), &[BEFORE, b"\xff"].concat()));
        assert!(!is_harmless(None, BEFORE), "a remote is a choice of the operator's");
    }

    #[test]
    fn the_order_of_other_entries_counts() {
        let one = b"[core]\n\tpager = a\n\tpager = b\n";
        let other = b"[core]\n\tpager = b\n\tpager = a\n";
        assert!(is_harmless(Some(one), one));
        assert!(!is_harmless(Some(one), other));
    }
}
