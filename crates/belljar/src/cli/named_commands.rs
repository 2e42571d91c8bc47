//! Test: every flag that a message, a hint or a page gives to a command of belljar exists.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// How far after a command its flags are looked for.
const MAX_WORDS: usize = 12;
/// Of commands that an example runs inside.
const FLAGS_OF_OTHERS: [&str; 1] = ["--version"];

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() && !path.ends_with("tests") {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The string literals of a file, without its tests, with continued lines joined.
fn literals(source: &str) -> Vec<String> {
    let source = source.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let (mut all, mut current, mut chars) = (Vec::new(), None::<String>, source.chars().peekable());
    while let Some(c) = chars.next() {
        match (&mut current, c) {
            (Some(text), '\\') => match chars.next() {
                Some('\n') => while chars.next_if(|c| c.is_whitespace()).is_some() {},
                Some('n') => text.push('\n'),
                Some(other) => text.push(other),
                None => {}
            },
            (Some(_), '"') => all.extend(current.take()),
            (Some(text), c) => text.push(c),
            (None, '\'') if chars.peek() == Some(&'"') => drop(chars.next()),
            (None, '/') if chars.peek() == Some(&'/') => {
                while chars.next_if(|c| *c != '\n').is_some() {}
            }
            (None, '"') => current = Some(String::new()),
            (None, _) => {}
        }
    }
    all
}

/// The flags of a command, its own and the global ones.
fn flags(command: &clap::Command) -> BTreeSet<String> {
    let long = |arg: &clap::Arg| {
        let mut names: Vec<&str> = arg.get_long().into_iter().collect();
        names.extend(arg.get_all_aliases().into_iter().flatten());
        names.into_iter().map(|name| format!("--{name}")).collect::<Vec<_>>()
    };
    let short = |arg: &clap::Arg| {
        let mut names: Vec<char> = arg.get_short().into_iter().collect();
        names.extend(arg.get_all_short_aliases().into_iter().flatten());
        names.into_iter().map(|name| format!("-{name}")).collect::<Vec<_>>()
    };
    command.get_arguments().flat_map(|arg| [long(arg), short(arg)].concat()).collect()
}

/// The flags that a text gives to commands of belljar, and that these do not have.
fn unknown(command: &clap::Command, text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    for part in text.split("belljar ").skip(1) {
        let part = part.split([';', ',', ')', '`', '"', '\n', '|', '…']).next().unwrap_or_default();
        let mut words = part.split(' ').take(MAX_WORDS);
        let Some(verb) = words.next().and_then(|verb| command.find_subcommand(verb)) else {
            continue; // prose
        };
        let known = flags(verb);
        let below: BTreeSet<String> = verb.get_subcommands().flat_map(flags).collect();
        for word in words {
            let word = word.split('=').next().unwrap_or_default().trim_end_matches(['.', ':']);
            let is_flag =
                word.starts_with("--") && word.len() > 2 && !FLAGS_OF_OTHERS.contains(&word);
            if is_flag && !known.contains(word) && !below.contains(word) {
                wrong.push(format!("belljar {}: {word}", verb.get_name()));
            }
            // What follows belongs to a command that is run inside.
            if ["COMMAND", "--"].contains(&word) {
                break;
            }
        }
    }
    wrong
}

#[test]
fn every_flag_that_a_message_or_a_page_gives_to_a_command_exists() {
    let mut command = super::command();
    command.build();
    let unknown = |text: &str| unknown(&command, text);
    let mut files = Vec::new();
    for entry in fs::read_dir(crates()).unwrap().flatten() {
        sources(&entry.path().join("src"), &mut files);
    }
    files.retain(|file| !file.ends_with("cli/named_commands.rs"));
    let mut texts: Vec<(PathBuf, String)> = Vec::new();
    for file in files {
        let all = literals(&fs::read_to_string(&file).unwrap());
        texts.extend(all.into_iter().map(|text| (file.clone(), text)));
    }
    let pages = fs::read_dir(crates().join("../docs")).unwrap().flatten().map(|page| page.path());
    for page in pages.chain([crates().join("../README.md")]) {
        if page.extension().is_some_and(|extension| extension == "md") {
            texts.push((page.clone(), fs::read_to_string(&page).unwrap()));
        }
    }
    let (mut named, mut wrong) = (0, Vec::new());
    for (file, text) in &texts {
        named += text.matches("belljar ").count();
        let found = unknown(text).into_iter();
        wrong.extend(found.map(|one| format!("{}: {one}", file.display())));
    }
    assert!(named > 400, "only {named} texts were found");
    assert_eq!(wrong, Vec::<String>::new());
    // The control.
    assert_eq!(unknown("x; belljar run --nosuch COMMAND --other"), ["belljar run: --nosuch"]);
    assert_eq!(unknown("belljar image build --nosuch"), ["belljar image: --nosuch"]);
}
