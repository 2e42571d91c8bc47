//! One process that serves: started with a log of its own, watched until it answers.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::Pid;

use super::api;
use crate::command;

const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// Of a log that tells why it did not start.
const LAST_LINES: usize = 5;

pub(super) struct Daemon {
    child: Child,
    log: PathBuf,
}

impl Daemon {
    pub(super) fn start(command: &mut Command, log: PathBuf) -> Result<Self> {
        let file = File::create(&log).with_context(|| format!("cannot make {}", log.display()))?;
        let errors = file.try_clone().context("cannot share the log")?;
        command.stdin(Stdio::null()).stdout(file).stderr(errors);
        Ok(Self { child: command::spawn(command)?, log })
    }

    pub(super) fn pid(&self) -> Option<Pid> {
        i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
    }

    /// Until it answers on its socket. An error has the end of its log.
    pub(super) fn wait_until_it_answers(&mut self, socket: &Path) -> Result<()> {
        let Self { child, log } = self;
        let still_there = || match child.try_wait().context("cannot look at it")? {
            None => Ok(()),
            Some(status) => bail!("it ended with {status}"),
        };
        api::wait_until_it_answers(socket, ANSWER_LIMIT, still_there)
            .with_context(|| format!("it does not serve; its last words: {}", last_words(log)))
    }

    /// The same for one whose socket is only looked for.
    pub(super) fn wait_until_it_listens(&mut self, socket: &Path) -> Result<()> {
        let deadline = std::time::Instant::now() + ANSWER_LIMIT;
        while !socket.exists() {
            let ended = self.child.try_wait().context("cannot look at it")?;
            if ended.is_some() || std::time::Instant::now() >= deadline {
                bail!("it does not listen; its last words: {}", last_words(&self.log));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

fn last_words(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].join(" | ")
}
