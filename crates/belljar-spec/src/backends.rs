//! The backends, one row each: name, whether `auto` may choose it, and what it does by nature.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a backend does by nature, on every host. Callers ask this and compare no names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendFeatures {
    pub boundary: Boundary,
    pub ids: HostIds,
    pub image: ImageUse,
    pub trees: TreeAccess,
    pub leftovers: Leftovers,
    pub link: LinkKind,
}

impl BackendFeatures {
    pub fn has_boundary(self) -> bool {
        self.boundary == Boundary::Sandbox
    }

    pub fn needs_image(self) -> bool {
        self.image == ImageUse::Required
    }
}

/// Whether there is a boundary between the command and the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boundary {
    Sandbox,
    None,
}

/// Which ids the command has as its own user sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostIds {
    /// The plan's, mapped to others on the host.
    Mapped,
    /// Those that it has on the host.
    Same,
}

/// Where the root file system comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageUse {
    /// The host's.
    None,
    /// The host's or a directory, or an image of Belljar's own store if one is named.
    Optional,
    /// An image that an engine has.
    Required,
}

/// How a tree of the host gets into the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeAccess {
    /// Mounted by Belljar itself, which can put an overlay, id maps and covers over it.
    Mounted,
    /// Mounted by an engine, which takes a path and shows the tree as it is; sent where the engine is on another
    /// machine.
    MountedByEngine,
    /// Sent over the channel; the changes come back at the end.
    Sent,
    /// Not at all: the command sees the host's tree.
    Host,
}

/// What a closed channel means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// One end is gone: the run ends at once.
    Lasting,
    /// The connection may have broken between two machines: PID 1 waits until its lease ends for a resumption that
    /// is proved with the frame key.
    Breakable,
}

/// What can be left on the host when a launcher is killed; `reconcile` removes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leftovers {
    /// Processes, and nothing that could be found by the run's id.
    Processes,
    ControlGroups,
    Containers,
}

/// Whether `auto` may choose a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Selection {
    Auto,
    ByName,
}

const ENGINE: BackendFeatures = BackendFeatures {
    boundary: Boundary::Sandbox,
    ids: HostIds::Same,
    image: ImageUse::Required,
    trees: TreeAccess::MountedByEngine,
    leftovers: Leftovers::Containers,
    link: LinkKind::Lasting,
};

macro_rules! backends {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $selection:ident, $features:expr;)*) => {
        /// What makes boundaries.
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
        )]
        #[serde(rename_all = "lowercase")]
        pub enum BackendName {
            $($(#[$doc])* $variant,)*
        }

        impl BackendName {
            pub const ALL: &'static [BackendName] = &[$(Self::$variant,)*];

            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            pub fn features(self) -> BackendFeatures {
                match self { $(Self::$variant => $features,)* }
            }

            fn selection(self) -> Selection {
                match self { $(Self::$variant => Selection::$selection,)* }
            }
        }

        /// Which backend the operator asked for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Default)]
        #[serde(rename_all = "lowercase")]
        pub enum BackendChoice {
            #[default]
            Auto,
            $($(#[$doc])* $variant,)*
        }

        impl BackendChoice {
            pub const ALL: &'static [BackendChoice] = &[Self::Auto, $(Self::$variant,)*];

            /// The backend that was named; nothing for `auto`.
            pub fn named(self) -> Option<BackendName> {
                match self {
                    Self::Auto => None,
                    $(Self::$variant => Some(BackendName::$variant),)*
                }
            }
        }

        impl From<BackendName> for BackendChoice {
            fn from(name: BackendName) -> Self {
                match name { $(BackendName::$variant => Self::$variant,)* }
            }
        }
    };
}

// In the order in which `auto` tries them.
backends! {
    Jail = "jail", Auto, BackendFeatures {
        boundary: Boundary::Sandbox,
        ids: HostIds::Mapped,
        image: ImageUse::Optional,
        trees: TreeAccess::Mounted,
        leftovers: Leftovers::ControlGroups,
        link: LinkKind::Lasting,
    };
    Docker = "docker", Auto, ENGINE;
    Podman = "podman", Auto, ENGINE;
    /// No boundary at all. Never chosen by itself.
    Host = "host", ByName, BackendFeatures {
        boundary: Boundary::None,
        ids: HostIds::Same,
        image: ImageUse::None,
        trees: TreeAccess::Host,
        leftovers: Leftovers::Processes,
        link: LinkKind::Lasting,
    };
}

impl BackendName {
    /// What `auto` means, in its order. Never the host: that has to be chosen explicitly.
    pub fn auto() -> impl Iterator<Item = BackendName> {
        Self::ALL.iter().copied().filter(|name| name.selection() == Selection::Auto)
    }

    /// Those that run images, in the order in which they are tried.
    pub fn engines() -> impl Iterator<Item = BackendName> {
        Self::ALL.iter().copied().filter(|name| name.features().needs_image())
    }
}

impl BackendChoice {
    pub fn name(self) -> &'static str {
        self.named().map_or("auto", BackendName::name)
    }
}

impl fmt::Display for BackendName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for BackendName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().copied().find(|backend| backend.name() == text);
        found.ok_or_else(|| unknown(text, Self::ALL.iter().map(|backend| backend.name())))
    }
}

impl FromStr for BackendChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().copied().find(|choice| choice.name() == text);
        found.ok_or_else(|| unknown(text, Self::ALL.iter().map(|choice| choice.name())))
    }
}

fn unknown(text: &str, names: impl Iterator<Item = &'static str>) -> String {
    let text = crate::text::escape(text.as_bytes());
    let names = names.collect::<Vec<_>>().join(", ");
    format!("there is no backend \"{text}\"; use one of {names}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serialised_names_are_the_names_of_the_rows() {
        for backend in BackendName::ALL {
            let stored = serde_json::to_value(backend).unwrap();
            assert_eq!(stored, backend.name());
            assert_eq!(backend.name().parse(), Ok(*backend));
            assert_eq!(BackendChoice::from(*backend).named(), Some(*backend));
            assert_eq!(backend.name().parse(), Ok(BackendChoice::from(*backend)));
        }
        assert_eq!("auto".parse(), Ok(BackendChoice::Auto));
        let refused = "dokcer".parse::<BackendName>().unwrap_err();
        assert!(refused.contains("jail, docker, podman, host"), "{refused}");
    }

    #[test]
    fn auto_never_means_a_backend_without_a_boundary() {
        assert!(BackendName::auto().all(|backend| backend.features().has_boundary()));
        assert!(BackendName::ALL.iter().any(|backend| !backend.features().has_boundary()));
    }
}
