//! Archives that try to get out, to lie, or to use everything up: each refused or bounded, each with a control.

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};

use belljar_image::{PrivilegedBits, UnpackLimits, UnpackOptions, UnpackProblem};

use crate::archives::{Entry, gzip, open_tar, tar, zstd};
use crate::tools::{Place, is_root, options};

/// Why an archive is refused. Nothing outside the target has changed.
fn refused(entries: &[Entry]) -> UnpackProblem {
    refused_bytes(&tar(entries), &options())
}

fn refused_bytes(archive: &[u8], options: &UnpackOptions) -> UnpackProblem {
    let place = Place::new();
    let error = place.unpack("t", archive, &[], options).expect_err("the archive was taken");
    place.check_canary();
    error.problem
}

/// Unpacks an archive that is good.
fn taken(entries: &[Entry]) -> Place {
    let place = Place::new();
    place.unpack("t", &tar(entries), &[], &options()).unwrap();
    place.check_canary();
    place
}

fn limited(change: impl FnOnce(&mut UnpackLimits)) -> UnpackOptions {
    let mut options = options();
    change(&mut options.limits);
    options
}

#[test]
fn a_parent_component_is_refused() {
    for path in ["../outside/canary", "a/../../outside/canary", "..", "/../outside/canary"] {
        let problem = refused(&[Entry::file(path, "x")]);
        assert!(matches!(problem, UnpackProblem::ParentComponent), "{path}: {problem}");
        let problem = refused(&[Entry::file("a", ""), Entry::hard_link("b", path)]);
        assert!(matches!(problem, UnpackProblem::ParentComponent), "{path}: {problem}");
    }
    taken(&[Entry::file("outside/canary", "x")]);
}

#[test]
fn an_absolute_path_means_the_images_root() {
    let place = taken(&[Entry::file("/etc/passwd", "inside")]);
    assert_eq!(std::fs::read_to_string(place.target("t/etc/passwd")).unwrap(), "inside");
}

#[test]
fn nothing_is_written_through_a_link_of_the_archive() {
    for target in ["../outside", "/", "."] {
        for entry in [
            Entry::file("l/canary", "x"),
            Entry::dir("l/new"),
            Entry::symlink("l/new", "x"),
            Entry::dir("l/new/deeper"),
        ] {
            let problem = refused(&[Entry::symlink("l", target), entry]);
            assert!(matches!(problem, UnpackProblem::ParentNotDirectory), "{target}: {problem}");
        }
    }
    taken(&[Entry::dir("l"), Entry::file("l/canary", "x")]);
    // The later of two entries counts, and replaces the link itself.
    let place = taken(&[Entry::symlink("l", "../outside/canary"), Entry::file("l", "mine")]);
    assert_eq!(std::fs::read_to_string(place.target("t/l")).unwrap(), "mine");
    let place =
        taken(&[Entry::symlink("l", "../outside"), Entry::dir("l"), Entry::file("l/a", "")]);
    assert!(std::fs::symlink_metadata(place.target("t/l")).unwrap().is_dir());
}

#[test]
fn a_hard_link_names_a_file_of_the_same_layer_that_is_there() {
    let refuses = |entries: &[Entry]| {
        let problem = refused(entries);
        assert!(matches!(problem, UnpackProblem::LinkTarget { .. }), "{problem}");
    };
    refuses(&[Entry::hard_link("b", "missing")]);
    refuses(&[Entry::hard_link("b", "a"), Entry::file("a", "later")]);
    refuses(&[Entry::symlink("l", "../outside"), Entry::hard_link("b", "l/canary")]);
    refuses(&[Entry::dir("d"), Entry::hard_link("b", "d")]);
    refuses(&[Entry::file("a", ""), Entry::hard_link("b", ".wh.a")]);
    refuses(&[Entry::dir("d"), Entry::file("d/a", ""), Entry::hard_link("d", "d/a")]);
    let place = taken(&[
        Entry::file("a", "same"),
        Entry::dir("d"),
        Entry::hard_link("d/b", "a"),
        Entry::hard_link("a", "a"),
        Entry::symlink("l", "/outside/canary"),
        Entry::hard_link("m", "/l"),
    ]);
    let inode = |name: &str| std::fs::symlink_metadata(place.target(name)).unwrap().ino();
    assert_eq!(inode("t/a"), inode("t/d/b"));
    assert_eq!(inode("t/l"), inode("t/m"));
}

#[test]
fn a_hard_link_reaches_no_lower_layer() {
    let place = Place::new();
    place.unpack("low", &tar(&[Entry::file("a", "below")]), &[], &options()).unwrap();
    let layer = tar(&[Entry::hard_link("b", "a")]);
    let problem = place.unpack("t", &layer, &["low"], &options()).unwrap_err().problem;
    assert!(matches!(problem, UnpackProblem::LinkTarget { .. }), "{problem}");
}

#[test]
fn devices_and_fifos_are_left_out_and_counted() {
    let place = Place::new();
    let entries = [
        Entry::special("dev/sda", b'4'),
        Entry::special("dev/null", b'3'),
        Entry::special("dev/fifo", b'6'),
        Entry::file("dev/readme", "the control"),
    ];
    let report = place.unpack("t", &tar(&entries), &[], &options()).unwrap();
    assert_eq!((report.skipped_devices, report.skipped_fifos), (2, 1));
    let names: Vec<_> = std::fs::read_dir(place.target("t/dev"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["readme"]);
}

#[test]
fn an_unknown_kind_and_a_root_that_is_no_directory_are_refused() {
    assert!(matches!(refused(&[Entry::special("a", b'Z')]), UnpackProblem::Kind { letter: b'Z' }));
    for entry in [Entry::file(".", "x"), Entry::symlink("/", "/etc")] {
        let kind = entry.kind;
        let problem = refused(&[entry]);
        let is_right = matches!(problem, UnpackProblem::RootNotDirectory);
        assert!(is_right, "{}: {problem}", char::from(kind));
    }
    taken(&[Entry::dir("./").mode(0o700)]);
    // A file whose name ends with a slash is a directory in old archives.
    let place = taken(&[Entry::file("d/", "ignored").mode(0o755), Entry::file("d/f", "x")]);
    assert!(place.target("t/d/f").is_file());
}

#[test]
fn setuid_bits_and_capabilities_follow_the_policy() {
    let mut capability = vec![0; 20];
    capability[..4].copy_from_slice(&[1, 0, 0, 2]);
    capability[5] = 0x20;
    let entries = [
        Entry::file("suid", "").mode(0o6755),
        Entry::file("cap", "").mode(0o755).pax("SCHILY.xattr.security.capability", &capability),
        Entry::dir("d").mode(0o2775),
        Entry::file("sticky", "").mode(0o1644),
    ];
    for (policy, suid) in [(PrivilegedBits::Keep, 0o6755), (PrivilegedBits::Strip, 0o755)] {
        let place = Place::new();
        let options = UnpackOptions { privileged_bits: policy, ..options() };
        let report = place.unpack("t", &tar(&entries), &[], &options).unwrap();
        let mode = |name: &str| {
            std::fs::metadata(place.target(name)).unwrap().permissions().mode() & 0o7777
        };
        assert_eq!(mode("t/suid"), suid, "{policy:?}");
        assert_eq!((mode("t/d"), mode("t/sticky")), (0o2775, 0o1644));
        let mut value = [0; 32];
        let has = rustix::fs::getxattr(place.target("t/cap"), "security.capability", &mut value);
        if is_root() {
            assert_eq!(has.is_ok(), policy == PrivilegedBits::Keep, "{has:?}");
            assert_eq!(report.dropped_xattrs, u64::from(policy == PrivilegedBits::Strip));
        }
    }
}

/// Control: the test above keeps them where the options say so.
#[test]
fn sandboxes_have_no_setuid_files() {
    let place = Place::new();
    let archive = tar(&[Entry::file("suid", "").mode(0o6755)]);
    place.unpack("t", &archive, &[], &UnpackOptions::for_sandbox()).unwrap();
    let mode = std::fs::metadata(place.target("t/suid")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o755);
}

#[test]
fn attributes_of_an_overlay_never_come_from_an_archive() {
    let place = Place::new();
    let entries = [
        Entry::dir("d")
            .pax("SCHILY.xattr.trusted.overlay.opaque", "y")
            .pax("SCHILY.xattr.user.overlay.opaque", "y")
            .pax("SCHILY.xattr.user.mine", "kept"),
        Entry::file("f", "")
            .pax("SCHILY.xattr.trusted.overlay.redirect", "/outside")
            .pax("SCHILY.xattr.user.overlay.whiteout", "y")
            .pax("SCHILY.xattr.security.selinux", "x")
            .pax("LIBARCHIVE.xattr.user.other", "a2VwdA=="),
    ];
    let report = place.unpack("t", &tar(&entries), &[], &options()).unwrap();
    assert_eq!(report.dropped_xattrs, 5);
    for (path, name) in [("t/d", "user.mine"), ("t/f", "user.other")] {
        let mut value = [0; 16];
        let length = rustix::fs::getxattr(place.target(path), name, &mut value).unwrap();
        assert_eq!(&value[..length], b"kept");
    }
    for path in ["t/d", "t/f"] {
        let mut names = [0; 1024];
        let length = rustix::fs::listxattr(place.target(path), &mut names).unwrap();
        let names = String::from_utf8_lossy(&names[..length]).into_owned();
        assert!(!names.contains("overlay"), "{names}");
    }
}

#[test]
fn attributes_have_a_budget() {
    let place = Place::new();
    let big = vec![b'x'; 3000];
    let entry =
        Entry::file("f", "").pax("SCHILY.xattr.user.a", &big).pax("SCHILY.xattr.user.b", &big);
    let report = place.unpack("all", &tar(std::slice::from_ref(&entry)), &[], &options()).unwrap();
    let control = report.dropped_xattrs; // a file system may have room for less
    let few = limited(|limits| limits.layer_xattr_bytes = 3500);
    let report = place.unpack("few", &tar(std::slice::from_ref(&entry)), &[], &few).unwrap();
    assert_eq!(report.dropped_xattrs, 1.max(control));
    let none = limited(|limits| limits.xattr_bytes = 100);
    let report = place.unpack("none", &tar(&[entry]), &[], &none).unwrap();
    assert_eq!(report.dropped_xattrs, 2);
}

#[test]
fn bombs_stop_at_the_limits() {
    let is_limit = |problem: UnpackProblem, what: &str| match problem {
        UnpackProblem::Limit { what: found, .. } => assert_eq!(found, what),
        other => panic!("{other}"),
    };
    let many: Vec<Entry> = (0..100).map(|number| Entry::file(format!("f{number}"), "")).collect();
    let archive = tar(&many);
    is_limit(refused_bytes(&archive, &limited(|limits| limits.entries = 99)), "entries");
    let zeros = vec![0; 4 << 20];
    let large = tar(&[Entry::file("zeros", &zeros)]);
    let small = limited(|limits| limits.layer_bytes = 1 << 20);
    let one_file = limited(|limits| limits.file_bytes = 1 << 20);
    is_limit(refused_bytes(&large, &one_file), "bytes in one file");
    is_limit(refused_bytes(&large, &small), "bytes in all files");
    let deep = "d/".repeat(50);
    let flat = limited(|limits| limits.depth = 49);
    is_limit(refused_bytes(&tar(&[Entry::dir(&deep)]), &flat), "levels of directories");
    let whiteouts: Vec<Entry> =
        (0..100).map(|number| Entry::file(format!(".wh.f{number}"), "")).collect();
    let few = limited(|limits| limits.deferred_bytes = 1000);
    is_limit(refused_bytes(&tar(&whiteouts), &few), "bytes of whiteout paths");
    // One entry makes many directories.
    let wide: Vec<Entry> =
        (0..10).map(|number| Entry::file(format!("{number}/{deep}f"), "")).collect();
    let few = limited(|limits| limits.entries = 400);
    is_limit(refused_bytes(&tar(&wide), &few), "entries");
    let few = limited(|limits| limits.deferred_bytes = 1000);
    is_limit(refused_bytes(&tar(&wide), &few), "bytes of paths without entries");
    // What only pads is counted, too.
    let mut padded = tar(&[Entry::file("a", "x")]);
    padded.extend(&zeros);
    is_limit(refused_bytes(&padded, &small), "uncompressed bytes");
    // The controls: the same archives within the limits.
    for (number, archive) in
        [archive, large, tar(&[Entry::dir(deep)]), tar(&wide), padded].iter().enumerate()
    {
        let place = Place::new();
        place.unpack(&number.to_string(), archive, &[], &options()).unwrap();
    }
}

#[test]
fn compressed_bombs_stop_at_the_limits() {
    let large = tar(&[Entry::file("zeros", vec![0; 3 << 20])]);
    let small = limited(|limits| limits.layer_bytes = 1 << 20);
    let mut padded = tar(&[Entry::file("a", "x")]);
    padded.extend(vec![0; 3 << 20]);
    for compressed in [gzip(&large), zstd(&large), gzip(&padded), zstd(&padded)] {
        assert!(compressed.len() < 1 << 20, "the control: it is a bomb");
        let place = Place::new();
        std::fs::create_dir(place.target("t")).unwrap();
        let expected = belljar_image::ExpectedLayer { diff_id: belljar_image::Digest::of(&large) };
        let target = crate::tools::open(&place.target("t"));
        let unpacked = belljar_image::unpack_layer(&compressed[..], &target, &[], expected, &small);
        let problem = unpacked.unwrap_err().problem;
        assert!(matches!(problem, UnpackProblem::Limit { .. }), "{problem}");
    }
}

#[test]
fn a_lie_about_the_size_is_found() {
    let mut entry = Entry::file("a", "short");
    entry.size = Some(1 << 30);
    let problem = refused_bytes(&open_tar(std::slice::from_ref(&entry)), &options());
    assert!(matches!(problem, UnpackProblem::Tar(belljar_image::TarError::Truncated)), "{problem}");
    entry.size = Some(u64::MAX);
    let problem = refused_bytes(&open_tar(&[entry]), &options());
    assert!(matches!(problem, UnpackProblem::Limit { .. } | UnpackProblem::Tar(_)), "{problem}");
    taken(&[Entry::file("a", "short")]);
}

#[test]
fn long_names_are_bounded_before_they_are_read() {
    let mut long = Entry::special("././@LongLink", b'L');
    long.size = Some(1 << 40);
    let problem = refused_bytes(&open_tar(&[long]), &options());
    assert!(matches!(problem, UnpackProblem::Tar(belljar_image::TarError::TooLong { .. })));
    let mut pax = Entry::special("pax", b'x');
    pax.size = Some(1 << 40);
    let problem = refused_bytes(&open_tar(&[pax]), &options());
    assert!(matches!(problem, UnpackProblem::Tar(belljar_image::TarError::TooLong { .. })));
    let name = ["n".repeat(200), "m".repeat(250)].join("/");
    let gnu = Entry { data: format!("{name}\0").into_bytes(), ..Entry::special("x", b'L') };
    let place = taken(&[gnu, Entry::file("cut", "whole")]);
    assert_eq!(std::fs::read_to_string(place.target("t").join(&name)).unwrap(), "whole");
    taken(&[Entry::file(&name, "by PAX")]);
    assert!(matches!(refused(&[Entry::file("n".repeat(256), "")]), UnpackProblem::LongName));
}

#[test]
fn names_are_bytes_and_odd_ones_are_kept() {
    use std::os::unix::ffi::OsStrExt;
    let place = taken(&[Entry::file(b"\xff\x1b[2J\n", "x")]);
    let name = std::ffi::OsStr::from_bytes(b"\xff\x1b[2J\n");
    assert!(place.target("t").join(name).exists());
    // In messages they are escaped.
    let place = Place::new();
    let entries = [Entry::file(b"\x1b[2J/../x", "")];
    let error = place.unpack("t", &tar(&entries), &[], &options()).unwrap_err().to_string();
    assert!(!error.contains('\x1b') && error.contains("[2J"), "{error}");
    let nul = Entry::file("a", "").pax("path", b"a\0b");
    assert!(matches!(refused(&[nul]), UnpackProblem::Nul));
}

#[test]
fn owners_are_ids() {
    let problem = refused(&[Entry::file("a", "").owner(u64::from(u32::MAX), 0)]);
    assert!(matches!(problem, UnpackProblem::Owner { .. }), "{problem}");
    let problem = refused(&[Entry::file("a", "").pax("uid", "99999999999")]);
    assert!(matches!(problem, UnpackProblem::Owner { .. }), "{problem}");
    let place = Place::new();
    let entries = [
        Entry::file("a", "").owner(1234, 70_000),
        Entry::dir("d").owner(5, 6).mode(0o2755),
        Entry::file("d/inherits", "").owner(0, 0),
    ];
    let report = place.unpack("t", &tar(&entries), &[], &options()).unwrap();
    assert_eq!(report.highest_id, 70_000);
    if is_root() {
        let owner = |name: &str| {
            let found = std::fs::metadata(place.target(name)).unwrap();
            (found.uid(), found.gid())
        };
        assert_eq!(owner("t/a"), (1234, 70_000));
        assert_eq!(owner("t/d"), (5, 6));
        assert_eq!(owner("t/d/inherits"), (0, 0), "not the group of the directory");
    }
}

#[test]
fn sparse_files_get_their_holes_and_lies_are_refused() {
    let mut map = b"2\n0\n5\n1048576\n3\n".to_vec();
    map.resize(512, 0);
    map.extend(b"begin");
    map.extend(b"end");
    let sparse = |real_size: &str| {
        Entry::file("GNUSparseFile.1/s", &map)
            .pax("GNU.sparse.major", "1")
            .pax("GNU.sparse.minor", "0")
            .pax("GNU.sparse.name", "s")
            .pax("GNU.sparse.realsize", real_size)
    };
    let place = taken(&[sparse("2097152")]);
    let found = std::fs::read(place.target("t/s")).unwrap();
    assert_eq!(found.len(), 2 << 20);
    assert_eq!((&found[..5], &found[1 << 20..(1 << 20) + 3]), (&b"begin"[..], &b"end"[..]));
    assert!(std::fs::metadata(place.target("t/s")).unwrap().blocks() * 512 < 1 << 20);
    for lie in ["10", "18446744073709551615"] {
        let problem = refused(&[sparse(lie)]);
        assert!(
            matches!(problem, UnpackProblem::Tar(_) | UnpackProblem::Limit { .. }),
            "{problem}"
        );
    }
}

#[test]
fn archives_of_gnu_tar_in_every_format_are_read() {
    let place = tempfile::tempdir().unwrap();
    let tree = place.path().join("tree");
    std::fs::create_dir_all(tree.join("a".repeat(120)).join("b".repeat(120))).unwrap();
    std::fs::write(tree.join("a".repeat(120)).join("b".repeat(120)).join("c"), "deep").unwrap();
    let sparse = std::fs::File::create(tree.join("sparse")).unwrap();
    for place in 0..30_u64 {
        std::os::unix::fs::FileExt::write_all_at(&sparse, b"data", place * 100_000).unwrap();
    }
    sparse.set_len(5_000_000).unwrap();
    std::fs::write(tree.join("file"), "content").unwrap();
    std::fs::hard_link(tree.join("file"), tree.join("hard")).unwrap();
    std::os::unix::fs::symlink("x".repeat(150), tree.join("link")).unwrap();
    for arguments in [
        &["--format=gnu", "--sparse"][..],
        &["--format=pax", "--sparse", "--sparse-version=0.0"],
        &["--format=pax", "--sparse", "--sparse-version=0.1"],
        &["--format=pax", "--sparse", "--sparse-version=1.0"],
        &["--format=oldgnu", "--sparse"],
    ] {
        let made = std::process::Command::new("tar")
            .arg("-C")
            .arg(&tree)
            .args(arguments)
            .args(["-cf", "-", "."])
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        let target = Place::new();
        target.unpack("t", &made.stdout, &[], &options()).unwrap();
        let compared = std::process::Command::new("diff")
            .arg("-r")
            .arg("--no-dereference")
            .arg(&tree)
            .arg(target.target("t"))
            .output()
            .unwrap();
        assert!(compared.status.success(), "{arguments:?}: {compared:?}");
        let about = std::fs::metadata(target.target("t/sparse")).unwrap();
        assert!(about.blocks() * 512 < 2_000_000, "{arguments:?}: the holes are kept");
        assert_eq!(std::fs::metadata(target.target("t/file")).unwrap().nlink(), 2);
    }
}

#[test]
fn a_wrong_digest_is_found_after_all() {
    let place = Place::new();
    std::fs::create_dir(place.target("t")).unwrap();
    let archive = tar(&[Entry::file("a", "x")]);
    let target = crate::tools::open(&place.target("t"));
    let expected = belljar_image::ExpectedLayer { diff_id: belljar_image::Digest::of(b"other") };
    let unpacked = belljar_image::unpack_layer(&archive[..], &target, &[], expected, &options());
    assert!(matches!(unpacked.unwrap_err().problem, UnpackProblem::DiffId { .. }));
}

#[test]
fn modes_and_times_are_the_archives_also_of_directories_that_deny_their_owner() {
    let entries = [
        Entry::dir("locked").mode(0o000),
        Entry::file("locked/in", "x").mode(0o400),
        Entry::file("other", "x").mode(0o777),
        Entry::dir("locked/deeper").mode(0o500),
        Entry::file("locked/deeper/in", "x"),
        Entry::file("locked/late", "x"),
        Entry::symlink("locked/l", "in"),
    ];
    let place = taken(&entries);
    let about = |name: &str| {
        let found = std::fs::symlink_metadata(place.target(name)).unwrap();
        (found.permissions().mode() & 0o7777, found.mtime())
    };
    assert_eq!(about("t/locked"), (0, 1_600_000_000));
    assert_eq!(about("t/other"), (0o777, 1_600_000_000));
    if is_root() {
        assert_eq!(about("t/locked/deeper"), (0o500, 1_600_000_000));
        assert_eq!(about("t/locked/in"), (0o400, 1_600_000_000));
        assert!(
            !std::fs::symlink_metadata(place.target("t/locked/l")).unwrap().file_type().is_fifo()
        );
    }
}
