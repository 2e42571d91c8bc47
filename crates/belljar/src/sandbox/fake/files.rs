//! Copies files into and out of a fake sandbox, whose `/` is a directory of the host.

use std::path::{Component, Path, PathBuf};

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
