//! `belljar image build`, on the engines that are here: what is sent, when it is built again and why, and
//! what is refused.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use crate::image_support::TestImage;
use belljar_testkit::{Done, EngineAccess, Lab, TestEngine};

/// On Docker and on root's Podman, in an empty workspace.
fn each_builder(test: impl Fn(&Lab, &EngineAccess, &TestImage)) {
    for engine in [TestEngine::Docker, TestEngine::Podman] {
        let (Some(lab), Some(access)) = (engine.lab(), engine.access()) else { continue };
        eprintln!("--- on {}", engine.name());
        test(&lab, &access, &TestImage::new(&access));
    }
}

fn build(lab: &Lab, image: &TestImage, words: &[&str]) -> Done {
    let backend = lab.engine.as_ref().unwrap().flags()[1].clone();
    let own = ["image", "build", "--backend", &backend, "-t", &image.name];
    let done = lab.belljar(own.iter().chain(words)).done();
    image.note(&done);
    done
}

/// What it was built for, by `--json`; nothing if it was not.
fn why(lab: &Lab, image: &TestImage, words: &[&str]) -> Vec<String> {
    let words: Vec<&str> = ["--json"].iter().chain(words).copied().collect();
    let done = build(lab, image, &words);
    let said = done.expect(0).json();
    let why: Vec<String> = serde_json::from_value(said["why"].clone()).unwrap();
    assert_eq!(said["built"], !why.is_empty(), "{done}");
    assert_eq!(said["name"], image.name);
    why
}

#[test]
fn an_image_is_built_again_only_when_its_inputs_changed() {
    each_builder(|lab, _, image| {
        lab.make_file("work/Dockerfile", "FROM scratch\nARG V=1\nCOPY . /data\n");
        lab.make_file("work/a.txt", "a");
        lab.make_file("work/sub/b.txt", "b");
        assert_eq!(why(lab, image, &[]), ["the image does not exist"]);
        assert_eq!(why(lab, image, &[]), Vec::<String>::new());
        let again = build(lab, image, &[]);
        again.expect(0).says(&["is up to date"]);
        let id = again.out();
        assert!(id.starts_with("sha256:") && id.len() == 72, "{id}");

        lab.make_file("work/a.txt", "other");
        lab.make_file("work/sub/new", "");
        assert_eq!(why(lab, image, &[]), ["the context changed: a.txt, sub/new"]);
        fs::remove_file(lab.work().join("sub/new")).unwrap();
        assert_eq!(why(lab, image, &[]), ["the context changed: sub/new"]);
        assert_eq!(why(lab, image, &["--build-arg", "V=2"]), ["the build arguments changed"]);
        lab.make_file("work/Dockerfile", "FROM scratch\nARG V=1\nCOPY . /other\n");
        let changed = ["the Dockerfile changed", "the build arguments changed"];
        assert_eq!(why(lab, image, &[]), changed);
        assert_eq!(why(lab, image, &["--force"]), ["forced"]);
        assert_eq!(why(lab, image, &["--no-cache"]), ["--no-cache was given"]);
        assert_eq!(why(lab, image, &[]), Vec::<String>::new());
        // Nobody knows the names in another home; the change is seen all the same.
        fs::remove_dir_all(lab.home().join("builds")).unwrap();
        lab.make_file("work/a.txt", "third");
        assert_eq!(why(lab, image, &[]), ["the context changed"]);
        image.remove();
        assert_eq!(why(lab, image, &[]), ["the image does not exist"]);
    });
}

#[test]
fn what_is_sent_is_the_context_and_nothing_else() {
    each_builder(|lab, access, image| {
        let base = &access.flags()[3];
        let script = "set -e; cd /data; test ! -e .env; test ! -e out/x; test -e out/keep; \
            test \"$(readlink link)\" = /etc/passwd; \
            test ! -e pipe; test ! -e socket; test ! -e .belljar.Dockerfile; test -x tool; \
            test \"$(cat 'a b')\" = spaced; test \"$(stat -c %u:%g tool)\" = 0:0; echo all is well";
        lab.make_file(
            "elsewhere/my.Dockerfile",
            format!("FROM {base}\nCOPY . /data\nRUN {script}\n"),
        );
        lab.make_file("context/.dockerignore", "# no secrets\n.env\nout\n!out/keep\n");
        for name in [".env", "out/x", "out/keep"] {
            lab.make_file(format!("context/{name}"), name);
        }
        lab.make_file("context/a b", "spaced");
        lab.make_program("context/tool", "#!/bin/sh\n");
        let context = lab.path("context");
        symlink("/etc/passwd", context.join("link")).unwrap();
        let _socket = UnixListener::bind(context.join("socket")).unwrap();
        let fifo = rustix::fs::FileType::Fifo;
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, context.join("pipe"), fifo, mode, 0).unwrap();
        let file = lab.path("elsewhere/my.Dockerfile");
        let words = ["-f", file.to_str().unwrap(), "--network", "none", context.to_str().unwrap()];
        build(lab, image, &words).expect(0).says(&[
            "all is well",
            "pipe is a FIFO",
            "socket is a socket",
            "building, because the image does not exist",
        ]);
        // Kept as it is, where the engine takes it.
        symlink("../../..", context.join("up")).unwrap();
        let done = build(lab, image, &words);
        match access.flags()[1].as_str() {
            "docker" => done.expect(0).says(&["the context changed: up"]),
            _ => done.expect(1).says(&["up is a link that points out of the context"]),
        };
        lab.make_file("context/.dockerignore", "[");
        build(lab, image, &words).expect(125).says(&[".dockerignore, line 1"]);
    });
}

#[test]
fn a_run_starts_from_what_was_built() {
    each_builder(|lab, access, image| {
        let flags = access.flags();
        lab.make_file("images/Dockerfile", format!("FROM {}\nCOPY hello /hello\n", flags[3]));
        lab.make_file("images/hello", "from the image");
        let file = lab.path("images/Dockerfile");
        build(lab, image, &["-q", "-f", file.to_str().unwrap()]).expect(0);
        let words =
            ["run", "-q", "--pull", "never", "--backend", &flags[1], "--image", &image.name];
        let done = lab.belljar(words.iter().chain(&["--", "cat", "/hello"])).done();
        assert_eq!(done.expect(0).out(), "from the image");
    });
}

#[test]
fn a_failed_step_is_told_and_its_words_cannot_drive_a_terminal() {
    each_builder(|lab, access, image| {
        let base = &access.flags()[3];
        let hostile = "printf 'red \\033[31m bell \\007 back\\033]0;title\\007\\n'";
        lab.make_file("work/Dockerfile", format!("FROM {base}\nRUN {hostile}; exit 7\n"));
        for words in [&[][..], &["-q"]] {
            let done = build(lab, image, words);
            done.expect(1).says(&["red \\u{1b}[31m bell \\u{7}", "could not be built"]);
            assert!(!done.stderr.iter().any(|byte| matches!(byte, 0x1b | 0x07)), "{done}");
            assert_eq!(done.out(), "");
        }
        let words = build(lab, image, &["--json"]);
        assert!(words.expect(1).json()["error"].as_str().unwrap().contains("could not be built"));
        lab.make_file("work/Dockerfile", "NONSENSE\n");
        build(lab, image, &["-q"]).expect(1).says(&["could not be built"]);
    });
}

#[test]
fn wrong_words_are_refused_with_the_right_ones() {
    let lab = Lab::me();
    let says = |words: &[&str], code: i32, said: &[&str]| {
        let done: Done = lab.belljar(["image", "build"].iter().chain(words)).done();
        done.expect(code).says(said);
    };
    says(&["-t", "Upper"], 125, &["\"Upper\" is not an image name", "hint:"]);
    says(&["-t", "x@sha256:12"], 125, &["not a digest"]);
    says(&[], 125, &["has neither a Dockerfile nor a Containerfile", "-f FILE", "--agent"]);
    says(&["-f", "gone"], 125, &["gone", "does not exist"]);
    says(&["gone"], 125, &["gone", "does not exist"]);
    says(&["--backend", "jail"], 2, &["docker or podman"]);
    says(&["--agent", "."], 2, &["cannot be used with"]);
    says(&["--build-arg", "a b=c"], 2, &["letters, digits"]);
    says(&["--build-arg", "NOT_SET"], 2, &["NOT_SET is not set"]);
    lab.make_file("work/Dockerfile", "FROM scratch\n");
    let nowhere = format!("unix://{}", lab.path("no-engine").display());
    let call = lab.belljar(["image", "build"]).env("DOCKER_HOST", &nowhere);
    call.env("CONTAINER_HOST", &nowhere).done().expect(125).says(&["docker engine", "hint:"]);
}

#[test]
fn a_dockerfile_that_a_run_could_have_changed_is_trusted_by_content() {
    let (Some(lab), Some(access)) = (TestEngine::Docker.lab(), TestEngine::Docker.access()) else {
        return;
    };
    let image = &TestImage::new(&access);
    lab.make_file("work/Dockerfile", "FROM scratch\nCOPY . /data\n");
    lab.make_file("work/.dockerignore", ".env\n");
    let built = |words: &[&str]| build(&lab, image, words);
    built(&["-q"]).expect(0);
    // From now on it lies in a tree that a run could write.
    lab.belljar(["run", "-q", "--", "true"]).done().expect(0);
    let file = lab.work().join("Dockerfile");
    let trust = format!("belljar trust {}", file.display());
    built(&["-q"]).expect(125).says(&["a run could have changed", "not trusted yet", &trust]);
    lab.belljar(["trust", "Dockerfile"]).done().expect(0).says(&["executed by the engine"]);
    built(&["-q", "--force"]).expect(0);
    // Its files may change, which is said; what they are built by and which are left out may not.
    lab.make_file("work/a", "a");
    built(&[]).expect(0).says(&["a run could write to the build context"]);
    lab.make_file("work/.dockerignore", "");
    built(&["-q"]).expect(125).says(&["has changed since it was trusted"]);
    fs::remove_file(lab.work().join(".dockerignore")).unwrap();
    built(&["-q"]).expect(125);
    lab.make_file("work/.dockerignore", ".env\n");
    built(&["-q"]).expect(0);
    lab.make_file("work/Dockerfile", "FROM scratch\nCOPY . /other\n");
    built(&["-q"]).expect(125).says(&["has changed since it was trusted"]);
    // A link that a run left leads nowhere.
    let outside = lab.make_directory("outside");
    lab.make_file("outside/Dockerfile", "FROM scratch\nCOPY . /x\n");
    symlink(&outside, lab.work().join("planted")).unwrap();
    built(&["-q", "planted"]).expect(125).says(&["is a link in", "a run could have planted it"]);
    built(&["-q", "-f", "planted/Dockerfile", "../outside"]).expect(125).says(&["is a link in"]);
    fs::remove_file(&file).unwrap();
    symlink(outside.join("Dockerfile"), &file).unwrap();
    built(&["-q"]).expect(125).says(&["is a link in"]);
    // What is named by its own path, outside, is the operator's.
    built(&["-q", outside.to_str().unwrap()]).expect(0);
    let forgot = lab.belljar(["trust", "--forget", "Dockerfile"]).done();
    forgot.expect(0);
}

#[test]
fn belljars_own_directory_stays_out_of_images() {
    let (Some(lab), Some(access)) = (TestEngine::Docker.lab(), TestEngine::Docker.access()) else {
        return;
    };
    let image = &TestImage::new(&access);
    lab.make_file("Dockerfile", "FROM scratch\nCOPY . /data\n");
    let top = lab.path("");
    let words = ["-q", top.to_str().unwrap()];
    build(&lab, image, &words).expect(125).says(&["Belljar's records", "home"]);
    lab.make_file(".dockerignore", "*\n!work\n");
    build(&lab, image, &words).expect(0);
}

#[test]
fn the_shipped_dockerfile_can_be_had() {
    let lab = Lab::me();
    let printed = lab.belljar(["image", "dockerfile"]).done();
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/../../images/agent.Dockerfile");
    assert_eq!(printed.expect(0).out(), fs::read_to_string(shipped).unwrap());
}
