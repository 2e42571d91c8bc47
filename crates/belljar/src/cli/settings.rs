//! The flags of `run` that set a key of the manifest, as arguments of the command line.
//!
//! Their names, values and help are rows of [`FLAGS`]; there is nothing to add here for a new one.

use std::ffi::OsString;

use belljar::config::{FLAGS, Flag, GivenFlags};
use clap::builder::ValueParser;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

#[derive(Clone, Debug, Default)]
pub(crate) struct SettingArgs(pub(crate) GivenFlags);

impl Args for SettingArgs {
    fn augment_args(command: Command) -> Command {
        command.args(FLAGS.iter().map(arg))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SettingArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut given = GivenFlags::default();
        for flag in FLAGS {
            given.add(flag, values(flag, matches));
        }
        Ok(Self(given))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn arg(flag: &Flag) -> Arg {
    let mut arg = Arg::new(flag.id())
        .long(flag.id())
        .value_name(flag.value_name)
        .help(flag.help)
        .action(if flag.is_repeatable() { ArgAction::Append } else { ArgAction::Set })
        .conflicts_with_all(flag.conflicts);
    if flag.is_text() {
        arg = arg.value_parser(ValueParser::string());
    } else {
        arg = arg.value_parser(ValueParser::os_string());
    }
    if flag.is_switch() {
        arg = arg.num_args(0).default_missing_value("true");
    }
    if flag.name == "--network" {
        arg = arg.alias("net"); // as docker
    }
    if let Some(short) = flag.short {
        arg = arg.short(short);
    }
    if let Some(heading) = flag.heading {
        arg = arg.help_heading(heading);
    }
    arg
}

fn values(flag: &Flag, matches: &ArgMatches) -> Vec<OsString> {
    if flag.is_text() {
        let texts = matches.get_many::<String>(flag.id()).into_iter().flatten();
        texts.map(OsString::from).collect()
    } else {
        matches.get_many::<OsString>(flag.id()).into_iter().flatten().cloned().collect()
    }
}
