//! Fixtures on the host: listeners that count connections, and processes that sleep.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Identity, TestBed, TestBedError};
use crate::probe::PROBE;

/// Accepts and counts, until it is dropped.
pub(crate) struct Listener {
    accepted: Arc<AtomicU32>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    pub(crate) fn on_loopback(address: &str) -> Result<(Self, SocketAddr), TestBedError> {
        let failed = || TestBedError::io(format!("listen on {address}"));
        let listener = TcpListener::bind(address).map_err(failed())?;
        let address = listener.local_addr().map_err(failed())?;
        listener.set_nonblocking(true).map_err(failed())?;
        Ok((Self::count(move || listener.accept().map(drop)), address))
    }

    pub(crate) fn on_path(path: &Path) -> Result<Self, TestBedError> {
        let listener = UnixListener::bind(path)
            .map_err(TestBedError::io(format!("listen on {}", path.display())))?;
        // Whoever finds it may talk to it.
        let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(path, everybody)
            .map_err(TestBedError::io("open the socket to all"))?;
        Self::unix(listener)
    }

    pub(crate) fn on_abstract_name(name: &str) -> Result<Self, TestBedError> {
        let listener = UnixAddr::from_abstract_name(name)
            .and_then(|address| UnixListener::bind_addr(&address))
            .map_err(TestBedError::io(format!("listen on @{name}")))?;
        Self::unix(listener)
    }

    fn unix(listener: UnixListener) -> Result<Self, TestBedError> {
        listener.set_nonblocking(true).map_err(TestBedError::io("listen"))?;
        Ok(Self::count(move || listener.accept().map(drop)))
    }

    fn count(accept: impl Fn() -> std::io::Result<()> + Send + 'static) -> Self {
        let (accepted, stop) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let (counted, stopped) = (Arc::clone(&accepted), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                match accept() {
                    Ok(()) => drop(counted.fetch_add(1, Ordering::Relaxed)),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        std::thread::sleep(Duration::from_millis(2));
                    }
                    Err(_) => return,
                }
            }
        });
        Self { accepted, stop, thread: Some(thread) }
    }

    /// How many came so far; one that has just connected may not be counted yet.
    pub(crate) fn accepted(&self) -> u32 {
        std::thread::sleep(Duration::from_millis(20));
        self.accepted.load(Ordering::Relaxed)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // it returns nothing
        }
    }
}

/// A process on the host, of the user that starts the runs.
pub(crate) struct Sleeper(Child);

impl Sleeper {
    pub(crate) fn start(testbed: &TestBed) -> Result<Self, TestBedError> {
        let mut command = Command::new(testbed.probe());
        command.arg(PROBE);
        if let Identity::User { uid, gid, .. } = &testbed.arm.identity {
            command
                .args(["as", &uid.to_string(), &gid.to_string(), ""])
                .arg(testbed.probe())
                .arg(PROBE);
        }
        command.args(["sleep", "60000"]).current_dir(&testbed.root);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        child.map(Self).map_err(TestBedError::io("start a process to look for"))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill(); // ended by itself is as good
        let _ = self.0.wait();
    }
}

/// The host's processes with this argument.
pub(crate) fn with_argument(wanted: &str) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|argument| argument == wanted.as_bytes())
    })
    .collect()
}

/// Waits until no process has this argument, and returns those that remain.
pub(crate) fn wait_until_none(word: &str, limit: Duration) -> Vec<u32> {
    let until = Instant::now() + limit;
    loop {
        let left = with_argument(word);
        if left.is_empty() || Instant::now() >= until {
            return left;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
