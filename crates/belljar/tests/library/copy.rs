//! Copies into and out of a sandbox: whole trees there and back, and hostile ones refused.

use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use belljar::spec::wire::archive::{Entry, EntryKind};
use belljar::testing::FakeBackend;
use belljar::{CopyError, CopyLimits, CopyReport, Error, Sandbox};
use tempfile::TempDir;

async fn sandbox(fake: FakeBackend) -> Sandbox {
    Sandbox::builder().no_config().connector(fake).start().await.unwrap()
}

fn entry(kind: EntryKind, path: &str, mode: u32, size: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let path = path.as_bytes().to_vec();
    Entry { kind, mode, path, size, modified: 1_000_000_000 }.write(&mut bytes);
    bytes
}

fn file(path: &str, content: &str) -> Vec<u8> {
    let header = entry(EntryKind::File, path, 0o644, content.len() as u64);
    [header, content.as_bytes().to_vec()].concat()
}

fn directory(path: &str) -> Vec<u8> {
    entry(EntryKind::Directory, path, 0o755, 0)
}

fn link(path: &str, target: &str) -> Vec<u8> {
    let header = entry(EntryKind::Link, path, 0o777, target.len() as u64);
    [header, target.as_bytes().to_vec()].concat()
}

fn end() -> Vec<u8> {
    entry(EntryKind::End, "", 0, 0)
}

/// Copies a hand-made stream to `out` of a directory that holds nothing else but a bystander.
struct Hostile {
    place: TempDir,
    outside: TempDir,
}

impl Hostile {
    fn new() -> Self {
        let (place, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(place.path().join("bystander"), "untouched").unwrap();
        Self { place, outside }
    }

    async fn receive(&self, parts: &[Vec<u8>]) -> Result<CopyReport, Error> {
        self.receive_within(parts, CopyLimits::default()).await
    }

    async fn receive_within(
        &self,
        parts: &[Vec<u8>],
        limits: CopyLimits,
    ) -> Result<CopyReport, Error> {
        let sandbox = sandbox(FakeBackend::new().packed(parts.concat())).await;
        sandbox.copy_out_within("/tree", self.target(), limits).await
    }

    fn target(&self) -> PathBuf {
        self.place.path().join("out")
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.place.path()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Whatever came, nothing is left of it anywhere.
    fn assert_nothing_is_left(&self, what: &str) {
        assert_eq!(self.names(), ["bystander"], "{what}");
        let content = fs::read(self.place.path().join("bystander")).unwrap();
        assert_eq!(content, b"untouched", "{what}");
        assert_eq!(fs::read_dir(self.outside.path()).unwrap().count(), 0, "{what}");
    }
}

fn copy_error(result: Result<CopyReport, Error>) -> CopyError {
    match result {
        Err(Error::Copy(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_tree_goes_in_and_comes_out_the_same() {
    let (host, inside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let tree = host.path().join("tree");
    fs::create_dir_all(tree.join("sub/empty")).unwrap();
    fs::write(tree.join("sub/big"), vec![b'x'; 300_000]).unwrap();
    fs::write(tree.join("new\nline"), "").unwrap();
    fs::write(tree.join("run"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(tree.join("run"), fs::Permissions::from_mode(0o4755)).unwrap();
    symlink("../run", tree.join("sub/link")).unwrap();
    symlink("/etc/passwd", tree.join("absolute")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        tree.join("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    fs::set_permissions(tree.join("sub"), fs::Permissions::from_mode(0o555)).unwrap();
    fs::set_permissions(&tree, fs::Permissions::from_mode(0o555)).unwrap();

    let sandbox = sandbox(FakeBackend::new().files(inside.path())).await;
    let report = sandbox.copy_in(&tree, "/").await.unwrap();
    assert_eq!((report.files, report.bytes), (3, 300_010));
    assert_eq!(report.skipped, [("fifo".into(), "a FIFO".to_owned())]);
    assert!(inside.path().join("tree/sub/big").is_file(), "it keeps its name below a directory");

    let back = host.path().join("back");
    let report = sandbox.copy_out("/tree", &back).await.unwrap();
    assert_eq!((report.files, report.bytes, report.unlisted), (3, 300_010, 0));
    assert_eq!(fs::read(back.join("sub/big")).unwrap(), vec![b'x'; 300_000]);
    assert_eq!(fs::read(back.join("new\nline")).unwrap(), b"");
    assert_eq!(fs::read_link(back.join("sub/link")).unwrap(), Path::new("../run"));
    assert!(back.join("sub/empty").is_dir());
    let mode = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&back.join("run")), 0o755, "no setuid bit crosses");
    assert_eq!((mode(&back), mode(&back.join("sub"))), (0o555, 0o555));
    let changed = |path: PathBuf| fs::metadata(path).unwrap().modified().unwrap();
    let whole =
        |time: std::time::SystemTime| time.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert_eq!(whole(changed(back.join("run"))), whole(changed(tree.join("run"))));
    assert!(fs::symlink_metadata(back.join("absolute")).is_err());
    assert!(fs::symlink_metadata(tree.join("fifo")).unwrap().file_type().is_fifo());
    for directory in [&tree, &back, &inside.path().join("tree")] {
        for path in [directory.clone(), directory.join("sub")] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
    }
}

#[tokio::test]
async fn targets_follow_dockers_rules() {
    let (host, inside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(inside.path().join("note"), "from inside").unwrap();
    fs::create_dir(inside.path().join("dir")).unwrap();
    let sandbox = sandbox(FakeBackend::new().files(inside.path())).await;
    let at = |name: &str| host.path().join(name);

    sandbox.copy_out("/note", at("renamed")).await.unwrap();
    assert_eq!(fs::read(at("renamed")).unwrap(), b"from inside");
    fs::write(at("renamed"), "old").unwrap();
    sandbox.copy_out("/note", at("renamed")).await.unwrap();
    assert_eq!(fs::read(at("renamed")).unwrap(), b"from inside", "a file is replaced");
    fs::create_dir(at("existing")).unwrap();
    sandbox.copy_out("/note", at("existing")).await.unwrap();
    assert_eq!(fs::read(at("existing/note")).unwrap(), b"from inside");

    sandbox.copy_out("/dir", at("existing")).await.unwrap();
    assert!(at("existing/dir").is_dir());
    let error = copy_error(sandbox.copy_out("/dir", at("existing")).await);
    assert!(matches!(error, CopyError::DirectoryInTheWay { .. }), "{error}");
    // What a link at the target points to is not touched; the link is replaced.
    fs::write(at("victim"), "untouched").unwrap();
    symlink(at("victim"), at("link")).unwrap();
    sandbox.copy_out("/note", at("link")).await.unwrap();
    assert_eq!(fs::read(at("victim")).unwrap(), b"untouched");
    assert_eq!(fs::read(at("link")).unwrap(), b"from inside");

    let error = copy_error(sandbox.copy_out("/note", at("no/such/place")).await);
    assert!(matches!(error, CopyError::Target(_)), "{error}");
    let error = copy_error(sandbox.copy_out("/nonesuch", at("x")).await);
    assert!(matches!(&error, CopyError::Inside { why, .. } if why.contains("nonesuch")), "{error}");
    let error = copy_error(sandbox.copy_in(at("nonesuch"), "/x").await);
    assert!(matches!(error, CopyError::Io { .. }), "{error}");
    let left = fs::read_dir(host.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(left.into_iter().all(|name| !name.to_string_lossy().starts_with(".belljar")));
}

#[tokio::test]
async fn an_honest_stream_is_taken() {
    let hostile = Hostile::new();
    let parts = [directory(""), directory("a"), file("a/f", "text"), link("a/l", "f"), end()];
    let report = hostile.receive(&parts).await.unwrap();
    assert_eq!((report.files, report.bytes), (1, 4));
    assert_eq!(fs::read(hostile.target().join("a/l")).unwrap(), b"text");
    assert_eq!(hostile.names(), ["bystander", "out"]);
}

#[tokio::test]
async fn hostile_streams_are_refused_and_leave_nothing() {
    let outside = tempfile::tempdir().unwrap();
    let away = outside.path().to_str().unwrap();
    let top = || directory("");
    let huge = entry(EntryKind::File, "f", 0o644, 8 << 60);
    let two_halves = || entry(EntryKind::File, "f", 0o644, u64::MAX);
    let cases: Vec<(&str, Vec<Vec<u8>>)> = vec![
        ("steps up", vec![top(), file("../bystander", "x"), end()]),
        ("steps up on the way", vec![top(), directory("a"), file("a/../../b", "x"), end()]),
        ("an absolute path", vec![top(), file("/etc/x", "x"), end()]),
        ("an empty name", vec![top(), file("a//b", "x"), end()]),
        ("a file twice", vec![top(), file("f", "1"), file("f", "2"), end()]),
        ("a file, then a directory", vec![top(), file("f", "1"), directory("f"), end()]),
        ("a directory, then a file", vec![top(), directory("f"), file("f", "1"), end()]),
        ("a directory twice", vec![top(), directory("f"), directory("f"), end()]),
        ("a link, then a file", vec![top(), file("g", ""), link("f", "g"), file("f", "x"), end()]),
        ("below a file", vec![top(), file("f", "1"), file("f/g", "2"), end()]),
        ("below a link", vec![top(), directory("d"), link("l", "d"), file("l/g", "2"), end()]),
        ("below nothing", vec![top(), file("d/g", "2"), end()]),
        ("two tops", vec![top(), top(), end()]),
        ("no top", vec![file("f", "1"), end()]),
        ("below a top that is a file", vec![file("", "1"), file("f", "1"), end()]),
        ("8 EiB", vec![top(), huge, end()]),
        ("a sum that wraps", vec![top(), file("e", "12"), two_halves(), end()]),
        ("no end", vec![top(), file("f", "1")]),
        ("cut in a file", vec![top(), entry(EntryKind::File, "f", 0o644, 100), b"abc".to_vec()]),
        ("cut in a header", vec![top(), file("f", "1")[..9].to_vec()]),
        ("nothing at all", vec![]),
        ("only an end", vec![end()]),
        ("more after the end", vec![top(), end(), file("f", "1")]),
        ("no known kind", vec![top(), vec![b'z'; 100]]),
        ("a directory with content", vec![top(), entry(EntryKind::Directory, "d", 0, 5), end()]),
        ("a link without end", vec![top(), entry(EntryKind::Link, "l", 0, 1 << 40)]),
        ("a reason without end", vec![top(), entry(EntryKind::Skipped, "s", 0, 1 << 40)]),
        ("a top that is a link", vec![link("", away), end()]),
        ("a read-only tree that fails", {
            let sealed = entry(EntryKind::Directory, "r", 0o555, 0);
            vec![top(), sealed, file("r/f", "1"), file("g", ""), file("g", ""), end()]
        }),
    ];
    for (what, parts) in cases {
        let hostile = Hostile::new();
        let error = copy_error(hostile.receive(&parts).await);
        assert!(!error.to_string().is_empty());
        hostile.assert_nothing_is_left(what);
    }
}

#[tokio::test]
async fn links_that_lead_out_are_left_out_and_told() {
    let hostile = Hostile::new();
    let away = hostile.outside.path().to_str().unwrap();
    let parts = [
        directory(""),
        directory("d"),
        directory("d/e"),
        link("d/e/up", "../.."),
        link("good", "d/e"),
        link("d/good", "../good"),
        link("absolute", away),
        link("d/out", "../../x"),
        link("d/turn", "e/up/../x"),
        link("empty", ""),
        end(),
    ];
    let report = hostile.receive(&parts).await.unwrap();
    let skipped: Vec<String> = report.skipped.iter().map(|(path, _)| path.to_string()).collect();
    assert_eq!(skipped, ["absolute", "d/out", "d/turn", "empty"]);
    assert!(report.skipped[0].1.contains("which is absolute"), "{:?}", report.skipped[0]);
    let root = fs::canonicalize(hostile.target()).unwrap();
    for good in ["good", "d/good", "d/e/up"] {
        assert!(fs::canonicalize(root.join(good)).unwrap().starts_with(&root), "{good}");
    }
}

#[tokio::test]
async fn counts_and_sizes_are_bounded_before_anything_is_written() {
    let limits = CopyLimits { bytes: 1000, entries: 2000 };
    let mut million = vec![directory("")];
    million.extend((0..1_000_000).map(|n| file(&format!("f{n}"), "")));
    let hostile = Hostile::new();
    let error = copy_error(hostile.receive_within(&million, limits).await);
    assert!(matches!(error, CopyError::TooMany { limit: 2000 }), "{error}");
    hostile.assert_nothing_is_left("a million files");

    let fits = [directory(""), file("f", &"x".repeat(1000)), end()];
    assert_eq!(hostile.receive_within(&fits, limits).await.unwrap().bytes, 1000);
    let hostile = Hostile::new();
    let over = [directory(""), file("f", &"x".repeat(999)), file("g", "xx"), end()];
    let error = copy_error(hostile.receive_within(&over, limits).await);
    assert!(matches!(error, CopyError::TooLarge { limit: 1000 }), "{error}");
    hostile.assert_nothing_is_left("too many bytes");

    // The list of what is left out is bounded too.
    let mut skipped = vec![directory("")];
    skipped.extend((0..100_000).map(|n| entry(EntryKind::Skipped, &format!("s{n}"), 0, 0)));
    skipped.push(end());
    let report = hostile.receive(&skipped).await.unwrap();
    assert_eq!((report.skipped.len(), report.unlisted), (1000, 99_000));
}

#[tokio::test]
async fn who_gives_up_on_a_copy_leaves_nothing() {
    let hostile = Hostile::new();
    let mut parts = vec![directory("")];
    parts.extend((0..50_000).map(|n| file(&format!("f{n}"), "content")));
    let waited = std::time::Duration::from_millis(30);
    let gave_up = tokio::time::timeout(waited, hostile.receive(&parts)).await;
    assert!(gave_up.is_err());
    let begun = std::time::Instant::now();
    while hostile.names() != ["bystander"] {
        assert!(begun.elapsed().as_secs() < 60, "{:?}", hostile.names());
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}
