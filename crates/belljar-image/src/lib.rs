//! OCI and docker images without an engine: a content store, and what brings images into it.
//!
//! [`Store`] keeps images in one directory. [`Store::load`] takes archives of `docker save` and `podman save` and OCI
//! layouts, [`Store::pull`] asks a registry, [`Store::export`] writes an archive. [`Store::hold`] makes an image ready
//! for a run: the facts of its configuration, and an ordered list of directories for an overlay, locked against
//! [`Store::prune`] and [`Store::remove`] as long as the result lives.
//!
//! Everything that comes from outside is hostile: documents are bounded and checked against their digests, and
//! [`unpack_layer`] says what becomes of each kind of entry. The crate prints nothing, has no `unsafe` code, and
//! starts no process but credential helpers.
//!
//! # Why not `oci-client` and `oci-spec`
//!
//! Both are maintained (0.18 and 0.10 in November 2026). `oci-client` would add 36 crates that nothing else here
//! needs (`reqwest`, `chrono`, `regex`, a second SHA-256, …) and 57 of the 280 seconds of processor time that its
//! debug build takes; it resolves names with the system's library, which a static executable cannot use, unless
//! `reqwest` gets a resolver of its own. `oci-spec` alone adds 15. What is used of them is a dozen structures and four
//! kinds of requests, over `hyper` and `rustls`, which Belljar has anyway. The unpacker would have to be written in
//! any case.
//!
//! # Compression
//!
//! `flate2` with `zlib-rs`, and `ruzstd`: both are Rust, since the bytes are hostile. `ruzstd` refuses windows of more
//! than 128 MiB, which no tool writes unless it is asked to.
#![forbid(unsafe_code)]

mod compression;
mod credentials;
mod digest;
mod export;
mod ingest;
mod load;
mod lookup;
mod manifest;
mod platform;
mod pull;
mod reference;
mod store;
mod stream;
mod tar;
mod unpack;
mod user;

pub use compression::Compression;
pub use credentials::{
    AuthFiles, CredentialLookup, CredentialSources, Credentials, HelperPrograms, Secret,
    look_up_credentials, registry_key,
};
pub use digest::{BadDigest, Digest};
pub use export::ExportError;
pub use ingest::{ImageLimits, IngestError};
pub use load::{DefaultName, LoadError, LoadOptions, LoadSource, LoadedImage};
pub use manifest::{DocumentError, ImageConfig};
pub use platform::{BadPlatform, Platform};
pub use pull::{PullError, PullOptions, PullProgress, TransportError};
pub use reference::{BadReference, DOCKER_HUB, ImageName, Reference};
pub use store::{
    BlobError, HeldImage, HeldLayer, HoldError, Image, ImageSummary, LayerFacts, MovedName,
    PruneReport, PruneScope, RemoveError, Removed, Store, StoreError, UnpackImageError,
    UnpackProgress, UnpackTime,
};
pub use tar::TarError;
pub use unpack::{
    ExpectedLayer, OverlayForm, Ownership, PrivilegedBits, UnpackError, UnpackLimits,
    UnpackOptions, UnpackProblem, UnpackReport, unpack_layer,
};
pub use user::{ImageUser, ImageUserError, image_user};
