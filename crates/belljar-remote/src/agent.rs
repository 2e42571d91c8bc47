//! The agent: a process in another mount namespace that answers launchers, and starts a session for each sandbox.

use std::ffi::OsString;
use std::io::{BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use belljar_backend::Backend;
use belljar_backend::jail::Jail;
use belljar_linux::jail::cgroup;
use belljar_spec::text::error_chain;

use crate::protocol::{Purpose, RemoteError, Response, ask_agent, read_line, write_line};
use crate::session;

/// The argument that makes a process the agent. A directory for it follows.
pub const AGENT: &str = "__agent";
/// The same for the process of one sandbox.
const SESSION: &str = "__session";

/// Runs the agent, or a session of it, if this process was started as one. The port that the agent listens on is the
/// first line of its output; the answer is the code to exit with.
pub fn run_if_asked(args: impl Iterator<Item = OsString>) -> Option<i32> {
    let mut args = args.skip(1);
    let what = args.next()?;
    let run: fn(&Path) -> Result<(), RemoteError> = match what.to_str()? {
        AGENT => serve,
        SESSION => session::run,
        _ => return None,
    };
    let directory = PathBuf::from(args.next()?);
    Some(match run(&directory) {
        Ok(()) => 0,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "agent: {}", error_chain(&error));
            1
        }
    })
}

/// A process of its own for each sandbox: a process with threads is never cloned.
struct Session {
    run: String,
    process: Child,
    /// Where it takes links.
    links: SocketAddr,
}

struct Agent<'a> {
    directory: &'a Path,
    sessions: Vec<Session>,
    begun: usize,
}

/// One connection after the other; none waits for a sandbox.
fn serve(directory: &Path) -> Result<(), RemoteError> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    writeln!(std::io::stdout(), "{}", listener.local_addr()?.port())?;
    let mut agent = Agent { directory, sessions: Vec::new(), begun: 0 };
    loop {
        let (stream, _) = listener.accept()?;
        agent.sessions.retain_mut(|session| matches!(session.process.try_wait(), Ok(None)));
        let mut lines = BufReader::with_capacity(1, stream); // what follows is the session's
        let Ok(purpose) = read_line(&mut lines) else { continue };
        if let Some(response) = agent.handle(purpose, lines.get_ref()) {
            let response = response.unwrap_or_else(|error| Response::Failed(error_chain(&error)));
            let _ = write_line(lines.get_mut(), &response); // whoever asked may be gone
        }
    }
}

impl Agent<'_> {
    /// No answer where the session gives it.
    fn handle(
        &mut self,
        purpose: Purpose,
        stream: &TcpStream,
    ) -> Option<Result<Response, RemoteError>> {
        Some(match purpose {
            Purpose::Control { run } => match self.begin(run, stream) {
                Ok(()) => return None,
                Err(error) => Err(error),
            },
            Purpose::Probe => match Jail.probe() {
                Ok(facts) => Ok(Response::Facts(Box::new(facts))),
                Err(unavailable) => Ok(Response::Failed(unavailable.why)),
            },
            Purpose::Destroy { run } => self.destroy(&run).map(|()| Response::Done),
            Purpose::Cut | Purpose::CutForGood => {
                for session in &self.sessions {
                    let _ = ask_agent(session.links, purpose.clone()); // it may have ended
                }
                Ok(Response::Done)
            }
            Purpose::Link => Err(RemoteError::OutOfTurn),
        })
    }

    fn begin(&mut self, run: String, stream: &TcpStream) -> Result<(), RemoteError> {
        let directory = self.directory.join(self.begun.to_string());
        self.begun += 1;
        std::fs::create_dir(&directory)?;
        let links = TcpListener::bind("127.0.0.1:0")?;
        let address = links.local_addr()?;
        let process = Command::new(std::env::current_exe()?)
            .arg(SESSION)
            .arg(&directory)
            .stdin(Stdio::from(OwnedFd::from(stream.try_clone()?)))
            .stdout(Stdio::from(OwnedFd::from(links)))
            .spawn()?;
        self.sessions.push(Session { run, process, links: address });
        Ok(())
    }

    /// A jail ends with the process that started it, and only its control groups can be left.
    fn destroy(&mut self, run: &str) -> Result<(), RemoteError> {
        for session in self.sessions.iter_mut().filter(|session| session.run == run) {
            session.process.kill()?;
            session.process.wait()?;
        }
        for group in cgroup::leftovers(&cgroup::detect(), run) {
            let removed = cgroup::remove_directory(&group);
            removed.map_err(|error| RemoteError::Refused(error_chain(&error)))?;
        }
        Ok(())
    }
}
