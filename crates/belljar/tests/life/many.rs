//! What is kept of old runs.

use std::collections::BTreeSet;
use std::fs;

use belljar_testkit::{Lab, soak};

/// By default the newest 5 keep their files, and 200 their records; these are set lower here, so that
/// the test need not start so many.
#[test]
fn old_runs_go_by_themselves() {
    let lab = Lab::me();
    let words = ["--no-config", "-c", "retention.runs=12", "-c", "retention.sandboxes=3"];
    let others: Vec<String> = (0..2)
        .map(|_| {
            let before = lab.runs();
            lab.run(words.iter().chain(&["--name", "other", "--", "true"])).done().expect(0);
            lab.runs().into_iter().find(|id| !before.contains(id)).unwrap()
        })
        .collect();
    let mut order: Vec<String> = Vec::new();
    for _ in 0..20 {
        let script = "echo kept > $HOME/file";
        lab.run(words.iter().chain(&["--name", "one", "--", "sh", "-c", script])).done().expect(0);
        let new = lab.runs().into_iter().find(|id| !order.contains(id) && !others.contains(id));
        order.extend(new);
    }
    assert_eq!(order.len(), 20);
    let newest: BTreeSet<String> = order[8..].iter().chain(&others).cloned().collect();
    assert_eq!(lab.runs().into_iter().collect::<BTreeSet<_>>(), newest, "the oldest are gone");
    assert_eq!(lab.rows(), newest.len());
    let keeps = |id: &&String| lab.home().join("runs").join(id).join("home").exists();
    let sandboxes: Vec<&String> = order.iter().filter(keeps).collect();
    assert_eq!(sandboxes, order[17..].iter().collect::<Vec<_>>(), "the newest three");
    assert!(others.iter().all(|id| keeps(&id)), "another name has a count of its own");
    for id in &order[17..] {
        let file = lab.home().join("runs").join(id).join("home/file");
        assert_eq!(fs::read(file).unwrap(), b"kept\n");
    }
    lab.assert_no_traces(&order);
    lab.assert_all_sound();
}

/// The built-in numbers, where there is time for so many runs.
#[test]
fn the_built_in_retention_is_200_records_and_5_sandboxes() {
    let lab = Lab::me();
    let count: usize = if soak() { 230 } else { 8 };
    for _ in 0..count {
        lab.run(["--no-config", "--workspace", "none", "--", "true"]).done().expect(0);
    }
    assert_eq!(lab.runs().len(), count.min(200));
    let keeps = |id: &String| lab.home().join("runs").join(id).join("home").exists();
    assert_eq!(lab.runs().iter().filter(|id| keeps(id)).count(), 5);
    // In the default suite the records' number is read, not reached.
    let spec = belljar::Sandbox::builder().no_config().home(lab.home()).build_spec().unwrap();
    assert_eq!((spec.retention.sandboxes, spec.retention.runs), (5, 200));
}
