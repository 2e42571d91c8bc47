//! `belljar cp`: files into a sandbox, or out of it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use belljar::spec::{EXIT_SIGNAL_BASE, EXIT_USAGE};
use belljar::{CopyLimits, CopyReport, Error, Sandbox};

use super::{CommandResult, EXIT_SOMETHING_OFF, exit_code, find_live, in_runtime, open_home};
use crate::cli::CopyArgs;
use crate::report::{self, BAD, WARN};

pub(crate) fn run(args: &CopyArgs) -> i32 {
    exit_code(act(args))
}

/// One end of a copy.
#[derive(Debug)]
enum End {
    Here(PathBuf),
    Inside { run: String, path: OsString },
}

fn act(args: &CopyArgs) -> CommandResult {
    let (run, inside, here, out) = match (end(&args.from), end(&args.to)) {
        (End::Inside { run, path }, End::Here(here)) => (run, path, here, true),
        (End::Here(here), End::Inside { run, path }) => (run, path, here, false),
        _ => {
            report::eprintln("error: one of the two must be RUN:/path, and the other a path here");
            report::eprintln(
                "hint:  belljar cp RUN:/workspace/file . (a path here with a colon: ./a:b)",
            );
            return Ok(EXIT_USAGE);
        }
    };
    let home = open_home()?;
    let run = find_live(&home, &run)?.id;
    in_runtime(async {
        let sandbox = Sandbox::attach_to(home.path(), &run).await?;
        let copying = async {
            match out {
                true => sandbox.copy_out_within(&inside, here.clone(), CopyLimits::default()).await,
                false => sandbox.copy_in(here.clone(), &inside).await,
            }
        };
        // Dropped when it is interrupted, so that nothing half-made is left.
        let copied = tokio::select! {
            copied = copying => copied,
            signal = interrupted() => return Ok(EXIT_SIGNAL_BASE + signal?),
        };
        match copied {
            Ok(copied) => {
                if out {
                    belljar::run::note_copied_out(&home, &arrived(&here, &inside))?;
                }
                Ok(tell(&copied, args.quiet))
            }
            Err(Error::Copy(error)) => {
                report::eprintln(&format!("{BAD}error:{BAD:#} {error}")); // it tells its cause itself
                Ok(EXIT_SOMETHING_OFF)
            }
            Err(error) => Err(error.into()),
        }
    })
}

/// Where a copy from inside came to be: in a directory that was there, under its own name.
fn arrived(here: &Path, inside: &OsStr) -> PathBuf {
    let below = Path::new(inside).file_name().map(|name| here.join(name));
    below.filter(|path| path.symlink_metadata().is_ok()).unwrap_or_else(|| here.to_owned())
}

/// The first signal that asks to end.
async fn interrupted() -> std::io::Result<i32> {
    use tokio::signal::unix::{SignalKind, signal};
    let (hangup, interrupt, terminate) =
        (SignalKind::hangup(), SignalKind::interrupt(), SignalKind::terminate());
    let (mut a, mut b, mut c) = (signal(hangup)?, signal(interrupt)?, signal(terminate)?);
    Ok(tokio::select! {
        _ = a.recv() => hangup.as_raw_value(),
        _ = b.recv() => interrupt.as_raw_value(),
        _ = c.recv() => terminate.as_raw_value(),
    })
}

fn tell(copied: &CopyReport, quiet: bool) -> i32 {
    let skipped = copied.skipped.len() as u64 + copied.unlisted;
    if !quiet {
        for (path, why) in &copied.skipped {
            let why = belljar::spec::text::escape(why.as_bytes());
            report::eprintln(&format!("{WARN}left out:{WARN:#} {path}: {why}"));
        }
        if copied.unlisted > 0 {
            report::eprintln(&format!("and {} more", copied.unlisted));
        }
    }
    if skipped == 0 { 0 } else { EXIT_SOMETHING_OFF }
}

/// A colon after a slash is part of a path.
fn end(text: &OsStr) -> End {
    let bytes = text.as_bytes();
    let colon = bytes.iter().position(|byte| *byte == b':');
    let run = colon.and_then(|at| std::str::from_utf8(&bytes[..at]).ok());
    match (colon, run) {
        (Some(at), Some(run)) if !run.is_empty() && !run.contains('/') => {
            let path = OsStr::from_bytes(&bytes[at + 1..]).to_owned();
            End::Inside { run: run.to_owned(), path }
        }
        _ => End::Here(PathBuf::from(text)),
    }
}
