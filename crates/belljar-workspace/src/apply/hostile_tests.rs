//! Somebody else writes while something is applied or taken back.

use std::fs;

use super::fault::tests::{die_at, visited};
use super::tests::*;
use super::*;
use crate::select::Selection;

const HARMLESS: &str = "[branch \"main\"]\n\trebase = true\n";

#[test]
fn a_configuration_is_applied_as_it_was_judged_or_not_at_all() {
    let world = World::new(|lower| {
        fs::create_dir(lower.join(".git")).unwrap();
        fs::write(lower.join(".git/config"), "[core]\n\tbare = false\n").unwrap();
    });
    fs::create_dir(world.upper.join(".git")).unwrap();
    let config = world.upper.join(".git/config");
    let text = |more: &str| format!("[core]\n\tbare = false\n{HARMLESS}{more}");
    fs::write(&config, text("")).unwrap();
    let evil = text("[core]\n\tfsmonitor = x\n");
    let draft = {
        let (config, evil) = (config.clone(), evil.clone());
        let captured = world.home.run_dir(&world.run).join("base/0/index.json");
        let visitor = move || {
            if captured.exists() {
                fs::write(&config, &evil).unwrap(); // it was looked at
            }
        };
        visited(visitor, || world.draft())
    };
    assert_eq!(draft.trees[0].todo.len(), 1, "it looked harmless: {draft:?}");
    let refused = apply(&world.home, &draft).unwrap_err();
    assert!(matches!(&refused, ApplyError::NotWhatWasJudged { .. }), "{refused}");
    assert_eq!(world.read(".git/config"), "[core]\n\tbare = false\n");
    // The controls: named it is applied, and so is one that stays harmless.
    let named = Selection::Paths(vec![".git/config".into()]);
    apply(&world.home, &world.draft_of(named, OnConflict::Refuse)).unwrap();
    assert_eq!(world.read(".git/config"), evil);
    fs::write(&config, text("[core]\n\tfsmonitor = x\n[user]\n\tname = a\n")).unwrap();
    world.apply();
    assert!(world.read(".git/config").contains("name = a"));
}

/// Finds what waits to be applied.
fn each_staged(staged_in: &std::path::Path, mut act: impl FnMut(&std::path::Path)) {
    for entry in fs::read_dir(staged_in).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap().to_string_lossy().starts_with(STAGING_PREFIX) {
            fs::read_dir(path).unwrap().for_each(|staged| act(&staged.unwrap().path()));
        }
    }
}

#[test]
fn what_somebody_else_writes_into_a_staged_file_never_arrives() {
    let world = World::new(|lower| {
        fs::write(lower.join("old"), "old\n").unwrap();
    });
    fs::write(world.upper.join("old"), "the run's\n").unwrap();
    fs::write(world.upper.join("new"), "the run's\n").unwrap();
    fs::create_dir(world.upper.join("directory")).unwrap();
    fs::write(world.upper.join("directory/inside"), "the run's\n").unwrap();
    let before = snapshot(&world.lower);
    let write = |file: &std::path::Path| {
        // As long as what is there, and with the old times.
        let Ok(meta) = fs::metadata(file) else { return };
        if meta.is_file() && meta.len() == 10 && fs::read(file).unwrap() == b"the run's\n" {
            let modified = meta.modified().unwrap();
            fs::write(file, "somebody!\n").unwrap();
            fs::File::options().write(true).open(file).unwrap().set_modified(modified).unwrap();
        }
    };
    let add = |path: &std::path::Path| {
        if path.join("inside").exists() {
            fs::write(path.join("more"), "").unwrap();
        }
    };
    let exchange = |path: &std::path::Path| {
        if path.is_file() && fs::read(path).unwrap() == b"the run's\n" {
            fs::remove_file(path).unwrap();
            fs::write(path, "somebody!\n").unwrap();
        }
    };
    let write_inside = move |path: &std::path::Path| write(&path.join("inside"));
    type Way = Box<dyn Fn(&std::path::Path)>;
    let ways: [Way; 4] =
        [Box::new(write), Box::new(add), Box::new(exchange), Box::new(write_inside)];
    for (number, way) in ways.into_iter().enumerate() {
        let draft = world.draft();
        let staged_in = world.home.applying();
        let refused = visited(move || each_staged(&staged_in, &way), || apply(&world.home, &draft));
        let refused = refused.unwrap_err();
        assert!(matches!(&refused, ApplyError::StagedChanged { .. }), "{number}: {refused}");
        assert_eq!(snapshot(&world.lower), before, "{number}");
        assert_eq!(Journal::runs(&world.home).unwrap(), [], "{number}");
    }
    world.apply(); // the control
    assert_eq!(world.read("directory/inside"), "the run's\n");
}

/// As if the power had failed right before the mark that everything is done.
fn cut_short(world: &World) {
    let arrived = |world: &World| world.lower.join("new/program").exists();
    for number in 0.. {
        let draft = world.draft();
        assert!(die_at(number, || apply(&world.home, &draft).unwrap()).is_none(), "{number}");
        let lower = snapshot(&world.lower);
        if arrived(world) && lower.contains_key(std::path::Path::new("stays/g")) {
            return;
        }
        let lock = ApplyLock::take(&world.home).unwrap();
        recover(&world.home, &world.run, &lock).unwrap();
    }
}

fn recovered(world: &World) -> Result<Recovery, RecoverError> {
    settle(&world.home, &world.run)
}

#[test]
fn work_in_a_new_directory_survives_the_roll_back() {
    let edit = |world: &World| fs::write(world.lower.join("new/program"), "mine").unwrap();
    let add = |world: &World| fs::write(world.lower.join("new/one/two/mine"), "mine").unwrap();
    let remove = |world: &World| fs::remove_file(world.lower.join("new/one/two/f")).unwrap();
    let ways: [&dyn Fn(&World); 3] = [&edit, &add, &remove];
    for (number, way) in ways.into_iter().enumerate() {
        let world = everything();
        let before = snapshot(&world.lower);
        cut_short(&world);
        way(&world);
        let mine = snapshot(&world.lower.join("new"));
        let Err(RecoverError::Left { left, .. }) = recovered(&world) else { panic!("{number}") };
        assert_eq!(left.len(), 1, "{left:?}");
        assert_eq!(left[0].path, "new".into());
        assert_eq!(snapshot(&world.lower.join("new")), mine, "{number}");
        // All else is as it was.
        assert_eq!(world.read("changed"), "old\n");
        assert_eq!(world.read("gone/below/a"), "a");
        fs::rename(world.lower.join("new"), world.home.path().join("kept")).unwrap();
        assert_eq!(recovered(&world).unwrap(), Recovery::Undone);
        assert_eq!(snapshot(&world.lower), before, "{number}");
    }
    let world = everything(); // the control: nobody was there
    let before = snapshot(&world.lower);
    cut_short(&world);
    assert_eq!(recovered(&world).unwrap(), Recovery::Undone);
    assert_eq!(snapshot(&world.lower), before);
}

#[test]
fn without_what_was_kept_nothing_is_called_undone() {
    let world = everything();
    cut_short(&world);
    for entry in fs::read_dir(world.home.applying()).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap().to_string_lossy().starts_with(STAGING_PREFIX) {
            fs::remove_dir_all(path).unwrap();
        }
    }
    let Err(RecoverError::StagingGone { paths, journal, .. }) = recovered(&world) else { panic!() };
    assert!(paths.contains(&"changed".into()) && paths.contains(&"new".into()), "{paths:?}");
    fs::remove_file(journal).unwrap();
    assert_eq!(recovered(&world).unwrap(), Recovery::Nothing);
}

#[test]
fn an_application_that_is_undone_leaves_the_run_undecided() {
    let world = everything();
    cut_short(&world);
    let directory = world.home.run_dir(&world.run);
    mark_reviewed(&directory, Reviewed::NothingChanged); // as the end of the run would, meanwhile
    assert!(crate::is_unreviewed(&world.home, &world.run));
    recovered(&world).unwrap();
    assert!(crate::is_unreviewed(&world.home, &world.run));
    world.apply();
    assert!(!crate::is_unreviewed(&world.home, &world.run), "the control");
}

#[test]
fn what_a_live_run_did_after_the_look_is_not_decided() {
    for goes_on in [true, false] {
        let world = everything();
        let mut draft = world.draft();
        draft.made_of = Life::Unfinished; // it ends while the question stands there
        if goes_on {
            fs::write(world.upper.join("later"), "later").unwrap();
        }
        apply(&world.home, &draft).unwrap();
        assert_eq!(crate::is_unreviewed(&world.home, &world.run), goes_on);
    }
}

#[test]
fn a_directory_that_was_exchanged_is_somebody_elses_work() {
    let make = || {
        let world = World::new(|lower| {
            for name in ["src", "other"] {
                fs::create_dir_all(lower.join(name).join("below")).unwrap();
                fs::write(lower.join(name).join("below/changed"), format!("{name}\n")).unwrap();
                fs::write(lower.join(name).join("removed"), format!("{name}\n")).unwrap();
            }
        });
        fs::create_dir_all(world.upper.join("src/below")).unwrap();
        fs::write(world.upper.join("src/below/changed"), "the run's\n").unwrap();
        world.removed("src/removed");
        world
    };
    let world = make();
    fs::rename(world.lower.join("src"), world.lower.join("away")).unwrap();
    fs::rename(world.lower.join("other"), world.lower.join("src")).unwrap();
    fs::write(world.lower.join("src/new"), "").unwrap(); // which touches it like a rename
    let paths: Vec<_> =
        world.draft().trees[0].conflicts.iter().map(|conflict| conflict.path.clone()).collect();
    assert_eq!(paths, ["src/below/changed".into(), "src/removed".into()]);
    // The control: files that come and go beside them are no conflict.
    let world = make();
    fs::write(world.lower.join("src/below/new"), "").unwrap();
    world.capture();
    fs::write(world.lower.join("new"), "").unwrap();
    assert!(!world.draft().has_conflicts(), "{:?}", world.draft());
}
