//! Packs and unpacks trees that are made to do harm.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use belljar_spec::wire::archive::{Entry, EntryKind, MAX_DEPTH};
use belljar_spec::wire::{ReadOnlyFiles, UnpackModes};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use super::list::{ListError, list};
use super::pack::{PackError, pack};
use super::unpack::{UnpackError, UnpackOutcome, unpack};

/// Packs while a thread reads, and gives back the bytes.
fn packed(path: &Path) -> Vec<u8> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        fs::File::from(read).read_to_end(&mut bytes).unwrap();
        bytes
    });
    pack(path, write.as_fd()).unwrap();
    drop(write);
    reader.join().unwrap()
}

/// Each entry with its content.
fn entries(mut bytes: &[u8]) -> Vec<(Entry, Vec<u8>)> {
    let mut all = Vec::new();
    while let Some((entry, length)) = Entry::read(bytes).unwrap() {
        let content = bytes[length..length + entry.size as usize].to_vec();
        bytes = &bytes[length + entry.size as usize..];
        all.push((entry, content));
    }
    assert!(bytes.is_empty());
    assert_eq!(all.pop().unwrap().0.kind, EntryKind::End);
    all
}

fn unpacked(path: &Path, bytes: &[u8]) -> (Result<UnpackOutcome, UnpackError>, Vec<String>) {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let bytes = bytes.to_vec();
    let writer = std::thread::spawn(move || {
        let _ = fs::File::from(write).write_all(&bytes); // the reader may have enough of it
    });
    let mut messages = Vec::new();
    let outcome = unpack(path, rules(), read.as_fd(), |message| messages.push(message.to_owned()));
    drop(read);
    writer.join().unwrap();
    (outcome, messages)
}

fn find<'a>(all: &'a [(Entry, Vec<u8>)], path: &[u8]) -> &'a (Entry, Vec<u8>) {
    all.iter().find(|(entry, _)| entry.path == path).unwrap()
}

#[test]
fn a_hostile_tree_is_packed_without_a_harm() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &[u8]| dir.path().join(OsStr::from_bytes(name));
    fs::write(at(b"a\nb\xff"), "odd name").unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        at(b"fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at(b"socket")).unwrap();
    fs::create_dir(at(b"loop")).unwrap();
    symlink("..", at(b"loop/up")).unwrap();
    symlink("/etc", at(b"elsewhere")).unwrap();
    fs::set_permissions(at(b"a\nb\xff"), fs::Permissions::from_mode(0o4751)).unwrap();
    let all = entries(&packed(dir.path()));
    assert_eq!(all.len(), 7, "{all:?}");
    let (file, content) = find(&all, b"a\nb\xff");
    assert_eq!((file.kind, file.mode, &content[..]), (EntryKind::File, 0o751, &b"odd name"[..]));
    for (name, why) in [(&b"fifo"[..], "a FIFO"), (b"socket", "a socket")] {
        let (entry, content) = find(&all, name);
        assert_eq!((entry.kind, &content[..]), (EntryKind::Skipped, why.as_bytes()));
    }
    let (link, target) = find(&all, b"loop/up");
    assert_eq!((link.kind, &target[..]), (EntryKind::Link, &b".."[..]));
    assert_eq!(find(&all, b"elsewhere").1, b"/etc");
    assert_eq!(all[0].0.kind, EntryKind::Directory);
    assert!(all[0].0.path.is_empty());
}

#[test]
fn a_tree_deeper_than_allowed_is_cut_there_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let mut at = dir.path().to_owned();
    for _ in 0..MAX_DEPTH + 3 {
        at.push("d");
        fs::create_dir(&at).unwrap();
    }
    let all = entries(&packed(dir.path()));
    let directories = all.iter().filter(|(entry, _)| entry.kind == EntryKind::Directory).count();
    assert_eq!(directories, MAX_DEPTH + 1); // with the top
    let (last, why) = all.last().unwrap();
    assert_eq!(last.kind, EntryKind::Skipped);
    assert!(String::from_utf8_lossy(why).contains("deeper than"), "{why:?}");
}

#[test]
fn the_top_may_be_a_file_or_a_link_and_a_link_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "x").unwrap();
    symlink("file", dir.path().join("link")).unwrap();
    let file = entries(&packed(&dir.path().join("file")));
    assert_eq!((file[0].0.kind, &file[0].1[..]), (EntryKind::File, &b"x"[..]));
    let link = entries(&packed(&dir.path().join("link")));
    assert_eq!((link[0].0.kind, &link[0].1[..]), (EntryKind::Link, &b"file"[..]));
    let (_read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let missing = pack(&dir.path().join("none"), write.as_fd());
    assert!(matches!(missing, Err(PackError::Top { error: Errno::NOENT, .. })), "{missing:?}");
}

/// `/sys` and `/proc` announce sizes that are not what a read gives.
#[test]
fn a_file_gives_exactly_as_many_bytes_as_its_header_says() {
    let all = entries(&packed(Path::new("/proc/self/status")));
    assert_eq!(all[0].0.size, 0);
    let all = entries(&packed(Path::new("/sys/kernel/uevent_seqnum")));
    assert_eq!((all[0].0.kind, all[0].0.size), (EntryKind::File, 4096));
    let (note, why) = &all[1];
    assert_eq!((note.kind, &why[..]), (EntryKind::Skipped, &b"it shrank while it was copied"[..]));
}

#[test]
fn a_file_that_grows_all_the_time_comes_to_an_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    fs::write(&path, vec![b'x'; 300_000]).unwrap();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (grower, flag) = (path.clone(), std::sync::Arc::clone(&stop));
    let growing = std::thread::spawn(move || {
        let mut file = fs::OpenOptions::new().append(true).open(grower).unwrap();
        while !flag.load(std::sync::atomic::Ordering::Relaxed) {
            file.write_all(&[b'y'; 4096]).unwrap();
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
    });
    let all = entries(&packed(&path));
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    growing.join().unwrap();
    assert_eq!(all.len(), 1);
    assert!(all[0].1.starts_with(&[b'x'; 300_000]));
}

#[test]
fn a_file_larger_than_any_disk_ends_when_nobody_reads_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sparse");
    let size = 1 << 43; // what ext4 allows too; the code does not look at it
    fs::File::create(&path).unwrap().set_len(size).unwrap();
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let packing = std::thread::spawn(move || pack(&path, write.as_fd()));
    let mut head = vec![0; 200_000];
    let mut read = fs::File::from(read);
    read.read_exact(&mut head).unwrap();
    assert_eq!(Entry::read(&head).unwrap().unwrap().0.size, size);
    drop(read);
    let end = packing.join().unwrap();
    assert!(matches!(end, Err(PackError::Write(Errno::PIPE))), "{end:?}");
}

#[test]
fn a_tree_comes_out_as_it_went_in() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let at = |name: &str| from.path().join(name);
    fs::create_dir_all(at("a/locked")).unwrap();
    fs::write(at("a/locked/x"), vec![7; 200_000]).unwrap();
    fs::write(at("a/run"), "#!").unwrap();
    fs::set_permissions(at("a/run"), fs::Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(at("a/locked"), fs::Permissions::from_mode(0o555)).unwrap();
    symlink("../nowhere", at("a/link")).unwrap();
    // What is there already: a file is replaced, a directory is merged.
    fs::create_dir_all(to.path().join("new/a")).unwrap();
    fs::write(to.path().join("new/a/run"), "old").unwrap();
    fs::write(to.path().join("new/a/other"), "stays").unwrap();
    let (outcome, messages) = unpacked(&to.path().join("new"), &packed(from.path()));
    assert_eq!((outcome.unwrap(), messages), (UnpackOutcome::Whole, Vec::new()));
    let new = |name: &str| to.path().join("new/a").join(name);
    let mode = |name: &str| fs::metadata(new(name)).unwrap().permissions().mode() & 0o7777;
    assert_eq!(fs::read(new("locked/x")).unwrap(), vec![7; 200_000]);
    assert_eq!((fs::read(new("run")).unwrap(), mode("run")), (b"#!".to_vec(), 0o755));
    assert_eq!(mode("locked"), 0o555);
    assert_eq!(fs::read(new("other")).unwrap(), b"stays");
    assert_eq!(fs::read_link(new("link")).unwrap(), Path::new("../nowhere"));
    assert_eq!(fs::read_dir(new("")).unwrap().count(), 4, "no temporary file is left");
    let modified = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
    let age = modified(&at("a/run")).duration_since(modified(&new("run"))).unwrap();
    assert!(age.as_secs() < 1, "the date goes along, in seconds");
}

#[test]
fn what_cannot_be_made_is_told_and_the_rest_is_made() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::create_dir(from.path().join("via")).unwrap();
    fs::write(from.path().join("via/in"), "x").unwrap();
    fs::write(from.path().join("dir\n"), vec![b'x'; 100_000]).unwrap();
    fs::write(from.path().join("good"), "x").unwrap();
    fs::create_dir(to.path().join("dir\n")).unwrap();
    // A link where a directory should be: nothing goes through it.
    let outside = tempfile::tempdir().unwrap();
    symlink(outside.path(), to.path().join("via")).unwrap();
    let (outcome, messages) = unpacked(to.path(), &packed(from.path()));
    assert_eq!(outcome.unwrap(), UnpackOutcome::WithFailures);
    assert_eq!(messages.len(), 3, "{messages:?}");
    assert!(messages.iter().any(|line| line.contains("dir\\u{a}: Is a directory")), "{messages:?}");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    assert_eq!(fs::read(to.path().join("good")).unwrap(), b"x");
}

#[test]
fn a_copy_that_is_cut_off_is_an_error_and_leaves_no_half_file() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(from.path().join("x"), vec![b'x'; 100_000]).unwrap();
    let whole = packed(from.path());
    for length in [0, 10, 60, 50_000, whole.len() - 1] {
        let (outcome, _) = unpacked(to.path(), &whole[..length]);
        assert!(matches!(outcome, Err(UnpackError::Cut)), "{length}: {outcome:?}");
    }
    // The last one had the whole file and only missed the end of the copy.
    assert_eq!(fs::read_dir(to.path()).unwrap().count(), 1);
    assert_eq!(fs::metadata(to.path().join("x")).unwrap().len(), 100_000);
    let (outcome, _) = unpacked(to.path(), b"this is not a copy, but some text");
    assert!(matches!(outcome, Err(UnpackError::Archive(_))), "{outcome:?}");
}

#[test]
fn the_place_of_the_top_decides_what_is_made() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(from.path().join("x"), "new").unwrap();
    let file = packed(&from.path().join("x"));
    let (outcome, _) = unpacked(&to.path().join("y"), &file);
    assert_eq!(outcome.unwrap(), UnpackOutcome::Whole);
    assert_eq!(fs::read(to.path().join("y")).unwrap(), b"new");
    for (place, why) in [("", Errno::ISDIR), ("none/y", Errno::NOENT), ("y/z", Errno::NOTDIR)] {
        let (outcome, _) = unpacked(&to.path().join(place), &file);
        let Err(UnpackError::Top { error, .. }) = outcome else { panic!("{place}: {outcome:?}") };
        assert_eq!(error, why, "{place}");
    }
    let (outcome, _) = unpacked(&to.path().join("none/below"), &packed(from.path()));
    assert!(matches!(outcome, Err(UnpackError::Top { error: Errno::NOENT, .. })), "{outcome:?}");
    // An entry with a name goes into a directory that is there, and into nothing else.
    let mut named = Vec::new();
    let entry =
        Entry { kind: EntryKind::File, mode: 0o644, path: b"n".into(), size: 1, modified: 0 };
    entry.write(&mut named);
    named.push(b'!');
    Entry { kind: EntryKind::End, path: Vec::new(), size: 0, ..entry }.write(&mut named);
    assert_eq!(unpacked(to.path(), &named).0.unwrap(), UnpackOutcome::Whole);
    assert_eq!(fs::read(to.path().join("n")).unwrap(), b"!");
    assert!(unpacked(&to.path().join("none"), &named).0.is_err());
}

/// The entries of a listing, without its end.
fn listed(path: &Path) -> Result<Vec<Entry>, ListError> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        fs::File::from(read).read_to_end(&mut bytes).unwrap();
        bytes
    });
    let done = list(path, write.as_fd());
    drop(write);
    let bytes = reader.join().unwrap();
    done?;
    let (mut rest, mut all) = (bytes.as_slice(), Vec::new());
    while let Some((entry, length)) = Entry::read(rest).unwrap() {
        rest = &rest[length..];
        all.push(entry);
    }
    assert!(rest.is_empty() && all.iter().all(Entry::is_listed));
    assert_eq!(all.pop().unwrap().kind, EntryKind::End);
    Ok(all)
}

#[test]
fn a_listing_names_what_is_there_and_reads_nothing_of_it() {
    let place = tempfile::tempdir().unwrap();
    let tree = place.path().join("tree");
    fs::create_dir_all(tree.join("below/deeper")).unwrap();
    fs::write(tree.join("file"), "four").unwrap();
    symlink("/nowhere", tree.join("dangling")).unwrap();
    symlink("tree", place.path().join("link")).unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    let fifo = tree.join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();

    // The top's link is followed, those in it are not; a FIFO blocks nobody.
    let all = listed(&place.path().join("link")).unwrap();
    let mut seen: Vec<_> =
        all.iter().map(|entry| (entry.path.as_slice(), entry.kind, entry.size)).collect();
    seen.sort_by_key(|(path, ..)| path.to_vec());
    let expected: [(&[u8], EntryKind, u64); 5] = [
        (b"", EntryKind::Directory, 0),
        (b"below", EntryKind::Directory, 0),
        (b"dangling", EntryKind::Link, 0),
        (b"fifo", EntryKind::Skipped, 0),
        (b"file", EntryKind::File, 4),
    ];
    assert_eq!(seen, expected);

    let file = listed(&tree.join("file")).unwrap();
    assert_eq!((file.len(), file[0].kind, file[0].size), (1, EntryKind::File, 4));
    assert_eq!(listed(&tree.join("none")).unwrap(), []);
    assert_eq!(listed(&tree.join("dangling")).unwrap(), []);
    assert_eq!(listed(&tree.join("file/below")).unwrap(), []);
    let long = tree.join("x".repeat(300));
    assert!(matches!(listed(&long), Err(ListError::Look { .. })));
}

fn rules() -> super::unpack::UnpackRules {
    super::unpack::UnpackRules { modes: UnpackModes::Umask, read_only: ReadOnlyFiles::Replace }
}
