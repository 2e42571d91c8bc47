use std::path::PathBuf;

use proptest::prelude::*;

use super::*;

const CONTROL: &[&str] = &[
    ".git",
    ".git/config",
    ".git/config.worktree",
    ".git/commondir",
    ".git/gitdir",
    ".git/hooks",
    ".git/remotes/backup",
    ".git/branches/backup",
    ".git/hooks/pre-commit",
    ".git/hooks/below/x",
    ".git/worktrees/one/config.worktree",
    ".git/worktrees/one/commondir",
    ".git/worktrees/one/gitdir",
    ".git/modules/lib/config",
    ".git/modules/lib/hooks/post-checkout",
    ".git/modules/a/b/modules/refs/config",
    ".git/modules/lib/worktrees/x/gitdir",
    ".envrc",
    ".vscode/tasks.json",
    ".vscode/settings.json",
    ".mcp.json",
    ".claude/settings.json",
    ".claude/settings.local.json",
    ".claude/settings.work.json",
    ".cursor/mcp.json",
    ".gemini/settings.json",
    ".codex/config.toml",
    ".idea/runConfigurations/evil.xml",
    ".bashrc",
    ".zshenv",
    ".config/fish/conf.d/x.fish",
    ".config/fish",
    "belljar.toml",
    "x.code-workspace",
];

const PROJECT: &[&str] = &[
    "package.json",
    "Makefile",
    "rules.mk",
    "conftest.py",
    "build.rs",
    ".cargo/config.toml",
    ".github/workflows/ci.yml",
    "Dockerfile",
    "Dockerfile.dev",
    "vite.config.ts",
    "docker-compose.prod.yml",
    ".husky/pre-commit",
    ".gitmodules",
    "CLAUDE.md",
    "AGENTS.md",
    ".claude/commands/x.md",
    ".git/rebase-merge/git-rebase-todo",
];

const NEITHER: &[&str] = &[
    "",
    "src/main.rs",
    "git/config",
    "config",
    "hooks/pre-commit",
    "settings.json",
    ".vscode/extensions.json",
    ".git/HEAD",
    ".git/hooks/pre-commit.sample",
    ".git/refs/heads/config",
    ".git/refs/heads/hooks/x",
    ".git/objects/ab/cdef",
    ".git/worktrees/one/HEAD",
    ".git/worktrees/one/refs/bisect/config",
    "x.git/config",
    ".gitignore",
    "make",
    "notes/envrc",
    ".config/fishing/x",
];

fn class(path: &str) -> Option<Class> {
    classify(Path::new(path)).map(|autorun| autorun.class)
}

#[test]
fn each_kind_is_known_at_any_depth() {
    for (paths, expected) in
        [(CONTROL, Some(Class::Control)), (PROJECT, Some(Class::Project)), (NEITHER, None)]
    {
        for path in paths {
            assert_eq!(class(path), expected, "{path}");
            assert_eq!(class(&format!("a/b c/{path}")), expected, "below: {path}");
        }
    }
}

#[test]
fn a_link_counts_for_what_lies_behind_it() {
    for path in
        [".vscode", ".claude", "a/.git", ".git/modules", ".git/modules/lib", ".git/x", ".config"]
    {
        let found = classify_link(Path::new(path)).map(|autorun| autorun.class);
        assert_eq!(found, Some(Class::Control), "{path}");
    }
    let github = classify_link(Path::new(".github")).map(|autorun| autorun.class);
    assert_eq!(github, Some(Class::Project));
    for path in ["src", "a/b", "modules", "node_modules"] {
        assert_eq!(classify_link(Path::new(path)), None, "{path}");
    }
}

#[test]
fn a_git_directory_of_any_name_has_the_same_entries() {
    for path in ["hooks", "hooks/post-checkout", "CONFIG", "config.worktree", "commondir"] {
        assert!(in_git_directory(Path::new(path)).is_some(), "{path}");
        let usual = Path::new(".git").join(path);
        assert_eq!(in_git_directory(Path::new(path)), classify(&usual), "{path}");
    }
    for path in ["HEAD", "refs/heads/config", "config/x", ""] {
        assert_eq!(in_git_directory(Path::new(path)), None, "{path}");
    }
}

#[test]
fn what_is_covered_where_missing_is_a_plain_path_to_a_control_file() {
    let covered: Vec<_> = covered_where_missing().collect();
    assert!(covered.contains(&Path::new(".envrc")) && covered.contains(&Path::new("belljar.toml")));
    for path in covered {
        assert_eq!(class(&path.to_string_lossy()), Some(Class::Control), "{}", path.display());
        assert!(!path.to_string_lossy().contains('*'), "{}", path.display());
    }
}

#[test]
fn no_rule_is_hidden_by_another_class() {
    for rule in RULES {
        let example = rule.pattern.replace("**/", "x/").replace("**", "x").replace('*', "x");
        assert_eq!(class(&example), Some(rule.class), "{example}");
    }
}

fn any_path() -> impl Strategy<Value = String> {
    let known = prop::sample::select([CONTROL, PROJECT, NEITHER].concat());
    let below = prop::collection::vec("[a-zA-Z.]{1,8}", 0..4);
    (below, known).prop_map(|(mut names, known)| {
        names.push(known.to_owned());
        names.join("/")
    })
}

#[test]
fn a_listing_tells_which_known_paths_can_exist() {
    type Listed = Result<OsString, ()>;
    let listed = |names: &[&str]| -> Vec<Listed> { names.iter().map(|it| Ok(it.into())).collect() };
    let all = known_at_top().count();
    assert!(known_in_listing(listed(&["src", "Cargo.toml"])).is_empty());
    let found = known_in_listing(listed(&["src", ".VSCODE", ".envrc"]));
    assert!(found.contains(&Path::new(".envrc")) && found.len() < 10, "{found:?}");
    assert!(found.iter().all(|path| path.starts_with(".envrc") || path.starts_with(".vscode")));
    assert!(found.iter().any(|path| path.starts_with(".vscode")), "{found:?}");
    // What is not known of the listing is looked for.
    assert_eq!(known_in_listing(listed(&["\u{17f}sh"])).len(), all);
    assert_eq!(known_in_listing([Listed::Err(())]).len(), all);
    let many: Vec<Listed> = (0..=MAX_LISTED).map(|at| Ok(at.to_string().into())).collect();
    assert_eq!(known_in_listing(many).len(), all);
}

proptest! {
    #[test]
    fn case_does_not_matter(path in any_path(), flips in prop::collection::vec(any::<bool>(), 64)) {
        let flipped: String = path
            .chars()
            .zip(flips.into_iter().cycle())
            .map(|(c, up)| if up { c.to_ascii_uppercase() } else { c.to_ascii_lowercase() })
            .collect();
        prop_assert_eq!(classify(Path::new(&path)), classify(Path::new(&flipped)));
    }

    #[test]
    fn a_git_directory_is_known_at_any_depth(
        above in prop::collection::vec("[a-z]{1,6}", 0..12),
        submodules in prop::collection::vec("[a-z]{1,6}(/[a-z]{1,6})?", 0..4),
        entry in prop::sample::select(vec!["config", "hooks/pre-push", "commondir", "gitdir"]),
    ) {
        let mut path: PathBuf = above.iter().collect();
        path.push(".git");
        for submodule in submodules {
            path.push("modules");
            path.push(submodule);
        }
        path.push(entry);
        prop_assert_eq!(classify(&path).map(|autorun| autorun.class), Some(Class::Control));
    }

    /// What is found fast is what going through the list finds.
    #[test]
    fn the_first_rule_that_fits_counts(path in any_path(), cut in 0usize..4, more in "[a-z.]{0,3}") {
        let shorter: String = path.chars().skip(cut).collect();
        for path in [format!("{path}{more}"), format!("{more}{path}"), shorter] {
            let names = names_of(Path::new(&path));
            let first = RULES.iter().find(|rule| matches(rule.pattern, &names)).map(Rule::autorun);
            let expected = first.filter(|_| !is_sample(&names));
            prop_assert_eq!(classify(Path::new(&path)), expected, "{}", path);
        }
    }

    #[test]
    fn any_bytes_are_taken(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let path = Path::new(OsStr::from_bytes(&bytes));
        let _ = classify(path);
        let _ = classify_link(path);
    }
}
