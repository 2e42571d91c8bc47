//! Sandboxes that start, do not start, and end, through the library.

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use belljar::spec::egress::SecretSource;
use belljar::spec::wire::control::{LaunchRefusal, RefusalKind};
use belljar::spec::{
    BackendChoice, BackendName, Clause, Enforcement, ExitSource, MountMode, Rootfs, StopReason,
    Unmet,
};
use belljar::testing::{FakeBackend, FakeReply};
use belljar::{
    Error, NetworkAccess, NetworkChange, PublishSpec, Pull, Sandbox, SandboxBuilder, Secret,
};

fn builder(fake: &FakeBackend) -> SandboxBuilder {
    Sandbox::builder().no_config().connector(fake.clone())
}

async fn soon(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(10), "{what} did not happen");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn refusal(kind: RefusalKind) -> LaunchRefusal {
    let enforcement = Enforcement::absent("no cgroup");
    LaunchRefusal {
        kind,
        causes: vec!["the first".to_owned(), "the second".to_owned()],
        missing: vec![Unmet { clause: Clause::LimitMemory, enforcement }],
        fix: Some("do this".to_owned()),
    }
}

#[test]
fn what_the_code_says_is_what_is_decided() {
    let home = tempfile::tempdir().unwrap();
    let work = tempfile::Builder::new().prefix("with:colon").tempdir().unwrap();
    let spec = Sandbox::builder()
        .no_config()
        .home(home.path().join("home"))
        .backend(BackendChoice::Jail)
        .workspace(work.path(), MountMode::Ro)
        .mount(work.path(), "/data", MountMode::Rw)
        .mount("/usr/share", "/share", MountMode::Ro)
        .tmpfs("/scratch", 1 << 20)
        .tool("/usr/local")
        .hide(".env")
        .env("GREETING", "a=b c")
        .pass_env("PATH")
        .workdir("/data")
        .user(1234, 1235)
        .memory(1 << 30)
        .cpus(1.5)
        .pids(77)
        .disk(2 << 30)
        .timeout(Duration::from_millis(1500))
        .stop_timeout(Duration::from_secs(3))
        .name("mine")
        .label("team", "blue")
        .require(Clause::LimitMemory)
        .waive(Clause::FsQuota, "scratch")
        .build_spec()
        .unwrap();
    assert_eq!(spec.backend, BackendChoice::Jail);
    assert!(spec.command.is_empty(), "a kept sandbox has no command of its own");
    let workspace = spec.workspace.unwrap();
    assert_eq!((workspace.source.as_path(), workspace.mode), (work.path(), MountMode::Ro));
    assert_eq!(spec.mounts.len(), 2);
    assert!(spec.mounts.iter().any(|mount| mount.source.as_path() == work.path()
        && mount.target == "/data".into()
        && mount.mode == MountMode::Rw));
    assert_eq!(spec.tmpfs[0].size, 1 << 20);
    assert_eq!(spec.hide, [".env".into()]);
    assert_eq!(spec.env["GREETING"], "a=b c".into());
    assert_eq!(spec.workdir, "/data".into());
    assert_eq!((spec.user.uid, spec.user.gid), (1234, 1235));
    assert_eq!((spec.limits.memory, spec.limits.millicpus), (Some(1 << 30), Some(1500)));
    assert_eq!((spec.limits.pids, spec.limits.disk), (Some(77), Some(2 << 30)));
    assert_eq!(spec.limits.time, Some(Duration::from_millis(1500)));
    assert_eq!(spec.limits.stop_timeout, Duration::from_secs(3));
    assert_eq!((spec.name.as_deref(), &*spec.labels["team"]), (Some("mine"), "blue"));
    assert!(spec.required.contains(&Clause::LimitMemory));
    assert_eq!(spec.waivers[0].reason, "scratch");
    assert_eq!(spec.rootfs, Rootfs::Host);
}

#[test]
fn secrets_ports_and_images_are_typed() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("work:none");
    std::fs::create_dir(&directory).unwrap();
    let builder = || Sandbox::builder().no_config().home(home.path().join("home"));
    let spec = builder()
        .workspace(&directory, MountMode::Rw)
        .overlay()
        .fallback([BackendName::Docker])
        .image("debian:stable")
        .pull(Pull::Never)
        .allow_host("api.example:8443")
        .allow_host("other.example")
        .secret(Secret::header("KEY", "api.example", "x-api-key").port(8443).from_env("HOST_KEY"))
        .secret(Secret::bearer("TOKEN", "other.example").from_env("X").from_file("/run/token"))
        .publish(PublishSpec::new(3000).on_port(8080))
        .build_spec()
        .unwrap();
    let workspace = spec.workspace.unwrap();
    assert_eq!((workspace.source.as_path(), workspace.mode), (&*directory, MountMode::Overlay));
    assert_eq!((spec.fallback, spec.pull), (vec![BackendName::Docker], Pull::Never));
    let [key, token] = &spec.egress.secrets[..] else { panic!("{:?}", spec.egress.secrets) };
    assert_eq!((key.env.as_str(), key.port), ("KEY", 8443));
    assert_eq!(key.source, SecretSource::Env { name: "HOST_KEY".into() });
    assert_eq!(token.source, SecretSource::File { path: "/run/token".into() });
    assert_eq!(spec.egress.publish, [PublishSpec::parse("8080:3000").unwrap()]);
}

#[test]
fn a_value_that_cannot_be_used_is_the_error_of_the_start() {
    let home = tempfile::tempdir().unwrap();
    let builder = || Sandbox::builder().no_config().home(home.path().join("home"));
    let cases = [
        (builder().memory(0), "memory: a limit of 0"),
        (builder().cpus(f64::NAN), "cpus: "),
        (builder().user(0, 1000), "user: user \"0:1000\" is root"),
        (builder().hide("../x"), "hide: \"../x\" must be a name in the workspace"),
        (builder().mount("", "/data", MountMode::Ro), "mount: the path is empty"),
        (builder().env("A=B", "x"), "env: \"A=B\" is not a variable name"),
        (builder().env("A", "x\0"), "env: the value of A contains a NUL byte"),
        (builder().name("a b"), "name: \"a b\" is not a valid name"),
        (builder().tmpfs("/t", 0), "tmpfs: a size of 0 leaves no room"),
        (builder().waive(Clause::FsQuota, " "), "waive: the waiver of fs.quota has no reason"),
        (builder().secret(Secret::bearer("", "h")), "secret: a secret needs a variable"),
        // The first one counts, and nothing after it hides it.
        (builder().label("", "x").pids(0).memory(1 << 30), "label: the key is empty"),
    ];
    for (builder, want) in cases {
        let error = builder.build_spec().unwrap_err();
        assert!(error.to_string().contains(want), "{error}\nwanted {want}");
    }
    assert!(!home.path().join("home").exists(), "a wrong value creates nothing");
    assert!(builder().memory(1 << 30).build_spec().is_ok(), "control");
}

#[test]
fn a_manifest_counts_when_it_is_named_and_code_says_more() {
    let directory = tempfile::tempdir().unwrap();
    let manifest = directory.path().join("belljar.toml");
    std::fs::write(&manifest, "[limits]\nmemory = \"1g\"\npids = 10\n").unwrap();
    let builder =
        || Sandbox::builder().home(directory.path().join("home")).workspace("/srv", MountMode::Ro);
    let spec = builder().manifest(&manifest).pids(20).build_spec().unwrap();
    assert_eq!((spec.limits.memory, spec.limits.pids), (Some(1 << 30), Some(20)));
    let without = builder().no_config().build_spec().unwrap();
    assert_ne!(without.limits.memory, Some(1 << 30));

    let error = builder().no_config().setting("limits.memory=lots").build_spec().unwrap_err();
    assert!(matches!(error, Error::Config(_)), "{error}");
}

#[tokio::test]
async fn one_command_in_a_fresh_sandbox() {
    let fake = FakeBackend::new().on("job", |_| FakeReply::code(4).with_stdout("done"));
    let run = builder(&fake).run(["job", "1"]).await.unwrap();
    assert_eq!((&run.output.stdout[..], run.output.exit.code), (&b"done"[..], Some(4)));
    assert_eq!((run.report.reason, run.report.run), (StopReason::Exited, run.run));
    assert_eq!(fake.specs()[0].command, ["job".into(), "1".into()]);
    soon("its end", || fake.live() == 0).await;

    let error = builder(&fake).run(["nonesuch"]).await.unwrap_err();
    assert!(matches!(error, Error::Exec { .. }), "{error}");
    assert!(matches!(builder(&fake).run(Vec::<String>::new()).await, Err(Error::Config(_))));
    let error = builder(&fake).timeout(Duration::from_millis(50)).run(["sleep", "9"]).await;
    let Err(Error::Deadline { output }) = error else { panic!("{error:?}") };
    assert_eq!(output.source, ExitSource::Deadline);
}

#[tokio::test]
async fn a_refused_start_says_what_is_missing_and_what_to_do() {
    let start = |kind| {
        let fake = FakeBackend::new().refuse(refusal(kind));
        let begun = builder(&fake).backend(BackendChoice::Jail).start();
        async move { begun.await.expect_err("it was refused") }
    };
    let error = start(RefusalKind::Refused).await;
    let Error::Refused { missing, causes, .. } = &error else { panic!("{error}") };
    assert_eq!((missing[0].clause, causes.len()), (Clause::LimitMemory, 2));
    let text = "refused to start: the first: the second\n  limit.memory: no cgroup; do this";
    assert_eq!(error.to_string(), text);

    let error = start(RefusalKind::Unavailable).await;
    let Error::Unavailable { backend: Some(BackendName::Jail), why, fix } = &error else {
        panic!("{error}")
    };
    assert_eq!((&**why, &**fix), ("the first: the second", "do this"));
    assert!(matches!(start(RefusalKind::Start).await, Error::Start { .. }));
    assert!(matches!(start(RefusalKind::Io).await, Error::Io { .. }));
    // A command of its own is refused in the same way.
    let fake = FakeBackend::new().refuse(refusal(RefusalKind::Refused));
    assert!(matches!(builder(&fake).run(["true"]).await, Err(Error::Refused { .. })));
}

#[tokio::test]
async fn another_build_is_refused_before_anything_is_asked_of_it() {
    let fake = FakeBackend::new().build("9.9.9-other");
    let error = builder(&fake).start().await.unwrap_err();
    let Error::OtherBuild { theirs, .. } = &error else { panic!("{error}") };
    assert_eq!(theirs, "9.9.9-other");
    assert!(error.to_string().contains("BELLJAR_EXE"), "{error}");
    assert!(fake.specs().is_empty());
}

#[tokio::test]
async fn a_sandbox_ends_when_it_is_stopped_or_let_go_of() {
    let fake = FakeBackend::new();
    let sandbox = builder(&fake).start().await.unwrap();
    assert_eq!(fake.live(), 1);
    let mut running = sandbox.exec(["sleep", "60"]).spawn().await.unwrap();
    let report = sandbox.stop().await.unwrap();
    assert_eq!((report.run, report.reason), (sandbox.id(), StopReason::Stopped));
    assert_eq!(running.wait().await.unwrap().signal, Some(15));
    assert_eq!(sandbox.stop().await.unwrap(), report, "a second stop finds it stopped");
    let error = sandbox.exec(["true"]).output().await.unwrap_err();
    assert!(error.to_string().contains("the run has ended (stopped)"), "{error}");
    soon("its end", || fake.live() == 0).await;

    let sandbox = builder(&fake).start().await.unwrap();
    let mut running = sandbox.exec(["sleep", "60"]).spawn().await.unwrap();
    assert_eq!(fake.live(), 1);
    drop(sandbox);
    soon("its end", || fake.live() == 0).await;
    assert!(matches!(running.wait().await, Err(Error::Lost { .. })));
}

#[tokio::test]
async fn a_connection_that_is_lost_is_told_to_everybody_who_waits() {
    let fake = FakeBackend::new().on("crash", |_| FakeReply::stdout("part").then_lost());
    let sandbox = builder(&fake).start().await.unwrap();
    let mut other = sandbox.exec(["sleep", "60"]).spawn().await.unwrap();
    let mut crash = sandbox.exec(["crash"]).spawn().await.unwrap();
    assert_eq!(crash.next().await.unwrap().bytes, b"part");
    assert_eq!(crash.next().await, None);
    assert!(matches!(crash.wait().await, Err(Error::Lost { .. })));
    assert!(matches!(other.wait().await, Err(Error::Lost { .. })));
    assert!(matches!(sandbox.exec(["true"]).output().await, Err(Error::Lost { .. })));
    assert!(matches!(sandbox.status().await, Err(Error::Lost { .. })));
    assert!(matches!(sandbox.stop().await, Err(Error::Lost { .. })));
}

#[tokio::test]
async fn an_executable_that_is_no_belljar_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let start = |path: &std::path::Path| {
        let home = directory.path().join("home");
        Sandbox::builder().no_config().no_workspace().home(home).belljar(path).start()
    };
    let missing = directory.path().join("missing");
    assert!(matches!(start(&missing).await, Err(Error::Io { .. })));
    let other = directory.path().join("other");
    std::fs::write(&other, "#!/bin/sh\nexit 0\n").unwrap();
    std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o755)).unwrap();
    let error = start(&other).await.unwrap_err().to_string();
    assert!(error.contains("before it had responded; is "), "{error}");
    assert!(error.contains("/other a belljar of this build?"), "{error}");
    let gone = belljar::spec::RunId::from_parts(1, 2);
    let error = Sandbox::attach_to(directory.path(), &gone).await.unwrap_err().to_string();
    assert!(error.contains("is not alive"), "{error}");
}

#[tokio::test]
async fn a_supervisor_gets_a_clean_environment_and_is_reaped() {
    let directory = tempfile::tempdir().unwrap();
    let (program, told) = (directory.path().join("belljar"), directory.path().join("told"));
    // It lives until the connection, which is its standard input, is closed.
    let script = format!(
        "#!/bin/sh\n{{ echo $$; echo $1; env; }} > {0}.new\nmv {0}.new {0}\ncat\n",
        told.display()
    );
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let home = directory.path().join("home");
    let builder = Sandbox::builder().no_config().no_workspace().home(home).belljar(&program);
    let starting = tokio::spawn(builder.start());
    soon("its start", || told.exists()).await;
    let text = std::fs::read_to_string(&told).unwrap();
    let mut lines = text.lines();
    let pid = lines.next().unwrap().to_owned();
    assert_eq!(lines.next(), Some("__supervise"));
    for line in lines {
        let name = line.split('=').next().unwrap();
        let ours =
            matches!(name, "PATH" | "HOME" | "BELLJAR_HOME" | "SSL_CERT_FILE" | "SSL_CERT_DIR")
                || name.starts_with("XDG_");
        assert!(ours || matches!(name, "PWD" | "SHLVL" | "_" | "OLDPWD"), "{line}");
    }
    let process = std::path::Path::new("/proc").join(pid);
    assert!(process.exists(), "it waits");
    starting.abort();
    soon("its end", || !process.exists()).await;
}

#[tokio::test]
async fn a_run_is_reached_in_a_home_of_any_depth() {
    let directory = tempfile::tempdir().unwrap();
    let run = belljar::spec::RunId::from_parts(1, 2);
    for depth in [1, 30] {
        let home = directory.path().join(vec!["deep"; depth].join("/"));
        let live = home.join("live");
        std::fs::create_dir_all(&live).unwrap();
        let error = Sandbox::attach_to(&home, &run).await.unwrap_err().to_string();
        assert!(error.contains("is not alive"), "{error}");
        let open = std::fs::File::open(&live).unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&open);
        let address = format!("/proc/self/fd/{fd}/{run}.sock");
        let listener = tokio::net::UnixListener::bind(address).unwrap();
        let answered = tokio::spawn(async move { listener.accept().await.map(drop) });
        let error = Sandbox::attach_to(&home, &run).await.unwrap_err().to_string();
        assert!(error.contains("before it had responded"), "{error}");
        answered.await.unwrap().unwrap();
    }
}

#[test]
fn handles_can_be_shared_between_threads() {
    fn shared<T: Send + Sync + 'static>() {}
    shared::<Sandbox>();
    shared::<belljar::Client>();
    shared::<belljar::Running>();
    shared::<Error>();
    shared::<SandboxBuilder>();
    shared::<FakeBackend>();
}

#[tokio::test]
async fn the_executable_beside_a_test_tells_of_every_backend() {
    let facts = belljar::available_backends().await.unwrap();
    let names: Vec<BackendName> = facts.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, BackendName::ALL);
    for reason in facts.iter().filter_map(|(_, fact)| fact.as_ref().err()) {
        assert!(!reason.why.is_empty() && !reason.fix.is_empty());
    }
}

#[tokio::test]
async fn the_network_list_of_a_sandbox_is_read_and_changed() {
    let fake = FakeBackend::new();
    let sandbox = builder(&fake).allow_host("a.example").start().await.unwrap();
    let state = sandbox.network().await.unwrap();
    assert_eq!((state.access, state.list.allow), (NetworkAccess::Proxy, vec!["a.example".into()]));
    let state = sandbox.set_network(["b.example:22"]).await.unwrap();
    assert_eq!(state.list.allow, ["b.example:22"]);
    let change = NetworkChange { allow: vec!["c.example".into()], ..NetworkChange::default() };
    assert_eq!(sandbox.change_network(change).await.unwrap().list.allow.len(), 2);
    let refused = sandbox.set_network(["no rule"]).await.unwrap_err();
    assert!(refused.to_string().contains("is not a host rule"), "{refused}");
    assert!(sandbox.set_network(Vec::<String>::new()).await.unwrap().list.is_empty());

    let closed = builder(&fake).start().await.unwrap();
    assert_eq!(closed.network().await.unwrap().access, NetworkAccess::None);
    let refused = closed.set_network(["a.example"]).await.unwrap_err();
    assert!(refused.to_string().contains("without network access"), "{refused}");
}
