//! With a terminal: what a person sees and types.

use std::time::Duration;

use belljar_testkit::{
    Lab, PtyRun, each_user, marker, processes_with, send, until, wait_until_gone,
};
use rustix::process::Signal;
use rustix::termios::LocalModes;

fn start(lab: &Lab, words: &[&str]) -> PtyRun {
    PtyRun::start(&lab.run(words).through(PtyRun::SESSION), 33, 101)
}

fn sh(lab: &Lab, script: &str) -> PtyRun {
    start(lab, &["-q", "--", "sh", "-c", script])
}

#[test]
fn the_command_has_a_terminal_of_the_same_size() {
    each_user(|lab| {
        let (code, screen) =
            sh(lab, "test -t 0 && test -t 1 && test -t 2 && stty size; tty; exit 5").end();
        assert_eq!(code, 5, "{screen}");
        assert_eq!(screen, "33 101\r\n/dev/pts/0\r\n");
    });
}

#[test]
fn a_new_size_is_passed_on() {
    each_user(|lab| {
        let script = "trap 'stty size' WINCH; echo ready; while :; do sleep 0.05; done";
        let run = sh(lab, script);
        run.wait_for("ready");
        run.resize(50, 132);
        run.wait_for("50 132");
        run.resize(24, 80);
        run.wait_for("24 80");
    });
}

#[test]
fn what_is_typed_arrives_and_is_echoed_once() {
    each_user(|lab| {
        let mut run = sh(lab, "echo ready; read line; echo \"got <$line>\"; exit 3");
        run.wait_for("ready\r\n");
        run.type_in("hello\r");
        let (code, screen) = run.end();
        assert_eq!((code, screen.as_str()), (3, "ready\r\nhello\r\ngot <hello>\r\n"));
    });
}

#[test]
fn the_interrupt_key_reaches_the_command_and_not_belljar() {
    each_user(|lab| {
        let mut run = sh(
            lab,
            "trap 'echo interrupted' INT; trap 'exit 6' QUIT; echo ready; while :; do sleep 0.05; done",
        );
        run.wait_for("ready");
        run.type_in("\x03");
        run.wait_for("interrupted");
        // As often as one likes: only the command decides.
        run.type_in("\x03\x03");
        let count = || run.screen().matches("interrupted").count();
        assert!(until(Duration::from_secs(20), || count() >= 2), "{:?}", run.screen());
        run.type_in("\x1c"); // quit
        let (code, screen) = run.end();
        assert_eq!(code, 6, "{screen:?}");
    });
}

#[test]
fn a_command_that_does_not_mind_ends_by_the_interrupt_key() {
    each_user(|lab| {
        let marker = marker();
        let mut run = sh(lab, &format!("echo ready; exec sleep {marker}"));
        run.wait_for("ready");
        run.type_in("\x03");
        let (code, screen) = run.end();
        assert_eq!(code, 130, "{screen:?}");
        wait_until_gone(Duration::from_secs(3), &marker, &lab.exe);
    });
}

#[test]
fn the_end_key_ends_the_input() {
    each_user(|lab| {
        let mut run = sh(lab, "echo ready; cat > /dev/null; echo over");
        run.wait_for("ready");
        run.type_in("text\r\x04");
        let (code, screen) = run.end();
        assert_eq!(code, 0, "{screen:?}");
        assert!(screen.ends_with("over\r\n"), "{screen:?}");
    });
}

#[test]
fn job_control_works_inside() {
    each_user(|lab| {
        let mut run = start(lab, &["-q", "-e", "PS1=prompt: ", "--", "sh", "-i"]);
        run.wait_for("prompt: ");
        run.type_in("sleep 50\r");
        std::thread::sleep(Duration::from_millis(500));
        run.type_in("\x1a"); // stop
        run.wait_for("Stopped");
        run.type_in("kill -9 %1; sleep 0.3; jobs; echo sum $((40 + 2))\r");
        run.wait_for("sum 42");
        run.type_in("exit 9\r");
        let (code, screen) = run.end();
        assert_eq!(code, 9, "{screen:?}");
        assert!(
            !screen.contains("no job control") && !screen.contains("can't access tty"),
            "{screen:?}"
        );
    });
}

/// The caller's own terminal is as it was, whatever the end.
#[test]
fn the_callers_terminal_is_put_back() {
    each_user(|lab| {
        let is_cooked = |run: &PtyRun| {
            run.settings().local_modes.contains(LocalModes::ICANON | LocalModes::ECHO)
        };
        for end in ["exit 0", "kill -9 $$", "exec /no/such/program"] {
            let run = sh(lab, &format!("echo ready; sleep 0.5; {end}"));
            run.wait_for("ready");
            assert!(!is_cooked(&run), "raw while the command runs");
            assert!(until(Duration::from_secs(30), || is_cooked(&run)), "left raw after {end:?}");
            run.end();
        }
        // Asked to stop, too.
        let run = sh(lab, "echo ready; sleep 50");
        run.wait_for("ready");
        send(run.pid(), Signal::TERM);
        assert!(until(Duration::from_secs(30), || is_cooked(&run)), "left raw after SIGTERM");
        let (code, screen) = run.end();
        assert_eq!(code, 143, "{screen:?}");
    });
}

#[test]
fn much_output_through_a_terminal_is_whole() {
    each_user(|lab| {
        let script = "i=0; while [ $i -lt 3000 ]; do echo line $i of many; i=$((i+1)); done";
        let (code, screen) = sh(lab, script).end();
        assert_eq!(code, 0);
        let lines: Vec<&str> = screen.lines().collect();
        assert_eq!(lines.len(), 3000, "{:?}", lines.last());
        assert!(lines.iter().enumerate().all(|(at, line)| *line == format!("line {at} of many")));
    });
}

/// Typing faster than the command reads must not block or lose anything.
#[test]
fn much_typing_arrives_whole() {
    each_user(|lab| {
        let mut run = sh(
            lab,
            "stty -echo; echo ready; n=0; while read l && [ \"$l\" != end ]; do n=$((n+1)); done; echo $n",
        );
        run.wait_for("ready");
        for _ in 0..20 {
            run.type_in(&"a line of text\r".repeat(50));
            std::thread::sleep(Duration::from_millis(20));
        }
        run.type_in("end\r");
        run.wait_for("1000");
        assert_eq!(run.end().0, 0);
    });
}

#[test]
fn a_person_is_told_the_run_and_what_is_unusual() {
    each_user(|lab| {
        let (code, screen) = start(lab, &["--", "true"]).end();
        assert_eq!(code, 0);
        let lines: Vec<&str> = screen.lines().collect();
        assert_eq!(lines.len(), 2, "one line at the start, one at the end: {screen:?}");
        let tail = &lab.runs()[0][12..];
        assert!(lines.iter().all(|line| line.contains(tail)), "{screen:?} and {:?}", lab.runs());
        assert!(lines[0].contains("jail, attested"), "{screen:?}");
        assert!(!lines[0].contains("fs."), "a writable workspace is usual: {screen:?}");
        assert!(lines[1].contains("exited 0"), "{screen:?}");
        let waived = start(lab, &["--waive", "fs.sockets=a test", "--", "true"]).end().1;
        assert!(
            waived.lines().next().is_some_and(|line| line.contains("waived: fs.sockets")),
            "{waived:?}"
        );
        // -q: not a word.
        assert_eq!(start(lab, &["-q", "--", "true"]).end(), (0, String::new()));
    });
}

#[test]
fn no_tty_gives_none_on_a_terminal() {
    each_user(|lab| {
        let (code, screen) =
            start(lab, &["-q", "--no-tty", "--", "sh", "-c", "test -t 0 || echo none"]).end();
        assert_eq!((code, screen.as_str()), (0, "none\r\n"));
    });
}

/// The terminal goes away, as when a window is closed or a connection breaks.
#[test]
fn a_lost_terminal_ends_the_run() {
    each_user(|lab| {
        let marker = marker();
        let run = sh(lab, &format!("trap '' HUP; echo ready; sleep {marker}"));
        run.wait_for("ready");
        assert!(until(Duration::from_secs(20), || !processes_with(&format!("sleep\0{marker}"))
            .is_empty()));
        send(run.pid(), Signal::HUP);
        wait_until_gone(Duration::from_secs(30), &marker, &lab.exe);
    });
}
