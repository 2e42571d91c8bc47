//! Values that are written as one string or number: sizes, modes, names.

use std::str::FromStr;

use serde_json::{Value as Json, json};

use super::node::{Data, Node, Problem};
use super::value::Value;
use crate::backends::{BackendChoice, BackendName};
use crate::clause::Clause;
use crate::cpus::Cpus;
use crate::human_duration::HumanDuration;
use crate::runspec::{MountMode, User};
use crate::size::Size;

fn parse_text<T: FromStr<Err: ToString>>(node: &Node, wanted: &str) -> Result<T, Problem> {
    match &node.data {
        Data::Text(text) => {
            text.parse().map_err(|error: T::Err| Problem::at(node, error.to_string()))
        }
        Data::Integer(number) => {
            number.to_string().parse().map_err(|error: T::Err| Problem::at(node, error.to_string()))
        }
        Data::Float(number) => {
            number.to_string().parse().map_err(|error: T::Err| Problem::at(node, error.to_string()))
        }
        _ => Err(Problem::wrong_type(node, wanted)),
    }
}

impl Value for Size {
    fn read(node: &Node) -> Result<Self, Problem> {
        parse_text(node, "a size, such as \"512m\"")
    }

    fn write(&self) -> Data {
        Data::Text(self.to_string())
    }

    fn schema() -> Json {
        json!({ "anyOf": [
            { "type": "string", "pattern": "^[0-9]+(\\.[0-9]+)? ?([kKmMgGtTpP]?([iI]?[bB])?)$" },
            { "type": "integer", "minimum": 0 },
        ]})
    }
}

impl Value for HumanDuration {
    fn read(node: &Node) -> Result<Self, Problem> {
        parse_text(node, "a duration, such as \"90s\"")
    }

    fn write(&self) -> Data {
        Data::Text(self.to_string())
    }

    fn schema() -> Json {
        json!({ "anyOf": [{ "type": "string" }, { "type": "number", "minimum": 0 }] })
    }
}

impl Value for Cpus {
    fn read(node: &Node) -> Result<Self, Problem> {
        parse_text(node, "a number of processors, such as 1.5")
    }

    fn write(&self) -> Data {
        Data::Text(self.to_string())
    }

    fn schema() -> Json {
        json!({ "anyOf": [
            { "type": "string", "pattern": "^[0-9]+(\\.[0-9]{1,3})?$" },
            { "type": "number", "exclusiveMinimum": 0 },
        ]})
    }
}

/// A limit, or the string `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit<T> {
    None,
    At(T),
}

impl<T> Limit<T> {
    pub fn value(self) -> Option<T> {
        match self {
            Self::None => None,
            Self::At(value) => Some(value),
        }
    }
}

#[expect(private_bounds, reason = "what can be counted is a closed list")]
impl<T: Countable> Limit<T> {
    /// Refuses 0.
    pub fn at(value: T) -> Result<Self, &'static str> {
        if value.is_nothing() {
            return Err("a limit of 0 would stop everything; for no limit, write \"none\"");
        }
        Ok(Self::At(value))
    }
}

/// What a limit can count. 0 is refused everywhere: some tools read it as "no limit", some as
/// "nothing at all".
pub(crate) trait Countable: Value {
    fn is_nothing(&self) -> bool;
}

impl Countable for Size {
    fn is_nothing(&self) -> bool {
        self.0 == 0
    }
}

impl Countable for HumanDuration {
    fn is_nothing(&self) -> bool {
        self.is_zero()
    }
}

impl Countable for Cpus {
    fn is_nothing(&self) -> bool {
        self.millis() == 0
    }
}

impl Countable for u32 {
    fn is_nothing(&self) -> bool {
        *self == 0
    }
}

impl<T: Countable> Value for Limit<T> {
    fn read(node: &Node) -> Result<Self, Problem> {
        if matches!(&node.data, Data::Text(text) if text == "none") {
            return Ok(Self::None);
        }
        Self::at(T::read(node)?).map_err(|why| Problem::at(node, why))
    }

    fn write(&self) -> Data {
        match self {
            Self::None => Data::Text("none".into()),
            Self::At(value) => value.write(),
        }
    }

    fn schema() -> Json {
        json!({ "anyOf": [{ "const": "none" }, T::schema()] })
    }
}

/// US dollars, not negative and finite.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Usd(pub f64);

impl std::fmt::Display for Usd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl Value for Usd {
    fn read(node: &Node) -> Result<Self, Problem> {
        let amount = match node.data {
            Data::Float(number) => number,
            // Exact up to 2^53 dollars.
            Data::Integer(number) => number as f64,
            _ => return Err(Problem::wrong_type(node, "an amount, such as 25.0")),
        };
        if amount.is_finite() && amount >= 0.0 {
            Ok(Self(amount))
        } else {
            Err(Problem::at(node, "an amount must be 0 or more"))
        }
    }

    fn write(&self) -> Data {
        Data::Float(self.0)
    }

    fn schema() -> Json {
        json!({ "type": "number", "minimum": 0 })
    }
}

impl Value for User {
    fn read(node: &Node) -> Result<Self, Problem> {
        parse_text(node, "UID or \"UID:GID\"")
    }

    fn write(&self) -> Data {
        Data::Text(format!("{}:{}", self.uid, self.gid))
    }

    fn schema() -> Json {
        json!({ "anyOf": [
            { "type": "string", "pattern": "^[0-9]+(:[0-9]+)?$" },
            { "type": "integer", "minimum": 1 },
        ]})
    }
}

impl FromStr for User {
    type Err = String;

    /// `UID[:GID]`; the gid defaults to the uid's number.
    fn from_str(text: &str) -> Result<Self, String> {
        let shown = || crate::text::escape(text.as_bytes());
        let number = |part: &str| {
            let wrong = || format!("\"{}\" is not UID or UID:GID; both are numbers", shown());
            let digits = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
            digits.then(|| part.parse::<u32>().ok()).flatten().ok_or_else(wrong)
        };
        let (uid, gid) = match text.split_once(':') {
            Some((uid, gid)) => (number(uid)?, number(gid)?),
            None => (number(text)?, number(text)?),
        };
        Self { uid, gid }.checked(&shown())
    }
}

impl User {
    /// Refuses root, and the number that means "no user".
    pub fn new(uid: u32, gid: u32) -> Result<Self, String> {
        Self { uid, gid }.checked(&format!("{uid}:{gid}"))
    }

    fn checked(self, shown: &str) -> Result<Self, String> {
        let Self { uid, gid } = self;
        if uid == 0 || gid == 0 {
            return Err(format!(
                "user \"{shown}\" is root; commands inside never run as root, because file ownership and many \
                 programs give 0 special rights; choose another number, such as 1000"
            ));
        }
        if uid == u32::MAX || gid == u32::MAX {
            return Err(format!("user \"{shown}\" is the number that means \"no user\""));
        }
        Ok(self)
    }
}

impl AgentKind {
    /// Belljar knows its program, its account and how it takes a prompt. Otherwise the operator names a command.
    pub fn has_preset(self) -> bool {
        self != Self::Command
    }
}

/// Implements [`Value`] for an enum with one fixed string for each variant.
macro_rules! named_values {
    ($($type:ty: $all:expr;)*) => {$(
        impl Value for $type {
            fn read(node: &Node) -> Result<Self, Problem> {
                match &node.data {
                    Data::Text(text) => text
                        .parse()
                        .map_err(|error: <$type as FromStr>::Err| Problem::at(node, error.to_string())),
                    _ => Err(Problem::wrong_type(node, "a string (in quotes)")),
                }
            }

            fn write(&self) -> Data {
                Data::Text(self.name().to_owned())
            }

            fn schema() -> Json {
                let names: Vec<&str> = $all.iter().map(|value| value.name()).collect();
                json!({ "type": "string", "enum": names })
            }
        }
    )*};
}

named_values! {
    Clause: Clause::ALL;
    BackendName: BackendName::ALL;
    BackendChoice: BackendChoice::ALL;
    MountMode: MountMode::ALL;
    WorkspaceMode: WorkspaceMode::ALL;
    Pull: Pull::ALL;
    GitMode: GitMode::ALL;
    AgentKind: AgentKind::ALL;
    OutputFormat: OutputFormat::ALL;
    Permissions: Permissions::ALL;
    Auth: Auth::ALL;
    CommandMode: CommandMode::ALL;
    SessionMode: SessionMode::ALL;
}

/// Declares an enum with one fixed string for each variant.
macro_rules! named_enums {
    ($($(#[doc = $doc:literal])* $name:ident ($what:literal) {
        $($(#[doc = $vdoc:literal])* $variant:ident = $name_text:literal,)*
    })*) => {$(
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum $name { $($(#[doc = $vdoc])* $variant,)* }

        impl $name {
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name_text,)* }
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                Self::ALL.iter().copied().find(|value| value.name() == text).ok_or_else(|| {
                    let known: Vec<&str> = Self::ALL.iter().map(|value| value.name()).collect();
                    format!(
                        "there is no {} \"{}\"; use one of {}",
                        $what,
                        crate::text::escape(text.as_bytes()),
                        known.join(", ")
                    )
                })
            }
        }
    )*};
}

named_enums! {
    /// How the workspace appears inside, if at all.
    WorkspaceMode ("workspace mode") {
        Ro = "ro",
        Rw = "rw",
        Overlay = "overlay",
        /// The run works on nothing of the host.
        None = "none",
    }
    /// When an image is fetched.
    Pull ("pull policy") { Always = "always", Missing = "missing", Never = "never", }
    /// Whether the repository of a workspace whose `.git` is a file is mounted.
    GitMode ("git mode") {
        /// Where the `.git` file and the repository name each other.
        Auto = "auto",
        Off = "off",
    }
    /// Which agent a run without a command runs.
    AgentKind ("agent") { Claude = "claude", Codex = "codex", Gemini = "gemini", Command = "command", }
    /// Whose output a command of the kind `command` prints.
    OutputFormat ("output format") { Claude = "claude", Codex = "codex", Gemini = "gemini", }
    /// What the agent may do without asking.
    Permissions ("permission mode") { Bypass = "bypass", AcceptEdits = "accept-edits", Ask = "ask", }
    /// What the agent remembers of the iteration before.
    SessionMode ("session mode") {
        /// Nothing but what it finds in the files.
        Fresh = "fresh",
        /// The session of the iteration before continues.
        Continue = "continue",
    }
    /// How the agent logs in.
    Auth ("login method") {
        /// A secret that never goes in.
        Secret = "secret",
        /// A read-only copy of the host's login.
        Files = "files",
        /// The host's login, which stays outside and is kept fresh there.
        Login = "login",
    }
    /// What happens to a command that a rule denies.
    CommandMode ("command mode") { Off = "off", Warn = "warn", Strict = "strict", }
}

/// An image that exists is used, a missing one is fetched.
#[allow(clippy::derivable_impls, reason = "the enum is declared by a macro")]
impl Default for Pull {
    fn default() -> Self {
        Self::Missing
    }
}

impl From<MountMode> for WorkspaceMode {
    fn from(mode: MountMode) -> Self {
        match mode {
            MountMode::Ro => Self::Ro,
            MountMode::Rw => Self::Rw,
            MountMode::Overlay => Self::Overlay,
        }
    }
}
