//! Removing runs: one, by rules, and by retention.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use crate::runs::{BEGAN, Runs, id, row};
use belljar_record::ledger::{LedgerRow, SandboxKept};
use belljar_record::store::{Life, RunInfo, Which, find, list, trash};
use belljar_run::retention::{
    PruneMode, PruneRules, Removal, RemoveError, UnreviewedChanges, apply_retention, prune, remove,
};
use belljar_spec::{Retention, RunId, RunState};

fn ids(runs: &[RunInfo]) -> Vec<RunId> {
    runs.iter().map(|run| run.id).collect()
}

fn list_all(runs: &Runs) -> Vec<RunInfo> {
    list(&runs.home, Which::All).unwrap()
}

fn one(runs: &Runs, id: RunId) -> RunInfo {
    find(&runs.home, id.as_str()).unwrap()
}

#[test]
fn a_run_is_removed_completely_and_alone() {
    let runs = Runs::new();
    let (gone, stays) = (runs.stopped(1, None), runs.stopped(2, None));
    let sentinel = runs.home.path().parent().unwrap().join("sentinel");
    fs::write(&sentinel, "x").unwrap();
    symlink(&sentinel, runs.home.run_dir(&gone).join("home/link")).unwrap();
    remove(&runs.home, &one(&runs, gone), UnreviewedChanges::Keep).unwrap();
    assert!(!runs.has_directory(&gone) && !runs.has_row(&gone));
    assert!(runs.has_directory(&stays) && runs.has_row(&stays) && sentinel.exists());
    assert_eq!(runs.trash(), Vec::<PathBuf>::new());
    assert_eq!(ids(&list_all(&runs)), [stays]);
    // Again, as two at once would.
    let again = RunInfo { id: gone, ..one(&runs, stays) };
    remove(&runs.home, &again, UnreviewedChanges::Keep).unwrap();
}

#[test]
fn a_live_run_is_not_removed_and_an_unfinished_one_is_taken_over() {
    let runs = Runs::new();
    let (run, held) = runs.live(1, None, "running");
    runs.ledger().upsert(&row(run, None)).unwrap();
    let info = one(&runs, run);
    // Whatever the caller knew before: the lock counts.
    let stale = RunInfo { state: RunState::Stopped, life: Life::Over, ..info };
    let refused = remove(&runs.home, &stale, UnreviewedChanges::Keep).unwrap_err();
    assert!(matches!(refused, RemoveError::Live { id } if id == run));
    assert!(refused.to_string().contains("belljar stop"));
    drop(held);
    assert!(runs.has_sandbox(&run) && runs.has_row(&run));
    remove(&runs.home, &stale, UnreviewedChanges::Keep).unwrap();
    assert!(!runs.has_directory(&run) && !runs.has_row(&run));
    assert!(!runs.home.live_path(&run).exists(), "its liveness lock goes with it");
}

#[test]
fn an_interrupted_removal_is_finished() {
    let runs = Runs::new();
    let moved = |id: &RunId, part: &str, name: &str| {
        let from = runs.home.run_dir(id);
        let from = if part.is_empty() { from } else { from.join(part) };
        fs::rename(from, runs.home.trash().join(name)).unwrap();
    };
    // After the move, before the ledger; after both; half of the tree gone.
    let (first, second, part) =
        (runs.stopped(1, None), runs.stopped(2, None), runs.stopped(3, None));
    moved(&first, "", first.as_str());
    moved(&second, "", second.as_str());
    runs.ledger().remove(&[second]).unwrap();
    fs::remove_dir_all(runs.home.trash().join(second.as_str()).join("home")).unwrap();
    moved(&part, "home", &format!("{part}-home"));
    // What is not ours by name goes too: nothing else belongs there.
    fs::write(runs.home.trash().join("something"), "x").unwrap();
    assert!(runs.has_row(&first));

    assert_eq!(trash::empty(&runs.home).unwrap(), 4);
    assert_eq!(runs.trash(), Vec::<PathBuf>::new());
    assert!(!runs.has_row(&first) && !runs.has_row(&second));
    assert_eq!(runs.ledger().get(&part).unwrap().unwrap().sandbox, SandboxKept::No);
    assert!(runs.has_directory(&part));
    assert_eq!(trash::empty(&runs.home).unwrap(), 0, "the second time there is nothing");
}

#[test]
fn a_name_that_exists_in_the_trash_does_not_block() {
    let runs = Runs::new();
    let run = runs.stopped(1, None);
    fs::create_dir_all(runs.home.trash().join(run.as_str()).join("old")).unwrap();
    remove(&runs.home, &one(&runs, run), UnreviewedChanges::Keep).unwrap();
    assert!(!runs.has_directory(&run));
    assert_eq!(runs.trash(), [runs.home.trash().join(run.as_str())]);
    assert_eq!(trash::empty(&runs.home).unwrap(), 1);
}

#[test]
fn several_can_remove_and_empty_at_once() {
    let runs = Runs::new();
    let all: Vec<RunId> = (0..20).map(|number| runs.stopped(number, None)).collect();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let done =
                    prune(&runs.home, rules(Some(2), None, BEGAN), PruneMode::Remove).unwrap();
                let failed = done.iter().find(|one| !matches!(one.removal, Removal::Removed));
                assert!(failed.is_none(), "{failed:?}");
            });
            scope.spawn(|| {
                let kept = Retention { sandboxes: 1, runs: 3 };
                assert!(apply_retention(&runs.home, &None, kept).unwrap().failed.is_empty());
                trash::empty(&runs.home).unwrap();
            });
        }
    });
    trash::empty(&runs.home).unwrap();
    assert_eq!(runs.trash(), Vec::<PathBuf>::new());
    assert_eq!(ids(&list_all(&runs)), [all[19], all[18]]);
}

fn rules(keep: Option<usize>, older_than: Option<u64>, now: u64) -> PruneRules {
    PruneRules {
        keep,
        older_than: older_than.map(Duration::from_millis),
        now: SystemTime::UNIX_EPOCH + Duration::from_millis(now),
    }
}

#[test]
fn prune_removes_what_both_rules_select() {
    let runs = Runs::new();
    let named: Vec<RunId> = (0..4).map(|n| runs.stopped(n, Some("a"))).collect();
    let prefix = runs.stopped(4, Some("ab"));
    let unnamed: Vec<RunId> = (5..8).map(|n| runs.stopped(n, None)).collect();
    let (live, held) = runs.live(8, Some("a"), "running");
    let (unfinished, dead) = runs.live(9, Some("a"), "running");
    drop(dead);
    let would = |rules| {
        let pruned = prune(&runs.home, rules, PruneMode::DryRun).unwrap();
        assert!(pruned.iter().all(|pruned| matches!(pruned.removal, Removal::WouldRemove)));
        pruned.iter().map(|pruned| pruned.run.id).collect::<Vec<_>>()
    };
    // Run n stopped at BEGAN + 1000 n + 500.
    let now = BEGAN + 7500;
    assert_eq!(would(rules(Some(2), None, now)), [named[0], named[1], unnamed[0]]);
    assert_eq!(would(rules(Some(2), Some(6000), now)), [named[0]]);
    assert_eq!(would(rules(Some(2), Some(5999), now)), [named[0], named[1]]);
    assert_eq!(would(rules(None, Some(3000), now)), [&named[..], &[]].concat());
    assert_eq!(would(rules(Some(9), Some(0), now)), []);
    assert_eq!(would(rules(None, Some(0), BEGAN)), [], "what is to come is not old");
    assert_eq!(would(rules(None, None, now)).len(), 8, "every stopped run");
    assert_eq!(list_all(&runs).len(), 10, "nothing was done so far");

    let pruned = prune(&runs.home, rules(Some(1), None, now), PruneMode::Remove).unwrap();
    assert!(pruned.iter().all(|pruned| matches!(pruned.removal, Removal::Removed)));
    let left = ids(&list_all(&runs));
    assert_eq!(left, [unfinished, live, unnamed[2], prefix, named[3]]);
    drop(held);
}

#[test]
fn retention_works_by_exact_name_and_oldest_first() {
    let runs = Runs::new();
    let mine: Vec<RunId> = (0..8).map(|n| runs.stopped(n, Some("a"))).collect();
    let others = [runs.stopped(8, Some("ab")), runs.stopped(9, None), runs.stopped(10, Some("b"))];
    let (live, _held) = runs.live(0xff, Some("a"), "running");
    runs.ledger().upsert(&LedgerRow { state: RunState::Running, ..row(live, Some("a")) }).unwrap();
    let name = Some("a".to_owned());
    let kept = Retention { sandboxes: 2, runs: 5 };
    let done = apply_retention(&runs.home, &name, kept).unwrap();
    assert_eq!(done.runs, mine[..3]);
    assert_eq!(done.sandboxes, mine[3..6]);
    assert!(done.failed.is_empty());
    for id in &mine[..3] {
        assert!(!runs.has_directory(id) && !runs.has_row(id));
    }
    for id in &mine[3..6] {
        assert!(runs.has_directory(id) && !runs.has_sandbox(id));
        assert!(!runs.home.run_dir(id).join("upper").exists());
        assert!(runs.home.run_dir(id).join("run.json").exists(), "the record stays");
        assert_eq!(runs.ledger().get(id).unwrap().unwrap().sandbox, SandboxKept::No);
    }
    for id in mine[6..].iter().chain(&others).chain([&live]) {
        assert!(runs.has_sandbox(id), "{id}");
        assert_eq!(runs.ledger().get(id).unwrap().unwrap().sandbox, SandboxKept::Yes);
    }
    assert_eq!(runs.trash(), Vec::<PathBuf>::new());
    let again = apply_retention(&runs.home, &name, kept).unwrap();
    assert!(again.runs.is_empty() && again.sandboxes.is_empty(), "nothing more to do");

    let none = apply_retention(&runs.home, &name, Retention { sandboxes: 0, runs: 5 }).unwrap();
    assert_eq!(none.sandboxes, mine[6..], "0 keeps no sandbox");
    assert!(runs.has_sandbox(&live));
    assert!(
        apply_retention(&runs.home, &None, Retention { sandboxes: 0, runs: 1 })
            .unwrap()
            .runs
            .is_empty()
    );
    assert!(!runs.has_sandbox(&others[1]) && runs.has_sandbox(&others[0]));
}

#[test]
fn retention_never_touches_a_live_run_whatever_its_row_says() {
    let runs = Runs::new();
    let (live, held) = runs.live(0, None, "running");
    runs.ledger().upsert(&row(live, None)).unwrap();
    runs.stopped(1, None);
    let kept = Retention { sandboxes: 0, runs: 1 };
    let done = apply_retention(&runs.home, &None, kept).unwrap();
    assert!(done.runs.is_empty());
    assert!(matches!(done.failed[0], RemoveError::Live { .. }));
    assert!(runs.has_sandbox(&live) && runs.has_row(&live));
    drop(held);
    fs::remove_file(runs.home.live_path(&live)).unwrap();
    assert_eq!(apply_retention(&runs.home, &None, kept).unwrap().runs, [live]);
}

#[test]
fn a_thousand_runs_are_fast() {
    let runs = Runs::new();
    let names = [None, Some("a"), Some("b")];
    let mut rows = Vec::new();
    for number in 0..1000_u64 {
        let name = names[number as usize % 3];
        runs.directory(id(number), name);
        if number % 10 != 0 {
            rows.push(row(id(number), name));
        }
    }
    runs.ledger().add_missing(&rows).unwrap();
    let held: Vec<_> = (1000..1020).map(|number| runs.live(number, Some("l"), "running")).collect();
    let timed = |what: &str, work: &dyn Fn()| {
        let begin = Instant::now();
        work();
        let took = begin.elapsed();
        eprintln!("{what}: {took:?}");
        assert!(took < Duration::from_secs(1), "{what} took {took:?}");
    };
    timed("list all", &|| assert_eq!(list_all(&runs).len(), 1020));
    timed("list live", &|| assert_eq!(list(&runs.home, Which::Live).unwrap().len(), 20));
    timed("find by id", &|| assert_eq!(one(&runs, id(500)).id, id(500)));
    timed("find by tail", &|| assert_eq!(find(&runs.home, id(501).tail()).unwrap().id, id(501)));
    timed("find by name", &|| assert_eq!(find(&runs.home, "a").unwrap().id, id(997)));
    timed("prune, dry", &|| {
        let old = prune(&runs.home, rules(Some(10), None, BEGAN), PruneMode::DryRun).unwrap();
        assert_eq!(old.len(), 970);
    });
    timed("retain, nothing to do", &|| {
        let kept = Retention { sandboxes: 900, runs: 900 };
        assert!(apply_retention(&runs.home, &Some("a".to_owned()), kept).unwrap().runs.is_empty());
    });
    timed("rebuild", &|| {
        assert_eq!(belljar_record::ledger::rebuild(&runs.home).unwrap().added, 100);
    });
    drop(held);
}
