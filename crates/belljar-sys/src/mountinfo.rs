//! Reads a process's table of mounts.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One line of `/proc/…/mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountLine {
    /// The mount's number, as `statx` gives it for what is reached through the mount.
    pub id: u64,
    /// `major:minor`.
    pub device: String,
    /// What of its file system is mounted.
    pub root: PathBuf,
    pub mount_point: PathBuf,
    pub fstype: String,
    pub super_options: String,
    pub options: String,
    pub propagation: Propagation,
}

/// Whether a mount that is made on a copy of this one appears here too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    Private,
    /// Shared with others, or a slave of another.
    Receives,
}

#[derive(Clone, Debug, Default)]
pub struct MountTable(pub Vec<MountLine>);

impl MountTable {
    pub fn read() -> std::io::Result<Self> {
        Ok(Self::parse(&crate::kernel_file::read("/proc/self/mountinfo")?))
    }

    pub fn parse(table: &[u8]) -> Self {
        Self(table.split(|byte| *byte == b'\n').filter_map(parse_line).collect())
    }

    /// Mount points strictly below a directory, parents first.
    pub fn below(&self, directory: &Path) -> Vec<PathBuf> {
        let mut below: Vec<PathBuf> = self
            .0
            .iter()
            .map(|line| &line.mount_point)
            .filter(|point| point.starts_with(directory) && *point != directory)
            .cloned()
            .collect();
        below.sort();
        below.dedup();
        below
    }

    /// A path as its file system has it: the device, and the path from that file system's root.
    pub fn origin(&self, path: &Path) -> Option<(&str, PathBuf)> {
        // The last of those that are mounted over each other is the one that shows.
        let mounts = self.0.iter().filter(|line| path.starts_with(&line.mount_point));
        let mount = mounts.max_by_key(|line| line.mount_point.components().count())?;
        let below = path.strip_prefix(&mount.mount_point).ok()?;
        Some((&mount.device, mount.root.join(below)))
    }

    /// Where the hierarchies of a file system type are mounted, with their options.
    pub fn of_type<'a>(&'a self, fstype: &'a str) -> impl Iterator<Item = &'a MountLine> {
        self.0.iter().filter(move |line| line.fstype == fstype)
    }
}

fn parse_line(line: &[u8]) -> Option<MountLine> {
    let mut fields = line.split(|byte| *byte == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let device = String::from_utf8_lossy(fields.nth(1)?).into_owned();
    let root = unescape(fields.next()?);
    let mount_point = unescape(fields.next()?);
    let options = String::from_utf8_lossy(fields.next()?).into_owned();
    let is_tag = |field: &&[u8]| field.starts_with(b"shared:") || field.starts_with(b"master:");
    let mut propagation = Propagation::Private;
    for field in fields.by_ref().take_while(|field| *field != b"-") {
        if is_tag(&field) {
            propagation = Propagation::Receives;
        }
    }
    let mut after_dash = fields;
    let fstype = String::from_utf8_lossy(after_dash.next()?).into_owned();
    let super_options = String::from_utf8_lossy(after_dash.nth(1)?).into_owned();
    Some(MountLine { id, device, root, mount_point, fstype, super_options, options, propagation })
}

/// The kernel writes space, tab, newline and backslash as three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let digits =
            tail.get(..3).filter(|digits| digits.iter().all(|d| (b'0'..=b'7').contains(d)));
        match (first, digits) {
            (b'\\', Some(digits)) => {
                let value =
                    digits.iter().fold(0_u32, |value, digit| value * 8 + u32::from(digit - b'0'));
                plain.push(value as u8);
                rest = &tail[3..];
            }
            _ => {
                plain.push(*first);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_escaped_mount_points_and_optional_fields() {
        let table = MountTable::parse(
            b"36 35 98:0 /mnt1 /mnt/with\\040space rw,noatime master:1 - ext4 /dev/sda1 rw,errors=continue\n\
              37 36 0:44 / /mnt/with\\040space/below ro shared:7 master:2 - tmpfs none rw\n",
        );
        assert_eq!(table.0[0].mount_point, Path::new("/mnt/with space"));
        assert_eq!((table.0[0].id, table.0[1].id), (36, 37));
        assert_eq!(table.0[0].fstype, "ext4");
        assert_eq!(table.0[0].super_options, "rw,errors=continue");
        assert_eq!(table.0[1].options, "ro");
        assert!(table.0.iter().all(|line| line.propagation == Propagation::Receives));
        let private = MountTable::parse(b"36 35 98:0 / /mnt rw unbindable - ext4 /dev/sda1 rw\n");
        assert_eq!(private.0[0].propagation, Propagation::Private);
        assert_eq!(private.0[0].super_options, "rw");
        assert_eq!(table.below(Path::new("/mnt/with space")), [Path::new("/mnt/with space/below")]);
        assert!(table.below(Path::new("/mnt/with")).is_empty());
        let origin = table.origin(Path::new("/mnt/with space/a")).unwrap();
        assert_eq!(origin, ("98:0", PathBuf::from("/mnt1/a")));
        let origin = table.origin(Path::new("/mnt/with space/below/b")).unwrap();
        assert_eq!(origin, ("0:44", PathBuf::from("/b")));
    }
}
