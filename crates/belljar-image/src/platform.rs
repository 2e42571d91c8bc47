//! Platforms of images, and the choice of one where an image has several.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Operating system and processor, by the names that images use (those of Go).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Platform {
    pub os: String,
    pub architecture: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
}

/// A text that is not a platform.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not a platform; write it as linux/amd64 or linux/arm64/v8")]
pub struct BadPlatform(String);

impl Platform {
    /// What this machine runs without emulation.
    pub fn of_this_machine() -> Self {
        let (architecture, variant) = match std::env::consts::ARCH {
            "x86_64" => ("amd64", None),
            "aarch64" => ("arm64", Some("v8")),
            "arm" => ("arm", Some("v7")),
            "x86" => ("386", None),
            other => (other, None),
        };
        Self {
            os: "linux".to_owned(),
            architecture: architecture.to_owned(),
            variant: variant.map(str::to_owned),
        }
    }

    /// Whether something for `offered` can be used here; a variant that is not named fits.
    pub fn accepts(&self, offered: &Self) -> bool {
        let default = |platform: &Self| match (&platform.variant, platform.architecture.as_str()) {
            (Some(variant), _) => Some(variant.clone()),
            (None, "arm64") => Some("v8".to_owned()),
            (None, _) => None,
        };
        self.os == offered.os
            && self.architecture == offered.architecture
            && (default(self) == default(offered)
                || self.variant.is_none()
                || offered.variant.is_none())
    }

    /// What an image without a platform is taken for.
    pub(crate) fn is_unknown(&self) -> bool {
        (self.os.is_empty() && self.architecture.is_empty()) || self.os == "unknown"
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |text: &str| belljar_spec::text::escape(text.as_bytes());
        write!(f, "{}/{}", shown(&self.os), shown(&self.architecture))?;
        match &self.variant {
            Some(variant) => write!(f, "/{}", shown(variant)),
            None => Ok(()),
        }
    }
}

impl FromStr for Platform {
    type Err = BadPlatform;

    fn from_str(text: &str) -> Result<Self, BadPlatform> {
        let bad = || BadPlatform(belljar_spec::text::escape(text.as_bytes()));
        let plain = |part: &&str| {
            !part.is_empty()
                && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        };
        let mut parts = text.split('/');
        let os = parts.next().filter(plain).ok_or_else(bad)?;
        let architecture = parts.next().filter(plain).ok_or_else(bad)?;
        let variant = parts.next();
        if variant.is_some_and(|variant| !plain(&variant)) || parts.next().is_some() {
            return Err(bad());
        }
        Ok(Self {
            os: os.to_owned(),
            architecture: architecture.to_owned(),
            variant: variant.map(str::to_owned),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn platform(text: &str) -> Platform {
        text.parse().unwrap()
    }

    #[test]
    fn a_variant_decides_only_where_both_name_one() {
        for (wanted, offered, fits) in [
            ("linux/amd64", "linux/amd64", true),
            ("linux/amd64", "linux/arm64", false),
            ("linux/amd64", "windows/amd64", false),
            ("linux/arm64/v8", "linux/arm64", true),
            ("linux/arm64", "linux/arm64/v8", true),
            ("linux/arm/v7", "linux/arm/v6", false),
        ] {
            assert_eq!(platform(wanted).accepts(&platform(offered)), fits, "{wanted} {offered}");
        }
        for bad in ["", "linux", "linux/", "linux/a/b/c", "linux/a b"] {
            assert!(bad.parse::<Platform>().is_err(), "{bad}");
        }
    }
}
