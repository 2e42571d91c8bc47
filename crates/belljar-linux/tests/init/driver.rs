//! A sandbox with PID 1 in it and nothing else: namespaces, `/proc`, and the channel.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use belljar_linux::sys::process::{
    Child, CloneFlags, Forked, arrange_descriptors, clone, current_executable, exec_path, exit_now,
};
use belljar_spec::denied_call::{DeniedCall, DeniedCallCount};
use belljar_spec::wire::mux::parse;
use belljar_spec::wire::{
    Arrival, AttestationKind, Descendants, ExecRequest, Flow, FrameKey, FrameVersion, FromInit,
    InitSetup, LauncherHello, Mux, PROTOCOL_MAX, PROTOCOL_MIN, ResumeClient, ResumeKey, Side,
    Stdio, ToInit, Work,
};
use belljar_spec::{ExitStatus, OsText, User};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    sendmsg, socketpair,
};
use rustix::process::{Pid, Signal};

/// Whose processes PID 1's are, seen from the commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Users {
    /// As root makes it: the commands cannot touch PID 1's processes.
    Two,
    /// As an ordinary user has it.
    One,
}

const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct Driver {
    init: Child,
    channel: OwnedFd,
    /// Where PID 1 gets its links from, if they can break.
    source: Option<OwnedFd>,
    mux: Mux,
    next: u32,
    pub(crate) output: BTreeMap<u32, Vec<u8>>,
    /// Streams that PID 1 wants no more input for.
    pub(crate) reset: Vec<u32>,
    ended: Vec<u32>,
    messages: Vec<FromInit>,
}

/// A command that was asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exec {
    pub(crate) exec: u32,
    pub(crate) stdin: u32,
    pub(crate) stdout: u32,
    pub(crate) stderr: u32,
}

impl Driver {
    pub(crate) fn start(users: Users) -> Self {
        Self::listening(users, &[])
    }

    /// PID 1 takes connections to these ports, in the network of this process.
    pub(crate) fn listening(users: Users, ports: &[u16]) -> Self {
        let (channel, inside) = pair();
        let init = start_init(users, inside, None);
        rustix::io::ioctl_fionbio(&channel, true).unwrap();
        let mut driver = Self::new(init, channel);
        driver.greet(ports, None, "command");
        driver
    }

    /// Refused calls of the commands are counted.
    pub(crate) fn traced(users: Users) -> Self {
        let (channel, inside) = pair();
        let init = start_init(users, inside, None);
        rustix::io::ioctl_fionbio(&channel, true).unwrap();
        let mut driver = Self::new(init, channel);
        driver.greet(&[], None, "command_traced");
        driver
    }

    /// PID 1 gets one link after the other, and waits that long for the next one.
    pub(crate) fn over_links(users: Users, lease: Duration) -> Self {
        let (source, inside) = pair();
        let init = start_init(users, inside, Some(belljar_spec::init_process::OVER_LINKS));
        let mut driver = Self::new(init, hand_over_link(&source));
        driver.source = Some(source);
        driver.mux.keep_unacknowledged();
        driver.greet(&[], Some(lease), "command");
        driver
    }

    /// The link breaks; what is under way is lost.
    pub(crate) fn cut(&mut self) {
        self.channel = pair().0;
    }

    /// Nothing hands over links any more.
    pub(crate) fn end_of_links(&mut self) {
        self.source = None;
    }

    /// Tries to go on over a new link, with this frame key. The answer is whether PID 1 took it; an impostor does not
    /// wait for PID 1's proof.
    pub(crate) fn resume(&mut self, key: [u8; 32]) -> bool {
        let link = hand_over_link(self.source.as_ref().unwrap());
        let mut random = [0; 16];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).unwrap();
        let key = ResumeKey::of(&FrameKey::new(key));
        let mut outgoing = Vec::new();
        let mut client = ResumeClient::begin(&key, random, self.mux.next_frame(), &mut outgoing);
        rustix::io::write(&link, &outgoing).unwrap();
        outgoing.clear();
        let until = Instant::now() + TIMEOUT;
        let mut buffer = [0; 4096];
        while Instant::now() < until {
            match rustix::io::read(&link, &mut buffer) {
                Ok(0) | Err(Errno::CONNRESET) => return false,
                Ok(length) => match client.push(&buffer[..length], &mut outgoing) {
                    Ok(None) => {}
                    Ok(Some(resumed)) => {
                        rustix::io::write(&link, &outgoing).unwrap();
                        self.channel = link;
                        self.mux.resume(resumed.peer_next).unwrap();
                        self.mux.push(&resumed.rest);
                        return true;
                    }
                    Err(_) => drop(rustix::io::write(&link, &[0; 40])),
                },
                Err(Errno::AGAIN) => std::thread::sleep(Duration::from_millis(1)),
                Err(error) => panic!("{error}"),
            }
        }
        panic!("PID 1 neither takes the link nor refuses it");
    }

    /// PID 1 has ended, and with it everything inside.
    pub(crate) fn wait_until_gone(&self, within: Duration) {
        let timeout = rustix::time::Timespec { tv_sec: within.as_secs() as i64, tv_nsec: 0 };
        let mut fds = [PollFd::new(&self.init.pidfd, PollFlags::IN)];
        assert_eq!(poll(&mut fds, Some(&timeout)), Ok(1), "PID 1 lives");
    }

    fn new(init: Child, channel: OwnedFd) -> Self {
        Self {
            init,
            channel,
            source: None,
            mux: Mux::new(Side::Client),
            next: 1,
            output: BTreeMap::new(),
            reset: Vec::new(),
            ended: Vec::new(),
            messages: Vec::new(),
        }
    }

    fn greet(&mut self, ports: &[u16], lease: Option<Duration>, filter: &str) {
        self.send_message(&ToInit::Hello(LauncherHello {
            min: PROTOCOL_MIN,
            max: PROTOCOL_MAX,
            run: "test".to_owned(),
            nonce: "n".to_owned(),
            key: "07".repeat(32),
            lease_ms: lease.map(|lease| lease.as_millis() as u64),
        }));
        self.mux.rekey(&FrameKey::new([7; 32]));
        self.mux.use_version(FrameVersion::V2);
        self.send_message(&ToInit::Setup(InitSetup {
            user: User { uid: 1000, gid: 1000 },
            rlimits: Vec::new(),
            filter: filter.to_owned(),
            writable: vec![OsText::from("/")],
            write_check: Vec::new(),
            listen: ports.to_vec(),
            deadline_ms: None,
        }));
        self.wait_for("the hello", |message| matches!(message, FromInit::Hello(_)));
    }

    /// Every refused call that PID 1 has reported so far, and in how many messages.
    pub(crate) fn denied(&mut self) -> (BTreeMap<DeniedCall, u64>, usize) {
        let (mut all, mut messages) = (BTreeMap::new(), 0);
        for message in &self.messages {
            if let FromInit::CallsDenied { calls } = message {
                messages += 1;
                for DeniedCallCount { call, count } in calls {
                    *all.entry(call.clone()).or_default() += count;
                }
            }
        }
        (all, messages)
    }

    /// PID 1's number, here.
    pub(crate) fn init_pid(&self) -> i32 {
        self.init.pid.as_raw_nonzero().get()
    }

    pub(crate) fn ask(&mut self, work: Work) -> Exec {
        self.ask_with(work, Descendants::Tracked)
    }

    pub(crate) fn ask_with(&mut self, work: Work, descendants: Descendants) -> Exec {
        let exec = self.next;
        self.next += 4;
        let names = Exec { exec, stdin: exec, stdout: exec + 1, stderr: exec + 2 };
        self.mux.open_for(names.stdin, Flow::Outgoing).unwrap();
        self.mux.open_for(names.stdout, Flow::Incoming).unwrap();
        self.mux.open_for(names.stderr, Flow::Incoming).unwrap();
        let Exec { stdin, stdout, stderr, .. } = names;
        let path = std::env::var("PATH").unwrap_or_else(|_| "/usr/bin:/bin".to_owned());
        self.send_message(&ToInit::Exec(ExecRequest {
            exec,
            work,
            env: [("PATH".to_owned(), OsText::from(path.as_str()))].into(),
            workdir: OsText::from("/"),
            stdio: Stdio::Streams { stdin: Some(stdin), stdout, stderr },
            depth: AttestationKind::Brief,
            descendants,
        }));
        names
    }

    /// A command with a terminal, let go at once. The answer is its stream.
    pub(crate) fn terminal(&mut self, argv: &[&str]) -> Exec {
        let exec = self.next;
        self.next += 4;
        self.mux.open(exec).unwrap();
        self.send_message(&ToInit::Exec(ExecRequest {
            exec,
            work: program(argv),
            env: BTreeMap::new(),
            workdir: OsText::from("/"),
            stdio: Stdio::Pty { stream: exec, rows: 24, columns: 80 },
            depth: AttestationKind::Brief,
            descendants: Descendants::Tracked,
        }));
        self.attested(exec);
        self.send_message(&ToInit::Go { exec });
        Exec { exec, stdin: exec, stdout: exec, stderr: exec }
    }

    /// Asks for a shell and lets it go.
    pub(crate) fn shell(&mut self, script: &str) -> Exec {
        let names = self.ask(program(&["/bin/sh", "-c", script]));
        self.attested(names.exec);
        self.send_message(&ToInit::Go { exec: names.exec });
        names
    }

    pub(crate) fn attested(&mut self, wanted: u32) -> FromInit {
        self.wait_for(
            "an attestation",
            |message| matches!(message, FromInit::AttestedBrief { exec, .. } if *exec == wanted),
        )
    }

    pub(crate) fn exited(&mut self, wanted: u32) -> ExitStatus {
        let end = |message: &FromInit| matches!(message, FromInit::Exited { exec, .. } if *exec == wanted);
        match self.wait_for("an end", end) {
            FromInit::Exited { status, .. } => status,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn send_message(&mut self, message: &ToInit) {
        self.mux.send(message).unwrap();
    }

    pub(crate) fn send(&mut self, stream: u32, bytes: &[u8]) -> usize {
        self.mux.send_data(stream, bytes)
    }

    pub(crate) fn end(&mut self, stream: u32) {
        self.mux.end(stream);
    }

    pub(crate) fn give_up(&mut self, stream: u32) {
        self.mux.reset(stream);
    }

    /// The next connection that a process made to a port of PID 1's: its stream.
    pub(crate) fn accepted(&mut self, wanted: u16) -> u32 {
        let is = |message: &FromInit| matches!(message, FromInit::Accepted { port, .. } if *port == wanted);
        match self.wait_for("a connection", is) {
            FromInit::Accepted { stream, .. } => stream,
            other => panic!("{other:?}"),
        }
    }

    /// Asks for a connection to a port inside, over this stream.
    pub(crate) fn connect(&mut self, stream: u32, port: u16) {
        self.mux.open(stream).unwrap();
        self.send_message(&ToInit::Connect { stream, port });
    }

    /// As if there had never been such a stream, on this end.
    pub(crate) fn forget(&mut self, stream: u32) {
        self.mux.forget(stream);
    }

    pub(crate) fn wait_for_end(&mut self, stream: u32) {
        let until = Instant::now() + TIMEOUT;
        while !self.ended.contains(&stream) {
            assert!(Instant::now() < until, "no end; received {:?}", self.messages);
            self.turn(Duration::from_millis(20));
        }
    }

    pub(crate) fn is_free(&self, stream: u32) -> bool {
        !self.mux.is_open(stream)
    }

    pub(crate) fn text(&self, stream: u32) -> String {
        String::from_utf8_lossy(self.output.get(&stream).map_or(&[], Vec::as_slice)).into_owned()
    }

    /// Until a stream has given this many bytes.
    pub(crate) fn wait_for_output(&mut self, stream: u32, length: usize) {
        let until = Instant::now() + TIMEOUT;
        while self.output.get(&stream).map_or(0, Vec::len) < length {
            assert!(Instant::now() < until, "no output; received {:?}", self.messages);
            self.turn(Duration::from_millis(100));
        }
    }

    pub(crate) fn wait_for_reset(&mut self, stream: u32) {
        let until = Instant::now() + TIMEOUT;
        while !self.reset.contains(&stream) {
            assert!(Instant::now() < until, "no reset; received {:?}", self.messages);
            self.turn(Duration::from_millis(100));
        }
    }

    pub(crate) fn wait_for(&mut self, what: &str, is: impl Fn(&FromInit) -> bool) -> FromInit {
        let until = Instant::now() + TIMEOUT;
        loop {
            if let Some(at) = self.messages.iter().position(&is) {
                return self.messages.remove(at);
            }
            assert!(Instant::now() < until, "waited for {what}, received {:?}", self.messages);
            self.turn(Duration::from_millis(100));
        }
    }

    /// Reads PID 1's messages for a while, and stores them.
    pub(crate) fn listen(&mut self, time: Duration) -> &[FromInit] {
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.turn(until.saturating_duration_since(Instant::now()));
        }
        &self.messages
    }

    fn turn(&mut self, at_most: Duration) {
        self.flush();
        let timeout = rustix::time::Timespec {
            tv_sec: at_most.as_secs() as i64,
            tv_nsec: i64::from(at_most.subsec_nanos()),
        };
        poll(&mut [PollFd::new(&self.channel, PollFlags::IN)], Some(&timeout)).unwrap();
        let mut buffer = [0; 65536];
        match rustix::io::read(&self.channel, &mut buffer) {
            Ok(0) | Err(Errno::CONNRESET) => panic!("PID 1 is gone; received {:?}", self.messages),
            Ok(length) => self.mux.push(&buffer[..length]),
            Err(Errno::AGAIN) => return,
            Err(error) => panic!("{error}"),
        }
        while let Some(arrival) = self.mux.next_arrival().unwrap() {
            match arrival {
                Arrival::Message(text) => {
                    let message = parse(&text).unwrap();
                    if let FromInit::Accepted { stream, .. } = message {
                        self.mux.open(stream).unwrap();
                    }
                    self.messages.push(message);
                }
                Arrival::Data { stream, bytes } => {
                    self.mux.consumed(stream, bytes.len());
                    self.output.entry(stream).or_default().extend(bytes);
                }
                Arrival::Reset { stream } => {
                    self.mux.end(stream);
                    self.reset.push(stream);
                }
                Arrival::End { stream } => self.ended.push(stream),
            }
        }
        self.flush();
    }

    /// Only sends what is queued.
    pub(crate) fn flush(&mut self) {
        while !self.mux.outgoing().is_empty() {
            match rustix::io::write(&self.channel, self.mux.outgoing()) {
                Ok(length) => self.mux.sent(length),
                Err(Errno::AGAIN) => return,
                Err(error) => panic!("PID 1 is gone: {error}; received {:?}", self.messages),
            }
        }
    }

    /// Numbers, here, of all processes below PID 1; those that ended and were not reaped count.
    pub(crate) fn processes(&self) -> Vec<i32> {
        let mut found = vec![self.init_pid()];
        let mut at = 0;
        while at < found.len() {
            let pid = found[at];
            let path = format!("/proc/{pid}/task/{pid}/children");
            let list = std::fs::read_to_string(path).unwrap_or_default();
            found.extend(list.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
            at += 1;
        }
        found.split_off(1)
    }

    pub(crate) fn wait_for_processes(&self, count: usize) {
        let until = Instant::now() + TIMEOUT;
        while self.processes().len() != count {
            assert!(Instant::now() < until, "processes {:?}, not {count}", self.processes());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.init_pid())).unwrap().count()
    }

    pub(crate) fn resident_kib(&self) -> u64 {
        let path = format!("/proc/{}/status", self.init_pid());
        let status = std::fs::read_to_string(path).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = rustix::process::pidfd_send_signal(&self.init.pidfd, Signal::KILL);
        let _ = belljar_linux::sys::process::reap(self.init.pid);
    }
}

pub(crate) fn program(argv: &[&str]) -> Work {
    Work::Program { argv: argv.iter().map(|argument| OsText::from(*argument)).collect() }
}

/// An ordinary user's PID 1 has no capability at all, and none can come back.
fn drop_bounding_set() {
    use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};
    for number in 0..64_u32 {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if remove_capability_from_bounding_set(capability).is_err() {
            return; // past the last one
        }
    }
}

fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap()
}

/// A new link: PID 1 gets the other end.
fn hand_over_link(source: &OwnedFd) -> OwnedFd {
    let (link, inside) = pair();
    rustix::io::ioctl_fionbio(&link, true).unwrap();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [inside.as_fd()];
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
    let parts = [std::io::IoSlice::new(b".")];
    sendmsg(source, &parts, &mut ancillary, SendFlags::NOSIGNAL).unwrap();
    link
}

/// `how` is PID 1's second argument.
fn start_init(users: Users, channel: OwnedFd, how: Option<&str>) -> Child {
    let (ready, ready_inside) = pair();
    let flags = CloneFlags::NEW_USER | CloneFlags::NEW_PID | CloneFlags::NEW_MOUNT;
    let init = match clone(flags).unwrap() {
        Forked::Parent(child) => child,
        Forked::Child => {
            drop(ready);
            become_init(channel, &ready_inside, users, how)
        }
    };
    write_maps(init.pid, users);
    rustix::io::write(&ready, b".").unwrap();
    init
}

fn become_init(channel: OwnedFd, ready: &OwnedFd, users: Users, how: Option<&str>) -> ! {
    use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
    let mut byte = [0];
    if !matches!(rustix::io::read(ready, &mut byte), Ok(1)) {
        exit_now(1);
    }
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).unwrap();
    mount("proc", "/proc", "proc", MountFlags::empty(), None).unwrap();
    if users == Users::One {
        drop_bounding_set();
    }
    let executable = current_executable().unwrap();
    let null =
        || rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty());
    let stderr = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stderr(), 3).unwrap();
    arrange_descriptors(0, vec![null().unwrap(), null().unwrap(), stderr, channel, executable])
        .unwrap();
    let argv = ["init", "__init"].into_iter().chain(how);
    let argv: Vec<CString> = argv.map(|argument| CString::new(argument).unwrap()).collect();
    let error = exec_path(c"/proc/self/fd/4", &argv, &[]);
    panic!("cannot become PID 1: {error}");
}

fn write_maps(pid: Pid, users: Users) {
    let write = |file: &str, text: &str| {
        std::fs::write(format!("/proc/{}/{file}", pid.as_raw_nonzero()), text).unwrap();
    };
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    match users {
        Users::Two => {
            write("uid_map", "0 0 1\n1000 1000 1\n");
            write("gid_map", "0 0 1\n1000 1000 1\n");
        }
        Users::One => {
            write("setgroups", "deny");
            write("uid_map", &format!("1000 {uid} 1\n"));
            write("gid_map", &format!("1000 {gid} 1\n"));
        }
    }
}
