//! Finds the inner command of wrappers such as `sudo` and `env`, and the script of a shell.

use super::word::Word;

/// A program that starts the command in its arguments.
struct Wrapper {
    name: &'static str,
    /// Short options whose value is the next argument.
    short: &'static str,
    /// Long options whose value is the next argument.
    long: &'static [&'static str],
    /// Operands before the command.
    operands: usize,
    /// Accepts `NAME=VALUE` before the command.
    assigns: bool,
}

const fn plain(name: &'static str) -> Wrapper {
    Wrapper { name, short: "", long: &[], operands: 0, assigns: false }
}

const WRAPPERS: &[Wrapper] = &[
    Wrapper { name: "env", short: "uC", long: &["--unset", "--chdir"], operands: 0, assigns: true },
    Wrapper {
        name: "sudo",
        short: "ugpChDRrTtU",
        long: &["--user", "--group", "--prompt", "--host", "--chdir", "--chroot"],
        operands: 0,
        assigns: true,
    },
    Wrapper { name: "doas", short: "uC", long: &[], operands: 0, assigns: false },
    Wrapper {
        name: "timeout",
        short: "ks",
        long: &["--kill-after", "--signal"],
        operands: 1,
        assigns: false,
    },
    Wrapper { name: "nice", short: "n", long: &["--adjustment"], operands: 0, assigns: false },
    Wrapper {
        name: "ionice",
        short: "cnpPu",
        long: &["--class", "--classdata"],
        operands: 0,
        assigns: false,
    },
    Wrapper {
        name: "stdbuf",
        short: "ioe",
        long: &["--input", "--output", "--error"],
        operands: 0,
        assigns: false,
    },
    Wrapper { name: "chroot", short: "", long: &[], operands: 1, assigns: false },
    Wrapper { name: "exec", short: "a", long: &[], operands: 0, assigns: false },
    Wrapper {
        name: "time",
        short: "fo",
        long: &["--format", "--output"],
        operands: 0,
        assigns: false,
    },
    Wrapper {
        name: "xargs",
        short: "IinPLlsdEea",
        long: &[
            "--replace",
            "--max-args",
            "--max-procs",
            "--max-lines",
            "--max-chars",
            "--delimiter",
            "--arg-file",
        ],
        operands: 0,
        assigns: false,
    },
    Wrapper {
        name: "flock",
        short: "wE",
        long: &["--timeout", "--wait", "--conflict-exit-code"],
        operands: 1,
        assigns: false,
    },
    Wrapper {
        name: "watch",
        short: "nq",
        long: &["--interval", "--equexit"],
        operands: 0,
        assigns: false,
    },
    Wrapper {
        name: "unshare",
        short: "SGRw",
        long: &[
            "--setuid",
            "--setgid",
            "--setgroups",
            "--propagation",
            "--root",
            "--wd",
            "--map-user",
            "--map-group",
            "--map-users",
            "--map-groups",
            "--monotonic",
            "--boottime",
        ],
        operands: 0,
        assigns: false,
    },
    Wrapper {
        name: "strace",
        short: "aAbeEIoOpPsSuUX",
        long: &["--output", "--trace", "--user", "--env", "--string-limit"],
        operands: 0,
        assigns: false,
    },
    Wrapper {
        name: "ltrace",
        short: "aAeDFlnopsuwx",
        long: &["--output"],
        operands: 0,
        assigns: false,
    },
    Wrapper { name: "taskset", short: "", long: &[], operands: 1, assigns: false },
    Wrapper {
        name: "chrt",
        short: "TPD",
        long: &["--sched-runtime", "--sched-period", "--sched-deadline"],
        operands: 1,
        assigns: false,
    },
    Wrapper {
        name: "setpriv",
        short: "",
        long: &[
            "--ruid",
            "--euid",
            "--reuid",
            "--rgid",
            "--egid",
            "--regid",
            "--groups",
            "--inh-caps",
            "--ambient-caps",
            "--bounding-set",
            "--securebits",
            "--pdeathsig",
            "--selinux-label",
            "--apparmor-profile",
            "--landlock-access",
            "--landlock-rule",
            "--seccomp-filter",
        ],
        operands: 0,
        assigns: false,
    },
    Wrapper {
        name: "runuser",
        short: "ugGsw",
        long: &["--user", "--group", "--supp-group", "--shell", "--whitelist-environment"],
        operands: 0,
        assigns: false,
    },
    Wrapper {
        name: "parallel",
        short: "jINSanLPsCdE",
        long: &[
            "--jobs",
            "--max-args",
            "--max-procs",
            "--max-lines",
            "--max-chars",
            "--sshlogin",
            "--arg-file",
            "--delay",
            "--timeout",
            "--joblog",
            "--results",
            "--tmpdir",
            "--workdir",
            "--colsep",
            "--load",
            "--memfree",
            "--retries",
            "--halt",
            "--env",
            "--tagstring",
        ],
        operands: 0,
        assigns: false,
    },
    plain("nohup"),
    plain("setsid"),
    plain("command"),
    plain("builtin"),
    plain("busybox"),
    plain("toybox"),
    plain("coproc"),
];

/// Inputs of `parallel`, each of which is judged.
const MAX_INPUTS: usize = 32;

const SHELLS: &[&str] = &["sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "rbash"];

/// The command or script in the arguments of a command.
pub(crate) enum Inner {
    Command(Vec<Word>),
    /// The text of a shell script.
    Script(Word),
    /// A shell that reads its script from standard input.
    FedShell,
}

pub(crate) fn inner(command: &[Word]) -> Option<Inner> {
    let (program, arguments) = command.split_first()?;
    let name = program.name();
    if SHELLS.contains(&name) {
        return shell(arguments);
    }
    match name {
        "eval" => return Some(Inner::Script(joined(arguments))),
        "trap" => return arguments.first().cloned().map(Inner::Script),
        "find" => return executed(arguments).map(Inner::Command),
        "env" => {
            if let Some(script) = split_string(arguments) {
                return Some(Inner::Script(script));
            }
        }
        "su" | "script" => return after_option(arguments, 'c').map(Inner::Script),
        "runuser" if !names_user(arguments) => {
            return after_option(arguments, 'c').map(Inner::Script);
        }
        _ => {}
    }
    let wrapper = WRAPPERS.iter().find(|wrapper| wrapper.name == name)?;
    let mut rest = wrapper.skip_options(arguments)?.to_vec();
    match name {
        "xargs" => rest.push(Word::unknown()), // what it reads
        "flock" if takes_script(arguments, &rest) => {
            return rest.into_iter().next().map(Inner::Script);
        }
        // watch joins its arguments and runs them in a shell.
        "watch" => return Some(Inner::Script(joined(&rest))),
        "parallel" => return Some(Inner::Script(with_inputs(&rest))),
        _ => {}
    }
    (!rest.is_empty()).then_some(Inner::Command(rest))
}

impl Wrapper {
    fn skip_options<'a>(&self, arguments: &'a [Word]) -> Option<&'a [Word]> {
        let (mut at, mut operands) = (0, self.operands);
        while let Some(word) = arguments.get(at) {
            let text = word.raw();
            let step = if text == "--" {
                1
            } else if text.starts_with("--") {
                1 + usize::from(self.long.contains(&text))
            } else if text.len() > 1 && text.starts_with('-') {
                1 + usize::from(
                    text.chars().last().is_some_and(|last| self.short.contains(last))
                        && text.len() == 2,
                )
            } else if self.assigns && is_assignment(text) {
                1
            } else if operands > 0 {
                operands -= 1;
                1
            } else {
                return arguments.get(at..);
            };
            at += step;
        }
        None
    }
}

fn is_assignment(text: &str) -> bool {
    text.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty() && name.chars().all(|one| one.is_ascii_alphanumeric() || one == '_')
    })
}

fn shell(arguments: &[Word]) -> Option<Inner> {
    let (mut at, mut takes_script, mut reads_input) = (0, false, false);
    while let Some(word) = arguments.get(at) {
        let text = word.raw();
        match text {
            "--" | "-" => {
                at += 1;
                break;
            }
            "--rcfile" | "--init-file" | "-o" | "+o" | "-O" | "+O" => at += 2,
            _ if text.starts_with("--") => at += 1,
            _ if text.len() > 1 && text.starts_with(['-', '+']) => {
                takes_script |= text.starts_with('-') && text.contains('c');
                reads_input |= text.contains('s');
                at += 1;
            }
            _ => break,
        }
    }
    match (takes_script, arguments.get(at)) {
        (true, Some(script)) => Some(Inner::Script(script.clone())),
        // The content of a script file is not known. A process substitution is like an unknown script.
        (false, Some(file)) if file.is_unknown() && file.raw().len() == 1 => {
            Some(Inner::Script(Word::unknown()))
        }
        (false, Some(_)) if !reads_input => None,
        (true, None) => None,
        (false, _) => Some(Inner::FedShell),
    }
}

/// `runuser -u USER COMMAND` starts a program; without `-u` it is like `su`.
fn names_user(arguments: &[Word]) -> bool {
    arguments.iter().any(|word| word.raw().starts_with("-u") || word.raw().starts_with("--user"))
}

/// `flock FILE -c SCRIPT`
fn takes_script(arguments: &[Word], rest: &[Word]) -> bool {
    let before = arguments.len().checked_sub(rest.len() + 1).and_then(|at| arguments.get(at));
    before.is_some_and(|word| matches!(word.raw(), "-c" | "--command"))
}

/// `parallel COMMAND ::: INPUTS` runs the command with each input; without a command the inputs are commands.
fn with_inputs(words: &[Word]) -> Word {
    let is_mark = |word: &Word| matches!(word.raw(), ":::" | "::::" | ":::+" | "::::+");
    let mut parts = words.split(is_mark);
    let command = joined(parts.next().unwrap_or_default());
    let inputs: Vec<&Word> = parts.flatten().collect();
    if inputs.is_empty() || inputs.len() > MAX_INPUTS {
        return joined(&[command, Word::unknown()]);
    }
    let mut all = Word::default();
    for input in inputs {
        all.append(&joined(&[command.clone(), input.clone()]));
        all.push("\n");
    }
    all
}

fn joined(words: &[Word]) -> Word {
    let mut all = Word::default();
    for (at, word) in words.iter().enumerate() {
        if at > 0 {
            all.push(" ");
        }
        all.append(word);
    }
    all
}

/// `find … -exec COMMAND ;`
fn executed(arguments: &[Word]) -> Option<Vec<Word>> {
    let begins = |word: &Word| matches!(word.raw(), "-exec" | "-execdir" | "-ok" | "-okdir");
    let at = arguments.iter().position(begins)?;
    let command = arguments[at + 1..].split(|word| matches!(word.raw(), ";" | "+")).next()?;
    let filled = |word: &Word| if word.raw() == "{}" { Word::unknown() } else { word.clone() };
    (!command.is_empty()).then(|| command.iter().map(filled).collect())
}

/// `env -S 'COMMAND …'`
fn split_string(arguments: &[Word]) -> Option<Word> {
    let is_option = |word: &&Word| word.raw().starts_with('-') || is_assignment(word.raw());
    let options = arguments.iter().take_while(is_option);
    for (at, word) in options.enumerate() {
        let text = word.raw();
        let attached = match text.strip_prefix("--split-string") {
            Some(rest) => rest.strip_prefix('=').unwrap_or(rest),
            None => match text.strip_prefix("-S") {
                Some(rest) => rest,
                None => continue,
            },
        };
        return match attached {
            "" => arguments.get(at + 1).cloned(),
            _ if word.is_unknown() => Some(Word::unknown()),
            script => Some(Word::known(script)),
        };
    }
    None
}

/// The value of `-c` (alone or last in a group of letters) or `--command`, attached or in the next argument.
fn after_option(arguments: &[Word], letter: char) -> Option<Word> {
    let attached = |word: &Word| {
        if let Some(rest) = word.raw().strip_prefix("--command") {
            return rest.strip_prefix('=').or(rest.is_empty().then_some("")).map(str::to_owned);
        }
        let (letters, rest) = word.raw().strip_prefix('-')?.split_once(letter)?;
        letters.chars().all(|one| one.is_ascii_alphabetic()).then(|| rest.to_owned())
    };
    let (at, attached) =
        arguments.iter().enumerate().find_map(|(at, word)| Some((at, attached(word)?)))?;
    match attached.as_str() {
        "" => arguments.get(at + 1).cloned(),
        _ if arguments[at].is_unknown() => Some(Word::unknown()),
        script => Some(Word::known(script)),
    }
}
