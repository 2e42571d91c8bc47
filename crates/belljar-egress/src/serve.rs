//! The proxy's process: it is told what is allowed, is given connections, and tells what it decides, until the
//! supervisor's end of the socket closes.
//!
//! Where there is a set-up, that is served first, apart from the run: with policy, connections and runtime of its own,
//! all of which are gone before the run's own policy holds.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::Serialize;
use tokio::io::Interest;
use tokio::net::UnixDatagram;

use crate::control::{ControlError, FromProxy, Setup, ToProxy, receive, send};
use crate::inbound::phase::{Doors, Stage};
use crate::io::stream::{Stream, is_passing};
use crate::policy::{Policy, Whose};
use crate::proxy::Proxy;
use crate::report::Reporter;
use crate::upstream::tls::Tls;

/// For the last news, when the supervisor wants no more connections.
const FAREWELL: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("the runtime cannot be made")]
    Runtime(#[source] std::io::Error),
    #[error("the supervisor cannot be heard or told")]
    Control(#[from] ControlError),
    #[error("the supervisor spoke out of turn")]
    OutOfTurn,
    #[error("the set-up makes no sense: {0}")]
    BadSetup(String),
}

/// Its packets keep their bounds, as those of a datagram socket do; only its readiness is asked for here.
pub(crate) type Control = UnixDatagram;

/// Serves one run. A failure closes everything that was carried. Each connection takes two descriptors, so the
/// process should have been granted enough of them; with fewer, connections wait to be accepted.
pub fn serve(control: OwnedFd) -> Result<(), ServeError> {
    rustix::io::ioctl_fionbio(&control, true).map_err(ControlError::from)?;
    let control = std::os::unix::net::UnixDatagram::from(control);
    let mut telling = Telling::default();
    let served = serve_run(&control, &mut telling);
    tell_the_rest(control.as_fd(), telling);
    served
}

/// What is told, and what was about to be.
#[derive(Default)]
struct Telling {
    reporter: Reporter,
    /// Taken from the others and not yet said: whoever was about to say it may have been stopped.
    next: Option<FromProxy>,
}

type StdControl = std::os::unix::net::UnixDatagram;

fn serve_run(control: &StdControl, telling: &mut Telling) -> Result<(), ServeError> {
    let reporter = telling.reporter.clone();
    match apart(control, async |control| begin(control, reporter).await)? {
        Some(stages) => serve_stages(control, stages, telling),
        None => Ok(()),
    }
}

fn serve_stages(
    control: &StdControl,
    Stages { setup, run }: Stages,
    telling: &mut Telling,
) -> Result<(), ServeError> {
    let mut doors = Doors::default();
    let mut closed = None;
    if let Some(setup) = setup {
        let served = apart(control, async |control| {
            serve_stage(control, &setup, &mut doors, telling).await
        })?;
        // Here nothing of the set-up's is left, so nothing that was decided for it can be dialled any more.
        let Over::Narrowed { present } = served else { return Ok(()) };
        closed = Some(present + doors.clear());
    }
    apart(control, async |control| {
        if let Some(closed) = closed {
            tell_of_setup(control, telling).await?;
            say(control, &FromProxy::Narrowed { closed }).await?;
        }
        serve_stage(control, &run, &mut doors, telling).await.map(drop)
    })
}

/// In a runtime of its own: with its end everything that was begun in it is gone, connections and lookups and all,
/// and their ends are told.
fn apart<T>(
    control: &StdControl,
    work: impl AsyncFnOnce(&Control) -> Result<T, ServeError>,
) -> Result<T, ServeError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(ServeError::Runtime)?;
    runtime.block_on(async {
        let control =
            control.try_clone().and_then(Control::from_std).map_err(ServeError::Runtime)?;
        work(&control).await
    })
}

struct Stages {
    setup: Option<Stage>,
    run: Stage,
}

async fn begin(control: &Control, reporter: Reporter) -> Result<Option<Stages>, ServeError> {
    let Some((said, _)) = hear(control).await? else { return Ok(None) };
    let ToProxy::Setup(setup) = said else { return Err(ServeError::OutOfTurn) };
    match set_up(*setup, reporter) {
        Ok(stages) => {
            say(control, &FromProxy::Ready { trust: stages.run.tls.trust() }).await?;
            Ok(Some(stages))
        }
        Err(why) => {
            say(control, &FromProxy::Failed { why: why.clone() }).await?;
            Err(ServeError::BadSetup(why))
        }
    }
}

fn set_up(setup: Setup, reporter: Reporter) -> Result<Stages, String> {
    let Setup { policy, secrets } = setup;
    let of_setup = Policy::of_setup(&policy).map_err(|error| error.to_string())?;
    let stage = |proxy: Arc<Proxy>| {
        let tls = Tls::new(&proxy.policy).map_err(|error| error.to_string())?;
        Ok::<_, String>(Stage { proxy, tls: Arc::new(tls) })
    };
    let policy = Policy::new(policy).map_err(|error| error.to_string())?;
    let run = stage(Proxy::new(policy, secrets, reporter))?;
    let setup = of_setup.map(|policy| stage(run.proxy.before(policy))).transpose()?;
    Ok(Stages { setup, run })
}

async fn serve_stage(
    control: &Control,
    stage: &Stage,
    doors: &mut Doors,
    telling: &mut Telling,
) -> Result<Over, ServeError> {
    doors.open_for(stage).map_err(ServeError::Runtime)?;
    tokio::select! {
        taken = take_connections(control, stage, doors) => taken,
        told = tell_news(control, telling) => told.map(|()| Over::Ended),
    }
}

/// Why a stage is over.
enum Over {
    Ended,
    Narrowed { present: u64 },
}

async fn take_connections(
    control: &Control,
    stage: &Stage,
    doors: &mut Doors,
) -> Result<Over, ServeError> {
    while let Some(said) = hear(control).await? {
        match said {
            (ToProxy::Listener { port }, Some(socket)) => {
                doors.add(port, socket, stage).map_err(ServeError::Runtime)?;
            }
            (ToProxy::Connection { port }, Some(socket)) => {
                // One that is of no use is closed.
                if let Ok(stream) = Stream::from_fd(socket) {
                    stage.admit(stream, port);
                }
            }
            (ToProxy::Narrow, None) if stage.proxy.policy.whose == Whose::Setup => {
                return Ok(Over::Narrowed { present: stage.proxy.present() });
            }
            _ => return Err(ServeError::OutOfTurn),
        }
    }
    Ok(Over::Ended)
}

async fn tell_news(control: &Control, telling: &mut Telling) -> Result<(), ServeError> {
    loop {
        let news = match &telling.next {
            Some(news) => news,
            None => telling.next.insert(FromProxy::News(telling.reporter.next().await)),
        };
        match say(control, news).await {
            Ok(()) => telling.next = None,
            Err(ControlError::Io(Errno::PIPE | Errno::CONNRESET)) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// What was decided for the set-up is told as the set-up's: before its end is.
async fn tell_of_setup(control: &Control, telling: &mut Telling) -> Result<(), ServeError> {
    let rest = telling.reporter.take_all().into_iter().map(FromProxy::News);
    for news in telling.next.take().into_iter().chain(rest) {
        say(control, &news).await?;
    }
    Ok(())
}

async fn hear(control: &Control) -> Result<Option<(ToProxy, Option<OwnedFd>)>, ControlError> {
    when_ready(control, Interest::READABLE, || receive(control)).await
}

async fn say<M: Serialize>(control: &Control, message: &M) -> Result<(), ControlError> {
    when_ready(control, Interest::WRITABLE, || send(control.as_fd(), message, None)).await
}

async fn when_ready<T>(
    control: &Control,
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
            Err(error) if is_passing(&error) => {}
            Err(error) => return Err(errno(error).into()),
        }
    }
}

/// A supervisor that only stopped talking still listens.
fn tell_the_rest(control: BorrowedFd<'_>, telling: Telling) {
    let until = Instant::now() + FAREWELL;
    let rest = telling.reporter.take_all().into_iter().map(FromProxy::News);
    for news in telling.next.into_iter().chain(rest) {
        if !tell_by(control, &news, until) {
            return;
        }
    }
}

fn tell_by(control: BorrowedFd<'_>, news: &FromProxy, until: Instant) -> bool {
    loop {
        match send(control, news, None) {
            Ok(()) => return true,
            Err(ControlError::Io(Errno::AGAIN)) => {}
            Err(_) => return false,
        }
        let left = until.saturating_duration_since(Instant::now());
        let Ok(left) = Timespec::try_from(left) else { return false };
        let mut sockets = [PollFd::new(&control, PollFlags::OUT)];
        if !matches!(poll(&mut sockets, Some(&left)), Ok(1..) | Err(Errno::INTR)) {
            return false;
        }
    }
}

#[cfg(test)]
mod tests;
