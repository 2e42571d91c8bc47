//! Images with links or other things at the places that a sandbox needs: refused, with the place, and nothing is
//! started or written.

use std::os::unix::fs::PermissionsExt;

use belljar_testkit::{TestImage, TestLayer, each_user};

const NAME: &str = "belljar-test/hostile:1";
const ON_IT: [&str; 6] = ["--backend", "jail", "--image", NAME, "--", "/bin/true"];

fn hostile(layer: TestLayer) -> TestImage {
    TestImage::new(NAME, vec![TestLayer::base(), layer])
}

#[test]
fn nothing_is_mounted_through_a_link_of_an_image() {
    for (link, to, needed_for) in [
        ("proc", "etc", "/proc"),
        ("dev", "/etc", "/dev"),
        ("tmp", "/srv", "/tmp"),
        ("var", "etc", "/var/tmp"),
        ("run", "../../..", "/run"),
        ("home", "/srv", "/home/agent"),
        ("home/agent", "/srv", "/home/agent"),
        ("workspace", "/srv", "/workspace"),
        ("etc", "/srv", "/etc/"),
    ] {
        each_user(|lab| {
            lab.load_image(&hostile(TestLayer::default().link(link, to)));
            let done = lab.run(ON_IT).done();
            let place = format!("/{link} is a link in the image");
            done.expect(125).says(&[&place, &format!("needs this place for {needed_for}")]);
            // The control: the same image without the link.
            lab.load_image(&hostile(TestLayer::default().file("srv/other", "")));
            lab.run(ON_IT).done().expect(0);
        });
    }
}

/// As many distributions have it. The run's own file is seen, and what the link leads to stays as it is, inside and on the
/// host.
#[test]
fn a_file_that_is_made_for_the_run_replaces_a_link_and_follows_nothing() {
    let files = ["passwd", "group", "hosts", "hostname", "resolv.conf"];
    each_user(|lab| {
        let show = files.map(|file| format!("echo {file}:; cat /etc/{file}")).join("; ");
        let words = |script: &str| -> Vec<String> {
            let run = ["--backend", "jail", "--image", NAME, "--", "/bin/sh", "-c", script];
            run.map(str::to_owned).to_vec()
        };
        lab.load_image(&hostile(TestLayer::default()));
        let plain = lab.run(words(&show)).done().expect(0).out();
        assert!(plain.contains("agent:"), "{plain}");
        let on_host = lab.make_file("tmp/of-the-host", "of the host\n");
        let on_host = on_host.to_str().unwrap();
        for to in ["/etc/of-the-image", "of-the-image", "/nowhere/at/all", on_host] {
            let link = |layer: TestLayer, file: &&str| layer.link(&format!("etc/{file}"), to);
            lab.load_image(&hostile(files.iter().fold(TestLayer::default(), link)));
            let script = format!(
                "{show}; echo more >>/etc/hosts; cat /etc/of-the-image >&2; ls /nowhere {on_host}; \
                 find /etc -type l"
            );
            let done = lab.run(words(&script)).done();
            assert_eq!(done.out(), plain, "{to}: {done}");
            assert!(done.err().contains("yes\n") && done.err().contains("Read-only"), "{done}");
            assert_eq!(std::fs::read_to_string(on_host).unwrap(), "of the host\n");
        }
        // A link to the directory above stays refused: see the other tests. So does what is no file at all.
        lab.load_image(&hostile(TestLayer::default().directory("etc/hosts", 0o755, 0)));
        lab.run(ON_IT).done().expect(125).says(&["/etc/hosts is not a file"]);
    });
}

#[test]
fn a_link_above_a_mount_of_the_operators_is_refused_too() {
    each_user(|lab| {
        let data = lab.make_directory("data").display().to_string();
        let mount = format!("{data}:/opt/deep/data");
        let words = ["--backend", "jail", "--image", NAME, "-v", &mount, "--", "/bin/true"];
        for layer in [
            TestLayer::default().link("opt", "/etc"),
            TestLayer::default().directory("opt", 0o755, 0).link("opt/deep", "/etc"),
            TestLayer::default()
                .directory("opt", 0o755, 0)
                .directory("opt/deep", 0o755, 0)
                .link("opt/deep/data", "/etc"),
        ] {
            lab.load_image(&hostile(layer));
            let refused = lab.run(words).done();
            refused.expect(125).says(&["is a link in the image", "/opt/deep/data"]);
        }
        lab.load_image(&hostile(TestLayer::default().directory("opt", 0o700, 0)));
        lab.run(words).done().expect(0);
    });
}

#[test]
fn a_file_in_place_of_a_directory_is_refused_and_the_other_way_round() {
    let file = |path: &'static str| move || TestLayer::default().file(path, "x");
    let directory = || TestLayer::default().directory("etc/group", 0o755, 0);
    let cases: [(&dyn Fn() -> TestLayer, &str); 3] = [
        (&file("tmp"), "/tmp is not a directory"),
        (&file("home"), "/home is not a directory"),
        (&directory, "/etc/group is not a file"),
    ];
    for (layer, says) in cases {
        each_user(|lab| {
            lab.load_image(&hostile(layer()));
            lab.run(ON_IT).done().expect(125).says(&[says]);
            lab.load_image(&hostile(TestLayer::default()));
            lab.run(ON_IT).done().expect(0);
        });
    }
}

/// A link that a layer above replaces, or removes, is not there.
#[test]
fn a_link_that_a_later_layer_removes_does_no_harm() {
    each_user(|lab| {
        let linked = TestLayer::default().link("tmp", "/etc").link("home", "/etc");
        let repaired = TestLayer::default().without("home").directory("tmp", 0o755, 0);
        lab.load_image(&TestImage::new(NAME, vec![TestLayer::base(), linked, repaired]));
        lab.run(ON_IT).done().expect(0);
    });
}

/// Nothing of the made-up files and places is ever written into a layer.
#[test]
fn layers_stay_as_they_were_unpacked() {
    each_user(|lab| {
        lab.load_image(&hostile(TestLayer::default()));
        let layers = lab.home().join("images/layers");
        let listed = || {
            let mut found = Vec::new();
            list(&layers, &mut found);
            found.sort();
            found
        };
        let before = listed();
        assert!(before.iter().any(|line| line.contains("etc/passwd")), "{before:?}");
        lab.run(ON_IT).done().expect(0);
        assert_eq!(listed(), before);
    });
}

fn list(directory: &std::path::Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let meta = path.symlink_metadata().unwrap();
        let modified = meta.modified().unwrap();
        found.push(format!("{} {:o} {modified:?}", path.display(), meta.permissions().mode()));
        if meta.is_dir() {
            list(&path, found);
        }
    }
}
