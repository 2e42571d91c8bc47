//! Images from a registry: fetched by a real engine, as the policy says, with the caller's credentials, and
//! recorded by digest.

use std::path::Path;

use crate::image_support::{Layer, Registry, TestImage, auth};
use belljar_testkit::{Done, Lab, PtyRun, TestEngine};

/// Its header has characters that stand differently in the two alphabets of base 64.
const LOGIN: &str = "ann:pw~~~???>>>1";
const PASSWORD: &str = "pw~~~???>>>1";

struct Pulling {
    lab: Lab,
    registry: Registry,
    image: TestImage,
}

impl Pulling {
    fn new(login: Option<&str>, architecture: &str, layer: Layer) -> Option<Self> {
        let access = TestEngine::Docker.access()?;
        let lab = TestEngine::Docker.lab()?;
        let registry = Registry::start(login, architecture, layer);
        let image = TestImage::named(&access, format!("{}/team/app:1", registry.address));
        Some(Self { lab, registry, image })
    }

    /// The command is not in the image; that is found out in a container made from it.
    fn run(&self, options: &[&str]) -> Done {
        self.call(options).done()
    }

    fn call(&self, options: &[&str]) -> belljar_testkit::Call<'_> {
        let words = ["run", "--backend", "docker", "--image", &self.image.name];
        let command = ["--", "/no-such-program"];
        self.lab.belljar(words.iter().chain(options).chain(&command))
    }

    fn config(&self, text: &str) -> std::path::PathBuf {
        self.lab.make_file("docker/config.json", text);
        self.lab.path("docker")
    }
}

fn machine() -> &'static str {
    match std::env::consts::ARCH {
        "aarch64" => "arm64",
        _ => "amd64",
    }
}

#[test]
fn an_image_is_fetched_as_the_policy_says_and_recorded_by_digest() {
    let Some(pulling) = Pulling::new(None, machine(), Layer::Small) else { return };
    let Pulling { lab, registry, image } = &pulling;
    // Neither of these fetches anything.
    for words in [&["--pull", "never"][..], &["--dry-run"], &["--dry-run", "--pull", "always"]] {
        let name = &image.name;
        pulling.run(words).expect(125).says(&["has no image", &format!("docker pull {name}")]);
    }
    assert_eq!(registry.asked(), Vec::<String>::new());
    lab.assert_nothing_was_made();

    pulling.run(&["-q"]).expect(127);
    assert!(registry.asked().iter().any(|asked| asked.contains("/blobs/")));
    let id = &lab.runs()[0];
    let recorded = lab.record(id)["image"].clone();
    let digest = format!("{}/team/app@{}", registry.address, registry.digest);
    assert_eq!(recorded["name"], image.name);
    assert_eq!(recorded["digest"], digest);
    assert!(recorded["id"].as_str().unwrap().starts_with("sha256:"));
    let events = lab.belljar(["events", "--kind", "sandbox.planned", id]).done();
    assert!(events.out().contains(&digest), "{events}");
    let shown = lab.belljar(["show", id]).done();
    assert!(shown.out().contains(&digest) && shown.out().contains(&image.name), "{shown}");

    pulling.run(&["-q"]).expect(127);
    pulling.run(&["-q", "--pull", "never"]).expect(127);
    let plan = pulling.run(&["--dry-run"]);
    assert!(plan.expect(0).out().contains(&digest), "{plan}");
    assert_eq!(registry.asked(), Vec::<String>::new(), "what is there is not asked for");
    pulling.run(&["-q", "--pull", "always"]).expect(127);
    assert!(registry.asked().iter().any(|asked| asked.contains("/manifests/1")));

    // What cannot be fetched is not the old one in silence.
    registry.close();
    let refused = pulling.run(&["-q", "--pull", "always"]);
    refused.expect(125).says(&["cannot fetch", &image.name, "cannot reach"]);
    pulling.run(&["-q"]).expect(127);

    // By digest, too.
    let pinned = TestImage::named(&TestEngine::Docker.access().unwrap(), digest.clone());
    let call = lab.belljar(["run", "-q", "--backend", "docker", "--image", &pinned.name]);
    call.arg("--").arg("/no-such-program").done().expect(127);
}

#[test]
fn credentials_come_from_dockers_own_files_and_helpers_and_go_nowhere_else() {
    let Some(pulling) = Pulling::new(Some(LOGIN), machine(), Layer::Small) else { return };
    let Pulling { lab, registry, image } = &pulling;
    let address = &registry.address;
    let login = format!("docker login {address}");
    pulling.run(&["-q"]).expect(125).says(&["cannot fetch", &login]);

    let pulled = |what: &str, call: belljar_testkit::Call<'_>| {
        let done = call.done();
        assert_eq!(done.code(), 127, "{what}: {done}");
        image.remove();
        done
    };
    let kept = format!(r#"{{"auths":{{"{address}":{{"auth":"{}"}}}}}}"#, auth(LOGIN));
    let config = pulling.config(&kept);
    pulled("auths", pulling.call(&["-q"]).env("DOCKER_CONFIG", &config));
    // Where docker's own command looks by itself.
    lab.make_file("person/.docker/config.json", &kept);
    pulled("home", pulling.call(&["-q"]));
    std::fs::remove_file(lab.person().join(".docker/config.json")).unwrap();

    lab.make_program(
        "helpers/docker-credential-test",
        &format!(
            "#!/bin/sh\n[ \"$1\" = get ] && [ \"$(cat)\" = {address} ] && pwd > {} && \
             printf '{{\"Username\":\"ann\",\"Secret\":\"{PASSWORD}\"}}'\n",
            lab.path("asked").display()
        ),
    );
    lab.make_program("helpers/docker-credential-broken", "#!/bin/sh\necho secret-words; exit 3\n");
    let path = format!("{}:/usr/bin:/bin", lab.path("helpers").display());
    let with = |config: &str| {
        let config = pulling.config(config);
        pulling.call(&["-q"]).env("DOCKER_CONFIG", config).env("PATH", &path)
    };
    pulled("a helper for one", with(&format!(r#"{{"credHelpers":{{"{address}":"test"}}}}"#)));
    pulled("a helper for all", with(r#"{"credsStore":"test"}"#));
    let asked = std::fs::read_to_string(lab.path("asked")).unwrap();
    assert_eq!(asked.trim(), "/", "a helper does not run in the workspace");

    for (config, words) in [
        (r#"{"credsStore":"broken"}"#, &["docker-credential-broken failed", &login][..]),
        (r#"{"credsStore":"none"}"#, &["no docker-credential-none on the PATH"]),
        (r#"{"credsStore":"../test"}"#, &["a name that no program can have"]),
        (r#"{"auths": "pw~~~???>>>1"}"#, &["config.json is not as it should be, at line 1"]),
        (
            &format!(r#"{{"auths":{{"{address}":{{"auth":"{}"}}}}}}"#, auth("ann:wrong-word")),
            &["cannot fetch", &login],
        ),
    ] {
        let done = with(config).done();
        done.expect(125).says(words);
        for secret in [PASSWORD, "wrong-word", "secret-words", &auth(LOGIN)] {
            assert!(!done.err().contains(secret), "{secret}: {done}");
        }
    }
    assert_nowhere(&lab.home(), PASSWORD.as_bytes());
    assert_nowhere(&lab.home(), auth(LOGIN).as_bytes());
}

fn assert_nowhere(directory: &Path, secret: &[u8]) {
    for entry in std::fs::read_dir(directory).unwrap().flatten() {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            assert_nowhere(&entry.path(), secret);
        } else if kind.is_file() && entry.metadata().unwrap().len() < 1 << 20 {
            let content = std::fs::read(entry.path()).unwrap();
            let has = content.windows(secret.len()).any(|window| window == secret);
            assert!(!has, "{} has a secret", entry.path().display());
        }
    }
}

#[test]
fn an_image_for_another_architecture_is_refused() {
    let other = if machine() == "arm64" { "amd64" } else { "arm64" };
    let Some(pulling) = Pulling::new(None, other, Layer::Small) else { return };
    pulling.run(&["-q"]).expect(125).says(&[
        &format!("is for {other}, and the engine's machine is {}", machine()),
        &format!("linux/{}", machine()),
    ]);
    pulling.lab.assert_nothing_was_made();
}

#[test]
fn progress_is_a_line_on_a_terminal_and_nothing_elsewhere() {
    let Some(pulling) = Pulling::new(None, machine(), Layer::Slow) else { return };
    let call = pulling.call(&[]).env("TERM", "xterm").through(PtyRun::SESSION);
    let (code, screen) = PtyRun::start(&call, 24, 80).end();
    assert_eq!(code, 127, "{screen}");
    let begun = screen.find("\r\u{1b}[Kfetching ").unwrap_or_else(|| panic!("{screen:?}"));
    let lines: Vec<&str> = screen[begun..].split("\r\u{1b}[K").skip(1).collect();
    let (last, fetching) = lines.split_last().unwrap();
    assert!(!last.contains("fetching"), "the line stays: {screen:?}");
    for line in fetching {
        assert!(line.starts_with("fetching ") && line.contains("] "), "{screen:?}");
        assert!(line.contains(" MiB of 4.0 MiB") && line.chars().count() < 80, "{screen:?}");
    }
    drop(call);
    pulling.image.remove();
    let plain = pulling.run(&[]);
    assert!(!plain.expect(127).err().contains("fetching"), "{plain}");
    pulling.image.remove();
    let quiet = pulling.call(&["-q"]).env("TERM", "xterm").through(PtyRun::SESSION);
    let (code, screen) = PtyRun::start(&quiet, 24, 80).end();
    assert!(code == 127 && !screen.contains("fetching"), "{screen:?}");
}
