//! Which image a run starts from: what is asked of an engine, and what is not, for each pull policy.

use std::sync::Mutex;

use crate::fake_engine::{FakeEngine, Pull, image};
use belljar_backend::{Backend, Fetch, ImageError, ImageFacts, Images, PullProgress, Unwatched};
use belljar_spec::{Pull as Policy, RunSpec};

const PINNED: &str = "sha256:00000000000000000000000000000000000000000000000000000000000000aa";

fn spec(name: &str, pull: Policy) -> RunSpec {
    RunSpec { image: name.to_owned(), pull, ..crate::support::spec() }
}

fn found(
    fake: &FakeEngine,
    name: &str,
    pull: Policy,
    fetch: Fetch<'_>,
) -> Result<ImageFacts, ImageError> {
    let (engine, spec) = (fake.engine(), spec(name, pull));
    // Its answers are ready at once: the engine has a runtime of its own.
    engine.image(&spec, &Images { store: None, fetch }).map(Option::unwrap)
}

fn as_said(fake: &FakeEngine, name: &str, pull: Policy) -> Result<ImageFacts, ImageError> {
    found(fake, name, pull, Fetch::AsTheSpecSays(&Unwatched))
}

#[test]
fn what_is_there_is_fetched_only_if_that_is_asked_for() {
    let there = [("here:1", image('1', "amd64"))];
    let fake = FakeEngine::start(false, &there, Pull::Brings(image('2', "amd64")));
    for policy in [Policy::Missing, Policy::Never] {
        assert!(as_said(&fake, "here:1", policy).unwrap().id.ends_with("111"));
    }
    assert_eq!(fake.asked(), ["look here:1", "look here:1"]);
    assert!(as_said(&fake, "here:1", Policy::Always).unwrap().id.ends_with("222"));
    assert_eq!(fake.asked()[2..], ["pull here 1", "look here:1"]);
}

#[test]
fn what_is_missing_is_fetched_once_and_one_version_of_it() {
    for (name, pulled) in [
        ("gone", "pull gone latest"),
        ("reg:5000/team/gone:2", "pull reg:5000/team/gone 2"),
        (&format!("gone:1@{PINNED}"), &format!("pull gone {PINNED}")),
    ] {
        let fake = FakeEngine::start(false, &[], Pull::Brings(image('3', "amd64")));
        let facts = as_said(&fake, name, Policy::Missing).unwrap();
        assert_eq!((facts.name.as_str(), &facts.id[68..]), (name, "333"));
        assert_eq!(fake.asked()[1], pulled);
        assert_eq!(fake.asked().len(), 3);
    }
}

#[test]
fn neither_never_nor_a_dry_run_fetches() {
    let fake = FakeEngine::start(false, &[], Pull::Brings(image('1', "amd64")));
    let never = as_said(&fake, "gone:1", Policy::Never).unwrap_err();
    assert_eq!(never.why, "the engine has no image \"gone:1\", and the pull policy is never");
    assert!(never.fix.starts_with("docker pull gone:1"), "{}", never.fix);
    for policy in Policy::ALL {
        let dry = found(&fake, "gone:1", *policy, Fetch::No).unwrap_err();
        assert!(dry.fix.starts_with("docker pull gone:1"), "{}", dry.fix);
    }
    assert!(fake.asked().iter().all(|asked| asked == "look gone:1"), "{:?}", fake.asked());
}

#[test]
fn what_only_this_machine_can_have_is_to_be_built() {
    let fake = FakeEngine::start(false, &[], Pull::Breaks("pull access denied"));
    for policy in [Policy::Missing, Policy::Never] {
        let fix = |name: &str| as_said(&fake, name, policy).unwrap_err().fix;
        assert_eq!(fix("belljar-agent"), "build it: belljar image build --agent");
        assert_eq!(fix("belljar-x:1"), "build it: belljar image build -t belljar-x:1 CONTEXT");
        assert!(fix("localhost/x").starts_with("build it: "));
        assert!(!fix("me/belljar-x").starts_with("build it: "));
    }
}

#[test]
fn a_failed_pull_is_never_the_old_image() {
    for (pull, word) in [
        (Pull::Refused("manifest unknown\u{1b}[2J"), "manifest unknown\\u{1b}[2J"),
        (Pull::Breaks("unauthorized: authentication required"), "unauthorized"),
        (Pull::Breaks("Get \"https://x/v2/\": dial tcp: no such host"), "no such host"),
    ] {
        let there = [("reg.io/a:1", image('1', "amd64"))];
        let fake = FakeEngine::start(false, &there, pull.clone());
        let error = as_said(&fake, "reg.io/a:1", Policy::Always).unwrap_err();
        assert!(error.why.contains(word), "{}", error.why);
        assert!(error.why.starts_with("cannot fetch \"reg.io/a:1\": "), "{}", error.why);
        assert!(!error.fix.is_empty());
        if word == "unauthorized" {
            assert_eq!(error.fix, "log in: docker login reg.io");
        }
    }
}

#[test]
fn a_name_that_is_none_reaches_no_engine() {
    let fake = FakeEngine::start(false, &[], Pull::Refused("no"));
    for name in ["", "A", "a/../b", "a?x=y", "x\r\nHost: y", "a b", "a@sha256:1"] {
        for policy in Policy::ALL {
            let error = as_said(&fake, name, *policy).unwrap_err();
            assert!(error.why.contains("is not an image name"), "{}", error.why);
        }
    }
    assert_eq!(fake.asked(), Vec::<String>::new());
}

#[test]
fn an_id_is_looked_for_and_never_fetched() {
    let fake = FakeEngine::start(false, &[(PINNED, image('1', "amd64"))], Pull::Refused("no"));
    assert!(as_said(&fake, PINNED, Policy::Always).is_ok());
    let other = PINNED.replace("aa", "bb");
    let error = as_said(&fake, &other, Policy::Missing).unwrap_err();
    assert!(error.fix.contains("an id cannot be fetched"), "{}", error.fix);
    assert_eq!(fake.asked(), [format!("look {PINNED}"), format!("look {other}")]);
}

#[test]
fn podman_looks_first_at_what_was_built_here() {
    let both = [("localhost/x:latest", image('1', "amd64")), ("x", image('2', "amd64"))];
    let fake = FakeEngine::start(true, &both, Pull::Refused("no"));
    assert!(as_said(&fake, "x", Policy::Missing).unwrap().id.ends_with("111"));
    fake.state.lock().unwrap().images.remove("localhost/x:latest");
    assert!(as_said(&fake, "x", Policy::Missing).unwrap().id.ends_with("222"));
    let named = as_said(&fake, "docker.io/x", Policy::Never).unwrap_err();
    assert!(named.fix.starts_with("podman pull docker.io/x"), "{}", named.fix);
    assert_eq!(
        fake.asked(),
        ["look localhost/x:latest", "look localhost/x:latest", "look x", "look docker.io/x"]
    );
}

#[test]
fn an_image_for_another_machine_is_refused() {
    let there = [("arm:1", image('1', "arm64")), ("same:1", image('2', "amd64"))];
    let fake = FakeEngine::start(false, &there, Pull::Refused("no"));
    let error = as_said(&fake, "arm:1", Policy::Missing).unwrap_err();
    assert!(error.why.contains("is for arm64, and the engine's machine is amd64"), "{error:?}");
    assert!(error.fix.contains("linux/amd64"), "{error:?}");
    assert!(as_said(&fake, "same:1", Policy::Missing).is_ok());
}

#[derive(Default)]
struct Seen(Mutex<Vec<String>>);

impl PullProgress for Seen {
    fn fetched(&self, image: &str, bytes: u64, of: u64) {
        self.0.lock().unwrap().push(format!("{image} {bytes}/{of}"));
    }

    fn done(&self) {
        self.0.lock().unwrap().push("done".to_owned());
    }
}

#[test]
fn progress_is_told_and_ends_whatever_happens() {
    let fake = FakeEngine::start(false, &[], Pull::Brings(image('1', "amd64")));
    let seen = Seen::default();
    found(&fake, "x:1", Policy::Missing, Fetch::AsTheSpecSays(&seen)).unwrap();
    assert_eq!(*seen.0.lock().unwrap(), ["x:1 5/10", "x:1 10/10", "done"]);
    let fake = FakeEngine::start(false, &[], Pull::Breaks("x"));
    let seen = Seen::default();
    found(&fake, "x:1", Policy::Missing, Fetch::AsTheSpecSays(&seen)).unwrap_err();
    assert_eq!(*seen.0.lock().unwrap(), ["done"]);
}
