//! Output files: what is kept, where it lies, how it is read back.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use belljar_record::{OutputFile, OutputReader, Piece, Secrets};
use belljar_spec::OutputStream::{self, Stderr, Stdout};
use proptest::prelude::*;
use tempfile::TempDir;

fn file(directory: &Path, limit: u64) -> OutputFile {
    OutputFile::new(directory, 0, Stdout, Secrets::default(), limit)
}

/// Everything that is left, with the gap named.
fn read_back(directory: &Path, stream: OutputStream, total: u64, limit: u64) -> (Vec<u8>, u64) {
    let reader = OutputReader::open(directory, 0, stream, total, limit).unwrap();
    let (mut at, mut bytes, mut lost) = (0, Vec::new(), 0);
    let mut buffer = [0; 7];
    loop {
        match reader.read_at(at, &mut buffer).unwrap() {
            Piece::Bytes(length) => {
                bytes.extend_from_slice(&buffer[..length]);
                at += length as u64;
            }
            Piece::Lost { until } => {
                assert!(until > at);
                lost += until - at;
                at = until;
            }
            Piece::End => break,
        }
    }
    assert_eq!(at, total);
    assert_eq!(lost, reader.lost());
    (bytes, lost)
}

#[test]
fn the_file_is_made_with_the_first_byte_and_never_over_another() {
    let temp = TempDir::new().unwrap();
    let path = temp.path().join("stdout.bin");
    let mut out = file(temp.path(), 1000);
    out.write(b"").unwrap();
    assert!(!path.exists());
    out.write(b"x").unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(file(temp.path(), 1000).write(b"y").is_err());
    assert_eq!(fs::read(&path).unwrap(), b"x");
    let mut third = OutputFile::new(temp.path(), 3, Stderr, Secrets::default(), 10);
    third.write(b"y").unwrap();
    third.sync().unwrap();
    assert_eq!(fs::read(temp.path().join("exec-3.stderr.bin")).unwrap(), b"y");
}

#[test]
fn a_planted_link_is_neither_written_nor_read() {
    let temp = TempDir::new().unwrap();
    let target = temp.path().join("target");
    fs::write(&target, "mine").unwrap();
    std::os::unix::fs::symlink(&target, temp.path().join("stdout.bin")).unwrap();
    assert!(file(temp.path(), 100).write(b"x").is_err());
    assert!(OutputReader::open(temp.path(), 0, Stdout, 4, 100).is_err());
    assert_eq!(fs::read(&target).unwrap(), b"mine");
    fs::rename(&target, temp.path().join("stdout.bin")).unwrap();
    assert!(OutputReader::open(temp.path(), 0, Stdout, 4, 100).is_ok());
}

#[test]
fn an_event_covers_what_came_since_the_last() {
    let temp = TempDir::new().unwrap();
    let mut out = file(temp.path(), 10 << 20);
    assert_eq!(out.take_event(), None);
    out.write(b"hello ").unwrap();
    out.write(b"world").unwrap();
    let event = out.take_event().unwrap();
    assert_eq!((event.exec, event.stream, event.offset, event.length), (0, Stdout, 0, 11));
    assert_eq!(event.hash, blake3::hash(b"hello world").to_hex().as_str());
    assert_eq!(out.take_event(), None);
    out.write(&vec![7; (2 << 20) + 5]).unwrap();
    let lengths: Vec<(u64, u64)> =
        std::iter::from_fn(|| out.take_event()).map(|e| (e.offset, e.length)).collect();
    let mib = 1 << 20;
    assert_eq!(lengths, [(11, mib), (11 + mib, mib), (11 + 2 * mib, 5)]);
}

#[test]
fn secrets_are_not_on_disk_and_what_waited_comes_at_the_end() {
    let temp = TempDir::new().unwrap();
    let secrets = Secrets::new([b"hunter2".to_vec()]);
    let mut out = OutputFile::new(temp.path(), 0, Stdout, secrets, 1000);
    for piece in ["is hun", "ter2 or hunter", "2? hunt"] {
        out.write(piece.as_bytes()).unwrap();
    }
    let done = out.finish().unwrap();
    assert_eq!((done.total, done.masked, done.lost), (27, 2, 0));
    let stored = fs::read(temp.path().join("stdout.bin")).unwrap();
    assert_eq!(stored, b"is ******* or *******? hunt");
    let covered: u64 = std::iter::from_fn(|| out.take_event()).map(|e| e.length).sum();
    assert_eq!(covered, 27);
}

#[test]
fn a_shortened_file_is_an_error_and_not_an_end() {
    let temp = TempDir::new().unwrap();
    file(temp.path(), 100).write(b"hello").unwrap();
    assert_eq!(read_back(temp.path(), Stdout, 5, 100).0, b"hello");
    fs::write(temp.path().join("stdout.bin"), "he").unwrap();
    let reader = OutputReader::open(temp.path(), 0, Stdout, 5, 100).unwrap();
    assert_eq!(reader.read_at(0, &mut [0; 9]).unwrap(), Piece::Bytes(2));
    assert!(reader.read_at(2, &mut [0; 9]).is_err());
}

#[test]
fn a_reader_follows_a_writer() {
    let temp = TempDir::new().unwrap();
    let mut reader = OutputReader::open(temp.path(), 0, Stdout, 0, 100).unwrap();
    assert_eq!(reader.read_at(0, &mut [0; 9]).unwrap(), Piece::End);
    let mut out = file(temp.path(), 100);
    let mut buffer = [0; 9];
    for (at, piece) in [b"one", b"two"].iter().enumerate() {
        out.write(*piece).unwrap();
        reader.grow(out.total()).unwrap();
        assert_eq!(reader.read_at(at as u64 * 3, &mut buffer).unwrap(), Piece::Bytes(3));
        assert_eq!(&buffer[..3], *piece);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn head_and_tail_are_what_they_were(
        limit in 0..80_u64,
        sizes in prop::collection::vec(0..60_usize, 0..12),
        events_after in prop::collection::vec(any::<bool>(), 12),
    ) {
        let temp = TempDir::new().unwrap();
        let mut out = file(temp.path(), limit);
        let mut model = Vec::new();
        let mut events = Vec::new();
        for (size, take) in sizes.iter().zip(events_after) {
            let piece: Vec<u8> = (0..*size).map(|at| ((model.len() + at) % 251) as u8).collect();
            out.write(&piece).unwrap();
            model.extend_from_slice(&piece);
            if take {
                events.extend(std::iter::from_fn(|| out.take_event()));
            }
        }
        let done = out.finish().unwrap();
        events.extend(std::iter::from_fn(|| out.take_event()));
        let half = (limit / 2) as usize;
        let total = model.len();
        let expected = if total <= 2 * half {
            model.clone()
        } else {
            [&model[..half], &model[total - half..]].concat()
        };
        let (bytes, lost) = read_back(temp.path(), Stdout, total as u64, limit);
        prop_assert_eq!(&bytes, &expected);
        prop_assert_eq!((done.total, done.lost), (total as u64, lost));
        prop_assert_eq!(lost as usize, total - expected.len());
        let length = fs::metadata(temp.path().join("stdout.bin")).map_or(0, |found| found.len());
        prop_assert!(length <= limit);

        let mut at = 0;
        for event in &events {
            prop_assert_eq!(event.offset, at);
            at += event.length;
            let bytes = &model[event.offset as usize..at as usize];
            prop_assert_eq!(event.hash.clone(), blake3::hash(bytes).to_hex().to_string());
        }
        prop_assert_eq!(at, total as u64);
        if let Some(tail) = done.tail {
            let bytes = &model[tail.offset as usize..(tail.offset + tail.length) as usize];
            prop_assert_eq!(tail.offset as usize, total - half);
            prop_assert_eq!(tail.hash, blake3::hash(bytes).to_hex().to_string());
        } else {
            prop_assert!(lost == 0 || half == 0);
        }
    }
}
