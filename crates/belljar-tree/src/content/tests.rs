use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};

use super::*;

fn pair() -> (tempfile::TempDir, File, File) {
    let place = tempfile::tempdir().unwrap();
    let make = |name: &str| {
        let path = place.path().join(name);
        File::options().read(true).write(true).create_new(true).open(path).unwrap()
    };
    let (from, to) = (make("from"), make("to"));
    (place, from, to)
}

fn bounds(size: u64) -> ContentBounds {
    ContentBounds { size, budget: u64::MAX }
}

#[test]
fn content_arrives_and_the_bytes_are_told() {
    let (place, from, to) = pair();
    let text: Vec<u8> = (0..BUFFER * 2 + 17).map(|n| (n % 251) as u8 + 1).collect();
    from.write_all_at(&text, 0).unwrap();
    let copied = copy_content(&from, &to, bounds(text.len() as u64)).unwrap();
    assert_eq!(copied.bytes, text.len() as u64);
    assert_eq!(fs::read(place.path().join("to")).unwrap(), text);
}

#[test]
fn holes_stay_holes_and_take_no_budget() {
    let (_place, from, to) = pair();
    from.write_all_at(b"begin", 0).unwrap();
    from.write_all_at(b"end", 1 << 32).unwrap();
    let size = (1 << 32) + 3;
    let bounds = ContentBounds { size, budget: 1 << 20 };
    let copied = copy_content(&from, &to, bounds).unwrap();
    assert!(copied.bytes < 1 << 20, "{copied:?}");
    let made = to.metadata().unwrap();
    assert_eq!(made.len(), size);
    assert!(made.blocks() < 4096, "{made:?}");
    let mut end = [0; 3];
    to.read_exact_at(&mut end, 1 << 32).unwrap();
    assert_eq!(&end, b"end");
    assert_eq!(compare_content(&from, &to).unwrap(), ContentComparison::Same);
    to.write_all_at(b"x", 1 << 31).unwrap();
    assert_eq!(compare_content(&from, &to).unwrap(), ContentComparison::Different);
}

#[test]
fn nothing_more_is_written_than_the_budget_allows() {
    let (_place, from, to) = pair();
    from.write_all_at(&[7; 10_000], 0).unwrap();
    let refused = copy_content(&from, &to, ContentBounds { size: 10_000, budget: 9_999 });
    assert_eq!(refused, Err(CopyContentError::OverBudget { budget: 9_999 }));
    let fits = copy_content(&from, &to, ContentBounds { size: 10_000, budget: 20_000 });
    assert!(fits.is_ok(), "the control: {fits:?}");
    // The part that is asked for counts, and not the file.
    let fits = copy_content(&from, &to, ContentBounds { size: 100, budget: 100 }).unwrap();
    assert_eq!(to.metadata().unwrap().len(), 100);
    assert!(fits.bytes <= 100);
}

#[test]
fn what_a_file_grew_or_shrank_by_does_not_change_the_length() {
    let (place, from, to) = pair();
    from.write_all_at(b"0123456789", 0).unwrap();
    copy_content(&from, &to, bounds(4)).unwrap();
    assert_eq!(fs::read(place.path().join("to")).unwrap(), b"0123");
    to.set_len(0).unwrap();
    copy_content(&from, &to, bounds(12)).unwrap();
    assert_eq!(fs::read(place.path().join("to")).unwrap(), b"0123456789\0\0");
}

#[test]
fn by_hand_does_the_same() {
    let (place, from, to) = pair();
    from.write_all_at(b"abc", (BUFFER * 2) as u64).unwrap();
    let size = (BUFFER * 2 + 3) as u64;
    ftruncate(to.as_fd(), size).unwrap();
    let mut budget = Budget { most: 3, left: 3 };
    copy_by_hand(from.as_fd(), to.as_fd(), (0, size), &mut budget).unwrap();
    assert_eq!(budget.left, 0);
    assert_eq!(
        fs::read(place.path().join("from")).unwrap(),
        fs::read(place.path().join("to")).unwrap()
    );
    let mut budget = Budget { most: 2, left: 2 };
    let refused = copy_by_hand(from.as_fd(), to.as_fd(), (0, size), &mut budget);
    assert_eq!(refused, Err(CopyContentError::OverBudget { budget: 2 }));
}

#[test]
fn a_file_of_eight_exabytes_of_nothing_is_no_work() {
    let (_place, from, to) = pair();
    // As large as this file system can have one.
    let size = (20..63).rev().map(|bits| 1_u64 << bits).find(|size| from.set_len(*size).is_ok());
    let size = size.unwrap();
    let copied = copy_content(&from, &to, ContentBounds { size, budget: 0 }).unwrap();
    assert_eq!(copied.bytes, 0);
    assert_eq!(compare_content(&from, &to).unwrap(), ContentComparison::Same);
}

#[test]
fn an_empty_file_is_copied() {
    let (_place, from, to) = pair();
    assert_eq!(copy_content(&from, &to, bounds(0)).unwrap().bytes, 0);
}
