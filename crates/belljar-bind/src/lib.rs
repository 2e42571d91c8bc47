//! What a launcher checks, opens and pins on the host before a sandbox starts, and how it takes snapshots of what a
//! run wrote.
//!
//! The same for every backend, without `unsafe`. What only root can do with mounts is behind [`RootMounter`], which
//! `belljar-linux` implements.

#![forbid(unsafe_code)]

mod bind;
mod control;
mod copy_tree;
mod expand;
pub mod file_clock;
pub mod host_program;
pub mod identity;
mod linked;
mod mounter;
pub mod placeholder;
mod privileged;
pub mod resolve;
pub mod sensitive;
mod shared_prefix;
pub mod snapshot;
pub mod staging;
mod survey;

pub use bind::{
    AnnouncedCopy, BindError, Bound, BoundKind, BoundMount, BoundTree, DATA, ImageRoot, Layer,
    NOTE, Pinned, PinnedLayer, SurveyedTree, Upper, Via, WORK, bind, copies_ahead, user_inside,
};
pub use mounter::{Depth, Mounts, RootMounter, ShownOwners, TreeClone, Writer};
