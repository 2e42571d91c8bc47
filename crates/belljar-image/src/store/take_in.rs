//! Adds staged images to the index: first their content, then, once their layers are known to be good, their names.

use super::hold::HoldError;
use super::incoming::{Incoming, NewImage};
use super::lock::LockMode;
use super::{Store, StoreError};
use crate::digest::Digest;
use crate::reference::ImageName;
use crate::unpack::UnpackOptions;

/// When the layers of a new image are unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnpackTime {
    /// When it is held for the first time.
    Later,
    /// Before it gets its names: one that cannot be unpacked takes no name from another image.
    BeforeNames(UnpackOptions),
}

/// A name that was another image's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedName {
    pub name: String,
    /// The manifest of the image that had it.
    pub from: Digest,
}

impl Store {
    /// Moves all content of the images into place, and gives them their names. For each image: which of its names
    /// others had. On an error no name has changed.
    pub(crate) fn take_in(
        &self,
        incoming: Incoming<'_>,
        needed: &[Digest],
        images: &[NewImage],
        unpack: UnpackTime,
    ) -> Result<Vec<Vec<MovedName>>, HoldError> {
        let added = incoming.commit(needed, images)?;
        if let UnpackTime::BeforeNames(options) = unpack
            && let Err(error) = self.unpack_all(images, &options)
        {
            drop(incoming); // its pins would keep what is removed now
            self.forget(&added)?;
            return Err(error);
        }
        let guard = self.lock(LockMode::Exclusive)?;
        let mut index = self.read_index(&guard)?;
        let add = |image: &NewImage| index.add(image.manifest, image.source, &image.names);
        let moved = images.iter().map(add).collect();
        self.write_index(&guard, &index)?;
        drop(guard);
        drop(incoming); // until now it kept the content of images without names
        Ok(moved)
    }

    fn unpack_all(&self, images: &[NewImage], options: &UnpackOptions) -> Result<(), HoldError> {
        for image in images {
            self.hold(&ImageName::Id(image.manifest.to_string()), options, &mut |_| {})?;
        }
        Ok(())
    }

    /// Removes what was added without a name, unless somebody has named or used it meanwhile.
    fn forget(&self, added: &[Digest]) -> Result<(), StoreError> {
        self.prune_if(|image| image.names.is_empty() && added.contains(&image.manifest)).map(drop)
    }
}
