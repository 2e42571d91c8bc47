//! Wrong input is told in words, with what to do, and makes nothing.

use std::fs;

use belljar_testkit::{Done, Lab, each_user};

#[track_caller]
fn refused(lab: &Lab, words: &[&str], code: i32, says: &[&str]) -> Done {
    let done = lab.run(words.iter().chain(&["--", "sh", "-c", "touch was-run"])).done();
    done.expect(code).says(says);
    assert_eq!(done.out(), "", "{done}");
    assert!(done.err().contains("error:"), "{done}");
    assert!(!lab.work().join("was-run").exists(), "it ran: {done}");
    lab.assert_nothing_was_made();
    done
}

#[test]
fn wrong_usage_is_2() {
    let lab = Lab::me();
    refused(&lab, &["--no-such-flag"], 2, &["--no-such-flag"]);
    refused(&lab, &["--memroy", "1g"], 2, &["--memory"]);
    refused(&lab, &["--json", "--result", "x"], 2, &["--result"]);
    refused(&lab, &["--no-config", "--manifest", "x"], 2, &["--manifest"]);
    lab.belljar(["no-such-verb"]).done().expect(2);
    lab.belljar::<&str>([]).done().expect(2);
    lab.belljar(["--help"]).done().expect(0);
    let version = lab.belljar(["--version"]).done();
    assert!(version.expect(0).out().starts_with("belljar "), "{version}");
    lab.assert_nothing_was_made();
}

#[test]
fn no_command_is_wrong_usage() {
    let lab = Lab::me();
    for words in [vec!["run"], vec!["run", "--"], vec!["run", "-q"]] {
        lab.belljar(words).done().expect(2).says(&["command"]);
        lab.assert_nothing_was_made();
    }
    lab.belljar(["run", "true"]).done().expect(0); // the control
}

#[test]
fn a_wrong_value_names_its_flag() {
    let lab = Lab::me();
    for (flag, values) in [
        ("--memory", &["lots", "-5", "1.5.2g", "", "1e99g", "99999999999999999999g"][..]),
        ("--cpus", &["many", "-1", "0", "nan", "inf", ""]),
        ("--pids-limit", &["many", "-1", "0", "1.5", "99999999999999999999"]),
        ("--disk", &["much"]),
        ("--timeout", &["soon", "-1", "1y2", "", "0"]),
        ("--stop-timeout", &["soon"]),
        ("--user", &["me", "1000:", ":1000", "4294967295", "-1", "1:2:3"]),
        ("--network", &["host", "bridge"]),
        ("--backend", &["jial"]),
        (
            "--volume",
            &[
                "",
                "only-a-source",
                "/a:relative",
                "/a:/b:rx",
                "/a:/b:ro:z",
                "/tmp:/",
                ":/b",
                "/tmp:",
            ],
        ),
        (
            "--mount",
            &["", "type=bind", "type=magic,dst=/x", "src=/tmp,dst=/x,colour=blue", "dst=/x"],
        ),
        ("--tmpfs", &["", "relative", "/x:size=lots"]),
        ("--workdir", &["", "/../.."]),
        ("--env", &["=value", "", "A B=c"]),
        ("--name", &["", "a/b", "-x"]),
        ("--label", &["", "=x"]),
        ("--require", &["fs.mouts", ""]),
        (
            "--waive",
            &["fs.sockets", "fs.sockets=", "fs.sockets=   ", "fs.sokets=x", "all=because", ""],
        ),
    ] {
        for value in values {
            let word = format!("{flag}={value}");
            let done = lab.run([word.as_str(), "--", "sh", "-c", "touch was-run"]).done();
            assert!([2, 125].contains(&done.code()), "{word}: {done}");
            let key = match flag {
                "--volume" | "--mount" => "mount",
                other => other.trim_start_matches('-'),
            };
            assert!(
                done.err().contains(key) || done.err().contains(flag),
                "{word} is not named: {done}"
            );
            assert!(!lab.work().join("was-run").exists(), "{word} ran: {done}");
            lab.assert_nothing_was_made();
        }
    }
}

#[test]
fn what_was_meant_is_guessed() {
    let lab = Lab::me();
    refused(&lab, &["--require", "fs.mouts"], 2, &["fs.mouts", "fs.mounts"]);
    refused(&lab, &["--waive", "limit.memry=x"], 2, &["limit.memry", "limit.memory"]);
    refused(&lab, &["--backend", "jial"], 2, &["jial", "jail"]);
    refused(&lab, &["-c", "limits.memroy=1g"], 2, &["memroy", "memory"]);
}

#[test]
fn root_inside_is_refused() {
    each_user(|lab| {
        for user in ["0", "0:0", "1000:0"] {
            let done = lab.run(["--user", user, "--", "true"]).done();
            assert!([2, 125].contains(&done.code()), "{user}: {done}");
            assert!(done.err().contains('0'), "{done}");
            lab.assert_nothing_was_made();
        }
        lab.run(["--user", "1234", "--", "true"]).done().expect(0);
    });
}

#[test]
fn a_manifest_with_an_unknown_key_is_refused_with_its_place() {
    each_user(|lab| {
        for (text, says) in [
            ("[limits]\nmemroy = \"1g\"\n", &["belljar.toml", "2", "memroy", "memory"][..]),
            ("\n\n[sandbx]\nbackend = \"jail\"\n", &["belljar.toml", "3", "sandbx", "sandbox"]),
            ("[sandbox]\nbackend = \"jial\"\n", &["belljar.toml", "2", "jial"]),
            ("[limits]\nmemory = 'lots'\n", &["belljar.toml", "2", "memory", "lots"]),
            ("[limits]\npids = 'many'\n", &["belljar.toml", "2", "pids"]),
            ("[limits\n", &["belljar.toml", "1"]),
            ("[policy]\nwaive = { 'fs.sockets' = '' }\n", &["belljar.toml", "fs.sockets"]),
            ("[policy]\nrequire = ['fs.mouts']\n", &["belljar.toml", "fs.mouts", "fs.mounts"]),
        ] {
            lab.make_file("work/belljar.toml", text);
            refused(lab, &[], 125, says);
        }
        lab.make_file("work/belljar.toml", [0xff, 0xfe, 0x00]);
        refused(lab, &[], 125, &["belljar.toml"]);
        // The control: a right one, and one that is left out.
        lab.make_file("work/belljar.toml", "[limits]\npids = 50\n");
        lab.run(["--", "true"]).done().expect(0);
        lab.make_file("work/belljar.toml", "nonsense");
        lab.run(["--no-config", "--", "true"]).done().expect(0);
    });
}

#[test]
fn what_this_version_does_not_do_is_refused_and_not_left_out() {
    let lab = Lab::me();
    lab.make_file("manifest.toml", "[service.db]\ncommand = [\"redis-server\"]\n");
    let file = lab.path("manifest.toml").display().to_string();
    refused(&lab, &["--manifest", &file], 125, &["service"]);
    // A command is no agent: what was said for this run and means nothing is not passed over.
    refused(&lab, &["-c", "loop.max_iterations=3"], 2, &["loop.max_iterations", "agent"]);
    let on_the_host = ["--backend", "host", "--waive", "all=test"];
    let host = |more: &[&'static str]| on_the_host.iter().chain(more).copied().collect::<Vec<_>>();
    refused(&lab, &host(&["--workspace", ".:overlay"]), 125, &["overlay"]);
    refused(&lab, &host(&["-c", "sandbox.hide=['.env']"]), 125, &["hide"]);
    for backend in ["docker", "podman"] {
        refused(&lab, &["--backend", backend], 125, &[backend]);
    }
}

#[test]
fn a_manifest_that_is_not_there_is_named() {
    let lab = Lab::me();
    refused(
        &lab,
        &["--manifest", "/no/such/manifest.toml"],
        125,
        &["/no/such/manifest.toml", "--manifest"],
    );
    refused(&lab, &["--env-file", "/no/such/vars"], 125, &["/no/such/vars"]);
    refused(&lab, &["--tool", "/no/such/tool"], 125, &["/no/such/tool"]);
    refused(&lab, &["--rootfs", "/no/such/root"], 125, &["/no/such/root"]);
}

#[test]
fn refusals_are_data_too() {
    let lab = Lab::me();
    for words in [
        &["--backend", "docker"][..],
        &["-v", "/no/such/source:/x"],
        &["--require", "kernel.separate"],
        &["--manifest", "/no/such/manifest"],
    ] {
        let done = lab.run(["--json"].iter().chain(words).chain(&["--", "true"])).done();
        let result = done.expect(125).json();
        assert_eq!(result["outcome"], "refused", "{done}");
        assert_eq!(result["exit"]["code"], 125, "{done}");
        assert!(result["error"].is_array(), "{done}");
        assert!(!done.err().is_empty(), "a person is told as well");
    }
    lab.assert_nothing_was_made();
}

#[test]
fn two_things_at_one_place_are_refused() {
    let lab = Lab::me();
    let (a, b) = (lab.make_directory("a"), lab.make_directory("b"));
    let (a, b) = (format!("{}:/x", a.display()), format!("{}:/x", b.display()));
    let done = lab.run(["-v", &a, "-v", &b, "--", "true"]).done();
    assert!([2, 125].contains(&done.code()), "{done}");
    done.says(&["/x"]);
    lab.assert_nothing_was_made();
    for target in ["/proc", "/proc/self", "/dev", "/dev/null", "/workspace", "/etc/passwd", "/usr"]
    {
        let done =
            lab.run(["-v", &format!("{}:{target}", lab.path("a").display()), "--", "true"]).done();
        assert_ne!(done.code(), 0, "{target}: {done}");
        assert!(done.err().contains(target), "{target}: {done}");
        lab.assert_nothing_was_made();
    }
}

#[test]
fn an_unusable_home_is_explained() {
    let lab = Lab::me();
    let file = lab.make_file("a-file", "x");
    for home in [file.to_str().unwrap(), "relative/home", "/proc/no-such-home"] {
        let done = lab.run(["--", "true"]).env("BELLJAR_HOME", home).done();
        done.expect(125).says(&["error:", home]);
    }
    // A directory with somebody's files in it is not taken over.
    lab.make_file("full/precious", "x");
    let full = lab.path("full").display().to_string();
    lab.run(["--", "true"])
        .env("BELLJAR_HOME", &full)
        .done()
        .expect(125)
        .says(&[&full, "precious"]);
    assert_eq!(fs::read_dir(lab.path("full")).unwrap().count(), 1);
}

#[test]
fn very_long_input_is_no_accident() {
    each_user(|lab| {
        let long = "x".repeat(100_000);
        let done = lab.run(["--", "printf", "%s", &long]).done();
        assert_eq!(done.expect(0).out(), long);
        let many: Vec<String> = (0..20_000).map(|number| number.to_string()).collect();
        let words =
            ["--", "sh", "-c", "echo $#", "sh"].iter().map(|word| (*word).to_owned()).chain(many);
        let done = lab.run(words).done();
        assert_eq!(done.expect(0).out(), "20000\n");
        let done =
            lab.run(["-e", &format!("LONG={long}"), "--", "sh", "-c", "echo ${#LONG}"]).done();
        assert_eq!(done.expect(0).out(), "100000\n");
        // More than one variable may hold, in all.
        let flags: Vec<String> = (0..12).map(|at| format!("--env=V{at}={long}")).collect();
        let words = flags.iter().map(String::as_str).chain(["--", "sh", "-c", "echo ${#V11}"]);
        let done = lab.run(words).done();
        assert_eq!(done.expect(0).out(), "100000\n", "{done}");
    });
}
