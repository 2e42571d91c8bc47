//! What is copied and what is not, and when a file is shared with the snapshot before.

use std::fs::{self, File, FileTimes, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::Duration;

use belljar_bind::snapshot::{self, Begun, Previous, SnapshotError, index_of};

use crate::support::{Yard, also_as_user, assert_same, is_root, mark, state};

fn tick() {
    std::thread::sleep(Duration::from_millis(20));
}

#[test]
fn an_unchanged_file_is_shared_and_a_restored_one_is_not() {
    let yard = Yard::new();
    for name in ["same", "other", "touched"] {
        fs::write(yard.tree().join(name), name).unwrap();
    }
    tick();
    assert_eq!(yard.take(0).new_files, 3);
    fs::write(yard.tree().join("other"), "OTHER").unwrap();
    fs::write(yard.tree().join("touched"), "touched").unwrap();
    tick();
    let taken = yard.take(1);
    assert_eq!((taken.files, taken.new_files, taken.changed), (3, 2, 1), "{taken:?}");
    assert_eq!((taken.bytes, taken.new_bytes), (16, 12));
    let inode =
        |number: usize, name: &str| fs::metadata(yard.snapshot(number).join(name)).unwrap().ino();
    assert_eq!(inode(0, "same"), inode(1, "same"));
    assert_ne!(inode(0, "other"), inode(1, "other"));
    let restored = yard.restore(1);
    fs::write(restored.join("same"), "SAME").unwrap();
    assert_eq!(fs::read(yard.snapshot(0).join("same")).unwrap(), b"same");
    let taken = yard.take(2);
    assert_eq!((taken.new_files, taken.changed), (0, 0), "{taken:?}");
}

/// The same size, the same times as far as anybody can set them, and at once.
#[test]
fn a_change_in_the_tick_of_the_snapshot_is_seen() {
    let yard = Yard::new();
    let path = yard.tree().join("file");
    fs::write(&path, "0000").unwrap();
    yard.take(0);
    for number in 1..60 {
        let modified = fs::metadata(&path).unwrap().modified().unwrap();
        let text = format!("{number:04}");
        fs::write(&path, &text).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.set_times(FileTimes::new().set_modified(modified)).unwrap();
        assert_eq!(yard.take(number).changed, 1);
        assert_eq!(fs::read_to_string(yard.snapshot(number).join("file")).unwrap(), text);
    }
}

/// Where the file system stamps by ticks a change can leave no trace: a file of that time is never shared.
#[test]
fn a_file_that_changed_after_the_snapshot_began_is_copied_again() {
    let yard = Yard::new();
    fs::write(yard.tree().join("early"), "x").unwrap();
    tick();
    let begun = Begun::now(yard.temp.path()).unwrap();
    fs::write(yard.tree().join("late"), "x").unwrap();
    snapshot::take(&yard.tree(), &yard.snapshot(0), begun, None).unwrap();
    let taken = yard.take(1);
    assert_eq!((taken.files, taken.new_files, taken.changed), (2, 1, 0));
}

/// Neither file was touched, and each is in the place of the other.
#[test]
fn directories_that_changed_places() {
    let yard = Yard::new();
    for name in ["a", "b"] {
        fs::create_dir(yard.tree().join(name)).unwrap();
        fs::write(yard.tree().join(name).join("file"), name).unwrap();
    }
    tick();
    yard.take(0);
    for (from, to) in [("a", "c"), ("b", "a"), ("c", "b")] {
        fs::rename(yard.tree().join(from), yard.tree().join(to)).unwrap();
    }
    assert_eq!(yard.take(1).changed, 2);
    assert_eq!(fs::read_to_string(yard.snapshot(1).join("a/file")).unwrap(), "b");
    assert_eq!(fs::read_to_string(yard.snapshot(0).join("a/file")).unwrap(), "a");
}

#[test]
fn a_renamed_directory_keeps_its_hard_links() {
    let yard = Yard::new();
    for directory in ["a", "m", "z"] {
        fs::create_dir(yard.tree().join(directory)).unwrap();
    }
    fs::write(yard.tree().join("m/file"), "x").unwrap();
    for name in ["a/file", "z/file"] {
        fs::hard_link(yard.tree().join("m/file"), yard.tree().join(name)).unwrap();
    }
    tick();
    yard.take(0);
    fs::rename(yard.tree().join("a"), yard.tree().join("b")).unwrap();
    fs::rename(yard.tree().join("z"), yard.tree().join("y")).unwrap();
    yard.take(1);
    let then = state(&yard.tree());
    assert_same(&state(&yard.snapshot(1)), &then, "the snapshot");
    assert_same(&state(&yard.restore(1)), &then, "restored");
}

#[test]
fn what_could_act_stays_behind() {
    let yard = Yard::new();
    let path = yard.tree().join("setuid");
    fs::write(&path, "x").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o6751)).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o6751, "the control");
    mark(&path, "user.kept", b"x");
    if is_root() {
        // cap_net_raw=ep, as setcap writes it.
        mark(
            &path,
            "security.capability",
            &[1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        );
        mark(&yard.tree(), "trusted.overlay.origin", b"x");
        mark(&yard.tree(), "user.overlay.opaque", b"y");
    } else {
        mark(&yard.tree(), "user.overlay.origin", b"x");
    }
    yard.take(0);
    let restored = yard.restore(0);
    for at in [yard.snapshot(0), restored] {
        assert_eq!(fs::metadata(at.join("setuid")).unwrap().mode() & 0o7777, 0o751);
        let mut room = [0; 64];
        let path = at.join("setuid");
        assert_eq!(rustix::fs::getxattr(&path, "user.kept", &mut room[..]), Ok(1));
        assert!(rustix::fs::getxattr(&path, "security.capability", &mut room[..]).is_err());
        assert!(state(&at)[std::path::Path::new("")].attributes.is_empty());
    }
}

#[test]
fn what_could_act_stays_behind_as_an_ordinary_user() {
    also_as_user("exact::what_could_act_stays_behind");
}

#[test]
fn nothing_is_put_over_what_is_there() {
    let yard = Yard::new();
    fs::write(yard.tree().join("file"), "x").unwrap();
    yard.take(0);
    let full = yard.restore(0);
    let again = snapshot::restore(&yard.snapshot(0), &full);
    assert!(matches!(again, Err(SnapshotError::NotEmpty { .. })), "{again:?}");
    let begun = Begun::now(yard.temp.path()).unwrap();
    let again = snapshot::take(&yard.tree(), &yard.snapshot(0), begun, None);
    assert!(matches!(again, Err(SnapshotError::Entry { .. })), "{again:?}");
}

#[test]
fn an_index_that_was_cut_is_not_believed() {
    let yard = Yard::new();
    for name in ["one", "two", "three"] {
        fs::write(yard.tree().join(name), name).unwrap();
    }
    yard.take(0);
    assert!(Previous::open(&yard.snapshot(0)).is_some(), "the control");
    let index = index_of(&yard.snapshot(0));
    let whole = fs::read(&index).unwrap();
    for length in 0..whole.len() {
        fs::write(&index, &whole[..length]).unwrap();
        assert!(Previous::open(&yard.snapshot(0)).is_none(), "{length} of {}", whole.len());
    }
}
