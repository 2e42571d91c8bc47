//! Parses mounts of the command line: `-v`, `--mount`, `--tmpfs`, `--workspace`.
//!
//! Works on bytes, because a path need not be UTF-8. Does not check whether a path exists or may be mounted.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::runspec::MountMode;
use crate::size::Size;
use crate::text::{OsText, escape};

/// The default size of a file system in memory.
pub const DEFAULT_TMPFS_SIZE: Size = Size(64 << 20);

/// `-v SRC:DST[:ro|rw|overlay]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindArg {
    pub source: OsText,
    pub target: OsText,
    pub mode: MountMode,
}

/// `--tmpfs DST[:size=64m]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TmpfsArg {
    pub target: OsText,
    pub size: Size,
}

/// `--mount type=…`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountArg {
    Bind(BindArg),
    Tmpfs(TmpfsArg),
}

/// `--workspace DIR[:rw|ro|overlay]`, or `none`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkspaceArg {
    None,
    Directory { path: OsText, mode: Option<MountMode> },
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MountArgError {
    #[error(
        "there is no mode \"{given}\"; use :ro, :rw or :overlay (after a path that ends like this, write the mode too)"
    )]
    WorkspaceMode { given: String },
    #[error("\"{0}\" has no target; write SOURCE:TARGET, then :ro, :rw or :overlay")]
    NoTarget(String),
    #[error("\"{0}\" has an empty path; write SOURCE:TARGET, then :ro, :rw or :overlay")]
    EmptyPath(String),
    #[error("\"{given}\": {why}")]
    Mode { given: String, why: String },
    #[error("\"{given}\": {why}")]
    Size { given: String, why: String },
    #[error("\"{given}\" has the unknown option \"{option}\"; use {known}")]
    UnknownOption { given: String, option: String, known: &'static str },
    #[error("\"{given}\" has \"{option}\" twice")]
    Twice { given: String, option: &'static str },
    #[error("\"{given}\" needs {option}=…")]
    Missing { given: String, option: &'static str },
    #[error("\"{given}\" has the unknown type \"{kind}\"; use bind or tmpfs")]
    UnknownType { given: String, kind: String },
    #[error("\"{0}\" contains a NUL byte, which is not allowed in a path")]
    Nul(String),
}

impl BindArg {
    /// Read-only unless `rw` is given. A colon is always a separator, never part of a path: use
    /// [`MountArg`] for such a path.
    pub fn parse(text: &OsStr) -> Result<Self, MountArgError> {
        let bytes = whole(text)?;
        let given = || escape(bytes);
        let parts: Vec<&[u8]> = bytes.split(|b| *b == b':').collect();
        let (source, target, mode) = match parts.as_slice() {
            [source, target] => (*source, *target, MountMode::Ro),
            [source, target, mode] => (*source, *target, mode_of(mode, bytes)?),
            [_] => return Err(MountArgError::NoTarget(given())),
            _ => {
                let why = "more than two colons; use --mount type=bind,src=…,dst=…".to_owned();
                return Err(MountArgError::Mode { given: given(), why });
            }
        };
        if source.is_empty() || target.is_empty() {
            return Err(MountArgError::EmptyPath(given()));
        }
        Ok(Self { source: owned(source), target: owned(target), mode })
    }
}

impl TmpfsArg {
    pub fn parse(text: &OsStr) -> Result<Self, MountArgError> {
        let bytes = whole(text)?;
        let given = || escape(bytes);
        let (target, options) = match bytes.iter().position(|b| *b == b':') {
            Some(at) => (&bytes[..at], &bytes[at + 1..]),
            None => (bytes, &[][..]),
        };
        if target.is_empty() {
            return Err(MountArgError::EmptyPath(given()));
        }
        let mut size = None;
        for option in options.split(|b| *b == b',').filter(|option| !option.is_empty()) {
            match split_option(option) {
                (b"size", Some(value)) => set("size", &mut size, size_of(value, bytes)?, bytes)?,
                _ => return Err(unknown(option, bytes, "size=")),
            }
        }
        Ok(Self { target: owned(target), size: size.unwrap_or(DEFAULT_TMPFS_SIZE) })
    }
}

impl MountArg {
    /// Docker's syntax: `type=bind,src=/a,dst=/b,rw`. Bind unless a type is given, read-only
    /// unless `rw` is given.
    pub fn parse(text: &OsStr) -> Result<Self, MountArgError> {
        let bytes = whole(text)?;
        let mut options = Options::default();
        for option in bytes.split(|b| *b == b',') {
            options.take(option, bytes)?;
        }
        options.finish(bytes)
    }
}

const BIND_OPTIONS: &str = "type, src (source), dst (target, destination), ro (readonly), rw, mode, \
                            tmpfs-size (size)";

#[derive(Default)]
struct Options<'a> {
    kind: Option<&'a [u8]>,
    source: Option<&'a [u8]>,
    target: Option<&'a [u8]>,
    mode: Option<MountMode>,
    size: Option<Size>,
}

impl<'a> Options<'a> {
    fn take(&mut self, option: &'a [u8], all: &[u8]) -> Result<(), MountArgError> {
        match split_option(option) {
            (b"type", Some(kind)) => set("type", &mut self.kind, kind, all),
            (b"source" | b"src", Some(path)) => set("src", &mut self.source, path, all),
            (b"target" | b"dst" | b"destination", Some(path)) => {
                set("dst", &mut self.target, path, all)
            }
            (b"mode", Some(mode)) => set("mode", &mut self.mode, mode_of(mode, all)?, all),
            (b"ro" | b"readonly", None | Some(b"true" | b"1")) => {
                set("mode", &mut self.mode, MountMode::Ro, all)
            }
            (b"rw", None | Some(b"true" | b"1")) | (b"ro" | b"readonly", Some(b"false" | b"0")) => {
                set("mode", &mut self.mode, MountMode::Rw, all)
            }
            (b"tmpfs-size" | b"size", Some(size)) => {
                set("size", &mut self.size, size_of(size, all)?, all)
            }
            _ => Err(unknown(option, all, BIND_OPTIONS)),
        }
    }

    fn finish(self, all: &[u8]) -> Result<MountArg, MountArgError> {
        let missing = |option| MountArgError::Missing { given: escape(all), option };
        let filled = |path: Option<&[u8]>, option| match path {
            Some(path) if !path.is_empty() => Ok(owned(path)),
            _ => Err(missing(option)),
        };
        let target = filled(self.target, "dst")?;
        match self.kind.unwrap_or(b"bind") {
            b"bind" => {
                if self.size.is_some() {
                    return Err(unknown(b"size", all, "type, src, dst, ro, rw, mode"));
                }
                let mode = self.mode.unwrap_or(MountMode::Ro);
                Ok(MountArg::Bind(BindArg { source: filled(self.source, "src")?, target, mode }))
            }
            b"tmpfs" => {
                if self.source.is_some() || self.mode.is_some() {
                    return Err(unknown(b"src, ro, rw or mode", all, "type, dst, tmpfs-size"));
                }
                let size = self.size.unwrap_or(DEFAULT_TMPFS_SIZE);
                Ok(MountArg::Tmpfs(TmpfsArg { target, size }))
            }
            kind => Err(MountArgError::UnknownType { given: escape(all), kind: escape(kind) }),
        }
    }
}

impl WorkspaceArg {
    /// A colon with anything but letters after it belongs to the path, and so does every colon but the last.
    pub fn parse(text: &OsStr) -> Result<Self, MountArgError> {
        let bytes = whole(text)?;
        if bytes == b"none" {
            return Ok(Self::None);
        }
        let last = bytes.iter().rposition(|b| *b == b':');
        let (path, mode) = match last.map(|at| (&bytes[..at], mode_of(&bytes[at + 1..], bytes))) {
            Some((path, Ok(mode))) => (path, Some(mode)),
            Some((path, Err(_))) if is_word(&bytes[path.len() + 1..]) => {
                let given = escape(&bytes[path.len() + 1..]);
                return Err(MountArgError::WorkspaceMode { given });
            }
            _ => (bytes, None),
        };
        if path.is_empty() {
            return Err(MountArgError::EmptyPath(escape(bytes)));
        }
        Ok(Self::Directory { path: owned(path), mode })
    }
}

fn is_word(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(u8::is_ascii_alphabetic)
}

fn whole(text: &OsStr) -> Result<&[u8], MountArgError> {
    let bytes = text.as_bytes();
    if bytes.contains(&0) { Err(MountArgError::Nul(escape(bytes))) } else { Ok(bytes) }
}

fn owned(bytes: &[u8]) -> OsText {
    OsText::from_bytes(bytes.to_vec())
}

fn split_option(option: &[u8]) -> (&[u8], Option<&[u8]>) {
    match option.iter().position(|b| *b == b'=') {
        Some(at) => (&option[..at], Some(&option[at + 1..])),
        None => (option, None),
    }
}

fn mode_of(mode: &[u8], all: &[u8]) -> Result<MountMode, MountArgError> {
    let parsed = std::str::from_utf8(mode).map_err(|error| error.to_string());
    parsed.and_then(str::parse).map_err(|why| MountArgError::Mode { given: escape(all), why })
}

fn size_of(size: &[u8], all: &[u8]) -> Result<Size, MountArgError> {
    let wrong = |why: String| MountArgError::Size { given: escape(all), why };
    let text = std::str::from_utf8(size).map_err(|error| wrong(error.to_string()))?;
    let size: Size = text.parse().map_err(|error: crate::SizeError| wrong(error.to_string()))?;
    if size.0 == 0 { Err(wrong("a size of 0 leaves no room".into())) } else { Ok(size) }
}

fn set<T>(
    option: &'static str,
    slot: &mut Option<T>,
    value: T,
    all: &[u8],
) -> Result<(), MountArgError> {
    if slot.is_some() {
        return Err(MountArgError::Twice { given: escape(all), option });
    }
    *slot = Some(value);
    Ok(())
}

fn unknown(option: &[u8], all: &[u8], known: &'static str) -> MountArgError {
    MountArgError::UnknownOption { given: escape(all), option: escape(option), known }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bind(source: &str, target: &str, mode: MountMode) -> BindArg {
        BindArg { source: source.into(), target: target.into(), mode }
    }

    #[test]
    fn a_volume_is_read_only_unless_rw_is_given() {
        let parse = |text: &str| BindArg::parse(OsStr::new(text));
        assert_eq!(parse("/a:/b"), Ok(bind("/a", "/b", MountMode::Ro)));
        assert_eq!(parse("/a:/b:ro"), Ok(bind("/a", "/b", MountMode::Ro)));
        assert_eq!(parse("a:/b:rw"), Ok(bind("a", "/b", MountMode::Rw)));
        assert_eq!(parse("/a:/b:overlay"), Ok(bind("/a", "/b", MountMode::Overlay)));
        assert!(matches!(parse("/a"), Err(MountArgError::NoTarget(_))));
        assert!(matches!(parse(":/b"), Err(MountArgError::EmptyPath(_))));
        assert!(matches!(parse("/a:"), Err(MountArgError::EmptyPath(_))));
        assert!(matches!(parse("/a:/b:z"), Err(MountArgError::Mode { .. })));
        assert!(matches!(parse("/a:/b:rw:z"), Err(MountArgError::Mode { .. })));
    }

    #[test]
    fn bytes_that_are_not_utf8_pass_through() {
        let arg = BindArg::parse(OsStr::from_bytes(b"/a\xff:/b\xfe:rw")).unwrap();
        assert_eq!(arg.source.as_bytes(), b"/a\xff");
        assert_eq!(arg.target.as_bytes(), b"/b\xfe");
        let arg = WorkspaceArg::parse(OsStr::from_bytes(b"/w\xff:overlay")).unwrap();
        let WorkspaceArg::Directory { path, mode } = arg else { panic!("{arg:?}") };
        assert_eq!((path.as_bytes(), mode), (&b"/w\xff"[..], Some(MountMode::Overlay)));
    }

    #[test]
    fn dockers_long_spelling_is_understood() {
        let parse = |text: &str| MountArg::parse(OsStr::new(text));
        let want = Ok(MountArg::Bind(bind("/a", "/b", MountMode::Ro)));
        for same in [
            "type=bind,src=/a,dst=/b",
            "type=bind,source=/a,target=/b,readonly",
            "src=/a,destination=/b,ro",
            "type=bind,src=/a,dst=/b,readonly=true",
            "type=bind,src=/a,dst=/b,mode=ro",
        ] {
            assert_eq!(parse(same), want, "{same}");
        }
        let rw = Ok(MountArg::Bind(bind("/a:x", "/b", MountMode::Rw)));
        assert_eq!(parse("type=bind,src=/a:x,dst=/b,rw"), rw);
        let tmpfs = TmpfsArg { target: "/t".into(), size: Size(1 << 20) };
        assert_eq!(parse("type=tmpfs,dst=/t,tmpfs-size=1m"), Ok(MountArg::Tmpfs(tmpfs.clone())));
        assert_eq!(parse("type=tmpfs,dst=/t,size=1m"), Ok(MountArg::Tmpfs(tmpfs)));
    }

    #[test]
    fn wrong_options_are_named() {
        let parse = |text: &str| MountArg::parse(OsStr::new(text)).unwrap_err().to_string();
        assert!(parse("type=bind,src=/a").contains("dst="));
        assert!(parse("type=bind,dst=/a").contains("src="));
        assert!(parse("type=volume,src=a,dst=/a").contains("\"volume\""));
        assert!(parse("src=/a,dst=/b,bind-propagation=shared").contains("bind-propagation"));
        assert!(parse("src=/a,src=/c,dst=/b").contains("twice"));
        assert!(parse("src=/a,dst=/b,ro,rw").contains("twice"));
        assert!(parse("type=tmpfs,dst=/b,rw").contains("unknown option"));
        assert!(parse("type=bind,src=/a,dst=/b,size=1m").contains("size"));
    }

    #[test]
    fn a_tmpfs_has_a_size() {
        let parse = |text: &str| TmpfsArg::parse(OsStr::new(text));
        let sized = TmpfsArg { target: "/t".into(), size: Size(2 << 30) };
        assert_eq!(parse("/t:size=2g"), Ok(sized));
        assert_eq!(parse("/t").map(|arg| arg.size), Ok(DEFAULT_TMPFS_SIZE));
        assert!(parse("/t:exec").is_err());
        assert!(parse("/t:size=0").is_err());
        assert!(parse("/t:size=big").is_err());
    }

    #[test]
    fn a_colon_in_a_workspace_path_stays() {
        let parse = |text: &str| WorkspaceArg::parse(OsStr::new(text));
        let dir = |path: &str, mode| WorkspaceArg::Directory { path: path.into(), mode };
        assert_eq!(parse("none"), Ok(WorkspaceArg::None));
        assert_eq!(parse("./none"), Ok(dir("./none", None)));
        assert_eq!(parse("/w:ro"), Ok(dir("/w", Some(MountMode::Ro))));
        assert_eq!(parse("/w:1"), Ok(dir("/w:1", None)));
        assert!(parse(":rw").is_err());
    }
}
