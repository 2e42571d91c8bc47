//! When, where and with which source something was measured.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::{command, host};

/// Before anything was measured.
pub(super) struct Conditions {
    day: Option<String>,
    kernel: String,
    processors: usize,
    /// The load averages of the last minutes.
    load: Option<String>,
    commit: Option<String>,
}

impl Conditions {
    pub(super) fn look() -> Self {
        let kernel = rustix::system::uname();
        Self {
            day: first_line(Command::new("date").args(["-u", "+%F"])),
            kernel: kernel.release().to_string_lossy().into_owned(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            load: load(),
            commit: commit(),
        }
    }

    pub(super) fn text(&self) -> String {
        let known = |value: &Option<String>| value.as_deref().unwrap_or("not known").to_owned();
        let Self { kernel, processors, .. } = self;
        format!(
            "{}, Linux {kernel}, {processors} processors, commit {}, load before it began {}\n\
             compare ratios, which were taken in the same minutes; times and rates are this machine's,\n\
             and a machine that is busy (a load near or above {processors}) has no good p99\n",
            known(&self.day),
            known(&self.commit),
            known(&self.load),
        )
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "day": self.day, "kernel": self.kernel, "processors": self.processors,
            "load_before": self.load, "commit": self.commit,
        })
    }
}

fn load() -> Option<String> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    Some(text.split_whitespace().take(3).collect::<Vec<_>>().join(" "))
}

/// With a mark, if the checkout has changes; nothing outside a checkout.
fn commit() -> Option<String> {
    let workspace = host::workspace().ok()?;
    let git = |words: &[&str]| {
        let mut git = Command::new("git");
        git.arg("-C").arg(&workspace).args(words);
        command::read(&mut git).ok()
    };
    let mut commit = git(&["rev-parse", "--short=12", "HEAD"])?.trim().to_owned();
    if !git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty() {
        commit.push_str(" with changes");
    }
    Some(commit)
}

fn first_line(command: &mut Command) -> Option<String> {
    Some(command::read(command).ok()?.lines().next()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_named() {
        let text = Conditions::look().text();
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        assert!(text.contains(kernel.trim()), "{text}");
        assert!(text.starts_with("20"), "{text}");
    }
}
