//! Runs belljar on a pseudo-terminal that the test reads and writes.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};

use super::call::{CALL_TIMEOUT, Call, wait_for_index};
use super::processes::until;

const LAST_BYTES_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub struct PtyRun {
    child: Child,
    home: PathBuf,
    ours: File,
    /// `None` once the child is gone: the reader then ends after the last bytes.
    theirs: Option<File>,
    seen: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl PtyRun {
    /// The call has to be made `.through(PtyRun::SESSION)`, so that the terminal controls it.
    pub const SESSION: &'static [&'static str] = &["setsid", "-c"];

    pub fn start(call: &Call<'_>, rows: u16, columns: u16) -> Self {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let name = PathBuf::from(std::ffi::OsString::from_vec(
            ptsname(&ours, Vec::new()).unwrap().into_bytes(),
        ));
        let no_ctty = rustix::fs::OFlags::NOCTTY.bits() as i32;
        let theirs =
            OpenOptions::new().read(true).write(true).custom_flags(no_ctty).open(name).unwrap();
        set_size(ours.as_fd().try_clone_to_owned().unwrap(), rows, columns);
        let end = || Stdio::from(theirs.try_clone().unwrap());
        let mut command = call.command();
        command.stdin(end()).stdout(end()).stderr(end());
        let child = command.spawn().unwrap();
        call.enter_cgroups(&child);
        let ours = File::from(ours);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (mut from, shared) = (ours.try_clone().unwrap(), Arc::clone(&seen));
        // Fails when no process has the other end open any more.
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = from.read(&mut buffer) {
                shared.lock().unwrap().extend_from_slice(&buffer[..length]);
            }
        });
        Self { child, home: call.home(), ours, theirs: Some(theirs), seen, reader }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn type_in(&mut self, text: &str) {
        self.ours.write_all(text.as_bytes()).unwrap();
    }

    pub fn resize(&self, rows: u16, columns: u16) {
        set_size(self.ours.try_clone().unwrap().into(), rows, columns);
    }

    pub fn settings(&self) -> Termios {
        tcgetattr(self.theirs.as_ref().unwrap()).unwrap()
    }

    pub fn screen(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().unwrap()).into_owned()
    }

    #[track_caller]
    pub fn wait_for(&self, text: &str) {
        let seen = until(CALL_TIMEOUT, || self.screen().contains(text));
        assert!(seen, "the terminal never showed {text:?} but {:?}", self.screen());
    }

    /// The exit code.
    #[track_caller]
    pub fn end(mut self) -> (i32, String) {
        let limit = Instant::now() + CALL_TIMEOUT;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                self.theirs = None;
                // A process that the child left may hold the terminal open: then what is there is all.
                until(LAST_BYTES_TIMEOUT, || self.reader.is_finished());
                wait_for_index(&self.home);
                return (status.code().unwrap_or(-1), self.screen());
            }
            assert!(Instant::now() < limit, "hung with {:?} on the terminal", self.screen());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for PtyRun {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn set_size(terminal: OwnedFd, rows: u16, columns: u16) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).unwrap();
}
