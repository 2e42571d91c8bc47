//! `belljar cp`: copies files into or out of a sandbox.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use belljar::spec::{EXIT_SIGNAL_BASE, EXIT_USAGE};
use belljar::{CopyLimits, CopyReport, Error, Sandbox};

use super::{CommandResult, EXIT_INCOMPLETE, exit_code, find_live, in_runtime, open_home};
use crate::cli::CopyArgs;
use crate::report::{self, BAD, WARN};

pub(crate) fn run(args: &CopyArgs) -> i32 {
    exit_code(act(args))
}

/// The source or the target of a copy.
#[derive(Debug)]
enum End {
    Host(PathBuf),
    Inside { run: String, path: OsString },
}

fn act(args: &CopyArgs) -> CommandResult {
    let (run, inside, here, out) = match (end(&args.from), end(&args.to)) {
        (End::Inside { run, path }, End::Host(here)) => (run, path, here, true),
        (End::Host(here), End::Inside { run, path }) => (run, path, here, false),
        _ => {
            report::eprintln("error: one side must be RUN:/path, the other a path on this host");
            report::eprintln(
                "hint:  belljar cp RUN:/workspace/file . (write a host path with a colon as ./a:b)",
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
        // An interrupted copy is dropped, which removes partial files.
        let copied = tokio::select! {
            copied = copying => copied,
            signal = interrupted() => return Ok(EXIT_SIGNAL_BASE + signal?),
        };
        match copied {
            Ok(copied) => {
                if out {
                    belljar::run::note_copied_out(&home, &copied_path(&here, &inside))?;
                }
                Ok(print_skipped(&copied, args.quiet))
            }
            Err(Error::Copy(error)) => {
                report::eprintln(&format!("{BAD}error:{BAD:#} {error}")); // the text includes the cause
                Ok(EXIT_INCOMPLETE)
            }
            Err(error) => Err(error.into()),
        }
    })
}

/// The path of the copy on the host: below `here` if that is an existing directory.
fn copied_path(here: &Path, inside: &OsStr) -> PathBuf {
    let below = Path::new(inside).file_name().map(|name| here.join(name));
    below.filter(|path| path.symlink_metadata().is_ok()).unwrap_or_else(|| here.to_owned())
}

/// Waits for the first signal that asks this process to end.
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

fn print_skipped(copied: &CopyReport, quiet: bool) -> i32 {
    let skipped = copied.skipped.len() as u64 + copied.unlisted;
    if !quiet {
        for (path, why) in &copied.skipped {
            let why = belljar::spec::text::escape(why.as_bytes());
            report::eprintln(&format!("{WARN}skipped:{WARN:#} {path}: {why}"));
        }
        if copied.unlisted > 0 {
            report::eprintln(&format!("and {} more", copied.unlisted));
        }
    }
    if skipped == 0 { 0 } else { EXIT_INCOMPLETE }
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
        _ => End::Host(PathBuf::from(text)),
    }
}
