//! The proxy's process: it is told what is allowed, is given connections, and tells what it decides, until the
//! supervisor's end of the socket closes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_spec::egress::{EgressNews, Via};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::Serialize;
use tokio::io::Interest;
use tokio::net::{TcpListener, UnixDatagram};

use crate::answer::refused_unread;
use crate::control::{ControlError, FromProxy, Setup, ToProxy, receive, send};
use crate::door;
use crate::policy::Policy;
use crate::proxy::Proxy;
use crate::report::Reporter;
use crate::stream::{Stream, is_passing};
use crate::tls::Tls;

/// For the last news, when the supervisor wants no more connections.
const FAREWELL: Duration = Duration::from_secs(1);
/// Before accepting is tried again, when there is no descriptor left.
const BREATH: Duration = Duration::from_millis(50);

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
type Control = UnixDatagram;

/// Serves one run. A failure closes everything that was carried. Each connection takes two descriptors, so the
/// process should have been granted enough of them; with fewer, connections wait to be accepted.
pub fn serve(control: OwnedFd) -> Result<(), ServeError> {
    rustix::io::ioctl_fionbio(&control, true).map_err(ControlError::from)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(ServeError::Runtime)?;
    let reporter = Reporter::default();
    let ended = runtime.block_on(async {
        let control = Control::from_std(control.into())?;
        let served = serve_run(&control, &reporter).await;
        std::io::Result::Ok((control.into_std()?, served))
    });
    drop(runtime); // and every connection, whose ends are told
    let (control, served) = ended.map_err(ServeError::Runtime)?;
    tell_the_rest(control.as_fd(), &reporter);
    served
}

async fn serve_run(control: &Control, reporter: &Reporter) -> Result<(), ServeError> {
    let Some((said, _)) = hear(control).await? else { return Ok(()) };
    let ToProxy::Setup(setup) = said else { return Err(ServeError::OutOfTurn) };
    let (proxy, tls) = match set_up(*setup, reporter.clone()) {
        Ok(made) => made,
        Err(why) => {
            say(control, &FromProxy::Failed { why: why.clone() }).await?;
            return Err(ServeError::BadSetup(why));
        }
    };
    say(control, &FromProxy::Ready { trust: tls.trust() }).await?;
    tokio::select! {
        taken = take_connections(control, &proxy, &tls) => taken,
        told = tell_news(control, reporter) => told,
    }
}

fn set_up(setup: Setup, reporter: Reporter) -> Result<(Arc<Proxy>, Arc<Tls>), String> {
    let Setup { policy, secrets } = setup;
    let policy = Policy::new(policy).map_err(|error| error.to_string())?;
    let tls = Tls::new(&policy).map_err(|error| error.to_string())?;
    Ok((Proxy::new(policy, secrets, reporter), Arc::new(tls)))
}

async fn take_connections(
    control: &Control,
    proxy: &Arc<Proxy>,
    tls: &Arc<Tls>,
) -> Result<(), ServeError> {
    while let Some(said) = hear(control).await? {
        match said {
            (ToProxy::Listener { port }, Some(socket)) => {
                let listener = listener(socket).map_err(ServeError::Runtime)?;
                tokio::spawn(accept(listener, proxy.clone(), tls.clone(), port));
            }
            (ToProxy::Connection { port }, Some(socket)) => {
                // One that is of no use is closed.
                if let Ok(stream) = Stream::from_fd(socket) {
                    admit(proxy, tls, stream, port);
                }
            }
            _ => return Err(ServeError::OutOfTurn),
        }
    }
    Ok(())
}

fn listener(socket: OwnedFd) -> std::io::Result<TcpListener> {
    rustix::io::ioctl_fionbio(&socket, true)?;
    TcpListener::from_std(socket.into())
}

async fn accept(listener: TcpListener, proxy: Arc<Proxy>, tls: Arc<Tls>, port: u16) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let _ = stream.set_nodelay(true); // one that is gone already is found out later
                admit(&proxy, &tls, Stream::Tcp(stream), port);
            }
            Err(_) => tokio::time::sleep(BREATH).await,
        }
    }
}

/// A task for each, as long as there may be one more.
fn admit(proxy: &Arc<Proxy>, tls: &Arc<Tls>, stream: Stream, port: u16) {
    match proxy.enter(Via::Http) {
        Ok(presence) => {
            let (proxy, tls) = (proxy.clone(), tls.clone());
            tokio::spawn(async move {
                door::serve(proxy, tls, stream, port).await;
                drop(presence);
            });
        }
        Err(refusal) => {
            let _ = stream.try_write(refused_unread(&refusal).as_bytes()); // its end says the same
        }
    }
}

async fn tell_news(control: &Control, reporter: &Reporter) -> Result<(), ServeError> {
    loop {
        let news = reporter.next().await;
        match say(control, &FromProxy::News(news)).await {
            Ok(()) => {}
            Err(ControlError::Io(Errno::PIPE | Errno::CONNRESET)) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
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
fn tell_the_rest(control: BorrowedFd<'_>, reporter: &Reporter) {
    let until = Instant::now() + FAREWELL;
    for news in reporter.take_all() {
        if !tell_by(control, news, until) {
            return;
        }
    }
}

fn tell_by(control: BorrowedFd<'_>, news: EgressNews, until: Instant) -> bool {
    let news = FromProxy::News(news);
    loop {
        match send(control, &news, None) {
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
