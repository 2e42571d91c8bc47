//! What is sent to an engine is what was read, and only that.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use belljar_backend::engine::image::Reference;
use belljar_tree::{Dir, FinalLink};

use super::build_record::BuildRecord;
use super::context::{Context, ContextEntry, ContextKind, Exclusions, read};
use super::context_archive::{ContextArchive, PreloadedFile};
use super::fingerprint::{Fingerprint, LABEL_FINGERPRINT, RebuildReason, differences};
use super::ignore::IgnoreFile;

fn context(directory: &Path, ignore: &str) -> Context {
    let root = Dir::open(directory, FinalLink::Follow).unwrap();
    let ignored = IgnoreFile::parse(ignore.as_bytes()).unwrap();
    read(root, &Exclusions { ignored: &ignored, dockerfile: Some(b"Dockerfile"), home: None })
        .unwrap()
}

/// Path, kind, mode, and content or target.
type Found = (String, tar::EntryType, u32, String);

fn unpacked(pieces: ContextArchive) -> std::io::Result<Vec<Found>> {
    let bytes: Vec<u8> = pieces.collect::<Result<Vec<_>, _>>()?.concat();
    assert_eq!(bytes.len() % 512, 0);
    let mut archive = tar::Archive::new(bytes.as_slice());
    let entries = archive.entries()?.map(|entry| {
        let mut entry = entry?;
        let path = entry.path()?.display().to_string();
        let header = entry.header();
        assert_eq!((header.uid()?, header.gid()?), (0, 0));
        let (kind, mode) = (header.entry_type(), header.mode()?);
        let mut content = String::new();
        match entry.link_name()? {
            Some(target) => content = target.display().to_string(),
            None => _ = entry.read_to_string(&mut content)?,
        }
        Ok((path, kind, mode, content))
    });
    entries.collect()
}

fn tree() -> tempfile::TempDir {
    let tree = tempfile::tempdir().unwrap();
    let at = |name: &str| tree.path().join(name);
    fs::create_dir_all(at("b/deep")).unwrap();
    fs::create_dir(at("secrets")).unwrap();
    for (name, content) in [
        ("Dockerfile", "FROM x"),
        ("a", "1"),
        ("b/deep/c", ""),
        ("secrets/key", "k"),
        (".env", "e"),
    ] {
        fs::write(at(name), content).unwrap();
    }
    for (name, mode) in
        [("a", 0o755), ("b", 0o755), ("b/deep", 0o700), ("b/deep/c", 0o640), ("secrets", 0o755)]
    {
        fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    symlink("/etc/passwd", at("out")).unwrap();
    symlink("secrets", at("to-secrets")).unwrap();
    tree
}

#[test]
fn the_archive_holds_what_was_not_left_out_and_follows_no_link() {
    let tree = tree();
    let _socket = UnixListener::bind(tree.path().join("socket")).unwrap();
    let read = context(tree.path(), "secrets\n.env");
    assert_eq!(read.skipped, [("socket".into(), "a socket")]);
    let held = vec![PreloadedFile { path: b"Dockerfile".to_vec(), content: b"FROM y".to_vec() }];
    let found = unpacked(ContextArchive::new(Some(read), held)).unwrap();
    let expected = [
        ("Dockerfile", tar::EntryType::Regular, 0o644, "FROM y"),
        ("a", tar::EntryType::Regular, 0o755, "1"),
        ("b", tar::EntryType::Directory, 0o755, ""),
        ("b/deep", tar::EntryType::Directory, 0o700, ""),
        ("b/deep/c", tar::EntryType::Regular, 0o640, ""),
        ("out", tar::EntryType::Symlink, 0o777, "/etc/passwd"),
        ("to-secrets", tar::EntryType::Symlink, 0o777, "secrets"),
    ];
    let expected =
        expected.map(|(path, kind, mode, is)| (path.to_owned(), kind, mode, is.to_owned()));
    assert_eq!(found, expected);
}

#[test]
fn long_names_long_targets_and_large_files_arrive_whole() {
    let tree = tempfile::tempdir().unwrap();
    let name = "n".repeat(200);
    let directory = tree.path().join(&name);
    fs::create_dir(&directory).unwrap();
    let large = "0123456789abcdef".repeat(20_000) + "end";
    fs::write(directory.join(&name), &large).unwrap();
    let target = format!("/{}", "t".repeat(300));
    symlink(&target, tree.path().join("z")).unwrap();
    let found = unpacked(ContextArchive::new(Some(context(tree.path(), "")), Vec::new())).unwrap();
    assert_eq!(found[1].0, format!("{name}/{name}"));
    assert_eq!(found[1].3, large);
    assert_eq!(found[2].3, target);
}

#[test]
fn a_file_that_changes_meanwhile_ends_the_archive_without_an_end() {
    type Change = fn(&Path);
    let changes: [(&str, Change); 5] = [
        ("content", |at| fs::write(at.join("a"), "2").unwrap()),
        ("longer", |at| fs::write(at.join("a"), "12").unwrap()),
        ("shorter", |at| fs::write(at.join("a"), "").unwrap()),
        ("link", |at| {
            fs::remove_file(at.join("a")).unwrap();
            symlink("/etc/hostname", at.join("a")).unwrap();
        }),
        ("directory", |at| {
            fs::rename(at.join("b"), at.join("moved")).unwrap();
            symlink("moved", at.join("b")).unwrap();
        }),
    ];
    for (what, change) in changes {
        let tree = tree();
        let read = context(tree.path(), "");
        change(tree.path());
        let error = unpacked(ContextArchive::new(Some(read), Vec::new())).unwrap_err();
        assert!(error.to_string().contains("changed while it was being read"), "{what}: {error}");
    }
}

#[test]
fn a_link_that_leads_out_is_known() {
    let out = |path: &str, target: &str| {
        let kind = ContextKind::Link { target: target.into() };
        ContextEntry { path: path.into(), mode: 0o777, modified: 0, kind }.points_outside()
    };
    for (path, target) in [("a", ".."), ("a/b", "../.."), ("a/b", "x/../../../y"), ("a", "./../x")]
    {
        assert!(out(path, target), "{path} {target}");
    }
    for (path, target) in [("a", "b"), ("a/b", "../c"), ("a/b/c", "../../x/.."), ("a", "/etc")] {
        assert!(!out(path, target), "{path} {target}");
    }
}

#[test]
fn a_context_that_holds_the_home_is_refused() {
    let tree = tree();
    let try_with = |ignore: &str| {
        let root = Dir::open(tree.path(), FinalLink::Follow).unwrap();
        let ignored = IgnoreFile::parse(ignore.as_bytes()).unwrap();
        read(root, &Exclusions { ignored: &ignored, dockerfile: None, home: Some(b"secrets") })
    };
    assert!(
        try_with("").unwrap_err().to_string().contains("Belljar's records (the home), secrets")
    );
    assert!(try_with("secrets").is_ok());
}

#[test]
fn the_fingerprint_is_of_inputs_and_of_nothing_else() {
    let tree = tree();
    let none = BTreeMap::new();
    let of = |arguments: &BTreeMap<String, String>| {
        Fingerprint::of(b"FROM x", arguments, &context(tree.path(), ".env").entries)
    };
    let first = of(&none);
    // Neither the time, nor what is left out, nor how it is fetched.
    fs::write(tree.path().join(".env"), "other").unwrap();
    let file = fs::File::options().write(true).open(tree.path().join("a")).unwrap();
    file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    let proxy = BTreeMap::from([("https_proxy".to_owned(), "http://ann:pw@x".to_owned())]);
    assert_eq!(of(&proxy), first);
    let labels = first.labels();
    let build_record = BuildRecord::of(&context(tree.path(), ".env").entries);
    let why = |dockerfile: &[u8], arguments: &BTreeMap<String, String>| {
        let entries = context(tree.path(), ".env").entries;
        let now = Fingerprint::of(dockerfile, arguments, &entries);
        differences(&now, &labels, Some(&build_record), &entries)
    };
    assert_eq!(why(b"FROM x", &none), []);
    assert_eq!(why(b"FROM y", &none), [RebuildReason::Dockerfile]);
    let version = BTreeMap::from([("V".to_owned(), "1".to_owned())]);
    assert_eq!(why(b"FROM x", &version), [RebuildReason::Arguments]);
    fs::set_permissions(tree.path().join("a"), fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(tree.path().join("new"), "").unwrap();
    fs::remove_file(tree.path().join("out")).unwrap();
    let changed = RebuildReason::Context(["a", "new", "out"].map(str::to_owned).to_vec());
    assert_eq!(why(b"FROM x", &none), std::slice::from_ref(&changed));
    assert_eq!(changed.to_string(), "the context changed: a, new, out");
    assert_eq!(
        why(b"FROM y", &version),
        [RebuildReason::Dockerfile, RebuildReason::Arguments, changed]
    );
}

#[test]
fn what_labels_say_may_be_anything() {
    let now = Fingerprint::of(b"", &BTreeMap::new(), &[]);
    let why = |labels: &[(&str, &str)]| {
        let labels = labels.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        differences(&now, &labels, None, &[])
    };
    assert_eq!(why(&[]), [RebuildReason::NotBuiltHere]);
    assert_eq!(why(&[(LABEL_FINGERPRINT, "../../x")]), [RebuildReason::OtherRules]);
    assert_eq!(
        why(&[(LABEL_FINGERPRINT, "x"), ("belljar.inputs", "{}")]),
        [RebuildReason::OtherRules]
    );
    let home = tempfile::tempdir().unwrap();
    let home = belljar_record::home::Home::open_at(home.path().join("home")).unwrap();
    assert!(BuildRecord::read(&home, "../format").is_none());
    assert!(BuildRecord::of(&[]).save(&home, "../x").is_err());
}

#[test]
fn a_name_for_a_build_has_no_digest() {
    let digest = format!("x@sha256:{}", "0".repeat(64));
    assert!(super::name_for_build(&digest).is_err());
    assert_eq!(super::name_for_build("x:1").unwrap(), Reference::parse("x:1").unwrap());
}
