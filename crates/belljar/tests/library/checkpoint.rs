//! Checkpoints of a sandbox, and forks from them.

use belljar::spec::wire::control::ControlError;
use belljar::spec::{EventKind, MountMode};
use belljar::testing::FakeBackend;
use belljar::{Error, Follow, Sandbox};

use crate::bench::{Bench, executable, fork};

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_has_the_trees_and_the_home_of_its_checkpoint_and_nothing_else() {
    let bench = Bench::new();
    bench.write("base", "the host's\n");
    let sandbox = bench.with_workspace(MountMode::Overlay).start().await.unwrap();
    let sh = |script: &'static str| sandbox.exec(["sh", "-c", script]).output();
    sh("echo 1 > state; rm base; echo h > ~/kept; echo t > /tmp/gone").await.unwrap();
    let first = sandbox.checkpoint("the first").await.unwrap();
    assert_eq!(
        (first.run, first.number, first.note.as_deref()),
        (sandbox.id(), 1, Some("the first"))
    );
    assert!(first.changed >= 2, "{first:?}");
    sh("echo 2 > state; echo more > other").await.unwrap();
    let second = sandbox.checkpoint("").await.unwrap();
    assert_eq!((second.number, second.note.as_deref()), (2, None));
    sh("echo 3 > state").await.unwrap();

    // Of a live run, twice, side by side.
    let run = sandbox.record();
    let (one, two) = (fork(&run, 1).await.unwrap(), fork(&run, 2).await.unwrap());
    let state = |sandbox: Sandbox| async move {
        let script = "cat state; ls; cat ~/kept; ls /tmp";
        let output = sandbox.exec(["sh", "-c", script]).output().await.unwrap().stdout_text();
        (sandbox, output)
    };
    let (one, shown) = state(one).await;
    assert_eq!(shown, "1\nstate\nh\n");
    let (two, shown) = state(two).await;
    assert_eq!(shown, "2\nother\nstate\nh\n");
    assert_eq!(sandbox.read_file("state").await.unwrap(), b"3\n");
    one.write_file("state", "fork").await.unwrap();
    assert_eq!(two.read_file("state").await.unwrap(), b"2\n");
    assert_eq!(bench.read("base"), "the host's\n");

    // Changes of before the checkpoint are the fork's own: they can be reviewed and applied.
    let diff = two.diff().await.unwrap();
    let mut paths: Vec<String> = diff.changes().map(|change| change.path.to_string()).collect();
    paths.sort();
    assert_eq!(paths, ["base", "other", "state"]);

    // A fork has checkpoints of its own, from which it can be forked again, after its end too.
    let again = one.checkpoint("of the fork").await.unwrap();
    assert_eq!((again.run, again.number), (one.id(), 1));
    let ended = one.record();
    one.stop().await.unwrap();
    let grandchild = fork(&ended, 1).await.unwrap();
    assert_eq!(grandchild.read_file("state").await.unwrap(), b"fork");

    let listed = run.checkpoints().await.unwrap();
    assert_eq!(listed, [first, second]);
    let mut events = run.events(Follow::UntilNow).await.unwrap();
    let mut recorded = 0;
    while let Some(event) = events.next().await {
        recorded += usize::from(event.unwrap().kind == EventKind::Checkpoint);
    }
    assert_eq!(recorded, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_is_refused_while_a_command_runs() {
    let bench = Bench::new();
    let sandbox = bench.with_workspace(MountMode::Overlay).start().await.unwrap();
    let mut running = sandbox.exec(["sleep", "1000"]).spawn().await.unwrap();
    let busy = sandbox.checkpoint("").await.unwrap_err();
    assert!(matches!(busy, Error::NotDone(ControlError::Busy { running: 1 })), "{busy}");
    running.kill().await.unwrap();
    assert_eq!(sandbox.checkpoint("").await.unwrap().number, 1, "the control");
    let long = sandbox.checkpoint(&"x".repeat(5000)).await.unwrap_err();
    assert!(matches!(long, Error::NotDone(ControlError::NoCheckpoint { .. })), "{long}");

    let none = fork(&sandbox.record(), 7).await.unwrap_err();
    assert!(matches!(none, Error::Resume(_)), "{none}");
    let resumed = sandbox.record();
    sandbox.stop().await.unwrap();
    assert!(sandbox.checkpoint("").await.is_err());
    let options = || belljar::ForkOptions::default().belljar(executable());
    let no_agent = resumed.resume(options()).await.unwrap_err();
    assert!(no_agent.to_string().contains("no agent"), "{no_agent}");
    let fresh = bench.with_workspace(MountMode::Overlay).start().await.unwrap();
    let untaken = fresh.record().fork(options()).await.unwrap_err();
    assert!(untaken.to_string().contains("no checkpoint"), "{untaken}");
}

/// What the fork would stand on is checked again: another directory at the same path is refused.
#[tokio::test(flavor = "multi_thread")]
async fn another_workspace_at_the_same_path_is_refused() {
    let bench = Bench::new();
    let sandbox = bench.with_workspace(MountMode::Overlay).start().await.unwrap();
    sandbox.write_file("a", "a").await.unwrap();
    sandbox.checkpoint("").await.unwrap();
    let run = sandbox.record();
    sandbox.stop().await.unwrap();
    drop(fork(&run, 1).await.expect("the control"));
    std::fs::rename(bench.work(), bench.directory.path().join("aside")).unwrap();
    std::fs::create_dir(bench.work()).unwrap();
    let refused = fork(&run, 1).await.unwrap_err();
    assert!(refused.to_string().contains("mounts"), "{refused}");
}

#[tokio::test]
async fn a_fake_counts_checkpoints() {
    let fake = FakeBackend::new();
    let sandbox = Sandbox::builder().no_config().connector(fake).start().await.unwrap();
    assert_eq!(sandbox.checkpoint("a").await.unwrap().number, 1);
    assert_eq!(sandbox.checkpoint("b").await.unwrap().number, 2);
    let _running = sandbox.exec(["sleep", "9"]).spawn().await.unwrap();
    assert!(matches!(
        sandbox.checkpoint("c").await,
        Err(Error::NotDone(ControlError::Busy { running: 1 }))
    ));
}
