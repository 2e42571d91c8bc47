//! Finds an agent's program on the host, and the files that must be mounted for it.
//!
//! As few as work: a single file, a package, or an install prefix; never a home directory or a directory that many
//! programs share. Files that a run could have written are not used: a `#!` line names an interpreter, which would be
//! mounted too.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use belljar_spec::OsText;

use super::writable_trees::RunWritableTrees;

/// System directories of the host, which the jail mounts anyway.
const SYSTEM: &[&str] =
    &["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store"];
const PACKAGES: &str = "node_modules";
/// The kernel reads no more of a `#!` line.
const MAX_SHEBANG_BYTES: u64 = 256;

/// Where the system directories in the sandbox come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SystemInside {
    Host,
    /// An image, or `sandbox.rootfs`.
    Other,
}

/// Where to search, and what the sandbox will have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProgramSearch<'a> {
    /// The caller's `PATH`.
    pub(crate) path: Option<&'a OsStr>,
    pub(crate) home: Option<&'a Path>,
    pub(crate) system: SystemInside,
    pub(crate) written: &'a RunWritableTrees,
}

/// A program, and what has to be mounted for it, each at its path on the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AgentProgram {
    /// The command in the sandbox, with the interpreter first if there is one.
    pub(crate) program: Vec<OsText>,
    /// Install prefixes.
    pub(crate) tools: Vec<PathBuf>,
    /// Single files and packages.
    pub(crate) mounts: Vec<PathBuf>,
}

/// The result of searching `PATH` for a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PathLookup {
    /// `None`: the `PATH` in the sandbox decides.
    pub(crate) found: Option<AgentProgram>,
    /// Earlier candidates that could not be used, and why.
    pub(crate) skipped: Vec<String>,
}

pub(crate) fn by_name(name: &str, host: &ProgramSearch<'_>) -> PathLookup {
    let mut by_name = PathLookup::default();
    for path in on_path(OsStr::new(name), host) {
        match describe(&path, host) {
            // The host's system directories are not mounted, and the image may have the program.
            Ok((real, _)) if host.system == SystemInside::Other && is_system(&real) => break,
            Ok((_, found)) => {
                by_name.found = Some(found);
                break;
            }
            Err(why) => by_name.skipped.push(why),
        }
    }
    by_name
}

/// The program at this path.
pub(crate) fn at(path: &Path, host: &ProgramSearch<'_>) -> Result<AgentProgram, String> {
    describe(path, host).map(|(_, found)| found)
}

/// The resolved path, and what the program needs.
fn describe(path: &Path, host: &ProgramSearch<'_>) -> Result<(PathBuf, AgentProgram), String> {
    let real = program(path, host)?;
    let mut found =
        AgentProgram { program: vec![real.as_path().into()], ..AgentProgram::default() };
    found.mount(&real, host);
    let of = |why: String| format!("{}: interpreter: {why}", OsText::from(path));
    match interpreter(&real).map_err(of)? {
        // `env` would search the PATH in the sandbox, which may not have it.
        Some(Interpreter::Named { name, args }) => {
            if let Some(path) = on_path(&name, host).find_map(|path| program(&path, host).ok()) {
                let command = match host.system {
                    SystemInside::Other if is_system(&path) => PathBuf::from(&name),
                    _ => path.clone(),
                };
                found.mount(&path, host);
                let first = [command.into_os_string()].into_iter().chain(args);
                let first = first.map(|argument| OsText::from(argument.as_os_str()));
                found.program = first.chain([real.as_path().into()]).collect();
            }
        }
        // The image may have it even if the host does not.
        Some(Interpreter::At(path)) if host.system == SystemInside::Other && is_system(&path) => {}
        Some(Interpreter::At(path)) => found.mount(&program(&path, host).map_err(of)?, host),
        None => {}
    }
    let AgentProgram { tools, mounts, .. } = &mut found;
    mounts.retain(|path| !tools.iter().any(|tool| path.starts_with(tool)));
    mounts.dedup();
    Ok((real, found))
}

/// The resolved path of a program, if it is one and no run could have put it there.
fn program(path: &Path, host: &ProgramSearch<'_>) -> Result<PathBuf, String> {
    let shown = OsText::from(path);
    let real = host.written.resolve(path).map_err(|why| format!("{shown} {why}"))?;
    let facts = real.metadata().map_err(|error| format!("{shown}: {error}"))?;
    if !is_program(&facts) {
        return Err(format!("{shown} is not a regular file, or not executable"));
    }
    Ok(real)
}

impl AgentProgram {
    fn mount(&mut self, real: &Path, host: &ProgramSearch<'_>) {
        if is_system(real) {
            return; // mounted anyway, or replaced by the image's
        }
        if let Some(package) = package(real) {
            self.mounts.push(package);
        } else if let Some(prefix) = prefix(real, host.home) {
            self.tools.push(prefix);
        } else {
            self.mounts.push(real.to_owned());
        }
    }
}

fn is_system(path: &Path) -> bool {
    SYSTEM.iter().any(|tree| path.starts_with(tree))
}

fn is_program(facts: &Metadata) -> bool {
    facts.is_file() && facts.permissions().mode() & 0o111 != 0
}

/// Relative entries of `PATH` are ignored: they depend on the working directory.
fn on_path<'a>(name: &'a OsStr, host: &ProgramSearch<'a>) -> impl Iterator<Item = PathBuf> + 'a {
    let directories = host.path.into_iter().flat_map(std::env::split_paths);
    let programs = directories.filter(|path| path.is_absolute()).map(move |path| path.join(name));
    programs.filter(|path| path.metadata().is_ok_and(|facts| is_program(&facts)))
}

/// `…/node_modules/name` or `…/node_modules/@scope/name`: the outermost one, which has its own dependencies in it.
fn package(path: &Path) -> Option<PathBuf> {
    let parts: Vec<Component<'_>> = path.components().collect();
    let at = parts.iter().position(|part| part.as_os_str() == PACKAGES)?;
    let scoped = parts.get(at + 1)?.as_os_str().as_bytes().starts_with(b"@");
    let last = at + if scoped { 2 } else { 1 };
    // The file itself must be inside the package.
    (last + 1 < parts.len()).then(|| parts[..=last].iter().collect())
}

/// `P` of `P/bin/program`, if it is the install prefix of a single product.
fn prefix(program: &Path, home: Option<&Path>) -> Option<PathBuf> {
    let bin = program.parent().filter(|bin| bin.file_name() == Some(OsStr::new("bin")))?;
    let prefix = bin.parent()?;
    let is_shared = prefix.components().count() < 3 // `/`, `/opt`, `/home`, `/srv`
        || home.is_some_and(|home| home.starts_with(prefix) || prefix == home.join(".local"));
    let has = |name: &str| prefix.join(name).is_dir();
    let is_prefix = has("lib") && (has("lib/node_modules") || has("share") || has("include"));
    (is_prefix && !is_shared).then(|| prefix.to_owned())
}

enum Interpreter {
    /// `#!/usr/bin/env NAME`.
    Named {
        name: OsString,
        args: Vec<OsString>,
    },
    At(PathBuf),
}

fn interpreter(program: &Path) -> Result<Option<Interpreter>, String> {
    let mut first = Vec::new();
    let read =
        File::open(program).and_then(|file| file.take(MAX_SHEBANG_BYTES).read_to_end(&mut first));
    // A file that cannot be read cannot be a script either.
    let Some(line) = read.ok().and_then(|_| first.strip_prefix(b"#!")) else { return Ok(None) };
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let mut arguments = line.split(u8::is_ascii_whitespace).filter(|text| !text.is_empty());
    let Some(path) = arguments.next() else { return Ok(None) };
    let path = absolute(path)?;
    if path.file_name() != Some(OsStr::new("env")) {
        return Ok(Some(Interpreter::At(path)));
    }
    let mut arguments = arguments.filter(|text| *text != b"-S");
    let Some(name) = arguments.next() else { return Ok(None) };
    if name.contains(&b'/') {
        return Ok(Some(Interpreter::At(absolute(name)?)));
    }
    let args = arguments.map(|text| OsStr::from_bytes(text).into()).collect();
    Ok(Some(Interpreter::Named { name: OsStr::from_bytes(name).into(), args }))
}

/// A relative path would name another file in every directory.
fn absolute(path: &[u8]) -> Result<PathBuf, String> {
    let path = Path::new(OsStr::from_bytes(path));
    match path.is_absolute() {
        true => Ok(path.to_owned()),
        false => Err(format!("{} is not an absolute path", OsText::from(path))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use std::os::unix::fs::symlink;

    use super::*;

    struct World {
        _directory: tempfile::TempDir,
        root: PathBuf,
        home: PathBuf,
    }

    impl World {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let root = directory.path().canonicalize().unwrap();
            let home = root.join("home/u");
            std::fs::create_dir_all(&home).unwrap();
            Self { _directory: directory, root, home }
        }

        fn program(&self, path: &str, content: &str) -> PathBuf {
            let path = self.root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, content).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            path
        }

        fn find(&self, path: &str) -> Option<AgentProgram> {
            self.look(path).found
        }

        fn look(&self, path: &str) -> PathLookup {
            let path: Vec<PathBuf> = path.split(':').map(|entry| self.root.join(entry)).collect();
            let path = std::env::join_paths(path).unwrap();
            let host = ProgramSearch {
                path: Some(&path),
                home: Some(&self.home),
                system: SystemInside::Host,
                written: &RunWritableTrees::new(&[], Some(self.root.join("workspace").as_path())),
            };
            by_name("agent", &host)
        }
    }

    fn argv(paths: &[&Path]) -> Vec<OsText> {
        paths.iter().map(|path| OsText::from(*path)).collect()
    }

    #[test]
    fn a_single_file_is_shown_alone_and_links_are_followed() {
        let world = World::new();
        let real = world.program("home/u/.local/share/agent/versions/1.2.3", "\x7fELF");
        std::fs::create_dir_all(world.home.join(".local/bin")).unwrap();
        std::fs::create_dir_all(world.home.join(".local/lib")).unwrap();
        symlink("../share/agent/versions/1.2.3", world.home.join(".local/bin/agent")).unwrap();
        let found = world.find("home/u/.local/bin").unwrap();
        assert_eq!(found.program, argv(&[&real]));
        assert_eq!((found.tools, found.mounts), (vec![], vec![real]));
    }

    #[test]
    fn neither_a_home_nor_its_local_tree_is_ever_shown_whole() {
        let world = World::new();
        for place in ["home/u/.local", "home/u", "home"] {
            let real = world.program(&format!("{place}/bin/agent"), "\x7fELF");
            std::fs::create_dir_all(world.root.join(place).join("lib/node_modules")).unwrap();
            let found = world.find(&format!("{place}/bin")).unwrap();
            assert_eq!((found.tools, found.mounts), (vec![], vec![real]), "{place}");
        }
        // The control: the same shape elsewhere is a prefix.
        world.program("opt/agent-1/bin/agent", "\x7fELF");
        std::fs::create_dir_all(world.root.join("opt/agent-1/lib/node_modules")).unwrap();
        let found = world.find("opt/agent-1/bin").unwrap();
        assert_eq!((found.tools, found.mounts), (vec![world.root.join("opt/agent-1")], vec![]));
    }

    #[test]
    fn a_package_comes_with_its_interpreter() {
        let world = World::new();
        let script = "home/u/npm/lib/node_modules/@acme/agent/dist/cli.js";
        let script = world.program(script, "#!/usr/bin/env -S node --no-warnings\n");
        std::fs::create_dir_all(world.root.join("home/u/npm/bin")).unwrap();
        symlink(&script, world.root.join("home/u/npm/bin/agent")).unwrap();
        let node = world.program("home/u/.nvm/v20/bin/node", "\x7fELF");
        std::fs::create_dir_all(world.home.join(".nvm/v20/lib/node_modules")).unwrap();
        let found = world.find("home/u/npm/bin:home/u/.nvm/v20/bin").unwrap();
        assert_eq!(found.program, argv(&[&node, Path::new("--no-warnings"), &script]));
        assert_eq!(found.tools, [world.home.join(".nvm/v20")]);
        assert_eq!(found.mounts, [world.home.join("npm/lib/node_modules/@acme/agent")]);
        // A package in the interpreter's own prefix needs nothing more.
        let inner = "home/u/.nvm/v20/lib/node_modules/agent/cli.js";
        let inner = world.program(inner, "#!/usr/bin/env node\n");
        symlink(&inner, world.home.join(".nvm/v20/bin/agent")).unwrap();
        let found = world.find("home/u/.nvm/v20/bin").unwrap();
        assert_eq!(found.program, argv(&[&node, &inner]));
        assert_eq!((found.tools, found.mounts), (vec![world.home.join(".nvm/v20")], vec![]));
    }

    #[test]
    fn what_the_system_has_is_shown_anyway() {
        let written = &RunWritableTrees::default();
        let host = ProgramSearch { path: None, home: None, system: SystemInside::Host, written };
        let found = at(Path::new("/bin/sh"), &host).unwrap();
        assert_eq!((found.tools, found.mounts), (vec![], vec![]));
        assert_eq!(found.program.len(), 1);
        let path = Some(OsStr::new("/bin"));
        let host = ProgramSearch { path, home: None, system: SystemInside::Other, written };
        assert_eq!(by_name("sh", &host), PathLookup::default(), "an image has its own");
    }

    #[test]
    fn what_is_no_program_is_not_found() {
        let world = World::new();
        let plain = world.program("a/agent", "x");
        assert!(world.find("a").is_some());
        std::fs::set_permissions(&plain, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(world.find("a"), None);
        let written = &RunWritableTrees::default();
        let host = ProgramSearch { path: None, home: None, system: SystemInside::Host, written };
        assert!(at(&plain, &host).unwrap_err().contains("not executable"));
        std::fs::create_dir_all(world.root.join("b/agent")).unwrap();
        assert_eq!(world.find("b"), None);
    }

    #[test]
    fn what_a_run_could_have_planted_is_passed_over() {
        let world = World::new();
        let key = world.program("home/u/private/key", "secret");
        let shebang = format!("#!{}\n", key.display());
        let planted = world.program("workspace/node_modules/.bin/agent", &shebang);
        let alone = world.look("workspace/node_modules/.bin");
        assert_eq!(alone.found, None);
        let [why] = alone.skipped.as_slice() else { panic!("{:?}", alone.skipped) };
        assert!(why.contains(planted.to_str().unwrap()) && why.contains("a run"), "{why}");
        // The next one is taken.
        let honest = world.program("opt/agent", "\x7fELF");
        let both = world.look("workspace/node_modules/.bin:opt");
        assert_eq!(both.found.unwrap().program, argv(&[&honest]));
        assert_eq!(both.skipped.len(), 1);
        // Nor does a link of it lead anywhere, on whichever way it is come by.
        std::fs::remove_file(&planted).unwrap();
        symlink(&key, &planted).unwrap();
        assert_eq!(world.find("workspace/node_modules/.bin"), None);
        std::fs::create_dir_all(world.root.join("links")).unwrap();
        symlink(&planted, world.root.join("links/agent")).unwrap();
        assert_eq!(world.find("links"), None);
        symlink(world.root.join("opt"), world.root.join("workspace/bin")).unwrap();
        symlink(world.root.join("workspace/bin"), world.root.join("bin")).unwrap();
        assert_eq!(world.find("bin"), None);
        assert!(world.find("opt").is_some());
    }

    #[test]
    fn an_interpreter_is_a_program_that_no_run_wrote() {
        let world = World::new();
        let good = world.program("opt/interpreter", "\x7fELF");
        let bad = world.program("workspace/interpreter", "\x7fELF");
        let plain = world.program("opt/plain", "x");
        std::fs::set_permissions(&plain, std::fs::Permissions::from_mode(0o644)).unwrap();
        let with = |shebang: &str| {
            world.program("opt/agent", &format!("#!{shebang}\n"));
            world.look("opt")
        };
        let agent = world.root.join("opt/agent");
        assert_eq!(with(good.to_str().unwrap()).found.unwrap().mounts, [agent, good.clone()]);
        assert!(with(&format!("/usr/bin/env {}", good.display())).found.is_some());
        let up = world.root.join("opt/../workspace/interpreter");
        for wrong in [
            bad.display().to_string(),
            up.display().to_string(),
            plain.display().to_string(),
            world.home.display().to_string(),
            "opt/interpreter".to_owned(),
            "/usr/bin/env ../opt/interpreter".to_owned(),
            format!("/usr/bin/env {}", bad.display()),
        ] {
            let looked = with(&wrong);
            assert_eq!((looked.found, looked.skipped.len()), (None, 1), "{wrong}");
        }
        // One of those on PATH is not taken either, and the next one is.
        let other = world.program("workspace/bin/node", "\x7fELF");
        let node = world.program("opt/node", "\x7fELF");
        let agent = world.program("opt/agent", "#!/usr/bin/env node\n");
        let found = world.find("workspace/bin:opt").unwrap();
        assert_eq!(found.program, argv(&[&node, &agent]));
        assert!(!found.mounts.contains(&other));
    }
}
