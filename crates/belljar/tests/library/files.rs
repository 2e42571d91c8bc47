//! Files that are read, written and listed in a sandbox, and hostile answers that are refused.

use std::os::unix::fs::symlink;

use belljar::spec::wire::archive::{Entry, EntryKind};
use belljar::testing::FakeBackend;
use belljar::{Error, FileError, FileKind, Sandbox};

use crate::bench::Bench;

fn entry(kind: EntryKind, size: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    Entry { kind, mode: 0o644, path: Vec::new(), size, modified: 0 }.write(&mut bytes);
    bytes
}

async fn fake(fake: FakeBackend) -> Sandbox {
    Sandbox::builder().no_config().connector(fake).start().await.unwrap()
}

#[track_caller]
fn refusal<T: std::fmt::Debug>(result: Result<T, Error>) -> FileError {
    match result {
        Err(Error::File(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_fake_sandbox_has_files_too() {
    let root = tempfile::tempdir().unwrap();
    let sandbox = fake(FakeBackend::new().files(root.path())).await;
    sandbox.write_file("/deep/er/file", b"content").await.unwrap();
    assert_eq!(std::fs::read(root.path().join("deep/er/file")).unwrap(), b"content");
    assert_eq!(sandbox.read_file("/deep/er/file").await.unwrap(), b"content");
    assert_eq!(sandbox.list_dir("/deep").await.unwrap()[0].info.kind, FileKind::Directory);
    assert!(sandbox.exists("/deep/er").await.unwrap());
    assert!(!sandbox.exists("/deeper").await.unwrap());
}

#[tokio::test]
async fn what_a_sandbox_answers_is_not_trusted() {
    let end = entry(EntryKind::End, 0);
    let answer = |parts: &[Vec<u8>]| fake(FakeBackend::new().packed(parts.concat()));
    let sandbox = answer(&[entry(EntryKind::File, 1), b"x".to_vec(), end.clone()]).await;
    assert_eq!(sandbox.read_file("/f").await.unwrap(), b"x", "the control");
    // A size that no memory holds is refused before a byte of it is taken.
    let sandbox = answer(&[entry(EntryKind::File, u64::MAX)]).await;
    assert!(matches!(refusal(sandbox.read_file("/f").await), FileError::TooLarge { .. }));
    let sandbox = answer(&[entry(EntryKind::File, 5), b"x".to_vec()]).await;
    assert!(matches!(refusal(sandbox.read_file("/f").await), FileError::Invalid { .. }));
    // A link to itself, for ever.
    let sandbox = answer(&[entry(EntryKind::Link, 1), b"f".to_vec(), end]).await;
    assert!(matches!(refusal(sandbox.read_file("/f").await), FileError::TooManyLinks { .. }));
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_written_read_and_listed_inside() {
    let bench = Bench::new();
    let sandbox = bench.builder().start().await.unwrap();
    let bytes: Vec<u8> = (0..300_000_u32).map(|number| number as u8).collect();
    sandbox.write_file("/tmp/some/new/place/large", &bytes).await.unwrap();
    assert_eq!(sandbox.read_file("/tmp/some/new/place/large").await.unwrap(), bytes);
    sandbox.write_file("/tmp/empty", "").await.unwrap();
    assert_eq!(sandbox.read_file("/tmp/empty").await.unwrap(), b"");

    // A relative path is below the workspace, for both; the mode is the file's.
    let script = "#!/bin/sh\necho ran\n";
    sandbox.write_file_with_mode("bin/tool", script, 0o777).await.unwrap();
    assert_eq!(bench.read("bin/tool"), script);
    assert_eq!(sandbox.metadata("bin/tool").await.unwrap().unwrap().mode, 0o755);
    let ran = sandbox.exec(["./bin/tool"]).output().await.unwrap();
    assert_eq!(ran.stdout_text(), "ran\n");

    let made = "ln -s bin/tool link; ln -s link again; ln -s loop loop; mkfifo fifo; mkdir dir; ln -s dir to-dir; \
                ln -s none dangling; : > 'dir/a\nb'";
    assert!(sandbox.exec(["sh", "-c", made]).output().await.unwrap().success());
    assert_eq!(sandbox.read_file("again").await.unwrap(), script.as_bytes());
    let mut all: Vec<(String, FileKind)> = sandbox
        .list_dir(".")
        .await
        .unwrap()
        .into_iter()
        .map(|entry| (entry.name.into_string().unwrap(), entry.info.kind))
        .collect();
    all.sort_by(|one, other| one.0.cmp(&other.0));
    let expected = [
        ("again", FileKind::Link),
        ("bin", FileKind::Directory),
        ("dangling", FileKind::Link),
        ("dir", FileKind::Directory),
        ("fifo", FileKind::Other),
        ("link", FileKind::Link),
        ("loop", FileKind::Link),
        ("to-dir", FileKind::Link),
    ];
    assert_eq!(all, expected.map(|(name, kind)| (name.to_owned(), kind)));
    assert_eq!(sandbox.list_dir("to-dir").await.unwrap()[0].name, "a\nb");
    assert!(!sandbox.exists("dangling").await.unwrap());

    // Replaced in one step, and not written through: the link's target stays.
    sandbox.write_file("link", "mine").await.unwrap();
    assert_eq!((bench.read("link").as_str(), bench.read("bin/tool").as_str()), ("mine", script));

    let read = |path: &'static str| sandbox.read_file(path);
    assert!(matches!(refusal(read("none").await), FileError::NotFound { .. }));
    assert!(matches!(refusal(read("dangling").await), FileError::NotFound { .. }));
    assert!(matches!(refusal(read("dir").await), FileError::IsDirectory { .. }));
    assert!(matches!(refusal(read("fifo").await), FileError::NotAFile { .. }));
    assert!(matches!(
        refusal(read("loop").await),
        FileError::TooManyLinks { .. } | FileError::Inside { .. }
    ));
    let limited = sandbox.read_file_within("/tmp/some/new/place/large", 299_999).await;
    assert!(matches!(refusal(limited), FileError::TooLarge { size: 300_000, .. }));
    assert!(sandbox.read_file_within("/tmp/some/new/place/large", 300_000).await.is_ok());
    assert!(matches!(refusal(sandbox.list_dir("bin/tool").await), FileError::NotADirectory { .. }));
    assert!(matches!(refusal(sandbox.list_dir("none").await), FileError::NotFound { .. }));
    assert!(matches!(refusal(sandbox.write_file("dir", "x").await), FileError::Inside { .. }));
    assert!(matches!(
        refusal(sandbox.write_file("/usr/bin/x", "x").await),
        FileError::Inside { .. }
    ));
    assert!(matches!(refusal(sandbox.write_file("/none/x", "x").await), FileError::Inside { .. }));
}

/// The caller names a path inside: a link there leads to nothing of the host.
#[tokio::test(flavor = "multi_thread")]
async fn a_link_leads_to_nothing_outside() {
    let bench = Bench::new();
    let secret = bench.directory.path().join("secret");
    std::fs::write(&secret, "the host's").unwrap();
    symlink(&secret, bench.work().join("link")).unwrap();
    let sandbox = bench.builder().start().await.unwrap();
    assert!(sandbox.read_file("link").await.is_err());
    sandbox.write_file("link", "the run's").await.unwrap();
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), "the host's");
    assert_eq!(bench.read("link"), "the run's");
}
