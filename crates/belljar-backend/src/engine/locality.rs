//! Whether an engine's containers can be given files of this machine by their paths.

use bollard::models::SystemInfo;

use super::api::Api;
use super::endpoint::Endpoint;
use super::peer::{self, Files};
use crate::error::Unavailable;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Locality {
    /// Paths mean the same on both sides. With the user whose process listens.
    Here { listener: u32 },
    /// Another machine, if only a virtual one: nothing of this one can be mounted there.
    Elsewhere,
}

/// A launcher in a container that was handed the socket of the engine outside is refused: it is no other
/// machine, and all its paths would be wrong.
pub(super) fn of(api: &Api, info: &SystemInfo) -> Result<Locality, Unavailable> {
    let Endpoint::Unix(socket) = &api.endpoint else { return Ok(Locality::Elsewhere) };
    if !is_this_machine(info) {
        return Ok(Locality::Elsewhere);
    }
    let found = match api.wait_for(peer::find(socket)) {
        Ok(Ok(peer)) => Ok((peer.files(), peer.uid)),
        Ok(Err(error)) => Err(error.to_string()),
        Err(closed) => Err(closed.to_string()),
    };
    match found {
        Ok((Files::Same, listener)) => Ok(Locality::Here { listener }),
        Ok((Files::Other(why), _)) => Err(Unavailable::new(
            format!(
                "{} belongs to an engine outside the container that belljar runs in, where paths are different: {why}",
                api.endpoint
            ),
            "run belljar where the engine runs, or an engine where belljar runs; over tcp:// or ssh:// it is used like one on another machine",
        )),
        Err(error) => Err(Unavailable::new(
            format!("cannot find the process that listens at {}: {error}", api.endpoint),
            "check that the engine is still running",
        )),
    }
}

/// A socket may lead into a virtual machine or through a tunnel. Nothing shows which kernel it is, but
/// two with the same version and the same memory to the byte are not met by chance.
fn is_this_machine(info: &SystemInfo) -> bool {
    let memory = std::fs::read_to_string("/proc/meminfo").ok();
    let memory = memory.as_deref().and_then(total_memory);
    let same_memory = match (info.mem_total, memory) {
        (Some(theirs), Some(ours)) if theirs > 0 => u64::try_from(theirs) == Ok(ours),
        _ => true,
    };
    let uname = rustix::system::uname();
    let ours = uname.release().to_string_lossy();
    let same_kernel = match (info.kernel_version.as_deref(), two_first(&ours)) {
        (Some(theirs), Some(ours)) if !theirs.is_empty() => two_first(theirs) == Some(ours),
        _ => true,
    };
    same_memory && same_kernel
}

fn total_memory(table: &str) -> Option<u64> {
    let line = table.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// Each engine writes the rest of a version differently.
fn two_first(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(memory: Option<i64>, kernel: &str) -> SystemInfo {
        let kernel_version = Some(kernel.to_owned());
        SystemInfo { mem_total: memory, kernel_version, ..SystemInfo::default() }
    }

    #[test]
    fn a_machine_is_told_by_its_memory_and_kernel() {
        let memory = std::fs::read_to_string("/proc/meminfo").ok();
        let memory = memory.as_deref().and_then(total_memory).and_then(|b| i64::try_from(b).ok());
        let uname = rustix::system::uname();
        let kernel = uname.release().to_string_lossy();
        assert!(is_this_machine(&info(memory, &kernel)));
        assert!(is_this_machine(&info(None, "")));
        assert!(!is_this_machine(&info(memory.map(|bytes| bytes + 4096), &kernel)));
        assert!(!is_this_machine(&info(memory, "2.4.37-linuxkit")));
    }

    #[test]
    fn versions_are_compared_by_what_all_write_alike() {
        assert_eq!(two_first("6.18.44-fc"), Some((6, 18)));
        assert_eq!(two_first("6.18-rc1"), two_first("6.18.0-rc1"));
        assert_eq!(two_first("x"), None);
    }
}
