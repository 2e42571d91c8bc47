//! Looks up directories in the layers below, as the overlay would show them.

use std::ffi::OsString;

use belljar_tree::{Dir, Metadata, OpenDirError};

use super::error::UnpackProblem;
use super::options::OverlayForm;

pub(super) struct LowerLayers<'a> {
    /// Bottom first.
    layers: &'a [Dir],
    form: OverlayForm,
}

/// What one layer says about a path.
enum InLayer {
    Directory(Metadata),
    /// The layer has nothing there; the next one below is asked.
    Missing,
    /// The layer hides whatever is below.
    Hidden,
}

impl<'a> LowerLayers<'a> {
    pub(super) fn new(layers: &'a [Dir], form: OverlayForm) -> Self {
        Self { layers, form }
    }

    /// The directory that is seen at a path; nothing if there is none.
    pub(super) fn directory(&self, path: &[OsString]) -> Result<Option<Metadata>, UnpackProblem> {
        for layer in self.layers.iter().rev() {
            match self.in_layer(layer, path)? {
                InLayer::Directory(found) => return Ok(Some(found)),
                InLayer::Missing => {}
                InLayer::Hidden => return Ok(None),
            }
        }
        Ok(None)
    }

    fn in_layer(&self, layer: &Dir, path: &[OsString]) -> Result<InLayer, UnpackProblem> {
        let mut reached = layer.unlock_dir("")?;
        let mut is_opaque = false;
        for name in path {
            let next = reached.dir.unlock_dir(name);
            reached.relock();
            reached = match next {
                Ok(next) => next,
                Err(OpenDirError::Missing { .. }) if is_opaque => return Ok(InLayer::Hidden),
                Err(OpenDirError::Missing { .. }) => return Ok(InLayer::Missing),
                Err(OpenDirError::Link { .. } | OpenDirError::NotDirectory { .. }) => {
                    return Ok(InLayer::Hidden);
                }
                Err(error) => return Err(error.into()),
            };
            let mut value = [0_u8; 2];
            let mark = rustix::fs::fgetxattr(&reached.dir, self.form.opaque_name(), &mut value);
            is_opaque |= mark == Ok(1) && value[0] == b'y';
        }
        reached.relock();
        Ok(InLayer::Directory(reached.metadata))
    }
}
