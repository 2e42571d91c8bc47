//! A belljar that was built without the jail: it starts containers with the PID 1 of another executable of the same
//! build, and refuses everything else with the reason.

use std::fs;

use belljar::spec::{BUILD, EXIT_NOT_STARTED};
use belljar_testkit::{Actor, Held, Lab, TestEngine, executable};

const ENGINE: TestEngine = TestEngine::DockerNoJail;

#[test]
fn a_container_has_the_pid_1_of_the_executable_beside_it() {
    let Some(lab) = ENGINE.lab() else { return };
    lab.make_file("work/given", "from outside\n");
    let done = lab.sh(&[], "cat given; echo from inside >made; exit 3");
    assert_eq!(done.expect(3).out(), "from outside\n", "{done}");
    assert_eq!(fs::read_to_string(lab.work().join("made")).unwrap(), "from inside\n");

    let done = lab.sh(&["--workspace", ".:overlay"], "rm given made; ls");
    assert_eq!(done.expect(0).out(), "", "{done}");
    assert!(lab.work().join("given").exists() && lab.work().join("made").exists());
    assert_eq!(lab.containers(), Vec::<Held>::new());
}

#[test]
fn what_needs_the_jail_is_refused_with_the_reason() {
    let Some(lab) = ENGINE.lab() else { return };
    let before = lab.runs();
    let refused = lab.belljar(["run", "--backend", "jail", "--", "true"]).done();
    refused.expect(EXIT_NOT_STARTED).says(&["has no jail", "--backend docker"]);
    assert_eq!(lab.runs(), before);
    let refused = lab.belljar(["prove"]).done();
    refused.expect(EXIT_NOT_STARTED).says(&[
        "no attack catalogue",
        "feature jail",
        "use a default build",
    ]);
    let refused = lab.belljar(["__init"]).done();
    refused.expect(EXIT_NOT_STARTED).says(&["no __init", "feature jail"]);
    let listed = lab.belljar(["backends"]).done();
    assert!(listed.expect(0).out().contains("has no jail"), "{listed}");
    // Without a backend by name it takes the next one.
    let image = lab.engine.as_ref().unwrap().empty_image().replace("empty", "busybox");
    let done = lab.belljar(["run", "--image", &image, "--", "sh", "-c", "echo taken"]).done();
    assert_eq!(done.expect(0).out(), "taken\n", "{done}");
}

/// Its containers could only run as root.
#[test]
fn root_is_refused_before_anything_is_made() {
    let Some(access) = ENGINE.access() else { return };
    let lab = Lab::on(access, Actor::Me);
    let refused = lab.sh(&[], "true");
    refused.expect(EXIT_NOT_STARTED).says(&["has no jail", "ordinary user"]);
    lab.assert_nothing_was_made();
}

#[test]
fn pid_1_must_be_there_and_of_the_same_build() {
    let Some(lab) = ENGINE.lab() else { return };
    let original = fs::read(lab.init_beside()).unwrap();
    fs::remove_file(lab.init_beside()).unwrap();
    let refused = lab.sh(&[], "true");
    refused.expect(EXIT_NOT_STARTED).says(&["BELLJAR_EXE", "belljar-linux-"]);

    let mut other = original;
    let mark = format!("belljar-init-build={BUILD};");
    let at = other.windows(mark.len()).position(|bytes| bytes == mark.as_bytes()).unwrap();
    other[at + mark.len() - 2] ^= 1; // the last digit of the build
    let path = lab.make_file("other/belljar", &other);
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let named = |init: &std::path::Path| lab.run(["--", "true"]).env("BELLJAR_EXE", init).done();
    named(&path).expect(EXIT_NOT_STARTED).says(&["another build", BUILD]);
    assert_eq!(lab.live(), Vec::<String>::new());

    named(&executable()).expect(0);
}
