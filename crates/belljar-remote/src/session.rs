//! One sandbox of the agent: carries out the launcher's requests, and relays its links to PID 1.

use std::io::{BufReader, IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex};

use belljar_linux::jail;
use belljar_spec::text::error_chain;
use belljar_spec::{HostPaths, Plan, Usage};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::protocol::{Purpose, RemoteError, Request, Response, read_line, write_line};

/// The launcher's connection is its standard input, and the socket for links its standard output. Single-threaded
/// until the sandbox stands: a process with threads is never cloned.
pub(crate) fn run(directory: &Path) -> Result<(), RemoteError> {
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(std::io::Error::from)?;
    let control = TcpStream::from(rustix::stdio::stdin().try_clone_to_owned()?);
    let listener = TcpListener::from(rustix::stdio::stdout().try_clone_to_owned()?);
    let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null).map_err(std::io::Error::from)?;
    rustix::stdio::dup2_stdout(&null).map_err(std::io::Error::from)?;
    let mut control = BufReader::new(control);
    let mut session = Session { directory, bound: None, sandbox: None, listener: Some(listener) };
    loop {
        let request = match read_line(&mut control) {
            Err(RemoteError::Io(_)) => break,
            request => request?,
        };
        let response = session.handle(request).unwrap_or_else(Response::Failed);
        write_line(control.get_mut(), &response)?;
    }
    // Links can be resumed, and requests cannot: without this connection nobody could end the sandbox.
    if let Some(mut sandbox) = session.sandbox {
        sandbox.kill();
        sandbox.reap();
        let _ = sandbox.destroy();
    }
    Ok(())
}

struct Session<'a> {
    directory: &'a Path,
    bound: Option<jail::Bound>,
    sandbox: Option<jail::Sandbox>,
    listener: Option<TcpListener>,
}

impl Session<'_> {
    fn handle(&mut self, request: Request) -> Result<Response, String> {
        match request {
            Request::Bind { run, plan } => return self.bind(run, &plan),
            Request::Start => self.start()?,
            Request::MakeLimits => {
                self.sandbox()?.make_limits().map_err(|error| error_chain(&error))?;
            }
            Request::JoinLimits => {
                self.sandbox()?.join_limits().map_err(|error| error_chain(&error))?;
            }
            Request::Kill => self.sandbox()?.kill(),
            Request::Sample => {
                self.sandbox()?.sample();
                return self.measured();
            }
            Request::Reap => {
                self.sandbox()?.reap();
                return self.measured();
            }
            Request::Destroy => {
                self.sandbox()?.destroy().map_err(|error| error_chain(&error))?;
            }
        }
        Ok(Response::Done)
    }

    fn sandbox(&mut self) -> Result<&mut jail::Sandbox, String> {
        self.sandbox.as_mut().ok_or_else(|| "nothing was started".to_owned())
    }

    fn measured(&mut self) -> Result<Response, String> {
        let mut usage = Usage::default();
        let sandbox = self.sandbox()?;
        sandbox.usage(&mut usage);
        Ok(Response::Measured { usage: Box::new(usage), oom_kills: sandbox.oom_kills() })
    }

    fn bind(&mut self, run: String, plan: &Plan) -> Result<Response, String> {
        let home = self.directory.join("home");
        std::fs::create_dir_all(&home).map_err(|error| error_chain(&error))?;
        let listener = self.listener.as_ref().ok_or_else(|| "it has begun".to_owned())?;
        let links = listener.local_addr().map_err(|error| error_chain(&error))?;
        let paths = HostPaths {
            run,
            directory: self.directory.to_owned(),
            bin: self.directory.join("bin"),
            images: self.directory.join("images"),
            image: None,
            owner: "agent".to_owned(),
            home,
            upper: self.directory.join("upper"),
            seed: None,
            belljar_directories: Vec::new(),
            executable: None,
            run_writable: Vec::new(),
            homes: Vec::new(),
        };
        let bound = jail::bind(plan, &paths).map_err(|error| error_chain(&error))?.over_links();
        let response = Response::Bound {
            expectation: Box::new(bound.expectation.clone()),
            posture: Box::new(bound.host.posture.clone()),
            warnings: bound.host.warnings.clone(),
            links,
        };
        self.bound = Some(bound);
        Ok(response)
    }

    fn start(&mut self) -> Result<(), String> {
        let bound = self.bound.take().ok_or_else(|| "nothing was bound".to_owned())?;
        let mut sandbox = jail::start(bound).map_err(|error| error_chain(&error))?;
        let source = sandbox.channel.take().ok_or_else(|| "there is no channel".to_owned())?;
        // The command's streams go over the channel; these pipes are not used.
        (sandbox.stdin, sandbox.stdout, sandbox.stderr) = (None, None, None);
        self.sandbox = Some(sandbox);
        if let Some(listener) = self.listener.take() {
            std::thread::spawn(move || relay_all(&listener, &source));
        }
        Ok(())
    }
}

type Open = Arc<Mutex<Vec<(TcpStream, UnixStream)>>>;

/// Takes connections for as long as the session lives.
fn relay_all(listener: &TcpListener, source: &OwnedFd) {
    let open = Open::default();
    let mut refuses = false;
    while let Ok((stream, _)) = listener.accept() {
        let mut lines = BufReader::with_capacity(1, stream);
        match read_line::<Purpose>(&mut lines) {
            Ok(Purpose::Link) if !refuses => {
                cut(&open); // the launcher opens a link only when it has none
                let _ = relay(lines.into_inner(), source, &open); // the launcher tries again
            }
            Ok(purpose @ (Purpose::Cut | Purpose::CutForGood)) => {
                refuses |= purpose == Purpose::CutForGood;
                cut(&open);
                let _ = write_line(lines.get_mut(), &Response::Done);
            }
            Ok(_) | Err(_) => {}
        }
    }
}

fn cut(open: &Open) {
    let Ok(mut open) = open.lock() else { return };
    for (far, near) in open.drain(..) {
        let _ = (far.shutdown(Shutdown::Both), near.shutdown(Shutdown::Both));
    }
}

/// Hands PID 1 one end of a new pair, and copies between the other one and the connection.
fn relay(far: TcpStream, source: &OwnedFd, open: &Open) -> std::io::Result<()> {
    far.set_nodelay(true)?;
    let (near, inside) = UnixStream::pair()?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [inside.as_fd()];
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(source, &[IoSlice::new(b".")], &mut ancillary, SendFlags::NOSIGNAL)?;
    for (mut from, mut to) in [
        (Side::Far(far.try_clone()?), Side::Near(near.try_clone()?)),
        (Side::Near(near.try_clone()?), Side::Far(far.try_clone()?)),
    ] {
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut from, &mut to); // how it ended does not matter
            from.close();
            to.close();
        });
    }
    if let Ok(mut open) = open.lock() {
        open.push((far, near));
    }
    Ok(())
}

/// One end of a relayed link.
enum Side {
    Far(TcpStream),
    Near(UnixStream),
}

impl Side {
    fn close(&self) {
        let _ = match self {
            Self::Far(stream) => stream.shutdown(Shutdown::Both),
            Self::Near(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

impl std::io::Read for Side {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Far(stream) => stream.read(buffer),
            Self::Near(stream) => stream.read(buffer),
        }
    }
}

impl Write for Side {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::Far(stream) => stream.write(bytes),
            Self::Near(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
