//! `belljar resume` and `belljar fork`: the agent's own session goes on, and the model is sent what was said before.

use belljar_testkit::Turn;

use crate::stage::Stage;

const REMARK: &str = "The remark of the first iteration.";

fn first(stage: &Stage<'_>) -> String {
    let script = [Turn::run("echo one >> made.txt"), Turn::say(REMARK)];
    let first = stage.session("work", script);
    assert_eq!(first["reason"], "max_iterations", "{first:#}");
    stage.assert_script_is_played();
    first["id"].as_str().unwrap().to_owned()
}

/// The model is sent the earlier conversation.
fn assert_remembers(stage: &Stage<'_>, before: usize) {
    let later = &stage.model.conversation()[before..];
    assert!(!later.is_empty(), "the model was not asked again");
    assert!(later[0].body.contains(REMARK), "{}", later[0].body);
}

pub(crate) fn resume_continues_the_session(stage: &Stage<'_>) {
    let id = first(stage);
    let before = stage.model.conversation().len();
    stage.model.play([Turn::run("echo two >> made.txt"), Turn::say("Again.")]);
    let words = ["resume", "--json", "work", "--extend-iterations", "1"];
    let done = stage.belljar(&words).done();
    let resumed = done.json();
    assert_eq!(resumed["reason"], "max_iterations", "{done}");
    assert_eq!(resumed["agent"]["totals"]["iterations"], 2, "{resumed:#}");
    assert_ne!(resumed["id"], id.as_str());
    stage.assert_script_is_played();
    stage.assert_only_its_service_was_used();
    assert_remembers(stage, before);
    let patch = stage.patch("work");
    assert!(patch.contains("+one\n+two\n"), "{patch}");
    // Each turn is counted once, although agents report sums of the whole session.
    let shown = stage.show("work");
    let used = &shown["agent"]["totals"]["usage"];
    assert_eq!(used["input_tokens"], 4 * crate::stage::USAGE.input_tokens, "{shown:#}");
    stage.lab.assert_all_sound();
    stage.lab.assert_nothing_lives(&stage.lab.runs());
}

pub(crate) fn fork_has_a_copy_of_the_session(stage: &Stage<'_>) {
    let id = first(stage);
    let before = stage.model.conversation().len();
    stage.model.play([Turn::run("echo forked >> made.txt"), Turn::say("Elsewhere.")]);
    let done = stage.belljar(&["fork", "--json", "work", "--name", "other"]).done();
    let forked = done.json();
    assert_eq!(forked["reason"], "max_iterations", "{done}");
    stage.assert_script_is_played();
    stage.assert_only_its_service_was_used();
    assert_remembers(stage, before);
    assert!(stage.patch("other").contains("+one\n+forked\n"), "{}", stage.patch("other"));
    let first = stage.patch(&id);
    assert!(first.contains("+one\n") && !first.contains("forked"), "{first}");
    stage.lab.assert_all_sound();
    stage.lab.assert_nothing_lives(&stage.lab.runs());
}
