//! What PID 1 must do, each with two users and with one.

use std::time::{Duration, Instant};

use belljar_spec::wire::mux::MAX_STREAMS;
use belljar_spec::wire::{Descendants, FromInit, ReadOnlyFiles, ToInit, UnpackModes, Work};
use belljar_spec::{ExitStatus, OsText};

use crate::connections;
use crate::driver::{Driver, Users, program};
use crate::links;
use crate::traced;

type Case = fn(Users);

pub(crate) const ALL: [(&str, Case); 34] = [
    ("streams", streams),
    ("a_reader_that_gives_up", a_reader_that_gives_up),
    ("input_that_nobody_reads", input_that_nobody_reads),
    ("terminals", terminals),
    ("dismissed", dismissed),
    ("signals_go_through_the_shim", signals_go_through_the_shim),
    ("background_processes_live_on", background_processes_live_on),
    ("a_tree_that_hides", a_tree_that_hides),
    ("a_fork_bomb", a_fork_bomb),
    ("a_stopped_or_killed_shim", a_stopped_or_killed_shim),
    ("a_shim_that_is_kept_from_its_work", a_shim_that_is_kept_from_its_work),
    ("stopped_before_it_is_the_command", stopped_before_it_is_the_command),
    ("a_stopped_shim_tells_the_end", a_stopped_shim_tells_the_end),
    ("only_its_own_tree", only_its_own_tree),
    ("copies", copies),
    ("nothing_grows", nothing_grows),
    ("connections_out", connections::out),
    ("connections_in", connections::into_the_sandbox),
    ("connections_that_break", connections::that_break),
    ("connections_wait_in_line", connections::wait_in_line),
    ("connections_that_break_while_nobody_listens", connections::that_break_while_nobody_listens),
    ("connections_that_find_no_stream", connections::that_find_no_stream),
    ("connections_of_slow_readers", connections::of_slow_readers),
    ("links_output_goes_on", links::output_goes_on),
    ("links_output_is_held_back", links::output_is_held_back),
    ("links_only_the_launcher_comes_back", links::only_the_launcher_comes_back),
    ("links_the_lease_ends", links::the_lease_ends),
    ("links_no_more_links", links::no_more_links),
    ("traced_calls_are_counted", traced::calls_are_counted),
    ("traced_flood", traced::a_flood_is_bounded),
    ("traced_processes_that_die", traced::processes_that_die_while_they_wait),
    ("traced_listener_that_is_stopped", traced::a_stopped_listener_lets_nothing_through),
    ("traced_listener_that_dies", traced::a_dead_listener_lets_nothing_through),
    ("traced_no_other_listener", traced::no_other_listener),
];

fn streams(users: Users) {
    let mut driver = Driver::start(users);
    let cat = driver.shell("cat; echo done >&2; exit 7");
    assert_eq!(driver.send(cat.stdin, b"hello"), 5);
    driver.end(cat.stdin);
    assert_eq!(driver.exited(cat.exec), ExitStatus::Code(7));
    assert_eq!(
        (driver.text(cat.stdout), driver.text(cat.stderr)),
        ("hello".into(), "done\n".into())
    );
    for stream in [cat.stdin, cat.stdout, cat.stderr] {
        assert!(driver.is_free(stream));
    }
    driver.wait_for_processes(0);
}

fn a_reader_that_gives_up(users: Users) {
    let mut driver = Driver::start(users);
    let yes = driver.shell("yes; echo status $? >&2");
    driver.wait_for_output(yes.stdout, 1);
    driver.give_up(yes.stdout);
    assert_eq!(driver.exited(yes.exec), ExitStatus::Code(0));
    assert_eq!(driver.text(yes.stderr), "status 141\n", "128 and SIGPIPE");
    assert!(driver.is_free(yes.stdout));
}

fn input_that_nobody_reads(users: Users) {
    let mut driver = Driver::start(users);
    let deaf = driver.shell("exec <&-; echo; sleep 100");
    driver.wait_for_output(deaf.stdout, 1);
    driver.send(deaf.stdin, b"hello?");
    driver.wait_for_reset(deaf.stdin);
    driver.send_message(&ToInit::KillTree { exec: deaf.exec });
    assert_eq!(driver.exited(deaf.exec), ExitStatus::Signal(9));
    // Also without input in flight: the end of the command is the end of its input.
    let short = driver.shell("true");
    assert_eq!(driver.exited(short.exec), ExitStatus::Code(0));
    driver.wait_for_reset(short.stdin);
}

fn terminals(users: Users) {
    let mut driver = Driver::start(users);
    // More than there can be open at once, so each must have been freed on both ends.
    for _ in 0..MAX_STREAMS + 8 {
        let echo = driver.terminal(&["/bin/echo", "hello"]);
        assert_eq!(driver.exited(echo.exec), ExitStatus::Code(0));
        driver.wait_for_reset(echo.stdin);
        assert_eq!(driver.text(echo.stdout), "hello\r\n");
        assert!(driver.is_free(echo.stdout));
    }
    // Nobody looks any more: the command is not held up by it.
    let long = driver.terminal(&[
        "/bin/sh",
        "-c",
        "i=0; while [ $i -lt 9999 ]; do echo $i; i=$((i+1)); done",
    ]);
    driver.wait_for_output(long.stdout, 1);
    driver.give_up(long.stdout);
    assert_eq!(driver.exited(long.exec), ExitStatus::Code(0));
    assert!(!driver.text(long.stdout).contains("9998"));
}

fn dismissed(users: Users) {
    let mut driver = Driver::start(users);
    for descendants in [Descendants::Loose, Descendants::Tracked] {
        let waiting = driver.ask_with(Work::Nothing, descendants);
        driver.attested(waiting.exec);
        driver.send_message(&ToInit::Dismiss { exec: waiting.exec });
        assert_eq!(driver.listen(Duration::from_millis(200)), [], "nothing is reported about it");
        driver.wait_for_processes(0);
        assert!(driver.is_free(waiting.stdout));
        // The control: let go, it reports how it ended.
        let let_go = driver.ask_with(Work::Nothing, descendants);
        driver.attested(let_go.exec);
        driver.send_message(&ToInit::Go { exec: let_go.exec });
        assert_eq!(driver.exited(let_go.exec), ExitStatus::Code(0));
        driver.wait_for("a start", |message| matches!(message, FromInit::Started { .. }));
    }
}

fn signals_go_through_the_shim(users: Users) {
    let mut driver = Driver::start(users);
    let sleeper = driver.shell("trap 'exit 3' TERM; echo; while :; do sleep 0.05; done");
    driver.wait_for_output(sleeper.stdout, 1);
    driver.send_message(&ToInit::Signal { exec: sleeper.exec, signal: 15 });
    assert_eq!(driver.exited(sleeper.exec), ExitStatus::Code(3));
    // To everybody: shims stay.
    let other = driver.shell("trap 'exit 4' TERM; echo; while :; do sleep 0.05; done");
    driver.wait_for_output(other.stdout, 1);
    driver.send_message(&ToInit::SignalAll { signal: 15 });
    assert_eq!(driver.exited(other.exec), ExitStatus::Code(4));
}

fn background_processes_live_on(users: Users) {
    let mut driver = Driver::start(users);
    let parent = driver.shell("(sleep 100 >/dev/null 2>&1 </dev/null &) ; exit 5");
    assert_eq!(driver.exited(parent.exec), ExitStatus::Code(5));
    driver.wait_for_processes(2); // the shim, and what it stays for
    driver.send_message(&ToInit::KillTree { exec: parent.exec });
    driver.listen(Duration::from_millis(50));
    driver.wait_for_processes(0);
    let ends = |message: &FromInit| matches!(message, FromInit::Exited { .. });
    assert!(!driver.listen(Duration::from_millis(100)).iter().any(ends), "an end is reported once");
}

/// Forked twice, in new sessions, with signals ignored.
const HIDING: &str = "trap '' TERM HUP INT
    (setsid sh -c 'trap \"\" TERM HUP; (setsid sleep 1000 &) ; sleep 1000' &)
    (sh -c 'trap \"\" TERM; sleep 1000 & wait' &)
    sleep 0.2; echo; sleep 1000";

fn a_tree_that_hides(users: Users) {
    let mut driver = Driver::start(users);
    let hiding = driver.shell(HIDING);
    driver.wait_for_output(hiding.stdout, 1);
    assert!(driver.processes().len() >= 6, "{:?}", driver.processes());
    driver.send_message(&ToInit::KillTree { exec: hiding.exec });
    assert_eq!(driver.exited(hiding.exec), ExitStatus::Signal(9));
    assert_eq!(driver.processes(), [0; 0], "all gone before the end is reported");
}

fn a_fork_bomb(users: Users) {
    let mut driver = Driver::start(users);
    // Bounded by itself, so that the test can fail without harm: 300 at a time, for ever.
    let bomb = driver.shell(
        "f() { while :; do (sleep 0.01 &) ; done; }; for i in 1 2 3; do f & done; echo; wait",
    );
    driver.wait_for_output(bomb.stdout, 1);
    std::thread::sleep(Duration::from_millis(200));
    assert!(driver.processes().len() > 4, "{:?}", driver.processes());
    let begun = Instant::now();
    driver.send_message(&ToInit::KillTree { exec: bomb.exec });
    assert_eq!(driver.exited(bomb.exec), ExitStatus::Signal(9));
    assert_eq!(driver.processes(), [0; 0]);
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
}

/// What an ordinary user's sandbox can do to its shim, done from outside so that both kinds are tried.
fn a_stopped_or_killed_shim(users: Users) {
    use rustix::process::{Pid, Signal, kill_process};
    let mut driver = Driver::start(users);
    for signal in [Signal::STOP, Signal::KILL] {
        let hiding = driver.shell(HIDING);
        driver.wait_for_output(hiding.stdout, 1);
        let shim = driver.processes()[0];
        kill_process(Pid::from_raw(shim).unwrap(), signal).unwrap();
        if signal == Signal::STOP {
            driver.send_message(&ToInit::KillTree { exec: hiding.exec });
        }
        assert_eq!(driver.exited(hiding.exec), ExitStatus::Signal(9));
        driver.wait_for_processes(0);
        // From inside, two users make the difference.
        let kills = driver.shell("kill -9 $PPID 2>/dev/null && exit 1; exit 0");
        let expected =
            if users == Users::Two { ExitStatus::Code(0) } else { ExitStatus::Signal(9) };
        assert_eq!(driver.exited(kills.exec), expected);
        driver.wait_for_processes(0);
    }
}

fn a_shim_that_is_kept_from_its_work(users: Users) {
    let mut driver = Driver::start(users);
    let stops = driver.shell(
        "(while :; do kill -STOP $PPID; done 2>/dev/null &)
        (while :; do kill -STOP $PPID; done 2>/dev/null &) ; echo; sleep 1000",
    );
    driver.wait_for_output(stops.stdout, 1);
    driver.send_message(&ToInit::KillTree { exec: stops.exec });
    assert_eq!(driver.exited(stops.exec), ExitStatus::Signal(9));
    driver.wait_for_processes(0);
}

fn stop_all(driver: &Driver) {
    use rustix::process::{Pid, Signal, kill_process};
    for process in driver.processes() {
        kill_process(Pid::from_raw(process).unwrap(), Signal::STOP).unwrap();
    }
}

/// As a process of the same uid can do it to every newcomer, and to a copy in progress.
fn stopped_before_it_is_the_command(users: Users) {
    let place = tempfile::tempdir().unwrap();
    let mut driver = Driver::start(users);
    let copy = driver.ask(Work::Unpack {
        path: OsText::from(place.path().join("copy")),
        modes: UnpackModes::Umask,
        read_only: ReadOnlyFiles::Replace,
    });
    driver.attested(copy.exec);
    driver.send_message(&ToInit::Go { exec: copy.exec });
    driver.wait_for("a start", |message| matches!(message, FromInit::Started { .. }));
    let mut waiting = Vec::new();
    for descendants in [Descendants::Loose, Descendants::Tracked, Descendants::Bound] {
        let names = driver.ask_with(program(&["/bin/true"]), descendants);
        driver.attested(names.exec);
        waiting.push(names);
    }
    // Not let go yet, so nothing is overdue, stopped or not: the control.
    let at_gate = driver.ask(program(&["/bin/sh", "-c", "exit 5"]));
    driver.attested(at_gate.exec);
    let before = driver.processes();
    stop_all(&driver);
    for names in &waiting {
        driver.send_message(&ToInit::Go { exec: names.exec });
    }
    driver.flush();
    let begun = Instant::now();
    for names in &waiting {
        let failed = driver.wait_for(
            "a failure",
            |message| matches!(message, FromInit::SetupFailed { exec, .. } if *exec == names.exec),
        );
        let FromInit::SetupFailed { why, .. } = failed else { panic!("{failed:?}") };
        assert!(why.contains("did not answer"), "{why}");
    }
    assert!(begun.elapsed() > Duration::from_secs(10), "a slow machine has time");
    assert_eq!(driver.exited(copy.exec), ExitStatus::Signal(9));
    for process in before {
        let _ = rustix::process::kill_process(
            rustix::process::Pid::from_raw(process).unwrap(),
            rustix::process::Signal::CONT,
        );
    }
    driver.send_message(&ToInit::Go { exec: at_gate.exec });
    assert_eq!(driver.exited(at_gate.exec), ExitStatus::Code(5), "it had waited at the gate");
    driver.wait_for_processes(0);
}

fn a_stopped_shim_tells_the_end(users: Users) {
    use rustix::process::{Pid, Signal, kill_process};
    let mut driver = Driver::start(users);
    let command = driver.shell("echo; cat; exit 4");
    driver.wait_for_output(command.stdout, 1);
    let shim = driver.processes()[0];
    kill_process(Pid::from_raw(shim).unwrap(), Signal::STOP).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    driver.end(command.stdin);
    assert_eq!(driver.exited(command.exec), ExitStatus::Code(4));
    driver.wait_for_processes(0);
}

fn only_its_own_tree(users: Users) {
    let mut driver = Driver::start(users);
    let first = driver.shell("sleep 1000 & echo; wait");
    let second = driver.shell("(sleep 1000 &) ; echo; cat; exit 6");
    driver.wait_for_output(first.stdout, 1);
    driver.wait_for_output(second.stdout, 1);
    driver.send_message(&ToInit::KillTree { exec: first.exec });
    assert_eq!(driver.exited(first.exec), ExitStatus::Signal(9));
    driver.wait_for_processes(4); // the second's shim, `sh`, `sleep` and `cat`
    driver.end(second.stdin);
    assert_eq!(driver.exited(second.exec), ExitStatus::Code(6));
}

fn copies(users: Users) {
    let place = tempfile::tempdir().unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(place.path(), mode).unwrap();
    std::fs::write(place.path().join("file"), b"content").unwrap();
    let mut driver = Driver::start(users);
    let mut work = |work: Work, input: &[u8]| {
        let names = driver.ask(work);
        driver.attested(names.exec);
        driver.send_message(&ToInit::Go { exec: names.exec });
        driver.send(names.stdin, input);
        driver.end(names.stdin);
        let status = driver.exited(names.exec);
        (status, driver.output.remove(&names.stdout).unwrap_or_default(), driver.text(names.stderr))
    };
    let path = |name: &str| OsText::from(place.path().join(name));
    let (status, archive, error) = work(Work::Pack { path: path("file") }, b"");
    assert_eq!((status, error.as_str()), (ExitStatus::Code(0), ""));
    let (status, _, error) = work(unpack(path("copy")), &archive);
    assert_eq!((status, error.as_str()), (ExitStatus::Code(0), ""));
    assert_eq!(std::fs::read(place.path().join("copy")).unwrap(), b"content");
    let (status, archive, error) = work(Work::Pack { path: path("a\nb") }, b"");
    assert_eq!((status, archive.len()), (ExitStatus::Code(1), 0));
    assert!(error.contains("a\\u{a}b: No such file"), "{error}");
}

fn nothing_grows(users: Users) {
    let soak = std::env::var_os("BELLJAR_TEST_SOAK").is_some();
    let rounds = if soak { 10_000 } else { 300 };
    let mut driver = Driver::start(users);
    let one = |driver: &mut Driver| {
        let names = driver.ask(program(&["/bin/true"]));
        driver.attested(names.exec);
        driver.send_message(&ToInit::Go { exec: names.exec });
        assert_eq!(driver.exited(names.exec), ExitStatus::Code(0));
        driver.wait_for("a start", |message| matches!(message, FromInit::Started { .. }));
    };
    (0..20).for_each(|_| one(&mut driver));
    driver.wait_for_processes(0);
    let before = (driver.open_files(), driver.resident_kib());
    let begun = Instant::now();
    (0..rounds).for_each(|_| one(&mut driver));
    let each = begun.elapsed() / rounds;
    driver.wait_for_processes(0);
    driver.listen(Duration::from_millis(50));
    assert_eq!(driver.open_files(), before.0);
    assert!(driver.resident_kib() <= before.1 + 256, "{} from {}", driver.resident_kib(), before.1);
    eprintln!("{rounds} commands, {each:?} each, this end included");
}

fn unpack(path: OsText) -> Work {
    Work::Unpack { path, modes: UnpackModes::Umask, read_only: ReadOnlyFiles::Replace }
}
