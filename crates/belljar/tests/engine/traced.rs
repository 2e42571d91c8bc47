//! `--trace-denied` on engines: the engine's own list must not answer before the command's filter, and gVisor refuses.

use belljar::spec::EventKind;
use belljar_testkit::{Lab, TestEngine};

const SCRIPT: &str = "unshare -U true; echo $?; touch /tmp/x; chmod u+s /tmp/x; echo $?; \
                      umount /tmp 2>/dev/null; echo $?";

fn newest_run(lab: &Lab) -> String {
    let why = lab.belljar(["why", "--json"]).done().expect(0).json();
    why["run"].as_str().unwrap().to_owned()
}

fn denied(lab: &Lab, name: &str) -> u64 {
    let events = lab.events(&newest_run(lab));
    let of_call = events
        .iter()
        .filter(|event| event.kind == EventKind::SyscallDenied && event.data["name"] == name);
    of_call.map(|event| event.data["count"].as_u64().unwrap()).sum()
}

fn counts(engine: TestEngine) {
    let Some(lab) = engine.lab() else { return };
    let plain = lab.sh(&[], SCRIPT);
    plain.expect(0);
    assert_eq!(denied(&lab, "unshare"), 0);
    let traced = lab.sh(&["--trace-denied"], SCRIPT);
    traced.expect(0);
    assert_eq!((traced.out(), traced.err()), (plain.out(), plain.err()), "the same errors");
    assert_eq!(denied(&lab, "unshare"), 1, "the attestation's own does not count");
    // On no list of the engine's: its error would come first.
    assert!(denied(&lab, "umount2") >= 1);
}

#[test]
fn refused_calls_are_counted_on_docker() {
    counts(TestEngine::Docker);
}

#[test]
fn refused_calls_are_counted_on_podman() {
    counts(TestEngine::Podman);
}

#[test]
fn refused_calls_are_counted_on_a_rootless_podman() {
    counts(TestEngine::PodmanRootless);
}

#[test]
fn gvisor_refuses_with_the_reason() {
    let Some(lab) = TestEngine::Runsc.lab() else { return };
    lab.sh(&[], "true").expect(0);
    let refused = lab.sh(&["--trace-denied"], "true");
    refused.expect(125).says(&["--trace-denied", "gVisor does not report"]);
}
