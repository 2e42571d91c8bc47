//! Programs that people really run work inside, without a word of complaint.
//!
//! Not for the guest, which has none of them. A program that the host does not have is named and
//! left out; what `cargo xtask test` installs has to be there where the jail must work.

use std::path::{Path, PathBuf};
use std::process::Command;

use belljar_testkit::{Actor, Done, Lab, each_user};

/// Installed by `cargo xtask test`.
const ALWAYS_THERE: [&str; 9] =
    ["bash", "gcc", "gdb", "git", "node", "python3", "redis-cli", "redis-server", "strace"];

fn on_host(program: &str) -> bool {
    let there = ["/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"]
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

/// Exit 0, and nothing on stderr.
#[track_caller]
fn clean(done: Done) -> String {
    done.expect(0);
    assert_eq!(done.err(), "", "{done}");
    done.out()
}

#[test]
fn bash() {
    if !on_host("bash") {
        return;
    }
    each_user(|lab| {
        let script = "set -euo pipefail; a=(1 2 3); echo ${#a[@]}; diff <(echo x) <(echo x); \
             cat <<< here; for i in {1..50}; do /bin/true; done; wait; echo $BASH_VERSINFO | grep -c .; \
             coproc cat; echo through >&${COPROC[1]}; read -u ${COPROC[0]} x; echo $x";
        let out = clean(lab.run(["--", "bash", "-c", script]).done());
        assert_eq!(out, "3\nhere\n1\nthrough\n");
    });
}

#[test]
fn python() {
    if !on_host("python3") {
        return;
    }
    const SCRIPT: &str = r#"
import concurrent.futures, multiprocessing, os, socket, sqlite3, ssl, subprocess, sys, tempfile, threading, json
results = []
threads = [threading.Thread(target=results.append, args=(n,)) for n in range(50)]
[t.start() for t in threads]; [t.join() for t in threads]
assert sorted(results) == list(range(50))
assert subprocess.run(["echo", "child"], capture_output=True, check=True).stdout == b"child\n"
def square(n): return n * n
if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(3) as pool:
            assert pool.map(square, range(10)) == [n * n for n in range(10)], method
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        assert list(pool.map(square, [3, 4])) == [9, 16]
    db = sqlite3.connect("test.db")
    db.execute("pragma journal_mode=wal"); db.execute("create table t (x)")
    db.executemany("insert into t values (?)", [(n,) for n in range(100)]); db.commit()
    assert db.execute("select sum(x) from t").fetchone() == (4950,)
    ssl.create_default_context()
    with tempfile.NamedTemporaryFile() as f: f.write(b"x")
    s = socket.socket(); s.bind(("127.0.0.1", 80)); s.listen()
    c = socket.create_connection(("localhost", 80)); a, _ = s.accept(); a.sendall(b"hi"); assert c.recv(2) == b"hi"
    assert os.getuid() == 1000 and os.path.expanduser("~") == "/home/agent"
    assert os.cpu_count() >= 1
    print("fine")
"#;
    each_user(|lab| {
        lab.make_file("work/all.py", SCRIPT);
        assert_eq!(clean(lab.run(["--", "/usr/bin/python3", "all.py"]).done()), "fine\n");
        assert_eq!(
            clean(
                lab.run([
                    "--",
                    "/usr/bin/python3",
                    "-c",
                    "import venv, asyncio; asyncio.run(asyncio.sleep(0))"
                ])
                .done()
            ),
            ""
        );
    });
}

#[test]
fn git() {
    if !on_host("git") {
        return;
    }
    each_user(|lab| {
        let script = "git init -q -b main . && git config user.name a && git config user.email a@b && \
             echo one > file && git add file && git commit -q -m first && echo two >> file && \
             git commit -q -am second && git log --oneline | wc -l && git gc -q && git status --short && \
             git clone -q . /tmp/clone && git -C /tmp/clone rev-list --count HEAD";
        // Quietly: a new repository is told of as something that runs later.
        assert_eq!(clean(lab.sh(&["-q"], script)), "2\n2\n");
        // The repository that is there now was not made by this run: git still takes it for its own.
        assert_eq!(
            clean(lab.sh(
                &[],
                "git status --short && git log --oneline | wc -l && touch new && git status --short"
            )),
            "2\n?? new\n"
        );
        // And it belongs to whom it belonged before, so that git outside takes it too.
        let mut outside = Command::new("git");
        outside.args(["-C"]).arg(lab.work()).args(["log", "--oneline"]).env("HOME", lab.person());
        if lab.actor == Actor::Me {
            let output = outside.output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        // Read-only too.
        let place = format!("{}:ro", lab.work().display());
        assert_eq!(clean(lab.sh(&["--workspace", &place], "git log --oneline | wc -l")), "2\n");
    });
}

#[test]
fn gcc() {
    if !on_host("gcc") {
        return;
    }
    each_user(|lab| {
        lab.make_file(
            "work/hello.c",
            "#include <stdio.h>\n#include <pthread.h>\n#include <math.h>\n\
             static void *work(void *x) { return x; }\n\
             int main(void) { pthread_t t; pthread_create(&t, 0, work, 0); pthread_join(t, 0);\n\
             printf(\"hello %.1f\\n\", sqrt(2.25)); return 0; }\n",
        );
        let script = "gcc -O2 -g -Wall -pthread hello.c -o hello -lm && ./hello && gcc -static hello.c -o static -lm -pthread && ./static";
        assert_eq!(clean(lab.sh(&[], script)), "hello 1.5\nhello 1.5\n");
        assert_eq!(
            clean(lab.sh(&[], "cp hello /tmp/ && /tmp/hello && cp hello $HOME/ && $HOME/hello")),
            "hello 1.5\nhello 1.5\n"
        );
    });
}

/// A tool that is installed in somebody's home directory.
#[test]
fn cargo_as_a_tool() {
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
    let lab = Lab::me();
    lab.make_file(
        "work/Cargo.toml",
        "[package]\nname = \"hello\"\nversion = \"0.1.0\"\nedition = \"2021\"\n",
    );
    lab.make_file("work/src/main.rs", "fn main() { println!(\"hello\"); }\n");
    let (cargo, rustup) = (cargo.display().to_string(), rustup.display().to_string());
    let done = lab
        .run(["--tool", &cargo, "--tool", &rustup, "-e", &format!("RUSTUP_HOME={rustup}")])
        .arg("--")
        .arg("sh")
        .arg("-c")
        .arg("cargo build --offline --quiet && ./target/debug/hello && cargo test --offline --quiet | grep -c 'test result'")
        .done();
    assert_eq!(clean(done), "hello\n1\n");
}

#[test]
fn node() {
    if !on_host("node") {
        return;
    }
    const SCRIPT: &str = r#"
const fs = require('fs'), { execFileSync } = require('child_process'), { Worker, isMainThread, parentPort } = require('worker_threads');
if (!isMainThread) { parentPort.postMessage('from a thread'); } else {
  fs.writeFileSync('out.txt', 'x'); fs.watch('.').close(); fs.rmSync('out.txt');
  if (execFileSync('echo', ['child']).toString() !== 'child\n') process.exit(1);
  require('crypto').randomBytes(16); require('os').cpus();
  const server = require('net').createServer(s => s.end('hi')).listen(8080, '127.0.0.1', () => {
    require('net').connect(8080, 'localhost').on('data', () => server.close());
  });
  new Worker(__filename).on('message', m => console.log(m));
}
"#;
    each_user(|lab| {
        lab.make_file("work/all.js", SCRIPT);
        assert_eq!(clean(lab.run(["--", "node", "all.js"]).done()), "from a thread\n");
    });
}

#[test]
fn redis() {
    if !on_host("redis-server") || !on_host("redis-cli") {
        return;
    }
    each_user(|lab| {
        let script = "redis-server --port 6379 --save '' --appendonly yes --dir . --logfile log & \
             for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do \
               redis-cli ping 2>/dev/null | grep -q PONG && break; sleep 0.2; done; \
             redis-cli set key value && redis-cli get key && redis-cli bgsave > /dev/null && redis-cli shutdown nosave; wait";
        assert_eq!(clean(lab.sh(&[], script)), "OK\nvalue\n");
        // No trace of the outside on the same port.
        let done = lab.sh(&[], "redis-cli -p 6379 ping");
        assert_ne!(done.code(), 0, "a server of the host answers: {done}");
    });
}

#[test]
fn debuggers_see_their_own_children() {
    each_user(|lab| {
        if on_host("strace") {
            let script =
                "strace -f -o trace sh -c 'echo traced; /bin/true' && grep -c execve trace";
            let out = clean(lab.sh(&[], script));
            assert!(out.starts_with("traced\n"), "{out}");
        }
        if on_host("gdb") {
            let script = "gdb -nx -q -batch -ex 'break main' -ex run -ex 'print 6*7' -ex kill ./program 2>&1";
            lab.make_file("work/program.c", "int main(void) { return 0; }\n");
            let out = lab.sh(&[], &format!("gcc -g program.c -o program && {script}")).out();
            assert!(out.contains("Breakpoint 1, main") && out.contains("= 42"), "{out}");
        }
    });
}

#[test]
fn java() {
    if !on_host("java") {
        return;
    }
    each_user(|lab| {
        lab.make_file(
            "work/Main.java",
            "public class Main { public static void main(String[] a) throws Exception { \
             Thread t = new Thread(() -> System.out.println(\"hello\")); t.start(); t.join(); } }\n",
        );
        let has_compiler = on_host("javac");
        if has_compiler {
            assert_eq!(clean(lab.sh(&[], "javac Main.java && java Main")), "hello\n");
        } else {
            let done = lab.sh(&[], "java -version");
            assert!(done.expect(0).err().contains("version"), "{done}");
        }
    });
}

/// What an agent does all day.
#[test]
fn the_usual_tools() {
    each_user(|lab| {
        let script = "find /usr/bin -name 'env' | head -n 1; grep -rn root /etc/passwd | wc -l; \
             tar czf /tmp/a.tgz -C /usr/share/common-licenses . && tar tzf /tmp/a.tgz | wc -l | grep -qv '^0$'; \
             ps -e 2>/dev/null | grep -c sh; date +%Y | grep -c 20; mktemp -d | cut -c1-5; df /workspace > /dev/null; \
             getent hosts localhost | grep -c localhost; whoami; nproc | grep -c .; uname -s; \
             sort -R /etc/services > /dev/null; perl -e 'print \"perl\\n\"'; ls /proc/self/fd | wc -l";
        let out = clean(lab.sh(&[], script));
        assert!(out.contains("agent\n") && out.contains("perl\n"), "{out}");
    });
}
