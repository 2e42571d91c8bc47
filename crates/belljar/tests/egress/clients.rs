//! Programs that people really use, through the proxy, to a server in a network of the test's own: in a tunnel,
//! where the client itself trusts the server's authority, and opened by the proxy, where it trusts the run's by
//! the variables that belljar sets.
//!
//! A program that the host does not have is named and left out; what `cargo xtask test` installs has to be there
//! where the jail must work.

use std::path::{Path, PathBuf};
use std::process::Command;

use belljar::spec::EventKind;
use belljar_testkit::{Actor, Done, Lab, LabWorld, TlsHandling, WORLD_CA, each_user};

/// Installed by `cargo xtask test`.
const ALWAYS_THERE: [&str; 6] = ["curl", "git", "node", "pip3", "python3", "wget"];

fn on_host(program: &str) -> bool {
    let there = ["/usr/local/bin", "/usr/bin", "/bin"]
        .iter()
        .any(|directory| Path::new(directory).join(program).exists());
    if !there {
        let must =
            std::env::var_os("BELLJAR_MUST_WORK").is_some() && ALWAYS_THERE.contains(&program);
        assert!(!must, "{program} is not installed; run `cargo xtask test`");
        eprintln!("NOT CHECKED: {program} is not installed");
    }
    there
}

/// Both ways, with what the client needs to be told in the first one.
fn both_ways(world: &LabWorld<'_>, lab: &Lab, told: &[&str], script: &str) -> [Done; 2] {
    TlsHandling::ALL.map(|way| {
        let (more, script) = match way {
            TlsHandling::Tunnel => (told, script.replace(['⟨', '⟩'], "")),
            TlsHandling::Opened => (&[][..], without_trust(script)),
        };
        let done = world.sh(way, more, &script).done();
        done.expect(0);
        // It went the way that was meant, and nowhere else.
        let seen = world.seen();
        assert_eq!(seen.beyond(&["93.184.216.34:443"]), Vec::<String>::new(), "{way:?} {done}");
        assert!(seen.accepted("93.184.216.34:443") > 0, "{way:?} {done}");
        let events = lab.egress(EventKind::EgressAllowed);
        let by = |event: &serde_json::Value| event["via"] == way.name();
        assert!(!events.is_empty() && events.iter().all(by), "{way:?} {events:?}");
        assert_eq!(lab.egress(EventKind::EgressDenied), Vec::<serde_json::Value>::new());
        done
    })
}

/// What stands between `⟨` and `⟩` tells the client whom to trust; where the proxy opens TLS, nobody needs to.
fn without_trust(script: &str) -> String {
    let mut left = String::new();
    let mut rest = script;
    while let Some((before, after)) = rest.split_once('⟨') {
        left.push_str(before);
        rest = after.split_once('⟩').map_or("", |(_, after)| after);
    }
    left + rest
}

const ECHO: &str = "https://ok.example/hello";

#[test]
fn curl() {
    if !on_host("curl") {
        return;
    }
    each_user(|lab| {
        let world = lab.world();
        for version in ["--http1.1", "--http2"] {
            let script = format!("curl -sS {version} ⟨--cacert {WORLD_CA}⟩ {ECHO}");
            for done in both_ways(&world, lab, &[], &script) {
                assert!(done.out().contains("the server received: GET"), "{done}");
                assert_eq!(done.err(), "", "{done}");
            }
        }
        // By SOCKS, with the name, as ssh and many others would.
        let script = format!(
            "curl -sS --noproxy '' --socks5-hostname 127.0.0.1:61080 --cacert {WORLD_CA} {ECHO}"
        );
        let done = world.sh(TlsHandling::Tunnel, &[], &script).done();
        assert!(done.expect(0).out().contains("the server received: GET"), "{done}");
        assert_eq!(lab.egress(EventKind::EgressAllowed)[0]["via"], "socks");
        // What nobody trusts is refused by the client in the one way and by the proxy in the other.
        let script = format!("curl -sS --cacert {WORLD_CA} https://untrusted.example/");
        let flags = ["--no-config", "--allow-host", "untrusted.example", "--", "sh", "-c", &script];
        assert_eq!(world.run(flags).done().code(), 60);
    });
}

#[test]
fn wget() {
    if !on_host("wget") {
        return;
    }
    each_user(|lab| {
        let world = lab.world();
        let script = format!("wget -q -O- ⟨--ca-certificate={WORLD_CA}⟩ {ECHO}");
        for done in both_ways(&world, lab, &[], &script) {
            assert!(done.out().contains("the server received: GET"), "{done}");
        }
    });
}

#[test]
fn git() {
    if !on_host("git") {
        return;
    }
    each_user(|lab| {
        let world = lab.world();
        let bare = world.files().join("repo.git");
        let script = "set -e; d=$(mktemp -d); cd $d; git init -q -b main .; echo content > file; \
             git add file; git -c user.name=a -c user.email=a@b commit -q -m first; \
             git clone -q --bare . \"$1\"; git -C \"$1\" update-server-info; rm -r $d";
        outside("sh", &["-c", script, "sh", bare.to_str().unwrap()]);
        open_to_all(&bare);
        let script = format!(
            "git ⟨-c http.sslCAInfo={WORLD_CA}⟩ clone -q https://ok.example/files/repo.git /tmp/c && \
             cat /tmp/c/file"
        );
        for done in both_ways(&world, lab, &[], &script) {
            assert_eq!(done.out(), "content\n", "{done}");
        }
    });
}

/// On the host, as whoever runs the tests.
fn outside(program: &str, words: &[&str]) {
    let done = Command::new(program).args(words).output().unwrap();
    assert!(done.status.success(), "{program} {words:?}: {done:?}");
}

fn open_to_all(path: &Path) {
    outside("chmod", &["-R", "a+rX", path.to_str().unwrap()]);
}

#[test]
fn pip() {
    if !on_host("pip3") || !on_host("python3") {
        return;
    }
    const MAKE_WHEEL: &str = r#"
import sys, zipfile
with zipfile.ZipFile(sys.argv[1], "w") as wheel:
    wheel.writestr("tiny.py", "word = 'tiny'\n")
    wheel.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
    wheel.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr("tiny-1.0.dist-info/RECORD", "tiny.py,,\ntiny-1.0.dist-info/METADATA,,\ntiny-1.0.dist-info/WHEEL,,\ntiny-1.0.dist-info/RECORD,,\n")
"#;
    each_user(|lab| {
        let world = lab.world();
        let name = "tiny-1.0-py3-none-any.whl";
        world.serve("simple/tiny/index.html", format!("<a href=\"../../{name}\">{name}</a>"));
        let wheel = world.files().join(name);
        outside("/usr/bin/python3", &["-c", MAKE_WHEEL, wheel.to_str().unwrap()]);
        open_to_all(&wheel);
        let script = format!(
            "/usr/bin/python3 -m pip install -q --no-cache-dir --no-deps --disable-pip-version-check \
             --target /tmp/t ⟨--cert {WORLD_CA}⟩ --index-url https://ok.example/files/simple/ tiny && \
             PYTHONPATH=/tmp/t /usr/bin/python3 -c 'import tiny; print(tiny.word)'"
        );
        for done in both_ways(&world, lab, &[], &script) {
            assert_eq!(done.out(), "tiny\n", "{done}");
        }
    });
}

#[test]
fn python() {
    if !on_host("python3") {
        return;
    }
    each_user(|lab| {
        let world = lab.world();
        let read = format!(
            "/usr/bin/python3 -c 'import urllib.request as u; print(u.urlopen(\"{ECHO}\").read().decode())'"
        );
        for done in both_ways(&world, lab, &["-e", &format!("SSL_CERT_FILE={WORLD_CA}")], &read) {
            assert!(done.out().contains("the server received: GET"), "{done}");
        }
        let read =
            format!("/usr/bin/python3 -c 'import requests; print(requests.get(\"{ECHO}\").text)'");
        let told = ["-e", &format!("REQUESTS_CA_BUNDLE={WORLD_CA}")];
        for done in both_ways(&world, lab, &told, &read) {
            assert!(done.out().contains("the server received: GET"), "{done}");
        }
    });
}

/// A sparse registry with one crate.
#[test]
fn cargo() {
    let installed = |name: &str, variable: &str| -> Option<PathBuf> {
        let path = std::env::var_os(variable)
            .map(PathBuf::from)
            .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(name)))?;
        path.is_dir().then_some(path)
    };
    let (Some(cargo), Some(rustup)) =
        (installed(".cargo", "CARGO_HOME"), installed(".rustup", "RUSTUP_HOME"))
    else {
        eprintln!("NOT CHECKED: no rustup in this home directory");
        return;
    };
    // Root's own directory is closed to others, so only whoever owns it can give it.
    let lab = Lab::new(Actor::Me);
    let world = lab.world();
    let tree = lab.make_directory("tmp/crate");
    lab.make_file(
        "tmp/crate/tiny-1.0.0/Cargo.toml",
        "[package]\nname = \"tiny\"\nversion = \"1.0.0\"\nedition = \"2021\"\n",
    );
    lab.make_file("tmp/crate/tiny-1.0.0/src/lib.rs", "pub const WORD: &str = \"tiny\";\n");
    world.serve("crates/none", "");
    let archive = world.files().join("crates/tiny.crate");
    let (archive, tree) = (archive.to_str().unwrap(), tree.to_str().unwrap());
    outside("tar", &["-czf", archive, "-C", tree, "tiny-1.0.0"]);
    let sum = Command::new("sha256sum").arg(archive).output().unwrap();
    let sum = String::from_utf8(sum.stdout).unwrap().split(' ').next().unwrap().to_owned();
    world.serve("index/config.json", "{\"dl\": \"https://ok.example/files/crates/{crate}.crate\"}");
    world.serve(
        "index/ti/ny/tiny",
        format!(
            "{{\"name\":\"tiny\",\"vers\":\"1.0.0\",\"deps\":[],\"cksum\":\"{sum}\",\"features\":{{}},\"yanked\":false}}\n"
        ),
    );
    lab.make_file(
        "work/Cargo.toml",
        "[package]\nname = \"hello\"\nversion = \"0.1.0\"\nedition = \"2021\"\n\
         [dependencies]\ntiny = { version = \"1\", registry = \"world\" }\n",
    );
    lab.make_file("work/src/main.rs", "fn main() { println!(\"{}\", tiny::WORD); }\n");
    lab.make_file(
        "work/.cargo/config.toml",
        "[registries.world]\nindex = \"sparse+https://ok.example/files/index/\"\n",
    );
    let (cargo, rustup) = (cargo.display().to_string(), rustup.display().to_string());
    let home = format!("RUSTUP_HOME={rustup}");
    for way in TlsHandling::ALL {
        let trust = format!("CARGO_HTTP_CAINFO={WORLD_CA}");
        let mut words = vec!["--tool", &cargo, "--tool", &rustup, "-e", &home];
        if way == TlsHandling::Tunnel {
            words.extend(["-e", &trust]);
        }
        let script = "export CARGO_HOME=/tmp/cargo; rm -f Cargo.lock; cargo run --quiet";
        let done = world.sh(way, &words, script).done();
        assert_eq!(done.expect(0).out(), "tiny\n", "{way:?} {done}");
        let events = lab.egress(EventKind::EgressAllowed);
        assert!(events.iter().all(|event| event["via"] == way.name()), "{events:?}");
    }
}

/// `fetch` takes the proxy from the variables since Node 24; before that a program has to do it itself.
#[test]
fn node() {
    if !on_host("node") {
        return;
    }
    const TUNNEL: &str = r#"
const http = require('http'), tls = require('tls'), proxy = new URL(process.env.HTTPS_PROXY);
const to = 'ok.example:443', headers = { host: to };
http.request({ host: proxy.hostname, port: proxy.port, method: 'CONNECT', path: to, headers })
  .on('connect', (answer, socket) => {
    const secure = tls.connect({ socket, servername: 'ok.example' }, () =>
      secure.write('GET /hello HTTP/1.1\r\nHost: ok.example\r\nConnection: close\r\n\r\n'));
    secure.on('data', bytes => process.stdout.write(bytes));
  }).end();
"#;
    const FETCH: &str =
        "fetch('https://ok.example/hello').then(a => a.text()).then(t => console.log(t));";
    let version = Command::new("node").arg("--version").output().unwrap().stdout;
    let version = String::from_utf8(version).unwrap();
    let major: u32 = version[1..].split('.').next().unwrap().parse().unwrap();
    each_user(|lab| {
        let world = lab.world();
        lab.make_file("work/tunnel.js", TUNNEL);
        lab.make_file("work/fetch.js", FETCH);
        let mut scripts = vec!["node tunnel.js"];
        if major >= 24 {
            scripts.push("node fetch.js");
        } else {
            eprintln!("NOT CHECKED: fetch of node {major}, which knows no proxy variables");
        }
        let told = ["-e", &format!("NODE_EXTRA_CA_CERTS={WORLD_CA}")];
        for script in scripts {
            for done in both_ways(&world, lab, &told, script) {
                assert!(done.out().contains("the server received: GET"), "{done}");
            }
        }
    });
}

/// Any `fetch`, and whatever else has a base URL: by a route.
#[test]
fn node_by_a_route() {
    if !on_host("node") {
        return;
    }
    each_user(|lab| {
        let world = lab.world();
        lab.make_file(
            "work/belljar.toml",
            "[[route]]\nlisten = 8085\nto = \"https://ok.example/base\"\n",
        );
        let script =
            "fetch('http://127.0.0.1:8085/hello').then(a => a.text()).then(t => console.log(t))";
        let manifest = lab.path("work/belljar.toml");
        let words = ["--manifest", manifest.to_str().unwrap(), "--", "node", "-e", script];
        let done = world.run(words).done();
        assert!(done.expect(0).out().contains("/base/hello HTTP/"), "{done}");
        let request = &world.seen().requests[0];
        assert_eq!(request.sni.as_deref(), Some("ok.example"));
        assert!(!request.head.contains("127.0.0.1"), "{}", request.head);
    });
}

#[test]
fn npm() {
    if !on_host("npm") {
        return;
    }
    let lab = Lab::new(Actor::Me);
    let world = lab.world();
    world.serve(
        "npm/tiny",
        "{\"name\":\"tiny\",\"dist-tags\":{\"latest\":\"1.0.0\"},\"versions\":{\"1.0.0\":{\"name\":\"tiny\",\
         \"version\":\"1.0.0\",\"dist\":{\"tarball\":\"https://ok.example/files/npm/tiny.tgz\"}}}}",
    );
    let script = format!(
        "npm view tiny version --registry https://ok.example/files/npm/ ⟨--cafile {WORLD_CA}⟩ \
         --no-update-notifier --fetch-retries 0"
    );
    for done in both_ways(&world, &lab, &[], &script) {
        assert_eq!(done.out().trim(), "1.0.0", "{done}");
    }
}

#[test]
fn java() {
    if !on_host("java") || !on_host("javac") {
        return;
    }
    let lab = Lab::new(Actor::Me);
    let world = lab.world();
    lab.make_file(
        "work/Main.java",
        "public class Main { public static void main(String[] a) throws Exception { \
         var in = new java.net.URL(\"https://ok.example/hello\").openStream(); \
         System.out.println(new String(in.readAllBytes())); } }\n",
    );
    // Of the authorities that it is told nothing about, only the opened way has one.
    let script = "javac -J-Xshare:auto Main.java 2>/dev/null && java Main";
    let done = world.sh(TlsHandling::Opened, &[], script).done();
    assert!(done.expect(0).out().contains("the server received: GET"), "{done}");
    assert_eq!(world.seen().beyond(&["93.184.216.34:443"]), Vec::<String>::new());
}
