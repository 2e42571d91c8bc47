//! What other runs left, or have: by path, through /proc, through a descriptor, through a link.

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use belljar_spec::Clause;
use rustix::fs::{Mode, OFlags, open};

use super::judge::{hosts_own, met, nothing_of_the_hosts, summary};
use crate::case::{Case, Severity, Verdict};
use crate::stage::{Run, Stage, StageError, Unprotected};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "fs.sibling-by-path",
        attack: "read another run's folder by its path",
        clause: Clause::FsMounts,
        severity: Severity::Critical,
        run: by_path,
    },
    Case {
        name: "fs.sibling-through-proc",
        attack: "read it through the root and working directory of every process in /proc",
        clause: Clause::FsMounts,
        severity: Severity::Critical,
        run: through_proc,
    },
    Case {
        name: "env.inherited-descriptor",
        attack: "read it through a descriptor that the launcher was started with",
        clause: Clause::EnvClean,
        severity: Severity::Critical,
        run: inherited_descriptor,
    },
    Case {
        name: "fs.workdir-descriptor",
        attack: "start in /proc/self/fd/N, a directory the launcher holds",
        clause: Clause::FsMounts,
        severity: Severity::Critical,
        run: workdir_descriptor,
    },
    Case {
        name: "fs.planted-link",
        attack: "plant a link to it for the next run to mount",
        clause: Clause::FsMounts,
        severity: Severity::Critical,
        run: planted_link,
    },
];

/// A run that has been, with a secret in the folder that is its home.
struct Sibling {
    runs: PathBuf,
    folder: PathBuf,
    secret: PathBuf,
    /// What only the secret holds.
    text: String,
}

impl Sibling {
    fn make(stage: &Stage) -> Result<Self, StageError> {
        let runs = stage.belljar_home().join("runs");
        let before = names_in(&runs);
        let workspace = stage.workspace()?;
        let seen = stage.inside(&Run::of(&workspace, "sleep").arg("0"))?;
        seen.told()?;
        let new = names_in(&runs).into_iter().find(|name| !before.contains(name));
        let folder =
            new.ok_or_else(|| StageError::Unexpected("a run has left no folder".to_owned()))?;
        let secret = folder.join("home/secret");
        let text = format!("{} of the sibling\n", stage.word()?);
        stage.file(&secret, &text)?;
        Ok(Self { runs, folder, secret, text })
    }

    fn paths(&self) -> [&Path; 3] {
        [&self.secret, &self.folder, &self.runs]
    }
}

fn names_in(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

fn by_path(stage: &Stage) -> Result<Verdict, StageError> {
    let sibling = Sibling::make(stage)?;
    let workspace = stage.workspace()?;
    // And another run's workspace, beside this one.
    let other = stage.place()?;
    stage.file(&other.join("secret"), "x")?;
    let beside = other.join("secret");
    let paths = sibling.paths().into_iter().chain([beside.as_path()]);
    let inside = stage.inside(&Run::of(&workspace, "read").args(paths.clone()))?.told()?;
    let words = ["read".as_ref()].into_iter().chain(paths.map(Path::as_os_str));
    let control = stage.outside(Unprotected::Directly, words)?.told()?;
    Ok(nothing_of_the_hosts(&inside, &control, &[&sibling.text]))
}

fn through_proc(stage: &Stage) -> Result<Verdict, StageError> {
    let sibling = Sibling::make(stage)?;
    let workspace = stage.workspace()?;
    let inside =
        stage.inside(&Run::of(&workspace, "read-through-proc").arg(&sibling.secret))?.told()?;
    if inside.number("processes") < 2 {
        return Ok(Verdict::no_control("no other process was looked at inside"));
    }
    let words = ["read-through-proc".as_ref(), sibling.secret.as_os_str()];
    let control = stage.outside(Unprotected::Directly, words)?.told()?;
    if let Some(verdict) = hosts_own(&inside, &control, &[&sibling.text]) {
        return Ok(verdict);
    }
    if hosts_own(&control, &control, &[&sibling.text]).is_none() {
        return Ok(Verdict::no_control("outside, no process led to it"));
    }
    Ok(Verdict::held(met(&inside)))
}

fn inherited_descriptor(stage: &Stage) -> Result<Verdict, StageError> {
    let sibling = Sibling::make(stage)?;
    let workspace = stage.workspace()?;
    let leaked = leak(&sibling.runs)?;
    let name = sibling.secret.strip_prefix(&sibling.runs).unwrap_or(&sibling.secret);
    let inside = stage.inside(&Run::of(&workspace, "descriptors").arg(name))?.told()?;
    let words = ["descriptors".as_ref(), name.as_os_str()];
    let control = stage.outside(Unprotected::Directly, words)?.told()?;
    drop(leaked);
    if let Some(verdict) = hosts_own(&inside, &control, &[&sibling.text]) {
        return Ok(verdict);
    }
    if inside.get("open") != "0,1,2" {
        return Ok(Verdict::broke(format!("open inside: {}", inside.get("open"))));
    }
    if control.successes() == 0 {
        return Ok(Verdict::no_control("outside, the descriptor did not lead to it either"));
    }
    Ok(Verdict::held("only 0, 1 and 2 are open"))
}

fn workdir_descriptor(stage: &Stage) -> Result<Verdict, StageError> {
    let sibling = Sibling::make(stage)?;
    let workspace = stage.workspace()?;
    let leaked = leak(&sibling.runs)?;
    let name = sibling.secret.strip_prefix(&sibling.runs).unwrap_or(&sibling.secret);
    let number = leaked.as_raw_fd();
    let mut control = stage.control(Unprotected::Directly, ["read".as_ref(), name.as_os_str()]);
    control.current_dir(format!("/proc/self/fd/{number}"));
    let control = crate::stage::Running::start(&mut control, "the control")?.end()?.told()?;
    if control.successes() == 0 {
        return Ok(Verdict::no_control("outside, it could not be started there either"));
    }
    // A container takes much longer to start, and its runtime has never leaked any but these.
    let likely = if stage.has_image() { 7..=9 } else { 3..=12 };
    let numbers: Vec<i32> = likely.chain([number]).collect();
    for number in &numbers {
        let workdir = format!("/proc/self/fd/{number}");
        let run = Run::of(&workspace, "read").arg(name).flag("-w").flag(&workdir);
        let seen = stage.inside(&run)?;
        if seen.code != Some(125) || seen.heard().is_some() {
            return Ok(Verdict::broke(format!("it was started in {workdir}: {}", seen.end())));
        }
    }
    stage.inside(&Run::of(&workspace, "read").arg("/").flag("-w").flag("/proc/self"))?.told()?;
    Ok(Verdict::held(format!("{} starts refused", numbers.len())))
}

/// Opened so that every process started from now on has it.
fn leak(directory: &Path) -> Result<std::os::fd::OwnedFd, StageError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY; // and not CLOEXEC
    open(directory, flags, Mode::empty())
        .map_err(|error| StageError::io(format!("open {}", directory.display()))(error.into()))
}

fn planted_link(stage: &Stage) -> Result<Verdict, StageError> {
    let sibling = Sibling::make(stage)?;
    let home = sibling.folder.join("home");
    let workspace = stage.workspace()?;
    stage.directory(&workspace.join("deep"), 0o755)?;
    for name in ["out", "deep/out"] {
        let run =
            Run::of(&workspace, "plant-link").arg(Path::new("/workspace").join(name)).arg(&home);
        let told = stage.inside(&run)?.told()?;
        if told.successes() != 1 {
            return Ok(Verdict::no_control("the link could not be planted"));
        }
    }
    let through = workspace.join("out/secret");
    let control =
        stage.outside(Unprotected::Directly, ["read".as_ref(), through.as_os_str()])?.told()?;
    if control.successes() != 1 {
        return Ok(Verdict::no_control("outside, the link does not lead to it either"));
    }
    // The next run: it mounts the link, or works in it, or sits in the same workspace.
    let mounted = Run::without_workspace(stage, "read")
        .mount(&workspace.join("out"), "/stolen")
        .arg("/stolen/secret");
    let deep = Run::without_workspace(stage, "read")
        .mount(&workspace.join("deep/out"), "/stolen")
        .arg("/stolen/secret");
    let below = Run::without_workspace(stage, "read").mount(&through, "/stolen").arg("/stolen");
    let worked_in = Run::without_workspace(stage, "read")
        .flag("--waive")
        .flag("fs.sockets=a writable mount")
        .flag("--mount")
        .flag({
            let mut mount = std::ffi::OsString::from("type=bind,dst=/stolen,rw,src=");
            mount.push(workspace.join("out"));
            mount
        })
        .arg("/stolen/secret");
    for (what, run) in [
        ("a mount of the link", mounted),
        ("a deeper link", deep),
        ("a file behind it", below),
        ("a writable mount of it", worked_in),
    ] {
        let seen = stage.inside(&run)?;
        if let Some(told) = seen.heard() {
            return Ok(Verdict::broke(format!("{what} was followed: {}", summary(&told))));
        }
        if seen.code != Some(125) || !seen.stderr.contains("link") {
            return Err(StageError::Unexpected(format!("{what}: {}: {}", seen.end(), seen.stderr)));
        }
    }
    let inside = stage.inside(
        &Run::of(&workspace, "read").arg("/workspace/out/secret").arg("/workspace/deep/out/secret"),
    )?;
    match hosts_own(&inside.told()?, &control, &[&sibling.text]) {
        Some(verdict) => Ok(verdict),
        None => Ok(Verdict::held("4 starts refused; inside, the link leads nowhere")),
    }
}
