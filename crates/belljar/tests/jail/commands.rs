//! What tells instead of running: `--dry-run`, `doctor`, `backends`, `config`, `trust`, and the host
//! backend, which isolates nothing and says so.

use std::fs;

use belljar_testkit::{Lab, as_root, each_actor};

#[test]
fn a_dry_run_shows_the_plan_and_starts_nothing() {
    each_actor(|lab| {
        let words = [
            "--dry-run",
            "-m",
            "1g",
            "--waive",
            "limit.memory=a test",
            "--",
            "sh",
            "-c",
            "touch was-run",
        ];
        let done = lab.run(words).done();
        done.expect(0);
        for word in ["jail", "/workspace", "fs.mounts", "touch was-run"] {
            assert!(done.out().contains(word), "{word}: {done}");
        }
        let data = lab.run(["--json"].iter().chain(&words)).done();
        let plan = data.expect(0).json();
        assert_eq!(plan["plan"]["backend"], "jail");
        assert!(plan["plan"]["mounts"].as_array().is_some_and(|mounts| mounts.len() > 5));
        assert_eq!(plan["missing"], serde_json::json!([]));
        assert!(
            done.out().contains(plan["plan_hash"].as_str().unwrap()),
            "the same plan both times"
        );
        lab.assert_nothing_was_made();
        assert!(!lab.work().join("was-run").exists());
    });
}

#[test]
fn a_dry_run_tells_what_would_stop_the_launch() {
    each_actor(|lab| {
        let done = lab.run(["--dry-run", "--require", "kernel.separate", "--", "true"]).done();
        done.expect(125);
        assert!(
            done.out().contains("would not start") && done.out().contains("kernel.separate"),
            "{done}"
        );
        let done =
            lab.run(["--dry-run", "--json", "--require", "kernel.separate", "--", "true"]).done();
        assert_eq!(done.expect(125).json()["missing"][0]["clause"], "kernel.separate", "{done}");
    });
}

#[test]
fn the_host_backend_refuses_until_everything_is_waived() {
    each_actor(|lab| {
        let command = ["--", "sh", "-c", "echo ran in $PWD; exit 4"];
        let done = lab.run(["--backend", "host"].iter().chain(&command)).done();
        done.expect(125).says(&["fs.mounts", "net.sealed", "--waive"]);
        lab.assert_nothing_was_made();
        let one = ["--backend", "host", "--waive", "fs.mounts=a test"];
        lab.run(one.iter().chain(&command)).done().expect(125);
        lab.assert_nothing_was_made();
        // The control, and what it reports.
        let all = ["--backend", "host", "--waive", "all=nothing to lose here"];
        let done = lab.run(all.iter().chain(&command)).done();
        let work = fs::canonicalize(lab.work()).unwrap();
        assert_eq!(done.expect(4).out(), format!("ran in {}\n", work.display()));
        let done = lab.run(["--json"].iter().chain(&all).chain(&command)).done();
        let result = done.expect(4).json();
        assert_eq!(result["posture"]["fs.mounts"]["status"], "absent", "{result:#}");
        assert_eq!(result["posture"]["net.sealed"]["status"], "absent", "{result:#}");
        let record = lab.record(result["id"].as_str().unwrap());
        assert_eq!(record["backend"], "host");
        assert!(record["waivers"].to_string().contains("nothing to lose here"), "{record:#}");
        // The same code for the same end, and never chosen by itself.
        lab.run(all.iter().chain(&["--", "sh", "-c", "kill -9 $$"])).done().expect(137);
        lab.run(all.iter().chain(&["--", "no-such-program"])).done().expect(127);
        lab.run(all.iter().chain(&["--timeout", "1s", "--", "sleep", "50"])).done().expect(124);
    });
}

#[test]
fn a_waiver_of_everything_is_for_the_host_only() {
    each_actor(|lab| {
        let done = lab.run(["--waive", "all=laziness", "--", "true"]).done();
        assert!([2, 125].contains(&done.code()), "{done}");
        done.says(&["all"]);
        lab.assert_nothing_was_made();
    });
}

#[test]
fn the_doctor_finds_the_jail_by_trying() {
    each_actor(|lab| {
        let done = lab.belljar(["doctor"]).done();
        done.expect(0);
        for word in ["jail", "canary", "fs.mounts", "limit.memory"] {
            assert!(done.out().contains(word), "{word}: {done}");
        }
        let rows = lab.belljar(["doctor", "--json"]).done();
        let rows = rows.expect(0).json();
        let jail = rows.as_array().unwrap().iter().find(|row| row["backend"] == "jail").unwrap();
        assert_eq!(jail["usable"], true, "{rows:#}");
        assert_eq!(jail["posture"]["fs.mounts"]["status"], "enforced", "{rows:#}");
        let memory = if lab.actor.holds_limits() { "enforced" } else { "weaker" };
        assert_eq!(jail["posture"]["limit.memory"]["status"], memory, "{rows:#}");
        assert!(
            rows.as_array()
                .unwrap()
                .iter()
                .all(|row| row["backend"] != "host" || row["usable"] == false)
        );
        assert_eq!(lab.live(), Vec::<String>::new());
    });
}

/// The doctor may be called from anywhere, a home directory with a strange manifest included.
#[test]
fn the_doctor_does_not_mind_where_it_is() {
    each_actor(|lab| {
        lab.make_file("person/belljar.toml", "nonsense");
        lab.belljar(["doctor"]).from(lab.person()).done().expect(0);
        lab.belljar(["doctor"]).from("/".into()).done().expect(0);
    });
}

#[test]
fn backends_are_listed() {
    each_actor(|lab| {
        let done = lab.belljar(["backends"]).done();
        for name in ["jail", "docker", "podman", "host"] {
            assert!(done.expect(0).out().contains(name), "{done}");
        }
        let nowhere = "unix:///nonexistent/engine";
        let rows = lab.belljar(["backends", "--json"]).env("DOCKER_HOST", nowhere).done().json();
        let row = |name: &str| {
            rows.as_array().unwrap().iter().find(|row| row["backend"] == name).unwrap().clone()
        };
        assert_eq!(row("jail")["available"], true, "{rows:#}");
        assert_eq!(row("docker")["available"], false, "{rows:#}");
    });
}

#[test]
fn config_show_tells_where_each_value_came_from() {
    each_actor(|lab| {
        lab.make_file("work/belljar.toml", "[limits]\npids = 123\n");
        lab.make_file(
            "person/.config/belljar/config.toml",
            "[limits]\npids = 700\ntime = \"5m\"\n",
        );
        let done = lab.belljar(["config", "show", "--origin"]).done();
        let out = done.expect(0).out();
        let line = |key: &str| {
            out.lines().find(|line| line.starts_with(key)).unwrap_or_else(|| panic!("{key}: {out}"))
        };
        assert!(
            line("limits.pids").contains("123") && line("limits.pids").contains("belljar.toml"),
            "{out}"
        );
        assert!(line("limits.time").contains("config.toml"), "{out}");
        assert!(line("limits.memory").contains("built-in"), "{out}");
        let rows = lab.belljar(["config", "show", "--json"]).done().json();
        let pids = rows.as_array().unwrap().iter().find(|row| row["key"] == "limits.pids").unwrap();
        assert!(pids["value"].to_string().contains("123"), "{rows:#}");
        let done = lab.belljar(["config", "show", "--no-config", "--origin"]).done();
        assert!(done.expect(0).out().contains("limits.pids = 2048  # built-in"), "{done}");
        // And a run really has what is shown.
        let result = lab.sh_json(&[], "true");
        let record = lab.record(result["id"].as_str().unwrap());
        assert_eq!(record["spec"]["limits"]["pids"], 123, "{record:#}");
    });
}

#[test]
fn config_schema_is_a_schema() {
    let lab = Lab::me();
    let schema = lab.belljar(["config", "schema"]).done().expect(0).json();
    assert!(
        schema["$schema"].as_str().is_some_and(|name| name.contains("json-schema")),
        "{schema:#}"
    );
    for table in ["sandbox", "limits", "policy", "network"] {
        assert!(schema["properties"][table].is_object(), "{table}: {schema:#}");
    }
}

#[test]
fn a_manifest_that_widens_counts_only_after_trust() {
    each_actor(|lab| {
        let data = lab.make_file("data/file", "outside\n");
        let widens = format!(
            "[sandbox]\nmounts = [{{ source = \"{}\", target = \"/data\" }}]\n",
            data.parent().unwrap().display()
        );
        lab.make_file("work/belljar.toml", &widens);
        let words = ["--", "cat", "/data/file"];
        let done = lab.run(words).done();
        done.expect(125).says(&["belljar.toml", "/data", "not trusted", "belljar trust"]);
        lab.assert_nothing_was_made();
        // Shown, and only shown.
        let done = lab.belljar(["trust", "--show"]).done();
        done.expect(0).says(&["/data"]);
        lab.run(words).done().expect(125);
        lab.belljar(["trust"]).done().expect(0).says(&["trusted"]);
        assert_eq!(lab.run(words).done().expect(0).out(), "outside\n");
        // A change is another manifest.
        lab.make_file("work/belljar.toml", format!("{widens}# a change\n"));
        lab.run(words).done().expect(125).says(&["changed since it was trusted"]);
        lab.belljar(["trust"]).done().expect(0);
        lab.run(words).done().expect(0);
        lab.belljar(["trust", "--forget"]).done().expect(0);
        lab.run(words).done().expect(125);
        // Named on the command line it is the operator's, unless a run could have written it.
        let named = |name: &str| lab.run(["--manifest", name].iter().chain(&words)).done();
        named("belljar.toml").expect(125).says(&["not trusted"]);
        let own = lab.make_file("own/belljar.toml", &widens);
        named(own.to_str().unwrap()).expect(0);
    });
}

/// The next run must not be widened by what the last one wrote.
#[test]
fn a_run_cannot_write_the_next_ones_manifest() {
    each_actor(|lab| {
        lab.make_file("private/file", "private\n");
        let place = lab.path("private").display().to_string();
        let script = format!(
            "printf '[sandbox]\\nmounts = [{{ source = \"{place}\", target = \"/data\" }}]\\n' > belljar.toml"
        );
        // One that is there is read-only.
        lab.make_file("work/belljar.toml", "# mine\n");
        let refused = lab.sh(&[], &script);
        assert!(refused.code() != 0 && refused.err().contains("ead-only file system"), "{refused}");
        let text = fs::read_to_string(lab.work().join("belljar.toml")).unwrap();
        assert_eq!(text, "# mine\n");
        // A new one is told, and the next run is not widened by it.
        fs::remove_file(lab.work().join("belljar.toml")).unwrap();
        lab.sh(&[], &script).expect(0).says(&["belljar.toml", "--quarantine"]);
        assert!(lab.work().join("belljar.toml").exists());
        let done = lab.run(["--", "cat", "/data/file"]).done();
        done.expect(125).says(&["not trusted"]);
        // Nor in a subdirectory.
        lab.make_directory("work/sub");
        fs::rename(lab.work().join("belljar.toml"), lab.work().join("sub/belljar.toml")).unwrap();
        lab.run(["--", "cat", "/data/file"]).from(lab.work().join("sub")).done().expect(125);
    });
}

#[test]
fn nothing_is_made_before_it_is_needed() {
    if !as_root() {
        return;
    }
    let lab = Lab::me();
    // What only looks does not make a home.
    for words in [&["--help"][..], &["--version"], &["run", "--help"], &["config", "schema"]] {
        let home = lab.path("fresh");
        lab.belljar(words).env("BELLJAR_HOME", &home).done().expect(0);
        assert!(!home.exists(), "{words:?} made {}", home.display());
    }
}
