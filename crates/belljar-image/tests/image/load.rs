//! Archives and layouts of every kind, and what is wrong with some.

use belljar_image::{
    BlobError, DefaultName, Digest, ImageLimits, ImageName, LoadError, LoadOptions, LoadSource,
    LoadedImage, Reference, Store, UnpackTime,
};
use serde_json::json;

use crate::archives::{Entry, config, docker_archive, gzip, oci_layout, tar, zstd};
use crate::tools::{left_over, options, store};

fn layers() -> Vec<Vec<u8>> {
    vec![
        tar(&[Entry::file("etc/one", "1"), Entry::file("gone", "x")]),
        tar(&[Entry::file("etc/two", "2"), Entry::file(".wh.gone", "")]),
    ]
}

fn load(store: &Store, archive: &[u8]) -> Result<Vec<LoadedImage>, LoadError> {
    store.load(LoadSource::Stream(&mut &archive[..]), &LoadOptions::default())
}

fn as_tar(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    tar(&files.iter().map(|(path, data)| Entry::file(path, data)).collect::<Vec<_>>())
}

fn check(store: &Store, name: &str) {
    let name = ImageName::parse(name).unwrap();
    let held = store.hold(&name, &options(), &mut |_| {}).unwrap();
    assert!(held.layers[0].path.join("etc/one").exists());
    assert!(held.layers[1].path.join("etc/two").exists());
    assert_eq!(held.layers[1].report.whiteouts, 1);
}

/// Nothing of a refused archive is there.
fn refused(archive: &[u8]) -> LoadError {
    let place = tempfile::tempdir().unwrap();
    let store = store(&place);
    let error = load(&store, archive).expect_err("it was taken");
    assert!(store.list().unwrap().is_empty());
    assert_eq!(std::fs::read_dir(store.path().join("blobs/sha256")).unwrap().count(), 0);
    assert_eq!(left_over(&store), 0);
    error
}

#[test]
fn archives_are_loaded_however_they_are_compressed() {
    let plain = docker_archive(&["me/tool:2"], &layers());
    for archive in [plain.clone(), gzip(&plain), zstd(&plain)] {
        let place = tempfile::tempdir().unwrap();
        let store = store(&place);
        let loaded = load(&store, &archive).unwrap();
        assert_eq!(loaded[0].names, [Reference::parse("me/tool:2").unwrap()]);
        check(&store, "me/tool:2");
    }
}

#[test]
fn layouts_are_loaded_from_archives_and_directories() {
    for stored in [gzip as fn(&[u8]) -> Vec<u8>, zstd, <[u8]>::to_vec] {
        let files = oci_layout(Some("quay.io/me/tool:3"), &layers(), stored);
        let place = tempfile::tempdir().unwrap();
        let from_tar = Store::open(place.path().join("one")).unwrap();
        load(&from_tar, &as_tar(&files)).unwrap();
        check(&from_tar, "quay.io/me/tool:3");
        let dir = place.path().join("layout");
        for (path, data) in &files {
            let path = dir.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, data).unwrap();
        }
        let from_dir = Store::open(place.path().join("two")).unwrap();
        from_dir.load(LoadSource::Path(&dir), &LoadOptions::default()).unwrap();
        check(&from_dir, "quay.io/me/tool:3");
        assert_eq!(from_dir.list().unwrap()[0].manifest, from_tar.list().unwrap()[0].manifest);
    }
}

#[test]
fn a_link_in_a_layout_is_not_followed() {
    let files = oci_layout(Some("a:1"), &layers(), gzip);
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("layout");
    for (path, data) in &files {
        let path = dir.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, data).unwrap();
    }
    let store = store(&place);
    let blob = dir.join(&files.iter().find(|(path, _)| path.starts_with("blobs")).unwrap().0);
    std::fs::rename(&blob, place.path().join("elsewhere")).unwrap();
    std::os::unix::fs::symlink(place.path().join("elsewhere"), &blob).unwrap();
    let loaded = store.load(LoadSource::Path(&dir), &LoadOptions::default());
    assert!(matches!(loaded, Err(LoadError::Open { .. })), "{loaded:?}");
    std::fs::remove_file(&blob).unwrap();
    std::fs::rename(place.path().join("elsewhere"), &blob).unwrap();
    store.load(LoadSource::Path(&dir), &LoadOptions::default()).unwrap();
}

#[test]
fn an_archive_links_to_a_layer_that_is_there_once() {
    let layer = tar(&[Entry::file("f", "1")]);
    let config = config(&[layer.clone(), layer.clone()]);
    let manifest = json!([{"Config": "c.json", "RepoTags": ["a:1"], "Layers": ["1/layer.tar", "2/layer.tar"]}]);
    let with = |target: &str| {
        tar(&[
            Entry::file("1/layer.tar", &layer),
            Entry::symlink("2/layer.tar", target),
            Entry::file("c.json", &config),
            Entry::file("manifest.json", manifest.to_string()),
        ])
    };
    let place = tempfile::tempdir().unwrap();
    let good = store(&place);
    load(&good, &with("../1/layer.tar")).unwrap();
    let held = good.hold(&ImageName::parse("a:1").unwrap(), &options(), &mut |_| {}).unwrap();
    assert_eq!(held.layers.len(), 2);
    for bad in ["../../1/layer.tar", "/etc/passwd", "layer.tar"] {
        assert!(matches!(refused(&with(bad)), LoadError::MissingFile { .. }), "{bad}");
    }
}

#[test]
fn a_blob_with_another_digest_or_size_is_refused() {
    let mut files = oci_layout(Some("a:1"), &layers(), gzip);
    load(&store(&tempfile::tempdir().unwrap()), &as_tar(&files)).unwrap();
    let layer = files.iter_mut().filter(|(path, _)| path.starts_with("blobs")).nth(1).unwrap();
    layer.1.push(0);
    assert!(matches!(refused(&as_tar(&files)), LoadError::MissingBlob { .. }));
    let place = tempfile::tempdir().unwrap();
    for (path, data) in &files {
        let path = place.path().join("layout").join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, data).unwrap();
    }
    let store = store(&place);
    let source = place.path().join("layout");
    let loaded = store.load(LoadSource::Path(&source), &LoadOptions::default());
    assert!(
        matches!(loaded, Err(LoadError::Blob { error: BlobError::Size { .. }, .. })),
        "{loaded:?}"
    );
}

#[test]
fn a_layer_that_is_not_what_the_configuration_says_is_refused_when_it_is_unpacked() {
    let mut files = oci_layout(Some("a:1"), &layers(), |layer| {
        let mut other = layer.to_vec();
        other.extend([0; 512]);
        gzip(&other)
    });
    let place = tempfile::tempdir().unwrap();
    let store = store(&place);
    load(&store, &as_tar(&files)).unwrap();
    let held = store.hold(&ImageName::parse("a:1").unwrap(), &options(), &mut |_| {});
    let text = belljar_spec::text::error_chain(&held.unwrap_err());
    assert!(text.contains("and its image says"), "{text}");
    files.clear();
}

#[test]
fn the_platform_of_this_machine_is_chosen_and_another_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let mut files = oci_layout(None, &layers(), gzip);
    let (_, index) = files.pop().unwrap();
    let index: serde_json::Value = serde_json::from_slice(&index).unwrap();
    let mut right = index["manifests"][0].clone();
    let mut wrong = right.clone();
    let machine = belljar_image::Platform::of_this_machine();
    right["platform"] = serde_json::to_value(&machine).unwrap();
    wrong["platform"] = json!({"os": "linux", "architecture": "s390x"});
    wrong["digest"] = json!(Digest::of(b"not there").to_string());
    let nested = |manifests: Vec<serde_json::Value>| {
        let inner = json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": manifests}).to_string().into_bytes();
        let digest = Digest::of(&inner);
        let top = json!({"schemaVersion": 2, "manifests": [{
            "mediaType": "application/vnd.oci.image.index.v1+json", "size": inner.len(),
            "digest": digest.to_string(), "annotations": {"io.containerd.image.name": "a:1"}}]});
        let mut files = files.clone();
        files.push((format!("blobs/sha256/{}", digest.hex()), inner));
        files.push(("index.json".to_owned(), top.to_string().into_bytes()));
        (as_tar(&files), digest)
    };
    let (archive, digest) = nested(vec![wrong.clone(), right]);
    let good = store(&place);
    let loaded = load(&good, &archive).unwrap();
    assert_eq!(loaded[0].source, Some(digest));
    check(&good, "a:1");
    check(&good, &format!("whatever@{digest}"));
    let error = refused(&nested(vec![wrong]).0).to_string();
    assert!(error.contains("linux/s390x"), "{error}");
}

#[test]
fn what_is_no_image_is_refused_with_the_reason() {
    assert!(matches!(refused(b""), LoadError::NotImage));
    assert!(matches!(refused(&tar(&[Entry::file("readme", "x")])), LoadError::NotImage));
    assert!(matches!(refused(&[7; 2048]), LoadError::Archive(_)));
    assert!(matches!(refused(&gzip(b"no tar")), LoadError::Archive(_)));
    let empty = tar(&[Entry::file("manifest.json", "[]")]);
    assert!(matches!(refused(&empty), LoadError::Empty));
    let broken = tar(&[Entry::file("manifest.json", "{")]);
    assert!(matches!(refused(&broken), LoadError::Document { .. }));
    let lying = json!([{"Config": "../../etc/passwd", "Layers": []}]).to_string();
    assert!(matches!(
        refused(&tar(&[Entry::file("manifest.json", lying)])),
        LoadError::MissingFile { .. }
    ));
    let mut cut = docker_archive(&["a"], &layers());
    cut.truncate(cut.len() / 2);
    assert!(!matches!(refused(&cut), LoadError::Store(_)));
}

#[test]
fn more_than_the_limit_is_refused() {
    let archive = docker_archive(&["a"], &[tar(&[Entry::file("f", vec![0; 1 << 20])])]);
    let place = tempfile::tempdir().unwrap();
    let store = store(&place);
    let options =
        LoadOptions { limits: ImageLimits { blob_bytes: 1 << 19 }, ..LoadOptions::default() };
    let loaded = store.load(LoadSource::Stream(&mut &archive[..]), &options);
    assert!(matches!(loaded, Err(LoadError::Limit { .. })), "{loaded:?}");
    assert_eq!(left_over(&store), 0);
    load(&store, &archive).unwrap();
}

#[test]
fn an_image_without_a_name_gets_the_one_that_is_given() {
    let place = tempfile::tempdir().unwrap();
    let store = store(&place);
    let archive = docker_archive(&[], &layers());
    let loaded = load(&store, &archive).unwrap();
    assert!(loaded[0].names.is_empty());
    check(&store, &loaded[0].manifest.to_string());
    let options = LoadOptions {
        name: DefaultName::Name(Reference::parse("mine").unwrap()),
        ..LoadOptions::default()
    };
    store.load(LoadSource::Stream(&mut &archive[..]), &options).unwrap();
    check(&store, "mine:latest");
    assert_eq!(store.list().unwrap().len(), 1, "the same image");
    let odd = docker_archive(&["Not A Name\u{1b}", "good:1"], &layers());
    let loaded = load(&store, &odd).unwrap();
    assert_eq!((loaded[0].names.len(), loaded[0].bad_names.len()), (1, 1));
    assert!(!loaded[0].bad_names[0].contains('\u{1b}'));
}

#[test]
fn an_exported_image_is_the_same_image() {
    let place = tempfile::tempdir().unwrap();
    let one = Store::open(place.path().join("one")).unwrap();
    load(&one, &as_tar(&oci_layout(Some("quay.io/me/tool:3"), &layers(), gzip))).unwrap();
    let name = ImageName::parse("quay.io/me/tool:3").unwrap();
    let mut archive = Vec::new();
    one.export(&name, &mut archive).unwrap();
    let mut again = Vec::new();
    one.export(&name, &mut again).unwrap();
    assert!(archive == again, "the same bytes");
    let two = Store::open(place.path().join("two")).unwrap();
    load(&two, &archive).unwrap();
    check(&two, "quay.io/me/tool:3");
    let (a, b) = (one.inspect(&name).unwrap().unwrap(), two.inspect(&name).unwrap().unwrap());
    assert_eq!((a.manifest, a.config_digest, a.names), (b.manifest, b.config_digest, b.names));
}

#[test]
fn an_image_that_cannot_be_unpacked_takes_no_name() {
    let place = tempfile::tempdir().unwrap();
    let store = store(&place);
    let strict =
        LoadOptions { unpack: UnpackTime::BeforeNames(options()), ..LoadOptions::default() };
    let load_strictly = |archive: &[u8]| store.load(LoadSource::Stream(&mut &archive[..]), &strict);
    let good = load_strictly(&docker_archive(&["a:1", "b:1"], &layers())).unwrap().remove(0);
    assert!(good.moved.is_empty());
    let (index, blobs) = (store.path().join("index.json"), store.path().join("blobs/sha256"));
    let state = || {
        let blobs = std::fs::read_dir(&blobs).unwrap().count();
        (std::fs::read_to_string(&index).unwrap(), blobs)
    };
    let before = state();
    let bad_layer = tar(&[Entry::file("../out", "x")]);
    let hostile = docker_archive(&["a:1", "new:1"], &[layers().remove(0), bad_layer]);
    let refused = load_strictly(&hostile);
    assert!(matches!(refused, Err(LoadError::Unpack(_))), "{refused:?}");
    assert_eq!(state(), before);
    assert_eq!(left_over(&store), 0);
    check(&store, "a:1");
    // One that is here already, without its layers, keeps the names it has.
    let moved = load(&store, &hostile).unwrap().remove(0).moved;
    assert_eq!(moved.len(), 1, "the control: the archive is refused for its layer only");
    assert_eq!((moved[0].name.as_str(), moved[0].from), ("docker.io/library/a:1", good.manifest));
    let before = state();
    load_strictly(&hostile).unwrap_err();
    assert_eq!(state(), before);
    let other = docker_archive(&["b:1"], &layers()[..1]);
    let moved = load_strictly(&other).unwrap().remove(0).moved;
    assert_eq!((moved[0].name.as_str(), moved[0].from), ("docker.io/library/b:1", good.manifest));
    assert!(load_strictly(&other).unwrap().remove(0).moved.is_empty(), "it has the name already");
}

#[test]
fn a_name_with_the_digest_of_something_else_is_left_out() {
    let files = oci_layout(None, &layers(), gzip);
    let index: serde_json::Value = serde_json::from_slice(&files.last().unwrap().1).unwrap();
    let own = index["manifests"][0]["digest"].as_str().unwrap().to_owned();
    for (digest, is_used) in [(own, true), (Digest::of(b"other").to_string(), false)] {
        let place = tempfile::tempdir().unwrap();
        let store = store(&place);
        let name = format!("quay.io/me/tool@{digest}");
        let archive = as_tar(&oci_layout(Some(&name), &layers(), gzip));
        let loaded = load(&store, &archive).unwrap().remove(0);
        assert_eq!(
            (loaded.names.len(), loaded.bad_names.len()),
            if is_used { (1, 0) } else { (0, 1) }
        );
        assert_eq!(store.list().unwrap()[0].names.len(), usize::from(is_used));
        let options = LoadOptions {
            name: DefaultName::Name(Reference::parse(&name).unwrap()),
            ..LoadOptions::default()
        };
        let unnamed = as_tar(&files);
        let loaded = store.load(LoadSource::Stream(&mut &unnamed[..]), &options).unwrap().remove(0);
        assert_eq!(loaded.names.len(), usize::from(is_used));
    }
}
