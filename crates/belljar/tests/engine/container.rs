//! Belljar inside a container, as in a CI job: `doctor` says why the jail does not start, and exactly the flags that it
//! prints make it start.

use std::os::unix::fs::chown;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use belljar_testkit::{Actor, Lab, TestEngine};
use serde_json::Value;

const PAGE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/ci.md"));
const ORDINARY: &str = "1000:1000";
const ROOT: &str = "0:0";
const HOME: &str = "/tmp/belljar";

/// Containers of one engine, with belljar and a workspace in them.
struct Containers {
    lab: Lab,
    program: &'static str,
    image: String,
}

impl Containers {
    fn of(engine: TestEngine) -> Option<Self> {
        let access = engine.access()?;
        let program = if engine == TestEngine::Podman { "podman" } else { "docker" };
        let mut flags = access.flags().into_iter().skip_while(|flag| flag != "--image");
        let image = flags.nth(1).unwrap();
        let lab = Lab::on(access, Actor::Me);
        chown(lab.work(), Some(1000), Some(1000)).unwrap();
        let profile = lab.belljar(["setup", "--print", "seccomp-profile"]).done().expect(0).out();
        std::fs::write(lab.path("belljar-seccomp.json"), profile).unwrap();
        Some(Self { lab, program, image })
    }

    /// The engine's own command, which finds the engine by its variable.
    fn engine(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.program);
        let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        command.env_clear().env("PATH", path).env("HOME", self.lab.person());
        command.envs(self.lab.engine.as_ref().unwrap().variables());
        if self.program == "podman" {
            command.arg("--remote");
        }
        command.args(words).stdin(Stdio::null()).current_dir(self.lab.path(""));
        command
    }

    /// `… run FLAGS IMAGE belljar WORDS…` as this user of the container. A volume for belljar's home, where a flag names
    /// one, is this test's own.
    fn belljar(&self, user: &str, flags: &[String], words: &[&str]) -> Output {
        let binary = format!("{}:/usr/local/bin/belljar:ro", self.lab.exe.display());
        let work = format!("{}:/work", self.lab.work().display());
        let mut command = self.engine(&["run", "--rm", "--network", "none", "--user", user]);
        command.args(["-e", &format!("BELLJAR_HOME={HOME}"), "-v", &binary, "-v", &work]);
        command.args(flags.iter().flat_map(|flag| flag.split(' ')));
        command.arg(&self.image).arg("belljar").args(words);
        command.output().unwrap()
    }

    /// What `doctor` finds out about the jail.
    fn doctor(&self, user: &str, flags: &[String]) -> Value {
        let done = self.belljar(user, flags, &["doctor", "--json"]);
        let rows: Value = serde_json::from_slice(&done.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", said(&done)));
        rows.as_array().unwrap().iter().find(|row| row["backend"] == "jail").unwrap().clone()
    }

    /// Without flags it does not work, and `doctor` says why; with its flags it does.
    fn follow(&self, user: &str, causes: &[&str], flags: &[&str]) {
        let name = format!("{} as {user}", self.program);
        let run = ["run", "--workspace", "none", "--backend", "jail", "--", "true"];
        let refused = self.belljar(user, &[], &run);
        assert_eq!(refused.status.code(), Some(125), "{name}: {}", said(&refused));
        assert!(said(&refused).contains("belljar doctor"), "{name}: {}", said(&refused));
        let found = self.doctor(user, &[]);
        assert_eq!(found["usable"], false, "{name}: {found:#}");
        for cause in causes {
            assert!(found["why"].as_str().unwrap().contains(cause), "{name}: {cause}: {found:#}");
        }
        let printed: Vec<String> =
            serde_json::from_value(found["container_flags"].clone()).unwrap();
        assert_eq!(printed, flags, "{name}: {found:#}");
        let line = format!("{} run {}", self.program, flags.join(" "));
        assert!(found["fix"].as_str().unwrap().contains(&line), "{name}: {found:#}");
        // Every flag is needed.
        for (at, flag) in printed.iter().enumerate() {
            let mut fewer = printed.clone();
            fewer.remove(at);
            let done = self.belljar(user, &self.made_real(&fewer), &run);
            assert_eq!(done.status.code(), Some(125), "{name} without {flag}: {}", said(&done));
        }
        let all = self.made_real(&printed);
        let done = self.belljar(user, &all, &run);
        assert_eq!(done.status.code(), Some(0), "{name}: {}", said(&done));
        assert_eq!(self.doctor(user, &all)["usable"], true);
    }

    /// The file and the volume that the flags name, as this test has them.
    fn made_real(&self, flags: &[String]) -> Vec<String> {
        let profile = self.lab.path("belljar-seccomp.json").display().to_string();
        let volume = format!("belljar-home-{}", std::process::id());
        let real = |flag: &String| {
            flag.replace("belljar-seccomp.json", &profile).replace("belljar-home", &volume)
        };
        flags.iter().map(real).collect()
    }
}

impl Drop for Containers {
    fn drop(&mut self) {
        let volume = format!("belljar-home-{}", std::process::id());
        let _ = self.engine(&["volume", "rm", "--force", &volume]).output();
    }
}

fn said(done: &Output) -> String {
    String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr)
}

const FILTER: &str = "--security-opt seccomp=belljar-seccomp.json";
const WHOLE_PROC: &str = "--security-opt systempaths=unconfined";

#[test]
fn in_docker_an_ordinary_user_needs_a_filter_and_a_whole_proc() {
    let Some(docker) = Containers::of(TestEngine::Docker) else { return };
    let causes = ["system call filter refuses user namespaces", "covers parts of /proc"];
    docker.follow(ORDINARY, &causes, &[FILTER, WHOLE_PROC]);
}

#[test]
fn in_docker_root_needs_a_capability_and_a_volume_besides() {
    let Some(docker) = Containers::of(TestEngine::Docker) else { return };
    let volume = format!("-v belljar-home:{HOME}");
    let causes = ["user namespaces", "covers parts of /proc", "no CAP_SYS_ADMIN", HOME];
    docker.follow(ROOT, &causes, &[FILTER, WHOLE_PROC, "--cap-add SYS_ADMIN", &volume]);
}

/// Its own filter lets user namespaces through, and not a host name for them.
#[test]
fn in_podman_an_ordinary_user_needs_a_filter_and_a_whole_proc() {
    let Some(podman) = Containers::of(TestEngine::Podman) else { return };
    let causes = ["system call filter refuses host names", "covers parts of /proc"];
    podman.follow(ORDINARY, &causes, &[FILTER, "--security-opt unmask=ALL"]);
}

#[test]
fn in_podman_root_needs_a_capability_and_a_volume_besides() {
    let Some(podman) = Containers::of(TestEngine::Podman) else { return };
    let volume = format!("-v belljar-home:{HOME}");
    let flags = ["--security-opt unmask=ALL", "--cap-add SYS_ADMIN", &volume];
    podman.follow(ROOT, &["covers parts of /proc", "no CAP_SYS_ADMIN", HOME], &flags);
}

#[test]
fn limits_inside_a_container_are_said_to_be_the_containers() {
    let Some(docker) = Containers::of(TestEngine::Docker) else { return };
    let flags = docker.made_real(&[FILTER.to_owned(), WHOLE_PROC.to_owned()]);
    let found = docker.doctor(ORDINARY, &flags);
    let memory = found["posture"]["limit.memory"].to_string();
    assert!(memory.contains("read-only here, as in a container"), "{memory}");
    assert!(memory.contains("docker run --memory"), "{memory}");
}

/// The kernel reads 32 bits of an address family, an engine's list compares 64.
#[test]
fn the_filter_of_the_page_refuses_every_form_of_a_vsock() {
    let Some(docker) = Containers::of(TestEngine::Docker) else { return };
    let image = std::env::var(belljar::spec::env::TEST_IMAGE_DEBIAN).expect("no image of Debian");
    let number = if cfg!(target_arch = "aarch64") { 198 } else { 41 };
    let script = format!(
        "for (1, 1 | 1 << 32, 40, 40 | 1 << 32) {{ $! = 0; syscall({number}, $_, 1, 0); print $! + 0, \" \" }}"
    );
    let errors = |filter: &str| -> Vec<i32> {
        let flag = format!("seccomp={filter}");
        let words = ["run", "--rm", "--network", "none", "--security-opt", &flag, &image];
        let done = docker.engine(&words).args(["perl", "-e", &script]).output().unwrap();
        assert!(done.status.success(), "{}", said(&done));
        said(&done).split_whitespace().map(|error| error.parse().unwrap()).collect()
    };
    // Old engines answer EPERM where a list asks for ENOSYS.
    let refused = [rustix::io::Errno::PERM, rustix::io::Errno::NOSYS].map(|one| one.raw_os_error());
    let own = errors(&docker.lab.path("belljar-seccomp.json").display().to_string());
    assert_eq!(own[..2], [0, 0], "AF_UNIX: {own:?}");
    assert!(own[2..].iter().all(|error| refused.contains(error)), "AF_VSOCK: {own:?}");
    // The control: without a filter the kernel answers, which may have no AF_VSOCK.
    let without = errors("unconfined");
    assert!(without.iter().all(|error| !refused.contains(error)), "{without:?}");
}

/// The lines of the first block of this kind below a heading of the page.
fn block(heading: &str, kind: &str) -> String {
    let (_, section) =
        PAGE.split_once(heading).unwrap_or_else(|| panic!("no {heading} in docs/ci.md"));
    let (_, code) = section.split_once(&format!("```{kind}\n")).unwrap();
    code.split_once("```").unwrap().0.to_owned()
}

/// What the page has is what the test has: an image of that name, belljar in the path, a script.
fn shell(docker: &Containers, script: &str) -> Output {
    let lab = &docker.lab;
    lab.make_program("work/test.sh", "#!/bin/sh\necho tested in $PWD > result.txt\n");
    chown(lab.path("work/test.sh"), Some(1000), Some(1000)).unwrap();
    let tagged = docker.engine(&["tag", &docker.image, "my-image"]).output().unwrap();
    assert!(tagged.status.success(), "{}", said(&tagged));
    let path = format!("{}:/usr/local/bin:/usr/bin:/bin", lab.exe.parent().unwrap().display());
    let mut sh = Command::new("sh");
    sh.args(["-e", "-c", script]).current_dir(lab.work()).stdin(Stdio::null());
    sh.env_clear().env("PATH", path).env("HOME", lab.person());
    sh.envs(lab.engine.as_ref().unwrap().variables()).output().unwrap()
}

fn result(lab: &Lab) -> Option<String> {
    std::fs::read_to_string(Path::new(&lab.work()).join("result.txt")).ok()
}

#[test]
fn the_commands_of_the_page_about_ci_work_as_they_are() {
    let Some(docker) = Containers::of(TestEngine::Docker) else { return };
    let done = shell(&docker, &block("## With `docker run`", "sh"));
    assert!(done.status.success(), "{}", said(&done));
    assert_eq!(result(&docker.lab).as_deref(), Some("tested in /workspace\n"));
}

/// The options, variables, volumes and the step of the job, in the container that a runner would start.
#[test]
fn the_job_of_the_page_about_ci_works() {
    let Some(docker) = Containers::of(TestEngine::Docker) else { return };
    let job = block("## A job in a container", "yaml");
    let below = |key: &str| -> Vec<String> {
        let lines = job.lines().skip_while(|line| line.trim() != key);
        let depth = |line: &str| line.len() - line.trim_start().len();
        let own = lines.clone().next().map(depth).unwrap_or_else(|| panic!("no {key} in the job"));
        lines
            .skip(1)
            .take_while(|line| depth(line) > own)
            .map(|line| line.trim().to_owned())
            .collect()
    };
    let mut flags = below("options: >-");
    flags.extend(below("env:").iter().map(|line| format!("-e {}", line.replace(": ", "="))));
    flags.extend(below("volumes:").iter().map(|line| line.replace("- ", "-v ")));
    let step =
        job.lines().filter_map(|line| line.trim().strip_prefix("- run: ")).next_back().unwrap();
    let flags = docker.made_real(&flags).join(" ");
    let script = format!(
        "docker run --rm --network none {flags} -v {}:/usr/local/bin/belljar:ro -v \"$PWD\":/__w -w /__w \
         my-image {step}",
        docker.lab.exe.display()
    );
    let done = shell(&docker, &script);
    assert!(done.status.success(), "{script}: {}", said(&done));
    assert_eq!(result(&docker.lab).as_deref(), Some("tested in /workspace\n"));
}
