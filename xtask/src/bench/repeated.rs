//! A command that is measured by being started again and again.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::rounds::Times;
use crate::command;

/// A command line that is started again and again.
pub(crate) struct Peer {
    name: String,
    make: Box<dyn Fn() -> Command>,
    times: Vec<Duration>,
    failure: Option<String>,
}

pub(crate) struct PeerTimes {
    pub(crate) name: String,
    pub(crate) times: Times,
}

impl Peer {
    pub(crate) fn new(name: impl Into<String>, make: impl Fn() -> Command + 'static) -> Self {
        Self { name: name.into(), make: Box::new(make), times: Vec::new(), failure: None }
    }

    pub(crate) fn warm_up(&mut self) {
        self.measure();
        self.times.clear();
    }

    pub(crate) fn measure(&mut self) {
        if self.failure.is_some() {
            return;
        }
        match self.once() {
            Ok(time) => self.times.push(time),
            Err(error) => self.failure = Some(format!("{error:#}")),
        }
    }

    fn once(&self) -> Result<Duration> {
        let mut command = (self.make)();
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let started = Instant::now();
        let status = command.status().with_context(|| format!("cannot start {}", self.name))?;
        let time = started.elapsed();
        ensure!(status.success(), "`{}` ended with {status}", command::line(&command));
        Ok(time)
    }

    /// Or its name, and why there are none.
    pub(crate) fn times(self) -> Result<PeerTimes, (String, String)> {
        match self.failure {
            Some(why) => Err((self.name, why)),
            None => Ok(PeerTimes { name: self.name, times: Times::new(self.times) }),
        }
    }
}
