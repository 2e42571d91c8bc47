//! Belljar's home: where it is, what is made, what is refused.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use belljar_record::home::{Home, HomeError};
use belljar_spec::RunId;
use tempfile::TempDir;

fn env(pairs: &[(&str, &Path)]) -> BTreeMap<OsString, OsString> {
    pairs.iter().map(|(name, path)| (OsString::from(name), path.as_os_str().to_owned())).collect()
}

fn open(path: &Path) -> Result<Home, HomeError> {
    Home::open(&env(&[("BELLJAR_HOME", path)]))
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_home_is_made_private_and_opens_again() {
    let temp = TempDir::new().unwrap();
    let path = temp.path().join("a/b/home");
    let home = open(&path).unwrap();
    assert_eq!(home.path(), path);
    assert_eq!(mode(&path), 0o700);
    for directory in [home.runs(), home.live(), home.bin(), home.trash()] {
        assert_eq!(mode(&directory), 0o700, "{}", directory.display());
    }
    assert_eq!(fs::read_to_string(path.join("format")).unwrap().trim(), "3");
    let left = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name());
    let mut left: Vec<_> = left.collect();
    left.sort();
    assert_eq!(left, ["bin", "format", "live", "lock", "runs", "trash"], "no draft is left");
    assert!(open(&path).is_ok());

    let id = RunId::from_parts(1, 2);
    assert_eq!(home.run_dir(&id), path.join("runs").join(id.as_str()));
}

#[test]
fn the_place_is_the_variable_then_xdg_then_the_users_home() {
    let temp = TempDir::new().unwrap();
    let (own, state, user) =
        (temp.path().join("own"), temp.path().join("state"), temp.path().join("user"));
    let at = |pairs: &[(&str, &Path)]| Home::open(&env(pairs)).unwrap().path().to_owned();
    let all: [(&str, &Path); 3] =
        [("BELLJAR_HOME", &own), ("XDG_STATE_HOME", &state), ("HOME", &user)];
    assert_eq!(at(&all), own);
    assert_eq!(at(&all[1..]), state.join("belljar"));
    assert_eq!(at(&all[2..]), user.join(".local/state/belljar"));
    let relative: [(&str, &Path); 2] = [("XDG_STATE_HOME", "x".as_ref()), ("HOME", &user)];
    assert_eq!(at(&relative), user.join(".local/state/belljar"), "a relative one is none");
    assert!(matches!(Home::open(&env(&[])), Err(HomeError::NoPlace)));
    assert!(matches!(open("x".as_ref()), Err(HomeError::Relative { .. })));
}

#[test]
fn a_home_that_others_can_write_to_is_refused() {
    let temp = TempDir::new().unwrap();
    let path = temp.path().join("home");
    open(&path).unwrap();
    for bad in [0o720, 0o702, 0o777] {
        fs::set_permissions(&path, fs::Permissions::from_mode(bad)).unwrap();
        let refused = open(&path).unwrap_err();
        assert!(matches!(refused, HomeError::WritableByOthers { mode, .. } if mode == bad));
        assert!(refused.to_string().contains("chmod go-w"), "{refused}");
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(open(&path).is_ok(), "being seen is not being written");
}

#[test]
fn a_home_of_another_user_is_refused() {
    let temp = TempDir::new().unwrap();
    let path = temp.path().join("home");
    open(&path).unwrap();
    let other = fs::metadata(&path).unwrap().uid() + 1;
    let given = std::os::unix::fs::chown(&path, Some(other), None);
    if given.is_ok() {
        // Only root can give a directory away.
        assert!(matches!(open(&path), Err(HomeError::OtherOwner { owner, .. }) if owner == other));
        return;
    }
    let owner = fs::metadata("/").unwrap().uid();
    assert!(
        matches!(open("/".as_ref()), Err(HomeError::OtherOwner { owner: o, .. }) if o == owner)
    );
}

#[test]
fn a_newer_format_and_nonsense_are_refused() {
    let temp = TempDir::new().unwrap();
    let path = temp.path().join("home");
    open(&path).unwrap();
    let format = path.join("format");
    fs::write(&format, "4\n").unwrap();
    assert!(matches!(open(&path), Err(HomeError::Newer { found: 4, .. })));
    for bad in ["", "one", "-1", "0", "99999999999999999999"] {
        fs::write(&format, bad).unwrap();
        assert!(matches!(open(&path), Err(HomeError::BadFormat { .. })), "{bad}");
    }
    fs::write(&format, "3").unwrap();
    assert!(open(&path).is_ok());
}

#[test]
fn a_home_of_format_1_is_migrated_by_one_of_many() {
    let temp = TempDir::new().unwrap();
    let path = temp.path().join("home");
    for name in ["runs/0123456789abcdef", "live", "bin"] {
        fs::create_dir_all(path.join(name)).unwrap();
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(path.join("runs/0123456789abcdef/run.json"), "{}").unwrap();
    for _ in 0..20 {
        fs::write(path.join("format"), "1\n").unwrap();
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..8).map(|_| scope.spawn(|| open(&path).map(|_| ()))).collect();
            for one in all {
                one.join().unwrap().unwrap();
            }
        });
        assert_eq!(fs::read_to_string(path.join("format")).unwrap(), "3\n");
    }
    let run = fs::read_to_string(path.join("runs/0123456789abcdef/run.json")).unwrap();
    assert_eq!(run, "{}", "runs are as they were");
    let drafts = fs::read_dir(&path).unwrap().flatten();
    let drafts = drafts.filter(|e| e.file_name().to_string_lossy().starts_with(".format"));
    assert_eq!(drafts.count(), 0);
}

#[test]
fn a_migration_waits_for_the_lock_and_the_common_path_does_not() {
    use rustix::fs::{FlockOperation, flock};
    let temp = TempDir::new().unwrap();
    let path = temp.path().join("home");
    open(&path).unwrap();
    let lock = fs::File::create(path.join("lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    assert!(open(&path).is_ok(), "the current format needs no lock");
    fs::write(path.join("format"), "1\n").unwrap();
    let waiting = std::thread::spawn({
        let path = path.clone();
        move || open(&path).map(|_| ())
    });
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert!(!waiting.is_finished());
    assert_eq!(fs::read_to_string(path.join("format")).unwrap(), "1\n");
    drop(lock);
    waiting.join().unwrap().unwrap();
    assert_eq!(fs::read_to_string(path.join("format")).unwrap(), "3\n");
}

#[test]
fn places_in_the_home() {
    let temp = TempDir::new().unwrap();
    let home = open(&temp.path().join("home")).unwrap();
    let id = RunId::from_parts(1, 2);
    assert_eq!(home.ledger_path(), home.path().join("ledger.db"));
    assert_eq!(home.key_path(), home.path().join("key"));
    assert_eq!(home.live_path(&id), home.path().join("live").join(id.as_str()));
    assert_eq!(home.socket_path(&id), home.path().join("live").join(format!("{id}.sock")));
}

#[test]
fn a_directory_with_other_things_in_it_is_not_taken() {
    let temp = TempDir::new().unwrap();
    let empty = temp.path().join("empty");
    fs::create_dir(&empty).unwrap();
    assert!(open(&empty).is_ok(), "an empty one is");
    let foreign = temp.path().join("foreign");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("thesis.tex"), "").unwrap();
    let refused = open(&foreign).unwrap_err();
    assert!(matches!(&refused, HomeError::Foreign { found, .. } if found == "thesis.tex"));
    assert_eq!(fs::read_dir(&foreign).unwrap().count(), 1, "nothing was made in it");
}

#[test]
fn half_made_homes_are_finished() {
    let temp = TempDir::new().unwrap();
    let path = temp.path().join("home");
    fs::create_dir_all(path.join("runs")).unwrap();
    fs::write(path.join(".format.1"), "").unwrap();
    assert!(open(&path).is_ok());
    fs::remove_dir(path.join("live")).unwrap();
    open(&path).unwrap();
    assert!(path.join("live").is_dir());
}

#[test]
fn a_file_is_no_home_and_a_linked_format_is_not_followed() {
    let temp = TempDir::new().unwrap();
    let file = temp.path().join("file");
    fs::write(&file, "1").unwrap();
    assert!(matches!(open(&file), Err(HomeError::NoDirectory { .. })));
    let path = temp.path().join("home");
    open(&path).unwrap();
    fs::remove_file(path.join("format")).unwrap();
    symlink(&file, path.join("format")).unwrap();
    assert!(matches!(open(&path), Err(HomeError::Io { .. })));
}

/// And use it at once: what the first of them makes in it is not foreign to the others.
#[test]
fn many_at_once_make_one_home() {
    let open_and_use = |path: &Path, after: u64| {
        std::thread::sleep(std::time::Duration::from_micros(after));
        open(path).map(|home| drop(home.open_apply_lock().unwrap()))
    };
    for _ in 0..100 {
        let temp = TempDir::new().unwrap();
        let path = &temp.path().join("home");
        std::thread::scope(|scope| {
            let start = |number: u64| scope.spawn(move || open_and_use(path, 40 * number));
            let all: Vec<_> = (0..16).map(start).collect();
            for one in all {
                one.join().unwrap().unwrap();
            }
        });
    }
}

/// Whoever is killed while the format is written leaves a draft; the next one takes it away.
#[test]
fn a_draft_of_a_killed_maker_goes_with_the_next_one() {
    let temp = TempDir::new().unwrap();
    let path = temp.path().join("home");
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(path.join(".format.77.0"), "2").unwrap();
    open(&path).unwrap();
    assert!(!path.join(".format.77.0").exists());
    assert_eq!(fs::read_to_string(path.join("format")).unwrap(), "3\n");
}
