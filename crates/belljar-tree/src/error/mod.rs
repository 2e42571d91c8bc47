//! The errors: one enum for each operation, each with the path, relative to the directory it was asked of.
//!
//! Every one has the error number behind it, so that a caller can go on where nothing is there, or
//! make room where the disk is full, without knowing each variant.

mod names;
mod open;

pub use names::{
    Attribute, HardLinkError, ReadLinkError, RemoveDirError, RenameError, SetAttributeError,
    StatError, SymlinkError, UnlinkError,
};
pub use open::{
    CreateDirError, CreateFileError, ListError, OpenDirError, OpenFileError, ReadFileError,
    SyncError,
};

/// The methods that all of them have.
macro_rules! common_methods {
    ($($error:ident),+ $(,)?) => {$(
        impl $error {
            /// The disk, the user's share of it, or its table of files is full.
            pub fn is_no_space(&self) -> bool {
                matches!(self.errno(), rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT)
            }
        }

        impl From<$error> for rustix::io::Errno {
            fn from(error: $error) -> Self {
                error.errno()
            }
        }

        impl From<$error> for std::io::Error {
            fn from(error: $error) -> Self {
                let kind = std::io::Error::from(error.errno()).kind();
                std::io::Error::new(kind, error)
            }
        }
    )+};
}

pub(crate) use common_methods;
