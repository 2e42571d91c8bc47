//! The flags of `run` that set a manifest key, one row each: name, value, key, parser and help.
//!
//! The command line builds its arguments from these rows, and the layers of settings come from them too. The order
//! is that of `--help`.

use std::ffi::OsStr;

use belljar_spec::Manifest;

use super::values::*;
use FlagParser::{Key, Many, Once};
use Parse::{Bytes, Text};

/// One flag of `run` that sets a key of the manifest.
#[derive(Debug)]
pub struct Flag {
    /// With its dashes, as origins and errors show it.
    pub name: &'static str,
    pub short: Option<char>,
    /// What `--help` calls the value. Empty for a flag without one, which sets its key to `true`.
    pub value_name: &'static str,
    /// Where `--help` lists it; the general options have no heading.
    pub heading: Option<&'static str>,
    pub help: &'static str,
    /// The manifest key that it sets or adds to, from the outermost table.
    pub(super) key: &'static [&'static str],
    pub(super) parser: FlagParser,
    /// The arguments that it excludes, by their ids.
    pub conflicts: &'static [&'static str],
}

/// How the values of a flag become a layer.
#[derive(Clone, Copy, Debug)]
pub(super) enum FlagParser {
    /// One value, read as the manifest reads the key.
    Key,
    Once(Parse),
    /// Any number of values, which go into the same layer.
    Many(Parse),
}

/// Adds one value to a layer. The error says why it cannot be used.
#[derive(Clone, Copy, Debug)]
pub(super) enum Parse {
    Text(fn(&mut Manifest, &str) -> Result<(), String>),
    /// For paths and variables, which need not be UTF-8.
    Bytes(fn(&mut Manifest, &OsStr) -> Result<(), String>),
}

impl Flag {
    /// The flag with this name, such as `--memory`.
    pub fn named(name: &str) -> Option<&'static Self> {
        FLAGS.iter().find(|flag| flag.name == name)
    }

    /// The name without its dashes.
    pub fn id(&self) -> &'static str {
        self.name.trim_start_matches('-')
    }

    /// Whether it can be given more than once.
    pub fn is_repeatable(&self) -> bool {
        matches!(self.parser, FlagParser::Many(_))
    }

    /// Whether it has no value and sets its key to `true`.
    pub fn is_switch(&self) -> bool {
        self.value_name.is_empty()
    }

    /// Whether its values must be UTF-8.
    pub fn is_text(&self) -> bool {
        match self.parser {
            FlagParser::Key => true,
            FlagParser::Once(parse) | FlagParser::Many(parse) => matches!(parse, Parse::Text(_)),
        }
    }

    /// The manifest key that it sets or adds to, such as `limits.memory`.
    pub fn key(&self) -> String {
        self.keys().join(".")
    }

    /// The keys of the manifest down to the one that it sets.
    pub(super) fn keys(&self) -> Vec<String> {
        self.key.iter().map(|part| part.trim_start_matches("r#").to_owned()).collect()
    }
}

macro_rules! flags {
    (@short) => { None };
    (@short $short:literal) => { Some($short) };
    ($($heading:expr => {$(
        $name:literal $(| $short:literal)? $value:literal, $($key:ident).+, $parser:expr, $help:literal
        $(, not with $($other:literal),+)?;
    )*})*) => {
        /// In the order of `--help`. A later one is the higher layer.
        pub const FLAGS: &[Flag] = &[$($(
            Flag {
                name: $name,
                short: flags!(@short $($short)?),
                value_name: $value,
                heading: $heading,
                help: $help,
                key: {
                    // A key that the manifest does not have is an error of the compiler.
                    let _: fn(&Manifest) = |values| { let _ = &values.$($key).+; };
                    &[$(stringify!($key)),+]
                },
                parser: $parser,
                conflicts: &[$($($other),+)?],
            },
        )*)*];
    };
}

flags! {
    Some("Boundary") => {
        "--backend" "NAME", sandbox.backend, Key,
            "The backend: auto, jail, docker, podman, or host (no isolation)";
        "--rootfs" "DIR", sandbox.rootfs, Once(Bytes(rootfs)),
            "The root file system: \"host\", or a directory";
        "--image" "IMAGE", sandbox.image, Key,
            "The image that the sandbox starts from";
        "--pull" "WHEN", sandbox.pull, Key,
            "When the image is pulled: missing, always or never";
        "--entrypoint" "PROGRAM", sandbox.entrypoint, Once(Bytes(entrypoint)),
            "The program before the command, in place of the image's; \"\" for none";
        "--oci-runtime" "NAME", sandbox.oci_runtime, Key,
            "The engine's runtime, such as runsc (gVisor)";
        "--user" | 'u' "UID[:GID]", sandbox.user, Key,
            "The uid[:gid] inside; not 0";
        "--require" "CLAUSE", policy.require, Many(Text(require)),
            "Refuse to start unless this clause is enforced";
        "--waive" "CLAUSE=REASON", policy.waive, Many(Text(waive)),
            "Start even if this clause is not enforced; the reason is recorded";
        "--trace-denied" "", sandbox.trace_denied, Key,
            "Record system calls that the filter refuses, for belljar why";
    }
    Some("Agent") => {
        "--agent" "KIND", agent.kind, Key,
            "Run this agent instead of a command: claude, codex, gemini, or the manifest's \"command\"",
            not with "command";
        "--prompt" "TEXT", agent.prompt, Key,
            "The agent's prompt";
        "--prompt-file" "FILE", agent.prompt_file, Once(Bytes(prompt_file)),
            "A file with the agent's prompt",
            not with "prompt";
        "--model" "NAME", agent.model, Key,
            "The agent's model";
        "--permissions" "MODE", agent.permissions, Key,
            "What the agent may do without asking: bypass, accept-edits or ask";
        "--max-iterations" "N", r#loop.max_iterations, Key,
            "Run the agent in a loop of at most N iterations; 0 only sets it up";
        "--max-turns" "N", r#loop.max_turns, Key,
            "Stop the agent after N turns in total";
        "--max-cost-usd" "USD", r#loop.max_cost_usd, Key,
            "Stop the agent when it has reported this total cost";
        "--max-tokens" "N", r#loop.max_tokens, Key,
            "Stop the agent after N tokens in total, input and output";
    }
    Some("Files") => {
        "--workspace" "DIR[:ro|rw|overlay]", sandbox.workspace, Once(Bytes(workspace)),
            "The directory to work in, or \"none\" [default: the current one, rw; overlay for an agent]";
        "--volume" | 'v' "SRC:DST[:ro|rw|overlay]", sandbox.mounts, Many(Bytes(volume)),
            "Mount a file or directory, read-only unless :rw is given";
        "--mount" "SPEC", sandbox.mounts, Many(Bytes(mount)),
            "Mount in long form: type=bind,src=,dst=,rw or type=tmpfs,dst=,size=";
        "--tmpfs" "DST[:size=N]", sandbox.tmpfs, Many(Bytes(tmpfs)),
            "Mount a file system in memory";
        "--tool" "DIR", sandbox.tools, Many(Bytes(tool)),
            "Mount an install prefix read-only at the same path, and add its bin to PATH";
        "--allow-source" "PATH", sandbox.allow_source, Many(Bytes(allow_source)),
            "Allow a mount of this sensitive path";
        "--hide" "NAME", sandbox.hide, Many(Bytes(hide)),
            "Hide this file of the workspace";
        "--allow-control" "NAME", sandbox.allow_control, Many(Bytes(allow_control)),
            "Let the run write this file even though the host executes it later (.git/config)";
        "--workdir" | 'w' "DIR", sandbox.workdir, Once(Bytes(workdir)),
            "The command's working directory";
    }
    Some("Network") => {
        "--network" "NAME", network.allow, Once(Text(network)),
            "Only \"none\", the default; use --allow-host to open one host";
        "--allow-host" "HOST[:PORT]", network.allow, Many(Text(allow_host)),
            "Allow this host: a name, *.suffix or *; ports 80 and 443 unless a port is given";
        "--secret" "env=NAME,host=HOST,header=NAME", secret, Many(Text(secret)),
            "Add a secret to requests to this host; the run sees only a placeholder";
        "--publish" | 'p' "[[ADDR:]PORT:]PORT", network.publish, Many(Text(publish)),
            "Publish a port of the run, on the host's loopback unless an address is given";
    }
    Some("Limits") => {
        "--memory" | 'm' "SIZE", limits.memory, Key,
            "Memory for the whole run, swap included (512m, 2g)";
        "--cpus" "N", limits.cpus, Key,
            "Processors (1.5)";
        "--pids-limit" "N", limits.pids, Key,
            "Number of processes and threads";
        "--disk" "SIZE", limits.disk, Key,
            "Bytes that the run may write to disk";
        "--timeout" "DURATION", limits.time, Key,
            "Stop the run after this time (90s, 4h; a bare number is seconds)";
        "--idle" "DURATION", limits.idle, Key,
            "Stop the run after this long without output; an agent, without an event";
        "--stop-timeout" "DURATION", limits.stop_timeout, Key,
            "Time between TERM and KILL when the run is stopped";
    }
    Some("Environment") => {
        "--env" | 'e' "NAME[=VALUE]", sandbox.env, Many(Bytes(env)),
            "Set a variable, or pass the host's value";
        "--env-file" "FILE", sandbox.env_file, Many(Bytes(env_file)),
            "Read variables from a file";
        "--pass-env" "NAME", sandbox.pass_env, Many(Bytes(pass_env)),
            "Pass the host's variable";
    }
    None => {
        "--name" "NAME", sandbox.name, Key,
            "The run's name";
        "--label" | 'l' "KEY=VALUE", sandbox.labels, Many(Text(label)),
            "Add a label to the run";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flag_sets_its_key() {
        let known = Manifest::keys();
        for (at, flag) in FLAGS.iter().enumerate() {
            let key = flag.key();
            let is_table = known.iter().any(|known| known.starts_with(&format!("{key}.")));
            assert!(known.contains(&key) || is_table, "{}: {key}", flag.name);
            assert!(FLAGS[..at].iter().all(|other| other.name != flag.name), "{} twice", flag.name);
            assert!(flag.name.starts_with("--") && !flag.help.ends_with('.'), "{}", flag.name);
        }
    }
}
