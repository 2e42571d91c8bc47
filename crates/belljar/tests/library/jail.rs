//! The library with a real sandbox behind it.
use std::sync::Arc;
use std::time::Duration;

use belljar::spec::{Clause, ExitSource, StopReason};
use belljar::{Error, Sandbox};

use crate::bench::{Bench, names, until};

/// Processes of this machine whose arguments hold this.
fn processes_with(marker: &str) -> usize {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let found = all.filter(|entry| {
        let arguments = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&arguments).contains(marker)
    });
    found.count()
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_have_their_own_streams_codes_variables_and_directories() {
    let bench = Bench::new();
    let sandbox = bench.builder().env("SHARED", "run").start().await.unwrap();
    let exec = sandbox.exec(["sh", "-c", "echo $SHARED $OWN; pwd; cat; echo no >&2; exit 7"]);
    let output = exec.env("OWN", "exec").workdir("/tmp").stdin("typed\n").output().await.unwrap();
    assert_eq!(output.stdout_text(), "run exec\n/tmp\ntyped\n");
    assert_eq!(output.stderr_text(), "no\n");
    assert_eq!((output.exit.code, output.source), (Some(7), ExitSource::Command));
    let gone = sandbox.exec(["sh", "-c", "echo ${SHARED-none}"]).env_remove("SHARED");
    assert_eq!(gone.output().await.unwrap().stdout_text(), "none\n");
    let killed = sandbox.exec(["sh", "-c", "kill -9 $$"]).output().await.unwrap();
    assert_eq!(killed.exit.signal, Some(9));
    let missing = sandbox.exec(["not-there"]).output().await.unwrap_err();
    assert!(matches!(missing, Error::Exec { .. }), "{missing:?}");
    // What one leaves in the workspace is there for the next, and on the host.
    sandbox.exec(["sh", "-c", "echo kept > file"]).output().await.unwrap();
    assert_eq!(std::fs::read_to_string(bench.work().join("file")).unwrap(), "kept\n");
    let report = sandbox.stop().await.unwrap();
    assert_eq!(report.reason, StopReason::Stopped);
    assert_eq!(names(&bench.home().join("live")), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn forty_at_once_do_not_mix() {
    let bench = Bench::new();
    let sandbox = Arc::new(bench.builder().start().await.unwrap());
    let mut all = tokio::task::JoinSet::new();
    for number in 0..40 {
        let sandbox = Arc::clone(&sandbox);
        all.spawn(async move {
            let script =
                format!("for i in 1 2 3 4 5; do echo {number}; sleep 0.05; done; exit {number}");
            let output = sandbox.exec(["sh", "-c", &script]).output().await.unwrap();
            assert_eq!(output.stdout_text(), format!("{number}\n").repeat(5));
            assert_eq!(output.exit.code, Some(number));
        });
    }
    while let Some(one) = all.join_next().await {
        one.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_ends_the_whole_tree_of_one_command_and_nothing_else() {
    let bench = Bench::new();
    let sandbox = bench.builder().start().await.unwrap();
    let (victim, other) = ("86413", "86414");
    let bystander = sandbox.exec(["sleep", other]).spawn().await.unwrap();
    let script =
        format!("trap '' TERM; (setsid sleep {victim} &) ; (sleep {victim} &); sleep {victim}");
    let exec = sandbox.exec(["sh", "-c", &script]).timeout(Duration::from_millis(700));
    let mut running = exec.spawn().await.unwrap();
    let seen = until(Duration::from_secs(5), || processes_with(&format!("sleep\0{victim}")) == 3);
    assert!(seen.await, "the control: all three are there before");
    let error = running.wait().await;
    assert_eq!(error.unwrap().code, Some(124));
    let gone = until(Duration::from_secs(10), || processes_with(&format!("sleep\0{victim}")) == 0);
    assert!(gone.await, "something of the tree lives on");
    assert_eq!(processes_with(&format!("sleep\0{other}")), 1);
    // Dropped: killed too.
    drop(bystander);
    let gone = until(Duration::from_secs(10), || processes_with(&format!("sleep\0{other}")) == 0);
    assert!(gone.await);
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_the_sandbox_ends_everything() {
    let bench = Bench::new();
    let marker = "86415";
    let sandbox = bench.builder().start().await.unwrap();
    let script = format!("(setsid sleep {marker} &); echo ready; sleep {marker}");
    let mut running = sandbox.exec(["sh", "-c", &script]).spawn().await.unwrap();
    assert_eq!(running.next().await.unwrap().bytes, b"ready\n");
    assert!(until(Duration::from_secs(5), || processes_with(marker) >= 2).await);
    drop(sandbox);
    assert!(until(Duration::from_secs(10), || processes_with(marker) == 0).await);
    let over = until(Duration::from_secs(10), || names(&bench.home().join("live")).is_empty());
    assert!(over.await, "the run was not closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_can_be_entered_from_elsewhere() {
    let bench = Bench::new();
    let owner = bench.builder().start().await.unwrap();
    let visitor = Sandbox::attach_to(&bench.home(), &owner.id()).await.unwrap();
    let output = visitor.exec(["sh", "-c", "echo $BELLJAR_RUN"]).output().await.unwrap();
    assert_eq!(output.stdout_text().trim(), owner.id().as_str());
    drop(visitor);
    // The visitor's end is not the run's.
    assert!(owner.exec(["true"]).output().await.unwrap().success());
    let again = Sandbox::attach_to(&bench.home(), &owner.id()).await.unwrap();
    owner.stop().await.unwrap();
    assert!(again.exec(["true"]).output().await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_copied_in_comes_out_again_and_hostile_things_do_not() {
    let bench = Bench::new();
    let sandbox = bench.builder().start().await.unwrap();
    let (out, source) = (bench.directory.path().join("out"), bench.directory.path().join("in"));
    std::fs::create_dir_all(source.join("below")).unwrap();
    std::fs::write(source.join("below/a\nb"), vec![7; 300_000]).unwrap();
    sandbox.copy_in(&source, "/tmp/in").await.unwrap();
    sandbox.copy_out("/tmp/in", &out).await.unwrap();
    assert_eq!(std::fs::read(out.join("below/a\nb")).unwrap(), vec![7; 300_000]);

    let script = "mkdir /tmp/evil && cd /tmp/evil && ln -s /etc/passwd link && ln -s / root && \
                  mkfifo fifo && echo plain > plain && truncate -s 4E sparse";
    assert!(sandbox.exec(["sh", "-c", script]).output().await.unwrap().success());
    let target = bench.directory.path().join("evil");
    let refused = sandbox.copy_out("/tmp/evil", &target).await;
    assert!(refused.is_err(), "a file of 4 EiB is past every limit");
    assert!(!target.exists(), "nothing half-made is left");
    assert!(sandbox.exec(["rm", "/tmp/evil/sparse"]).output().await.unwrap().success());
    let report = sandbox.copy_out("/tmp/evil", &target).await.unwrap();
    assert_eq!(names(&target), ["plain"]);
    assert_eq!(report.skipped.len(), 3, "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_command_in_a_fresh_sandbox() {
    let bench = Bench::new();
    let done = bench.builder().run(["sh", "-c", "echo out; exit 4"]).await.unwrap();
    assert_eq!((done.output.stdout_text().as_ref(), done.output.exit.code), ("out\n", Some(4)));
    assert_eq!(done.report.reason, StopReason::Exited);
    let refused = bench.builder().require(Clause::KernelSeparate).start().await.unwrap_err();
    assert!(
        matches!(&refused, Error::Refused { missing, .. } if missing.len() == 1),
        "{refused:?}"
    );
}
