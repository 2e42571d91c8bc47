//! Names, locks, removal and pruning.

use belljar_image::{
    HoldError, ImageName, LoadOptions, LoadSource, PruneScope, RemoveError, Removed, Store,
    StoreError,
};

use crate::archives::{Entry, docker_archive, tar};
use crate::tools::{left_over, options, store};

fn name(text: &str) -> ImageName {
    ImageName::parse(text).unwrap()
}

fn load(store: &Store, archive: &[u8]) {
    store.load(LoadSource::Stream(&mut &archive[..]), &LoadOptions::default()).unwrap();
}

fn layer(content: &str) -> Vec<u8> {
    tar(&[Entry::file("f", content)])
}

fn count(store: &Store, path: &str) -> usize {
    std::fs::read_dir(store.path().join(path)).map_or(0, Iterator::count)
}

fn unpacked(store: &Store) -> usize {
    let variants = std::fs::read_dir(store.path().join("layers")).unwrap();
    variants.map(|variant| std::fs::read_dir(variant.unwrap().path()).unwrap().count()).sum()
}

#[test]
fn a_held_image_has_its_facts_and_its_layers_in_order() {
    let place = tempfile::tempdir().unwrap();
    let store = store(&place);
    load(&store, &docker_archive(&["tool:1"], &[layer("one"), layer("two")]));
    let mut progress = Vec::new();
    let held = store.hold(&name("tool:1"), &options(), &mut |step| progress.push(step)).unwrap();
    assert_eq!(progress.last().map(|step| (step.done, step.of)), Some((2, 2)));
    let config = &held.image.config;
    assert_eq!((config.working_dir.as_str(), config.user.as_str()), ("/srv", "1000:1000"));
    assert_eq!(config.env, ["PATH=/bin", "A=b"]);
    assert_eq!(
        (&config.entrypoint[..], &config.cmd[..]),
        (&["/entry".to_owned()][..], &["one".to_owned(), "two".to_owned()][..])
    );
    assert_eq!(config.volumes, ["/data"]);
    let contents: Vec<String> = held
        .layers
        .iter()
        .map(|layer| std::fs::read_to_string(layer.path.join("f")).unwrap())
        .collect();
    assert_eq!(contents, ["one", "two"]);
    assert_eq!(held.bytes(), 6);
    assert_eq!(left_over(&store), 0);
    let mut again = 0;
    store.hold(&name("tool:1"), &options(), &mut |_| again += 1).unwrap();
    assert_eq!(again, 0, "unpacked once");
    let id = name(&held.image.config_digest.to_string());
    assert_eq!(store.inspect(&id).unwrap().unwrap().manifest, held.image.manifest);
    assert!(matches!(
        store.hold(&name("other"), &options(), &mut |_| {}),
        Err(HoldError::Missing { .. })
    ));
}

#[test]
fn layers_are_shared_between_images() {
    let place = tempfile::tempdir().unwrap();
    let store = store(&place);
    load(&store, &docker_archive(&["a"], &[layer("base"), layer("a")]));
    load(&store, &docker_archive(&["b"], &[layer("base"), layer("b")]));
    let a = store.hold(&name("a"), &options(), &mut |_| {}).unwrap();
    let mut steps = 0;
    let b = store.hold(&name("b"), &options(), &mut |_| steps += 1).unwrap();
    assert_eq!((steps, unpacked(&store)), (1, 3));
    assert_eq!(a.layers[0].path, b.layers[0].path);
    // What both need stays when one goes.
    drop(a);
    assert!(matches!(store.remove(&name("a")).unwrap(), Removed::Image(_)));
    assert_eq!(unpacked(&store), 2);
    assert_eq!(std::fs::read_to_string(b.layers[0].path.join("f")).unwrap(), "base");
}

#[test]
fn an_image_in_use_is_neither_removed_nor_pruned() {
    let place = tempfile::tempdir().unwrap();
    let store = store(&place);
    load(&store, &docker_archive(&["a:1", "a:2"], &[layer("1")]));
    let held = store.hold(&name("a:1"), &options(), &mut |_| {}).unwrap();
    // A second handle, as another process has it.
    let other = Store::open(store.path()).unwrap();
    let left = other.remove(&name("a:1")).unwrap();
    assert_eq!(left, Removed::Name { left: vec!["docker.io/library/a:2".to_owned()] });
    assert!(matches!(other.remove(&name("a:2")), Err(RemoveError::InUse { .. })));
    let report = other.prune(PruneScope::Unused).unwrap();
    assert_eq!((report.images.len(), report.bytes()), (0, 0));
    assert!(held.layers[0].path.join("f").exists());
    drop(held);
    let report = other.prune(PruneScope::Unused).unwrap();
    assert_eq!((report.images.len(), report.layers, report.blobs), (1, 1, 3));
    assert!(report.bytes() > 0);
    assert_eq!(
        (unpacked(&store), count(&store, "blobs/sha256"), count(&store, "locks")),
        (0, 0, 0)
    );
    assert!(store.list().unwrap().is_empty());
    assert_eq!(left_over(&store), 0);
}

#[test]
fn an_image_that_lost_its_name_is_pruned_unless_it_is_in_use() {
    let place = tempfile::tempdir().unwrap();
    let store = store(&place);
    load(&store, &docker_archive(&["a"], &[layer("old")]));
    let held = store.hold(&name("a"), &options(), &mut |_| {}).unwrap();
    load(&store, &docker_archive(&["a"], &[layer("new")]));
    assert_eq!(store.list().unwrap().len(), 2);
    assert_eq!(store.prune(PruneScope::Unnamed).unwrap().images, []);
    assert!(held.layers[0].path.join("f").exists());
    let old = held.image.manifest;
    drop(held);
    assert_eq!(store.prune(PruneScope::Unnamed).unwrap().images, [old]);
    let new = store.hold(&name("a"), &options(), &mut |_| {}).unwrap();
    assert_eq!(std::fs::read_to_string(new.layers[0].path.join("f")).unwrap(), "new");
}

#[test]
fn a_layer_that_hides_everything_below_stands_alone() {
    let place = tempfile::tempdir().unwrap();
    let store = store(&place);
    let hiding = tar(&[Entry::file("g", "2"), Entry::file(".wh..wh..opq", "")]);
    load(&store, &docker_archive(&["a"], &[layer("1"), hiding, layer("3")]));
    let held = store.hold(&name("a"), &options(), &mut |_| {}).unwrap();
    assert_eq!((held.image.layers.len(), held.layers.len()), (3, 2));
    assert!(held.layers[0].path.join("g").exists());
}

#[test]
fn an_image_with_120_layers_is_unpacked() {
    let place = tempfile::tempdir().unwrap();
    let store = store(&place);
    let layers: Vec<Vec<u8>> = (0..120)
        .map(|number| tar(&[Entry::file(format!("f{number}"), format!("{number}"))]))
        .collect();
    load(&store, &docker_archive(&["many"], &layers));
    let held = store.hold(&name("many"), &options(), &mut |_| {}).unwrap();
    assert_eq!(held.layers.len(), 120);
    assert_eq!(std::fs::read_to_string(held.layers[119].path.join("f119")).unwrap(), "119");
}

#[test]
fn a_failed_unpacking_leaves_nothing_and_says_which_entry() {
    let place = tempfile::tempdir().unwrap();
    let store = store(&place);
    let bad = tar(&[Entry::file("fine", "x"), Entry::file("../bad", "x")]);
    load(&store, &docker_archive(&["a"], &[layer("1"), bad]));
    let error = store.hold(&name("a"), &options(), &mut |_| {}).unwrap_err();
    let text = belljar_spec::text::error_chain(&error);
    assert!(text.contains("entry \"../bad\"") && text.contains("\"..\""), "{text}");
    assert_eq!((left_over(&store), unpacked(&store)), (0, 0));
}

#[test]
fn a_damaged_blob_is_found() {
    let place = tempfile::tempdir().unwrap();
    let store = store(&place);
    load(&store, &docker_archive(&["a"], &[layer("1")]));
    let image = store.inspect(&name("a")).unwrap().unwrap();
    let blob = store.path().join("blobs/sha256").join(image.layers[0].blob.hex());
    std::fs::write(blob, layer("2")).unwrap();
    let error = store.hold(&name("a"), &options(), &mut |_| {}).unwrap_err();
    assert!(belljar_spec::text::error_chain(&error).contains("has the digest"), "{error:?}");
    let config = store.path().join("blobs/sha256").join(image.config_digest.hex());
    std::fs::write(config, "{}").unwrap();
    assert!(matches!(store.inspect(&name("a")), Err(StoreError::DamagedBlob { .. })));
}

#[test]
fn a_store_that_others_can_enter_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let place = tempfile::tempdir().unwrap();
    let path = store(&place).path().to_owned();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    assert!(matches!(Store::open(&path), Err(StoreError::NotPrivate { .. })));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
    Store::open(&path).unwrap();
    std::fs::write(path.join("index.json"), r#"{"version":99,"images":[]}"#).unwrap();
    assert!(matches!(Store::open(&path).unwrap().list(), Err(StoreError::Newer { .. })));
    std::fs::write(path.join("index.json"), "{").unwrap();
    assert!(matches!(Store::open(&path).unwrap().list(), Err(StoreError::Index { .. })));
}
