//! The home's key: made once, private, refused when it is not.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use belljar_record::{EventLog, HomeKey, KeyError, RunKey};
use belljar_spec::{EventKind, RunId};
use serde_json::json;
use tempfile::TempDir;

/// Keys cannot be looked at: whether two are the same shows in what they accept.
fn accepts(written: &RunKey, read: &RunKey) -> bool {
    let temp = TempDir::new().unwrap();
    let mut log = EventLog::create(temp.path(), written.clone()).unwrap();
    log.append(EventKind::RunStart, &json!({})).unwrap();
    log.flush().unwrap();
    EventLog::reopen(temp.path(), read.clone()).is_ok_and(|(_, found)| found.events == 1)
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn it_is_made_private_on_first_use_and_stays_the_same() {
    let temp = TempDir::new().unwrap();
    assert!(matches!(HomeKey::load(temp.path()), Err(KeyError::Missing { .. })));
    let id = RunId::from_parts(1, 1);
    let first = HomeKey::load_or_make(temp.path()).unwrap();
    let meta = fs::metadata(temp.path().join("key")).unwrap();
    assert_eq!((meta.len(), meta.permissions().mode() & 0o777), (32, 0o600));
    assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 1, "no draft is left");
    let second = HomeKey::load_or_make(temp.path()).unwrap();
    assert!(accepts(&first.for_run(&id), &second.for_run(&id)));
    assert!(accepts(&first.for_run(&id), &HomeKey::load(temp.path()).unwrap().for_run(&id)));
    let shown = format!("{first:?} {:?}", first.for_run(&id));
    assert_eq!(shown, "HomeKey(…) RunKey(…)");
}

#[test]
fn each_run_and_each_home_has_its_own() {
    let (a, b) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (a, b) =
        (HomeKey::load_or_make(a.path()).unwrap(), HomeKey::load_or_make(b.path()).unwrap());
    let (one, two) = (RunId::from_parts(1, 1), RunId::from_parts(1, 2));
    assert!(accepts(&a.for_run(&one), &a.for_run(&one)));
    assert!(!accepts(&a.for_run(&one), &a.for_run(&two)));
    assert!(!accepts(&a.for_run(&one), &b.for_run(&one)));
}

#[test]
fn many_at_once_make_one_key() {
    let temp = TempDir::new().unwrap();
    let id = RunId::from_parts(1, 1);
    let keys: Vec<RunKey> = std::thread::scope(|scope| {
        let make = || HomeKey::load_or_make(temp.path()).unwrap().for_run(&id);
        let all: Vec<_> = (0..16).map(|_| scope.spawn(make)).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert!(keys.iter().all(|key| accepts(&keys[0], key)));
    assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 1);
}

#[test]
fn a_key_that_others_reach_or_that_is_none_is_refused_with_the_way_out() {
    let temp = TempDir::new().unwrap();
    let path = temp.path().join("key");
    HomeKey::load_or_make(temp.path()).unwrap();
    let refused = || {
        let made = HomeKey::load_or_make(temp.path()).unwrap_err();
        assert_eq!(made.to_string(), HomeKey::load(temp.path()).unwrap_err().to_string());
        made
    };
    for mode in [0o640, 0o604, 0o620, 0o602, 0o601] {
        chmod(&path, mode);
        let error = refused();
        assert!(matches!(error, KeyError::OpenToOthers { mode: found, .. } if found == mode));
        assert!(error.to_string().contains("chmod 600"), "{error}");
    }
    chmod(&path, 0o600);
    assert!(HomeKey::load(temp.path()).is_ok());

    let good = fs::read(&path).unwrap();
    for bad in [&good[..31], &[&good[..], b"x"].concat(), b""] {
        fs::write(&path, bad).unwrap();
        assert!(
            matches!(refused(), KeyError::WrongLength { length, .. } if length == bad.len() as u64)
        );
    }
    fs::remove_file(&path).unwrap();
    fs::write(temp.path().join("elsewhere"), &good).unwrap();
    chmod(&temp.path().join("elsewhere"), 0o600);
    symlink(temp.path().join("elsewhere"), &path).unwrap();
    assert!(matches!(refused(), KeyError::NoFile { .. }));
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(matches!(refused(), KeyError::NoFile { .. }));
    fs::remove_dir(&path).unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    assert!(matches!(refused(), KeyError::NoFile { .. }), "and nothing waits for its writer");
    fs::remove_file(&path).unwrap();
    fs::rename(temp.path().join("elsewhere"), &path).unwrap();
    assert!(HomeKey::load(temp.path()).is_ok());
}
