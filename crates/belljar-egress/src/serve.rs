//! Runs the proxy process: receives policy and connections from the supervisor, and sends events back.
//!
//! It ends when the supervisor's end of the socket closes.
//!
//! The set-up phase, if there is one, is served first, with its own policy, connections and runtime, all of which are
//! dropped before the run's policy applies.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_spec::network_list::NetworkList;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::Serialize;
use tokio::io::Interest;
use tokio::net::UnixDatagram;

use crate::control::{ControlError, FromProxy, Setup, ToProxy, receive, send};
use crate::inbound::phase::{Listeners, Phase};
use crate::io::stream::{Stream, is_retryable};
use crate::policy::{Policy, PolicyPhase};
use crate::proxy::Proxy;
use crate::report::Reporter;
use crate::upstream::tls::TlsContext;

/// For the last events, after the supervisor closed its sending side.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot create the async runtime")]
    Runtime(#[source] std::io::Error),
    #[error("the connection to the supervisor failed")]
    Control(#[from] ControlError),
    #[error("the supervisor sent an unexpected message")]
    UnexpectedMessage,
    #[error("the set-up message is not valid: {0}")]
    BadSetup(String),
    #[error("the new network list is not valid: {0}")]
    BadList(String),
}

/// The socket keeps packet boundaries like a datagram socket; this type is used only for readiness.
pub(crate) type ControlSocket = UnixDatagram;

/// Serves one run. On failure every connection is closed. Each connection takes two descriptors, so the process
/// should be granted enough of them; with fewer, connections wait to be accepted.
pub fn serve(control: OwnedFd) -> Result<(), ServeError> {
    rustix::io::ioctl_fionbio(&control, true).map_err(ControlError::from)?;
    let control = std::os::unix::net::UnixDatagram::from(control);
    let mut outbox = Outbox::default();
    let served = serve_run(&control, &mut outbox);
    flush_events(control.as_fd(), outbox);
    served
}

/// The events that are still to be sent.
#[derive(Default)]
struct Outbox {
    reporter: Reporter,
    /// Taken from the reporter and not yet sent: the task that was sending it may have been cancelled.
    pending: Option<FromProxy>,
}

type StdControlSocket = std::os::unix::net::UnixDatagram;

fn serve_run(control: &StdControlSocket, outbox: &mut Outbox) -> Result<(), ServeError> {
    let reporter = outbox.reporter.clone();
    match in_fresh_runtime(control, async |control| start(control, reporter).await)? {
        Some(phases) => serve_phases(control, phases, outbox),
        None => Ok(()),
    }
}

fn serve_phases(
    control: &StdControlSocket,
    phases: Phases,
    outbox: &mut Outbox,
) -> Result<(), ServeError> {
    let mut listeners = Listeners::default();
    let mut closed = None;
    if let Some(setup) = &phases.setup {
        let served = in_fresh_runtime(control, async |control| {
            serve_phase(control, (setup, &phases), &mut listeners, outbox).await
        })?;
        // Here the set-up's runtime is dropped, so nothing that was allowed for it can be dialled any more.
        let PhaseEnd::Narrowed { open_connections } = served else { return Ok(()) };
        closed = Some(open_connections + listeners.close_pending());
    }
    in_fresh_runtime(control, async |control| {
        if let Some(closed) = closed {
            send_setup_events(control, outbox).await?;
            send_message(control, &FromProxy::Narrowed { closed }).await?;
        }
        serve_phase(control, (&phases.run, &phases), &mut listeners, outbox).await.map(drop)
    })
}

/// Runs the work in its own runtime. When that ends, every task in it is dropped: connections, lookups and all, which
/// reports their ends.
fn in_fresh_runtime<T>(
    control: &StdControlSocket,
    work: impl AsyncFnOnce(&ControlSocket) -> Result<T, ServeError>,
) -> Result<T, ServeError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(ServeError::Runtime)?;
    runtime.block_on(async {
        let control =
            control.try_clone().and_then(ControlSocket::from_std).map_err(ServeError::Runtime)?;
        work(&control).await
    })
}

struct Phases {
    setup: Option<Phase>,
    run: Phase,
}

impl Phases {
    /// Both phases get the new list: during the set-up it holds for that, and for what comes after it.
    fn change_list(&self, list: &NetworkList) -> Result<u64, ServeError> {
        let mut closed = 0;
        for phase in self.setup.iter().chain([&self.run]) {
            let policy = phase.proxy.policy().with_list(list);
            let policy = policy.map_err(|error| ServeError::BadList(error.to_string()))?;
            closed += phase.proxy.replace_policy(policy);
        }
        Ok(closed)
    }
}

async fn start(control: &ControlSocket, reporter: Reporter) -> Result<Option<Phases>, ServeError> {
    let Some((message, _)) = receive_message(control).await? else { return Ok(None) };
    let ToProxy::Setup(setup) = message else { return Err(ServeError::UnexpectedMessage) };
    match build_phases(*setup, reporter) {
        Ok(phases) => {
            send_message(control, &FromProxy::Ready { trust: phases.run.tls.trust() }).await?;
            Ok(Some(phases))
        }
        Err(why) => {
            send_message(control, &FromProxy::Failed { why: why.clone() }).await?;
            Err(ServeError::BadSetup(why))
        }
    }
}

fn build_phases(setup: Setup, reporter: Reporter) -> Result<Phases, String> {
    let Setup { policy, secrets } = setup;
    let setup_policy = Policy::for_setup(&policy).map_err(|error| error.to_string())?;
    let phase = |proxy: Arc<Proxy>| {
        let tls = TlsContext::new(&proxy.policy()).map_err(|error| error.to_string())?;
        Ok::<_, String>(Phase { proxy, tls: Arc::new(tls) })
    };
    let policy = Policy::new(policy).map_err(|error| error.to_string())?;
    let run = phase(Proxy::new(policy, secrets, reporter))?;
    let setup = setup_policy.map(|policy| phase(run.proxy.for_setup(policy))).transpose()?;
    Ok(Phases { setup, run })
}

async fn serve_phase(
    control: &ControlSocket,
    (phase, phases): (&Phase, &Phases),
    listeners: &mut Listeners,
    outbox: &mut Outbox,
) -> Result<PhaseEnd, ServeError> {
    listeners.serve_all(phase).map_err(ServeError::Runtime)?;
    tokio::select! {
        taken = handle_messages(control, (phase, phases), listeners) => taken,
        sent = send_events(control, outbox) => sent.map(|()| PhaseEnd::Closed),
    }
}

/// Why a phase ended.
enum PhaseEnd {
    Closed,
    Narrowed { open_connections: u64 },
}

async fn handle_messages(
    control: &ControlSocket,
    (phase, phases): (&Phase, &Phases),
    listeners: &mut Listeners,
) -> Result<PhaseEnd, ServeError> {
    while let Some(message) = receive_message(control).await? {
        match message {
            (ToProxy::Listener { port }, Some(socket)) => {
                listeners.add(port, socket, phase).map_err(ServeError::Runtime)?;
            }
            (ToProxy::Connection { port }, Some(socket)) => {
                // An unusable socket is closed.
                if let Ok(stream) = Stream::from_fd(socket) {
                    phase.spawn_connection(stream, port);
                }
            }
            (ToProxy::Narrow, None) if phase.proxy.policy().phase == PolicyPhase::Setup => {
                return Ok(PhaseEnd::Narrowed { open_connections: phase.proxy.open_connections() });
            }
            (ToProxy::ChangeList(list), None) => {
                // Nothing of the old list is left when this returns, so the answer is true when it is sent.
                let closed = phases.change_list(&list)?;
                send_message(control, &FromProxy::ListChanged { closed }).await?;
            }
            (ToProxy::Secret(value), None) => {
                if !phase.proxy.secrets.replace(value) {
                    return Err(ServeError::UnexpectedMessage);
                }
            }
            _ => return Err(ServeError::UnexpectedMessage),
        }
    }
    Ok(PhaseEnd::Closed)
}

async fn send_events(control: &ControlSocket, outbox: &mut Outbox) -> Result<(), ServeError> {
    loop {
        let event = match &outbox.pending {
            Some(event) => event,
            None => outbox.pending.insert(FromProxy::Event(outbox.reporter.next().await)),
        };
        match send_message(control, event).await {
            Ok(()) => outbox.pending = None,
            Err(ControlError::Io(Errno::PIPE | Errno::CONNRESET)) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Sends what was decided in the set-up phase before its end is reported.
async fn send_setup_events(control: &ControlSocket, outbox: &mut Outbox) -> Result<(), ServeError> {
    let rest = outbox.reporter.take_all().into_iter().map(FromProxy::Event);
    for event in outbox.pending.take().into_iter().chain(rest) {
        send_message(control, &event).await?;
    }
    Ok(())
}

async fn receive_message(
    control: &ControlSocket,
) -> Result<Option<(ToProxy, Option<OwnedFd>)>, ControlError> {
    when_ready(control, Interest::READABLE, || receive(control)).await
}

async fn send_message<M: Serialize>(
    control: &ControlSocket,
    message: &M,
) -> Result<(), ControlError> {
    when_ready(control, Interest::WRITABLE, || send(control.as_fd(), message, None)).await
}

async fn when_ready<T>(
    control: &ControlSocket,
    interest: Interest,
    mut attempt: impl FnMut() -> Result<T, ControlError>,
) -> Result<T, ControlError> {
    loop {
        let errno = |error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        control.ready(interest).await.map_err(errno)?;
        let tried = control.try_io(interest, || match attempt() {
            Err(ControlError::Io(Errno::AGAIN)) => Err(std::io::ErrorKind::WouldBlock.into()),
            done => Ok(done),
        });
        match tried {
            Ok(done) => return done,
            Err(error) if is_retryable(&error) => {}
            Err(error) => return Err(errno(error).into()),
        }
    }
}

/// A supervisor that only closed its sending side still receives.
fn flush_events(control: BorrowedFd<'_>, outbox: Outbox) {
    let deadline = Instant::now() + FLUSH_TIMEOUT;
    let rest = outbox.reporter.take_all().into_iter().map(FromProxy::Event);
    for event in outbox.pending.into_iter().chain(rest) {
        if !send_before(control, &event, deadline) {
            return;
        }
    }
}

fn send_before(control: BorrowedFd<'_>, event: &FromProxy, deadline: Instant) -> bool {
    loop {
        match send(control, event, None) {
            Ok(()) => return true,
            Err(ControlError::Io(Errno::AGAIN)) => {}
            Err(_) => return false,
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let Ok(left) = Timespec::try_from(left) else { return false };
        let mut sockets = [PollFd::new(&control, PollFlags::OUT)];
        if !matches!(poll(&mut sockets, Some(&left)), Ok(1..) | Err(Errno::INTR)) {
            return false;
        }
    }
}

#[cfg(test)]
mod tests;
