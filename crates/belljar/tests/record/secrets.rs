//! Values that look secret are nowhere but inside: no record, no argument, no variable of belljar's own.

use std::fs;
use std::path::{Path, PathBuf};

use belljar::spec::EventKind;
use belljar_testkit::{Lab, each_user, processes_of};

/// Made anew each time, so that nothing of an earlier test is found.
fn canary(what: &str) -> String {
    format!("canary-{what}-{}", belljar_testkit::marker())
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

/// Files of the home that hold the text; what the run itself wrote into its own home does not count.
fn files_with(home: &Path, text: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![home.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory).unwrap().map(Result::unwrap) {
            let path = entry.path();
            let kind = entry.file_type().unwrap();
            let own_home = path.file_name().is_some_and(|name| name == "home")
                && directory.parent().is_some_and(|above| above.ends_with("runs"));
            if kind.is_dir() && !own_home {
                left.push(path);
            } else if kind.is_file()
                && (contains(path.as_os_str().as_encoded_bytes(), text)
                    || contains(&fs::read(&path).unwrap(), text))
            {
                found.push(path);
            }
        }
    }
    found
}

/// Files of `/proc` of belljar's own processes that hold the text, whoever started them.
fn seen_outside(lab: &Lab, but: &[u32], text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for process in processes_of(&lab.exe).into_iter().filter(|process| !but.contains(process)) {
        for file in ["cmdline", "environ"] {
            let path = format!("/proc/{process}/{file}");
            if contains(&fs::read(&path).unwrap_or_default(), text) {
                found.push(path);
            }
        }
    }
    found
}

#[test]
fn a_secret_in_the_environment_is_recorded_nowhere() {
    each_user(|lab| {
        let (by_flag, passed, by_file) = (canary("flag"), canary("passed"), canary("file"));
        let plain = canary("plain");
        let file = lab.make_file("tmp/env", format!("DB_PASSWORD={by_file}\n"));
        let set = format!("API_TOKEN={by_flag}");
        let plain_set = format!("GREETING={plain}");
        // A value that holds another one's, and a label that does.
        let holds = format!("ADDRESS=http://user:{by_flag}@host/");
        let label = format!("note=about {by_flag}");
        // Whole, twice, in pieces across writes, on both streams, and as a word of the command.
        let script = "echo $GREETING; echo \"$API_TOKEN$API_TOKEN\" $GITHUB_TOKEN; \
             echo $DB_PASSWORD >&2; h=${API_TOKEN%????}; t=${API_TOKEN#$h}; \
             printf %s \"$h\"; sleep 0.2; echo \"$t\"; echo \"arg: $1\"";
        let env_file = file.to_str().unwrap();
        let words = [
            "--no-config",
            "-e",
            &set,
            "-e",
            &plain_set,
            "-e",
            &holds,
            "-l",
            &label,
            "--pass-env",
            "GITHUB_TOKEN",
            "--env-file",
            env_file,
            "--",
            "sh",
            "-c",
            script,
            "sh",
            &by_flag,
        ];
        let done = lab.run(words).env("GITHUB_TOKEN", &passed).done();
        done.expect(0);
        // The caller gets what was printed; only the record covers it.
        let out = done.out();
        assert!(out.contains(&format!("{by_flag}{by_flag} {passed}")), "{out}");
        assert!(out.contains(&format!("arg: {by_flag}")), "{out}");
        assert!(done.err().contains(&by_file));

        let id = lab.runs()[0].clone();
        for secret in [&by_flag, &passed, &by_file] {
            assert_eq!(files_with(&lab.home(), secret), Vec::<PathBuf>::new(), "{secret}");
        }
        // The control: the same search finds what is no secret, in the output and in the record.
        let names: Vec<String> = files_with(&lab.home(), &plain)
            .into_iter()
            .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
            .collect();
        assert!(names.contains(&"stdout.bin".to_owned()), "{names:?}");
        assert!(names.contains(&"run.json".to_owned()), "{names:?}");

        // Covered at equal length, and counted.
        lab.assert_sound(&id);
        let directory = lab.home().join("runs").join(&id);
        let stored = fs::read(directory.join("stdout.bin")).unwrap();
        assert_eq!(stored.len(), done.stdout.len());
        let masked: u64 = lab
            .events(&id)
            .iter()
            .filter(|event| event.kind == EventKind::SecretMasked)
            .map(|event| event.data["count"].as_u64().unwrap())
            .sum();
        assert_eq!(masked, 6, "4 times the flag's, once the passed one, once the file's");
        let record = fs::read_to_string(directory.join("run.json")).unwrap();
        for name in ["API_TOKEN", "GITHUB_TOKEN", "DB_PASSWORD"] {
            assert!(record.contains(name), "{name} is recorded by name");
        }
        assert!(record.contains(&plain));
    });
}

/// Nobody who looks at the host's processes sees them, but for the caller's own command line.
#[test]
fn a_secret_is_in_no_argument_or_variable_of_belljars_processes() {
    let lab = Lab::me();
    let (secret, exec_secret, plain) = (canary("kept"), canary("exec"), canary("plain"));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let sandbox = belljar::Sandbox::builder()
            .no_config()
            .no_workspace()
            .home(lab.home())
            .belljar(&lab.exe)
            .env("API_TOKEN", &secret)
            .env("GREETING", &plain)
            .start()
            .await
            .unwrap();
        let script = "echo $API_TOKEN $OTHER_TOKEN $GREETING; read line";
        let mut running = sandbox
            .exec(["sh", "-c", script])
            .env("OTHER_TOKEN", &exec_secret)
            .stdin_stream()
            .spawn()
            .await
            .unwrap();
        let chunk = running.next().await.unwrap();
        assert_eq!(chunk.bytes, format!("{secret} {exec_secret} {plain}\n").into_bytes());
        assert!(processes_of(&lab.exe).len() >= 2, "a supervisor and PID 1");
        for text in [&secret, &exec_secret] {
            assert_eq!(seen_outside(&lab, &[], text), Vec::<String>::new());
            // While it lives: the log is being written.
            assert_eq!(files_with(&lab.home(), text), Vec::<PathBuf>::new());
        }
        drop(running);
        // As a word of a command, and in its name.
        let output =
            sandbox.exec(["echo", &secret, &format!("x{secret}y")]).output().await.unwrap();
        assert_eq!(output.stdout, format!("{secret} x{secret}y\n").into_bytes());
        sandbox.exec([format!("/no/{secret}")]).output().await.unwrap_err();
        sandbox.exec(["true"]).workdir(format!("/{secret}")).output().await.unwrap_err();
        sandbox.copy_out(format!("/{secret}"), lab.path("tmp/out")).await.unwrap_err();
        sandbox.copy_in(&lab.exe, format!("/{secret}/x")).await.unwrap_err();
        sandbox.stop().await.unwrap();
    });
    for text in [&secret, &exec_secret] {
        assert_eq!(files_with(&lab.home(), text), Vec::<PathBuf>::new());
    }
    assert!(!files_with(&lab.home(), &plain).is_empty(), "the control");
    lab.assert_all_sound();

    // The launcher of the command line has it in its own arguments, where its caller put it, and no
    // other process of belljar has it anywhere.
    let mut live = lab
        .run(["--no-config", "-e", &format!("API_TOKEN={secret}"), "--", "sh", "-c"])
        .arg("echo ready; read line")
        .input(belljar_testkit::Input::Open)
        .spawn();
    live.wait_for_output("ready");
    assert_eq!(seen_outside(&lab, &[live.pid()], &secret), Vec::<String>::new());
    assert!(!seen_outside(&lab, &[], &secret).is_empty(), "the control: it is found where it is");
    live.close_input();
    live.done();
}

/// What a terminal shows is recorded too.
#[test]
fn a_secret_on_a_terminal_is_covered() {
    let lab = Lab::me();
    let (secret, plain) = (canary("tty"), canary("plain"));
    let set = format!("API_TOKEN={secret}");
    let script = format!("echo $API_TOKEN; echo {plain}");
    let words = ["--no-config", "-t", "-e", &set, "--", "sh", "-c", &script];
    let terminal = belljar_testkit::PtyRun::start(&lab.run(words), 24, 80);
    terminal.wait_for(&plain);
    let (code, screen) = terminal.end();
    assert_eq!(code, 0);
    assert!(screen.contains(&secret), "{screen:?}");
    assert_eq!(files_with(&lab.home(), &secret), Vec::<PathBuf>::new());
    assert!(!files_with(&lab.home(), &plain).is_empty(), "the control");
    lab.assert_all_sound();
}

/// A secret that a killed supervisor had in its hands is on no disk either.
#[test]
fn a_lost_run_has_no_secret_in_its_record() {
    let lab = Lab::me();
    let secret = canary("lost");
    let set = format!("API_TOKEN={secret}");
    let script = "echo before; echo $API_TOKEN; printf %s ${API_TOKEN%???}; sleep 50";
    let live = lab.run(["--no-config", "-e", &set, "--", "sh", "-c", script]).spawn();
    live.wait_for_output(&secret);
    std::thread::sleep(std::time::Duration::from_millis(200));
    live.signal(rustix::process::Signal::KILL);
    drop(live);
    assert_eq!(lab.reconcile().lost.len(), 1);
    assert_eq!(files_with(&lab.home(), &secret), Vec::<PathBuf>::new());
    assert!(!files_with(&lab.home(), "before\n").is_empty(), "the control");
    lab.assert_all_sound();
}
