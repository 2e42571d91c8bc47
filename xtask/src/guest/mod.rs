//! `cargo xtask guest`: the jail's tests on the other kind of host that users have: a stock kernel
//! of a distribution, older than ours may be, with cgroup v2 only. A virtual machine, so that it is
//! real.

mod boot;
mod cpio;
mod download;
mod image;
mod job;
mod modules;
mod self_test;
mod verdict;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use self::boot::{Booted, Ending, Files};
pub(crate) use self::download::busybox;
use self::job::{As, Job};
use self::verdict::Verdict;
use crate::artifacts::{self, Artifacts, Profile};
use crate::host;
use crate::test::Outcome;
use crate::test::packages::{MKE2FS, QEMU, XZ, ensure};

/// Without hardware support, and beside other work: about ten minutes were seen.
const DEFAULT_LIMIT: Duration = Duration::from_secs(35 * 60);
const CONSOLE_LOG: &str = "console.log";

#[derive(Debug, clap::Args)]
pub(crate) struct GuestOptions {
    /// Run optimised builds of the tests
    #[arg(long)]
    release: bool,
    /// Show that the harness itself sees a failure and a hang
    #[arg(long)]
    self_test: bool,
    /// Kill the guest after this time
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// Only the jobs whose name contains this
    #[arg(long, value_name = "PART")]
    only: Option<String>,
}

pub(crate) fn main(options: &GuestOptions) -> Result<ExitCode> {
    if let Some(why) = cannot_run_here() {
        bail!("{why}");
    }
    if options.self_test {
        self_test::run()?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut built =
        artifacts::build_tests(if options.release { Profile::Release } else { Profile::Dev })?;
    built.belljar = artifacts::build_belljar(Profile::Release)?;
    let limit = options.timeout.map_or(DEFAULT_LIMIT, Duration::from_secs);
    tests(&built, options.only.as_deref(), limit)?;
    Ok(ExitCode::SUCCESS)
}

/// As a step of the whole test.
pub(crate) fn step(artifacts: Option<&Artifacts>) -> Result<Outcome> {
    if let Some(why) = cannot_run_here() {
        return Ok(Outcome::NotChecked(why));
    }
    let tests_of = match artifacts {
        Some(artifacts) => artifacts.tests.clone(),
        None => artifacts::build_tests(Profile::Dev)?.tests,
    };
    // Under emulation every instruction counts: the executable as users get it, the tests as they are.
    let belljar = artifacts::build_belljar(Profile::Release)?;
    tests(&Artifacts { belljar, tests: tests_of }, None, DEFAULT_LIMIT)?;
    Ok(Outcome::Passed)
}

fn cannot_run_here() -> Option<String> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Some("the guest is made for Linux on x86_64".into());
    }
    if !host::is_debian() {
        return Some("the guest's kernel comes from Debian's packages, and apt is not here".into());
    }
    // Root could have installed it, so there its absence is an error, which the start will tell.
    let qemu = host::find_program("qemu-system-x86_64");
    if qemu.is_none() && !host::is_root() {
        return Some("install qemu-system-x86 to run the guest".into());
    }
    None
}

fn tests(artifacts: &Artifacts, only: Option<&str>, limit: Duration) -> Result<()> {
    let mut jobs = job::all(artifacts)?;
    jobs.retain(|job| only.is_none_or(|part| job.name.contains(part)));
    ensure!(!jobs.is_empty(), "no job of the guest has a name like that");
    let booted = boot_with(Some(&artifacts.belljar), &[], &jobs, limit)?;
    conclude(&jobs, &booted)
}

/// A file that is put into the guest besides the usual ones, executable.
pub(crate) struct GuestFile {
    pub(crate) source: PathBuf,
    /// Its path there, without the slash at the beginning.
    pub(crate) target: PathBuf,
}

/// Boots, runs one command as root, which must succeed, and returns what it printed.
pub(crate) fn output_of(
    belljar: &Path,
    files: &[GuestFile],
    words: &[&str],
    limit: Duration,
) -> Result<String> {
    if let Some(why) = cannot_run_here() {
        bail!("{why}");
    }
    let seconds = u32::try_from(limit.as_secs()).context("a limit that is too long")?;
    let jobs = [Job { seconds, ..Job::command("command", As::Root, words) }];
    let booted = boot_with(Some(belljar), files, &jobs, limit)?;
    conclude(&jobs, &booted)?;
    let log = directory()?.join(CONSOLE_LOG);
    let text = fs::read(&log).with_context(|| format!("cannot read {}", log.display()))?;
    Ok(verdict::output_in(&String::from_utf8_lossy(&text)))
}

/// Where the guest's parts are kept.
pub(crate) fn directory() -> Result<PathBuf> {
    let directory = host::target_directory()?.join("guest");
    fs::create_dir_all(&directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    Ok(directory)
}

fn boot_with(
    belljar: Option<&Path>,
    files: &[GuestFile],
    jobs: &[Job],
    limit: Duration,
) -> Result<Booted> {
    ensure(&[&MKE2FS, &QEMU, &XZ])?;
    let directory = directory()?;
    let parts = download::parts(&directory)?;
    let initramfs = directory.join("initramfs.cpio");
    let disk = directory.join("disk.img");
    let log = directory.join(CONSOLE_LOG);
    image::initramfs(&parts, &initramfs)?;
    image::disk(&parts, belljar, files, jobs, &disk)?;
    eprintln!("booting {}", parts.kernel.display());
    let files = Files { kernel: &parts.kernel, initramfs: &initramfs, disk: &disk, log: &log };
    let booted = boot::boot(&files, jobs, limit);
    fs::remove_file(&disk).with_context(|| format!("cannot remove {}", disk.display()))?;
    eprintln!("the guest's console is in {}", log.display());
    booted
}

/// Every job must have passed, and the guest must have come to its end.
fn conclude(jobs: &[Job], booted: &Booted) -> Result<()> {
    let passed = |job: &&Job| {
        let mut own = booted.results.iter().filter(|(name, _)| *name == job.name);
        matches!((own.next(), own.next()), (Some((_, Verdict::Passed(_))), None))
    };
    let bad: Vec<&str> =
        jobs.iter().filter(|job| !passed(job)).map(|job| job.name.as_str()).collect();
    let counts = booted.results.iter().filter_map(|(_, verdict)| match verdict {
        Verdict::Passed(counts) => *counts,
        Verdict::Failed(_) => None,
    });
    println!(
        "guest: {} passed, {} failed, {} single tests, {:.1} s",
        jobs.len() - bad.len(),
        bad.len(),
        counts.map(|counts| counts.passed).sum::<u32>(),
        booted.took.as_secs_f64()
    );
    match booted.ending {
        Ending::Done if bad.is_empty() => Ok(()),
        Ending::Done => bail!("failed in the guest: {}", bad.join(", ")),
        Ending::Early => bail!("the guest went off too early; not passed: {}", bad.join(", ")),
        Ending::Killed => bail!("the guest hung and was killed; not passed: {}", bad.join(", ")),
    }
}
