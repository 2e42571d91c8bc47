//! Refused calls in a traced sandbox: the same errors, and counts of them.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use belljar_spec::ExitStatus;
use belljar_spec::denied_call::DeniedCall;
use belljar_spec::wire::{Descendants, ToInit};
use rustix::process::{Pid, Signal, kill_process};

use crate::caller::ARGUMENT;
use crate::driver::{Driver, Exec, Users, program};

const PATIENCE: Duration = Duration::from_secs(60);

fn call(name: &str, errno: u16, args: &[u64]) -> DeniedCall {
    DeniedCall { name: name.to_owned(), errno, args: args.to_vec() }
}

fn start(driver: &mut Driver, words: &[&str]) -> Exec {
    let this = std::env::current_exe().unwrap();
    let argv: Vec<&str> =
        [this.to_str().unwrap(), ARGUMENT].into_iter().chain(words.iter().copied()).collect();
    let exec = driver.ask_with(program(&argv), Descendants::Bound);
    driver.attested(exec.exec);
    driver.send_message(&ToInit::Go { exec: exec.exec });
    exec
}

/// What the program inside printed.
fn output(driver: &mut Driver, words: &[&str]) -> String {
    let exec = start(driver, words);
    let status = driver.exited(exec.exec);
    let text = driver.text(exec.stdout);
    assert_eq!(status, ExitStatus::Code(0), "{text}{}", driver.text(exec.stderr));
    text
}

pub(crate) fn calls_are_counted(users: Users) {
    let words = ["mount*3", "unshare", "vsock*2", "clone3", "ioctl", "unknown", "unix"];
    let mut plain = Driver::start(users);
    let expected = output(&mut plain, &words);
    assert_eq!(
        expected, "mount 1\nunshare 1\nvsock 1\nclone3 38\nioctl 25\nunknown 38\nunix done\n",
        "what the filter answers"
    );
    assert_eq!(plain.denied().0, BTreeMap::new(), "nothing is counted without tracing");
    let mut traced = Driver::traced(users);
    assert_eq!(output(&mut traced, &words), expected, "the same answers");
    let counts = [
        (call("clone3", 38, &[]), 1),
        (call("ioctl", 25, &[0xae00]), 1),
        (call("mount", 1, &[]), 3),
        (call("socket", 1, &[40, 1, 0]), 2),
        (call("unknown", 38, &[5000]), 1),
        (call("unshare", 1, &[0x1000_0000]), 1),
    ];
    assert_eq!(traced.denied().0, counts.into());
    // Every command is traced, and the processes that it leaves.
    output(&mut traced, &["mount"]);
    assert_eq!(traced.denied().0[&call("mount", 1, &[])], 4);
}

pub(crate) fn a_flood_is_bounded(users: Users) {
    const EACH: u64 = 20_000;
    let mut driver = Driver::traced(users);
    let begun = Instant::now();
    let flood = start(&mut driver, &["mount*20000", "ioctl*20000"]);
    // PID 1 does its other work meanwhile.
    let other = driver.shell("echo other");
    assert_eq!(driver.exited(other.exec), ExitStatus::Code(0));
    assert_eq!(driver.exited(flood.exec), ExitStatus::Code(0));
    let took = begun.elapsed();
    let (counts, messages) = driver.denied();
    assert_eq!(driver.text(flood.stdout), "mount 1\nioctl 25\n");
    assert_eq!(counts[&call("mount", 1, &[])], EACH);
    let ioctls = counts.iter().filter(|(call, _)| call.name == "ioctl");
    assert_eq!(ioctls.map(|(_, count)| count).sum::<u64>(), EACH, "none is lost");
    // 200 in 10 ms, and a message in 200 ms.
    assert!(took >= Duration::from_millis(1900), "{took:?} for 40 000 answers");
    let most = took.as_millis() as usize / 200 + 2;
    assert!(messages <= most, "{messages} messages in {took:?}");
    // Eight different requests in each message, and the rest together.
    assert!(counts.len() <= 1 + messages * 9, "{} kinds", counts.len());
}

pub(crate) fn processes_that_die_while_they_wait(users: Users) {
    let mut driver = Driver::traced(users);
    output(&mut driver, &["mount"]);
    driver.wait_for_processes(0);
    let files = driver.open_files();
    for _ in 0..5 {
        assert_eq!(output(&mut driver, &["killed*3", "mount"]), "killed done\nmount 1\n");
    }
    assert_eq!(output(&mut driver, &["interrupted*2"]), "interrupted 1\n", "each was refused");
    for _ in 0..5 {
        assert_eq!(output(&mut driver, &["thread_execs"]), "vsock 1\n");
    }
    driver.wait_for_processes(0);
    let until = Instant::now() + PATIENCE;
    while driver.open_files() > files {
        assert!(Instant::now() < until, "{} open files, not {files}", driver.open_files());
        driver.listen(Duration::from_millis(20));
    }
    assert_eq!(output(&mut driver, &["mount"]), "mount 1\n");
}

/// A shell that writes to a file before and after a refused call; its output would go through PID 1.
fn waiting_call(driver: &mut Driver, file: &Path) -> Exec {
    let this = std::env::current_exe().unwrap();
    let (this, file) = (this.display(), file.display());
    driver.shell(&format!("sleep 1; echo before >> {file}; {this} {ARGUMENT} mount >> {file}"))
}

fn wait_for_text(file: &Path, wanted: &str) {
    let until = Instant::now() + PATIENCE;
    while std::fs::read_to_string(file).unwrap_or_default() != wanted {
        assert!(Instant::now() < until, "{:?}", std::fs::read_to_string(file));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A file that every user may write to.
fn shared_file() -> tempfile::NamedTempFile {
    use std::os::unix::fs::PermissionsExt;
    let file = tempfile::NamedTempFile::new_in("/tmp").unwrap();
    let everyone = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(file.path(), everyone).unwrap();
    file
}

fn signal_init(driver: &Driver, signal: Signal) {
    kill_process(Pid::from_raw(driver.init_pid()).unwrap(), signal).unwrap();
}

pub(crate) fn a_stopped_listener_lets_nothing_through(users: Users) {
    let file = shared_file();
    let mut driver = Driver::traced(users);
    let shell = waiting_call(&mut driver, file.path());
    driver.listen(Duration::from_millis(300)); // it is released
    signal_init(&driver, Signal::STOP);
    wait_for_text(file.path(), "before\n");
    std::thread::sleep(Duration::from_secs(1));
    let text = std::fs::read_to_string(file.path()).unwrap();
    assert_eq!(text, "before\n", "neither let through nor answered");
    signal_init(&driver, Signal::CONT);
    assert_eq!(driver.exited(shell.exec), ExitStatus::Code(0));
    wait_for_text(file.path(), "before\nmount 1\n");
    assert_eq!(driver.denied().0, [(call("mount", 1, &[]), 1)].into());
}

pub(crate) fn a_dead_listener_lets_nothing_through(users: Users) {
    let file = shared_file();
    let mut driver = Driver::traced(users);
    waiting_call(&mut driver, file.path());
    driver.listen(Duration::from_millis(300));
    signal_init(&driver, Signal::STOP);
    wait_for_text(file.path(), "before\n");
    std::thread::sleep(Duration::from_millis(500));
    signal_init(&driver, Signal::KILL);
    driver.wait_until_gone(PATIENCE);
    let text = std::fs::read_to_string(file.path()).unwrap();
    // The kernel closes the listener before it ends the other processes: one of them may still get that error.
    let refused = format!("before\nmount {}\n", rustix::io::Errno::NOSYS.raw_os_error());
    assert!(text == "before\n" || text == refused, "let through: {text:?}");
}

pub(crate) fn no_other_listener(users: Users) {
    let mut plain = Driver::start(users);
    assert_eq!(output(&mut plain, &["own_listener"]), "own_listener done\n", "control");
    let mut traced = Driver::traced(users);
    assert_eq!(output(&mut traced, &["own_listener"]), "own_listener 16\n", "EBUSY");
}
