//! The client of a run's supervisor, used by [`super::Sandbox`] and by the command line.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use belljar_spec::network_list::{NetworkChange, NetworkState};
use belljar_spec::wire::control::{
    Bond, CONTROL_MAX, CONTROL_MIN, ClientHello, ControlError, LaunchRequest, RunStatus,
    StopReport, Streams, TakenCheckpoint, ToSupervisor,
};
use belljar_spec::wire::{FrameKey, Mux, Side, Work};
use belljar_spec::{BackendChoice, BackendName, ExecFailure, Posture, RunId, SkippedBackend};
use tokio::sync::oneshot;

use super::connector::{Connector, Destination, Supervisors};
use super::error::Error;
use super::exec::Exec;
use super::link::{self, Greeting, Link, TaskNumber};
use super::running::Running;

/// How long to wait for the supervisor's first message.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection to a supervisor. Dropping it closes the connection; what ends with it depends on the
/// [`Bond`].
#[derive(Debug)]
pub struct Client {
    link: Arc<Link>,
    run: Option<RunId>,
}

/// A run that was started over this connection.
#[derive(Debug)]
pub struct LaunchedRun {
    pub run: RunId,
    pub backend: BackendName,
    pub posture: Posture,
    /// Backends that were tried before this one, and why they were skipped.
    pub skipped_backends: Vec<SkippedBackend>,
    /// The run's main command, if its streams are followed.
    pub command: Option<Running>,
}

impl Client {
    /// Connects to a live run.
    pub async fn connect(home: &Path, run: &RunId) -> Result<Self, Error> {
        let to = Destination::Live { home: home.to_owned(), run: *run };
        Self::over(&Supervisors::new(), &to).await
    }

    pub async fn over(connector: &dyn Connector, to: &Destination) -> Result<Self, Error> {
        let connection = connector.connect(to).await?;
        let mut mux = Mux::new(Side::Client);
        let key = new_key()?;
        let hello = ClientHello {
            min: CONTROL_MIN,
            max: CONTROL_MAX,
            key: key.bytes().iter().map(|byte| format!("{byte:02x}")).collect(),
            build: belljar_spec::BUILD.to_owned(),
        };
        mux.send(&ToSupervisor::Hello(hello)).map_err(link::wire)?;
        mux.rekey(&key);
        let link = Link::new(mux);
        let mut client = Self { link: Arc::clone(&link), run: None };
        tokio::spawn(link::drive(link, connection));
        let greeting = client.greeting(connector, to).await?;
        client.run = greeting.run;
        if *to == Destination::New && greeting.build != belljar_spec::BUILD {
            return Err(other_build(connector, greeting.build));
        }
        Ok(client)
    }

    async fn greeting(
        &self,
        connector: &dyn Connector,
        to: &Destination,
    ) -> Result<Greeting, Error> {
        let answered = self.link.wait(|state| match (&state.greeting, state.refusal.take()) {
            (_, Some(error)) => Some(Err(error.into())),
            (Some(greeting), None) => Some(Ok(greeting.clone())),
            (None, None) => None,
        });
        let silent = |why: &str| {
            let who = connector.executable().filter(|_| *to == Destination::New);
            let who = who.map(|path| format!("; is {} a belljar of this build?", path.display()));
            Error::lost(format!("{why} before it had responded{}", who.unwrap_or_default()))
        };
        match tokio::time::timeout(HELLO_TIMEOUT, answered).await {
            Ok(Err(Error::Lost { why })) => Err(silent(&why)),
            Ok(Err(Error::NotDone(ControlError::OtherBuild { theirs, .. }))) => {
                // "theirs" is seen from the supervisor: our build.
                let theirs =
                    if theirs == belljar_spec::BUILD { "another".to_owned() } else { theirs };
                Err(other_build(connector, theirs))
            }
            Ok(answer) => answer,
            Err(_) => Err(silent(&format!("{} s passed", HELLO_TIMEOUT.as_secs()))),
        }
    }

    /// The run of this connection; `None` before the launch.
    pub fn run(&self) -> Option<RunId> {
        self.run
    }

    /// Launches a run; works only on a connection to a new supervisor, and only once. `input` is the
    /// complete standard input of the command; without it, and with [`Streams::InputAndOutput`], write to
    /// [`Running::stdin`].
    pub async fn launch(
        &mut self,
        request: LaunchRequest,
        input: Option<Vec<u8>>,
    ) -> Result<LaunchedRun, Error> {
        let streams = request.streams;
        let backend = named(request.spec.backend);
        let program = request.spec.command.first().cloned().unwrap_or_default();
        let message = ToSupervisor::Launch(Box::new(request));
        let command = match streams {
            Streams::Unwatched => {
                self.link.send(&message)?;
                None
            }
            _ => {
                self.link.begin(TaskNumber::Main, streams, input, |_| message)?;
                // The main command ends with the run, not with this handle.
                Some(Running::new(&self.link, 0, Bond::LivesOn, program))
            }
        };
        let launched = self.link.wait(|state| match (state.launch.take(), state.refusal.take()) {
            (Some(Ok(launched)), _) => Some(Ok(launched)),
            (Some(Err(refusal)), _) => Some(Err(Error::of_refusal(refusal, backend))),
            (None, Some(error)) => Some(Err(error.into())),
            (None, None) => None,
        });
        let launched = launched.await?;
        self.run = Some(launched.run);
        let link::Launched { run, backend, posture, skipped_backends } = launched;
        Ok(LaunchedRun { run, backend, posture, skipped_backends, command })
    }

    /// Waits until the main command of a run that was launched over this connection was executed, or could not be. Not
    /// for a run without one: a kept sandbox, or an agent's.
    pub async fn executed(&self) -> Result<Result<(), ExecFailure>, Error> {
        let executed = self.link.wait(|state| match (&state.executed, &state.stopped) {
            (Some(executed), _) => Some(Ok(executed.clone())),
            (None, Some(_)) => Some(Ok(Ok(()))), // it has ended already
            (None, None) => None,
        });
        executed.await
    }

    /// Prepares a command in the sandbox.
    pub fn exec<A: Into<std::ffi::OsString>>(&self, argv: impl IntoIterator<Item = A>) -> Exec {
        Exec::new(&self.link, argv.into_iter().map(Into::into).collect())
    }

    pub(super) fn work(&self, work: Work) -> Exec {
        Exec::of(&self.link, work)
    }

    /// Attaches to the run's main command. Dropping the handle does not end the command.
    pub async fn attach(&self, streams: Streams) -> Result<Running, Error> {
        let message = |_| ToSupervisor::Attach { streams };
        self.link.begin(TaskNumber::Main, streams, None, message)?;
        let running = Running::new(&self.link, 0, Bond::LivesOn, "the run's command".into());
        running.started().await?;
        Ok(running)
    }

    pub async fn status(&self) -> Result<RunStatus, Error> {
        self.ask_status(&ToSupervisor::Status).await
    }

    /// Gives a kept sandbox another time to live, from now on; `None`: until it is stopped.
    pub async fn renew(&self, ttl: Option<Duration>) -> Result<RunStatus, Error> {
        let ttl_ms = ttl.map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
        self.ask_status(&ToSupervisor::Renew { ttl_ms }).await
    }

    /// Sends a request whose answer is the run's status.
    async fn ask_status(&self, request: &ToSupervisor) -> Result<RunStatus, Error> {
        let (sender, answer) = oneshot::channel();
        {
            let mut state = self.link.lock();
            state.check()?;
            state.mux.send(request).map_err(link::wire)?;
            state.asked.push_back(sender);
        }
        self.link.flush();
        match answer.await {
            Ok(answer) => answer.map_err(Error::from),
            Err(_) => {
                let lost = self.link.lock().check();
                Err(lost.err().unwrap_or(Error::lost("it did not respond")))
            }
        }
    }

    /// What the run may reach now.
    pub async fn network(&self) -> Result<NetworkState, Error> {
        self.ask_network(None).await
    }

    /// See [`super::Sandbox::set_network`].
    pub async fn change_network(&self, change: NetworkChange) -> Result<NetworkState, Error> {
        self.ask_network(Some(change)).await
    }

    async fn ask_network(&self, change: Option<NetworkChange>) -> Result<NetworkState, Error> {
        let (sender, answer) = oneshot::channel();
        {
            let mut state = self.link.lock();
            state.check()?;
            state.mux.send(&ToSupervisor::Network { change }).map_err(link::wire)?;
            state.networks.push_back(sender);
        }
        self.link.flush();
        match answer.await {
            Ok(answer) => answer.map_err(Error::from),
            Err(_) => {
                let lost = self.link.lock().check();
                Err(lost.err().unwrap_or(Error::lost("it did not respond")))
            }
        }
    }

    /// See [`super::Sandbox::checkpoint`].
    pub async fn checkpoint(&self, note: Option<String>) -> Result<TakenCheckpoint, Error> {
        let (sender, answer) = oneshot::channel();
        {
            let mut state = self.link.lock();
            state.check()?;
            state.mux.send(&ToSupervisor::Checkpoint { note }).map_err(link::wire)?;
            state.checkpoints.push_back(sender);
        }
        self.link.flush();
        match answer.await {
            Ok(answer) => answer.map_err(Error::from),
            Err(_) => {
                let lost = self.link.lock().check();
                Err(lost.err().unwrap_or(Error::lost("the run ended before the checkpoint")))
            }
        }
    }

    /// Sends TERM to every process, and KILL after `grace` (`None`: the run's stop timeout). Returns when the
    /// end of the run is recorded; a run that has ended already is no error.
    pub async fn stop(&self, grace: Option<Duration>) -> Result<StopReport, Error> {
        let over = self.link.lock().stopped.clone();
        if let Some(report) = over {
            return Ok(report);
        }
        let grace_ms = grace.map(|grace| u64::try_from(grace.as_millis()).unwrap_or(u64::MAX));
        self.link.send(&ToSupervisor::Stop { grace_ms })?;
        self.stopped().await
    }

    /// Requests the stop without waiting for it.
    pub fn ask_to_stop(&self, grace: Option<Duration>) -> Result<(), Error> {
        let grace_ms = grace.map(|grace| u64::try_from(grace.as_millis()).unwrap_or(u64::MAX));
        self.link.send(&ToSupervisor::Stop { grace_ms })
    }

    /// Waits for the end of the run without requesting it.
    pub async fn stopped(&self) -> Result<StopReport, Error> {
        let report = self.link.wait(|state| match (&state.stopped, state.refusal.take()) {
            (Some(report), _) => Some(Ok(report.clone())),
            (None, Some(error)) => Some(Err(error.into())),
            (None, None) => None,
        });
        report.await
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.link.close();
    }
}

fn other_build(connector: &dyn Connector, theirs: String) -> Error {
    let ours = belljar_spec::BUILD.to_owned();
    Error::OtherBuild { path: connector.executable(), ours, theirs }
}

fn new_key() -> Result<FrameKey, Error> {
    let mut bytes = [0; 32];
    let mut filled = 0;
    while filled < bytes.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        match rustix::rand::getrandom(&mut bytes[filled..], flags) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Error::io("make a key")(errno.into())),
        }
    }
    Ok(FrameKey::new(bytes))
}

fn named(choice: BackendChoice) -> Option<BackendName> {
    BackendName::ALL.iter().copied().find(|name| BackendChoice::from(*name) == choice)
}
