//! The list of a live run: shown, narrowed, widened, recorded. Servers are on this machine's loopback.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use belljar_testkit::{CALL_TIMEOUT, Lab, each_actor, until};
use serde_json::Value;

use crate::network_access::{DIAL, each_boundary, events};

/// Answers every byte with itself, and counts those that are marked.
fn echo_server() -> (u16, Arc<AtomicU64>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let marked = Arc::new(AtomicU64::new(0));
    let count = marked.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, count) = (stream.unwrap(), count.clone());
            std::thread::spawn(move || echo(&mut stream, &count));
        }
    });
    (port, marked)
}

fn echo(stream: &mut TcpStream, marked: &AtomicU64) {
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        let count = buffer[..length].iter().filter(|byte| **byte == b'!').count();
        marked.fetch_add(count as u64, Ordering::SeqCst);
        if stream.write_all(&buffer[..length]).is_err() {
            return;
        }
    }
}

fn address(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

fn network(lab: &Lab, words: &[&str]) -> Value {
    lab.belljar([&["network", "--json", "kept"], words].concat()).done().expect(0).json()
}

/// The status of a CONNECT from inside.
fn status(lab: &Lab, to: &str) -> String {
    let script = format!("{DIAL} through {to} hello");
    let out = lab.belljar(["exec", "kept", "--", "sh", "-c", &script]).done().expect(0).out();
    out.get(9..12).unwrap_or_default().to_owned()
}

#[test]
fn a_kept_sandbox_is_narrowed_and_widened_and_the_record_has_both() {
    each_boundary(|lab| {
        let ((one, _), (other, _)) = (echo_server(), echo_server());
        let (one, other) = (address(one), address(other));
        lab.run(["--keep", "--name", "kept", "--allow-host", &one, "-p", "3000"]).done().expect(0);
        let begin = network(lab, &[]);
        assert_eq!((&begin["access"], &begin["allow"][0]), (&"proxy".into(), &one.clone().into()));
        assert_eq!((&begin["ports"][0]["port"], &begin["setup"]), (&3000.into(), &Value::Null));
        assert_eq!((status(lab, &one), status(lab, &other)), ("200".into(), "403".into()));

        assert_eq!(network(lab, &["--set", &other])["allow"], serde_json::json!([other]));
        assert_eq!((status(lab, &one), status(lab, &other)), ("403".into(), "200".into()));
        network(lab, &["--allow", &one, "--deny", &other]);
        assert_eq!((status(lab, &one), status(lab, &other)), ("200".into(), "403".into()));
        assert_eq!(network(lab, &["--set", "none"])["allow"], serde_json::json!([]));
        assert_eq!((status(lab, &one), status(lab, &other)), ("403".into(), "403".into()));
        // Nothing is changed, and nothing is recorded.
        network(lab, &["--deny", "nowhere.example"]);
        let page = lab.belljar(["network", "kept", "--allow", &one]).done().expect(0).out();
        assert!(
            page.starts_with(&format!("allow    {one}\nport     3000/tcp -> 127.0.0.1:")),
            "{page}"
        );

        let run = lab.runs().pop().unwrap();
        let shown = lab.belljar(["show", &run]).done().expect(0).out();
        assert!(
            shown.replace("\n            ", " ").contains(&format!("removed {one}")),
            "{shown}"
        );
        let why = lab.belljar(["why", &run]).done().expect(0).out();
        assert!(
            why.contains("changed the network list") && why.contains(&format!("allowed {one}")),
            "{why}"
        );
        lab.belljar(["stop", "kept"]).done().expect(0);
        let changes = events(lab, "network.changed");
        let after: Vec<&Value> = changes.iter().map(|change| &change["after"]["allow"]).collect();
        let expected =
            [vec![&other], vec![&one], vec![], vec![&one]].map(|list| serde_json::json!(list));
        assert_eq!(after, expected.iter().collect::<Vec<_>>());
        assert_eq!(changes[1]["before"]["allow"], changes[0]["after"]["allow"]);
        lab.belljar(["verify", &run]).done().expect(0);
    });
}

/// The command holds a tunnel and says what it sees of it.
const HOLD: &str = r#"
use IO::Socket::INET; $| = 1;
my $s = IO::Socket::INET->new("127.0.0.1:61080") or die;
print $s "CONNECT $ARGV[0] HTTP/1.1\r\nHost: $ARGV[0]\r\n\r\n"; $s->flush;
while (<$s>) { last if $_ eq "\r\n" }
print "open\n";
while (1) { syswrite($s, "!") or last; sysread($s, my $b, 1) or last; select undef, undef, undef, 0.002 }
print "closed\n";
"#;

#[test]
fn an_open_tunnel_of_a_detached_run_is_closed_when_the_command_returns() {
    // Images have no Perl.
    each_actor(|lab| {
        let (port, marked) = echo_server();
        let host = address(port);
        lab.run(["-d", "--name", "kept", "--allow-host", &host, "--", "perl", "-e", HOLD, &host])
            .done()
            .expect(0);
        assert!(until(CALL_TIMEOUT, || marked.load(Ordering::SeqCst) > 10));
        let closed = network(lab, &["--deny", "127.0.0.1"]);
        let at_reply = marked.load(Ordering::SeqCst);
        assert_eq!((&closed["closed"], &closed["allow"]), (&1.into(), &serde_json::json!([])));
        lab.belljar(["wait", "kept"]).done().expect(0);
        // Nothing arrived after the answer but what the server had not read yet.
        assert!(marked.load(Ordering::SeqCst) <= at_reply + 1);
        let run = lab.runs().pop().unwrap();
        let out = lab.belljar(["logs", &run]).done().expect(0).out();
        assert_eq!(out, "open\nclosed\n");
        let over = events(lab, "egress.allowed");
        assert_eq!(over.len(), 1, "{over:?}");
        assert!(over[0]["error"].as_str().unwrap().contains("list was changed"), "{over:?}");
    });
}

#[test]
fn a_sandbox_without_network_access_cannot_be_opened_and_says_what_to_do() {
    each_boundary(|lab| {
        lab.run(["--keep", "--name", "kept"]).done().expect(0);
        let page = lab.belljar(["network", "kept"]).done().expect(0).out();
        assert_eq!(page, "allow    none (the run has no proxy)\n");
        lab.belljar(["network", "kept", "--allow", "a.example"]).done().expect(125).says(&[
            "was not changed",
            "--allow-host",
            "--set none",
        ]);
        lab.belljar(["stop", "kept"]).done().expect(0);
        assert!(events(lab, "network.changed").is_empty());
        // What it says to do.
        let (port, _) = echo_server();
        let host = address(port);
        lab.run(["--keep", "--name", "kept", "--allow-host", &host]).done().expect(0);
        network(lab, &["--set", "none"]);
        assert_eq!(status(lab, &host), "403");
        network(lab, &["--allow", &host]);
        assert_eq!(status(lab, &host), "200");
        lab.belljar(["stop", "kept"]).done().expect(0);
    });
}

#[test]
fn what_cannot_be_done_is_refused_with_the_reason_and_changes_nothing() {
    let lab = Lab::me();
    lab.run(["--keep", "--name", "kept", "--allow-host", "*.example"]).done().expect(0);
    let refused = |words: &[&str], says: &[&str]| {
        lab.belljar([&["network", "kept"], words].concat()).done().expect(125).says(says);
    };
    refused(&["--deny", "a.example"], &["\"*.example\" allows it", "--set"]);
    refused(&["--allow", "http://a"], &["is not a host rule"]);
    refused(&["--allow", "*"], &["net.sealed"]);
    refused(&["--set", "none", "a.example"], &["\"none\" stands alone"]);
    lab.belljar(["network", "kept", "--set", "a", "--allow", "b"]).done().expect(2);
    assert_eq!(network(&lab, &[])["allow"], serde_json::json!(["*.example"]));
    assert!(events(&lab, "network.changed").is_empty());
    // The control socket is there outside, and not inside.
    let find = "find / -xdev -type s 2>/dev/null | grep -c '[.]sock$'";
    let run = lab.runs().pop().unwrap();
    assert!(lab.home().join("live").join(format!("{run}.sock")).exists());
    let inside = lab.belljar(["exec", "kept", "--", "sh", "-c", find]).done().out();
    assert_eq!(inside, "0\n");
    network(&lab, &["--allow", "b.test"]);
    let words = ["--name", "kept", "--reuse", "--allow-host", "*.example", "--", "true"];
    lab.run(words).done().expect(125).says(&["was changed since its start"]);
    network(&lab, &["--deny", "b.test"]);
    lab.run(words).done().expect(0);
    lab.belljar(["stop", "kept"]).done().expect(0);
    lab.belljar(["network", "kept"]).done().expect(125);
}

#[test]
fn a_tcp_route_leads_to_its_place_and_is_closed_with_it() {
    each_boundary(|lab| {
        let (port, _) = echo_server();
        let host = address(port);
        let manifest = format!("[[route]]\nlisten = 5432\nto = \"tcp://{host}\"\n");
        let manifest = lab.make_file("work/route.toml", manifest).to_str().unwrap().to_owned();
        lab.run(["--keep", "--name", "kept", "--manifest", &manifest]).done().expect(0);
        let ask = || {
            let script = format!("{DIAL} printf hello | dial 5432");
            lab.belljar(["exec", "kept", "--", "sh", "-c", &script]).done().out()
        };
        assert_eq!(ask(), "hello");
        let state = network(lab, &[]);
        let to = format!("tcp://{host}");
        let route = serde_json::json!({ "listen": 5432, "to": to, "open": true });
        assert_eq!(state["routes"], serde_json::json!([route]));
        assert_eq!(network(lab, &["--set", "none"])["routes"][0]["open"], false);
        assert_eq!(ask(), "");
        network(lab, &["--allow", &host]);
        assert_eq!(ask(), "hello");
        lab.belljar(["stop", "kept"]).done().expect(0);
        let over = events(lab, "egress.allowed");
        assert_eq!(over.len(), 2, "{over:?}");
        assert_eq!((&over[0]["rule"], &over[0]["via"]), (&"route 5432".into(), &"route".into()));
        assert_eq!((&over[0]["bytes_out"], &over[0]["bytes_in"]), (&5.into(), &5.into()));
    });
}

/// Each iteration dials both hosts, waits for the test, and dials them again.
const AGENT: &str = r#"
both() { for host in $ONE $OTHER; do printf '%s ' "$(through $host x | head -n 1 | cut -c 10-12)"; done; echo; }
n=$(cat n 2>/dev/null || echo 0); n=$((n + 1)); echo $n > n
both > before.$n; mv before.$n begun.$n
until [ -e go.$n ]; do sleep 0.1; done
both > after.$n
"#;

#[test]
fn the_list_of_an_agents_loop_changes_within_an_iteration_and_holds_for_the_next() {
    each_boundary(|lab| {
        let ((one, _), (other, _)) = (echo_server(), echo_server());
        let (one, other) = (address(one), address(other));
        let script = Value::from(format!("cat > /dev/null; {DIAL} {AGENT}")).to_string();
        let manifest = format!(
            "[sandbox]\nworkspace = {{ path = \"../work\", mode = \"rw\" }}\n\
             env = {{ ONE = \"{one}\", OTHER = \"{other}\" }}\n[network]\nallow = [\"{one}\"]\n\
             [agent]\nkind = \"command\"\ncommand = [\"sh\", \"-c\", {script}]\nprompt = \"Work.\"\n\
             [loop]\nmax_iterations = 4\nmax_unchanged = 9\n"
        );
        let manifest = lab.make_file("settings/belljar.toml", manifest).display().to_string();
        lab.run(["-d", "--name", "kept", "--manifest", &manifest]).done().expect(0);
        let read = |name: String| std::fs::read_to_string(lab.work().join(name)).ok();
        let begun = |n: usize| {
            let there = until(CALL_TIMEOUT, || read(format!("begun.{n}")).is_some());
            assert!(there, "no iteration {n}: {}", lab.belljar(["show", "kept"]).done());
            read(format!("begun.{n}")).unwrap()
        };
        // What holds when an iteration begins, what is changed in it, and what holds then.
        let changes: [(&str, &[&str], &str); 4] = [
            ("200 403 \n", &["--set", &other], "403 200 \n"),
            ("403 200 \n", &["--set", "none"], "403 403 \n"),
            ("403 403 \n", &["--set", &one, &other], "200 200 \n"),
            ("200 200 \n", &["--deny", &other], "200 403 \n"),
        ];
        for (at, (before, change, _)) in changes.iter().enumerate() {
            assert_eq!(begun(at + 1), *before, "iteration {}", at + 1);
            network(lab, change);
            lab.make_file(format!("work/go.{}", at + 1), "");
        }
        lab.belljar(["wait", "kept"]).done().expect(0);
        for (at, (_, _, after)) in changes.iter().enumerate() {
            assert_eq!(read(format!("after.{}", at + 1)).as_deref(), Some(*after), "{at}");
        }
        let run = lab.runs().pop().unwrap();
        let kinds = lab.belljar(["events", &run]).done().expect(0).out();
        let kinds: Vec<&str> = kinds
            .lines()
            .filter_map(|line| {
                ["iteration.start", "network.changed", "checkpoint"]
                    .into_iter()
                    .find(|kind| line.contains(&format!("\"kind\":\"{kind}\"")))
            })
            .collect();
        assert_eq!(kinds, ["iteration.start", "network.changed", "checkpoint"].repeat(4));
        lab.belljar(["verify", &run]).done().expect(0);
        // The change was one of that run: what goes on from it has the list of the settings.
        lab.make_file("work/go.5", "");
        let more = ["resume", "kept", "--json", "--extend-iterations", "1"];
        let resumed = lab.belljar(more).done().json();
        assert_eq!(resumed["reason"], "max_iterations", "{resumed:#}");
        assert_eq!(begun(5), "200 403 \n");
    });
}
