//! File trees that an untrusted run wrote, or can write at this very moment.
//!
//! Whoever lists, copies or removes such a tree from outside must not be led out of it: every name is
//! used below an open directory ([`Dir`]), no symbolic link is followed in any part of a path, nothing
//! that could block is opened, and every walk has a budget. The crate knows nothing of what lies in a
//! tree, and has no `unsafe` code.
//!
//! # Why not `cap-std`
//!
//! `cap-std` 4.0 keeps a path inside a directory too, but follows the links that stay inside: it calls
//! `openat2` with `RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS` and offers no way to refuse links in the
//! middle of a path, or to stay on one mount. Its `remove_dir_all` recurses with an open directory for
//! each level, so that a deep tree takes all descriptors. Its listings have no bounds, its `rename` has
//! no flags, and its `copy` knows neither `FICLONE` nor holes. It would add nine crates to the Linux
//! build, and nearly everything in this one would still have to be written.

#![forbid(unsafe_code)]

mod content;
mod copy_tree;
mod dir;
mod dir_queue;
mod error;
mod level_stack;
mod metadata;
mod path;
mod remove;
mod resolve;
mod walk;

pub use content::{
    CompareError, ContentBounds, ContentComparison, CopiedContent, CopyContentError, CopyMethod,
    compare_content, copy_content,
};
pub use copy_tree::{CopyOwner, CopyReport, CopyTreeError, Selection, copy_tree};
pub use dir::{
    Dir, DirEntry, Entries, FinalLink, ListLimits, ListOrder, Listing, ListingEnd, ModeLock,
    PinnedEntry, RenameMode, UnlockedDir, UnlockedFile,
};
pub use dir_queue::{DirQueue, QueueBounds, QueueError, QueuedDir, Turn};
pub use error::{
    Attribute, CreateDirError, CreateFileError, HardLinkError, ListError, OpenDirError,
    OpenFileError, ReadFileError, ReadLinkError, RemoveDirError, RenameError, SetAttributeError,
    StatError, SymlinkError, SyncError, UnlinkError,
};
pub use level_stack::LevelStack;
pub use metadata::{EntryKind, Identity, Metadata, Timestamp};
pub use path::PathError;
pub use remove::{RemoveAction, RemoveAllError, remove_all};
pub use resolve::{Access, Mounts, Resolver};
pub use walk::{
    Bound, Bounds, TimeBound, Visit, Visitor, WalkEnd, WalkEntry, WalkError, WalkOrder,
    WalkProblem, WalkReport, walk,
};
