//! `cargo xtask test --fresh`: the whole test on a machine where nothing was installed by hand. The machine is
//! a tree that debootstrap makes, with Debian's minimal system in it and nothing else: every other program
//! has to come from the suite's own steps.
//!
//! It is entered by pivot_root in a mount and pid namespace of its own, since a process in a chroot may
//! not make user namespaces. Its mounts are the namespace's, so they end with it, whatever ended it.

mod environment;
mod inside;
mod settings;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};

pub(crate) use self::inside::{INSIDE, InsideOptions, main as inside};
use crate::command::line;
use crate::test::packages::{self, Need, need};
use crate::{command, debian, host};

/// Here, not in the tree.
const NEEDS: &[&Need] = &[
    &need("debootstrap", "debootstrap", "makes the tree of a new machine"),
    &need("setpriv", "util-linux", "what runs in the tree ends with its parent"),
    &need("unshare", "util-linux", "the namespaces of the tree"),
];

/// What has to be there before `cargo xtask` can run at all, beside the packages that Debian calls essential:
/// a linker and a C library, without which no Rust program is built, and the authorities that cargo trusts.
const BESIDE: [&str; 3] = ["ca-certificates", "gcc", "libc6-dev"];

/// Crates and the copy of a small tree.
const LIMIT: Duration = Duration::from_secs(15 * 60);

/// Where its files are, below the target directory.
struct Places {
    /// The tree as debootstrap made it, named by the release. Kept.
    bases: PathBuf,
    /// The machine: a new copy of the base for every run.
    root: PathBuf,
    /// The target directory inside. Kept, so that not everything is built again.
    target: PathBuf,
    /// Packages that apt has downloaded inside. Kept.
    archives: PathBuf,
}

impl Places {
    fn below(directory: &Path) -> Self {
        let [bases, root, target, archives] =
            ["base", "root", "target", "archives"].map(|name| directory.join(name));
        Self { bases, root, target, archives }
    }
}

/// `arguments` are those of `cargo xtask test`, without `--fresh`.
pub(crate) fn run(arguments: &[String]) -> Result<ExitCode> {
    if let Some(why) = cannot_run_here() {
        bail!("--fresh {why}");
    }
    packages::ensure(NEEDS)?;
    let directory = host::target_directory()?.join("fresh");
    let places = Places::below(&directory);
    for path in [&places.bases, &places.target, &places.archives] {
        fs::create_dir_all(path).with_context(|| format!("cannot make {}", path.display()))?;
    }
    let lock = File::open(&directory).with_context(|| format!("cannot open {directory:?}"))?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)
        .context("another `cargo xtask test --fresh` of this checkout is running")?;
    let toolchain = Toolchain::find()?;
    // The crates are read-only inside.
    command::check(host::cargo()?.args(["fetch", "--quiet", "--locked"]), LIMIT)?;
    let base = debian::ensure(&places.bases, &BESIDE)?;
    debian::copy(&base, &places.root)?;
    settings::write(&places.root)?;
    eprintln!("a new machine is in {}", places.root.display());
    enter(&places, &toolchain, arguments)
}

fn cannot_run_here() -> Option<String> {
    if !cfg!(target_os = "linux") {
        return Some("works on Linux only".into());
    }
    if !host::is_debian() {
        return Some("works on Debian only: the tree is made of its packages".into());
    }
    if !host::is_root() {
        return Some("needs root: it mounts file systems and installs packages in the tree".into());
    }
    None
}

/// The Rust toolchain of this machine, which the tree gets read-only.
struct Toolchain {
    cargo_home: PathBuf,
    rustup_home: PathBuf,
    /// Where it is not among cargo's own programs.
    nextest: Option<PathBuf>,
}

impl Toolchain {
    fn find() -> Result<Self> {
        let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
        let place = |variable: &str, name: &str| {
            let given = std::env::var_os(variable).map(PathBuf::from);
            let path = given.unwrap_or_else(|| home.join(name));
            let found = fs::canonicalize(&path).ok().filter(|path| path.is_dir());
            found.with_context(|| {
                format!("--fresh needs a Rust of rustup's; {} is not there", path.display())
            })
        };
        let cargo_home = place("CARGO_HOME", ".cargo")?;
        let rustup_home = place("RUSTUP_HOME", ".rustup")?;
        let path = std::env::var_os("PATH").unwrap_or_default();
        let nextest = std::env::split_paths(&path)
            .map(|directory| directory.join("cargo-nextest"))
            .find(|file| file.is_file())
            .filter(|file| !file.starts_with(&cargo_home));
        Ok(Self { cargo_home, rustup_home, nextest })
    }
}

/// A process of ours in new namespaces does the rest, and ends with this one.
fn enter(places: &Places, toolchain: &Toolchain, arguments: &[String]) -> Result<ExitCode> {
    let own = std::env::current_exe().context("cannot find xtask itself")?;
    let mut command = Command::new(host::require_program("setpriv", "util-linux")?);
    command.args(["--pdeathsig", "KILL"]).arg(host::require_program("unshare", "util-linux")?);
    command.args(["--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]);
    command.arg(own).arg(INSIDE);
    command.arg(&places.root).arg(&places.target).arg(&places.archives).arg(host::workspace()?);
    command.arg(&toolchain.cargo_home).arg(&toolchain.rustup_home);
    command.arg(toolchain.nextest.as_deref().unwrap_or(Path::new("")));
    command.arg("--").args(arguments);
    let status = command.status().with_context(|| format!("cannot start `{}`", line(&command)))?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
