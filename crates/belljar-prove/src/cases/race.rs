//! Attacks that replace a mount's source between planning and mounting.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use belljar_spec::Clause;

use super::judge::{ENOENT, summary};
use crate::case::{Case, Severity, Verdict};
use crate::probe::SPARE;
use crate::probe_report::AttemptResult;
use crate::testbed::{Run, TestBed, TestBedError};

pub(super) const CASES: &[Case] = &[Case {
    name: "fs.mount-race",
    attack: "swap a mount's source for a link while runs are started on it",
    clause: Clause::FsMounts,
    severity: Severity::Critical,
    run: mount_race,
}];

fn mount_race(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    const MAX_STARTS: usize = 100;
    const FEWEST_STARTS: usize = 10;
    /// An emulated machine does not get to all of them.
    const PATIENCE: Duration = Duration::from_secs(5);
    /// The race itself lasts a minute.
    const MAX_WAIT: Duration = Duration::from_secs(30);
    let secrets = testbed.place()?;
    testbed.file(&secrets.join("secret"), "x")?;
    let workspace = testbed.workspace()?;
    testbed.directory(&workspace.join("sub"), 0o755)?;
    testbed.file(&workspace.join("sub/plain"), "x")?;
    symlink(&secrets, workspace.join("link")).map_err(TestBedError::io("make a link"))?;
    let flipper = Run::of(&workspace, "flip").args(["/workspace/sub", "/workspace/link", "60000"]);
    let mut flipper = testbed.start_inside(&flipper)?;
    flipper.wait_for_line("flipping")?;
    let source = workspace.join("sub");
    let on_source = || {
        Run::without_workspace(testbed, "read")
            .mount(&source, "/shared")
            .args(["/shared/secret", "/shared/plain"])
    };
    let (mut mounted, mut refused) = (0, 0);
    let began = Instant::now();
    for count in 0..MAX_STARTS {
        let enough = count >= FEWEST_STARTS && began.elapsed() > PATIENCE;
        if enough || count > 0 && began.elapsed() > MAX_WAIT {
            break;
        }
        let seen = testbed.inside(&on_source())?;
        match seen.probe_report() {
            None if seen.code == Some(125) => refused += 1,
            None => {
                return Err(TestBedError::Unexpected(format!("{}: {}", seen.end(), seen.stderr)));
            }
            Some(report) if report.answer("/shared/secret") == Some(ENOENT) => mounted += 1,
            Some(report) => {
                return Ok(match testbed.promised(Clause::FsMounts) {
                    Ok(()) => Verdict::broke(format!("a wrong mount: {}", summary(&report))),
                    Err(why) => Verdict::NotPromised { why },
                });
            }
        }
    }
    let link_was_seen = sees_link(&source);
    if !flipper.is_alive() {
        let seen = flipper.end()?;
        return Err(TestBedError::Unexpected(format!("the race ended early: {}", seen.stderr)));
    }
    flipper.stop()?;
    if !link_was_seen {
        return Ok(Verdict::no_control("the link was never there when somebody looked"));
    }
    // Nobody swaps any more: what was refused was refused for that reason.
    put_back(&workspace)?;
    let seen = testbed.inside(&on_source())?;
    if seen.report()?.answer("/shared/plain") != Some(AttemptResult::Succeeded) {
        return Ok(Verdict::no_control(format!(
            "without a race it is not mounted: {}",
            seen.end()
        )));
    }
    let starts = mounted + refused;
    Ok(Verdict::held(format!(
        "{starts} starts: {mounted} right mounts, {refused} refused, 0 wrong"
    )))
}

/// What a launcher comes across that opens the path twice, or follows links. Looked for until it is seen: where
/// the runs swap slowly, a burst of looks falls into one moment.
fn sees_link(source: &Path) -> bool {
    const WITHIN: Duration = Duration::from_secs(15);
    let began = Instant::now();
    while began.elapsed() < WITHIN {
        if source.join("secret").exists() {
            return true;
        }
        std::thread::sleep(Duration::from_micros(300));
    }
    false
}

/// Whatever moment the race ended in, the directory gets its name again.
fn put_back(workspace: &Path) -> Result<(), TestBedError> {
    let failed = || TestBedError::io("put the directory back");
    let names = ["sub", "link", SPARE].map(|name| workspace.join(name));
    let is_directory =
        |path: &&PathBuf| std::fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
    match names.iter().find(is_directory) {
        Some(found) if *found == names[0] => Ok(()),
        Some(found) => {
            if names[0].symlink_metadata().is_ok() {
                std::fs::remove_file(&names[0]).map_err(failed())?;
            }
            std::fs::rename(found, &names[0]).map_err(failed())
        }
        None => Err(TestBedError::Unexpected("the directory is gone".to_owned())),
    }
}
