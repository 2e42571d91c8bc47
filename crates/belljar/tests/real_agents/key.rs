//! The real key is in no file, no variable and no memory of the sandbox. Everything is read from outside.

use std::path::PathBuf;

use belljar_testkit::{
    Turn, files_with, in_same_pid_namespace, memory_has, processes_of, processes_with, variable_of,
};

use crate::stage::Stage;

/// Directories of the sandbox's root that something can be in.
const TREES: [&str; 6] = ["etc", "home", "run", "tmp", "var", "workspace"];
const REMARK: &str = "A text that the agent keeps in its session.";

pub(crate) fn never_inside(stage: &Stage<'_>) {
    // The agent has used its key, and waits for the model.
    stage.start_and_hang("work", [Turn::run(&format!("echo '{REMARK}' > made.txt"))]);
    let run = stage.lab.runs().pop().unwrap();
    let named = |pid: &u32| variable_of(*pid, stage.agent.key_variable()).is_some();
    let agent = processes_with(stage.agent.name()).into_iter();
    let mut agent = agent.filter(|pid| variable_of(*pid, "BELLJAR_RUN").as_deref() == Some(&run));
    let agent = agent.find(named).expect("no process of the agent");
    let inside = in_same_pid_namespace(agent);
    assert!(inside.len() > 1 && !inside.contains(&std::process::id()), "{inside:?}");

    let placeholder = variable_of(agent, stage.agent.key_variable()).unwrap();
    assert_ne!(placeholder, stage.key);
    let mut searched = 0;
    for pid in &inside {
        let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&environ).contains(&stage.key), "in {pid}'s environment");
        if let Some(has_key) = memory_has(*pid, &stage.key) {
            assert!(!has_key, "the key is in the memory of process {pid}");
            searched += 1;
        }
    }
    assert!(searched > 1, "{inside:?}");
    // Controls: the same search finds the placeholder inside, and the key in the proxy outside.
    assert_eq!(memory_has(agent, &placeholder), Some(true), "the search finds nothing");
    let proxies = processes_with("__egress").into_iter();
    let proxy = proxies.filter(|pid| processes_of(&stage.lab.exe).contains(pid));
    let holders = proxy.filter(|pid| memory_has(*pid, &stage.key) == Some(true)).count();
    assert_eq!(holders, 1, "the proxy has the key");

    let root = PathBuf::from(format!("/proc/{agent}/root"));
    let mut places: Vec<PathBuf> = TREES.iter().map(|tree| root.join(tree)).collect();
    places.push(stage.lab.home().join("runs").join(&run));
    assert_eq!(files_with(&stage.key, &places), Vec::<PathBuf>::new());
    let remembered = files_with(REMARK, &places);
    assert!(remembered.iter().any(|path| path.ends_with("made.txt")), "{remembered:?}");
    stage.stop("work");
    let places = [stage.lab.home(), stage.lab.work()];
    assert_eq!(files_with(&stage.key, &places), Vec::<PathBuf>::new());
    assert_ne!(files_with(REMARK, &places), Vec::<PathBuf>::new());
    stage.assert_only_its_service_was_used();
}
