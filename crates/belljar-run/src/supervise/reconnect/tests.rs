//! The launcher's end of a channel whose link breaks, with a PID 1 of this test's own.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::VecDeque;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use belljar_backend::{InitChannel, Link, Wrapping};
use belljar_spec::wire::mux::parse;
use belljar_spec::wire::{
    Arrival, FrameVersion, FromInit, InitHello, InitSetup, Mux, PROTOCOL_MAX, ResumeServer, Side,
    ToInit,
};
use belljar_spec::{ExitStatus, RunId, User};

use super::super::channel::{Channel, InitEvent};
use super::*;

/// Links that can be opened, when there are any.
#[derive(Clone, Debug, Default)]
struct Links(Arc<Mutex<VecDeque<OwnedFd>>>);

impl LinkOpener for Links {
    fn open(&mut self) -> std::io::Result<OwnedFd> {
        let link = self.0.lock().unwrap().pop_front();
        link.ok_or_else(|| std::io::Error::from(std::io::ErrorKind::ConnectionRefused))
    }
}

/// The other end.
struct Init {
    link: Option<UnixStream>,
    mux: Mux,
    key: Option<FrameKey>,
}

impl Init {
    fn greet(&mut self) {
        while self.key.is_none() {
            self.read();
        }
    }

    fn read(&mut self) {
        let mut buffer = [0; 4096];
        let Some(link) = &self.link else { return };
        match rustix::io::read(link, &mut buffer) {
            Ok(length) => self.mux.push(&buffer[..length]),
            Err(Errno::AGAIN) => return,
            Err(error) => panic!("{error}"),
        }
        while let Some(arrival) = self.mux.next_arrival().unwrap() {
            let Arrival::Message(text) = arrival else { continue };
            if let ToInit::Hello(hello) = parse(&text).unwrap() {
                let key = FrameKey::from_hex(&hello.key).unwrap();
                self.mux.rekey(&key);
                self.mux.use_version(FrameVersion::V2);
                self.key = Some(key);
                let (version, run, nonce) = (PROTOCOL_MAX, hello.run, hello.nonce);
                self.say(&FromInit::Hello(InitHello { version, run, nonce }));
            }
        }
    }

    fn say(&mut self, message: &FromInit) {
        self.mux.send(message).unwrap();
        self.flush();
    }

    fn flush(&mut self) {
        let Some(link) = &self.link else { return };
        let length = rustix::io::write(link, self.mux.outgoing()).unwrap();
        self.mux.sent(length);
    }

    /// What PID 1 does with a new link, as far as the launcher sees it.
    fn take(&mut self, link: UnixStream, key: &FrameKey) -> bool {
        let mut server = ResumeServer::new(&ResumeKey::of(key), [9; 16], self.mux.next_frame());
        let (mut buffer, mut out) = ([0; 4096], Vec::new());
        loop {
            let length = match rustix::io::read(&link, &mut buffer) {
                Ok(0) => return false,
                Ok(length) => length,
                Err(Errno::AGAIN) => {
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
            let resumed = server.push(&buffer[..length], &mut out).unwrap();
            rustix::io::write(&link, &out).unwrap();
            out.clear();
            if let Some(resumed) = resumed {
                self.link = Some(link);
                self.mux.resume(resumed.peer_next).unwrap();
                self.mux.push(&resumed.rest);
                self.flush();
                return true;
            }
        }
    }
}

fn pair() -> (UnixStream, UnixStream) {
    let (one, other) = UnixStream::pair().unwrap();
    other.set_nonblocking(true).unwrap();
    (one, other)
}

fn open(lease: Duration, breakable: Option<Links>) -> (Channel, Init) {
    let (fd, link) = pair();
    let setup = InitSetup {
        user: User { uid: 1000, gid: 1000 },
        rlimits: Vec::new(),
        filter: "command".to_owned(),
        writable: Vec::new(),
        write_check: Vec::new(),
        deadline_ms: None,
        listen: Vec::new(),
    };
    let mut mux = Mux::new(Side::Server);
    let link_kind = match breakable {
        Some(links) => {
            mux.keep_unacknowledged();
            Link::Breakable(Box::new(links))
        }
        None => Link::Lasting,
    };
    let way = InitChannel {
        fd: fd.into(),
        wrapping: Wrapping::None,
        lease: Some(lease),
        link: link_kind,
    };
    let channel = Channel::open(way, setup, &RunId::from_parts(1, 1)).unwrap();
    let mut init = Init { link: Some(link), mux, key: None };
    init.greet();
    (channel, init)
}

/// Reads for a while; how many commands ended, and whether the channel did.
fn read(channel: &mut Channel, time: Duration) -> (usize, bool) {
    let until = Instant::now() + time;
    let (mut exits, mut gone) = (0, false);
    while Instant::now() < until && !gone {
        for event in channel.read().unwrap() {
            exits += usize::from(matches!(event, InitEvent::Exited { .. }));
            gone |= matches!(event, InitEvent::Gone);
        }
        channel.flush();
        std::thread::sleep(Duration::from_millis(2));
    }
    (exits, gone)
}

const MOMENT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(60);

fn exited() -> FromInit {
    FromInit::Exited { exec: 1, status: ExitStatus::Code(0) }
}

#[test]
fn a_lasting_link_that_ends_is_the_end() {
    let (mut channel, mut init) = open(LONG, None);
    assert_eq!(read(&mut channel, MOMENT), (0, false));
    init.link = None;
    assert_eq!(read(&mut channel, LONG), (0, true));
}

#[test]
fn a_broken_link_is_replaced_and_nothing_is_lost() {
    let links = Links::default();
    let (mut channel, mut init) = open(LONG, Some(links.clone()));
    init.say(&exited());
    assert_eq!(read(&mut channel, MOMENT), (1, false));
    init.say(&exited()); // in the socket when it breaks: whether it arrives or not, it counts once
    init.link = None;
    init.say(&exited());
    let (early, gone) = read(&mut channel, MOMENT);
    assert!(!gone);
    channel.post(&ToInit::Alive);
    // An impostor answers first, with a key of its own.
    let (ours, theirs) = pair();
    links.0.lock().unwrap().push_back(ours.into());
    let impostor = std::thread::spawn(move || {
        let mux = Mux::new(Side::Server);
        Init { link: None, mux, key: None }.take(theirs, &FrameKey::new([1; 32]))
    });
    assert_eq!(read(&mut channel, 3 * MOMENT), (0, false));
    assert!(!impostor.join().unwrap());
    let (ours, theirs) = pair();
    links.0.lock().unwrap().push_back(ours.into());
    let key = init.key.clone().unwrap();
    let back = std::thread::spawn(move || {
        let taken = init.take(theirs, &key);
        (init, taken)
    });
    let (late, gone) = read(&mut channel, 6 * MOMENT);
    let (mut init, taken) = back.join().unwrap();
    assert!(taken && !gone);
    assert_eq!(early + late, 2);
    init.say(&exited());
    assert_eq!(read(&mut channel, MOMENT), (1, false));
}

#[test]
fn after_the_lease_nothing_is_waited_for() {
    let (mut channel, mut init) = open(3 * MOMENT, Some(Links::default()));
    assert_eq!(read(&mut channel, MOMENT), (0, false));
    init.link = None;
    assert_eq!(read(&mut channel, MOMENT), (0, false));
    assert_eq!(read(&mut channel, LONG), (0, true));
}
