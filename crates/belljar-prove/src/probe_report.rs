//! The report of a probe: one line of JSON with every attempt and the kernel's result.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::file_identity::FileIdentity;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AttemptResult {
    Succeeded,
    Errno(i32),
    /// It could be opened, but is `/dev/null` or an empty directory.
    Masked,
    /// The attempt killed its process.
    Killed(i32),
}

impl AttemptResult {
    pub(crate) fn of(outcome: Result<(), Errno>) -> Self {
        match outcome {
            Ok(()) => Self::Succeeded,
            Err(error) => Self::Errno(error.raw_os_error()),
        }
    }

    pub(crate) fn is(self, errno: Errno) -> bool {
        self == Self::Errno(errno.raw_os_error())
    }
}

impl fmt::Display for AttemptResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Succeeded => f.write_str("succeeded"),
            Self::Errno(raw) => f.write_str(&errno_name(*raw)),
            Self::Masked => f.write_str("masked"),
            Self::Killed(signal) => write!(f, "killed by signal {signal}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Attempt {
    pub(crate) what: String,
    pub(crate) answer: AttemptResult,
}

/// The results of one probe.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProbeReport {
    pub(crate) tries: Vec<Attempt>,
    #[serde(default)]
    pub(crate) facts: BTreeMap<String, String>,
    /// The files and directories that it could see, by path.
    #[serde(default)]
    pub(crate) marks: BTreeMap<String, FileIdentity>,
}

impl ProbeReport {
    pub(crate) fn tried(&mut self, what: impl Into<String>, outcome: Result<(), Errno>) {
        self.answered(what, AttemptResult::of(outcome));
    }

    pub(crate) fn answered(&mut self, what: impl Into<String>, answer: AttemptResult) {
        self.tries.push(Attempt { what: what.into(), answer });
    }

    pub(crate) fn fact(&mut self, name: &str, value: impl ToString) {
        self.facts.insert(name.to_owned(), value.to_string());
    }

    /// Notes the identity of the file at this path.
    pub(crate) fn met(&mut self, path: &Path) {
        if let Some(mark) = FileIdentity::of(path) {
            self.marks.insert(path.to_string_lossy().into_owned(), mark);
        }
    }

    pub(crate) fn get(&self, name: &str) -> &str {
        self.facts.get(name).map_or("", String::as_str)
    }

    pub(crate) fn number(&self, name: &str) -> u64 {
        self.get(name).parse().unwrap_or(0)
    }

    pub(crate) fn answer(&self, what: &str) -> Option<AttemptResult> {
        self.tries.iter().find(|tried| tried.what == what).map(|tried| tried.answer)
    }

    pub(crate) fn successes(&self) -> usize {
        self.tries.iter().filter(|tried| tried.answer == AttemptResult::Succeeded).count()
    }
}

/// The name of an error, as in the manual pages.
pub(crate) fn errno_name(raw: i32) -> String {
    let name = match raw {
        libc::EPERM => "EPERM",
        libc::ENOENT => "ENOENT",
        libc::ESRCH => "ESRCH",
        libc::EIO => "EIO",
        libc::ENXIO => "ENXIO",
        libc::EBADF => "EBADF",
        libc::EAGAIN => "EAGAIN",
        libc::ENOMEM => "ENOMEM",
        libc::EACCES => "EACCES",
        libc::EFAULT => "EFAULT",
        libc::EBUSY => "EBUSY",
        libc::EEXIST => "EEXIST",
        libc::EXDEV => "EXDEV",
        libc::ENODEV => "ENODEV",
        libc::ENOTDIR => "ENOTDIR",
        libc::EISDIR => "EISDIR",
        libc::EINVAL => "EINVAL",
        libc::EMFILE => "EMFILE",
        libc::ENOTTY => "ENOTTY",
        libc::ENOSPC => "ENOSPC",
        libc::ESPIPE => "ESPIPE",
        libc::EROFS => "EROFS",
        libc::ENOSYS => "ENOSYS",
        libc::ELOOP => "ELOOP",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        libc::EAFNOSUPPORT => "EAFNOSUPPORT",
        libc::EPROTONOSUPPORT => "EPROTONOSUPPORT",
        libc::ENETUNREACH => "ENETUNREACH",
        libc::EHOSTUNREACH => "EHOSTUNREACH",
        libc::ECONNREFUSED => "ECONNREFUSED",
        libc::ETIMEDOUT => "ETIMEDOUT",
        libc::ENOKEY => "ENOKEY",
        libc::ENOPROTOOPT => "ENOPROTOOPT",
        libc::ESOCKTNOSUPPORT => "ESOCKTNOSUPPORT",
        libc::ETOOMANYREFS => "ETOOMANYREFS",
        _ => return format!("errno {raw}"),
    };
    name.to_owned()
}
