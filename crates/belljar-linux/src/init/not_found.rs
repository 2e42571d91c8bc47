//! Finds out why the kernel did not find a program whose file is there: a link that leads nowhere, or an interpreter
//! that does not exist. Runs as the command's user, after its lock-down, in place of the command.

use std::ffi::OsStr;
use std::fs::{File, metadata, read_link, symlink_metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use belljar_spec::NotFoundCause;
use rustix::fs::{Mode, OFlags, open};

/// Links that are followed one after the other.
const MAX_LINKS: usize = 16;
/// The kernel reads no more of a `#!` line.
const MAX_FIRST_LINE: usize = 256;
const ELF: &[u8] = b"\x7fELF\x02\x01";
const PT_INTERP: u32 = 3;

/// Why there is no program at a path; `None` if there is no file either.
pub(super) fn cause(path: &Path) -> Option<NotFoundCause> {
    if let Some(cause) = broken_link(path) {
        return Some(cause);
    }
    let interpreter = interpreter(path)?;
    let is_missing = metadata(&interpreter).is_err();
    is_missing.then(|| NotFoundCause::Interpreter {
        file: path.into(),
        interpreter: interpreter.as_path().into(),
    })
}

/// A link on the way to the file, or the file itself, that leads to nothing.
fn broken_link(path: &Path) -> Option<NotFoundCause> {
    let mut parts: Vec<&Path> =
        path.ancestors().filter(|part| !part.as_os_str().is_empty()).collect();
    parts.reverse();
    let link = parts.into_iter().find(|part| {
        symlink_metadata(part).is_ok_and(|found| found.is_symlink()) && metadata(part).is_err()
    })?;
    let mut to = link.to_owned();
    for _ in 0..MAX_LINKS {
        let next = read_link(&to).ok()?;
        to = normal(&to.parent().unwrap_or(Path::new("/")).join(next));
        if !symlink_metadata(&to).is_ok_and(|found| found.is_symlink()) {
            let rest = path.strip_prefix(link).ok()?;
            let to = if rest.as_os_str().is_empty() { to } else { to.join(rest) };
            return Some(NotFoundCause::Link { link: link.into(), to: to.as_path().into() });
        }
    }
    None
}

/// Without `.` and `..`, which links often have.
fn normal(path: &Path) -> PathBuf {
    use std::path::Component;
    let mut shown = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(shown.pop()),
            Component::CurDir => {}
            other => shown.push(other),
        }
    }
    shown
}

/// What the kernel starts in place of the file: of a `#!` line, or the loader of a program.
fn interpreter(path: &Path) -> Option<PathBuf> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK; // a FIFO would block
    let file = File::from(open(path, flags, Mode::empty()).ok()?);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut start = [0; MAX_FIRST_LINE];
    let count = file.read_at(&mut start, 0).ok()?;
    let start = &start[..count];
    if let Some(line) = start.strip_prefix(b"#!") {
        let line = line.split(|byte| *byte == b'\n').next()?.trim_ascii();
        let name = line.split(|byte| byte.is_ascii_whitespace()).next()?;
        return (!name.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(name)));
    }
    loader(&file, start)
}

fn loader(file: &File, start: &[u8]) -> Option<PathBuf> {
    start.starts_with(ELF).then_some(())?;
    let half = |bytes: &[u8], at: usize| Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let word = |bytes: &[u8], at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let long = |bytes: &[u8], at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let (headers, size, count) = (long(start, 32)?, half(start, 54)?, half(start, 56)?);
    for index in 0..count {
        let mut header = [0; 56];
        let at = headers.checked_add(u64::from(index) * u64::from(size))?;
        file.read_exact_at(&mut header, at).ok()?;
        if word(&header, 0)? == PT_INTERP {
            let mut name = [0; MAX_FIRST_LINE];
            let read = file.read_at(&mut name, long(&header, 8)?).ok()?;
            let name = name[..read].split(|byte| *byte == 0).next()?;
            return (!name.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(name)));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_and_an_interpreter_that_are_missing_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let link = |to: &str, name: &str| std::os::unix::fs::symlink(to, at(name)).unwrap();
        link("/nowhere/bin/x", "direct");
        link("direct", "chain");
        link("/nowhere", "prefix");
        link("../nowhere-else", "relative");
        let led = |name: &str| match cause(&at(name)) {
            Some(NotFoundCause::Link { to, .. }) => to.to_string(),
            other => panic!("{name}: {other:?}"),
        };
        assert_eq!(led("direct"), "/nowhere/bin/x");
        assert_eq!(led("chain"), "/nowhere/bin/x");
        assert_eq!(led("prefix/bin/y"), "/nowhere/bin/y");
        let above = directory.path().parent().unwrap().join("nowhere-else");
        assert_eq!(led("relative"), above.display().to_string());
        link("loop", "loop");
        assert_eq!(cause(&at("loop")), None);
        assert_eq!(cause(&at("missing")), None);

        let needs = |name: &str, content: &[u8]| {
            std::fs::write(at(name), content).unwrap();
            match cause(&at(name)) {
                Some(NotFoundCause::Interpreter { interpreter, .. }) => {
                    Some(interpreter.to_string())
                }
                other => {
                    assert_eq!(other, None, "{name}");
                    None
                }
            }
        };
        assert_eq!(needs("a", b"#! /nowhere/python3 -E\nx\n").unwrap(), "/nowhere/python3");
        assert_eq!(needs("b", b"#!/bin/sh\n"), None);
        assert_eq!(needs("c", b"#!"), None);
        assert_eq!(needs("d", b"no program\n"), None);
        // A program of this machine with another loader in it.
        let mut program = std::fs::read("/bin/sh").unwrap();
        let name = b"/lib64/ld-linux-x86-64.so.2";
        if let Some(found) = program.windows(name.len()).position(|bytes| bytes == name) {
            program[found + 1..found + 4].copy_from_slice(b"not");
            assert_eq!(needs("e", &program).unwrap(), "/not64/ld-linux-x86-64.so.2");
            assert_eq!(needs("f", &std::fs::read("/bin/sh").unwrap()), None);
        }
        assert_eq!(needs("g", b"\x7fELF\x02\x01"), None, "cut");
    }
}
