//! With a terminal: commands in a sandbox, attaching and letting go, and what a person reads.

use std::time::Duration;

use belljar_testkit::{Lab, PtyRun, each_user, marker, processes_with, send, until};
use rustix::process::Signal;
use rustix::termios::LocalModes;

fn start(lab: &Lab, words: &[&str]) -> PtyRun {
    PtyRun::start(&lab.belljar(words).through(PtyRun::SESSION), 33, 101)
}

fn at_80(lab: &Lab, words: &[&str]) -> String {
    let run = PtyRun::start(&lab.belljar(words).through(PtyRun::SESSION), 24, 80);
    let (code, screen) = run.end();
    assert_eq!(code, 0, "{screen}");
    screen
}

fn keep(lab: &Lab) {
    lab.run(["--keep", "-q", "--name", "k"]).done().expect(0);
}

fn is_cooked(run: &PtyRun) -> bool {
    run.settings().local_modes.contains(LocalModes::ICANON | LocalModes::ECHO)
}

#[test]
fn a_command_gets_a_terminal_where_a_person_sits() {
    each_user(|lab| {
        keep(lab);
        let script = "trap 'stty size' WINCH; test -t 0 && test -t 1 && stty size; read l; echo \"got <$l>\"; while :; do sleep 0.05; done";
        let mut run = start(lab, &["exec", "k", "--", "sh", "-c", script]);
        run.wait_for("33 101\r\n");
        assert!(!is_cooked(&run), "raw while the command runs");
        run.type_in("hello\r");
        run.wait_for("hello\r\ngot <hello>\r\n");
        run.resize(50, 132);
        run.wait_for("50 132");
        run.type_in("\x03"); // the terminal inside makes a signal of it
        let limit = until(Duration::from_secs(20), || is_cooked(&run));
        assert!(limit, "left raw");
        let (code, screen) = run.end();
        assert_eq!(code, 130, "{screen:?}");
        // Without one: two streams, and no raw mode.
        let (code, screen) =
            start(lab, &["exec", "--no-tty", "k", "--", "sh", "-c", "test -t 1 || echo none"])
                .end();
        assert_eq!((code, screen.as_str()), (0, "none\r\n"));
        // Asked for without a person.
        let done =
            lab.belljar(["exec", "-t", "k", "--", "sh", "-c", "test -t 0 && stty size"]).done();
        assert_eq!(done.expect(0).out(), "24 80\r\n");
    });
}

#[test]
fn the_terminal_is_put_back_when_belljar_is_asked_to_end() {
    each_user(|lab| {
        keep(lab);
        let marker = marker();
        let run = start(
            lab,
            &["exec", "k", "--", "sh", "-c", &format!("echo ready; exec sleep {marker}")],
        );
        run.wait_for("ready");
        send(run.pid(), Signal::TERM);
        assert!(until(Duration::from_secs(20), || is_cooked(&run)), "left raw after SIGTERM");
        assert_eq!(run.end().0, 143);
        assert!(until(Duration::from_secs(5), || processes_with(&format!("sleep\0{marker}"))
            .is_empty()));
    });
}

#[test]
fn attach_follows_and_lets_go() {
    each_user(|lab| {
        let script =
            "echo begun; while read l; do echo \"got <$l>\"; [ \"$l\" = end ] && exit 6; done";
        let id = lab
            .run(["-d", "-q", "-t", "--name", "a", "--", "sh", "-c", script])
            .done()
            .expect(0)
            .out();
        let mut run = start(lab, &["attach", "a"]);
        assert!(until(Duration::from_secs(20), || !is_cooked(&run)));
        run.type_in("one\r");
        run.wait_for("got <one>");
        let second = lab.belljar(["attach", "a"]).done();
        second.expect(125).says(&["another client is already attached"]);
        run.type_in("\x10\x11");
        let (code, screen) = run.end();
        assert_eq!(code, 0, "{screen:?}");
        assert!(
            screen.contains("keeps running") && screen.contains(id.trim().get(9..).unwrap()),
            "{screen:?}"
        );
        let mut run = start(lab, &["attach", "a"]);
        assert!(until(Duration::from_secs(20), || !is_cooked(&run)));
        run.type_in("end\r");
        run.wait_for("got <end>");
        assert_eq!(run.end().0, 6);
        lab.belljar(["wait", "a"]).done().expect(6);
        lab.belljar(["attach", "a"]).done().expect(125).says(&["not alive"]);
    });
}

#[test]
fn attach_without_a_terminal_passes_input_only_where_it_was_kept_open() {
    each_user(|lab| {
        lab.run(["-d", "-q", "-i", "--name", "a", "--", "cat"]).done().expect(0);
        let done = lab
            .belljar(["attach", "a"])
            .input(belljar_testkit::Input::Bytes(b"through\n".to_vec()))
            .done();
        assert_eq!(done.expect(0).out(), "through\n");
        lab.run(["-d", "-q", "--name", "b", "--", "sh", "-c", "sleep 1; cat; echo over; exit 2"])
            .done()
            .expect(0);
        let done = lab
            .belljar(["attach", "b"])
            .input(belljar_testkit::Input::Bytes(b"no\n".to_vec()))
            .done();
        assert_eq!(done.expect(2).out(), "over\n", "its input is empty");
    });
}

#[test]
fn a_shell_in_the_only_kept_sandbox_or_in_a_fresh_one() {
    each_user(|lab| {
        let mut run = start(lab, &["shell"]);
        run.type_in("echo sum $((40 + 2)); pwd\r");
        run.wait_for("sum 42");
        run.wait_for("\n/workspace");
        run.type_in("exit 4\r");
        assert_eq!(run.end().0, 4, "a new one");
        assert_eq!(lab.live(), Vec::<String>::new());
        keep(lab);
        let mut run = start(lab, &["shell"]);
        run.type_in("echo here > /tmp/from-shell; echo did $((1 + 1))\r");
        run.wait_for("did 2");
        run.type_in("exit 5\r");
        assert_eq!(run.end().0, 5);
        let seen = lab.belljar(["exec", "k", "--", "cat", "/tmp/from-shell"]).done();
        assert_eq!(seen.expect(0).out(), "here\n", "the kept one");
        let mut run = start(lab, &["shell", "k"]);
        run.type_in("exit 7\r");
        assert_eq!(run.end().0, 7);
    });
}

#[test]
fn a_kept_sandbox_with_a_command_has_its_terminal() {
    each_user(|lab| {
        let mut run = start(
            lab,
            &["run", "--keep", "--", "sh", "-c", "stty size; read l; echo \"<$l>\"; exit 8"],
        );
        run.wait_for("33 101");
        run.type_in("typed\r");
        let (code, screen) = run.end();
        assert_eq!(code, 8, "{screen:?}");
        assert!(screen.contains("<typed>") && screen.contains("belljar stop"), "{screen:?}");
        assert_eq!(lab.belljar(["ps", "-q"]).done().out().lines().count(), 1);
    });
}

#[test]
fn listings_fit_80_columns() {
    let lab = Lab::me();
    let long = "x".repeat(300);
    let name = "a-name-that-is-longer-than-any-column-should-ever-be";
    lab.run(["--keep", "-q", "--name", name, "-l", "key=value", "--", "echo", &long])
        .done()
        .expect(0);
    lab.run(["-q", "--", "sh", "-c", "exit 137", &long]).done().expect(137);
    for words in [&["ps", "-a"][..], &["show", name], &["doctor"]] {
        let screen = at_80(&lab, words);
        let folded = |line: &str| line.chars().count() <= 80 || line.contains(&long);
        assert!(screen.lines().all(folded), "{words:?}: {screen}");
    }
    let screen = at_80(&lab, &["ps", "-a"]);
    assert!(screen.lines().all(|line| line.chars().count() <= 80), "{screen}");
    assert!(screen.contains("exited 137") && screen.contains("running"), "{screen}");
    let page = lab.belljar(["show", name]).done().expect(0).out();
    for word in [
        "command",
        "state",
        "running",
        "when",
        "mounts",
        "/workspace",
        "limits",
        "posture",
        "files",
        "key=value",
    ] {
        assert!(page.contains(word), "{word}: {page}");
    }
    let data = lab.belljar(["show", "--json", name]).done().expect(0).json();
    assert_eq!(data["run"]["name"], name);
    assert_eq!(data["record"]["spec"]["command"][1], long.as_str());
}

#[test]
fn nothing_from_inside_drives_the_terminal() {
    each_user(|lab| {
        let script = "printf 'a\\033]0;owned\\007b\\tc\\r\\nd\\233x\\302\\233y\\n'; printf '\\033[2Je\\n' >&2";
        lab.run(["-q", "--name", "e", "--", "sh", "-c", script]).done().expect(0);
        let (code, screen) = start(lab, &["logs", "e"]).end();
        assert_eq!(code, 0);
        assert!(
            !screen.contains('\x1b') && !screen.contains('\x07') && !screen.contains('\u{9b}'),
            "{screen:?}"
        );
        assert!(screen.contains("a\\u{1b}]0;owned\\u{7}b\tc\r\nd\\x9bx\\u{9b}y\r\n"), "{screen:?}");
        let (_, raw) = start(lab, &["logs", "--raw", "e"]).end();
        assert!(raw.contains("\x1b]0;owned\x07"), "asked for: {raw:?}");
        let piped = lab.belljar(["logs", "e"]).done();
        assert_eq!(piped.stdout, b"a\x1b]0;owned\x07b\tc\r\nd\x9bx\xc2\x9by\n");
        assert_eq!(piped.stderr, b"\x1b[2Je\n");
        // Names and arguments are data too.
        lab.run(["-q", "--", "echo", "\x1b]0;owned\x07\u{202e}"]).done().expect(0);
        for words in [&["ps", "-a"][..], &["show", "e"], &["events", "e"]] {
            let (_, screen) = start(lab, words).end();
            assert!(
                !screen.contains("\x1b]") && !screen.contains('\u{202e}'),
                "{words:?}: {screen:?}"
            );
        }
    });
}
