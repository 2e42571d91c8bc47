//! What an image says about itself: entrypoint, command and working directory are honoured, what would give it power is
//! not, and where it would put a mount elsewhere nothing is started.

use std::os::unix::fs::PermissionsExt;

use belljar_testkit::{Held, Lab, TestEngine};

/// An image on the engine, removed in the end.
struct Image {
    engine: TestEngine,
    name: String,
}

impl Image {
    /// `changes`: lines of a Dockerfile. `links`: names in its root that lead elsewhere.
    fn import(engine: TestEngine, name: &str, changes: &[&str], links: &[(&str, &str)]) -> Self {
        let access = engine.access().unwrap();
        let tree = tempfile::TempDir::with_prefix("belljar-image-").unwrap();
        let base = tree.path();
        for directory in ["bin", "real"] {
            std::fs::create_dir(base.join(directory)).unwrap();
        }
        plant_busybox(&base.join("bin/busybox"));
        for applet in ["sh", "cat", "env", "id", "touch", "ls", "true"] {
            std::os::unix::fs::symlink("busybox", base.join("bin").join(applet)).unwrap();
        }
        for (link, to) in links {
            let path = base.join(link);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(to, path).unwrap();
        }
        let tar = std::process::Command::new("tar").arg("-C").arg(base).args(["-c", "."]).output();
        let repository = format!("belljar-hostile/{name}");
        let changes: String =
            changes.iter().map(|change| format!("&changes={}", escaped(change))).collect();
        let target = format!("/images/create?fromSrc=-&repo={repository}&tag=1{changes}");
        let body = tar.unwrap().stdout;
        let answer =
            belljar_testkit::http::post(access.socket(), &target, "application/x-tar", &body);
        let answer = answer.and_then(belljar_testkit::http::Answer::good).unwrap();
        let id = answer.text().split("sha256:").nth(1).unwrap()[..64].to_owned();
        Self { engine, name: format!("sha256:{id}") }
    }

    fn lab(&self) -> Lab {
        let access = self.engine.access().unwrap().with_image(self.name.clone());
        Lab::on(access, self.engine.actor())
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let access = self.engine.access().unwrap();
        let _ = belljar_testkit::http::delete(
            access.socket(),
            &format!("/images/{}?force=1", self.name),
        );
    }
}

/// The busybox of the suite's own image: this machine need not have one.
fn plant_busybox(at: &std::path::Path) {
    let archive = std::env::var_os(belljar::spec::env::TEST_IMAGE_ARCHIVE).unwrap();
    let mut archive = tar::Archive::new(std::fs::File::open(archive).unwrap());
    let is_busybox = |entry: &tar::Entry<'_, std::fs::File>| {
        entry.path().is_ok_and(|path| path.ends_with("bin/busybox"))
    };
    let mut entries = archive.entries().unwrap().map(Result::unwrap);
    let mut busybox = entries.find(is_busybox).expect("the image has no bin/busybox");
    busybox.unpack(at).unwrap();
    assert_eq!(std::fs::metadata(at).unwrap().permissions().mode() & 0o777, 0o755);
}

fn escaped(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// Engines that take the changes of an import.
fn engines() -> impl Iterator<Item = TestEngine> {
    let all = [TestEngine::Docker, TestEngine::Podman, TestEngine::Runsc];
    all.into_iter().filter(|engine| engine.access().is_some())
}

#[test]
fn what_an_image_says_about_itself_gives_it_no_power() {
    let changes = [
        r#"ENTRYPOINT ["/bin/env", "ENTERED=yes"]"#,
        r#"CMD ["/bin/sh", "-c", "echo by default $ENTERED; pwd"]"#,
        "ENV LD_PRELOAD=/evil.so",
        "ENV BASH_ENV=/evil",
        "ENV PATH=/evil:/workspace/evil",
        "ENV SEEN=yes",
        "USER 0",
        "WORKDIR /real",
        "VOLUME /data",
        "LABEL belljar.run=another",
    ];
    for engine in engines() {
        let image = Image::import(engine, "claims", &changes, &[]);
        let lab = image.lab();
        let script =
            "id -u; pwd; echo $LD_PRELOAD$BASH_ENV; echo $SEEN$ENTERED; touch /data/x && echo data";
        let done = lab.sh(&[], script);
        let out = done.expect(0).out();
        let lines: Vec<&str> = out.lines().collect();
        assert_ne!(lines[0], "0", "{done}");
        assert_eq!(lines[1..], ["/workspace", "", "yesyes", "data"], "{done}");
        let by_default = lab.run(["--workspace", "none"]).done();
        assert_eq!(by_default.expect(0).out(), "by default yes\n/real\n", "{by_default}");
        let plain = lab.sh(&["--entrypoint", "", "-w", "/bin"], "echo .$ENTERED.; pwd");
        assert_eq!(plain.expect(0).out(), "..\n/bin\n", "{plain}");
        assert_eq!(lab.containers(), Vec::<Held>::new());
        lab.assert_all_sound();
    }
}

/// Where a link would send a mount elsewhere, the attestation finds it, and nothing was started.
#[test]
fn links_in_an_image_send_no_mount_elsewhere() {
    let cases: &[(&str, &str)] = &[
        ("dev", "/real"),
        ("proc", "/real"),
        ("sys", "/real"),
        ("etc", "/real"),
        ("workspace", "/etc"),
        ("home", "/real"),
        ("home/agent", "/real"),
        (".belljar", "/real"),
        (".belljar/init", "/real/x"),
        ("tmp", "/real"),
        ("etc/passwd", "/real/passwd"),
    ];
    let mut refused = 0;
    for engine in engines() {
        for (number, case) in cases.iter().enumerate() {
            let image = Image::import(engine, &format!("link{number}"), &[], &[*case]);
            let lab = image.lab();
            let done = lab.sh(&[], "touch /workspace/mark && cat /proc/self/uid_map > /dev/null");
            // Right, or not at all.
            let marked = lab.work().join("mark").exists();
            match done.code() {
                0 => assert!(marked, "{case:?} on {}: {done}", engine.name()),
                125 => {
                    refused += 1;
                    assert!(!marked, "{case:?} on {}: {done}", engine.name());
                    assert!(!done.stderr.is_empty(), "no word about it: {done}");
                }
                code => panic!("{case:?} on {}: {code}: {done}", engine.name()),
            }
            assert_eq!(lab.containers(), Vec::<Held>::new());
        }
    }
    assert!(refused > 0 || engines().next().is_none(), "no link was ever refused");
}

/// What a container of somebody else's says about itself does not make it ours.
#[test]
fn a_strangers_container_that_claims_a_run_is_left_alone() {
    let Some(lab) = TestEngine::Docker.lab() else { return };
    let access = TestEngine::Docker.access().unwrap();
    lab.sh(&[], "true").expect(0);
    let run = lab.runs().pop().unwrap();
    // All that can be read from outside: the run's id and the name its container had.
    let body = serde_json::json!({
        "Image": access.flags()[3],
        "Cmd": ["true"],
        "Labels": { "belljar.run": run, "belljar.owner": "guessed", "belljar.nonce": "guessed" },
    });
    let target = format!("/containers/create?name=belljar-{run}");
    let made = belljar_testkit::http::post(
        access.socket(),
        &target,
        "application/json",
        body.to_string().as_bytes(),
    );
    let made = made.and_then(belljar_testkit::http::Answer::good).unwrap();
    let id: serde_json::Value = serde_json::from_slice(&made.body).unwrap();
    let id = id["Id"].as_str().unwrap().to_owned();
    // As if its supervisor had died.
    std::fs::write(lab.home().join("live").join(&run), "running\n").unwrap();
    let found = lab.reconcile();
    let there = access.get(&format!("/containers/{id}/json"));
    let _ = belljar_testkit::http::delete(access.socket(), &format!("/containers/{id}?force=1"));
    assert_eq!(found.left, Vec::<String>::new());
    assert_eq!(there["Id"], id.as_str());
}

/// What an engine has becomes an image of the jail, which needs the engine no more.
#[test]
fn an_image_of_an_engine_is_taken_over_into_the_jails_store() {
    for engine in [TestEngine::Docker, TestEngine::Podman] {
        let Some(lab) = engine.lab() else { continue };
        let name = engine.access().unwrap().flags()[3].clone();
        let missing = lab.belljar(["image", "import", &format!("{}:no-such:1", engine.name())]);
        assert_ne!(missing.done().code(), 0, "on {}", engine.name());
        let imported =
            lab.belljar(["image", "import", "--json", &format!("{}:{name}", engine.name())]).done();
        let digest = imported.expect(0).json()[0]["digest"].as_str().unwrap().to_owned();
        for image in [&name, &digest] {
            let words = ["run", "--backend", "jail", "--pull", "never", "--image", image];
            let done = lab.belljar(words.iter().chain(&[
                "--",
                "sh",
                "-c",
                "echo inside; ls /bin/busybox",
            ]));
            assert_eq!(done.done().expect(0).out(), "inside\n/bin/busybox\n", "{image}");
        }
        assert_eq!(lab.containers(), Vec::<Held>::new());
    }
}
