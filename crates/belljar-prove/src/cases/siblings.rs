//! Attacks on other runs: by path, through /proc, through a descriptor, through a link.

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use belljar_spec::Clause;
use rustix::fs::{Mode, OFlags, open};

use super::judge::{hosts_own, met, nothing_of_the_hosts, summary};
use crate::case::{Case, Severity, Verdict};
use crate::testbed::{Run, TestBed, TestBedError, Unprotected};

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
    fn make(testbed: &TestBed) -> Result<Self, TestBedError> {
        let runs = testbed.belljar_home().join("runs");
        let before = names_in(&runs);
        let workspace = testbed.workspace()?;
        let seen = testbed.inside(&Run::of(&workspace, "sleep").arg("0"))?;
        seen.report()?;
        let new = names_in(&runs).into_iter().find(|name| !before.contains(name));
        let folder =
            new.ok_or_else(|| TestBedError::Unexpected("a run has left no folder".to_owned()))?;
        let secret = folder.join("home/secret");
        let text = format!("{} of the sibling\n", testbed.unique_name()?);
        testbed.file(&secret, &text)?;
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

fn by_path(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let sibling = Sibling::make(testbed)?;
    let workspace = testbed.workspace()?;
    // And another run's workspace, beside this one.
    let other = testbed.place()?;
    testbed.file(&other.join("secret"), "x")?;
    let beside = other.join("secret");
    let paths = sibling.paths().into_iter().chain([beside.as_path()]);
    let inside = testbed.inside(&Run::of(&workspace, "read").args(paths.clone()))?.report()?;
    let argv = ["read".as_ref()].into_iter().chain(paths.map(Path::as_os_str));
    let control = testbed.outside(Unprotected::Directly, argv)?.report()?;
    Ok(nothing_of_the_hosts(&inside, &control, &[&sibling.text]))
}

fn through_proc(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let sibling = Sibling::make(testbed)?;
    let workspace = testbed.workspace()?;
    let inside =
        testbed.inside(&Run::of(&workspace, "read-through-proc").arg(&sibling.secret))?.report()?;
    if inside.number("processes") < 2 {
        return Ok(Verdict::no_control("no other process was looked at inside"));
    }
    let argv = ["read-through-proc".as_ref(), sibling.secret.as_os_str()];
    let control = testbed.outside(Unprotected::Directly, argv)?.report()?;
    if let Some(verdict) = hosts_own(&inside, &control, &[&sibling.text]) {
        return Ok(verdict);
    }
    if hosts_own(&control, &control, &[&sibling.text]).is_none() {
        return Ok(Verdict::no_control("outside, no process led to it"));
    }
    Ok(Verdict::held(met(&inside)))
}

fn inherited_descriptor(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let sibling = Sibling::make(testbed)?;
    let workspace = testbed.workspace()?;
    let leaked = leak(&sibling.runs)?;
    let name = sibling.secret.strip_prefix(&sibling.runs).unwrap_or(&sibling.secret);
    let inside = testbed.inside(&Run::of(&workspace, "descriptors").arg(name))?.report()?;
    let argv = ["descriptors".as_ref(), name.as_os_str()];
    let control = testbed.outside(Unprotected::Directly, argv)?.report()?;
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

fn workdir_descriptor(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let sibling = Sibling::make(testbed)?;
    let workspace = testbed.workspace()?;
    let leaked = leak(&sibling.runs)?;
    let name = sibling.secret.strip_prefix(&sibling.runs).unwrap_or(&sibling.secret);
    let number = leaked.as_raw_fd();
    let mut control = testbed.control(Unprotected::Directly, ["read".as_ref(), name.as_os_str()]);
    control.current_dir(format!("/proc/self/fd/{number}"));
    let control = crate::testbed::Running::start(&mut control, "the control")?.end()?.report()?;
    if control.successes() == 0 {
        return Ok(Verdict::no_control("outside, it could not be started there either"));
    }
    // A container takes much longer to start, and its runtime has never leaked any but these.
    let likely = if testbed.has_image() { 7..=9 } else { 3..=12 };
    let numbers: Vec<i32> = likely.chain([number]).collect();
    for number in &numbers {
        let workdir = format!("/proc/self/fd/{number}");
        let run = Run::of(&workspace, "read").arg(name).flag("-w").flag(&workdir);
        let seen = testbed.inside(&run)?;
        if seen.code != Some(125) || seen.probe_report().is_some() {
            return Ok(Verdict::broke(format!("it was started in {workdir}: {}", seen.end())));
        }
    }
    testbed
        .inside(&Run::of(&workspace, "read").arg("/").flag("-w").flag("/proc/self"))?
        .report()?;
    Ok(Verdict::held(format!("{} starts refused", numbers.len())))
}

/// Opened so that every process started from now on has it.
fn leak(directory: &Path) -> Result<std::os::fd::OwnedFd, TestBedError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY; // and not CLOEXEC
    open(directory, flags, Mode::empty())
        .map_err(|error| TestBedError::io(format!("open {}", directory.display()))(error.into()))
}

fn planted_link(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let sibling = Sibling::make(testbed)?;
    let home = sibling.folder.join("home");
    let workspace = testbed.workspace()?;
    testbed.directory(&workspace.join("deep"), 0o755)?;
    for name in ["out", "deep/out"] {
        let run =
            Run::of(&workspace, "plant-link").arg(Path::new("/workspace").join(name)).arg(&home);
        let report = testbed.inside(&run)?.report()?;
        if report.successes() != 1 {
            return Ok(Verdict::no_control("the link could not be planted"));
        }
    }
    let through = workspace.join("out/secret");
    let control =
        testbed.outside(Unprotected::Directly, ["read".as_ref(), through.as_os_str()])?.report()?;
    if control.successes() != 1 {
        return Ok(Verdict::no_control("outside, the link does not lead to it either"));
    }
    // The next run: it mounts the link, or works in it, or sits in the same workspace.
    let mounted = Run::without_workspace(testbed, "read")
        .mount(&workspace.join("out"), "/stolen")
        .arg("/stolen/secret");
    let deep = Run::without_workspace(testbed, "read")
        .mount(&workspace.join("deep/out"), "/stolen")
        .arg("/stolen/secret");
    let below = Run::without_workspace(testbed, "read").mount(&through, "/stolen").arg("/stolen");
    let worked_in = Run::without_workspace(testbed, "read")
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
        let seen = testbed.inside(&run)?;
        if let Some(report) = seen.probe_report() {
            return Ok(Verdict::broke(format!("{what} was followed: {}", summary(&report))));
        }
        if seen.code != Some(125) || !seen.stderr.contains("link") {
            return Err(TestBedError::Unexpected(format!(
                "{what}: {}: {}",
                seen.end(),
                seen.stderr
            )));
        }
    }
    let inside = testbed.inside(
        &Run::of(&workspace, "read").arg("/workspace/out/secret").arg("/workspace/deep/out/secret"),
    )?;
    match hosts_own(&inside.report()?, &control, &[&sibling.text]) {
        Some(verdict) => Ok(verdict),
        None => Ok(Verdict::held("4 starts refused; inside, the link leads nowhere")),
    }
}
