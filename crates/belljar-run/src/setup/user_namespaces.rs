//! Kernel settings that switch user namespaces off.

use std::path::PathBuf;

use super::{Change, Finding, Machine, Needed, SetupError};

/// After the distribution's own settings, which have smaller numbers.
const FILE: &str = "/etc/sysctl.d/90-belljar.conf";

/// The name, its file, and the value that allows them.
const SETTINGS: [(&str, &str, &str); 2] = [
    ("user.max_user_namespaces", "/proc/sys/user/max_user_namespaces", "15000"),
    ("kernel.unprivileged_userns_clone", "/proc/sys/kernel/unprivileged_userns_clone", "1"),
];

pub(super) fn check(machine: &Machine) -> Result<Finding, SetupError> {
    let is_off = |(_, path, _): &&(&str, &str, &str)| machine.setting(path).as_deref() == Some("0");
    let off: Vec<_> = SETTINGS.iter().filter(is_off).collect();
    if off.is_empty() {
        return Ok(Finding::Ready("the kernel's settings allow them".to_owned()));
    }
    let content: String =
        off.iter().map(|(name, _, value)| format!("{name} = {value}\n")).collect();
    let before = machine.read(FILE)?;
    if let Some(found) = &before
        && *found != content
        && !machine.journal.has_file(FILE.as_ref(), found)
    {
        let what = format!("{FILE} has another content, and is not changed");
        return Ok(Finding::Blocked(what));
    }
    let mut changes = vec![Change::File { path: FILE.into(), content, replaces: before }];
    changes.extend(off.iter().map(|(_, path, value)| Change::Setting {
        path: PathBuf::from(path),
        value: (*value).to_owned(),
        before: Some("0".to_owned()),
    }));
    let names: Vec<&str> = off.iter().map(|(name, ..)| *name).collect();
    let what = format!("switched off: {} = 0", names.join(" = 0, "));
    let note = "this allows them to every user and program of the machine".to_owned();
    Ok(Finding::Needed(Needed { what, changes, note: Some(note) }))
}
