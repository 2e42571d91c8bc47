//! Several processes with one store: killed in the middle, and all at once.

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use belljar_image::{ImageName, LoadOptions, LoadSource, PruneScope, Store};

use crate::archives::{Entry, docker_archive, tar};
use crate::tools::{left_over, options};

const STORE: &str = "BELLJAR_TEST_IMAGE_STORE";

/// This executable, doing one of the `child_` functions.
fn child(what: &str, store: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("children::child_{what}"), "--ignored", "--nocapture"])
        .env(STORE, store)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap()
}

fn its_store() -> Store {
    Store::open(std::env::var_os(STORE).expect("started by a test")).unwrap()
}

fn name() -> ImageName {
    ImageName::parse("shared:1").unwrap()
}

fn archive() -> Vec<u8> {
    let files = |from: u32| -> Vec<Entry> {
        (from..from + 300)
            .map(|number| Entry::file(format!("d{}/f{number}", number % 7), vec![b'x'; 3000]))
            .collect()
    };
    docker_archive(&["shared:1"], &[tar(&files(0)), tar(&files(1000))])
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..3000 {
        if is_so() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("{what} did not happen within 30 seconds");
}

#[test]
#[ignore = "a part of other tests"]
fn child_load() {
    its_store().load(LoadSource::Stream(&mut std::io::stdin()), &LoadOptions::default()).unwrap();
}

#[test]
#[ignore = "a part of other tests"]
fn child_unpack_and_stop() {
    let wait = &mut |_| std::thread::sleep(std::time::Duration::from_secs(600));
    its_store().hold(&name(), &options(), wait).unwrap();
}

#[test]
#[ignore = "a part of other tests"]
fn child_load_and_hold() {
    let (store, archive) = (its_store(), archive());
    for _ in 0..5 {
        let mut stream = &archive[..];
        store.load(LoadSource::Stream(&mut stream), &LoadOptions::default()).unwrap();
        let held = match store.hold(&name(), &options(), &mut |_| {}) {
            // Another process may prune an image between loading and holding it.
            Err(belljar_image::HoldError::Missing { .. }) => continue,
            held => held.unwrap(),
        };
        for layer in &held.layers {
            let files: u64 = (0..7)
                .filter_map(|number| std::fs::read_dir(layer.path.join(format!("d{number}"))).ok())
                .map(|entries| entries.count() as u64)
                .sum();
            assert_eq!(files, 300, "{}", layer.path.display());
        }
    }
}

#[test]
#[ignore = "a part of other tests"]
fn child_prune() {
    let store = its_store();
    for _ in 0..20 {
        store.prune(PruneScope::Unused).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn what_a_killed_load_left_is_removed_by_the_next_operation() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("images");
    let store = Store::open(&path).unwrap();
    let archive = archive();
    let mut loading = child("load", &path);
    let mut stdin = loading.stdin.take().unwrap();
    stdin.write_all(&archive[..archive.len() / 2]).unwrap();
    wait_until("staging", || {
        let mut work = std::fs::read_dir(path.join("tmp")).unwrap();
        work.any(|work| {
            std::fs::read_dir(work.unwrap().path().join("blobs"))
                .is_ok_and(|blobs| blobs.count() > 1)
        })
    });
    // While it lives nobody touches its work.
    store.prune(PruneScope::Unused).unwrap();
    assert_eq!(left_over(&store), 1);
    loading.kill().unwrap();
    loading.wait().unwrap();
    assert_eq!(left_over(&store), 1);
    store.prune(PruneScope::Unused).unwrap();
    assert_eq!(left_over(&store), 0);
    assert!(store.list().unwrap().is_empty());
    // The control: what is not killed is loaded.
    let mut loading = child("load", &path);
    loading.stdin.take().unwrap().write_all(&archive).unwrap();
    assert!(loading.wait().unwrap().success());
    assert_eq!(store.list().unwrap().len(), 1);
}

#[test]
fn what_a_killed_unpacking_left_is_removed_by_the_next_operation() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("images");
    let store = Store::open(&path).unwrap();
    store.load(LoadSource::Stream(&mut &archive()[..]), &LoadOptions::default()).unwrap();
    let mut unpacking = child("unpack_and_stop", &path);
    wait_until("unpacking", || {
        let work = std::fs::read_dir(path.join("tmp")).unwrap();
        work.flatten().any(|work| {
            let layers = std::fs::read_dir(work.path()).into_iter().flatten().flatten();
            layers.into_iter().any(|layer| layer.path().join("layer.json").exists())
        })
    });
    unpacking.kill().unwrap();
    unpacking.wait().unwrap();
    assert_eq!(left_over(&store), 1);
    assert_eq!(std::fs::read_dir(path.join("layers")).unwrap().count(), 0, "nothing is in place");
    let held = store.hold(&name(), &options(), &mut |_| {}).unwrap();
    assert_eq!((held.layers.len(), left_over(&store)), (2, 0));
}

#[test]
fn several_processes_load_unpack_and_prune_at_once() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("images");
    let store = Store::open(&path).unwrap();
    let children: Vec<Child> = ["load_and_hold", "load_and_hold", "load_and_hold", "prune"]
        .iter()
        .map(|what| child(what, &path))
        .collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    store.load(LoadSource::Stream(&mut &archive()[..]), &LoadOptions::default()).unwrap();
    let held = store.hold(&name(), &options(), &mut |_| {}).unwrap();
    assert_eq!(held.layers.len(), 2);
    assert_eq!(left_over(&store), 0);
}
