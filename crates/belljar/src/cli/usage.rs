//! Explains wrong usage: words of docker that belljar does not have, and a RUN that was left out.

use belljar::home::Home;
use belljar::spec::Hint;
use belljar::spec::hint::{DOCKER_COMMANDS, DOCKER_FLAGS, EXEC_USER};
use belljar::store::{self, RunInfo, Which};
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::report;

/// A better explanation than clap's, with what to do; `None` where clap's says it all.
pub(crate) struct Explanation {
    /// In place of clap's text, if there is one.
    pub(crate) error: Option<String>,
    pub(crate) hint: String,
}

pub(crate) fn explain(error: &clap::Error, words: &[String]) -> Option<Explanation> {
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let word = text(error, ContextKind::InvalidSubcommand)?;
            let known = DOCKER_COMMANDS.iter().find(|known| known.word == word)?;
            let error = format!("belljar has no command \"{word}\"");
            Some(Explanation { error: Some(error), hint: known.hint.to_owned() })
        }
        ErrorKind::UnknownArgument => {
            let flag = text(error, ContextKind::InvalidArg)?;
            let is_exec = words.first().is_some_and(|verb| verb == "exec");
            let hint = match is_exec && ["-u", "--user"].contains(&flag.as_str()) {
                true => EXEC_USER,
                false => DOCKER_FLAGS.iter().find(|known| known.word == flag)?.hint,
            };
            Some(Explanation {
                error: Some(format!("there is no flag {flag}")),
                hint: hint.to_owned(),
            })
        }
        ErrorKind::MissingRequiredArgument => {
            let missing = error.get(ContextKind::InvalidArg)?.to_string();
            let verb = words.iter().find(|word| !word.starts_with('-'))?;
            match missing.contains("<RUN>") || missing.contains("<FROM>") {
                true => Some(Explanation { error: None, hint: newest_hint(verb, "")? }),
                false if verb == "exec" && missing.contains("<COMMAND>") => {
                    let command = words.last().filter(|word| *word != verb)?;
                    let hint = newest_hint(verb, &format!(" {command}"))?;
                    Some(Explanation { error: None, hint })
                }
                false => None,
            }
        }
        _ => None,
    }
}

/// Prints wrong usage, or the help that was asked for.
pub(crate) fn print(error: &clap::Error) {
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into()).collect();
    let explanation = explain(error, &words);
    match explanation.as_ref().and_then(|explanation| explanation.error.as_ref()) {
        Some(text) => report::error_line(text),
        None => drop(error.print()), // a closed pipe must not change the exit code
    }
    if let Some(explanation) = &explanation {
        report::hint(&explanation.hint);
    }
}

/// Commands that work on live runs alone.
const FOR_LIVE_RUNS: &[&str] =
    &["attach", "checkpoint", "cp", "exec", "network", "port", "renew", "shell", "stop"];

/// Names the newest run that the command can be about, and the command with it. Creates nothing.
fn newest_hint(verb: &str, rest: &str) -> Option<String> {
    let newest = newest_run()?;
    let newest = match FOR_LIVE_RUNS.contains(&verb) {
        true => match newest_live_run() {
            Some(live) => live,
            None => return Some(Hint::NoLiveRun.to_string()),
        },
        false => newest,
    };
    let shown = newest.id.tail();
    let name = newest.name.as_deref().map(|name| belljar::spec::text::escape(name.as_bytes()));
    let name = name.map(|name| format!(", \"{name}\"")).unwrap_or_default();
    let rest = match (verb, rest) {
        ("exec", "") => " COMMAND",
        ("cp", _) => ":/workspace/file .",
        (_, rest) => rest,
    };
    let (command, shown) = (format!("{verb} {shown}{rest}"), format!("{shown}{name}"));
    Some(Hint::NewestRun { shown, command }.to_string())
}

/// The newest run of the home, if there is a home.
pub(crate) fn newest_run() -> Option<RunInfo> {
    let home = Home::open_existing(&crate::commands::environment())?.ok()?;
    store::newest(&home).ok()?
}

/// The newest run that is live.
pub(crate) fn newest_live_run() -> Option<RunInfo> {
    let home = Home::open_existing(&crate::commands::environment())?.ok()?;
    store::list(&home, Which::Live).ok()?.into_iter().next()
}

fn text(error: &clap::Error, kind: ContextKind) -> Option<String> {
    match error.get(kind)? {
        ContextValue::String(text) => Some(text.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(words: &[&str]) -> Option<Explanation> {
        let error = super::super::command()
            .try_get_matches_from(std::iter::once("belljar").chain(words.iter().copied()))
            .err()?;
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        explain(&error, &words)
    }

    #[test]
    fn a_word_of_docker_that_is_missing_names_the_command_of_belljar() {
        for known in DOCKER_COMMANDS {
            let found = explained(&[known.word, "web"]);
            let found = found.unwrap_or_else(|| panic!("{} is a command now", known.word));
            assert_eq!(found.hint, known.hint);
            assert!(found.error.is_some_and(|error| error.contains(known.word)));
        }
        for known in DOCKER_FLAGS {
            let found = explained(&["run", known.word, "true"]);
            let found = found.unwrap_or_else(|| panic!("{} is a flag now", known.word));
            assert_eq!(found.hint, known.hint);
        }
        assert_eq!(explained(&["exec", "-u", "0", "web", "id"]).unwrap().hint, EXEC_USER);
        assert!(explained(&["strat"]).is_none(), "clap suggests the similar command");
    }

    #[test]
    fn words_of_docker_that_mean_the_same_are_accepted() {
        let accepted: [&[&str]; 8] = [
            &["run", "--rm", "-it", "-u", "1000", "ls", "-l"],
            &["run", "--net", "none", "ls"],
            &["run", "-n", "ls"],
            &["exec", "-it", "web", "ls", "-l", "--color"],
            &["inspect", "web"],
            &["logs", "-n", "5", "web"],
            &["ls", "-a"],
            &["list"],
        ];
        for words in accepted {
            let all = std::iter::once("belljar").chain(words.iter().copied());
            let parsed = super::super::command().try_get_matches_from(all);
            assert!(parsed.is_ok(), "{words:?}: {}", parsed.unwrap_err());
        }
    }
}
