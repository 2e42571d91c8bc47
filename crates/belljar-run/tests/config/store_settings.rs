//! `[retention]`: from the layers into the run.

use crate::support::{Flags, World};
use belljar_spec::{Retention, RunSpec};

fn setting(text: &str) -> Flags {
    Flags::default().with("-c", text.to_owned())
}

#[test]
fn every_layer_can_set_it_and_the_run_carries_it() {
    let mut world = World::new();
    let of = |world: &World, flags: Flags| {
        let loaded = world.load(flags).unwrap();
        assert_eq!(loaded.retention, loaded.spec.retention);
        (loaded.retention.sandboxes, loaded.retention.runs)
    };
    assert_eq!(of(&world, Flags::default()), (5, 200));
    world.write("etc/config.toml", "[retention]\nsandboxes = 1\nruns = 10");
    assert_eq!(of(&world, Flags::default()), (1, 10));
    let manifest = world.manifest("[retention]\nsandboxes = 2");
    assert!(world.refused(Flags::default()).contains("retention"), "a manifest must be trusted");
    world.trust(&manifest);
    assert_eq!(of(&world, Flags::default()), (2, 10));
    world.env.insert("BELLJAR_RETENTION_RUNS".into(), "30".into());
    assert_eq!(of(&world, Flags::default()), (2, 30));
    assert_eq!(of(&world, setting("retention.runs=40")), (2, 40));
    assert_eq!(of(&world, setting("retention.sandboxes=0")), (0, 30), "0 keeps none");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let world = World::new();
    let refused = world.refused(setting("retention.runs=0"));
    assert!(refused.contains("the minimum is 1"), "{refused}");
    assert!(world.load(setting("retention.runs=1")).is_ok());
    for bad in ["retention.runs=-1", "retention.runs=many", "retention.run=1"] {
        assert!(world.refused(setting(bad)).contains("retention"), "{bad}");
    }
}

#[test]
fn a_spec_of_an_older_version_has_the_built_in_one() {
    let world = World::new();
    let spec = world.load(setting("retention.runs=7")).unwrap().spec;
    let mut stored = serde_json::to_value(&spec).unwrap();
    let again: RunSpec = serde_json::from_value(stored.clone()).unwrap();
    assert_eq!(again.retention, Retention { sandboxes: 5, runs: 7 });
    assert!(stored.as_object_mut().unwrap().remove("retention").is_some());
    let old: RunSpec = serde_json::from_value(stored).unwrap();
    assert_eq!(old.retention, Retention::default());
}
