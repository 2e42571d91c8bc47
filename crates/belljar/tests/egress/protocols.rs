//! What passes through the proxy passes as it comes: events one by one, WebSockets, HTTP/2; and where it opens
//! TLS it checks both sides.

use belljar::spec::EventKind;
use belljar_testkit::{Lab, TlsHandling, each_user};

/// A connection by the proxy, in TLS, as a program of its own makes it.
const OPEN: &str = r#"
import http.client, os, ssl, sys, time, urllib.parse
proxy = urllib.parse.urlsplit(os.environ["HTTPS_PROXY"])
def tunnel():
    c = http.client.HTTPConnection(proxy.hostname, proxy.port, timeout=20)
    c.set_tunnel("ok.example", 443)
    c.connect()
    c.sock = ssl.create_default_context().wrap_socket(c.sock, server_hostname="ok.example")
    return c
"#;

fn python(script: &str) -> String {
    format!("/usr/bin/python3 - <<'EOF'\n{OPEN}\n{script}\nEOF\n")
}

/// Where only the host's own authorities count, the world's is named.
const TRUST: &[&str] = &["-e", "SSL_CERT_FILE=/workspace/world-ca.pem"];

fn trust(way: TlsHandling) -> &'static [&'static str] {
    if way == TlsHandling::Tunnel { TRUST } else { &[] }
}

#[test]
fn events_arrive_one_by_one() {
    let script = python(
        r#"
c = tunnel()
c.request("GET", "/events/4")
a = c.getresponse()
times = []
while True:
    line = a.readline()
    if not line: break
    if line.startswith(b"data:"): times.append(time.monotonic())
print(len(times), "spread" if times[-1] - times[0] > 0.3 else "at once")
"#,
    );
    each_user(|lab| {
        let world = lab.world();
        for way in TlsHandling::ALL {
            let done = world.sh(way, trust(way), &script).done();
            assert_eq!(done.expect(0).out(), "4 spread\n", "{way:?} {done}");
        }
    });
}

#[test]
fn a_websocket_goes_both_ways() {
    let script = python(
        r#"
c = tunnel()
s = c.sock
s.sendall(b"GET /ws HTTP/1.1\r\nHost: ok.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
          b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
head = b""
while not head.endswith(b"\r\n\r\n"): head += s.recv(1)
print(head.split(b" ")[1].decode())
for word in (b"\x81\x85\0\0\0\0hello", b"\x82\x80\1\2\3\4", bytes(range(256)) * 500):
    s.sendall(word)
    got = b""
    while len(got) < len(word): got += s.recv(len(word) - len(got))
    assert got == word
print("echoed")
"#,
    );
    each_user(|lab| {
        let world = lab.world();
        for way in TlsHandling::ALL {
            let done = world.sh(way, trust(way), &script).done();
            assert_eq!(done.expect(0).out(), "101\nechoed\n", "{way:?} {done}");
        }
    });
}

/// Many requests over one connection, of any version, with bodies both ways.
#[test]
fn connections_are_used_again() {
    let lab = Lab::me();
    let world = lab.world();
    let url = "https://ok.example";
    let body = "head -c 300000 /dev/zero | tr '\\0' x > /tmp/body";
    for version in ["--http1.1", "--http2"] {
        let script = format!(
            "{body}; curl -sS {version} -w '%{{http_version}} %{{num_connects}} %{{size_download}}\\n' \
             -o /dev/null {url}/small -o /dev/null {url}/zeros/3000000 \
             -o /dev/null --data-binary @/tmp/body {url}/echo"
        );
        let done = world.sh(TlsHandling::Opened, &[], &script).done();
        done.expect(0);
        let out = done.out();
        let connects: u32 =
            out.lines().map(|line| line.split(' ').nth(1).unwrap().parse::<u32>().unwrap()).sum();
        assert_eq!(connects, 1, "{done}");
        assert!(out.lines().next().unwrap().ends_with(" 3"), "{done}");
        let seen = world.seen();
        let posted = seen.requests.iter().find(|one| one.head.contains("/echo")).unwrap();
        assert_eq!(posted.body.len(), 300_000);
        assert!(posted.body.bytes().all(|byte| byte == b'x'));
    }
}

/// What HTTP/2 calls its authority is a name as well.
#[test]
fn names_have_to_agree_in_every_version() {
    let lab = Lab::me();
    let world = lab.world();
    for version in ["--http1.1", "--http2"] {
        let script = format!(
            "curl -sS {version} -o /dev/null -w '%{{http_code}}' -H 'Host: other.example' \
             https://ok.example/x; curl -sS {version} https://ok.example/fine | grep -c received"
        );
        let done = world.sh(TlsHandling::Opened, &[], &script).done();
        let out = done.expect(0).out();
        assert!(
            out.starts_with("400") || out.starts_with("403") || out.starts_with("421"),
            "{done}"
        );
        assert!(out.ends_with("1\n"), "{done}");
        let seen = world.seen();
        assert!(!seen.received("other.example"), "{:?}", seen.requests);
        assert!(seen.received("/fine"));
        let denied = lab.egress(EventKind::EgressDenied);
        assert_eq!(denied[0]["reason"], "names_differ", "{denied:?}");
    }
}

/// The proxy is the client of the server, and checks it as one.
#[test]
fn a_server_that_nobody_trusts_is_not_spoken_to() {
    let lab = Lab::me();
    let world = lab.world();
    let words = [
        "--no-config",
        "--allow-host",
        "untrusted.example",
        "-c",
        "network.intercept=[\"untrusted.example\"]",
        "--",
        "curl",
        "-sS",
        "-w",
        "%{http_code}",
        "https://untrusted.example/",
    ];
    let done = world.run(words).done();
    assert!(done.out().ends_with("502") || done.code() != 0, "{done}");
    assert_eq!(world.seen().requests, []);
}

/// The proxy follows nothing, so a redirect is the client's business, and its target the rules'.
#[test]
fn a_redirect_is_a_request_of_its_own() {
    let lab = Lab::me();
    let world = lab.world();
    let script = "curl -sS -L -o /dev/null -w '%{http_code} %{num_redirects}\\n' \
         'http://ok.example/redirect?to=http://other.example/'; \
         curl -sS -L 'http://ok.example/redirect?to=http://metadata.example/' | head -c 60";
    let done = world.sh(TlsHandling::Tunnel, &[], script).done();
    assert!(done.out().starts_with("403 1\n"), "{done}");
    assert_eq!(world.seen().beyond(&["93.184.216.34:80"]), Vec::<String>::new());
}

/// A name server that says no, answers late or never: told in time, and nothing hangs on it.
#[test]
fn a_name_server_that_does_not_answer_holds_nothing_up() {
    let lab = Lab::me();
    let world = lab.world();
    let ask = |host: &str| {
        format!("curl -sS -o /dev/null -w '%{{http_code}}\\n' http://{host}.example/ &")
    };
    let script = ["silent", "slow", "nobody", "ok"].map(ask).concat() + " wait";
    let hosts = ["silent.example", "slow.example", "nobody.example", "ok.example"];
    let mut words: Vec<&str> = vec!["--no-config"];
    words.extend(hosts.iter().flat_map(|host| ["--allow-host", host]));
    words.extend(["--", "sh", "-c", &script]);
    let done = world.run(words).done();
    let out = done.expect(0).out();
    let mut codes: Vec<&str> = out.lines().collect();
    assert_eq!(codes.len(), 4, "{done}");
    // The two that are answered at once, in any order; then the late one; then the one that never is. Inside, that one
    // looks like a name that is not there.
    codes[..2].sort_unstable();
    assert_eq!(codes, ["200", "502", "200", "502"], "{done}");
    let errors = lab.egress(EventKind::EgressAllowed);
    let error = |host: &str| {
        let of_host = |event: &&serde_json::Value| event["host"] == host;
        errors.iter().find(of_host).and_then(|event| event["error"].as_str()).unwrap_or_default()
    };
    assert!(error("nobody.example").contains("no address"), "{errors:?}");
    assert_ne!(error("silent.example"), error("nobody.example"), "{errors:?}");
    assert!(done.took < std::time::Duration::from_secs(20), "{done}");
}
