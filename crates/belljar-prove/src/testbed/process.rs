//! Runs a process with a timeout, and collects its output.

use std::io::{ErrorKind, Read};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use belljar_spec::EXIT_NOT_STARTED;

use super::TestBedError;
use crate::probe_report::ProbeReport;

const MAX_OUTPUT: u64 = 8 << 20;
const BUSY: Duration = Duration::from_secs(5);

/// The output and the exit of a process.
#[derive(Clone, Debug)]
pub(crate) struct ProcessOutput {
    what: &'static str,
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
    pub(crate) took: Duration,
}

impl ProcessOutput {
    /// The probe's report; an error if there is none.
    pub(crate) fn report(&self) -> Result<ProbeReport, TestBedError> {
        self.probe_report().ok_or_else(|| TestBedError::Silent {
            what: self.what.to_owned(),
            end: self.end(),
            error_text: self.stderr.trim().chars().take(400).collect(),
        })
    }

    /// An error if the run was not started, which proves nothing.
    pub(crate) fn started(self) -> Result<Self, TestBedError> {
        match self.code {
            Some(EXIT_NOT_STARTED) if self.probe_report().is_none() => self.report().map(|_| self),
            _ => Ok(self),
        }
    }

    pub(crate) fn probe_report(&self) -> Option<ProbeReport> {
        report_in(&self.stdout)
    }

    pub(crate) fn end(&self) -> String {
        match (self.code, self.signal) {
            (Some(code), _) => format!("code {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => "nothing".to_owned(),
        }
    }
}

fn report_in(output: &[u8]) -> Option<ProbeReport> {
    let text = String::from_utf8_lossy(output);
    text.lines().rev().find_map(|line| serde_json::from_str(line).ok())
}

pub(super) fn to_the_end(
    command: &mut Command,
    what: &'static str,
    limit: Duration,
) -> Result<ProcessOutput, TestBedError> {
    Running::start(command, what)?.end_within(limit)
}

/// Something that has been started. Dropping it ends it.
pub(crate) struct Running {
    what: &'static str,
    child: Child,
    began: Instant,
    stdout: CollectedStream,
    stderr: CollectedStream,
}

impl Running {
    /// Without input, and with both outputs collected, unless the command sets them.
    pub(crate) fn start(command: &mut Command, what: &'static str) -> Result<Self, TestBedError> {
        let began = Instant::now();
        command.stdin(Stdio::null()).stderr(Stdio::piped()).stdout(Stdio::piped());
        let mut child = loop {
            match command.spawn() {
                // Another thread was starting something while the probe was written, and its child has
                // that file open until it is another program.
                Err(error)
                    if error.kind() == ErrorKind::ExecutableFileBusy && began.elapsed() < BUSY =>
                {
                    std::thread::sleep(Duration::from_millis(5));
                }
                spawned => break spawned.map_err(TestBedError::io(format!("start {what}")))?,
            }
        };
        let stdout = CollectedStream::listen(child.stdout.take());
        let stderr = CollectedStream::listen(child.stderr.take());
        Ok(Self { what, child, began, stdout, stderr })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a text in its output.
    pub(crate) fn wait_for_line(&mut self, text: &str) -> Result<(), TestBedError> {
        self.wait_for(text, |output| contains(output, text).then_some(()))
    }

    /// Waits for the report of a probe that keeps running.
    pub(crate) fn report(&mut self) -> Result<ProbeReport, TestBedError> {
        self.wait_for("what it has to tell", report_in)
    }

    pub(crate) fn has_printed(&self, text: &str) -> bool {
        contains(&self.stdout.so_far(), text)
    }

    fn wait_for<T>(
        &mut self,
        text: &str,
        find: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<T, TestBedError> {
        let until = Instant::now() + super::LIMIT / 2;
        while Instant::now() < until {
            let is_alive = self.is_alive();
            if let Some(found) = find(&self.stdout.so_far()) {
                return Ok(found);
            }
            if !is_alive {
                let error_text = String::from_utf8_lossy(&self.stderr.all()).into_owned();
                let what = self.what.to_owned();
                return Err(TestBedError::Silent { what, end: "no output".to_owned(), error_text });
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Err(TestBedError::TooLong { what: format!("{} printing {text}", self.what) })
    }

    /// Asks it to end, and waits: a launcher then takes everything of its run away.
    pub(crate) fn stop(self) -> Result<ProcessOutput, TestBedError> {
        if let Some(pid) = rustix::process::Pid::from_raw(self.child.id() as i32) {
            // Ended by itself is as good; it is our child, so the number is not anybody else's.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        self.end()
    }

    pub(crate) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    pub(crate) fn end(self) -> Result<ProcessOutput, TestBedError> {
        self.end_within(super::LIMIT)
    }

    fn end_within(mut self, limit: Duration) -> Result<ProcessOutput, TestBedError> {
        let until = self.began + limit;
        let status = loop {
            match self.child.try_wait().map_err(TestBedError::io("wait"))? {
                Some(status) => break status,
                None if Instant::now() >= until => {
                    return Err(TestBedError::TooLong { what: self.what.to_owned() });
                }
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        let took = self.began.elapsed();
        let (stdout, stderr) = (self.stdout.all(), self.stderr.all());
        Ok(ProcessOutput {
            what: self.what,
            code: status.code(),
            signal: std::os::unix::process::ExitStatusExt::signal(&status),
            stdout,
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
            took,
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill(); // ended by itself is as good
        let _ = self.child.wait();
    }
}

/// Reads a stream continuously, so that its writer is not blocked.
struct CollectedStream {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl CollectedStream {
    fn listen(from: Option<impl Read + Send + 'static>) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let reader = from.map(|from| {
            let bytes = Arc::clone(&bytes);
            std::thread::spawn(move || {
                let mut from = from.take(MAX_OUTPUT);
                let mut buffer = [0; 16 * 1024];
                while let Ok(length @ 1..) = from.read(&mut buffer) {
                    if let Ok(mut bytes) = bytes.lock() {
                        bytes.extend_from_slice(&buffer[..length]);
                    }
                }
            })
        });
        Self { bytes, reader }
    }

    fn so_far(&self) -> Vec<u8> {
        self.bytes.lock().map(|bytes| bytes.clone()).unwrap_or_default()
    }

    /// A process left behind may hold the stream open, so this does not wait for ever.
    fn all(&mut self) -> Vec<u8> {
        if let Some(reader) = self.reader.take() {
            let until = Instant::now() + Duration::from_secs(2);
            while !reader.is_finished() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        self.so_far()
    }
}

fn contains(output: &[u8], text: &str) -> bool {
    output.windows(text.len()).any(|window| window == text.as_bytes())
}
