//! Opens a sandbox, attests it, releases its main command, and hands over to the supervisor.

use std::time::Instant;

use belljar_backend::StartError;
use belljar_record::Recorder;
use belljar_spec::wire::control::FromSupervisor;
use belljar_spec::{Attestation, EventKind, Plan, RunId, RunState};
use serde_json::json;

use super::baseline::Baselines;
use super::channel::{Channel, MAIN_EXEC};
use super::checkpoint_request::Checkpoints;
use super::client::Clients;
use super::control::Control;
use super::control_socket::ControlSocket;
use super::disk::Disk;
use super::drive::Driver;
use super::init_link::Inside;
use super::outside::{Signals, host_uid_of_child};
use super::own_task::own_task;
use super::sandbox::SandboxState;
use super::stop_clock::StopClock;
use super::supervisor::{RunSettings, Supervisor};
use super::terminal::CallersTerminal;
use super::{Caller, LaunchOptions, NetworkBridge, Sandboxes, SuperviseError, Supervised, setup};
use crate::run::timings;

/// PID 1 has the hello, and the command is not released yet.
#[derive(Debug)]
pub(crate) struct Opened {
    signals: Signals,
    terminal: Option<CallersTerminal>,
}

/// Sends the hello to the main sandbox. What takes time on the host can be done meanwhile.
pub(crate) fn open(
    sandboxes: &mut Sandboxes,
    plan: &Plan,
    run: &RunId,
    caller: &Caller,
) -> Result<Opened, SuperviseError> {
    let signals =
        Signals::new().map_err(|error| SuperviseError::Step("watch for signals", error))?;
    let sandbox = sandboxes.main_mut();
    if let Some(channel) = sandbox.started_mut().channel.take() {
        // PID 1 listens only where the launcher does not have the sockets.
        let has_sockets = !sandbox.started().listeners.is_empty();
        let listen = if has_sockets { Vec::new() } else { plan.listen.clone() };
        let setup = setup::setup(plan, sandbox.expectation(), listen);
        sandbox.connect(Channel::open(channel, setup, run)?);
    }
    let terminal = match caller {
        Caller::Here(streams) => streams.terminal.as_ref().map(CallersTerminal::new),
        Caller::There { .. } | Caller::Served => None,
    };
    Ok(Opened { signals, terminal })
}

/// What a supervisor works with.
pub(crate) struct Supervision<'a> {
    pub(crate) sandboxes: &'a mut Sandboxes,
    pub(crate) plan: &'a Plan,
    pub(crate) caller: &'a mut Caller,
    pub(crate) options: LaunchOptions,
    pub(crate) recorder: &'a mut Recorder,
    /// Called when the command is released.
    pub(crate) on_release: &'a mut dyn FnMut(&mut Caller),
}

impl Opened {
    /// After this the command's process locks itself down; what it inherits from PID 1 must be in place.
    pub(crate) fn ask_for_command(
        &mut self,
        sandboxes: &mut Sandboxes,
        plan: &Plan,
        caller: &Caller,
    ) -> Result<(), SuperviseError> {
        use belljar_spec::wire::control::Streams;
        sandboxes.main_mut().send_trees(&self.signals)?;
        let size = match caller {
            Caller::Here(_) => self.terminal.as_ref().map(CallersTerminal::size),
            Caller::There { streams: Streams::Terminal(size), .. } => {
                Some((size.rows, size.columns))
            }
            Caller::There { .. } | Caller::Served => None,
        };
        let sandbox = sandboxes.main_mut();
        let streams = sandbox.started().streams;
        match sandbox.link() {
            Inside::Init(channel) => channel.ask_for_command(plan, streams, size),
            Inside::Child => Ok(()),
        }
    }

    /// Attests, releases the command, and supervises the run to its end. An error means that nothing was released.
    pub(crate) fn supervise(self, with: Supervision<'_>) -> Result<Supervised, SuperviseError> {
        let Supervision { sandboxes, plan, caller, mut options, recorder, on_release } = with;
        let Self { signals, terminal } = self;
        timings::mark(timings::Phase::Boundary);
        // While the command's process locks itself down. Clients that connect before it is released wait.
        let socket = ControlSocket::open(&options.socket)
            .map_err(|error| SuperviseError::Step("open the run's socket", error))?;
        let main = sandboxes.main_mut();
        let not_as_planned = attest(main, &signals)?;
        if !not_as_planned.is_empty() || main.result_mut().failure.is_some() {
            let main = main.take_result();
            return Ok(Supervised { not_as_planned, main, ..Supervised::default() });
        }
        record_start(main, plan, recorder)?;
        let network = std::mem::take(&mut options.network);
        prepare(main, network, recorder)?;
        // With the kernel before anything of the command runs; `run.start` is on disk since the sandbox was started.
        recorder.flush()?;
        // Here and not at the beginning: the clock of files has ticked meanwhile, so nobody waits for it.
        let released = Some(options.arrived.passed());
        release(main, plan);
        let begun = Instant::now();
        options.live.set_state(RunState::Running);
        on_release(caller);
        timings::mark(timings::Phase::Attestation);
        tracing::debug!("attested; the command is released");
        let caller = std::mem::replace(caller, Caller::Served);
        let mut clients = Clients::default();
        let (task, owner) = own_task(plan, main.started_mut(), caller, &mut clients);
        if task.is_some() && !main.has_init() {
            // Its process was the command before it could be released.
            clients.send_all(&FromSupervisor::TaskStarted { task: MAIN_EXEC, exec: MAIN_EXEC });
        }
        main.begin(task, begun);
        let LaunchOptions {
            run,
            keep,
            ttl,
            disk,
            layers,
            live,
            rules,
            agent,
            checkpoint,
            login,
            ..
        } = options;
        let agent = agent.map(|options| Box::new(Driver::new(*options)));
        let mut clock = StopClock::new(plan, begun);
        if agent.is_some() {
            clock.never_idle(); // an agent's idle limit counts its events, not its output
        }
        clock.renew(ttl, begun);
        let mut supervisor = Supervisor {
            settings: RunSettings { run, backend: plan.backend, keep, live, rules },
            sandboxes,
            control: Control::new(run, socket, clients, owner),
            clock,
            disk: Disk::from(disk, begun),
            baselines: Baselines::from(layers, begun),
            recorder,
            signals,
            terminal,
            agent,
            login,
            checkpoints: Checkpoints::of(checkpoint),
            supervised: Supervised { released, ..Supervised::default() },
        };
        supervisor.run();
        timings::mark(timings::Phase::Command);
        Ok(supervisor.finish(begun))
    }
}

/// Compares what the command's process attests with what was planned. The result is what differs.
fn attest(sandbox: &mut SandboxState, signals: &Signals) -> Result<Vec<String>, SuperviseError> {
    let Inside::Init(channel) = sandbox.link() else {
        let command = sandbox.started_mut().sandbox.unsupervised_command();
        let failure = command.and_then(|child| child.exec_failure().cloned());
        sandbox.result_mut().failure = failure;
        return Ok(Vec::new());
    };
    let _attest = tracing::debug_span!("attest").entered();
    let attestation = match channel.wait_for_attestation(signals) {
        Err(SuperviseError::NoAnswer(0)) => {
            let diagnostics = channel.diagnostics();
            return Err(set_up_failure(diagnostics, sandbox));
        }
        attestation => attestation?,
    };
    sandbox.started_mut().sandbox.join_limits().map_err(SuperviseError::SetUp)?;
    let (started, expectation) = (sandbox.started(), sandbox.expectation());
    let mut differences = expectation.compare(&attestation);
    if let (Some(init), Some(uid)) = (started.init_pid, started.command_uid) {
        differences.extend(host_uid_of_child(init, uid, expectation.uid_map.as_deref()));
    }
    sandbox.result_mut().attestation = Some(attestation);
    for difference in &differences {
        tracing::debug!(%difference, "not as planned");
    }
    Ok(differences)
}

/// What PID 1 wrote about it, if it did.
fn set_up_failure(diagnostics: Option<String>, sandbox: &SandboxState) -> SuperviseError {
    SuperviseError::SetUp(match diagnostics {
        Some(text) => StartError::new(format!("the sandbox could not be set up: {text}")),
        None => sandbox.started().sandbox.set_up_failure(),
    })
}

/// The data of `sandbox.attested`.
#[derive(serde::Serialize)]
struct Attested<'a> {
    attestation: &'a Option<Box<Attestation>>,
}

fn record_start(
    sandbox: &mut SandboxState,
    plan: &Plan,
    recorder: &mut Recorder,
) -> Result<(), SuperviseError> {
    let attestation = &sandbox.result_mut().attestation;
    recorder.event(EventKind::SandboxAttested, &Attested { attestation })?;
    sandbox.record_sent_trees(recorder)?;
    if !plan.command.argv.is_empty() {
        let argv = recorder.masked(&plan.command.argv);
        recorder.event(EventKind::ExecStart, &json!({ "exec": MAIN_EXEC, "argv": argv }))?;
    }
    Ok(())
}

/// Everything that can fail comes before the command is released.
fn prepare(
    sandbox: &mut SandboxState,
    mut network: NetworkBridge,
    recorder: &mut Recorder,
) -> Result<(), SuperviseError> {
    if let Some(proxy) = &mut network.proxy
        && proxy.is_awaited()
    {
        proxy.wait_until_ready()?;
    }
    Ok(sandbox.open_network(network, recorder)?)
}

fn release(sandbox: &mut SandboxState, plan: &Plan) {
    match sandbox.link() {
        Inside::Init(channel) if plan.command.argv.is_empty() => channel.dismiss(),
        Inside::Init(channel) => channel.release(MAIN_EXEC),
        Inside::Child => {}
    }
}
