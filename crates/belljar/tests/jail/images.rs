//! Runs from images of Belljar's own store, with no engine on the machine.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use belljar_testkit::{Input, Lab, TestImage, TestLayer, each_user, processes_of, until};
use rustix::process::Signal;
use serde_json::{Value, json};

const NAME: &str = "belljar-test/image:1";
const ON_IT: [&str; 4] = ["--backend", "jail", "--image", NAME];

fn image() -> TestImage {
    TestImage::new(NAME, vec![TestLayer::base()])
}

/// `belljar run` from the image, in the jail.
fn sh(lab: &Lab, options: &[&str], script: &str) -> belljar_testkit::Done {
    let all: Vec<&str> = ON_IT.iter().chain(options).copied().collect();
    lab.sh(&all, script)
}

/// The image's manifest, as `image list` has it.
fn digest(lab: &Lab) -> String {
    let listed = lab.belljar(["image", "list", "--json"]).done().expect(0).json();
    listed[0]["digest"].as_str().unwrap().to_owned()
}

#[test]
fn an_image_is_the_root_and_nothing_of_the_host_is() {
    each_user(|lab| {
        lab.load_image(&image());
        lab.make_file("work/mine", "of the workspace\n");
        let script = "cat /etc/of-the-image mine; ls /; id -un; pwd; touch made";
        let done = sh(lab, &[], script);
        let out = done.expect(0).out();
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(lines[..2], ["yes", "of the workspace"], "{done}");
        for needed in ["bin", "dev", "etc", "home", "proc", "run", "srv", "tmp", "var", "workspace"]
        {
            assert!(lines.contains(&needed), "{needed}: {done}");
        }
        let host_only = ["boot", "mnt", "opt", "root", "sbin"];
        assert!(!host_only.iter().any(|name| lines.contains(name)), "of the host: {done}");
        assert_eq!(lines[lines.len() - 2..], ["agent", "/workspace"], "{done}");
        assert!(lab.work().join("made").exists());
        // The control: without an image the host's programs are there, and the file is not.
        let host = lab.sh(&["--backend", "jail"], "cat /etc/of-the-image; ls /usr/bin/env");
        assert_eq!(host.expect(0).out(), "/usr/bin/env\n", "{host}");
    });
}

#[test]
fn the_root_cannot_be_written_and_memory_can() {
    each_user(|lab| {
        lab.load_image(&image());
        let places = "/ /etc /bin /srv /dev /var";
        let script = format!(
            "for d in {places}; do touch $d/new 2>/dev/null && echo wrote $d; done; \
             rm -f /etc/of-the-image; cat /etc/of-the-image; \
             for d in /tmp /var/tmp /run /dev/shm ~ /workspace; do touch $d/new && echo wrote $d; done"
        );
        let done = sh(lab, &[], &script);
        let out = done.expect(0).out();
        let expected = "yes\nwrote /tmp\nwrote /var/tmp\nwrote /run\nwrote /dev/shm\n\
                        wrote /home/agent\nwrote /workspace\n";
        assert_eq!(out, expected, "{done}");
    });
}

#[test]
fn exit_codes_are_the_commands_own() {
    each_user(|lab| {
        lab.load_image(&image());
        sh(lab, &[], "exit 0").expect(0);
        sh(lab, &[], "exit 42").expect(42);
        sh(lab, &[], "kill -9 $$").expect(137);
        let missing = lab.run(ON_IT.iter().chain(&["--", "no-such-program"])).done();
        missing.expect(127).says(&["no-such-program", "the image does not contain"]);
    });
}

#[test]
fn a_layout_is_loaded_like_an_archive() {
    each_user(|lab| {
        let layout = lab.make_directory("layout");
        image().write_oci_layout(&layout);
        let path = layout.to_str().unwrap();
        let loaded = lab.belljar(["image", "load", path]).done();
        assert_eq!(loaded.expect(0).out(), format!("{NAME}\n"), "{loaded}");
        assert_eq!(sh(lab, &[], "cat /etc/of-the-image").expect(0).out(), "yes\n");
    });
}

#[test]
fn what_an_image_says_about_itself_is_honoured_as_docker_does() {
    let config = json!({
        "Entrypoint": ["/bin/env", "ENTERED=yes"],
        "Cmd": ["sh", "-c", "echo by default $ENTERED; pwd; id -u; id -g"],
        "WorkingDir": "/srv",
        "User": "web",
        "Env": ["PATH=/evil:/bin", "SEEN=yes", "LD_PRELOAD=/evil.so", "HOME=/evil"],
        "Volumes": { "/data": {} },
    });
    each_user(|lab| {
        lab.load_image(&image().config(config.clone()));
        let of = |options: &[&str], command: &[&str]| {
            let words = ON_IT.iter().chain(options).chain(command);
            lab.run(words.copied().collect::<Vec<_>>()).done().expect(0).out()
        };
        let alone = ["--workspace", "none"];
        assert_eq!(of(&alone, &[]), "by default yes\n/srv\n33\n34\n");
        let script = "echo $ENTERED; pwd; echo $SEEN $LD_PRELOAD $HOME; touch /data/x && echo data";
        let command = ["--", "sh", "-c", script];
        assert_eq!(of(&alone, &command), "yes\n/srv\nyes /home/agent\ndata\n");
        assert_eq!(of(&[], &["--", "sh", "-c", "pwd"]), "/workspace\n", "the workspace's place");
        let workdir = ["--workspace", "none", "-w", "/etc"];
        assert_eq!(of(&workdir, &["--", "sh", "-c", "pwd"]), "/etc\n");
        let script = "echo .$ENTERED.; id -u; id -g";
        let plain = ["--entrypoint", "", "--user", "7:8"];
        assert_eq!(of(&plain, &["--", "sh", "-c", script]), "..\n7\n8\n");
        // Another entrypoint, and the image's command is none of its arguments.
        assert_eq!(of(&["--entrypoint", "/bin/true"], &[]), "");
        let entered = ["--entrypoint", "/bin/cat"];
        assert_eq!(of(&entered, &["--", "/etc/of-the-image"]), "yes\n");
        // A kept sandbox has no command; what is executed in it is as it is.
        let kept = lab.run(ON_IT.iter().chain(&["--keep", "-d"])).done();
        let id = kept.expect(0).out().trim().to_owned();
        let inside = lab.belljar(["exec", &id, "--", "sh", "-c", "echo .$ENTERED."]).done();
        assert_eq!(inside.expect(0).out(), "..\n", "{inside}");
        lab.belljar(["stop", &id]).done().expect(0);
    });
}

#[test]
fn root_is_not_what_an_image_can_ask_for() {
    for user in ["", "0", "root", "0:0"] {
        each_user(|lab| {
            lab.load_image(&image().config(json!({ "User": user })));
            assert_eq!(sh(lab, &[], "id -u; id -un").expect(0).out(), "1000\nagent\n", "{user}");
        });
    }
    each_user(|lab| {
        lab.load_image(&image().config(json!({ "User": "nobody-knows" })));
        sh(lab, &[], "true").expect(125).says(&["nobody-knows", "--user UID:GID"]);
        assert_eq!(sh(lab, &["--user", "5:5"], "id -u").expect(0).out(), "5\n", "the hint");
    });
}

/// As root the owners are those of the image, and the modes count; with one id everything is that id's.
#[test]
fn files_of_an_image_have_their_owners_where_there_are_ids_for_them() {
    each_user(|lab| {
        lab.load_image(&image());
        let script = "stat -c '%u %g %a' / /etc /srv /private; cat /private /srv/of-web";
        let done = sh(lab, &[], script);
        let out = done.out();
        if lab.actor.is_root() {
            assert_eq!(out, "0 0 755\n0 0 755\n33 33 750\n0 0 600\n", "{done}");
            let web = sh(lab, &["--user", "33:33"], "cat /private; cat /srv/of-web");
            assert_eq!(web.expect(0).out(), "web's\n", "{web}");
        } else {
            let one = "1000 1000 755\n1000 1000 755\n1000 1000 750\n1000 1000 600\nroot's\nweb's\n";
            assert_eq!(out, one, "{done}");
            let shown = lab.run(ON_IT.iter().chain(&["--dry-run", "--", "true"])).done();
            let text = shown.out().split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(text.contains("which owns every file of the image"), "{shown}");
        }
    });
}

/// Layer `n` has the file `n`, and each second one removes that of the layer below.
fn with_layers(count: usize) -> TestImage {
    let mut layers = vec![TestLayer::base()];
    for number in 1..count {
        let layer = TestLayer::default()
            .directory("n", 0o755, 0)
            .file(&format!("n/{number}"), "x")
            .file("n/last", &number.to_string());
        layers.push(match number % 2 {
            0 => layer.without(&format!("n/{}", number - 1)),
            _ => layer,
        });
    }
    TestImage::new(NAME, layers)
}

#[test]
fn images_of_many_layers_work() {
    for count in [1, 8, 40, 120] {
        each_user(|lab| {
            lab.load_image(&with_layers(count));
            let done = sh(
                lab,
                &[],
                "cat /etc/of-the-image; test ! -e /n || { cat /n/last; echo; ls /n; }",
            );
            let out = done.expect(0).out();
            let mut expected = vec!["yes".to_owned()];
            if count > 1 {
                expected.push((count - 1).to_string());
                let even = (1..count).filter(|number| number % 2 == 0 || *number == count - 1);
                let mut names: Vec<String> = even.map(|number| number.to_string()).collect();
                names.push("last".to_owned());
                names.sort();
                expected.extend(names);
            }
            assert_eq!(out.lines().collect::<Vec<_>>(), expected, "{count} layers: {done}");
        });
    }
}

#[test]
fn what_a_layer_removes_or_replaces_is_not_seen() {
    let below = TestLayer::base()
        .directory("kept", 0o755, 0)
        .file("kept/old", "old")
        .directory("emptied", 0o755, 0)
        .file("emptied/old", "old")
        .file("gone", "old");
    let above = TestLayer::default()
        .without("gone")
        .directory("kept", 0o755, 0)
        .file("kept/new", "new")
        .directory("emptied", 0o755, 0)
        .file("emptied/.wh..wh..opq", "")
        .file("emptied/new", "new");
    let image = TestImage::new(NAME, vec![below, above]);
    each_user(|lab| {
        lab.load_image(&image);
        let done = sh(lab, &[], "ls /kept /emptied; ls /gone");
        assert_eq!(done.out(), "/emptied:\nnew\n\n/kept:\nnew\nold\n", "{done}");
        assert_ne!(done.code(), 0, "it is gone: {done}");
    });
}

#[test]
fn the_record_names_the_image_and_each_of_its_layers() {
    each_user(|lab| {
        lab.load_image(&with_layers(3).config(json!({ "Cmd": ["true"], "WorkingDir": "/srv" })));
        let manifest = digest(lab);
        let inspected = lab.belljar(["image", "inspect", "--json", NAME]).done().expect(0).json();
        let ids: Vec<&Value> =
            inspected["layers"].as_array().unwrap().iter().map(|layer| &layer["diff_id"]).collect();
        assert_eq!(ids.len(), 3);
        let done = lab
            .run(ON_IT.iter().chain(&["--json", "--workspace", "none", "--user", "33:33"]))
            .done();
        let id = done.expect(0).json()["id"].as_str().unwrap().to_owned();
        let record = lab.record(&id);
        assert_eq!(record["image"]["name"], NAME);
        assert_eq!(record["image"]["id"], manifest.as_str());
        let layers = record["image"]["layers"].as_array().unwrap();
        assert_eq!(layers.iter().collect::<Vec<_>>(), ids);
        // What the image decided is frozen.
        assert_eq!(record["spec"]["command"], json!(["true"]));
        assert_eq!(record["spec"]["workdir"], "/srv");
        let mounts = record["attestation"]["mounts"].as_array().unwrap();
        let root = mounts.iter().find(|mount| mount["target"] == "/").unwrap();
        assert_eq!((&root["fstype"], &root["read_only"]), (&json!("overlay"), &json!(true)));
        let shown = lab.belljar(["show", &id]).done();
        shown.expect(0).prints(&[NAME, &manifest]);
        lab.belljar(["verify", &id]).done().expect(0);
        let events = lab.belljar(["events", &id]).done().expect(0).out();
        let planned = events.lines().find(|line| line.contains("sandbox.planned")).unwrap();
        assert!(planned.contains("root_image") && planned.contains(&manifest), "{planned}");
    });
}

#[test]
fn an_image_in_use_stays_and_can_be_removed_afterwards() {
    each_user(|lab| {
        lab.load_image(&image());
        let words =
            ON_IT.iter().chain(&["--", "sh", "-c", "echo ready; read end; cat /etc/of-the-image"]);
        let mut live = lab.run(words).input(Input::Open).spawn();
        live.wait_for_output("ready");
        lab.belljar(["image", "rm", NAME]).done().expect(125).says(&["in use"]);
        let pruned = lab.belljar(["image", "prune", "--all", "--json"]).done().expect(0).json();
        assert_eq!(pruned["images"], json!([]));
        live.type_in(b"\n");
        let done = live.done();
        assert_eq!(done.expect(0).out(), "ready\nyes\n", "{done}");
        let pruned = lab.belljar(["image", "prune", "--all", "--json"]).done().expect(0).json();
        assert_eq!(pruned["images"].as_array().unwrap().len(), 1, "{pruned}");
        assert!(pruned["layers"].as_u64().unwrap() > 0, "{pruned}");
        sh(lab, &["--pull", "never"], "true").expect(125).says(&["no image"]);
    });
}

#[test]
fn two_runs_of_one_image_do_not_meet() {
    each_user(|lab| {
        lab.load_image(&image());
        let script = "touch /tmp/$1 /run/$1; echo ready; read end; ls /tmp /run";
        let start = |name: &str| {
            let command = ["--workspace", "none", "--", "sh", "-c", script, "sh", name];
            let words = ON_IT.iter().chain(&command);
            let live = lab.run(words.copied().collect::<Vec<_>>()).input(Input::Open).spawn();
            live.wait_for_output("ready");
            live
        };
        let (mut one, mut two) = (start("one"), start("two"));
        one.type_in(b"\n");
        two.type_in(b"\n");
        let (one, two) = (one.done(), two.done());
        assert_eq!(one.expect(0).out(), "ready\n/run:\none\n\n/tmp:\none\n", "{one}");
        assert_eq!(two.expect(0).out(), "ready\n/run:\ntwo\n\n/tmp:\ntwo\n", "{two}");
    });
}

#[test]
fn a_killed_launcher_leaves_nothing_and_lets_go_of_the_image() {
    each_user(|lab| {
        lab.load_image(&image());
        let mounts = || std::fs::read_to_string("/proc/self/mounts").unwrap();
        let before = mounts();
        let words = ON_IT.iter().chain(&["--", "sh", "-c", "echo ready; sleep 100000"]);
        let live = lab.run(words).spawn();
        live.wait_for_output("ready");
        live.signal(Signal::KILL);
        let gone = until(Duration::from_secs(20), || processes_of(&lab.exe).is_empty());
        assert!(gone, "processes are left: {:?}", processes_of(&lab.exe));
        assert_eq!(mounts(), before);
        drop(live);
        lab.belljar(["reconcile"]).done().expect(0);
        lab.belljar(["image", "rm", NAME]).done().expect(0);
    });
}

/// The image's volumes are memory, below which everything else that the run is given stays what it is.
#[test]
fn a_volume_covers_nothing_of_the_operators() {
    let volumes = json!({"/data/p": {}, "/home": {}, "/var": {}, "/etc": {}, "/proc/irq": {}, "/dev/pts": {}});
    each_user(|lab| {
        lab.load_image(&image().config(json!({"Volumes": volumes})));
        lab.make_file("src/f", "of the operator\n");
        let source = lab.work().parent().unwrap().join("src");
        let mount = format!("{}:/data/p/data", source.display());
        let script = "cat /data/p/data/f /etc/of-the-image; touch /data/p/new && echo new; \
                      for d in /data/p/data /etc /proc/irq; do touch $d/x 2>/dev/null && echo wrote $d; done; \
                      touch ~/x /var/tmp/x && id -un";
        let done = sh(lab, &["-v", &mount], script);
        assert_eq!(done.expect(0).out(), "of the operator\nyes\nnew\nagent\n", "{done}");
    });
}

/// Another entrypoint takes the place of an image's, and of nothing else: it never decides what a command without an
/// image means.
#[test]
fn an_entrypoint_needs_an_image() {
    each_user(|lab| {
        lab.load_image(&image());
        let refused = lab.sh(&["--backend", "jail", "--entrypoint", "/bin/true"], "exit 3");
        refused.expect(125).says(&["--entrypoint", "an image"]);
        sh(lab, &["--entrypoint", "/bin/true"], "exit 3").expect(0);
    });
}

/// What is wrong with an image of Belljar's own store does not lead to an engine, which would take, or fetch, whatever
/// has the same name there.
#[test]
fn an_image_that_cannot_be_used_ends_the_search_for_a_backend() {
    each_user(|lab| {
        let socket = lab.work().parent().unwrap().join("docker.sock");
        let engine = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        std::fs::set_permissions(&socket, PermissionsExt::from_mode(0o666)).unwrap();
        engine.set_nonblocking(true).unwrap();
        let was_asked = || engine.accept().is_ok();
        let address = format!("unix://{}", socket.display());
        let run = |backend: &str| {
            let call = ["--backend", backend, "--image", NAME, "--", "true"];
            lab.run(call).env("DOCKER_HOST", &address).done()
        };
        lab.load_image(&image().config(json!({"User": "no-such-user"})));
        run("auto").expect(125).says(&["no-such-user"]);
        assert!(!was_asked());
        run("docker").expect(125);
        assert!(was_asked(), "the control");
    });
}

#[test]
fn a_missing_image_is_named_with_a_hint_that_works() {
    each_user(|lab| {
        let refused = sh(lab, &["--pull", "never"], "true");
        refused.expect(125).says(&[NAME, "the pull policy is never", "belljar image load FILE"]);
        lab.assert_nothing_was_made();
        let dry = lab.run(ON_IT.iter().chain(&["--dry-run", "--", "true"])).done();
        dry.expect(125).says(&[NAME, "a dry run fetches nothing"]);
        lab.load_image(&image());
        sh(lab, &["--pull", "never"], "true").expect(0);
        lab.run(ON_IT.iter().chain(&["--dry-run", "--", "true"])).done().expect(0).prints(&[NAME]);
    });
}

#[test]
fn an_image_and_another_root_are_refused_together() {
    each_user(|lab| {
        lab.load_image(&image());
        for root in ["host", "/srv"] {
            let done = sh(lab, &["--rootfs", root], "true");
            done.expect(125).says(&["sandbox.image and sandbox.rootfs", "--image", "--rootfs"]);
        }
        lab.assert_nothing_was_made();
        sh(lab, &[], "true").expect(0);
        lab.sh(&["--backend", "jail", "--rootfs", "host"], "true").expect(0);
    });
}

#[test]
fn an_archive_that_was_exported_is_the_same_image() {
    each_user(|lab| {
        lab.load_image(&with_layers(3));
        let (before, file) = (digest(lab), lab.path("tmp/exported.tar"));
        let file = file.to_str().unwrap();
        lab.belljar(["image", "export", "-o", file, NAME]).done().expect(0);
        lab.belljar(["image", "export", "-o", file, NAME])
            .done()
            .expect(125)
            .says(&["exported.tar"]);
        lab.belljar(["image", "rm", NAME]).done().expect(0);
        assert_eq!(lab.belljar(["image", "list", "-q"]).done().expect(0).out(), "");
        lab.belljar(["image", "load", file]).done().expect(0);
        assert_eq!(digest(lab), before);
        sh(lab, &[], "cat /n/last").expect(0);
    });
}

/// The store is Belljar's own directory: no run is given it, whatever it names.
#[test]
fn the_store_cannot_be_mounted() {
    each_user(|lab| {
        lab.load_image(&image());
        let layers = lab.home().join("images/layers");
        assert!(Path::new(&layers).is_dir());
        let mount = format!("{}:/data", layers.display());
        sh(lab, &["-v", &mount], "true").expect(125).says(&["Belljar's own directory"]);
        sh(lab, &[], "true").expect(0);
    });
}

/// Trees of the host come in through overlays of their own, which are made beside a root that cannot be written.
#[test]
fn mounts_of_every_mode_work_in_an_image() {
    each_user(|lab| {
        lab.load_image(&image());
        lab.make_file("ro/file", "ro\n");
        lab.make_file("rw/file", "rw\n");
        lab.make_file("over/file", "over\n");
        let at =
            |name: &str, mode: &str| format!("{}:/data/{name}:{mode}", lab.path(name).display());
        let mounts = [at("ro", "ro"), at("rw", "rw"), at("over", "overlay")];
        let mut options =
            vec!["--workspace", "none", "--tmpfs", "/data/memory", "--waive", "fs.sockets=a test"];
        options.extend(mounts.iter().flat_map(|mount| ["-v", mount.as_str()]));
        let script = "cat /data/*/file; for d in ro rw over memory; do \
                      touch /data/$d/new 2>/dev/null && echo wrote $d; done";
        let done = sh(lab, &options, script);
        assert_eq!(
            done.expect(0).out(),
            "over\nro\nrw\nwrote rw\nwrote over\nwrote memory\n",
            "{done}"
        );
        let is_there = |name: &str| lab.path(name).join("new").exists();
        assert_eq!(["ro", "rw", "over"].map(is_there), [false, true, false]);
    });
}

#[test]
fn a_sandbox_from_an_image_is_reused_by_the_name_of_the_image() {
    each_user(|lab| {
        lab.load_image(&image().config(json!({ "User": "web", "WorkingDir": "/srv" })));
        let run = |options: &[&str], command: &[&str]| {
            let fixed = ["--name", "x", "--reuse", "--workspace", "none"];
            let words = ON_IT.iter().chain(&fixed).chain(options).chain(command);
            lab.run(words.copied().collect::<Vec<_>>()).done()
        };
        let first = run(&[], &["--", "sh", "-c", "touch /tmp/mark; id -u"]);
        assert_eq!(first.expect(0).out(), "33\n", "{first}");
        let second = run(&[], &["--", "sh", "-c", "ls /tmp; id -u; pwd"]);
        assert_eq!(second.expect(0).out(), "mark\n33\n/srv\n", "{second}");
        run(&["--user", "5:5"], &["--", "true"]).expect(125).says(&["user"]);
        lab.belljar(["stop", "x"]).done().expect(0);
    });
}

#[test]
fn a_fork_starts_from_the_same_image_whatever_its_name_means_by_then() {
    each_user(|lab| {
        lab.load_image(&image());
        let before = digest(lab);
        let options = ["--keep", "-d", "--name", "first", "--workspace", ".:overlay"];
        lab.run(ON_IT.iter().chain(&options)).done().expect(0);
        let sh =
            |run: &str, script: &str| lab.belljar(["exec", run, "--", "sh", "-c", script]).done();
        sh("first", "touch /workspace/made").expect(0);
        lab.belljar(["checkpoint", "first"]).done().expect(0);
        lab.belljar(["stop", "first"]).done().expect(0);
        let second = TestLayer::default().file("etc/second", "");
        lab.load_image(&TestImage::new(NAME, vec![TestLayer::base(), second]));
        lab.belljar(["fork", "first", "--name", "second", "-d"]).done().expect(0);
        let seen = sh("second", "ls /workspace /etc/second 2>/dev/null");
        assert_eq!(seen.out(), "/workspace:\nmade\n", "{seen}");
        lab.belljar(["show", "second"]).done().expect(0).prints(&[&before]);
        lab.belljar(["stop", "second"]).done().expect(0);
        // The control: the name means the new one.
        let new = lab.run(ON_IT.iter().chain(&["--", "ls", "/etc/second"])).done();
        assert_eq!(new.expect(0).out(), "/etc/second\n", "{new}");
    });
}
