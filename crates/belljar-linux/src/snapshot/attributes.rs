//! Extended attributes: the run's own, and of overlayfs' marks those that say what shines through.

use std::collections::hash_map::DefaultHasher;
use std::ffi::{CStr, CString};
use std::hash::{Hash, Hasher};
use std::os::fd::AsFd;

use belljar_spec::Attributes;
use rustix::fs::{XattrFlags, fgetxattr, flistxattr, fsetxattr};
use rustix::io::Errno;

/// As much as the kernel gives of one inode.
const LONGEST_LIST: usize = 64 * 1024;
const LONGEST_VALUE: usize = 64 * 1024;
/// All of the run's own on one inode.
const MOST: usize = 256 * 1024;

/// What an inode has.
#[derive(Debug, Default)]
pub(super) struct Found {
    kept: Vec<(CString, Vec<u8>)>,
    /// Of overlayfs.
    pub(super) is_marked: bool,
    pub(super) left_out: u64,
}

impl Found {
    /// 0: none.
    pub(super) fn hash(&self) -> u64 {
        if self.kept.is_empty() {
            return 0;
        }
        let mut hasher = DefaultHasher::new();
        self.kept.hash(&mut hasher);
        hasher.finish() | 1
    }

    pub(super) fn put(&self, on: impl AsFd) -> Result<(), Errno> {
        for (name, value) in &self.kept {
            fsetxattr(&on, name.as_c_str(), value, XattrFlags::empty())?;
        }
        Ok(())
    }
}

enum Kept {
    Mark,
    Own,
    No,
}

fn is_kept(name: &CStr) -> Kept {
    // As the caller mounts: those of the other kind are a run's own doing, and could be taken for marks elsewhere.
    let marks = match rustix::process::geteuid().is_root() {
        true => Attributes::Trusted,
        false => Attributes::User,
    };
    let name = name.to_bytes();
    match name.strip_prefix(marks.prefix().as_bytes()) {
        Some(b"opaque" | b"redirect") => return Kept::Mark,
        Some(_) => return Kept::No,
        None => {}
    }
    let is_foreign_mark = name.starts_with(Attributes::User.prefix().as_bytes());
    if name.starts_with(b"user.") && !is_foreign_mark { Kept::Own } else { Kept::No }
}

/// Of an open file or directory. A file system without any has none.
pub(super) fn read(of: impl AsFd) -> Result<Found, Errno> {
    let mut found = Found::default();
    let mut list = [0_u8; 1024];
    let mut longer = Vec::new();
    let names: &[u8] = match flistxattr(&of, &mut list) {
        Ok(length) => &list[..length],
        Err(Errno::OPNOTSUPP) => return Ok(found),
        Err(Errno::RANGE) => {
            longer.resize(LONGEST_LIST, 0);
            let length = flistxattr(&of, &mut longer[..])?;
            &longer[..length]
        }
        Err(error) => return Err(error),
    };
    let mut room = MOST;
    let mut value = Vec::new();
    for name in names.split_inclusive(|byte| *byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
        let kept = is_kept(name);
        if let Kept::No = kept {
            continue;
        }
        value.resize(LONGEST_VALUE, 0);
        let length = match fgetxattr(&of, name, &mut value[..]) {
            Ok(length) => length,
            Err(Errno::NODATA) => continue, // gone meanwhile
            Err(error) => return Err(error),
        };
        match kept {
            Kept::Mark => found.is_marked = true,
            Kept::Own if length <= room => room -= length,
            Kept::Own | Kept::No => {
                found.left_out += 1;
                continue;
            }
        }
        found.kept.push((name.to_owned(), value[..length].to_vec()));
    }
    found.kept.sort();
    Ok(found)
}
