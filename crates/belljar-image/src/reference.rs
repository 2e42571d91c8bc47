//! Parses names of images as engines do. Only a parsed name is put into a request.

use std::fmt;

use belljar_spec::text::escape;

/// What a name without a registry means to Docker.
pub const DOCKER_HUB: &str = "docker.io";
/// Where Podman keeps what was built here.
const LOCAL: &str = "localhost";
const DEFAULT_TAG: &str = "latest";
const MAX_NAME: usize = 255;
const MAX_TAG: usize = 128;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{shown}\" is not an image name: {why}")]
pub struct BadReference {
    shown: String,
    why: String,
}

/// `[REGISTRY/]PATH[:TAG][@DIGEST]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    registry: Option<String>,
    path: String,
    tag: Option<String>,
    digest: Option<String>,
}

/// The name of an image, as the operator wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageName {
    /// The engine's own name for exactly one image. It cannot be fetched.
    Id(String),
    Reference(Reference),
}

impl ImageName {
    pub fn parse(text: &str) -> Result<Self, BadReference> {
        let hex = text.strip_prefix("sha256:").unwrap_or(text);
        if hex.len() == 64 && is_hex(hex) {
            return Ok(Self::Id(format!("sha256:{hex}")));
        }
        Reference::parse(text).map(Self::Reference)
    }
}

impl Reference {
    pub fn parse(text: &str) -> Result<Self, BadReference> {
        let bad = |why: &str| BadReference { shown: escape(text.as_bytes()), why: why.to_owned() };
        if text.is_empty() {
            return Err(bad("it is empty"));
        }
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) if is_digest(digest) => (rest, Some(digest.to_owned())),
            Some(_) => {
                return Err(bad("the part after @ is not a digest such as sha256:<64 digits>"));
            }
            None => (text, None),
        };
        let last = rest.rfind('/').map_or(0, |slash| slash + 1);
        let (name, tag) = match rest[last..].rfind(':') {
            Some(colon) => (&rest[..last + colon], Some(&rest[last + colon + 1..])),
            None => (rest, None),
        };
        if tag.is_some_and(|tag| !is_tag(tag)) {
            return Err(bad(
                "a tag has at most 128 letters, digits, \"_\", \".\" and \"-\", and begins with none of the last two",
            ));
        }
        let (registry, path) = match name.split_once('/') {
            Some((first, path)) if is_like_registry(first) => (Some(first), path),
            _ => (None, name),
        };
        if registry.is_some_and(|registry| !is_registry(registry)) {
            return Err(bad("the part before the first slash is not the address of a registry"));
        }
        if name.len() > MAX_NAME {
            return Err(bad("it has more than 255 characters"));
        }
        if !path.split('/').all(is_path_component) {
            return Err(bad(
                "each part between slashes has lower-case letters and digits, with single \".\", \
                 \"_\" or \"-\" between them",
            ));
        }
        Ok(Self {
            registry: registry.map(str::to_owned),
            path: path.to_owned(),
            tag: tag.map(str::to_owned),
            digest,
        })
    }

    /// No registry is named.
    pub fn is_short(&self) -> bool {
        self.registry.is_none()
    }

    /// Whom to ask, and whose credentials are meant.
    pub fn registry(&self) -> &str {
        match self.registry.as_deref() {
            None | Some("index.docker.io") => DOCKER_HUB,
            Some(registry) => registry,
        }
    }

    /// With the registry, and as the registry itself calls it.
    pub fn whole_repository(&self) -> String {
        let registry = self.registry();
        match registry == DOCKER_HUB && !self.path.contains('/') {
            true => format!("{registry}/library/{}", self.path),
            false => format!("{registry}/{}", self.path),
        }
    }

    /// As it was named, without tag and digest.
    pub fn repository(&self) -> String {
        match &self.registry {
            Some(registry) => format!("{registry}/{}", self.path),
            None => self.path.clone(),
        }
    }

    pub fn has_digest(&self) -> bool {
        self.digest.is_some()
    }

    /// What it is pinned to.
    pub fn digest(&self) -> Option<&str> {
        self.digest.as_deref()
    }

    /// The one complete name: registry, whole path, and the digest or else the tag.
    pub fn canonical(&self) -> String {
        match &self.digest {
            Some(digest) => format!("{}@{digest}", self.whole_repository()),
            None => format!("{}:{}", self.whole_repository(), self.version()),
        }
    }

    pub fn has_tag(&self) -> bool {
        self.tag.is_some()
    }

    /// What to fetch of the repository: one thing, never all its tags.
    pub fn version(&self) -> &str {
        self.digest.as_deref().or(self.tag.as_deref()).unwrap_or(DEFAULT_TAG)
    }

    /// The same one, as Podman keeps it if it was built here.
    pub fn local(&self) -> Self {
        Self { registry: Some(LOCAL.to_owned()), ..self.clone() }
    }

    /// For a request to the engine: the digest, or else the tag. Some engines refuse both together.
    pub fn exact(&self) -> String {
        match &self.digest {
            Some(digest) => format!("{}@{digest}", self.repository()),
            None => format!("{}:{}", self.repository(), self.version()),
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repository())?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        match &self.digest {
            Some(digest) => write!(f, "@{digest}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => f.write_str(id),
            Self::Reference(reference) => reference.fmt(f),
        }
    }
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_digest(text: &str) -> bool {
    match text.split_once(':') {
        Some(("sha256", hex)) => hex.len() == 64 && is_hex(hex),
        Some(("sha512", hex)) => hex.len() == 128 && is_hex(hex),
        _ => false,
    }
}

fn is_tag(text: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    text.len() <= MAX_TAG
        && text.bytes().next().is_some_and(is_letter)
        && text.bytes().all(|byte| is_letter(byte) || matches!(byte, b'.' | b'-'))
}

/// Only such a first part is a registry; any other is part of the path.
fn is_like_registry(text: &str) -> bool {
    text == LOCAL || text.contains(['.', ':']) || text.bytes().any(|byte| byte.is_ascii_uppercase())
}

fn is_registry(text: &str) -> bool {
    let (host, port) = match text.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (text, None),
    };
    let label = |label: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        !label.is_empty()
            && label.bytes().all(plain)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    host.split('.').all(label) && port.is_none_or(|port| port.parse::<u16>().is_ok())
}

fn is_path_component(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    let ends_well =
        bytes.first().is_some_and(|b| plain(*b)) && bytes.last().is_some_and(|b| plain(*b));
    // Between two plain ones: one ".", one or two "_", or any number of "-".
    let mut separators = bytes.split(|byte| plain(*byte)).filter(|run| !run.is_empty());
    ends_well
        && separators
            .all(|run| matches!(run, b"." | b"_" | b"__") || run.iter().all(|byte| *byte == b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn every_shape_is_taken_apart() {
        let of = |text: &str| {
            let parsed = Reference::parse(text).unwrap();
            assert_eq!(parsed.to_string(), text);
            (parsed.whole_repository(), parsed.version().to_owned(), parsed.exact())
        };
        let is = |name: &str, version: &str, exact: &str| {
            (name.to_owned(), version.to_owned(), exact.to_owned())
        };
        assert_eq!(of("debian"), is("docker.io/library/debian", "latest", "debian:latest"));
        assert_eq!(of("me/tool:1.2"), is("docker.io/me/tool", "1.2", "me/tool:1.2"));
        assert_eq!(of("docker.io/x"), is("docker.io/library/x", "latest", "docker.io/x:latest"));
        assert_eq!(
            of("registry:5000/name"),
            is("registry:5000/name", "latest", "registry:5000/name:latest")
        );
        assert_eq!(
            of("registry:5000/a/b__c:v1"),
            is("registry:5000/a/b__c", "v1", "registry:5000/a/b__c:v1")
        );
        assert_eq!(of("localhost/busy:1").0, "localhost/busy");
        let pinned = format!("debian@{DIGEST}");
        assert_eq!(of(&pinned), is("docker.io/library/debian", DIGEST, &pinned));
        let both = format!("quay.io/a/b:1@{DIGEST}");
        assert_eq!(of(&both), is("quay.io/a/b", DIGEST, &format!("quay.io/a/b@{DIGEST}")));
    }

    #[test]
    fn odd_names_are_refused_with_a_reason() {
        for text in [
            "",
            "Debian",
            "a//b",
            "/a",
            "a/",
            "a:",
            "a:b:c",
            "a b",
            "a?b=c",
            "a#x",
            "../x",
            "-a",
            "a..b",
            "a___b",
            "a@sha256:12",
            "a@",
            "reg:99999/a",
            "-reg.io/a",
            "re_g.io/a",
            "a\u{1b}[2J",
            "ä",
            "a%2fb",
        ] {
            let error = Reference::parse(text).unwrap_err().to_string();
            assert!(error.contains("is not an image name: "), "{text}: {error}");
            assert!(!error.contains('\u{1b}'));
        }
        assert!(Reference::parse(&format!("a:{}", "x".repeat(129))).is_err());
        assert!(Reference::parse(&"x".repeat(256)).is_err());
    }

    #[test]
    fn an_id_is_no_name() {
        let hex = DIGEST.strip_prefix("sha256:").unwrap();
        assert_eq!(ImageName::parse(hex), Ok(ImageName::Id(DIGEST.to_owned())));
        assert_eq!(ImageName::parse(DIGEST), Ok(ImageName::Id(DIGEST.to_owned())));
        assert!(matches!(ImageName::parse("e436d8e5edb4"), Ok(ImageName::Reference(_))));
    }
}
