//! Whether an engine that listens on a socket file of this machine sees the same files under the same
//! paths. One outside the container that belljar runs in does not.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use belljar_bind::staging::STAGING_ROOT;

/// Put there by the engines themselves.
const MARKS: [&str; 2] = ["/.dockerenv", "/run/.containerenv"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Files {
    Same,
    Other(&'static str),
}

/// The process that began to listen on a socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    /// Zero where the kernel has no number for it here.
    pid: i32,
    pub(super) uid: u32,
}

pub(super) async fn find(socket: &Path) -> io::Result<Peer> {
    let stream = super::dial::dialled(socket)?;
    stream.set_nonblocking(true)?;
    let peer = tokio::net::UnixStream::from_std(stream)?.peer_cred()?;
    Ok(Peer { pid: peer.pid().unwrap_or(0), uid: peer.uid() })
}

impl Peer {
    /// Whether the engine itself listens, and not a tunnel to one elsewhere, as far as this user may see.
    pub(super) fn is_podman(self) -> bool {
        let program = fs::read_link(format!("/proc/{}/exe", self.pid));
        program.is_ok_and(|path| path.file_name().is_some_and(|name| name == "podman"))
    }

    /// Its mount namespace may be another one, as that of a rootless Podman always is: it is the root
    /// directory that has to be the same.
    pub(super) fn files(self) -> Files {
        if self.pid == 0 {
            return Files::Other("the engine is outside of this process's pid namespace");
        }
        match has_our_root(self.pid) {
            // What root gives to an engine, it mounts first.
            Some(true) if rustix::process::geteuid().is_root() && !sees_our_mounts(self.pid) => {
                Files::Other("the engine does not see what this process mounts")
            }
            Some(true) => Files::Same,
            Some(false) => Files::Other("the engine has another root directory than this process"),
            None => by_marks(),
        }
    }
}

/// `None` where this user cannot see it.
fn has_our_root(pid: i32) -> Option<bool> {
    let root = |process: &str| {
        let found = fs::metadata(format!("/proc/{process}/root/."))?;
        io::Result::Ok((found.dev(), found.ino()))
    };
    if let (Ok(ours), Ok(theirs)) = (root("self"), root(&pid.to_string())) {
        return Some(ours == theirs);
    }
    // Another user's root cannot be entered, but what is mounted there can be read.
    let table = |process: &str| fs::read_to_string(format!("/proc/{process}/mountinfo"));
    let (ours, theirs) = (table("self").ok()?, table(&pid.to_string()).ok()?);
    Some(root_mount(&theirs)? == root_mount(&ours).unwrap_or_default())
}

/// In the same mount namespace, or in one that a mount made here mounts_propagate to. So it is too where that
/// cannot be seen: then the start shows it.
fn sees_our_mounts(pid: i32) -> bool {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    let theirs = namespace(&pid.to_string());
    if theirs.is_none() || theirs == namespace("self") {
        return true;
    }
    let table = |process: &str| fs::read_to_string(format!("/proc/{process}/mountinfo")).ok();
    match (table("self"), table(&pid.to_string())) {
        (Some(ours), Some(theirs)) => mounts_propagate(&ours, &theirs, Path::new(STAGING_ROOT)),
        _ => true,
    }
}

/// Whether what is mounted at a path in one table appears in the other.
fn mounts_propagate(ours: &str, theirs: &str, path: &Path) -> bool {
    let group = |line: &str, names: &[&str]| -> Vec<String> {
        let groups = line.split(' ').skip(6).take_while(|field| *field != "-");
        let named = groups.filter_map(|field| field.split_once(':'));
        named.filter(|(name, _)| names.contains(name)).map(|(_, n)| n.to_owned()).collect()
    };
    let (Some(ours), Some(theirs)) = (mount_of(ours, path), mount_of(theirs, path)) else {
        return false;
    };
    let reached = group(theirs, &["shared", "master"]);
    group(ours, &["shared"]).iter().any(|number| reached.contains(number))
}

/// The line of the mount that contains a path.
fn mount_of<'a>(table: &'a str, path: &Path) -> Option<&'a str> {
    let points = table.lines().filter_map(|line| Some((Path::new(line.split(' ').nth(4)?), line)));
    let above = points.filter(|(point, _)| path.starts_with(point));
    let deepest = above.max_by_key(|(point, _)| point.as_os_str().len()); // the last of equals
    deepest.map(|(_, line)| line)
}

/// Device, and which of its directories: the root's line in a table of mounts.
fn root_mount(table: &str) -> Option<(&str, &str)> {
    table.lines().rev().find_map(|line| {
        let mut fields = line.split(' ').skip(2);
        let (device, directory, point) = (fields.next()?, fields.next()?, fields.next()?);
        (point == "/").then_some((device, directory))
    })
}

fn by_marks() -> Files {
    match MARKS.iter().any(|mark| Path::new(mark).exists()) {
        true => Files::Other(
            "this process is in a container, and the engine's process cannot be inspected",
        ),
        false => Files::Same,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_recognised_by_its_device_and_directory() {
        let host =
            "26 1 254:0 / / rw,relatime - ext4 /dev/root rw\n27 26 0:5 / /dev rw - devtmpfs d rw\n";
        let copy = "900 800 254:0 / / rw,relatime master:1 - ext4 /dev/root rw\n";
        let vfs = "700 600 254:0 /var/lib/docker/vfs/dir/x / rw - ext4 /dev/root rw\n";
        assert_eq!(root_mount(host), Some(("254:0", "/")));
        assert_eq!(root_mount(host), root_mount(copy));
        assert_ne!(root_mount(host), root_mount(vfs));
        assert_eq!(root_mount("27 26 0:5 / /dev rw - devtmpfs d rw\n"), None);
    }

    #[test]
    fn mounts_propagate_along_groups() {
        let table = |group: &str| {
            format!("1 0 8:1 / / rw {group}- ext4 a rw\n2 1 0:9 / /home rw - tmpfs b rw\n")
        };
        let mounts_propagate = |ours: &str, theirs: &str| {
            mounts_propagate(&table(ours), &table(theirs), Path::new("/run/belljar"))
        };
        assert!(mounts_propagate("shared:1 ", "shared:1 "));
        assert!(mounts_propagate("shared:1 ", "master:1 "));
        assert!(mounts_propagate("shared:3 master:1 ", "shared:7 master:3 "));
        assert!(!mounts_propagate("", "shared:1 "));
        assert!(!mounts_propagate("master:1 ", "shared:1 "));
        assert!(!mounts_propagate("shared:1 ", "shared:2 "));
        let own = "1 0 8:1 / / rw shared:1 - ext4 a rw\n2 1 0:9 / /run rw - tmpfs b rw\n";
        assert!(!super::mounts_propagate(own, own, Path::new("/run/belljar")));
    }

    #[test]
    fn this_process_has_its_own_root() {
        assert_eq!(has_our_root(std::process::id() as i32), Some(true));
        assert_eq!(has_our_root(i32::MAX), None);
    }
}
