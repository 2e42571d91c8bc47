//! Starting something, bounded in time, and hearing what it said.

use std::io::{ErrorKind, Read};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use belljar_spec::EXIT_NOT_STARTED;

use super::StageError;
use crate::answer::Told;

const MOST_OUTPUT: u64 = 8 << 20;
const BUSY: Duration = Duration::from_secs(5);

/// What came out of a process that has ended.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    what: &'static str,
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
    pub(crate) took: Duration,
}

impl Seen {
    /// What the probe told, if it lived to tell.
    pub(crate) fn told(&self) -> Result<Told, StageError> {
        self.heard().ok_or_else(|| StageError::Silent {
            what: self.what.to_owned(),
            end: self.end(),
            said: self.stderr.trim().chars().take(400).collect(),
        })
    }

    /// The same, unless nothing was ever started: that says nothing about the attack.
    pub(crate) fn started(self) -> Result<Self, StageError> {
        match self.code {
            Some(EXIT_NOT_STARTED) if self.heard().is_none() => self.told().map(|_| self),
            _ => Ok(self),
        }
    }

    pub(crate) fn heard(&self) -> Option<Told> {
        told_in(&self.stdout)
    }

    pub(crate) fn end(&self) -> String {
        match (self.code, self.signal) {
            (Some(code), _) => format!("code {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => "nothing".to_owned(),
        }
    }
}

fn told_in(output: &[u8]) -> Option<Told> {
    let text = String::from_utf8_lossy(output);
    text.lines().rev().find_map(|line| serde_json::from_str(line).ok())
}

pub(super) fn to_the_end(
    command: &mut Command,
    what: &'static str,
    limit: Duration,
) -> Result<Seen, StageError> {
    Running::start(command, what)?.end_within(limit)
}

/// Something that has been started. Dropping it ends it.
pub(crate) struct Running {
    what: &'static str,
    child: Child,
    began: Instant,
    stdout: Heard,
    stderr: Heard,
}

impl Running {
    /// With nothing to read, and both outputs kept, unless the command says otherwise.
    pub(crate) fn start(command: &mut Command, what: &'static str) -> Result<Self, StageError> {
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
                spawned => break spawned.map_err(StageError::io(format!("start {what}")))?,
            }
        };
        let stdout = Heard::listen(child.stdout.take());
        let stderr = Heard::listen(child.stderr.take());
        Ok(Self { what, child, began, stdout, stderr })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a word in its output.
    pub(crate) fn hear(&mut self, word: &str) -> Result<(), StageError> {
        self.wait_for(word, |output| contains(output, word).then_some(()))
    }

    /// Waits for what the probe tells while it stays.
    pub(crate) fn told(&mut self) -> Result<Told, StageError> {
        self.wait_for("what it has to tell", told_in)
    }

    pub(crate) fn has_said(&self, word: &str) -> bool {
        contains(&self.stdout.so_far(), word)
    }

    fn wait_for<T>(
        &mut self,
        word: &str,
        find: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<T, StageError> {
        let until = Instant::now() + super::LIMIT / 2;
        while Instant::now() < until {
            let is_alive = self.is_alive();
            if let Some(found) = find(&self.stdout.so_far()) {
                return Ok(found);
            }
            if !is_alive {
                let said = String::from_utf8_lossy(&self.stderr.all()).into_owned();
                let what = self.what.to_owned();
                return Err(StageError::Silent { what, end: "no word".to_owned(), said });
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Err(StageError::TooLong { what: format!("{} saying {word}", self.what) })
    }

    /// Asks it to end, and waits: a launcher then takes everything of its run away.
    pub(crate) fn stop(self) -> Result<Seen, StageError> {
        if let Some(pid) = rustix::process::Pid::from_raw(self.child.id() as i32) {
            // Ended by itself is as good; it is our child, so the number is not anybody else's.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        self.end()
    }

    pub(crate) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    pub(crate) fn end(self) -> Result<Seen, StageError> {
        self.end_within(super::LIMIT)
    }

    fn end_within(mut self, limit: Duration) -> Result<Seen, StageError> {
        let until = self.began + limit;
        let status = loop {
            match self.child.try_wait().map_err(StageError::io("wait"))? {
                Some(status) => break status,
                None if Instant::now() >= until => {
                    return Err(StageError::TooLong { what: self.what.to_owned() });
                }
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        let took = self.began.elapsed();
        let (stdout, stderr) = (self.stdout.all(), self.stderr.all());
        Ok(Seen {
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

/// A stream that is read as it comes, so that nobody waits for us.
struct Heard {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Heard {
    fn listen(from: Option<impl Read + Send + 'static>) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let reader = from.map(|from| {
            let bytes = Arc::clone(&bytes);
            std::thread::spawn(move || {
                let mut from = from.take(MOST_OUTPUT);
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

fn contains(output: &[u8], word: &str) -> bool {
    output.windows(word.len()).any(|window| window == word.as_bytes())
}
