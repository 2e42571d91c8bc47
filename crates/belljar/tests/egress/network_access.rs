//! Connections across the boundary, the same on every backend: out through the proxy, in through a port of the
//! host. Servers are on this machine's loopback; nothing is sent anywhere else.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use belljar_testkit::{CALL_TIMEOUT, Lab, each_actor, each_engine, processes_of, send, until};
use rustix::process::Signal;
use serde_json::Value;

/// Standard input to a port, its answer to standard output. 9: nobody is there. With Perl where there is one, as in
/// the jail: the `nc` of a host may be any of several programs with other options. Images have busybox.
pub(crate) const DIAL: &str = r#"
dial() {
    if ! command -v perl >/dev/null; then nc 127.0.0.1 "$1" || return 9; else
        perl -MIO::Socket::INET -e '
            my $s = IO::Socket::INET->new("127.0.0.1:$ARGV[0]") or exit 9;
            local $/; print $s scalar <STDIN>; $s->shutdown(1); print <$s>;' "$1"
    fi
}
through() {
    printf 'CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n%s' "$1" "$1" "$2" | dial 61080
}
"#;

/// A server inside that answers every line with itself.
const SERVE: &str = r#"
if ! command -v perl >/dev/null; then exec nc -ll -p 3000 -e cat; else
    exec perl -MIO::Socket::INET -e '
        my $l = IO::Socket::INET->new(LocalAddr => "127.0.0.1:3000", Listen => 50) or die;
        while (my $s = $l->accept) {
            next if fork; my $b; while (sysread $s, $b, 65536) { syswrite $s, $b } exit
        }'
fi
"#;

/// On every backend that is here.
pub(crate) fn each_boundary(test: impl Fn(&Lab)) {
    each_actor(&test);
    each_engine(|_, lab| test(lab));
}

/// A server of the operator's own, which says what it was told, until the test is over.
fn server() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut told = [0; 100];
                let length = stream.read(&mut told).unwrap_or(0);
                let _ = stream.write_all(&[b"told ", &told[..length]].concat());
            });
        }
    });
    port
}

fn allowing(lab: &Lab, port: u16) -> String {
    let manifest = format!("[network]\nallow_private = [\"localhost:{port}\"]\n");
    lab.make_file("work/network.toml", manifest).to_str().unwrap().to_owned()
}

/// Of the only run.
pub(crate) fn events(lab: &Lab, kind: &str) -> Vec<Value> {
    let runs = lab.runs();
    let text = lab.belljar(["events", runs.last().unwrap()]).done().expect(0).out();
    let all = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    all.filter(|event| event["kind"] == kind).map(|event| event["data"].clone()).collect()
}

#[test]
fn what_is_allowed_is_reached_and_nothing_else() {
    each_boundary(|lab| {
        let port = server();
        let manifest = allowing(lab, port);
        let script = format!(
            "{DIAL} through localhost:{port} hello; echo; through other.example:443 x | head -n 1; \
             echo x | dial {port}; echo $?; ls /proc/self/fd | wc -l"
        );
        let done = lab.sh(&["--manifest", &manifest], &script);
        let out = done.expect(0).out();
        assert!(out.contains("told hello"), "{out}");
        assert!(out.contains("403"), "{out}");
        assert!(out.contains("\n9\n"), "the server itself is not there: {out}");
        let allowed = events(lab, "egress.allowed");
        assert_eq!(allowed.len(), 1, "{allowed:?}");
        assert_eq!(
            (&allowed[0]["host"], &allowed[0]["bytes_out"]),
            (&"localhost".into(), &5.into())
        );
        let denied = events(lab, "egress.denied");
        assert_eq!((denied.len(), &denied[0]["host"]), (1, &"other.example".into()));
        let run = lab.runs().pop().unwrap();
        lab.belljar(["verify", &run]).done().expect(0);
        assert_eq!(proxies(lab), Vec::<u32>::new());
    });
}

/// What the refusal says to do instead works.
#[test]
fn a_port_of_the_host_is_reached_by_a_route_and_not_as_localhost() {
    each_actor(|lab| {
        let port = server();
        let refused =
            lab.sh(&["--no-config", "--allow-host", &format!("localhost:{port}")], "true");
        let (listen, to) = (format!("listen = {port}"), format!("to = \"tcp://127.0.0.1:{port}\""));
        refused.expect(125).says(&["the sandbox's own loopback", "[[route]]", &listen, &to]);
        let manifest = lab.make_file("work/route.toml", format!("[[route]]\n{listen}\n{to}\n"));
        let script = format!("{DIAL} printf hello | dial {port}");
        let done = lab.sh(&["--manifest", manifest.to_str().unwrap()], &script);
        assert_eq!(done.expect(0).out(), "told hello");
        let kept = lab.run(["--no-config", "--keep", "--allow-host", "a.example", "--name", "k"]);
        kept.done().expect(0);
        let words = ["network", "k", "--allow", &format!("localhost:{port}")];
        lab.belljar(words).done().expect(125).says(&["[[route]]"]);
        lab.belljar(["stop", "k"]).done().expect(0);
    });
}

#[test]
fn equal_denials_are_one_event_and_a_count() {
    each_boundary(|lab| {
        let script = format!(
            "{DIAL} for i in 1 2 3 4 5; do through other.example:443 x | head -n 1; done; \
             through third.example:443 x | head -n 1"
        );
        let out = lab.sh(&["--allow-host", "allowed.example"], &script).expect(0).out();
        assert_eq!(out.matches("403").count(), 6, "{out}");
        let told: Vec<(String, u64)> = events(lab, "egress.denied")
            .iter()
            .map(|one| (one["host"].as_str().unwrap().to_owned(), one["count"].as_u64().unwrap()))
            .collect();
        let host = |name: &str, count| (format!("{name}.example"), count);
        assert_eq!(told, [host("other", 1), host("third", 1), host("other", 4)]);
        let run = lab.runs().pop().unwrap();
        let why = lab.belljar(["why", &run]).done().expect(0).out();
        assert!(why.contains("other.example:443 (5 times)"), "{why}");
        lab.belljar(["verify", &run]).done().expect(0);
    });
}

/// A rule for a loopback address would not help: clients take it for the sandbox's own. What `why` says does.
#[test]
fn why_leads_to_a_service_on_the_hosts_loopback() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 1000]);
            let answer =
                b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n\r\nat home";
            let _ = stream.write_all(answer);
        }
    });
    let lab = Lab::me();
    // Its side stays open until the answer is there, as browsers and clients do it.
    let asked = format!(
        r#"perl -MIO::Socket::INET -e '
            my $s = IO::Socket::INET->new("127.0.0.1:{port}") or exit 9;
            print $s "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"; $s->flush;
            local $/; print <$s>;'"#
    );
    let denied = format!("{DIAL}\nthrough 127.0.0.1:{port} x; {asked}");
    let without = lab.sh(&["--allow-host", "other.example"], &denied);
    assert!(!without.out().contains("at home"), "the control: {without}");
    let why = lab.belljar(["why"]).done().expect(0).out();
    let keys: Vec<&str> =
        why.lines().map(str::trim).skip_while(|line| *line != "[[route]]").take(3).collect();
    assert_eq!(keys.len(), 3, "{why}");
    lab.make_file("work/belljar.toml", keys.join("\n"));
    lab.belljar(["trust", "belljar.toml"]).done().expect(0);
    let with = lab.sh(&[], &asked);
    with.expect(0).prints(&["at home"]);
}

#[test]
fn why_says_that_there_was_no_list() {
    let lab = Lab::me();
    lab.sh(&["--no-config"], "true").expect(0);
    lab.belljar(["why"]).done().expect(0).prints(&["its list of allowed hosts was empty"]);
    lab.sh(&["--no-config", "--allow-host", "a.example"], "true").expect(0);
    lab.belljar(["why"]).done().expect(0).prints(&["Nothing was denied."]);
}

#[test]
fn without_a_way_out_nobody_listens() {
    each_boundary(|lab| {
        let script = format!("{DIAL} echo x | dial 61080; echo $?; env");
        let out = lab.sh(&[], &script).expect(0).out();
        assert!(out.starts_with("9\n"), "{out}");
        assert!(!out.to_lowercase().contains("proxy"), "{out}");
    });
}

#[test]
fn later_commands_have_the_same_way_out() {
    each_boundary(|lab| {
        let port = server();
        let manifest = allowing(lab, port);
        lab.run(["--keep", "--name", "kept", "--manifest", &manifest]).done().expect(0);
        let script = format!("{DIAL} echo $HTTP_PROXY; through localhost:{port} again");
        let done = lab.belljar(["exec", "kept", "--", "sh", "-c", &script]).done();
        let out = done.expect(0).out();
        assert!(out.starts_with("http://127.0.0.1:61080\n") && out.contains("told again"), "{out}");
        // Whoever asks for it by name gets no other network than the one it has.
        let words = ["--name", "kept", "--reuse", "--allow-host", "other.example", "--", "true"];
        lab.run(words).done().expect(125).says(&["allow_private"]);
        lab.belljar(["stop", "kept"]).done().expect(0);
        assert_eq!(proxies(lab), Vec::<u32>::new());
    });
}

/// The proxies of this lab's runs.
fn proxies(lab: &Lab) -> Vec<u32> {
    let is_proxy = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == b"__egress")
    };
    processes_of(&lab.exe).into_iter().filter(is_proxy).collect()
}

#[test]
fn a_dead_proxy_opens_nothing_and_the_run_goes_on() {
    each_boundary(|lab| {
        let manifest = allowing(lab, server());
        let script = format!(
            "{DIAL} echo up; cat >/dev/null; through localhost:1 x; echo; echo goes on; exit 4"
        );
        let words = ["-i", "--manifest", &manifest, "--", "sh", "-c", &script];
        let mut live = lab.run(words).input(belljar_testkit::Input::Open).spawn();
        live.wait_for_output("up");
        let proxy = proxies(lab);
        assert_eq!(proxy.len(), 1, "{proxy:?}");
        send(proxy[0], Signal::KILL);
        let run = lab.runs().pop().unwrap();
        let lost = || {
            let log = lab.home().join("runs").join(&run).join("events.jsonl");
            std::fs::read_to_string(log).unwrap().matches("\"egress.lost\"").count()
        };
        assert!(until(CALL_TIMEOUT, || lost() == 1), "it is not told");
        live.close_input();
        let done = live.done();
        assert_eq!(done.expect(4).out().trim(), "up\n\ngoes on".trim());
        assert_eq!(lost(), 1);
    });
}

#[test]
fn a_dead_supervisor_takes_the_proxy_along() {
    each_actor(|lab| {
        let manifest = allowing(lab, server());
        let words = ["--manifest", &manifest, "--", "sh", "-c", "echo up; sleep 1000"];
        let live = lab.run(words).spawn();
        live.wait_for_output("up");
        assert_eq!(proxies(lab).len(), 1);
        live.signal(Signal::KILL);
        assert!(until(Duration::from_secs(10), || proxies(lab).is_empty()), "it lives on");
        drop(live);
    });
}

#[test]
fn the_host_reaches_a_published_port_and_only_while_the_run_lives() {
    each_boundary(|lab| {
        let words = ["-d", "--name", "served", "-p", "3000", "--", "sh", "-c", SERVE];
        lab.run(words).done().expect(0);
        let told = lab.belljar(["port", "served"]).done().expect(0).out();
        let host_port: u16 = told.trim().rsplit_once(':').unwrap().1.parse().unwrap();
        let said = vec![b'x'; 1_000_000];
        let mut answer = Vec::new();
        assert!(
            until(CALL_TIMEOUT, || {
                answer = talk(host_port, &said);
                !answer.is_empty() // until the server is up, whoever connects finds an end
            }),
            "nobody answers"
        );
        assert!(answer == said, "{} bytes", answer.len());
        let published = events(lab, "port.published");
        assert_eq!(published[0]["host_port"], host_port);
        // Somebody else cannot have it meanwhile, and learns it before anything runs.
        let taken = format!("{host_port}:3000");
        let refused = lab.run(["-p", &taken, "--", "touch", "/workspace/ran"]).done();
        refused.expect(125).says(&["cannot be published"]);
        assert!(!lab.work().join("ran").exists());
        lab.belljar(["stop", "served"]).done().expect(0);
        assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, host_port)).is_err());
    });
}

/// What comes back for these bytes.
fn talk(port: u16, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    stream.set_read_timeout(Some(CALL_TIMEOUT)).unwrap();
    let mut writing = stream.try_clone().unwrap();
    let mut answer = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _ = writing.write_all(bytes); // an end before it is in the answer
            let _ = writing.shutdown(std::net::Shutdown::Write);
        });
        let mut buffer = [0; 65536];
        while answer.len() < bytes.len() {
            match stream.read(&mut buffer) {
                Ok(length) if length > 0 => answer.extend_from_slice(&buffer[..length]),
                _ => break,
            }
        }
    });
    answer
}
