//! `kill -9` of the supervisor in the middle of an iteration, and `belljar resume`.

use std::time::Duration;

use belljar_testkit::{Turn, processes_of, processes_with, send, until};
use rustix::process::Signal;

use crate::stage::Stage;

pub(crate) fn a_killed_supervisor(stage: &Stage<'_>) {
    stage.start_and_hang("work", [Turn::run("echo lost >> made.txt")]);
    let lab = stage.lab;
    let supervisors = || {
        let all = processes_of(&lab.exe).into_iter();
        let named = processes_with("__supervise");
        all.filter(|pid| named.contains(pid)).collect::<Vec<_>>()
    };
    let victims = supervisors();
    assert!(!victims.is_empty(), "no supervisor was found");
    victims.into_iter().for_each(|pid| send(pid, Signal::KILL));
    assert!(until(Duration::from_secs(20), || supervisors().is_empty()));

    stage.model.play([Turn::run("echo kept >> made.txt"), Turn::say("Done after the crash.")]);
    let done = stage.belljar(&["resume", "--json", "work"]).done();
    let resumed = done.json();
    assert_eq!(resumed["reason"], "max_iterations", "{done}");
    assert_eq!(resumed["agent"]["totals"]["iterations"], 1, "{resumed:#}");
    stage.assert_script_is_played();
    stage.assert_only_its_service_was_used();
    let patch = stage.patch("work");
    assert!(patch.contains("+kept\n") && !patch.contains("lost"), "{patch}");
    let runs = lab.runs();
    assert_eq!(stage.show(&runs[0])["reason"], "lost", "{:#}", stage.show(&runs[0]));
    lab.assert_all_sound();
    lab.assert_no_traces(&runs);
}
