//! Engines that are reached over the network: tcp, and ssh. Nothing of this machine can be mounted there;
//! belljar itself is copied in, and workspaces are sent.

mod ssh;
mod trees;

use std::time::Duration;

use belljar_testkit::{
    Actor, Call, Input, Lab, PrivateDocker, TestEngine, each_user, processes_with, until,
};
use rustix::process::Signal;

/// A probe is over after five seconds; the rest is a busy machine's.
const AT_MOST: Duration = Duration::from_millis(5000 + 2000);

const ON_IT: [&str; 4] = ["--backend", "docker", "--image", "belljar-test/busybox:1"];
const WITHOUT_FILES: [&str; 2] = ["--workspace", "none"];

/// Where, and what has to be on the PATH for it.
struct Way {
    host: String,
    path: Option<String>,
}

impl Way {
    fn to(host: impl Into<String>) -> Self {
        Self { host: host.into(), path: None }
    }

    fn with<'a>(&self, call: Call<'a>) -> Call<'a> {
        let call = call.env("DOCKER_HOST", &self.host);
        match &self.path {
            Some(path) => call.env("PATH", path),
            None => call,
        }
    }

    fn run<'a>(&self, lab: &'a Lab, options: &[&str], command: &[&str]) -> Call<'a> {
        let words = ON_IT.iter().chain(&WITHOUT_FILES).chain(options).chain(&["--"]).chain(command);
        self.with(lab.run(words))
    }

    fn sh<'a>(&self, lab: &'a Lab, script: &str) -> Call<'a> {
        self.run(lab, &[], &["sh", "-c", script])
    }
}

fn containers(docker: &PrivateDocker) -> usize {
    docker.access().get("/containers/json?all=1").as_array().unwrap().len()
}

/// Nothing of a run is left: no container, no volume.
#[track_caller]
fn assert_empty(docker: &PrivateDocker) {
    let volumes = || docker.access().get("/volumes")["Volumes"].clone();
    let no_volumes = || volumes().as_array().is_none_or(|all| all.is_empty());
    let gone = until(Duration::from_secs(20), || containers(docker) == 0 && no_volumes());
    assert!(gone, "{} containers; {}", containers(docker), volumes());
}

/// Everything that a user does, in a sandbox on another machine.
fn everything_works(lab: &Lab, way: &Way, docker: &PrivateDocker) {
    let done = way.sh(lab, "id -u; exit 7").done();
    assert_eq!(done.expect(7).out(), "1000\n");
    // Both ways, and more than any buffer holds.
    let bytes: Vec<u8> = (0..1_000_000_u32).map(|number| (number * 7 % 251) as u8).collect();
    let done = way.run(lab, &["-i"], &["cat"]).input(Input::Bytes(bytes.clone())).done();
    assert!(done.expect(0).stdout == bytes, "{} bytes came back", done.stdout.len());
    assert_empty(docker);
    stays(lab, way);
    assert_empty(docker);
}

/// A kept sandbox: exec, and copies into it and out of it.
fn stays(lab: &Lab, way: &Way) {
    let id = way.run(lab, &["-d", "--keep"], &["sleep", "1000"]).done();
    let id = id.expect(0).out().trim().to_owned();
    let belljar = |words: &[&str]| way.with(lab.belljar(words)).done();
    let done = belljar(&["exec", &id, "--", "sh", "-c", "echo out; echo err >&2; exit 3"]);
    assert_eq!((done.expect(3).out(), done.err()), ("out\n".into(), "err\n".into()));
    lab.make_file("work/given", "some bytes");
    belljar(&["cp", "given", &format!("{id}:/tmp/there")]).expect(0);
    let read = belljar(&["exec", &id, "--", "cat", "/tmp/there"]);
    assert_eq!(read.expect(0).out(), "some bytes");
    belljar(&["cp", &format!("{id}:/tmp/there"), "back"]).expect(0);
    assert_eq!(std::fs::read(lab.path("work/back")).unwrap(), b"some bytes");
    belljar(&["stop", &id]).expect(0);
}

/// A launcher that dies takes the container with it, and what led there.
fn a_killed_launcher_leaves_nothing(lab: &Lab, way: &Way, docker: &PrivateDocker) {
    let marker = belljar_testkit::marker();
    let live = way.sh(lab, &format!("echo here; sleep {marker}")).spawn();
    live.wait_for_output("here");
    assert_eq!(containers(docker), 1);
    live.signal(Signal::KILL);
    assert_empty(docker);
    let gone = until(Duration::from_secs(20), || processes_with(&marker).is_empty());
    assert!(gone, "{:?}", processes_with(&marker));
}

#[test]
fn an_engine_over_tcp() {
    let Some(docker) = PrivateDocker::start_on_a_port() else { return };
    let way = Way::to(docker.tcp());
    each_user(|lab| {
        everything_works(lab, &way, &docker);
        a_killed_launcher_leaves_nothing(lab, &way, &docker);
        nothing_of_this_machine_is_mounted_there(lab, &way);
        the_copy_cannot_be_changed_from_inside(lab, &way);
        trees::a_workspace_is_sent_and_comes_back(lab, &way, &docker);
        trees::a_workspace_that_is_only_read(lab, &way);
        trees::a_writable_workspace_is_applied_at_the_end(lab, &way);
        trees::a_stopped_run_brings_back_and_a_killed_one_does_not(lab, &way, &docker);
        assert_empty(&docker);
        what_was_left_is_taken_away(lab, &way, &docker);
    });
    a_stopped_daemon_is_given_up(&docker);
}

fn nothing_of_this_machine_is_mounted_there(lab: &Lab, way: &Way) {
    let lab = Lab::new(lab.actor);
    let data = lab.make_directory("data");
    let volume = format!("{}:/data", data.display());
    let refused = way.run(&lab, &["-v", &volume], &["id"]).done();
    refused.expect(125).says(&["another machine", data.to_str().unwrap()]);
    lab.assert_nothing_was_made();
    way.run(&lab, &[], &["id"]).done().expect(0); // the same without them
}

fn the_copy_cannot_be_changed_from_inside(lab: &Lab, way: &Way) {
    let script = "for what in 'echo x > /.belljar/init' 'rm /.belljar/init' \
                  'mv /.belljar/init /.belljar/other' 'echo x > /.belljar/new'; do \
                  if sh -c \"$what\" 2>/dev/null; then echo \"$what\"; fi; done; \
                  echo x > /tmp/new && echo control";
    let done = way.sh(lab, script).done();
    assert_eq!(done.expect(0).out(), "control\n");
}

/// A container that outlives its launcher is found again by the note, wherever it is.
fn what_was_left_is_taken_away(lab: &Lab, way: &Way, docker: &PrivateDocker) {
    let live = way.sh(lab, "echo here; sleep 1000").spawn();
    live.wait_for_output("here");
    docker.freeze(); // it cannot see the end of the connection
    live.signal(Signal::KILL);
    std::thread::sleep(Duration::from_millis(100));
    docker.thaw();
    way.with(lab.belljar(["reconcile"])).done().expect(0);
    assert_empty(docker);
    assert_eq!(lab.live(), Vec::<String>::new());
}

fn a_stopped_daemon_is_given_up(docker: &PrivateDocker) {
    let lab = Lab::me();
    for host in [docker.tcp(), ssh::address(docker)] {
        let way = Way::to(host);
        docker.freeze();
        let refused = way.run(&lab, &[], &["id"]).done();
        docker.thaw();
        refused.expect(125).says(&["did not answer within 5 seconds", "restart"]);
        assert!(refused.took < AT_MOST, "{refused}");
        way.run(&lab, &[], &["id"]).done().expect(0);
    }
}

#[test]
fn an_engine_over_ssh() {
    let Some(docker) = PrivateDocker::start() else { return };
    if ssh::which("docker").is_none() {
        eprintln!("NOT CHECKED: over ssh: there is no docker command to answer there");
        return;
    }
    let lab = Lab::me();
    let path = Some(ssh::fake(&lab, "DOCKER_HOST", &ssh::address(&docker)));
    let way = Way { host: "ssh://me@far:2222".to_owned(), path };
    everything_works(&lab, &way, &docker);
    a_killed_launcher_leaves_nothing(&lab, &way, &docker);
    trees::a_workspace_is_sent_and_comes_back(&lab, &way, &docker);
    let asked = std::fs::read_to_string(lab.path("asked")).unwrap();
    for line in asked.lines() {
        assert!(line.contains("-oBatchMode=yes"), "{line}");
        assert!(line.ends_with("-l me -p 2222 -- far docker system dial-stdio"), "{line}");
    }
    nobody_relays_any_more(&docker);
    if let Some(server) = ssh::Server::start(&lab, &docker) {
        let host = format!("ssh://127.0.0.1:{}", server.port);
        let way = Way { host, path: Some(server.path.clone()) };
        everything_works(&lab, &way, &docker);
        a_killed_launcher_leaves_nothing(&lab, &way, &docker);
        nobody_relays_any_more(&docker);
        server.lose_key();
        let refused = way.run(&lab, &[], &["id"]).done();
        refused.expect(125).says(&["Permission denied", "without a question"]);
        assert!(refused.took < AT_MOST, "{refused}");
    }
}

/// Of its own, and root's: both are somebody else's machine here.
#[test]
fn a_podman_over_ssh() {
    for engine in [TestEngine::Podman, TestEngine::PodmanRootless] {
        let Some(access) = engine.access() else { continue };
        eprintln!("--- on {}", engine.name());
        let lab = Lab::new(engine.actor());
        let (variable, address) = access.variables().remove(0);
        let path = ssh::fake(&lab, variable, &address);
        let run = |command: &[&str]| {
            let flags = access.flags();
            let flags = flags.iter().map(String::as_str).chain(WITHOUT_FILES).chain(["-i", "--"]);
            lab.run(flags.chain(command.iter().copied()))
                .env(variable, "ssh://far")
                .env("PATH", &path)
        };
        let done = run(&["sh", "-c", "id -u; cat; echo x > /.belljar/new; exit 9"])
            .input(Input::Bytes(b"given".to_vec()))
            .done();
        assert_eq!(done.expect(9).out(), "1000\ngiven");
        done.says(&["Read-only file system"]);
        let asked = std::fs::read_to_string(lab.path("asked")).unwrap();
        assert!(asked.lines().all(|line| line.ends_with("-- far podman system dial-stdio")));
    }
}

/// The processes between belljar and the engine end with it.
fn nobody_relays_any_more(docker: &PrivateDocker) {
    let relays = || {
        let to_it = |process: &u32| {
            let environment = std::fs::read(format!("/proc/{process}/environ"));
            String::from_utf8_lossy(&environment.unwrap_or_default())
                .contains(&ssh::address(docker))
        };
        processes_with("dial-stdio").into_iter().filter(to_it).collect::<Vec<_>>()
    };
    assert!(until(Duration::from_secs(10), || relays().is_empty()), "{:?}", relays());
}

#[test]
fn an_ssh_that_hangs_or_fails_says_so() {
    let lab = Lab::me();
    let marker = belljar_testkit::marker();
    for (script, words) in [
        (format!("#!/bin/sh\nexec sleep {marker}\n"), ["did not answer within 5 seconds", "far"]),
        (
            "#!/bin/sh\necho 'Host key verification failed.' >&2\nexit 255\n".to_owned(),
            ["Host key verification failed.", "without a question"],
        ),
        ("#!/bin/sh\nexit 127\n".to_owned(), ["exit status: 127", "far"]),
    ] {
        let path = Some(ssh::path_with(&lab, &script));
        let way = Way { host: "ssh://far".to_owned(), path };
        let refused = way.run(&lab, &[], &["id"]).done();
        refused.expect(125).says(&words);
        assert!(refused.took < AT_MOST, "{refused}");
        assert_eq!(processes_with(&marker), Vec::<u32>::new());
    }
    lab.assert_nothing_was_made();
}

#[test]
fn a_socket_that_may_not_be_used_says_what_to_do() {
    if belljar_testkit::test_user().is_none() {
        eprintln!("NOT CHECKED: as an ordinary user (needs root and the user belljar-test)");
        return;
    }
    let lab = Lab::new(Actor::User);
    let closed = tempfile::tempdir().unwrap();
    let socket = closed.path().join("d.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(closed.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o600)).unwrap();
    let way = Way::to(format!("unix://{}", socket.display()));
    let refused = way.run(&lab, &[], &["id"]).done();
    refused.expect(125).says(&["ermission denied", "join the group docker"]);
}
