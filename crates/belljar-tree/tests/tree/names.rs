//! Names are made, moved and removed, and attributes set, each with a typed refusal.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use belljar_tree::{
    CreateFileError, HardLinkError, ReadLinkError, RemoveDirError, RenameError, RenameMode,
    SetAttributeError, SymlinkError, UnlinkError,
};
use rustix::fs::{Timespec, Timestamps};

use crate::support::{SECRET, each_resolver};

#[test]
fn a_rename_replaces_or_not_or_exchanges() {
    each_resolver(|place, dir| {
        let tree = place.tree();
        fs::create_dir_all(tree.join("a/b")).unwrap();
        fs::write(tree.join("one"), "1").unwrap();
        fs::write(tree.join("a/b/two"), "2").unwrap();
        let told = dir.rename("one", dir, "a/b/two", RenameMode::NoReplace).unwrap_err();
        assert_eq!(told, RenameError::Exists { to: "a/b/two".into() });
        dir.rename("one", dir, "a/b/two", RenameMode::Exchange).unwrap();
        assert_eq!(fs::read(tree.join("one")).unwrap(), b"2");
        dir.rename("one", dir, "a/b/two", RenameMode::Replace).unwrap();
        assert_eq!(fs::read(tree.join("a/b/two")).unwrap(), b"2");
        let told = dir.rename("one", dir, "other", RenameMode::Replace).unwrap_err();
        assert!(matches!(told, RenameError::Missing { .. }) && told.is_missing());
        dir.rename("a/b/two", dir, "new", RenameMode::NoReplace).unwrap();
        assert!(dir.rename("new", dir, "../outside/x", RenameMode::Replace).is_err());
        let told = dir.rename("a", dir, "a/b/c", RenameMode::Replace).unwrap_err();
        assert!(matches!(told, RenameError::System { .. }), "{told}");
        symlink(place.outside(), tree.join("link")).unwrap();
        assert!(dir.rename("new", dir, "link/x", RenameMode::Replace).is_err());
        assert!(dir.rename("link/secret", dir, "x", RenameMode::Replace).is_err());
        let below = dir.open_dir("a/b").unwrap();
        dir.rename("new", &below, "moved", RenameMode::Replace).unwrap();
        assert!(tree.join("a/b/moved").exists());
    });
}

#[test]
fn links_are_made_and_read_and_never_followed() {
    each_resolver(|place, dir| {
        let odd = OsStr::from_bytes(b"../\xff\n");
        dir.symlink(odd, "odd").unwrap();
        assert_eq!(dir.read_link("odd").unwrap(), odd);
        dir.symlink(place.outside(), "out").unwrap();
        let told = dir.symlink("x", "out").unwrap_err();
        assert_eq!(told, SymlinkError::Exists { path: "out".into() });
        fs::write(place.tree().join("file"), "x").unwrap();
        let told = dir.read_link("file").unwrap_err();
        assert_eq!(told, ReadLinkError::NotLink { path: "file".into() });
        assert!(dir.read_link("none").unwrap_err().is_missing());

        dir.hard_link("file", dir, "second").unwrap();
        assert_eq!(dir.stat("file").unwrap().links(), 2);
        assert_eq!(dir.stat("file").unwrap().identity(), dir.stat("second").unwrap().identity());
        let told = dir.hard_link("file", dir, "second").unwrap_err();
        assert_eq!(told, HardLinkError::Exists { to: "second".into() });
        assert!(dir.hard_link("none", dir, "third").unwrap_err().is_missing());
        // A link to the secret gets a second name itself; the secret does not.
        dir.symlink(place.outside().join("secret"), "to-secret").unwrap();
        dir.hard_link("to-secret", dir, "again").unwrap();
        assert!(dir.stat("again").unwrap().is_symlink());
        assert_eq!(fs::metadata(place.outside().join("secret")).unwrap().nlink(), 1);
    });
}

#[test]
fn names_are_removed_and_not_what_they_lead_to() {
    each_resolver(|place, dir| {
        fs::create_dir_all(place.tree().join("full/below")).unwrap();
        symlink(place.outside().join("secret"), place.tree().join("link")).unwrap();
        dir.unlink("link").unwrap();
        assert!(dir.unlink("link").unwrap_err().is_missing());
        let told = dir.unlink("full").unwrap_err();
        assert_eq!(told, UnlinkError::IsDirectory { path: "full".into() });
        let told = dir.remove_dir("full").unwrap_err();
        assert_eq!(told, RemoveDirError::NotEmpty { path: "full".into() });
        dir.remove_dir("full/below").unwrap();
        dir.remove_dir("full").unwrap();
        symlink(place.outside(), place.tree().join("link")).unwrap();
        let told = dir.remove_dir("link").unwrap_err();
        assert_eq!(told, RemoveDirError::NotDirectory { path: "link".into() });
    });
}

#[test]
fn attributes_are_those_of_the_entry_itself() {
    each_resolver(|place, dir| {
        let secret = place.outside().join("secret");
        let before = fs::metadata(&secret).unwrap();
        fs::write(place.tree().join("file"), "x").unwrap();
        symlink(&secret, place.tree().join("link")).unwrap();
        dir.set_mode("file", 0).unwrap();
        dir.set_mode("file", 0o640).unwrap();
        assert_eq!(dir.stat("file").unwrap().mode(), 0o640);
        dir.set_mode("", 0o750).unwrap();
        assert_eq!(dir.stat("").unwrap().mode(), 0o750);
        let told = dir.set_mode("link", 0o777).unwrap_err();
        assert_eq!(told, SetAttributeError::Link { path: "link".into() });
        assert!(dir.set_mode("none", 0o777).unwrap_err().is_missing());
        let time = Timespec { tv_sec: 1_000_000, tv_nsec: 5 };
        let times = Timestamps { last_access: time, last_modification: time };
        for name in ["link", "file", ""] {
            dir.set_times(name, &times).unwrap();
            let found = dir.stat(name).unwrap().modified();
            assert_eq!((found.secs, found.nanos), (1_000_000, 5), "{name}");
        }
        let own = dir.stat("link").unwrap();
        for name in ["link", "file", ""] {
            dir.set_owner(name, own.uid(), own.gid()).unwrap();
        }
        let after = fs::metadata(&secret).unwrap();
        assert_eq!(after.permissions().mode(), before.permissions().mode());
        assert_eq!(after.modified().unwrap(), before.modified().unwrap());
        dir.sync("").unwrap();
        assert_eq!(fs::read_to_string(secret).unwrap(), SECRET);
    });
}

#[test]
fn what_denies_its_owner_is_opened_and_gets_its_mode_back() {
    each_resolver(|place, dir| {
        fs::create_dir(place.tree().join("shut")).unwrap();
        fs::write(place.tree().join("shut/file"), "x").unwrap();
        symlink(place.outside(), place.tree().join("link")).unwrap();
        let parent = dir.open_dir("shut").unwrap();
        for mode in [0o000, 0o100, 0o400, 0o2700] {
            dir.set_mode("shut", 0o700).unwrap();
            dir.set_mode("shut/file", 0).unwrap();
            dir.set_mode("shut", mode).unwrap();
            if !crate::support::is_root() {
                assert!(parent.open_file("file").is_err(), "the control");
            }
            let opened = dir.unlock_dir("shut").unwrap();
            assert_eq!(opened.metadata.mode(), mode);
            let file = opened.dir.unlock_file("file").unwrap();
            assert_eq!(file.metadata().unwrap().mode(), 0);
            drop(file);
            assert_eq!(opened.dir.stat("file").unwrap().mode(), 0);
            opened.relock();
            assert_eq!(dir.stat("shut").unwrap().mode(), mode);
        }
        assert!(dir.unlock_dir("link").is_err() && dir.unlock_file("link").is_err());
        dir.set_mode("shut", 0o700).unwrap();
    });
}

#[test]
fn a_pinned_entry_stays_the_same_whatever_its_name_becomes() {
    each_resolver(|place, dir| {
        let tree = place.tree();
        fs::create_dir(tree.join("d")).unwrap();
        fs::write(tree.join("d/file"), "x").unwrap();
        fs::set_permissions(tree.join("d/file"), fs::Permissions::from_mode(0o000)).unwrap();
        let pinned = dir.pin("d/file").unwrap();
        assert_eq!(pinned.metadata().mode(), 0);
        fs::rename(tree.join("d/file"), tree.join("moved")).unwrap();
        symlink(place.outside().join("secret"), tree.join("d/file")).unwrap();
        pinned.set_mode(0o640).unwrap();
        assert_eq!(dir.stat("moved").unwrap().mode(), 0o640);
        let before = fs::metadata(place.outside().join("secret")).unwrap().mode();
        let link = dir.pin("d/file").unwrap();
        assert!(matches!(link.set_mode(0o777), Err(SetAttributeError::Link { .. })));
        assert_eq!(fs::metadata(place.outside().join("secret")).unwrap().mode(), before);
        dir.pin("").unwrap().set_mode(0o751).unwrap();
        assert_eq!(dir.stat("").unwrap().mode(), 0o751);
        assert!(dir.pin("none").unwrap_err().is_missing());
        assert!(dir.pin("d/file/below").unwrap_err().is_missing());
    });
}

#[cfg(target_os = "linux")]
#[test]
fn an_unnamed_file_gets_its_name_when_it_is_whole() {
    each_resolver(|place, dir| {
        fs::create_dir(place.tree().join("d")).unwrap();
        let file = dir.create_unnamed_file(0o600).unwrap();
        fs::write(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file)), "x")
            .unwrap();
        assert!(dir.open_dir("d").unwrap().into_entries().unwrap().next().is_none());
        dir.name_file(&file, "d/named").unwrap();
        assert_eq!(fs::read(place.tree().join("d/named")).unwrap(), b"x");
        symlink(place.outside(), place.tree().join("link")).unwrap();
        let file = dir.create_unnamed_file(0o600).unwrap();
        let refused = dir.name_file(&file, "d/named").unwrap_err();
        assert_eq!(refused, CreateFileError::Exists { path: "d/named".into() });
        assert!(dir.name_file(&file, "link/new").is_err());
    });
}
