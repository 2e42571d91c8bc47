//! The AppArmor profile that lets belljar make user namespaces.
//!
//! Ubuntu 23.10 and later let an ordinary user's program make one, and then refuse everything in it, unless a profile for
//! the program's path allows `userns`.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::{Change, Finding, Machine, Needed, SetupError};

const RESTRICTED: &str = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns";
const FILE: &str = "/etc/apparmor.d/belljar";
const PARSERS: [&str; 2] = ["/usr/sbin/apparmor_parser", "/sbin/apparmor_parser"];

pub(super) fn check(machine: &Machine) -> Result<Finding, SetupError> {
    if machine.setting(RESTRICTED).is_none_or(|value| value == "0") {
        let what = "AppArmor does not restrict user namespaces on this machine".to_owned();
        return Ok(Finding::NotNeeded(what));
    }
    let executable = machine.executable.display();
    let Some(content) = profile(&machine.executable) else {
        let what = format!(
            "a profile cannot name the path {executable}; install belljar as /usr/local/bin/belljar"
        );
        return Ok(Finding::Blocked(what));
    };
    let Some(parser) = machine.program(&PARSERS) else {
        let what = "apparmor_parser is missing; install the package apparmor".to_owned();
        return Ok(Finding::Blocked(what));
    };
    let found = machine.read(FILE)?;
    if found.as_ref() == Some(&content) {
        return Ok(Finding::Ready(format!("{FILE} allows them to {executable}")));
    }
    if let Some(found) =
        found.as_ref().filter(|found| !machine.journal.has_file(FILE.as_ref(), found))
    {
        let allows =
            found.contains("userns") && found.contains(&*machine.executable.to_string_lossy());
        return Ok(match allows {
            true => Finding::Ready(format!("{FILE} names {executable} and userns")),
            false => Finding::Blocked(format!(
                "{FILE} is there with another content, and is not changed; rename it first"
            )),
        });
    }
    let load =
        |option: &str| vec![parser.display().to_string(), option.to_owned(), FILE.to_owned()];
    let changes = vec![
        Change::File { path: FILE.into(), content, replaces: found },
        Change::RunOnUndo { command: load("--remove") },
        Change::Run { command: load("--replace") },
    ];
    let what = format!("AppArmor refuses them to {executable}, which has no profile");
    Ok(Finding::Needed(Needed { what, changes, note: replaceable(machine) }))
}

/// The profile for the executable at this path. `None` where a profile cannot name the path as it is.
pub fn profile(executable: &Path) -> Option<String> {
    let path = executable.to_str().filter(|path| path.starts_with('/'))?;
    let is_special = |c: char| c.is_control() || "\"\\*?[]{}^@,#".contains(c);
    if path.contains(is_special) {
        return None;
    }
    Some(format!(
        "# Made by \"belljar setup\": lets belljar make user namespaces, and restricts nothing.\n\
         abi <abi/4.0>,\n\
         include <tunables/global>\n\
         \n\
         profile belljar \"{path}\" flags=(unconfined) {{\n\
         \x20 userns,\n\
         \n\
         \x20 include if exists <local/belljar>\n\
         }}\n"
    ))
}

/// A program that somebody else can replace takes the profile's right with it.
fn replaceable(machine: &Machine) -> Option<String> {
    let by_others = |path: &&Path| {
        std::fs::metadata(machine.path(path)).is_ok_and(|found| {
            let sticky = found.is_dir() && found.mode() & 0o1000 != 0;
            found.uid() != 0 || (found.mode() & 0o022 != 0 && !sticky)
        })
    };
    let open = machine.executable.ancestors().find(by_others)?;
    Some(format!(
        "{} can be changed by others than root: whoever replaces the executable gets user namespaces too; \
         /usr/local/bin is a better place",
        open.display()
    ))
}
