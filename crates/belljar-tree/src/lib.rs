//! File trees that an untrusted run wrote, or can write at this very moment.
//!
//! Whoever lists, copies or removes such a tree from outside must not be led out of it: every name is
//! used below an open directory ([`Dir`]), no symbolic link is followed in any part of a path, nothing
//! that could block is opened, and every walk has a budget. The crate knows nothing of what lies in a
//! tree, and has no `unsafe` code.
//!
//! # Why not `cap-std`
//!
//! `cap-std` 4 keeps a path inside a directory too, but for programs that trust what is in it: it opens with
//! `RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS`, so links that stay inside are followed, and its `Dir` has
//! no way to refuse them in the middle of a path, nor to stay on one mount. Its `remove_dir_all` recurses with
//! one open directory per level, so a deep tree takes all descriptors and the stack, and a directory
//! with mode 0 ends it. It has no bounds on listings, no rename that does not replace or that exchanges, and
//! copies without reflinks or holes. What is left to take from it would be its emulation of
//! `openat2`, which is as long as this crate's and brings eight more crates.

#![forbid(unsafe_code)]

mod content;
mod copy_tree;
mod dir;
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
    Dir, DirEntry, Entries, FinalLink, ListLimits, ListOrder, Listing, ListingEnd, RenameMode,
};
pub use error::{
    Attribute, CreateDirError, CreateFileError, HardLinkError, ListError, OpenDirError,
    OpenFileError, ReadFileError, ReadLinkError, RemoveDirError, RenameError, SetAttributeError,
    StatError, SymlinkError, SyncError, UnlinkError,
};
pub use metadata::{EntryKind, Identity, Metadata, Timestamp};
pub use path::PathError;
pub use remove::{RemoveAction, RemoveAllError, remove_all};
pub use resolve::{Access, Mounts, Resolver};
pub use walk::{
    Bound, Bounds, TimeBound, Visit, Visitor, WalkEnd, WalkEntry, WalkError, WalkOrder,
    WalkProblem, WalkReport, walk,
};
