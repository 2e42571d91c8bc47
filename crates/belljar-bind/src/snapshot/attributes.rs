//! Reads and writes extended attributes: the run's, and those marks of overlayfs that determine what shows through.

use std::collections::hash_map::DefaultHasher;
use std::ffi::{CStr, CString};
use std::hash::{Hash, Hasher};
use std::os::fd::AsFd;

use belljar_spec::Attributes;
use rustix::fs::{XattrFlags, fgetxattr, flistxattr, fsetxattr};
use rustix::io::Errno;

/// As much as the kernel gives of one inode.
const MAX_LIST: usize = 64 * 1024;
const MAX_VALUE: usize = 64 * 1024;
/// The total size of the run's attributes on one inode.
const MAX_SIZE: usize = 256 * 1024;

/// What an inode has.
#[derive(Debug, Default)]
pub(super) struct ExtendedAttributes {
    values: Vec<(CString, Vec<u8>)>,
    /// Of overlayfs.
    pub(super) is_marked: bool,
    pub(super) left_out: u64,
}

impl ExtendedAttributes {
    /// 0: none.
    pub(super) fn hash(&self) -> u64 {
        if self.values.is_empty() {
            return 0;
        }
        let mut hasher = DefaultHasher::new();
        self.values.hash(&mut hasher);
        hasher.finish() | 1
    }

    pub(super) fn put(&self, on: impl AsFd) -> Result<(), Errno> {
        for (name, value) in &self.values {
            fsetxattr(&on, name.as_c_str(), value, XattrFlags::empty())?;
        }
        Ok(())
    }
}

enum AttributeKind {
    Mark,
    User,
    Dropped,
}

fn kind_of(name: &CStr) -> AttributeKind {
    // As the caller mounts: marks of the other kind come from a run, and could be taken for marks elsewhere.
    let marks = match rustix::process::geteuid().is_root() {
        true => Attributes::Trusted,
        false => Attributes::User,
    };
    let name = name.to_bytes();
    match name.strip_prefix(marks.prefix().as_bytes()) {
        Some(b"opaque" | b"redirect") => return AttributeKind::Mark,
        Some(_) => return AttributeKind::Dropped,
        None => {}
    }
    let is_foreign_mark = name.starts_with(Attributes::User.prefix().as_bytes());
    if name.starts_with(b"user.") && !is_foreign_mark {
        AttributeKind::User
    } else {
        AttributeKind::Dropped
    }
}

/// Of an open file or directory. A file system without any has none.
pub(super) fn read(of: impl AsFd) -> Result<ExtendedAttributes, Errno> {
    let mut found = ExtendedAttributes::default();
    let mut list = [0_u8; 1024];
    let mut longer = Vec::new();
    let names: &[u8] = match flistxattr(&of, &mut list) {
        Ok(length) => &list[..length],
        Err(Errno::OPNOTSUPP) => return Ok(found),
        Err(Errno::RANGE) => {
            longer.resize(MAX_LIST, 0);
            let length = flistxattr(&of, &mut longer[..])?;
            &longer[..length]
        }
        Err(error) => return Err(error),
    };
    let mut room = MAX_SIZE;
    let mut value = Vec::new();
    for name in names.split_inclusive(|byte| *byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
        let kind = kind_of(name);
        if let AttributeKind::Dropped = kind {
            continue;
        }
        value.resize(MAX_VALUE, 0);
        let length = match fgetxattr(&of, name, &mut value[..]) {
            Ok(length) => length,
            Err(Errno::NODATA) => continue, // gone meanwhile
            Err(error) => return Err(error),
        };
        match kind {
            AttributeKind::Mark => found.is_marked = true,
            AttributeKind::User if length <= room => room -= length,
            AttributeKind::User | AttributeKind::Dropped => {
                found.left_out += 1;
                continue;
            }
        }
        found.values.push((name.to_owned(), value[..length].to_vec()));
    }
    found.values.sort();
    Ok(found)
}
