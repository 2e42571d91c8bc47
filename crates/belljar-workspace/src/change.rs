//! Types for the changes of a run: paths, kinds, metadata.

use belljar_spec::OsText;
use belljar_spec::autorun::Class;
use serde::{Deserialize, Serialize};

/// Every difference between a real tree, as it is now, and what the run made of it. Ordered by path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Changes {
    pub changes: Vec<Change>,
    /// There are too many: the list ends early, and none of it can be applied whole.
    pub cut: bool,
}

/// One path that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Relative to the tree's root. Chosen by the run: never shown unescaped, never looked up through a link.
    pub path: OsText,
    pub what: What,
    /// In the real tree, now; of a renamed path, what is at `from`. `None` where it has no such path.
    pub before: Option<Facts>,
    /// In the run's tree. `None` where the run removed it.
    pub after: Option<Facts>,
    /// What it does on the host later, if anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autorun: Option<AutorunMark>,
    /// Why `apply` leaves it out unless it is named, or always.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub withheld: Option<Withheld>,
    /// Where the run's version lies. Not for others' eyes: the paths are of this machine.
    #[serde(skip)]
    pub(crate) place: Option<ContentPlace>,
    /// It would be held back, but for what stands in it: that is looked at again when it is taken over.
    #[serde(skip)]
    pub(crate) judged: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum What {
    Created,
    /// Content of a file, or target of a link; perhaps the mode as well.
    Modified,
    /// The mode alone.
    Mode,
    /// A file became a directory, or a link a file, and so on.
    Replaced,
    Deleted,
    /// The same content, or nearly, was at `from`, which is gone.
    Renamed {
        from: OsText,
    },
}

/// What is known of an entry without reading its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Facts {
    pub kind: Kind,
    /// The nine permission bits: no other ever leaves a run.
    pub mode: u32,
    /// Bytes of a file; 0 of anything else.
    pub size: u64,
    /// Of a link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<OsText>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    File,
    Directory,
    Link,
    Fifo,
    Socket,
    Device,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AutorunMark {
    pub class: Class,
    pub why: &'static str,
}

/// Why `apply` leaves something out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Withheld {
    pub why: String,
    pub how_far: HowFar,
    /// Only because this path is held back: naming that one is enough.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub because_of: Option<OsText>,
}

impl Withheld {
    pub(crate) fn new(why: impl Into<String>, how_far: HowFar) -> Self {
        Self { why: why.into(), how_far, because_of: None }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HowFar {
    /// Applied where the operator names that very path.
    UnlessNamed,
    /// Nothing of the kind ever arrives on the host.
    Always,
}

/// Where the content of the run's version of a path is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ContentPlace {
    /// In the layer that holds the changes, at this path.
    InUpper(OsText),
    /// In the real tree, at this path: a directory above was renamed, and the content never left.
    InLower(OsText),
}
