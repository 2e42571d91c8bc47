//! How much memory processes hold.

use std::fs;

use anyhow::{Context, Result};

use super::outcome::{Figure, figure};

/// Of several processes together, in KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    /// A page that N processes share counts as a page in N parts.
    pub(crate) proportional: u64,
    private: u64,
    resident: u64,
    processes: u64,
}

impl Memory {
    pub(crate) fn of(processes: &[u32]) -> Result<Self> {
        let mut all = Self::default();
        for pid in processes {
            let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))
                .with_context(|| format!("cannot read the memory of process {pid}"))?;
            let kib = |key| kib(&rollup, key).unwrap_or(0);
            all.proportional += kib("Pss:");
            all.private += kib("Private_Clean:") + kib("Private_Dirty:");
            all.resident += kib("Rss:");
            all.processes += 1;
        }
        Ok(all)
    }

    /// For one of `count` that have all of it.
    pub(crate) fn each(&self, count: usize) -> Vec<Figure> {
        let each = |total: u64| total as f64 / count as f64;
        vec![
            figure("PSS", each(self.proportional), "KiB"),
            figure("private", each(self.private), "KiB"),
            figure("RSS", each(self.resident), "KiB"),
            figure("in", each(self.processes), "processes"),
        ]
    }
}

/// A line `KEY N kB` of a file in `/proc`.
pub(crate) fn kib(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_kib() {
        assert_eq!(kib("Name:\tx\nVmRSS:\t    1234 kB\n", "VmRSS:"), Some(1234));
        assert_eq!(kib("Name:\tx\n", "VmRSS:"), None);
    }

    #[test]
    fn our_own_memory_is_found() {
        let own = Memory::of(&[std::process::id()]).unwrap();
        assert!(own.proportional > 0 && own.resident >= own.private);
        assert!(Memory::of(&[u32::MAX]).is_err());
    }
}
