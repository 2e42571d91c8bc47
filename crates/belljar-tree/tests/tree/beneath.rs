//! What a relative path may name, the same for both ways to resolve it.

use std::fs;
use std::io::Read;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use belljar_tree::{
    Access, CreateDirError, CreateFileError, EntryKind, OpenDirError, OpenFileError, PathError,
    ReadFileError, StatError,
};

use crate::support::{SECRET, dig, each_resolver};

#[test]
fn plain_paths_are_opened() {
    each_resolver(|place, dir| {
        fs::create_dir_all(place.tree().join("a/b")).unwrap();
        fs::write(place.tree().join("a/b/file"), "content").unwrap();
        for path in ["a/b", "./a//b/", "a", "", "."] {
            let opened = dir.open_dir(path).unwrap();
            let there = place.tree().join(path);
            use std::os::unix::fs::MetadataExt;
            let (found, expected) = (opened.stat("").unwrap(), fs::metadata(there).unwrap());
            assert_eq!(found.identity().inode, expected.ino(), "{path}");
        }
        let mut text = String::new();
        dir.open_file("a/b/file").unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "content");
        assert_eq!(dir.open_dir("a").unwrap().read_file("b/file", 7).unwrap(), b"content");
        let refused = dir.read_file("a/b/file", 6).unwrap_err();
        assert!(matches!(refused, ReadFileError::TooLarge { most: 6, .. }), "{refused}");
        assert!(dir.open_dir_for("a/b", Access::Lookup).unwrap().stat("file").unwrap().is_file());
    });
}

#[test]
fn what_leads_out_by_its_text_is_refused() {
    each_resolver(|place, dir| {
        fs::create_dir(place.tree().join("a")).unwrap();
        let secret = place.outside().join("secret");
        assert_eq!(fs::read_to_string(place.tree().join("../outside/secret")).unwrap(), SECRET);
        for path in ["../outside", "..", "a/../..", "a/../a"] {
            let told = dir.open_dir(path).unwrap_err();
            assert!(
                matches!(told, OpenDirError::Path(PathError::ParentComponent { .. })),
                "{path}: {told}"
            );
            assert!(dir.stat(path).is_err() && dir.create_file(path, 0o600).is_err());
            assert!(dir.unlink(path).is_err() && dir.remove_all(path).is_err());
        }
        let told = dir.open_file(&secret).unwrap_err();
        assert!(matches!(told, OpenFileError::Path(PathError::Absolute { .. })), "{told}");
        let told = dir.open_dir("a\0b").unwrap_err();
        assert!(matches!(told, OpenDirError::Path(PathError::Nul { .. })), "{told}");
        for nameless in ["", ".", "./"] {
            let told = dir.open_file(nameless).unwrap_err();
            assert!(matches!(told, OpenFileError::Path(PathError::NoName { .. })), "{told}");
        }
    });
}

#[test]
fn no_link_is_followed_in_any_part_of_a_path() {
    each_resolver(|place, dir| {
        fs::create_dir_all(place.tree().join("real/below")).unwrap();
        fs::write(place.tree().join("real/file"), "x").unwrap();
        symlink(place.outside(), place.tree().join("out")).unwrap();
        symlink("real", place.tree().join("in")).unwrap();
        symlink("../../outside/secret", place.tree().join("real/to-file")).unwrap();
        symlink("/proc/self/root", place.tree().join("magic")).unwrap();
        symlink("loop", place.tree().join("loop")).unwrap();
        let reached = fs::read_to_string(place.tree().join("out/secret")).unwrap();
        assert_eq!(reached, SECRET, "the control: whoever follows gets out");
        for (path, link) in [
            ("out", "out"),
            ("in", "in"),
            ("in/below", "in"),
            ("magic/etc", "magic"),
            ("loop", "loop"),
        ] {
            let told = dir.open_dir(path).unwrap_err();
            assert_eq!(told, OpenDirError::Link { path: link.into() }, "{path}");
            assert!(told.is_missing());
        }
        for path in ["out/secret", "in/file"] {
            assert!(matches!(
                dir.open_file(path).unwrap_err(),
                OpenFileError::Parent(OpenDirError::Link { .. })
            ));
            assert!(matches!(
                dir.stat(path).unwrap_err(),
                StatError::Parent(OpenDirError::Link { .. })
            ));
            assert_eq!(dir.stat_if_exists(path).unwrap().map(|found| found.size()), None);
        }
        let told = dir.open_file("real/to-file").unwrap_err();
        let kind = EntryKind::Symlink;
        assert_eq!(told, OpenFileError::NotRegular { path: "real/to-file".into(), kind });
        assert!(matches!(
            dir.create_file("out/new", 0o600).unwrap_err(),
            CreateFileError::Parent(OpenDirError::Link { .. })
        ));
        assert!(dir.create_dir("out/new", 0o700).is_err());
        assert!(dir.create_file("real/to-file", 0o600).is_err());
        assert!(dir.create_dir_all("out/new/more", 0o700).is_err());
        assert!(dir.unlink("out/secret").is_err() && dir.remove_all("in/below").is_ok());
        assert!(place.tree().join("real/below").exists(), "what is behind a link is not removed");
        assert!(dir.set_mode("out/secret", 0o777).is_err());
        assert!(dir.set_mode("real/to-file", 0o777).is_err());
    });
}

#[test]
fn what_is_missing_or_of_another_kind_is_told_with_its_path() {
    each_resolver(|place, dir| {
        fs::create_dir(place.tree().join("a")).unwrap();
        fs::write(place.tree().join("a/file"), "x").unwrap();
        let told = dir.open_dir("a/none/more").unwrap_err();
        assert!(matches!(told, OpenDirError::Missing { .. }), "{told}");
        let told = dir.open_dir("a/file/more").unwrap_err();
        assert_eq!(told, OpenDirError::NotDirectory { path: "a/file".into() });
        assert_eq!(told.to_string(), "\"a/file\" is not a directory");
        let told = dir.open_file("a").unwrap_err();
        assert_eq!(told.to_string(), "\"a\" is a directory, not a regular file");
        assert!(dir.open_file("a/none").unwrap_err().is_missing());
        assert!(matches!(dir.stat("none").unwrap_err(), StatError::Missing { .. }));
        let io = std::io::Error::from(dir.open_file("a/none").unwrap_err());
        assert_eq!(io.kind(), std::io::ErrorKind::NotFound);
    });
}

#[test]
fn directories_are_made_where_they_are_missing() {
    each_resolver(|place, dir| {
        for _ in 0..2 {
            let made = dir.create_dir_all("a/b/c", 0o700).unwrap();
            assert_eq!(made.stat("").unwrap().mode(), 0o700);
        }
        assert!(place.tree().join("a/b/c").is_dir());
        let told = dir.create_dir("a/b", 0o700).unwrap_err();
        assert_eq!(told, CreateDirError::Exists { path: "a/b".into() });
        fs::write(place.tree().join("a/file"), "x").unwrap();
        let told = dir.create_dir_all("a/file/more", 0o700).unwrap_err();
        let at = PathBuf::from("a/file");
        assert_eq!(told, CreateDirError::Open(OpenDirError::NotDirectory { path: at }));
        assert!(dir.create_dir_all("a/../../outside/x", 0o700).is_err());
        let (one, _) = dir.create_unique_dir(".staging-", 0o700).unwrap();
        let (other, opened) = dir.create_unique_dir(".staging-", 0o700).unwrap();
        assert_ne!(one, other);
        assert!(opened.is_empty("").unwrap());
    });
}

#[test]
fn a_path_longer_than_the_kernel_takes_is_opened() {
    each_resolver(|place, dir| {
        let name = "n".repeat(200);
        let depth = 60;
        drop(dig(&place.tree(), &name, depth));
        let path: PathBuf = vec![name.as_str(); depth].iter().collect();
        assert!(path.as_os_str().len() > 12_000);
        assert!(fs::metadata(place.tree().join(&path)).is_err(), "the control");
        let lowest = dir.open_dir(&path).unwrap();
        lowest.create_file("file", 0o600).unwrap();
        assert!(dir.open_file(path.join("file")).is_ok());
        assert!(dir.stat(path.join("file")).unwrap().is_file());
        assert!(dir.open_dir(path.join("none")).unwrap_err().is_missing());
        lowest.symlink(place.outside(), "link").unwrap();
        let told = dir.open_dir(path.join("link")).unwrap_err();
        assert_eq!(told, OpenDirError::Link { path: path.join("link") });
    });
}

#[test]
fn a_directory_that_cannot_be_read_can_be_passed() {
    if crate::support::is_root() {
        return; // root reads everything
    }
    each_resolver(|place, dir| {
        use std::os::unix::fs::PermissionsExt;
        fs::create_dir_all(place.tree().join("shut/below")).unwrap();
        let mode = |mode| {
            let permissions = fs::Permissions::from_mode(mode);
            fs::set_permissions(place.tree().join("shut"), permissions).unwrap();
        };
        mode(0o100);
        assert!(dir.open_dir("shut").is_err());
        assert!(dir.open_dir("shut/below").is_ok());
        assert!(dir.open_dir_for("shut", Access::Lookup).unwrap().open_dir("below").is_ok());
        mode(0o700);
    });
}

#[test]
fn a_trusted_path_is_followed_but_for_its_end_if_so_asked() {
    use belljar_tree::{Dir, FinalLink};
    let place = crate::support::Place::new();
    let link = place.temp.path().join("link");
    symlink("tree", &link).unwrap();
    assert!(Dir::open(&link, FinalLink::Follow).is_ok());
    assert_eq!(Dir::open(&link, FinalLink::Refuse).unwrap_err(), OpenDirError::Link { path: link });
    let none = Path::new("/no/such/place");
    assert!(matches!(Dir::open(none, FinalLink::Follow), Err(OpenDirError::Missing { .. })));
}

#[test]
fn a_listing_looks_at_its_entries_and_opens_them_without_following_links() {
    each_resolver(|place, dir| {
        fs::create_dir_all(place.tree().join("a/below")).unwrap();
        fs::write(place.tree().join("a/file"), "12345").unwrap();
        symlink(place.outside(), place.tree().join("a/link")).unwrap();
        let mut listing = dir.open_dir("a").unwrap().into_entries().unwrap();
        assert_eq!(listing.by_ref().count(), 3);
        assert_eq!(listing.stat("file").unwrap().size(), 5);
        assert!(listing.stat("link").unwrap().is_symlink());
        assert!(listing.stat("none").unwrap_err().is_missing());
        assert!(listing.open_dir("below").is_ok());
        assert_eq!(
            listing.open_dir("link").unwrap_err(),
            OpenDirError::Link { path: "link".into() }
        );
        assert!(listing.open_dir("..").is_err());
        assert!(dir.open_dir_if_exists("a/below").unwrap().is_some());
        for absent in ["none", "a/file", "a/file/x", "a/link", "a/link/x"] {
            assert!(dir.open_dir_if_exists(absent).unwrap().is_none(), "{absent}");
        }
        assert!(dir.open_dir_if_exists("../outside").is_err());
    });
}
