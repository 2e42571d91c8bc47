//! Creates, starts, watches and removes one container.

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use belljar_bind::identity::HostIdentity;
use belljar_spec::{Limits, Usage};
use bollard::models::{ContainerCreateBody, ContainerCreateResponse, ContainerWaitResponse};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, EventsOptionsBuilder, RemoveContainerOptionsBuilder,
    StartContainerOptions, WaitContainerOptionsBuilder,
};
use rustix::event::{PollFd, PollFlags, poll};

use super::api::{Api, ApiError, QUICK_TIMEOUT, SLOW_TIMEOUT};
use super::bind::BoundContainer;
use super::init_process::{Init, LimitNotHeld};
use super::posture::is_gvisor;
use super::upload::UploadError;
use crate::error::{DestroyError, StartError};
use crate::running::{CommandStreams, InitChannel, Link, RunningSandbox, Started, Wrapping};

/// How long PID 1 lives on when it receives nothing. An engine can hold its input open after the launcher,
/// or the engine itself, has died.
const LEASE: Duration = Duration::from_secs(120);
const REMOTE_LEASE: Duration = Duration::from_secs(300);
/// From the kill to the end.
const END_TIMEOUT: Duration = Duration::from_secs(10);
const GONE_TIMEOUT: Duration = Duration::from_secs(20);
/// For an engine that removes the container by itself.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum ContainerError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error(transparent)]
    Upload(#[from] UploadError),
    #[error("cannot store which container belongs to the run")]
    Note(#[source] std::io::Error),
    #[error("cannot attach to the container's streams")]
    Attach(#[source] std::io::Error),
    #[error("cannot unmount the run's staging mounts")]
    Stage(#[source] std::io::Error),
    #[error("{error}; and the container could not be removed: {cleanup}")]
    AndCleanup {
        #[source]
        error: Box<ContainerError>,
        cleanup: ApiError,
    },
    #[error(
        "the container's first process cannot be found on this host, so its user and its limits cannot be checked"
    )]
    InitNotFound,
    #[error("the engine does not hold a limit")]
    Limit(#[source] LimitNotHeld),
    #[error("the container ended before it answered: {0}")]
    Ended(String),
}

impl ContainerError {
    /// Something of the run may still be there: the next command has to look.
    pub fn may_have_left_something(&self) -> bool {
        matches!(self, Self::AndCleanup { .. } | Self::Stage(_))
    }
}

/// One container of ours.
#[derive(Debug)]
pub struct Container {
    api: Arc<Api>,
    name: String,
    init: Option<Init>,
    /// Keeps the run's uids taken.
    _identity: HostIdentity,
    limits: Limits,
    /// Its processes are the host's, so PID 1 has to be found among them.
    is_visible: bool,
    begun_at: SystemTime,
    /// PID 1 was gone before this process ended it.
    died_by_itself: bool,
    killed: bool,
    usage: Usage,
    pids_peak: u64,
    oom_kills: u64,
    gone: bool,
}

pub(super) fn start(bound: BoundContainer) -> Result<Started, ContainerError> {
    let BoundContainer { api, engine, note, body, mut staged, plan, directory, upload } = bound;
    note.write(&directory).map_err(ContainerError::Note)?; // before there is anything to be found
    let begun_at = SystemTime::now();
    let made = match make(&api, &note.container, body) {
        Ok(made) => made,
        Err(error @ ApiError::Refused { .. }) => return Err(error.into()),
        // It may have been made all the same.
        Err(error) => return Err(remove_if_made(&api, &note.container, error)),
    };
    let begun = begin(&api, &made.id, upload.as_deref());
    api.close_idle_connection(); // the next request comes at the run's end
    // The engine has its own copies of the mounts now, or never will.
    let identity = staged.unmount().map_err(ContainerError::Stage);
    let (channel, pid) = match begun {
        Ok(begun) => begun,
        Err(error) => return Err(and_remove(&api, &made.id, error)),
    };
    let identity = match identity {
        Ok(identity) => identity,
        Err(error) => return Err(and_remove(&api, &made.id, error)),
    };
    let sees_processes = engine.is_local && !is_gvisor(plan.oci_runtime.as_deref());
    // Without it the end is seen on the channel only.
    let init = pid.filter(|_| engine.is_local).and_then(|pid| Init::find(pid, &made.id).ok());
    let lease = if engine.is_local { LEASE } else { REMOTE_LEASE };
    Ok(Started {
        channel: Some(InitChannel {
            fd: channel,
            wrapping: Wrapping::EnginePackets,
            lease: Some(super::lease_for_tests().unwrap_or(lease).min(lease)),
            // The engine closes PID 1's input with the connection, so that nothing outlives a dead launcher.
            link: Link::Lasting,
        }),
        streams: CommandStreams::OverChannel,
        stdin: None,
        stdout: None,
        stderr: None,
        sent: std::mem::take(&mut staged.sent),
        listeners: Vec::new(),
        init_pid: init.as_ref().filter(|_| sees_processes).map(Init::pid),
        command_uid: engine.is_local.then_some(staged.user.uid),
        sandbox: Box::new(Container {
            api,
            name: made.id,
            init,
            _identity: identity,
            limits: plan.limits_of_groups(),
            is_visible: sees_processes,
            begun_at,
            died_by_itself: false,
            killed: false,
            usage: Usage::default(),
            pids_peak: 0,
            oom_kills: 0,
            gone: false,
        }),
    })
}

/// Podman looks up the ids that an ordinary user may hand on with a library that does not bear two callers at
/// once, and then reports that there are none. A second request finds them.
fn make(
    api: &Api,
    name: &str,
    body: ContainerCreateBody,
) -> Result<ContainerCreateResponse, ApiError> {
    let mut pauses = [50, 150, 400, 1000].map(Duration::from_millis).into_iter();
    loop {
        let options = CreateContainerOptionsBuilder::new().name(name).build();
        let making = api.docker.create_container(Some(options), body.clone());
        match api.wait("make the container", SLOW_TIMEOUT, making) {
            Err(error) if error.is_about_missing_ids() => match pauses.next() {
                Some(pause) => std::thread::sleep(pause),
                None => return Err(error),
            },
            made => return made,
        }
    }
}

/// Attached before it is started, so that nothing is missed.
fn begin(
    api: &Api,
    id: &str,
    upload: Option<&Path>,
) -> Result<(OwnedFd, Option<i32>), ContainerError> {
    if let Some(executable) = upload {
        super::upload::init(api, id, executable)?;
    }
    let channel = api.attach(id).map_err(ContainerError::Attach)?;
    let start = api.docker.start_container(id, None::<StartContainerOptions>);
    api.wait("start the container", SLOW_TIMEOUT, start)?;
    // The channel of one that has ended already has the reason.
    let found = match api.inspect(id) {
        Err(error) if error.is_not_found() => return Ok((channel, None)),
        found => found?,
    };
    Ok((channel, Some(found.state.pid).filter(|pid| *pid > 0)))
}

/// An engine that did not answer may still make the container.
fn remove_if_made(api: &Api, name: &str, error: ApiError) -> ContainerError {
    let cleanup = remove(api, name).err();
    let cleanup = cleanup.unwrap_or(ApiError::Silent {
        what: "make sure that no container was made",
        endpoint: api.endpoint.to_string(),
        seconds: SLOW_TIMEOUT.as_secs(),
    });
    ContainerError::AndCleanup { error: Box::new(error.into()), cleanup }
}

fn and_remove(api: &Api, id: &str, error: ContainerError) -> ContainerError {
    match remove(api, id) {
        Ok(()) => error,
        Err(cleanup) => ContainerError::AndCleanup { error: Box::new(error), cleanup },
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Removal {
    Done,
    /// It failed, takes long, or this engine cannot tell.
    NotSeen,
}

/// Docker's daemon removes a container by itself when it has ended, and refuses to do so a second time meanwhile: this
/// waits until it is gone. With Podman that is done by a process for each container, which need not be waited for.
fn wait_for_removal(api: &Api, id: &str) -> Removal {
    use futures_util::StreamExt;
    if api.is_podman {
        return Removal::NotSeen;
    }
    let options = WaitContainerOptionsBuilder::new().condition("removed").build();
    let mut answers = api.docker.wait_container(id, Some(options));
    let ended = async { Ok(answers.next().await) };
    match api.wait("wait for the container's removal", REMOVAL_TIMEOUT, ended) {
        Ok(Some(answer)) => removal_of(answer),
        Ok(None) | Err(_) => Removal::NotSeen,
    }
}

/// The answer has the container's exit code, and a message if the removal failed.
fn removal_of(answer: Result<ContainerWaitResponse, bollard::errors::Error>) -> Removal {
    use bollard::errors::Error;
    let failure = match answer {
        Ok(ended) => ended.error.and_then(|error| error.message).unwrap_or_default(),
        Err(Error::DockerContainerWaitError { error, .. }) => error,
        Err(Error::DockerResponseServerError { status_code: 404, .. }) => String::new(),
        Err(error) => error.to_string(),
    };
    if failure.is_empty() { Removal::Done } else { Removal::NotSeen }
}

/// Until the engine no longer knows it. One that is gone is a success.
pub(super) fn remove(api: &Api, id: &str) -> Result<(), ApiError> {
    let until = Instant::now() + GONE_TIMEOUT;
    loop {
        let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
        let removing = api.docker.remove_container(id, Some(options));
        match api.wait("remove the container", GONE_TIMEOUT, removing) {
            Ok(()) => return Ok(()),
            Err(error) if error.is_not_found() => return Ok(()),
            // It is being removed already, or just ends.
            Err(error) if error.is_transient() && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(error) => return Err(error),
        }
    }
}

impl RunningSandbox for Container {
    /// Ends everything inside. Directly where this user may, else by the engine.
    fn kill(&mut self) {
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        self.died_by_itself |= !self.killed
            && self.end().is_some_and(|end| {
                poll(&mut [PollFd::new(&end, PollFlags::IN)], Some(&now)).is_ok_and(|n| n > 0)
            });
        self.killed = true;
        if self.gone || self.init.as_ref().is_some_and(|init| init.kill().is_ok()) {
            return;
        }
        // What fails here is reported when the container is removed.
        let killing = self.api.docker.kill_container(&self.name, None);
        let _ = self.api.wait("end the container", QUICK_TIMEOUT, killing);
    }

    fn reap(&mut self) {
        self.wait_for_end();
        // With PID 1 its groups went away, and what they had counted.
        if self.died_by_itself && self.oom_kills == 0 && self.limits.memory.is_some() {
            self.oom_kills = self.oom_events();
        }
    }

    fn destroy(&mut self) -> Result<(), DestroyError> {
        if !self.gone {
            self.kill();
            if wait_for_removal(&self.api, &self.name) == Removal::NotSeen {
                remove(&self.api, &self.name).map_err(|error| DestroyError(Box::new(error)))?;
            }
            self.gone = true;
        }
        Ok(())
    }

    fn sample(&mut self) {
        let Some(init) = &self.init else { return };
        let mut now = Usage::default();
        init.usage(&mut now);
        // When the groups are gone, the last values are the result.
        self.usage.cpu_ms = now.cpu_ms.or(self.usage.cpu_ms);
        self.usage.memory_peak_bytes = now.memory_peak_bytes.or(self.usage.memory_peak_bytes);
        self.usage.written_bytes = now.written_bytes.or(self.usage.written_bytes);
        self.pids_peak = self.pids_peak.max(now.pids_peak.or(init.processes()).unwrap_or(0));
        self.oom_kills = self.oom_kills.max(init.oom_kills());
    }

    fn usage(&self, usage: &mut Usage) {
        usage.cpu_ms = self.usage.cpu_ms;
        usage.memory_peak_bytes = self.usage.memory_peak_bytes;
        usage.written_bytes = self.usage.written_bytes;
        usage.pids_peak = (self.pids_peak > 0).then_some(self.pids_peak);
    }

    fn oom_kills(&self) -> u64 {
        self.oom_kills
    }

    fn end(&self) -> Option<BorrowedFd<'_>> {
        self.init.as_ref().map(Init::end)
    }

    /// The engine has made them with the container: now that the sandbox has attested, they are read back.
    fn join_limits(&mut self) -> Result<(), StartError> {
        self.check_limits().map_err(StartError::new)
    }

    fn set_up_failure(&self) -> StartError {
        let ended = match self.api.inspect(&self.name) {
            Ok(found) => format!("exit code {} {}", found.state.exit_code, found.state.error),
            Err(error) => error.to_string(),
        };
        StartError::new(ContainerError::Ended(ended.trim().to_owned()))
    }
}

impl Container {
    /// What the engine saw.
    fn oom_events(&self) -> u64 {
        use futures_util::StreamExt;
        let seconds = |at: SystemTime| {
            at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs().to_string()
        };
        let filters = HashMap::from([
            ("container", vec![self.name.clone()]),
            ("event", vec!["oom".to_owned()]),
        ]);
        let options = EventsOptionsBuilder::new()
            .since(&seconds(self.begun_at))
            .until(&seconds(SystemTime::now() + Duration::from_secs(1)))
            .filters(&filters)
            .build();
        let events = self.api.docker.events(Some(options));
        let counted = async { Ok(events.filter(|e| std::future::ready(e.is_ok())).count().await) };
        // Without an answer it stays unknown.
        self.api.wait("ask what happened", QUICK_TIMEOUT, counted).unwrap_or(0) as u64
    }

    fn wait_for_end(&self) {
        let Some(end) = self.end() else { return };
        let until = Instant::now() + END_TIMEOUT;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let left = rustix::time::Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: i64::from(left.subsec_nanos()),
            };
            match poll(&mut [PollFd::new(&end, PollFlags::IN)], Some(&left)) {
                Err(rustix::io::Errno::INTR) => {}
                _ => return,
            }
        }
    }

    /// Whether the engine holds the limits that it was given.
    fn check_limits(&self) -> Result<(), ContainerError> {
        let Limits { memory, millicpus, pids, .. } = self.limits;
        match &self.init {
            Some(init) => init.check_limits(&self.limits).map_err(ContainerError::Limit),
            // Neither its user nor its limits could be seen from outside.
            None if self.is_visible => Err(ContainerError::InitNotFound),
            None if (memory, millicpus, pids) == (None, None, None) => Ok(()),
            None => Err(ContainerError::InitNotFound),
        }
    }
}

#[cfg(test)]
mod tests {
    use bollard::errors::Error;
    use bollard::models::ContainerWaitExitError;

    use super::*;

    #[test]
    fn only_an_answer_without_a_failure_is_a_removal() {
        let ended = |status_code, message: Option<&str>| {
            let error = message.map(|text| ContainerWaitExitError { message: Some(text.into()) });
            Ok(ContainerWaitResponse { status_code, error })
        };
        let killed =
            |error: &str| Error::DockerContainerWaitError { error: error.into(), code: 137 };
        let refused = |status_code| Error::DockerResponseServerError {
            status_code,
            message: "a reason".into(),
        };
        for done in [ended(0, None), Err(killed("")), Err(refused(404))] {
            assert_eq!(removal_of(done), Removal::Done);
        }
        let failure = "unable to remove filesystem: device or resource busy";
        let failed = [
            ended(0, Some(failure)),
            Err(killed(failure)),
            Err(refused(500)),
            Err(refused(400)),
            Err(Error::RequestTimeoutError),
        ];
        for failed in failed {
            assert_eq!(removal_of(failed), Removal::NotSeen);
        }
    }
}
