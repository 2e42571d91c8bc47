//! Every engine that is here runs a command, gives back what it said and how it ended, and keeps nothing.

use belljar_testkit::{Held, Lab, PrivateDocker, TestEngine, each_engine};

fn runs_and_leaves_nothing(engine: TestEngine) {
    let Some(lab) = engine.lab() else { return };
    let done = lab.sh(&[], "echo hi; exit 3");
    done.expect(3);
    assert_eq!(done.out(), "hi\n", "{done}");
    assert_eq!(lab.containers(), Vec::<Held>::new());
}

#[test]
fn a_command_runs_on_docker() {
    runs_and_leaves_nothing(TestEngine::Docker);
}

#[test]
fn a_command_runs_on_podman() {
    runs_and_leaves_nothing(TestEngine::Podman);
}

#[test]
fn a_command_runs_on_a_rootless_podman() {
    runs_and_leaves_nothing(TestEngine::PodmanRootless);
}

#[test]
fn a_command_runs_on_gvisor() {
    runs_and_leaves_nothing(TestEngine::Runsc);
}

/// Such an image has a `/run` of its own, which only root may write to. Podman leaves it so.
#[test]
fn an_image_with_the_directories_of_a_distribution_works() {
    each_engine(|engine, lab| {
        let image = lab.engine.as_ref().unwrap().debian_image();
        let lab = Lab::on(engine.access().unwrap().with_image(image), engine.actor());
        let done = lab.sh(&[], "touch /tmp/x /var/tmp/x && echo all");
        assert_eq!(done.expect(0).out(), "all\n", "{done}");
    });
}

#[test]
fn an_engine_of_ones_own_can_be_killed_frozen_and_started_again() {
    let Some(mut docker) = PrivateDocker::start() else { return };
    let lab = docker.lab();
    docker.kill();
    assert!(!docker.answers());
    lab.sh(&[], "true").expect(125);
    docker.start_again();
    docker.freeze();
    assert!(!docker.answers());
    docker.thaw();
    let done = lab.sh(&[], "echo again");
    assert_eq!(done.expect(0).out(), "again\n");
    assert_eq!(lab.containers(), Vec::<Held>::new());
}
