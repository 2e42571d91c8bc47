//! Logging, timings, the bundle for a bug report, and unknown variables.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use belljar_testkit::{Actor, Lab};

/// In every value that must not be printed.
const CANARY: &str = "canary-4f1d";
const SECRET: &str = "canary-4f1d-of-a-secret";
const VARIABLE: &str = "canary-4f1d-of-a-variable";
const MAX_LOG: u64 = 8 << 20;

fn jail() -> Lab {
    Lab::new(Actor::Me)
}

fn debug_log(lab: &Lab, id: &str) -> PathBuf {
    lab.home().join("runs").join(id).join("debug.log")
}

/// Starts it in the background with the log on or off; its id, once it is over.
fn finished_in_background(lab: &Lab, log: Option<&str>, script: &str) -> String {
    let mut call = lab.run(["-d", "--no-config", "--", "sh", "-c", script]);
    if let Some(log) = log {
        call = call.env("BELLJAR_LOG", log);
    }
    let id = call.done().expect(0).out().trim().to_owned();
    lab.belljar(["wait", &id]).done().expect(0);
    id
}

#[test]
fn verbose_shows_the_launch_and_no_secret() {
    let lab = jail();
    let secret = "env=API_KEY,host=ok.example,header=x-api-key";
    let variable = format!("A_TOKEN={VARIABLE}");
    let flags = ["-vv", "run", "--no-config", "--allow-host", "ok.example", "--secret", secret];
    let command = ["-e", &variable, "--", "true"];
    let done = lab.belljar(flags.iter().chain(&command)).env("API_KEY", SECRET).done();
    done.expect(0);
    let id = lab.runs().pop().unwrap();
    done.says(&[
        "settings layer origin=built-in",
        "backend chosen backend=jail",
        &format!("launch{{run={id} backend=jail}}: bind: close"),
        &format!("launch{{run={id} backend=jail}}: attest: close"),
        "attested; the command is released",
    ]);
    let line = |line: &str| {
        let (time, rest) = line.trim_start().split_once(' ').unwrap();
        time.parse::<f64>().is_ok()
            && (rest.contains("DEBUG belljar") || rest.contains("TRACE belljar"))
    };
    assert!(done.err().lines().all(line), "one line an event, each with its time: {done}");
    assert!(!done.err().contains(CANARY) && !done.err().contains('\u{1b}'), "{done}");
    let proxy = fs::read_to_string(debug_log(&lab, &id)).unwrap();
    assert!(!proxy.contains(CANARY), "{proxy}");
}

#[test]
fn without_it_nothing_is_printed_and_no_file_is_made() {
    let lab = jail();
    let done = lab.run(["--no-config", "--allow-host", "ok.example", "--", "true"]).done();
    assert_eq!(done.expect(0).err(), "");
    let off = lab.run(["--no-config", "--", "true"]).env("BELLJAR_LOG", "off").done();
    assert_eq!(off.expect(0).err(), "");
    finished_in_background(&lab, None, "true");
    let ids = lab.runs();
    assert_eq!(ids.len(), 3);
    ids.iter().for_each(|id| assert!(!debug_log(&lab, id).exists(), "{id}"));
}

#[test]
fn the_flag_is_before_the_verb_and_a_volume_after_it() {
    let lab = jail();
    let data = lab.make_directory("data");
    let volume = format!("{}:/data", data.display());
    let done = lab.run(["--no-config", "-v", &volume, "--", "ls", "-d", "/data"]).done();
    assert_eq!((done.expect(0).out().as_str(), done.err().as_str()), ("/data\n", ""));
    lab.belljar(["-v", "ps"]).done().expect(0);
}

#[test]
fn a_supervisor_in_the_background_logs_to_the_run() {
    let lab = jail();
    let id = finished_in_background(&lab, Some("debug"), "env");
    let by_flag = lab.belljar(["-v", "run", "-d", "--no-config", "--", "true"]).done();
    let other = by_flag.expect(0).out().trim().to_owned();
    assert_eq!(by_flag.err().matches("backend chosen").count(), 1, "prepared here: {by_flag}");
    lab.belljar(["wait", &other]).done().expect(0);
    assert!(fs::read_to_string(debug_log(&lab, &other)).unwrap().contains("attest: close"));
    let file = debug_log(&lab, &id);
    let text = fs::read_to_string(&file).unwrap();
    for part in ["plan taken over backend=jail", "bind: close", "attest: close", &id] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("backend chosen"), "a run is prepared once: {text}");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let inside = lab.belljar(["logs", &id]).done().out();
    assert!(inside.contains("BELLJAR_RUN=") && !inside.contains("BELLJAR_LOG"), "{inside}");
    lab.belljar(["verify", &id]).done().expect(0);
}

#[test]
fn the_proxy_logs_its_decisions_to_the_run() {
    let lab = jail();
    let script = "curl -s -m 20 http://denied.example/hidden-path >&2; true";
    let words = ["--no-config", "--allow-host", "ok.example", "--", "sh", "-c", script];
    lab.run(words).env("BELLJAR_LOG", "belljar_egress=debug").done().expect(0);
    let id = lab.runs().pop().unwrap();
    let text = fs::read_to_string(debug_log(&lab, &id)).unwrap();
    assert!(text.contains("connect{host=denied.example port=80 decision=\"denied\"}"), "{text}");
    assert!(!text.contains("hidden-path") && !text.contains("belljar_run"), "{text}");
}

#[test]
fn the_file_ends_at_its_bound() {
    let lab = jail();
    let kept = lab.run(["-d", "--keep", "--no-config"]).env("BELLJAR_LOG", "debug").done();
    let id = kept.expect(0).out().trim().to_owned();
    let file = debug_log(&lab, &id);
    let size = fs::metadata(&file).unwrap().len();
    let filler = "x".repeat(99) + "\n";
    let lines = (MAX_LOG - size) / 100 - 5;
    let mut log = fs::OpenOptions::new().append(true).open(&file).unwrap();
    log.write_all(filler.repeat(lines as usize).as_bytes()).unwrap();
    for _ in 0..6 {
        lab.belljar(["exec", &id, "--", "true"]).done().expect(0);
    }
    lab.belljar(["stop", "-t", "0", &id]).done().expect(0);
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.len() as u64 <= MAX_LOG, "{}", text.len());
    let last = text.lines().last().unwrap();
    assert!(last.starts_with("the log is cut here"), "{last}");
    assert!(text.contains(&format!("exec{{run={id} exec=1}}")));
}

#[test]
fn what_cannot_be_read_as_a_filter_is_refused() {
    let lab = jail();
    let done = lab.belljar(["ps"]).env("BELLJAR_LOG", "loud").done();
    done.expect(125).says(&["the variable BELLJAR_LOG: \"loud\" is no level", "debug or trace"]);
    let done = lab.belljar(["ps"]).env("BELLJAR_LOG", "hyper=debug").done();
    done.expect(125).says(&["\"hyper\" is no target; targets are belljar, belljar_backend"]);
}

#[test]
fn timings_name_every_phase() {
    let lab = jail();
    let done = lab.run(["--no-config", "--timings", "--", "sh", "-c", "sleep 0.2; exit 3"]).done();
    let mut phases = BTreeMap::new();
    for line in done.expect(3).err().lines() {
        let mut words = line.split_whitespace();
        let (name, ms) = (words.next().unwrap(), words.next().unwrap());
        phases.insert(name.to_owned(), ms.parse::<f64>().unwrap_or_else(|_| panic!("{done}")));
    }
    let total = phases.remove("total").unwrap();
    let names: Vec<&str> = phases.keys().map(String::as_str).collect();
    let all = ["attestation", "bind", "boundary", "close", "command", "plan", "record", "settings"];
    assert_eq!(names, all, "{done}");
    assert!(phases["command"] >= 200.0 && phases.values().all(|ms| *ms > 0.0), "{done}");
    assert!((phases.values().sum::<f64>() - total).abs() < 1.0, "{done}");
    for other in ["-d", "--keep"] {
        let done = lab.run(["--no-config", "--timings", other, "--", "true"]).done();
        done.expect(2)
            .says(&["--timings cannot be used with -d, --keep, --reuse or an agent", "debug.log"]);
    }
    assert_eq!(lab.runs().len(), 1, "nothing else was started");
}

#[test]
fn a_bundle_holds_what_helps_and_no_secret() {
    let lab = jail();
    let secret = "env=API_KEY,host=ok.example,header=x-api-key";
    let words =
        ["run", "--no-config", "--allow-host", "ok.example", "--secret", secret, "--", "true"];
    let with_log = |words: &[&str]| {
        let call = lab.belljar(words).env("API_KEY", SECRET).env("BELLJAR_LOG", "trace");
        call.env("BELLJAR_SANDBOX_ENV", format!("{{ A_TOKEN = '{VARIABLE}' }}"))
            .env("BELLJAR_LIMITS_MEMORY", "1g")
            .env("BELLJAR_SOMETHING_UNKNOWN", CANARY)
    };
    with_log(&words).done().expect(0);
    let id = lab.runs().pop().unwrap();
    let file = lab.path("tmp/bundle.tar");
    let done = with_log(&["doctor", "--bundle", file.to_str().unwrap()]).done();
    done.expect(0).prints(&["belljar-bundle/doctor.json", "Read it before you send it"]);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let mut members = BTreeMap::new();
    let mut archive = tar::Archive::new(fs::File::open(&file).unwrap());
    for member in archive.entries().unwrap() {
        let mut member = member.unwrap();
        let name = member.path().unwrap().to_string_lossy().into_owned();
        let mut content = String::new();
        member.read_to_string(&mut content).unwrap();
        assert!(!content.contains(CANARY), "{name}: {content}");
        members.insert(name.strip_prefix("belljar-bundle/").unwrap().to_owned(), content);
    }
    let names: Vec<&str> = members.keys().map(String::as_str).collect();
    let (record, log) = (format!("runs/{id}/run.json"), format!("runs/{id}/debug.log"));
    let all = [
        "backends.json",
        "config.json",
        "doctor.json",
        "environment.txt",
        "home.txt",
        &log,
        &record,
        "system.txt",
        "version.txt",
    ];
    assert_eq!(names, all);
    let variables = &members["environment.txt"];
    assert!(variables.contains("BELLJAR_LIMITS_MEMORY=1g\n"), "{variables}");
    assert!(variables.contains("BELLJAR_SANDBOX_ENV=(not shown)\n"), "{variables}");
    assert!(variables.contains("BELLJAR_SOMETHING_UNKNOWN=(not shown)\n"), "{variables}");
    assert!(members["config.json"].contains("limits.memory"), "{}", members["config.json"]);
    assert!(members["home.txt"].contains(&format!("runs/{id}/run.json")));
    assert!(members["system.txt"].starts_with("kernel "));
    let before = fs::read(&file).unwrap();
    let again = lab.belljar(["doctor", "--bundle", file.to_str().unwrap()]).done();
    again.expect(1).says(&["the file exists"]);
    assert_eq!(fs::read(&file).unwrap(), before);
    assert_eq!(fs::read_dir(lab.path("tmp")).unwrap().count(), 1, "no draft is left");
}

#[test]
fn an_unknown_variable_is_a_warning_and_a_misspelt_one_an_error() {
    let lab = jail();
    let run = || lab.run(["--", "true"]);
    let done = run().env("BELLJAR_SOMETHING_ELSE", "x").done();
    done.expect(0).says(&["warning: the variable BELLJAR_SOMETHING_ELSE is not known"]);
    run().env("BELLJAR_TEST_ANYTHING", "x").done().expect(0);
    for (wrong, right) in [
        ("BELLJAR_LIMIT_MEMORY", "did you mean BELLJAR_LIMITS_MEMORY?"),
        ("BELLJAR_LIMITS_MEMROY", "did you mean BELLJAR_LIMITS_MEMORY?"),
        ("BELLJAR_LOGS", "did you mean BELLJAR_LOG?"),
    ] {
        run().env(wrong, "1g").done().expect(125).says(&[wrong, right]);
    }
    assert_eq!(lab.runs().len(), 2);
}
