//! The jail's own store through the command: pulled from a registry on this machine, without an engine.

use belljar_testkit::{Lab, each_user};

use crate::image_support::{Layer, Registry, auth};

const LOGIN: &str = "ann:secret-of-ann";

fn machine() -> &'static str {
    match std::env::consts::ARCH {
        "aarch64" => "arm64",
        _ => "amd64",
    }
}

/// The command is not in the image; that is found out in a sandbox made from it.
fn run(lab: &Lab, image: &str, options: &[&str]) -> belljar_testkit::Done {
    let words = ["run", "--backend", "jail", "--image", image];
    lab.belljar(words.iter().chain(options).chain(&["--", "/no-such-program"])).done()
}

#[test]
fn an_image_is_pulled_as_the_policy_says() {
    each_user(|lab| {
        let registry = Registry::start(None, machine(), Layer::Small);
        let image = format!("{}/team/app:1", registry.address);
        for options in
            [&["--pull", "never"][..], &["--dry-run"], &["--dry-run", "--pull", "always"]]
        {
            let refused = run(lab, &image, options);
            refused.expect(125).says(&["has no image", &format!("belljar image pull {image}")]);
        }
        assert_eq!(registry.asked(), Vec::<String>::new());
        run(lab, &image, &[]).expect(127);
        assert!(registry.asked().iter().any(|asked| asked.contains("/blobs/")), "it was fetched");
        run(lab, &image, &[]).expect(127);
        assert_eq!(registry.asked(), Vec::<String>::new(), "it is there");
        run(lab, &image, &["--pull", "always"]).expect(127);
        let asked = registry.asked();
        assert!(asked.iter().any(|asked| asked.contains("/manifests/")), "{asked:?}");
        assert!(!asked.iter().any(|asked| asked.contains("/blobs/")), "nothing new: {asked:?}");
        let record = lab.record(&lab.runs()[0]);
        assert_eq!(record["image"]["id"], registry.digest.as_str());
        registry.close();
        run(lab, &image, &["--pull", "always"])
            .expect(125)
            .says(&["cannot pull", &registry.address]);
        let by_digest = format!("{}/team/app@{}", registry.address, registry.digest);
        run(lab, &by_digest, &[]).expect(127);
    });
}

#[test]
fn a_registry_gets_the_callers_credentials_and_nobody_else_does() {
    each_user(|lab| {
        let registry = Registry::start(Some(LOGIN), machine(), Layer::Small);
        let image = format!("{}/team/app:1", registry.address);
        let pull = || lab.belljar(["image", "pull", &image]);
        pull().done().expect(125).says(&["refuses access", "docker login"]);
        let known = serde_json::json!({ "auths": { &registry.address: { "auth": auth(LOGIN) } } });
        lab.make_file("docker/config.json", known.to_string());
        let config = lab.path("docker");
        let pulled = pull().env("DOCKER_CONFIG", config.to_str().unwrap()).done();
        assert_eq!(pulled.expect(0).out(), format!("{image}\n"), "{pulled}");
        assert!(!pulled.err().contains("secret-of-ann"), "{pulled}");
        let shown = lab.belljar(["image", "inspect", &image]).done();
        shown.expect(0).prints(&[&registry.digest, "FROM_IMAGE=yes"]);
        run(lab, &image, &["--pull", "never"]).expect(127);
    });
}

#[test]
fn an_image_for_another_machine_is_refused() {
    each_user(|lab| {
        let registry = Registry::start(None, "s390x", Layer::Small);
        let image = format!("{}/team/app:1", registry.address);
        let refused = run(lab, &image, &[]);
        refused.expect(125).says(&["s390x"]);
        lab.assert_nothing_was_made();
    });
}

#[test]
fn what_is_no_image_is_refused_and_leaves_nothing() {
    each_user(|lab| {
        let file = lab.make_file("tmp/not-an-image", "text");
        let file = file.to_str().unwrap();
        lab.belljar(["image", "load", file]).done().expect(125).says(&["cannot load the image"]);
        lab.belljar(["image", "load", "/no-such-file"]).done().expect(125).says(&["/no-such-file"]);
        lab.belljar(["image", "rm", "nothing:1"])
            .done()
            .expect(125)
            .says(&["no image \"nothing:1\""]);
        lab.belljar(["image", "inspect", "nothing:1"])
            .done()
            .expect(125)
            .says(&["belljar image list"]);
        lab.belljar(["image", "pull", "Not A Name"])
            .done()
            .expect(125)
            .says(&["not an image name"]);
        lab.belljar(["image", "import", "tools:1"]).done().expect(125).says(&["docker:NAME"]);
        let listed = lab.belljar(["image", "list", "--json"]).done();
        assert_eq!(listed.expect(0).json(), serde_json::json!([]), "{listed}");
    });
}
