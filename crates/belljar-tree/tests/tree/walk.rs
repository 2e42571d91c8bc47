//! Walks: everything is visited once, within one budget, and a bound that ends it is told.

use std::convert::Infallible;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use belljar_tree::{
    Bound, Bounds, Dir, EntryKind, TimeBound, Visit, Visitor, WalkEnd, WalkEntry, WalkOrder,
    WalkProblem, WalkReport, walk,
};

use crate::support::{Place, dig, each_resolver, each_resolver_in, is_root, open_descriptors};

fn seen(dir: &Dir, bounds: Bounds, order: WalkOrder) -> (Vec<PathBuf>, WalkReport) {
    let mut seen = Vec::new();
    let mut visit = |entry: &WalkEntry<'_>| {
        seen.push(entry.path().to_owned());
        Ok::<_, Infallible>(Visit::Continue)
    };
    let report = walk(dir, bounds, order, &mut visit).unwrap();
    (seen, report)
}

fn make_some(tree: &Path) {
    fs::create_dir_all(tree.join("b/below/deep")).unwrap();
    fs::create_dir_all(tree.join("a")).unwrap();
    for file in ["z", "b/file", "b/below/deep/file", "a/1", "a/2"] {
        fs::write(tree.join(file), "x").unwrap();
    }
}

const SORTED: [&str; 9] =
    ["a", "a/1", "a/2", "b", "b/below", "b/below/deep", "b/below/deep/file", "b/file", "z"];

#[test]
fn everything_is_visited_once_and_no_link_is_followed() {
    each_resolver(|place, dir| {
        make_some(&place.tree());
        let (paths, report) = seen(dir, Bounds::default(), WalkOrder::Sorted);
        assert_eq!(paths, SORTED.map(PathBuf::from));
        assert!(report.is_complete() && report.entries == 9);
        let (mut paths, _) = seen(dir, Bounds::default(), WalkOrder::AsStored);
        assert!(paths.iter().position(|path| path == Path::new("z")) < Some(2), "{paths:?}");
        paths.sort();
        assert_eq!(paths, SORTED.map(PathBuf::from));
        symlink(place.outside(), place.tree().join("link")).unwrap();
        let (paths, _) = seen(dir, Bounds::default(), WalkOrder::Sorted);
        assert_eq!(paths.len(), 10, "the link, and nothing behind it");
    });
}

/// What is called, in order.
#[derive(Default)]
struct Calls {
    calls: Vec<String>,
    skip: Option<&'static str>,
    stop: Option<&'static str>,
}

impl Visitor for Calls {
    type Error = Infallible;

    fn entry(&mut self, entry: &WalkEntry<'_>) -> Result<Visit, Infallible> {
        let path = entry.path().to_str().unwrap();
        self.calls.push(path.to_owned());
        assert_eq!(entry.depth(), path.split('/').count());
        assert_eq!(entry.stat().unwrap().kind(), entry.kind());
        Ok(match Some(path) {
            path if path == self.skip => Visit::Skip,
            path if path == self.stop => Visit::Stop,
            _ => Visit::Continue,
        })
    }

    fn enter(&mut self, entry: &WalkEntry<'_>, directory: &Dir) -> Result<(), Infallible> {
        assert_eq!(
            directory.stat("").unwrap().identity(),
            entry.parent().stat(entry.name()).unwrap().identity()
        );
        self.calls.push(format!("+{}", entry.path().display()));
        Ok(())
    }

    fn leave(&mut self, path: &Path) -> Result<(), Infallible> {
        self.calls.push(format!("-{}", path.display()));
        Ok(())
    }

    fn problem(&mut self, path: &Path, problem: &WalkProblem) -> Result<(), Infallible> {
        self.calls.push(format!("!{}: {problem}", path.display()));
        Ok(())
    }
}

#[test]
fn a_visitor_is_told_when_a_directory_is_entered_and_left() {
    each_resolver(|place, dir| {
        make_some(&place.tree());
        let mut calls = Calls { skip: Some("b/below"), ..Calls::default() };
        let report = walk(dir, Bounds::default(), WalkOrder::Sorted, &mut calls).unwrap();
        assert!(report.is_complete());
        let expected = ["a", "+a", "a/1", "a/2", "-a", "b", "+b", "b/below", "b/file", "-b", "z"];
        assert_eq!(calls.calls, expected);
        let mut calls = Calls { stop: Some("a/1"), ..Calls::default() };
        let report = walk(dir, Bounds::default(), WalkOrder::Sorted, &mut calls).unwrap();
        assert_eq!(report.end, WalkEnd::Stopped);
        assert_eq!(calls.calls, ["a", "+a", "a/1"]);
    });
}

#[test]
fn each_bound_ends_a_walk_and_is_told() {
    each_resolver(|place, dir| {
        make_some(&place.tree());
        fs::write(place.tree().join("b/below/deep/large"), vec![1; 1 << 20]).unwrap();
        let all = Bounds::default();
        for (bounds, fits, bound) in [
            (Bounds { depth: 3, ..all }, Bounds { depth: 4, ..all }, Bound::Depth),
            (Bounds { entries: 9, ..all }, Bounds { entries: 10, ..all }, Bound::Entries),
            (Bounds { bytes: 1 << 20, ..all }, Bounds { bytes: 4 << 20, ..all }, Bound::Bytes),
            (Bounds { memory: 150, ..all }, Bounds { memory: 2000, ..all }, Bound::Memory),
            (
                Bounds { time: TimeBound::Until(Instant::now()), ..all },
                Bounds { time: TimeBound::within(Duration::from_secs(60)), ..all },
                Bound::Time,
            ),
        ] {
            for order in [WalkOrder::Sorted, WalkOrder::AsStored] {
                let (_, report) = seen(dir, bounds, order);
                let WalkEnd::Bound { bound: told, path } = &report.end else {
                    panic!("{report:?}")
                };
                assert_eq!(*told, bound);
                assert!(!path.as_os_str().is_empty());
                let (_, report) = seen(dir, fits, order);
                assert!(report.is_complete(), "the control of {bound}: {report:?}");
            }
        }
    });
}

#[test]
fn ten_thousand_levels_take_few_descriptors_and_little_time() {
    each_resolver_in(Place::in_memory, |place, dir| {
        let depth = 10_000;
        drop(dig(&place.tree(), "d", depth));
        let before = open_descriptors();
        let (mut most, mut count) = (0, 0);
        let mut visit = |_: &WalkEntry<'_>| {
            count += 1;
            if count % 997 == 0 {
                most = most.max(open_descriptors());
            }
            Ok::<_, Infallible>(Visit::Continue)
        };
        let begun = Instant::now();
        let bounds = Bounds { memory: 4 << 20, ..Bounds::default() };
        let report = walk(dir, bounds, WalkOrder::AsStored, &mut visit).unwrap();
        assert!(report.is_complete(), "{:?}", report.end);
        assert_eq!(count, depth);
        assert!(most > 0 && most < before + 50, "{most} descriptors");
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
        belljar_tree::remove_all(place.tree()).unwrap();
    });
}

#[test]
fn a_directory_that_cannot_be_opened_is_told_and_the_rest_is_visited() {
    if is_root() {
        return; // root opens everything
    }
    let place = Place::new();
    make_some(&place.tree());
    let dir = place.dir(belljar_tree::Resolver::Automatic);
    dir.set_mode("a", 0).unwrap();
    let mut calls = Calls::default();
    let report = walk(&dir, Bounds::default(), WalkOrder::Sorted, &mut calls).unwrap();
    assert_eq!((report.problems, &report.end), (1, &WalkEnd::Complete));
    assert!(!report.is_complete());
    assert!(calls.calls[1].starts_with("!a: "), "{:?}", calls.calls);
    assert!(calls.calls.contains(&"b/below/deep/file".to_owned()));
    dir.set_mode("a", 0o700).unwrap();
}

/// The directories above are moved away while the walk is far below.
#[test]
fn what_is_moved_away_is_told_and_nothing_outside_is_visited() {
    let place = Place::new();
    let top = place.tree().join("top");
    fs::create_dir(&top).unwrap();
    for name in ["aside-1", "aside-2"] {
        fs::create_dir(top.join(name)).unwrap();
    }
    fs::create_dir(top.join("chain")).unwrap();
    drop(dig(&top.join("chain"), "d", 100));
    let elsewhere = place.temp.path().join("elsewhere");
    fs::create_dir_all(elsewhere.join("aside-1/secret")).unwrap();
    fs::create_dir_all(elsewhere.join("aside-2/secret")).unwrap();
    let dir = place.dir(belljar_tree::Resolver::Automatic);
    let mut seen = Vec::new();
    let mut visit = |entry: &WalkEntry<'_>| {
        assert_eq!(entry.kind(), EntryKind::Directory);
        if entry.depth() == 90 {
            fs::rename(top.join("chain"), elsewhere.join("chain")).unwrap();
            fs::rename(&top, place.temp.path().join("away")).unwrap();
        }
        seen.push(entry.path().to_owned());
        Ok::<_, Infallible>(Visit::Continue)
    };
    let report = walk(&dir, Bounds::default(), WalkOrder::AsStored, &mut visit).unwrap();
    assert_eq!(report.end, WalkEnd::Complete);
    assert!(!seen.iter().any(|path| path.ends_with("secret")), "{seen:?}");
    let visited = seen.iter().filter(|path| path.to_str().unwrap().contains("aside")).count();
    assert_eq!(report.problems, u64::from(visited < 2), "{report:?} {visited}");
}
