//! What the kernel counts for a user and not for a run: a run that takes as much as it can get leaves enough to the
//! user who started it. The verdict is taken outside, as that user.
//!
//! Not for the guest, which has no Python.

use std::os::unix::process::CommandExt;
use std::process::Command;

use belljar_testkit::{Lab, each_actor, in_the_guest};

/// Takes at most so many of each, and holds them.
const TAKE: &str = r#"
import ctypes, errno, os, resource, socket, sys, tempfile
libc = ctypes.CDLL(None, use_errno=True)
limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
def watches(most):
    files, got = [], 0
    room = tempfile.mkdtemp().encode()
    for at in range(min(most, 6500)):
        files.append(room + b"/%d" % at)
        os.close(os.open(files[-1], os.O_CREAT | os.O_WRONLY, 0o600))
    while got < most:
        instance = libc.inotify_init()
        if instance < 0:
            return got
        for file in files:
            if got == most or libc.inotify_add_watch(instance, file, 2) < 0:
                break
            got += 1
        else:
            continue
        return got
    return got
def timers(most):
    # Signals that are not blocked would be delivered; a timer that is not armed sends none.
    got, timer = 0, ctypes.c_void_p()
    while got < most and libc.timer_create(1, None, ctypes.byref(timer)) == 0:
        got += 1
    return got
pairs = []
def in_flight(most):
    # Wherever one runs: a message has at most 253, and each pair holds only so many.
    got, null = 0, os.open("/dev/null", os.O_RDONLY)
    while got < most:
        pairs.append(socket.socketpair())
        pairs[-1][0].setblocking(False)
        while got < most:
            part = min(200, most - got)
            try:
                socket.send_fds(pairs[-1][0], [b"x"], [null] * part)
                got += part
            except BlockingIOError:
                break
            except OSError:
                return got
    return got
def terminals(most):
    got = 0
    try:
        while got < most:
            os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)
            got += 1
    except OSError:
        pass
    return got
most = [int(word) for word in sys.argv[1:]]
print("took", watches(most[0]), timers(most[1]), in_flight(most[2]), terminals(most[3]), flush=True)
sys.stdin.read()
"#;

/// Far more than any host gives to one user.
const ALL: [&str; 4] = ["400000", "200000", "100000", "2000"];
/// What a program of the host may want at the same time.
const SOME: [&str; 4] = ["500", "500", "500", "5"];

fn took(output: &str) -> Vec<u64> {
    let line = output.lines().find_map(|line| line.strip_prefix("took ")).unwrap_or_default();
    line.split(' ').map(|number| number.parse().unwrap()).collect()
}

/// The same program outside, as the same user.
fn outside(lab: &Lab, most: [&str; 4]) -> Vec<u64> {
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", TAKE]).args(most).current_dir(lab.work()).env("TMPDIR", lab.path("tmp"));
    if let Some(user) = lab.actor.user() {
        command.uid(user.uid).gid(user.gid);
    }
    let done = command.stdin(std::process::Stdio::null()).output().unwrap();
    let output = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    took(&output)
}

#[test]
fn a_run_that_takes_all_it_can_get_leaves_some_to_its_user() {
    if in_the_guest() {
        return;
    }
    each_actor(|lab| {
        let words = ["-i", "--", "/usr/bin/python3", "-c", TAKE].into_iter().chain(ALL);
        let mut live = lab.run(words).input(belljar_testkit::Input::Open).spawn();
        live.wait_for_output("took ");
        let left = outside(lab, SOME);
        live.close_input();
        let done = live.done();
        done.expect(0);
        // The control: the run got a useful amount of each.
        let inside = took(&done.out());
        let useful = [1000, 1000, 1000, 100];
        assert!(inside.iter().zip(useful).all(|(got, useful)| *got >= useful), "{inside:?}");
        assert_eq!(left, [500, 500, 500, 5], "the run held {inside:?}");
    });
}

/// The numbers are the kernel's own, as it tells them inside.
#[test]
fn the_limits_on_what_counts_for_a_user_are_in_force_and_cannot_be_raised() {
    each_actor(|lab| {
        let script = "cat /proc/sys/user/max_inotify_watches /proc/sys/user/max_mnt_namespaces; \
             ulimit -H -n; { echo 400000 > /proc/sys/user/max_inotify_watches; } 2>/dev/null; \
             ulimit -H -n 1048576 2>/dev/null; \
             cat /proc/sys/user/max_inotify_watches; ulimit -H -n";
        let done = lab.sh(&[], script);
        let numbers: Vec<u64> = done.out().lines().map(|line| line.parse().unwrap()).collect();
        let [watches, namespaces, files, watches_then, files_then] = numbers[..] else {
            panic!("{done}")
        };
        let host = std::fs::read_to_string("/proc/sys/user/max_inotify_watches").unwrap();
        let host: u64 = host.trim().parse().unwrap();
        assert!(watches > 0 && watches <= host / 2, "{watches} of {host}");
        assert_eq!(namespaces, 0);
        let own = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
        assert!(own.is_none_or(|own| files <= own / 2), "{files} of {own:?}");
        assert_eq!((watches_then, files_then), (watches, files), "they were raised: {done}");
    });
}
