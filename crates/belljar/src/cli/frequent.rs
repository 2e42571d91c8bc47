//! Parses the commands that are called most, `run` and `exec`, without defining all the others, which costs a tenth of a
//! start; and answers `--version`, which scripts call to see whether there is a belljar.

use std::ffi::{OsStr, OsString};

use clap::{Args, FromArgMatches, Parser};

use super::{Arguments, DisplayArgs, Verb};

/// The arguments of one command.
#[derive(Parser)]
struct Frequent<T: Args> {
    #[command(flatten)]
    display: DisplayArgs,
    #[command(flatten)]
    args: T,
}

/// `None` where the whole definition is needed: for other commands, for options before the command, for help, and for
/// wrong usage, which it explains.
pub(super) fn parse(words: impl IntoIterator<Item = OsString>) -> Option<Arguments> {
    let words: Vec<OsString> = words.into_iter().skip(1).collect();
    match words.first().and_then(|word| word.to_str())? {
        "run" => of(&words).map(|(display, args)| with(display, Verb::Run(Box::new(args)))),
        "exec" => of(&words).map(|(display, args)| with(display, Verb::Exec(args))),
        _ => None,
    }
}

/// The answer to `--version` alone.
pub(super) fn version(words: impl IntoIterator<Item = OsString>) -> Option<clap::Error> {
    let words: Vec<OsString> = words.into_iter().collect();
    match &words[..] {
        [_, option] if option == "--version" || option == "-V" => {}
        _ => return None,
    }
    let command = clap::Command::new("belljar").version(env!("CARGO_PKG_VERSION"));
    command.try_get_matches_from(words).err()
}

fn of<T: Args>(words: &[impl AsRef<OsStr>]) -> Option<(DisplayArgs, T)> {
    let words = words.iter().map(|word| word.as_ref().to_owned());
    let matches = <Frequent<T> as clap::CommandFactory>::command().try_get_matches_from(words);
    let Frequent { display, args } = Frequent::from_arg_matches(&matches.ok()?).ok()?;
    Some((display, args))
}

fn with(display: DisplayArgs, verb: Verb) -> Arguments {
    Arguments { display, verbose: 0, verb }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn whole(words: &[&str]) -> Option<String> {
        let matches = Arguments::command().try_get_matches_from(words).ok()?;
        Arguments::from_arg_matches(&matches).ok().map(|arguments| format!("{arguments:?}"))
    }

    fn fast(words: &[&str]) -> Option<String> {
        parse(words.iter().map(OsString::from)).map(|arguments| format!("{arguments:?}"))
    }

    #[test]
    fn both_definitions_parse_alike() {
        for line in [
            "belljar run true",
            "belljar run -- ls --color",
            "belljar run --color never ls -la",
            "belljar run -q --no-config -m 2g -v /a:/b:rw -e A=1 -c limits.pids=none --name x -- sh -c id",
            "belljar run --agent claude --prompt hello --max-turns 3",
            "belljar run -d --keep --ttl 1h --allow-host a.example --secret env=A,host=b,header=c",
            "belljar exec box ls -la",
            "belljar exec -w sub -e A=1 --color always box -- sh -c 'exit 3'",
        ] {
            let words: Vec<&str> = line.split(' ').collect();
            assert!(fast(&words).is_some(), "{line}");
            assert_eq!(fast(&words), whole(&words), "{line}");
        }
    }

    #[test]
    fn the_version_is_that_of_the_whole_definition() {
        for words in [["belljar", "--version"], ["belljar", "-V"]] {
            let whole = Arguments::command().try_get_matches_from(words).unwrap_err();
            let fast = version(words.map(OsString::from)).unwrap();
            assert_eq!((fast.kind(), fast.to_string()), (whole.kind(), whole.to_string()));
        }
        for line in ["belljar", "belljar --help", "belljar --version x", "belljar run --version"] {
            assert!(version(line.split(' ').map(OsString::from)).is_none(), "{line}");
        }
    }

    #[test]
    fn everything_else_is_left_to_the_whole_definition() {
        for line in [
            "belljar",
            "belljar ps",
            "belljar -v run true",
            "belljar --color never run true",
            "belljar run --help",
            "belljar run --no-such-flag true",
            "belljar exec",
            "belljar help run",
        ] {
            assert_eq!(fast(&line.split(' ').collect::<Vec<_>>()), None, "{line}");
        }
    }
}
