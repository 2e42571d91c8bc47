//! A proxy in a thread of the test, which acts as supervisor, client and host.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "a test; not each uses all")]

pub mod hosts;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use belljar_egress::control::{FromProxy, Setup, ToProxy, Trust, receive, send};
use belljar_egress::{ServeError, serve};
use belljar_spec::egress::{
    EgressDenied, EgressEvent, EgressPolicy, EgressSpec, PROXY_PORT, SecretValue,
};
use belljar_spec::network_list::NetworkList;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

pub const TIMEOUT: Duration = Duration::from_secs(20);

pub struct Proxy {
    pub control: OwnedFd,
    pub inside: SocketAddr,
    events: Receiver<EgressEvent>,
    narrowed: Receiver<u64>,
    changed: Receiver<u64>,
    pub trust: Option<Trust>,
    pub received: Vec<EgressEvent>,
    thread: JoinHandle<Result<(), ServeError>>,
}

pub fn policy(allow: &[String], spec: EgressSpec) -> EgressPolicy {
    EgressPolicy { run: "test".into(), allow: allow.to_vec(), setup: None, spec }
}

pub fn control_pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

impl Proxy {
    pub fn start(allow: &[String], spec: EgressSpec) -> Self {
        Self::with(policy(allow, spec), Vec::new())
    }

    pub fn with(policy: EgressPolicy, secrets: Vec<SecretValue>) -> Self {
        let (control, theirs) = control_pair();
        let thread = std::thread::spawn(move || serve(theirs));
        let setup = Setup { policy, secrets };
        send(control.as_fd(), &ToProxy::Setup(Box::new(setup)), None).unwrap();
        let (message, _) = receive::<FromProxy>(&control).unwrap().unwrap();
        let FromProxy::Ready { trust } = message else { panic!("{message:?}") };
        let inside = listen(&control, PROXY_PORT);
        let listening = control.try_clone().unwrap();
        let ((sender, events), (shut, narrowed)) = (channel(), channel());
        let (report, changed) = channel();
        std::thread::spawn(move || {
            while let Ok(Some((message, _))) = receive(&listening) {
                match message {
                    FromProxy::Event(event) => drop(sender.send(event)),
                    FromProxy::Narrowed { closed } => drop(shut.send(closed)),
                    FromProxy::ListChanged { closed } => drop(report.send(closed)),
                    _ => return,
                }
            }
        });
        Self { control, inside, events, narrowed, changed, trust, received: Vec::new(), thread }
    }

    /// Ends the set-up phase, and returns how many connections were closed with it.
    pub fn narrow(&self) -> u64 {
        send(self.control.as_fd(), &ToProxy::Narrow, None).unwrap();
        self.narrowed.recv_timeout(TIMEOUT).unwrap()
    }

    /// Changes the list, and returns how much was closed.
    pub fn change(&self, list: NetworkList) -> u64 {
        send(self.control.as_fd(), &ToProxy::ChangeList(Box::new(list)), None).unwrap();
        self.changed.recv_timeout(TIMEOUT).unwrap()
    }

    /// The same, to these hosts alone.
    pub fn change_to(&self, allow: &[&str]) -> u64 {
        let allow = allow.iter().map(|rule| (*rule).to_owned()).collect();
        self.change(NetworkList { allow, ..NetworkList::default() })
    }

    /// The status of a CONNECT request.
    pub fn connect_status(&self, authority: &str) -> String {
        let request = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n");
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        read_head(&mut stream).get(9..12).unwrap_or_default().to_owned()
    }

    /// Connects as a client in the sandbox.
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.inside).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream
    }

    /// Sends this as a client, closes the sending side, and returns the whole response.
    pub fn exchange(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        stream.write_all(bytes).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        String::from_utf8_lossy(&read_all(&mut stream)).into_owned()
    }

    /// An open tunnel.
    pub fn tunnel(&self, authority: &str) -> TcpStream {
        let mut stream = self.connect();
        write!(stream, "CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n").unwrap();
        let head = read_head(&mut stream);
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        stream
    }

    pub fn wait_for<T>(&mut self, what: impl Fn(&EgressEvent) -> Option<T>) -> T {
        if let Some(found) = self.received.iter().find_map(&what) {
            return found;
        }
        let until = Instant::now() + TIMEOUT;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let event = match self.events.recv_timeout(left) {
                Ok(event) => event,
                Err(_) => panic!("no such event; {:#?}", self.received),
            };
            let found = what(&event);
            self.received.push(event);
            if let Some(found) = found {
                return found;
            }
        }
    }

    /// Without waiting for more.
    pub fn events_so_far(&self) -> Vec<EgressEvent> {
        self.events.try_iter().collect()
    }

    pub fn denied(&mut self) -> EgressDenied {
        self.wait_for(|event| match event {
            EgressEvent::Denied(denied) => Some(denied.clone()),
            _ => None,
        })
    }

    /// Closes the supervisor's sending side, and receives the remaining events.
    pub fn end(mut self) -> Vec<EgressEvent> {
        rustix::net::shutdown(&self.control, rustix::net::Shutdown::Write).unwrap();
        self.thread.join().unwrap().unwrap();
        self.received.extend(self.events.iter());
        self.received
    }

    /// Waits for it to end by itself.
    pub fn join(self) -> Result<(), ServeError> {
        self.thread.join().unwrap()
    }

    /// Closes the supervisor's socket.
    pub fn abandon(self) -> Result<(), ServeError> {
        rustix::net::shutdown(&self.control, rustix::net::Shutdown::Both).unwrap();
        self.thread.join().unwrap()
    }
}

/// Hands over a listener as the sandbox's port of this number.
pub fn listen(control: &OwnedFd, port: u16) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    send(control.as_fd(), &ToProxy::Listener { port }, Some(listener.as_fd())).unwrap();
    listener.local_addr().unwrap()
}

pub fn read_all(stream: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    match stream.read_to_end(&mut all) {
        Ok(_) => all,
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => all,
        Err(error) => panic!("{error}"),
    }
}

/// Byte by byte, so that nothing after the head is consumed.
pub fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() == 1 {
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

/// A server: each connection is given to `serve`, in a thread.
pub fn server(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serve = std::sync::Arc::new(serve);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let serve = serve.clone();
            std::thread::spawn(move || serve(stream));
        }
    });
    address
}

pub fn echo(mut stream: TcpStream) {
    let mut buffer = [0; 65536];
    while let Ok(got @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..got]).is_err() {
            return;
        }
    }
}

/// A loopback port at which nothing listens.
pub fn closed_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

pub fn private(names: &[String]) -> EgressSpec {
    EgressSpec { allow_private: names.to_vec(), ..EgressSpec::default() }
}
