//! Changes of a run, listed, applied and discarded through the library.

use belljar::spec::MountMode;
use belljar::workspace::What;
use belljar::{ApplyOptions, ChangesError, Error, RecordedRun};

use crate::bench::Bench;

const SCRIPT: &str = "echo two >> notes; rm gone; mv old new; mkdir dir; echo x > dir/file; \
     mkdir -p .git/hooks; echo 'echo pwned' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit";

fn project() -> Bench {
    let bench = Bench::new();
    bench.write("notes", "one\n");
    bench.write("gone", "g\n");
    bench.write("old", &"a line that is long enough to be recognised\n".repeat(20));
    bench
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_are_typed_and_applied_as_the_command_applies_them() {
    let bench = project();
    let done = bench.with_workspace(MountMode::Overlay).run(["sh", "-c", SCRIPT]).await.unwrap();
    assert_eq!(done.output.stderr_text(), "");
    let run = RecordedRun::open_in(&bench.home(), done.run.as_str()).await.unwrap();
    assert_eq!(run, done.record());
    assert!(!run.info().await.unwrap().is_live());
    let diff = run.diff().await.unwrap();
    let what = |path: &str| {
        let change = diff.changes().find(|change| change.path == path.into());
        change.unwrap_or_else(|| panic!("{path} is not in {diff:?}")).what.clone()
    };
    assert_eq!(what("notes"), What::Modified);
    assert_eq!(what("gone"), What::Deleted);
    assert_eq!(what("new"), What::Renamed { from: "old".into() });
    assert_eq!(what("dir/file"), What::Created);
    assert!(!diff.is_empty() && !diff.trees[0].truncated);
    let patch = String::from_utf8(run.patch().await.unwrap()).unwrap();
    assert!(patch.contains("+two") && patch.contains("rename from old"), "{patch}");

    let dry = run.apply(ApplyOptions::default().dry_run()).await.unwrap();
    assert_eq!((dry.changes, bench.read("notes").as_str()), (0, "one\n"));
    assert!(!dry.trees[0].applied.is_empty());

    let mistyped = run.apply(ApplyOptions::default().path("nots")).await.unwrap_err();
    assert!(matches!(mistyped, Error::Changes(ChangesError::NotChanged { .. })), "{mistyped}");
    let one = run.apply(ApplyOptions::default().path("notes")).await.unwrap();
    assert_eq!((one.changes, bench.read("notes").as_str()), (1, "one\ntwo\n"));
    assert!(bench.work().join("gone").exists());

    // The host would execute the hook: it is withheld until that very path is named.
    let all = run.apply(ApplyOptions::default()).await.unwrap();
    let hook = ".git/hooks/pre-commit";
    assert!(all.trees[0].withheld.iter().any(|change| change.path == hook.into()), "{all:?}");
    assert!(!bench.work().join(hook).exists() && !bench.work().join("gone").exists());
    assert!(bench.work().join("new").exists() && !bench.work().join("old").exists());
    run.apply(ApplyOptions::default().path(".git")).await.unwrap();
    assert!(!bench.work().join(hook).exists(), "its directory is not its name");
    run.apply(ApplyOptions::default().path(hook)).await.unwrap();
    assert!(bench.work().join(hook).exists(), "the control: named, it is applied");

    run.discard().await.unwrap();
    assert!(matches!(run.diff().await, Err(Error::Changes(ChangesError::Review(_)))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conflict_applies_nothing_unless_it_is_asked_for() {
    let bench = project();
    let script = "echo theirs > notes; echo new > made";
    let done = bench.with_workspace(MountMode::Overlay).run(["sh", "-c", script]).await.unwrap();
    bench.write("notes", "ours\n");
    let run = done.record();
    let refused = run.apply(ApplyOptions::default()).await.unwrap_err();
    let Error::Changes(ChangesError::Conflicts { conflicts }) = &refused else {
        panic!("{refused:?}")
    };
    assert_eq!(conflicts[0].path, "notes".into());
    assert!(refused.to_string().contains("notes"), "{refused}");
    assert_eq!(
        (bench.read("notes").as_str(), bench.work().join("made").exists()),
        ("ours\n", false)
    );
    run.apply(ApplyOptions::default().overwrite_conflicts()).await.unwrap();
    assert_eq!((bench.read("notes"), bench.read("made")), ("theirs\n".into(), "new\n".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_sandbox_can_be_reviewed_and_is_discarded_when_it_has_ended() {
    let bench = project();
    let sandbox = bench.with_workspace(MountMode::Overlay).start().await.unwrap();
    assert!(sandbox.diff().await.unwrap().is_empty());
    sandbox.write_file("notes", "one\nlive\n").await.unwrap();
    assert_eq!(sandbox.diff().await.unwrap().changes().count(), 1);
    assert_eq!(sandbox.apply(ApplyOptions::default()).await.unwrap().changes, 1);
    assert_eq!(bench.read("notes"), "one\nlive\n");
    sandbox.write_file("more", "x").await.unwrap();
    let run = sandbox.record();
    let live = run.discard().await.unwrap_err();
    assert!(matches!(live, Error::Changes(ChangesError::Discard(_))), "{live}");
    sandbox.discard().await.unwrap();
    assert!(run.diff().await.is_err());
    assert!(!bench.work().join("more").exists());

    let plain = bench.builder().run(["true"]).await.unwrap();
    let nothing = plain.record().diff().await.unwrap_err();
    assert!(matches!(nothing, Error::Changes(ChangesError::Review(_))), "{nothing}");
}
