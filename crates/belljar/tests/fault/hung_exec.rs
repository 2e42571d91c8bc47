//! Nothing inside, and no terminal that is gone, keeps a command of the host waiting for ever.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use belljar::spec::EventKind;
use belljar_testkit::{
    CALL_TIMEOUT, Call, Input, Lab, Live, alive, each_user, marker, processes_with, send, until,
    wait_until_gone,
};
use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

/// Longer than any deadline inside, on a busy machine.
const GENEROUS: Duration = Duration::from_secs(50);

fn keep(lab: &Lab, script: &str) -> String {
    let words = ["-q", "--no-config", "-d", "--keep", "--", "sh", "-c", script];
    lab.run(words).done().expect(0).out().trim().to_owned()
}

/// It ends by itself within the time; a call that does not is killed with what it said.
#[track_caller]
fn ends(mut live: Live, within: Duration, what: &str) -> belljar_testkit::Done {
    let ended = until(within, || !live.is_running());
    assert!(ended, "{what} did not end within {within:?}");
    live.done()
}

#[test]
fn a_shell_without_input_ends() {
    each_user(|lab| {
        let id = keep(lab, "sleep 1000");
        let null = lab.belljar(["shell", &id]).input(Input::Null).spawn();
        ends(null, Duration::from_secs(20), "shell < /dev/null");
        let piped = lab.belljar(["shell", &id]).input(Input::Bytes(b"echo said; exit 3\n".into()));
        let done = ends(piped.spawn(), Duration::from_secs(20), "shell with a script");
        assert!(done.expect(3).out().contains("said"), "{done}");
        let mut open = lab.belljar(["shell", &id]).input(Input::Open).spawn();
        open.type_in(b"echo $((40 + 2))\n");
        open.wait_for_output("42");
        open.close_input();
        ends(open, Duration::from_secs(20), "shell whose input ends");
        // The control: with input that stays open it waits, and the sandbox is still there.
        let mut open = lab.belljar(["shell", &id]).input(Input::Open).spawn();
        open.type_in(b"echo $((40 + 2))\n");
        open.wait_for_output("42");
        std::thread::sleep(Duration::from_millis(500));
        assert!(open.is_running());
        lab.belljar(["stop", "-t", "0", &id]).done().expect(0);
        ends(open, Duration::from_secs(20), "shell in a sandbox that was stopped");
    });
}

/// A fresh sandbox for this directory, and no word from anybody.
#[test]
fn a_shell_in_a_fresh_sandbox_without_input_ends() {
    each_user(|lab| {
        let live = lab.belljar(["shell"]).input(Input::Null).spawn();
        ends(live, Duration::from_secs(20), "shell < /dev/null");
        lab.assert_nothing_lives(&lab.runs());
    });
}

/// A terminal that controls nobody: when it is gone, no signal tells of it.
struct Terminal {
    ours: File,
    child: Child,
}

impl Terminal {
    fn start(call: &Call<'_>) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = openpt(flags).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap().into_bytes();
        let no_ctty = rustix::fs::OFlags::NOCTTY.bits() as i32;
        let theirs = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(no_ctty)
            .open(PathBuf::from(OsString::from_vec(name)))
            .unwrap();
        rustix::io::ioctl_fionbio(&ours, true).unwrap();
        let end = || Stdio::from(theirs.try_clone().unwrap());
        let mut command = call.prepared();
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        Self { ours: File::from(ours), child }
    }

    #[track_caller]
    fn wait_for(&mut self, text: &str) {
        let mut seen = Vec::new();
        let shown = until(CALL_TIMEOUT, || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = self.ours.read(&mut buffer) {
                seen.extend_from_slice(&buffer[..length]);
            }
            String::from_utf8_lossy(&seen).contains(text)
        });
        assert!(shown, "never showed {text:?} but {:?}", String::from_utf8_lossy(&seen));
    }

    /// Takes the terminal away.
    fn vanish(self) -> Child {
        self.child
    }
}

#[test]
fn a_run_ends_when_its_terminal_is_gone_without_a_signal() {
    each_user(|lab| {
        for script in ["sleep", "trap '' HUP TERM; sleep"] {
            let marker = marker();
            let line = format!("echo ready; {script} {marker}");
            let words = ["--no-config", "--stop-timeout", "1s", "--", "sh", "-c", &line];
            let call = lab.run(words).through(&["setsid"]);
            let mut terminal = Terminal::start(&call);
            terminal.wait_for("ready");
            // The control: as long as it is there, the run goes on.
            std::thread::sleep(Duration::from_millis(1500));
            assert!(terminal.child.try_wait().unwrap().is_none());
            assert!(!processes_with(&marker).is_empty());
            let mut child = terminal.vanish();
            let ended = until(GENEROUS, || child.try_wait().unwrap().is_some());
            if !ended {
                let _ = child.kill();
                let _ = child.wait();
            }
            assert!(ended, "as {:?}, {script:?}: it goes on without a terminal", lab.actor);
            wait_until_gone(Duration::from_secs(5), &marker, &lab.exe);
        }
        lab.belljar(["reconcile"]).done().expect(0);
        lab.assert_all_sound();
    });
}

/// The same for what waits at a terminal for a sandbox that stays.
#[test]
fn a_command_at_a_terminal_that_is_gone_ends_and_the_sandbox_stays() {
    each_user(|lab| {
        let id = keep(lab, "sleep 1000");
        let marker = marker();
        let line = format!("echo ready; sleep {marker}");
        let words = ["exec", "-t", &id, "--", "sh", "-c", &line];
        let call = lab.belljar(words).through(&["setsid"]);
        let mut terminal = Terminal::start(&call);
        terminal.wait_for("ready");
        let mut child = terminal.vanish();
        let ended = until(GENEROUS, || child.try_wait().unwrap().is_some());
        if !ended {
            let _ = child.kill();
            let _ = child.wait();
        }
        assert!(ended, "as {:?}: exec goes on without a terminal", lab.actor);
        lab.belljar(["exec", &id, "--", "true"]).done().expect(0);
        lab.belljar(["stop", "-t", "0", &id]).done().expect(0);
    });
}

/// Stops every process but itself and PID 1, as soon as it sees it.
const STOPPER: &str = "self=$$; while :; do for p in /proc/[0-9]*; do p=${p#/proc/}; \
     [ $p = 1 ] || [ $p = $self ] || kill -STOP $p; done; done 2>/dev/null";

/// How long one that was let go has before it counts as stopped by the run.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// Commands besides the first that have been started and have not ended.
fn open_execs(lab: &Lab, id: &str) -> BTreeSet<u64> {
    let events = lab.events(id);
    let of = |kind: EventKind| {
        let of_kind = events.iter().filter(move |event| event.kind == kind);
        of_kind.filter_map(|event| event.data["exec"].as_u64()).filter(|exec| *exec > 0)
    };
    let ended: BTreeSet<u64> = of(EventKind::ExecExit).collect();
    of(EventKind::ExecStart).filter(|exec| !ended.contains(exec)).collect()
}

#[test]
fn a_newcomer_that_is_stopped_inside_keeps_nobody_waiting() {
    each_user(|lab| {
        let id = keep(lab, STOPPER);
        lab.make_file("work/file", "x\n");
        let target = format!("{id}:/tmp/file");
        let source = format!("{id}:/etc/hostname");
        let calls: [&[&str]; 4] = [
            &["exec", &id, "--", "true"],
            &["exec", "-t", &id, "--", "true"],
            &["cp", "file", &target],
            &["cp", &source, "back"],
        ];
        let mut hung = Vec::new();
        for words in calls {
            let before = open_execs(lab, &id);
            let live = lab.belljar(words).input(Input::Null).spawn();
            let (pid, mut live) = (live.pid(), live);
            let mut let_go: Option<Instant> = None;
            let is_decided = || {
                if !live.is_running() {
                    return true;
                }
                if let_go.is_none() && !open_execs(lab, &id).is_subset(&before) {
                    let_go = Some(Instant::now());
                }
                let_go.is_some_and(|at| at.elapsed() > END_TIMEOUT)
            };
            let decided = until(GENEROUS, is_decided);
            if !live.is_running() {
                let done = live.done();
                // Some get through before they are seen; the others are told why not.
                assert!(done.code() == 0 || !done.err().is_empty(), "{done}");
                continue;
            }
            // One that was let go is stopped like any other process inside: by the run's own doing, for as
            // long as it likes.
            if !decided {
                hung.push(format!("{words:?}"));
            }
            send(pid, Signal::KILL);
            assert!(until(CALL_TIMEOUT, || !alive(pid)));
        }
        // The sandbox can be ended all the same.
        lab.belljar(["stop", "-t", "0", &id]).done().expect(0);
        assert!(hung.is_empty(), "as {:?}, these never ended: {}", lab.actor, hung.join(", "));
        lab.assert_nothing_lives(&lab.runs());
    });
}

/// The control: where nobody is stopped, each of these succeeds.
#[test]
fn a_newcomer_that_nobody_stops_is_let_go() {
    each_user(|lab| {
        let id = keep(lab, "sleep 1000");
        lab.make_file("work/file", "x\n");
        lab.belljar(["exec", &id, "--", "true"]).done().expect(0);
        lab.belljar(["cp", "file", &format!("{id}:/tmp/file")]).done().expect(0);
        let done = lab.belljar(["exec", &id, "--", "cat", "/tmp/file"]).done();
        assert_eq!(done.expect(0).out(), "x\n");
        lab.belljar(["stop", "-t", "0", &id]).done().expect(0);
    });
}
