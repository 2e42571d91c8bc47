//! Copies files into and out of a fake sandbox, whose `/` is a directory of the host.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use belljar_spec::wire::archive::{Entry, EntryKind};

use super::reply::FakeReply;
use super::{Inner, lock};
use crate::sandbox::copy::{CopyError, CopyLimits, Receiver, Sender};

impl Inner {
    pub(super) fn pack(&self, path: &Path) -> FakeReply {
        if let Some(bytes) = lock(&self.settings).packed.clone() {
            return FakeReply::stdout(bytes);
        }
        let packed = self.outside(path).and_then(|path| {
            let (mut sender, mut bytes) = (Sender::begin(&path)?, Vec::new());
            loop {
                let mut piece = Vec::new();
                sender.fill(&mut piece)?;
                if piece.is_empty() {
                    return Ok(bytes);
                }
                bytes.extend(piece);
            }
        });
        packed.map_or_else(
            |error| FakeReply::code(1).with_stderr(error.to_string()),
            FakeReply::stdout,
        )
    }

    pub(super) fn unpack(&self, path: &Path, bytes: &[u8]) -> FakeReply {
        let unpacked = self.outside(path).and_then(|path| {
            let mut receiver = Receiver::begin(&path, path.file_name(), CopyLimits::default())?;
            receiver.feed(bytes)?;
            receiver.finish()
        });
        match unpacked {
            Ok(_) => FakeReply::code(0),
            Err(error) => FakeReply::code(1).with_stderr(error.to_string()),
        }
    }

    pub(super) fn list(&self, path: &Path) -> FakeReply {
        let listed = self.outside(path).map(|path| {
            let mut bytes = Vec::new();
            if let Ok(top) = path.metadata() {
                header(&top, b"").write(&mut bytes);
                for entry in path.read_dir().into_iter().flatten().flatten() {
                    let found = entry.path().symlink_metadata();
                    let name = entry.file_name();
                    found.into_iter().for_each(|found| {
                        header(&found, name.as_bytes()).write(&mut bytes);
                    });
                }
            }
            let (kind, path) = (EntryKind::End, Vec::new());
            Entry { kind, mode: 0, path, size: 0, modified: 0 }.write(&mut bytes);
            bytes
        });
        listed.map_or_else(
            |error| FakeReply::code(1).with_stderr(error.to_string()),
            FakeReply::stdout,
        )
    }

    /// Where a path of the sandbox is on the host.
    fn outside(&self, path: &Path) -> Result<PathBuf, CopyError> {
        let root = lock(&self.settings).files.clone();
        let root = root.ok_or(CopyError::Nothing { why: "this fake has no files".to_owned() })?;
        let plain = path.components().filter_map(|component| match component {
            Component::Normal(name) => Some(name),
            _ => None,
        });
        Ok(root.join(plain.collect::<PathBuf>()))
    }
}

fn header(found: &std::fs::Metadata, name: &[u8]) -> Entry {
    let (kind, size) = match found.file_type() {
        file if file.is_file() => (EntryKind::File, found.len()),
        file if file.is_dir() => (EntryKind::Directory, 0),
        file if file.is_symlink() => (EntryKind::Link, 0),
        _ => (EntryKind::Skipped, 0),
    };
    let (mode, modified) = (found.mode() & 0o777, found.mtime());
    Entry { kind, mode, path: name.to_vec(), size, modified }
}
