//! Somebody exchanges directories for links all the time, while the tree is read, written and removed.

use std::fs;
use std::io::Read;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use belljar_tree::{
    Bounds, CopyOwner, Dir, FinalLink, Selection, Visit, WalkEntry, WalkOrder, copy_tree, walk,
};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::support::{Place, SECRET, each_resolver};

const TIME: Duration = Duration::from_millis(700);

/// Exchanges two names until it is told to stop; counts how often.
fn swap(one: &Path, other: &Path, stop: &AtomicBool) -> u64 {
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        if renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).is_ok() {
            count += 1;
        }
    }
    count
}

/// Ends the exchanging, also when the test fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Does `work` again and again while `d` in the tree is now a directory, now a link to the outside.
/// Gives how often it was done.
fn while_swapping(place: &Place, mut work: impl FnMut()) -> u64 {
    fs::create_dir_all(place.tree().join("d")).unwrap();
    fs::write(place.tree().join("d/secret"), "inside").unwrap();
    symlink(place.outside(), place.tree().join("link")).unwrap();
    let (one, other) = (place.tree().join("d"), place.tree().join("link"));
    let stop = AtomicBool::new(false);
    let swaps = AtomicU64::new(0);
    let mut done = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| swaps.store(swap(&one, &other, &stop), Ordering::Relaxed));
        let _stop = StopOnDrop(&stop);
        let begun = Instant::now();
        while begun.elapsed() < TIME {
            work();
            done += 1;
        }
    });
    assert!(swaps.load(Ordering::Relaxed) > 100, "the race took place");
    assert!(done > 10, "{done}");
    done
}

#[test]
fn whoever_follows_links_is_led_out() {
    let place = Place::new();
    let mut led_out = 0;
    while_swapping(&place, || {
        let read = fs::read_to_string(place.tree().join("d/secret"));
        led_out += u64::from(read.is_ok_and(|text| text == SECRET));
    });
    assert!(led_out > 0, "the control of the tests below");
}

#[test]
fn nothing_outside_is_read() {
    each_resolver(|place, dir| {
        let mut read = 0;
        while_swapping(place, || {
            if let Ok(mut file) = dir.open_file("d/secret") {
                let mut text = String::new();
                file.read_to_string(&mut text).unwrap();
                assert_eq!(text, "inside");
                read += 1;
            }
        });
        assert!(read > 0, "sometimes it is a directory");
    });
}

#[test]
fn nothing_outside_is_written_or_removed() {
    each_resolver(|place, dir| {
        let mut made = 0;
        while_swapping(place, || {
            made += u64::from(dir.create_file("d/new", 0o600).is_ok());
            let _ = dir.create_dir("d/more", 0o700);
            let _ = dir.set_mode("d/secret", 0o600);
            let _ = dir.unlink("d/new");
            let _ = dir.remove_dir("d/more");
            let _ = dir.unlink("d/old");
            let _ = dir.symlink("x", "d/old");
        });
        assert!(made > 0, "sometimes it is a directory");
    });
}

#[test]
fn nothing_outside_is_walked_or_copied() {
    each_resolver(|place, dir| {
        let copy = place.temp.path().join("copy");
        fs::create_dir(&copy).unwrap();
        let to = Dir::open(&copy, FinalLink::Refuse).unwrap();
        fs::write(place.outside().join("secret"), SECRET).unwrap();
        let mut visited = 0;
        while_swapping(place, || {
            let mut visit = |entry: &WalkEntry<'_>| {
                if entry.name() == "secret"
                    && let Ok(text) = entry.parent().read_file(entry.name(), 100)
                {
                    assert_eq!(text, b"inside");
                    visited += 1;
                }
                Ok::<_, std::convert::Infallible>(Visit::Continue)
            };
            walk(dir, Bounds::default(), WalkOrder::AsStored, &mut visit).unwrap();
            let everything = |_: &WalkEntry<'_>| Selection::Copy;
            // Both names may be seen as the same, once before and once after an exchange.
            let _ = copy_tree(dir, &to, Bounds::default(), CopyOwner::Caller, everything);
            for name in ["d", "link"] {
                if let Ok(text) = to.read_file(Path::new(name).join("secret"), 100) {
                    assert_eq!(text, b"inside");
                }
            }
            to.remove_contents("").unwrap();
        });
        assert!(visited > 0, "sometimes it is a directory");
    });
}

#[test]
fn nothing_outside_is_removed_with_a_tree() {
    let mut swaps = 0;
    for _ in 0..40 {
        let place = Place::in_memory();
        for name in 0..20 {
            fs::create_dir_all(place.tree().join(format!("{name}/d/e/f"))).unwrap();
            symlink(place.outside(), place.tree().join(format!("{name}/link"))).unwrap();
        }
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let swapper = scope.spawn(|| {
                let mut swaps = 0;
                while !stop.load(Ordering::Relaxed) {
                    for name in 0..20 {
                        let at = place.tree().join(name.to_string());
                        let (one, other) = (at.join("d"), at.join("link"));
                        let swap = renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE);
                        swaps += u64::from(swap.is_ok());
                    }
                }
                swaps
            });
            let stop_at_end = StopOnDrop(&stop);
            // Something may be put back after it was emptied; that is told, and tried again.
            let tries = (0..100).take_while(|_| belljar_tree::remove_all(place.tree()).is_err());
            assert!(tries.count() < 100);
            drop(stop_at_end);
            swaps += swapper.join().unwrap();
        });
        assert!(!place.tree().exists());
        place.check_outside();
    }
    assert!(swaps > 0, "the race took place");
}
