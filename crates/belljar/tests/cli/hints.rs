//! Every hint that belljar prints is followed: provoked, done as it says, and seen to work.
//!
//! A hint of `belljar_spec::hint` without a case here fails `every_hint_has_a_case`.

use std::fs;
use std::net::TcpListener;

use belljar::run::LaunchError;
use belljar::spec::Hint;
use belljar::spec::hint::{DOCKER_COMMANDS, DOCKER_FLAGS, EXEC_USER};
use belljar_testkit::{
    Actor, Done, Lab, TestImage, TestLayer, processes_with, send, test_user, until,
};

/// One test for each hint, and the list of them.
macro_rules! cases {
    ($($hint:ident $test:ident $body:block)+) => {
        $(
            #[test]
            fn $test() $body
        )+

        #[test]
        fn every_hint_has_a_case() {
            let cases = [$(stringify!($hint)),+];
            for name in Hint::NAMES {
                assert!(cases.contains(name), "the hint {name} is followed by no test");
            }
            for case in cases {
                assert!(Hint::NAMES.contains(&case), "there is no hint {case}");
            }
        }
    };
}

fn call(lab: &Lab, words: &[&str], code: i32) -> Done {
    let done = lab.belljar(words).done();
    done.expect(code);
    done
}

fn run(lab: &Lab, words: &[&str], code: i32) -> Done {
    let all: Vec<&str> = ["run", "-q", "--backend", "jail"].iter().chain(words).copied().collect();
    call(lab, &all, code)
}

/// The hint that was printed, without its label.
fn hint(done: &Done) -> String {
    let err = done.err();
    let line = err.lines().find_map(|line| line.strip_prefix("hint:  "));
    line.unwrap_or_else(|| panic!("no hint: {err}")).to_owned()
}

/// What stands after a mark, as words.
fn after(hint: &str, mark: &str) -> Vec<String> {
    let (_, rest) = hint.split_once(mark).unwrap_or_else(|| panic!("no {mark:?} in {hint:?}"));
    rest.split(' ').map(str::to_owned).collect()
}

/// The command that a hint names, without `belljar`.
fn command(hint: &str) -> Vec<String> {
    after(hint, "belljar ")
}

/// Calls belljar with words of a hint and more.
fn follow(lab: &Lab, start: &[&str], words: &[String], rest: &[&str], code: i32) -> Done {
    let words = start.iter().copied().chain(words.iter().map(String::as_str));
    let words: Vec<&str> = words.chain(rest.iter().copied()).collect();
    call(lab, &words, code)
}

/// A program in an install prefix, and one without.
fn programs(lab: &Lab) -> (String, String) {
    let in_prefix = lab.make_program("opt/bin/outside", "#!/bin/sh\necho outside\n");
    let alone = lab.make_program("alone/outside", "#!/bin/sh\necho outside\n");
    (in_prefix.display().to_string(), alone.display().to_string())
}

/// A kept sandbox of that name, with more flags.
fn keep(lab: &Lab, name: &str, flags: &[String]) {
    follow(lab, &["run", "--backend", "jail", "--keep", "--name", name], flags, &[], 0);
}

/// An agent that speaks as claude does: one turn of 0.5 dollars and 1010 tokens, in more than a second.
const ONE_TURN: &str = r#"cat > /dev/null; sleep 1.1
echo '{"type":"system","subtype":"init","session_id":"s-1","model":"m"}'
echo '{"type":"assistant","parent_tool_use_id":null,"message":{"id":"m1","role":"assistant","content":[{"type":"text","text":"so far"}],"usage":{"input_tokens":1000,"output_tokens":10}}}'
echo '{"type":"result","subtype":"success","is_error":false,"num_turns":1,"total_cost_usd":0.5,"session_id":"s-1","result":"x"}'
"#;

const JAIL: &[&str] = &["run", "-q", "--backend", "jail"];

cases! {
    UseTool a_tool_brings_a_program_in {
        let lab = Lab::me();
        let (program, _) = programs(&lab);
        let flags = after(&hint(&run(&lab, &[&program], 127)), "bring it in: ");
        assert_eq!(flags[0], "--tool");
        assert_eq!(follow(&lab, JAIL, &flags, &[&program], 0).out(), "outside\n");
    }
    UseVolume a_volume_brings_a_program_in {
        let lab = Lab::me();
        let (_, program) = programs(&lab);
        let flags = after(&hint(&run(&lab, &[&program], 127)), "bring it in: ");
        assert_eq!(flags[0], "-v");
        assert_eq!(follow(&lab, JAIL, &flags, &[&program], 0).out(), "outside\n");
    }
    TraceDenied a_traced_run_has_its_refused_calls {
        let lab = Lab::me();
        run(&lab, &["unshare", "-U", "true"], 1);
        let out = call(&lab, &["why"], 0).out();
        assert!(!out.contains("CLONE_NEWUSER"), "{out}");
        let mut words = after(out.trim_end(), "to record them:\n  belljar ");
        assert_eq!(words.pop().as_deref(), Some("COMMAND"));
        let rest = ["--backend", "jail", "unshare", "-U", "true"];
        follow(&lab, &[], &words, &rest, 1);
        let out = call(&lab, &["why"], 0).out();
        assert!(out.contains("unshare(flags=CLONE_NEWUSER) with EPERM"), "{out}");
        assert!(out.contains("new namespaces are not allowed inside"), "{out}");
    }
    RestartWithTool a_live_run_is_started_again_with_a_tool {
        let lab = Lab::me();
        let (program, _) = programs(&lab);
        keep(&lab, "old", &[]);
        let flags = after(&hint(&call(&lab, &["exec", "old", &program], 127)), "start the run with ");
        keep(&lab, "new", &flags);
        assert_eq!(call(&lab, &["exec", "new", &program], 0).out(), "outside\n");
        call(&lab, &["stop", "old", "new"], 0);
    }
    RestartWithVolume a_live_run_is_started_again_with_a_volume {
        let lab = Lab::me();
        let (_, program) = programs(&lab);
        keep(&lab, "old", &[]);
        let flags = after(&hint(&call(&lab, &["exec", "old", &program], 127)), "start the run with ");
        keep(&lab, "new", &flags);
        assert_eq!(call(&lab, &["exec", "new", &program], 0).out(), "outside\n");
        call(&lab, &["stop", "old", "new"], 0);
    }
    UseImage an_image_is_started_if_it_is_named_as_one {
        let lab = Lab::me();
        lab.load_image(&TestImage::new("belljar-test/hint:1", vec![TestLayer::base()]));
        let words = ["belljar-test/hint:1", "cat", "/etc/of-the-image"];
        let suggested = hint(&run(&lab, &words, 127));
        assert!(suggested.ends_with("--image belljar-test/hint:1 cat /etc/of-the-image"), "{suggested}");
        assert_eq!(follow(&lab, &[], &command(&suggested), &[], 0).out(), "yes\n");
    }
    Install a_program_that_was_installed_is_found {
        let lab = Lab::me();
        let bin = lab.make_directory("opt/bin").display().to_string();
        let path = format!("/usr/bin:/bin:{bin}");
        let words = ["run", "-q", "--backend", "jail", "freshly-installed"];
        let done = lab.belljar(words).env("PATH", &path).done();
        done.expect(127);
        assert!(hint(&done).contains("install freshly-installed"), "{}", done.err());
        let image = after(&hint(&done), "an image that has it: ");
        assert_eq!(image, ["--image", "IMAGE"]);
        lab.make_program("opt/bin/freshly-installed", "#!/bin/sh\necho installed\n");
        let done = lab.belljar(words).env("PATH", &path).done();
        let flags = after(&hint(&done), "bring it in: ");
        assert_eq!(follow(&lab, JAIL, &flags, &["freshly-installed"], 0).out(), "installed\n");
        lab.load_image(&TestImage::new("belljar-test/hint:1", vec![TestLayer::base()]));
        let image: Vec<String> =
            image.iter().map(|word| word.replace("IMAGE", "belljar-test/hint:1")).collect();
        follow(&lab, JAIL, &image, &["true"], 0);
    }
    InstallInImage another_root_has_the_program {
        let lab = Lab::me();
        lab.load_image(&TestImage::new("belljar-test/hint:1", vec![TestLayer::base()]));
        let on_it = ["run", "-q", "--backend", "jail", "--image", "belljar-test/hint:1"];
        let done = call(&lab, &[&on_it[..], &["no-such-program"]].concat(), 127);
        assert!(hint(&done).contains("does not contain no-such-program"), "{}", done.err());
        // An image that has what was asked for.
        call(&lab, &[&on_it[..], &["true"]].concat(), 0);
    }
    ImageNeedsSandbox an_image_is_used_by_a_sandbox {
        let lab = Lab::me();
        lab.load_image(&TestImage::new("belljar-test/hint:1", vec![TestLayer::base()]));
        let words = ["run", "--backend", "host", "--waive", "all=a test", "--image", "belljar-test/hint:1", "true"];
        let done = call(&lab, &words, 0);
        assert!(hint(&done).ends_with("leave out --backend host"), "{}", done.err());
        let done = call(&lab, &["run", "-q", "--image", "belljar-test/hint:1", "true"], 0);
        assert_eq!(done.err(), "");
    }
    ListCases the_cases_are_listed {
        let lab = Lab::me();
        let words = command(&hint(&call(&lab, &["prove", "--case", "nosuch"], 2)));
        assert!(follow(&lab, &[], &words, &[], 0).out().lines().count() > 50);
    }
    InsideRun on_the_host_it_works {
        let lab = Lab::me();
        let mount = format!("{}:/opt/belljar", belljar_testkit::executable().display());
        let done = run(&lab, &["-v", &mount, "/opt/belljar", "run", "true"], 125);
        assert!(hint(&done).ends_with("call belljar on the host"), "{}", done.err());
        run(&lab, &["true"], 0);
    }
    Waive a_waiver_starts_the_run {
        let lab = Lab::me();
        let done = run(&lab, &["--require", "kernel.separate", "true"], 125);
        let flags = after(&hint(&done), "give a reason: ");
        assert_eq!(flags, ["--waive", "kernel.separate=REASON"]);
        follow(&lab, JAIL, &flags, &["--require", "kernel.separate", "true"], 0);
    }
    WaiveAll a_waiver_of_everything_starts_without_isolation {
        let lab = Lab::me();
        let host = ["run", "-q", "--backend", "host"];
        let flags = after(&hint(&call(&lab, &["run", "-q", "--backend", "host", "true"], 125)), "give a reason: ");
        follow(&lab, &host, &flags, &["true"], 0);
    }
    GiveCommand a_command_is_run {
        let lab = Lab::me();
        let words = command(&hint(&call(&lab, &["run"], 2)));
        assert_eq!(words, ["run", "COMMAND"]);
        call(&lab, &["run", "-q", "true"], 0);
    }
    CheckHost the_host_is_checked {
        // A sandbox that is not as planned cannot be provoked from outside, so the error is made. What cannot be
        // started is provoked in `engine::container`.
        let error = LaunchError::NotAsPlanned { differences: Vec::new() };
        assert_eq!(error.fix(), Some(Hint::CheckHost.to_string()));
        let lab = Lab::me();
        let words = command(&Hint::CheckHost.to_string());
        assert_eq!(words[1..], ["says", "why,", "and", "what", "helps"]);
        let doctor = follow(&lab, &[], &words[..1], &[], 0).out();
        assert!(doctor.starts_with("Ready") && doctor.contains("jail: a canary ran"), "{doctor}");
    }
    FreePort the_host_chooses_a_port {
        let lab = Lab::me();
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let publish = format!("{}:8080", taken.local_addr().unwrap().port());
        let done = run(&lab, &["-p", &publish, "true"], 125);
        let hint = hint(&done);
        assert_eq!(hint, "to let the host choose a free port: -p 8080; belljar port RUN prints it");
        call(&lab, &["run", "--backend", "jail", "-p", "8080", "--keep", "--name", "web"], 0);
        assert!(call(&lab, &["port", "web"], 0).out().starts_with("8080/tcp -> 127.0.0.1:"));
        call(&lab, &["stop", "web"], 0);
    }
    HighPort a_port_above_1023_is_free_for_everybody {
        assert_eq!(Hint::HighPort.to_string(), "use a port above 1023");
        let start = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
        let is_guarded = start.is_ok_and(|start| start.trim().parse().is_ok_and(|start: u32| start > 81));
        if !is_guarded || test_user().is_none() {
            eprintln!("NOT CHECKED: low ports are free for everybody here, or there is no ordinary user");
            return;
        }
        let lab = Lab::new(Actor::User);
        let waive = ["--memory", "none", "--cpus", "none", "--pids-limit", "none"];
        let words: Vec<&str> = waive.iter().copied().chain(["-p", "81:81", "true"]).collect();
        assert_eq!(hint(&run(&lab, &words, 125)), "use a port above 1023");
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let publish = format!("{free}:81");
        let words: Vec<&str> = waive.iter().copied().chain(["-p", &publish, "true"]).collect();
        run(&lab, &words, 0);
    }
    OwnAddress an_address_of_the_host_is_accepted {
        let lab = Lab::me();
        let done = run(&lab, &["-p", "203.0.113.7:18080:80", "true"], 125);
        assert_eq!(hint(&done), "use an address that this host has");
        run(&lab, &["-p", "127.0.0.1::80", "true"], 0);
    }
    StartAnyway an_agent_that_would_work_in_vain_is_started {
        let lab = Lab::me();
        lab.make_file("work/DONE", "left by another run");
        lab.make_file(
            "work/belljar.toml",
            "[agent]\nkind = \"command\"\ncommand = [\"sh\", \"-c\", \"echo new > DONE\"]\n\
             [loop]\nuntil = { file = \"DONE\" }\n",
        );
        let start = ["run", "-q", "--backend", "jail", "--manifest", "belljar.toml"];
        let words = after(&hint(&call(&lab, &start, 125)), "add ");
        assert_eq!(words, ["--yes"]);
        follow(&lab, &start, &words, &[], 0);
    }
    CopyForm a_file_is_copied {
        let lab = Lab::me();
        let words = command(&hint(&call(&lab, &["cp", "a", "b"], 2)));
        assert_eq!(words[..3], ["cp", "RUN:/workspace/file", "."]);
        keep(&lab, "box", &[]);
        lab.make_file("work/file", "content\n");
        lab.make_directory("work/a:b");
        call(&lab, &["cp", "box:/workspace/file", "./a:b"], 0);
        assert_eq!(fs::read_to_string(lab.work().join("a:b/file")).unwrap(), "content\n");
        // With a run there is one to name.
        let out = lab.make_directory("out");
        for wrong in [&["cp", "a", "b"][..], &["cp"]] {
            let words = command(&hint(&call(&lab, wrong, 2)));
            let done = lab.belljar(&words[..3]).from(out.clone()).done();
            done.expect(0);
            assert_eq!(fs::read_to_string(out.join("file")).unwrap(), "content\n");
            fs::remove_file(out.join("file")).unwrap();
        }
        call(&lab, &["stop", "box"], 0);
    }
    Resume a_lost_run_of_an_agent_is_resumed {
        let lab = Lab::me();
        let script = "test -e /flag/resumed && touch DONE && exit 0; echo waiting; sleep 60";
        lab.make_file(
            "work/belljar.toml",
            format!(
                "[agent]\nkind = \"command\"\ncommand = [\"sh\", \"-c\", {script:?}]\nprompt = \"go\"\n\
                 [loop]\nmax_iterations = 3\nuntil = {{ file = \"DONE\" }}\n"
            ),
        );
        let flag = format!("{}:/flag", lab.make_directory("flag").display());
        let words = ["run", "--backend", "jail", "--manifest", "belljar.toml", "-v", &flag];
        let live = lab.belljar(words).spawn();
        let limit = std::time::Duration::from_secs(40);
        let is_waiting = || lab.belljar(["logs"]).done().out().contains("waiting");
        assert!(until(limit, is_waiting), "the agent did not begin");
        let id = lab.live().remove(0);
        let supervisors = processes_with("__supervise").into_iter();
        for process in supervisors.filter(|process| belongs_to(*process, &lab)) {
            send(process, rustix::process::Signal::KILL);
        }
        let done = live.done();
        let words = command(&hint(&done));
        assert_eq!(words, ["resume".to_owned(), id]);
        lab.make_file("flag/resumed", "");
        follow(&lab, &[], &words, &[], 0);
    }
    ApplyOthers conflicts_are_resolved {
        let lab = Lab::me();
        lab.make_file("work/text", "one\n");
        lab.make_file("work/other", "one\n");
        let script = "echo run > text; echo run > other";
        run(&lab, &["--name", "new", "--workspace", ".:overlay", "sh", "-c", script], 0);
        lab.make_file("work/text", "host\n");
        let done = call(&lab, &["apply", "-y", "new"], 1);
        assert!(hint(&done).contains("apply other paths by name"), "{}", done.err());
        call(&lab, &["apply", "-y", "new", "other"], 0);
        assert_eq!(fs::read_to_string(lab.work().join("other")).unwrap(), "run\n");
        call(&lab, &["apply", "-y", "--theirs", "new"], 0);
        assert_eq!(fs::read_to_string(lab.work().join("text")).unwrap(), "run\n");
    }
    Extend a_budget_that_was_used_up_is_extended {
        for (key, value) in [
            ("max_iterations", "1"), ("max_time", "\"1s\""), ("max_cost_usd", "0.2"), ("max_turns", "1"),
            ("max_tokens", "500"),
        ] {
            let lab = Lab::me();
            let more = if key == "max_iterations" { "" } else { "max_iterations = 2\n" };
            lab.make_file("work/belljar.toml", format!(
                "[agent]\nkind = \"command\"\nformat = \"claude\"\ncommand = [\"sh\", \"-c\", {ONE_TURN:?}]\n\
                 prompt = \"go\"\n[loop]\n{key} = {value}\n{more}"
            ));
            let first = ["run", "-q", "--json", "--backend", "jail", "--manifest", "belljar.toml", "--name", "work"];
            let result = lab.belljar(first).done().json();
            let reason = key.trim_end_matches("_usd");
            assert_eq!(result["reason"], reason, "{result:#}");
            let over = call(&lab, &["resume", "work"], 125).err();
            let (before, _) = over.split_once(" goes on").unwrap_or_else(|| panic!("{over}"));
            let (_, flag) = before.rsplit_once("; ").unwrap();
            let flag = flag.replace("SPAN", "1m").replace("AMOUNT", "9").replace('N', "9000");
            let flag = if key == "max_iterations" { flag.replace("9000", "1") } else { flag };
            let words: Vec<&str> = ["resume", "work", "--json"].into_iter().chain(flag.split(' ')).collect();
            let result = lab.belljar(&words).done().json();
            assert_eq!(result["reason"], "max_iterations", "{words:?}: {result:#}");
            assert_eq!(result["agent"]["totals"]["iterations"], 2, "{words:?}: {result:#}");
        }
    }
    OtherCheckpoint a_loop_that_is_done_is_gone_back_in_or_forked {
        let lab = Lab::me();
        let script = "echo x >> n; [ $(wc -l < n) -lt 2 ] || touch DONE";
        lab.make_file("work/belljar.toml", format!(
            "[agent]\nkind = \"command\"\ncommand = [\"sh\", \"-c\", {script:?}]\nprompt = \"go\"\n\
             [loop]\nmax_iterations = 5\nuntil = {{ file = \"DONE\" }}\n"
        ));
        call(&lab, &["run", "-q", "--backend", "jail", "--manifest", "belljar.toml", "--name", "work"], 0);
        let over = call(&lab, &["resume", "work"], 125);
        assert!(over.err().contains(&Hint::OtherCheckpoint.to_string()), "{}", over.err());
        let back = lab.belljar(["resume", "work", "--from", "1", "--json"]).done().json();
        assert_eq!(back["reason"], "done", "{back:#}");
        let fork = lab.belljar(["fork", "work", "--from", "1", "--json"]).done().json();
        assert_eq!(fork["reason"], "done", "{fork:#}");
    }
    Quarantine new_control_files_are_moved {
        let lab = Lab::me();
        let done = run(&lab, &["sh", "-c", "echo 'use nix' > .envrc"], 0);
        assert_eq!(done.err(), "", "with -q nothing is said");
        fs::remove_file(lab.work().join(".envrc")).unwrap();
        let done = call(&lab, &["run", "--backend", "jail", "sh", "-c", "echo 'use nix' > .envrc"], 0);
        let err = done.err();
        let line = err.lines().find(|line| line.contains("--quarantine")).unwrap_or_else(|| panic!("{err}"));
        assert!(lab.work().join(".envrc").exists());
        follow(&lab, &[], &command(line), &[], 0);
        assert!(!lab.work().join(".envrc").exists());
    }
    DefaultBuild a_default_build_has_the_catalogue {
        // Provoked in `engine::no_jail`, by the build that prints it.
        assert_eq!(Hint::DefaultBuild.to_string(), "use a default build of belljar on Linux");
        assert!(call(&Lab::me(), &["prove", "--list"], 0).out().lines().count() > 50);
    }
    NoLiveRun one_is_started {
        let lab = Lab::me();
        run(&lab, &["true"], 0);
        let words = command(&hint(&call(&lab, &["exec", "ls"], 2)));
        assert_eq!(words, ["run", "--keep", "--name", "NAME"]);
        follow(&lab, &[], &words, &["--backend", "jail"], 0);
        call(&lab, &["stop", "NAME"], 0);
    }
    NewestRun the_newest_run_is_stopped {
        let lab = Lab::me();
        keep(&lab, "box", &[]);
        let words = command(&hint(&call(&lab, &["stop"], 2)));
        assert!(follow(&lab, &[], &words, &[], 0).out().ends_with("(box) stopped\n"));
    }
}

/// Whether a process has the lab's home in its environment.
fn belongs_to(process: u32, lab: &Lab) -> bool {
    let environment = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
    let home = format!("BELLJAR_HOME={}", lab.home().display());
    environment.split(|byte| *byte == 0).any(|variable| variable == home.as_bytes())
}

/// Every command that a word of docker leads to works, or where it needs an engine or an agent, exists.
#[test]
fn the_answers_to_words_of_docker_can_be_followed() {
    let lab = Lab::me();
    lab.make_file("work/path", "");
    for (at, known) in DOCKER_COMMANDS.iter().enumerate() {
        let done = call(&lab, &[known.word], 2);
        assert_eq!(hint(&done), known.hint);
        for (number, part) in known.hint.split("belljar ").skip(1).enumerate() {
            let part = part.split([';', ')']).next().unwrap_or_default();
            let name = format!("box{at}-{number}");
            keep(&lab, &name, &[]);
            let workspace = lab.work().display().to_string();
            let part = part
                .replace("RUN:/path", &format!("{name}:/workspace/path"))
                .replace("RUN", &name)
                .replace("COMMAND", "true")
                .replace("SRC:DST", &format!("{workspace}:/mnt"))
                .replace("NAME", &format!("other{at}-{number}"));
            let mut words: Vec<&str> = part.split(' ').collect();
            let needs_more = ["image", "resume"].contains(&words[0]) || part.contains("--image");
            if needs_more {
                words = vec![words[0], "--help"];
            }
            if words[0] == "cp" {
                lab.make_directory("copy");
                let call = lab.belljar(&words).from(lab.path("copy")).done();
                call.expect(0);
            } else {
                call(&lab, &words, 0);
            }
        }
    }
    for known in DOCKER_FLAGS {
        assert_eq!(hint(&call(&lab, &["run", known.word, "true"], 2)), known.hint);
    }
    call(&lab, &["run", "-q", "--backend", "host", "--waive", "all=REASON", "true"], 0);
    call(&lab, &["run", "-q", "--backend", "jail", "--workspace", ".:ro", "true"], 0);
    assert_eq!(hint(&call(&lab, &["exec", "-u", "0", "box0-0", "id"], 2)), EXEC_USER);
    call(&lab, &["run", "-q", "--backend", "jail", "--user", "1234:1234", "true"], 0);
    let live = call(&lab, &["ps", "-q"], 0).out();
    let live: Vec<&str> = live.lines().collect();
    call(&lab, &["stop", "-q", "-t", "0"].iter().copied().chain(live).collect::<Vec<_>>(), 0);
}
