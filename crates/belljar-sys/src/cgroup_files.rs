//! Reads the files of control groups.

use std::path::Path;

use belljar_spec::Usage;

use crate::kernel_file::read_text;

/// How many processes of a cgroup v2 group the kernel killed for want of memory.
pub fn oom_kills(directory: &Path) -> u64 {
    read_keyed(&directory.join("memory.events"), "oom_kill").unwrap_or(0)
}

/// What a cgroup v2 group used. A file that the kernel does not have leaves its field as it is not known.
pub fn usage(directory: &Path, usage: &mut Usage) {
    let at = |file: &str| directory.join(file);
    usage.memory_peak_bytes = read_number(&at("memory.peak"));
    usage.pids_peak = read_number(&at("pids.peak"));
    usage.cpu_ms = read_keyed(&at("cpu.stat"), "usage_usec").map(|micros| micros / 1000);
    usage.written_bytes = read_text(at("io.stat")).ok().map(|text| written(&text));
}

/// `8:0 rbytes=1 wbytes=2 …`, a line for each device.
fn written(stat: &str) -> u64 {
    let values = stat.split_whitespace().filter_map(|field| field.strip_prefix("wbytes="));
    values.filter_map(|value| value.parse::<u64>().ok()).sum()
}

/// A file that holds one number.
pub fn read_number(path: &Path) -> Option<u64> {
    crate::kernel_file::read_number(rustix::fs::CWD, path).ok()
}

/// `key value` lines, as in `memory.events` and `cpu.stat`.
pub fn read_keyed(path: &Path, key: &str) -> Option<u64> {
    let text = read_text(path).ok()?;
    let line =
        text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ').map(str::to_owned));
    line?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::written;

    #[test]
    fn what_was_written_is_added_up_over_all_devices() {
        let stat =
            "8:0 rbytes=1 wbytes=20 rios=3 wios=4 dbytes=5 dios=6\n253:1 rbytes=9 wbytes=300\n";
        assert_eq!(written(stat), 320);
        assert_eq!(written(""), 0);
    }
}
