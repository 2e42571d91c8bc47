//! What runs there are, and which one is meant.

use std::collections::BTreeMap;
use std::fs;

use crate::runs::{BEGAN, Runs, id, row};
use belljar_record::ledger::LedgerRow;
use belljar_record::store::{FindError, Life, RunInfo, Which, find, list};
use belljar_spec::{RunId, RunState, StopReason};
use proptest::prelude::*;

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
fn a_run_is_listed_wherever_it_is_known() {
    let runs = Runs::new();
    let rowed = runs.stopped(1, Some("a"));
    runs.directory(id(2), Some("b"));
    let (live, _held) = runs.live(3, Some("c"), "running");
    let bare = id(4);
    let _bare_held = runs.sign_of_life(bare, "starting");
    fs::create_dir(runs.home.run_dir(&id(5))).unwrap();
    fs::write(runs.home.run_dir(&runs.stopped(6, None)).join("run.json"), "damaged").unwrap();
    runs.directory(id(7), None);
    fs::write(runs.home.run_dir(&id(7)).join("run.json"), "damaged").unwrap();
    fs::write(runs.home.live().join(format!("{live}.sock")), "").unwrap();

    let all = list_all(&runs);
    assert_eq!(ids(&all), [id(7), id(6), id(5), bare, live, id(2), rowed]);
    let by_id: BTreeMap<RunId, &RunInfo> = all.iter().map(|run| (run.id, run)).collect();
    // From the row and from the record it is the same, but for the second when it stopped.
    let (a, b) = (by_id[&rowed], by_id[&id(2)]);
    let like_a = RunInfo {
        id: a.id,
        name: a.name.clone(),
        created_ms: a.created_ms,
        stopped_ms: a.stopped_ms,
        ..b.clone()
    };
    assert_eq!(a, &like_a);
    assert_eq!((a.command.as_str(), a.reason), ("make 'two words'", Some(StopReason::Exited)));
    assert_eq!(a.exit.unwrap().code, Some(3));
    assert!(b.stopped_ms.is_some());
    assert_eq!(by_id[&live].life, Life::Live(RunState::Running));
    assert_eq!(by_id[&live].command, "make 'two words'");
    assert_eq!((by_id[&bare].state, by_id[&bare].backend), (RunState::Starting, None));
    assert_eq!(by_id[&id(5)].command, "(no record)");
    assert_eq!(by_id[&id(6)].reason, Some(StopReason::Exited), "the row is enough");
    assert_eq!(by_id[&id(7)].command, "(its record cannot be read)");

    assert_eq!(ids(&list(&runs.home, Which::Live).unwrap()), [bare, live]);
}

#[test]
fn the_lock_says_what_is_alive() {
    let runs = Runs::new();
    for (word, state) in [
        ("planned", RunState::Planned),
        ("running\n", RunState::Running),
        ("stopping", RunState::Stopping),
        ("stopped", RunState::Stopping),
        ("", RunState::Starting),
        ("\u{1b}[2J", RunState::Starting),
    ] {
        let (run, held) = runs.live(1, None, word);
        assert_eq!(one(&runs, run).state, state, "{word:?}");
        assert!(one(&runs, run).is_live());
        drop(held);
        let dead = one(&runs, run);
        assert_eq!((dead.life, dead.state), (Life::Unfinished, RunState::Stopped));
        assert_eq!(dead.reason, Some(StopReason::Lost), "as reconcile will write it");
        assert_eq!(list(&runs.home, Which::Live).unwrap(), []);
    }
    // A row that says otherwise is old.
    let (run, held) = runs.live(2, None, "running");
    runs.ledger().upsert(&row(run, None)).unwrap();
    assert!(one(&runs, run).is_live());
    assert_eq!(one(&runs, run).reason, None);
    drop(held);
    let row = LedgerRow { state: RunState::Running, reason: None, ..row(run, None) };
    runs.ledger().upsert(&row).unwrap();
    assert_eq!(one(&runs, run).reason, Some(StopReason::Lost));
    runs.directory(run, None);
    assert_eq!(one(&runs, run).reason, Some(StopReason::Exited), "the record has its end");
}

fn found(runs: &Runs, query: &str) -> Result<RunId, String> {
    find(&runs.home, query).map(|run| run.id).map_err(|error| error.to_string())
}

#[test]
fn a_name_is_its_live_run_or_its_newest() {
    let runs = Runs::new();
    let _old = runs.stopped(1, Some("nightly"));
    let new = runs.stopped(2, Some("nightly"));
    assert_eq!(found(&runs, "nightly"), Ok(new));
    assert!(found(&runs, "night").unwrap_err().contains("belljar ps -a"), "never a prefix");
    let (live, _held) = runs.live(0, Some("nightly"), "running");
    assert_eq!(found(&runs, "nightly"), Ok(live), "older, and alive");
    let (other, held) = runs.live(3, Some("nightly"), "stopping");
    let refused = find(&runs.home, "nightly").unwrap_err();
    let FindError::Ambiguous { matches, .. } = &refused else { panic!("{refused}") };
    assert_eq!(ids(matches), [other, live]);
    let text = refused.to_string();
    for part in [other.tail(), live.tail(), "nightly", "stopping", "running", "make 'two words'"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    drop(held);
    assert_eq!(found(&runs, "nightly"), Ok(live));
}

#[test]
fn a_head_or_a_tail_finds_one() {
    let runs = Runs::new();
    let a = runs.stopped(1, None);
    let b = id(2);
    runs.directory(b, None);
    for id in [a, b] {
        assert_eq!(found(&runs, id.as_str()), Ok(id));
        assert_eq!(found(&runs, id.tail()), Ok(id));
        assert_eq!(found(&runs, &id.tail()[3..]), Ok(id));
        assert!(found(&runs, &id.tail()[4..]).is_err(), "three are too few");
    }
    let both = found(&runs, &a.as_str()[..6]).unwrap_err();
    assert!(both.contains(a.tail()) && both.contains(b.tail()), "{both}");
    for hostile in ["", "../..", "\u{1b}[2J", "%", "a' OR 1=1"] {
        let refused = found(&runs, hostile).unwrap_err();
        assert!(!refused.contains('\u{1b}'), "{refused}");
    }
}

#[test]
fn an_id_wins_and_a_name_that_is_a_tail_too_is_ambiguous() {
    let runs = Runs::new();
    let a = runs.stopped(1, None);
    let b = runs.stopped(2, Some(a.as_str()));
    assert_eq!(found(&runs, a.as_str()), Ok(a), "a full id always wins");
    assert_eq!(found(&runs, b.as_str()), Ok(b));
    let c = runs.stopped(3, Some(a.tail()));
    let refused = find(&runs.home, a.tail()).unwrap_err();
    assert!(matches!(&refused, FindError::Ambiguous { matches, .. } if ids(matches) == [c, a]));
    // A run whose own name is its own tail is one run.
    let own = id(4);
    runs.directory(own, Some(own.tail()));
    assert_eq!(found(&runs, own.tail()), Ok(own));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 24, failure_persistence: None, ..ProptestConfig::default()
    })]

    /// Against the rules, said in the simplest way.
    #[test]
    fn what_is_found_is_what_the_rules_say(
        made in proptest::collection::btree_map(
            (0..4_u64, 0..4_u64), (proptest::option::of("[ab]{4}"), any::<bool>()), 1..8),
        at in any::<proptest::sample::Index>(),
        part in 0..4_usize,
    ) {
        let runs = Runs::new();
        let mut all: BTreeMap<RunId, Option<String>> = BTreeMap::new();
        for ((time, random), (name, has_row)) in &made {
            let id = RunId::from_parts(BEGAN + time, random * 0x0_5294_a529);
            runs.directory(id, name.as_deref());
            if *has_row {
                runs.ledger().upsert(&row(id, name.as_deref())).unwrap();
            }
            all.insert(id, name.clone());
        }
        let list: Vec<_> = all.iter().collect();
        let (id, name) = at.get(&list);
        let query = match part {
            0 => id.as_str().to_owned(),
            1 => id.as_str()[..8].to_owned(),
            2 => id.as_str()[11..].to_owned(),
            _ => name.as_deref().unwrap_or("none").to_owned(),
        };
        let named = all.iter().rfind(|(_, name)| name.as_deref() == Some(&query)).map(|(id, _)| *id);
        let mut want: Vec<RunId> = all.keys().copied().filter(|id| id.matches(&query)).collect();
        want.extend(named);
        if all.keys().any(|id| id.as_str() == query) {
            want.retain(|id| id.as_str() == query);
        }
        want.sort_unstable();
        want.dedup();
        match find(&runs.home, &query) {
            Ok(run) => prop_assert_eq!(vec![run.id], want),
            Err(FindError::NotFound { .. }) => prop_assert_eq!(Vec::<RunId>::new(), want),
            Err(FindError::Ambiguous { matches, .. }) => {
                prop_assert!(matches.len() > 1);
                want.reverse();
                prop_assert_eq!(ids(&matches), want);
            }
            Err(error) => prop_assert!(false, "{}", error),
        }
    }
}
