//! Pulls from a registry on loopback: credentials, broken connections, lies.

use std::path::PathBuf;

use belljar_image::{
    BlobError, CredentialSources, HelperPrograms, ImageLimits, ImageName, IngestError, LoadedImage,
    Platform, PullError, PullOptions, PullProgress, Reference, Store, TransportError,
};

use crate::archives::{Entry, gzip, oci_layout, tar};
use crate::registry::{Access, Registry, Sending};
use crate::tools::{left_over, options, store};

fn layout() -> Vec<(String, Vec<u8>)> {
    // Bytes that do not get small.
    let mut number = 1_u32;
    let mut noise = |length: usize| -> Vec<u8> {
        (0..length)
            .map(|_| {
                number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (number >> 24) as u8
            })
            .collect()
    };
    let layers =
        [tar(&[Entry::file("one", noise(200_000))]), tar(&[Entry::file("two", noise(50_000))])];
    oci_layout(None, &layers, gzip)
}

fn pull_options(files: Vec<PathBuf>) -> PullOptions {
    let helpers = HelperPrograms { find: |_, _| None, search_path: "".into(), own_path: "".into() };
    PullOptions {
        unpack: belljar_image::UnpackTime::Later,
        platform: Platform::of_this_machine(),
        limits: ImageLimits::default(),
        credentials: CredentialSources { files, helpers },
    }
}

fn name(registry: &Registry, version: &str) -> Reference {
    Reference::parse(&format!("localhost:{}/me/tool{version}", registry.port)).unwrap()
}

fn pull(store: &Store, reference: &Reference) -> Result<LoadedImage, PullError> {
    store.pull(reference, &pull_options(Vec::new()), &mut |_| {})
}

/// Nothing of it is left.
fn refused(registry: &Registry) -> PullError {
    let place = tempfile::tempdir().unwrap();
    let store = store(&place);
    let error = pull(&store, &name(registry, ":1")).expect_err("it was pulled");
    assert!(store.list().unwrap().is_empty());
    assert_eq!(std::fs::read_dir(store.path().join("blobs/sha256")).unwrap().count(), 0);
    assert_eq!(left_over(&store), 0);
    error
}

#[test]
fn an_image_is_pulled_by_tag_and_by_digest_and_what_is_here_is_not_fetched_again() {
    let registry = Registry::start("me/tool", &layout(), Access::Open, Sending::Whole);
    let place = tempfile::tempdir().unwrap();
    let store = store(&place);
    let mut steps: Vec<PullProgress> = Vec::new();
    let by_tag = name(&registry, ":1");
    store.pull(&by_tag, &pull_options(Vec::new()), &mut |step| steps.push(step)).unwrap();
    let last = steps.last().unwrap();
    assert!(last.bytes == last.of && last.of > 250_000, "{last:?}");
    let held = store.hold(&ImageName::Reference(by_tag.clone()), &options(), &mut |_| {}).unwrap();
    assert_eq!(held.layers.len(), 2);
    assert_eq!(held.image.digest(), registry.digest());
    let before = registry.log().len();
    pull(&store, &name(&registry, &format!("@{}", registry.digest()))).unwrap();
    let log = registry.log();
    assert_eq!(log.len(), before + 1, "the manifest only: {:?}", &log[before..]);
    let image = store.inspect(&ImageName::Reference(by_tag)).unwrap().unwrap();
    assert_eq!(image.names.len(), 2);
}

#[test]
fn what_the_registry_does_not_have_is_told() {
    let registry = Registry::start("me/tool", &layout(), Access::Open, Sending::Whole);
    let place = tempfile::tempdir().unwrap();
    let store = store(&place);
    let missing = pull(&store, &name(&registry, ":2"));
    assert!(matches!(missing, Err(PullError::Missing { .. })), "{missing:?}");
    let other = format!("@{}", belljar_image::Digest::of(b"other"));
    let missing = pull(&store, &name(&registry, &other));
    assert!(matches!(missing, Err(PullError::Missing { .. })), "{missing:?}");
    pull(&store, &name(&registry, ":1")).unwrap();
}

#[test]
fn a_broken_connection_is_resumed_where_it_broke() {
    let sending = Sending::Breaking { after: 30_000 };
    let registry = Registry::start("me/tool", &layout(), Access::Open, sending);
    let place = tempfile::tempdir().unwrap();
    let store = store(&place);
    pull(&store, &name(&registry, ":1")).unwrap();
    let ranges = registry.log().iter().filter(|line| line.contains("bytes=")).count();
    assert!(ranges >= 6, "{:?}", registry.log());
    let name = ImageName::Reference(name(&registry, ":1"));
    store.hold(&name, &options(), &mut |_| {}).unwrap();
}

#[test]
fn a_registry_without_ranges_is_asked_from_the_beginning() {
    let sending = Sending::BreakingWithoutRanges { after: 30_000, times: 2 };
    let registry = Registry::start("me/tool", &layout(), Access::Open, sending);
    let place = tempfile::tempdir().unwrap();
    let store = store(&place);
    let mut last = None;
    let pulled = store.pull(&name(&registry, ":1"), &pull_options(Vec::new()), &mut |step| {
        assert!(step.bytes <= step.of, "{step:?}");
        last = Some(step);
    });
    pulled.unwrap();
    assert_eq!(last.map(|step| step.of - step.bytes), Some(0));
}

#[test]
fn a_registry_that_does_not_listen_is_told() {
    let place = tempfile::tempdir().unwrap();
    let store = store(&place);
    // Bound and closed again.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let reference = Reference::parse(&format!("127.0.0.1:{port}/a:1")).unwrap();
    let error = pull(&store, &reference).unwrap_err();
    let is_right = matches!(error, PullError::Transport { error: TransportError::Connect(_), .. });
    assert!(is_right, "{error:?}");
    assert_eq!(left_over(&store), 0);
}

#[test]
fn a_connection_that_brings_nothing_is_given_up() {
    let sending = Sending::Breaking { after: 0 };
    let registry = Registry::start("me/tool", &layout(), Access::Open, sending);
    // The configuration is the first blob.
    let error = refused(&registry);
    assert!(
        matches!(error, PullError::Transport { error: TransportError::Http(_), .. }),
        "{error:?}"
    );
}

#[test]
fn wrong_bytes_are_refused() {
    let registry = Registry::start("me/tool", &layout(), Access::Open, Sending::Wrong);
    let error = refused(&registry);
    assert!(matches!(error, PullError::Ingest(IngestError::DocumentDigest { .. })), "{error:?}");
    let registry = Registry::start("me/tool", &layout(), Access::Open, Sending::Longer);
    let error = refused(&registry);
    assert!(matches!(error, PullError::Ingest(IngestError::DocumentDigest { .. })), "{error:?}");
}

#[test]
fn wrong_bytes_of_a_layer_are_refused() {
    // The configuration is here already, so that the layers come next.
    for (sending, is_size) in [(Sending::Wrong, false), (Sending::Longer, true)] {
        let files = layout();
        let place = tempfile::tempdir().unwrap();
        let store = store(&place);
        let good = Registry::start("me/tool", &files, Access::Open, Sending::Whole);
        let reference = name(&good, ":1");
        pull(&store, &reference).unwrap();
        let image = store.inspect(&ImageName::Reference(reference)).unwrap().unwrap();
        let blob = store.path().join("blobs/sha256").join(image.layers[1].blob.hex());
        std::fs::remove_file(&blob).unwrap();
        let bad = Registry::start("me/tool", &files, Access::Open, sending);
        let error = pull(&store, &name(&bad, ":1")).unwrap_err();
        let PullError::Blob { error, .. } = error else { panic!("{error:?}") };
        match *error {
            BlobError::Size { .. } => assert!(is_size),
            BlobError::Digest { .. } => assert!(!is_size),
            other => panic!("{other:?}"),
        }
        assert!(!blob.exists());
    }
}

#[test]
fn credentials_are_sent_where_they_are_asked_for() {
    let place = tempfile::tempdir().unwrap();
    for access in [Access::Basic, Access::Bearer] {
        let registry = Registry::start("me/tool", &layout(), access, Sending::Whole);
        let error = refused(&registry);
        assert!(matches!(error, PullError::Denied { .. }), "{error:?}");
        let file = place.path().join(format!("{access:?}.json"));
        let text =
            format!(r#"{{"auths":{{"localhost:{}":{{"auth":"YW5uOnB3"}}}}}}"#, registry.port);
        std::fs::write(&file, text).unwrap();
        let store = Store::open(place.path().join(format!("{access:?}"))).unwrap();
        store.pull(&name(&registry, ":1"), &pull_options(vec![file]), &mut |_| {}).unwrap();
        // The first request has none.
        assert!(registry.log()[0].ends_with("None None"), "{:?}", registry.log());
    }
}

#[test]
fn credentials_do_not_follow_a_redirection() {
    let files = layout();
    let other = Registry::start("me/tool", &files, Access::Open, Sending::Whole);
    let sending = Sending::Redirected { to: other.port };
    let registry = Registry::start("me/tool", &files, Access::Basic, sending);
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("config.json");
    let text = format!(r#"{{"auths":{{"localhost:{}":{{"auth":"YW5uOnB3"}}}}}}"#, registry.port);
    std::fs::write(&file, text).unwrap();
    let store = store(&place);
    store.pull(&name(&registry, ":1"), &pull_options(vec![file]), &mut |_| {}).unwrap();
    assert!(registry.log().iter().any(|line| line.contains("Basic")), "the control");
    let log = other.log();
    assert!(!log.is_empty() && log.iter().all(|line| line.ends_with("None")), "{log:?}");
}

#[test]
fn more_than_the_limit_is_not_fetched() {
    let registry = Registry::start("me/tool", &layout(), Access::Open, Sending::Whole);
    let place = tempfile::tempdir().unwrap();
    let store = store(&place);
    let mut options = pull_options(Vec::new());
    options.limits.blob_bytes = 100_000;
    let error = store.pull(&name(&registry, ":1"), &options, &mut |_| {}).unwrap_err();
    assert!(matches!(error, PullError::Ingest(IngestError::Size { .. })), "{error:?}");
    assert!(!registry.log().iter().any(|line| line.contains("/blobs/")), "{:?}", registry.log());
}
