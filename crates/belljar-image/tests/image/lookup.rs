//! Looking into an image without mounting it: what the overlay of its layers would show.

use std::path::Path;

use belljar_image::{HeldImage, ImageName, LoadOptions, LoadSource, image_user};

use crate::archives::{Entry, docker_archive, tar};
use crate::tools::{options, store};

fn held(place: &tempfile::TempDir, layers: &[Vec<u8>]) -> HeldImage {
    let store = store(place);
    let archive = docker_archive(&["tool:1"], layers);
    store.load(LoadSource::Stream(&mut &archive[..]), &LoadOptions::default()).unwrap();
    store.hold(&ImageName::parse("tool:1").unwrap(), &options(), &mut |_| {}).unwrap()
}

fn content(image: &HeldImage, path: &str) -> Option<String> {
    let found = image.read_small_file(Path::new(path), 100).unwrap();
    found.map(|content| String::from_utf8(content).unwrap())
}

#[test]
fn links_lead_where_they_would_inside_and_never_out() {
    let place = tempfile::tempdir().unwrap();
    let image = held(
        &place,
        &[tar(&[
            Entry::dir("usr/bin"),
            Entry::file("usr/bin/bash", "#!").mode(0o755),
            Entry::file("usr/share/text", "t").mode(0o644),
            Entry::symlink("bin", "usr/bin"),
            Entry::symlink("sh", "/bin/bash"),
            Entry::symlink("up", "../../../../../usr/share/text"),
            Entry::symlink("host", "/etc/passwd"),
            Entry::symlink("process", "/proc/self/status"),
            Entry::symlink("loop", "loop"),
        ])],
    );
    assert!(image.has_program(Path::new("/bin/bash")));
    assert!(image.has_program(Path::new("/sh")));
    for none in
        ["/usr/share/text", "/usr/bin", "/bin/zsh", "/loop", "/host", "/usr/bin/bash/x", "/"]
    {
        assert!(!image.has_program(Path::new(none)), "{none}");
    }
    assert_eq!(content(&image, "/up").as_deref(), Some("t"), "above the root is the root");
    assert_eq!(content(&image, "/host"), None, "a file of the host");
    assert!(std::fs::read("/proc/self/status").is_ok(), "the control");
    assert_eq!(content(&image, "/process"), None);
}

#[test]
fn later_layers_replace_and_hide() {
    let place = tempfile::tempdir().unwrap();
    let image = held(
        &place,
        &[
            tar(&[
                Entry::dir("etc"),
                Entry::file("etc/kept", "old"),
                Entry::file("etc/changed", "old"),
                Entry::file("etc/gone", "old"),
                Entry::dir("emptied"),
                Entry::file("emptied/old", "old"),
            ]),
            tar(&[
                Entry::dir("etc"),
                Entry::file("etc/changed", "new"),
                Entry::file("etc/.wh.gone", ""),
                Entry::dir("emptied"),
                Entry::file("emptied/.wh..wh..opq", ""),
                Entry::file("emptied/new", "new"),
            ]),
        ],
    );
    assert_eq!(content(&image, "/etc/kept").as_deref(), Some("old"));
    assert_eq!(content(&image, "/etc/changed").as_deref(), Some("new"));
    assert_eq!(content(&image, "/etc/gone"), None);
    assert_eq!(content(&image, "/emptied/new").as_deref(), Some("new"));
    assert_eq!(content(&image, "/emptied/old"), None);
}

#[test]
fn a_large_file_is_not_read_and_users_are_found() {
    let place = tempfile::tempdir().unwrap();
    let image = held(
        &place,
        &[tar(&[
            Entry::file("large", "x".repeat(101)),
            Entry::file("etc/passwd", "web:x:33:34::/:\n"),
        ])],
    );
    image.read_small_file(Path::new("/large"), 100).unwrap_err();
    assert_eq!(image.read_small_file(Path::new("/large"), 101).unwrap().unwrap().len(), 101);
    let user = image_user("web", Some(&image)).unwrap().unwrap();
    assert_eq!((user.uid, user.gid), (33, 34));
}

/// Links to links, with something before each name; only the lowest of 30 layers has them.
fn chain(links: usize, before: &str) -> Vec<Vec<u8>> {
    let target = |next: usize| format!("{before}l{next}");
    let mut lowest = vec![Entry::dir("d"), Entry::file(format!("l{links}"), "end").mode(0o755)];
    lowest.extend((0..links).map(|link| {
        let target = target(link + 1);
        Entry::symlink(format!("l{link}"), &target).pax("linkpath", &target)
    }));
    let others = (1..30).map(|layer| tar(&[Entry::file(format!("layer{layer}"), "")]));
    [tar(&lowest)].into_iter().chain(others).collect()
}

#[test]
fn a_lookup_that_an_image_makes_long_ends_with_an_error() {
    let start = Path::new("/l0");
    for (links, before, why) in [
        (39, "d/../".repeat(60), "more than 32768 names"),
        (39, "./".repeat(1900), "more than 16384 bytes"),
        (41, String::new(), "more than 40 links"),
    ] {
        let place = tempfile::tempdir().unwrap();
        let image = held(&place, &chain(links, &before));
        let error = image.read_small_file(start, 100).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
        assert!(!image.has_program(start), "as if it were missing");
        let last = format!("/l{}", links - 2);
        assert_eq!(content(&image, &last).as_deref(), Some("end"), "the control: few links");
        assert!(image.has_program(Path::new(&last)));
    }
    let place = tempfile::tempdir().unwrap();
    assert_eq!(content(&held(&place, &chain(39, "d/../")), "/l0").as_deref(), Some("end"));
}
