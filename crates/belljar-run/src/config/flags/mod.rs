//! Turns the flags of `run` into layers of settings.

mod secret;
mod table;
mod values;

use std::ffi::OsString;
use std::path::Path;

use belljar_spec::egress::Reach;
use belljar_spec::layers;
use belljar_spec::manifest::{Place, Prefer};
use belljar_spec::text::escape;
use belljar_spec::{Layer, Manifest, ManifestError, Origin};

pub use table::{FLAGS, Flag};

use table::{FlagParser, Parse};

/// Flags as written on the command line.
#[derive(Clone, Debug, Default)]
pub struct GivenFlags {
    /// Every `-c KEY=VALUE`.
    pub assignments: Vec<String>,
    values: Vec<(&'static Flag, Vec<OsString>)>,
}

/// Settings of this run alone, and what set them.
#[derive(Clone, Debug)]
pub struct Override {
    pub origin: Origin,
    pub values: Manifest,
}

#[derive(Debug, thiserror::Error)]
pub enum FlagError {
    #[error("{flag}: {why}")]
    Value { flag: &'static str, why: String },
    #[error(transparent)]
    Setting(#[from] ManifestError),
}

impl GivenFlags {
    /// Flags may be added in any order.
    pub fn add(&mut self, flag: &'static Flag, values: impl IntoIterator<Item = OsString>) {
        self.values.push((flag, values.into_iter().collect()));
    }

    /// Whether a flag has a value.
    pub fn is_given(&self, name: &str) -> bool {
        self.values.iter().any(|(flag, values)| flag.name == name && !values.is_empty())
    }

    /// One layer per flag, so that the origin of each key names its flag. `-c` comes first: a specific flag overrides
    /// it. `reach` is what `--learn` asks for.
    pub fn parse(&self, reach: Reach) -> Result<Vec<Override>, FlagError> {
        let assigned = self.assignments.iter().map(|text| Override::assigned(text));
        let mut given: Vec<_> = self.values.iter().filter(|(_, texts)| !texts.is_empty()).collect();
        given.sort_by_key(|(flag, _)| FLAGS.iter().position(|known| known.name == flag.name));
        let flags = given.iter().map(|(flag, texts)| {
            let values = flag.parse(texts)?;
            Ok(Override { origin: Origin::Flag(flag.name.to_owned()), values })
        });
        let parsed: Vec<Override> = assigned.chain(flags).collect::<Result<_, FlagError>>()?;
        let is_given = |name: &str| given.iter().any(|(flag, _)| flag.name == name);
        if is_given("--network") && (is_given("--allow-host") || reach != Reach::Listed) {
            let why = "\"none\" contradicts --allow-host and --learn; remove one of them";
            return Err(FlagError::Value { flag: "--network", why: why.into() });
        }
        Ok(parsed)
    }
}

impl Flag {
    fn parse(&self, texts: &[OsString]) -> Result<Manifest, FlagError> {
        let wrong = |why: String| FlagError::Value { flag: self.name, why };
        let mut values = Manifest::default();
        for text in texts {
            let utf8 = || text.to_str().ok_or_else(|| wrong("the value is not valid UTF-8".into()));
            match self.parser {
                FlagParser::Key => {
                    let text = utf8()?;
                    let place = Place::Flag(format!("{} {}", self.name, escape(text.as_bytes())));
                    values = Manifest::from_setting(&self.keys(), text, Prefer::Text, place)?;
                }
                FlagParser::Once(Parse::Text(add)) | FlagParser::Many(Parse::Text(add)) => {
                    add(&mut values, utf8()?).map_err(wrong)?;
                }
                FlagParser::Once(Parse::Bytes(add)) | FlagParser::Many(Parse::Bytes(add)) => {
                    add(&mut values, text).map_err(wrong)?;
                }
            }
        }
        Ok(values)
    }
}

impl Override {
    /// One `-c KEY=VALUE`.
    pub fn assigned(text: &str) -> Result<Self, FlagError> {
        let origin = Origin::Flag("-c".to_owned());
        Ok(Self { origin, values: layers::from_assignment(text)? })
    }

    pub(super) fn layer(&self, directory: &Path) -> Layer {
        let (origin, values) = (self.origin.clone(), self.values.clone());
        Layer { origin, directory: directory.to_owned(), values }
    }

    /// Whether this is the layer of a flag.
    pub(super) fn is_flag(&self, name: &str) -> bool {
        matches!(&self.origin, Origin::Flag(flag) if flag == name)
    }
}
