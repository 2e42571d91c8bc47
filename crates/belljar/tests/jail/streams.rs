//! Bytes go through unchanged, nothing blocks for ever, and a closed end is no accident.

use std::io::Read;
use std::process::Stdio;
use std::time::Duration;

use belljar_testkit::{Input, Lab, each_user, in_the_guest, until};

/// Every byte value, in an order that does not repeat soon.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

fn several_mebibytes() -> Vec<u8> {
    noise(if in_the_guest() { 1 << 20 } else { 5 << 20 } + 12345)
}

#[track_caller]
fn assert_same(found: &[u8], wanted: &[u8]) {
    // Without printing megabytes.
    let differs = found.iter().zip(wanted).position(|(a, b)| a != b);
    assert_eq!((found.len(), differs), (wanted.len(), None));
}

#[test]
fn output_is_exact_to_the_byte() {
    each_user(|lab| {
        let bytes = several_mebibytes();
        lab.make_file("work/noise", &bytes);
        let done = lab.sh(&[], "cat noise");
        assert_same(&done.expect(0).stdout, &bytes);
        assert_eq!(done.err(), "");
        let done = lab.sh(&[], "cat noise >&2");
        assert_same(&done.expect(0).stderr, &bytes);
        assert_eq!(done.out(), "");
    });
}

#[test]
fn input_is_exact_to_the_byte() {
    each_user(|lab| {
        let bytes = noise(if in_the_guest() { 1 << 20 } else { 8 << 20 });
        let done = lab.run(["--", "cat"]).input(Input::Bytes(bytes.clone())).done();
        assert_same(&done.expect(0).stdout, &bytes);
    });
}

#[test]
fn both_outputs_at_once_do_not_block_each_other() {
    each_user(|lab| {
        let bytes = several_mebibytes();
        lab.make_file("work/noise", &bytes);
        // First all of one, so that whoever reads in turn would hang.
        for script in [
            "cat noise & cat noise >&2 & wait",
            "cat noise; cat noise >&2",
            "cat noise >&2; cat noise",
        ] {
            let done = lab.sh(&[], script);
            assert_same(&done.expect(0).stdout, &bytes);
            assert_same(&done.stderr, &bytes);
            let json = lab.run(["--json", "--", "sh", "-c", &script.replace("noise", "small")]);
            lab.make_file("work/small", "small\n");
            let result = json.done().json();
            assert_eq!(
                (&result["stdout"], &result["stderr"]),
                (&"small\n".into(), &"small\n".into())
            );
        }
    });
}

#[test]
fn a_command_that_reads_nothing_is_not_held_up_by_input() {
    each_user(|lab| {
        let done = lab.run(["--", "true"]).input(Input::Bytes(noise(1 << 20))).done();
        done.expect(0);
        assert_eq!(done.err(), "");
        // Nor by an input that never ends.
        lab.run(["--", "true"]).input(Input::Open).done().expect(0);
        let done = lab
            .run(["--", "head", "-c", "3"])
            .input(Input::Bytes(b"abcdef".repeat(100_000)))
            .done();
        assert_eq!(done.expect(0).out(), "abc");
    });
}

#[test]
fn the_end_of_input_arrives() {
    each_user(|lab| {
        let mut live = lab
            .run(["--", "sh", "-c", "read a; echo got $a; cat; echo end"])
            .input(Input::Open)
            .spawn();
        live.type_in(b"one\n");
        live.wait_for_output("got one");
        live.type_in(b"two\n");
        live.wait_for_output("two");
        live.close_input();
        assert_eq!(live.done().expect(0).out(), "got one\ntwo\nend\n");
        let done = lab.run(["--", "cat"]).input(Input::Null).done();
        assert_eq!(done.expect(0).out(), "");
    });
}

#[test]
fn output_comes_while_the_command_runs() {
    each_user(|lab| {
        let live = lab.run(["--", "sh", "-c", "echo early; read end"]).input(Input::Open).spawn();
        live.wait_for_output("early");
        drop(live);
    });
}

/// `belljar run … | head -c 1`: neither a panic nor a command that is held up.
#[test]
fn a_reader_that_has_had_enough_is_no_accident() {
    let lab = Lab::me();
    let script = "yes | head -c 3000000; yes | head -c 3000000 >&2; echo finished > after; exit 0";
    for pipe in ["2>/dev/null | head -c 1", "2>&1 >/dev/null | head -c 1", "2>&1 | head -c 1"] {
        let line = format!("\"$0\" run --timeout 40s -- sh -c '{script}' {pipe}");
        let output = std::process::Command::new("sh")
            .args(["-c", &line])
            .arg(&lab.exe)
            .current_dir(lab.work())
            .env("BELLJAR_HOME", lab.home())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_eq!(output.stdout, b"y", "{}", String::from_utf8_lossy(&output.stderr));
        // `head` does not wait for belljar.
        let finished = until(Duration::from_secs(30), || {
            std::fs::remove_file(lab.work().join("after")).is_ok()
        });
        assert!(finished, "the command was ended with its reader");
        assert!(until(Duration::from_secs(10), || lab.live().is_empty()));
    }
    let reasons = lab.runs().into_iter().map(|id| lab.record(&id)["outcome"]["reason"].clone());
    assert_eq!(reasons.collect::<Vec<_>>(), ["exited", "exited", "exited"]);
}

#[test]
fn closed_streams_are_no_panic() {
    let lab = Lab::me();
    for redirection in
        [">&-", "2>&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-", ">/dev/full", "2>/dev/full"]
    {
        for words in [
            "run -- sh -c 'echo out; echo err >&2; exit 3'",
            "run --json -- true",
            "doctor",
            "backends",
        ] {
            let line = format!("\"$0\" {words} {redirection}");
            let output = std::process::Command::new("sh")
                .args(["-c", &line])
                .arg(&lab.exe)
                .env("BELLJAR_HOME", lab.home())
                .env("HOME", lab.person())
                .current_dir(lab.work())
                .stdin(Stdio::null())
                .output()
                .unwrap();
            let err = String::from_utf8_lossy(&output.stderr);
            assert!(!err.contains("panicked"), "{line}: {err}");
            assert!(
                output.status.code().is_some_and(|code| code < 126),
                "{line}: {} {err}",
                output.status
            );
            if words.contains("exit 3") {
                assert_eq!(output.status.code(), Some(3), "{line}: {err}");
            }
        }
    }
}

#[test]
fn a_slow_reader_gets_everything() {
    let lab = Lab::me();
    let bytes = noise(1 << 20);
    lab.make_file("work/noise", &bytes);
    let mut child = std::process::Command::new(&lab.exe)
        .args(["run", "--", "cat", "noise"])
        .env("BELLJAR_HOME", lab.home())
        .env("HOME", lab.person())
        .current_dir(lab.work())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = child.stdout.take().unwrap();
    let mut found = Vec::new();
    let mut buffer = vec![0; 50_000];
    loop {
        std::thread::sleep(Duration::from_millis(20));
        match pipe.read(&mut buffer).unwrap() {
            0 => break,
            length => found.extend_from_slice(&buffer[..length]),
        }
    }
    assert!(child.wait().unwrap().success());
    assert_same(&found, &bytes);
}

#[test]
fn json_has_the_output_as_text_or_as_bytes() {
    each_user(|lab| {
        let result = lab.sh_json(&[], "printf 'out \\303\\274\\n'; printf 'a\\tb' >&2");
        assert_eq!(result["stdout"], "out ü\n");
        assert_eq!(result["stderr"], "a\tb");
        let result = lab.sh_json(&[], "printf '\\377\\000\\376'");
        assert_eq!(result["stdout"], serde_json::json!({ "b64": "/wD+" }), "{result:#}");
        assert_eq!(result["stderr"], "");
    });
}

#[test]
fn captured_output_is_bounded_and_the_loss_is_counted() {
    each_user(|lab| {
        let script = "i=100000; while [ $i -lt 100400 ]; do echo $i; i=$((i+1)); done";
        let options = ["-c", "limits.output=\"100\""];
        let result = lab.sh_json(&options, script);
        let kept = result["stdout"].as_str().unwrap();
        let (total, lost) = (400 * 7, result["stdout_lost"].as_u64().unwrap_or(0));
        assert_eq!(kept.len() as u64 + lost, total, "{result:#}");
        assert!(kept.len() <= 100, "{} bytes kept of at most 100", kept.len());
        assert!(kept.starts_with("100000\n100001\n") && kept.ends_with("100399\n"), "{kept}");
        // The control: what fits is whole, and nothing is said to be lost.
        let result = lab.sh_json(&options, "echo small");
        assert_eq!((&result["stdout"], result.get("stdout_lost")), (&"small\n".into(), None));
    });
}

#[test]
fn belljar_itself_says_nothing_into_the_commands_streams() {
    each_user(|lab| {
        let done = lab.sh(&[], "echo out; echo err >&2");
        assert_eq!((done.out().as_str(), done.err().as_str()), ("out\n", "err\n"));
    });
}

#[test]
fn a_terminal_inside_without_one_outside_still_works() {
    each_user(|lab| {
        let done = lab
            .run(["-t", "--", "sh", "-c", "test -t 0 && test -t 1 && test -t 2 && echo terminal"])
            .done();
        assert_eq!(done.expect(0).out(), "terminal\r\n");
        // The control.
        let done = lab.sh(&[], "test -t 0 || test -t 1 || test -t 2 || echo none");
        assert_eq!(done.expect(0).out(), "none\n");
    });
}
